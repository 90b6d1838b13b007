package sched

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
)

// heldVerdict is for work that has a hold: who still has to end, and by when (rule 21).
func (x *explainer) heldVerdict(h *hold) *Verdict {
	c := x.s.c
	v := &Verdict{Reason: ReasonHeld, Rule: 21}
	until := c.began
	for _, o := range h.marks {
		if c.claims[o.id] == o {
			v.Blocking = append(v.Blocking, o.id)
			at := c.until(o)
			if o.killAt != 0 {
				at = o.killAt
			}
			until = max(until, at)
		}
	}
	slices.Sort(v.Blocking)
	nodes := make([]string, 0, len(h.spec.Shares))
	for i := range h.spec.Shares {
		nodes = append(nodes, string(h.spec.Shares[i].Node))
	}
	v.Text = "room is held for it on " + few(nodes)
	if len(v.Blocking) > 0 {
		v.Text += fmt.Sprintf(", taken by %s until %s at the latest", few(v.Blocking), x.s.moment(until))
	} else {
		v.Text += ", and others are still on it"
	}
	v.Blocking = v.Blocking[:min(len(v.Blocking), maxBlocking)]
	return v
}

// heldFor says for whom room of a node is held, "" if for nobody.
func heldFor(n *node) string {
	if n == nil || len(n.holds) == 0 {
		return ""
	}
	ids := make([]coordinator.AllocationID, 0, len(n.holds))
	for _, h := range n.holds {
		ids = append(ids, h.id)
	}
	slices.Sort(ids)
	return ", room there is held for " + few(ids)
}

// few names the first of a list.
func few[T ~string](ids []T) string {
	const most = 4
	words := make([]string, 0, most)
	for _, id := range ids[:min(len(ids), most)] {
		words = append(words, string(id))
	}
	text := strings.Join(words, ", ")
	if more := len(ids) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

const momentLayout = "2006-01-02 15:04:05Z"

// moment is a time in words; that of the decision is exact.
func (s *Scheduler) moment(at time.Duration) string {
	return s.now.Add(at - s.c.began).UTC().Format(momentLayout)
}

// preemptText is why nobody gives way, with the figures that it follows from; "" if there is nobody to speak of.
func (s *Scheduler) preemptText(a *attempt) string {
	if a.closest == nil {
		return ""
	}
	id := a.closest.id
	say := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	switch a.why {
	case refusedUnmarked:
		return fmt.Sprintf("nobody gives way: %s is not preemptible", id)
	case refusedThreshold:
		return fmt.Sprintf("nobody gives way: its priority is %s, preemption begins at %s", say(a.priority), say(s.rules.threshold))
	case refusedRank, refusedGap:
		return fmt.Sprintf("nobody gives way: its priority is %s, the lowest that it may preempt is %s of %s, the gap must be %s",
			say(a.priority), say(a.their), id, say(s.rules.gap))
	case refusedSpent:
		return fmt.Sprintf("nobody gives way: %s was preempted as often as it may be", id)
	case refusedMinRuntime:
		if s.rules.minRuntime <= 0 {
			return ""
		}
		return fmt.Sprintf("nobody gives way yet: %s has run for %s, preemption begins at %s", id,
			(s.c.began - a.closest.started).Round(time.Second), s.rules.minRuntime)
	case mayPreempt, refusedClass, refusedDisabled, refusedGroup:
	}
	return ""
}

// notePreemption adds what became of making room to the verdict of a head.
func (s *Scheduler) notePreemption(v *Verdict, a *attempt) {
	switch {
	case a == nil:
	case a.waits:
		v.Rule = 22
		v.Text += fmt.Sprintf("; by %s it has room without preemption", s.moment(a.until))
	default:
		if text := s.preemptText(a); text != "" {
			v.Rule = 17
			v.Text += "; " + text
		}
	}
}
