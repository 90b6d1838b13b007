package engine

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
	"substrate/hwinfo"
	"substrate/tests/fakecloud"
)

// lab is a cloud whose instances join as agents would, with the hardware that a test says.
type lab struct {
	t     testing.TB
	cloud *fakecloud.Cloud

	mu       sync.Mutex
	c        *cluster
	hardware map[string]func(n int) parts     // by type; n counts its instances from 0
	booted   map[string]int                   // by type
	off      map[string]func()                // by instance
	silent   bool                             // agents never come
	told     func(node, launch, token string) // of each that is launched meanwhile
	joins    map[string]int                   // by launch
	up       func(*Session)                   // of each agent
}

// parts are what an instance has.
type parts struct {
	cores, threads int
	memory         uint64 // bytes
	gpus           int
	model          string
	arch           string
}

func newLab(t testing.TB, types ...string) *lab {
	l := &lab{t: t, hardware: map[string]func(int) parts{}, booted: map[string]int{}, off: map[string]func(){}, joins: map[string]int{}}
	var all []fakecloud.Type
	for _, name := range types {
		all = append(all, fakecloud.Type{Name: name, Spot: true})
	}
	l.cloud = fakecloud.New(fakecloud.Options{Types: all, Machine: l})
	return l
}

// always gives all instances of a type the same.
func always(m parts) func(int) parts { return func(int) parts { return m } }

// Boot starts what the user data say.
func (l *lab) Boot(i fakecloud.Instance) error {
	lines := strings.Split(string(i.UserData), "\n")
	node, launch, token := lines[1], lines[2], lines[3]
	ctx, cancel := context.WithCancel(l.t.Context())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent {
		cancel()
		if l.told != nil {
			l.told(node, launch, token)
		}
		return nil
	}
	m := l.hardware[i.Type](l.booted[i.Type])
	l.booted[i.Type]++
	var all sync.WaitGroup
	all.Go(func() { l.agent(ctx, node, launch, token, m) })
	l.off[i.ID] = func() { cancel(); all.Wait() }
	return nil
}

func (l *lab) agent(ctx context.Context, node, launch, token string, m parts) {
	h := newHost(node, m.cores, succeed)
	h.matches = func(coordinator.DefinitionID) bool { return false }
	h.up = l.up
	h.more = func(f *hwinfo.Facts) {
		f.CPU.LogicalCPUs, f.Memory.Total, f.CPU.Arch = &m.threads, &m.memory, m.arch
		for i := range m.gpus {
			f.GPUs = append(f.GPUs, hwinfo.GPU{Address: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: "nvidia", Resource: coordinator.DeviceNVIDIA, Model: m.model, Driver: true})
		}
	}
	csr := request(l.t)
	for ctx.Err() == nil {
		l.mu.Lock()
		c := l.c
		l.mu.Unlock()
		_, _, err := c.engine.Join(ctx, JoinRequest{Token: token, Node: node, Launch: launch, CSR: csr})
		if err == nil {
			l.mu.Lock()
			l.joins[launch]++
			l.mu.Unlock()
			break
		}
		if coordinator.ErrorKindOf(err) != coordinator.ErrUnavailable || sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
	for ctx.Err() == nil {
		l.mu.Lock()
		c := l.c
		l.mu.Unlock()
		h.serve(ctx, l.t, c.engine)
		_ = sleep(ctx, 5*time.Millisecond)
	}
}

// Halt ends an instance's agent.
func (l *lab) Halt(id string) {
	l.mu.Lock()
	off := l.off[id]
	delete(l.off, id)
	l.mu.Unlock()
	if off != nil {
		off()
	}
}

func (l *lab) start(st store.Store, yaml string) *cluster {
	l.t.Helper()
	c := newClusterWith(l.t, st, func(o *Options) {
		o.Provisioners = Provisioners{Kinds: []string{spec.KindAWS}, AgentAddress: func() string { return "coordinator:8443" },
			Open: func(context.Context, spec.Backend, bool) (provision.Provisioner, error) {
				return &fakecloud.Direct{Cloud: l.cloud, Cluster: "c", Every: 20 * time.Millisecond}, nil
			}}
	})
	l.mu.Lock()
	l.c = c
	l.mu.Unlock()
	l.t.Cleanup(func() {
		for _, i := range l.cloud.List() {
			l.Halt(i.ID)
		}
	})
	if yaml != "" {
		c.setGranted(yaml)
	}
	return c
}

// definition is one of a type, with idleTimeout 1 s.
func ofType(id, typ string, more ...string) string {
	return fmt.Sprintf("  - {id: %s, provisioner: aws, idleTimeout: 1s, maxNodes: 4, provisionerSpec: {instanceType: %s, costPerHour: 1%s}}\n", id, typ, strings.Join(more, ""))
}

func asks(resources string) string {
	return "version: v1\nname: w\njobs:\n  a: {command: [\"true\"], resource: {" + resources + "}, policy: {timeout: {execute: 10m}}}\n"
}

func (c *cluster) told(kind, part string) bool {
	for _, ev := range c.events("") {
		if ev.Kind == kind && strings.Contains(ev.Message, part) {
			return true
		}
	}
	return false
}

func (c *cluster) waitsFor(id coordinator.WorkflowID, part string) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("it waits for %q, but %s", part, c.explainAnyhow(id)), func() bool { return strings.Contains(c.explainAnyhow(id), part) })
}

