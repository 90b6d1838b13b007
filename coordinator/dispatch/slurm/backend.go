package slurm

import (
	"context"
	"errors"
	"fmt"

	"substrate/coordinator/dispatch"
)

// Backend is one Slurm cluster as one account sees it. It is safe for concurrent use.
type Backend struct {
	opt     Options
	account account
	answers answers
	report  dispatch.Report
	boots   boots
}

// account is who our commands run as.
type account struct{ user, home string }

var (
	_ dispatch.Backend         = (*Backend)(nil)
	_ dispatch.Holder          = (*Backend)(nil)
	_ dispatch.Requeuer        = (*Backend)(nil)
	_ dispatch.CessationSignal = (*Backend)(nil)
	_ dispatch.OutputReader    = (*Backend)(nil)
	_ dispatch.MultiFinder     = (*Backend)(nil)
	_ dispatch.Selective       = (*Backend)(nil)
	_ dispatch.Reporter        = (*Backend)(nil)
)

// mayChange is an error for a read-only backend.
func (b *Backend) mayChange(op string) error {
	if b.opt.ReadOnly {
		return fmt.Errorf("cannot %s: %w: the connection is configured so", op, dispatch.ErrReadOnly)
	}
	return nil
}

// OpenGate releases the native hold that a job was submitted with.
func (b *Backend) OpenGate(ctx context.Context, id dispatch.ObjectID) error {
	op := "open the gate of job " + string(id)
	if err := errors.Join(checkID(op, id), b.mayChange(op)); err != nil {
		return err
	}
	_, err := b.change(ctx, op, "scontrol", "release", string(id))
	return err
}

// Stop cancels a job. scancel says nothing of jobs that it does not know, so they are looked up before.
func (b *Backend) Stop(ctx context.Context, id dispatch.ObjectID) error {
	op := "stop job " + string(id)
	if err := b.mayChange(op); err != nil {
		return err
	}
	r, err := b.newest(ctx, op, id)
	if err != nil {
		return err
	}
	if state, _ := judge(r, nobody); state.Ended() {
		return nil
	}
	_, err = b.change(ctx, op, "scancel", r.id)
	if errors.Is(err, dispatch.ErrEnded) {
		return nil
	}
	return err
}
