package engine

import (
	"fmt"
	"testing"
	"time"

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
