// Package cluster runs real coordinators and agents on loopback for the tests under tests/. It asserts
// nothing of its own beyond that they come up.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// TB is what a cluster needs of a test; testing.TB has it, and testscript's environment can.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
	Failed() bool
}

// Anywhere is a configuration whose one definition takes every node.
const Anywhere = "definitions: [{id: any, provisioner: static, provisionerSpec: {condition: \"true\"}}]\n"

// UpWithin is how long a daemon may take to be ready on a busy machine.
const UpWithin = time.Minute

// Options of a cluster. The zero value is a coordinator without nodes.
type Options struct {
	Config          string              // set at the start, with its definitions granted; "" is Anywhere
	Nodes           int                 // started with the cluster: node-1, node-2, …
	Machine         Machine             // what nodes report of themselves; the zero Machine is this one
	CoordinatorArgs []string            // further flags; AGENTS in one is the address for agents, AGENTS-PORT its port
	CoordinatorEnv  []string            // besides this process's
	CoordinatorAs   *syscall.Credential // nil is this process's account
	AgentArgs       []string            // further flags of every agent
}

// Cluster is one coordinator and its nodes in one temporary directory. At the end of the test every
// process of it is killed, keepers and jobs too.
type Cluster struct {
	Dir         string
	Coordinator *Coordinator
	Nodes       []*Node

	t   TB
	opt Options
}

// Start brings up a cluster and returns when its nodes are ready.
func Start(t TB, opt Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "cluster-")
	if err != nil {
		t.Fatalf("cannot make a directory: %v", err)
	}
	c := &Cluster{Dir: dir, t: t, opt: opt}
	t.Cleanup(c.cleanUp)
	if as := opt.CoordinatorAs; as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatalf("cannot hand over a directory: %v", err)
		}
	}
	c.Coordinator, err = newCoordinator(dir, opt)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if opt.Config == "" {
		c.opt.Config = Anywhere
	}
	c.SetConfig(c.opt.Config)
	for i := range opt.Nodes {
		c.addNode(fmt.Sprintf("node-%d", i+1), nil)
	}
	for _, n := range c.Nodes {
		c.AwaitNode(n.Name)
	}
	return c
}

// AddNode starts one more agent and waits until its node is ready.
func (c *Cluster) AddNode(name string, args ...string) *Node {
	c.t.Helper()
	n := c.addNode(name, args)
	c.AwaitNode(name)
	return n
}

func (c *Cluster) addNode(name string, args []string) *Node {
	c.t.Helper()
	all := append(append([]string{}, c.opt.AgentArgs...), args...)
	if c.opt.Machine != (Machine{}) {
		root := filepath.Join(c.Dir, name+"-root")
		if err := c.opt.Machine.Write(root); err != nil {
			c.t.Fatalf("%v", err)
		}
		all = append([]string{"--root", root}, all...)
	}
	n := newNode(c.Dir, name, c.Coordinator.Agents, all)
	c.Nodes = append(c.Nodes, n)
	if err := n.Start(); err != nil {
		c.t.Fatalf("%v", err)
	}
	return n
}

// Client is a connection to the coordinator as its administrator; it survives the coordinator's restarts.
func (c *Cluster) Client() *Client { return c.Coordinator.client }

// CLI is the command line program, with server and the administrator's token in its environment and
// its own home directory.
func (c *Cluster) CLI(args ...string) *exec.Cmd {
	cmd := exec.Command(Program("substrate"), args...)
	cmd.Env = append(withoutSubstrate(os.Environ()), "SUBSTRATE_SERVER="+c.Coordinator.API,
		"SUBSTRATE_TOKEN="+c.Coordinator.Token, "HOME="+c.Dir, "XDG_CONFIG_HOME="+filepath.Join(c.Dir, "config"))
	return cmd
}

// cleanUp kills all that was started, and tells the last words of the daemons when the test has failed.
func (c *Cluster) cleanUp() {
	if c.Coordinator != nil {
		c.Coordinator.close()
		c.Coordinator.Kill()
	}
	for _, n := range c.Nodes {
		n.Kill()
	}
	if err := KillAll(c.Dir); err != nil {
		c.t.Logf("%v", err)
	}
	if c.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(c.Dir, "*.log"))
		keepers, _ := filepath.Glob(filepath.Join(c.Dir, "*", "keeper.log"))
		for _, name := range append(logs, keepers...) {
			c.t.Logf("end of %s:\n%s", strings.TrimPrefix(name, c.Dir+"/"), tail(name, 40))
		}
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		c.t.Logf("cannot remove %s: %v", c.Dir, err)
	}
}

// Until polls done until it returns nil; the test fails with its last error when that takes too long.
func Until(t TB, within time.Duration, what string, done func(context.Context) error) {
	t.Helper()
	if err := Poll(within, done); err != nil {
		t.Fatalf("waited %s for %s: %v", within, what, err)
	}
}

// Poll is Until for goroutines that must not end the test.
func Poll(within time.Duration, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var last error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := done(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // not the one that only says that time is over
		}
		select {
		case <-ctx.Done():
			return last
		case <-time.After(pause):
		}
	}
}

// tail is the last lines of a file.
func tail(name string, lines int) []byte {
	data, err := os.ReadFile(name)
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	return bytes.Join(all[max(len(all)-lines, 0):], []byte("\n"))
}

var errNotReady = errors.New("not ready")
