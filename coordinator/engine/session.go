package engine

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/inventory"
	"substrate/hwinfo"
)

// maxOutbox bounds what waits for a slow agent; beyond it the stream is cut and the agent comes back.
const maxOutbox = 1 << 16

// Session is one living stream of a node.
type Session struct {
	engine *Engine
	node   coordinator.NodeID

	mu     sync.Mutex
	outbox []ToNode
	closed bool
	ready  chan struct{}             // holds one token when outbox is not empty or the session is closed
	ranks  map[coordinator.RunID]int // the node's rank in runs that sent output, -1: not placed here
	hello  []coordinator.RunID       // runs the agent held when it connected
	// discovers: the agent marks its last report. look is what it waits for, nil where the node is for work.
	discovers bool
	look      *Look

	certificate NodeCertificate
	slot        bool // of no machine: what is pushed wakes its backend's driver, which looks for itself what there is to do
}

// sessions are the streams to close when the loop stops or starts again from the store.
type sessions struct {
	mu   sync.Mutex
	live map[*Session]bool
}

func (s *sessions) add(x *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		s.live = map[*Session]bool{}
	}
	s.live[x] = true
}

func (s *sessions) remove(x *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, x)
}

func (s *sessions) closeAll() {
	s.mu.Lock()
	live := s.live
	s.live = nil
	s.mu.Unlock()
	for x := range live {
		x.shut()
	}
}

// push queues a message; a full outbox closes the session. Called by the loop, never blocks.
func (s *Session) push(m ToNode) {
	if s.slot {
		s.engine.provisioners.wake()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if len(s.outbox) >= maxOutbox {
		s.closed, s.outbox = true, nil
	} else {
		s.outbox = append(s.outbox, m)
	}
	s.signal()
}

func (s *Session) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *Session) shut() {
	if s.slot {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.signal()
}

// Next blocks until there are messages for the agent. ErrUnavailable means that the stream must end.
func (s *Session) Next(ctx context.Context) ([]ToNode, error) {
	for {
		s.mu.Lock()
		out, closed := s.outbox, s.closed
		s.outbox = nil
		if closed {
			s.signal() // for whoever asks again
		}
		s.mu.Unlock()
		if closed {
			return nil, coordinator.Errorf(coordinator.ErrUnavailable, "talk to node "+string(s.node), "the stream was closed by the coordinator")
		}
		if len(out) > 0 {
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.ready:
		}
	}
}

// Connect takes a node's new stream; an older one of the same node is closed. Runs the agent holds are
// compared with what is decided: unknown ones are ended, missing ones ordered again or given up.
func (e *Engine) Connect(ctx context.Context, id coordinator.NodeID, h Hello) (*Session, error) {
	s := &Session{engine: e, node: id, ready: make(chan struct{}, 1), ranks: map[coordinator.RunID]int{}, certificate: h.Certificate, discovers: h.Discovers}
	for _, st := range h.Runs {
		s.hello = append(s.hello, st.Run)
	}
	err := e.do(ctx, func(t *tx) error {
		if err := t.state.checkCertificate("connect the node", id, h.Certificate); err != nil {
			return err
		}
		n := t.state.nodes[id]
		if n == nil {
			n = newNode(id)
			n.record.Created = t.now
			t.state.nodes[id] = n
		}
		if n.session != nil {
			n.session.shut()
			e.sessions.remove(n.session)
		}
		if n.record.BootID != h.BootID || n.record.LastSeen.IsZero() {
			n.record.BootID, n.record.LastSeen = h.BootID, t.now
			n.record.Taken, n.record.TakenText = time.Time{}, "" // said of a machine that was switched off since
			t.put(prefixNode+string(id), n.record)
			t.group()
		}
		n.session, n.version, n.lastSeen, n.connected, n.strays = s, h.Version, t.now, t.now, nil
		delete(t.state.absent, id)
		if n.lost {
			n.lost, n.record.Lost = false, false
			t.put(prefixNode+string(id), n.record)
			t.event(Event{Kind: "node-returned", Subject: string(id), Message: "the node is back"})
		}
		e.sessions.add(s)
		s.look = t.lookOf(n)
		t.state.changedNode(n)
		t.reconcile(n, h.Runs)
		cfg := t.state.config.forNodes
		t.then(func(int64) { s.push(ToNode{Configuration: cfg}) })
		return nil
	})
	if err != nil {
		s.shut()
		return nil, err
	}
	return s, nil
}

// reconcile brings a node's own list of runs and the decided ones together.
func (t *tx) reconcile(n *node, runs []RunStatus) {
	listed := map[coordinator.RunID]bool{}
	for _, st := range runs {
		listed[st.Run] = true
		t.report(n, st)
	}
	for _, a := range sortedAllocations(n.active) {
		r := a.rank(n.id)
		if r == nil || r.State == RunEnded {
			continue
		}
		switch {
		case listed[a.run()]:
			if a.record.Stop != "" {
				t.stop(a, t.graceLeft(a), string(a.record.Stop))
			}
		case r.State == RunStarting && a.record.Stop != "":
			t.nodeFault(a, n.id, "ended before it started")
		case r.State == RunStarting:
			t.order(a, n.id)
		default:
			t.nodeFault(a, n.id, fmt.Sprintf("node %s no longer knows the run", n.id))
		}
	}
}

// carry takes the living streams over into a state that was read again after a failed write. What the write
// may have decided without anybody hearing is ordered again: orders are idempotent by run id.
func (e *Engine) carry(old, now *state) {
	for id, was := range old.nodes {
		if was.session == nil || was.session.slot { // slots are what was stored of them
			continue
		}
		n := now.nodes[id]
		if n == nil {
			n = newNode(id)
			n.record = was.record
			now.nodes[id] = n
		}
		n.session, n.version, n.lastSeen, n.connected = was.session, was.version, was.lastSeen, was.connected
		n.strays = was.strays
		n.lost = false
		if len(n.raw) == 0 { // its report could not be written
			n.learn(was.facts, was.raw, was.warnings)
			now.confine(n)
			now.quarantine(n)
		}
		n.warnings = was.warnings
		if was.revision == now.config.Revision {
			n.revision, n.conditions, n.conflicts = was.revision, was.conditions, was.conflicts
		} else {
			n.session.push(ToNode{Configuration: now.config.forNodes})
		}
		delete(now.absent, id)
		for _, a := range sortedAllocations(n.active) {
			switch r := a.rank(id); {
			case r == nil || r.State == RunEnded:
			case a.record.Stop != "":
				t := &tx{engine: e, state: now, now: e.opt.Now().UTC()}
				n.session.push(ToNode{Stop: &StopRun{Run: a.run(), Grace: t.graceLeft(a), Reason: string(a.record.Stop)}})
			case r.State == RunStarting:
				n.session.push(ToNode{Start: now.startRun(a, id)})
			}
		}
	}
	now.config.regroup(now.nodes)
}

// graceLeft is how long a run that is being ended still has when its node is told once more. Of a notice that is all of
// it: the node may hear of it for the first time, and a keeper that has heard of it before keeps to the earlier end.
func (t *tx) graceLeft(a *allocation) time.Duration {
	if a.record.Stop != stopCancel && !a.record.NoticeEnds.IsZero() {
		return max(a.record.NoticeEnds.Sub(t.now), t.state.config.Scheduler.PreemptionNotice)
	}
	return t.state.config.Scheduler.KillTimeout
}

// Look is what the agent waits for before it reports for good; nil: the node is for work.
func (s *Session) Look() *Look { return s.look }

// Close ends the session. The node's work goes on; it is given up after the node loss window.
func (s *Session) Close() {
	s.shut()
	s.engine.sessions.remove(s)
	ctx := context.Background() // the stream's own context is over; the loop answers or has stopped
	_ = s.engine.doBare(ctx, func(t *tx) error {
		if n := t.state.nodes[s.node]; n != nil && n.session == s {
			n.session, n.lastSeen = nil, t.now
			t.state.absent[n.id] = n
			t.state.changedNode(n)
		}
		return nil
	})
}

// current returns the node if this session still speaks for it.
func (s *Session) current(t *tx) (*node, error) {
	n := t.state.nodes[s.node]
	if n == nil || n.session != s {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "hear node "+string(s.node), "another stream of the node took over")
	}
	n.lastSeen = t.now
	return n, nil
}

