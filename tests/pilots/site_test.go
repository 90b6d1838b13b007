package pilots

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/tests/cluster"
	"substrate/tests/pbs"
	"substrate/tests/slurm"
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(main(func() int { return pbs.Main(m) })))
}

type main func() int

func (f main) Run() int { return f() }

// system is what a test asks a batch system for itself.
type system interface {
	live() []string // jobs that have not ended
	ever() []string // jobs that ran or wait; the one that was submitted to find out what the cluster can never does
	show() string
	home() string // where pilots leave what they wrote
}

// site is a coordinator beside a batch system that it gets its nodes from.
type site struct {
	*cluster.Cluster
	t      *testing.T
	system system
	slurm  *slurm.Cluster // nil: the system is PBS
	pbs    *pbs.Peer      // nil: the system is Slurm
}

// tell shows, of a test that failed, what happened and what pilots wrote.
func (s *site) tell() {
	if !s.t.Failed() || s.Cluster == nil {
		return
	}
	if events, err := s.Client().Events(context.Background(), ""); err == nil {
		for _, e := range events {
			s.t.Logf("%s %s %s", e.GetKind(), e.GetSubject(), e.GetMessage())
		}
	}
	_ = filepath.WalkDir(s.system.home(), func(path string, d os.DirEntry, err error) error {
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

func (s *site) until(within time.Duration, what string, done func() error) {
	s.t.Helper()
	cluster.Until(s.t, within, what, func(context.Context) error { return done() })
}

func (s *site) empty() error {
	if jobs := s.system.live(); len(jobs) > 0 {
		launches, _ := s.CLI("backend", "launches").CombinedOutput()
		return fmt.Errorf("in the batch system there are %v\n%s\n%s", jobs, s.system.show(), launches)
	}
	return nil
}

func (s *site) noNodes() error {
	out, err := s.CLI("node", "list", "-o", "name").Output()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		return fmt.Errorf("nodes %q, %v", out, err)
	}
	return nil
}

// hasRun checks how many pilots there have been.
func (s *site) hasRun(want int) {
	s.t.Helper()
	jobs := s.system.ever()
	for deadline := time.Now().Add(30 * time.Second); len(jobs) < want && time.Now().Before(deadline); jobs = s.system.ever() {
		time.Sleep(100 * time.Millisecond) // accounting is late
	}
	if len(jobs) != want {
		s.t.Errorf("there have been the jobs %v, want %d", jobs, want)
	}
}

// output is what a job wrote.
func (s *site) output(workflow string) string {
	s.t.Helper()
	out, err := s.Client().Output(s.t.Context(), workflow, "a", "stdout")
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

// long is for stories that `make test` leaves to `make test-peers`.
func long(t *testing.T) {
	t.Helper()
	if !cluster.FullPeers() {
		t.Skip("left to `make test-peers`")
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
