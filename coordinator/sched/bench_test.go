package sched

import (
	"fmt"
	"testing"
	"time"

	"substrate/coordinator"
)

// fleet is nodes of 8 GPUs each and requests in 50 shapes, some with more than one GPU.
func fleet(nodes, requests, depth int, mode coordinator.Backfill) Snapshot {
	s := Snapshot{
		Now: epoch, Config: Config{Backfill: mode, PreemptionNotice: time.Minute, QueueDepth: depth},
		Definitions: []Definition{{ID: "gpu", CostPerHour: 3.2}},
	}
	for i := range nodes {
		s.Nodes = append(s.Nodes, Node{
			ID: coordinator.NodeID(fmt.Sprintf("n%05d", i)), Definition: "gpu", Cores: 128, Threads: 256,
			Memory: 1 << 40, Devices: map[string]uint32{"nvidia.com/gpu": 8}, Schedulable: true,
		})
	}
	for i := range requests {
		shape := i % 50
		gpus := uint32(1)
		if shape%10 == 9 {
			gpus = 2
		}
		s.Requests = append(s.Requests, Request{
			ID: coordinator.AllocationID(fmt.Sprintf("w%06d/job", i)), Workflow: coordinator.WorkflowID(fmt.Sprintf("w%06d", i)),
			Class: coordinator.ClassOnDemand, Submitted: epoch.Add(time.Duration(i-requests) * time.Second), Nodes: 1,
			Walltime: time.Duration(30+shape) * time.Minute, Admissible: []coordinator.DefinitionID{"gpu"},
			Resources: coordinator.Resources{Cores: coordinator.Cores(1 + shape%7), Memory: coordinator.Bytes(1+shape) << 30,
				Devices: map[string]uint32{"nvidia.com/gpu": gpus}},
		})
	}
	return s
}

func TestFleetIsFilled(t *testing.T) {
	s := fleet(100, 1000, 0, coordinator.BackfillNone)
	full := apply(s, Decide(s))
	gpus := uint32(0)
	for _, p := range full.Placements {
		gpus += p.Resources.Devices["nvidia.com/gpu"]
	}
	if gpus < 799 {
		t.Fatalf("%d of 800 GPUs are used", gpus)
	}
	if broken := checkPlan(full, Decide(full)); broken != "" {
		t.Fatal(broken)
	}
}

func BenchmarkFill(b *testing.B) {
	s := fleet(1000, 10_000, 0, coordinator.BackfillNone)
	placed := 0
	for b.Loop() {
		placed += len(Decide(s).Starts)
	}
	b.ReportMetric(float64(placed)/b.Elapsed().Seconds(), "placements/s")
}

// BenchmarkTick decides on a full cluster with 10,000 waiting: nothing starts, all is explained.
func BenchmarkTick(b *testing.B) {
	for _, mode := range []coordinator.Backfill{coordinator.BackfillNone, coordinator.BackfillEasy, coordinator.BackfillConservative} {
		for _, depth := range []int{0, 100} {
			b.Run(fmt.Sprintf("%s/depth=%d", mode, depth), func(b *testing.B) {
				s := fleet(1000, 20_000, depth, mode)
				s = apply(s, Decide(s))
				s.Now = s.Now.Add(time.Minute)
				s.Requests = s.Requests[:10_000]
				for b.Loop() {
					if n := len(Decide(s).Starts); n > 8 {
						b.Fatalf("%d started on a full cluster", n)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/tick")
			})
		}
	}
}
