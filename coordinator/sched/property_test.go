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

// between draws a number with every value equally likely, which keeps small clusters full; it
// still shrinks to the lowest.
func between(t *rapid.T, label string, low, high int) int {
	raw := rapid.Uint64().Draw(t, label)
	return low + int(raw*0x9e3779b97f4a7c15>>32%uint64(high-low+1))
}

func one[T any](t *rapid.T, label string, list []T) T { return list[between(t, label, 0, len(list)-1)] }

// Walltimes and starts are whole minutes that add up to the same ends often, so that ties happen.
func drawResources(t *rapid.T) coordinator.Resources {
	r := coordinator.Resources{
		Cores:     coordinator.Cores(between(t, "cores", 0, 5)),
		Threads:   between(t, "threads", 0, 4) == 0,
		Memory:    coordinator.Bytes(between(t, "memory", 0, 6)),
		ByCore:    between(t, "by core", 0, 5) == 0,
		Exclusive: one(t, "exclusive", []coordinator.Exclusive{0, 0, 0, 0, 0, 1, 2}),
	}
	if between(t, "bound", 0, 3) == 0 {
		r.Affinity = one(t, "affinity", []coordinator.Affinity{0, 1, 2, 3, 3})
		r.Sockets = uint32(one(t, "sockets", []int{0, 0, 1, 2}))
	}
	if n := between(t, "gpus", -2, 3); n >= 0 {
		r.Devices = map[string]uint32{"gpu": uint32(n)}
	}
	if between(t, "fpga", 0, 8) == 0 {
		r.Devices = map[string]uint32{"gpu": 1, "fpga": 1}
	}
	if between(t, "licensed", 0, 3) == 0 {
		r.Tokens = map[string]uint32{one(t, "token", []string{"matlab", "ansys"}): uint32(between(t, "count", 0, 3))}
	}
	return r
}

func drawWorkflow(t *rapid.T) coordinator.WorkflowID {
	return coordinator.WorkflowID(one(t, "workflow", []string{"u", "v", "w"}))
}

func drawMinutes(t *rapid.T) time.Duration {
	return time.Duration(one(t, "walltime", []int{0, 5, 10, 10, 20, 30})) * time.Minute
}

func drawArray(t *rapid.T) string {
	return one(t, "array", []string{"", "", "", "array"})
}

func drawSnapshot(t *rapid.T) Snapshot {
	s := Snapshot{
		Now: epoch,
		Config: Config{
			AgeRate:          one(t, "age rate", []float64{0, 0, 1.0 / 64, -1}),
			Backfill:         coordinator.Backfill(between(t, "backfill", 0, 2)),
			PreemptionNotice: time.Duration(one(t, "notice", []int{0, 60})) * time.Second,
			QueueDepth:       one(t, "depth", []int{0, 0, 1, 2, 4}),
		},
		Tokens: map[string]uint32{"matlab": uint32(between(t, "matlab", 0, 4))},
	}
	defs := []coordinator.DefinitionID{"a", "b", "c"}
	for i, id := range defs {
		s.Definitions = append(s.Definitions, Definition{
			ID: id, Order: i, CostPerHour: float64(between(t, "cost", 0, 1)),
			Exclusive: one(t, "definition exclusive", []coordinator.Exclusive{0, 0, 0, 0, 1, 2}),
		})
	}
	for i := range between(t, "nodes", 0, 4) {
		cores := between(t, "node cores", 0, 6)
		n := Node{
			ID: coordinator.NodeID(fmt.Sprintf("n%d", i)), Definition: one(t, "definition", append(defs[:2:2], "a", "")),
			Cores: coordinator.Cores(cores), Threads: uint32(cores * between(t, "smt", 1, 2)),
			Memory:      coordinator.Bytes(between(t, "node memory", 0, 16)),
			Devices:     map[string]uint32{"gpu": uint32(between(t, "node gpus", 0, 4)), "fpga": uint32(i % 2)},
			Schedulable: between(t, "off", 0, 5) > 0, Why: "draining",
		}
		drawDetail(t, &n)
		s.Nodes = append(s.Nodes, n)
	}
	drawPlacements(t, &s)
	for i := range between(t, "requests", 0, 12) {
		s.Requests = append(s.Requests, drawRequest(t, i, defs))
	}
	return s
}

