package sched

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

var epoch = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)

// Walltimes and starts are whole minutes that add up to the same ends often, so that ties happen.
func drawResources(t *rapid.T) coordinator.Resources {
	r := coordinator.Resources{
		Cores:     coordinator.Cores(rapid.IntRange(0, 5).Draw(t, "cores")),
		Threads:   rapid.IntRange(0, 4).Draw(t, "threads") == 0,
		Memory:    coordinator.Bytes(rapid.IntRange(0, 6).Draw(t, "memory")),
		ByCore:    rapid.IntRange(0, 5).Draw(t, "by core") == 0,
		Exclusive: rapid.SampledFrom([]coordinator.Exclusive{0, 0, 0, 0, 0, 1, 2}).Draw(t, "exclusive"),
	}
	if n := rapid.IntRange(-2, 3).Draw(t, "gpus"); n >= 0 {
		r.Devices = map[string]uint32{"gpu": uint32(n)}
	}
	if rapid.IntRange(0, 8).Draw(t, "fpga") == 0 {
		r.Devices = map[string]uint32{"gpu": 1, "fpga": 1}
	}
	if rapid.IntRange(0, 3).Draw(t, "licensed") == 0 {
		r.Tokens = map[string]uint32{rapid.SampledFrom([]string{"matlab", "ansys"}).Draw(t, "token"): uint32(rapid.IntRange(0, 3).Draw(t, "count"))}
	}
	return r
}

func drawWorkflow(t *rapid.T) coordinator.WorkflowID {
	return coordinator.WorkflowID(rapid.SampledFrom([]string{"u", "v", "w"}).Draw(t, "workflow"))
}

func drawMinutes(t *rapid.T) time.Duration {
	return time.Duration(rapid.SampledFrom([]int{0, 5, 10, 10, 20, 30}).Draw(t, "walltime")) * time.Minute
}

func drawGroup(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "", "array"}).Draw(t, "group")
}

func drawSnapshot(t *rapid.T) Snapshot {
	s := Snapshot{
		Now: epoch,
		Config: Config{
			Backfill:         coordinator.Backfill(rapid.IntRange(0, 2).Draw(t, "backfill")),
			PreemptionNotice: time.Duration(rapid.SampledFrom([]int{0, 60}).Draw(t, "notice")) * time.Second,
			QueueDepth:       rapid.SampledFrom([]int{0, 0, 1, 2, 4}).Draw(t, "depth"),
		},
		Tokens: map[string]uint32{"matlab": uint32(rapid.IntRange(0, 4).Draw(t, "matlab"))},
	}
	defs := []coordinator.DefinitionID{"a", "b", "c"}
	for i, id := range defs {
		s.Definitions = append(s.Definitions, Definition{
			ID: id, Order: i, CostPerHour: float64(rapid.IntRange(0, 1).Draw(t, "cost")),
			Exclusive: rapid.SampledFrom([]coordinator.Exclusive{0, 0, 0, 0, 1, 2}).Draw(t, "definition exclusive"),
		})
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		cores := rapid.IntRange(0, 6).Draw(t, "node cores")
		s.Nodes = append(s.Nodes, Node{
			ID: coordinator.NodeID(fmt.Sprintf("n%d", i)), Definition: rapid.SampledFrom(append(defs[:2:2], "a", "")).Draw(t, "definition"),
			Cores: coordinator.Cores(cores), Threads: uint32(cores * rapid.IntRange(1, 2).Draw(t, "smt")),
			Memory:      coordinator.Bytes(rapid.IntRange(0, 16).Draw(t, "node memory")),
			Devices:     map[string]uint32{"gpu": uint32(rapid.IntRange(0, 4).Draw(t, "node gpus")), "fpga": uint32(i % 2)},
			Schedulable: rapid.IntRange(0, 5).Draw(t, "off") > 0, Why: "draining",
		})
	}
	drawPlacements(t, &s)
	for i := range rapid.IntRange(0, 12).Draw(t, "requests") {
		s.Requests = append(s.Requests, drawRequest(t, i, defs))
	}
	return s
}

// drawPlacements puts down what really fits, now and then on a node that is not there.
func drawPlacements(t *rapid.T, s *Snapshot) {
	for i := range rapid.IntRange(0, 6).Draw(t, "placements") {
		p := Placement{
			ID: coordinator.AllocationID(fmt.Sprintf("p%d", i)), Workflow: drawWorkflow(t), Class: coordinator.ClassOnDemand,
			Started:  epoch.Add(-time.Duration(rapid.SampledFrom([]int{0, 5, 10, 40}).Draw(t, "ran")) * time.Minute),
			Walltime: drawMinutes(t), Resources: drawResources(t), Group: drawGroup(t), Ending: rapid.IntRange(0, 9).Draw(t, "ending") == 0,
		}
		p.Nodes = []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%d", rapid.IntRange(0, 4).Draw(t, "on")))}
		s.Placements = append(s.Placements, p)
		if conflict(*s, s.Placements) != "" {
			s.Placements = s.Placements[:len(s.Placements)-1]
		}
	}
}

