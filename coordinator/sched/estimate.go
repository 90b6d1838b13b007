package sched

import (
	"container/heap"
	"time"

	"substrate/coordinator"
)

// Limits that keep estimates short whatever waits. They are counts, not times, so that the same facts
// always give the same estimates.
const (
	estimateWork  = 100_000 // looks at nodes, and at what is on them
	estimateSteps = 4_096   // known ends that are stepped over
	estimateDepth = 1_000   // estimated allocations per class
)

// estimate steps the last decision forward from known end to known end and notes when each waiting
// entry starts (rule 16), all of them or, until then, the one that is asked for. Afterwards everything is as it was.
func (s *Scheduler) estimate(only *entry) {
	if s.estimates != nil && (s.complete || s.estimated(only)) {
		return
	}
	c := s.c
	pending := 0
	for _, q := range s.queues {
		pending += s.farthest(q)
	}
	ends := s.allEnds()
	t := s.begin()
	for i := range t.shapes { // the work of stepping does not depend on what they remember
		t.shapes[i].of.roomless = false
	}
	estimates := make(map[*entry]time.Duration)
	s.estimates, s.offered, s.stepping = estimates, s.offered[:0], true
	s.exposed = exposure{}
	s.limit, s.spent = c.work+estimateWork, false
	steps := 0
	for pending > len(estimates) && !s.estimated(only) && !s.spent && steps < estimateSteps && s.step(&ends) {
		s.passAll(false)
		s.seclude(s.preempts)
		steps++
		s.spent = s.spent || c.work > s.limit
	}
	unfinished := s.spent || steps == estimateSteps
	complete := !s.estimated(only)
	s.stepping = false
	s.undo(t)
	s.estimates, s.complete = estimates, complete
	if unfinished {
		s.fallBack()
	}
}

// planned lets an allocation that estimates do not come to, by its place in the queue, show its plan.
func (s *Scheduler) planned(e *entry) (time.Duration, bool) {
	if s.config.NoEstimates || s.config.Backfill != coordinator.BackfillConservative || e.shape.q.last == nil || e.compare(e.shape.q.last) <= 0 {
		return 0, false
	}
	for _, h := range s.plans {
		if h.id == e.id && !h.atNever() {
			return h.from, true
		}
	}
	return 0, false
}

func (s *Scheduler) estimated(e *entry) bool {
	_, known := s.estimates[e]
	return known
}

// fallBack lets an allocation with a plan show that.
func (s *Scheduler) fallBack() {
	show := func(e *entry, h *claim) {
		if _, known := s.estimates[e]; e != nil && h != nil && !known && !h.atNever() {
			s.estimates[e] = h.from
		}
	}
	for _, h := range s.plans {
		show(s.entries[h.id], h)
	}
	for _, q := range s.queues {
		for _, sh := range q.shapes {
			if sh.pass == s.pass && sh.first != nil && s.entries[sh.first.id] == sh.first {
				show(sh.first, s.planOf(sh))
			}
		}
	}
}

// farthest notes the last entry of a class that is estimated, nil if all are, and says how many are.
func (s *Scheduler) farthest(q *classQueue) int {
	if q.estimated > 0 {
		return q.estimated
	}
	q.last = nil
	var h heads
	for _, sh := range q.shapes {
		if sh.judge(s.c) == nil && sh.move(sh.taken) {
			h = append(h, sh)
		}
	}
	heap.Init(&h)
	n := 0
	for len(h) > 0 {
		sh := h[0]
		n++
		if n == estimateDepth {
			q.last = sh.head
			break
		}
		if sh.move(sh.queue.after(sh.at)) {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
	q.estimated = n
	return n
}

// expects reports whether an entry may have an estimate: those far back in the queue have none, unless they are
// planned.
func (s *Scheduler) expects(e *entry) bool {
	sh := e.shape
	switch {
	case s.config.NoEstimates:
		return false
	case s.complete || sh.first == e:
		return true
	}
	s.farthest(sh.q)
	return sh.q.last == nil || e.compare(sh.q.last) <= 0
}

// step moves to the next time at which something changes by itself and frees everything that ends then. What was put down or
// told to end since the last step joins the ends.
func (s *Scheduler) step(ends *endHeap) bool {
	c := s.c
	for _, m := range c.journal[min(ends.seen, len(c.journal)):] {
		if m.h != nil && m.h.hold == nil && (m.kind == moveStart || m.kind == moveNotice) {
			ends.add(c, m.h)
		}
	}
	ends.seen = len(c.journal)
	next := ends.next(c)
	if s.wake > c.now { // as of the last decision: an earlier one's may not be true any more
		next = min(next, s.wake)
	}
	s.wake = never
	if next == never {
		return false
	}
	c.now = next
	var ended []*claim
	for len(ends.list) > 0 && ends.list[0].at == c.now {
		h := heap.Pop(ends).(end).h
		if h != nil && c.claims[h.id] == h {
			delete(c.claims, h.id)
			c.note(move{kind: moveEnd, h: h})
			ended = append(ended, h)
		}
	}
	c.take(ended...)
	return true
}

// end is when a claim ends, or something else changes.
type end struct {
	at time.Duration
	h  *claim
}

// endHeap orders what changes by itself by time, then id.
type endHeap struct {
	list []end
	seen int // of the journal
}

// allEnds is what is known to change by itself.
func (s *Scheduler) allEnds() endHeap {
	c := s.c
	e := endHeap{list: make([]end, 0, len(c.claims)), seen: len(c.journal)}
	for _, h := range c.claims {
		if at := c.until(h); at < never {
			e.list = append(e.list, end{at, h})
		}
	}
	look := func(times ...time.Time) {
		for _, t := range times {
			if at := since(t); at > c.began {
				e.list = append(e.list, end{at: at})
			}
		}
	}
	for i := range c.windows {
		look(c.windows[i].From, c.windows[i].Until)
	}
	for i := range c.reservations {
		look(c.reservations[i].From, c.reservations[i].Until)
	}
	heap.Init(&e)
	return e
}

// next is the first of them, never if there is none. What was told to end sooner has ended, and is none.
func (e *endHeap) next(c *cluster) time.Duration {
	for len(e.list) > 0 && e.list[0].h != nil && c.claims[e.list[0].h.id] != e.list[0].h {
		heap.Pop(e)
	}
	if len(e.list) == 0 {
		return never
	}
	return e.list[0].at
}

func (e *endHeap) add(c *cluster, h *claim) {
	if at := c.until(h); at < never {
		heap.Push(e, end{at, h})
	}
}

func (e *endHeap) Len() int { return len(e.list) }
func (e *endHeap) Less(i, j int) bool {
	a, b := &e.list[i], &e.list[j]
	if a.at != b.at || a.h == nil || b.h == nil {
		return a.at < b.at
	}
	return a.h.id < b.h.id
}
func (e *endHeap) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *endHeap) Push(x any)    { e.list = append(e.list, x.(end)) }
func (e *endHeap) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}
