package sched

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func drawGroup(t *rapid.T) coordinator.GroupID {
	return coordinator.GroupID(one(t, "group", []string{"x", "y", "z"}))
}

func roughenConfig(t *rapid.T, c *Config) {
	c.PreemptionEnabled = between(t, "preemption", 0, 3) > 0
	c.PreemptionThreshold = float64(one(t, "threshold", []int{0, 0, 1}))
	c.PreemptionGap = float64(one(t, "gap", []int{0, 1, 1, 2}))
	c.MinPreemptionRuntime = time.Duration(one(t, "min runtime", []int{0, 0, 0, 5})) * time.Minute
	c.AgeRate = max(0, c.AgeRate)
}

func roughenRequest(t *rapid.T, r *Request) {
	r.Group = drawGroup(t)
	for _, g := range []coordinator.GroupID{"x", "y", "z"} {
		if between(t, "listed", 0, 1) == 0 {
			r.Preempts = append(r.Preempts, g)
		}
	}
	r.Priority = float64(between(t, "priority", 0, 4))
	r.Preemptible = between(t, "preemptible", 0, 3) > 0
	r.PreemptionsLeft = one(t, "left", []int{-1, -1, -1, 0, 1})
}

func roughenPlacement(t *rapid.T, p *Placement) {
	p.Class = coordinator.Class(one(t, "class", []int{1, 2, 3, 3, 3}))
	p.Group, p.Preemptible = drawGroup(t), between(t, "preemptible", 0, 3) > 0
	p.Priority = float64(between(t, "priority", 0, 2))
	p.PreemptionsLeft = one(t, "left", []int{-1, -1, -1, 0, 1})
	if between(t, "dated", 0, 1) == 0 {
		p.Submitted = p.Started.Add(-time.Minute)
	}
}

func roughen(t *rapid.T, s *Snapshot) {
	roughenConfig(t, &s.Config)
	for i := range s.Requests {
		roughenRequest(t, &s.Requests[i])
	}
	for i := range s.Placements {
		roughenPlacement(t, &s.Placements[i])
	}
}

// mustYield is rule 17 in other words.
func mustYield(s Snapshot, r Request, p Placement) bool {
	if r.Class == coordinator.ClassReserved && s.Reservations != nil && p.Class == coordinator.ClassBatch {
		return s.Now.After(p.Started) // that it sits in the reservation shows in the hold
	}
	ran := s.Now.Sub(p.Started) >= max(1, s.Config.MinPreemptionRuntime)
	if p.Class == coordinator.ClassReserved || p.Class < r.Class || p.PreemptionsLeft == 0 || !ran {
		return false
	}
	if r.Class == coordinator.ClassOnDemand && p.Class == coordinator.ClassBatch {
		return true
	}
	their := p.Priority
	if !p.Submitted.IsZero() {
		their += s.Config.AgeRate * s.Now.Sub(p.Submitted).Seconds()
	}
	mine := s.effective(r)
	return s.Config.PreemptionEnabled && slices.Contains(r.Preempts, p.Group) && p.Preemptible &&
		mine >= s.Config.PreemptionThreshold && mine > their && mine-their >= s.Config.PreemptionGap
}

// endsAnyhow is what a plan need not pay for (rule 22).
func endsAnyhow(s Snapshot, p Placement) bool {
	listed := slices.ContainsFunc(s.Holds, func(h Hold) bool { return slices.Contains(h.Victims, p.ID) })
	return p.Ending || listed || p.Walltime > 0 && !p.Started.Add(p.Walltime).After(s.Now.Add(s.Config.PreemptionNotice))
}

