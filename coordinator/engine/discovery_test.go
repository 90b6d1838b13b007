package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
	"substrate/hwinfo"
	"substrate/tests/fakecloud"
)

func small() parts { return parts{cores: 1, threads: 2, memory: 3 * gib, arch: "amd64"} }

func (c *cluster) discover(ids ...coordinator.DefinitionID) map[coordinator.DefinitionID]DiscoveryView {
	c.t.Helper()
	list, err := c.engine.Discover(c.t.Context(), c.admin, ids)
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[coordinator.DefinitionID]DiscoveryView{}
	for _, v := range list {
		out[v.Definition] = v
	}
	return out
}

func (c *cluster) reported(id coordinator.DefinitionID) bool {
	_, list, err := c.engine.Definitions(c.t.Context())
	for _, d := range list {
		if d.ID == id {
			return err == nil && d.Report != nil
		}
	}
	return false
}

// TestDiscovery: one instance for each type and image, whose report is kept; nothing is placed on it, and it is released.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large", "m5.large")
	l.hardware["c5.large"], l.hardware["m5.large"] = always(small()), always(small())
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "c5.large")+ofType("same", "c5.large")+ofType("m", "m5.large")+
		"  - {id: s, provisioner: static, provisionerSpec: {condition: 'false'}}\n"+
		"  - {id: cw, provisioner: coreweave, provisionerSpec: {instanceType: gd-8xh100ib-i128, costPerHour: 50}}\n"+
		"  - {id: q, provisioner: slurm, ttl: 24000, provisionerSpec: {cpu: 4, memory: 8GiB}}\n")
	got := c.discover()
	for id, want := range map[coordinator.DefinitionID]string{"a": DiscoveryStarted, "same": DiscoveryRunning, "m": DiscoveryStarted, "s": DiscoveryNotNeeded,
		"cw": DiscoveryNotNeeded, "q": DiscoveryNotNeeded} {
		if got[id].Outcome != want {
			t.Errorf("%s: %+v, want %s", id, got[id], want)
		}
	}
	if text := got["cw"].Text; !strings.Contains(text, "50 USD per hour") || !strings.Contains(text, "20 minutes") {
		t.Errorf("coreweave: %s", text)
	}
	if text := got["q"].Text; !strings.Contains(text, "4 cores") {
		t.Errorf("slurm: %s", text)
	}
	w := c.start(asks("cpu: {cores: 1}, memory: {size: 1GiB}"))
	c.eventually("both types are known, and everything is released", func() bool { return c.reported("a") && c.reported("same") && c.reported("m") && l.cloud.Live() == 0 })
	if got := c.discover("a")["a"]; got.Outcome != DiscoveryKnown {
		t.Errorf("asked again: %+v", got)
	}
	done := c.awaitStatus(w.ID, coordinator.StatusFinished)
	for _, ev := range c.events("") {
		if ev.Kind == "discovery-started" && strings.Contains(string(done.Jobs[0].Nodes[0]), ev.Metadata["launch"]) {
			t.Error("work was placed on a node that is for a look")
		}
	}
	c.eventually("what it has cost is told", func() bool { return c.kinds()["discovery-finished"] >= 1 && l.cloud.Live() == 0 })
	if err := c.engine.ResetHardware(t.Context(), c.admin, "a"); err != nil {
		t.Fatal(err)
	}
	if c.reported("a") || !c.reported("m") {
		t.Error("what is reset is known, or more was")
	}
	if err := c.engine.ResetHardware(t.Context(), c.admin, "a"); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("reset again: %v", err)
	}
}

