package sched

import (
	"cmp"
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

// wanted is how many nodes rule 28 launches in each definition, worked out in another way: the queue in order, first fit, nothing remembered. It is
// for backfill, where nobody keeps anybody else from launching.
func wanted(s Snapshot, plan Plan) map[coordinator.DefinitionID]int {
	type box struct {
		def   coordinator.DefinitionID
		node  Node
		at    time.Time
		since time.Time
		taken bool // an idle node that somebody counts on
		up    bool
		runs  []coordinator.Resources
	}
	var boxes []*box
	offers := map[coordinator.DefinitionID]Offer{}
	for _, o := range s.Offers {
		offers[o.Definition] = o
	}
	after := Apply(s, Plan{Starts: plan.Starts})
	for _, n := range s.Nodes {
		b := &box{def: n.Definition, node: n, at: s.Now, up: true}
		for _, p := range after.Placements {
			if slices.Contains(p.Nodes, n.ID) {
				b.runs = append(b.runs, p.Resources)
			}
		}
		boxes = append(boxes, b)
	}
	own := map[coordinator.AllocationID][]*box{}
	for _, l := range s.Launching {
		b := &box{def: l.Definition, node: offers[l.Definition].Node, at: later2(l.Until, s.Now), since: l.Since}
		boxes = append(boxes, b)
		for _, id := range l.For {
			for _, r := range after.Requests {
				if r.ID == id {
					own[id] = append(own[id], b)
					b.runs = append(b.runs, r.Resources)
				}
			}
		}
	}
	slices.SortStableFunc(boxes, func(a, b *box) int { return a.at.Compare(b.at) })
	fits := func(b *box, r Request) bool {
		cores, gpus := uint64(b.node.Cores), uint64(b.node.Devices["gpu"])
		ends := b.node.Expires
		if o := offers[b.def]; !b.up && o.TTL > 0 {
			ends = b.since.Add(o.TTL)
		}
		for _, x := range append(slices.Clip(b.runs), r.Resources) {
			if uint64(x.Cores) > cores || uint64(x.Devices["gpu"]) > gpus {
				return false
			}
			cores, gpus = cores-uint64(x.Cores), gpus-uint64(x.Devices["gpu"])
		}
		return !b.taken && (b.up && b.node.Schedulable || !b.up) && (ends.IsZero() || !b.at.Add(r.Walltime).After(ends))
	}
	tokens := uint32(0)
	for _, p := range after.Placements {
		tokens += p.Resources.Tokens["matlab"]
	}
	launched := map[coordinator.DefinitionID]int{}
	waits := slices.Clone(after.Requests)
	slices.SortFunc(waits, func(a, b Request) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Workflow, b.Workflow), cmp.Compare(a.ID, b.ID))
	})
	for _, r := range waits {
		if tokens += r.Resources.Tokens["matlab"]; tokens > s.Tokens["matlab"] {
			tokens -= r.Resources.Tokens["matlab"]
			continue
		}
		var got []*box
		idle := false
		admits := candidates(r, s)
		if len(own[r.ID]) > 0 {
			admits = slices.DeleteFunc(admits, func(d Definition) bool { return d.ID != own[r.ID][0].def })
		}
		room := func(def coordinator.DefinitionID) (list []*box, up int) {
			list = slices.Clone(own[r.ID])
			for pass := range 2 {
				for _, b := range boxes {
					if b.def == def && b.up == (pass == 0) && len(list) < int(r.Nodes) && !slices.Contains(list, b) && fits(b, r) {
						list = append(list, b)
						up += oneIf(b.up)
					}
				}
			}
			return list, up
		}
		for _, d := range admits {
			list, up := room(d.ID)
			if idle = up == int(r.Nodes); idle || len(list) == int(r.Nodes) {
				got = list
				break
			}
		}
		for _, d := range admits {
			o, offered := offers[d.ID]
			if got != nil || !offered {
				continue
			}
			list, _ := room(d.ID)
			count := 0
			for _, b := range boxes {
				count += oneIf(b.def == d.ID)
			}
			missing := int(r.Nodes) - len(list)
			fresh := &box{def: d.ID, node: o.Node, at: s.Now.Add(o.Launch), since: s.Now}
			if o.UnavailableUntil.After(s.Now) || o.MaxNodes > 0 && count+missing > o.MaxNodes || !fits(fresh, r) {
				continue
			}
			for range missing {
				b := *fresh
				boxes, list = append(boxes, &b), append(list, &b)
				launched[d.ID]++
			}
			got = list
			slices.SortStableFunc(boxes, func(a, b *box) int { return a.at.Compare(b.at) })
		}
		if idle || got == nil {
			tokens -= r.Resources.Tokens["matlab"]
			continue
		}
		for _, b := range got {
			if b.taken = b.up; !b.up && !slices.Contains(own[r.ID], b) {
				b.runs = append(b.runs, r.Resources)
			}
		}
	}
	return launched
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
		troubles := between(t, "troubles", 0, 6)
		next, rest := 0, 0
		for range 800 {
			s.Nodes = idleSince(s)
			plan := Decide(s)
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
			for i := 0; i < len(s.Launching); i++ {
				l := s.Launching[i]
				if l.Until.After(s.Now) {
					continue
				}
				s.Launching = slices.Delete(slices.Clone(s.Launching), i, i+1)
				i--
				o := slices.IndexFunc(s.Offers, func(o Offer) bool { return o.Definition == l.Definition })
				if troubles > 0 && between(t, "trouble", 0, 2) == 0 {
					troubles--
					failures++
					s.Offers = slices.Clone(s.Offers)
					s.Offers[o].UnavailableUntil = s.Now.Add(3 * time.Minute)
					s.Requests = slices.Clone(s.Requests)
					for j := range s.Requests {
						s.Requests[j].Attempt++
					}
					continue
				}
				n := s.Offers[o].Node
				next++
				n.ID, n.Schedulable = coordinator.NodeID(fmt.Sprintf("c%03d", next)), true
				if s.Offers[o].TTL > 0 {
					n.Expires = l.Since.Add(s.Offers[o].TTL)
				}
				s.Nodes = append(s.Nodes, n)
			}
			s = advance(s, s.Now.Add(time.Minute))
		}
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
