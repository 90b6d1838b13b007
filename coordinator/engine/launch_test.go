package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// provider is a pretended cloud: its instances are hosts that join as an agent would.
type provider struct {
	t testing.TB

	mu        sync.Mutex
	c         *cluster
	instances map[provision.Handle]*provision.Instance
	leave     map[provision.Handle]func()
	launched  map[provision.LaunchID]int // instances made, however often it was called
	calls     int
	cores     int
	nodes     uint32
	lists     atomic.Int32
	work      func(StartRun) *RunStatus
	more      func(*hwinfo.Facts)                                        // adds to what agents report
	silent    bool                                                       // agents never come
	queued    bool                                                       // instances wait at the provider
	fail      func(provision.Request) error                              // before anything is made
	after     func(provision.Request, provision.Instance) error          // after it is made: the answer is lost
	joined    func(provision.Request, string, coordinator.NodeID, error) // what came of an agent's join
}

func newProvider(t testing.TB) *provider {
	return &provider{t: t, cores: 32, nodes: 1, work: succeed, instances: map[provision.Handle]*provision.Instance{}, leave: map[provision.Handle]func(){}, launched: map[provision.LaunchID]int{}}
}

func (p *provider) Pace() time.Duration { return 20 * time.Millisecond }

func (p *provider) Offers(_ context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	var out []provision.Offer
	for _, d := range defs {
		out = append(out, provision.Offer{Definition: d.ID, Nodes: p.nodes, Launch: time.Minute, Available: true})
	}
	return out, nil
}

func (p *provider) Launch(_ context.Context, r provision.Request) (provision.Instance, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	for _, i := range p.instances {
		if i.ID == r.ID {
			i.Incomplete = false
			return *i, nil
		}
	}
	if p.fail != nil {
		if err := p.fail(r); err != nil {
			return provision.Instance{}, err
		}
	}
	p.launched[r.ID]++
	inst := &provision.Instance{Handle: provision.Handle("i-" + string(r.ID)), ID: r.ID, State: provision.StateRunning, Launched: p.c.now()}
	p.instances[inst.Handle] = inst
	if p.queued {
		inst.State, inst.Detail = provision.StateRequested, "Priority"
	} else if !p.silent {
		p.boot(inst, r)
	}
	if p.after != nil {
		if err := p.after(r, *inst); err != nil {
			return provision.Instance{}, err
		}
	}
	return *inst, nil
}

// boot has the agents of an instance join.
func (p *provider) boot(inst *provision.Instance, r provision.Request) {
	ctx, cancel := context.WithCancel(p.t.Context())
	var all sync.WaitGroup
	for rank := range r.Nodes {
		all.Go(func() {
			h := newHost(r.Boot.NodeName(r.Nodes, int(rank)), p.cores, p.work)
			h.more = p.more
			h.matches = func(coordinator.DefinitionID) bool { return false }
			err := p.join(ctx, r, h.id)
			if p.joined != nil {
				p.joined(r, r.Boot.Token, h.id, err)
			}
			for err == nil && ctx.Err() == nil {
				p.mu.Lock()
				c := p.c
				p.mu.Unlock()
				h.serve(ctx, p.t, c.engine)
				_ = sleep(ctx, 5*time.Millisecond)
			}
		})
	}
	p.leave[inst.Handle] = func() { cancel(); all.Wait() }
}

func (p *provider) join(ctx context.Context, r provision.Request, node coordinator.NodeID) error {
	csr := request(p.t)
	for {
		p.mu.Lock()
		c := p.c
		p.mu.Unlock()
		_, _, err := c.engine.Join(ctx, JoinRequest{Token: r.Boot.Token, Node: string(node), Launch: string(r.ID), CSR: csr})
		if coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable || sleep(ctx, 5*time.Millisecond) != nil {
			return err
		}
	}
}

func (p *provider) Release(_ context.Context, h provision.Handle) error {
	p.mu.Lock()
	inst, leave := p.instances[h], p.leave[h]
	delete(p.instances, h)
	delete(p.leave, h)
	p.mu.Unlock()
	if inst == nil {
		return provision.Errorf(provision.FaultNotFound, "release "+string(h), "no such instance")
	}
	if leave != nil {
		leave()
	}
	return nil
}

