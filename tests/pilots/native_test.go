package pilots

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	nativeSlurm = `
backends:
  - {name: hpc, kind: slurm, pollInterval: 1s, allowSiteIdentity: true}
definitions:
  - id: queue
    provisioner: slurm
    backend: hpc
    idleTimeout: 2s
    provisionerSpec: {cpu: 1, memory: 500MiB, mode: native, costPerHour: 1.5, extraDirectives: ["--nice=5"]}
`
	nativePBS = `
backends:
  - {name: hpc, kind: pbs, pollInterval: 1s, credentialTTL: 3s, allowSiteIdentity: true}
definitions:
  - id: queue
    provisioner: pbs
    backend: hpc
    idleTimeout: 2s
    provisionerSpec: {cpu: 1, memory: 500MiB, mode: native, costPerHour: 1.5}
`
	// odd is what no shell, command or database on the way may change.
	odd = "it's \"$HOME\" `id` \\n é\r\n%d\t*"

	asks = `resource: {cpu: {cores: 1}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}`
)

// tellsAll is a job that gives back what it was given, and ends with a code of its own.
func tellsAll() string {
	return fmt.Sprintf(`{command: [sh, -c, 'printf "%%s|%%s|%%s" "$1" "$V" "$SUBSTRATE_JOB_NAME"; echo oops >&2; exit 3', sh, %q], env: [%q], %s}`, odd, "V="+odd, asks)
}

func runs(script string) string { return fmt.Sprintf(`{script: %q, %s}`, script, asks) }

// handedOver is the first part of every story: the job runs as one of the batch system's own, and all of it comes back.
func (s *site) handedOver() {
	s.t.Helper()
	w := s.start("story", tellsAll())
	s.AwaitJob(2*time.Minute, w, "a", "failed")
	if got, want := s.output(w), odd+"|"+odd+"|a"; got != want {
		s.t.Errorf("it wrote %q, want %q", got, want)
	}
	if out, err := s.Client().Output(s.t.Context(), w, "a", "stderr"); err != nil || string(out) != "oops\n" {
		s.t.Errorf("to stderr it wrote %q, %v", out, err)
	}
	s.shows(w, "  3  ", "workflow", "status", w) // under EXIT
}

// shows waits until a command shows a text.
func (s *site) shows(workflow, want string, args ...string) string {
	s.t.Helper()
	text := ""
	s.until(time.Minute, strings.Join(args, " ")+" of "+workflow+" shows "+want, func() error {
		out, err := s.CLI(args...).CombinedOutput()
		if text = string(out); err != nil || !strings.Contains(text, want) {
			return fmt.Errorf("%v\n%s", err, out)
		}
		return nil
	})
	return text
}

// TestNativeSlurm is a day of jobs that are handed over to a real Slurm: one that gives back what it was given; one whose submission's answer is
// lost; one that waits in Slurm's queue while the coordinator dies; one that is cancelled. Each is one job there.
func TestNativeSlurm(t *testing.T) {
	s := newSlurmWith(t, nativeSlurm)
	s.handedOver()

	s.slurm.LoseReply("sbatch", 1)
	lost := s.start("lost", runs("echo once"))
	s.AwaitJob(time.Minute, lost, "a", "finished")

	all := strings.Join(s.slurm.Nodes, ",")
	s.slurm.Admin("scontrol", "update", "NodeName="+all, "State=DRAIN", "Reason=test")
	waits := s.start("waits", runs("sleep 3; echo $SLURM_JOB_ID"))
	text := s.shows(waits, ": pending, ", "workflow", "explain", waits)
	for _, want := range []string{"waiting-in-batch-system", "waits in slurm hpc as job ", "PENDING"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain does not say %s:\n%s", want, text)
		}
	}
	if text := s.shows(waits, "starting", "workflow", "status", waits); strings.Contains(text, "running") || !strings.Contains(text, "PENDING") {
		t.Errorf("status says\n%s", text)
	}
	s.shows(waits, "pending", "backend", "launches")
	s.Coordinator.Kill()
	for _, node := range s.slurm.Nodes {
		s.slurm.Resume(node)
	}
	if err := s.Coordinator.Restart(); err != nil {
		t.Fatal(err)
	}
	s.AwaitJob(time.Minute, waits, "a", "running")
	s.Coordinator.Kill() // and again while it runs
	if err := s.Coordinator.Restart(); err != nil {
		t.Fatal(err)
	}
	s.AwaitJob(time.Minute, waits, "a", "finished")
	if out := strings.TrimSpace(s.output(waits)); !strings.Contains(text, "as job "+out+":") {
		t.Errorf("it ran as job %q, want the one that waited:\n%s", out, text)
	}

	ended := s.start("ended", runs("sleep 1000"))
	s.AwaitJob(time.Minute, ended, "a", "running")
	if out, err := s.CLI("workflow", "cancel", ended).CombinedOutput(); err != nil {
		t.Fatalf("cancel: %v\n%s", err, out)
	}
	s.AwaitJob(time.Minute, ended, "a", "cancelled")
	s.until(time.Minute, "Slurm has ended it", s.empty)
	s.hasRun(4)
	s.until(time.Minute, "the slots are gone", s.noNodes)
}

// TestNativePBS: the same way leads into PBS.
func TestNativePBS(t *testing.T) {
	s := newPBSWith(t, nativePBS)
	s.handedOver()
	ended := s.start("ended", runs("sleep 1000"))
	s.AwaitJob(time.Minute, ended, "a", "running")
	s.shows(ended, "running", "backend", "launches")
	s.Coordinator.Kill()
	if err := s.Coordinator.Restart(); err != nil {
		t.Fatal(err)
	}
	if out, err := s.CLI("workflow", "cancel", ended).CombinedOutput(); err != nil {
		t.Fatalf("cancel: %v\n%s", err, out)
	}
	s.AwaitJob(time.Minute, ended, "a", "cancelled")
	s.until(time.Minute, "PBS has ended it", s.empty)
	s.hasRun(2)
}
