package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

const lossConfig = plainConfig + "scheduler: {nodeLossWindow: 1s, killTimeout: 1s}\n"

// TestWhatWasGivenUpHoldsItsNode: a node that comes back with a run that was given up gets nothing new until that has
// ended: its cores and devices are not free.
func TestWhatWasGivenUpHoldsItsNode(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(lossConfig)
	h := newHost("n1", 4, nil)
	leave := c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	first := c.start("version: v1\nname: w\njobs: {j: {command: [x], resource: {cpu: {cores: 4}}}}\n")
	c.awaitStatus(first.ID, coordinator.StatusRunning)
	leave()
	c.awaitStatus(first.ID, coordinator.StatusLost)

	h.deaf = true // it takes its time to end
	leave = c.join(h)
	awaitNode(t, c, "n1", NodeNotReady)
	second := c.start("version: v1\nname: w\njobs: {j: {command: [x], resource: {cpu: {cores: 4}}}}\n")
	c.await(second.ID, "waiting with a reason", func(v WorkflowView) bool { return v.Jobs[0].Reason != nil && v.Jobs[0].Reason.Rule != 0 })
	v, err := c.engine.Node(t.Context(), c.admin, "n1")
	if err != nil || !strings.Contains(v.Reason, string(first.ID)) {
		t.Errorf("why is %q, %v", v.Reason, err)
	}
	leave()
	h.mu.Lock()
	h.deaf = false
	h.mu.Unlock()
	c.join(h)
	c.awaitStatus(second.ID, coordinator.StatusRunning)
}

// TestALossIsFinishedByTheNextLife: a coordinator that dies between the loss of a node and what becomes of its work
// leaves nothing to wait for ever.
func TestALossIsFinishedByTheNextLife(t *testing.T) {
	memory := store.NewMemory()
	c := newCluster(t, memory)
	c.set(lossConfig)
	leave := c.join(newHost("n1", 4, nil))
	awaitNode(t, c, "n1", NodeReady)
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x]}}\n")
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	memory.Record()
	leave()
	c.awaitStatus(w.ID, coordinator.StatusLost)
	c.close()
	for _, st := range memory.Clones() {
		c := newCluster(t, st)
		c.awaitStatus(w.ID, coordinator.StatusLost)
		c.close()
	}
}

// TestAHoldStandsBetweenItsHolderAndItsVictims: after any group of a turn that both files work and makes room for it,
// a notice has its hold, and a hold has somebody who waits for it.
func TestAHoldStandsBetweenItsHolderAndItsVictims(t *testing.T) {
	memory := store.NewMemory()
	c := newCluster(t, memory)
	c.set(preemptConfig)
	c.join(newHost("n1", 4, nil))
	awaitNode(t, c, "n1", NodeReady)
	victim := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
	memory.Record()
	holder := c.start(comes)
	c.awaitStatus(holder.ID, coordinator.StatusRunning)
	holds := 0
	for i, st := range memory.Clones() {
		held := len(keysWith(c, st, prefixHold)) > 0
		filed := len(keysWith(c, st, prefixWorkflow+string(holder.ID))) > 0
		rec := storedAlloc(t, st, victim.ID, "b")
		if held {
			holds++
		}
		if held && !filed || rec.Stop == stopPreempt && rec.Status == coordinator.StatusPreempting && !held {
			t.Errorf("state %d: holder filed %v, hold %v, victim %s", i, filed, held, rec.Status)
		}
	}
	if holds == 0 {
		t.Error("nothing was ever held")
	}
}

