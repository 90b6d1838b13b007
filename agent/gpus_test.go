package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"substrate/hwinfo"
	"substrate/proto"
	"substrate/proto/agentv1"
)

// gpuPair is the root of a node with two GPUs.
func gpuPair(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, bus := range []string{"10", "20"} {
		dir := filepath.Join(root, "sys/bus/pci/devices/0000:"+bus+":00.0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "modalias"), []byte("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// links is the number of links in the newest report, -1 when it does not know.
func links(t *testing.T, n *node) (links int, warnings []hwinfo.Warning) {
	t.Helper()
	n.mu.Lock()
	report := n.hardware
	n.mu.Unlock()
	if report == nil {
		return -2, nil
	}
	f, ok, err := proto.Facts(&agentv1.HardwareReport{Digest: report.Digest, FactsJson: report.FactsJson})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !f.GPUs[0].LinksKnown {
		return -1, proto.Warnings(report)
	}
	return len(f.GPULinks), proto.Warnings(report)
}

// TestAskGPUs: the first report waits for a quick answer and not for a slow one; what was told once stands while the
// program fails; a failure costs a warning.
func TestAskGPUs(t *testing.T) {
	root := gpuPair(t)
	bind(t, root, "10")
	bind(t, root, "20")
	good := hwinfo.Answers{hwinfo.AnswerTopo: []byte("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n")}
	failed := []hwinfo.Warning{{Source: "substrate-probe", Message: "no answer in time"}}
	tests := []struct {
		name        string
		takes       time.Duration
		answers     []hwinfo.Answers // in turn; nil fails
		first, late int              // links in the first report, and in the end
		warned      bool
	}{
		{"quick", time.Second, []hwinfo.Answers{good}, 1, 1, false},
		{"slow", 15 * time.Second, []hwinfo.Answers{good}, -1, 1, false},
		{"fails", 20 * time.Second, []hwinfo.Answers{nil}, -1, -1, true},
		{"fails later", time.Second, []hwinfo.Answers{good, nil}, 1, 1, true},
		{"fails at first", time.Second, []hwinfo.Answers{nil, good}, -1, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				n, turn, first := newNode(root, nil), 0, make(chan struct{})
				go n.ask(ctx, func(context.Context, string) (hwinfo.Answers, []hwinfo.Warning) {
					time.Sleep(tt.takes)
					a := tt.answers[min(turn, len(tt.answers)-1)]
					turn++
					if a == nil {
						return nil, failed
					}
					return a, nil
				}, first)
				n.readFirst(ctx, first)
				if got, _ := links(t, n); got != tt.first {
					t.Errorf("%d links at first, want %d", got, tt.first)
				}
				time.Sleep(askEvery + time.Minute)
				got, warnings := links(t, n)
				warned := false
				for _, w := range warnings {
					warned = warned || w == failed[0]
				}
				if got != tt.late || warned != tt.warned {
					t.Errorf("%d links in the end, want %d; warnings %v", got, tt.late, warnings)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
