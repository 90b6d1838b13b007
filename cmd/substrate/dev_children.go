package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"substrate/proto/apiv1"
)

// child is a daemon that dev started.
type child struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait, once ended
	asked chan struct{}
}

// findProgram looks beside this program, then in PATH.
func findProgram(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", failf(exitFailed, "install it, or put it beside the program substrate", "cannot find %s", name)
	}
	return path, nil
}

// startChild runs a daemon in its own process group, so that Ctrl-C reaches this program alone,
// which then ends the daemons in order; the kernel kills them should this program die first.
func startChild(name, log string, failed chan<- error, program string, args ...string) (*child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w", name, err)
	}
	c := &child{name: name, log: log, ended: make(chan struct{}), asked: make(chan struct{})}
	c.cmd = exec.Command(program, args...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = withoutSubstrate(os.Environ())
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The death signal belongs to the thread that forked: it must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		_ = out.Close() // the child has its own
		started <- err
		if err != nil {
			return
		}
		c.err = c.cmd.Wait()
		close(c.ended)
		select {
		case <-c.asked:
		default:
			failed <- c.failure()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w", name, err)
	}
	return c, nil
}

// withoutSubstrate leaves out this program's own settings: the daemons get theirs as flags.
func withoutSubstrate(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "SUBSTRATE_") {
			out = append(out, e)
		}
	}
	return out
}

func (c *child) failure() error {
	cause := "it ended"
	if c.err != nil {
		cause = c.err.Error()
	}
	return failf(exitFailed, "", "cannot keep the %s running: %s\n%s", c.name, cause, tail(c.log))
}

// end asks the child to stop and makes it, after a while.
func (c *child) end() {
	if c == nil {
		return
	}
	close(c.asked)
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.ended:
	case <-time.After(stopWithin):
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.ended
	}
}

// tail is the end of a log.
func tail(name string) string {
	const most, lines = 8 << 10, 15
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd) // at worst the beginning is shown
	}
	data, _ := io.ReadAll(io.LimitReader(f, most)) // what could be read
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "  " + string(bytes.Join(all, []byte("\n  ")))
}

// stop ends work (unless it is to be kept), the agents and then the coordinator.
func (d *dev) stop(ctx context.Context) error {
	if d.coordinator == nil {
		return nil
	}
	d.app.flush()
	var err error
	if d.app.conn != nil {
		ctx, cancel := context.WithTimeout(ctx, stopWithin)
		if d.ends() {
			err = d.cancelAll(ctx)
		} else {
			err = d.sayWhatGoesOn(ctx)
		}
		cancel()
	}
	for _, n := range d.nodes {
		n.end()
	}
	d.coordinator.end()
	if d.ends() {
		killOrphans()
	}
	if err != nil && exitCode(err) != exitUnavailable { // the coordinator may be what failed
		return err
	}
	return nil
}

// submitted are all workflows.
func (d *dev) submitted(ctx context.Context) ([]*apiv1.Workflow, error) {
	return pages(func(token string) ([]*apiv1.Workflow, string, error) {
		r, err := get(ctx, d.app, "listing the workflows", (*connection).listWorkflows, &apiv1.ListWorkflowsRequest{PageSize: 1000, PageToken: token})
		return r.GetWorkflows(), r.GetNextPageToken(), err
	})
}

// active counts the jobs of a workflow that hold resources.
func active(w *apiv1.Workflow) int {
	n := w.GetCounts()
	return int(n["starting"] + n["running"] + n["preempting"])
}

// sayWhatGoesOn tells of jobs that outlive the daemons, and how they end.
func (d *dev) sayWhatGoesOn(ctx context.Context) error {
	all, err := d.submitted(ctx)
	if err != nil {
		return err
	}
	jobs := 0
	for _, w := range all {
		jobs += active(w)
	}
	if jobs > 0 {
		d.app.warn("still running without the daemons: %s. To end what runs: substrate dev --data-dir %s --stop-jobs, then Ctrl-C",
			counted(jobs, "job"), shellWord(d.dir))
	}
	return nil
}

// cancelAll cancels what runs and waits until nothing holds resources.
func (d *dev) cancelAll(ctx context.Context) error {
	a := d.app
	asked := map[string]bool{}
	for {
		jobs := 0
		all, err := d.submitted(ctx)
		if err != nil {
			return err
		}
		for _, w := range all {
			if !ended(w.GetStatus()) && !asked[w.GetId()] {
				asked[w.GetId()] = true
				if _, err := get(ctx, a, "cancelling", (*connection).cancelWorkflow, &apiv1.CancelWorkflowRequest{Id: w.GetId()}); err != nil {
					return err
				}
			}
			jobs += active(w)
		}
		if jobs == 0 {
			return nil
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return nil // killOrphans ends the rest
		}
	}
}

// becomeSubreaper makes jobs whose agent ended children of this program.
func becomeSubreaper() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it a job may outlive a killed agent
}

// killOrphans ends jobs that outlived their cancellation: after the daemons ended, every child is one.
func killOrphans() {
	for range 50 {
		pids := children()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			if group, err := syscall.Getpgid(pid); err == nil && group == pid {
				_ = syscall.Kill(-pid, syscall.SIGKILL)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); errors.Is(err, syscall.EINTR) {
				continue
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func children() []int {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread is gone
		}
		for _, text := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(text); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
