package hwinfo

import (
	"cmp"
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

// kind is what nodes of one definition share. A part that one of two nodes does not know is not compared.
type kind struct {
	cpu    string
	cores  string
	cpus   *int // present ones, whether online or not
	memory *uint64
	gpus   tally // by PCI ids, which a driver does not change
	dark   tally // GPUs without a driver
	split  string
	links  string // "" where nobody knows
	cards  tally
	ports  tally
	disks  tally
	dead   int
	bus    bool // the functions are known
}

// tally counts things that are alike by key; labels are the words for keys.
type tally struct {
	count  map[string]int
	labels map[string]string
}

func newTally() tally { return tally{map[string]int{}, map[string]string{}} }

func (t tally) add(key, label string) {
	t.count[key]++
	if t.labels[key] == "" {
		t.labels[key] = strings.TrimSpace(label)
	}
}

func (t tally) keys() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(t.count)) {
		fmt.Fprintf(&b, "%d × %s, ", t.count[k], k)
	}
	return b.String()
}

// named counts by label.
func (t tally) named() tally {
	out := newTally()
	for key, n := range t.count {
		label := cmp.Or(t.labels[key], key)
		out.count[label] += n
		out.labels[label] = label
	}
	return out
}

// ambiguous tells whether one label stands for several keys.
func ambiguous(tallies ...tally) bool {
	key := map[string]string{}
	for _, t := range tallies {
		for k, label := range t.labels {
			if other, ok := key[label]; ok && other != k {
				return true
			}
			key[label] = k
		}
	}
	return false
}

// words says what was counted; ids says the keys beside the labels.
func (t tally) words(ids bool) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(t.count)) {
		label := t.labels[k]
		if label == "" {
			label = k
		} else if ids && label != k {
			label += " (" + k + ")"
		}
		parts = append(parts, fmt.Sprintf("%d × %s", t.count[k], label))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func kindOf(f *Facts) kind {
	number := func(n *int) string {
		if n == nil {
			return "?"
		}
		return fmt.Sprint(*n)
	}
	k := kind{
		cpu:    strings.Join([]string{f.CPU.Arch, f.CPU.VendorID, f.CPU.ModelName, f.CPU.MachineType}, " "),
		cores:  number(f.CPU.Sockets) + " sockets, " + number(f.CPU.Cores) + " cores, " + number(f.CPU.LogicalCPUs) + " CPUs",
		memory: f.Memory.Total,
		gpus:   newTally(), dark: newTally(), cards: newTally(), ports: newTally(), disks: newTally(),
		links: fabricWords(f), split: splitWords(f), bus: f.PCI != nil,
	}
	if f.CPU.LogicalCPUs != nil {
		k.cpus = ptr(*f.CPU.LogicalCPUs + len(f.CPU.Offline))
	}
	if n := len(f.CPU.Offline); n > 0 {
		k.cores += fmt.Sprintf(", %d offline", n)
	}
	k.countFunctions(f)
	for i := range f.RDMA {
		p := &f.RDMA[i]
		label := p.Fabric + " down"
		if p.Active && finite(p.Gbps) != nil {
			label = fmt.Sprintf("%s %g Gb/s", p.Fabric, *p.Gbps)
		} else if p.Active {
			label = p.Fabric
		}
		k.ports.add(label, label)
	}
	for i := range f.Disks {
		d := &f.Disks[i]
		if d.Removable || d.Size == nil {
			continue
		}
		kind := "solid"
		if d.Rotational != nil && *d.Rotational {
			kind = "rotating"
		}
		label := strings.TrimSpace(d.Transport + " " + kind + " " + roundedSize(*d.Size))
		k.disks.add(label, label)
	}
	return k
}

// countFunctions counts GPUs, network cards and functions that do not answer.
func (k *kind) countFunctions(f *Facts) {
	ids := map[string]string{}
	for i := range f.PCI {
		p := &f.PCI[i]
		if p.Dead {
			k.dead++
		}
		if p.Class == nil || p.Vendor == nil || p.Device == nil || p.Virtual {
			continue
		}
		id := fmt.Sprintf("%04x:%04x", *p.Vendor, *p.Device)
		ids[p.Address] = id
		if c := *p.Class >> 8; c>>8 == 0x02 {
			key := fmt.Sprintf("%s class %04x", id, c)
			k.cards.add(key, key)
		}
	}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		label := g.Resource + " " + g.Model
		key := ids[g.Address]
		if key == "" { // the bus was left out of the report, or an id cannot be read
			key = strings.TrimSpace(label)
		}
		k.gpus.add(key, label)
		if !g.Driver {
			k.dark.add(key, label)
		}
	}
}

