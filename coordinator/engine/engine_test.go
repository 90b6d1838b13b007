package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

const chain = `
version: v1
name: chain
jobs:
  first:
    command: ["/bin/true"]
  second:
    command: ["/bin/true"]
    depends-on: [{name: first, status: FINISHED}]
  third:
    command: ["/bin/true"]
    depends-on: [{name: second, status: FINISHED}]
`

func TestDependentJobsRunInOrder(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, succeed))
	w := c.awaitStatus(c.start(chain).ID, coordinator.StatusFinished)
	var started []string
	last := uint64(0)
	for _, ev := range c.events(w.ID) {
		if ev.Sequence <= last {
			t.Errorf("event %d after %d", ev.Sequence, last)
		}
		last = ev.Sequence
		if ev.Kind == "started" {
			started = append(started, ev.Job)
		}
	}
	if !slices.Equal(started, []string{"first", "second", "third"}) {
		t.Errorf("started in order %v", started)
	}
}

func TestDependencies(t *testing.T) {
	for name, tt := range map[string]struct {
		first  *RunStatus
		status string
		want   map[string]coordinator.Status
	}{
		"finished, and it failed": {&RunStatus{Cause: CauseExited, ExitCode: 3}, "FINISHED",
			map[string]coordinator.Status{"first": coordinator.StatusFailed, "second": coordinator.StatusCancelled, "third": coordinator.StatusCancelled}},
		"failed, and it failed": {&RunStatus{Cause: CauseSignalled, Signal: 9}, "FAILED",
			map[string]coordinator.Status{"first": coordinator.StatusFailed, "second": coordinator.StatusFinished, "third": coordinator.StatusFinished}},
		"failed, and it finished": {&RunStatus{Cause: CauseExited}, "FAILED",
			map[string]coordinator.Status{"first": coordinator.StatusFinished, "second": coordinator.StatusCancelled, "third": coordinator.StatusCancelled}},
		"any, and it failed": {&RunStatus{Cause: CauseOOM}, "ANY",
			map[string]coordinator.Status{"first": coordinator.StatusFailed, "second": coordinator.StatusFinished, "third": coordinator.StatusFinished}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, store.NewMemory())
			c.set(plainConfig)
			c.join(newHost("n1", 4, func(m StartRun) *RunStatus {
				if m.Job.Name == "first" {
					end := *tt.first
					return &end
				}
				return succeed(m)
			}))
			w := c.start(strings.Replace(chain, "{name: first, status: FINISHED}", "{name: first, status: "+tt.status+"}", 1))
			v := c.await(w.ID, "over", func(v WorkflowView) bool { return v.Status.Ended() })
			for _, j := range v.Jobs {
				if j.Status != tt.want[j.Name] {
					t.Errorf("%s is %s (%s), want %s", j.Name, j.Status, j.Message, tt.want[j.Name])
				}
			}
		})
	}
}

func TestArrayConcurrencyIsKept(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	h := newHost("n1", 64, nil)
	c.join(h)
	w := c.start("version: v1\nname: a\njobs:\n  t:\n    command: [x]\n    task-array: {start: 1, end: 20, concurrency: 3}\n")
	c.await(w.ID, "three running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 3 })
	time.Sleep(50 * time.Millisecond)
	v := c.await(w.ID, "the same", func(WorkflowView) bool { return true })
	if n := v.Counts[coordinator.StatusRunning] + v.Counts[coordinator.StatusStarting]; n != 3 || v.Counts[coordinator.StatusQueued] != 17 {
		t.Errorf("counts %v", v.Counts)
	}
}

func TestCancel(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 1, nil))
	w := c.start(chain)
	c.await(w.ID, "running", func(v WorkflowView) bool { return v.Status == coordinator.StatusRunning })
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, "chain", ""); err != nil {
		t.Fatal(err)
	}
	v := c.awaitStatus(w.ID, coordinator.StatusCancelled)
	if n := v.Counts[coordinator.StatusCancelled]; n != 3 {
		t.Errorf("counts %v", v.Counts)
	}
}

