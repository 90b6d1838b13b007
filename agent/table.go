package agent

import (
	"cmp"
	"container/heap"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/agent/runtime"
	"substrate/proto/agentv1"
)

const maxStatuses = 256 // sent between two looks at what else there is

// table is every run the node holds, and how far the coordinator knows about each. It outlives
// streams; begin and resume reset what belongs to one.
type table struct {
	outputs runtime.Outputs // nil: runs have no output to send
	wake    chan struct{}

	mu       sync.Mutex
	runs     map[runtime.RunID]*entry
	dirty    []runtime.RunID // statuses to send, in the order they came
	polls    pollQueue
	inFlight uint64 // output bytes sent and not acknowledged
}

type entry struct {
	status   runtime.Status
	dirty    bool
	endSent  bool // on this stream
	endAcked bool
	streams  [2]cursor // stdout, stderr
	poll     poll
}

func newTable(outputs runtime.Outputs) *table {
	return &table{outputs: outputs, wake: make(chan struct{}, 1), runs: map[runtime.RunID]*entry{}}
}

func (t *table) entry(id runtime.RunID) *entry {
	e := t.runs[id]
	if e == nil {
		e = &entry{status: runtime.Status{ID: id, State: runtime.StateStarting}}
		e.poll = poll{entry: e, index: -1}
		for i, name := range streamNames() {
			e.streams[i].name = name
		}
		t.runs[id] = e
	}
	return e
}

func streamNames() [2]runtime.Stream { return [2]runtime.Stream{runtime.Stdout, runtime.Stderr} }

func (t *table) knows(id runtime.RunID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runs[id] != nil
}

// add notes a run that is about to be started.
func (t *table) add(id runtime.RunID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entry(id)
}

// tellAgain reports whether the run is known, and has its status sent once more if so.
func (t *table) tellAgain(id runtime.RunID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.runs[id]
	if e == nil {
		return false
	}
	t.mark(e)
	return true
}

func (t *table) mark(e *entry) {
	if !e.dirty {
		e.dirty = true
		t.dirty = append(t.dirty, e.status.ID)
		poke(t.wake)
	}
}

// update takes the runtime's news. What has ended stays ended.
func (t *table) update(batch []runtime.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range batch {
		e := t.entry(s.ID)
		if e.status.State == runtime.StateEnded {
			continue
		}
		e.status = s
		t.mark(e)
		t.schedule(e, time.Now().Add(pollMin))
	}
}

// begin starts a stream: it returns every run for the hello, and forgets what was sent on the last.
func (t *table) begin() []*agentv1.RunStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*agentv1.RunStatus, 0, len(t.runs))
	t.dirty, t.polls, t.inFlight = nil, nil, 0
	for _, e := range t.runs {
		out = append(out, wireStatus(e.status))
		e.dirty, e.endAcked, e.poll.index = false, false, -1
		e.endSent = e.status.State == runtime.StateEnded
		for i := range e.streams {
			e.streams[i].rewind(0)
		}
	}
	slices.SortFunc(out, func(a, b *agentv1.RunStatus) int { return cmp.Compare(a.RunId, b.RunId) })
	return out
}

// resume takes the welcome's offsets; output is followed from there, from the beginning without one.
func (t *table) resume(offsets []*agentv1.LogOffset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range offsets {
		if c := t.cursor(o); c != nil {
			c.rewind(o.GetOffset())
		}
	}
	now := time.Now()
	for _, e := range t.runs {
		e.settleEmpty()
		t.schedule(e, now)
	}
	poke(t.wake)
}

func (t *table) cursor(o *agentv1.LogOffset) *cursor {
	e := t.runs[runtime.RunID(o.GetRunId())]
	if e == nil {
		return nil
	}
	for i := range e.streams {
		if string(e.streams[i].name) == o.GetStream() {
			return &e.streams[i]
		}
	}
	return nil
}

// statuses takes up to limit statuses to send.
func (t *table) statuses(limit int) []*agentv1.RunStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(limit, len(t.dirty))
	out := make([]*agentv1.RunStatus, 0, n)
	for _, id := range t.dirty[:n] {
		e := t.runs[id]
		if e == nil || !e.dirty {
			continue
		}
		e.dirty = false
		out = append(out, wireStatus(e.status))
		if e.status.State == runtime.StateEnded {
			e.endSent = true
			e.settleEmpty()
			t.schedule(e, time.Now())
		}
	}
	t.dirty = t.dirty[n:]
	if len(t.dirty) == 0 {
		t.dirty = nil
	}
	return out
}

// repeat sends the ends that were not acknowledged once more, and output that got lost.
func (t *table) repeat() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, e := range t.runs {
		if e.status.State == runtime.StateEnded && e.endSent && !e.endAcked {
			t.mark(e)
		}
		for i := range e.streams {
			if c := &e.streams[i]; c.waiting(now) {
				t.inFlight -= c.sent - c.acked
				c.rewind(c.acked)
				t.schedule(e, now)
			}
		}
	}
}

// ack takes an acknowledgement and returns the runs that nothing is left to tell about. They
// are dropped here.
func (t *table) ack(m *agentv1.Ack) []runtime.RunID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var touched []runtime.RunID
	for _, text := range m.GetEndedRuns() {
		id := runtime.RunID(text)
		if e := t.runs[id]; e != nil && e.status.State == runtime.StateEnded {
			e.endAcked = true
			touched = append(touched, id)
		}
	}
	for _, o := range m.GetLogs() {
		c := t.cursor(o)
		if c == nil {
			continue
		}
		id := runtime.RunID(o.GetRunId())
		before := c.sent - c.acked
		c.ack(o.GetOffset(), time.Now())
		t.inFlight -= before - min(before, c.sent-c.acked)
		t.schedule(t.runs[id], time.Now())
		touched = append(touched, id)
	}
	if len(m.GetLogs()) > 0 {
		poke(t.wake) // the window may have opened
	}
	var done []runtime.RunID
	for _, id := range touched {
		e := t.runs[id]
		if e == nil || !e.endAcked || !e.streams[0].done || !e.streams[1].done {
			continue
		}
		t.drop(e)
		done = append(done, id)
	}
	return done
}

func (t *table) drop(e *entry) {
	if e.poll.index >= 0 {
		heap.Remove(&t.polls, e.poll.index)
	}
	for i := range e.streams {
		e.streams[i].close()
	}
	delete(t.runs, e.status.ID)
}

// close lets go of open files.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.runs {
		for i := range e.streams {
			e.streams[i].close()
		}
	}
}

func (t *table) open(e *entry, c *cursor) (*os.File, error) {
	if t.outputs == nil {
		return nil, os.ErrNotExist
	}
	return t.outputs.Output(e.status.ID, c.name)
}

func wireStatus(s runtime.Status) *agentv1.RunStatus {
	out := &agentv1.RunStatus{
		RunId: string(s.ID), State: string(s.State), Cause: string(s.Cause), ExitCode: s.ExitCode, Signal: s.Signal,
		Message: s.Message, StdoutBytes: uint64(s.Stdout), StderrBytes: uint64(s.Stderr),
	}
	if !s.Started.IsZero() {
		out.Started = timestamppb.New(s.Started)
	}
	if !s.Ended.IsZero() {
		out.Ended = timestamppb.New(s.Ended)
	}
	return out
}
