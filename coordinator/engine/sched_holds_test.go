package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

const preemptConfig = plainConfig + "scheduler: {preemptionNotice: 1s}\n"

const fills = `version: v1
name: fills
jobs: {b: {command: [x], class: batch, retry-on-preempt: true, resource: {cpu: {cores: 4}}}}
`

const comes = `version: v1
name: comes
jobs: {d: {command: [x], resource: {cpu: {cores: 3}}}}
`

func kinds(events []Event) string {
	var out []string
	for _, ev := range events {
		out = append(out, ev.Kind)
	}
	return strings.Join(out, " ")
}

// TestBatchYields: batch work gets notice, its room goes to who it was freed for, and it comes back in front of its
// class; both workflows tell the same story.
func TestBatchYields(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(preemptConfig)
	h := newHost("n1", 4, nil)
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	batch := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
	demand := c.awaitStatus(c.start(comes).ID, coordinator.StatusRunning)
	again := c.awaitStatus(batch.ID, coordinator.StatusQueued)
	if j := again.Jobs[0]; j.Preempted != 1 || j.Failures != 0 || j.Attempt != 1 {
		t.Errorf("preempted work: %+v", j)
	}
	told := c.events(batch.ID)
	if got := kinds(told); !strings.Contains(got, "started preempt-initiated preempted requeued") {
		t.Errorf("events of the victim: %s", got)
	}
	for _, ev := range append(told, c.events(demand.ID)...) {
		if ev.Kind != "preempt-initiated" {
			continue
		}
		for _, key := range []string{"cluster", "right", "preemptor", "preemptor_priority", "preemptor_inputs", "victim", "victim_priority", "victim_inputs", "gap", "notice_ends"} {
			if ev.Metadata[key] == "" {
				t.Errorf("%s: no %s in %v", ev.Message, key, ev.Metadata)
			}
		}
	}
	if got := kinds(c.events(demand.ID)); !strings.Contains(got, "reservation-held preempt-initiated started") {
		t.Errorf("events of the preemptor: %s", got)
	}
	if left := keysWith(c, st, prefixHold); len(left) != 0 {
		t.Errorf("holds left: %v", left)
	}
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(demand.ID), ""); err != nil {
		t.Fatal(err)
	}
	if j := c.awaitStatus(batch.ID, coordinator.StatusRunning).Jobs[0]; j.Attempt != 2 {
		t.Errorf("the second attempt is %d", j.Attempt)
	}
}

func keysWith(c *cluster, st store.Store, prefix string) []string {
	c.t.Helper()
	var keys []string
	if err := walk(c.t.Context(), st, prefix, loadPage, func(entry store.Entry) error {
		keys = append(keys, entry.Key)
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return keys
}

// TestCancelledPreemptorLeavesNoHold: what was held for work that is cancelled goes to the next.
func TestCancelledPreemptorLeavesNoHold(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(strings.Replace(preemptConfig, "1s", "1h", 1))
	h := newHost("n1", 4, nil)
	h.deaf = true // the victim takes its time
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	batch := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
	demand := c.start(comes)
	c.awaitStatus(batch.ID, coordinator.StatusPreempting)
	if left := keysWith(c, st, prefixHold); len(left) != 1 {
		t.Errorf("holds: %v", left)
	}
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(demand.ID), ""); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(keysWith(c, st, prefixHold)) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the hold stays")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestPreemptionOverCrashes: a coordinator that dies at any write of a preemption neither kills twice, nor kills in
// vain, nor forgets whom the room is for.
func TestPreemptionOverCrashes(t *testing.T) {
	for cut := 1; cut <= 8; cut++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d applied %v", cut, applied), func(t *testing.T) {
				st := store.NewMemory()
				c := newCluster(t, st)
				c.set(preemptConfig)
				h := newHost("n1", 4, nil)
				c.join(h)
				awaitNode(t, c, "n1", NodeReady)
				batch := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
				fault := store.Fault{Apply: 0}
				if applied {
					fault.Apply = 1
				}
				st.FailCommit(cut, fault)
				demand := c.startAnyhow(comes)
				c.awaitStatus(demand, coordinator.StatusRunning)
				if j := c.awaitStatus(batch.ID, coordinator.StatusQueued).Jobs[0]; j.Preempted != 1 || j.Attempt != 1 {
					t.Errorf("the victim: %+v", j)
				}
				if left := keysWith(c, st, prefixHold); len(left) != 0 {
					t.Errorf("holds left: %v", left)
				}
			})
		}
	}
}

