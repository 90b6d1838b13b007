package pbs

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator/dispatch"
)

// holdBase is the time from which on a start is no start but a hold: an instance's number of seconds after the beginning of 2100. A signed time of
// 32 bits would not hold it; PBS's are longer, and the probe tries it.
func holdBase() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }

// hold is the instance that is in place, or 0.
func (r *record) hold() dispatch.Instance {
	at := parseTime(r.waits)
	if at.IsZero() {
		return 0
	}
	n := at.Sub(holdBase()) / time.Second
	if n < 1 || n >= dispatch.EpochBound {
		return 0
	}
	return dispatch.Instance(n)
}

// startAt is a time as -a takes it, in the zone of the client.
func startAt(t time.Time) string { return t.UTC().Format("200601021504.05") }

// Hold places hold n on a pending job.
func (b *Backend) Hold(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	op := fmt.Sprintf("place hold %d on job %s", n, id)
	if err := b.mayHold(op, n); err != nil {
		return err
	}
	return b.placeHold(ctx, op, id, n)
}

func (b *Backend) placeHold(ctx context.Context, op string, id dispatch.ObjectID, n dispatch.Instance) error {
	r, err := b.pending(ctx, op, id)
	if err != nil {
		return err
	}
	switch in := r.hold(); {
	case in == n:
		return nil
	case in > n:
		return fmt.Errorf("cannot %s: %w: hold %d is in place", op, dispatch.ErrStale, in)
	}
	if err := b.change(ctx, op, "qalter", "-a", startAt(holdBase().Add(time.Duration(n)*time.Second)), r.id); err != nil {
		return err
	}
	// PBS takes the attribute of a job that has begun in the meantime, too, and lets it run.
	if r, err = b.pending(ctx, op, id); err != nil {
		return err
	}
	if in := r.hold(); in != n {
		return fmt.Errorf("cannot %s: %w: hold %d is in place", op, dispatch.ErrStale, in)
	}
	return nil
}

// Release takes hold n away. PBS has no change under a condition: that nobody else places another in between is what the owner's lease is for.
func (b *Backend) Release(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	op := fmt.Sprintf("release hold %d of job %s", n, id)
	if err := b.mayHold(op, n); err != nil {
		return err
	}
	return b.releaseHold(ctx, op, id, n)
}

func (b *Backend) releaseHold(ctx context.Context, op string, id dispatch.ObjectID, n dispatch.Instance) error {
	r, err := b.pending(ctx, op, id)
	if err != nil {
		return err
	}
	if in := r.hold(); in != n {
		return fmt.Errorf("cannot %s: %w: hold %d is in place", op, dispatch.ErrStale, in)
	}
	// When it was made, by the server's clock: a time that has been, whatever our clock shows.
	at := parseTime(r.created)
	if at.IsZero() {
		at = b.opt.Clock.Now().Add(-time.Hour)
	}
	return b.change(ctx, op, "qalter", "-a", startAt(at), r.id)
}

func (b *Backend) mayHold(op string, n dispatch.Instance) error {
	switch support := b.answers.hold; {
	case support.Answer != dispatch.Yes:
		return fmt.Errorf("cannot %s: %w: %s", op, dispatch.ErrUnsupported, support.Reason)
	case n < 1 || n >= dispatch.EpochBound:
		return fmt.Errorf("cannot %s: %w: instances are 1 to %d", op, dispatch.ErrRefused, dispatch.EpochBound-1)
	}
	return b.mayChange(op)
}

// pending is a job's record when it can be held.
func (b *Backend) pending(ctx context.Context, op string, id dispatch.ObjectID) (*record, error) {
	r, err := b.one(ctx, op, id)
	if err != nil {
		return nil, err
	}
	switch state, cause := judge(r, nobody); {
	case state.Ended():
		return nil, fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrEnded, raw(r))
	case state != dispatch.StatePending || cause == dispatch.CauseStarting:
		return nil, fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrNotPending, raw(r))
	}
	return r, nil
}

func nobody(string) bool { return false }
