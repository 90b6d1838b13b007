package pbs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"substrate/coordinator/dispatch"
)

// Backend is one PBS complex as one account sees it. It is safe for concurrent use.
type Backend struct {
	opt     Options
	account account
	answers answers
	report  dispatch.Report
	listed  atomic.Int64 // jobs, the last time that all were asked for
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

// OpenGate takes away the user's hold that a job was submitted with. PBS takes that of a job without one as done.
func (b *Backend) OpenGate(ctx context.Context, id dispatch.ObjectID) error {
	op := "open the gate of job " + string(id)
	if err := b.mayChange(op); err != nil {
		return err
	}
	if err := checkID(op, id); err != nil {
		return err
	}
	return b.change(ctx, op, "qrls", "-h", "u", string(id))
}

// Stop deletes a job. What waits is over at once; what runs gets SIGTERM and, at the node's next look after kill_delay, SIGKILL. PBS has been
// seen to run a job again that was deleted while it was requeued: who wants it gone looks until it is over, and may stop it as often as it likes.
func (b *Backend) Stop(ctx context.Context, id dispatch.ObjectID) error {
	op := "stop job " + string(id)
	if err := b.mayChange(op); err != nil {
		return err
	}
	if err := checkID(op, id); err != nil {
		return err
	}
	const tries = 3
	for try := 1; ; try++ {
		err := b.change(ctx, op, "qdel", string(id))
		switch {
		case errors.Is(err, dispatch.ErrEnded):
			return nil
		case err != nil:
			return b.ending(ctx, op, id, err)
		}
		r, err := b.one(ctx, op, id)
		switch {
		case errors.Is(err, dispatch.ErrNotFound):
			return nil
		case err != nil:
			return nil // the order was taken; whether it is over is the next look's to say
		}
		if state, cause := judge(r, nobody); state != dispatch.StatePending || cause == dispatch.CauseStarting || try == tries {
			return nil
		}
	}
}

// ending turns a refusal into success when the job ends by itself: while its epilogue runs, the node takes no orders for it.
func (b *Backend) ending(ctx context.Context, op string, id dispatch.ObjectID, refused error) error {
	if !errors.Is(refused, dispatch.ErrRefused) {
		return refused
	}
	r, err := b.one(ctx, op, id)
	if err != nil {
		return errors.Join(refused, err)
	}
	if state, _ := judge(r, nobody); state.Ended() || state == dispatch.StateEnding || state == dispatch.StateRunning {
		b.opt.Log.Debug("a job takes no order", "object", id, "error", refused)
		return nil
	}
	return refused
}
