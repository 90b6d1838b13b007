package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
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
