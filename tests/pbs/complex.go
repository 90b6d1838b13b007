package pbs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Node is one vnode of a complex.
type Node struct {
	Name      string            `json:"name"`
	Host      string            `json:"host,omitempty"` // the machine; empty: Name. Several vnodes may share one
	CPUs      int               `json:"cpus"`
	Memory    string            `json:"memory"` // "24gb"; empty: 24684092kb
	Resources map[string]string `json:"resources,omitempty"`
	Sharing   string            `json:"sharing,omitempty"` // empty: default_shared
}

// Options say what complex to start. The zero value is one host "vm" with four nodes n1 to n4 of four CPUs.
type Options struct {
	Host  string // of the server, behind every id; empty: vm
	Nodes []Node
	// History: finished jobs are kept. Off, as in a complex that was just installed, they vanish.
	History bool
	// User is who calls when PBSPEER_USER says nothing; empty: alice. root is the manager.
	User string
	Home string // of the users; empty: a directory of the test
	// Virtual and Real: the complex shows paths below Real as lying below Virtual.
	Virtual, Real string
	// Second is how long a second of the server's own waiting takes: polls of the moms every 10, kill_delay of 10,
	// node_fail_requeue of 310, a scheduler cycle every 600. Zero: 20 ms.
	Second time.Duration
	// WalltimeSecond is how long a second of a job's walltime takes. Zero: a second.
	WalltimeSecond time.Duration
	// LaterClient: qstat and pbsnodes print as the client of the master branch does.
	LaterClient bool
	// Manage are lines for qmgr, given by root at the start.
	Manage []string
}

// Peer is a complex that runs.
type Peer struct {
	t       testing.TB
	dir     string
	program string
	where   string // commands are run in; "" is where the test is
	opts    Options
	daemon  *exec.Cmd
	exited  chan error
}

// settings is config.json as the daemon reads it.
type settings struct {
	Host     string        `json:"host"`
	User     string        `json:"user"`
	Home     string        `json:"home"`
	Virtual  string        `json:"virtual,omitempty"`
	Real     string        `json:"real,omitempty"`
	Second   time.Duration `json:"second"`
	Walltime time.Duration `json:"walltime"`
	Client   string        `json:"client,omitempty"`
	Nodes    []Node        `json:"nodes"`
	History  bool          `json:"history"`
}

// Start builds the peer, starts its daemon and ends all of it with the test, jobs included.
func Start(t testing.TB, opts Options) *Peer {
	t.Helper()
	// A socket's name must be short, which directories of tests are not.
	dir, err := os.MkdirTemp("", "pbs")
	if err != nil {
		t.Fatalf("cannot start a complex: %v", err)
	}
	p := &Peer{t: t, dir: dir, program: Build(t), opts: opts}
	t.Cleanup(p.remove)
	s := settings{Host: or(opts.Host, "vm"), User: or(opts.User, "alice"), Home: opts.Home, Virtual: opts.Virtual, Real: opts.Real,
		Second: opts.Second, Walltime: opts.WalltimeSecond, Nodes: opts.Nodes, History: opts.History}
	if s.Home == "" {
		s.Home = t.TempDir()
	}
	if s.Second == 0 {
		s.Second = 20 * time.Millisecond
	}
	if s.Walltime == 0 {
		s.Walltime = time.Second
	}
	if opts.LaterClient {
		s.Client = "master"
	}
	if len(s.Nodes) == 0 {
		for i := range 4 {
			s.Nodes = append(s.Nodes, Node{Name: "n" + strconv.Itoa(i+1), CPUs: 4})
		}
	}
	for i := range s.Nodes {
		s.Nodes[i].Memory = or(s.Nodes[i].Memory, "24684092kb")
	}
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
	}
	if err == nil {
		err = exec.Command(p.program, "install", p.Bin()).Run()
	}
	if err != nil {
		t.Fatalf("cannot start a complex: %v", err)
	}
	p.StartServer()
	for _, line := range opts.Manage {
		p.Manage(line)
	}
	return p
}

