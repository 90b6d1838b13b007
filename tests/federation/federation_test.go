package federation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// host is a network namespace with one daemon's files; all hosts are on one bridge in a namespace of its own.
type host struct {
	t       *testing.T
	name    string // of the namespace
	address string
	dir     string
	port    string // name of its end on the bridge
	bridge  string
	program string // of the coordinator; "" is the one under test
	daemon  *exec.Cmd
	argv    []string
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// needNamespaces skips, loudly, where a user cannot have them; where CI runs that is a failure.
func needNamespaces(t *testing.T) {
	t.Helper()
	probe := fmt.Sprintf("sbprobe%d%s", os.Getpid(), t.Name())
	out, err := exec.Command("ip", "netns", "add", probe).CombinedOutput()
	if err == nil {
		run(t, "ip", "netns", "del", probe)
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("network namespaces cannot be had, and CI must have them: %v %s", err, out)
	}
	t.Skipf("NOT TESTED: the federation of real processes, as network namespaces cannot be had (be root, install iproute2): %v %s", err, out)
}

// hosts makes a network of namespaces; network tells it from others of this process.
func hosts(t *testing.T, network string, names ...string) []*host {
	t.Helper()
	needNamespaces(t)
	tag := fmt.Sprintf("sb%d%s", os.Getpid()%100000, network)
	bridge := tag + "br"
	run(t, "ip", "netns", "add", bridge)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", bridge).Run() })
	run(t, "ip", "-n", bridge, "link", "add", "br0", "type", "bridge")
	run(t, "ip", "-n", bridge, "link", "set", "br0", "up")
	var out []*host
	for i, name := range names {
		h := &host{t: t, name: tag + name, address: fmt.Sprintf("10.77.0.%d", i+1), dir: t.TempDir(), port: "p" + name, bridge: bridge}
		run(t, "ip", "netns", "add", h.name)
		t.Cleanup(func() { h.kill(); _ = exec.Command("ip", "netns", "del", h.name).Run() })
		run(t, "ip", "link", "add", h.port, "netns", bridge, "type", "veth", "peer", "name", "eth0", "netns", h.name)
		run(t, "ip", "-n", bridge, "link", "set", h.port, "master", "br0", "up")
		run(t, "ip", "-n", h.name, "addr", "add", h.address+"/24", "dev", "eth0")
		run(t, "ip", "-n", h.name, "link", "set", "eth0", "up")
		run(t, "ip", "-n", h.name, "link", "set", "lo", "up")
		out = append(out, h)
	}
	return out
}

// cut takes the host off the network, or puts it back.
func (h *host) cut(off bool) {
	h.t.Helper()
	state := "up"
	if off {
		state = "down"
	}
	run(h.t, "ip", "-n", h.bridge, "link", "set", h.port, state)
}

func (h *host) in(argv ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", h.name}, argv...)...)
}

// start runs the coordinator; the API is on the host's loopback, so its tests' commands are run on the host.
func (h *host) start(args ...string) {
	h.t.Helper()
	if len(args) > 0 {
		h.argv = append([]string{cmp.Or(h.program, cluster.Program("substrate-coordinator")), "run", "--dev", "--data-dir", filepath.Join(h.dir, "data"),
			"--api-listen", "127.0.0.1:7440"}, args...)
	}
	_ = os.Remove(filepath.Join(h.dir, "data", "ready.json"))
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.daemon = h.in(h.argv...)
	h.daemon.Stdout, h.daemon.Stderr = log, log
	if err := h.daemon.Start(); err != nil {
		h.t.Fatal(err)
	}
	cluster.Until(h.t, cluster.UpWithin, h.name+" to be ready", func(context.Context) error {
		_, err := os.Stat(filepath.Join(h.dir, "data", "ready.json"))
		return err
	})
}

// kill ends the daemon without notice; `ip netns exec` becomes it, so it is the process that was started.
func (h *host) kill() {
	if h.daemon != nil {
		_ = h.daemon.Process.Kill()
		_ = h.daemon.Wait()
		h.daemon = nil
	}
}

// node starts an agent on the host, which finds a machine of four cores there.
func (h *host) node() {
	h.t.Helper()
	root := filepath.Join(h.dir, "root")
	if err := (cluster.Machine{Cores: 4, MemoryMiB: 4096}).Write(root); err != nil {
		h.t.Fatal(err)
	}
	agent := h.in(cluster.Program("substrated"), "run", "--coordinator", "127.0.0.1:7443", "--run-as-caller", "--node", "n1", "--root", root,
		"--join-token-file", filepath.Join(h.dir, "data", "join.token"), "--state-dir", filepath.Join(h.dir, "agent"))
	if err := agent.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
	h.until("the node to be ready", func(out string) bool { return strings.Contains(out, "ready") && !strings.Contains(out, "not-ready") }, "node", "list")
}

// join starts a cluster with one node and registers it with the Federate.
func (h *host) join(fed *host, name, config string) {
	h.t.Helper()
	h.start("--federation-listen", h.address+":7444")
	h.configure(config)
	h.node()
	token := h.must("cluster", "federation", "token", "create", "-o", "name")
	fed.must("cluster", "register", name, "--address", h.address+":7444", "--token", strings.Fields(token)[0])
}

// configure sets a configuration and returns what is said of it.
func (h *host) configure(text string) string {
	h.t.Helper()
	path := filepath.Join(h.dir, "c.yaml")
	write(h.t, path, text)
	return h.must("cluster", "config", "set", path)
}

// cli runs a command as the host's administrator.
func (h *host) cli(args ...string) (string, error) {
	return h.as(filepath.Join(h.dir, "data", "admin.token"), args...)
}

func (h *host) as(token string, args ...string) (string, error) {
	cmd := h.in(append([]string{cluster.Program("substrate"), "--server", "http://127.0.0.1:7440", "--token-file", token}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+h.dir, "XDG_CONFIG_HOME="+h.dir)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (h *host) must(args ...string) string {
	h.t.Helper()
	out, err := h.cli(args...)
	if err != nil {
		h.t.Fatalf("%s: substrate %s: %v\n%s", h.name, strings.Join(args, " "), err, out)
	}
	return out
}

func (h *host) until(what string, ok func(string) bool, args ...string) {
	h.t.Helper()
	cluster.Until(h.t, 90*time.Second, what, func(context.Context) error {
		out, err := h.cli(args...)
		if err == nil && !ok(out) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// workflow is a routed workflow as the Federate shows it.
type workflow struct {
	ID, Status, Cluster, Note string
}

func (h *host) workflow(id string) (w workflow) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.must("workflow", "status", id, "-o", "json")), &w); err != nil {
		h.t.Fatal(err)
	}
	return w
}

// TestFederationOfRealProcesses: one Federate, two clusters, each on a network of its own that is cut and put back,
// and everybody dies once.
func TestFederationOfRealProcesses(t *testing.T) {
	t.Parallel()
	all := hosts(t, "a", "fed", "east", "west")
	fed, clusters := all[0], all[1:]
	fed.start("--role", "federate", "--public-url", "https://fed.example:7440")
	for i, name := range []string{"east", "west"} {
		clusters[i].join(fed, name, cluster.Anywhere)
	}
	fed.must("group", "update", "default", "--priority", "7")
	file := filepath.Join(fed.dir, "w.yaml")
	write(t, file, "version: v1\nname: w\njobs: {j: {command: [/bin/sh, -c, \"echo out-of-$SUBSTRATE_JOB; sleep 1\"]}}\n")
	first := fed.must("workflow", "start", file, "-o", "name")
	fed.until("the first to finish", func(out string) bool { return strings.Contains(out, "finished") }, "workflow", "status", first)
	if out := fed.must("workflow", "log", first); !strings.Contains(out, "out-of") {
		t.Errorf("its output: %s", out)
	}
	if w := fed.workflow(first); w.Cluster != "east" {
		t.Errorf("%+v", w)
	}
	organization := ""
	for line := range strings.SplitSeq(clusters[0].must("organization", "list"), "\n") {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], "default-") {
			organization = f[0]
		}
	}
	if out := clusters[0].must("group", "list", "--organization", organization); !strings.Contains(out, " 7 ") {
		t.Errorf("the group's replica: %s", out)
	}
	if out, err := clusters[0].cli("group", "update", "default", "--organization", organization, "--priority", "1"); err == nil || !strings.Contains(out, "https://fed.example:7440") {
		t.Errorf("a replica was changed, or where to do that is not said: %v %s", err, out)
	}

	// The east is partitioned off: skipped, named, what is known is shown.
	clusters[0].cut(true)
	fed.until("the east to be gone", func(out string) bool { return strings.Contains(out, "unreachable") }, "cluster", "list")
	second := fed.must("workflow", "start", file, "-o", "name")
	if w := fed.workflow(second); w.Cluster != "west" {
		t.Errorf("%+v", w)
	}
	if out, err := fed.cli("workflow", "log", first); err == nil || !strings.Contains(out, "cluster east does not answer") {
		t.Errorf("%v %s", err, out)
	}
	if out := fed.must("workflow", "describe", second); !strings.Contains(out, "does not answer") {
		t.Errorf("the skipped cluster is not named: %s", out)
	}

	// Both sides die, the network comes back.
	fed.kill()
	clusters[1].kill()
	fed.start()
	clusters[1].start()
	clusters[0].cut(false)
	fed.until("both to answer", func(out string) bool { return strings.Count(out, " ready ") == 2 }, "cluster", "list")
	fed.until("the second to finish", func(out string) bool { return strings.Contains(out, "finished") }, "workflow", "status", second)
	out := fed.must("grant", "append", "any")
	if strings.Count(out, "done") != 2 {
		t.Errorf("%s", out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