// TestOneWorkflowWaitsAndYields: a node is lost, and its work comes back to the queue and takes the room of batch work of its own
// workflow, in one turn. A crash between any two groups of it leaves no hold without somebody who waits and no notice without a
// hold, and the next life ends what was begun.
func TestOneWorkflowWaitsAndYields(t *testing.T) {
	memory := store.NewMemory()
	c := newCluster(t, memory)
	c.set(plainConfig + "scheduler: {nodeLossWindow: 1s, preemptionNotice: 1s}\n")
	c.join(newHost("n1", 4, nil))
	leave := c.join(newHost("n2", 8, nil))
	awaitNode(t, c, "n1", NodeReady)
	awaitNode(t, c, "n2", NodeReady)
	w := c.start(`version: v1
name: w
jobs:
  yields: {command: [x], class: batch, retry-on-preempt: true, resource: {cpu: {cores: 4}}}
  waits: {command: [x], policy: {restart: on-node-fault}, depends-on: [{name: yields, status: RUNNING}], resource: {cpu: {cores: 4}}}
`)
	is := func(waits, yields coordinator.Status) func(WorkflowView) bool {
		return func(v WorkflowView) bool {
			status := map[string]coordinator.Status{}
			for _, j := range v.Jobs {
				status[j.Name] = j.Status
			}
			return status["waits"] == waits && status["yields"] == yields
		}
	}
	v := c.await(w.ID, "running", is(coordinator.StatusRunning, coordinator.StatusRunning))
	if !slices.Equal(v.Jobs[0].Nodes, []coordinator.NodeID{"n1"}) {
		t.Fatalf("batch work is on %v", v.Jobs[0].Nodes)
	}
	memory.Record()
	leave()
	over := is(coordinator.StatusRunning, coordinator.StatusQueued)
	c.await(w.ID, "moved", over)
	c.close()
	held := 0
	for i, st := range memory.Clones() {
		waits, yields := storedAlloc(t, st, w.ID, "waits"), storedAlloc(t, st, w.ID, "yields")
		_, err := st.Get(t.Context(), holdKey(coordinator.AllocationID(w.ID+"/waits")))
		if err == nil {
			held++
		}
		if err == nil && waits.Attempt == 1 && waits.Status != coordinator.StatusQueued || err != nil && yields.Status == coordinator.StatusPreempting {
			t.Errorf("state %d: %s waits, %s yields, hold: %v", i, waits.Status, yields.Status, err)
		}
		if !yields.Status.Holds() {
			continue
		}
		next := newCluster(t, st)
		h := newHost("n1", 4, nil)
		run := coordinator.AllocationID(w.ID + "/yields").Run(1)
		h.runs[run] = &RunStatus{Run: run, State: RunRunning, Started: yields.Started}
		next.join(h)
		next.await(w.ID, "moved by the next life", over)
		if left := keysWith(next, st, prefixHold); len(left) != 0 {
			t.Errorf("state %d: holds left: %v", i, left)
		}
		next.close()
	}
	if held < 2 {
		t.Errorf("%d states have a hold", held)
	}
}

func storedAlloc(t *testing.T, st store.Store, id coordinator.WorkflowID, name string) allocRecord {
	t.Helper()
	var rec allocRecord
	entry, err := st.Get(t.Context(), prefixAlloc+string(id)+"/"+name)
	if err == nil {
		err = decode(entry, &rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// TestRunningWorkKeepsThePriorityItStartedWith: with that of its submission, work that started by a raised priority could be
// taken at once by whom it took, for ever.
func TestRunningWorkKeepsThePriorityItStartedWith(t *testing.T) {
	memory := store.NewMemory()
	c := newCluster(t, memory)
	c.set(plainConfig)
	if _, err := c.engine.CreateGroup(t.Context(), c.admin, "research", firstOrg, 1); err != nil {
		t.Fatal(err)
	}
	_, who := c.user(NewUser{Name: "rita", Organization: firstOrg, Groups: []string{"research"}})
	res, err := c.engine.StartWorkflow(t.Context(), who, StartWorkflow{YAML: []byte("version: v1\nname: w\njobs: {j: {command: [x]}}\n"), File: "w"})
	if err != nil {
		t.Fatal(err)
	}
	counts := func(c *cluster) (group int32) {
		t.Helper()
		if err := c.engine.view(t.Context(), func(s *state) {
			group = s.prioritiesOf(s.workflows[res.Workflow.ID].jobs[0].allocations[0]).Group
		}); err != nil {
			t.Fatal(err)
		}
		return group
	}
	raise := func(to int32) {
		t.Helper()
		if _, err := c.engine.UpdateGroup(t.Context(), c.admin, UpdateGroup{Group: "research", Organization: firstOrg, Priority: &to}); err != nil {
			t.Fatal(err)
		}
	}
	raise(50)
	if got := counts(c); got != 50 {
		t.Errorf("waiting work counts with %d", got)
	}
	c.join(newHost("n1", 4, nil))
	c.awaitStatus(res.Workflow.ID, coordinator.StatusRunning)
	raise(5)
	if got := counts(c); got != 50 {
		t.Errorf("running work counts with %d", got)
	}
	next := newCluster(t, memory.Clone())
	if got := counts(next); got != 50 {
		t.Errorf("running work counts with %d after a fail-over", got)
	}
}

// TestALateNoticeIsWhole: a node that was away when notice was given gives all of it once it hears.
func TestALateNoticeIsWhole(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "scheduler: {preemptionNotice: 10m, nodeLossWindow: 1h}\n")
	h := newHost("n1", 4, nil)
	leave := c.join(h)
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x], class: batch}}\n")
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	leave()
	if _, err := c.engine.SetScheduling(t.Context(), c.admin, "n1", "drain", "", false); err != nil {
		t.Fatal(err)
	}
	c.awaitStatus(w.ID, coordinator.StatusPreempting)
	c.ahead.Add(int64(9 * time.Minute))
	s, err := c.engine.Connect(t.Context(), "n1", h.hello())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		messages, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if m.Stop == nil {
				continue
			}
			if m.Stop.Grace < 10*time.Minute {
				t.Errorf("of the notice of 10m %s are left", m.Stop.Grace)
			}
			return
		}
	}
}
