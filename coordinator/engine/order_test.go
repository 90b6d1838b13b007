package engine

import (
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestTasksAndJobsStartInTheirOrder: tasks by number, jobs as they stand in the file, not by their names.
func TestTasksAndJobsStartInTheirOrder(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 1, succeed))
	w := c.start(`version: v1
name: w
jobs:
  zebra: {command: [x]}
  many: {command: [x], task-array: {start: 1, end: 11}}
  ant: {command: [x]}
`)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	var started []string
	for _, ev := range c.events(w.ID) {
		if ev.Kind == "started" {
			started = append(started, ev.Job)
		}
	}
	want := []string{"zebra", "many/1", "many/2", "many/3", "many/4", "many/5", "many/6", "many/7", "many/8", "many/9", "many/10", "many/11", "ant"}
	if !slices.Equal(started, want) {
		t.Errorf("started in order %v", started)
	}
}

// TestNamesMeanOwnWorkFirst: a name is the caller's own newest workflow; of others only when one user has it.
func TestNamesMeanOwnWorkFirst(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	caller := func(name string) Caller {
		u, err := c.engine.CreateUser(t.Context(), c.admin, NewUser{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.token(c.admin, string(u.ID))
		if err != nil {
			t.Fatal(err)
		}
		as, err := c.engine.Authenticate(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return as
	}
	bob, eve := caller("bob"), caller("eve")
	start := func(as Caller) coordinator.WorkflowID {
		res, err := c.engine.StartWorkflow(t.Context(), as, StartWorkflow{YAML: []byte(chain), File: "w"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Workflow.ID
	}
	bobs := start(bob)
	if v, err := c.engine.Workflow(t.Context(), c.admin, "chain"); err != nil || v.ID != bobs {
		t.Errorf("only bob has one: %v %v", v.ID, err)
	}
	start(eve)
	if v, err := c.engine.Workflow(t.Context(), bob, "chain"); err != nil || v.ID != bobs {
		t.Errorf("bob's own: %v %v", v.ID, err)
	}
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, "chain", ""); coordinator.ErrorKindOf(err) != coordinator.ErrInvalid {
		t.Errorf("the name means work of two: %v", err)
	}
	own := start(c.admin)
	if v, err := c.engine.Workflow(t.Context(), c.admin, "chain"); err != nil || v.ID != own {
		t.Errorf("the administrator's own: %v %v", v.ID, err)
	}
}

// TestEndsAreAsTheNodeTellsThem: an end that is reported late is not longer for it.
func TestEndsAreAsTheNodeTellsThem(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	h := newHost("n1", 1, nil)
	leave := c.join(h)
	w := c.start("version: v1\nname: w\njobs: {j: {command: [x]}}\n")
	v := c.awaitStatus(w.ID, coordinator.StatusRunning)
	leave()
	ended := v.Jobs[0].Started.Add(10 * time.Millisecond)
	h.mu.Lock()
	for _, st := range h.runs {
		*st = RunStatus{Run: st.Run, State: RunEnded, Cause: CauseExited, Started: st.Started, Ended: ended}
	}
	h.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	c.join(h)
	v = c.awaitStatus(w.ID, coordinator.StatusFinished)
	if got := v.Jobs[0].Ended; !got.Equal(ended) {
		t.Errorf("ended %s, the node says %s", got, ended)
	}
}
