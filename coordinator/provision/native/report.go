package native

import (
	"context"
	"errors"
	"fmt"
	"time"

	"substrate/coordinator/dispatch"
)

// report puts what is known of the end into a run's terms. State and cause stay apart; the message has the system's own words.
func (r *run) report(now time.Time) Report {
	rep := Report{Over: true, Ended: now, Started: r.track.Last.Started, Stdout: r.streams[dispatch.Stdout].total(), Stderr: r.streams[dispatch.Stderr].total()}
	object := "job " + string(r.book.Object)
	switch {
	case r.track.Phase == dispatch.PhaseLost:
		rep.Cause, rep.Message = CauseLostStatus, fmt.Sprintf("the batch system knows %s no more and nobody has seen its end", object)
		return rep
	case r.track.Phase == dispatch.PhaseReused:
		rep.Cause, rep.Message = CauseLostStatus, fmt.Sprintf("the batch system has given the number of %s to another and nobody has seen its end", object)
		return rep
	}
	end := r.track.End
	if !end.Ended.IsZero() {
		rep.Ended = end.Ended
	}
	rep.Started = end.Started
	rep.Message = fmt.Sprintf("%s: %s", object, Text(end))
	rep.Cause = causeOf(end)
	switch {
	case rep.Cause == CauseExited && end.ExitCode != nil:
		rep.ExitCode = int32(*end.ExitCode)
	case rep.Cause == CauseExited && end.State == dispatch.StateFailed:
		rep.Cause, rep.Message = CauseEnded, rep.Message+"; its exit code is not known"
	case end.Signal != nil:
		rep.Signal = int32(*end.Signal)
	}
	if r.forgot {
		rep.Cause, rep.Message = CauseLostStatus, fmt.Sprintf("the batch system has lost that %s had started", object)
	}
	if r.never != "" && end.State == dispatch.StateCancelled && end.Started.IsZero() {
		rep.Cause, rep.Message = CauseStartFailed, r.never
	}
	return rep
}

func causeOf(end dispatch.Observation) Cause {
	switch end.Cause {
	case dispatch.CauseExitCode:
		return CauseExited
	case dispatch.CauseSignalled:
		return CauseSignalled
	case dispatch.CauseOutOfMemory:
		return CauseOOM
	case dispatch.CauseTimeout:
		return CauseWalltime
	case dispatch.CausePreempted:
		return CausePreempted
	case dispatch.CauseNodeLost:
		return CauseLostStatus
	case dispatch.CauseLaunch, dispatch.CauseRejected, dispatch.CauseUnsatisfiable:
		return CauseStartFailed
	}
	switch end.State {
	case dispatch.StateSucceeded:
		return CauseExited
	case dispatch.StateCancelled:
		return CauseStopped
	}
	return CauseEnded
}

// cursor is how far a stream of a run has been brought: executions stand one after the other.
type cursor struct {
	begun     bool
	execution dispatch.Execution
	base      uint64 // bytes of earlier executions
	offset    int64  // in this one
}

func (c *cursor) total() uint64 { return c.base + uint64(c.offset) }

// collect brings what has been written since the last time.
func (r *run) collect(ctx context.Context) error {
	reader, ok := r.d.opt.Backend.(dispatch.OutputReader)
	if !ok || r.book.Object == "" {
		return nil
	}
	return errors.Join(r.stream(ctx, reader, dispatch.Stdout), r.stream(ctx, reader, dispatch.Stderr))
}

func (r *run) stream(ctx context.Context, reader dispatch.OutputReader, of dispatch.Stream) error {
	c := &r.streams[of]
	if !c.begun {
		stored, err := r.d.host.Output(r.order.Run, of, 0, nil)
		if err != nil {
			return err
		}
		if c.begun = true; r.track.Last.Execution == 0 { // else all of it is read again; what is stored already is not stored twice
			c.offset = int64(stored)
		}
	}
	want := dispatch.OutputRequest{Object: r.book.Object, Ref: r.d.reference(r), Stream: of, From: c.execution, Offset: c.offset}
	err := r.d.call(ctx, func(ctx context.Context) error {
		return reader.Output(ctx, want, func(p dispatch.OutputPiece) error {
			if p.Execution != c.execution {
				c.base, c.execution, c.offset = c.total(), p.Execution, 0
			}
			at := c.base + uint64(p.Offset)
			next, err := r.d.host.Output(r.order.Run, of, at, p.Data)
			if err != nil {
				return err
			}
			if want := at + uint64(len(p.Data)); next < want {
				return fmt.Errorf("cannot store output: %d bytes are stored of %d", next, want)
			}
			c.offset = p.Offset + int64(len(p.Data))
			return nil
		})
	})
	if errors.Is(err, dispatch.ErrNotFound) {
		return nil // it has written nothing
	}
	return err
}