// Hardware takes in a report. A report without facts stands for the facts with its digest, if they are
// here; facts that are missing, too large or unreadable leave the node without capacity and with a warning.
func (s *Session) Hardware(ctx context.Context, r HardwareReport) error {
	if len(r.Warnings) > maxWarnings {
		r.Warnings = r.Warnings[:maxWarnings]
	}
	var facts hwinfo.Facts
	if len(r.Facts) > 0 {
		var err error
		if facts, err = inventory.DecodeFacts(r.Facts); err != nil {
			r.Facts = nil
			r.Warnings = append(slices.Clone(r.Warnings), NodeWarning{Source: "report", Message: err.Error()})
		}
	}
	return s.engine.doReport(ctx, func(t *tx) error {
		n, err := s.current(t)
		if err != nil {
			return err
		}
		defer t.looked(n, r.Final, r.Digest)
		if known := sha256.Sum256(n.raw); bytes.Equal(n.raw, r.Facts) || len(r.Facts) == 0 && bytes.Equal(known[:], r.Digest) {
			n.warnings = r.Warnings
			return nil
		}
		was, keys, could := n.capacity, n.hardwareKeys, n.known
		n.learn(facts, bytes.Clone(r.Facts), r.Warnings)
		t.state.confine(n)
		if !n.looked {
			t.takeReport(n)
		}
		t.putBytes(prefixFacts+string(n.id), n.raw)
		t.event(Event{Kind: "node-reported", Subject: string(n.id), Message: reportText(n, facts)})
		t.checkDrift(n)
		if could != n.known || !reflect.DeepEqual(was, n.capacity) || !maps.Equal(keys, n.hardwareKeys) {
			t.state.admission++
		}
		t.state.changedNode(n)
		t.state.core.reservations = true // what they consist of is named by what the report lists
		for _, a := range n.active {     // what they have is named by what the report lists
			t.state.changed(a)
		}
		return nil
	})
}

const maxWarnings = 256

func reportText(n *node, f hwinfo.Facts) string {
	if !n.known {
		return "hardware report without cores or memory"
	}
	return fmt.Sprintf("%d cores, %s, %s", n.capacity.Cores, n.capacity.Memory, cmp.Or(f.OSRelease.PrettyName, "unknown system"))
}

// Conditions takes in the outcome of the static definitions' conditions on the node.
func (s *Session) Conditions(ctx context.Context, r ConditionReport) error {
	return s.engine.doReport(ctx, func(t *tx) error {
		n, err := s.current(t)
		if err != nil {
			return err
		}
		if r.Revision != t.state.config.Revision {
			return nil // of an older revision; the answer to the newer one is on its way
		}
		n.revision, n.conditions = r.Revision, r.Results
		t.assign(n)
		return nil
	})
}

// RunStatus takes in reports about runs. When it returns, what they changed is durable.
func (s *Session) RunStatus(ctx context.Context, reports []RunStatus) error {
	return s.engine.doReport(ctx, func(t *tx) error {
		n, err := s.current(t)
		if err != nil {
			return err
		}
		for _, st := range reports {
			t.report(n, st)
		}
		return nil
	})
}
