package simulate

import (
	"context"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

// estimate is what a job was told about its start, and what came of it.
type estimate struct {
	asked  bool      // it waited, so it was worth asking
	told   time.Time // at submission; zero: no estimate
	latest time.Time // of the last question that had an answer
	actual time.Time
	slips  int           // answers that were later than the one before
	slid   time.Duration // by how much, in all
}

// slipsBy is the least that counts as later: estimates are kept to the second.
const slipsBy = time.Second

func (e *estimate) hear(at time.Time) {
	if at.IsZero() {
		return
	}
	if !e.latest.IsZero() && at.Sub(e.latest) > slipsBy {
		e.slips++
		e.slid += at.Sub(e.latest)
	}
	e.latest = at
}

func (e *estimate) met(at time.Time) { e.actual = at }

const maxAsked = 1000 // jobs at the front of the queue that are asked about from time to time

// ask hears what the coordinator would answer a user now: about what has just been submitted and waits, and from time to
// time about all that waits.
func (w *world) ask(ctx context.Context) error {
	for _, j := range w.fresh {
		if !j.waiting || !j.first.IsZero() {
			continue
		}
		v, err := w.engine.Job(ctx, w.admin, coordinator.AllocationID(string(j.workflow)+"/job"))
		if err != nil {
			return err
		}
		j.estimate.asked, j.estimate.told = true, v.EstimatedStart
		j.estimate.hear(v.EstimatedStart)
	}
	w.fresh = w.fresh[:0]
	if w.now.Before(w.nextAsk) || w.waiting.jobs == 0 {
		return nil
	}
	w.nextAsk = w.now.Add(w.opt.AskEvery)
	jobs, _, _, err := w.engine.Queue(ctx, w.admin, false, 0, engine.Page{Size: maxAsked})
	if err != nil {
		return err
	}
	for i := range jobs {
		if j := w.byWorkflow[jobs[i].Workflow]; j != nil && j.first.IsZero() {
			j.estimate.hear(jobs[i].EstimatedStart)
		}
	}
	return nil
}
