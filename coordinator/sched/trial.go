package sched

import (
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
)

// trial is a decision, or several, that is taken back: an estimate steps the queue forward, WhatIf adds a request. It is made by the
// code that decides, and what it changed is undone from a journal, so that it costs what it changes.
type trial struct {
	mark   int // of the journal
	now    time.Time
	began  time.Duration
	at     time.Duration
	pass   int
	looks  int
	wake   time.Duration
	shapes []shapeBefore
	queues []queueBefore
	holds  map[coordinator.AllocationID]*hold
	held   []holdBefore
	logs   []logBefore

	coming   map[string]Launch
	launches []Launch
	releases []Release
	awaits   map[*entry]awaited
	review   time.Duration

	bookings     []*booking
	promises     map[coordinator.NodeID]promise
	reservations [][]Share

	started   []*entry
	plans     []*claim
	roomy     []*shape
	logged    []*array
	decisions Plan
	estimates map[*entry]time.Duration
	complete  bool
	spent     bool
	limit     int
}

type shapeBefore struct {
	of    *shape
	next  *entry // the first that has not started, nil: there is none
	party party
	held  bool
	full  bool // nothing has room for it
	vain  futile
	passed
}

type queueBefore struct {
	of         *classQueue
	deep, last *entry
	estimated  int
}

type holdBefore struct {
	of    *hold
	entry *entry
	claim *claim
	marks []*claim
}

type logBefore struct {
	of  *array
	log []*entry
}

// move is one change in the journal of a trial.
type move struct {
	kind moveKind
	h    *claim
	to   time.Duration // moveNotice: what was before
	ends bool
	undo func() // moveOther
}

type moveKind uint8

const (
	movePut    moveKind = iota // a claim was put down
	moveTake                   // one was taken away
	moveStart                  // one counts as placed
	moveEnd                    // one has ended
	moveNotice                 // one is told to end
	moveOther
)

func (c *cluster) note(m move) {
	if c.trials > 0 {
		c.journal = append(c.journal, m)
	}
}

// tellEnd gives notice to a claim.
func (c *cluster) tellEnd(h *claim, killAt time.Duration) {
	c.note(move{kind: moveNotice, h: h, to: h.killAt, ends: h.ending})
	h.ending, h.killAt = true, killAt
	h.recount(c)
}

// begin starts a trial. What shapes found out in the last pass is set aside.
func (s *Scheduler) begin() *trial {
	c := s.c
	t := &trial{
		mark: len(c.journal), now: s.now, began: c.began, at: c.now, pass: s.pass, looks: s.looks, wake: s.wake,
		holds: maps.Clone(s.holds), started: s.started, plans: s.plans, roomy: s.roomy, logged: s.logged,
		decisions: Plan{Preempts: s.preempts, Drops: s.drops, Stops: s.stops, Reserves: s.reserves},
		estimates: s.estimates, complete: s.complete, spent: s.spent, limit: s.limit,
	}
	s.started, s.plans, s.roomy, s.logged = nil, nil, nil, nil
	s.preempts, s.drops, s.stops, s.reserves = nil, nil, nil, nil
	for _, q := range s.queues {
		t.queues = append(t.queues, queueBefore{q, q.deep, q.last, q.estimated})
		for _, sh := range q.shapes {
			t.shapes = append(t.shapes, shapeBefore{sh, sh.queue.at(sh.taken), sh.party, sh.held, sh.hopeless(c), sh.vain, sh.passed})
			sh.passed, sh.vain = passed{}, futile{}
		}
	}
	for _, h := range s.holds {
		t.held = append(t.held, holdBefore{h, h.entry, h.claim, slices.Clone(h.marks)})
	}
	for _, g := range t.logged {
		t.logs = append(t.logs, logBefore{g, g.log})
		g.log = nil
	}
	t.coming, t.launches, t.releases, t.awaits, t.review = maps.Clone(s.coming), s.launches, s.releases, s.awaits, s.review
	t.bookings, t.promises = c.bookings, c.promises
	for i := range c.reservations {
		t.reservations = append(t.reservations, c.reservations[i].Shares)
	}
	c.trials++
	return t
}

