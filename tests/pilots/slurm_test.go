package pilots

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/slurm"
)

const slurmConfig = `
backends:
  - {name: hpc, kind: slurm, pollInterval: 2s, allowSiteIdentity: true}
definitions:
  - id: pilot
    provisioner: slurm
    backend: hpc
    ttl: 24000
    idleTimeout: 8s
    maxNodes: 4
    provisionerSpec: {cpu: 1, memory: 500MiB, costPerHour: 1.5}
  - id: pair
    provisioner: slurm
    backend: hpc
    ttl: 24000
    idleTimeout: 8s
    annotations: {kind: pair}
    provisionerSpec: {cpu: 1, memory: 500MiB, nodes: 2, costPerHour: 9}
`

func newSlurm(t *testing.T) *site {
	t.Helper()
	return newSlurmWith(t, slurmConfig)
}

func newSlurmWith(t *testing.T, config string) *site {
	t.Helper()
	c := slurm.Start(t, slurm.Options{Accounting: true, MinJobAge: 30 * time.Second})
	s := &site{t: t, slurm: c, system: slurmSystem{c}}
	home := s.slurm.Home(s.slurm.User)
	for _, name := range []string{"substrate", "substrated", "substrate-coordinator"} { // where everybody can read them
		copyProgram(t, cluster.Program(name), filepath.Join(home, name))
	}
	t.Setenv("SUBSTRATE_BIN", home)
	t.Cleanup(s.tell)
	user := s.slurm.User
	s.Cluster = cluster.Start(t, cluster.Options{
		Config: config, CoordinatorEnv: s.slurm.Env(), CoordinatorAs: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}},
		CoordinatorArgs: []string{"--node-agent", filepath.Join(home, "substrated"), "--launch-address", "AGENTS"},
	})
	return s
}

// slurmSystem is what a test asks Slurm.
type slurmSystem struct{ *slurm.Cluster }

func (c slurmSystem) live() []string {
	return strings.Fields(c.Run("squeue", "-h", "-t", "pending,running,completing,suspended", "-o", "%i:%T"))
}

func (c slurmSystem) ever() []string {
	text := strings.TrimSpace(c.Run("sacct", "-n", "-X", "-P", "-o", "JobID,State,JobName"))
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func (c slurmSystem) show() string { return c.Run("squeue", "-h", "-t", "all", "-o", "%i %T %r %j %k") }
func (c slurmSystem) home() string { return c.Home(c.User) }

const small = `{command: [sh, -c, "echo on $SLURM_JOB_ID as $(id -un)"], resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`

// TestWorkflowRunsOnAPilot is the whole story: a workflow waits, a pilot is submitted to Slurm by an account without rights, its agent joins, the
// job runs there, the pilot is idle and ends.
func TestWorkflowRunsOnAPilot(t *testing.T) {
	s := newSlurm(t)
	w := s.start("story", small)
	s.AwaitJob(3*time.Minute, w, "a", "finished")
	out := s.output(w)
	if want := "as " + s.slurm.User.Name; !strings.Contains(out, want) {
		t.Errorf("the job says %q, want %q", out, want)
	}
	s.backendIsShown()
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	s.until(time.Minute, "its node is forgotten", s.noNodes)
	s.hasRun(1)
}

// backendIsShown reads what an administrator does.
func (s *site) backendIsShown() {
	s.t.Helper()
	var list struct {
		Backends []struct{ Name, State, Trouble string }
	}
	out, err := s.CLI("backend", "list", "-o", "json").Output()
	if err := firstOf(err, json.Unmarshal(out, &list)); err != nil || len(list.Backends) != 1 || list.Backends[0].State != "open" {
		s.t.Errorf("backend list: %v\n%s", err, out)
	}
	out, err = s.CLI("backend", "capabilities", "hpc").CombinedOutput()
	for _, want := range []string{"NodeLossWindow", "AccountingHistory", "comments are kept", "Resubmit", "resubmit", "MultiFinder"} {
		if !strings.Contains(strings.ToLower(string(out)), strings.ToLower(want)) {
			s.t.Errorf("backend capabilities does not show %s: %v\n%s", want, err, out)
		}
	}
	if out, err = s.CLI("backend", "preflight", "hpc").CombinedOutput(); err != nil || !strings.Contains(string(out), s.slurm.Version) {
		s.t.Errorf("backend preflight: %v\n%s", err, out)
	}
}

// TestLostSubmission: the answer to a submission is lost, and the controller freezes; there is one pilot, and the work is done.
func TestLostSubmission(t *testing.T) {
	s := newSlurm(t)
	s.AwaitJob(3*time.Minute, s.start("first", small), "a", "finished") // the backend is open, its probe over
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	before := len(s.system.ever())
	s.slurm.LoseReply("sbatch", 1)
	w := s.start("second", small)
	s.AwaitJob(4*time.Minute, w, "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	s.hasRun(before + 1)
}

// TestCoordinatorDies while a pilot is on its way: it is found again, and there is one.
func TestCoordinatorDies(t *testing.T) {
	long(t)
	s := newSlurm(t)
	s.AwaitJob(3*time.Minute, s.start("first", small), "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	before := len(s.system.ever())
	w := s.start("second", small)
	s.until(time.Minute, "a pilot is submitted", func() error {
		if len(s.system.live()) == 0 {
			return fmt.Errorf("none yet")
		}
		return nil
	})
	s.Coordinator.Kill()
	if err := s.Coordinator.Restart(); err != nil {
		t.Fatal(err)
	}
	s.AwaitJob(4*time.Minute, w, "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	s.hasRun(before + 1)
}

// TestPilotOfTwoNodes: a gang of two runs on one pilot that holds two nodes.
func TestPilotOfTwoNodes(t *testing.T) {
	long(t)
	s := newSlurm(t)
	w := s.start("gang", `{command: [hostname], multinode: {nodes: 2}, resource: {annotations: {kind: pair}, cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`)
	s.AwaitJob(100*time.Second, w, "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	s.hasRun(1)
}