// TestANoticeThatWasNotGivenIsGivenWhole: a coordinator dies between a plan and the notices of it. The next life gives them as long
// as they are promised to be, however late it comes.
func TestANoticeThatWasNotGivenIsGivenWhole(t *testing.T) {
	memory := store.NewMemory()
	c := newCluster(t, memory)
	c.set(strings.Replace(preemptConfig, "1s", "1h", 1))
	h := newHost("n1", 4, nil)
	h.deaf = true
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	batch := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
	memory.Record()
	c.start(comes)
	c.awaitStatus(batch.ID, coordinator.StatusPreempting)
	c.close()
	cut := 0
	for _, st := range memory.Clones() {
		if len(keysWith(c, st, prefixHold)) == 0 || storedAlloc(t, st, batch.ID, "b").Stop != "" {
			continue
		}
		cut++
		began := time.Now()
		next := newCluster(t, st)
		next.join(h)
		next.awaitStatus(batch.ID, coordinator.StatusPreempting)
		if ends := storedAlloc(t, st, batch.ID, "b").NoticeEnds; ends.Sub(began) < time.Hour {
			t.Errorf("of an hour it is given %s", ends.Sub(began))
		}
		next.close()
	}
	if cut == 0 {
		t.Error("no state is between the plan and its notices")
	}
}

// TestGroupsPreempt: all that seed and rule 17 ask for must hold, one missing and nobody gives way.
func TestGroupsPreempt(t *testing.T) {
	const victim = "version: v1\nname: low\npreemptible: %v\njobs: {j: {command: [x], resource: {cpu: {cores: 4}}}}\n"
	tests := map[string]struct {
		scheduler   string
		preemptible bool
		list        bool  // the victim's group is on the list
		priority    int32 // of the preempting group
		want        bool
	}{
		"everything holds":  {"preemptionEnabled: true", true, true, 50, true},
		"not enabled":       {"preemptionEnabled: false", true, true, 50, false},
		"not preemptible":   {"preemptionEnabled: true", false, true, 50, false},
		"not on the list":   {"preemptionEnabled: true", true, false, 50, false},
		"gap too small":     {"preemptionEnabled: true, preemptionGap: 51", true, true, 50, false},
		"under a threshold": {"preemptionEnabled: true, preemptionThreshold: 60", true, true, 50, false},
		"too young":         {"preemptionEnabled: true, minPreemptionRuntime: 1h", true, true, 50, false},
		"equal rank":        {"preemptionEnabled: true, preemptionGap: 0", true, true, 0, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, store.NewMemory())
			// No age in it, so that the gap is exact.
			c.set(plainConfig + "scheduler: {preemptionNotice: 1s, priority: group_priority + user_priority, " + tt.scheduler + "}\n")
			c.join(newHost("n1", 4, nil))
			awaitNode(t, c, "n1", NodeReady)
			for _, slug := range []string{"research", "spare"} {
				if _, err := c.engine.CreateGroup(t.Context(), c.admin, slug, firstOrg, 0); err != nil {
					t.Fatal(err)
				}
			}
			up := UpdateGroup{Group: "research", Organization: firstOrg, Priority: &tt.priority}
			if tt.list {
				up.Preempt = []string{"spare"}
			}
			if _, err := c.engine.UpdateGroup(t.Context(), c.admin, up); err != nil {
				t.Fatal(err)
			}
			_, low := c.user(NewUser{Name: "low", Organization: firstOrg, Groups: []string{"spare"}})
			_, high := c.user(NewUser{Name: "high", Organization: firstOrg, Groups: []string{"research"}})
			start := func(who Caller, yaml string) coordinator.WorkflowID {
				res, err := c.engine.StartWorkflow(t.Context(), who, StartWorkflow{YAML: []byte(yaml), File: "w.yaml"})
				if err != nil {
					t.Fatal(err)
				}
				return res.Workflow.ID
			}
			first := start(low, fmt.Sprintf(victim, tt.preemptible))
			c.awaitStatus(first, coordinator.StatusRunning)
			second := start(high, comes)
			if tt.want {
				c.awaitStatus(second, coordinator.StatusRunning)
				c.awaitStatus(first, coordinator.StatusPreempted)
				return
			}
			c.await(second, "a reason", func(v WorkflowView) bool { r := v.Jobs[0].Reason; return r != nil && r.Rule != 0 })
			time.Sleep(100 * time.Millisecond) // turns in which it must not happen
			if v, err := c.engine.Workflow(t.Context(), c.admin, string(first)); err != nil || v.Status != coordinator.StatusRunning {
				t.Errorf("the victim is %v, %v", v.Status, err)
			}
		})
	}
}