// heldPlacement is the placement that a hold will be.
func heldPlacement(s Snapshot, h Hold) (Placement, bool) {
	i := slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == h.For })
	if i < 0 {
		return Placement{}, false
	}
	st := Start{ID: h.For, Definition: h.Definition, Shares: h.Shares}
	for _, sh := range h.Shares {
		st.Nodes = append(st.Nodes, sh.Node)
	}
	if !slices.ContainsFunc(h.Shares, func(sh Share) bool { return len(sh.Devices)+len(sh.Cores) > 0 }) {
		st.Shares = nil
	}
	return PlacementOf(s.Requests[i], st, s.Now), true
}

// checkPreempts is what must be true of every plan to preempt; "" if it is.
func checkPreempts(s Snapshot, plan Plan) string {
	after := Apply(s, plan)
	requests := map[coordinator.AllocationID]Request{}
	for _, r := range s.Requests {
		requests[r.ID] = r
	}
	// With the plans up to one of them carried out, those of later ones are not known.
	lasting := func(spare coordinator.AllocationID, upTo int) []Placement {
		var list []Placement
		before := s
		before.Holds = nil
		for _, h := range after.Holds {
			i := slices.IndexFunc(plan.Preempts, func(p Preempt) bool { return p.For == h.For })
			if i > upTo {
				continue
			}
			before.Holds = append(before.Holds, h)
			if p, ok := heldPlacement(s, h); ok {
				list = append(list, p)
			}
		}
		for _, p := range Apply(s, Plan{Starts: plan.Starts, Stops: plan.Stops, Preempts: plan.Preempts[:upTo+1]}).Placements {
			if !endsAnyhow(before, p) || p.ID == spare {
				list = append(list, p)
			}
		}
		return list
	}
	sound := conflict(s, s.Placements) == ""
	planned := s.Config.Backfill != coordinator.BackfillNone ||
		slices.ContainsFunc(s.Requests, func(r Request) bool { return r.Class == coordinator.ClassReserved })
	told := map[coordinator.AllocationID]bool{}
	for k, p := range plan.Preempts {
		r, ok := requests[p.For]
		switch {
		case !ok || slices.ContainsFunc(plan.Starts, func(st Start) bool { return st.ID == p.For }):
			return fmt.Sprintf("%s preempts and does not wait", p.For)
		case slices.ContainsFunc(s.Holds, func(h Hold) bool { return h.For == p.For }) &&
			!slices.ContainsFunc(plan.Drops, func(d Drop) bool { return d.For == p.For }):
			return fmt.Sprintf("%s has two live plans", p.For)
		case len(p.Hold.Shares) != int(max(1, r.Nodes)) || len(p.Victims) == 0 || p.Hold.For != p.For:
			return fmt.Sprintf("%s has a part of a plan: %+v", p.For, p)
		}
		if broken := heldInReservation(after, r, p.Hold); broken != "" {
			return broken
		}
		for _, v := range p.Victims {
			i := slices.IndexFunc(s.Placements, func(o Placement) bool { return o.ID == v.ID })
			if i < 0 || told[v.ID] || s.Placements[i].Ending || !mustYield(s, r, s.Placements[i]) {
				return fmt.Sprintf("%s does not have to give way to %s", v.ID, p.For)
			}
			if !slices.Contains(p.Hold.Victims, v.ID) || !v.KillAt.Equal(s.Now.Add(s.Config.PreemptionNotice)) || v.Gap != p.Priority-v.Priority {
				return fmt.Sprintf("%s is told %+v", v.ID, v)
			}
			told[v.ID] = true
			// With anyone of them spared the plan would not work out on its nodes.
			// Plans that are respected are not in this sum.
			if sound && !planned && conflict(s, lasting(v.ID, k)) == "" && !tighter(s, r) {
				return fmt.Sprintf("%s gives way to %s in vain", v.ID, p.For)
			}
		}
	}
	if sound {
		if broken := conflict(s, lasting("", len(plan.Preempts)-1)); broken != "" {
			return "what is held does not fit once victims are gone: " + broken
		}
	}
	return ""
}