// TestDiscoveryLimits: no more at one time than discovery.concurrency, and none beyond the day's budget, which counts on in the next life.
func TestDiscoveryLimits(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large", "c5.xlarge", "m5.large", "m5.xlarge")
	for _, name := range []string{"c5.large", "c5.xlarge", "m5.large", "m5.xlarge"} {
		l.hardware[name] = always(small())
	}
	l.silent = true
	st := store.NewMemory()
	yaml := "discovery: {concurrency: 1, budgetPerDay: 1.5}\ndefinitions:\n" + ofType("a", "c5.large") + ofType("b", "c5.xlarge") + ofType("c", "m5.large") + ofType("d", "m5.xlarge")
	c := l.start(st, yaml)
	// The morning of the next day, whatever the time is now: a budget is of a day.
	now := time.Now().UTC()
	morning := int64(now.Truncate(24 * time.Hour).Add(25 * time.Hour).Sub(now))
	c.ahead.Add(morning)
	c.discover() // at most 2/3 USD each: 20 min to join and 20 to settle, at 1 USD an hour
	waits := func(c *cluster, part string) int {
		n := 0
		_ = c.engine.view(t.Context(), func(s *state) {
			for _, rec := range s.discoveries {
				if strings.Contains(rec.Waits, part) {
					n++
				}
			}
		})
		return n
	}
	c.eventually("the others wait for their turn", func() bool { return l.cloud.Live() == 1 && waits(c, "discovery.concurrency") == 3 })
	c.ahead.Add(int64(41 * time.Minute)) // it never reports
	c.eventually("the next one is launched", func() bool { return l.cloud.Made() == 2 && l.cloud.Live() == 1 })
	c.close()
	c = l.start(st, "")
	c.ahead.Add(morning + int64(82*time.Minute))
	c.eventually("the budget is spent", func() bool { return l.cloud.Live() == 0 && waits(c, "discovery.budgetPerDay") == 2 })
	if !c.told("discovery-failed", "no hardware report has come within 40m0s") || l.cloud.Made() != 2 {
		t.Errorf("%d instances\n%s", l.cloud.Made(), describe(c.events("")))
	}
	l.mu.Lock()
	l.silent = false
	l.mu.Unlock()
	c.ahead.Add(int64(24 * time.Hour))
	c.eventually("the next day goes on", func() bool { return l.cloud.Made() == 4 && l.cloud.Live() == 0 })
}

// TestAutoDiscover: each configuration update has looked at what nobody has seen, and nothing twice.
func TestAutoDiscover(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large", "m5.large")
	l.hardware["c5.large"], l.hardware["m5.large"] = always(small()), always(small())
	auto := func(id, typ string) string {
		return strings.Replace(ofType(id, typ), "provisioner: aws,", "provisioner: aws, autoDiscover: true,", 1)
	}
	c := l.start(store.NewMemory(), "definitions:\n"+auto("a", "c5.large")+ofType("m", "m5.large"))
	c.eventually("the first is known", func() bool { return c.reported("a") && l.cloud.Live() == 0 })
	c.setGranted("definitions:\n" + auto("a", "c5.large") + auto("m", "m5.large"))
	c.eventually("the second is known", func() bool { return c.reported("m") && l.cloud.Live() == 0 })
	if l.cloud.Made() != 2 {
		t.Errorf("%d instances for two types", l.cloud.Made())
	}
}

// TestDiscoveryThatFails: a launch that the provider refuses, or whose answer is lost.
func TestDiscoveryThatFails(t *testing.T) {
	t.Parallel()
	l := newLab(t, "c5.large", "m5.large")
	l.hardware["c5.large"], l.hardware["m5.large"] = always(small()), always(small())
	c := l.start(store.NewMemory(), "definitions:\n"+ofType("a", "c5.large")+ofType("m", "m5.large"))
	l.cloud.Empty("c5.large", "", fakecloud.OnDemand, true)
	c.discover("a")
	c.eventually("the failure is told", func() bool { return c.told("discovery-failed", "no on-demand capacity for c5.large") })
	l.cloud.Fail(fakecloud.OpLaunch, fakecloud.Fault{Lost: true}, fakecloud.Fault{Hang: true})
	c.discover("m")
	c.eventually("it is known in the end", func() bool { return c.reported("m") && l.cloud.Live() == 0 })
	if l.cloud.Made() != 1 {
		t.Errorf("%d instances", l.cloud.Made())
	}
}

