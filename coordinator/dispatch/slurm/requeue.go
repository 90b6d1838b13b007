package slurm

import (
	"context"
	"errors"
	"fmt"

	"substrate/coordinator/dispatch"
)

// Requeue is three calls, since jobs are submitted so that Slurm itself requeues none: it is allowed for this job, done, and forbidden again. What
// breaks off in between leaves the job allowed, which RestoreRequeueBit takes back.
func (b *Backend) Requeue(ctx context.Context, id dispatch.ObjectID) error {
	op := "requeue job " + string(id)
	if err := b.mayRequeue(op); err != nil {
		return err
	}
	r, err := b.newest(ctx, op, id)
	if err != nil {
		return err
	}
	// A job that is over could be run again by this, and its outcome in accounting be lost.
	if state, _ := judge(r, nobody); state.Ended() {
		return fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrEnded, r.raw)
	}
	if err := b.setRequeue(ctx, op, id, true); err != nil {
		return err
	}
	_, err = b.change(ctx, op, "scontrol", "requeue", string(id))
	if err != nil && errors.Is(err, dispatch.ErrOutcomeUnknown) {
		return err
	}
	if restored := b.setRequeue(ctx, op, id, false); restored != nil && !errors.Is(restored, dispatch.ErrEnded) {
		return fmt.Errorf("cannot %s: %w: it may still be allowed: %w", op, dispatch.ErrOutcomeUnknown, errors.Join(restored, err))
	}
	return err
}

// RestoreRequeueBit forbids again that the job be requeued. There is nothing to forbid for one that is over.
func (b *Backend) RestoreRequeueBit(ctx context.Context, id dispatch.ObjectID) error {
	op := "forbid to requeue job " + string(id)
	if err := b.mayRequeue(op); err != nil {
		return err
	}
	if err := checkID(op, id); err != nil {
		return err
	}
	err := b.setRequeue(ctx, op, id, false)
	if errors.Is(err, dispatch.ErrEnded) {
		return nil
	}
	return err
}

func (b *Backend) mayRequeue(op string) error {
	if b.answers.unbounded != "" {
		return fmt.Errorf("cannot %s: %w: %s", op, dispatch.ErrUnsupported, b.answers.unbounded)
	}
	return b.mayChange(op)
}

func (b *Backend) setRequeue(ctx context.Context, op string, id dispatch.ObjectID, allowed bool) error {
	bit := "Requeue=0"
	if allowed {
		bit = "Requeue=1"
	}
	_, err := b.change(ctx, op, "scontrol", "update", "JobId="+string(id), bit)
	return err
}
