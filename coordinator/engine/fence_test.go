package engine

import (
	"encoding/json"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// orders connects a node that knows of no run and returns the first start it is ordered.
func (c *cluster) orders(id coordinator.NodeID) StartRun {
	c.t.Helper()
	s, err := c.engine.Connect(c.t.Context(), id, Hello{Version: "test", BootID: "boot", RunsAsCaller: true})
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	h := newHost(string(id), 1, nil)
	memory := uint64(1 << 30)
	facts := hwinfo.Facts{Hostname: string(id)}
	facts.CPU.Cores, facts.CPU.LogicalCPUs, facts.Memory.Total = &h.cores, &h.cores, &memory
	raw, err := json.Marshal(facts)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := s.Hardware(c.t.Context(), HardwareReport{Facts: raw}); err != nil {
		c.t.Fatal(err)
	}
	for {
		messages, err := s.Next(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		for _, m := range messages {
			if m.Start != nil {
				return *m.Start
			}
			if m.Configuration != nil {
				if err := h.handle(c.t.Context(), s, m); err != nil {
					c.t.Fatal(err)
				}
			}
		}
	}
}

func TestOrdersAfterARestartCarryNoEarlierFence(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	c.start("version: v1\nname: w\njobs:\n  j: {command: [x], resource: {memory: {size: 1MiB}}}\n")
	first := c.orders("n1")
	c.close()
	second := newCluster(t, st).orders("n1")
	if second.Run != first.Run {
		t.Errorf("ordered %s, then %s: wanted the same run again", first.Run, second.Run)
	}
	if second.Fence < first.Fence || second.Fence == 0 {
		t.Errorf("fence %d after a restart, %d before: the node refuses the order", second.Fence, first.Fence)
	}
}
