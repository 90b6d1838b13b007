package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/memory"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/batch"
	"substrate/coordinator/provision/native"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
)

// quick is a clock by which a batch system and its driver live faster than the engine.
type quick struct{ began time.Time }

const faster = 40

func (q quick) Now() time.Time { return q.began.Add(faster * time.Since(q.began)) }

func (q quick) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d/faster) }

// farm is a batch system that outlives coordinators.
type farm struct {
	t      *testing.T
	clock  quick
	system *memory.Cluster

	mu        sync.Mutex
	submitted map[dispatch.Ref]int
	jobs      []dispatch.JobID
}

func newFarm(t *testing.T) *farm {
	clock := quick{time.Now()}
	return &farm{t: t, clock: clock, system: memory.New(clock, memory.Slurm()), submitted: map[dispatch.Ref]int{}}
}

// ward is a farm's connection: it counts submissions, and has the system in memory read the script in the command's last word.
type ward struct {
	dispatch.Backend
	dispatch.MultiFinder
	dispatch.OutputReader
	f *farm
}

func (w ward) Submit(ctx context.Context, s dispatch.Spec) (dispatch.ObjectID, error) {
	w.f.mu.Lock()
	w.f.submitted[s.Ref]++
	w.f.jobs = append(w.f.jobs, s.Ref.Job)
	w.f.mu.Unlock()
	return w.Backend.Submit(ctx, s)
}

// both is a provisioner and a driver, as the coordinator's program wires them.
type both struct {
	*batch.Provisioner
	runs *native.Driver
}

func (b both) Serve(ctx context.Context, h native.Host, wake <-chan struct{}) error {
	return b.runs.Serve(ctx, h, wake)
}

func (f *farm) open(ctx context.Context, c string) (provision.Provisioner, error) {
	b, err := dispatch.Open(ctx, f.system.Client(false))
	if err != nil {
		return nil, err
	}
	w := ward{b, b.(dispatch.MultiFinder), b.(dispatch.OutputReader), f}
	p, err := batch.New(batch.Options{Backend: w, Kind: spec.KindSlurm, Cluster: c, Clock: f.clock, Pace: time.Second})
	if err != nil {
		return nil, err
	}
	runs, err := native.New(native.Options{Backend: w, Cluster: c, Clock: f.clock, Pace: time.Second})
	return both{p, runs}, err
}

const nativeConfig = `
backends:
  - {name: hpc, kind: slurm, allowSiteIdentity: true}
definitions:
  - id: queue
    provisioner: slurm
    backend: hpc
    maxNodes: %d
    idleTimeout: 1s
    provisionerSpec: {cpu: 4, memory: 8GiB, mode: native, costPerHour: 1}
`

func newNative(t *testing.T, st store.Store, f *farm, most int) *cluster {
	t.Helper()
	c := newClusterWith(t, st, func(o *Options) {
		o.Provisioners = Provisioners{Kinds: []string{spec.KindSlurm}, AgentAddress: func() string { return "c:1" },
			Open: func(ctx context.Context, _ spec.Backend, _ bool) (provision.Provisioner, error) {
				return f.open(ctx, "c1")
			}}
	})
	c.set(fmt.Sprintf(nativeConfig, most))
	return c
}

func nativeJob(script string, more string) string {
	return fmt.Sprintf("version: v1\nname: w\njobs:\n  a: {script: %q, resource: {cpu: {cores: 2}}, policy: {timeout: {execute: 10m}}%s}\n", script, more)
}

// ranOnce looks at what the batch system really did.
func (f *farm) ranOnce(runs int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[dispatch.JobID]bool{}
	ended := 0
	for _, job := range f.jobs {
		if seen[job] {
			continue
		}
		seen[job] = true
		truth := f.system.Truth(job)
		if len(truth.Doubles)+len(truth.Same) > 0 || truth.Alive > 0 || truth.Succeeded > 1 {
			f.t.Errorf("%s: %+v", job, truth)
		}
		ended += truth.Succeeded
	}
	if ended != runs {
		f.t.Errorf("%d jobs ran to their end, want %d", ended, runs)
	}
}

