package native

import (
	"context"
	"errors"
	"slices"
	"time"

	"substrate/coordinator/dispatch"
)

// A batch system writes down what it knows some seconds late. One that dies comes back without its last seconds: what it took on last it knows
// nothing of, and a gate that was opened is shut. What has begun by then it does not know to have begun.

const (
	// lasting is how long after its gate was opened a job that is seen open stays so, whatever becomes of the system.
	lasting = 30 * time.Second
	// reminders bound how often a gate is opened: somebody else may shut it on purpose.
	reminders = 3
)

// shut reports whether the system has lost that the gate was opened. Nobody can tell that from somebody's hold but by the time.
func (r *run) shut() bool {
	last := r.track.Last
	if r.track.Phase != dispatch.PhaseAlive || r.gate.IsZero() {
		return false
	}
	behind := last.State == dispatch.StatePending && last.Cause == dispatch.CauseGated && last.Execution == 0
	if !behind && r.track.Seen.Sub(r.gate) >= lasting {
		r.gate = time.Time{}
	}
	return behind && r.reopened < reminders
}

// remind opens the gate again of what has not begun. What had begun is ended, and counts as lost: nobody knows what it has done.
func (r *run) remind(ctx context.Context, now time.Time) {
	if r.reported {
		r.forgot = true
		r.stop(ctx, now)
		return
	}
	r.reopened++
	err := r.d.call(ctx, func(ctx context.Context) error { return r.d.opt.Backend.OpenGate(ctx, r.book.Object) })
	if err != nil && !isOver(err) {
		r.failed("release it again", err)
		return
	}
	r.d.opt.Log.Warn("a gate that was opened was shut, and is opened again", "run", r.order.Run, "object", r.book.Object)
	r.answered()
	r.gate = now
	r.next = now.Add(r.d.opt.Pace) // it is looked at before
}

// missing is what to do about an object that the system does not let be opened: it is submitted again when it is not there, and can never
// have begun. Only who has submitted it in this life knows that.
func (r *run) missing(ctx context.Context, why error) bool {
	var found []dispatch.Observation
	err := r.d.call(ctx, func(ctx context.Context) (err error) {
		found, err = r.d.opt.Backend.Find(ctx, dispatch.Ref{Job: r.job})
		return err
	})
	there := slices.ContainsFunc(found, func(o dispatch.Observation) bool { return o.Object == r.book.Object })
	switch {
	case err != nil || there && !errors.Is(why, dispatch.ErrNotFound):
		r.failed("release it", errors.Join(why, err))
		return false
	case there || !r.fresh:
		r.answered()
		r.follow()
		return false
	}
	anew := r.book
	anew.Object, anew.Sent = "", false
	if r.write(ctx, anew) {
		r.fresh = false
		r.d.opt.Log.Warn("the batch system has lost a job before it could begin; it is submitted again", "run", r.order.Run, "err", why)
		r.next = r.d.opt.Clock.Now().Add(firstRetry)
	}
	return false
}

// neverBegan reports whether a job that the system knows no more has never begun: it was forgotten with the opening of its gate, and has not so much
// as opened its output.
func (r *run) neverBegan(ctx context.Context) bool {
	reader, reads := r.d.opt.Backend.(dispatch.OutputReader)
	lost := r.track.Phase == dispatch.PhaseLost || r.track.Phase == dispatch.PhaseReused
	if !reads || !lost || r.gate.IsZero() || r.reported || r.streams != [2]cursor{} || !r.track.Last.Started.IsZero() {
		return false
	}
	err := r.d.call(ctx, func(ctx context.Context) error {
		return reader.Output(ctx, dispatch.OutputRequest{Object: r.book.Object, Ref: r.d.reference(r)}, func(dispatch.OutputPiece) error { return nil })
	})
	return errors.Is(err, dispatch.ErrNotFound)
}