func (c *cluster) explainAnyhow(id coordinator.WorkflowID) string {
	x, err := c.engine.ExplainWorkflow(c.t.Context(), c.admin, string(id), "")
	if err != nil || x[0].Job.Reason == nil {
		return ""
	}
	return fmt.Sprintf("%s: %s", x[0].Job.Reason.Code, x[0].Job.Reason.Text)
}

const gib = uint64(1 << 30)

func (c *cluster) idle(l *lab) {
	c.t.Helper()
	c.eventually("all instances are given up", func() bool { return l.cloud.Live() == 0 && len(c.nodes()) == 0 })
}

// TestSmallerThanEstimated: the catalogue promises more than the node has. The job goes back to waiting, with the reason, the definition is flagged,
// and no second instance is launched for it, in the next life of the coordinator neither.
func TestSmallerThanEstimated(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c6g.medium")
	l.hardware["c6g.medium"] = always(parts{cores: 1, threads: 1, memory: 15 * gib / 10, arch: "arm64"})
	st, yaml := store.NewMemory(), "definitions:\n"+ofType("arm", "c6g.medium")
	c := l.start(st, yaml)
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1740MiB}"))
	c.waitsFor(w.ID, "as a node of the type has reported")
	c.idle(l)
	if v := c.awaitStatus(w.ID, coordinator.StatusQueued); v.Jobs[0].Attempt > 0 || l.cloud.Made() != 1 {
		t.Errorf("%d instances were launched, %d attempts made", l.cloud.Made(), v.Jobs[0].Attempt)
	}
	if !c.told("warning", "less than was expected by its catalogue") || !c.told("hardware-reported", "1 cores, 1 threads, 1.5 GiB") {
		t.Errorf("nothing is told:\n%s", describe(c.events("")))
	}
	c.close()
	next := l.start(st, "")
	next.waitsFor(w.ID, "as a node of the type has reported")
	next.ahead.Add(int64(2 * time.Hour))
	time.Sleep(200 * time.Millisecond)
	if l.cloud.Made() != 1 {
		t.Errorf("%d instances after a restart", l.cloud.Made())
	}
}

// TestRequestBetweenReportAndCatalogue: what the catalogue says fits and the report says does not is launched for once, and then refused as it is asked.
func TestRequestBetweenReportAndCatalogue(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5n.xlarge")
	l.hardware["c5n.xlarge"] = always(parts{cores: 2, threads: 4, memory: 8 * gib, arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("net", "c5n.xlarge"))
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 9GiB}"))
	c.waitsFor(w.ID, "wants 9 GiB of memory of at most 8 GiB, as a node of the type has reported")
	c.idle(l)
	if _, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(asks("memory: {size: 9GiB}, cpu: {cores: 1}")), File: "w.yaml"}); err == nil ||
		!strings.Contains(err.Error(), "as a node of the type has reported") {
		t.Errorf("the next one like it: %v", err)
	}
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, memory: {size: 8GiB}")).ID, coordinator.StatusFinished)
	if l.cloud.Made() != 2 {
		t.Errorf("%d instances, want one for each that fitted as far as anybody knew", l.cloud.Made())
	}
}

// TestReportIsOfTypeAndImage: with another image a type has other memory.
func TestReportIsOfTypeAndImage(t *testing.T) {
	t.Parallel()
	l := newLab(t, "m5.large")
	l.hardware["m5.large"] = always(parts{cores: 1, threads: 2, memory: 7 * gib, arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "m5.large", ", imageId: ami-a")+ofType("b", "m5.large", ", imageId: ami-b"))
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}")).ID, coordinator.StatusFinished)
	_, list, err := c.engine.Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list[0].Report == nil || list[0].Report.Memory != coordinator.Bytes(7*gib) || list[1].Report != nil || list[1].Source != catalogue.SourceListed {
		t.Errorf("%+v and %+v", list[0].Report, list[1].Report)
	}
}

