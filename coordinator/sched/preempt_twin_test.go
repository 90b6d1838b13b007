package sched

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// bruteVictims tries every set of placements that must yield to a request, and says what the cheapest sufficient one costs
// by rule 19: how many, device-seconds, core-seconds, the first start, ids.
func bruteVictims(s Snapshot, r Request) (best []Placement, found bool) {
	var prey, stay []Placement
	for _, p := range s.Placements {
		switch {
		case endsAnyhow(s, p):
		case mustYield(s, r, p):
			prey = append(prey, p)
		default:
			stay = append(stay, p)
		}
	}
	for set := range 1 << len(prey) {
		var gone []Placement
		left := slices.Clone(stay)
		for i, p := range prey {
			if set>>i&1 == 1 {
				gone = append(gone, p)
			} else {
				left = append(left, p)
			}
		}
		if found && compareVictims(s, gone, best) >= 0 || !placeable(s, r, left) {
			continue
		}
		best, found = gone, true
	}
	return best, found
}

func compareVictims(s Snapshot, a, b []Placement) int {
	type sum struct {
		device, core time.Duration
		oldest       time.Time
		ids          []coordinator.AllocationID
	}
	of := func(list []Placement) sum {
		x := sum{oldest: s.Now.Add(time.Hour)}
		for _, p := range list {
			devices := 0
			for _, n := range p.Resources.Devices {
				devices += int(n)
			}
			ran := s.Now.Sub(p.Started) * time.Duration(len(p.Nodes))
			if devices > 0 {
				x.device += ran * time.Duration(devices)
			} else {
				x.core += ran * time.Duration(p.Resources.Cores)
			}
			if p.Started.Before(x.oldest) {
				x.oldest = p.Started
			}
			x.ids = append(x.ids, p.ID)
		}
		slices.Sort(x.ids)
		return x
	}
	x, y := of(a), of(b)
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(x.device, y.device), cmp.Compare(x.core, y.core),
		y.oldest.Compare(x.oldest), slices.Compare(x.ids, y.ids))
}

// placeable asks Decide about a cluster in which only some placements are left.
func placeable(s Snapshot, r Request, left []Placement) bool {
	s.Placements, s.Requests, s.Holds = left, []Request{r}, nil
	s.Config.PreemptionEnabled, s.Config.NoEstimates = false, true
	s.Requests[0].Class = coordinator.ClassReserved // which takes nobody's room by class
	return len(Decide(s).Starts) == 1
}

// TestVictimsEqualBruteForce: on up to three nodes of up to eight GPUs, a lone request takes exactly the victims
// that trying all sets finds, whether it wants one node, several, or tokens; if no set will do, or none is needed, nobody ends.
func TestVictimsEqualBruteForce(t *testing.T) {
	plans, gangs, more := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawArena(t)
		for len(s.Placements) > exactPrey {
			s.Placements = s.Placements[:exactPrey]
		}
		if len(s.Placements) > 0 && between(t, "ending", 0, 3) == 0 {
			s.Placements[0].Ending = true
		}
		r := drawPreemptor(t, 0)
		if between(t, "fierce", 0, 4) > 0 {
			s.Config.PreemptionEnabled, s.Config.PreemptionThreshold, s.Config.MinPreemptionRuntime = true, 0, 0
			r.Class, r.Priority, r.Preempts = coordinator.ClassOnDemand, 9, []coordinator.GroupID{"x", "y", "z"}
			for i := range s.Placements {
				s.Placements[i].PreemptionsLeft, s.Placements[i].Preemptible = -1, true
			}
		}
		s.Requests = []Request{r}
		plan := Decide(s)
		want, found := bruteVictims(s, r)
		if len(plan.Starts) > 0 || !found || len(want) == 0 {
			if len(plan.Preempts) > 0 {
				t.Fatalf("%+v, but nobody had to: %v %v\nof %+v", plan.Preempts, found, ids(want), s)
			}
			return
		}
		if len(plan.Preempts) != 1 {
			t.Fatalf("%v would have made room for %s: %+v\nof %+v", ids(want), r.ID, plan, s)
		}
		var got []coordinator.AllocationID
		for _, v := range plan.Preempts[0].Victims {
			got = append(got, v.ID)
		}
		if !slices.Equal(got, ids(want)) {
			t.Fatalf("got %v, want %v\nof %+v", got, ids(want), s)
		}
		plans++
		gangs += oneIf(r.Nodes > 1)
		more += oneIf(len(want) > 1)
	})
	if plans == 0 || gangs == 0 || more == 0 {
		t.Errorf("%d plans, %d of gangs, %d with more than one victim", plans, gangs, more)
	}
	t.Logf("%d plans, %d of gangs, %d with more than one victim", plans, gangs, more)
}

