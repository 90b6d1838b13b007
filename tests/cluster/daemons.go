package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"substrate/proto/apiv1"
)

// Coordinator is the daemon with its data directory. Its ports stay the same in all its lives.
type Coordinator struct {
	*Process
	Dir    string // data directory
	API    string // http://127.0.0.1:port
	Agents string // 127.0.0.1:port
	Token  string // the administrator's
	client *Client
}

// newCoordinator starts one on ports that are free; when somebody else was faster it tries others.
func newCoordinator(dir string, opt Options) (*Coordinator, error) {
	c := &Coordinator{Process: &Process{Name: "coordinator", env: opt.CoordinatorEnv, as: opt.CoordinatorAs, Log: filepath.Join(dir, "coordinator.log")}, Dir: filepath.Join(dir, "coordinator")}
	var err error
	for range 5 {
		var api, agents string
		if api, err = freePort(); err != nil {
			return nil, err
		}
		if agents, err = freePort(); err != nil {
			return nil, err
		}
		c.argv = append([]string{Program("substrate-coordinator"), "run", "--dev", "--data-dir", c.Dir,
			"--api-listen", api, "--agent-listen", agents}, opt.CoordinatorArgs...)
		for i, arg := range c.argv {
			_, port, _ := net.SplitHostPort(agents)
			c.argv[i] = strings.NewReplacer("AGENTS-PORT", port, "AGENTS", agents).Replace(arg)
		}
		c.API, c.Agents = "http://"+api, agents
		if err = c.Launch(); err != nil {
			return nil, err
		}
		if err = c.awaitFiles(UpWithin); err == nil {
			break
		}
		if !strings.Contains(c.LastWords(), "address already in use") {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(c.Dir, "admin.token"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the administrator's token: %w", err)
	}
	c.Token = strings.TrimSpace(string(token))
	if c.client, err = Dial(strings.TrimPrefix(c.API, "http://"), c.Token); err != nil {
		return nil, err
	}
	return c, c.AwaitReady(UpWithin)
}

// freePort picks an address below the range that outgoing connections take theirs from, so that it is
// still free after a restart.
func freePort() (string, error) {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if err != nil {
			continue
		}
		address := l.Addr().String()
		return address, l.Close()
	}
	return "", fmt.Errorf("cannot find a free port")
}

// Launch starts the coordinator and does not wait.
func (c *Coordinator) Launch() error {
	// An earlier life's file would say that this one is ready.
	if err := os.Remove(filepath.Join(c.Dir, "ready.json")); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("cannot start %s: %w", c.Name, err)
	}
	return c.launch()
}

// Start starts the coordinator and waits until it answers.
func (c *Coordinator) Start() error {
	if err := c.Launch(); err != nil {
		return err
	}
	return c.AwaitReady(UpWithin)
}

// Restart is Kill and Start.
func (c *Coordinator) Restart() error {
	c.Kill()
	return c.Start()
}

func (c *Coordinator) awaitFiles(within time.Duration) error {
	err := Poll(within, func(context.Context) error {
		if !c.Running() {
			return nil
		}
		data, err := os.ReadFile(filepath.Join(c.Dir, "ready.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &struct{}{})
	})
	if !c.Running() {
		return fmt.Errorf("cannot start %s: it ended\n%s", c.Name, c.LastWords())
	}
	if err != nil {
		return fmt.Errorf("cannot wait for %s any longer: %w\n%s", c.Name, err, c.LastWords())
	}
	return nil
}

// AwaitReady waits until this life of the coordinator answers.
func (c *Coordinator) AwaitReady(within time.Duration) error {
	began := time.Now()
	if err := c.awaitFiles(within); err != nil {
		return err
	}
	err := Poll(max(within-time.Since(began), time.Second), func(ctx context.Context) error {
		_, err := c.client.Identity.GetStatus(ctx, &apiv1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot wait for %s any longer: %w\n%s", c.Name, err, c.LastWords())
	}
	return nil
}

func (c *Coordinator) close() {
	if c.client != nil {
		_ = c.client.conn.Close() // nothing is left to do
	}
}

// Node is an agent with its state directory.
type Node struct {
	*Process
	Dir string // state directory
}

func newNode(dir, name, coordinator string, args []string) *Node {
	state := filepath.Join(dir, name)
	return &Node{Dir: state, Process: &Process{Name: name, Log: filepath.Join(dir, name+".log"),
		argv: append([]string{Program("substrated"), "run", "--coordinator", coordinator, "--run-as-caller", "--node", name,
			"--join-token-file", filepath.Join(dir, "coordinator", "join.token"), "--state-dir", state}, args...)}}
}

// Start starts the agent and does not wait; see Cluster.AwaitNode.
func (n *Node) Start() error { return n.launch() }

// Keepers are the living keepers of the node: one while runs are there or were a minute ago, else none.
func (n *Node) Keepers() []int {
	var pids []int
	for _, pid := range processesOf(n.Dir) {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // gone: no match
		argv := strings.Split(string(data), "\x00")
		if len(argv) > 3 && argv[1] == "keeper" && argv[3] == n.Dir {
			pids = append(pids, pid)
		}
	}
	return pids
}

// AwaitNode waits until a node is ready for work under the newest configuration.
func (c *Cluster) AwaitNode(name string) {
	c.t.Helper()
	c.AwaitNodeStatus(name, "ready")
}

// AwaitNodeStatus waits until the coordinator says this of a node.
func (c *Cluster) AwaitNodeStatus(name, status string) {
	c.t.Helper()
	Until(c.t, UpWithin, "node "+name+" to be "+status, func(ctx context.Context) error {
		n, err := c.Client().Nodes.GetNode(ctx, &apiv1.GetNodeRequest{Node: name})
		if err != nil {
			return err
		}
		if n.GetStatus() != status {
			return fmt.Errorf("%w: it is %s (%s)", errNotReady, n.GetStatus(), n.GetReason())
		}
		return nil
	})
}
