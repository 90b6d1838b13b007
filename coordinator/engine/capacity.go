package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/sched"
)

// CapacityView is what is free now, from the same state the scheduler decides on.
type CapacityView struct {
	GeneratedAt time.Time
	Definitions []DefinitionCapacity
	Classes     []ClassCapacity
}

// DefinitionCapacity sums the nodes of one definition.
type DefinitionCapacity struct {
	Definition   coordinator.DefinitionID
	Nodes, Ready int
	Total, Free  coordinator.Hardware
}

// ClassCapacity is one class's view. WaitMinutes is nil when unknown.
type ClassCapacity struct {
	Class       coordinator.Class
	FreeCores   coordinator.Cores
	FreeGPUs    uint32
	Waiting     int
	WaitMinutes *float64
}

// isGPU tells GPU device names: "nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi".
func isGPU(device string) bool {
	return strings.HasSuffix(device, "/gpu") || strings.HasSuffix(device, "/gaudi")
}

// Capacity is what is free now and how long one more small job would wait, from the same decision that
// places work: the two cannot disagree.
func (e *Engine) Capacity(ctx context.Context, caller Caller) (v CapacityView, err error) {
	if err := caller.authorize(auth.PermissionUser, "show capacity", auth.Target{}); err != nil {
		return v, err
	}
	now := e.opt.Now().UTC()
	err = e.view(ctx, func(s *state) { v = s.capacity(caller, now) })
	return v, err
}

func (s *state) capacity(caller Caller, now time.Time) CapacityView {
	v := CapacityView{GeneratedAt: now}
	gpus := ""
	free := s.freeLook(caller, now)
	for _, d := range s.config.Definitions {
		c := s.definitionCapacity(d.ID, free.add)
		v.Definitions = append(v.Definitions, c)
		for _, name := range slices.Sorted(maps.Keys(c.Total.Devices)) {
			if isGPU(name) {
				gpus = cmp.Or(gpus, name)
			}
		}
	}
	for _, class := range []coordinator.Class{coordinator.ClassReserved, coordinator.ClassOnDemand, coordinator.ClassBatch} {
		room := free.of(class)
		c := ClassCapacity{Class: class, FreeCores: coordinator.Cores(room.cores), FreeGPUs: room.gpus}
		if s.core.scheduler != nil {
			c.Waiting = s.core.scheduler.Length(class)
		}
		if class == coordinator.ClassReserved {
			c.WaitMinutes = s.probeReserved(caller, gpus, now)
		} else {
			c.WaitMinutes = s.probe(class, gpus, now, Caller{}, "")
		}
		v.Classes = append(v.Classes, c)
	}
	return v
}

// definitionCapacity looks at the nodes of a definition; each is told of those that take work, with what is used of them.
func (s *state) definitionCapacity(id coordinator.DefinitionID, each func(n *node, used coordinator.Hardware)) DefinitionCapacity {
	c := DefinitionCapacity{Definition: id, Total: coordinator.Hardware{Devices: map[string]uint32{}}, Free: coordinator.Hardware{Devices: map[string]uint32{}}}
	for _, n := range s.config.nodesOf[id] {
		c.Nodes++
		if !n.known || n.status() != NodeReady || len(s.openWindows) > 0 && s.closed(n, s.now().UTC()) {
			continue
		}
		c.Ready++
		used := s.used(n)
		each(n, used)
		c.Total.Cores += n.capacity.Cores
		c.Total.Threads += n.capacity.Threads
		c.Total.Memory += n.capacity.Memory
		c.Free.Cores += n.capacity.Cores - min(used.Cores, n.capacity.Cores)
		c.Free.Threads += n.capacity.Threads - min(used.Threads, n.capacity.Threads)
		c.Free.Memory += n.capacity.Memory - min(used.Memory, n.capacity.Memory)
		for name, k := range n.capacity.Devices {
			c.Total.Devices[name] += k
			c.Free.Devices[name] += k - min(used.Devices[name], k)
		}
	}
	return c
}

// probe asks the core when a one-GPU job (one core without GPUs) of a class would start if it came now;
// nil when that is not known.
func (s *state) probe(class coordinator.Class, gpu string, now time.Time, c Caller, group coordinator.GroupID) *float64 {
	if s.core.scheduler == nil {
		return nil
	}
	req := sched.Request{ID: coordinator.AllocationID(fmt.Sprintf("~probe/%s", class)), Class: class, Submitted: now, Nodes: 1, Walltime: time.Hour,
		Resources: coordinator.Resources{Cores: 1, Memory: 1 << 30}, Admissible: s.config.order, Organization: c.Organization, Group: group}
	if gpu != "" {
		req.Resources.Devices = map[string]uint32{gpu: 1}
	}
	p, ok := s.core.scheduler.WhatIf(req, now)
	if !ok || p.Start == nil && p.Wait.EstimatedStart.IsZero() {
		return nil
	}
	wait := 0.0
	if p.Start == nil {
		wait = max(p.Wait.EstimatedStart.Sub(now).Minutes(), 0)
	}
	return &wait
}
