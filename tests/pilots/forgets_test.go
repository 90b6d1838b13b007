package pilots

import (
	"testing"
	"time"
)

// TestControllerForgets: slurmctld is killed right after it has taken on a job and opened its gate, and comes back without its last seconds. What
// it has lost of that is made good, whether it is a job that was handed over or a pilot, and nothing runs twice.
func TestControllerForgets(t *testing.T) {
	long(t)
	const pilot = "\n  - id: pilot\n    provisioner: slurm\n    backend: hpc\n    ttl: 24000\n    idleTimeout: 4s\n    maxNodes: 1\n    provisionerSpec: {cpu: 2, memory: 500MiB, costPerHour: 1.5}\n"
	s := newSlurmWith(t, nativeSlurm+pilot[1:])
	s.AwaitJob(2*time.Minute, s.start("first", runs("true")), "a", "finished") // the backend is open, its probe over
	time.Sleep(8 * time.Second)                                                // and written down to have ended
	for _, story := range []struct{ name, job string }{
		{"handed", runs("echo once")},
		{"piloted", `{command: [sh, -c, "echo once"], resource: {cpu: {cores: 2}, memory: {size: 100MiB}}, policy: {timeout: {execute: 5m}}}`},
	} {
		name, job := story.name, story.job
		s.until(2*time.Minute, "nothing is left", s.empty)
		s.slurm.Admin("scontrol", "update", "PartitionName=batch", "State=DOWN") // nothing starts
		w := s.start(name, job)
		s.shows(w, "PartitionDown", "backend", "launches")
		s.slurm.KillController()
		s.slurm.StartController()
		s.slurm.Admin("scontrol", "update", "PartitionName=batch", "State=UP")
		s.AwaitJob(6*time.Minute, w, "a", "finished")
		if got := s.output(w); got != "once\n" {
			t.Errorf("%s wrote %q", name, got)
		}
	}
	s.until(2*time.Minute, "nothing is left", s.empty)
}