// TestHeldRoomIsNotFree: what a preemption holds is not offered by the capacity that is told.
func TestHeldRoomIsNotFree(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(strings.Replace(preemptConfig, "1s", "1h", 1))
	h := newHost("n1", 4, nil)
	h.deaf = true
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	batch := c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
	c.start(strings.Replace(comes, "cores: 3", "cores: 4", 1))
	c.awaitStatus(batch.ID, coordinator.StatusPreempting)
	v, err := c.engine.Capacity(t.Context(), c.admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, class := range v.Classes {
		if w := class.WaitMinutes; class.Class != coordinator.ClassReserved && (w == nil || *w < 60) {
			t.Errorf("%s work would wait %v minutes; the node is held until the notice has ended", class.Class, w)
		}
	}
}

// TestPreemptedBeforeItTold: a victim whose notice overtook its report of having started has run, for those who wait
// for that.
func TestPreemptedBeforeItTold(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(strings.Replace(preemptConfig, "1s", "1h", 1))
	h := newHost("n1", 4, nil)
	h.late = make(chan struct{})
	c.join(h)
	awaitNode(t, c, "n1", NodeReady)
	batch := c.start(`version: v1
name: fills
jobs:
  b: {command: [x], class: batch, resource: {cpu: {cores: 4}}}
  after: {command: [x], resource: {cpu: {cores: 1}}, depends-on: [{name: b, status: RUNNING}]}
`)
	c.await(batch.ID, "a start", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusStarting })
	c.start(comes)
	c.await(batch.ID, "a notice", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusPreempting })
	close(h.late)
	v := c.await(batch.ID, "the end", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusPreempted })
	if v.Jobs[0].Started.IsZero() {
		t.Fatalf("it did not start: %+v", v.Jobs[0])
	}
	c.await(batch.ID, "the job that waits for its start", func(v WorkflowView) bool { return v.Jobs[1].Status != coordinator.StatusPending })
}

// TestHoldOutlivesItsHolder: a crash between any two groups of the turn that places the holder leaves no waiting
// holder without what was held for it.
func TestHoldOutlivesItsHolder(t *testing.T) {
	for apply := range 6 {
		st := store.NewMemory()
		log := &holdWatch{Memory: st, t: t, apply: apply}
		c := newCluster(t, log)
		c.set(preemptConfig)
		c.join(newHost("n1", 4, nil))
		awaitNode(t, c, "n1", NodeReady)
		c.awaitStatus(c.start(fills).ID, coordinator.StatusRunning)
		c.awaitStatus(c.startAnyhow(comes), coordinator.StatusRunning)
		if !log.cut {
			t.Error("no turn deleted a hold")
		}
		if left := keysWith(c, st, prefixHold); len(left) != 0 {
			t.Errorf("holds left: %v", left)
		}
	}
}

// holdWatch cuts the turn short that deletes a hold.
type holdWatch struct {
	*store.Memory
	t     *testing.T
	apply int // groups that are written
	cut   bool
}

