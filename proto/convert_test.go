package proto

import (
	"strings"
	"testing"

	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

func TestHardwareReportRoundTrip(t *testing.T) {
	facts, _ := hwinfo.Read("/")
	warnings := []hwinfo.Warning{{Source: "proc/cpuinfo", Message: "cannot read"}}
	report, err := HardwareReport(facts, warnings)
	if err != nil {
		t.Fatal(err)
	}
	got, ok, err := Facts(report)
	if err != nil || !ok || got.Digest() != facts.Digest() {
		t.Errorf("%v %v", ok, err)
	}
	if w := Warnings(report); len(w) != 1 || w[0] != warnings[0] {
		t.Errorf("%v", w)
	}
	report.FactsJson = nil
	if _, ok, err := Facts(report); ok || err != nil {
		t.Errorf("facts left out: %v %v", ok, err)
	}
}

func TestFactsTooLarge(t *testing.T) {
	facts := hwinfo.Facts{Hostname: strings.Repeat("x", MaxFacts)}
	report, err := HardwareReport(facts, nil)
	if err == nil || report == nil || len(report.FactsJson) != 0 || len(report.Digest) != 32 {
		t.Errorf("%v", err)
	}
	if _, _, err := Facts(&agentv1.HardwareReport{Digest: make([]byte, 32), FactsJson: make([]byte, MaxFacts+1)}); err == nil {
		t.Error("too many bytes were taken")
	}
}

func FuzzFacts(f *testing.F) {
	report, err := HardwareReport(hwinfo.Facts{Hostname: "n"}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(report.Digest, report.FactsJson)
	f.Add(report.Digest, []byte("{}"))
	f.Add([]byte("short"), []byte(nil))
	f.Fuzz(func(t *testing.T, digest, body []byte) {
		_, ok, err := Facts(&agentv1.HardwareReport{Digest: digest, FactsJson: body})
		if ok && err != nil {
			t.Fatal("facts and an error")
		}
	})
}
