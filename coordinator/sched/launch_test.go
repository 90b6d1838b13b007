package sched

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// drawClouds is a cluster whose nodes are launched, and work that wants them: single nodes, gangs, tokens.
func drawClouds(t *rapid.T) Snapshot {
	s := Snapshot{
		Now: epoch, Tokens: map[string]uint32{"matlab": 2},
		Config: Config{Backfill: coordinator.Backfill(between(t, "backfill", 0, 2)), NoEstimates: true},
	}
	for i := range between(t, "definitions", 1, 3) {
		id := coordinator.DefinitionID(fmt.Sprint("d", i))
		s.Definitions = append(s.Definitions, Definition{ID: id, Order: i, CostPerHour: float64(between(t, "cost", 0, 2))})
		if i > 0 && between(t, "static", 0, 3) == 0 {
			s.Nodes = append(s.Nodes, Node{ID: coordinator.NodeID(fmt.Sprint("s", i)), Definition: id, Cores: 4, Threads: 4, Devices: map[string]uint32{"gpu": 2}, Schedulable: true})
			continue
		}
		s.Offers = append(s.Offers, Offer{
			Definition: id, MaxNodes: one(t, "max", []int{0, 1, 2, 4}), Launch: time.Duration(between(t, "launch", 0, 3)) * time.Minute,
			IdleTimeout: time.Duration(between(t, "idle", 0, 5)) * time.Minute, TTL: time.Duration(one(t, "ttl", []int{0, 0, 20, 60})) * time.Minute,
			Node: Node{Definition: id, Cores: 8, Threads: 8, Devices: map[string]uint32{"gpu": uint32(one(t, "gpus", []int{2, 4}))}},
		})
	}
	for i := range between(t, "requests", 1, 10) {
		r := Request{
			ID: coordinator.AllocationID(fmt.Sprintf("r%02d", i)), Workflow: drawWorkflow(t), Class: coordinator.Class(between(t, "class", 2, 3)), Submitted: epoch,
			Walltime: time.Duration(one(t, "walltime", []int{1, 5, 10, 30})) * time.Minute, Nodes: uint32(one(t, "gang", []int{1, 1, 1, 2, 3})),
			Resources: coordinator.Resources{Cores: coordinator.Cores(between(t, "cores", 1, 9)), Devices: map[string]uint32{"gpu": uint32(between(t, "gpu", 0, 4))}},
		}
		if between(t, "licensed", 0, 4) == 0 {
			r.Resources.Tokens = map[string]uint32{"matlab": 1}
		}
		for _, d := range s.Definitions {
			if between(t, "admitted", 0, 3) > 0 {
				r.Admissible = append(r.Admissible, d.ID)
			}
		}
		s.Requests = append(s.Requests, r)
	}
	return s
}

