package hwinfo

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	dmiDir     = "sys/class/dmi/id"
	dmiTable   = "sys/firmware/dmi/tables/DMI" // for root only
	edacDir    = "sys/devices/system/edac/mc"
	maxDMI     = 1 << 20
	maxModules = 4096
)

// dmi is what firmware says of the box. The files beside these hold serial numbers and asset tags and are never opened.
type dmi struct {
	vendor, product, board, bios, biosVersion string
}

func (r *reader) readDMI() dmi {
	text := func(file string) string {
		s, err := r.t.attr(dmiDir + "/" + file)
		if err != nil {
			if !absent(err) && !errors.Is(err, fs.ErrPermission) {
				r.warn(dmiDir+"/"+file, err)
			}
			return ""
		}
		return firmwareText(s)
	}
	d := dmi{vendor: text("sys_vendor"), product: text("product_name")}
	if d == (dmi{}) && !r.t.exists(dmiDir) {
		return d
	}
	d.board, d.bios, d.biosVersion = text("board_vendor"), text("bios_vendor"), text("bios_version")
	return d
}

// firmwareText drops what board makers leave in place of a name.
func firmwareText(s string) string {
	s = clean(strings.TrimRight(s, "\x00"))
	switch strings.ToLower(strings.Trim(s, ". ")) {
	case "", "to be filled by o.e.m", "default string", "system product name", "system manufacturer", "system name",
		"not specified", "not applicable", "not available", "none", "unknown", "empty", "oem", "o.e.m", "n/a", "0123456789", "123456789":
		return ""
	}
	return s
}

// readModules lists memory modules from the firmware's table, else from the memory controller's driver, which knows no speed.
func (r *reader) readModules() []MemoryModules {
	data, err := r.t.read(dmiTable, maxDMI)
	if err == nil {
		modules, err := parseModules(data)
		if err != nil {
			r.warn(dmiTable, err)
		}
		if len(modules) > 0 {
			return grouped(modules)
		}
	} else if !absent(err) && !errors.Is(err, fs.ErrPermission) {
		r.warn(dmiTable, err)
	}
	return grouped(r.edacModules())
}

// structures calls visit with the formatted part of each structure of a type in a table of SMBIOS.
func structures(table []byte, kind byte, visit func([]byte)) error {
	for n := 0; len(table) >= 4; n++ {
		length := int(table[1])
		if length < 4 || length > len(table) || n >= maxEntries {
			return fmt.Errorf("structure %d is broken", n)
		}
		if table[0] == kind {
			visit(table[:length])
		}
		if table[0] == 127 { // end of table
			return nil
		}
		// Strings follow, each ended by a zero, all of them by one more; without strings there are two zeros.
		end := length
		for end+1 < len(table) && (table[end] != 0 || table[end+1] != 0) {
			end++
		}
		table = table[min(end+2, len(table)):]
	}
	return nil
}

const memoryDevice = 17 // SMBIOS 7.18

// parseModules reads the memory devices of a table; empty slots are left out.
func parseModules(table []byte) ([]MemoryModules, error) {
	var out []MemoryModules
	err := structures(table, memoryDevice, func(s []byte) {
		if m, ok := parseModule(s); ok && len(out) < maxModules {
			out = append(out, m)
		}
	})
	return out, err
}