func (p *provider) List(context.Context) ([]provision.Instance, error) {
	p.lists.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []provision.Instance
	for _, i := range p.instances {
		out = append(out, *i)
	}
	provision.Sort(out)
	return out, nil
}

func (p *provider) handles() []provision.Handle {
	list, _ := p.List(p.t.Context())
	var out []provision.Handle
	for _, i := range list {
		out = append(out, i.Handle)
	}
	return out
}

const dynamicConfig = `
definitions:
  - id: pilot
    provisioner: slurm
    ttl: 24000
    idleTimeout: %ds
    maxNodes: %d
    provisionerSpec: {cpu: 32, memory: 64GiB, costPerHour: 1.5}
`

func newDynamic(t *testing.T, st store.Store, p *provider, idle, most int) *cluster {
	t.Helper()
	c := newClusterWith(t, st, func(o *Options) {
		o.Provisioners = Provisioners{Kinds: []string{spec.KindSlurm}, AgentAddress: func() string { return "coordinator:8443" },
			Open: func(context.Context, spec.Backend, bool) (provision.Provisioner, error) { return p, nil }}
	})
	p.mu.Lock()
	p.c = c
	p.mu.Unlock()
	t.Cleanup(func() {
		for _, h := range p.handles() {
			_ = p.Release(context.Background(), h)
		}
	})
	c.set(fmt.Sprintf(dynamicConfig, idle, most))
	return c
}

func (c *cluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not so: %s\n%s", what, describe(c.events("")))
		}
	}
}

func (c *cluster) kinds() map[string]int {
	out := map[string]int{}
	for _, ev := range c.events("") {
		out[ev.Kind]++
	}
	return out
}

const pilotJob = `
version: v1
name: w
jobs:
  a: {command: ["true"], resource: {cpu: {cores: 8}}, policy: {timeout: {execute: 10m}}}
`

