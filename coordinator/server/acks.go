package server

import (
	"cmp"
	"slices"
	"sync"

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

// appendLog stores a chunk. One log that cannot be stored (an unknown run, a full quota) costs that
// log only: it is not acknowledged and the stream goes on.
func appendLog(session sessionReports, c *agentv1.LogChunk, a *acks) error {
	if len(c.GetData()) > maxChunk {
		return coordinator.Errorf(coordinator.ErrInvalid, "store output of run "+c.GetRunId(), "the chunk is larger than %d bytes", maxChunk)
	}
	if s := c.GetStream(); s != "stdout" && s != "stderr" {
		return coordinator.Errorf(coordinator.ErrInvalid, "store output of run "+c.GetRunId(), "unknown stream %q", s)
	}
	run := coordinator.RunID(c.GetRunId())
	next, err := session.AppendLog(run, c.GetStream(), c.GetOffset(), c.GetData(), c.GetLast())
	switch coordinator.ErrorKindOf(err) {
	case coordinator.ErrNotFound, coordinator.ErrInvalid, coordinator.ErrDenied, coordinator.ErrExhausted:
		// The agent must not send a log again that nobody will ever take.
		a.add(run, c.GetStream(), c.GetOffset()+uint64(len(c.GetData())))
		return nil
	}
	if err != nil {
		return err
	}
	a.add(run, c.GetStream(), next)
	return nil
}
