package probe

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/hwinfo"
)

// script writes a program.
func script(t *testing.T, body string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	good = `echo '{"version":1,"gpus":[]}'`
	smi  = `case "$1" in
-L) echo 'GPU 0: NVIDIA A10 (UUID: GPU-1)';;
topo) printf '\tGPU0\nGPU0\t X \n';;
nvlink) echo 'GPU 0: NVIDIA A10 (UUID: GPU-1)';;
*) echo '0, 00000000:17:00.0, NVIDIA A10, 23028, [N/A]';;
esac`
)

func TestAsk(t *testing.T) {
	smiNames := []string{hwinfo.AnswerGPUs, hwinfo.AnswerList, hwinfo.AnswerTopo}
	tests := []struct {
		name       string
		probe, smi string
		answers    []string
		warned     []string // sources
		message    string   // in one of them
	}{
		{"the probe answers", good, smi, []string{hwinfo.AnswerNVML}, nil, ""},
		{"no library", "echo none >&2; exit 3", smi, smiNames, nil, ""},
		{"no probe", "", smi, smiNames, nil, ""},
		{"the probe crashes", "echo 'symbol lookup error: nvmlX of GPU-1234' >&2; kill -SEGV $$", smi, smiNames, []string{"substrate-probe"}, "symbol lookup error: nvmlX of …"},
		{"the probe hangs", "sleep 100", smi, smiNames, []string{"substrate-probe"}, "no answer in time"},
		{"a child of the probe hangs", "sleep 100 & " + good, smi, nil, nil, ""},
		{"the probe floods", "while :; do echo 0123456789012345678901234567890123456789; done", smi, smiNames, []string{"substrate-probe"}, "more than 1048576 bytes"},
		{"both hang", "sleep 100", "sleep 100", nil, []string{"nvidia-smi --format=csv,noheader,nounits", "substrate-probe"}, "no answer in time"},
		{"the driver is broken", "exit 1", "echo 'NVIDIA-SMI has failed'; exit 9", nil,
			[]string{"nvidia-smi --format=csv,noheader,nounits", "nvidia-smi -L", "nvidia-smi nvlink", "nvidia-smi topo", "substrate-probe"}, "NVIDIA-SMI has failed"},
		{"no matrix", "exit 3", "case $1 in topo) exit 1;; esac\n" + smi, []string{hwinfo.AnswerGPUs, hwinfo.AnswerList, hwinfo.AnswerRemote}, []string{"nvidia-smi topo"}, ""},
		{"nothing there", "", "", nil, []string{"nvidia-smi --format=csv,noheader,nounits"}, "not on this node"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &Asker{Probe: filepath.Join(t.TempDir(), "none"), SMI: filepath.Join(t.TempDir(), "none"), Limit: 3 * time.Second}
			if tt.probe != "" {
				a.Probe = script(t, tt.probe)
			}
			if tt.smi != "" {
				a.SMI = script(t, tt.smi)
			}
			answers, warnings := a.ask(t.Context())
			if tt.name == "a child of the probe hangs" { // its output may count or not, but nothing waits for it
				if !a.busy.TryLock() {
					t.Error("a program is taken to be running")
				}
				return
			}
			if got := slices.Sorted(maps.Keys(answers)); !slices.Equal(got, slices.Sorted(slices.Values(tt.answers))) {
				t.Errorf("answers %v, want %v", got, tt.answers)
			}
			var sources, messages []string
			for _, w := range warnings {
				sources, messages = append(sources, w.Source), append(messages, w.Message)
			}
			slices.Sort(sources)
			if !slices.Equal(sources, tt.warned) || !strings.Contains(strings.Join(messages, "\n"), tt.message) {
				t.Errorf("warnings %q, want of %q with %q", warnings, tt.warned, tt.message)
			}
		})
	}
}

// TestStuck: a program that does not end is left behind, and no other is started beside it.
func TestStuck(t *testing.T) {
	a := &Asker{Probe: script(t, good), SMI: script(t, smi)}
	a.busy.Lock()
	answers, warnings := a.ask(t.Context())
	if answers != nil || len(warnings) != 2 || warnings[1].Message != errStuck.Error() {
		t.Errorf("%v, %v", answers, warnings)
	}
	a.busy.Unlock()
	if answers, warnings = a.ask(t.Context()); len(answers) != 1 || warnings != nil {
		t.Errorf("afterwards %v, %v", answers, warnings)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &Asker{Probe: script(t, "sleep 100"), SMI: script(t, "sleep 100"), Limit: time.Hour}
	if answers, warnings := a.ask(ctx); answers != nil || len(warnings) != 2 {
		t.Errorf("%v, %v", answers, warnings)
	}
}

// TestAskOnlyHere: a directory of files says nothing about this machine's GPUs, whatever it holds.
func TestAskOnlyHere(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "proc/driver/nvidia/gpus/0000:17:00.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := &Asker{Probe: script(t, good)}
	for _, dir := range []string{root, filepath.Join(root, "none")} {
		if answers, warnings := a.Ask(t.Context(), dir); answers != nil || warnings != nil {
			t.Errorf("%v, %v", answers, warnings)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b[31mb\n\tc":                 "a [31mb c",
		"GPU 0 (UUID: GPU-12-34) is lost": "GPU 0 (UUID: … is lost",
		"\xff\xfe":                        "",
		"NVRM: MIG-GPU-1/2/3":             "NVRM: …",
	} {
		if got := text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func BenchmarkAsk(b *testing.B) {
	p := filepath.Join(b.TempDir(), "program")
	if err := os.WriteFile(p, fmt.Appendf(nil, "#!/bin/sh\n%s\n", good), 0o755); err != nil {
		b.Fatal(err)
	}
	a := &Asker{Probe: p}
	for b.Loop() {
		if answers, _ := a.ask(b.Context()); answers == nil {
			b.Fatal("no answer")
		}
	}
}