// TestNodeIsLaunchedForWork: what waits gets a node, runs there, and the node is given up once it is idle.
func TestNodeIsLaunchedForWork(t *testing.T) {
	p := newProvider(t)
	c := newDynamic(t, store.NewMemory(), p, 1, 4)
	c.awaitStatus(c.start(pilotJob).ID, coordinator.StatusFinished)
	c.eventually("the node is given up when it is idle", func() bool { return len(p.handles()) == 0 && len(c.nodes()) == 0 })
	if len(p.launched) != 1 {
		t.Errorf("%d instances were launched for one job", len(p.launched))
	}
	got := c.kinds()
	for _, kind := range []string{"node-launching", "node-launched", "node-joined", "node-releasing", "node-released"} {
		if got[kind] != 1 {
			t.Errorf("%d events %s, want 1\n%s", got[kind], kind, describe(c.events("")))
		}
	}
	if err := c.engine.view(t.Context(), func(s *state) {
		if len(s.joinTokens)+len(s.launches) != 0 {
			t.Errorf("left: %d join tokens, %d launches", len(s.joinTokens), len(s.launches))
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) nodes() []NodeView {
	c.t.Helper()
	list, _, err := c.engine.Nodes(c.t.Context(), c.admin, "", Page{})
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}

// TestLostAnswerLaunchesOnce: an answer that is lost leads to the same instance, found by the launch's id.
func TestLostAnswerLaunchesOnce(t *testing.T) {
	p := newProvider(t)
	lost := false
	p.after = func(provision.Request, provision.Instance) error {
		if lost {
			return nil
		}
		lost = true
		return provision.Errorf(provision.FaultTransient, "launch", "connection reset")
	}
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	c.awaitStatus(c.start(pilotJob).ID, coordinator.StatusFinished)
	for id, n := range p.launched {
		if n != 1 {
			t.Errorf("launch %s has %d instances", id, n)
		}
	}
	if len(p.launched) != 1 {
		t.Errorf("%d launches, want 1", len(p.launched))
	}
}

// TestHalfALaunch: a list that has what a launch has made and not completed does not stand for the launch's answer; nor does the answer, once
// the provider has lost what completed it.
func TestHalfALaunch(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.queued = true
	p.after = func(r provision.Request, i provision.Instance) error {
		p.instances[i.Handle].Incomplete = true
		return provision.Errorf(provision.FaultTransient, "launch "+string(r.ID), "it cannot be opened now")
	}
	c := newDynamic(t, store.NewMemory(), p, 60, 4)
	c.start(pilotJob)
	complete := func(n int) func() bool {
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, i := range p.instances {
				return !i.Incomplete && p.calls >= n
			}
			return false
		}
	}
	c.eventually("it is completed", complete(2))
	c.eventually("its answer is taken in", func() bool { return c.kinds()["node-launched"] > 0 })
	p.mu.Lock()
	for _, i := range p.instances {
		i.Incomplete = true
	}
	p.mu.Unlock()
	c.eventually("it is completed again", complete(3))
	if len(p.launched) != 1 {
		t.Errorf("launched %v, want one", p.launched)
	}
}

// TestLaunchThatFails: what keeps a definition from being launched is told, and another launch goes by another name.
func TestLaunchThatFails(t *testing.T) {
	p := newProvider(t)
	var ids []provision.LaunchID
	p.fail = func(r provision.Request) error {
		ids = append(ids, r.ID)
		if len(ids) == 1 {
			return provision.Errorf(provision.FaultNoCapacity, "launch "+string(r.ID), "all nodes of the partition are taken")
		}
		return nil
	}
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	w := c.start(pilotJob)
	c.eventually("the failure is told", func() bool { return c.kinds()["node-launch-failed"] == 1 })
	text := c.explain(w.ID)
	if !strings.Contains(text, "all nodes of the partition are taken") {
		t.Errorf("the verdict does not say why nothing is launched: %s", text)
	}
	c.ahead.Add(int64(4 * time.Minute))
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("launches %v, want two different ones", ids)
	}
}

func (c *cluster) explain(id coordinator.WorkflowID) string {
	c.t.Helper()
	x, err := c.engine.ExplainWorkflow(c.t.Context(), c.admin, string(id), "")
	if err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprintf("%+v", *x[0].Job.Reason)
}

// TestAgentThatNeverComes: an instance whose agent stays away is given up, and the definition rests for longer each time.
func TestAgentThatNeverComes(t *testing.T) {
	p := newProvider(t)
	p.silent = true
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	c.start(pilotJob)
	c.eventually("it is launched", func() bool { return c.kinds()["node-launched"] == 1 })
	c.ahead.Add(int64(joinWithin + time.Minute))
	c.eventually("it is given up", func() bool { return len(p.handles()) == 0 && c.kinds()["node-released"] == 1 })
	if got := c.kinds()["node-launch-failed"]; got != 1 {
		t.Errorf("%d failures were told, want 1", got)
	}
}

// TestLaunchNobodyNeeds: a pilot that still waits in its queue is taken back when the work for it is gone.
func TestLaunchNobodyNeeds(t *testing.T) {
	p := newProvider(t)
	p.queued = true
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	w := c.start(pilotJob)
	c.eventually("it waits at the provider", func() bool { return len(p.handles()) == 1 })
	if text := c.explain(w.ID); !strings.Contains(text, "awaiting-provisioning") && !strings.Contains(text, "is coming") {
		t.Errorf("the wait at the provider is not shown: %s", text)
	}
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil {
		t.Fatal(err)
	}
	lists := p.lists.Load()
	c.eventually("it is looked at some times", func() bool { return p.lists.Load() > lists+3 })
	if len(p.handles()) != 1 {
		t.Fatal("it is taken back at once, though other work may come")
	}
	again := c.start(pilotJob)
	c.eventually("it is for that", func() bool {
		return strings.Contains(c.explain(again.ID), "coming") || strings.Contains(c.explain(again.ID), "awaiting")
	})
	c.ahead.Add(int64(time.Minute))
	c.eventually("it is looked at some times", func() bool { return p.lists.Load() > lists+6 })
	if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(again.ID), ""); err != nil {
		t.Fatal(err)
	}
	c.eventually("it is taken back", func() bool {
		c.ahead.Add(int64(100 * time.Millisecond))
		return len(p.handles()) == 0 && c.kinds()["node-released"] == 1
	})
	if len(p.launched) != 1 {
		t.Errorf("%d launches for work that came and went", len(p.launched))
	}
}

