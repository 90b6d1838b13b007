package sched

import (
	"testing"
	"time"

	"substrate/coordinator"
)

// TestHoldOutlivesAShortAbsence: a node that is not heard of for a moment keeps what is held there; nothing starts
// there meanwhile, and a node that is lost loses it (rule 20).
func TestHoldOutlivesAShortAbsence(t *testing.T) {
	now := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	node := Node{ID: "n0", Definition: "d", Cores: 4, Threads: 4, Memory: 1 << 30, Why: "not-ready", Away: true}
	four := coordinator.Resources{Cores: 4}
	s := New()
	s.Configure(Config{PreemptionNotice: time.Minute}, []Definition{{ID: "d"}}, nil)
	s.SetNode(node)
	s.Place(Placement{ID: "w1/j", Workflow: "w1", Class: coordinator.ClassBatch, Started: now.Add(-time.Hour), Nodes: []coordinator.NodeID{"n0"},
		Resources: four, Ending: true, KillAt: now.Add(30 * time.Second), PreemptionsLeft: -1})
	s.Submit(Request{ID: "w2/j", Workflow: "w2", Class: coordinator.ClassOnDemand, Submitted: now, Nodes: 1, Resources: four,
		Admissible: []coordinator.DefinitionID{"d"}, PreemptionsLeft: -1})
	s.SetHold(Hold{For: "w2/j", Definition: "d", Shares: []Share{{Node: "n0"}}, Victims: []coordinator.AllocationID{"w1/j"}, Since: now})
	quiet := func(what string) {
		t.Helper()
		if plan := s.Decide(now); len(plan.Drops)+len(plan.Starts)+len(plan.Preempts) != 0 {
			t.Fatalf("%s: %+v", what, plan)
		}
	}
	quiet("the node is away")
	s.End("w1/j")
	quiet("the room is free and the node away")
	node.Away, node.Schedulable, node.Why = false, true, ""
	s.SetNode(node)
	if plan := s.Decide(now); len(plan.Starts) != 1 || plan.Starts[0].ID != "w2/j" || plan.Starts[0].Rule != 20 {
		t.Fatalf("the node is back: %+v", plan)
	}

	s.End("w2/j")
	s.Submit(Request{ID: "w3/j", Workflow: "w3", Class: coordinator.ClassOnDemand, Submitted: now, Nodes: 1, Resources: four,
		Admissible: []coordinator.DefinitionID{"d"}, PreemptionsLeft: -1})
	s.SetHold(Hold{For: "w3/j", Definition: "d", Shares: []Share{{Node: "n0"}}, Since: now})
	node.Schedulable, node.Why = false, "offline"
	s.SetNode(node)
	if plan := s.Decide(now); len(plan.Drops) != 1 || plan.Drops[0].Why != DropNode {
		t.Fatalf("the node is lost: %+v", plan)
	}
}