// TestRefusals: policy, grant, annotation and resources each keep a job from a definition, and say so.
func TestRefusals(t *testing.T) {
	const two = `
definitions:
  - id: open
    provisioner: static
    annotations: {tier: low}
    provisionerSpec: {condition: "true", costPerHour: 1}
  - id: guarded
    provisioner: static
    annotations: {tier: high}
    provisionerSpec: {condition: "true", costPerHour: 2}
    policy: request.job_annotations["key"] == "secret"
`
	c := newCluster(t, store.NewMemory())
	c.set(two)
	low, high := newHost("low", 2, nil), newHost("high", 8, nil)
	low.matches = func(d coordinator.DefinitionID) bool { return d == "open" }
	high.matches = func(d coordinator.DefinitionID) bool { return d == "guarded" }
	c.join(low)
	c.join(high)
	for _, name := range []string{"low", "high"} {
		awaitNode(t, c, name, NodeReady)
	}
	outcome := func(job string) map[coordinator.DefinitionID]DefinitionOutcome {
		t.Helper()
		w := c.start("version: v1\nname: r\njobs:\n  j:\n" + job)
		x, err := c.engine.ExplainWorkflow(t.Context(), c.admin, string(w.ID), "j")
		if err != nil {
			t.Fatal(err)
		}
		out := map[coordinator.DefinitionID]DefinitionOutcome{}
		for _, d := range x[0].Definitions {
			out[d.Definition] = d
		}
		if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil {
			t.Fatal(err)
		}
		return out
	}
	check := func(got DefinitionOutcome, by, text string) {
		t.Helper()
		if got.RefusedBy != by || !strings.Contains(got.Reason, text) {
			t.Errorf("%s: refused by %q: %q; want %q: …%s…", got.Definition, got.RefusedBy, got.Reason, by, text)
		}
	}
	check(outcome("    command: [x]\n")["guarded"], "policy", `request.job_annotations["key"] is (absent)`)
	both := "    command: [x]\n    annotations: {key: secret}\n"
	if o := outcome(both)["guarded"]; !o.Admissible {
		t.Errorf("the policy is true: %+v", o)
	}
	check(outcome(both + "    resource: {annotations: {tier: high}}\n")["open"], "annotation", `tier is "low", wanted "high"`)
	check(outcome(both + "    resource: {cpu: {cores: 4}}\n")["open"], "resources", "wants 4 cores of at most 2")

	if _, err := c.engine.SetGrant(t.Context(), c.admin, "default", []string{"open"}); err != nil {
		t.Fatal(err)
	}
	check(outcome(both)["guarded"], "grant", "does not name guarded")

	_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte("version: v1\nname: r\njobs:\n  j:\n    command: [x]\n    resource: {cpu: {cores: 4}}\n")})
	if coordinator.ErrorKindOf(err) != coordinator.ErrDenied || !strings.Contains(err.Error(), "guarded refused by grant") || !strings.Contains(err.Error(), "open refused by resources") {
		t.Errorf("nothing admits it, got %v", err)
	}
}

func awaitNode(t *testing.T, c *cluster, id string, want NodeStatus) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		v, err := c.engine.Node(t.Context(), c.admin, coordinator.NodeID(id))
		if err == nil && v.Status == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("node %s is not %s: %+v %v", id, want, v.Reason, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestAlteredGrantsRefuse: a grant that was changed, or rolled back, in the store counts for nothing.
func TestAlteredGrantsRefuse(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	org := string(c.admin.Organization)
	old, err := st.Get(t.Context(), prefixGrant+org)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.SetGrant(t.Context(), c.admin, "default", nil); err != nil {
		t.Fatal(err)
	}
	c.close()
	for name, jws := range map[string][]byte{"rolled-back": old.Value, "altered": append(slices.Clone(old.Value[:len(old.Value)-4]), "AAAA"...), "missing": nil} {
		t.Run(name, func(t *testing.T) {
			clone := st.Clone()
			op := store.Op{Key: prefixGrant + org, Value: jws, Delete: jws == nil}
			if _, err := clone.Commit(t.Context(), []store.Group{{Ops: []store.Op{op}}}); err != nil {
				t.Fatal(err)
			}
			c := newCluster(t, clone)
			_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(chain)})
			if coordinator.ErrorKindOf(err) != coordinator.ErrDenied || !strings.Contains(err.Error(), "refused by grant") {
				t.Errorf("got %v", err)
			}
			v, err := c.engine.Grant(t.Context(), c.admin, "")
			if err != nil || v.State != name {
				t.Errorf("state %q, %v; want %q", v.State, err, name)
			}
		})
	}
}

