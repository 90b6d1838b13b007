package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
)

// places are pretended batch systems by the login node that leads to them.
type places struct {
	mu   sync.Mutex
	at   map[string]*provider
	open map[string]int // connections
}

// place is a connection to one.
type place struct {
	*provider
	close func()
}

func (p place) Close() error { p.close(); return nil }

func newPlaces(t *testing.T, hosts ...string) *places {
	p := &places{at: map[string]*provider{}, open: map[string]int{}}
	for _, h := range hosts {
		p.at[h] = newProvider(t)
		p.at[h].work = func(StartRun) *RunStatus { return nil }
	}
	return p
}

func (p *places) count(host string, by int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[host] += by
	return p.open[host]
}

func (p *places) cluster(t *testing.T, st store.Store) *cluster {
	c := newClusterWith(t, st, func(o *Options) {
		o.Provisioners = Provisioners{Kinds: []string{spec.KindSlurm}, AgentAddress: func() string { return "coordinator:8443" },
			Open: func(_ context.Context, b spec.Backend, _ bool) (provision.Provisioner, error) {
				host := b.Transport.SSH.Host
				p.count(host, 1)
				return place{p.at[host], func() { p.count(host, -1) }}, nil
			}}
	})
	for _, one := range p.at {
		one.mu.Lock()
		one.c = c
		one.mu.Unlock()
		t.Cleanup(func() {
			for _, h := range one.handles() {
				_ = one.Release(context.Background(), h)
			}
		})
	}
	return c
}

func (c *cluster) setGranted(yaml string) {
	c.t.Helper()
	if _, err := c.engine.SetConfig(c.t.Context(), c.admin, SetConfig{YAML: []byte(yaml), File: "cluster.yaml", AppendGrants: true}); err != nil {
		c.t.Fatal(err)
	}
}

func sshBackend(name, host string) string {
	return fmt.Sprintf("  - {name: %s, kind: slurm, transport: {ssh: {host: %s, user: me}}}\n", name, host)
}

func sshPilot(id, backend string) string {
	return fmt.Sprintf("  - {id: %s, provisioner: slurm, backend: %s, ttl: 24000, idleTimeout: 600s, maxNodes: 4, provisionerSpec: {cpu: 32, memory: 64GiB, costPerHour: 1}}\n", id, backend)
}

// TestLaunchesLeaveTheConfiguration: a launch that a new configuration has no place for gets no new work, keeps what runs on it, and is then released
// through the connection it was made through, which is open for that long, also in the next life of the coordinator.
func TestLaunchesLeaveTheConfiguration(t *testing.T) {
	const before = "hpc"
	for name, tt := range map[string]struct{ yaml, why, elsewhere string }{
		"backend and definition are gone": {"backends:\n" + sshBackend("far", "b") + "definitions:\n" + sshPilot("remote", "far"),
			"its definition is gone from the configuration", "b"},
		"the definition is gone": {"backends:\n" + sshBackend(before, "a") + "definitions:\n  - {id: any, provisioner: static, provisionerSpec: {condition: \"false\"}}\n",
			"its definition is gone from the configuration", ""},
		"the definition has another backend": {"backends:\n" + sshBackend("far", "b") + "definitions:\n" + sshPilot("pilot", "far"),
			"nodes of its definition come from far now", "b"},
		"the backend leads elsewhere": {"backends:\n" + sshBackend(before, "b") + "definitions:\n" + sshPilot("pilot", before),
			"backend hpc leads to another place now", "b"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				t.Parallel()
				st, p := store.NewMemory(), newPlaces(t, "a", "b")
				c := p.cluster(t, st)
				c.setGranted("backends:\n" + sshBackend(before, "a") + "definitions:\n" + sshPilot("pilot", before))
				w := c.start(pilotJob)
				c.awaitStatus(w.ID, coordinator.StatusRunning)
				c.tellsOfDraining(tt.yaml, tt.why)
				c.setGranted(tt.yaml)
				if restart {
					c.close()
					c = p.cluster(t, st)
				}
				if n := c.kinds(); n["node-draining"] != 1 || n["node-releasing"] != 0 {
					t.Errorf("it is not drained, or given up with work on it: %v", n)
				}
				c.eventually("its connection is open still", func() bool { return p.count("a", 0) == 1 })
				if tt.elsewhere != "" {
					c.awaitStatus(c.start(strings.Replace(pilotJob, "name: w", "name: next", 1)).ID, coordinator.StatusRunning)
					if got := len(p.at[tt.elsewhere].handles()); got != 1 {
						t.Errorf("new work has %d nodes in the new place, want 1", got)
					}
				}
				if got := p.at["a"].handles(); len(got) != 1 {
					t.Fatalf("the old place has %v, want one with work on it", got)
				}
				c.showsOldBackend(t, before, tt.elsewhere != "")
				if _, err := c.engine.CancelWorkflow(t.Context(), c.admin, string(w.ID), ""); err != nil {
					t.Fatal(err)
				}
				c.eventually("it is released", func() bool { return len(p.at["a"].handles()) == 0 && c.kinds()["node-released"] == 1 })
				c.eventually("its connection is closed", func() bool { return p.count("a", 0) == 0 })
				if made := len(p.at["a"].launched); made != 1 {
					t.Errorf("%d launches in the old place, want 1", made)
				}
			})
		}
	}
}