// drawDetail says of some nodes how their GPUs are joined and what their domains are.
func drawDetail(t *rapid.T, n *Node) {
	if between(t, "detail", 0, 1) == 0 {
		return
	}
	count := between(t, "listed gpus", 0, 5)
	for i := range count {
		n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(i), Kind: "gpu", Domain: between(t, "gpu domain", -1, 1), Dead: between(t, "dead", 0, 9) == 0})
		for j := range i {
			if between(t, "linked", 0, 1) == 0 {
				n.Links = append(n.Links, Link{A: j, B: i, Count: between(t, "links", 0, 2)})
			}
		}
	}
	n.LinksKnown = between(t, "links known", 0, 4) > 0
	for i := range between(t, "domains", 0, 2) {
		n.Domains = append(n.Domains, Domain{ID: i, Socket: between(t, "socket", -1, i), Cores: n.Cores / 2, Memory: coordinator.Bytes(between(t, "domain memory", 0, 9))})
	}
}

// drawPlacements puts down what really fits, now and then on a node that is not there.
func drawPlacements(t *rapid.T, s *Snapshot) {
	for i := range between(t, "placements", 0, 6) {
		p := Placement{
			ID: coordinator.AllocationID(fmt.Sprintf("p%d", i)), Workflow: drawWorkflow(t), Class: coordinator.ClassOnDemand,
			Started:  epoch.Add(-time.Duration(one(t, "ran", []int{0, 5, 10, 40})) * time.Minute),
			Walltime: drawMinutes(t), Resources: drawResources(t), Array: drawArray(t), Ending: between(t, "ending", 0, 9) == 0,
		}
		p.Nodes = []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%d", between(t, "on", 0, 4)))}
		s.Placements = append(s.Placements, p)
		if conflict(*s, s.Placements) != "" {
			s.Placements = s.Placements[:len(s.Placements)-1]
		}
	}
}

func drawRequest(t *rapid.T, i int, defs []coordinator.DefinitionID) Request {
	r := Request{
		ID: coordinator.AllocationID(fmt.Sprintf("r%02d", i)), Workflow: drawWorkflow(t),
		Class:     coordinator.Class(one(t, "class", []int{1, 2, 2, 3, 3})),
		Returned:  between(t, "returned", 0, 9) == 0,
		Priority:  float64(between(t, "priority", 0, 2)),
		Submitted: epoch.Add(-time.Duration(between(t, "submitted", 0, 3)) * time.Minute),
		Order:     uint64(between(t, "order", 0, 3)),
		Walltime:  drawMinutes(t), Nodes: uint32(one(t, "gang", []int{0, 1, 1, 1, 2, 3})),
		Resources: drawResources(t), Unrestricted: between(t, "unrestricted", 0, 19) == 0,
		Loose: between(t, "loose", 0, 4) == 0,
		Array: drawArray(t), ArrayLimit: between(t, "array limit", 0, 3),
	}
	for _, id := range append(defs[:3:3], "gone") {
		if between(t, "admitted", 0, 2) > 0 {
			r.Admissible = append(r.Admissible, id)
		}
	}
	if between(t, "excludes", 0, 5) == 0 {
		r.Exclude = []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%d", between(t, "excluded", 0, 3)))}
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
			s = Apply(s, Decide(s))
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
			s.Requests[i].Array = ""
		}
		for range 200 {
			s = Apply(s, Decide(s))
			next := nextEnd(s)
			if next.IsZero() {
				break
			}
			s = advance(s, next)
		}
		for _, w := range Decide(s).Waits {
			switch w.Verdict.Reason {
			case ReasonNoAdmissibleDefinition, ReasonDrained, ReasonNoNode, ReasonInsufficientResources, ReasonTokenExhausted, ReasonHardwareUnknown:
			default:
				t.Fatalf("%s still waits on an empty cluster: %s", w.ID, w.Verdict.Reason)
			}
			if len(w.Verdict.Blocking) > 0 {
				t.Fatalf("%s is blocked by %v on an empty cluster", w.ID, w.Verdict.Blocking)
			}
		}
	})
}
