package sched

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// whatIf compares the answer about one more request with what a fresh scheduler does with it.
func (h *history) whatIf() {
	t, f := h.t, h.facts
	if between(t, "what if", 0, 2) > 0 {
		return
	}
	r := drawRequest(t, 999, []coordinator.DefinitionID{"a", "b", "c"})
	if h.known != nil {
		r = drawPreemptor(t, 999)
		r.Organization = coordinator.OrganizationID(one(t, "organization", []string{"o", "o", "p"}))
		r.Class = coordinator.Class(between(t, "class", 1, 3))
	} else if h.rough {
		roughenRequest(t, &r)
	}
	r.Submitted = f.Now
	f.Requests = append(slices.Clone(f.Requests), r)
	plan := Decide(f)
	var want Prospect
	for i := range plan.Starts {
		if plan.Starts[i].ID == r.ID {
			want.Start = &plan.Starts[i]
		}
	}
	for _, w := range plan.Waits {
		if w.ID == r.ID {
			want.Wait = w
		}
	}
	for i := range plan.Preempts {
		if plan.Preempts[i].For == r.ID {
			want.Preempt = &plan.Preempts[i]
		}
	}
	got, ok := h.s.WhatIf(r, f.Now)
	if !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("what if\n got %+v\n     %+v\nwant %+v\n     %+v\nof %+v", got, got.Start, want, want.Start, f)
	}
	if broken := h.s.check(); broken != "" {
		t.Fatal(broken)
	}
}

// TestEstimatesForesee: with nothing arriving, everything ending when it is planned to, victims that do not come back and a decision
// whenever something changes by itself, every estimate is met to the second, whatever preemption,
// reservations and maintenance do, and what has none does not start.
func TestEstimatesForesee(t *testing.T) {
	met, preempted, closed := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawForesight(t)
		estimates := map[coordinator.AllocationID]time.Time{}
		for _, w := range Decide(s).Waits {
			estimates[w.ID] = w.EstimatedStart
		}
		first, was := s.Now, s
		for range 300 {
			sched := load(&s)
			plan := sched.Decide(s.Now)
			preempted += oneIf(len(plan.Preempts) > 0 && s.Now.After(first))
			for _, st := range plan.Starts {
				want, waited := estimates[st.ID]
				if waited && s.Now.After(first) && !s.Now.Equal(want) {
					t.Fatalf("%s was to start at %v, started at %v\nof %+v", st.ID, want, s.Now, was)
				}
				met += oneIf(waited && s.Now.After(first))
				delete(estimates, st.ID)
			}
			s = Apply(s, plan)
			next := nextEnd(s)
			at := sched.Next()
			if !at.IsZero() && !at.After(s.Now) {
				t.Fatalf("at %v the next decision is at %v\nof %+v", s.Now, at, was)
			}
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
				closed++
			}
			if next.IsZero() {
				break
			}
			s = advance(s, next)
		}
		for id, at := range estimates {
			if !at.IsZero() {
				t.Fatalf("%s was to start at %v and never did\nof %+v", id, at, was)
			}
		}
	})
	if met == 0 || preempted == 0 || closed == 0 {
		t.Errorf("%d estimates met, %d later preemptions, %d times at which nothing ended", met, preempted, closed)
	}
	t.Logf("%d estimates met, %d later preemptions, %d times at which nothing ended", met, preempted, closed)
}