func later2(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// checkLaunches is what must be true of launches and releases; "" if it is.
func checkLaunches(s Snapshot, p Plan) string {
	after := Apply(s, p)
	for _, o := range s.Offers {
		count, fresh := 0, 0
		for _, n := range s.Nodes {
			count += oneIf(n.Definition == o.Definition)
		}
		for _, l := range after.Launching {
			count += oneIf(l.Definition == o.Definition)
		}
		for _, l := range p.Launches {
			fresh += oneIf(l.Definition == o.Definition)
		}
		if fresh > 0 && (o.MaxNodes > 0 && count > o.MaxNodes || o.UnavailableUntil.After(s.Now)) {
			return fmt.Sprintf("%d nodes of %s, at most %d; unavailable until %v", count, o.Definition, o.MaxNodes, o.UnavailableUntil)
		}
	}
	keys := map[string]bool{}
	for _, l := range s.Launching {
		keys[l.Key] = true
	}
	for _, l := range p.Launches {
		if keys[l.Key] || len(l.For) == 0 {
			return fmt.Sprintf("%s is launched twice, or for nobody: %v", l.Key, l.For)
		}
		keys[l.Key] = true
	}
	for _, r := range p.Releases {
		used := slices.ContainsFunc(after.Placements, func(p Placement) bool { return slices.Contains(p.Nodes, r.Node) }) ||
			slices.ContainsFunc(after.Holds, func(h Hold) bool {
				return slices.ContainsFunc(h.Shares, func(sh Share) bool { return sh.Node == r.Node })
			})
		if used {
			return fmt.Sprintf("%s is given up and in use", r.Node)
		}
	}
	return ""
}

// TestLaunchesAreWhatIsNeeded: with up to three definitions, launches come and fail, nodes arrive, idle and end, providers have no capacity. Each decision
// launches exactly what the queue needs, in the definitions that it should; a scheduler that is told the same facts has the same keys and nothing
// that was asked for is asked for again. In the end everything that some node could hold has started and all nodes are gone.
func TestLaunchesAreWhatIsNeeded(t *testing.T) {
	launches, failures, releases := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawClouds(t)
		f, rest := &fate{s: load(&s), told: s, troubles: between(t, "troubles", 0, 6)}, 0
		for range 800 {
			s.Nodes = idleSince(s)
			f.follow(s)
			f.whatIf(t, s)
			plan := Decide(s)
			if got := f.s.Decide(s.Now); !sameDecision(got, plan) {
				t.Fatalf("incremental\n got %+v\nwant %+v\nof %+v", got, plan, s)
			}
			f.told = Apply(s, plan)
			if broken := checkPlan(s, plan) + checkLaunches(s, plan); broken != "" {
				t.Fatalf("%s\nplan %+v\nof %+v", broken, plan, s)
			}
			if s.Config.Backfill != coordinator.BackfillNone && len(plan.Preempts) == 0 && !planned(plan) {
				got := map[coordinator.DefinitionID]int{}
				for _, l := range plan.Launches {
					got[l.Definition]++
				}
				if want := wanted(s, plan); !reflect.DeepEqual(got, want) {
					t.Fatalf("launched %v, wanted %v\nplan %+v\nof %+v", got, want, plan, s)
				}
			}
			launches, releases = launches+len(plan.Launches), releases+len(plan.Releases)
			quiet := len(plan.Launches)+len(plan.Starts)+len(plan.Releases)+len(plan.Preempts) == 0
			s = Apply(s, plan)
			if again := Decide(s); len(again.Launches) > 0 && len(plan.Starts)+len(plan.Releases)+len(plan.Preempts) == 0 {
				t.Fatalf("launched again %+v\nof %+v", again.Launches, s)
			}
			s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool { return n.Why == "released" })
			if rest++; !quiet || len(s.Placements)+len(s.Launching) > 0 {
				rest = 0
			}
			if rest > 65 { // longer than any node lives
				break
			}
			f.arrive(t, &s)
			s = advance(s, s.Now.Add(time.Minute))
		}
		failures += f.failures
		for _, w := range Decide(s).Waits {
			switch w.Verdict.Reason {
			case ReasonNoAdmissibleDefinition, ReasonNoNode, ReasonInsufficientResources, ReasonProvisioning:
			default:
				t.Fatalf("%s still waits: %+v\nof %+v", w.ID, w, s)
			}
			if r := s.Requests[slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == w.ID })]; couldBeLaunched(s, r) {
				t.Fatalf("%s could have a node and waits: %+v\nof %+v", w.ID, w, s)
			}
		}
	})
	if launches == 0 || failures == 0 || releases == 0 {
		t.Errorf("%d launches, %d failures, %d releases", launches, failures, releases)
	}
	t.Logf("%d launches, %d failures, %d releases", launches, failures, releases)
}

// fate is what becomes of launches.
type fate struct {
	troubles, failures, next int

	s    *Scheduler // that is told what changes
	told Snapshot
}

// follow tells of what has changed.
func (f *fate) follow(s Snapshot) {
	for _, n := range f.told.Nodes {
		if !slices.ContainsFunc(s.Nodes, func(o Node) bool { return o.ID == n.ID }) {
			f.s.RemoveNode(n.ID)
		}
	}
	for _, n := range s.Nodes {
		f.s.SetNode(n)
	}
	for _, o := range s.Offers {
		f.s.SetOffer(o)
	}
	for _, l := range f.told.Launching {
		if !slices.ContainsFunc(s.Launching, func(o Launch) bool { return o.Key == l.Key }) {
			f.s.DropLaunching(l.Key)
		}
	}
	for _, p := range f.told.Placements {
		if !slices.ContainsFunc(s.Placements, func(o Placement) bool { return o.ID == p.ID }) {
			f.s.End(p.ID)
		}
	}
	for i, r := range s.Requests {
		if i >= len(f.told.Requests) || !reflect.DeepEqual(r, f.told.Requests[i]) {
			f.s.Submit(r)
		}
	}
}

