package proto

import (
	"fmt"
	"testing"

	"substrate/hwinfo"
)

// TestPresence: a bus without functions stays apart from a bus that nobody could read.
func TestPresence(t *testing.T) {
	for _, pci := range [][]hwinfo.PCI{nil, {}} {
		report, err := HardwareReport(hwinfo.Facts{PCI: pci}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, ok, err := Facts(report)
		if !ok || err != nil || (got.PCI == nil) != (pci == nil) {
			t.Errorf("%#v became %#v, %v", pci, got.PCI, err)
		}
	}
}

// TestManyFunctions: a node with more functions than travel is a node without the list, and not without cores.
func TestManyFunctions(t *testing.T) {
	cores := 64
	facts := hwinfo.Facts{CPU: hwinfo.CPU{Cores: &cores}, GPUs: []hwinfo.GPU{{Address: "0000:01:00.0", Driver: true}}}
	for n := range 12000 {
		facts.PCI = append(facts.PCI, hwinfo.PCI{Address: fmt.Sprintf("0000:%02x:%02x.%d", n>>8&0xff, n>>3&0x1f, n&7),
			Modalias: "pci:v000015B3d0000101Esv000015B3sd00000023bc02sc00i00", Driver: "mlx5_core"})
	}
	warnings := make([]hwinfo.Warning, 1, 8)
	report, err := HardwareReport(facts, warnings)
	if err != nil || len(report.FactsJson) > MaxFacts || len(report.Warnings) != 2 {
		t.Fatalf("%d bytes, warnings %v, %v", len(report.FactsJson), report.Warnings, err)
	}
	got, ok, err := Facts(report)
	if !ok || err != nil || got.PCI != nil || *got.CPU.Cores != cores || len(got.GPUs) != 1 {
		t.Errorf("%d functions, %v, %v", len(got.PCI), ok, err)
	}
}