func (w *holdWatch) Commit(ctx context.Context, groups []store.Group) (int64, error) {
	deletes := slices.ContainsFunc(groups, func(g store.Group) bool {
		return slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Delete && strings.HasPrefix(op.Key, prefixHold) })
	})
	if w.cut || !deletes {
		return w.Memory.Commit(ctx, groups)
	}
	w.cut = true
	if _, err := w.Memory.Commit(ctx, groups[:min(w.apply, len(groups))]); err != nil {
		return 0, err
	}
	var holds []string
	if err := walk(ctx, w.Memory, prefixHold, loadPage, func(entry store.Entry) error {
		holds = append(holds, entry.Key)
		return nil
	}); err != nil {
		return 0, err
	}
	if len(holds) == 0 && !w.holderPlaced(ctx) {
		w.t.Errorf("after %d groups nothing is held, and the holder waits", w.apply)
	}
	return 0, store.ErrUnknown
}

// holderPlaced reports whether the record of the holder says that it starts.
func (w *holdWatch) holderPlaced(ctx context.Context) bool {
	placed := false
	err := walk(ctx, w.Memory, prefixAlloc, loadPage, func(entry store.Entry) error {
		var rec allocRecord
		if err := decode(entry, &rec); err != nil {
			return err
		}
		placed = placed || strings.HasSuffix(entry.Key, "/d") && rec.Status.Holds()
		return nil
	})
	return err == nil && placed
}

// TestVictimThatIsBack: a victim that ended and started again beside what is held is no victim to the next life either: its
// room does not pass to the holder, so nobody else starts in what is held.
func TestVictimThatIsBack(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(strings.Replace(preemptConfig, "1s", "1h", 1))
	near, far := newHost("n1", 6, nil), newHost("n2", 8, nil)
	far.deaf = true
	c.join(near)
	awaitNode(t, c, "n1", NodeReady)
	job := func(class string, cores int, more string) WorkflowView {
		return c.start(fmt.Sprintf("version: v1\nname: w\njobs: {j: {command: [x], class: %s, resource: {cpu: {cores: %d}}%s}}\n", class, cores, more))
	}
	c.awaitStatus(job("on-demand", 1, "").ID, coordinator.StatusRunning)
	moves := c.awaitStatus(job("batch", 2, ", retry-on-preempt: true").ID, coordinator.StatusRunning)
	c.join(far)
	awaitNode(t, c, "n2", NodeReady)
	stays := c.awaitStatus(job("batch", 4, ", retry-on-preempt: true").ID, coordinator.StatusRunning)
	gang := job("on-demand", 5, ", multinode: {nodes: 2}")
	v := c.await(moves.ID, "back", func(v WorkflowView) bool { return v.Jobs[0].Attempt == 2 && v.Status == coordinator.StatusRunning })
	if !slices.Equal(v.Jobs[0].Nodes, []coordinator.NodeID{"n2"}) {
		t.Fatalf("it is back on %v", v.Jobs[0].Nodes)
	}
	c.close()

	c = newCluster(t, st)
	c.join(near)
	leave := c.join(far)
	awaitNode(t, c, "n1", NodeReady)
	awaitNode(t, c, "n2", NodeReady)
	next := job("batch", 2, "")
	if v := c.await(next.ID, "decided", func(v WorkflowView) bool {
		r := v.Jobs[0].Reason
		return v.Status != coordinator.StatusQueued || r != nil && r.Rule != 0
	}); v.Status != coordinator.StatusQueued {
		t.Errorf("it is %s on %v, in room that is held", v.Status, v.Jobs[0].Nodes)
	}
	leave()
	far.mu.Lock()
	for run, end := range far.runs {
		if strings.HasPrefix(string(run), string(stays.ID)) {
			*end = RunStatus{Run: run, State: RunEnded, Cause: CauseStopped, Signal: 15, Started: end.Started, Ended: time.Now()}
		}
	}
	far.mu.Unlock()
	c.join(far)
	c.awaitStatus(gang.ID, coordinator.StatusRunning)
}