func ids(list []Placement) []coordinator.AllocationID {
	var out []coordinator.AllocationID
	for _, p := range list {
		out = append(out, p.ID)
	}
	slices.Sort(out)
	return out
}

// TestNobodyIsKilledForEver: with nothing arriving, preempted work that comes back again and again, and nothing that ends
// by itself, kills come to an end; each preemptor has had one plan at most.
func TestNobodyIsKilledForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawArena(t)
		known := map[coordinator.AllocationID]Request{}
		for i := range s.Placements {
			s.Placements[i].Walltime = 0
			p := s.Placements[i]
			known[p.ID] = Request{ID: p.ID, Workflow: p.Workflow, Class: p.Class, Priority: p.Priority, Submitted: p.Submitted, Nodes: uint32(len(p.Nodes)),
				Resources: p.Resources, Admissible: []coordinator.DefinitionID{"a", "b"}, Group: p.Group, Preemptible: p.Preemptible,
				PreemptionsLeft: p.PreemptionsLeft, Preempts: []coordinator.GroupID{"x", "y", "z"}}
		}
		for i := range between(t, "preemptors", 1, 6) {
			r := drawPreemptor(t, i)
			r.Walltime = 0
			s.Requests = append(s.Requests, r)
			known[r.ID] = r
		}
		kills, quiet := 0, 0
		for tick := 0; quiet < 12; tick++ {
			if tick > 600 {
				t.Fatalf("%d kills and still going on", kills)
			}
			plan := Decide(s)
			quiet++
			for _, p := range plan.Preempts {
				kills += len(p.Victims)
				quiet = 0
			}
			s = Apply(s, plan)
			s.Now = s.Now.Add(time.Duration(between(t, "seconds", 1, 40)) * time.Second)
			s.Placements = slices.DeleteFunc(s.Placements, func(p Placement) bool {
				if !p.Ending || p.KillAt.After(s.Now) && between(t, "early", 0, 3) > 0 {
					return false
				}
				r := known[p.ID]
				r.Returned = true
				s.Requests = append(s.Requests, r)
				return true
			})
		}
	})
}

// TestEqualsKillOnce: among allocations that are alike, may all preempt one another and come back whenever they are
// killed, there is no kill at all, and one more that is above them kills once.
func TestEqualsKillOnce(t *testing.T) {
	for _, gap := range []float64{-3, 0, 5} {
		for _, rate := range []float64{0, 0.5} {
			s := Snapshot{
				Now: epoch, Definitions: []Definition{{ID: "a"}},
				Config: Config{PreemptionEnabled: true, PreemptionGap: gap, AgeRate: rate, PreemptionNotice: time.Minute},
				Nodes:  []Node{{ID: "n", Definition: "a", Cores: 8, Devices: map[string]uint32{"gpu": 1}, Schedulable: true}},
			}
			known := map[coordinator.AllocationID]Request{}
			ask := func(id string, priority float64) {
				r := Request{ID: coordinator.AllocationID(id), Workflow: coordinator.WorkflowID(id), Class: coordinator.ClassOnDemand, Priority: priority,
					Submitted: epoch, Nodes: 1, Resources: coordinator.Resources{Devices: map[string]uint32{"gpu": 1}}, Admissible: []coordinator.DefinitionID{"a"},
					Group: "g", Preempts: []coordinator.GroupID{"g"}, Preemptible: true, PreemptionsLeft: -1}
				s.Requests, known[r.ID] = append(s.Requests, r), r
			}
			kills := map[coordinator.AllocationID]int{}
			run := func() {
				for range 200 {
					plan := Decide(s)
					for _, p := range plan.Preempts {
						for _, v := range p.Victims {
							kills[v.ID]++
						}
					}
					s = Apply(s, plan)
					s.Now = s.Now.Add(20 * time.Second)
					s.Placements = slices.DeleteFunc(s.Placements, func(p Placement) bool {
						if p.Ending && !p.KillAt.After(s.Now) {
							r := known[p.ID]
							r.Returned = true
							s.Requests = append(s.Requests, r)
							return true
						}
						return false
					})
				}
			}
			ask("one", 1)
			ask("other", 1)
			run()
			if len(kills) > 0 {
				t.Errorf("gap %v, age %v: equals killed %v", gap, rate, kills)
			}
			ask("above", 7)
			run()
			if fmt.Sprint(kills) != "map[one:1]" {
				t.Errorf("gap %v, age %v: %v were killed, not the one that ran, once", gap, rate, kills)
			}
		}
	}
}
