package catalogue

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
)

// Source says who says what a node of a type has.
type Source string

// The sources, the one that counts most first.
const (
	SourceReport     Source = "report"        // nodes of the type
	SourceConfigured Source = "configuration" // the definition itself
	SourceProvider   Source = "provider"      // whoever launches them
	SourceListed     Source = "catalogue"     // measured on such a node before, elsewhere
	SourceEstimate   Source = "estimate"      // worked out of what is sold
)

// Key is what nodes are alike by, besides their architecture: the memory that is left depends on the image too.
type Key struct {
	Kind  string `json:"kind"`
	Type  string `json:"type"`
	Image string `json:"image,omitempty"` // "" is the backend's own
}

// Report is what nodes of a type have said of themselves. It is kept when they are gone.
type Report struct {
	Key
	Arch       string             `json:"arch,omitempty"`
	Cores      coordinator.Cores  `json:"cores"`
	Threads    uint32             `json:"threads"`
	Memory     coordinator.Bytes  `json:"memory"`
	Devices    map[string]uint32  `json:"devices,omitempty"`
	Attributes map[string]string  `json:"attributes,omitempty"` // as nvidia.com/gpu.model, where all agree
	Kernel     string             `json:"kernel,omitempty"`     // of the last one
	First      time.Time          `json:"first"`
	Last       time.Time          `json:"last"`
	Node       coordinator.NodeID `json:"node"`  // the last one
	Nodes      uint32             `json:"nodes"` // that have reported
	Differs    string             `json:"differs,omitempty"`
}

// ID names a report: what it is of, as a key.
func (r *Report) ID() string {
	h := sha256.New()
	for _, p := range []string{r.Kind, r.Type, r.Arch, r.Image} {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// Hardware is what a node of the type can be expected to have.
func (r *Report) Hardware() *coordinator.Hardware {
	return &coordinator.Hardware{Cores: r.Cores, Threads: r.Threads, Memory: r.Memory, Devices: maps.Clone(r.Devices), Arch: r.Arch}
}

// Merge takes in what another node of the type says. Of cores, threads and memory the least counts: what fits there fits on each. Of devices the
// most counts: a node with fewer is broken and not the type. differs says how the two are not alike, "" when they are; memory may differ by 2 %.
func (r *Report) Merge(next Report) (out Report, differs string) {
	if r == nil {
		next.First, next.Nodes = next.Last, 1
		return next, ""
	}
	out = next
	out.First, out.Nodes = r.First, r.Nodes
	if r.Node == next.Node && r.Nodes == 1 {
		return out, "" // the same one, after a look at itself that was better
	}
	if r.Node != next.Node {
		out.Nodes++
	}
	differs = r.differs(&next)
	out.Differs = r.Differs
	if differs != "" {
		out.Differs = differs
	}
	out.Cores, out.Threads, out.Memory = min(r.Cores, next.Cores), min(r.Threads, next.Threads), min(r.Memory, next.Memory)
	out.Devices = maps.Clone(r.Devices)
	for kind, n := range next.Devices {
		if out.Devices == nil {
			out.Devices = map[string]uint32{}
		}
		out.Devices[kind] = max(out.Devices[kind], n)
	}
	out.Attributes = maps.Clone(r.Attributes)
	for key, value := range next.Attributes {
		if have, ok := r.Attributes[key]; ok && have != value {
			delete(out.Attributes, key)
		} else if out.Attributes != nil {
			out.Attributes[key] = value
		} else {
			out.Attributes = map[string]string{key: value}
		}
	}
	return out, differs
}

func (r *Report) differs(next *Report) string {
	var parts []string
	if r.Cores != next.Cores {
		parts = append(parts, fmt.Sprintf("%d cores, others have %d", next.Cores, r.Cores))
	}
	if r.Threads != next.Threads {
		parts = append(parts, fmt.Sprintf("%d threads, others have %d", next.Threads, r.Threads))
	}
	if lo, hi := min(r.Memory, next.Memory), max(r.Memory, next.Memory); hi-lo > hi/50 {
		parts = append(parts, fmt.Sprintf("%s of memory, others have %s", next.Memory, r.Memory))
	}
	kinds := map[string]bool{}
	for _, m := range []map[string]uint32{r.Devices, next.Devices} {
		for kind := range m {
			kinds[kind] = true
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if a, b := r.Devices[kind], next.Devices[kind]; a != b {
			parts = append(parts, fmt.Sprintf("%d %s, others have %d", b, kind, a))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(next.Attributes)) {
		if have, ok := r.Attributes[key]; ok && have != next.Attributes[key] {
			parts = append(parts, fmt.Sprintf("%s %s, others have %s", key, next.Attributes[key], have))
		}
	}
	return strings.Join(parts, "; ")
}

// Known is what the sources say of the nodes of a definition; nil is nothing.
type Known struct {
	Report     *Report
	Configured *coordinator.Hardware // of the definition; marked as estimated where it is a catalogue's
	Provider   *coordinator.Hardware
	By         Source // who says what is estimated in Configured; "" is an estimate
}

// Hardware is what counts: what nodes reported before what the configuration claims, that before the provider's word and that before what
// the catalogue says. It is nil when nobody says anything.
func (k Known) Hardware() (*coordinator.Hardware, Source) {
	switch {
	case k.Report != nil:
		return k.Report.Hardware(), SourceReport
	case k.Configured != nil && !k.Configured.Estimated:
		return k.Configured, SourceConfigured
	case k.Provider != nil:
		return k.Provider, SourceProvider
	case k.Configured != nil:
		return k.Configured, cmp.Or(k.By, SourceEstimate)
	}
	return nil, ""
}

// Price is what a node costs an hour: what the configuration says, else what the provider asks, else what the catalogue lists. nil is unknown, which is
// not nothing.
func Price(configured, provider, listed *float64) *float64 {
	switch {
	case configured != nil:
		return configured
	case provider != nil:
		return provider
	}
	return listed
}

// Shortfall says what of an expectation hardware does not reach, "" when it does; memory may be 2 % less.
func Shortfall(has, expected *coordinator.Hardware) string {
	var parts []string
	if has.Cores < expected.Cores {
		parts = append(parts, fmt.Sprintf("%d cores of %d", has.Cores, expected.Cores))
	}
	if has.Threads < expected.Threads {
		parts = append(parts, fmt.Sprintf("%d threads of %d", has.Threads, expected.Threads))
	}
	if has.Memory < expected.Memory && expected.Memory-has.Memory > expected.Memory/50 {
		parts = append(parts, fmt.Sprintf("%s of memory of %s", has.Memory, expected.Memory))
	}
	for _, kind := range slices.Sorted(maps.Keys(expected.Devices)) {
		if has.Devices[kind] < expected.Devices[kind] {
			parts = append(parts, fmt.Sprintf("%d %s of %d", has.Devices[kind], kind, expected.Devices[kind]))
		}
	}
	return strings.Join(parts, ", ")
}
