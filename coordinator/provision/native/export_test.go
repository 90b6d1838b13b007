package native

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// Begin makes the driver ready to be led step by step.
func (d *Driver) Begin(h Host) error { return d.begin(h) }

// Turn polls once, and does what is due until all of it is done.
func (d *Driver) Turn(ctx context.Context) {
	_ = d.watch.Poll(ctx)
	d.round(ctx)
	d.work.Wait()
}

// JobID is what a run is found again by.
func JobID(cluster string, run coordinator.RunID) dispatch.JobID {
	return jobID(prefixOf(cluster), run)
}

// Submission is what a run asks of the system.
func Submission(o *Order, ref dispatch.Ref) (dispatch.Spec, error) { return submission(o, ref) }

// Quote is a word for bash.
func Quote(word string) string { return quote(word) }