func parseModule(s []byte) (MemoryModules, bool) {
	word := func(at int) uint64 {
		if len(s) < at+2 {
			return 0
		}
		return uint64(binary.LittleEndian.Uint16(s[at:]))
	}
	long := func(at int) uint64 {
		if len(s) < at+4 {
			return 0
		}
		return uint64(binary.LittleEndian.Uint32(s[at:]) & 0x7fffffff)
	}
	var size uint64
	switch w := word(0x0c); {
	case w == 0 || w == 0xffff: // empty, unknown
		return MemoryModules{}, false
	case w == 0x7fff:
		size = long(0x1c) << 20
	case w&0x8000 != 0:
		size = (w & 0x7fff) << 10
	default:
		size = w << 20
	}
	m := MemoryModules{Size: size, Count: 1}
	if len(s) > 0x12 {
		m.Type = lookup(memoryTypes, fmt.Sprintf("%02x", s[0x12]))
	}
	speed := word(0x20) // configured
	if speed == 0xffff {
		speed = long(0x58)
	}
	if speed == 0 {
		if speed = word(0x15); speed == 0xffff { // the module's own
			speed = long(0x54)
		}
	}
	if speed > 0 {
		m.MTs = &speed
	}
	return m, size > 0
}

// memoryTypes: byte 12h of a memory device.
const memoryTypes = `
12 DDR
13 DDR2
18 DDR3
1a DDR4
1b LPDDR
1c LPDDR2
1d LPDDR3
1e LPDDR4
20 HBM
21 HBM2
22 DDR5
23 LPDDR5
24 HBM3
`

// scrubDMI keeps memory devices without their strings, which hold serial numbers and asset tags.
func scrubDMI(table []byte) []byte {
	var out []byte
	_ = structures(table, memoryDevice, func(s []byte) {
		start := len(out)
		out = append(out, s...)
		kept := out[start:]
		for _, at := range []int{0x10, 0x11, 0x17, 0x18, 0x19, 0x1a, 0x2b} { // numbers of strings
			if at < len(kept) {
				kept[at] = 0
			}
		}
		out = append(out, 0, 0)
	}) // what is broken ends the table
	return out
}

func (r *reader) edacModules() []MemoryModules {
	var out []MemoryModules
	for _, mc := range r.numbered(edacDir, "mc", 256) {
		dir := fmt.Sprintf("%s/mc%d", edacDir, mc)
		for _, prefix := range []string{"dimm", "rank"} {
			for _, n := range r.numbered(dir, prefix, 256) {
				slot := fmt.Sprintf("%s/%s%d/", dir, prefix, n)
				text, err := r.t.attr(slot + "size")
				if err != nil {
					continue
				}
				mib, err := strconv.ParseUint(text, 10, 32)
				if err != nil {
					r.warn(slot+"size", fmt.Errorf("%q is not a size", short(text)))
					continue
				}
				kind, _ := r.t.attr(slot + "dimm_mem_type")
				if mib > 0 && len(out) < maxModules {
					out = append(out, MemoryModules{Type: edacType(kind), Size: mib << 20, Count: 1})
				}
			}
		}
	}
	return out
}

// edacType reads "Registered-DDR4" and "Unbuffered-DDR5".
func edacType(s string) string {
	_, kind, _ := strings.Cut(s, "-")
	if kind == "" {
		kind = s
	}
	if !strings.Contains(kind, "DDR") && !strings.Contains(kind, "HBM") {
		return ""
	}
	return clean(kind)
}

// grouped counts modules that are alike, largest first.
func grouped(modules []MemoryModules) []MemoryModules {
	speed := func(m MemoryModules) uint64 {
		if m.MTs == nil {
			return 0
		}
		return *m.MTs
	}
	slices.SortStableFunc(modules, func(a, b MemoryModules) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(a.Type, b.Type), cmp.Compare(speed(a), speed(b)))
	})
	var out []MemoryModules
	for _, m := range modules {
		if n := len(out); n > 0 && out[n-1].Type == m.Type && out[n-1].Size == m.Size && speed(out[n-1]) == speed(m) {
			out[n-1].Count++
			continue
		}
		out = append(out, m)
	}
	return out
}

// deviceTree returns a property's first text; Arm and POWER boards describe themselves there.
func (r *reader) deviceTree(property string) string {
	data, err := r.t.read(path.Join("proc/device-tree", property), maxAttr)
	if err != nil {
		return ""
	}
	text, _, _ := strings.Cut(string(data), "\x00")
	return firmwareText(text)
}
