package pilots

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/pbs"
)

const pbsConfig = `
backends:
  - {name: hpc, kind: pbs, pollInterval: 1s, credentialTTL: 3s, allowSiteIdentity: true}
definitions:
  - id: pilot
    provisioner: pbs
    backend: hpc
    ttl: 24000
    idleTimeout: 2s
    maxNodes: 4
    provisionerSpec: {cpu: 1, memory: 500MiB, costPerHour: 1.5}
  - id: pair
    provisioner: pbs
    backend: hpc
    ttl: 24000
    idleTimeout: 2s
    annotations: {kind: pair}
    provisionerSpec: {cpu: 1, memory: 500MiB, nodes: 2, costPerHour: 9}
`

// newPBS starts a complex whose jobs are processes of this account. PBS runs nothing of root's: to the complex and to the coordinator we are alice.
func newPBS(t *testing.T) *site {
	t.Helper()
	return newPBSWith(t, pbsConfig)
}

func newPBSWith(t *testing.T, config string) *site {
	t.Helper()
	t.Parallel()
	home, bin := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "id"), []byte("#!/bin/sh\necho alice\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := pbs.Start(t, pbs.Options{History: true, User: "alice", Home: home})
	// A real complex does this with a file in /etc/profile.d, as that of Debian makes a PATH of its own.
	if err := os.WriteFile(filepath.Join(home, ".profile"), []byte("PATH=$PATH:"+p.Bin()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, pbs: p, system: pbsSystem{p, home}}
	t.Cleanup(s.tell)
	s.Cluster = cluster.Start(t, cluster.Options{
		Config: config, CoordinatorEnv: append(p.Env(), "HOME="+home, "PATH="+strings.Join([]string{bin, p.Bin(), os.Getenv("PATH")}, ":")),
		CoordinatorArgs: []string{"--node-agent", cluster.Program("substrated"), "--launch-address", "AGENTS"},
	})
	return s
}

// pbsSystem is what a test asks a complex.
type pbsSystem struct {
	*pbs.Peer
	where string
}

func (p pbsSystem) live() []string { return p.jobs("qstat") }
func (p pbsSystem) home() string   { return p.where }
func (p pbsSystem) show() string   { return p.Run("", "qstat", "-x").Stdout }

func (p pbsSystem) ever() []string {
	var out []string
	for _, line := range p.jobs("qstat", "-x") {
		if !strings.Contains(line, "substrate-probe") {
			out = append(out, line)
		}
	}
	return out
}

// jobs are the lines of a table below its head of two.
func (p pbsSystem) jobs(name string, args ...string) []string {
	text := strings.TrimSpace(p.Run("", name, args...).Stdout)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")[2:]
}

const onPBS = `{command: [sh, -c, "pwd"], resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`

// TestPBSWorkflowRunsOnAPilot: as in Slurm, a workflow waits, qsub gets a pilot, its agent joins, the job runs there, the idle pilot ends.
func TestPBSWorkflowRunsOnAPilot(t *testing.T) {
	s := newPBS(t)
	w := s.start("story", onPBS)
	s.AwaitJob(time.Minute, w, "a", "finished")
	s.until(time.Minute, "the idle pilot ends", s.empty)
	s.until(time.Minute, "its node is forgotten", s.noNodes)
	s.hasRun(1)
	if dir := strings.TrimSpace(s.output(w)); !filepath.IsAbs(dir) {
		t.Errorf("the job says it ran in %q", dir)
	}
	for command, want := range map[string]string{
		"backend list": "pbs", "backend capabilities hpc": "Execution_Time in the year 2100", "backend preflight hpc": "stop the probe", "node provisioner list": "pilot",
	} {
		if out, err := s.CLI(strings.Fields(command)...).CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s does not show %s: %v\n%s", command, want, err, out)
		}
	}
}

// TestPBSLostSubmission: qsub dies with its job in the queue and its answer unsaid; there is one pilot, and the work is done.
func TestPBSLostSubmission(t *testing.T) {
	s := newPBS(t)
	s.until(time.Minute, "the backend is open, its probe over", func() error {
		out, err := s.CLI("backend", "preflight", "hpc").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "stop the probe") {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	s.pbs.LoseReply("qsub", 1)
	w := s.start("second", onPBS)
	s.AwaitJob(time.Minute, w, "a", "finished")
	s.until(time.Minute, "the idle pilot ends", s.empty)
	s.hasRun(1)
}

// TestPBSPilotOfTwoNodes: a gang of two runs on one pilot, whose script brings an agent to each of its two vnodes by pbsdsh; nothing is left.
func TestPBSPilotOfTwoNodes(t *testing.T) {
	long(t)
	s := newPBS(t)
	w := s.start("gang", `{command: [hostname], multinode: {nodes: 2}, resource: {annotations: {kind: pair}, cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`)
	var nodes []string
	s.until(time.Minute, "both nodes have joined", func() error {
		out, err := s.CLI("node", "list", "-o", "name").Output()
		if nodes = strings.Fields(string(out)); err != nil || len(nodes) != 2 {
			return fmt.Errorf("nodes %q, %v", out, err)
		}
		return nil
	})
	if !strings.HasSuffix(nodes[0], "-0") || !strings.HasSuffix(nodes[1], "-1") {
		t.Errorf("the nodes are %v, want them numbered", nodes)
	}
	s.AwaitJob(time.Minute, w, "a", "finished")
	s.until(time.Minute, "the idle pilot ends", s.empty)
	s.until(time.Minute, "its nodes are forgotten", s.noNodes)
	s.hasRun(1)
	if files, err := filepath.Glob(filepath.Join(s.system.home(), ".substrate-pilot.*")); err != nil || len(files) > 0 {
		t.Errorf("the file with the token is left: %v, %v", files, err)
	}
}
