package sched

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// history is a scheduler that is told of changes, beside the facts that it should know by then.
type history struct {
	t     *rapid.T
	s     *Scheduler
	facts Snapshot
	next  int  // number of the next request or placement
	rough bool // there is preemption
	known map[coordinator.AllocationID]Request
}

// TestIncrementalEqualsFresh: whatever happened before, plan, positions, verdicts and estimates are those of
// a scheduler that is told the same facts for the first time.
func TestIncrementalEqualsFresh(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{t: t, s: New(), facts: drawSnapshot(t), next: 100}
		h.feed()
		for range between(t, "rounds", 1, 8) {
			for range between(t, "changes", 0, 4) {
				h.change()
			}
			h.decide()
		}
	})
}

func (h *history) feed() {
	for _, p := range h.facts.Placements {
		h.s.Place(p)
	}
	for _, r := range h.facts.Requests {
		h.s.Submit(r)
	}
	for _, held := range h.facts.Holds {
		h.s.SetHold(held)
	}
	for _, n := range h.facts.Nodes {
		h.s.SetNode(n)
	}
	h.s.Configure(h.facts.Config, h.facts.Definitions, h.facts.Tokens)
}

// decide compares the two and carries the plan out.
func (h *history) decide() {
	h.whatIf()
	want := Decide(h.facts)
	got := h.s.Decide(h.facts.Now)
	if !slices.EqualFunc(got.Starts, want.Starts, func(a, b Start) bool { return reflect.DeepEqual(a, b) }) {
		h.t.Fatalf("starts\n got %+v\nwant %+v\nof %+v", got.Starts, want.Starts, h.facts)
	}
	if !reflect.DeepEqual(got.Preempts, want.Preempts) || !reflect.DeepEqual(got.Drops, want.Drops) {
		h.t.Fatalf("preempts\n got %+v %+v\nwant %+v %+v\nof %+v", got.Preempts, got.Drops, want.Preempts, want.Drops, h.facts)
	}
	if !reflect.DeepEqual(got.Reserves, want.Reserves) || !reflect.DeepEqual(got.Stops, want.Stops) {
		h.t.Fatalf("reserves\n got %+v %+v\nwant %+v %+v\nof %+v", got.Reserves, got.Stops, want.Reserves, want.Stops, h.facts)
	}
	if broken := checkPlan(h.facts, want); broken != "" && h.known != nil {
		h.t.Fatalf("%s\nplan %+v\nof %+v", broken, want, h.facts)
	}
	if broken := checkPreempts(h.facts, want); broken != "" {
		h.t.Fatalf("%s\nplan %+v\nof %+v", broken, want, h.facts)
	}
	h.facts = Apply(h.facts, want)
	for _, w := range want.Waits {
		got, ok := h.s.Explain(w.ID, h.facts.Now)
		if !ok || !reflect.DeepEqual(got, w) {
			h.t.Fatalf("explained\n got %+v\nwant %+v\nof %+v", got, w, h.facts)
		}
	}
	page := 1 + between(h.t, "page", 0, 3)
	var listed []Wait
	for class := coordinator.ClassReserved; class <= coordinator.ClassBatch; class++ {
		after := coordinator.AllocationID("")
		for {
			waits := h.s.Waiting(h.facts.Now, class, after, page)
			if len(waits) == 0 {
				break
			}
			listed = append(listed, waits...)
			after = waits[len(waits)-1].ID
		}
	}
	if len(listed) != len(want.Waits) || len(listed) > 0 && !reflect.DeepEqual(listed, want.Waits) {
		h.t.Fatalf("listed\n got %+v\nwant %+v\nof %+v", listed, want.Waits, h.facts)
	}
	if broken := h.s.check(); broken != "" {
		h.t.Fatalf("%s\nof %+v", broken, h.facts)
	}
}

// check counts everything again and looks for everybody; "" if all is as it is remembered.
func (s *Scheduler) check() string {
	for _, q := range s.queues {
		n := 0
		for _, sh := range q.shapes {
			if sh.taken != (place{}) {
				return "a queue is not cut where it was taken from"
			}
			for _, chunk := range sh.queue.chunks {
				n += len(chunk)
				for _, e := range chunk {
					if s.entries[e.id] != e || e.shape != sh {
						return fmt.Sprintf("%s waits in a queue that is not its own", e.id)
					}
				}
			}
		}
		if n != q.count {
			return fmt.Sprintf("%d wait in class %s, counted %d", n, q.class, q.count)
		}
	}
	for id, e := range s.entries {
		if e.shape.queue.at(e.shape.queue.find(e)) != e {
			return fmt.Sprintf("%s is not in its queue", id)
		}
	}
	return s.c.check()
}

