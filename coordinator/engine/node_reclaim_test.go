package engine

import (
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// TestNodeIsTakenBack: nothing new comes to a node that its provider takes back, work that would run again elsewhere gets its notice and goes there, other work runs
// on; the next life knows it too, and a word that is withdrawn is forgotten.
func TestNodeIsTakenBack(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	sessions := make(chan *Session, 10)
	first := newHost("n1", 4, nil)
	first.up = func(s *Session) { sessions <- s }
	leave := c.join(first)
	s := <-sessions
	w := c.start(`version: v1
name: w
jobs:
  steady: {command: [x], resource: {cpu: {cores: 1}}}
  again: {command: [x], resource: {cpu: {cores: 1}}, policy: {restart: on-node-fault}}
  batch: {command: [x], resource: {cpu: {cores: 1}}, class: batch, retry-on-preempt: true}
`)
	c.await(w.ID, "all running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 3 })
	at := c.now().Add(time.Minute)
	for range 2 { // each stream says it again
		if err := s.Reclaim(t.Context(), at, "spot instance: terminate"); err != nil {
			t.Fatal(err)
		}
	}
	v := c.await(w.ID, "what can goes away", func(v WorkflowView) bool {
		return v.Counts[coordinator.StatusRunning] == 1 && v.Counts[coordinator.StatusQueued] == 2
	})
	for _, j := range v.Jobs {
		if want := map[string]coordinator.Status{"steady": coordinator.StatusRunning, "again": coordinator.StatusQueued, "batch": coordinator.StatusQueued}[j.Name]; j.Status != want || j.Failures != 0 {
			t.Errorf("%s is %s, %d failures", j.Name, j.Status, j.Failures)
		}
	}
	if n := c.kinds()["node-taken-back"]; n != 1 || !c.told("node-taken-back", "spot instance: terminate") {
		t.Errorf("told %d times\n%s", n, describe(c.events("")))
	}
	leave()
	c.close()
	c = newCluster(t, st)
	c.join(first)
	s = <-sessions
	if n, err := c.engine.Node(t.Context(), c.admin, "n1"); err != nil || n.Status != NodeDraining || !strings.Contains(n.Reason, "takes it back at") {
		t.Errorf("in the next life it is %s: %s, %v", n.Status, n.Reason, err)
	}
	c.join(newHost("n2", 4, nil))
	v = c.await(w.ID, "it runs elsewhere", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 3 })
	for _, j := range v.Jobs {
		if want := map[string]coordinator.NodeID{"steady": "n1", "again": "n2", "batch": "n2"}[j.Name]; j.Nodes[0] != want {
			t.Errorf("%s runs on %v, want %s", j.Name, j.Nodes, want)
		}
	}
	if err := s.Reclaim(t.Context(), time.Time{}, ""); err != nil {
		t.Fatal(err)
	}
	if n, err := c.engine.Node(t.Context(), c.admin, "n1"); err != nil || n.Status != NodeReady || !c.told("node-kept", "") {
		t.Errorf("after it was withdrawn it is %s: %s, %v", n.Status, n.Reason, err)
	}
}

// TestNoticeEndsBeforeTheMachine: notices are shortened to what is left.
func TestNoticeEndsBeforeTheMachine(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	sessions := make(chan *Session, 1)
	h := newHost("n1", 4, nil)
	h.deaf, h.up = true, func(s *Session) { sessions <- s }
	c.join(h)
	w := c.start("version: v1\nname: w\njobs:\n  again: {command: [x], policy: {restart: on-node-fault}}\n")
	c.await(w.ID, "running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 1 })
	at := c.now().Add(20 * time.Second)
	if err := (<-sessions).Reclaim(t.Context(), at, "preempted"); err != nil {
		t.Fatal(err)
	}
	_ = c.engine.view(t.Context(), func(s *state) {
		for _, a := range s.active {
			if got := a.record.NoticeEnds; !got.Equal(at.Add(-takenMargin).UTC()) || a.record.Status != coordinator.StatusPreempting {
				t.Errorf("it is %s until %s, the machine until %s", a.record.Status, got, at)
			}
		}
	})
}

// TestTakenNodeIsReleased: a launched node that its provider takes back is given up once nothing runs there, whether the provider takes it or not.
func TestTakenNodeIsReleased(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large")
	l.hardware["c5.large"] = always(small())
	l.up = func(s *Session) { _ = s.Reclaim(t.Context(), time.Now().Add(time.Hour), "spot instance: terminate") }
	c := l.start(store.NewMemory(), "definitions:\n"+strings.Replace(ofType("a", "c5.large"), "idleTimeout: 1s, ", "", 1))
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.eventually("it is released", func() bool { return c.told("node-releasing", "its provider takes it back") })
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil && coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
		t.Fatal(err)
	}
	c.eventually("nothing is left", func() bool { return l.cloud.Live() == 0 && len(c.nodes()) == 0 })
}
