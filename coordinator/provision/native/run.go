package native

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// run is what is known of one. Between its steps the driver's lock guards it; a step has it to itself, but for what is atomic.
type run struct {
	d        *Driver
	job      dispatch.JobID
	stopping atomic.Bool // it is to end
	gone     atomic.Bool // its owner does not want to hear of it any more

	busy   bool // a step is under way
	urgent bool
	began  time.Time // the last step
	order  Order
	book   dispatch.Book
	track  dispatch.Track

	fresh    bool      // its object was submitted in this life, and no call to open its gate can have had an effect
	gate     time.Time // when this life opened its gate, until that is sure to last
	reopened int
	forgot   bool // the system has lost that it had started

	watched  bool // its object is followed
	reported bool // its start
	done     bool // its end was reported, or nothing ever was
	stopped  time.Time
	hopeless time.Time // since when it looks as if it could never start
	never    string    // why it was given up before it started
	over     time.Time // when its end was found
	trouble  string    // of the last call
	next     time.Time // not before
	pause    time.Duration
	read     time.Time
	streams  [2]cursor
}

// moves reports whether something other than reading output is to be done.
func (r *run) moves(now time.Time) bool {
	last := r.track.Last
	switch {
	case !r.watched || r.finished() || r.shut() && r.stopped.IsZero():
		return true
	case r.stopping.Load():
		return r.stopped.IsZero() || now.Sub(r.stopped) >= stopAgain
	case last.Cause == dispatch.CauseUnsatisfiable && last.State == dispatch.StatePending:
		return r.hopeless.IsZero() || now.Sub(r.hopeless) >= settle
	}
	return !r.hopeless.IsZero() || !r.reported && r.runs()
}

// reads reports whether it is time to look what it has written.
func (r *run) reads(now time.Time, every time.Duration) bool {
	return r.watched && r.runs() && now.Sub(r.read) >= every
}

// runs reports whether its program has been started and is not over.
func (r *run) runs() bool {
	s := r.track.Last.State
	return r.track.Phase == dispatch.PhaseAlive && (s == dispatch.StateRunning || s == dispatch.StateSuspended || s == dispatch.StateEnding && !r.track.Last.Started.IsZero())
}

// finished reports whether its object counts as over, or nobody will ever see its end.
func (r *run) finished() bool {
	return r.track.Phase == dispatch.PhaseOver || r.track.Phase == dispatch.PhaseLost || r.track.Phase == dispatch.PhaseReused
}

// step does the next of a run.
func (r *run) step(ctx context.Context) {
	now := r.d.opt.Clock.Now()
	switch last := r.track.Last; {
	case !r.watched:
		r.ensure(ctx)
	case r.finished():
		r.finish(ctx, now)
	case r.stopping.Load():
		r.stop(ctx, now)
	case r.shut():
		r.remind(ctx, now)
	case last.State == dispatch.StatePending && last.Cause == dispatch.CauseUnsatisfiable:
		if r.hopeless.IsZero() {
			r.hopeless = now
		} else if now.Sub(r.hopeless) >= settle {
			r.never = "it can never start: " + Text(last)
			r.stop(ctx, now)
		}
	case r.runs():
		r.hopeless = time.Time{}
		r.running(ctx, now)
	default:
		r.hopeless = time.Time{}
	}
}

// ensure has the run stand for exactly one object with an open gate. What it writes is durable before what follows from it is called.
func (r *run) ensure(ctx context.Context) {
	if r.book.Job == "" {
		r.book.Job, r.book.Attempt = r.job, max(r.order.Attempt, 1)
	}
	if r.book.Object != "" && r.book.Opened {
		r.follow()
		return
	}
	var found []dispatch.Observation
	if r.book.Submission > 0 { // before the first, there is none
		err := r.d.call(ctx, func(ctx context.Context) (err error) {
			found, err = r.d.opt.Backend.Find(ctx, dispatch.Ref{Job: r.job})
			return err
		})
		if err != nil {
			r.failed("find its job", err)
			return
		}
	}
	const turns = 4 // adopt or submit, write, open
	for range turns {
		if more := r.decide(ctx, &found); !more {
			return
		}
	}
}