func TestConfigRevisions(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	if _, _, err := c.engine.Config(t.Context(), c.admin, nil); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("no configuration yet: %v", err)
	}
	one := c.set(plainConfig)
	if again := c.set(plainConfig); !again.Unchanged || again.Revision.Revision != one.Revision.Revision {
		t.Errorf("identical bytes gave %+v", again)
	}
	two := c.set(plainConfig + "# changed\n")
	if one.Revision.Revision != 1 || two.Revision.Revision != 2 {
		t.Errorf("revisions %d, %d", one.Revision.Revision, two.Revision.Revision)
	}
	stale := coordinator.Revision(1)
	_, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(plainConfig), File: "f", IfRevision: &stale})
	if coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
		t.Errorf("stale --if-revision: %v", err)
	}
	_, err = c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte("definitions: [{id: x}]"), File: "bad.yaml"})
	if coordinator.ErrorKindOf(err) != coordinator.ErrInvalid || !strings.Contains(err.Error(), "bad.yaml:1") {
		t.Errorf("a bad file: %v", err)
	}
	meta, yaml, err := c.engine.Config(t.Context(), c.admin, &stale)
	if err != nil || string(yaml) != plainConfig || meta.Revision != 1 {
		t.Errorf("revision 1 is %q, %v", yaml, err)
	}
	list, _, err := c.engine.ConfigRevisions(t.Context(), c.admin, Page{})
	if err != nil || len(list) != 2 || list[0].Revision != 2 {
		t.Errorf("revisions %+v, %v", list, err)
	}
}

// TestLateDefinitionsNeedAnAppend: what is configured later is in nobody's grant until it is appended.
func TestLateDefinitionsNeedAnAppend(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	later := plainConfig + strings.Replace(strings.TrimPrefix(plainConfig, "\ndefinitions:\n"), "id: small", "id: large", 1)
	res := c.set(later)
	if len(res.Ungranted) != 1 || res.Ungranted[0].Definition != "large" || !slices.Equal(res.Ungranted[0].Organizations, []string{"default"}) {
		t.Fatalf("ungranted %+v", res.Ungranted)
	}
	for i, existed := range []bool{false, true} {
		done, err := c.engine.AppendDefinitions(t.Context(), c.admin, []string{"large"}, nil, true)
		if err != nil || len(done) != 1 || done[0].AlreadyExisted != existed {
			t.Errorf("append %d: %+v %v", i, done, err)
		}
	}
	g, err := c.engine.Grant(t.Context(), c.admin, "")
	if err != nil || g.Serial != 2 || !slices.Equal(g.Definitions, []string{"large", "small"}) {
		t.Errorf("grant %+v, %v", g, err)
	}
}

func TestIdempotencyKey(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	in := StartWorkflow{YAML: []byte(chain), File: "w", IdempotencyKey: "k"}
	a, err := c.engine.StartWorkflow(t.Context(), c.admin, in)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.engine.StartWorkflow(t.Context(), c.admin, in)
	if err != nil || !b.Existed || a.Workflow.ID != b.Workflow.ID {
		t.Errorf("again: %+v %v", b, err)
	}
	in.YAML = append(in.YAML, "# other\n"...)
	if _, err = c.engine.StartWorkflow(t.Context(), c.admin, in); coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
		t.Errorf("same key, other file: %v", err)
	}
}

