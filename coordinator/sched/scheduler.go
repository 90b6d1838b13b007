package sched

import (
	"cmp"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// Scheduler is the working state of one cluster's decisions. It is told what changes, and a decision
// costs what changed, not what exists. One goroutine uses it. It has no clock.
//
// The same facts give the same plan, in whatever order they came and however often it decided before.
type Scheduler struct {
	c         *cluster
	config    Config
	shaper    *shaper
	queues    []*classQueue // by class
	entries   map[coordinator.AllocationID]*entry
	workflows map[coordinator.WorkflowID]*workflow
	holds     map[coordinator.AllocationID]*hold
	groups    groups
	rules     preemptRules

	now      time.Time // of the last decision
	pass     int
	line     line
	found    []*node
	plans    []*claim // of the last decision
	roomy    []*shape // shapes of a class that only plans keep from starting
	logged   []*array // arrays with a log of the pass
	started  []*entry
	drops    []Drop
	stops    []Stop
	reserves []Reserve
	preempts []Preempt
	open     prospects     // scratch
	looks    int           // at nodes, by preemption in this decision
	wake     time.Duration // when somebody stops being protected whom a head may preempt
	empty    []*shape      // that nobody has any more, once a trial is over

	offers   map[coordinator.DefinitionID]*Offer
	coming   map[string]Launch
	launches []Launch
	releases []Release
	awaits   map[*entry]awaited // by the last decision
	review   time.Duration      // when launches and releases may differ

	estimates map[*entry]time.Duration // of the last decision; nil: not worked out
	complete  bool                     // there are no more
	spent     bool                     // estimates have used up their work
	limit     int                      // of work for estimates
	stepping  bool                     // they are being worked out
	offered   []time.Duration          // since then, starts of those who may have to give way
	exposed   exposure
}

// workflow is what waits of a workflow, and how much of it asks for or holds nodes for the workflow alone.
type workflow struct {
	first     *entry
	exclusive int
}

// New returns a scheduler that knows nothing yet.
func New() *Scheduler {
	s := &Scheduler{
		c:         newCluster(),
		entries:   make(map[coordinator.AllocationID]*entry),
		workflows: make(map[coordinator.WorkflowID]*workflow),
		holds:     make(map[coordinator.AllocationID]*hold),
	}
	s.shaper = newShaper(s.c)
	return s
}

// Configure sets rules, definitions and totals of tokens. It may be called again.
func (s *Scheduler) Configure(config Config, defs []Definition, tokens map[string]uint32) {
	s.touch()
	if math.IsNaN(config.AgeRate) || math.IsInf(config.AgeRate, 0) {
		config.AgeRate = 0
	}
	s.config = config
	s.rules = rulesOf(&config)
	s.c.clearPlans()
	s.c.configure(max(0, config.PreemptionNotice), defs, tokens)
	for _, e := range s.entries {
		s.dequeue(e)
	}
	s.shaper = newShaper(s.c)
	s.line = line{}
	for _, e := range s.entries {
		e.rank = rankOf(e.priority, config.AgeRate, e.submitted)
		s.enqueue(e, e.shape.request(e))
	}
}

// SetNode tells of a new or changed node.
func (s *Scheduler) SetNode(n Node) {
	s.touch()
	s.c.setNode(&n)
}

// RemoveNode tells that a node is no longer known. What occupies it goes on to until it ends.
func (s *Scheduler) RemoveNode(id coordinator.NodeID) {
	s.touch()
	s.c.removeNode(id)
}

// Submit tells of a request that waits from now on, or that has changed.
func (s *Scheduler) Submit(r Request) {
	s.End(r.ID)
	s.Withdraw(r.ID)
	s.add(&r)
}

// add puts a request into the queue.
func (s *Scheduler) add(r *Request) *entry {
	if math.IsNaN(r.Priority) {
		r.Priority = 0
	}
	e := &entry{
		id: r.ID, workflow: r.Workflow, priority: r.Priority, submitted: since(r.Submitted), order: r.Order, attempt: r.Attempt, returned: r.Returned,
		rank: rankOf(r.Priority, s.config.AgeRate, since(r.Submitted)),
	}
	e.standing = s.standingOf(r)
	s.entries[e.id] = e
	w := s.workflowOf(e.workflow)
	e.next = w.first
	if e.next != nil {
		e.next.prev = e
	}
	w.first = e
	s.enqueue(e, *r)
	s.c.note(move{kind: moveOther, undo: func() {
		s.dequeue(e)
		s.forget(e)
		s.dropWorkflow(e.workflow)
	}})
	if r.Resources.Exclusive == coordinator.ExclusiveWorkflow {
		s.hold(e.workflow, 1)
	}
	return e
}

// Withdraw tells that a request no longer waits.
func (s *Scheduler) Withdraw(id coordinator.AllocationID) {
	s.touch()
	e := s.entries[id]
	if e == nil {
		return
	}
	s.dequeue(e)
	s.forget(e)
	if e.shape.need.exclusive == coordinator.ExclusiveWorkflow {
		s.hold(e.workflow, -1)
	}
	s.dropWorkflow(e.workflow)
}

// Place tells of an allocation that occupies nodes, or of a change of one.
func (s *Scheduler) Place(p Placement) {
	s.Withdraw(p.ID)
	h := s.claimOf(&p)
	if old := s.c.claims[p.ID]; old != nil && old.occupies(h) {
		s.c.census(old, -1)
		s.c.census(h, 1)
		old.to, old.ending, old.killAt, old.occupant = h.to, h.ending, h.killAt, h.occupant
		for _, n := range old.nodes {
			s.c.unindex(n)
			n.recount()
			s.c.index(n)
		}
		return
	}
	if s.c.claims[p.ID] != nil {
		s.End(p.ID)
		h = s.claimOf(&p) // what only the old one named is gone
	}
	s.c.claims[h.id] = h
	s.c.put(h)
	if h.need.exclusive == coordinator.ExclusiveWorkflow {
		s.hold(h.workflow, 1)
	}
}

// End tells that an allocation occupies nothing any more.
func (s *Scheduler) End(id coordinator.AllocationID) {
	s.touch()
	h := s.c.claims[id]
	if h == nil {
		return
	}
	delete(s.c.claims, id)
	s.c.take(h)
	for _, n := range h.nodes {
		s.c.dropNode(n)
	}
	s.c.dropArray(h.array)
	if h.need.exclusive == coordinator.ExclusiveWorkflow {
		s.hold(h.workflow, -1)
		s.dropWorkflow(h.workflow)
	}
}

// touch forgets what was worked out from facts that now change.
func (s *Scheduler) touch() {
	s.estimates, s.complete = nil, false
	for _, q := range s.queues {
		q.estimated = 0
	}
}

func (s *Scheduler) workflowOf(id coordinator.WorkflowID) *workflow {
	w := s.workflows[id]
	if w == nil {
		w = &workflow{}
		s.workflows[id] = w
	}
	return w
}

func (s *Scheduler) dropWorkflow(id coordinator.WorkflowID) {
	if w := s.workflows[id]; w != nil && w.first == nil && w.exclusive == 0 {
		delete(s.workflows, id)
	}
}

// hold counts what makes a workflow different from others. Its first and its last one change the shapes of
// what it has waiting.
func (s *Scheduler) hold(id coordinator.WorkflowID, more int) {
	w := s.workflowOf(id)
	before := w.exclusive > 0
	w.exclusive += more
	s.c.note(move{kind: moveOther, undo: func() { w.exclusive -= more }})
	if before == (w.exclusive > 0) {
		return
	}
	for e := w.first; e != nil; e = e.next {
		s.requeue(e)
	}
}

// request is what was asked for, as far as shapes depend on it.
func (s *shape) request(e *entry) Request {
	r := s.proto
	r.ID, r.Workflow, r.Attempt = e.id, e.workflow, e.attempt
	return r
}

// enqueue puts an entry into the queue of its shape.
func (s *Scheduler) enqueue(e *entry, r Request) {
	e.shape = s.shaper.shapeOf(&r, s.workflowOf(e.workflow).exclusive > 0, e.hold != nil)
	sh := e.shape
	if sh.q == nil {
		sh.q = s.queueOf(r.Class)
		sh.index = len(sh.q.shapes)
		sh.q.shapes = append(sh.q.shapes, sh)
		if sh.array != nil {
			sh.array.shapes++
		}
	}
	sh.queue.insert(e)
	sh.q.count++
}

func (s *Scheduler) dequeue(e *entry) {
	e.shape.queue.remove(e)
	e.shape.q.count--
	s.dropShape(e.shape)
}

// dropShape forgets a shape that nobody has any more.
func (s *Scheduler) dropShape(sh *shape) {
	if sh.queue.count > 0 || s.shaper.byKey[sh.key] != sh {
		return
	}
	if s.c.trials > 0 {
		s.empty = append(s.empty, sh)
		return
	}
	list := sh.q.shapes
	last := len(list) - 1
	list[sh.index] = list[last]
	list[sh.index].index = sh.index
	list[last] = nil
	sh.q.shapes = list[:last]
	delete(s.shaper.byKey, sh.key)
	if sh.array != nil {
		sh.array.shapes--
		s.c.dropArray(sh.array)
	}
}

// forget takes an entry that is in no queue out of the rest.
func (s *Scheduler) forget(e *entry) {
	delete(s.entries, e.id)
	if e.hold != nil {
		e.hold.entry = nil
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		s.workflows[e.workflow].first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
}

func (s *Scheduler) queueOf(class coordinator.Class) *classQueue {
	i, ok := slices.BinarySearchFunc(s.queues, class, func(q *classQueue, c coordinator.Class) int { return cmp.Compare(q.class, c) })
	if !ok {
		s.queues = slices.Insert(s.queues, i, &classQueue{class: class})
	}
	return s.queues[i]
}

// Decide says which requests start now and where; they count as placed at once. A caller that cannot carry
// the plan out makes a new Scheduler from what is true.
func (s *Scheduler) Decide(now time.Time) Plan {
	started := s.decide(now)
	starts := make([]Start, 0, len(started))
	for _, e := range started {
		starts = append(starts, s.settle(e))
	}
	s.seclude(s.preempts) // first: one that started may have been behind them in its queue
	for _, q := range s.queues {
		for i := len(q.shapes) - 1; i >= 0; i-- {
			sh := q.shapes[i]
			if sh.taken != (place{}) {
				q.count -= sh.queue.behead(sh.taken)
				sh.taken = place{}
				s.dropShape(sh)
			}
		}
	}
	clear(s.started)
	plan := Plan{Preempts: s.preempts, Drops: s.drops, Stops: s.stops, Reserves: s.reserves, Launches: s.launches, Releases: s.releases}
	s.retire()
	s.launches, s.releases = nil, nil
	s.preempts, s.drops, s.stops, s.reserves = nil, nil, nil, nil
	if len(starts) > 0 {
		plan.Starts = starts
	}
	return plan
}

// decide goes through the queues as of a time and says, in order, who starts.
func (s *Scheduler) decide(now time.Time) []*entry {
	s.touch()
	s.now, s.c.began = now, since(now)
	s.c.now = s.c.began
	s.started = s.started[:0]
	s.passAll(true)
	s.provide()
	slices.SortFunc(s.started, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.shape.q.class, b.shape.q.class), a.compare(b))
	})
	return s.started
}

