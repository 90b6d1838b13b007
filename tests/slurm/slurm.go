// Package slurm runs a real Slurm on loopback for tests that need one: a controller, several nodes on this machine,
// accounting where wanted, in a directory, with ports, sockets and keys of their own. It parses nothing that Slurm's
// commands say beyond what tells that daemons are up, and knows no backend.
package slurm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"substrate/tests/cluster"
)

// Options of a cluster. The zero value is four nodes without accounting. Two equal values describe equal clusters.
type Options struct {
	Name          string        // ClusterName; "" is test
	Nodes         int           // n1, n2, …; 0 is 4
	CPUs          int           // of each node; 0 is 4
	Memory        int           // MiB of each node; 0 is 4000
	GPUs          int           // of each node, named gpu:test, with device files that lead nowhere; 0 is 2, negative is none
	Accounting    bool          // slurmdbd with a database of its own, job_comment stored
	MinJobAge     time.Duration // how long ended jobs stay in squeue, at least; 0 is a minute. Slurm looks every 30 s
	SlurmdTimeout time.Duration // after which a silent node is down; 0 is 30 s
	KillWait      time.Duration // between SIGTERM and SIGKILL; 0 is 2 s
	CredentialTTL time.Duration // how long a message may be late before it is refused; 0 is 15 s
	ExtraConf     string        // lines of slurm.conf that come instead of ours, or beside them
}

func (o Options) withDefaults() Options {
	o.Name = or(o.Name, "test")
	o.Nodes, o.CPUs, o.Memory = or(o.Nodes, 4), or(o.CPUs, 4), or(o.Memory, 4000)
	o.GPUs = max(or(o.GPUs, 2), 0)
	o.MinJobAge, o.SlurmdTimeout = or(o.MinJobAge, time.Minute), or(o.SlurmdTimeout, 30*time.Second)
	o.KillWait, o.CredentialTTL = or(o.KillWait, 2*time.Second), or(o.CredentialTTL, 15*time.Second)
	return o
}

func or[T comparable](given, otherwise T) T {
	var zero T
	if given == zero {
		return otherwise
	}
	return given
}

// Cluster is one Slurm. Its commands, run through Command or found by Env, run as User, who is nobody special.
type Cluster struct {
	Dir     string
	Conf    string   // path of slurm.conf, the value of SLURM_CONF
	Version string   // 22.05.8
	Nodes   []string // n1, n2, …
	User    Account  // whose commands and jobs these are
	Other   Account  // somebody else without rights
	Options Options  // with defaults filled in

	t        cluster.TB
	ports    ports
	programs map[string]string // paths of the daemons' programs, by name
	watchdog *watchdog
	daemons  *daemons
}

// with is the same cluster for a part of the test.
func (c *Cluster) with(t cluster.TB) *Cluster {
	part := *c
	part.t = t
	return &part
}

// upWithin is how long all daemons together may take on a busy machine.
const upWithin = 2 * time.Minute

// Start brings up a cluster and returns when its nodes are idle; it ends with the test. Where Slurm is not installed
// the test fails in CI and is skipped elsewhere.
func Start(t TB, opt Options) *Cluster {
	t.Helper()
	c := start(t, opt)
	t.Cleanup(func() { c.t = t; c.close() })
	return c
}

// TB is what a cluster needs of a test; testing.TB has it.
type TB interface {
	cluster.TB
	Skipf(format string, args ...any)
}

func start(t TB, opt Options) *Cluster {
	t.Helper()
	programs := need(t)
	sweep(t)
	var err error
	for range 3 { // somebody else may take a port that was free
		var c *Cluster
		if c, err = launch(t, opt, programs); err == nil {
			return c
		}
		if !c.portTaken() {
			c.logs()
			c.close()
			break
		}
		c.close()
	}
	t.Fatalf("cannot start Slurm: %v", err)
	return nil
}