func TestMembersSeeTheirOrganisationOnly(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "other", 0); err != nil {
		t.Fatal(err)
	}
	u, err := c.engine.CreateUser(t.Context(), c.admin, NewUser{Name: "eve", Organization: "other"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.token(c.admin, string(u.ID))
	if err != nil {
		t.Fatal(err)
	}
	eve, err := c.engine.Authenticate(t.Context(), text)
	if err != nil || eve.Name != "eve" || eve.Admin {
		t.Fatalf("%+v %v", eve, err)
	}
	w := c.start(chain)
	if _, err := c.engine.Workflow(t.Context(), eve, string(w.ID)); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("eve sees another organisation's workflow: %v", err)
	}
	if _, err := c.engine.CreateUser(t.Context(), eve, NewUser{Name: "mallory", Admin: true}); coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
		t.Errorf("eve made an administrator: %v", err)
	}
	if _, err := c.engine.Authenticate(t.Context(), text[:len(text)-1]+"x"); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("a wrong token: %v", err)
	}
}

// TestLateReportsNeverTouchALaterRun: a run that was given up reports its end after its successor began.
func TestLateReportsNeverTouchALaterRun(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "scheduler: {nodeLossWindow: 1s}\n")
	first := newHost("n1", 1, nil)
	leave := c.join(first)
	w := c.start("version: v1\nname: w\njobs:\n  j:\n    command: [x]\n    policy: {restart: on-node-fault}\n")
	c.await(w.ID, "running", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusRunning })
	leave()
	c.await(w.ID, "queued again", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusQueued })
	c.join(newHost("n2", 1, nil))
	c.await(w.ID, "running again", func(v WorkflowView) bool {
		return v.Jobs[0].Status == coordinator.StatusRunning && v.Jobs[0].Attempt == 2
	})
	first.mu.Lock()
	for _, st := range first.runs {
		*st = RunStatus{Run: st.Run, State: RunEnded, Cause: CauseExited, ExitCode: 7}
	}
	first.mu.Unlock()
	c.join(first)
	awaitNode(t, c, "n1", NodeReady)
	v := c.await(w.ID, "any", func(WorkflowView) bool { return true })
	if j := v.Jobs[0]; j.Status != coordinator.StatusRunning || j.Attempt != 2 || j.Nodes[0] != "n2" {
		t.Errorf("the late report changed %+v", j)
	}
	left := func() int {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.runs)
	}
	for deadline := time.Now().Add(10 * time.Second); left() != 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the first node still keeps %d runs", left())
		}
	}
}

// TestDrain: batch work gets notice and goes back to the queue where it asked to; the rest runs on.
func TestDrain(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, nil))
	w := c.start(`version: v1
name: w
jobs:
  steady: {command: [x]}
  batch: {command: [x], class: batch}
  again: {command: [x], class: batch, retry-on-preempt: true}
`)
	c.await(w.ID, "all running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 3 })
	if _, err := c.engine.SetScheduling(t.Context(), c.admin, "n1", "drain", "disk", false); err != nil {
		t.Fatal(err)
	}
	want := map[string]coordinator.Status{"steady": coordinator.StatusRunning, "batch": coordinator.StatusPreempted, "again": coordinator.StatusQueued}
	v := c.await(w.ID, "settled", func(v WorkflowView) bool {
		for _, j := range v.Jobs {
			if j.Status != want[j.Name] {
				return false
			}
		}
		return true
	})
	for _, j := range v.Jobs {
		if j.Name == "again" && (j.Preempted != 1 || j.Failures != 0 || j.Reason == nil || j.Reason.Code != "drained") {
			t.Errorf("requeued job %+v, reason %+v", j, j.Reason)
		}
	}
	if _, err := c.engine.SetScheduling(t.Context(), c.admin, "n1", "uncordon", "", false); err != nil {
		t.Fatal(err)
	}
	c.await(w.ID, "running again", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 2 })
}

// TestCrashAtAnyInstant kills the coordinator at a drawn commit, before or after it is durable, again and
// again, while the nodes live on: every accepted workflow ends, no run begins twice, events are in order.
func TestCrashAtAnyInstant(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); crashes(t, seed) })
	}
}

