package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

// BenchmarkSlurmTrivialJobs is BenchmarkTrivialJobs for a Slurm on the same machine (slurmctld, slurmd, slurm-client,
// munge; as root): one array of jobs of /bin/true, from submission until all have ended. Nothing is durable beyond
// Slurm's own defaults, and accounting is off.
func BenchmarkSlurmTrivialJobs(b *testing.B) {
	const jobs = 1000
	s := startSlurm(b)
	s.array(b, 50) // daemons and caches are up
	floor := spawnFloor(b)
	done := 0
	b.ResetTimer()
	for b.Loop() {
		s.array(b, jobs)
		done += jobs
	}
	rate := float64(done) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "jobs/s")
	b.ReportMetric(floor, "spawn/s")
	b.ReportMetric(rate/floor, "of-spawn")
}

// slurm is one controller and one node in a directory of its own.
type slurm struct{ dir string }

func startSlurm(b *testing.B) *slurm {
	b.Helper()
	for _, program := range []string{"slurmctld", "slurmd", "sbatch", "munged"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skipf("no Slurm to compare with: %v; apt-get install slurmctld slurmd slurm-client munge", err)
		}
	}
	if os.Geteuid() != 0 {
		b.Skip("no Slurm to compare with: its daemons run as root")
	}
	dir, err := os.MkdirTemp("", "slurm-")
	if err != nil {
		b.Fatal(err)
	}
	s := &slurm{dir: dir}
	b.Cleanup(func() { os.RemoveAll(dir) })
	s.munge(b)
	s.configure(b)
	s.daemon(b, "slurmctld", "-D", "-f", s.path("slurm.conf"))
	s.daemon(b, "slurmd", "-D", "-N", "node", "-f", s.path("slurm.conf"))
	cluster.Until(b, time.Minute, "the Slurm node is idle", func(ctx context.Context) error {
		out, err := s.command(ctx, "sinfo", "-h", "-o", "%T").CombinedOutput()
		if err == nil && strings.TrimSpace(string(out)) != "idle" {
			err = fmt.Errorf("state %q", out)
		}
		return err
	})
	return s
}

func (s *slurm) path(name string) string { return filepath.Join(s.dir, name) }

// munge authenticates Slurm's messages. It wants an account that is not root, and directories of that account alone.
func (s *slurm) munge(b *testing.B) {
	b.Helper()
	account, err := user.Lookup("munge")
	if err != nil {
		b.Skipf("no Slurm to compare with: %v", err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	dir := s.path("munge")
	for _, err := range []error{
		os.Chmod(s.dir, 0o755), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("k", 1024)), 0o400),
		os.Chown(dir, uid, gid), os.Chown(filepath.Join(dir, "key"), uid, gid),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	cmd := exec.Command("setpriv", "--reuid", account.Uid, "--regid", account.Gid, "--clear-groups",
		"munged", "--foreground", "--key-file="+at("key"), "--socket="+at("socket"), "--pid-file="+at("pid"),
		"--log-file="+at("log"), "--seed-file="+at("seed"), "--num-threads=10")
	s.run(b, cmd)
	cluster.Until(b, 10*time.Second, "munge answers", func(context.Context) error { _, err := os.Stat(at("socket")); return err })
}

func (s *slurm) configure(b *testing.B) {
	b.Helper()
	host, err := os.Hostname()
	if err != nil {
		b.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	text := fmt.Sprintf(`ClusterName=bench
SlurmctldHost=%[1]s(127.0.0.1)
SlurmctldPort=27817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[2]s/munge/socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool
SlurmctldPidFile=%[2]s/ctld.pid
SlurmdPidFile=%[2]s/d.pid
SlurmctldLogFile=%[2]s/ctld.log
SlurmdLogFile=%[2]s/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MinJobAge=2
MaxArraySize=20001
ReturnToService=2
SchedulerParameters=default_queue_depth=20000,partition_job_depth=20000,sched_max_job_start=20000,sched_min_interval=100000,batch_sched_delay=1
NodeName=node NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=27818 CPUs=64
PartitionName=all Nodes=node Default=YES MaxTime=INFINITE State=UP
`, host, s.dir)
	for _, err := range []error{
		os.WriteFile(s.path("slurm.conf"), []byte(text), 0o644), os.Mkdir(s.path("state"), 0o755), os.Mkdir(s.path("spool"), 0o755),
		os.WriteFile(s.path("job"), []byte("#!/bin/true\n"), 0o755),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
}

func (s *slurm) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.path("slurm.conf"))
	return cmd
}

func (s *slurm) daemon(b *testing.B, name string, args ...string) {
	b.Helper()
	s.run(b, s.command(context.Background(), name, args...))
}

// run starts a process that ends with the benchmark.
func (s *slurm) run(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// array submits n tasks and waits until none of them is left in the queue as anything but ended.
func (s *slurm) array(b *testing.B, n int) {
	b.Helper()
	out, err := s.command(b.Context(), "sbatch", "--parsable", "--array=1-"+strconv.Itoa(n), "--output=/dev/null", "--chdir=/", s.path("job")).CombinedOutput()
	if err != nil {
		b.Fatalf("sbatch: %v: %s", err, out)
	}
	id := strings.TrimSpace(string(out))
	cluster.Until(b, 5*time.Minute, "array "+id+" ended", func(ctx context.Context) error {
		out, err := s.command(ctx, "squeue", "-h", "-j", id, "-o", "%T").CombinedOutput()
		if err != nil && !strings.Contains(string(out), "Invalid job id") {
			return fmt.Errorf("squeue: %w: %s", err, out)
		}
		if left := len(strings.Fields(string(out))); err == nil && left > 0 {
			return fmt.Errorf("%d lines left", left)
		}
		return nil
	})
}
