package sched

import (
	"fmt"
	"testing"
	"time"

	"substrate/coordinator"
)

// newPrey is a full fleet: 80,000 jobs of one GPU, all preemptible.
func newPrey(b *testing.B, class coordinator.Class) *Scheduler {
	b.Helper()
	s := newFleet(fleetNodes, coordinator.BackfillNone)
	config := fleetConfig(coordinator.BackfillNone)
	config.PreemptionEnabled, config.PreemptionGap, config.NoEstimates = true, 10, true
	s.Configure(config, []Definition{{ID: "gpu", CostPerHour: 3.2}}, nil)
	for i := range fleetNodes * 8 {
		r := fleetRequest(i)
		r.Class, r.Resources.Devices = class, oneGPU
		p := PlacementOf(r, Start{Nodes: []coordinator.NodeID{coordinator.NodeID(fmt.Sprintf("n%05d", i/8))}}, epoch.Add(-time.Duration(i*7919%36_000+60)*time.Second))
		p.Group, p.Preemptible, p.PreemptionsLeft = coordinator.GroupID(fmt.Sprint("g", i%fleetGroups)), true, -1
		p.Walltime = 24 * time.Hour
		s.Place(p)
	}
	s.Decide(epoch)
	return s
}

func preemptor(i int) Request {
	r := fleetRequest(i)
	r.ID, r.Class, r.Priority = coordinator.AllocationID(fmt.Sprintf("p%07d", i)), coordinator.ClassOnDemand, 1e6
	r.Preempts, r.PreemptionsLeft = []coordinator.GroupID{"g1", "g2", "g3"}, -1
	r.Resources = coordinator.Resources{Cores: 1, Devices: map[string]uint32{"nvidia.com/gpu": 1}}
	return r
}

// BenchmarkPreemptMany is one decision that makes room for fifty at once.
func BenchmarkPreemptMany(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newPrey(b, coordinator.ClassBatch)
		for i := range 50 {
			s.Submit(preemptor(i))
		}
		b.StartTimer()
		if plan := s.Decide(epoch); len(plan.Preempts) != 50 {
			b.Fatalf("%d plans", len(plan.Preempts))
		}
	}
	b.ReportMetric(50*float64(b.N)/b.Elapsed().Seconds(), "plans/s")
}

// BenchmarkPreempt is one decision that finds its victims among 80,000 running jobs on 10,000 nodes.
func BenchmarkPreempt(b *testing.B) {
	cases := []struct {
		name   string
		class  coordinator.Class
		change func(*Request)
	}{
		{"class, 1 GPU", coordinator.ClassBatch, func(r *Request) {}},
		{"class, 8 GPUs", coordinator.ClassBatch, func(r *Request) { r.Resources.Devices = map[string]uint32{"nvidia.com/gpu": 8} }},
		{"class, 4 GPUs", coordinator.ClassBatch, func(r *Request) { r.Resources.Devices = map[string]uint32{"nvidia.com/gpu": 4} }},
		{"group, 1 GPU", coordinator.ClassOnDemand, func(r *Request) {}},
		{"group, nobody gives way", coordinator.ClassOnDemand, func(r *Request) { r.Priority = -1e9 }},
		{"class, gang of 16 x 8 GPUs", coordinator.ClassBatch, func(r *Request) {
			r.Nodes, r.Resources.Devices = 16, map[string]uint32{"nvidia.com/gpu": 8}
		}},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			s := newPrey(b, c.class)
			i := 0
			for b.Loop() {
				r := preemptor(i)
				c.change(&r)
				i++
				s.Submit(r)
				plan := s.Decide(epoch)
				b.StopTimer()
				if got := len(plan.Preempts) > 0; got != (r.Priority > 0) {
					b.Fatalf("%+v", plan)
				}
				s.Withdraw(r.ID)
				s.DropHold(r.ID)
				for _, p := range plan.Preempts {
					for _, v := range p.Victims {
						s.c.claims[v.ID].ending = false
						s.c.claims[v.ID].recount(s.c)
					}
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/decision")
		})
	}
}