// TestRunIsAJobOfTheBatchSystem: a job on a native definition is one job there; output, exit code and end come back, and the slot goes.
func TestRunIsAJobOfTheBatchSystem(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(nativeJob("echo hello $SUBSTRATE_JOB_NAME\necho oops >&2\nsleep 20\nexit 3\n", ""))
	v := c.awaitStatus(w.ID, coordinator.StatusFailed)
	if j := v.Jobs[0]; j.ExitCode == nil || *j.ExitCode != 3 || j.Message != "exit code 3" || j.Started.IsZero() {
		t.Errorf("it is %+v", j)
	}
	for stream, want := range map[string]string{"stdout": "hello a\n", "stderr": "oops\n"} {
		if got := c.nativeOutput(w.ID, stream); got != want {
			t.Errorf("%s is %q, want %q", stream, got, want)
		}
	}
	c.eventually("its slot is given up", func() bool { return len(c.nodes()) == 0 })
	kinds := c.kinds()
	for _, kind := range []string{"node-launching", "dispatched", "started", "failed", "node-released"} {
		if kinds[kind] == 0 {
			t.Errorf("no event %s:\n%s", kind, describe(c.events("")))
		}
	}
	if len(f.submitted) != 1 {
		t.Errorf("submitted %v, want one", f.submitted)
	}
}

func (c *cluster) nativeOutput(id coordinator.WorkflowID, stream string) string {
	c.t.Helper()
	text := ""
	err := c.engine.Log(c.t.Context(), c.admin, LogRequest{Workflow: string(id), Job: "a", Stream: stream, Follow: true}, func(p LogPart) error {
		text += string(p.Data)
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
	return text
}

// TestWaitInTheBatchSystem: what waits in the system's queue is starting, with state, cause and the system's words, and never running; a cancel
// ends it there.
func TestWaitInTheBatchSystem(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	for _, n := range f.system.Nodes() {
		if err := f.system.Down(n); err != nil {
			t.Fatal(err)
		}
	}
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(nativeJob("sleep 20\n", ""))
	var shown *Reason
	c.await(w.ID, "shown as waiting there", func(v WorkflowView) bool {
		shown = v.Jobs[0].Reason
		if v.Jobs[0].Status == coordinator.StatusRunning {
			t.Fatal("it is shown as running")
		}
		return shown != nil && strings.Contains(shown.Text, "pending, ")
	})
	if shown.Code != codeBatch || !strings.HasPrefix(shown.Text, "waits in slurm hpc as job ") {
		t.Errorf("the reason is %+v", shown)
	}
	x, err := c.engine.ExplainWorkflow(t.Context(), c.admin, string(w.ID), "")
	if err != nil || len(x) != 1 || x[0].Job.Reason == nil || x[0].Job.Reason.Text != shown.Text {
		t.Errorf("explain says %+v, %v", x, err)
	}
	list, _, err := c.engine.Launches(t.Context(), c.admin, Page{})
	if err != nil || len(list) != 1 || list[0].State != "pending" || list[0].Instance == "" || !strings.Contains(list[0].Detail, "pending, ") {
		t.Errorf("launches are %+v, %v", list, err)
	}
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil {
		t.Fatal(err)
	}
	v := c.awaitStatus(w.ID, coordinator.StatusCancelled)
	if !v.Jobs[0].Started.IsZero() {
		t.Errorf("it is said to have started: %+v", v.Jobs[0])
	}
	f.ranOnce(0)
	if left := f.system.Truth(f.jobs[0]).Left; len(left) > 0 {
		t.Errorf("in the batch system there is left %v", left)
	}
}

// TestRefusedForTheBatchSystem: what cannot be handed over is refused at its submission, with the reason.
func TestRefusedForTheBatchSystem(t *testing.T) {
	t.Parallel()
	c := newNative(t, store.NewMemory(), newFarm(t), 4)
	for more, want := range map[string]string{
		", multinode: {nodes: 2}":              "wants 2 nodes",
		", image: busybox":                     "wants the image",
		", env: [DISPATCH_X=1]":                "DISPATCH_X",
		", env: [PWD=/]":                       "the shells",
		", mounts: [{source: /a, target: /b}]": "see paths where they are",
	} {
		_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(nativeJob("true\n", more)), File: "w.yaml"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", more, err, want)
		}
	}
}

// TestSystemDown: a batch system that cannot be asked changes nothing: what runs there is not given up, and its end is told later.
func TestSystemDown(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(nativeJob("sleep 30\n", ""))
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	f.system.Unavailable(true)
	c.ahead.Add(int64(time.Hour)) // longer than any node may be away
	time.Sleep(300 * time.Millisecond)
	if v := c.await(w.ID, "there", func(WorkflowView) bool { return true }); v.Status != coordinator.StatusRunning {
		t.Fatalf("it is %s while the system cannot be asked", v.Status)
	}
	f.system.Unavailable(false)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	f.ranOnce(1)
}

// TestRunsSurviveACrash: whatever the write at which the coordinator dies, the job runs once and comes to its end.
func TestRunsSurviveACrash(t *testing.T) {
	for n := 1; n <= 12; n++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d applied %v", n, applied), func(t *testing.T) {
				t.Parallel()
				st := &crashing{Memory: store.NewMemory(), applied: applied, dead: make(chan struct{})}
				st.left.Store(1 << 40)
				f := newFarm(t)
				c := newNative(t, st, f, 4)
				st.left.Store(int64(n))
				go func() {
					select {
					case <-st.dead:
						c.stop()
					case <-c.done:
					}
				}()
				var id coordinator.WorkflowID
				job := nativeJob("echo once\nsleep 20\n", "")
				if res, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(job), File: "w.yaml", IdempotencyKey: "once"}); err == nil {
					id = res.Workflow.ID
				}
				select {
				case <-st.dead:
				case <-time.After(2 * time.Second): // it took fewer writes
				}
				c.close()
				next := newNative(t, st.Memory, f, 4)
				if id == "" {
					id = next.startAnyhow(job)
				}
				next.awaitStatus(id, coordinator.StatusFinished)
				f.ranOnce(1)
				next.eventually("the slot is given up", func() bool { return len(next.nodes()) == 0 })
			})
		}
	}
}

