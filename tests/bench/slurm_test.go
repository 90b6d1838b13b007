package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/slurm"
)

// BenchmarkSlurmTrivialJobs is BenchmarkTrivialJobs for a Slurm on the same machine (as root; make deps installs it):
// one array of jobs of /bin/true, from submission until all have ended. Nothing is durable beyond Slurm's own defaults,
// and accounting is off.
func BenchmarkSlurmTrivialJobs(b *testing.B) {
	const jobs = 1000
	s := startSlurm(b)
	array(b, s, 50) // daemons and caches are up
	floor := spawnFloor(b)
	done := 0
	b.ResetTimer()
	for b.Loop() {
		array(b, s, jobs)
		done += jobs
	}
	rate := float64(done) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "jobs/s")
	b.ReportMetric(floor, "spawn/s")
	b.ReportMetric(rate/floor, "of-spawn")
}

// startSlurm is one controller and one node that start jobs as fast as they can.
func startSlurm(b *testing.B) *slurm.Cluster {
	b.Helper()
	c := slurm.Start(b, slurm.Options{Nodes: 1, CPUs: 64, GPUs: -1, MinJobAge: 2 * time.Second, ExtraConf: `SelectTypeParameters=CR_Core
DefMemPerCPU=0
PriorityType=priority/basic
PreemptType=preempt/none
PreemptMode=OFF
MaxArraySize=20001
SchedulerParameters=default_queue_depth=20000,partition_job_depth=20000,sched_max_job_start=20000,sched_min_interval=100000,batch_sched_delay=1
`})
	if err := os.WriteFile(filepath.Join(c.Home(c.User), "job"), []byte("#!/bin/true\n"), 0o755); err != nil {
		b.Fatal(err)
	}
	return c
}

// array submits n tasks and waits until none of them is left in the queue as anything but ended.
func array(b *testing.B, c *slurm.Cluster, n int) {
	b.Helper()
	out, err := c.CommandAs(b.Context(), c.User, "sbatch", "--parsable", "--array=1-"+strconv.Itoa(n), "--output=/dev/null", "--chdir=/", filepath.Join(c.Home(c.User), "job")).CombinedOutput()
	if err != nil {
		b.Fatalf("sbatch: %v: %s", err, out)
	}
	id := strings.TrimSpace(string(out))
	cluster.Until(b, 5*time.Minute, "array "+id+" ended", func(ctx context.Context) error {
		out, err := c.CommandAs(ctx, c.User, "squeue", "-h", "-j", id, "-o", "%T").CombinedOutput()
		if err != nil && !strings.Contains(string(out), "Invalid job id") {
			return fmt.Errorf("squeue: %w: %s", err, out)
		}
		if left := len(strings.Fields(string(out))); err == nil && left > 0 {
			return fmt.Errorf("%d lines left", left)
		}
		return nil
	})
}
