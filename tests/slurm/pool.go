package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"substrate/tests/cluster"
)

// Pool lends running clusters to one test after another, which saves each the start. The zero value is ready; the
// TestMain that owns it must Close it.
type Pool struct {
	mu   sync.Mutex
	idle map[Options][]*Cluster
}

// Start is like the function of that name, but the cluster may have served a test with equal options before. It is
// reset in between: daemons run, nodes are up, no job is left but ended ones, no fault waits, homes are empty, calls are
// counted from zero. What else a test tells scontrol it must take back.
func (p *Pool) Start(t TB, opt Options) *Cluster {
	t.Helper()
	c := p.take(opt)
	if c == nil {
		c = start(t, opt)
	}
	mine := c.with(t)
	t.Cleanup(func() { p.give(mine, opt) })
	return mine
}

func (p *Pool) take(opt Options) *Cluster {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.idle[opt]
	if len(list) == 0 {
		return nil
	}
	p.idle[opt] = list[:len(list)-1]
	return list[len(list)-1]
}

// give takes a cluster back; one of a failed test, or one that cannot be reset, has served.
func (p *Pool) give(c *Cluster, opt Options) {
	if c.t.Failed() {
		c.close()
		return
	}
	if err := c.reset(); err != nil {
		c.t.Logf("cannot use the cluster again: %v", err)
		c.close()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = map[Options][]*Cluster{}
	}
	p.idle[opt] = append(p.idle[opt], c.with(afterTests{}))
}

// Close ends all clusters that no test has.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.idle {
		for _, c := range list {
			c.close()
		}
	}
	p.idle = nil
}

// reset makes a cluster as good as new.
func (c *Cluster) reset() error {
	for _, name := range c.daemons.names() {
		c.daemons.get(name).Signal(syscall.SIGCONT)
	}
	if err := c.revive(); err != nil {
		return err
	}
	if err := c.poll("no job is left", c.cancelAll); err != nil {
		return err
	}
	if err := c.poll("all nodes are idle again", func(ctx context.Context) error {
		err := c.allIdle(ctx)
		if err != nil {
			_, _ = c.admin("scontrol", "update", "NodeName="+strings.Join(c.Nodes, ","), "State=RESUME") // refused for nodes that need none
		}
		return err
	}); err != nil {
		return err
	}
	c.ClearFaults()
	c.ForgetCalls()
	for _, a := range []Account{root(), c.User, c.Other} {
		if err := os.RemoveAll(c.Home(a)); err != nil {
			return fmt.Errorf("cannot empty a home: %w", err)
		}
		if err := a.own(c.Home(a), 0o755); err != nil {
			return fmt.Errorf("cannot empty a home: %w", err)
		}
	}
	left, _ := filepath.Glob(c.path("faults", "taken", "*")) // the pattern is well formed
	for _, f := range left {
		_ = os.Remove(f) // of a call that was killed
	}
	return nil
}

// revive starts what was killed.
func (c *Cluster) revive() error {
	for _, name := range []string{munge, mariadb, accounting, controller} {
		if err := c.relaunch(name); err != nil {
			return err
		}
	}
	if c.Options.Accounting {
		if err := c.poll("slurmdbd answers", c.accountingUp); err != nil {
			return err
		}
	}
	if err := c.poll("the controller answers", c.controllerUp); err != nil {
		return err
	}
	for _, name := range c.Nodes {
		if err := c.relaunch(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) relaunch(name string) error {
	p := c.daemons.get(name)
	if p == nil || p.Running() {
		return nil
	}
	if err := p.Launch(); err != nil {
		return err
	}
	c.daemons.wanted(name, true)
	return nil
}

// cancelAll cancels what is queued or runs, and reports what is left: a job may take a while to end.
func (c *Cluster) cancelAll(ctx context.Context) error {
	out, err := output(c.command(ctx, root(), "", "squeue", "-h", "-r", "-o", "%A %T"))
	if err != nil {
		return err
	}
	if out == "" {
		return nil
	}
	for _, a := range []Account{root(), c.User, c.Other} {
		if _, err := output(c.command(ctx, root(), "", "scancel", "--user="+a.Name)); err != nil {
			return err
		}
	}
	return fmt.Errorf("left:\n%s", out)
}

// afterTests is the TB of a cluster that no test has.
type afterTests struct{}

func (afterTests) Helper() {}

func (afterTests) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (afterTests) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" slurm: "+format+"\n", args...)
}

func (afterTests) Cleanup(func()) {}

func (afterTests) Failed() bool { return false }

var _ cluster.TB = afterTests{}