// TestOneLikeAHolderStarts: while room is held for the first of a queue, the second, which is like it, starts. Neither is lost, and the
// queue goes on.
func TestOneLikeAHolderStarts(t *testing.T) {
	ask := func(id coordinator.AllocationID, class coordinator.Class, cores coordinator.Cores, walltime time.Duration) Request {
		return Request{ID: id, Workflow: coordinator.WorkflowID(id), Class: class, Nodes: 1, Submitted: epoch, Walltime: walltime,
			Resources: coordinator.Resources{Cores: cores}, Admissible: []coordinator.DefinitionID{"a"}}
	}
	run := func(id coordinator.AllocationID, class coordinator.Class, cores coordinator.Cores, walltime time.Duration) Placement {
		return Placement{ID: id, Workflow: coordinator.WorkflowID(id), Class: class, Started: epoch.Add(-time.Minute), Walltime: walltime,
			Nodes: []coordinator.NodeID{"n1"}, Resources: coordinator.Resources{Cores: cores}, PreemptionsLeft: -1}
	}
	s := load(&Snapshot{
		Now: epoch, Config: Config{PreemptionNotice: time.Minute}, Definitions: []Definition{{ID: "a"}},
		Nodes: []Node{{ID: "n1", Definition: "a", Cores: 12, Threads: 12, Schedulable: true}},
		// The first is kept from what is free by the planned start, beside which there is room once the batch work is gone.
		Placements: []Placement{run("ends", coordinator.ClassOnDemand, 4, 10*time.Minute), run("yields", coordinator.ClassBatch, 6, 0)},
		Requests: []Request{ask("planned", coordinator.ClassReserved, 5, time.Hour), ask("j1", coordinator.ClassOnDemand, 2, 30*time.Minute),
			ask("j2", coordinator.ClassOnDemand, 2, 30*time.Minute)},
	})
	plan := s.Decide(epoch)
	if len(plan.Preempts) != 1 || plan.Preempts[0].For != "j1" || len(plan.Starts) != 1 || plan.Starts[0].ID != "j2" {
		t.Fatalf("%+v", plan)
	}
	if broken := s.check(); broken != "" {
		t.Fatal(broken)
	}
	s.End("yields")
	s.End("ends")
	s.Withdraw("planned")
	s.Submit(ask("j3", coordinator.ClassOnDemand, 2, 0))
	if plan := s.Decide(epoch.Add(time.Minute)); len(plan.Starts) != 2 {
		t.Errorf("what waits does not start: %+v", plan)
	}
}

func (h *history) change() {
	t, f := h.t, &h.facts
	switch what := between(t, "change", 0, 9); {
	case what <= 1:
		h.submit()
	case what == 2 && len(f.Requests) > 0:
		i := between(t, "which", 0, len(f.Requests)-1)
		h.s.Withdraw(f.Requests[i].ID)
		f.Requests = slices.Delete(slices.Clone(f.Requests), i, i+1)
	case what <= 4 && len(f.Placements) > 0:
		i := between(t, "which", 0, len(f.Placements)-1)
		h.s.End(f.Placements[i].ID)
		f.Placements = slices.Delete(slices.Clone(f.Placements), i, i+1)
	case what == 5:
		f.Now = f.Now.Add(time.Duration(between(t, "seconds", 0, 600)) * time.Second)
	case what == 6:
		h.changeNode()
	case what == 7 && len(f.Placements) > 0:
		i := between(t, "which", 0, len(f.Placements)-1)
		p := f.Placements[i]
		if between(t, "stop", 0, 1) == 0 {
			p.Ending = true
		} else {
			p.Started = p.Started.Add(time.Minute)
		}
		f.Placements = slices.Clone(f.Placements)
		f.Placements[i] = p
		h.s.Place(p)
	case what == 8:
		h.place()
	case what == 9:
		other := drawSnapshot(t)
		f.Config, f.Tokens = other.Config, other.Tokens
		if h.rough {
			roughenConfig(t, &f.Config)
		}
		if between(t, "definitions", 0, 1) == 0 {
			f.Definitions = other.Definitions
		}
		h.s.Configure(f.Config, f.Definitions, f.Tokens)
	}
}