// splitWords counts whole GPUs and instances where a GPU is split.
func splitWords(f *Facts) string {
	var parts []string
	counts := f.CountGPUs()
	for _, resource := range slices.Sorted(maps.Keys(counts)) {
		if c := counts[resource]; c.Whole < c.Physical {
			parts = append(parts, fmt.Sprintf("%s %d whole and %d instances", resource, c.Whole, c.Instances))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// fabricWords gives the sizes of the sets that links join, and how many links there are: "2 + 2 GPUs, 8 links".
func fabricWords(f *Facts) string {
	known := len(f.GPUs) > 0
	for i := range f.GPUs {
		known = known && f.GPUs[i].LinksKnown
	}
	if !known {
		return ""
	}
	var sizes []int
	for _, group := range f.Fabrics() {
		sizes = append(sizes, len(group))
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	var parts []string
	for _, n := range sizes {
		parts = append(parts, fmt.Sprint(n))
	}
	links := 0
	for _, l := range f.GPULinks {
		links += l.NVLinks + l.XGMI
	}
	return fmt.Sprintf("%s GPUs, %d links", strings.Join(parts, " + "), links)
}

// roundedSize is a disk's size in two digits: makers differ by some megabytes.
func roundedSize(n uint64) string {
	unit := ""
	v := float64(n)
	for _, u := range [...]string{"kB", "MB", "GB", "TB", "PB", "EB"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	if v >= 100 {
		return fmt.Sprintf("%.0f %s", math.Round(v/10)*10, unit)
	}
	if v >= 10 {
		return fmt.Sprintf("%.0f %s", v, unit)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// Fingerprint names a node's kind in 16 hexadecimal digits, for grouping.
//
// In it: CPU architecture, vendor and model; CPUs present, offline ones too; memory rounded to GiB below 64 GiB, to 1/32 of its
// power of two above; GPUs and network cards by PCI ids, class and number.
//
// Not in it: names that a driver gives, its version and whether it is loaded; which CPUs are offline and whether
// threads are switched off at run time; the order and the addresses of functions; virtual functions; links, splits, disks,
// rates; the system's release. A function that has died cannot tell what it was and so is missing: a node with a
// dead GPU is of another kind until it is repaired, and Drift says so.
//
// Two nodes at the edge of a rounding step can differ in it and still be alike: Drift compares a pair without such
// edges.
func Fingerprint(f Facts) string {
	k := kindOf(&f)
	memory, cpus := "?", "?"
	if k.memory != nil {
		memory = fmt.Sprint(roundMemory(*k.memory))
	}
	if k.cpus != nil {
		cpus = fmt.Sprint(*k.cpus)
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{"2", k.cpu, cpus, memory, k.gpus.keys(), k.cards.keys()}, "\n")))
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
// What one of them does not know, such as links that nobody was asked about, is no difference. An empty result means
// alike.
func Drift(want, got Facts) []string {
	a, b := kindOf(&want), kindOf(&got)
	var out []string
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s: %s, expected %s", what, y, x))
		}
	}
	tallies := func(what string, x, y tally) {
		if x.keys() == y.keys() {
			return
		}
		ids := ambiguous(x, y)
		differ(what, x.words(ids), y.words(ids))
	}
	differ("cpu", strings.TrimSpace(a.cpu), strings.TrimSpace(b.cpu))
	differ("topology", a.cores, b.cores)
	if !alike(a.memory, b.memory) {
		differ("memory", bytesText(a.memory), bytesText(b.memory))
	}
	if !a.bus || !b.bus { // then there are names only
		a.gpus, b.gpus, a.dark, b.dark = a.gpus.named(), b.gpus.named(), a.dark.named(), b.dark.named()
	}
	tallies("gpus", a.gpus, b.gpus)
	tallies("gpus without a driver", a.dark, b.dark)
	differ("split gpus", a.split, b.split)
	if a.links != "" && b.links != "" {
		differ("gpu fabrics", a.links, b.links)
	}
	if a.bus && b.bus {
		tallies("network cards", a.cards, b.cards)
		differ("functions that do not answer", fmt.Sprint(a.dead), fmt.Sprint(b.dead))
	}
	tallies("rdma ports", a.ports, b.ports)
	tallies("disks", a.disks, b.disks)
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