// decide takes one decision and carries it out. It is false when there is nothing more to do now.
func (r *run) decide(ctx context.Context, found *[]dispatch.Observation) bool {
	dec := dispatch.Ensure(r.book, *found, r.d.opt.Clock.Now(), callWithin, r.d.decl)
	if dec.Act == dispatch.ActSubmit && r.stopping.Load() {
		r.end(ctx, Report{Over: true, Cause: CauseStopped, Message: "it was ended before it was submitted", Ended: r.d.opt.Clock.Now()})
		return false
	}
	var want dispatch.Spec
	if dec.Act == dispatch.ActSubmit {
		var err error
		if want, err = submission(&r.order, dec.Ref); err != nil {
			cause := CauseStartFailed
			if r.order.Definition == nil {
				cause = CauseNeverRan
			}
			r.end(ctx, Report{Over: true, Cause: cause, Message: err.Error(), Ended: r.d.opt.Clock.Now()})
			return false
		}
	}
	if !r.write(ctx, dec.Book) {
		return false
	}
	for _, id := range dec.Stop {
		if err := r.d.call(ctx, func(ctx context.Context) error { return r.d.opt.Backend.Stop(ctx, id) }); err != nil && !isOver(err) {
			r.d.opt.Log.Warn("cannot stop a duplicate", "run", r.order.Run, "object", id, "err", err) // the next search finds it again
		}
	}
	switch dec.Act {
	case dispatch.ActSubmit:
		return r.submit(ctx, want, found)
	case dispatch.ActAdopt:
		return true
	case dispatch.ActOpen:
		return r.open(ctx)
	case dispatch.ActWait:
		r.pause = min(max(2*r.pause, firstRetry), longestRetry)
		r.next = r.d.opt.Clock.Now().Add(r.pause)
		if dec.Until.Before(r.next) {
			r.next = dec.Until
		}
		return false
	case dispatch.ActYield:
		r.failed("hand it over", fmt.Errorf("job %s has been submitted by somebody else too", r.job))
		return false
	}
	r.follow()
	return false
}

// write has a book written down. It is false when nothing must follow.
func (r *run) write(ctx context.Context, b dispatch.Book) bool {
	if b == r.book {
		return true
	}
	switch err := r.d.host.Write(ctx, r.order.Run, b); {
	case errors.Is(err, ErrGone):
		r.done = r.book.Object == "" && !r.book.Sent
		r.next = r.d.opt.Clock.Now().Add(firstRetry)
		return false
	case err != nil:
		r.next = r.d.opt.Clock.Now().Add(firstRetry) // the outcome is unknown: it is written again before anything is done
		return false
	}
	r.book = b
	return true
}

func (r *run) submit(ctx context.Context, want dispatch.Spec, found *[]dispatch.Observation) bool {
	var id dispatch.ObjectID
	err := r.d.call(ctx, func(ctx context.Context) (err error) {
		id, err = r.d.opt.Backend.Submit(ctx, want)
		return err
	})
	now := r.d.opt.Clock.Now()
	for _, never := range []error{dispatch.ErrRefused, dispatch.ErrDenied, dispatch.ErrUnsupported, dispatch.ErrReadOnly} {
		if errors.Is(err, never) {
			r.end(ctx, Report{Over: true, Cause: CauseStartFailed, Message: err.Error(), Ended: now})
			return false
		}
	}
	r.fresh = err == nil
	written := r.write(ctx, r.book.Submitted(id, err, now))
	if err != nil {
		r.failed("submit it", err)
		return false
	}
	if written {
		r.answered()
		*found = append(*found, dispatch.Observation{Object: id, Ref: want.Ref, State: dispatch.StatePending, Cause: dispatch.CauseGated, Submitted: now})
	}
	return written
}

// open opens the gate of what has been written down, unless it is to end.
func (r *run) open(ctx context.Context) bool {
	if r.stopping.Load() {
		r.follow()
		return false
	}
	err := r.d.call(ctx, func(ctx context.Context) error { return r.d.opt.Backend.OpenGate(ctx, r.book.Object) })
	if errors.Is(err, dispatch.ErrNotFound) || errors.Is(err, dispatch.ErrDenied) { // its number may be somebody else's by now
		return r.missing(ctx, err)
	}
	r.fresh = r.fresh && errors.Is(err, dispatch.ErrUnavailable)
	switch {
	case err != nil && !isOver(err):
		r.failed("release it", err)
		return false
	case err == nil:
		r.gate = r.d.opt.Clock.Now()
		opened := r.book
		opened.Opened = true
		if !r.write(ctx, opened) {
			return false
		}
	}
	r.answered()
	r.follow()
	return false
}