// submit adds a request, or changes one, or a placement returns.
func (h *history) submit() {
	t, f := h.t, &h.facts
	r := drawRequest(t, h.next, []coordinator.DefinitionID{"a", "b", "c"})
	if h.rough {
		roughenRequest(t, &r)
	}
	h.next++
	f.Requests = slices.Clone(f.Requests)
	switch kind := between(t, "kind", 0, 5); {
	case kind == 0 && len(f.Requests) > 0:
		i := between(t, "which", 0, len(f.Requests)-1)
		r.ID = f.Requests[i].ID
		f.Requests[i] = r
	case kind == 1 && len(f.Placements) > 0:
		i := between(t, "which", 0, len(f.Placements)-1)
		r.ID, r.Returned = f.Placements[i].ID, true
		f.Placements = slices.Delete(slices.Clone(f.Placements), i, i+1)
		f.Requests = append(f.Requests, r)
	default:
		f.Requests = append(f.Requests, r)
	}
	h.s.Submit(r)
}

// place puts something down that nobody asked for, even where it does not fit.
func (h *history) place() {
	t, f := h.t, &h.facts
	p := Placement{
		ID: coordinator.AllocationID(fmt.Sprintf("p%03d", h.next)), Workflow: drawWorkflow(t), Class: coordinator.ClassBatch,
		Started: f.Now, Walltime: drawMinutes(t), Resources: drawResources(t), Array: drawArray(t),
		Nodes: []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%d", between(t, "on", 0, 5)))},
	}
	h.next++
	if h.rough {
		roughenPlacement(t, &p)
	}
	f.Placements = append(slices.Clone(f.Placements), p)
	h.s.Place(p)
}

func (h *history) changeNode() {
	t, f := h.t, &h.facts
	id := coordinator.NodeID(fmt.Sprintf("n%d", between(t, "node", 0, 5)))
	f.Nodes = slices.Clone(f.Nodes)
	i := slices.IndexFunc(f.Nodes, func(n Node) bool { return n.ID == id })
	if i >= 0 && between(t, "gone", 0, 2) == 0 {
		f.Nodes = slices.Delete(f.Nodes, i, i+1)
		h.s.RemoveNode(id)
		return
	}
	n := Node{ID: id, Definition: one(t, "definition", []coordinator.DefinitionID{"a", "b", "c", ""}), Cores: 4, Threads: 8, Memory: 12,
		Devices: map[string]uint32{"gpu": uint32(between(t, "node gpus", 0, 4))}, Schedulable: between(t, "off", 0, 3) > 0, Why: "cordoned"}
	drawDetail(t, &n)
	if i < 0 {
		f.Nodes = append(f.Nodes, n)
	} else {
		if between(t, "only off", 0, 1) == 0 {
			off := f.Nodes[i]
			off.Schedulable = !off.Schedulable
			n = off
		}
		f.Nodes[i] = n
	}
	h.s.SetNode(n)
}

// check sums up everything again; "" if it is what is remembered.
func (c *cluster) check() string {
	arrays := map[*array]int{}
	tokens := make([]uint64, len(c.tokens))
	all := slices.Collect(maps.Values(c.claims))
	for _, n := range c.nodes {
		for _, h := range n.holds {
			if h.nodes[0] == n {
				arrays[h.array]++
			}
		}
	}
	batch, marked := 0, 0
	for _, h := range all {
		batch += oneIf(h.class == coordinator.ClassBatch)
		marked += oneIf(h.preemptible)
		if h.gone {
			return fmt.Sprintf("%s is taken to be gone", h.id)
		}
	}
	if batch != c.batch || marked != c.marked {
		return fmt.Sprintf("%d batch and %d preemptible, counted %d and %d", c.batch, c.marked, batch, marked)
	}
	for _, h := range all {
		arrays[h.array]++
		for _, a := range h.need.tokens {
			tokens[a.kind] += a.n
		}
		for _, n := range h.nodes {
			if c.nodes[n.id] != n || !slices.Contains(n.claims, h) {
				return fmt.Sprintf("%s is not on %s", h.id, n.id)
			}
		}
	}
	for i, t := range c.tokens {
		if t.used != tokens[i] {
			return fmt.Sprintf("token %s: %d used, %d counted", c.tokNames.list[i], tokens[i], t.used)
		}
	}
	for _, g := range c.arrays {
		if g.count != arrays[g] || g.count+g.shapes == 0 {
			return fmt.Sprintf("array %s: %d placed, %d counted", g.name, arrays[g], g.count)
		}
	}
	for id, n := range c.nodes {
		if !n.known && len(n.claims)+len(n.holds) == 0 {
			return fmt.Sprintf("node %s is remembered for nothing", id)
		}
		was := n.now
		was.devices = slices.Clone(was.devices)
		n.recount()
		if n.now.cores != was.cores || n.now.memory != was.memory || n.now.count != was.count || n.now.lock != was.lock {
			return fmt.Sprintf("node %s: %+v, counted %+v", id, n.now, was)
		}
	}
	return ""
}