// TestLargerThanEstimated: what the estimate had no room for is accepted once a node has reported more.
func TestLargerThanEstimated(t *testing.T) {
	t.Parallel()
	l := newLab(t, "trn1.32xlarge")
	l.hardware["trn1.32xlarge"] = always(parts{cores: 64, threads: 128, memory: 511 * gib, arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("trn", "trn1.32xlarge"))
	large := asks("cpu: {cores: 1}, memory: {size: 510GiB}")
	if _, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(large), File: "w.yaml"}); err == nil {
		t.Error("what the estimate has no room for is accepted")
	}
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}")).ID, coordinator.StatusFinished)
	c.awaitStatus(c.start(large).ID, coordinator.StatusFinished)
}

// TestNumberOfGPUsUnknown: a catalogue that says 0 GPUs with memory says nothing. Work for GPUs waits and launches nothing until a node has reported.
func TestNumberOfGPUsUnknown(t *testing.T) {
	t.Parallel()
	l := newLab(t, "x.gpu")
	l.hardware["x.gpu"] = always(parts{cores: 8, threads: 16, memory: 240 * gib, gpus: 1, model: "H100", arch: "amd64"})
	count := func(n uint32) *uint32 { return &n }
	memory := coordinator.Bytes(256 * gib)
	types, err := catalogue.New([]catalogue.Type{{Name: "x.gpu", VCPUs: count(16), Cores: count(8), Memory: &memory, Arch: "amd64", GPUVendor: "NVIDIA"}}, true)
	if err != nil {
		t.Fatal(err)
	}
	c := l.start(store.NewMemory(), "")
	c.engine.catalogues.Store(catalogue.NewSet(map[string]*catalogue.Catalogue{spec.KindAWS: types}))
	c.setGranted("definitions:\n" + ofType("gpu", "x.gpu"))
	w := c.start(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 1}"))
	c.waitsFor(w.ID, "hardware-unknown: definition gpu: the number of nvidia.com/gpu is not known until a node of the type has reported")
	if l.cloud.Made() != 0 {
		t.Error("something is launched on a guess")
	}
	c.awaitStatus(c.start(asks("cpu: {cores: 1}")).ID, coordinator.StatusFinished)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
}

// TestGPUModelUnknown: the catalogue's name of a GPU is no device's. Work that selects a model waits until a node has reported, and is refused where that
// says another one.
func TestGPUModelUnknown(t *testing.T) {
	t.Parallel()
	l := newLab(t, "p5en.48xlarge")
	l.hardware["p5en.48xlarge"] = always(parts{cores: 96, threads: 192, memory: 2000 * gib, gpus: 8, model: "NVIDIA H200", arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("h200", "p5en.48xlarge"))
	model := func(name string) string {
		return asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 1}, annotations: {nvidia.com/gpu.model: " + name + "}")
	}
	w, other := c.start(model("NVIDIA H200")), c.start(model("H200"))
	for _, x := range []WorkflowView{w, other} {
		c.waitsFor(x.ID, "hardware-unknown: definition h200: the hardware's nvidia.com/gpu.model is not known until a node of the type has reported")
	}
	if l.cloud.Made() != 0 {
		t.Error("something is launched on a guess")
	}
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 8}, gpu-topology: any")).ID, coordinator.StatusFinished)
	c.awaitStatus(w.ID, coordinator.StatusFinished)
	c.waitsFor(other.ID, "neither the definition nor the hardware of its nodes has annotation nvidia.com/gpu.model")
}