func crashes(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	memory := store.NewMemory()
	hosts := []*host{newHost("n1", 3, succeed), newHost("n2", 2, succeed)}
	accepted := map[coordinator.WorkflowID]bool{}
	first := newCluster(t, memory)
	first.set(plainConfig)
	first.close()
	for range 8 {
		dying := &crashing{Memory: memory, applied: rng.IntN(2) == 0, dead: make(chan struct{})}
		dying.left.Store(int64(1 + rng.IntN(25)))
		c := newCluster(t, dying)
		leaves := []func(){c.join(hosts[0]), c.join(hosts[1])}
		go func() {
			select {
			case <-dying.dead:
				c.stop()
			case <-c.done:
			}
		}()
		for range 4 {
			res, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(chain)})
			if err == nil {
				accepted[res.Workflow.ID] = true
			}
		}
		select {
		case <-dying.dead:
		case <-time.After(100 * time.Millisecond): // all is done and nothing writes any more
		}
		c.close()
		for _, leave := range leaves {
			leave()
		}
		memory = memory.Clone()
	}
	if len(accepted) < 8 {
		t.Fatalf("only %d workflows were accepted: the run says nothing", len(accepted))
	}
	c := newCluster(t, memory)
	c.join(hosts[0])
	c.join(hosts[1])
	for id := range accepted {
		c.awaitStatus(id, coordinator.StatusFinished)
		events := c.events(id)
		if !slices.IsSortedFunc(events, func(a, b Event) int { return int(a.Sequence) - int(b.Sequence) }) {
			t.Errorf("events out of order:\n%s", describe(events))
		}
		for _, job := range []string{"first", "second", "third"} {
			if kinds := kindsOf(events, job); !slices.Equal(kinds, []string{"ready", "started", "finished"}) {
				t.Errorf("%s: events %v\n%s", job, kinds, describe(events))
			}
		}
	}
	for _, h := range hosts {
		for run, n := range h.begun {
			if n != 1 {
				t.Errorf("run %s began %d times on %s", run, n, h.id)
			}
		}
	}
}

func kindsOf(events []Event, job string) []string {
	var out []string
	for _, ev := range events {
		if ev.Job == job {
			out = append(out, ev.Kind)
		}
	}
	return out
}

// TestFailedWriteLosesNothing: when a write fails or its outcome is unknown, the caller hears so, and the
// engine goes on from what is durable.
func TestFailedWriteLosesNothing(t *testing.T) {
	for name, fault := range map[string]store.Fault{
		"full": {Err: store.ErrFull}, "unknown, applied": {Apply: -1}, "unknown, not applied": {Apply: 0},
	} {
		t.Run(name, func(t *testing.T) {
			st := store.NewMemory()
			c := newCluster(t, st)
			c.set(plainConfig)
			c.join(newHost("n1", 4, succeed))
			awaitNode(t, c, "n1", NodeReady)
			st.FailCommit(1, fault)
			_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{File: "w", YAML: []byte(chain)})
			if k := coordinator.ErrorKindOf(err); k != coordinator.ErrUnavailable && k != coordinator.ErrExhausted {
				t.Errorf("the write failed, got %v", err)
			}
			c.awaitStatus(c.start(chain).ID, coordinator.StatusFinished)
		})
	}
}

func TestFollowedEventsHaveNoGap(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, succeed))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan Event, 10_000)
	done := make(chan error, 1)
	go func() {
		done <- c.engine.Events(ctx, c.admin, "", 0, true, func(evs []Event) error {
			for _, ev := range evs {
				got <- ev
			}
			return nil
		})
	}()
	for range 10 {
		c.awaitStatus(c.start(chain).ID, coordinator.StatusFinished)
	}
	want := c.events("")
	for i := range want {
		select {
		case ev := <-got:
			if ev.Sequence != want[i].Sequence {
				t.Fatalf("event %d has sequence %d, want %d", i, ev.Sequence, want[i].Sequence)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("only %d of %d events came", i, len(want))
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("following ended with %v", err)
	}
}
