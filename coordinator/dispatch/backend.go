package dispatch

import (
	"context"
	"time"

	"substrate/coordinator"
)

// ObjectID is what the batch system calls an object. Systems use an id again after a long time; the Ref tells such objects apart.
type ObjectID string

// Execution counts the starts of an object, from 0.
type Execution uint32

// Instance numbers a hold; 1 to EpochBound-1.
type Instance uint32

// Backend is what every batch system can do. Optional interfaces are below; Open leaves out those that the cluster does not support.
type Backend interface {
	Objects
	Answers
}

// Objects is the life of an object.
type Objects interface {
	// Submit makes an object behind the gate. ErrOutcomeUnknown: look for it with Find until CallBound is over, then submit again.
	Submit(ctx context.Context, spec Spec) (ObjectID, error)
	// OpenGate lets the object start. Opening an open gate succeeds.
	OpenGate(ctx context.Context, id ObjectID) error
	// Inspect says how the object is. ErrNotFound: the system knows it no more and has no history that can tell.
	Inspect(ctx context.Context, id ObjectID) (Observation, error)
	// Stop ends the object, running or not. It succeeds when the object has ended, and returns before that is so.
	Stop(ctx context.Context, id ObjectID) error
	// Find lists what carries the Ref's job, each submission and attempt of it when those are 0, oldest first, then by id. A job that ends in /
	// stands for all whose ids begin so. Nothing found is an empty list; when the system could not be asked for all of it, an error.
	Find(ctx context.Context, ref Ref) ([]Observation, error)
}

// Answers is what a backend says of itself. They are fixed for its life.
type Answers interface {
	// Capabilities answers for what a spec wants; every Capability has an entry.
	Capabilities(ctx context.Context, spec Spec) (Capabilities, error)
	Declarations() Declarations
	// Rules says for each rule of a policy whether its action can be carried out, in the policy's order.
	Rules(policy Policy) []RuleSupport
}

// Holder places holds on what is pending.
type Holder interface {
	// Hold is ErrNotPending when the object has started, ErrEnded when it is over.
	Hold(ctx context.Context, id ObjectID, n Instance) error
	// Release is ErrStale unless hold n is in place.
	Release(ctx context.Context, id ObjectID, n Instance) error
}

// Requeuer carries out an operator's order to run an object again. It is no recovery action.
type Requeuer interface {
	// Requeue ends the execution and has another. ErrOutcomeUnknown can leave the object so that the system itself may restart it;
	// RestoreRequeueBit then takes that back.
	Requeue(ctx context.Context, id ObjectID) error
	RestoreRequeueBit(ctx context.Context, id ObjectID) error
}

// CessationSignal asks from outside the batch system whether the processes of an execution are gone.
type CessationSignal interface {
	// Ceased is Yes, No or Unknown; only Yes is proof.
	Ceased(ctx context.Context, id ObjectID, execution Execution) (Answer, error)
}

// OutputReader reads what an object's executions have written.
type OutputReader interface {
	// Output calls each with pieces in order, one execution's after the other's, until it has given all there is; with Follow until the
	// object is over and all of it was given. An error of each ends it and is returned.
	Output(ctx context.Context, want OutputRequest, each func(OutputPiece) error) error
}

// MultiFinder inspects many objects with one request to the system.
type MultiFinder interface {
	// FindMany leaves out what the system does not know now; Inspect may still know more. One unknown id spoils no other answer.
	FindMany(ctx context.Context, ids []ObjectID) (map[ObjectID]Observation, error)
}

// Reporter says how the answers of a backend came about.
type Reporter interface {
	Preflight() Report
}

// Selective backends say themselves which optional interfaces hold on their cluster, beyond what Open works out.
type Selective interface {
	Offers(of Interface) bool
}

// Stream is one of a job's outputs.
type Stream uint8

const (
	Stdout Stream = iota
	Stderr
)

// OutputRequest says what is to be read.
type OutputRequest struct {
	Object ObjectID
	Ref    Ref // of the submission; files are found by it when the system has forgotten the object
	Stream Stream
	Follow bool
	// From is the first execution wanted, Offset the first byte of it.
	From   Execution
	Offset int64
}

// OutputPiece is some bytes of one execution's output.
type OutputPiece struct {
	Execution Execution
	Offset    int64 // of the first byte in the execution's file
	Data      []byte
}

// Spec is what is submitted.
type Spec struct {
	Ref  Ref
	Name string // for people: shown in the system's lists; "" takes the Ref's job
	Note string // free text that comes back unchanged in observations; no system shows it to the job

	Script  string            // a whole script with its interpreter line; lines end with LF
	Env     map[string]string // exported by the script before anything else; the names that begin with EnvPrefix are taken
	Workdir string            // absolute; "" is the account's home

	Nodes        uint32 // 1 or more
	ProcsPerNode uint32 // started by the system's launcher for each node; 0: 1
	Cores        coordinator.Cores
	Memory       coordinator.Bytes // per node; 0: what the system gives
	GPUs         uint32            // per node
	Exclusive    bool              // whole nodes
	Walltime     time.Duration     // 0: what the system gives; systems round up to a second or a minute

	Queue      string // partition or queue; "" is the system's default
	Account    string
	QoS        string
	Constraint string
	Extra      []string // further arguments of the submission, as the administrator wrote them

	Image  *Image  // extension: run in a container image
	Output *Output // extension: keep what the job writes, to be read by OutputReader
}

// Image asks for a container image.
type Image struct{ Reference string }

// Output asks that stdout and stderr are kept, in one file for each execution.
type Output struct {
	Merge bool // stderr goes where stdout goes
}

// Clock is the time, and waiting.
type Clock interface {
	Now() time.Time
	// Sleep returns ctx's error when that ends first.
	Sleep(ctx context.Context, d time.Duration) error
}
