package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reapWait is how long the end of killed processes is waited for.
const reapWait = 5 * time.Second

// Local runs commands on this machine, each in a process group of its own, which is killed as one.
type Local struct {
	env []string
}

// NewLocal takes the environment from which commands' clean ones are made, as os.Environ returns it.
func NewLocal(environ []string) *Local { return &Local{env: slices.Clone(environ)} }

// Slack is none: what was killed here is dead.
func (l *Local) Slack() time.Duration { return 0 }

// Close has nothing to end.
func (l *Local) Close() error { return nil }

// Run starts the program, found by the PATH of this transport's environment.
func (l *Local) Run(ctx context.Context, c Command) (Result, error) {
	r := Result{Exit: -1, Dead: true}
	if err := c.check(); err != nil {
		return r, err
	}
	path, err := l.find(c.Argv[0])
	if err != nil {
		return r, fmt.Errorf("cannot run %s: %w", c.Argv[0], err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	stdout, stderr := c.buffers()
	cmd := &exec.Cmd{Path: path, Args: c.Argv, Env: l.environ(c), Stdout: stdout, Stderr: stderr, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	cmd.Stdin = strings.NewReader(string(c.Stdin))
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("cannot run %s: %w", c.Argv[0], err)
	}
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("cannot run %s: %w", c.Argv[0], err)
	}
	r.Started = true
	killed, err := await(ctx, cmd)
	r.Stdout, r.Truncated = stdout.snapshot()
	r.Stderr, _ = stderr.snapshot()
	switch {
	case errors.Is(err, errAlive):
		r.Dead = false
		return r, fmt.Errorf("cannot await %s: %w: %w", c.Argv[0], killed, err)
	case cmd.ProcessState == nil:
		return r, fmt.Errorf("cannot await %s: %w", c.Argv[0], err)
	case killed != nil && exitStatus(cmd.ProcessState) == 128+int(syscall.SIGKILL):
		return r, fmt.Errorf("cannot await %s: %w: it was killed", c.Argv[0], killed)
	}
	r.Exit = exitStatus(cmd.ProcessState) // a program that ended just in time has ended
	return r, nil
}

var errAlive = errors.New("its processes were killed and have not ended")

// await waits for the command, and kills its group when the context ends first. What the program leaves behind in its group is killed
// too: nothing of a command outlives its answer.
func await(ctx context.Context, cmd *exec.Cmd) (killed, err error) {
	cmd.WaitDelay = time.Second // for outputs that somebody outside of the group holds
	exited, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		awaitExit(cmd.Process.Pid)
		close(exited)
		killGroup(cmd.Process.Pid)
		ended <- cmd.Wait()
	}()
	select {
	case <-exited:
	case <-ctx.Done():
		killed = context.Cause(ctx)
		killGroup(cmd.Process.Pid)
	}
	select {
	case err = <-ended:
	case <-time.After(reapWait):
		// In the kernel's hands, as on a file server that does not answer. The goroutine ends with the process.
		return killed, errAlive
	}
	return killed, err
}

// awaitExit waits for a child's end and leaves it unreaped, so that its number and its group's stay its own.
func awaitExit(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}

// killGroup kills the group that a child leads which is not reaped.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

func exitStatus(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return s.ExitCode()
}

func (l *Local) environ(c Command) []string {
	var env []string
	for _, name := range append(cleanNames(), c.Keep...) {
		if v, ok := lookup(l.env, name); ok {
			env = append(env, name+"="+v)
		}
	}
	return append(env, c.Env...) // later ones win
}

func lookup(env []string, name string) (value string, ok bool) {
	for _, e := range env {
		if v, is := strings.CutPrefix(e, name+"="); is {
			value, ok = v, true
		}
	}
	return value, ok
}

// find looks a program up in this transport's PATH, which need not be the process's own.
func (l *Local) find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return exec.LookPath(name)
	}
	path, _ := lookup(l.env, "PATH")
	for _, dir := range strings.Split(path, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		if found, err := exec.LookPath(dir + "/" + name); err == nil {
			return found, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}