// drawForesight is a full cluster with what wants its room, in which age does not change who may preempt.
func drawForesight(t *rapid.T) Snapshot {
	s := drawArena(t)
	s.Config.NoEstimates, s.Config.AgeRate = false, 0
	if between(t, "reserving", 0, 1) == 0 {
		s.Reservations = []Reservation{}
		for i := range between(t, "reservations", 0, 2) {
			from := s.Now.Add(time.Duration(between(t, "begins", -1, 20)) * time.Minute)
			s.Reservations = append(s.Reservations, Reservation{
				ID: ReservationID(fmt.Sprint("r", i)), Organization: "o", Definition: "a", Device: "gpu", GPUs: uint32(between(t, "reserved", 1, 4)),
				From: from, Until: from.Add(time.Duration(between(t, "for", 1, 40)) * time.Minute),
			})
		}
	}
	for i := range between(t, "windows", 0, 2) {
		w := Window{ID: fmt.Sprint(i), From: s.Now.Add(time.Duration(between(t, "from", 0, 20)) * time.Minute)}
		w.Until = w.From.Add(time.Duration(between(t, "lasts", 1, 20)) * time.Minute)
		if between(t, "some", 0, 1) == 0 {
			w.Nodes = []coordinator.NodeID{s.Nodes[between(t, "node", 0, len(s.Nodes)-1)].ID}
		}
		s.Windows = append(s.Windows, w)
	}
	for i := range between(t, "waiting", 1, 6) {
		r := drawPreemptor(t, i)
		r.Class, r.Organization = coordinator.Class(one(t, "class", []int{1, 2, 2, 3})), "o"
		s.Requests = append(s.Requests, r)
	}
	return s
}

// TestFirstIsNotPutOff: with backfill and without preemption, what is first of all that waits starts no later than its estimate, however early
// work ends.
func TestFirstIsNotPutOff(t *testing.T) {
	sooner, plays := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for range 20 { // few draws have a first that could start sooner
			plays++
			sooner += oneIf(startsSooner(t))
		}
	})
	t.Logf("%d of %d started before the estimate", sooner, plays)
	if sooner == 0 {
		t.Error("nobody started before the estimate")
	}
}

// startsSooner plays a queue whose work ends early until its first starts, and reports whether that is before the estimate.
func startsSooner(t *rapid.T) bool {
	s := drawSnapshot(t)
	s.Config.Backfill = coordinator.Backfill(between(t, "backfill", 1, 2))
	for i := range s.Placements { // one that is overdue has no end that could be counted on
		s.Placements[i].Started = s.Now.Add(-time.Minute)
	}
	was := s
	waits := Decide(s).Waits
	// A task that its array keeps waiting stands outside the order, and others pass it. Here that may happen at any time: unlike those
	// of a job, tasks of a drawn array are not alike.
	limited := func(r Request) bool { return r.ID == waits[0].ID && r.Array != "" && r.ArrayLimit > 0 }
	if len(waits) == 0 || waits[0].EstimatedStart.IsZero() || slices.ContainsFunc(s.Requests, limited) {
		return false
	}
	first := waits[0]
	for range 100 {
		plan := Decide(s)
		if slices.ContainsFunc(plan.Starts, func(st Start) bool { return st.ID == first.ID }) {
			return s.Now.Before(first.EstimatedStart)
		}
		if !s.Now.Before(first.EstimatedStart) {
			t.Fatalf("%s was to start at %v and waits at %v\nnow %+v\nof %+v", first.ID, first.EstimatedStart, s.Now, s, was)
		}
		s = Apply(s, plan)
		next := nextEnd(s)
		if next.IsZero() {
			return false
		}
		// What ends within a second is taken to end a second from now, whenever that is.
		if next.Sub(s.Now) > 4*time.Second && between(t, "early", 0, 1) == 0 {
			next = s.Now.Add(next.Sub(s.Now) / 2)
			i := between(t, "which", 0, len(s.Placements)-1)
			// Mostly one that is in the way of the first, else hardly any would start sooner.
			if in := slices.IndexFunc(s.Placements, func(p Placement) bool { return slices.Contains(first.Verdict.Blocking, p.ID) }); in >= 0 && between(t, "in the way", 0, 3) > 0 {
				i = in
			}
			s.Placements = slices.Delete(slices.Clone(s.Placements), i, i+1)
		}
		s = advance(s, next)
	}
	return false
}
