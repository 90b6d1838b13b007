// Package proto turns what a node is into wire messages and back. Coordinator nouns are converted in coordinator/server.
package proto

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

// MaxFacts is the largest hwinfo.Facts, as JSON, that travels.
const MaxFacts = 1 << 20

// HardwareReport is the report of the facts, without lists that are too long to travel, of which a
// warning tells. With facts too large even so it is the report of their digest and warnings alone, and an error.
func HardwareReport(facts hwinfo.Facts, warnings []hwinfo.Warning) (*agentv1.HardwareReport, error) {
	facts, left, tooLarge := facts.Bounded(MaxFacts)
	warnings = append(slices.Clip(warnings), left...)
	digest := facts.Digest()
	out := &agentv1.HardwareReport{Digest: digest[:]}
	for _, w := range warnings {
		out.Warnings = append(out.Warnings, &agentv1.Warning{Source: w.Source, Message: w.Message})
	}
	body, err := json.Marshal(facts)
	if err != nil {
		return out, fmt.Errorf("cannot encode hardware facts: %w", err)
	}
	if tooLarge != nil {
		return out, fmt.Errorf("cannot report hardware facts: %d bytes, at most %d travel", len(body), MaxFacts)
	}
	out.FactsJson = body
	return out, nil
}

// Facts reads a report. ok is false when it left the facts out because the other side has them. An
// error is a report whose facts are not those of its digest.
func Facts(report *agentv1.HardwareReport) (facts hwinfo.Facts, ok bool, err error) {
	body := report.GetFactsJson()
	switch {
	case len(report.GetDigest()) != sha256.Size:
		return hwinfo.Facts{}, false, fmt.Errorf("cannot read hardware report: its digest has %d bytes, expected %d", len(report.GetDigest()), sha256.Size)
	case len(body) == 0:
		return hwinfo.Facts{}, false, nil
	case len(body) > MaxFacts:
		return hwinfo.Facts{}, false, fmt.Errorf("cannot read hardware report: %d bytes of facts, at most %d are taken", len(body), MaxFacts)
	}
	// The digest is of the bytes, so that facts this build does not know of still match.
	if digest := sha256.Sum256(body); !bytes.Equal(digest[:], report.GetDigest()) {
		return hwinfo.Facts{}, false, fmt.Errorf("cannot read hardware report: its facts do not match its digest")
	}
	if err := json.Unmarshal(body, &facts); err != nil {
		return hwinfo.Facts{}, false, fmt.Errorf("cannot read hardware report: %w", err)
	}
	return facts, true, nil
}

// Warnings reads a report's warnings.
func Warnings(report *agentv1.HardwareReport) []hwinfo.Warning {
	var out []hwinfo.Warning
	for _, w := range report.GetWarnings() {
		out = append(out, hwinfo.Warning{Source: w.GetSource(), Message: w.GetMessage()})
	}
	return out
}