// TestOrphansAreReaped: an instance with our mark that nothing is stored of is ended.
func TestOrphansAreReaped(t *testing.T) {
	p := newProvider(t)
	p.instances["i-old"] = &provision.Instance{Handle: "i-old", ID: "l0123456789abcdef", State: provision.StateRunning}
	c := newDynamic(t, store.NewMemory(), p, 600, 4)
	c.eventually("it is ended", func() bool { return len(p.handles()) == 0 })
}

// TestSeveralNodesOfOneLaunch: a launch that brings two nodes is asked for once for a gang of two.
func TestSeveralNodesOfOneLaunch(t *testing.T) {
	p := newProvider(t)
	p.nodes = 2
	c := newDynamic(t, store.NewMemory(), p, 1, 4)
	c.awaitStatus(c.start(strings.Replace(pilotJob, "resource:", "multinode: {nodes: 2}, resource:", 1)).ID, coordinator.StatusFinished)
	if len(p.launched) != 1 {
		t.Errorf("%d launches for a gang of two, want 1", len(p.launched))
	}
	c.eventually("both nodes are given up", func() bool { return len(p.handles()) == 0 && len(c.nodes()) == 0 })
}

// TestInstanceGoneWhileWorkRuns: the work of a node whose instance is gone is sent back at once, not after the node loss window.
func TestInstanceGoneWhileWorkRuns(t *testing.T) {
	p := newProvider(t)
	c := newDynamic(t, store.NewMemory(), p, 600, 1)
	w := c.start(pilotJob)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	before := p.handles()
	p.mu.Lock()
	inst := p.instances[before[0]]
	inst.State, inst.Detail, inst.Failed = provision.StateGone, "cancelled by the site", provision.FaultInterrupted
	p.mu.Unlock()
	c.eventually("its node is forgotten", func() bool { return len(c.nodes()) == 0 })
	if !slices.ContainsFunc(c.events(""), func(ev Event) bool {
		return ev.Kind == "node-released" && strings.Contains(ev.Message, "cancelled by the site")
	}) {
		t.Errorf("why it is gone is not told:\n%s", describe(c.events("")))
	}
}

// TestSwitchedOffAfterItJoined: in some clouds a machine that switches itself off goes on costing. It is released once its agent is lost, and not while
// that speaks: the provider may be wrong.
func TestSwitchedOffAfterItJoined(t *testing.T) {
	p := newProvider(t)
	c := newDynamic(t, store.NewMemory(), p, 86400, 1)
	c.awaitStatus(c.start(pilotJob).ID, coordinator.StatusFinished)
	h := p.handles()[0]
	p.mu.Lock()
	inst, leave := p.instances[h], p.leave[h]
	inst.State, inst.Detail, inst.Failed = provision.StateUnknown, "it is switched off", provision.FaultUnreachable
	p.mu.Unlock()
	lists := p.lists.Load()
	c.eventually("it is listed", func() bool { return p.lists.Load() > lists+2 })
	if len(p.handles()) != 1 {
		t.Fatal("a machine was released whose agent speaks")
	}
	leave()
	c.ahead.Add(int64(time.Hour))
	c.eventually("it is released", func() bool { return len(p.handles()) == 0 && len(c.nodes()) == 0 })
	if !slices.ContainsFunc(c.events(""), func(ev Event) bool { return ev.Kind == "node-releasing" && ev.Message == "it is switched off" }) {
		t.Errorf("why is not told:\n%s", describe(c.events("")))
	}
	if c.kinds()["node-launch-failed"] != 0 {
		t.Error("it counts as a launch that failed")
	}
}

