package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/sched"
)

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
	v.GeneratedAt = now
	err = e.view(ctx, func(s *state) {
		gpus := ""
		for _, d := range s.config.Definitions {
			c := s.definitionCapacity(d.ID)
			v.Definitions = append(v.Definitions, c)
			for _, name := range sortedKeys(c.Total.Devices) {
				if isGPU(name) {
					gpus = cmp.Or(gpus, name)
				}
			}
		}
		free := s.free(caller, now)
		snap := s.snapshot(&tx{engine: e, state: s, now: now, probing: true})
		for _, class := range []coordinator.Class{coordinator.ClassReserved, coordinator.ClassOnDemand, coordinator.ClassBatch} {
			room := free.of(class)
			c := ClassCapacity{Class: class, FreeCores: coordinator.Cores(room.cores), FreeGPUs: room.gpus}
			for _, a := range s.queued {
				if a.job.spec.Class == class {
					c.Waiting++
				}
			}
			if class == coordinator.ClassReserved {
				c.WaitMinutes = s.probeReserved(snap, caller, gpus)
			} else {
				c.WaitMinutes = s.probe(snap, class, gpus)
			}
			v.Classes = append(v.Classes, c)
		}
	})
	return v, err
}

func (s *state) definitionCapacity(id coordinator.DefinitionID) DefinitionCapacity {
	c := DefinitionCapacity{Definition: id, Total: coordinator.Hardware{Devices: map[string]uint32{}}, Free: coordinator.Hardware{Devices: map[string]uint32{}}}
	for _, n := range s.config.members[id] {
		c.Nodes++
		if !n.known || n.status() != NodeReady || len(s.windows) > 0 && s.closed(n, s.now().UTC()) {
			continue
		}
		c.Ready++
		used := s.used(n)
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
func (s *state) probe(snap sched.Snapshot, class coordinator.Class, gpu string) *float64 {
	if class == coordinator.ClassReserved {
		return nil
	}
	id := coordinator.AllocationID(fmt.Sprintf("~probe/%s", class))
	req := sched.Request{ID: id, Class: class, Submitted: snap.Now, Nodes: 1, Walltime: time.Hour,
		Resources: coordinator.Resources{Cores: 1, Memory: 1 << 30}}
	if gpu != "" {
		req.Resources.Devices = map[string]uint32{gpu: 1}
	}
	for _, d := range s.config.order {
		req.Admissible = append(req.Admissible, d)
	}
	snap.Requests = append(slices.Clip(snap.Requests), req)
	plan := sched.Decide(snap)
	wait := 0.0
	for _, st := range plan.Starts {
		if st.ID == id {
			return &wait
		}
	}
	for _, w := range plan.Waits {
		if w.ID == id && !w.EstimatedStart.IsZero() {
			wait = max(w.EstimatedStart.Sub(snap.Now).Minutes(), 0)
			return &wait
		}
	}
	return nil
}
