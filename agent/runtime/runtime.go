// Package runtime turns runs into processes that outlive the agent and tells how they ended.
// It decides nothing: what runs, where and when is the coordinator's.
package runtime

import (
	"context"
	"syscall"
	"time"
)

// RunID names one attempt of an allocation. It is opaque here.
type RunID string

// Bytes of memory or output.
type Bytes uint64

// Runtime is how runs become processes. All methods may be called from many goroutines.
//
// Start, Signal, Stop and Forget only ask: they return once the request is queued, and the outcome
// is a Status from Updates. An error means that the request was not queued.
//
//   - Start is idempotent by id: a run that is known, running or ended, is never started twice; its
//     status is told again. A run that cannot start ends with CauseStartFailed.
//   - Signal reaches the run's first process only. Stop ends all its processes: SIGTERM, then SIGKILL
//     after grace. Either answers for an unknown run with an end of CauseLostStatus.
//   - Forget drops ended runs and their directories; it leaves a running one alone.
//   - Updates waits for changes and returns the new statuses, at most one for each run. Its first
//     answer holds every run the runtime knows, and may be empty. It has one caller.
type Runtime interface {
	Start(ctx context.Context, spec Spec) error
	Signal(ctx context.Context, id RunID, signal syscall.Signal, notice Notice) error
	Stop(ctx context.Context, id RunID, grace time.Duration, reason string) error
	Forget(ctx context.Context, ids ...RunID) error
	Updates(ctx context.Context) ([]Status, error)
}

// Notice tells a run with a signal until when it may tidy up; the zero Notice tells nothing.
type Notice struct {
	Ends time.Time `json:"ends,omitzero"`
}

// Spec is one run. Exactly one of Command and Script is set.
type Spec struct {
	ID        RunID         `json:"id"`
	Command   []string      `json:"command,omitempty"`
	Script    string        `json:"script,omitempty"`
	Image     string        `json:"image,omitempty"`
	Env       []string      `json:"env,omitempty"`     // KEY=VALUE, over the runtime's own
	Account   string        `json:"account,omitempty"` // unix user; "" is the caller, where the runtime allows it
	Cores     uint32        `json:"cores,omitempty"`   // as asked for, told to the run
	CPUs      float64       `json:"cpus,omitempty"`    // limit in logical CPUs, 0 for none
	Memory    Bytes         `json:"memory,omitempty"`  // limit, 0 for none
	Walltime  time.Duration `json:"walltime,omitempty"`
	KillAfter time.Duration `json:"kill_after,omitempty"` // SIGTERM → SIGKILL at the walltime
	Mounts    []Mount       `json:"mounts,omitempty"`
	Rank      uint32        `json:"rank,omitempty"`
	Nodes     []string      `json:"nodes,omitempty"` // of a gang, sorted
}

// Mount offers a host path to a run.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// State of a run. The words are those of the wire.
type State string

const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateEnded    State = "ended"
)

// Cause of a run's end.
type Cause string

const (
	CauseExited      Cause = "exited"
	CauseSignalled   Cause = "signalled"
	CauseStartFailed Cause = "start-failed"
	CauseWalltime    Cause = "walltime"
	CauseStopped     Cause = "stopped"
	CauseOOM         Cause = "oom"
	// CauseLostStatus: the run is over and nobody saw how. There is no exit code to tell.
	CauseLostStatus Cause = "lost-status"
)

// Status is all that is known about one run.
type Status struct {
	ID       RunID     `json:"id"`
	State    State     `json:"state"`
	Cause    Cause     `json:"cause,omitempty"`
	ExitCode int32     `json:"exit_code,omitempty"` // with CauseExited
	Signal   int32     `json:"signal,omitempty"`    // with CauseSignalled
	Message  string    `json:"message,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	Stdout   Bytes     `json:"stdout,omitempty"` // once ended: bytes written
	Stderr   Bytes     `json:"stderr,omitempty"`
}

// Stream is one of a run's two outputs.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)
