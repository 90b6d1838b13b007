package dispatch

import "time"

// State is how far an object is. Why is its Cause's to say.
type State uint8

const (
	StateUnknown   State = iota // the system says something that the adapter does not know; see Observation.Raw
	StatePending                // waits, whatever for
	StateRunning                // an execution has started
	StateSuspended              // started and stopped for a while; not over
	StateEnding                 // is being ended or cleaned up; not over
	StateSucceeded
	StateFailed
	StateCancelled
)

// Ended reports whether an object in the state is over.
func (s State) Ended() bool { return s >= StateSucceeded }

// Cause is why an object is in its state.
type Cause uint8

const (
	CauseNone Cause = iota // nothing to add, or nothing known

	// Why it is pending.
	CauseGated           // behind the gate
	CauseHeld            // a hold of ours, see Observation.Hold
	CauseOperatorHeld    // somebody else holds it
	CauseCapacity        // there is no room yet, or others come first
	CauseNodeUnavailable // what it wants is down, drained or reserved
	CauseUnsatisfiable   // it can never start as it was submitted
	CauseDelayed         // the system itself lets it wait, as after a requeue
	CauseDependency      // waits for another object
	CauseStarting        // nodes are set up, files are brought in

	// Why a running or suspended one is worth a look, and why it failed.
	CauseNodeLost // running: its node does not answer; failed: it has been given up. Processes may live on

	// Why it is over.
	CauseExitCode    // its program ended with another code than 0
	CauseSignalled   // its program was killed by a signal that nobody here asked for
	CauseOutOfMemory // more memory than it was given
	CauseTimeout     // its walltime is over
	CauseDeadline    // it could not be over before its deadline
	CausePreempted   // gave way to other work
	CauseLaunch      // it could not be started: directory, output file, interpreter, account
	CauseRejected    // the submission was refused, and left an object behind
	CauseNeverRan    // it was removed before it ran, as when what it depends on has failed
	CauseLimit       // more of a resource than it was given, other than memory and time
	CauseReplaced    // an earlier execution, ended by a requeue
)

func stateNames() enum {
	return enum{"unknown", "pending", "running", "suspended", "ending", "succeeded", "failed", "cancelled"}
}

func causeNames() enum {
	return enum{"none", "gated", "held", "operator-held", "capacity", "node-unavailable", "unsatisfiable", "delayed", "dependency", "starting",
		"node-lost", "exit-code", "signalled", "out-of-memory", "timeout", "deadline", "preempted", "launch", "rejected", "never-ran", "limit", "replaced"}
}

func (s State) String() string               { return stateNames().text("state", uint8(s)) }
func (c Cause) String() string               { return causeNames().text("cause", uint8(c)) }
func (s State) MarshalText() ([]byte, error) { return stateNames().marshal("state", uint8(s)) }
func (c Cause) MarshalText() ([]byte, error) { return causeNames().marshal("cause", uint8(c)) }

func (s *State) UnmarshalText(b []byte) error {
	v, err := stateNames().parse("state", b)
	*s = State(v)
	return err
}

func (c *Cause) UnmarshalText(b []byte) error {
	v, err := causeNames().parse("cause", b)
	*c = Cause(v)
	return err
}

// Observation is what a batch system says of an object at one moment. What it does not say is nil, zero or "".
type Observation struct {
	Object    ObjectID
	Ref       Ref    // zero when the object carries none that can be read
	Name      string // as it was submitted
	Note      string // as it was submitted
	State     State
	Cause     Cause
	Hold      Instance  // of the hold in place; 0 is none of ours
	Execution Execution // the newest one
	ExitCode  *int      // of the execution that has ended
	Signal    *int      // that ended it
	Submitted time.Time // by the system's clock, like the next three
	Started   time.Time // of the newest execution
	Ends      time.Time // when the system will end it at the latest, while it runs
	Ended     time.Time
	Nodes     []string // where it runs or ran
	Raw       string   // the system's own words: state and reason
	Earlier   []Past   // executions before the newest, oldest first, as far as they can be read
}

// Past is an execution that another has replaced.
type Past struct {
	Execution Execution
	State     State
	Cause     Cause
	ExitCode  *int
	Signal    *int
	Started   time.Time
	Ended     time.Time
	Nodes     []string
}