func isOver(err error) bool {
	return errors.Is(err, dispatch.ErrEnded) || errors.Is(err, dispatch.ErrNotFound)
}

// follow has its object watched.
func (r *run) follow() {
	r.track = dispatch.Track{Object: r.book.Object, Ref: r.d.reference(r)}
	r.d.watch.Watch(r.track)
	r.watched = true
}

// stop asks the system to end it; how it ended is then seen like any end.
func (r *run) stop(ctx context.Context, now time.Time) {
	err := r.d.call(ctx, func(ctx context.Context) error { return r.d.opt.Backend.Stop(ctx, r.book.Object) })
	if err != nil && !isOver(err) {
		r.failed("end it", err)
		return
	}
	r.answered()
	r.stopped = now
	r.next = now.Add(firstRetry)
}

// running reports a start, and brings what has been written since.
func (r *run) running(ctx context.Context, now time.Time) {
	if !r.reported {
		if err := r.d.host.Report(ctx, r.order.Run, Report{Started: r.track.Last.Started}); err != nil {
			r.next = now.Add(firstRetry)
			return
		}
		r.reported = true
	}
	r.read = now
	if err := r.collect(ctx); err != nil {
		r.d.opt.Log.Debug("cannot read a job's output now", "run", r.order.Run, "err", err) // it is read again
	}
}

// end reports an end.
func (r *run) end(ctx context.Context, rep Report) {
	if err := r.d.host.Report(ctx, r.order.Run, rep); err != nil {
		r.next = r.d.opt.Clock.Now().Add(firstRetry)
		return
	}
	r.done = true
}

// finish brings the rest of the output, finds out whether its processes are gone, and reports the end.
func (r *run) finish(ctx context.Context, now time.Time) {
	if r.over.IsZero() {
		r.over = now
	}
	if dispatch.MustStop(r.track) {
		if err := r.d.call(ctx, func(ctx context.Context) error { return r.d.opt.Backend.Stop(ctx, r.book.Object) }); err != nil && !isOver(err) {
			r.failed("end it", err)
			return
		}
	}
	if r.neverBegan(ctx) {
		r.end(ctx, Report{Over: true, Cause: CauseNeverRan, Ended: now, Message: "the batch system has lost it before it could begin"})
		return
	}
	missing := r.collect(ctx)
	if missing != nil && now.Sub(r.over) < outputWithin {
		r.failed("read its output", missing)
		return
	}
	may, why := dispatch.MayFollow(r.track, dispatch.Unknown)
	if r.forgot {
		may, why = false, "it had begun before, and its processes may live on"
	}
	if !may && r.order.Job != nil && r.order.Job.Restart != coordinator.RestartNever {
		if may = r.ceased(ctx); !may && r.asks() && now.Sub(r.over) < proofWithin {
			r.next = now.Add(stopAgain)
			return
		}
	}
	rep := r.report(now)
	rep.Doubt = !may
	if rep.Cause == CauseLostStatus && !may {
		rep.Message += "; " + why
	}
	if missing != nil {
		rep.Message += fmt.Sprintf("; the rest of its output could not be read: %v", missing)
	}
	r.end(ctx, rep)
}

func (r *run) asks() bool {
	_, asks := r.d.opt.Backend.(dispatch.CessationSignal)
	return asks
}

// ceased asks whether the processes of its newest execution are gone.
func (r *run) ceased(ctx context.Context) bool {
	c, asks := r.d.opt.Backend.(dispatch.CessationSignal)
	if !asks {
		return false
	}
	answer := dispatch.Unknown
	err := r.d.call(ctx, func(ctx context.Context) (err error) {
		answer, err = c.Ceased(ctx, r.book.Object, r.track.Last.Execution)
		return err
	})
	return err == nil && answer == dispatch.Yes
}
