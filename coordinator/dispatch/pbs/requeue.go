package pbs

import (
	"context"
	"errors"
	"fmt"

	"substrate/coordinator/dispatch"
)

// Requeue is three calls, since jobs are submitted so that PBS itself runs none again: it is allowed for this job, done, and forbidden again. What
// breaks off in between leaves the job allowed, which RestoreRequeueBit takes back. qrerun waits until the node has killed the execution, which it
// does without a SIGTERM.
func (b *Backend) Requeue(ctx context.Context, id dispatch.ObjectID) error {
	op := "requeue job " + string(id)
	if err := b.mayRequeue(op); err != nil {
		return err
	}
	r, err := b.one(ctx, op, id)
	if err != nil {
		return err
	}
	switch state, cause := judge(r, nobody); {
	case state.Ended():
		return fmt.Errorf("cannot %s: %w: it is %s", op, dispatch.ErrEnded, raw(r))
	case state == dispatch.StatePending && cause != dispatch.CauseStarting:
		return fmt.Errorf("cannot %s: %w: it waits: %s", op, dispatch.ErrRefused, raw(r))
	}
	if err := b.setRerunnable(ctx, op, id, true); err != nil {
		return err
	}
	err = b.change(ctx, op, "qrerun", string(id))
	if err != nil && errors.Is(err, dispatch.ErrOutcomeUnknown) {
		return err
	}
	if restored := b.setRerunnable(ctx, op, id, false); restored != nil && !errors.Is(restored, dispatch.ErrEnded) {
		return fmt.Errorf("cannot %s: %w: it may still be allowed: %w", op, dispatch.ErrOutcomeUnknown, errors.Join(restored, err))
	}
	return err
}

// RestoreRequeueBit forbids again that the job be run again. There is nothing to forbid for one that is over.
func (b *Backend) RestoreRequeueBit(ctx context.Context, id dispatch.ObjectID) error {
	op := "forbid to requeue job " + string(id)
	if err := b.mayRequeue(op); err != nil {
		return err
	}
	if err := checkID(op, id); err != nil {
		return err
	}
	err := b.setRerunnable(ctx, op, id, false)
	if errors.Is(err, dispatch.ErrEnded) {
		return nil
	}
	return err
}

func (b *Backend) mayRequeue(op string) error {
	switch s := b.answers.requeue; {
	case s.Answer != dispatch.Yes:
		return fmt.Errorf("cannot %s: %w: %s", op, dispatch.ErrUnsupported, s.Reason)
	case b.answers.declared.CallBound <= 0:
		return fmt.Errorf("cannot %s: %w: %s", op, dispatch.ErrUnsupported, unbounded)
	}
	return b.mayChange(op)
}

func (b *Backend) setRerunnable(ctx context.Context, op string, id dispatch.ObjectID, yes bool) error {
	value := "n"
	if yes {
		value = "y"
	}
	return b.change(ctx, op, "qalter", "-r", value, string(id))
}
