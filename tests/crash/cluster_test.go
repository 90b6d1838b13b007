package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/proto/apiv1"
	"substrate/tests/cluster"
)

// TestChangedConfigurationReachesNodes: no restart, and soon. The promise is two seconds on an idle
// machine; here others compute beside it.
func TestChangedConfigurationReachesNodes(t *testing.T) {
	const changes, within = 10, 5 * time.Second
	b := newBench(t, cluster.Options{Nodes: 2})
	id := b.run(job{name: "stays", script: wait("stays")})
	pid := b.pid("stays", 1)
	pids := []int{b.Coordinator.PID(), b.Nodes[0].PID(), b.Nodes[1].PID()}
	var took []time.Duration
	for i := range changes {
		want := fmt.Sprintf("d%d", i%3)
		var y strings.Builder
		y.WriteString("definitions:\n")
		for d := range 3 {
			cores := 1000 // nobody has so many
			if d == i%3 {
				cores = 1
			}
			fmt.Fprintf(&y, "  - {id: d%d, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores >= %d}}\n", d, cores)
		}
		began := time.Now()
		revision := b.SetConfig(y.String())
		cluster.Until(t, within, fmt.Sprintf("revision %d to be evaluated on the nodes", revision), func(ctx context.Context) error {
			r, err := b.Client().Nodes.ListNodes(ctx, &apiv1.ListNodesRequest{})
			if err != nil {
				return err
			}
			for _, n := range r.GetNodes() {
				if n.GetConfigurationRevision() != revision || n.GetDefinition() != want {
					return fmt.Errorf("node %s is %s by revision %d", n.GetId(), n.GetDefinition(), n.GetConfigurationRevision())
				}
			}
			return nil
		})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("from sending the configuration to seeing every node's new definition: median %s, longest %s", took[changes/2], took[changes-1])
	if now := []int{b.Coordinator.PID(), b.Nodes[0].PID(), b.Nodes[1].PID()}; !slices.Equal(now, pids) || !b.Nodes[0].Running() || !b.Nodes[1].Running() {
		t.Errorf("processes %v, before %v", now, pids)
	}
	if !alive(pid) {
		t.Error("a running job did not outlive the changes")
	}
	b.say("stays")
	b.check(id, "stays", "finished", 0, 0)
}

// TestNodeStaysAway: work on a node that is away for longer than the loss window is given up or sent
// elsewhere; when the node comes back it ends what it still runs, and the new run is not touched.
func TestNodeStaysAway(t *testing.T) {
	t.Run("agent dead", func(t *testing.T) {
		t.Parallel()
		staysAway(t, func(n *cluster.Node) { n.Kill() }, func(n *cluster.Node) error { return n.Start() })
	})
	// Like a network that drops everything: nobody closes the stream, and the agent has forgotten nothing.
	t.Run("agent frozen", func(t *testing.T) {
		t.Parallel()
		staysAway(t, func(n *cluster.Node) { n.Signal(syscall.SIGSTOP) }, func(n *cluster.Node) error { n.Signal(syscall.SIGCONT); return nil })
	})
}

func staysAway(t *testing.T, leave func(*cluster.Node), comeBack func(*cluster.Node) error) {
	const window = 2 * time.Second
	b := newBench(t, cluster.Options{Nodes: 1,
		Config: cluster.Anywhere + fmt.Sprintf("scheduler: {nodeLossWindow: %s, killTimeout: 1s}\n", window)})
	home := b.Nodes[0]
	id := b.run(
		job{name: "lost", script: wait("lost") + "exit 5\n"},
		job{name: "moves", policy: "{restart: on-node-fault}", script: "echo attempt $SUBSTRATE_ATTEMPT\n" + wait("moves") + "exit $((SUBSTRATE_ATTEMPT - 2))\n"},
		job{name: "wins", policy: "{restart: on-node-fault}", script: wait("wins") + "echo $SUBSTRATE_ATTEMPT >> $DIR/won\nexit $((10 + SUBSTRATE_ATTEMPT))\n"},
	)
	first := map[string]int{}
	for _, name := range []string{"lost", "moves", "wins"} {
		first[name] = b.pid(name, 1)
		b.AwaitJob(10*time.Second, id, name, "running")
	}
	gone := time.Now()
	leave(home)
	other := b.AddNode("node-2")
	lost := b.AwaitJob(cluster.UpWithin, id, "lost", "lost", "failed", "finished")
	if early := gone.Add(window); lost.GetEnded().AsTime().Before(early) {
		t.Errorf("given up at %s, before the window is over at %s", lost.GetEnded().AsTime(), early)
	}
	if lost.GetStatus() != "lost" || lost.ExitCode != nil || !strings.Contains(lost.GetMessage(), home.Name) {
		t.Errorf("work of a lost node: %v", lost)
	}
	second := b.pid("moves", 2)
	b.pid("wins", 2)
	for _, name := range []string{"moves", "wins"} {
		j := b.AwaitJob(20*time.Second, id, name, "running")
		if j.GetAttempt() != 2 || !slices.Equal(j.GetNodes(), []string{other.Name}) {
			t.Errorf("restartable work of a lost node: %v", j)
		}
	}
	b.AwaitNodeStatus(home.Name, "offline")
	for name, pid := range first {
		if !alive(pid) {
			t.Errorf("%s ended with its agent: the test says nothing", name)
		}
	}
	b.say("wins") // both attempts end now, and the first is reported only after the second
	won := b.AwaitJob(20*time.Second, id, "wins", "failed", "finished", "lost")
	b.awaitGone(first["wins"], 10*time.Second)
	if err := comeBack(home); err != nil {
		t.Fatal(err)
	}
	b.AwaitNode(home.Name)
	for _, name := range []string{"lost", "moves"} { // told to stop, not only forgotten
		b.awaitGone(first[name], 15*time.Second)
	}
	awaitForgotten(t, home)
	b.checkReturned(id, second, other, won)
}

// checkReturned: the node that came back has changed nothing about work that went on elsewhere.
func (b *bench) checkReturned(id string, second int, other *cluster.Node, won *apiv1.Job) {
	t := b.t
	t.Helper()
	if !alive(second) {
		t.Error("the new run ended when the old node came back")
	}
	if j := b.AwaitJob(5*time.Second, id, "moves", "running"); j.GetAttempt() != 2 || j.GetNodes()[0] != other.Name {
		t.Errorf("after the node came back: %v", j)
	}
	b.say("moves")
	j := b.AwaitJob(20*time.Second, id, "moves", "finished", "failed", "lost")
	if j.GetStatus() != "finished" || j.GetAttempt() != 2 || j.GetExitCode() != 0 {
		t.Errorf("the new run: %v", j)
	}
	if again := b.AwaitJob(5*time.Second, id, "wins", "failed"); won.GetExitCode() != 12 || again.GetExitCode() != 12 || again.GetAttempt() != 2 {
		t.Errorf("a late report changed the outcome: %v, now %v", won, again)
	}
	if again := b.AwaitJob(5*time.Second, id, "lost", "lost"); again.ExitCode != nil {
		t.Errorf("a late report changed the outcome: %v", again)
	}
	for attempt, want := range map[uint32]string{1: "attempt 1\n", 2: "attempt 2\n"} {
		out, err := b.Client().AttemptOutput(t.Context(), id, "moves", attempt, "stdout")
		if err != nil || string(out) != want {
			t.Errorf("output of attempt %d is %q, %v", attempt, out, err)
		}
	}
}

// TestNodeComesBackInTime: shorter absences cost nothing, also when the coordinator restarts meanwhile.
func TestNodeComesBackInTime(t *testing.T) {
	b := newBench(t, cluster.Options{Nodes: 1, Config: cluster.Anywhere + "scheduler: {nodeLossWindow: 30s}\n"})
	home := b.Nodes[0]
	id := b.run(job{name: "stays", policy: "{restart: on-node-fault}", script: wait("stays")})
	pid := b.pid("stays", 1)
	b.AwaitJob(10*time.Second, id, "stays", "running")
	home.Kill()
	b.AwaitNodeStatus(home.Name, "not-ready")
	if err := b.Coordinator.Restart(); err != nil {
		t.Fatal(err)
	}
	b.AddNode("node-2")
	if j, err := b.Client().Job(t.Context(), id, "stays"); err != nil || j.GetStatus() != "running" || j.GetAttempt() != 1 {
		t.Errorf("while its node is away: %v, %v", j, err)
	}
	b.start(home)
	b.AwaitNode(home.Name)
	if !alive(pid) {
		t.Error("the run ended")
	}
	b.say("stays")
	b.check(id, "stays", "finished", 0, 0)
}

// TestDirectoriesHaveOneOwner: a second daemon on the same directory says so and ends; the first goes on.
func TestDirectoriesHaveOneOwner(t *testing.T) {
	b := newBench(t, cluster.Options{Nodes: 1})
	id := b.run(job{name: "stays", script: wait("stays")})
	b.pid("stays", 1)
	agent := b.Nodes[0]
	for _, second := range []struct {
		name, dir string
		argv      []string
	}{
		{"coordinator", b.Coordinator.Dir, []string{cluster.Program("substrate-coordinator"), "run", "--dev", "--data-dir", b.Coordinator.Dir,
			"--api-listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0"}},
		{"agent", agent.Dir, []string{cluster.Program("substrated"), "run", "--coordinator", b.Coordinator.Agents, "--state-dir", agent.Dir, "--run-as-caller"}},
	} {
		code, out := refused(t, second.argv)
		if code != 1 || !strings.Contains(out, "cannot ") || !strings.Contains(out, second.dir) || !strings.Contains(out, "another") {
			t.Errorf("a second %s ended with %d and said %q", second.name, code, out)
		}
	}
	if !b.Coordinator.Running() || !agent.Running() {
		t.Fatal("the first one ended")
	}
	b.say("stays")
	b.check(id, "stays", "finished", 0, 0)
}

// refused runs a daemon that must end by itself.
func refused(t *testing.T, argv []string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if ctx.Err() != nil {
		t.Errorf("%v does not end", argv)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, string(out)
	case errors.As(err, &exit):
		return exit.ExitCode(), string(out)
	}
	t.Fatal(err)
	return 0, ""
}

// TestDamagedStore: a coordinator whose store is damaged says so and does not found another cluster.
func TestDamagedStore(t *testing.T) {
	overwrite := func(t *testing.T, file string, at int64, with []byte) {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(with, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, damage := range []struct {
		name, file string // the name's end
		do         func(t *testing.T, file string)
	}{
		{"database overwritten", "db", func(t *testing.T, file string) { overwrite(t, file, 0, make([]byte, 64<<10)) }},
		{"database cut", "db", func(t *testing.T, file string) {
			if err := os.Truncate(file, 5000); err != nil {
				t.Fatal(err)
			}
		}},
		{"log overwritten", ".wal", func(t *testing.T, file string) { overwrite(t, file, 3000, bytes.Repeat([]byte{0xa5}, 64)) }},
	} {
		t.Run(damage.name, func(t *testing.T) {
			c := cluster.Start(t, cluster.Options{})
			stopWell(t, c.Coordinator.Process)
			var file string
			err := filepath.WalkDir(filepath.Join(c.Coordinator.Dir, "store"), func(path string, d os.DirEntry, err error) error {
				if err == nil && file == "" && strings.HasSuffix(d.Name(), damage.file) {
					file = path
				}
				return err
			})
			if err != nil || file == "" {
				t.Fatalf("no file *%s: %v", damage.file, err)
			}
			damage.do(t, file)
			code, out := refused(t, []string{cluster.Program("substrate-coordinator"), "run", "--dev", "--data-dir", c.Coordinator.Dir,
				"--api-listen", "127.0.0.1:0", "--agent-listen", "127.0.0.1:0"})
			if code == 0 || strings.Contains(out, "msg=ready") || !strings.Contains(out, "cannot ") {
				t.Errorf("a coordinator on a damaged store ended with %d and said %s", code, out)
			}
			if strings.Contains(out, "goroutine ") {
				t.Errorf("it fell over: %s", out)
			}
		})
	}
}
