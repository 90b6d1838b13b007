package hwinfo

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	netDir  = "sys/class/net"
	rdmaDir = "sys/class/infiniband"
	maxNICs = 1024
)

// readNICs lists the interfaces that a device backs.
func (r *reader) readNICs(functions []PCI, ports []RDMA) []NIC {
	names, err := r.t.list(netDir)
	if err != nil {
		if !absent(err) {
			r.warn(netDir, err)
		}
		return nil
	}
	var out []NIC
	for _, name := range names {
		dir := netDir + "/" + name + "/"
		if !validName(name) || !r.t.exists(dir+"device") {
			continue // loopback, bridges, bonds and tunnels
		}
		if master, err := r.t.linkBase(dir + "master"); err == nil && r.t.exists(netDir+"/"+master+"/device") {
			continue // a bond has no device of its own, a cloud's synthetic interface has
		}
		if len(out) == maxNICs {
			r.warn(netDir, fmt.Errorf("more than %d interfaces, the rest is left out", maxNICs))
			break
		}
		n := r.readNIC(name, dir)
		n.NUMANode = nodeOf(functions, n.Address)
		// The first RDMA device of the function; a card's ports are functions of their own.
		if i := slices.IndexFunc(ports, func(p RDMA) bool { return n.Address != "" && p.Address == n.Address }); i >= 0 {
			n.RDMA = ports[i].Device
		}
		out = append(out, n)
	}
	return out
}

// nodeOf is the NUMA node of a function, nil when it is unknown. Functions are in the order of their addresses.
func nodeOf(functions []PCI, address string) *int {
	want, err := ParsePCIAddress(address)
	if err != nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(functions, want, func(f PCI, want PCIAddress) int {
		have, _ := ParsePCIAddress(f.Address)
		return have.Compare(want)
	})
	if !ok {
		return nil
	}
	return functions[i].NUMANode
}

func (r *reader) readNIC(name, dir string) NIC {
	n := NIC{Name: name, Address: r.pciOf(dir + "device")}
	device := dir + "device"
	if n.Address != "" {
		device = pciDir + "/" + n.Address
	}
	if driver, err := r.t.linkBase(device + "/driver"); err == nil && validName(driver) {
		n.Driver = driver
	} else if data, err := r.t.read(device+"/uevent", maxAttr); err == nil {
		n.Driver = ueventDriver(data)
	}
	// The file of a link that is down answers EINVAL: unknown, and no fault.
	if text, err := r.t.attr(dir + "speed"); err == nil {
		n.Mbps = parseSpeed(text)
	}
	// ARPHRD_ETHER and ARPHRD_INFINIBAND (include/uapi/linux/if_arp.h).
	switch kind, _ := r.t.attr(dir + "type"); kind {
	case "1":
		n.LinkLayer = "ethernet"
	case "32":
		n.LinkLayer = "infiniband"
	}
	return n
}

// pciOf returns the PCI function that a device link leads to, "" for another bus.
func (r *reader) pciOf(link string) string {
	target, err := r.t.root.readlink(link)
	if err != nil {
		return ""
	}
	address := path.Base(target)
	if _, err := ParsePCIAddress(address); err != nil {
		return ""
	}
	if r.t.rec != nil {
		r.t.rec.links[link] = "/" + pciDir + "/" + address
		r.t.rec.dirs[pciDir+"/"+address] = true
	}
	return address
}

func ueventDriver(data []byte) string {
	for line := range lines(data) {
		if v, ok := strings.CutPrefix(line, "DRIVER="); ok && validName(v) {
			return v
		}
	}
	return ""
}

// parseSpeed reads Mb/s; -1, 0, 65535 and 4294967295 are the drivers' ways of saying unknown.
func parseSpeed(s string) *uint64 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 || n == math.MaxUint16 || n == math.MaxUint32 {
		return nil
	}
	return &n
}

// readRDMA lists the ports of RDMA devices. Such a device can be Ethernet: its link layer tells.
func (r *reader) readRDMA(functions []PCI) []RDMA {
	names, err := r.t.list(rdmaDir)
	if err != nil {
		if !absent(err) {
			r.warn(rdmaDir, err)
		}
		return nil
	}
	var out []RDMA
	for _, name := range names {
		if !validName(name) {
			continue
		}
		dir := rdmaDir + "/" + name
		vendor, _ := r.t.attr(dir + "/device/vendor")
		nodeType, _ := r.t.attr(dir + "/node_type")
		address := r.pciOf(dir + "/device")
		node := nodeOf(functions, address)
		for _, port := range r.numbered(dir+"/ports", "", 256) {
			if len(out) == maxNICs {
				r.warn(rdmaDir, fmt.Errorf("more than %d ports, the rest is left out", maxNICs))
				return out
			}
			p := r.readPort(name, vendor, nodeType, port)
			p.Address, p.NUMANode = address, node
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b RDMA) int {
		return cmp.Or(strings.Compare(a.Device, b.Device), cmp.Compare(a.Port, b.Port))
	})
	return out
}

func (r *reader) readPort(device, vendor, nodeType string, port int) RDMA {
	dir := fmt.Sprintf("%s/%s/ports/%d/", rdmaDir, device, port)
	p := RDMA{Device: device, Port: port}
	layer, _ := r.t.attr(dir + "link_layer")
	p.Fabric = fabric(layer, vendor, nodeType, device)
	switch layer {
	case "InfiniBand":
		p.LinkLayer = "infiniband"
	case "Ethernet":
		p.LinkLayer = "ethernet"
	}
	if state, err := r.t.attr(dir + "state"); err == nil {
		p.Active = strings.HasPrefix(state, "4:")
	}
	data, err := r.t.read(dir+"rate", maxAttr)
	if err != nil {
		if !absent(err) {
			r.warn(dir+"rate", err)
		}
		return p
	}
	rate, err := parseRate(bytes.NewReader(data))
	if err != nil {
		r.warn(dir+"rate", err)
		return p
	}
	p.Gbps, p.Lanes, p.Speed = &rate.gbps, rate.lanes, rate.speed
	return p
}

func fabric(layer, vendor, nodeType, device string) string {
	switch {
	case vendor == "0x1d0f": // Amazon; its link layer is "Unknown"
		return "efa"
	case strings.HasPrefix(device, "hfi1_"):
		return "opa"
	case strings.HasPrefix(nodeType, "4:"): // RNIC
		return "iwarp"
	case layer == "InfiniBand":
		return "infiniband"
	case layer == "Ethernet":
		return "roce"
	}
	return ""
}

type portRate struct {
	gbps  float64
	lanes *int
	speed string
}

// parseRate reads "400 Gb/sec (4X NDR)"; the part in brackets may be missing.
func parseRate(r io.Reader) (portRate, error) {
	data, err := readLimited(r, maxAttr)
	if err != nil {
		return portRate{}, err
	}
	s := strings.TrimSpace(string(data))
	f := strings.Fields(s)
	bad := fmt.Errorf("%q is not a rate", short(s))
	if len(f) < 2 || f[1] != "Gb/sec" {
		return portRate{}, bad
	}
	gbps, err := strconv.ParseFloat(f[0], 64)
	if err != nil || !(gbps >= 0) || gbps > 1e6 {
		return portRate{}, bad
	}
	rate := portRate{gbps: gbps}
	if len(f) >= 3 {
		if n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(f[2], "("), "X"), 10, 16); err == nil {
			rate.lanes = ptr(int(n))
		}
	}
	if len(f) >= 4 {
		rate.speed = clean(strings.TrimSuffix(f[3], ")"))
	}
	return rate, nil
}