// tighter reports whether more than amounts and single GPUs decides where a request fits: the check for conflicts does
// not know of that.
func tighter(s Snapshot, r Request) bool {
	return r.Resources.Affinity != 0 || r.Resources.Sockets > 0 ||
		slices.ContainsFunc(s.Nodes, func(n Node) bool { return len(n.GPUs) > 0 || len(n.Domains) > 0 })
}

// TestPreemptionHistories: whatever happens, and with holds, an incremental scheduler equals a fresh one, nobody is told to end
// without a full plan, in vain or without having to, and what is held is kept.
// drawArena is a small cluster that is full, with work that may have to give way and work that wants it to.
func drawArena(t *rapid.T) Snapshot {
	s := Snapshot{
		Now: epoch, Definitions: []Definition{{ID: "a", CostPerHour: 1}, {ID: "b", CostPerHour: 2}},
		Config: Config{
			Backfill: coordinator.Backfill(one(t, "backfill", []int{0, 0, 1, 2})), PreemptionNotice: time.Minute,
			AgeRate: one(t, "age rate", []float64{0, 0, 1.0 / 64}), NoEstimates: between(t, "no estimates", 0, 1) == 0,
		},
		Tokens: map[string]uint32{"matlab": uint32(between(t, "matlab", 1, 4))},
	}
	roughenConfig(t, &s.Config)
	for i := range between(t, "nodes", 1, 3) {
		n := Node{
			ID: coordinator.NodeID(fmt.Sprintf("n%d", i)), Definition: one(t, "definition", []coordinator.DefinitionID{"a", "a", "b"}),
			Cores: 8, Threads: 8, Memory: 64, Devices: map[string]uint32{"gpu": uint32(one(t, "gpus", []int{2, 4, 8}))}, Schedulable: true,
		}
		if s.Config.NoEstimates { // one in two clusters knows its links: pairs
			for g := range n.Devices["gpu"] {
				n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(g), Kind: "gpu", Domain: -1})
				if g%2 == 1 {
					n.Links = append(n.Links, Link{A: int(g) - 1, B: int(g), Count: 4})
				}
			}
			n.LinksKnown = true
		}
		s.Nodes = append(s.Nodes, n)
	}
	for i := range between(t, "fillers", 4, 20) {
		r := drawFiller(t, i)
		s.Requests = append(s.Requests, r)
	}
	s.Now = epoch.Add(-10 * time.Minute)
	s = Apply(s, Decide(s))
	s.Requests, s.Now = nil, epoch
	return s
}

func drawFiller(t *rapid.T, i int) Request {
	r := Request{
		ID: coordinator.AllocationID(fmt.Sprintf("f%03d", i)), Workflow: drawWorkflow(t), Class: coordinator.Class(one(t, "class", []int{2, 3, 3})),
		Submitted: epoch.Add(-time.Duration(between(t, "submitted", 10, 13)) * time.Minute), Walltime: time.Duration(one(t, "walltime", []int{0, 0, 10, 11, 60})) * time.Minute,
		Nodes: uint32(one(t, "gang", []int{1, 1, 1, 2})), Admissible: []coordinator.DefinitionID{"a", "b"},
		Resources: coordinator.Resources{Cores: coordinator.Cores(between(t, "cores", 0, 2)), Devices: map[string]uint32{"gpu": uint32(one(t, "gpus", []int{0, 1, 1, 2}))}},
	}
	if between(t, "licensed", 0, 4) == 0 {
		r.Resources.Tokens = map[string]uint32{"matlab": 1}
	}
	roughenRequest(t, &r)
	r.Priority = float64(between(t, "low priority", 0, 2))
	return r
}