// launch makes the directory and starts all daemons. The cluster is never nil and must be closed.
func launch(t cluster.TB, opt Options, programs map[string]string) (*Cluster, error) {
	c := &Cluster{t: t, Options: opt.withDefaults(), programs: programs, daemons: newDaemons()}
	for i := range c.Options.Nodes {
		c.Nodes = append(c.Nodes, "n"+strconv.Itoa(i+1))
	}
	for _, step := range []func() error{c.makeDir, c.findAccounts, c.findPorts, c.writeConf, c.writeWrappers, c.startDaemons} {
		if err := step(); err != nil {
			return c, err
		}
	}
	out, err := c.admin("sinfo", "--version")
	if err != nil {
		return c, err
	}
	c.Version = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(out, "slurm-wlm"), "slurm"))
	return c, nil
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.Dir}, parts...)...)
}

// Env is the environment in which Slurm's commands are those of this cluster. Its PATH begins with wrappers that
// count calls and lose replies when told; called by root they become User, so that no test is root by mistake.
func (c *Cluster) Env() []string { return c.env(c.User, c.path("bin")+":") }

func (c *Cluster) env(as Account, path string) []string {
	return []string{
		"PATH=" + path + "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"SLURM_CONF=" + c.Conf, "HOME=" + c.Home(as), "USER=" + as.Name, "LOGNAME=" + as.Name, "SHELL=/bin/sh", "LANG=C.UTF-8", "TZ=UTC",
	}
}

// Home is the directory of an account on every node, where its files may be.
func (c *Cluster) Home(as Account) string { return c.path("home", as.Name) }

// Command is one of Slurm's commands, or any other, as User, in User's home, through the wrapper.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return c.command(ctx, c.User, c.path("bin")+":", name, args...)
}

// CommandAs is Command for another account; it goes past the wrappers.
func (c *Cluster) CommandAs(ctx context.Context, as Account, name string, args ...string) *exec.Cmd {
	return c.command(ctx, as, "", name, args...)
}

func (c *Cluster) command(ctx context.Context, as Account, path, name string, args ...string) *exec.Cmd {
	env := c.env(as, path)
	if wrapper := c.path("bin", name); path != "" && exists(wrapper) {
		name = wrapper
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir = env, c.Home(as)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	cmd.WaitDelay = 5 * time.Second // a child that outlives the command may hold its output
	return cmd
}

// Run is Command with its standard output; the test fails when the command does.
func (c *Cluster) Run(name string, args ...string) string {
	c.t.Helper()
	out, err := output(c.Command(context.Background(), name, args...))
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return out
}

// Submit is sbatch with a script on its standard input; it returns the job's id.
func (c *Cluster) Submit(script string, args ...string) string {
	c.t.Helper()
	cmd := c.Command(context.Background(), "sbatch", append([]string{"--parsable"}, args...)...)
	cmd.Stdin = strings.NewReader("#!/bin/sh\n" + script + "\n")
	out, err := output(cmd)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return strings.TrimSpace(out)
}

// Admin is a command as root, past the wrappers; the test fails when the command does.
func (c *Cluster) Admin(name string, args ...string) string {
	c.t.Helper()
	out, err := c.admin(name, args...)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return out
}

func (c *Cluster) admin(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return output(c.command(ctx, root(), "", name, args...))
}

// AwaitJob waits until squeue shows a job in one of the states, written as by %T.
func (c *Cluster) AwaitJob(id string, states ...string) {
	c.t.Helper()
	cluster.Until(c.t, upWithin, "job "+id+" to be "+strings.Join(states, " or "), func(ctx context.Context) error {
		out, err := output(c.command(ctx, root(), "", "squeue", "-h", "-t", "all", "-j", id, "-o", "%T %r"))
		if err != nil {
			return err
		}
		state, _, _ := strings.Cut(strings.TrimSpace(out), " ")
		for _, s := range states {
			if s == state {
				return nil
			}
		}
		return fmt.Errorf("it is %s", strings.TrimSpace(out))
	})
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("cannot run %s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
