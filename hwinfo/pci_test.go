package hwinfo

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmptyBus: a bus without functions has none, which is known; without a bus nobody can say.
func TestEmptyBus(t *testing.T) {
	tests := []struct {
		name string
		bus  bool
		json string
	}{
		{"empty bus", true, `"pci":[]`},
		{"no bus", false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.bus {
				if err := os.MkdirAll(filepath.Join(root, pciDir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			f, w := Read(root)
			if (f.PCI != nil) != tt.bus || len(f.PCI) != 0 {
				t.Fatalf("functions %#v", f.PCI)
			}
			warned := false
			for _, x := range w {
				warned = warned || x.Source == pciDir
			}
			if warned == tt.bus {
				t.Errorf("warnings %v", w)
			}
			data, err := json.Marshal(f)
			if err != nil || tt.bus != strings.Contains(string(data), `"pci"`) || !strings.Contains(string(data), tt.json) {
				t.Errorf("%s, %v", data, err)
			}
			var back Facts
			if err := json.Unmarshal(data, &back); err != nil || (back.PCI != nil) != tt.bus || back.Digest() != f.Digest() {
				t.Errorf("after JSON %#v, %v", back.PCI, err)
			}
			dir := filepath.Join(t.TempDir(), "snapshot")
			if err := Snapshot(root, dir); err != nil {
				t.Fatal(err)
			}
			if again, _ := Read(dir); (again.PCI != nil) != tt.bus {
				t.Errorf("after a snapshot %#v", again.PCI)
			}
		})
	}
}
