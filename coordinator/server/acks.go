package server

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/proto/agentv1"
)

const (
	maxChunk      = 256 << 10
	acksInMessage = 1000
)

// acks holds the newest stored offset per log until the writer sends it. Adding never waits:
// an agent that writes and does not read must not stop its own reports.
type acks struct {
	mu      sync.Mutex
	logs    map[logKey]uint64 // bounded by the node's runs
	pending chan struct{}
}

type logKey struct {
	run    coordinator.RunID
	stream string
}

func newAcks() *acks {
	return &acks{logs: make(map[logKey]uint64), pending: make(chan struct{}, 1)}
}

func (a *acks) add(run coordinator.RunID, stream string, offset uint64) {
	a.mu.Lock()
	a.logs[logKey{run, stream}] = offset
	a.mu.Unlock()
	select {
	case a.pending <- struct{}{}:
	default:
	}
}

// take returns what is pending, sorted, in messages of bounded size.
func (a *acks) take() []*agentv1.ToAgent {
	a.mu.Lock()
	logs := a.logs
	a.logs = make(map[logKey]uint64)
	a.mu.Unlock()
	offsets := make([]*agentv1.LogOffset, 0, len(logs))
	for k, n := range logs {
		offsets = append(offsets, &agentv1.LogOffset{RunId: string(k.run), Stream: k.stream, Offset: n})
	}
	slices.SortFunc(offsets, func(x, y *agentv1.LogOffset) int {
		return cmp.Or(cmp.Compare(x.GetRunId(), y.GetRunId()), cmp.Compare(x.GetStream(), y.GetStream()))
	})
	var out []*agentv1.ToAgent
	for part := range slices.Chunk(offsets, acksInMessage) {
		out = append(out, &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{Logs: part}}})
	}
	return out
}

// appendLog stores a chunk. One log that cannot be stored costs that log only, and the stream goes on:
// what nobody will ever take (of an unknown run) counts as stored, so that the agent does not send it
// again; what the disk did not take is not acknowledged, and comes again.
func (s *agentService) appendLog(session sessionReports, c *agentv1.LogChunk, a *acks) error {
	op := "store output of run " + c.GetRunId()
	if len(c.GetData()) > maxChunk {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "the chunk is larger than %d bytes", maxChunk)
	}
	if name := c.GetStream(); name != "stdout" && name != "stderr" {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "unknown stream %q", name)
	}
	run := coordinator.RunID(c.GetRunId())
	next, err := session.AppendLog(run, c.GetStream(), c.GetOffset(), c.GetData(), c.GetLast())
	if err != nil {
		switch coordinator.ErrorKindOf(err) {
		case coordinator.ErrNotFound, coordinator.ErrInvalid, coordinator.ErrDenied:
			next = c.GetOffset() + uint64(len(c.GetData()))
		case coordinator.ErrInternal:
			if n := s.unstored.note(s.opts.Now()); n > 0 {
				s.opts.Log.Error("output of jobs is not stored; the nodes keep it and send it again", "err", err, "pieces", n)
			}
			return nil
		default:
			return err
		}
	}
	a.add(run, c.GetStream(), next)
	return nil
}

const seldomEvery = time.Minute

// seldom thins out what would be logged for every piece of output while a disk is full.
type seldom struct {
	mu    sync.Mutex
	since time.Time // of the last log line
	count int       // since then
}

// note counts one more, and returns the count when it is time for a line, else 0.
func (s *seldom) note(now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if !s.since.IsZero() && now.Sub(s.since) < seldomEvery {
		return 0
	}
	n := s.count
	s.since, s.count = now, 0
	return n
}