// TestDiscoverySurvivesACrash: whatever the write at which the coordinator dies, the type has one instance at a time, none is left, and it is known in the end.
func TestDiscoverySurvivesACrash(t *testing.T) {
	for n := 1; n <= 12; n++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d applied %v", n, applied), func(t *testing.T) {
				t.Parallel()
				st := &crashing{Memory: store.NewMemory(), applied: applied, dead: make(chan struct{})}
				st.left.Store(1 << 40)
				l := newLab(t, "c5.large")
				l.hardware["c5.large"] = always(small())
				c := l.start(st, "definitions:\n"+ofType("a", "c5.large"))
				st.left.Store(int64(n))
				go func() {
					select {
					case <-st.dead:
						c.stop()
					case <-c.done:
					}
				}()
				_, _ = c.engine.Discover(t.Context(), c.admin, nil)
				select {
				case <-st.dead:
				case <-time.After(1500 * time.Millisecond): // it took fewer writes
				}
				c.close()
				next := l.start(st.Memory, "")
				next.discover()
				next.eventually("it is known and nothing is left", func() bool {
					if l.cloud.Live() > 1 {
						t.Errorf("%d instances of one type", l.cloud.Live())
					}
					return next.reported("a") && l.cloud.Live() == 0 && len(next.nodes()) == 0
				})
				if l.cloud.Made() > 1 {
					t.Errorf("%d instances were made", l.cloud.Made())
				}
				if err := next.engine.view(t.Context(), func(s *state) {
					if len(s.discoveries)+len(s.joinTokens) != 0 {
						t.Errorf("left: %d wishes, %d join tokens", len(s.discoveries), len(s.joinTokens))
					}
				}); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// lookup is an instance that was launched for a look at a type, with its agent in the test's hands.
type lookup struct {
	*cluster
	lab                 *lab
	node, launch, token string
	session             *Session
}

// newLookup launches one of a type that has 8 GPUs by the catalogue, and joins.
func newLookup(t *testing.T, discovers bool) *lookup {
	l := newLab(t, "p5.48xlarge")
	l.silent = true
	booted := make(chan [3]string, 1)
	l.told = func(node, launch, token string) { booted <- [3]string{node, launch, token} }
	c := l.start(store.NewMemory(), "discovery: {settleTimeout: 15m}\ndefinitions:\n"+ofType("gpu", "p5.48xlarge"))
	c.discover("gpu")
	x := &lookup{cluster: c, lab: l}
	select {
	case b := <-booted:
		x.node, x.launch, x.token = b[0], b[1], b[2]
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is launched")
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: x.token, Node: x.node, Launch: x.launch, CSR: request(t)}); err != nil {
		t.Fatal(err)
	}
	x.connect(discovers)
	return x
}

func (x *lookup) connect(discovers bool) {
	x.t.Helper()
	s, err := x.engine.Connect(x.t.Context(), coordinator.NodeID(x.node), Hello{Version: "test", BootID: "b", Discovers: discovers})
	if err != nil {
		x.t.Fatal(err)
	}
	x.session = s
}

// report says what the machine has: GPUs with a driver, and without.
func (x *lookup) report(gpus, driverless int, final bool) (taken bool) {
	x.t.Helper()
	cores, threads, memory := 96, 192, 2000*gib
	f := hwinfo.Facts{Hostname: x.node}
	f.CPU.Cores, f.CPU.LogicalCPUs, f.Memory.Total, f.CPU.Arch = &cores, &threads, &memory, "amd64"
	for i := range gpus + driverless {
		f.GPUs = append(f.GPUs, hwinfo.GPU{Address: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: "nvidia", Resource: coordinator.DeviceNVIDIA, Driver: i < gpus})
	}
	raw, err := json.Marshal(f)
	if err != nil {
		x.t.Fatal(err)
	}
	digest := []byte(fmt.Sprintf("%d/%d", gpus, driverless))
	if err := x.session.Hardware(x.t.Context(), HardwareReport{Facts: raw, Digest: digest, Final: final}); err != nil {
		x.t.Fatal(err)
	}
	if !final {
		return x.reported("gpu")
	}
	for {
		ctx, cancel := context.WithTimeout(x.t.Context(), 10*time.Second)
		list, err := x.session.Next(ctx)
		cancel()
		if err != nil {
			x.t.Fatalf("the last report is not acknowledged: %v", err)
		}
		for _, m := range list {
			if string(m.Taken) == string(digest) {
				return x.reported("gpu")
			}
		}
	}
}

// devices is what is known of the type.
func (x *lookup) devices() uint32 {
	_, list, err := x.engine.Definitions(x.t.Context())
	if err != nil || list[0].Report == nil {
		return 0
	}
	return list[0].Report.Devices[coordinator.DeviceNVIDIA]
}