// TestLaunchesSurviveACrash: whatever the write at which the coordinator dies, every launch has one instance at most, none is lost, and the
// work is done.
func TestLaunchesSurviveACrash(t *testing.T) {
	for n := 1; n <= 16; n++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d applied %v", n, applied), func(t *testing.T) {
				t.Parallel()
				st := &crashing{Memory: store.NewMemory(), applied: applied, dead: make(chan struct{})}
				st.left.Store(1 << 40)
				p := newProvider(t)
				c := newDynamic(t, st, p, 1, 4)
				st.left.Store(int64(n))
				go func() {
					select {
					case <-st.dead:
						c.stop()
					case <-c.done:
					}
				}()
				var id coordinator.WorkflowID
				if res, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(pilotJob), File: "w.yaml", IdempotencyKey: "once"}); err == nil {
					id = res.Workflow.ID
				}
				select {
				case <-st.dead:
				case <-time.After(1500 * time.Millisecond): // it took fewer writes
				}
				c.close()
				next := newDynamic(t, st.Memory, p, 1, 4)
				if id == "" {
					id = next.startAnyhow(pilotJob)
				}
				next.awaitStatus(id, coordinator.StatusFinished)
				next.eventually("everything is given up", func() bool { return len(p.handles()) == 0 && len(next.nodes()) == 0 })
				for id, made := range p.launched {
					if made != 1 {
						t.Errorf("launch %s has %d instances", id, made)
					}
				}
				if len(p.launched) > 2 {
					t.Errorf("%d launches for one job", len(p.launched))
				}
			})
		}
	}
}

// TestPilotHasWhatItsJobHas: a pilot's report tells of the whole machine, of which its job has a part; where the machine has less, that counts.
func TestPilotHasWhatItsJobHas(t *testing.T) {
	for cores, want := range map[int]coordinator.Cores{64: 32, 16: 16} {
		t.Run(fmt.Sprint(cores), func(t *testing.T) {
			p := newProvider(t)
			p.cores = cores
			c := newDynamic(t, store.NewMemory(), p, 600, 4)
			c.awaitStatus(c.start(pilotJob).ID, coordinator.StatusFinished)
			list := c.nodes()
			if len(list) != 1 || list[0].Capacity.Cores != want {
				t.Errorf("nodes %+v, want one with %d cores", list, want)
			}
		})
	}
}

// TestPilotsGPUs: a pilot whose agent reports the GPUs of its job only has them placed one by one; where it reports all of the machine's, they are counted.
func TestPilotsGPUs(t *testing.T) {
	for name, tt := range map[string]struct {
		share hwinfo.Share
		want  string // that the job is told
	}{
		"the job's own":          {hwinfo.Share{GPUs: []int{1, 3}}, "CUDA_VISIBLE_DEVICES=1"},
		"those of the machine":   {hwinfo.Share{}, ""},
		"own, counted from zero": {hwinfo.Share{GPUs: []int{2, 3}, Own: true}, "CUDA_VISIBLE_DEVICES=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			p.cores = 16
			var mu sync.Mutex
			var env []string
			p.work = func(m StartRun) *RunStatus {
				mu.Lock()
				defer mu.Unlock()
				env = m.Env
				return nil
			}
			p.more = func(f *hwinfo.Facts) {
				linkedGPUs(f)
				if tt.share.Own {
					f.GPUs[0].Index, f.GPUs[1].Index = nil, nil
					zero, one := 0, 1
					f.GPUs[2].Index, f.GPUs[3].Index = &zero, &one
				}
				*f, _ = f.Within(tt.share)
			}
			c := newDynamic(t, store.NewMemory(), p, 600, 1)
			c.setGranted(strings.Replace(fmt.Sprintf(dynamicConfig, 600, 1), "memory: 64GiB", "memory: 64GiB, gpus: 2", 1))
			job := strings.Replace(pilotJob, "cpu: {cores: 8}", "cpu: {cores: 8}, devices: {nvidia.com/gpu: 1}", 1)
			c.awaitStatus(c.start(job).ID, coordinator.StatusRunning)
			mu.Lock()
			defer mu.Unlock()
			i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CUDA_VISIBLE_DEVICES=") })
			got := ""
			if i >= 0 {
				got = env[i]
			}
			if got != tt.want || tt.want == "" && i >= 0 {
				t.Errorf("the job is told %q in %q, want %q", got, env, tt.want)
			}
		})
	}
}
