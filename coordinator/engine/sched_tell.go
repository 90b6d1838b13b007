package engine

import (
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/expr"
)

// core keeps the scheduler's working state in step with the cluster's: what has changed is noted where it
// changes and told before the next decision, so that a decision costs what changed.
type core struct {
	scheduler    *sched.Scheduler // nil: to be made from the whole state
	allocs       map[coordinator.AllocationID]*allocation
	nodes        map[coordinator.NodeID]*node
	reservations bool // they have changed
	windows      bool
	offers       bool   // what can be launched, or is coming
	waiting      bool   // everything that waits has changed: a priority, a grant
	admission    uint64 // as of the last telling

	// A priority that is not linear in age is worked out again from time to time, some at each pass.
	aging     []*allocation
	nextAging time.Time
}

// Priorities that cannot be kept by adding age are at most agingEvery old, plus what a few passes take.
const (
	agingEvery = 30 * time.Second
	agedAtOnce = 2000
)

// changed notes an allocation whose request or place may have changed.
func (s *state) changed(a *allocation) {
	if s.core.allocs == nil {
		s.core.allocs = map[coordinator.AllocationID]*allocation{}
	}
	s.core.allocs[a.id] = a
}

// changedNode notes a node, and that there is something to decide.
func (s *state) changedNode(n *node) {
	if s.core.nodes == nil {
		s.core.nodes = map[coordinator.NodeID]*node{}
	}
	s.core.nodes[n.id] = n
	s.dirty = true
}

// changedWaiting notes that all that waits may rank differently, or be admitted elsewhere.
func (s *state) changedWaiting() { s.core.waiting, s.dirty = true, true }

// changedAll has the scheduler's state made anew.
func (s *state) changedAll() { s.core, s.dirty = core{}, true }

// tell brings the scheduler's state up to date.
func (s *state) tell(t *tx) {
	c := &s.core
	if c.scheduler == nil {
		*c = core{scheduler: sched.New()}
		c.scheduler.Configure(s.schedConfig(), s.config.candidates, s.config.SoftwareTokens)
		for _, n := range s.nodes {
			s.tellNode(n)
		}
		for _, a := range s.active {
			s.changed(a)
		}
		for id, h := range s.holds {
			c.scheduler.SetHold(s.hold(id, h))
		}
		c.waiting, c.reservations, c.windows, c.offers = true, true, true, true
	}
	if c.reservations {
		c.scheduler.SetReservations(s.tellReservations())
	}
	if c.offers {
		s.tellOffers()
	}
	if c.windows {
		c.scheduler.SetWindows(s.tellWindows())
	}
	for _, n := range c.nodes {
		s.tellNode(n)
	}
	if c.waiting || c.admission != s.admission {
		for _, a := range s.queued {
			s.changed(a)
		}
	}
	s.age(t.now)
	env := &expr.PriorityEnv{}
	for _, a := range c.allocs {
		s.tellAllocation(t, a, env)
	}
	clear(c.nodes)
	clear(c.allocs)
	c.waiting, c.reservations, c.windows, c.offers, c.admission = false, false, false, false, s.admission
}

func (s *state) schedConfig() sched.Config {
	cfg := &s.config.Scheduler
	slope, _ := s.config.priority.AgeLinear()
	return sched.Config{
		Backfill: cfg.Backfill, PreemptionNotice: cfg.PreemptionNotice, QueueDepth: cfg.QueueDepth, AgeRate: slope,
		PreemptionEnabled: cfg.PreemptionEnabled, PreemptionThreshold: cfg.PreemptionThreshold,
		PreemptionGap: cfg.PreemptionGap, MinPreemptionRuntime: cfg.MinPreemptionRuntime,
	}
}

func (s *state) tellNode(n *node) {
	if !n.known || n.looked || s.nodes[n.id] != n {
		s.core.scheduler.RemoveNode(n.id)
		return
	}
	spec := n.schedNode()
	if l, d := s.launchOf(n), s.definition(n.record.Definition); l != nil && d != nil {
		if spec.Schedulable {
			s.arrive(l, n)
		}
		spec.Expires, spec.IdleSince = l.expires(d), n.idle(s.now().UTC())
	}
	s.core.scheduler.SetNode(spec)
}

func (s *state) tellAllocation(t *tx, a *allocation, env *expr.PriorityEnv) {
	c := s.core.scheduler
	switch st := a.record.Status; {
	case st.Holds():
		c.Place(s.placement(t, a, env))
	case st == coordinator.StatusQueued && !t.now.Before(a.record.NotBefore):
		c.Submit(s.request(t, a, env))
	default:
		c.Withdraw(a.id)
		c.End(a.id)
	}
}

// age has some of the priorities worked out again that change with time in ways of their own.
func (s *state) age(now time.Time) {
	if _, linear := s.config.priority.AgeLinear(); linear {
		return
	}
	c := &s.core
	if len(c.aging) == 0 && !now.Before(c.nextAging) {
		for _, a := range s.queued {
			c.aging = append(c.aging, a)
		}
		c.nextAging = now.Add(agingEvery)
	}
	n := min(len(c.aging), agedAtOnce)
	for _, a := range c.aging[:n] {
		if a.record.Status == coordinator.StatusQueued {
			s.changed(a)
		}
	}
	c.aging = c.aging[n:]
}

// wait is why an allocation waits, as of the last decision; false if it does not, or came after that.
func (s *state) wait(a *allocation, now time.Time) (sched.Wait, bool) {
	if s.core.scheduler == nil || a.record.Status != coordinator.StatusQueued {
		return sched.Wait{}, false
	}
	w, ok := s.core.scheduler.Explain(a.id, now)
	return w, ok && w.Verdict.Reason != 0
}
