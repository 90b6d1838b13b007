package slurm_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/dispatchtest"
	"substrate/coordinator/dispatch/transport"
	peer "substrate/tests/slurm"
)

// asUser runs commands as a cluster's user, whoever runs the test, and loses replies when it is told.
type asUser struct {
	*transport.Local
	c  *peer.Cluster
	mu sync.Mutex
	// next is asked for each command that changes something; it returns what is to be done instead, or nil.
	next func(c transport.Command) func(ctx context.Context) (transport.Result, error)
}

func (a *asUser) Run(ctx context.Context, c transport.Command) (transport.Result, error) {
	if changes(c.Argv) {
		a.mu.Lock()
		next := a.next
		a.mu.Unlock()
		if next != nil {
			if instead := next(c); instead != nil {
				return instead(ctx)
			}
		}
	}
	return a.run(ctx, c)
}

func (a *asUser) run(ctx context.Context, c transport.Command) (transport.Result, error) {
	id := func(name string, n uint32) string { return fmt.Sprintf("--%s=%d", name, n) }
	c.Argv = append([]string{"setpriv", id("reuid", a.c.User.UID), id("regid", a.c.User.GID), "--clear-groups", "--"}, c.Argv...)
	return a.Local.Run(ctx, c)
}

func (a *asUser) on(next func(c transport.Command) func(ctx context.Context) (transport.Result, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = next
}

func changes(argv []string) bool {
	return argv[0] == "sbatch" || argv[0] == "scancel" || argv[0] == "scontrol" && (argv[1] == "update" || argv[1] == "release" || argv[1] == "requeue")
}

// lost is what a caller sees of a command that was killed at its deadline.
func lost() (transport.Result, error) {
	return transport.Result{Exit: -1, Started: true, Dead: true}, fmt.Errorf("the reply is lost: %w", context.DeadlineExceeded)
}

// lose has the next change land, or not, or late: then the controller is stopped while the client calls and is killed.
func (a *asUser) lose(l dispatchtest.Landing) {
	a.on(func(c transport.Command) func(ctx context.Context) (transport.Result, error) {
		a.on(nil)
		return func(ctx context.Context) (transport.Result, error) {
			switch l {
			case dispatchtest.Lands:
				_, _ = a.run(context.WithoutCancel(ctx), c)
			case dispatchtest.LandsLate, dispatchtest.LandsTooLate:
				a.c.StopController()
				r, err := a.run(ctx, c)
				if l == dispatchtest.LandsTooLate { // not before the credential's time is over
					time.Sleep(a.c.Options.CredentialTTL + 3*time.Second)
				}
				a.c.ContinueController()
				return r, err
			}
			return lost()
		}
	})
}

// crash loses the reply of a step of Requeue; after the first the next is not made.
func (a *asUser) crash(step int) {
	words := map[int]string{1: "scontrol requeue", 2: "scontrol requeue", 3: "Requeue=0"}[step]
	a.on(func(c transport.Command) func(ctx context.Context) (transport.Result, error) {
		if !strings.Contains(strings.Join(c.Argv, " "), words) {
			return nil
		}
		a.on(nil)
		return func(ctx context.Context) (transport.Result, error) {
			if step > 1 {
				_, _ = a.run(ctx, c)
			}
			return lost()
		}
	})
}

// stateSaved is more than slurmctld takes to write down a change, which is five seconds by its source.
const stateSaved = 8 * time.Second

func faults(c *peer.Cluster, r *asUser) dispatchtest.Faults {
	f := dispatchtest.Faults{
		LoseReply: func(t *testing.T, l dispatchtest.Landing) {
			if !full() && (l == dispatchtest.LandsNever || l == dispatchtest.LandsTooLate) {
				t.Skip("takes as long as a call may be late; make test-peers runs it")
			}
			r.lose(l)
		},
		CrashRequeue: func(_ *testing.T, step int) { r.crash(step) },
		OperatorHold: func(_ *testing.T, id dispatch.ObjectID, on bool) {
			verb := "release"
			if on {
				verb = "hold"
			}
			c.Admin("scontrol", verb, string(id))
		},
	}
	if full() { // what disturbs others, or takes minutes
		f.Unavailable = func(_ *testing.T, on bool) {
			if on {
				// A controller that dies forgets what it took on just before: it writes its state some seconds later.
				time.Sleep(stateSaved)
				c.KillController()
			} else {
				c.StartController()
			}
		}
		f.NodeDown = func(_ *testing.T, node string) { c.KillNode(node) }
		f.NodeUp = func(_ *testing.T, node string) { c.StartNode(node) }
		f.Kill = func(t *testing.T, _ string) { killJobs(t, c) }
		f.End = func(t *testing.T, id dispatch.ObjectID, cause dispatch.Cause) { end(t, c, id, cause) }
	}
	return f
}

// end has a job of a higher partition take all nodes.
func end(t *testing.T, c *peer.Cluster, id dispatch.ObjectID, cause dispatch.Cause) {
	if cause != dispatch.CausePreempted {
		t.Skip("needs control groups, without which Slurm ends nothing for its memory")
	}
	urgent := c.Submit("exec sleep 600", "--partition=urgent", "--nodes="+fmt.Sprint(len(c.Nodes)), "--exclusive", "--output=/dev/null")
	t.Cleanup(func() { c.Run("scancel", urgent) })
	c.AwaitJob(string(id), "PREEMPTED")
}

// jobProcesses are the processes of jobs on this machine that belong to the cluster.
func jobProcesses(c *peer.Cluster) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well formed
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, []byte("SLURM_CONF="+c.Conf+"\x00")) || !bytes.Contains(env, []byte("SLURM_JOB_ID=")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(f)), "%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func killJobs(t *testing.T, c *peer.Cluster) {
	t.Helper()
	for range 50 {
		list := jobProcesses(c)
		if len(list) == 0 {
			return
		}
		for _, pid := range list {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("processes of jobs live on: %v", jobProcesses(c))
}

// cessation is a command that looks for a job's processes, as somebody with the nodes' consoles could.
func cessation(t *testing.T, c *peer.Cluster) string {
	t.Helper()
	file := filepath.Join(c.Dir, "ceased")
	script := "#!/bin/sh\nfor e in /proc/[0-9]*/environ; do\n  tr '\\0' '\\n' 2>/dev/null <$e | grep -qx \"SLURM_JOB_ID=$1\" && exit 3\ndone\nexit 0\n"
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}
