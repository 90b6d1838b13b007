package engine

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/logs"
)

// LogRequest names one job's output. Attempt 0 is the newest; Stream "" is both.
type LogRequest struct {
	Workflow string
	Job      string
	Attempt  uint32
	Stream   string
	Follow   bool
}

// LogPart is a piece of one stream, of one rank if several nodes share the run.
type LogPart struct {
	Job    string
	Stream string
	Data   []byte
	Rank   uint32
	Ranks  uint32 // how many the run has; 1 without a gang
}

// LogOffset is how much of a stream is stored.
type LogOffset struct {
	Run    coordinator.RunID
	Stream string
	Offset uint64
}

// AppendLog stores a piece of output and returns how far the stream is stored. A piece of a run that
// was never placed on this node is dropped and counted as stored, so that the agent stops sending it.
// ErrInternal is the disk's: this piece is not stored, and may be if it is sent again.
func (s *Session) AppendLog(run coordinator.RunID, stream string, offset uint64, data []byte, last bool) (uint64, error) {
	rank, err := s.rankOf(run)
	if err != nil {
		return 0, err
	}
	if rank < 0 {
		return offset + uint64(len(data)), nil
	}
	stream = logs.Stream(stream, uint32(rank))
	next, err := s.engine.opt.Logs.Append(run, stream, offset, data)
	var gap *logs.GapError
	switch {
	case errors.As(err, &gap):
		return gap.Size, nil // the agent sends again from there
	case err == nil && last:
		if err = s.engine.opt.Logs.Finish(run, stream); errors.Is(err, logs.ErrNotFound) {
			err = nil
		}
	}
	if err != nil {
		return 0, coordinator.Errorf(logErrorKind(err), "store output of "+string(run), "%w", err)
	}
	return next, nil
}

func logErrorKind(err error) coordinator.ErrorKind {
	switch {
	case errors.Is(err, logs.ErrClosed):
		return coordinator.ErrUnavailable // the coordinator is stopping
	case errors.Is(err, logs.ErrName):
		return coordinator.ErrInvalid
	}
	return coordinator.ErrInternal
}

// maxRunID is longer than any run id of ours.
const maxRunID = 512

// rankOf is this node's rank in a run, -1 when it was never placed here.
func (s *Session) rankOf(run coordinator.RunID) (rank int, err error) {
	if len(run) > maxRunID {
		return -1, nil
	}
	s.mu.Lock()
	rank, seen := s.ranks[run]
	s.mu.Unlock()
	if seen {
		return rank, nil
	}
	ctx := context.Background() // the loop answers, or has stopped and says so
	if err = s.engine.view(ctx, func(st *state) { rank = st.rankOf(run, s.node) }); err != nil {
		return -1, err
	}
	s.mu.Lock()
	if len(s.ranks) > maxOutbox {
		clear(s.ranks)
	}
	s.ranks[run] = rank
	s.mu.Unlock()
	return rank, nil
}

// Offsets tells how much is stored of the runs in the agent's hello, for the welcome message.
func (s *Session) Offsets() []LogOffset {
	ranks := make([]int, len(s.hello))
	err := s.engine.view(context.Background(), func(st *state) {
		for i, run := range s.hello {
			ranks[i] = st.rankOf(run, s.node)
		}
	})
	if err != nil {
		return nil // the loop has stopped, and with it this stream
	}
	var out []LogOffset
	for i, run := range s.hello {
		if ranks[i] < 0 {
			continue
		}
		for _, stream := range []string{"stdout", "stderr"} {
			if size, err := s.engine.opt.Logs.Size(run, logs.Stream(stream, uint32(ranks[i]))); err == nil && size > 0 {
				out = append(out, LogOffset{Run: run, Stream: stream, Offset: size})
			}
		}
	}
	return out
}

// settleTime is how long the end of an ended run's output is waited for.
const settleTime = 5 * time.Second

// origin is one stream of one rank.
type origin struct {
	stream string
	rank   uint32
}

