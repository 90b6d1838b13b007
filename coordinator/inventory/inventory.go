// Package inventory judges hardware reports: what a node offers, which definition it belongs to and
// how far it differs from its siblings. It keeps nothing and does no I/O.
package inventory

import (
	"encoding/json"
	"fmt"
	"strings"

	"substrate/coordinator"
	"substrate/hwinfo"
)

// MaxFacts is the largest report that is accepted, in bytes of JSON.
const MaxFacts = 1 << 20

// maxDistances is how many NUMA nodes may say how far they are from one another, the largest machines having half as many. What
// is reckoned with distances grows with the cube of the nodes.
const maxDistances = 128

// DecodeFacts reads a report's facts. Unknown fields are ignored: a newer agent may say more. Facts that no agent reads
// off a machine are refused as a whole, for what is reckoned with them has no bounds of its own.
func DecodeFacts(data []byte) (hwinfo.Facts, error) {
	var f hwinfo.Facts
	if len(data) > MaxFacts {
		return f, fmt.Errorf("cannot read hardware report: %d bytes, at most %d are accepted", len(data), MaxFacts)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return hwinfo.Facts{}, fmt.Errorf("cannot read hardware report: %w", err)
	}
	if err := f.Check(); err != nil {
		return hwinfo.Facts{}, fmt.Errorf("cannot read hardware report: %w", err)
	}
	f.Tidy()
	if len(f.NUMA) > maxDistances {
		for i := range f.NUMA {
			f.NUMA[i].Distances = nil
		}
	}
	return f, nil
}

// Capacity is what the scheduler may place on a node with these facts. ok is false when cores or
// memory are unknown: nothing can be promised on such a node.
func Capacity(f hwinfo.Facts) (hw coordinator.Hardware, ok bool) {
	if f.CPU.Cores == nil || *f.CPU.Cores <= 0 || f.Memory.Total == nil || *f.Memory.Total == 0 {
		return coordinator.Hardware{Arch: f.CPU.Arch}, false
	}
	hw = coordinator.Hardware{
		Cores:   coordinator.Cores(*f.CPU.Cores),
		Threads: uint32(*f.CPU.Cores),
		Memory:  coordinator.Bytes(*f.Memory.Total),
		Arch:    f.CPU.Arch,
	}
	// GPU memory on coherent platforms is part of MemTotal but not for jobs' host memory.
	if f.Memory.Host != nil && *f.Memory.Host > 0 && *f.Memory.Host < *f.Memory.Total {
		hw.Memory = coordinator.Bytes(*f.Memory.Host)
	}
	// Pages reserved as huge pages are gone for ordinary memory.
	if u := f.Memory.Usable; u != nil && *u < *f.Memory.Total {
		hw.Memory -= min(hw.Memory, coordinator.Bytes(*f.Memory.Total-*u))
	}
	if hw.Memory == 0 {
		return coordinator.Hardware{Arch: f.CPU.Arch}, false
	}
	if n := f.CPU.LogicalCPUs; n != nil && *n > 0 {
		hw.Threads = uint32(*n)
	}
	if n := f.CPU.Sockets; n != nil && *n > 0 {
		hw.Sockets = uint32(*n)
	}
	hw.Devices = f.Devices()
	return hw, true
}

// Annotations are the hardware keys that only a report can give, such as nvidia.com/gpu.model.
// A node whose GPUs of one vendor differ in model gives none for that vendor.
func Annotations(f hwinfo.Facts) map[string]string {
	out := map[string]string{}
	mixed := map[string]bool{}
	for _, g := range f.GPUs {
		if g.Resource == "" || g.Model == "" {
			continue
		}
		key := g.Resource + ".model"
		if have, ok := out[key]; ok && have != g.Model {
			mixed[key] = true
		}
		out[key] = g.Model
	}
	for key := range mixed {
		delete(out, key)
	}
	return out
}

// Assign picks the definition of a node from its conditions' outcomes: the first true one in file
// order. The others that are true too are conflicts.
func Assign(order []coordinator.DefinitionID, matched map[coordinator.DefinitionID]bool) (def coordinator.DefinitionID, conflicts []coordinator.DefinitionID) {
	for _, id := range order {
		switch {
		case !matched[id]:
		case def == "":
			def = id
		default:
			conflicts = append(conflicts, id)
		}
	}
	return def, conflicts
}

// Drift says in words how a node differs from a sibling of the same definition, "" when it does not.
// Memory may differ by 2 %.
func Drift(want, got hwinfo.Facts) string { return strings.Join(hwinfo.Drift(want, got), "; ") }
