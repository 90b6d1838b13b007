package hwinfo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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

// TestFallenOffTheBus: the kernel remembers what a GPU was, its header tells that it is gone.
func TestFallenOffTheBus(t *testing.T) {
	const h100 = "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00"
	ones := bytes.Repeat([]byte{0xff}, 4096)
	alive := append([]byte{0xde, 0x10, 0x30, 0x23}, make([]byte, 60)...)
	tests := []struct {
		name, modalias string
		config         []byte
		link, status   string
		dead, warned   bool
	}{
		{"alive", h100, alive, "", "active", false, false},
		{"no header", h100, nil, "", "", false, false},
		{"dead", h100, ones, "", "active", true, false},
		{"dead accelerator", "pci:v00001002d000074A1sv00001002sd000074A1bc12sc00i00", ones[:64], "", "", true, false},
		{"short header", h100, alive[:7], "", "", false, true},
		{"empty header", h100, []byte{}, "", "", false, true},
		{"short header of ones", h100, ones[:4], "", "", true, true},
		{"asleep", h100, ones, "", "suspended", false, false},
		{"virtual function", "pci:v000015B3d0000101Esv000015B3sd00000023bc02sc00i00", ones, "physfn", "", false, false},
		{"bridge", "pci:v00008086d0000352Asv00000000sd00000000bc06sc04i00", ones, "", "", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir := pciDir + "/0000:18:00.0/"
			put(t, root, dir+"modalias", []byte(tt.modalias+"\n"))
			if tt.config != nil {
				put(t, root, dir+"config", tt.config)
			}
			if tt.status != "" {
				put(t, root, dir+"power/runtime_status", []byte(tt.status+"\n"))
			}
			if tt.link != "" {
				putLink(t, root, dir+tt.link, "../0000:18:00.1")
			}
			f, w := Read(root)
			if p := f.PCI[0]; p.Dead != tt.dead || (p.Vendor == nil) != tt.dead || tt.dead && len(f.GPUs) > 0 {
				t.Errorf("%+v, %v", p, w)
			}
			if warned := slices.ContainsFunc(w, func(w Warning) bool { return w.Source == dir+"config" }); warned != tt.warned {
				t.Errorf("warnings %v", w)
			}
			checkSnapshot(t, root, f)
			checkWalk(t, root, f)
		})
	}
}
