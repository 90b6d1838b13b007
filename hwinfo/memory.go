package hwinfo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// readMemory reads totals; the nodes give the host's share.
func (r *reader) readMemory(nodes []NUMA) Memory {
	const source = "proc/meminfo"
	var m Memory
	data, err := r.t.read(source, maxSmall)
	if err == nil {
		var total uint64
		if total, err = parseMemTotal(bytes.NewReader(data)); err == nil {
			m.Total = &total
		}
	}
	if err != nil {
		r.warn(source, err)
	}
	m.Host, m.Device = nodeMemory(nodes, m.Total)
	if m.HugePages = r.readHugePages("sys/kernel/mm/hugepages"); m.HugePages == nil && !r.t.exists("sys/kernel/mm/hugepages") {
		m.HugePages = defaultPool(data) // a container may hide the directory
	}
	m.Usable = usable(m.Total, m.HugePages)
	m.Blocks = r.readBlocks(m.Total)
	m.Modules = r.readModules()
	return m
}

// parseMemTotal reads MemTotal in bytes from /proc/meminfo, or from a node's copy of it whose lines
// begin "Node 8 ". Zero is refused by the caller where it cannot be: nodes without memory exist.
func parseMemTotal(r io.Reader) (uint64, error) {
	total, err := parseTotal(r)
	if err == nil && total == 0 {
		return 0, errors.New("MemTotal is 0")
	}
	return total, err
}

func parseTotal(r io.Reader) (uint64, error) {
	data, err := readLimited(r, maxSmall)
	if err != nil {
		return 0, err
	}
	for line := range lines(data) {
		key, value, ok := keyValue(line)
		if f := strings.Fields(key); !ok || len(f) == 0 || f[len(f)-1] != "MemTotal" {
			continue
		}
		n, err := parseKiB(value)
		if err != nil {
			return 0, fmt.Errorf("cannot parse MemTotal: %w", err)
		}
		return n, nil
	}
	return 0, errors.New("MemTotal is missing")
}

// nodeMemory sums the nodes with CPUs and those that are a GPU's memory; nil where a part is unknown.
// Where every node with memory has CPUs too the host's share is the total itself: some virtual machines
// show hot-plugged memory in the total alone.
func nodeMemory(nodes []NUMA, total *uint64) (host, device *uint64) {
	var sum, gpu uint64
	known, apart, withGPU := true, false, false
	for _, n := range nodes {
		switch {
		case n.Memory == nil:
			known = known && len(n.CPUs) == 0
		case n.GPU != "":
			gpu, withGPU, apart = addCapped(gpu, *n.Memory), true, true
		case len(n.CPUs) > 0:
			sum = addCapped(sum, *n.Memory)
		case *n.Memory > 0:
			apart = true
		}
	}
	if withGPU {
		device = &gpu
	}
	switch {
	case !apart && total != nil:
		return total, device
	case !known || sum == 0:
		return nil, device
	case total != nil:
		sum = min(sum, *total)
	}
	return &sum, device
}

func addCapped(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

func mulCapped(a, b uint64) uint64 {
	if b != 0 && a > math.MaxUint64/b {
		return math.MaxUint64
	}
	return a * b
}

// defaultPool reads the pool of the default size, which is all that /proc/meminfo knows.
func defaultPool(meminfo []byte) []HugePages {
	var pool HugePages
	for line := range lines(meminfo) {
		key, value, _ := keyValue(line)
		switch key {
		case "HugePages_Total":
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				pool.Count = n
			}
		case "Hugepagesize":
			if n, err := parseKiB(value); err == nil {
				pool.Size = n
			}
		}
	}
	if pool.Count == 0 || pool.Size == 0 {
		return nil
	}
	return []HugePages{pool}
}