// TestEndInDoubt: what was on a lost node is not run again by itself, whatever its restart policy.
func TestEndInDoubt(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(strings.Replace(nativeJob("sleep 10000\n", ""), "policy: {", "policy: {restart: on-node-fault, ", 1))
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	for _, n := range f.system.Nodes() {
		if err := f.system.Down(n); err != nil {
			t.Fatal(err)
		}
	}
	v := c.awaitStatus(w.ID, coordinator.StatusLost)
	if !strings.Contains(v.Jobs[0].Message, "may live on") || v.Jobs[0].Attempt != 1 {
		t.Errorf("it is %+v", v.Jobs[0])
	}
}

// TestPreemptedByTheSystem: work that gave way in the batch system goes again if it may, as a new job there.
func TestPreemptedByTheSystem(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(nativeJob("sleep 40\n", ", retry-on-preempt: true"))
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	id := f.system.Truth(f.jobs[0]).Open
	if len(id) != 1 {
		t.Fatalf("open are %v", id)
	}
	if err := f.system.End(id[0], dispatch.CausePreempted); err != nil {
		t.Fatal(err)
	}
	v := c.awaitStatus(w.ID, coordinator.StatusFinished)
	if v.Jobs[0].Attempt != 2 || v.Jobs[0].Preempted != 1 {
		t.Errorf("it is %+v", v.Jobs[0])
	}
	f.ranOnce(1)
}

// TestSlotOfAChangedDefinition: a slot whose definition has changed takes nothing new, and what runs there runs to its end.
func TestSlotOfAChangedDefinition(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 1)
	w := c.start(nativeJob("sleep 60\n", ""))
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	c.set(strings.Replace(fmt.Sprintf(nativeConfig, 2), "cpu: 4", "cpu: 3", 1))
	c.eventually("its slot is on its way out", func() bool { return c.kinds()["node-releasing"] == 1 })
	next := c.start(nativeJob("true\n", ""))
	c.awaitStatus(next.ID, coordinator.StatusFinished)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	f.ranOnce(2)
	c.eventually("both slots are gone", func() bool { return len(c.nodes()) == 0 })
}

// TestBackendRenamed: what runs in the system goes on while the connection to it is renamed; the new one leads to the same place and does not
// take it for nobody's.
func TestBackendRenamed(t *testing.T) {
	t.Parallel()
	f := newFarm(t)
	c := newNative(t, store.NewMemory(), f, 4)
	w := c.start(nativeJob("sleep 60\n", ""))
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	c.set(strings.ReplaceAll(fmt.Sprintf(nativeConfig, 4), "hpc", "cray"))
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	f.ranOnce(1)
	c.eventually("its slot is given up", func() bool { return len(c.nodes()) == 0 })
}