func drawRequest(t *rapid.T, i int, defs []coordinator.DefinitionID) Request {
	r := Request{
		ID: coordinator.AllocationID(fmt.Sprintf("r%02d", i)), Workflow: drawWorkflow(t),
		Class:     coordinator.Class(rapid.SampledFrom([]int{1, 2, 2, 3, 3}).Draw(t, "class")),
		Returned:  rapid.IntRange(0, 9).Draw(t, "returned") == 0,
		Priority:  float64(rapid.IntRange(0, 2).Draw(t, "priority")),
		Submitted: epoch.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "submitted")) * time.Minute),
		Walltime:  drawMinutes(t), Nodes: uint32(rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(t, "gang")),
		Resources: drawResources(t), Unrestricted: rapid.IntRange(0, 19).Draw(t, "unrestricted") == 0,
		Group: drawGroup(t), GroupFree: rapid.IntRange(0, 2).Draw(t, "group free"),
	}
	for _, id := range append(defs[:3:3], "gone") {
		if rapid.IntRange(0, 2).Draw(t, "admitted") > 0 {
			r.Admissible = append(r.Admissible, id)
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "excludes") == 0 {
		r.Exclude = []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(t, "excluded")))}
	}
	return r
}

func TestDecideEqualsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		got, want := Decide(s), naiveDecide(s)
		for i := range got.Waits {
			v := &got.Waits[i].Verdict
			if v.Text == "" {
				t.Fatalf("%s waits without words", got.Waits[i].ID)
			}
			v.Text, v.Blocking, v.Nearest = "", nil, ""
		}
		if !slices.EqualFunc(got.Starts, want.Starts, func(a, b Start) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("starts\n got %+v\nwant %+v", got.Starts, want.Starts)
		}
		if !slices.EqualFunc(got.Waits, want.Waits, func(a, b Wait) bool { return reflect.DeepEqual(a, b) }) {
			t.Fatalf("waits\n got %+v\nwant %+v", got.Waits, want.Waits)
		}
	})
}

func TestPlanDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		want := Decide(s)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		shuffled := s
		shuffled.Definitions = shuffle(random, s.Definitions)
		shuffled.Nodes = shuffle(random, s.Nodes)
		shuffled.Requests = shuffle(random, s.Requests)
		shuffled.Placements = shuffle(random, s.Placements)
		for i := range shuffled.Requests {
			r := &shuffled.Requests[i]
			r.Admissible, r.Exclude = shuffle(random, r.Admissible), shuffle(random, r.Exclude)
		}
		if got := Decide(shuffled); !reflect.DeepEqual(got, want) {
			t.Fatalf("\n got %+v\nwant %+v", got, want)
		}
	})
}

func shuffle[T any](random *rand.Rand, list []T) []T {
	list = slices.Clone(list)
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func TestPlanKeepsInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		if broken := checkPlan(s, Decide(s)); broken != "" {
			t.Fatal(broken)
		}
	})
}

// TestEstimatesAreMet ends each job when it is planned to end, with nothing new arriving: under
// strict order every estimate is met to the second, and what has none never starts.
func TestEstimatesAreMet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		estimates := map[coordinator.AllocationID]time.Time{}
		for _, w := range Decide(s).Waits {
			estimates[w.ID] = w.EstimatedStart
		}
		mode := s.Config.Backfill
		for ticks := 0; ticks < 200; ticks++ {
			for _, st := range Decide(s).Starts {
				want, waited := estimates[st.ID]
				if waited && ticks > 0 && !s.Now.Equal(want) {
					t.Fatalf("%s (%s) was to start at %v, started at %v", st.ID, mode, want, s.Now)
				}
				delete(estimates, st.ID)
			}
			s = apply(s, Decide(s))
			next := nextEnd(s)
			if next.IsZero() {
				break
			}
			s = advance(s, next)
		}
		for id, at := range estimates {
			if !at.IsZero() {
				t.Fatalf("%s (%s) was to start at %v and never did", id, mode, at)
			}
		}
	})
}

// TestEveryFeasibleRequestStarts is liveness: all ends known and nothing arriving, only work that
// no empty cluster could hold is left.
func TestEveryFeasibleRequestStarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		for i := range s.Placements {
			s.Placements[i].Walltime = max(s.Placements[i].Walltime, time.Minute)
		}
		for i := range s.Requests {
			s.Requests[i].Walltime = max(s.Requests[i].Walltime, time.Minute)
			s.Requests[i].Group = ""
		}
		for range 200 {
			s = apply(s, Decide(s))
			next := nextEnd(s)
			if next.IsZero() {
				break
			}
			s = advance(s, next)
		}
		for _, w := range Decide(s).Waits {
			switch w.Verdict.Reason {
			case ReasonNoAdmissibleDefinition, ReasonDrained, ReasonNoNode, ReasonInsufficientResources, ReasonTokenExhausted:
			default:
				t.Fatalf("%s still waits on an empty cluster: %s", w.ID, w.Verdict.Reason)
			}
			if len(w.Verdict.Blocking) > 0 {
				t.Fatalf("%s is blocked by %v on an empty cluster", w.ID, w.Verdict.Blocking)
			}
		}
	})
}