// drawPreemptor wants much.
func drawPreemptor(t *rapid.T, i int) Request {
	r := drawFiller(t, i)
	r.ID = coordinator.AllocationID(fmt.Sprintf("p%03d", i))
	r.Class, r.Priority = coordinator.Class(one(t, "class", []int{2, 2, 3})), float64(between(t, "high priority", 1, 5))
	r.Resources.Devices = map[string]uint32{"gpu": uint32(one(t, "gpus", []int{0, 1, 2, 2, 4, 8}))}
	r.Resources.Cores = coordinator.Cores(between(t, "cores", 0, 8))
	r.Resources.Exclusive = one(t, "exclusive", []coordinator.Exclusive{0, 0, 0, 0, 1, 2})
	r.Nodes = uint32(one(t, "gang", []int{1, 1, 2, 3}))
	r.Submitted = epoch
	return r
}

// event is one of what happens while plans are under way.
func (h *history) event() {
	t, f := h.t, &h.facts
	f.Placements, f.Requests, f.Nodes = slices.Clone(f.Placements), slices.Clone(f.Requests), slices.Clone(f.Nodes)
	switch what := between(t, "event", 0, 10); {
	case what == 10: // maintenance is announced
		f.Windows = nil
		for i := range between(t, "windows", 0, 2) {
			w := Window{ID: fmt.Sprint(i), From: f.Now.Add(time.Duration(between(t, "from", 0, 20)) * time.Minute)}
			w.Until = w.From.Add(time.Duration(between(t, "lasts", 1, 20)) * time.Minute)
			if between(t, "some", 0, 1) == 0 {
				w.Nodes = []coordinator.NodeID{f.Nodes[between(t, "node", 0, len(f.Nodes)-1)].ID}
			}
			f.Windows = append(f.Windows, w)
		}
		h.s.SetWindows(f.Windows)
	case what <= 2:
		r := drawPreemptor(t, h.next)
		h.next++
		r.Submitted = f.Now
		f.Requests = append(f.Requests, r)
		h.s.Submit(r)
	case what <= 5: // a victim ends, or the clock goes on
		i := slices.IndexFunc(f.Placements, func(p Placement) bool { return p.Ending })
		if i < 0 {
			f.Now = f.Now.Add(time.Duration(between(t, "seconds", 1, 90)) * time.Second)
			return
		}
		p := f.Placements[i]
		f.Placements = slices.Delete(f.Placements, i, i+1)
		h.s.End(p.ID)
		if r, ok := h.known[p.ID]; ok && between(t, "retry", 0, 1) == 0 {
			r.Returned, r.PreemptionsLeft = true, max(-1, r.PreemptionsLeft-oneIf(r.PreemptionsLeft > 0))
			f.Requests = append(f.Requests, r)
			h.s.Submit(r)
		}
	case what == 6 && len(f.Placements) > 0:
		i := between(t, "which", 0, len(f.Placements)-1)
		h.s.End(f.Placements[i].ID)
		f.Placements = slices.Delete(f.Placements, i, i+1)
	case what == 7 && len(f.Requests) > 0:
		i := between(t, "which", 0, len(f.Requests)-1)
		h.s.Withdraw(f.Requests[i].ID)
		f.Requests = slices.Delete(f.Requests, i, i+1)
	case what == 8:
		i := between(t, "node", 0, len(f.Nodes)-1)
		f.Nodes[i].Schedulable = !f.Nodes[i].Schedulable
		f.Nodes[i].Draining = !f.Nodes[i].Schedulable && between(t, "drain", 0, 1) == 0
		h.s.SetNode(f.Nodes[i])
	case what == 9 && len(f.Requests) > 0: // somebody wants something else now
		i := between(t, "which", 0, len(f.Requests)-1)
		f.Requests[i].Resources.Cores = coordinator.Cores(between(t, "cores", 0, 8))
		h.s.Submit(f.Requests[i])
	}
}

func TestPreemptionUnderWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{t: t, s: New(), facts: drawArena(t), next: 100, known: map[coordinator.AllocationID]Request{}}
		h.feed()
		for range between(t, "rounds", 1, 16) {
			for range between(t, "events", 0, 3) {
				h.event()
			}
			for _, r := range h.facts.Requests {
				h.known[r.ID] = r
			}
			h.decide()
		}
	})
}

func TestPreemptionHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{t: t, s: New(), facts: drawSnapshot(t), next: 100, rough: true}
		roughen(t, &h.facts)
		h.feed()
		for range between(t, "rounds", 1, 10) {
			for range between(t, "changes", 0, 4) {
				h.change()
			}
			h.decide()
		}
	})
}

func TestPreemptionDoesNotDependOnOrder(t *testing.T) {
	preempted := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawArena(t)
		for i := range between(t, "preemptors", 1, 4) {
			s.Requests = append(s.Requests, drawPreemptor(t, i))
		}
		for range 3 {
			plan := Decide(s)
			if broken := checkPlan(s, plan); broken != "" {
				t.Fatal(broken)
			}
			preempted += len(plan.Preempts)
			back := s
			back.Definitions, back.Nodes, back.Requests = reversed(s.Definitions), reversed(s.Nodes), reversed(s.Requests)
			back.Placements, back.Holds = reversed(s.Placements), reversed(s.Holds)
			if again := Decide(back); fmt.Sprint(again) != fmt.Sprint(plan) {
				t.Fatalf("got %+v\nreversed %+v", plan, again)
			}
			s = Apply(s, plan)
			s.Now = s.Now.Add(time.Second)
		}
	})
	if preempted == 0 {
		t.Error("nobody was preempted")
	}
}

func reversed[T any](list []T) []T {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// TestGreedyCoverIsNotTheSmallest is the example of the package comment: past twelve candidates, a gang whose victims are on several nodes may end more of them than
// would have to. Nobody of them is killed in vain.
func TestGreedyCoverIsNotTheSmallest(t *testing.T) {
	s := Snapshot{Now: epoch, Definitions: []Definition{{ID: "d"}}, Config: Config{PreemptionNotice: time.Minute}}
	run := func(id string, ago time.Duration, nodes ...int) {
		p := Placement{ID: coordinator.AllocationID(id), Workflow: coordinator.WorkflowID(id), Class: coordinator.ClassBatch, Started: epoch.Add(-ago),
			Resources: coordinator.Resources{Devices: map[string]uint32{"gpu": 1}}, PreemptionsLeft: -1}
		for _, n := range nodes {
			p.Nodes = append(p.Nodes, coordinator.NodeID(fmt.Sprintf("n%02d", n)))
		}
		s.Placements = append(s.Placements, p)
	}
	for i := 1; i <= 13; i++ {
		s.Nodes = append(s.Nodes, Node{ID: coordinator.NodeID(fmt.Sprintf("n%02d", i)), Definition: "d", Cores: 8, Devices: map[string]uint32{"gpu": 2}, Schedulable: true})
	}
	run("a", time.Hour, 1, 2, 3, 4)
	run("b", time.Hour, 5, 6, 7, 8)
	run("c", time.Minute, 1, 2, 3, 5, 6, 7)
	run("d", time.Minute, 4)
	run("e", time.Minute, 8)
	for i := 9; i <= 13; i++ {
		run(fmt.Sprint("x", i), time.Hour, i)
		run(fmt.Sprint("y", i), time.Hour, i)
	}
	s.Requests = []Request{{ID: "gang", Workflow: "gang", Class: coordinator.ClassOnDemand, Submitted: epoch, Nodes: 8, Admissible: []coordinator.DefinitionID{"d"},
		Resources: coordinator.Resources{Devices: map[string]uint32{"gpu": 1}}}}
	plan := Decide(s)
	var got []coordinator.AllocationID
	for _, v := range plan.Preempts[0].Victims {
		got = append(got, v.ID)
	}
	if !slices.Equal(got, []coordinator.AllocationID{"c", "d", "e"}) {
		t.Errorf("%v give way", got)
	}
	if broken := checkPreempts(s, plan); broken != "" {
		t.Error(broken)
	}
}
