package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a daemon that can be killed and started again with the same arguments.
type Process struct {
	Name string
	Log  string // its output, of all its lives

	argv []string
	env  []string            // besides this process's
	as   *syscall.Credential // nil is this process's
	mu   sync.Mutex
	life *life
}

// NewProcess is a daemon of another make, for tests that need a real peer: env is added to this process's
// environment, and a credential makes it run as another account.
func NewProcess(name, log string, env []string, as *syscall.Credential, argv ...string) *Process {
	return &Process{Name: name, Log: log, argv: argv, env: env, as: as}
}

// Launch starts the process; being up is for the caller to ask.
func (p *Process) Launch() error { return p.launch() }

type life struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Exit says how a process ended.
type Exit struct {
	Code   int            // -1 when a signal ended it
	Signal syscall.Signal // 0 when it exited
	After  time.Duration  // since it was asked
}

func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("signal %d after %s", int(e.Signal), e.After)
	}
	return fmt.Sprintf("exit code %d after %s", e.Code, e.After)
}

// launch starts the process in a group of its own; it dies with this one.
func (p *Process) launch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && !p.life.over() {
		return fmt.Errorf("cannot start %s: it runs", p.Name)
	}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot start %s: %w", p.Name, err)
	}
	defer out.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(withoutSubstrate(os.Environ()), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: p.as}
	l := &life{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal belongs to the thread that forked: it must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // told by ProcessState
			close(l.ended)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start %s: %w", p.Name, err)
	}
	p.life = l
	return nil
}

func (l *life) over() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (p *Process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// PID of the latest life, 0 before the first.
func (p *Process) PID() int {
	if l := p.current(); l != nil {
		return l.cmd.Process.Pid
	}
	return 0
}

// Running reports whether the process lives.
func (p *Process) Running() bool {
	l := p.current()
	return l != nil && !l.over()
}

// Kill sends SIGKILL and returns when the process is gone. It may have ended before.
func (p *Process) Kill() {
	l := p.current()
	if l == nil {
		return
	}
	_ = l.cmd.Process.Kill() // it may have ended
	<-l.ended
}

// Signal sends a signal to a process that may have ended.
func (p *Process) Signal(s syscall.Signal) {
	if l := p.current(); l != nil {
		_ = l.cmd.Process.Signal(s) // it may have ended
	}
}

// Stop sends SIGTERM and waits; a process that takes longer is killed, and an error.
func (p *Process) Stop(within time.Duration) (Exit, error) {
	l := p.current()
	if l == nil || l.over() {
		return Exit{}, fmt.Errorf("cannot stop %s: it does not run", p.Name)
	}
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return Exit{}, fmt.Errorf("cannot stop %s: %w", p.Name, err)
	}
	return p.Wait(within)
}

// Wait returns how the process ended; one that takes longer is killed, and an error.
func (p *Process) Wait(within time.Duration) (Exit, error) {
	l := p.current()
	if l == nil {
		return Exit{}, fmt.Errorf("cannot wait for %s: it was never started", p.Name)
	}
	began := time.Now()
	select {
	case <-l.ended:
	case <-time.After(within):
		p.Kill()
		return Exit{}, fmt.Errorf("cannot wait for %s any longer than %s", p.Name, within)
	}
	e := Exit{Code: l.cmd.ProcessState.ExitCode(), After: time.Since(began)}
	if ws, ok := l.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	return e, nil
}

// LastWords is the end of the process's output.
func (p *Process) LastWords() string { return string(tail(p.Log, 20)) }

// KillAll ends every process whose command line, environment or working directory is about dir: keepers by
// the first, jobs by the others. The dead may leave children, so it looks until there are none.
func KillAll(dir string) error {
	for range 100 {
		pids := processesOf(dir)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("cannot kill every process of the cluster")
}

// processesOf lists what lives of a cluster but for this process. Zombies do not count.
func processesOf(dir string) []int {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, _ := os.ReadFile(name + "/cmdline") // gone, or not ours: no match
		env, _ := os.ReadFile(name + "/environ")
		cwd, _ := os.Readlink(name + "/cwd")
		if strings.Contains(string(command), dir) || strings.Contains(string(env), dir) || strings.HasPrefix(cwd, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}
