package pbs

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// until waits for a condition. Tests of processes need a limit, not a measure.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *Peer) line(id, attribute string) string {
	out := p.Run("", "qstat", "-x", "-f", "-w", id)
	for l := range strings.Lines(out.Stdout) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), attribute+" = "); ok {
			return v
		}
	}
	return ""
}

func TestSubmitRunFinish(t *testing.T) {
	p := Start(t, Options{History: true})
	t.Chdir(t.TempDir())
	out := p.Run("", "qsub", "-N", "hi", "-l", "select=1:ncpus=1", "--", "/bin/echo", "hello")
	if out.Code != 0 || out.Stdout != "0.vm\n" {
		t.Fatalf("qsub: %+v", out)
	}
	until(t, "the job ends", func() bool { return p.line("0.vm", "job_state") == "F" })
	if s := p.line("0.vm", "Exit_status"); s != "0" {
		t.Errorf("Exit_status %q", s)
	}
	data, err := os.ReadFile("hi.o0")
	if err != nil || string(data) != "hello\n" {
		t.Errorf("output %q, %v", data, err)
	}
}
