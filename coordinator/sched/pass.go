package sched

import (
	"container/heap"
	"slices"
	"time"

	"substrate/coordinator"
)

// planWork is how many node examinations plans take before conservative backfill looks no further. It is
// a count, not a time, so that the same facts always give the same plan.
const planWork = 1_000_000

// line knows, for each definition and token, the first waiting allocation of the class that may want it.
type line struct {
	defs     []*entry
	tokens   []*entry
	bookings map[*booking]*entry // the same for reservations
	closed   []int               // definitions that are set
	taken    []int               // tokens that are set
}

// size makes room for what there is.
func (l *line) size(defs, tokens int) {
	if len(l.defs) != defs || len(l.tokens) != tokens {
		*l = line{defs: make([]*entry, defs), tokens: make([]*entry, tokens)}
	}
}

func (l *line) clear() {
	for _, i := range l.closed {
		l.defs[i] = nil
	}
	for _, i := range l.taken {
		l.tokens[i] = nil
	}
	l.closed, l.taken = l.closed[:0], l.taken[:0]
	clear(l.bookings)
}

// lineDefs is the definitions that a shape waits for: one in a reservation waits for that alone.
func (s *shape) lineDefs() []*definition {
	if s.party.booking != nil {
		return nil
	}
	return s.defs
}

// block closes what a waiting allocation may want to later ones of its class.
func (l *line) block(s *shape, e *entry) {
	if s.lined {
		return
	}
	s.lined = true
	for _, def := range s.lineDefs() {
		if l.defs[def.number] == nil {
			l.defs[def.number] = e
			l.closed = append(l.closed, def.number)
		}
	}
	if b := s.party.booking; b != nil && l.bookings[b] == nil {
		if l.bookings == nil {
			l.bookings = make(map[*booking]*entry)
		}
		l.bookings[b] = e
	}
	for _, a := range s.need.tokens {
		if l.tokens[a.kind] == nil {
			l.tokens[a.kind] = e
			l.taken = append(l.taken, a.kind)
		}
	}
}

// inFront is the first waiting allocation of the class that overlaps the shape (rule 4).
func (l *line) inFront(s *shape) *entry {
	if s.ahead != nil || len(l.closed)+len(l.taken)+len(l.bookings) == 0 {
		return s.ahead
	}
	first := func(e *entry) {
		if e != nil && (s.ahead == nil || e.compare(s.ahead) < 0) {
			s.ahead = e
		}
	}
	for _, def := range s.lineDefs() {
		first(l.defs[def.number])
	}
	if b := s.party.booking; b != nil {
		first(l.bookings[b])
	}
	for _, a := range s.need.tokens {
		first(l.tokens[a.kind])
	}
	return s.ahead
}

// passAll goes through the queues once. A full pass fixes what is told to those who wait; the others
// only step estimates forward.
func (s *Scheduler) passAll(full bool) {
	s.pass++
	s.c.planWork = 0
	s.c.clearPlans()
	s.line.size(len(s.c.defs), len(s.c.tokens))
	s.roomy = s.roomy[:0]
	s.preempts, s.drops, s.stops, s.reserves = nil, nil, nil, nil
	s.looks, s.wake = 0, never
	if full {
		s.plans = s.plans[:0]
		for _, g := range s.logged {
			g.log = g.log[:0]
		}
		s.logged = s.logged[:0]
	}
	s.clearNodes()
	s.book()
	s.settleHolds()
	for _, q := range s.queues {
		if q.count > 0 {
			p := classPass{s: s, q: q, full: full, mode: s.config.Backfill}
			p.run()
		}
	}
}

// classPass is one class in a pass (rules 4 and 15). It merges the queues of the shapes in order and drops a
// shape once nothing more of it can start, so that it costs starts and shapes, not what waits. Only where a
// depth or plans for everybody are configured does it look at each that waits, up to that limit.
type classPass struct {
	s      *Scheduler
	q      *classQueue
	full   bool
	mode   coordinator.Backfill
	each   bool // entries that fail are counted, or planned, one by one
	looked int
	heads  heads
}

