// Package native has runs carried out as jobs of a batch system, one for each: it hands them over through dispatch, follows them, brings their
// output back and says how they ended. Which run is to be, and what comes of its end, is their owner's to decide; what is written down of a
// run is the owner's too, so that it outlives this process.
package native

import (
	"context"
	"errors"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// Order is a run that its owner wants to be, or to end, as a job of the batch system.
type Order struct {
	Run        coordinator.RunID
	Attempt    uint32
	Name       string                  // for people who look into the system's lists
	Definition *coordinator.Definition // nil when it is gone from the configuration
	Job        *coordinator.JobSpec    // shared, not to be changed
	Env        []string                // KEY=VALUE, later ones win
	Stop       bool                    // it is to end
	Book       dispatch.Book           // as written last
	Running    bool                    // its start was reported
	Shown      string                  // Text of what its owner was told last of how it waits or runs
}

// Cause says how a run ended.
type Cause string

const (
	CauseExited      Cause = "exited"
	CauseSignalled   Cause = "signalled"
	CauseStartFailed Cause = "start-failed"
	CauseWalltime    Cause = "walltime"
	CauseStopped     Cause = "stopped"
	CauseOOM         Cause = "oom"
	CauseLostStatus  Cause = "lost-status"
	CausePreempted   Cause = "preempted" // by the batch system
	CauseNeverRan    Cause = "never-ran" // and may as well run elsewhere
	CauseEnded       Cause = "ended"     // by the batch system; the message has its reason
)

// Report is what has come of a run.
type Report struct {
	Over     bool // else it has started
	Started  time.Time
	Ended    time.Time
	Cause    Cause
	ExitCode int32
	Signal   int32
	Message  string
	// Doubt: its processes may live on, so that it must not run again by itself.
	Doubt          bool
	Stdout, Stderr uint64 // bytes that it wrote
}

// ErrGone is a host's answer about a run that is not wanted any more.
var ErrGone = errors.New("the run is not wanted any more")

// Host is who the runs belong to. What it is told may be told again.
type Host interface {
	// Orders lists every run that is to be a job of this system and has not ended, by run; and those that are jobs of other connections:
	// two of them may lead to the same system.
	Orders(ctx context.Context) (own []Order, elsewhere []coordinator.RunID, err error)
	// Write has a run's book durable when it returns nil. ErrGone: do nothing about the run.
	Write(ctx context.Context, run coordinator.RunID, b dispatch.Book) error
	// Report takes in what has come of a run; it is durable when that returns nil.
	Report(ctx context.Context, run coordinator.RunID, r Report) error
	// Show takes in how runs wait or run in the system; it need not keep that.
	Show(ctx context.Context, seen map[coordinator.RunID]dispatch.Observation) error
	// Output stores a piece of a run's output, and tells how far the stream is stored.
	Output(run coordinator.RunID, stream dispatch.Stream, offset uint64, data []byte) (next uint64, err error)
}

// Text is how an object is, in one line: state, cause and the system's own words; of none that is there yet, why.
func Text(o dispatch.Observation) string {
	if o.Object == "" && o.Raw != "" {
		return o.Raw
	}
	text := o.State.String()
	if o.Cause != dispatch.CauseNone {
		text += ", " + o.Cause.String()
	}
	if o.Raw != "" {
		text += " (" + o.Raw + ")"
	}
	return text
}
