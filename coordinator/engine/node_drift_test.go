package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// drifts lists the nodes that warn of drift, and driftEvents counts the events about it, by node.
func (c *cluster) drifts() []string {
	c.t.Helper()
	list, _, err := c.engine.Nodes(c.t.Context(), c.admin, "", Page{})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, n := range list {
		if slices.ContainsFunc(n.Warnings, func(w NodeWarning) bool { return w.Source == "drift" }) {
			out = append(out, string(n.ID))
		}
	}
	return out
}

func (c *cluster) driftEvents() map[string]int {
	c.t.Helper()
	out := map[string]int{}
	for _, ev := range c.events("") {
		if ev.Kind == "warning" && strings.HasPrefix(ev.Message, "hardware differs: ") {
			out[ev.Subject]++
		}
	}
	return out
}

func (c *cluster) report(id string, cores int, kernel string) {
	c.t.Helper()
	memory := uint64(64 << 30)
	facts := hwinfo.Facts{Hostname: id, CPU: hwinfo.CPU{Cores: &cores, LogicalCPUs: &cores}, Memory: hwinfo.Memory{Total: &memory}}
	facts.OSRelease.PrettyName = kernel
	raw, err := json.Marshal(facts)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.live(coordinator.NodeID(id))[coordinator.NodeID(id)].Hardware(c.t.Context(), HardwareReport{Facts: raw}); err != nil {
		c.t.Fatal(err)
	}
}

// TestDriftFollowsTheFirstNode: all nodes of a definition are compared with its first one as it is now,
// and a warning is an event when there is something new to say.
func TestDriftFollowsTheFirstNode(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	var leave []func()
	for _, h := range []*host{newHost("n1", 4, nil), newHost("n2", 4, nil), newHost("n3", 8, nil)} {
		leave = append(leave, c.join(h))
		awaitNode(t, c, string(h.id), NodeReady)
	}
	step := func(what string, nodes, events string) {
		t.Helper()
		if got := fmt.Sprint(c.drifts()); got != nodes {
			t.Errorf("%s: %s differ, want %s", what, got, nodes)
		}
		if got := fmt.Sprint(c.driftEvents()); got != events {
			t.Errorf("%s: events %s, want %s", what, got, events)
		}
	}
	step("one is larger", "[n3]", "map[n3:1]")
	for i := range 3 {
		c.report("n3", 8, fmt.Sprint("release ", i))
		c.report("n1", 4, fmt.Sprint("release ", i))
	}
	step("the same again", "[n3]", "map[n3:1]")
	c.report("n3", 16, "")
	step("another difference", "[n3]", "map[n3:2]")
	c.report("n1", 16, "")
	step("the first has changed", "[n2]", "map[n2:1 n3:2]")
	for _, f := range leave {
		f()
	}
	c.close()

	c = newCluster(t, st)
	step("after a restart", "[n2]", "map[n2:1 n3:2]")
}