// readHugePages reads every size's pool, of the machine or of a node: /proc/meminfo speaks of the default size only.
func (r *reader) readHugePages(dir string) []HugePages {
	names, err := r.t.list(dir)
	if err != nil {
		if !absent(err) {
			r.warn(dir, err)
		}
		return nil
	}
	var pools []HugePages
	for _, name := range names[:min(len(names), 64)] {
		kB, ok := strings.CutPrefix(name, "hugepages-")
		size, err := parseKiB(strings.TrimSuffix(kB, "kB") + " kB")
		if !ok || err != nil {
			continue
		}
		source := path.Join(dir, name, "nr_hugepages")
		text, err := r.t.attr(source)
		if err != nil {
			r.warn(source, err)
			continue
		}
		count, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			r.warn(source, fmt.Errorf("%q is not a count", short(text)))
			continue
		}
		if count > 0 {
			pools = append(pools, HugePages{Size: size, Count: count})
		}
	}
	slices.SortFunc(pools, func(a, b HugePages) int { return cmp.Compare(a.Size, b.Size) })
	return pools
}

func usable(total *uint64, pools []HugePages) *uint64 {
	if total == nil {
		return nil
	}
	left := *total
	for _, p := range pools {
		left -= min(left, mulCapped(p.Size, p.Count))
	}
	return &left
}

// readBlocks sums hot-pluggable memory. Block numbers need not begin at 0.
func (r *reader) readBlocks(total *uint64) *MemoryBlocks {
	const dir = "sys/devices/system/memory"
	text, err := r.t.attr(dir + "/block_size_bytes")
	if err != nil {
		if !absent(err) {
			r.warn(dir+"/block_size_bytes", err)
		}
		return nil
	}
	size, err := strconv.ParseUint(text, 16, 64) // hexadecimal without 0x
	if err != nil || size == 0 {
		r.warn(dir+"/block_size_bytes", fmt.Errorf("%q is not a size", short(text)))
		return nil
	}
	b := MemoryBlocks{BlockSize: size}
	numbers := r.numbered(dir, "memory", maxEntries)
	if r.allOnline(uint64(len(numbers)), size, total) {
		b.Online = mulCapped(uint64(len(numbers)), size)
		return &b
	}
	for _, n := range numbers {
		source := fmt.Sprintf("%s/memory%d/state", dir, n)
		state, err := r.t.attr(source)
		if absent(err) { // newer kernels have both
			var online string
			if online, err = r.t.attr(fmt.Sprintf("%s/memory%d/online", dir, n)); err == nil && online == "0" {
				state = "offline"
			}
		}
		switch {
		case err != nil:
			r.warn(source, err)
		case state == "offline":
			b.Offline = addCapped(b.Offline, size)
		default: // "going-offline" still is in use
			b.Online = addCapped(b.Online, size)
		}
	}
	return &b
}

const zoneFile = "proc/zoneinfo"

// allOnline tells whether no block can be offline, since the zones hold more pages than all blocks but one have: one file
// instead of the hundreds of states that a large machine has.
func (r *reader) allOnline(blocks, size uint64, total *uint64) bool {
	if total == nil || blocks < 16 {
		return false
	}
	data, err := r.t.read(zoneFile, maxZones)
	if err != nil {
		return false
	}
	present, managed := parseZones(data)
	page := pageSize(*total, managed)
	memory := mulCapped(present, page)
	return page > 0 && memory > mulCapped(blocks-1, size) && memory <= mulCapped(blocks, size)
}

// parseZones sums the pages of all zones: those in memory that is online, and those of them that the kernel hands out.
func parseZones(data []byte) (present, managed uint64) {
	for line := range lines(data) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || key != "present" && key != "managed" {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 52)
		if err != nil {
			return 0, 0
		}
		if key == "present" {
			present = addCapped(present, n)
		} else {
			managed = addCapped(managed, n)
		}
	}
	return present, managed
}

// pageSize is what MemTotal was multiplied with; 0: none of the sizes that kernels have. No file states it.
func pageSize(total, managed uint64) uint64 {
	if managed == 0 {
		return 0
	}
	for _, page := range []uint64{4 << 10, 16 << 10, 64 << 10} {
		if per := total / managed; per >= page-page/8 && per <= page+page/8 {
			return page
		}
	}
	return 0
}