func (p *classPass) run() {
	s, c, q := p.s, p.s.c, p.q
	s.line.clear()
	s.roomy = s.roomy[:0]
	depth := s.config.QueueDepth
	p.each = p.mode == coordinator.BackfillConservative || p.mode == coordinator.BackfillEasy && depth > 0 && depth < q.count
	if p.full {
		q.deep = nil
	}
	for _, sh := range q.shapes {
		sh.renew(s.pass)
		sh.assign(c)
		if !sh.held && sh.party.denied == nil && sh.judge(c) == nil && sh.move(sh.taken) && q.within(sh.head, p.full) {
			p.heads = append(p.heads, sh)
		}
	}
	s.c.work += len(p.heads)
	heap.Init(&p.heads)
	for len(p.heads) > 0 && (p.full || !s.spent && !p.closed()) {
		sh := p.heads[0]
		if p.visit(sh, sh.head) && sh.move(sh.queue.after(sh.at)) && q.within(sh.head, p.full) {
			heap.Fix(&p.heads, 0)
		} else {
			heap.Pop(&p.heads)
		}
	}
}

// closed reports whether strict order lets nobody start any more.
func (p *classPass) closed() bool {
	return p.mode == coordinator.BackfillNone && len(p.s.line.closed) == len(p.s.c.defs)
}

// within reports whether estimates look at an entry.
func (q *classQueue) within(e *entry, full bool) bool {
	return full || q.last == nil || e.compare(q.last) <= 0
}

// visit tries to start an entry and reports whether the next one of its shape is to be looked at.
func (p *classPass) visit(sh *shape, e *entry) bool {
	s := p.s
	if sh.array != nil && sh.array.count >= sh.limit {
		return false
	}
	ahead := s.line.inFront(sh)
	deep := p.tooDeep()
	if deep && p.full && p.q.deep == nil {
		p.q.deep = e
	}
	if ahead != nil && (deep || p.mode == coordinator.BackfillNone) {
		s.line.block(sh, e)
		return false
	}
	if !sh.failed && s.try(sh, e, ahead != nil, p.full) {
		sh.taken = sh.queue.after(sh.at)
		return true
	}
	if !sh.failed && s.c.shutOut(sh) {
		sh.shut = true
		return false
	}
	if ahead == nil && !sh.failed && s.preempt(sh, e) {
		return true
	}
	p.looked++
	first := !sh.failed
	if first {
		sh.failed, sh.first = true, e
	}
	s.line.block(sh, e)
	if ahead == nil || p.mode == coordinator.BackfillConservative {
		s.planStart(sh, e, p.full)
	}
	if first && p.full {
		s.noteRoom(sh)
	}
	s.line.inFront(sh)
	return p.each && !deep
}

// tooDeep reports whether backfill looks no further: the configured depth, and for
// conservative, which plans for each, a bound on the work.
func (p *classPass) tooDeep() bool {
	depth := p.s.config.QueueDepth
	return depth > 0 && p.looked >= depth || p.mode == coordinator.BackfillConservative && p.s.c.planWork > planWork
}

// respectsPlans is false for work that fills whatever is idle (see the package comment).
func (s *Scheduler) respectsPlans(class coordinator.Class) bool {
	return class < coordinator.ClassBatch || s.config.Backfill != coordinator.BackfillNone
}

