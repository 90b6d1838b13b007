package agent

import (
	"container/heap"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"substrate/agent/runtime"
	"substrate/proto/agentv1"
)

const (
	chunkBytes   = 256 << 10 // the wire's limit
	pollMin      = 20 * time.Millisecond
	pollMax      = time.Second
	streamWindow = 4 << 20  // of one output, sent and not acknowledged
	totalWindow  = 32 << 20 // of all outputs
	ackWithin    = 10 * time.Second
	// maxOutput of one stream is sent, a little more than the coordinator keeps of a run, so that it says where
	// it cut. A job that writes without end, or only claims to have (a sparse file), costs no more than this.
	maxOutput = 1<<30 + chunkBytes
)

// cursor is how far one output has travelled on this stream: acked ≤ sent.
type cursor struct {
	name     runtime.Stream
	file     *os.File
	sent     uint64
	acked    uint64
	lastSent bool // the chunk that says "no more" went out
	done     bool // and was acknowledged with everything before it
	moved    time.Time
}

// rewind sends again from an offset.
func (c *cursor) rewind(offset uint64) {
	c.sent, c.acked, c.lastSent, c.done = offset, offset, false, false
}

// ack takes how much the coordinator has. Less than it had before means that it lost some.
func (c *cursor) ack(offset uint64, now time.Time) {
	if offset < c.acked {
		c.rewind(offset)
		return
	}
	if offset > c.acked {
		c.moved = now
	}
	c.acked = min(offset, c.sent)
	if c.lastSent && c.acked == c.sent {
		c.done = true
		c.close()
	}
}

// waiting reports output that was sent and that nobody acknowledges.
func (c *cursor) waiting(now time.Time) bool {
	return (c.acked < c.sent || c.lastSent && !c.done) && now.Sub(c.moved) > ackWithin
}

func (c *cursor) close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// poll is a run's place in the queue of outputs to look at.
type poll struct {
	entry    *entry
	at       time.Time
	interval time.Duration
	index    int // -1: not queued
}

// pollQueue is a heap by time, then by run.
type pollQueue []*poll

func (q pollQueue) Len() int { return len(q) }
func (q pollQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].entry.status.ID < q[j].entry.status.ID
}
func (q pollQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *pollQueue) Push(x any) {
	p := x.(*poll)
	p.index = len(*q)
	*q = append(*q, p)
}
func (q *pollQueue) Pop() any {
	old := *q
	p := old[len(old)-1]
	p.index = -1
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return p
}

// schedule has a run's output looked at, at the latest at the given time.
func (t *table) schedule(e *entry, at time.Time) {
	if t.outputs == nil || e.streams[0].lastSent && e.streams[1].lastSent {
		return
	}
	p := &e.poll
	switch {
	case p.index < 0:
		p.at = at
		heap.Push(&t.polls, p)
	case at.Before(p.at):
		p.at = at
		heap.Fix(&t.polls, p.index)
	}
}

// chunk is the next piece of output to send; without one, wait is when to look again, 0 for never.
func (t *table) chunk(now time.Time) (*agentv1.LogChunk, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.polls) > 0 {
		if t.inFlight >= totalWindow {
			return nil, pollMax // an acknowledgement wakes sooner
		}
		p := t.polls[0]
		if wait := p.at.Sub(now); wait > 0 {
			return nil, wait
		}
		heap.Pop(&t.polls)
		e := p.entry
		if e.status.State == runtime.StateStarting {
			continue // its update schedules it
		}
		if c := t.piece(e, now); c != nil {
			p.interval = pollMin
			t.schedule(e, now)
			return c, 0
		}
		if !e.ended() || e.stuck() {
			p.interval = min(max(2*p.interval, pollMin), pollMax)
			t.schedule(e, now.Add(p.interval))
		}
	}
	return nil, 0
}

// ended: the end has been told on this stream, so the sizes are final and known to the other side.
func (e *entry) ended() bool { return e.status.State == runtime.StateEnded && e.endSent }

// settleEmpty: of an output that stayed empty the end alone tells everything.
func (e *entry) settleEmpty() {
	if !e.ended() {
		return
	}
	for i, total := range []runtime.Bytes{e.status.Stdout, e.status.Stderr} {
		if c := &e.streams[i]; total == 0 && c.sent == 0 {
			c.lastSent, c.done = true, true
			c.close()
		}
	}
}

// stuck: the run has ended, and what it wrote cannot be read just now (too many open files).
func (e *entry) stuck() bool {
	for i := range e.streams {
		if c := &e.streams[i]; !c.lastSent && c.sent-c.acked < streamWindow {
			return true
		}
	}
	return false
}

func (t *table) piece(e *entry, now time.Time) *agentv1.LogChunk {
	for i := range e.streams {
		c := &e.streams[i]
		if c.lastSent || c.sent-c.acked >= streamWindow {
			continue
		}
		if out := t.read(e, c, now); out != nil {
			return out
		}
	}
	return nil
}

// read is the next piece of one output, nil when there is nothing new.
func (t *table) read(e *entry, c *cursor, now time.Time) *agentv1.LogChunk {
	size, err := t.size(e, c)
	size = min(size, maxOutput)
	if err != nil || size <= c.sent && !e.ended() {
		return nil
	}
	out := &agentv1.LogChunk{RunId: string(e.status.ID), Stream: string(c.name), Offset: c.sent}
	if size > c.sent {
		buf := make([]byte, min(size-c.sent, chunkBytes))
		n, err := c.file.ReadAt(buf, int64(c.sent))
		switch {
		case n > 0:
			out.Data = buf[:n]
		case e.ended() && errors.Is(err, io.EOF):
			size = c.sent // the run cut its own output
		default:
			return nil
		}
	}
	c.sent += uint64(len(out.Data))
	t.inFlight += uint64(len(out.Data))
	out.Last = e.ended() && c.sent >= size
	c.lastSent, c.moved = out.Last, now
	return out
}

// size is how much there is to send of an output. The file is open if that is more than was sent.
func (t *table) size(e *entry, c *cursor) (uint64, error) {
	total := uint64(e.status.Stdout)
	if c.name == runtime.Stderr {
		total = uint64(e.status.Stderr)
	}
	if e.ended() && total <= c.sent {
		return total, nil
	}
	if c.file == nil {
		f, err := t.open(e, c)
		if e.ended() && errors.Is(err, fs.ErrNotExist) {
			return c.sent, nil
		}
		if err != nil {
			return 0, err
		}
		c.file = f
	}
	if e.ended() {
		return total, nil
	}
	info, err := c.file.Stat()
	if err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}
