package sched

import (
	"container/heap"
	"slices"
	"time"

	"substrate/coordinator"
)

// Limits that keep estimates short whatever waits. They are counts, not times, so that the same facts
// always give the same estimates.
const (
	estimateWork  = 500_000 // node examinations
	estimateSteps = 4_096   // known ends that are stepped over
	estimateDepth = 1_000   // estimated allocations per class
)

// estimate steps the last decision forward from known end to known end and notes when each waiting
// entry starts (rule 16), all of them or, until then, the one that is asked for. Afterwards everything is as it was.
func (s *Scheduler) estimate(only *entry) {
	if s.estimates != nil && (s.complete || s.estimated(only)) {
		return
	}
	s.estimates = make(map[*entry]time.Duration)
	c, pass := s.c, s.pass
	kept := s.keep()
	var journal []move
	c.journal = &journal
	pending := 0
	for _, q := range s.queues {
		pending += s.farthest(q)
	}
	ends := c.allEnds()
	s.limit, s.spent = c.work+estimateWork, false
	steps := 0
	for pending > len(s.estimates) && !s.estimated(only) && !s.spent && steps < estimateSteps && s.step(&ends, &journal) {
		s.passAll(false)
		steps++
		s.spent = s.spent || c.work > s.limit
	}
	unfinished := s.spent || steps == estimateSteps
	s.complete = !s.estimated(only)
	c.rewind()
	c.now = c.began
	s.pass = pass
	s.restore(kept)
	if unfinished {
		s.fallBack()
	}
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

// keep sets aside what the last pass found out about the shapes. What shapes remember beyond a pass is forgotten, so
// that the work of stepping does not depend on it.
func (s *Scheduler) keep() map[*shape]passed {
	kept := make(map[*shape]passed)
	for _, q := range s.queues {
		for _, sh := range q.shapes {
			kept[sh] = sh.passed
			sh.passed = passed{}
			sh.roomless = false
		}
	}
	return kept
}

func (s *Scheduler) restore(kept map[*shape]passed) {
	s.c.clearPlans()
	for _, h := range s.plans {
		s.c.addPlan(h)
	}
	for sh, p := range kept {
		sh.passed, sh.taken = p, place{}
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
		if sh.judge(s.c) == nil && sh.move(place{}) {
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
	case s.complete || s.config.Backfill == coordinator.BackfillConservative || sh.first == e:
		return true
	}
	s.farthest(sh.q)
	return sh.q.last == nil || e.compare(sh.q.last) <= 0
}

// step moves to the next known end and frees everything that ends then. What was put down since the last step
// joins the ends.
func (s *Scheduler) step(ends *endHeap, journal *[]move) bool {
	c := s.c
	for _, m := range (*journal)[ends.seen:] {
		if m.put {
			ends.add(c, m.h)
		}
	}
	ends.seen = len(*journal)
	if len(ends.opens) > 0 && (len(ends.list) == 0 || ends.opens[0] < ends.list[0].at) {
		c.now, ends.opens = ends.opens[0], ends.opens[1:]
		return true
	}
	if len(ends.list) == 0 {
		return false
	}
	c.now = ends.list[0].at
	var ended []*claim
	for len(ends.list) > 0 && ends.list[0].at == c.now {
		ended = append(ended, heap.Pop(ends).(end).h)
	}
	c.take(ended...)
	return true
}

// end is when a claim ends.
type end struct {
	at time.Duration
	h  *claim
}

// endHeap orders the known ends by time, then id.
type endHeap struct {
	opens []time.Duration // ends of windows
	list  []end
	seen  int // moves of the journal
}

func (c *cluster) allEnds() endHeap {
	e := endHeap{list: make([]end, 0, len(c.claims))}
	for _, h := range c.claims {
		if at := c.until(h); at < never {
			e.list = append(e.list, end{at, h})
		}
	}
	for _, n := range c.nodes {
		for _, h := range n.holds {
			if at := c.until(h); at < never && h.nodes[0] == n {
				e.list = append(e.list, end{at, h})
			}
		}
	}
	for i := range c.windows {
		if until := since(c.windows[i].Until); until > c.began {
			e.opens = append(e.opens, until)
		}
	}
	slices.Sort(e.opens)
	heap.Init(&e)
	return e
}

func (e *endHeap) add(c *cluster, h *claim) {
	if at := c.until(h); at < never {
		heap.Push(e, end{at, h})
	}
}

func (e *endHeap) Len() int { return len(e.list) }
func (e *endHeap) Less(i, j int) bool {
	a, b := &e.list[i], &e.list[j]
	return a.at < b.at || a.at == b.at && a.h.id < b.h.id
}
func (e *endHeap) Swap(i, j int) { e.list[i], e.list[j] = e.list[j], e.list[i] }
func (e *endHeap) Push(x any)    { e.list = append(e.list, x.(end)) }
func (e *endHeap) Pop() any {
	last := e.list[len(e.list)-1]
	e.list = e.list[:len(e.list)-1]
	return last
}
