package sched

import (
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// Limits that keep one decision short whatever the snapshot holds. They are counts, not
// times, so that the same snapshot always gives the same plan.
const (
	planWork      = 1_000_000 // node examinations for planned starts in the first pass
	estimateWork  = 500_000   // node examinations for estimates
	estimateSteps = 4_096     // known ends that estimates step over
	estimateDepth = 1_000     // estimated allocations per class
	nearestDepth  = 256       // shapes per class that get a nearest node
)

// decision is one call of Decide.
type decision struct {
	c       *cluster
	s       *Snapshot
	queues  []*classQueue
	pass    int
	limit   int // of c.work for planned starts
	line    line
	found   []*node
	spent   bool // estimates have used up their work
	onStart func(*entry)
}

// line knows, for each definition and token, the first waiting allocation of the class that may want it.
type line struct {
	defs   []*entry
	tokens []*entry
	closed []int // definitions that are set
	taken  []int // tokens that are set
}

func (l *line) clear() {
	for _, i := range l.closed {
		l.defs[i] = nil
	}
	for _, i := range l.taken {
		l.tokens[i] = nil
	}
	l.closed, l.taken = l.closed[:0], l.taken[:0]
}

// block closes what a waiting allocation may want to later ones of its class.
func (l *line) block(s *shape, e *entry) {
	if s.lined {
		return
	}
	s.lined = true
	for _, def := range s.defs {
		if l.defs[def.number] == nil {
			l.defs[def.number] = e
			l.closed = append(l.closed, def.number)
		}
	}
	for _, a := range s.need.tokens {
		if l.tokens[a.kind] == nil {
			l.tokens[a.kind] = e
			l.taken = append(l.taken, a.kind)
		}
	}
}

// ahead is the first waiting allocation of the class that overlaps the shape (rule 4).
func (l *line) ahead(s *shape) *entry {
	if s.ahead != nil || len(l.closed)+len(l.taken) == 0 {
		return s.ahead
	}
	first := func(e *entry) {
		if e != nil && (s.ahead == nil || e.position < s.ahead.position) {
			s.ahead = e
		}
	}
	for _, def := range s.defs {
		first(l.defs[def.number])
	}
	for _, a := range s.need.tokens {
		first(l.tokens[a.kind])
	}
	return s.ahead
}

// Decide says which requests start now and where, and why the others wait. The same snapshot
// gives the same plan, whatever the order of its slices.
func Decide(s Snapshot) Plan {
	c := newCluster(&s)
	d := &decision{c: c, s: &s, limit: planWork}
	d.queues = newQueue(c, &s)
	c.addPlacements(&s)
	d.line = line{defs: make([]*entry, len(c.defs)), tokens: make([]*entry, len(c.tokens))}
	for _, q := range d.queues {
		q.admit(math.MaxInt)
	}
	plan := Plan{}
	d.onStart = func(e *entry) { plan.Starts = append(plan.Starts, e.start()) }
	d.passAll(true)
	plan.Waits = d.explain()
	if !s.Config.NoEstimates {
		d.estimate(plan.Waits)
	}
	return plan
}

func (e *entry) start() Start {
	ids := make([]coordinator.NodeID, len(e.nodes))
	for i, n := range e.nodes {
		ids[i] = n.id
	}
	slices.Sort(ids)
	return Start{ID: e.request.ID, Definition: e.nodes[0].def.id, Nodes: ids, Rule: e.rule}
}

// passAll goes through the queues once. A full pass fixes what each entry is told; the others
// only step estimates forward and end when nothing more can start.
func (d *decision) passAll(full bool) {
	d.pass++
	d.c.clearPlans()
	for _, q := range d.queues {
		if len(q.waiting) > 0 {
			d.passClass(q, full)
		}
	}
}

// passClass is rules 4 and 15 for one class.
func (d *decision) passClass(q *classQueue, full bool) {
	d.line.clear()
	mode := d.s.Config.Backfill
	looked, failed, started := 0, 0, false
	for _, e := range q.waiting {
		if !full && (d.spent || d.nothingLeft(q, mode, failed)) {
			break
		}
		s := e.shape
		s.renew(d.pass)
		if s.array >= 0 && d.c.arrays[s.array] <= 0 {
			e.kept = keptByArray
			if !s.failed {
				s.failed = true
				failed++
			}
			continue
		}
		e.kept, e.ahead = keptByNothing, d.line.ahead(s)
		switch {
		case e.ahead != nil && mode == coordinator.BackfillNone:
			e.kept = keptByOrder
		case e.ahead != nil && d.tooDeep(looked, mode):
			e.kept = keptByDepth
		case !s.failed && d.try(e):
			started = true
			continue
		}
		looked++
		if !s.failed {
			s.failed = true
			failed++
		}
		d.line.block(s, e)
		if e.kept == keptByNothing && (e.ahead == nil || mode == coordinator.BackfillConservative) {
			d.planStart(e, full)
		}
		if full && e.kept == keptByNothing {
			d.noteRoom(e)
		}
	}
	if started {
		q.waiting = slices.DeleteFunc(q.waiting, func(e *entry) bool { return e.began })
	}
}

// nothingLeft reports whether the rest of a class cannot start, so that a stepping pass may end.
func (d *decision) nothingLeft(q *classQueue, mode coordinator.Backfill, failed int) bool {
	switch mode {
	case coordinator.BackfillNone:
		return len(d.line.closed) == len(q.defs) || failed == q.shapes
	case coordinator.BackfillEasy:
		return failed == q.shapes
	}
	return false // conservative plans of the rest bind the classes below
}

// noteRoom finds out whether only plans kept an entry from starting.
func (d *decision) noteRoom(e *entry) {
	s := e.shape
	if s.full {
		return
	}
	if d.c.tokensFit(s.need, d.c.now, later(d.c.now, s.span), false) {
		if found := d.search(s, false); found != nil {
			e.kept, e.room = keptByPlan, found[0]
			return
		}
	}
	s.full = true
}

// tooDeep reports whether backfill looks no further: the configured depth, and for
// conservative, which plans for each, a bound on the work.
func (d *decision) tooDeep(looked int, mode coordinator.Backfill) bool {
	depth := d.s.Config.QueueDepth
	return depth > 0 && looked >= depth || mode == coordinator.BackfillConservative && d.c.work > d.limit
}

// respectsPlans is false for work that fills whatever is idle (see the package comment).
func (d *decision) respectsPlans(class coordinator.Class) bool {
	return class < coordinator.ClassBatch || d.s.Config.Backfill != coordinator.BackfillNone
}

// try starts the entry on the first candidate that holds it whole (rules 5, 6, 9).
func (d *decision) try(e *entry) bool {
	s, plans := e.shape, d.respectsPlans(e.shape.class)
	if !d.c.tokensFit(s.need, d.c.now, later(d.c.now, s.span), plans) {
		return false
	}
	found := d.search(s, plans)
	if found == nil {
		return false
	}
	e.began, e.nodes, e.rule = true, slices.Clone(found), 4
	if e.ahead != nil {
		e.rule = 15
	}
	d.c.place(d.c.claimFor(e, e.nodes, d.c.now))
	d.onStart(e)
	return true
}

// search finds the nodes of the first candidate that holds the shape whole, nil if none does.
// The list is used again by the next search.
func (d *decision) search(s *shape, plans bool) []*node {
	for _, def := range s.defs {
		look := search{c: d.c, shape: s, want: s.count, plans: plans, found: d.found[:0]}
		complete := look.walk(def.root)
		d.found = look.found
		if complete {
			return look.found
		}
	}
	return nil
}

// claimFor is what the entry occupies if it starts at a time.
func (c *cluster) claimFor(e *entry, nodes []*node, from time.Duration) *claim {
	to := never
	if from < never {
		to = later(from, e.shape.span)
	}
	return &claim{
		id: e.request.ID, workflow: e.request.Workflow, need: e.shape.need,
		nodes: nodes, array: e.shape.array, from: from, to: to,
	}
}

// explain says why each entry that did not start waits, in queue order.
func (d *decision) explain() []Wait {
	total := 0
	for _, q := range d.queues {
		total += len(q.all)
	}
	waits := make([]Wait, 0, total)
	for _, q := range d.queues {
		words := explainer{d: d, budget: nearestDepth}
		position := 0
		for _, e := range q.all {
			if e.began {
				continue
			}
			position++
			waits = append(waits, Wait{
				ID: e.request.ID, Class: e.request.Class, Position: position,
				Verdict: *words.verdict(e),
			})
		}
	}
	return waits
}
