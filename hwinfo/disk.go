package hwinfo

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	blockDir   = "sys/block"
	maxDisks   = 1024
	sectorSize = 512 // of the size attribute, whatever the device's own is
)

// readDisks lists whole disks with a device below them. What is made from other disks or from memory (dm, md, loop,
// zram) has none; optical and floppy drives are no disks.
func (r *reader) readDisks(functions []PCI) []Disk {
	names, err := r.t.list(blockDir)
	if err != nil {
		if !absent(err) {
			r.warn(blockDir, err)
		}
		return nil
	}
	var out []Disk
	for _, name := range names {
		dir := blockDir + "/" + name + "/"
		if !validName(name) || strings.HasPrefix(name, "sr") || strings.HasPrefix(name, "fd") || !r.t.exists(dir+"device") {
			continue
		}
		if hidden, err := r.t.attr(dir + "hidden"); err == nil && hidden == "1" {
			continue // one of several ways to a disk that is listed itself
		}
		if len(out) == maxDisks {
			r.warn(blockDir, fmt.Errorf("more than %d disks, the rest is left out", maxDisks))
			break
		}
		d := r.readDisk(name, dir)
		d.NUMANode = nodeOf(functions, d.Address)
		out = append(out, d)
	}
	return out
}

func (r *reader) readDisk(name, dir string) Disk {
	at := r.slot(strings.TrimSuffix(dir, "/"))
	d := Disk{Name: name, Address: at.function(), Transport: at.transport}
	if text, err := r.t.attr(dir + "size"); err == nil {
		n, err := strconv.ParseUint(text, 10, 64)
		switch {
		case err != nil || n > math.MaxUint64/sectorSize:
			r.warn(dir+"size", fmt.Errorf("%q is not a number of sectors", short(text)))
		case n > 0: // an empty card reader says 0
			d.Size = ptr(n * sectorSize)
		}
	} else if !absent(err) {
		r.warn(dir+"size", err)
	}
	if model, err := r.t.attr(dir + "device/model"); err == nil {
		d.Model = known(model)
	} else if model, err := r.t.attr(dir + "device/name"); err == nil { // memory cards
		d.Model = known(model)
	}
	switch text, _ := r.t.attr(dir + "queue/rotational"); text {
	case "0":
		d.Rotational = ptr(false)
	case "1":
		d.Rotational = ptr(true)
	}
	removable, _ := r.t.attr(dir + "removable")
	d.Removable = removable == "1"
	d.Transport = r.transport(name, dir, d.Transport)
	return d
}

// transport refines what the place tells: NVMe has transports of its own, and names tell where nothing else does.
func (r *reader) transport(name, dir, transport string) string {
	switch {
	case strings.HasPrefix(name, "nvme"):
		switch kind, _ := r.t.attr(dir + "device/transport"); kind {
		case "tcp", "rdma", "fc":
			return "nvme-" + kind
		}
		return "nvme"
	case transport != "":
		return transport
	case strings.HasPrefix(name, "vd"):
		return "virtio"
	case strings.HasPrefix(name, "mmcblk"):
		return "mmc"
	case strings.HasPrefix(name, "xvd"):
		return "xen"
	}
	return ""
}