// undo ends a trial: everything is as it was.
func (s *Scheduler) undo(t *trial) {
	c := s.c
	for _, e := range s.started {
		e.start = nil
	}
	for _, g := range s.logged {
		g.log = nil
	}
	c.touched = c.touched[:0]
	s.undoHolds(t)
	c.rewind(t.mark)
	c.clearPlans()
	for _, h := range t.plans {
		c.addPlan(h)
	}
	for i := range t.reservations {
		c.reservations[i].Shares = t.reservations[i]
	}
	if c.promises = t.promises; !slices.Equal(c.bookings, t.bookings) {
		c.rebook(t.bookings)
	}
	c.trials--
	s.coming, s.launches, s.releases, s.awaits, s.review = t.coming, t.launches, t.releases, t.awaits, t.review
	s.started, s.plans, s.roomy, s.logged = t.started, t.plans, t.roomy, t.logged
	s.preempts, s.drops, s.stops, s.reserves = t.decisions.Preempts, t.decisions.Drops, t.decisions.Stops, t.decisions.Reserves
	s.estimates, s.complete, s.spent, s.limit = t.estimates, t.complete, t.spent, t.limit
	s.now, c.began, c.now, s.pass, s.looks, s.wake = t.now, t.began, t.at, t.pass, t.looks, t.wake
	for _, g := range t.logs {
		g.of.log = g.log
	}
	for _, q := range t.queues {
		q.of.deep, q.of.last, q.of.estimated = q.deep, q.last, q.estimated
	}
	for i := range t.shapes {
		b := &t.shapes[i]
		sh := b.of
		sh.passed, sh.party, sh.held, sh.vain = b.passed, b.party, b.held, b.vain
		sh.taken = sh.queue.from(b.next)
		if sh.roomless = false; b.full {
			sh.noRoom(c)
		}
	}
	if c.trials == 0 {
		clear(c.journal)
		c.journal = c.journal[:0]
		for _, sh := range s.empty {
			s.dropShape(sh)
		}
		clear(s.empty)
		s.empty = s.empty[:0]
	}
}

// undoHolds brings back the holds; their claims come back with the others.
func (s *Scheduler) undoHolds(t *trial) {
	count := func(marks []*claim, more int) {
		for _, v := range marks {
			v.victim += more
			for _, n := range v.nodes {
				s.c.touch(n)
			}
		}
	}
	for _, h := range s.holds {
		count(h.marks, -1)
		h.marks = nil
		if h.entry != nil {
			h.entry.hold = nil
		}
	}
	s.holds = t.holds
	for i := range t.held {
		b := &t.held[i]
		b.of.entry, b.of.claim, b.of.marks = b.entry, b.claim, b.marks
		count(b.marks, 1)
		if b.entry != nil {
			b.entry.hold = b.of
		}
	}
}

// rewind undoes what is in the journal from a mark on.
func (c *cluster) rewind(mark int) {
	for _, m := range slices.Backward(c.journal[mark:]) {
		h := m.h
		switch m.kind {
		case movePut, moveTake:
			for _, n := range h.nodes {
				c.touch(n)
				if m.kind == movePut {
					n.drop(h)
				} else {
					n.join(h)
				}
			}
			c.account(h, m.kind == moveTake)
		case moveStart:
			delete(c.claims, h.id)
		case moveEnd:
			c.claims[h.id] = h
		case moveNotice:
			h.ending, h.killAt = m.ends, m.to
			for _, n := range h.nodes {
				c.touch(n)
			}
		case moveOther:
			m.undo()
		}
	}
	clear(c.journal[mark:])
	c.journal = c.journal[:mark]
	c.settle()
}

// Prospect is what would become of one more request.
type Prospect struct {
	Start   *Start   // nil: it would wait
	Wait    Wait     // as it would be explained
	Preempt *Preempt // nil: nobody would be told to give way for it
	// Launches are the nodes that would be launched and have room for it.
	Launches []Launch
}

// WhatIf says what Decide would do with one more request at a time, and Explain say of it. Nothing is changed. It is
// false for an id that somebody has.
func (s *Scheduler) WhatIf(r Request, now time.Time) (Prospect, bool) {
	if s.entries[r.ID] != nil || s.c.claims[r.ID] != nil {
		return Prospect{}, false
	}
	t := s.begin()
	defer s.undo(t)
	e := s.add(&r)
	starts := s.decide(now)
	for i := range starts {
		if starts[i] == e {
			start := e.startOf()
			return Prospect{Start: &start}, true
		}
	}
	var p Prospect
	for i := range s.preempts {
		if s.preempts[i].For == r.ID {
			p.Preempt = &s.preempts[i]
		}
	}
	for _, l := range s.launches {
		if slices.Contains(l.For, r.ID) {
			p.Launches = append(p.Launches, l)
		}
	}
	s.seclude(s.preempts)
	s.retire()
	p.Wait, _ = s.Explain(r.ID, now)
	return p, true
}

// Next is when a decision may differ from the last one although nothing is told until then: a reservation or maintenance
// begins or ends, a node is to be given up, an offer is worth asking again, work is not protected any more that an
// allocation at the head of the queue may preempt, or other work ends within the notice so that a victim makes up the rest. It is zero if nothing is known to
// change by itself. Ends of placements are told, and are not among it.
func (s *Scheduler) Next() time.Time {
	c := s.c
	next := min(s.wake, s.review)
	look := func(times ...time.Time) {
		for _, t := range times {
			if at := since(t); at > c.began {
				next = min(next, at)
			}
		}
	}
	for i := range c.windows {
		look(c.windows[i].From, c.windows[i].Until)
	}
	for i := range c.reservations {
		look(c.reservations[i].From, c.reservations[i].Until)
	}
	if next == never || s.pass == 0 {
		return time.Time{}
	}
	return s.now.Add(next - c.began)
}
