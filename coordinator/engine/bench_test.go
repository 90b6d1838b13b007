package engine

import (
	"fmt"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/coordinator/store"
)

// BenchmarkTrivialJobs runs a task array of jobs that end at once on one pretended node: the engine's own
// cost of a job, from submission to its last event. 64 cores bound what runs at a time.
func BenchmarkTrivialJobs(b *testing.B) {
	for name, open := range map[string]func(*testing.B) store.Store{
		"memory": func(*testing.B) store.Store { return store.NewMemory() },
		"etcd": func(b *testing.B) store.Store {
			st, err := store.OpenEmbedded(b.Context(), store.EmbeddedOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = st.Close() })
			return st
		},
	} {
		for _, jobs := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", name, jobs), func(b *testing.B) { trivialJobs(b, open(b), jobs) })
		}
	}
}

func trivialJobs(b *testing.B, st store.Store, jobs int) {
	c := newCluster(b, st)
	c.set(plainConfig)
	c.join(newHost("n1", 64, succeed))
	file := fmt.Sprintf("version: v1\nname: many\njobs:\n  t:\n    command: [x]\n    resource: {memory: {size: 1MiB}}\n    task-array: {start: 1, end: %d}\n", jobs)
	for b.Loop() {
		id := c.start(file).ID
		for done := false; !done; time.Sleep(5 * time.Millisecond) { // the list is cheap: it has no jobs
			list, _, err := c.engine.Workflows(b.Context(), c.admin, "finished", Page{Size: 1})
			if err != nil {
				b.Fatal(err)
			}
			done = len(list) == 1 && list[0].ID == id
		}
	}
	b.ReportMetric(float64(jobs)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// BenchmarkCapacity asks what is free, and how long one more job would wait, of a full cluster of 10,000 nodes on which 100,000 wait.
func BenchmarkCapacity(b *testing.B) {
	const nodes, perNode, waiting = 10_000, 8, 100_000
	now := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	one := coordinator.Resources{Cores: 1, Memory: 1 << 30, Devices: map[string]uint32{"nvidia.com/gpu": 1}}
	for _, mode := range []coordinator.Backfill{coordinator.BackfillNone, coordinator.BackfillEasy} {
		b.Run(mode.String(), func(b *testing.B) {
			s := &state{queued: map[coordinator.AllocationID]*allocation{}, config: &activeConfig{
				Config: &coordinator.Config{Definitions: []coordinator.Definition{{ID: "d"}}}, order: []coordinator.DefinitionID{"d"},
				nodesOf: map[coordinator.DefinitionID][]*node{},
			}}
			c := sched.New()
			s.core.scheduler = c
			c.Configure(sched.Config{Backfill: mode, PreemptionNotice: time.Minute}, []sched.Definition{{ID: "d"}}, nil)
			for i := range nodes {
				n := newNode(coordinator.NodeID(fmt.Sprintf("n%05d", i)))
				n.known, n.revision, n.session, n.record.Definition = true, 1, &Session{}, "d"
				n.capacity = coordinator.Hardware{Cores: 128, Threads: 256, Memory: 1 << 40, Devices: map[string]uint32{"nvidia.com/gpu": perNode}}
				s.config.nodesOf["d"] = append(s.config.nodesOf["d"], n)
				c.SetNode(n.schedNode())
				for k := range perNode {
					id := coordinator.AllocationID(fmt.Sprintf("r%06d", i*perNode+k))
					n.active[id] = &allocation{job: &job{spec: &coordinator.JobSpec{Resources: one}}}
					c.Place(sched.Placement{ID: id, Class: coordinator.ClassOnDemand, Started: now, Walltime: time.Duration(1+i*7919%40_000) * time.Second,
						Nodes: []coordinator.NodeID{n.id}, Resources: one})
				}
			}
			for i := range waiting {
				id := coordinator.AllocationID(fmt.Sprintf("w%06d", i))
				class := coordinator.ClassOnDemand + coordinator.Class(i%2)
				s.queued[id] = &allocation{job: &job{spec: &coordinator.JobSpec{Class: class, Resources: one}}}
				c.Submit(sched.Request{ID: id, Class: class, Submitted: now, Nodes: 1, Walltime: time.Duration(1+i%100) * time.Minute, Resources: one,
					Priority: float64(i % 500), Admissible: s.config.order})
			}
			c.Decide(now)
			b.ResetTimer()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				if v := s.capacity(Caller{}, now); v.Definitions[0].Ready != nodes {
					b.Fatalf("%+v", v)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/answer")
		})
	}
}
