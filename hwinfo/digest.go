package hwinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Digest is the SHA-256 of the facts' canonical JSON: struct order, absent facts left out, lists in the order that
// Read gives. Equal facts have equal digests; any change of a fact changes it.
func (f Facts) Digest() [32]byte {
	// JSON has no infinities; Read makes none, so this only serves facts from elsewhere.
	f.CPU.MHzMax, f.Limits.CPUs = finite(f.CPU.MHzMax), finite(f.Limits.CPUs)
	f.RDMA = slices.Clone(f.RDMA)
	for i := range f.RDMA {
		f.RDMA[i].Gbps = finite(f.RDMA[i].Gbps)
	}
	data, err := json.Marshal(f)
	if err != nil {
		data = []byte(err.Error()) // no other type in Facts can fail
	}
	return sha256.Sum256(data)
}

func finite(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return nil
	}
	return v
}

// kind is what nodes of one definition share.
type kind struct {
	cpu    string
	cores  string
	memory *uint64
	gpus   string
	dark   string // GPUs without a driver; passing, so no part of the fingerprint
	nics   string
}

func kindOf(f Facts) kind {
	number := func(n *int) string {
		if n == nil {
			return "?"
		}
		return fmt.Sprint(*n)
	}
	gpus, dark, nics := map[string]int{}, map[string]int{}, map[string]int{}
	for _, g := range f.GPUs {
		gpus[g.Resource+" "+g.Model]++
		if !g.Driver {
			dark[g.Resource+" "+g.Model]++
		}
	}
	for _, p := range f.PCI {
		if p.Class == nil || p.Vendor == nil || p.Device == nil || p.Virtual {
			continue
		}
		if c := *p.Class >> 8; c>>8 == 0x02 {
			nics[fmt.Sprintf("%04x:%04x class %04x", *p.Vendor, *p.Device, c)]++
		}
	}
	return kind{
		cpu:    strings.Join([]string{f.CPU.Arch, f.CPU.VendorID, f.CPU.ModelName, f.CPU.MachineType}, " "),
		cores:  number(f.CPU.Sockets) + " sockets, " + number(f.CPU.Cores) + " cores, " + number(f.CPU.LogicalCPUs) + " CPUs",
		memory: f.Memory.Total,
		gpus:   counted(gpus),
		dark:   counted(dark),
		nics:   counted(nics),
	}
}

func counted(m map[string]int) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d × %s", m[k], strings.TrimSpace(k))
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}

// Fingerprint names a node's kind in 16 hexadecimal digits: CPU model, sockets, cores, logical CPUs, GPU models and
// counts, network cards by id and class, and memory rounded to GiB below 64 GiB, to 1/32 of its power of two above.
// It is for grouping. Two nodes at the edge of a rounding step can differ in it and still be alike:
// Drift compares a pair without such edges.
func Fingerprint(f Facts) string {
	k := kindOf(f)
	memory := "?"
	if k.memory != nil {
		memory = fmt.Sprint(roundMemory(*k.memory))
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{"1", k.cpu, k.cores, memory, k.gpus, k.nics}, "\n")))
	return hex.EncodeToString(sum[:8])
}

// roundMemory rounds to the nearest step; the step is at most 1/32 of the value from 64 GiB on.
func roundMemory(n uint64) uint64 {
	const gib = 1 << 30
	step := uint64(gib)
	for step < 1<<58 && step*64 <= n {
		step *= 2
	}
	return mulCapped(addCapped(n, step/2)/step, step)
}

// Drift says in what two nodes that should be alike differ, in words with both values; memory may differ by 2 %.
// An empty result means alike.
func Drift(want, got Facts) []string {
	a, b := kindOf(want), kindOf(got)
	var out []string
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s: %s, expected %s", what, y, x))
		}
	}
	differ("cpu", strings.TrimSpace(a.cpu), strings.TrimSpace(b.cpu))
	differ("topology", a.cores, b.cores)
	if !alike(a.memory, b.memory) {
		differ("memory", bytesText(a.memory), bytesText(b.memory))
	}
	differ("gpus", a.gpus, b.gpus)
	differ("gpus without a driver", a.dark, b.dark)
	differ("network cards", a.nics, b.nics)
	return out
}

func bytesText(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprintf("%d bytes", *n)
}

// alike: within 2 % of the larger one.
func alike(a, b *uint64) bool {
	if a == nil || b == nil {
		return a == b
	}
	low, high := min(*a, *b), max(*a, *b)
	return high-low <= high/50
}
