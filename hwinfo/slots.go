package hwinfo

import (
	"strings"
)

// slotsFile is made by a snapshot, whose directories are plain ones: lines "name slot" for the links of sysfs
// that say where a device is plugged in.
const slotsFile = "slots"

// slot is where a device is plugged in: the PCI bridges and functions above it, from the root, and what it is
// reached over in the end.
type slot struct {
	pci       []string // "pci0000:15", "0000:15:01.0", …, the device's own function last
	transport string
}

// parseSlot reads the target of a link into sysfs's device tree, or a snapshot's line. Components that could name
// one machine among its kind, such as a WWN or a GUID, are not taken.
func parseSlot(target string) slot {
	var p slot
	for part := range strings.SplitSeq(target, "/") {
		if len(part) > 64 {
			continue
		}
		if bus, ok := strings.CutPrefix(part, "pci"); ok && len(p.pci) < 64 {
			if _, err := ParsePCIAddress(bus + ":00.0"); err == nil && strings.Count(bus, ":") == 1 {
				p.pci = append(p.pci, part)
			}
			continue
		}
		if _, err := ParsePCIAddress(part); err == nil && strings.Count(part, ":") == 2 && len(p.pci) < 64 {
			p.pci = append(p.pci, part)
			continue
		}
		if t := transportOf(part); t != "" {
			p.transport = t
		}
	}
	return p
}

// transportOf knows the directories that the kernel's subsystems make on the way to a disk.
func transportOf(part string) string {
	if word, ok := strings.CutPrefix(part, "via-"); ok { // a snapshot's
		part = word
	}
	name := strings.TrimRight(part, "0123456789:-.")
	switch name {
	case "ata":
		return "sata"
	case "usb":
		return "usb"
	case "virtio":
		return "virtio"
	case "nvme", "nvme-subsystem", "nvme-subsys":
		return "nvme"
	case "mmc_host", "mmc":
		return "mmc"
	case "session", "iscsi":
		return "iscsi"
	case "rport", "fc":
		return "fc"
	case "end_device", "sas":
		return "sas"
	case "vbd", "xen":
		return "xen"
	case "VMBUS", "hyperv":
		return "hyperv"
	case "sata":
		return "sata"
	}
	return ""
}

// String is the slot as a snapshot writes it.
func (p slot) String() string {
	parts := p.pci
	if p.transport != "" {
		parts = append(parts[:len(parts):len(parts)], "via-"+p.transport)
	}
	return strings.Join(parts, "/")
}

// function is the address of the PCI function that the device is or hangs on.
func (p slot) function() string {
	for i := len(p.pci) - 1; i >= 0; i-- {
		if !strings.HasPrefix(p.pci[i], "pci") {
			return p.pci[i]
		}
	}
	return ""
}

// slot finds out where the device behind a directory of sysfs is plugged in.
func (r *reader) slot(name string) slot {
	target, err := r.t.root.readlink(name)
	if err != nil {
		return r.snapshotSlots()[name]
	}
	p := parseSlot(target)
	if r.t.rec != nil && len(r.t.rec.files[slotsFile]) < maxFile {
		r.t.rec.files[slotsFile] = append(r.t.rec.files[slotsFile], name+" "+p.String()+"\n"...)
	}
	return p
}

// snapshotSlots reads a snapshot's file once.
func (r *reader) snapshotSlots() map[string]slot {
	if r.slots != nil {
		return r.slots
	}
	r.slots = map[string]slot{}
	data, err := r.t.read(slotsFile, maxAnswer)
	if err != nil {
		return r.slots
	}
	for line := range lines(data) {
		if name, target, ok := strings.Cut(line, " "); ok && len(r.slots) < maxEntries {
			r.slots[name] = parseSlot(target)
		}
	}
	return r.slots
}

// pciPath is the way between two functions in nvidia-smi's words, "" when it is unknown.
func pciPath(a, b slot, nodeA, nodeB *int) string {
	if len(a.pci) < 2 || len(b.pci) < 2 {
		return ""
	}
	x, y := a.pci[:len(a.pci)-1], b.pci[:len(b.pci)-1] // the bridges
	common, bridges := 0, 0
	for common < len(x) && common < len(y) && x[common] == y[common] {
		if !strings.HasPrefix(x[common], "pci") {
			bridges++
		}
		common++
	}
	switch {
	case common == 0 && (nodeA == nil || nodeB == nil):
		return ""
	case common == 0 && *nodeA != *nodeB:
		return "SYS"
	case common == 0:
		return "NODE"
	case bridges == 0:
		return "PHB"
	case len(x)-common <= 1 && len(y)-common <= 1: // at most the two lower ports of one switch
		return "PIX"
	}
	return "PXB"
}