// source is an origin and how far it has been read.
type source struct {
	origin
	offset uint64
}

// Log sends the output of a job, of a gang that of all its ranks: what is stored, and with Follow what
// comes until the run has ended.
func (e *Engine) Log(ctx context.Context, c Caller, req LogRequest, send func(LogPart) error) error {
	run, part, err := e.logRun(ctx, c, req)
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
	var sources []source
	for rank := range part.Ranks {
		for _, stream := range streams {
			sources = append(sources, source{origin: origin{stream, rank}})
		}
	}
	buf := make([]byte, 64<<10)
	var deadline time.Time
	for pause := 5 * time.Millisecond; ; pause = min(pause*2, 250*time.Millisecond) {
		ended, wrote, err := e.runEnded(ctx, run)
		if err != nil {
			return err
		}
		complete, moved := true, false
		var shown uint64
		for i := range sources {
			s := &sources[i]
			n, err := e.copyStream(run, part, s, buf, send)
			if err != nil {
				return err
			}
			moved = moved || n > 0
			complete = complete && s.offset >= wrote[s.origin]
			shown += s.offset
		}
		complete = complete || shown >= logs.DefaultRunCap // no more is kept of a run
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

// copyStream sends what is stored beyond the source's offset and moves it; part has the other fields.
func (e *Engine) copyStream(run coordinator.RunID, part LogPart, s *source, buf []byte, send func(LogPart) error) (done uint64, err error) {
	part.Stream, part.Rank = s.stream, s.rank
	for {
		n, err := e.opt.Logs.ReadAt(run, logs.Stream(s.stream, s.rank), s.offset, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, logs.ErrNotFound) {
			return done, coordinator.Errorf(coordinator.ErrInternal, "read output of "+string(run), "%w", err)
		}
		if n == 0 {
			return done, nil
		}
		part.Data = slices.Clone(buf[:n])
		if err := send(part); err != nil {
			return done, err
		}
		s.offset += uint64(n)
		done += uint64(n)
	}
}

// logRun finds the run whose output is asked for, and what all its parts have in common; with Follow it
// waits for its first attempt.
func (e *Engine) logRun(ctx context.Context, c Caller, req LogRequest) (run coordinator.RunID, part LogPart, err error) {
	const op = "read output"
	for {
		var name string
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
			if err = c.authorize(auth.PermissionReadOutput, op+" of "+w.record.Owner.UserName, w.target()); err != nil {
				return
			}
			if len(chosen) != 1 {
				err = coordinator.Errorf(coordinator.ErrInvalid, op, "workflow %s has %d jobs and tasks", w.record.Spec.Name, len(chosen)).
					WithHint("name one, such as %s", chosen[0].name())
				return
			}
			a := chosen[0]
			name, ended, run = a.name(), a.record.Status.Ended(), ""
			part = LogPart{Job: name, Ranks: max(a.job.spec.Nodes, 1)}
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
			return "", LogPart{}, verr
		case err != nil || run != "":
			return run, part, err
		case ended || !req.Follow:
			return "", LogPart{}, coordinator.Errorf(coordinator.ErrNotFound, op, "job %s has not started", name).
				WithHint("see why with `substrate workflow explain`")
		}
		select {
		case <-ctx.Done():
			return "", LogPart{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// runEnded reports whether a run is over, and how much each rank that ended wrote.
func (e *Engine) runEnded(ctx context.Context, run coordinator.RunID) (ended bool, wrote map[origin]uint64, err error) {
	wrote = map[origin]uint64{}
	err = e.view(ctx, func(s *state) {
		a, current := s.runOwner(run)
		ended = a == nil || !current || !a.record.Status.Holds()
		if a == nil || !current {
			return
		}
		for i, r := range a.record.Ranks {
			if r.End != nil {
				wrote[origin{"stdout", uint32(i)}] = r.End.StdoutBytes
				wrote[origin{"stderr", uint32(i)}] = r.End.StderrBytes
			}
		}
	})
	return ended, wrote, err
}