func or(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

// programEnv names a program that was built before; tests that build it once set it.
const programEnv = "SUBSTRATE_PBS_PEER"

// Build makes the peer's program for a test, once in a run of tests, and returns its path.
func Build(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(programEnv); path != "" {
		return path
	}
	dir, err := os.MkdirTemp("", "pbspeer-bin-")
	if err != nil {
		t.Fatalf("cannot build the peer: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "peer")
	if err := build(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func build(path string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "substrate/tests/pbs/peer")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the peer: %w\n%s", err, out)
	}
	return nil
}

// Main is for the TestMain of packages with many complexes: it builds the program once and runs the tests.
func Main(m interface{ Run() int }) int {
	if os.Getenv(programEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "pbspeer-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build the peer:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "peer")
	err = build(path)
	if err == nil {
		err = os.Setenv(programEnv, path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Bin is the directory of the commands. They find their complex by where they lie.
func (p *Peer) Bin() string { return filepath.Join(p.dir, "bin") }

// Dir is where the complex keeps its state.
func (p *Peer) Dir() string { return p.dir }

// Env is an environment in which the commands are found first. It names the complex as well.
func (p *Peer) Env() []string {
	return append(os.Environ(), "PATH="+p.Bin()+":"+os.Getenv("PATH"), "PBSPEER_DIR="+p.dir)
}

// Output is what a command said.
type Output struct {
	Stdout, Stderr string
	Code           int // -1: killed
}

// Run runs one command as a user; an empty user is the complex's.
func (p *Peer) Run(user, name string, args ...string) Output {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.Bin(), name), args...)
	cmd.Env, cmd.Dir = p.Env(), p.where
	if user != "" {
		cmd.Env = append(cmd.Env, "PBSPEER_USER="+user)
	}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("cannot run %s: %v", name, err)
	}
	return Output{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Manage gives root's line to qmgr.
func (p *Peer) Manage(line string) {
	p.t.Helper()
	if out := p.Run("root", "qmgr", "-c", line); out.Code != 0 {
		p.t.Fatalf("cannot manage %q: %s", line, out.Stderr)
	}
}

// StartServer starts the daemon and waits until it answers. Jobs that ran meanwhile are still there.
func (p *Peer) StartServer() {
	p.t.Helper()
	if p.daemon != nil {
		return
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatalf("cannot start the server: %v", err)
	}
	defer log.Close()
	cmd := exec.Command(p.program, "serve", p.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("cannot start the server: %v", err)
	}
	p.daemon, p.exited = cmd, make(chan error, 1)
	go func() { p.exited <- cmd.Wait() }()
	for range 1000 {
		if conn, err := net.Dial("unix", filepath.Join(p.dir, "sock")); err == nil {
			conn.Close()
			return
		}
		select {
		case err := <-p.exited:
			data, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			p.t.Fatalf("cannot start the server: %v\n%s", err, data)
		case <-time.After(5 * time.Millisecond):
		}
	}
	p.t.Fatal("cannot start the server: it does not answer")
}

// StopServer ends the daemon in order. Jobs go on.
func (p *Peer) StopServer() { p.stop(syscall.SIGTERM) }

// KillServer ends the daemon as kill -9 does. Jobs go on; ids jump to the next thousand.
func (p *Peer) KillServer() { p.stop(syscall.SIGKILL) }

func (p *Peer) stop(sig syscall.Signal) {
	if p.daemon == nil {
		return
	}
	_ = p.daemon.Process.Signal(sig) // it may have gone on its own
	<-p.exited
	p.daemon = nil
}

// HangServer stops the daemon's process; commands wait for it without an end.
func (p *Peer) HangServer() { _ = p.daemon.Process.Signal(syscall.SIGSTOP) }

// WakeServer is the end of HangServer.
func (p *Peer) WakeServer() { _ = p.daemon.Process.Signal(syscall.SIGCONT) }

// order is what the daemon takes from tests.
type order struct {
	Op     string
	Text   string
	More   string
	Number int64
	Force  bool
}

func (p *Peer) control(o order) {
	p.t.Helper()
	o.Op = "control"
	conn, err := net.Dial("unix", filepath.Join(p.dir, "sock"))
	if err != nil {
		p.t.Fatalf("cannot tell the complex %q: %v", o.Text, err)
	}
	defer conn.Close()
	var r struct {
		Fail *struct{ Code int }
	}
	err = json.NewEncoder(conn).Encode(o)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&r)
	}
	if err != nil || r.Fail != nil {
		p.t.Fatalf("cannot tell the complex %q: %v %v", o.Text, err, r.Fail)
	}
}

// NodeDown kills the mom of a host: it is called down within a second, and the processes of its jobs live on.
func (p *Peer) NodeDown(host string) { p.control(order{Text: "stop-node", More: host}) }

// NodeCut pulls the network of a host: the server notices after 59 of its seconds.
func (p *Peer) NodeCut(host string) { p.control(order{Text: "cut-node", More: host}) }

// NodeUp starts the mom of a host, or plugs its network in again. A mom that starts kills the jobs it had and they
// are queued again, unless keep is set (its option -p) or only the network was away. No job starts for it: a cycle
// of the scheduler needs another event.
func (p *Peer) NodeUp(host string, keep bool) {
	p.control(order{Text: "start-node", More: host, Force: keep})
}

// Slow makes the server wait before it looks at any command.
func (p *Peer) Slow(d time.Duration) { p.control(order{Text: "slow", Number: int64(d)}) }

// LoseReply lets the next n runs of a command do their work and die before they say so.
func (p *Peer) LoseReply(command string, n int) {
	p.control(order{Text: "lose", More: command, Number: int64(n)})
}

// Advance puts the server's clock forward: start times come, histories expire.
func (p *Peer) Advance(d time.Duration) {
	p.control(order{Text: "ahead", Number: int64(d / time.Second)})
}

// Purge empties the history.
func (p *Peer) Purge() { p.control(order{Text: "purge"}) }

// NextID sets the number of the next job.
func (p *Peer) NextID(n int) { p.control(order{Text: "seq", Number: int64(n)}) }

// Epilogue lets every job's end take as many of the server's seconds.
func (p *Peer) Epilogue(seconds int) { p.control(order{Text: "epilogue", Number: int64(seconds)}) }

// Prologue is the exit code of the nodes' prologue: 1 fails the job, 2 and more let it be tried again.
func (p *Peer) Prologue(code int) { p.control(order{Text: "prologue", Number: int64(code)}) }

// Reject lets a hook refuse submissions with a text; "-" is one without a text, "" ends it.
func (p *Peer) Reject(text string) { p.control(order{Text: "reject", More: text}) }

// Slot lets the next job of one chunk start at a node's slot ("n1/3"), as after a history that nobody knows.
func (p *Peer) Slot(at string) { p.control(order{Text: "slot", More: at}) }

// Scheduler starts or stops the scheduler's daemon. The server does not tell anybody.
func (p *Peer) Scheduler(on bool) {
	n := int64(0)
	if on {
		n = 1
	}
	p.control(order{Text: "scheduler", Number: n})
}

// Cycle makes the scheduler look now.
func (p *Peer) Cycle() { p.control(order{Text: "cycle"}) }

// Sessions are the sessions of jobs with processes that live, by the job's key and run ("12.1").
func (p *Peer) Sessions() map[string]int {
	alive := map[int]bool{}
	for _, proc := range processes() {
		alive[proc.session] = true
	}
	out := map[string]int{}
	paths, _ := filepath.Glob(filepath.Join(p.dir, "mom", "*", "session"))
	for _, path := range paths {
		data, err := os.ReadFile(path)
		session, err2 := strconv.Atoi(string(data))
		if err == nil && err2 == nil && alive[session] {
			out[filepath.Base(filepath.Dir(path))] = session
		}
	}
	return out
}

// remove ends the complex and everything that it started.
func (p *Peer) remove() {
	p.stop(syscall.SIGKILL)
	// A shepherd that was about to start its job may still do so: until none is left.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		sessions := p.Sessions()
		for _, key := range slices.Sorted(maps.Keys(sessions)) {
			killSession(sessions[key])
		}
		if len(sessions) == 0 && !p.shepherds() {
			break
		}
	}
	if p.shepherds() || len(p.Sessions()) > 0 {
		p.t.Errorf("processes of the complex are left: %v", p.Sessions())
	}
	if err := os.RemoveAll(p.dir); err != nil {
		p.t.Errorf("cannot remove the complex: %v", err)
	}
}

// shepherds tells whether processes that watch over a job are left.
func (p *Peer) shepherds() bool {
	return slices.ContainsFunc(processes(), func(proc process) bool {
		return strings.Contains(proc.command, "shepherd\x00"+p.dir+"/")
	})
}

// process is a line of the system's list.
type process struct {
	pid, session int
	command      string // arguments, each with a zero behind it
}

// processes are all that live; a zombie does not.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // gone by now
		}
		f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if len(f) < 4 || f[0] == "Z" {
			continue
		}
		session, _ := strconv.Atoi(f[3])
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		out = append(out, process{pid, session, string(command)})
	}
	return out
}

// killSession kills the processes of a session.
func killSession(session int) {
	for _, proc := range processes() {
		if proc.session == session {
			_ = syscall.Kill(proc.pid, syscall.SIGKILL) // it may be gone by now
		}
	}
}
