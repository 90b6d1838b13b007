package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/logs"
)

// AppendLog stores a piece of output and returns how far the stream is stored. A piece of a run that
// was never placed on this node is dropped and counted as stored, so that the agent stops sending it.
func (s *Session) AppendLog(run coordinator.RunID, stream string, offset uint64, data []byte, last bool) (uint64, error) {
	ok, err := s.owns(context.Background(), run) // the loop answers, or has stopped and says so
	if err != nil {
		return 0, err
	}
	if !ok {
		return offset + uint64(len(data)), nil
	}
	next, err := s.engine.opt.Logs.Append(run, stream, offset, data)
	var gap *logs.GapError
	switch {
	case errors.As(err, &gap):
		return gap.Size, nil // the agent sends again from there
	case err != nil:
		return 0, coordinator.Errorf(coordinator.ErrUnavailable, "store output of "+string(run), "%w", err)
	}
	if last {
		if err := s.engine.opt.Logs.Finish(run, stream); err != nil && !errors.Is(err, logs.ErrNotFound) {
			return 0, coordinator.Errorf(coordinator.ErrUnavailable, "store output of "+string(run), "%w", err)
		}
	}
	return next, nil
}

// Offsets tells how much is stored of the runs in the agent's hello, for the welcome message.
func (s *Session) Offsets() []LogOffset {
	var out []LogOffset
	for _, run := range s.hello {
		for _, stream := range []string{"stdout", "stderr"} {
			if size, err := s.engine.opt.Logs.Size(run, stream); err == nil && size > 0 {
				out = append(out, LogOffset{Run: run, Stream: stream, Offset: size})
			}
		}
	}
	return out
}

// settleTime is how long the end of an ended run's output is waited for.
const settleTime = 5 * time.Second

// Log sends the output of a job: what is stored, and with Follow what comes until the run has ended.
func (e *Engine) Log(ctx context.Context, c Caller, req LogRequest, send func(LogPart) error) error {
	run, name, err := e.logRun(ctx, c, req)
	if err != nil {
		return err
	}
	streams := []string{"stdout", "stderr"}
	if req.Stream != "" {
		if !slices.Contains(streams, req.Stream) {
			return coordinator.Errorf(coordinator.ErrInvalid, "read output", "unknown stream %q, expected stdout or stderr", req.Stream)
		}
		streams = []string{req.Stream}
	}
	offsets := make([]uint64, len(streams))
	var deadline time.Time
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, 250*time.Millisecond) {
		ended, wrote, err := e.runEnded(ctx, run)
		if err != nil {
			return err
		}
		complete, moved := true, false
		for i, stream := range streams {
			n, err := e.copyStream(run, name, stream, offsets[i], send)
			if err != nil {
				return err
			}
			moved = moved || n > 0
			offsets[i] += n
			complete = complete && offsets[i] >= wrote[stream]
		}
		if moved {
			pause = 5 * time.Millisecond
		}
		if ended && deadline.IsZero() {
			deadline = e.opt.Now().Add(settleTime)
		}
		if ended && (complete || e.opt.Now().After(deadline)) || !ended && !req.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.stopped:
			return coordinator.Errorf(coordinator.ErrUnavailable, "follow output", "the coordinator is stopping")
		case <-time.After(pause):
		}
	}
}

// copyStream sends what is stored from an offset on.
func (e *Engine) copyStream(run coordinator.RunID, job, stream string, offset uint64, send func(LogPart) error) (uint64, error) {
	buf := make([]byte, 64<<10)
	var done uint64
	for {
		n, err := e.opt.Logs.ReadAt(run, stream, offset+done, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, logs.ErrNotFound) {
			return done, coordinator.Errorf(coordinator.ErrInternal, "read output of "+string(run), "%w", err)
		}
		if n == 0 {
			return done, nil
		}
		if err := send(LogPart{Job: job, Stream: stream, Data: slices.Clone(buf[:n])}); err != nil {
			return done, err
		}
		done += uint64(n)
	}
}

// logRun finds the run whose output is asked for; with Follow it waits for its first attempt.
func (e *Engine) logRun(ctx context.Context, c Caller, req LogRequest) (run coordinator.RunID, name string, err error) {
	const op = "read output"
	for {
		var ended bool
		verr := e.view(ctx, func(s *state) {
			var w *submission
			if w, err = s.resolve(c, op, req.Workflow); err != nil {
				return
			}
			var chosen []*allocation
			if chosen, err = w.choose(op, req.Job); err != nil {
				return
			}
			if !c.Admin && w.record.Owner.User != c.User { // output may hold secrets
				err = coordinator.Errorf(coordinator.ErrDenied, op, "it belongs to %s", w.record.Owner.UserName)
				return
			}
			if len(chosen) != 1 {
				err = coordinator.Errorf(coordinator.ErrInvalid, op, "workflow %s has %d jobs and tasks", w.record.Spec.Name, len(chosen)).
					WithHint("name one, such as %s", chosen[0].name())
				return
			}
			a := chosen[0]
			name, ended, run = a.name(), a.record.Status.Ended(), ""
			switch {
			case req.Attempt > a.record.Attempt:
				err = coordinator.Errorf(coordinator.ErrNotFound, op, "job %s has had %d attempts", name, a.record.Attempt)
			case req.Attempt > 0:
				run = a.id.Run(req.Attempt)
			case a.record.Attempt > 0:
				run = a.run()
			}
		})
		switch {
		case verr != nil:
			return "", "", verr
		case err != nil || run != "":
			return run, name, err
		case ended || !req.Follow:
			return "", "", coordinator.Errorf(coordinator.ErrNotFound, op, "job %s has not started", name).
				WithHint("see why with `substrate workflow explain`")
		}
		select {
		case <-ctx.Done():
			return "", "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// runEnded reports whether a run is over, and how much it wrote on each stream.
func (e *Engine) runEnded(ctx context.Context, run coordinator.RunID) (ended bool, wrote map[string]uint64, err error) {
	wrote = map[string]uint64{}
	err = e.view(ctx, func(s *state) {
		a, current := s.runOwner(run)
		ended = a == nil || !current || !a.record.Status.Holds()
		if a == nil || !current {
			return
		}
		for _, r := range a.record.Ranks {
			if r.End != nil {
				wrote["stdout"] = max(wrote["stdout"], r.End.StdoutBytes)
				wrote["stderr"] = max(wrote["stderr"], r.End.StderrBytes)
			}
		}
	})
	return ended, wrote, err
}