// tellsOfDraining reads in the plan what a configuration does to the launch.
func (c *cluster) tellsOfDraining(yaml, why string) {
	c.t.Helper()
	plan, err := c.engine.PlanConfig(c.t.Context(), c.admin, "new.yaml", []byte(yaml), 20)
	if err != nil {
		c.t.Fatal(err)
	}
	want := "1 launches of definition pilot are drained and released, 1 of them after the work that is on them: " + why
	var got []string
	for _, d := range plan.Diagnostics {
		if d.Code == codeLaunchesDrained {
			got = append(got, d.Message)
		}
	}
	if len(got) != 1 || got[0] != want {
		c.t.Errorf("the plan says %q, want %q", got, want)
	}
}

func (c *cluster) showsOldBackend(t *testing.T, name string, gone bool) {
	t.Helper()
	list, err := c.engine.Backends(t.Context(), c.admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		if v.Name == name && v.Launches == 1 && v.Leaving == gone {
			return
		}
	}
	t.Errorf("the old backend is not shown with its launch, leaving %v: %+v", gone, list)
}

// TestLaunchBeforeItsNodeLeaves: what has not joined yet is given up at once.
func TestLaunchBeforeItsNodeLeaves(t *testing.T) {
	p := newPlaces(t, "a", "b")
	p.at["a"].silent = true
	c := p.cluster(t, store.NewMemory())
	c.setGranted("backends:\n" + sshBackend("hpc", "a") + "definitions:\n" + sshPilot("pilot", "hpc"))
	w := c.start(pilotJob)
	c.eventually("it is launched", func() bool { return len(p.at["a"].handles()) == 1 })
	c.setGranted("backends:\n" + sshBackend("far", "b") + "definitions:\n" + sshPilot("remote", "far"))
	c.eventually("it is released", func() bool { return len(p.at["a"].handles()) == 0 && p.count("a", 0) == 0 })
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	if len(p.at["b"].handles()) != 1 {
		t.Error("the work has no node in the new place")
	}
}

// TestTwoWaysToOnePlace: instances that came through one connection are nothing that another one to the same place ends.
func TestTwoWaysToOnePlace(t *testing.T) {
	p := newPlaces(t, "a")
	p.at["b"] = p.at["a"]
	c := p.cluster(t, store.NewMemory())
	c.setGranted("backends:\n" + sshBackend("hpc", "a") + sshBackend("door", "b") + "definitions:\n" + sshPilot("pilot", "hpc") + sshPilot("other", "door"))
	w := c.start(pilotJob)
	c.awaitStatus(w.ID, coordinator.StatusRunning)
	before := p.at["a"].handles()
	c.eventually("both are open", func() bool { return p.count("a", 0) == 1 && p.count("b", 0) == 1 })
	lists := p.at["a"].lists.Load()
	c.eventually("both have listed", func() bool { return p.at["a"].lists.Load() > lists+4 })
	if after := p.at["a"].handles(); len(after) != 1 || len(before) != 1 || after[0] != before[0] {
		t.Errorf("there were %v, and are %v", before, after)
	}
}