// TestDiscoveryTakesTheLastReport: what an agent says before its drivers are up does not become the row, and the agent is told what to wait for.
func TestDiscoveryTakesTheLastReport(t *testing.T) {
	t.Parallel()
	x := newLookup(t, true)
	if w := x.session.Look(); w == nil || w.Devices[coordinator.DeviceNVIDIA] != 8 || w.Within < 14*time.Minute || w.Within > 15*time.Minute {
		t.Fatalf("it is told to wait for %+v", w)
	}
	for _, early := range [][2]int{{0, 0}, {0, 8}, {3, 5}, {8, 0}} { // all that is expected, too: an agent that marks its last report knows best
		if x.report(early[0], early[1], false) {
			t.Errorf("%d GPUs with a driver and %d without are the row", early[0], early[1])
		}
	}
	x.ahead.Add(int64(10 * time.Minute))
	x.connect(true)
	if w := x.session.Look(); w.Within > 5*time.Minute {
		t.Errorf("connected again it has %s", w.Within)
	}
	if !x.report(7, 1, true) || x.devices() != 7 {
		t.Errorf("the last report is not the row: %d GPUs", x.devices())
	}
	x.report(7, 1, true) // its acknowledgement was lost
	x.eventually("it is released", func() bool { return x.lab.cloud.Live() == 0 && len(x.nodes()) == 0 })
	if !x.told("warning", "7 nvidia.com/gpu of 8") || x.kinds()["hardware-reported"] != 1 {
		t.Errorf("told:\n%s", describe(x.events("")))
	}
}

// TestDiscoveryOfAnAgentOfBefore: one that marks no report counts when it has all that is expected, or when its time is over.
func TestDiscoveryOfAnAgentOfBefore(t *testing.T) {
	t.Parallel()
	t.Run("whole", func(t *testing.T) {
		t.Parallel()
		x := newLookup(t, false)
		if x.report(0, 8, false) || x.report(4, 4, false) {
			t.Error("half of it is the row")
		}
		if !x.report(8, 0, false) || x.devices() != 8 {
			t.Error("all that is expected is not the row")
		}
	})
	t.Run("time is over", func(t *testing.T) {
		t.Parallel()
		x := newLookup(t, false)
		x.report(0, 8, false)
		x.report(2, 6, false)
		time.Sleep(100 * time.Millisecond) // lists are compared every 20 ms
		if x.reported("gpu") {
			t.Error("half of it is the row")
		}
		x.ahead.Add(int64(16 * time.Minute))
		x.eventually("what there is counts", func() bool { return x.devices() == 2 && x.lab.cloud.Live() == 0 })
	})
	t.Run("it dies before the end", func(t *testing.T) {
		t.Parallel()
		x := newLookup(t, true)
		x.report(1, 7, false)
		x.session.Close()
		x.ahead.Add(int64(16 * time.Minute))
		x.eventually("what it said counts", func() bool { return x.devices() == 1 && x.lab.cloud.Live() == 0 })
	})
}

// TestDriverComesLate: a node for work says more once its driver is up, and then that counts, for the type and for itself.
func TestDriverComesLate(t *testing.T) {
	t.Parallel()
	l := newLab(t, "p5.48xlarge")
	l.silent = true
	c := l.start(store.NewMemory(), "definitions:\n"+strings.Replace(ofType("gpu", "p5.48xlarge"), "idleTimeout: 1s", "idleTimeout: 1h", 1))
	booted := make(chan [3]string, 1)
	l.told = func(node, launch, token string) { booted <- [3]string{node, launch, token} }
	w := c.start(asks("cpu: {cores: 1}, devices: {nvidia.com/gpu: 8}, gpu-topology: any"))
	b := <-booted
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: b[2], Node: b[0], Launch: b[1], CSR: request(t)}); err != nil {
		t.Fatal(err)
	}
	x := &lookup{cluster: c, lab: l, node: b[0]}
	x.connect(false)
	if x.session.Look() != nil {
		t.Error("a node for work is told to wait")
	}
	if !x.report(0, 8, false) {
		t.Error("what a node for work says first does not count")
	}
	c.waitsFor(w.ID, "as a node of the type has reported")
	x.report(8, 0, false)
	if x.devices() != 8 {
		t.Errorf("the type has %d GPUs", x.devices())
	}
	revision, _, err := c.engine.Definitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.session.Conditions(t.Context(), ConditionReport{Revision: revision}); err != nil {
		t.Fatal(err)
	}
	c.await(w.ID, "it to be placed", func(v WorkflowView) bool { return v.Jobs[0].Status == coordinator.StatusStarting })
	if l.cloud.Made() != 1 {
		t.Errorf("%d instances", l.cloud.Made())
	}
}
