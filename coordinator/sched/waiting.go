package sched

import (
	"container/heap"
	"slices"
	"time"

	"substrate/coordinator"
)

// Explain says where an allocation stands in the queue and, as of the last decision, why it waits and when it
// is expected to start; false if it does not wait. What came after that decision has an empty verdict.
func (s *Scheduler) Explain(id coordinator.AllocationID, now time.Time) (Wait, bool) {
	e := s.entries[id]
	if e == nil {
		return Wait{}, false
	}
	if s.expects(e) {
		s.estimate(e)
	}
	x := explainer{s: s, budget: -1}
	return x.wait(e, e.shape.q.position(e), now), true
}

// Waiting lists what waits in a class, in order, from the one behind after ("" is the first) and at most
// limit. It is empty if after does not wait there.
func (s *Scheduler) Waiting(now time.Time, class coordinator.Class, after coordinator.AllocationID, limit int) []Wait {
	q := s.queueOf(class)
	var behind *entry
	position := 0
	if after != "" {
		behind = s.entries[after]
		if behind == nil || behind.shape.q != q {
			return nil
		}
		position = q.position(behind)
	}
	var page []*entry
	q.each(behind, func(e *entry) bool {
		if len(page) >= limit {
			return false
		}
		page = append(page, e)
		return true
	})
	if slices.ContainsFunc(page, s.expects) {
		s.estimate(nil)
	}
	x := explainer{s: s, budget: -1}
	waits := make([]Wait, len(page))
	for i, e := range page {
		waits[i] = x.wait(e, position+1+i, now)
	}
	return waits
}

// Length is how many wait in a class.
func (s *Scheduler) Length(class coordinator.Class) int { return s.queueOf(class).count }

// waits lists everything that waits.
func (s *Scheduler) waits(nearest int) []Wait {
	if !s.config.NoEstimates {
		s.estimate(nil)
	}
	waits := make([]Wait, 0, len(s.entries))
	for _, q := range s.queues {
		x := explainer{s: s, budget: nearest}
		position := 0
		q.each(nil, func(e *entry) bool {
			position++
			waits = append(waits, x.wait(e, position, s.now))
			return true
		})
	}
	return waits
}

func (x *explainer) wait(e *entry, position int, now time.Time) Wait {
	w := Wait{
		ID: e.id, Class: e.shape.q.class, Position: position, Verdict: *x.verdict(e),
		Priority: e.priority + x.s.config.AgeRate*(since(now)-e.submitted).Seconds(),
	}
	if why := x.s.awaits[e].why; why != "" && w.Verdict.Reason != ReasonProvisioning {
		w.Verdict.Text += "; no node is launched: " + why
	}
	if x.s.config.AgeRate == 0 {
		w.Priority = e.priority
	}
	at, ok := x.s.estimates[e]
	if !ok {
		at, ok = x.s.planned(e)
	}
	if a := x.s.awaits[e]; a.nodes > 0 && (!ok || at > a.until) {
		at, ok = a.until, true
	}
	if ok && at-x.s.c.began >= 0 {
		w.EstimatedStart = x.s.now.Add(at - x.s.c.began)
		if w.EstimatedStart.Before(now) {
			w.EstimatedStart = now
		}
	}
	return w
}

// each goes through the class in order, from the one behind an entry (nil: the first).
func (q *classQueue) each(behind *entry, visit func(*entry) bool) {
	var h heads
	for _, sh := range q.shapes {
		p := place{}
		if behind != nil {
			if p = sh.queue.find(behind); sh.queue.at(p) == behind {
				p = sh.queue.after(p)
			}
		}
		if sh.move(p) {
			h = append(h, sh)
		}
	}
	heap.Init(&h)
	for len(h) > 0 && visit(h[0].head) {
		if sh := h[0]; sh.move(sh.queue.after(sh.at)) {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
}