// whatIf compares the answer about one more request with what a fresh scheduler does with it.
func (f *fate) whatIf(t *rapid.T, s Snapshot) {
	r := drawClouds(t).Requests[0]
	r.ID, r.Submitted = "one-more", s.Now
	got, _ := f.s.WhatIf(r, s.Now)
	s.Requests = append(slices.Clone(s.Requests), r)
	want := Decide(s)
	i := slices.IndexFunc(want.Waits, func(w Wait) bool { return w.ID == r.ID })
	launches := slices.DeleteFunc(slices.Clone(want.Launches), func(l Launch) bool { return !slices.Contains(l.For, r.ID) })
	if (got.Start == nil) != (i >= 0) || i >= 0 && (!reflect.DeepEqual(got.Wait, want.Waits[i]) || len(launches) > 0 && !reflect.DeepEqual(got.Launches, launches)) {
		t.Fatalf("what if %+v\n got %+v\nwant %+v", r, got, want)
	}
}

func sameDecision(a, b Plan) bool {
	return reflect.DeepEqual(a.Starts, b.Starts) && reflect.DeepEqual(a.Launches, b.Launches) && reflect.DeepEqual(a.Releases, b.Releases) &&
		reflect.DeepEqual(a.Preempts, b.Preempts) && reflect.DeepEqual(a.Stops, b.Stops)
}

// arrive makes nodes ready that are due, or has their launches fail.
func (f *fate) arrive(t *rapid.T, s *Snapshot) {
	for i := 0; i < len(s.Launching); i++ {
		l := s.Launching[i]
		if l.Until.After(s.Now) {
			continue
		}
		s.Launching = slices.Delete(slices.Clone(s.Launching), i, i+1)
		i--
		o := slices.IndexFunc(s.Offers, func(o Offer) bool { return o.Definition == l.Definition })
		if f.troubles > 0 && between(t, "trouble", 0, 2) == 0 {
			f.troubles--
			f.failures++
			s.Offers = slices.Clone(s.Offers)
			s.Offers[o].UnavailableUntil = s.Now.Add(3 * time.Minute)
			s.Requests = slices.Clone(s.Requests)
			for j := range s.Requests {
				s.Requests[j].Attempt++
			}
			continue
		}
		n := s.Offers[o].Node
		f.next++
		n.ID, n.Schedulable = coordinator.NodeID(fmt.Sprintf("c%03d", f.next)), true
		if s.Offers[o].TTL > 0 {
			n.Expires = l.Since.Add(s.Offers[o].TTL)
		}
		s.Nodes = append(s.Nodes, n)
	}
}

// planned reports whether somebody waits for a plan to be over who has room now: nothing is launched for that.
func planned(p Plan) bool {
	return slices.ContainsFunc(p.Waits, func(w Wait) bool {
		return w.Verdict.Reason == ReasonBackfillWouldDelayHead || w.Verdict.Reason == ReasonBackfillNoWalltime
	})
}

// couldBeLaunched reports whether an empty cluster that launches all it may would hold a request.
func couldBeLaunched(s Snapshot, r Request) bool {
	return slices.ContainsFunc(s.Offers, func(o Offer) bool {
		most := o.MaxNodes
		if most == 0 {
			most = math.MaxInt
		}
		return slices.Contains(r.Admissible, o.Definition) && int(r.Nodes) <= most && r.Resources.Cores <= o.Node.Cores &&
			r.Resources.Devices["gpu"] <= o.Node.Devices["gpu"] && (o.TTL == 0 || o.Launch+r.Walltime <= o.TTL)
	})
}

// idleSince tells since when nodes have nothing to do.
func idleSince(s Snapshot) []Node {
	nodes := slices.Clone(s.Nodes)
	for i := range nodes {
		n := &nodes[i]
		switch busy := slices.ContainsFunc(s.Placements, func(p Placement) bool { return slices.Contains(p.Nodes, n.ID) }); {
		case busy:
			n.IdleSince = time.Time{}
		case n.IdleSince.IsZero():
			n.IdleSince = s.Now
		}
	}
	return nodes
}
