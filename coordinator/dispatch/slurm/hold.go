package slurm

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator/dispatch"
)

// holdBase is ten Julian years: a hold is a time of eligibility so long after the submission, and an instance's number of seconds more. Both times
// are the controller's, so no clock of ours is in it; and a native hold or release, which the gate is made of, leaves such a time alone.
const holdBase = 315_576_000 * time.Second

// hold is the instance that is in place, or 0. It is read from the time of eligibility: the time of start is an estimate, which the scheduler
// corrects later.
func (r row) hold() dispatch.Instance {
	if r.submit.IsZero() || r.eligible.IsZero() {
		return 0
	}
	n := r.eligible.Sub(r.submit.Add(holdBase)) / time.Second
	if n < 1 || n >= dispatch.EpochBound {
		return 0
	}
	return dispatch.Instance(n)
}

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
	at := r.submit.Add(holdBase + time.Duration(n)*time.Second)
	// Seconds since 1970 are the one form that no time zone of a client changes.
	_, err = b.change(ctx, op, "scontrol", "update", "JobId="+r.id, fmt.Sprintf("StartTime=uts%d", at.Unix()))
	return err
}

// Release takes hold n away. Slurm has no update under a condition: that nobody else places another in between is what leases and the
// bound of a call are for.
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
	// A job that was held before it could ever start would count its age from the hold's end, ten years ahead.
	_, err = b.change(ctx, op, "scontrol", "update", "JobId="+r.id, "StartTime=now", "ResetAccrueTime")
	return err
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

// pending is a job's row when it can be held.
func (b *Backend) pending(ctx context.Context, op string, id dispatch.ObjectID) (row, error) {
	r, err := b.newest(ctx, op, id)
	if err != nil {
		return row{}, err
	}
	switch state, cause := judge(r, nobody); {
	case state.Ended():
		return row{}, fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrEnded, r.raw)
	case state != dispatch.StatePending || cause == dispatch.CauseStarting:
		return row{}, fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrNotPending, r.raw)
	}
	return r, nil
}

func nobody(string) bool { return false }
