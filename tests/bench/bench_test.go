package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// node is a machine large enough that cores never are what a trivial job waits for.
func node() cluster.Machine { return cluster.Machine{Cores: 64, MemoryMiB: 1 << 18} }

// BenchmarkTrivialJobs runs task arrays of /bin/true through the whole path: durable submission, decision,
// agent, process, output, durable end. spawn/s is what this machine reaches with bare fork, exec and wait,
// measured in the same run, so that figures of different machines can be compared.
func BenchmarkTrivialJobs(b *testing.B) {
	const jobs = 1000
	c := cluster.Start(b, cluster.Options{Nodes: 1, Machine: node()})
	file := fmt.Sprintf(`version: v1
name: trivial
jobs:
  t:
    command: ["/bin/true"]
    resource: {cpu: {cores: 1}, memory: {size: 16MiB}}
    task-array: {start: 1, end: %d}
`, jobs)
	finish(b, c, c.StartWorkflow(strings.Replace(file, strconv.Itoa(jobs), "50", 1)), 50) // keeper and caches are up
	floor := spawnFloor(b)
	done := 0
	b.ResetTimer()
	for b.Loop() {
		finish(b, c, c.StartWorkflow(file), jobs)
		done += jobs
	}
	rate := float64(done) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "jobs/s")
	b.ReportMetric(floor, "spawn/s")
	b.ReportMetric(rate/floor, "of-spawn")
}

// finish waits until a workflow has ended and all its jobs have finished.
func finish(b *testing.B, c *cluster.Cluster, id string, jobs uint32) {
	b.Helper()
	cluster.Until(b, 5*time.Minute, "workflow "+id+" finished", func(ctx context.Context) error {
		list, err := c.Client().Workflows.ListWorkflows(ctx, &apiv1.ListWorkflowsRequest{PageSize: 1})
		if err != nil {
			return err
		}
		for _, w := range list.GetWorkflows() {
			if w.GetId() == id && w.GetCounts()["finished"] == jobs {
				return nil
			}
		}
		return fmt.Errorf("not yet: %v", list.GetWorkflows()[0].GetCounts())
	})
}

// spawnFloor is how many processes a second this machine can fork, exec and wait for, two at a time.
func spawnFloor(b *testing.B) float64 {
	b.Helper()
	const each = 300
	began := time.Now()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range each {
				if err := exec.Command("/bin/true").Run(); err != nil {
					b.Errorf("cannot run true: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	return 2 * each / time.Since(began).Seconds()
}

// BenchmarkSubmitToStart submits 100 one-job workflows a second for ten seconds, whatever the answers
// (open loop), and reports the time from submission to the start of the process.
func BenchmarkSubmitToStart(b *testing.B) {
	const rate, seconds = 100, 10
	c := cluster.Start(b, cluster.Options{Nodes: 1, Machine: node()})
	file := []byte(`version: v1
name: one
jobs:
  t:
    command: ["/bin/true"]
    resource: {cpu: {cores: 1}, memory: {size: 16MiB}}
`)
	finish(b, c, c.StartWorkflow(string(file)), 1)
	var waits []time.Duration
	for b.Loop() {
		waits = append(waits, openLoop(b, c, file, rate*seconds, time.Second/rate)...)
	}
	slices.Sort(waits)
	at := func(q float64) float64 { return float64(waits[int(q*float64(len(waits)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.5), "median-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
}

// openLoop submits at fixed times and returns every job's wait.
func openLoop(b *testing.B, c *cluster.Cluster, file []byte, n int, every time.Duration) []time.Duration {
	b.Helper()
	ids := make([]string, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		time.Sleep(time.Until(began.Add(time.Duration(i) * every)))
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			r, err := c.Client().Workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: file, File: "one.yaml"})
			if err != nil {
				b.Errorf("submission %d: %v", i, err)
				return
			}
			ids[i] = r.GetWorkflow().GetId()
		})
	}
	wg.Wait()
	waits := make([]time.Duration, 0, n)
	for _, id := range ids {
		cluster.Until(b, time.Minute, "start of "+id, func(ctx context.Context) error {
			w, err := c.Client().Workflows.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: id})
			if err != nil {
				return err
			}
			if w.GetStarted() == nil {
				return fmt.Errorf("job is %s", w.GetStatus())
			}
			waits = append(waits, between(w.GetSubmitted(), w.GetStarted()))
			return nil
		})
	}
	return waits
}

func between(a, b *timestamppb.Timestamp) time.Duration { return b.AsTime().Sub(a.AsTime()) }

// hundredDefinitions is a configuration that gives each node a hundred conditions to evaluate; the last one is true.
func hundredDefinitions() string {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i := range 99 {
		fmt.Fprintf(&b, "  - {id: rack-%02d, provisioner: static, provisionerSpec: {condition: 'cpuinfo.vendor_id == \"GenuineIntel\" && hostname() matches \"^rack%02d-[0-9]+$\" && osrelease.version_id == \"%d\"'}}\n", i, i, i)
	}
	b.WriteString("  - {id: any, provisioner: static, provisionerSpec: {condition: \"true\"}}\n")
	return b.String()
}

// BenchmarkFootprint reports the memory of idle daemons, the agent's with a hundred conditions, and how long an
// agent takes from its start to its node being ready: joined, reported, conditions evaluated and answered.
func BenchmarkFootprint(b *testing.B) {
	var ready time.Duration
	var agent, coordinator float64
	runs := 0
	for b.Loop() {
		c := cluster.Start(b, cluster.Options{Nodes: 1, Config: hundredDefinitions()})
		n := c.Nodes[0]
		if _, err := n.Stop(10 * time.Second); err != nil {
			b.Fatal(err)
		}
		c.AwaitNodeStatus(n.Name, "not-ready")
		began := time.Now()
		if err := n.Start(); err != nil {
			b.Fatal(err)
		}
		c.AwaitNode(n.Name)
		ready += time.Since(began)
		time.Sleep(2 * time.Second) // idle
		agent += rss(b, n.PID())
		coordinator += rss(b, c.Coordinator.PID())
		runs++
	}
	b.ReportMetric(float64(ready.Milliseconds())/float64(runs), "ready-ms")
	b.ReportMetric(agent/float64(runs), "agent-MB")
	b.ReportMetric(coordinator/float64(runs), "coordinator-MB")
}

// rss is a process's resident memory in MB.
func rss(b *testing.B, pid int) float64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb / 1000
		}
	}
	b.Fatalf("process %d has no VmRSS", pid)
	return 0
}
