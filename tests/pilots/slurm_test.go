package pilots

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/slurm"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m)) }

// site is a coordinator beside a Slurm that it gets its nodes from.
type site struct {
	*cluster.Cluster
	t     *testing.T
	slurm *slurm.Cluster
}

const config = `
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

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, slurm: slurm.Start(t, slurm.Options{Accounting: true, MinJobAge: 30 * time.Second})}
	home := s.slurm.Home(s.slurm.User)
	for _, name := range []string{"substrate", "substrated", "substrate-coordinator"} { // where everybody can read them
		copyProgram(t, cluster.Program(name), filepath.Join(home, name))
	}
	t.Setenv("SUBSTRATE_BIN", home)
	t.Cleanup(s.tell)
	user := s.slurm.User
	s.Cluster = cluster.Start(t, cluster.Options{
		Config: config, CoordinatorEnv: s.slurm.Env(), CoordinatorAs: &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}},
		CoordinatorArgs: []string{"--pilot-agent", filepath.Join(home, "substrated"), "--launch-address", "AGENTS"},
	})
	return s
}

// tell shows, of a test that failed, what happened and what pilots wrote.
func (s *site) tell() {
	if !s.t.Failed() {
		return
	}
	if events, err := s.Client().Events(context.Background(), ""); err == nil {
		for _, e := range events {
			s.t.Logf("%s %s %s", e.GetKind(), e.GetSubject(), e.GetMessage())
		}
	}
	_ = filepath.WalkDir(s.slurm.Home(s.slurm.User), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "output") {
			if text, err := os.ReadFile(path); err == nil {
				s.t.Logf("%s:\n%s", path, text)
			}
		}
		return nil
	})
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *site) start(name, job string) string {
	s.t.Helper()
	return s.StartWorkflow(fmt.Sprintf("version: v1\nname: %s\njobs:\n  a: %s\n", name, job))
}

// squeue lists the jobs that have not ended, a line each.
func (s *site) squeue() []string {
	return strings.Fields(s.slurm.Run("squeue", "-h", "-t", "pending,running,completing,suspended", "-o", "%i:%T"))
}

// sacct lists every job that ever ran, a line each; the one that was submitted to find out what the cluster can never does.
func (s *site) sacct() []string {
	text := strings.TrimSpace(s.slurm.Run("sacct", "-n", "-X", "-P", "-o", "JobID,State,JobName"))
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func (s *site) until(within time.Duration, what string, done func() error) {
	s.t.Helper()
	cluster.Until(s.t, within, what, func(context.Context) error { return done() })
}

func (s *site) empty() error {
	if jobs := s.squeue(); len(jobs) > 0 {
		launches, _ := s.CLI("backend", "launches").CombinedOutput()
		return fmt.Errorf("in Slurm there are %v\n%s\n%s", jobs, s.slurm.Run("squeue", "-h", "-t", "all", "-o", "%i %T %r %j %k"), launches)
	}
	return nil
}

// long is for stories that `make test` leaves to `make test-peers`.
func long(t *testing.T) {
	t.Helper()
	if !cluster.FullPeers() {
		t.Skip("left to `make test-peers`")
	}
}

const small = `{command: [sh, -c, "echo on $SLURM_JOB_ID as $(id -un)"], resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`

// TestWorkflowRunsOnAPilot is the whole story: a workflow waits, a pilot is submitted to Slurm by an account without rights, its agent joins, the
// job runs there, the pilot is idle and ends.
func TestWorkflowRunsOnAPilot(t *testing.T) {
	s := newSite(t)
	w := s.start("story", small)
	s.AwaitJob(3*time.Minute, w, "a", "finished")
	out, err := s.Client().Output(t.Context(), w, "a", "stdout")
	if err != nil {
		t.Fatal(err)
	}
	if want := "as " + s.slurm.User.Name; !strings.Contains(string(out), want) {
		t.Errorf("the job says %q, want %q", out, want)
	}
	s.backendIsShown()
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	s.until(time.Minute, "its node is forgotten", func() error {
		out, err := s.CLI("node", "list", "-o", "name").Output()
		if err != nil || strings.TrimSpace(string(out)) != "" {
			return fmt.Errorf("nodes %q, %v", out, err)
		}
		return nil
	})
	if jobs := s.sacct(); len(jobs) != 1 {
		t.Errorf("Slurm ran the jobs %v, want one pilot", jobs)
	}
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

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestLostSubmission: the answer to a submission is lost, and the controller freezes; there is one pilot, and the work is done.
func TestLostSubmission(t *testing.T) {
	s := newSite(t)
	s.AwaitJob(3*time.Minute, s.start("first", small), "a", "finished") // the backend is open, its probe over
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	before := len(s.sacct())
	s.slurm.LoseReply("sbatch", 1)
	w := s.start("second", small)
	s.AwaitJob(4*time.Minute, w, "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	if jobs := s.sacct(); len(jobs) != before+1 {
		t.Errorf("Slurm had the jobs %v, want one more than %d", jobs, before)
	}
}

// TestCoordinatorDies while a pilot is on its way: it is found again, and there is one.
func TestCoordinatorDies(t *testing.T) {
	long(t)
	s := newSite(t)
	s.AwaitJob(3*time.Minute, s.start("first", small), "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	before := len(s.sacct())
	w := s.start("second", small)
	s.until(time.Minute, "a pilot is submitted", func() error {
		if len(s.squeue()) == 0 {
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
	if jobs := s.sacct(); len(jobs) != before+1 {
		t.Errorf("Slurm had the jobs %v, want one more than %d", jobs, before)
	}
}

// TestPilotOfTwoNodes: a gang of two runs on one pilot that holds two nodes.
func TestPilotOfTwoNodes(t *testing.T) {
	long(t)
	s := newSite(t)
	w := s.start("gang", `{command: [hostname], multinode: {nodes: 2}, resource: {annotations: {kind: pair}, cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`)
	s.AwaitJob(100*time.Second, w, "a", "finished")
	s.until(2*time.Minute, "the idle pilot ends", s.empty)
	if jobs := s.sacct(); len(jobs) != 1 {
		t.Errorf("Slurm ran the jobs %v, want one pilot", jobs)
	}
}