// try starts the entry on the first candidate that holds it whole (rules 5, 6, 9).
func (s *Scheduler) try(sh *shape, e *entry, behind, full bool) bool {
	c := s.c
	if sh.hopeless(c) {
		return false
	}
	to := later(c.now, sh.span)
	if !c.tokensFit(sh.need, c.now, to, false) {
		sh.noRoom(c)
		return false
	}
	plans := c.anyPlans() && s.respectsPlans(sh.q.class)
	if plans && !c.tokensFit(sh.need, c.now, to, true) {
		return false
	}
	found, barred := s.search(sh, plans)
	if found == nil {
		if !barred {
			sh.noRoom(c)
		}
		return false
	}
	h := sh.claimFor(e, slices.Clone(found), c.now, to)
	c.divide(h, plans)
	c.put(h)
	e.start, e.rule = h, 4
	if behind {
		e.rule = 15
	}
	s.begun(e)
	if full {
		s.record(sh, e)
	}
	return true
}

// begun notes a start of the decision, or of one that estimates step forward to.
func (s *Scheduler) begun(e *entry) {
	s.started = append(s.started, e)
	if s.c.trials > 0 {
		s.c.claims[e.id] = e.start
		s.c.note(move{kind: moveStart, h: e.start})
	}
	if s.stepping {
		s.estimates[e] = s.c.now
		if e.preemptible || e.shape.q.class == coordinator.ClassBatch {
			s.offered = append(s.offered, s.c.now)
		}
	}
}

// record notes a start, for those whose verdicts depend on it.
func (s *Scheduler) record(sh *shape, e *entry) {
	if g := sh.array; g != nil {
		if len(g.log) == 0 {
			s.logged = append(s.logged, g)
		}
		g.log = append(g.log, e)
	}
	s.roomy = slices.DeleteFunc(s.roomy, func(o *shape) bool {
		if s.stillOpen(o, e.start) {
			return false
		}
		o.until = e
		return true
	})
}

// stillOpen reports whether a shape that only plans kept waiting would have room beside a start too.
func (s *Scheduler) stillOpen(o *shape, start *claim) bool {
	c := s.c
	if !c.tokensFit(o.need, c.now, later(c.now, o.span), false) {
		return false
	}
	touched := slices.ContainsFunc(o.seen, func(n *node) bool { return slices.Contains(start.nodes, n) })
	if !touched {
		return true
	}
	found, _ := s.search(o, false)
	o.seen = append(o.seen[:0], found...)
	return found != nil
}

// search finds the nodes of the first candidate that holds the shape whole, nil if none does, and whether
// plans kept it from nodes. The list is used again by the next search.
func (s *Scheduler) search(sh *shape, plans bool) (found []*node, barred bool) {
	if len(s.c.bookings) > 0 && sh.q.class == coordinator.ClassBatch { // what is not reserved first (rule 12)
		if found, _ := s.searchFor(sh, plans, &party{class: coordinator.ClassBatch, keepOff: true}); found != nil {
			return found, false
		}
	}
	return s.searchFor(sh, plans, &sh.party)
}

func (s *Scheduler) searchFor(sh *shape, plans bool, of *party) (found []*node, barred bool) {
	for _, def := range sh.defs {
		look := search{c: s.c, shape: sh, party: of, want: sh.count, plans: plans, found: s.found[:0]}
		complete := look.walk(def.root)
		s.found = look.found
		if complete {
			return look.found, false
		}
		barred = barred || look.barred
	}
	return nil, barred
}

// noteRoom finds out whether only plans kept a shape from starting.
func (s *Scheduler) noteRoom(sh *shape) {
	if sh.hopeless(s.c) {
		return
	}
	found, barred := s.search(sh, false)
	if found == nil {
		if !barred {
			sh.noRoom(s.c)
		}
		return
	}
	sh.room, sh.seen = found[0], append(sh.seen[:0], found...)
	s.roomy = append(s.roomy, sh)
}

// claimFor is the claim of an entry on nodes.
func (s *shape) claimFor(e *entry, nodes []*node, from, to time.Duration) *claim {
	slices.SortFunc(nodes, byID)
	return &claim{
		id: e.id, workflow: e.workflow, need: s.need, nodes: nodes, array: s.array, from: from, to: to,
		occupant: e.occupant(s.q.class, from), booking: s.party.booking, reservation: s.reservation(),
	}
}