// TestReportWins: over the catalogue's memory and over what the configuration claims.
func TestReportWins(t *testing.T) {
	t.Parallel()
	l := newLab(t, "m5.xlarge")
	l.hardware["m5.xlarge"] = always(parts{cores: 2, threads: 4, memory: 14 * gib, arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("m", "m5.xlarge"))
	c.awaitStatus(c.start(asks("cpu: {cores: 1}")).ID, coordinator.StatusFinished)
	_, list, _ := c.engine.Definitions(t.Context())
	if list[0].Source != catalogue.SourceReport || list[0].Report.Memory != coordinator.Bytes(14*gib) {
		t.Errorf("%s %+v", list[0].Source, list[0].Report)
	}
}

// TestReportStaysWhenNodesAreGone: after scale-in to zero the next launch is for what a node really had.
func TestReportStaysWhenNodesAreGone(t *testing.T) {
	t.Parallel()
	l := newLab(t, "g5.xlarge")
	l.hardware["g5.xlarge"] = always(parts{cores: 2, threads: 4, memory: 15 * gib, gpus: 1, model: "NVIDIA A10G", arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("g", "g5.xlarge"))
	c.awaitStatus(c.start(asks("cpu: {cores: 1}")).ID, coordinator.StatusFinished)
	c.idle(l)
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 1}, annotations: {nvidia.com/gpu.model: NVIDIA A10G}")).ID, coordinator.StatusFinished)
}

// TestCoresAndThreadsAreReported: with one thread per core all vCPUs are cores.
func TestCoresAndThreadsAreReported(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.xlarge")
	l.hardware["c5.xlarge"] = always(parts{cores: 4, threads: 4, memory: 7 * gib, arch: "amd64"})
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("c", "c5.xlarge"))
	_, list, _ := c.engine.Definitions(t.Context())
	if h := list[0].Capacity; h.Cores != 2 || h.Threads != 4 {
		t.Errorf("before: %+v", h)
	}
	c.awaitStatus(c.start(asks("cpu: {cores: 1}")).ID, coordinator.StatusFinished)
	c.awaitStatus(c.start(asks("cpu: {cores: 4}")).ID, coordinator.StatusFinished)
}

// TestNodeWithFewerGPUs: one node of a type lacks GPUs. It gets no work for them, which both numbers say, and others of the type do.
func TestNodeWithFewerGPUs(t *testing.T) {
	t.Parallel()
	l := newLab(t, "p4d.24xlarge")
	l.hardware["p4d.24xlarge"] = func(n int) parts {
		m := parts{cores: 48, threads: 96, memory: 1100 * gib, gpus: 8, model: "A100", arch: "amd64"}
		if n == 1 {
			m.gpus = 7
		}
		return m
	}
	c := l.start(store.NewMemory(), "definitions:\n"+strings.Replace(ofType("a100", "p4d.24xlarge"), "idleTimeout: 1s", "idleTimeout: 600s", 1))
	c.awaitStatus(c.start(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 8}, gpu-topology: any")).ID, coordinator.StatusFinished)
	two := strings.Replace(asks("cpu: {cores: 48}"), "resource:", "multinode: {nodes: 2}, resource:", 1)
	c.awaitStatus(c.start(two).ID, coordinator.StatusFinished)
	if !c.told("node-quarantined", "it has 7 nvidia.com/gpu, nodes of its type have 8") || !c.told("hardware-differs", "7 nvidia.com/gpu, others have 8") {
		t.Errorf("no alarm:\n%s", describe(c.events("")))
	}
	w := c.awaitStatus(c.start(strings.Replace(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 7}, gpu-topology: any"), "resource:", "multinode: {nodes: 2}, resource:", 1)).ID, coordinator.StatusFinished)
	if l.cloud.Made() != 3 {
		t.Errorf("%d instances, want a third one for the GPUs that the second lacks", l.cloud.Made())
	}
	for _, n := range w.Jobs[0].Nodes {
		if err := c.engine.view(t.Context(), func(s *state) {
			if x := s.nodes[n]; x != nil && len(x.short) > 0 {
				t.Errorf("GPU work was on %s", n)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPriceOfTheProvider: a definition that has no price of its own goes by what the provider asks.
func TestPriceOfTheProvider(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.cloud = fakecloud.New(fakecloud.Options{Machine: l, Types: []fakecloud.Type{{Name: "c5.large", Price: 9}, {Name: "c5.xlarge", Price: 0.01}, {Name: "m5.large"}}})
	plain := func(id, typ string) string {
		return fmt.Sprintf("  - {id: %s, provisioner: aws, provisionerSpec: {instanceType: %s}}\n", id, typ)
	}
	c := l.start(store.NewMemory(), "definitions:\n"+plain("small", "c5.large")+plain("large", "c5.xlarge")+plain("listed", "m5.large")+ofType("own", "c5.large"))
	c.eventually("the offers are heard", func() bool {
		_, list, err := c.engine.Definitions(t.Context())
		return err == nil && list[0].CostPerHour != nil && *list[0].CostPerHour == 9
	})
	var order bytes.Buffer
	if err := c.engine.view(t.Context(), func(s *state) {
		for _, d := range s.config.byCost {
			fmt.Fprintf(&order, "%s %v, ", d.ID, *s.price(d))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := order.String(), "large 0.01, listed 0.096, own 1, small 9, "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
