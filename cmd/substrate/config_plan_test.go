package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"substrate/hwinfo"
)

// recordedFleet writes n nodes that are like this machine into a directory: files of facts, or snapshots.
func recordedFleet(b *testing.B, n int, snapshots bool) string {
	b.Helper()
	dir := b.TempDir()
	facts, _ := hwinfo.Read("/")
	for i := range n {
		name := fmt.Sprintf("node%04d", i)
		if snapshots {
			if err := hwinfo.Snapshot("/", filepath.Join(dir, name)); err != nil {
				b.Fatal(err)
			}
			continue
		}
		facts.Hostname = name
		text, err := json.Marshal(map[string]any{"facts": facts})
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".json"), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// BenchmarkPlanOffline is the whole command: read the nodes, judge them, write the answer.
func BenchmarkPlanOffline(b *testing.B) {
	file := filepath.Join(b.TempDir(), "c.yaml")
	var text strings.Builder
	text.WriteString("definitions:\n")
	for i := range 50 {
		fmt.Fprintf(&text, "  - {id: d%d, provisioner: static, provisionerSpec: {condition: 'hostname() matches \"^node0*%d[0-9]$\" && cpuinfo.cpu_cores > 0', costPerHour: 1}}\n", i, i)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]struct {
		nodes     int
		snapshots bool
	}{"facts-2000": {2000, false}, "snapshots-200": {200, true}} {
		b.Run(name, func(b *testing.B) {
			dir := recordedFleet(b, c.nodes, c.snapshots)
			for b.Loop() {
				var out, errOut bytes.Buffer
				if code := run([]string{"cluster", "config", "plan", file, "--nodes", dir}, nil, &out, &errOut, os.Getenv); code != exitChanges {
					b.Fatalf("exit code %d: %s", code, errOut.String())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N*c.nodes), "ms/node")
		})
	}
}