// settle makes a start a placement.
func (s *Scheduler) settle(e *entry) Start {
	s.c.claims[e.id] = e.start
	s.forget(e)
	s.dropWorkflow(e.workflow) // it is exclusive still if it was
	return e.startOf()
}

func (e *entry) startOf() Start {
	h := e.start
	ids := make([]coordinator.NodeID, len(h.nodes))
	for i, n := range h.nodes {
		ids[i] = n.id
	}
	return Start{ID: e.id, Definition: h.nodes[0].def.id, Nodes: ids, Shares: h.shares, Rule: e.rule, Reservation: h.reservation}
}

// Decide says which requests start now and where, and why the others wait. The same snapshot
// gives the same plan, whatever the order of its slices.
func Decide(snap Snapshot) Plan {
	s := load(&snap)
	plan := s.Decide(snap.Now)
	plan.Waits = s.waits(nearestShapes)
	return plan
}

// load makes a scheduler that knows a snapshot.
func load(snap *Snapshot) *Scheduler {
	s := New()
	s.Configure(snap.Config, snap.Definitions, snap.Tokens)
	if snap.Reservations != nil {
		s.SetReservations(snap.Reservations)
	}
	if len(snap.Windows) > 0 {
		s.SetWindows(snap.Windows)
	}
	for i := range snap.Offers {
		s.SetOffer(snap.Offers[i])
	}
	for i := range snap.Launching {
		s.SetLaunching(snap.Launching[i])
	}
	for i := range snap.Nodes {
		s.SetNode(snap.Nodes[i])
	}
	for i := range snap.Placements {
		s.Place(snap.Placements[i])
	}
	for i := range snap.Requests {
		s.Submit(snap.Requests[i])
	}
	for i := range snap.Holds {
		s.SetHold(snap.Holds[i])
	}
	return s
}
