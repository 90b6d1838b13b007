package hwinfo

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
)

// kfdDir is the amdgpu driver's own topology: a node for each processor and each GPU (or part of one), with links
// between nodes.
const (
	kfdDir      = "sys/class/kfd/kfd/topology/nodes"
	kfdLinkXGMI = 11 // HSA_IOLINKTYPE_XGMI
	maxKFDNodes = 1024
)

// parseKFD reads "name value" lines; numbers that do not fit are left out.
func parseKFD(r io.Reader) (map[string]uint64, error) {
	data, err := readLimited(r, maxAttr)
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for line := range lines(data) {
		if name, n, ok := kfdLine(line); ok {
			out[name] = n
		}
	}
	return out, nil
}

func kfdLine(line string) (name string, n uint64, ok bool) {
	name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok || !kfdFact(name) {
		return "", 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
	return name, n, err == nil
}

// kfdFact names what is read. unique_id and hive_id are a board's serial number and a name made of one.
func kfdFact(name string) bool {
	switch name {
	case "simd_count", "domain", "location_id", "type", "node_from", "node_to", "weight", "min_bandwidth", "max_bandwidth":
		return true
	}
	return false
}

func scrubKFD(name string, data []byte) []byte {
	if !strings.HasPrefix(name, kfdDir) || path.Base(name) != "properties" {
		return data
	}
	var b bytes.Buffer
	for line := range lines(data) {
		if key, n, ok := kfdLine(line); ok {
			fmt.Fprintf(&b, "%s %d\n", key, n)
		}
	}
	return b.Bytes()
}

// kfdAddress is the PCI address behind location_id: bus, device and function in the low 16 bits. Parts of a GPU put
// their own number above them or into the function.
func kfdAddress(node map[string]uint64) string {
	location := node["location_id"]
	return PCIAddress{Domain: uint32(node["domain"] & math.MaxUint32), Bus: uint8(location >> 8),
		Device: uint8(location >> 3 & 0x1f), Function: uint8(location & 7)}.String()
}

// readKFD adds what AMD's driver tells: the order of its GPUs, parts and links.
func (r *reader) readKFD(gpus []GPU, links map[[2]string]GPULink) {
	at := map[string]int{}
	for i, g := range gpus {
		if g.Vendor == "amd" {
			at[g.Address] = i
		}
	}
	if len(at) == 0 {
		return
	}
	address := map[int]string{} // of the GPU that a node is, or is a part of
	numbers := r.numbered(kfdDir, "", maxKFDNodes)
	index := 0
	parts := map[string]int{}
	for _, n := range numbers {
		node := r.kfdProperties(fmt.Sprintf("%s/%d/properties", kfdDir, n))
		if node["simd_count"] == 0 {
			continue // a processor
		}
		a := kfdAddress(node)
		if _, ok := at[a]; !ok {
			addr, _ := ParsePCIAddress(a)
			addr.Function = 0
			a = addr.String()
		}
		i, ok := at[a]
		if !ok {
			continue
		}
		address[n] = a
		if parts[a]++; parts[a] == 1 {
			gpus[i].Index, gpus[i].LinksKnown = ptr(index), true
			index++
		}
	}
	for a, n := range parts {
		if g := &gpus[at[a]]; g.Split != nil {
			g.Split.Instances = n
		} else if n > 1 {
			g.Split = &GPUSplit{Mode: "partitions", Instances: n}
		}
	}
	for _, n := range numbers {
		if address[n] != "" {
			r.kfdLinks(n, address, links)
		}
	}
}

// kfdLinks adds the direct links of a node. Those of weight 30 and more lead through other GPUs (15 is one step).
func (r *reader) kfdLinks(node int, address map[int]string, links map[[2]string]GPULink) {
	dir := fmt.Sprintf("%s/%d/io_links", kfdDir, node)
	for _, n := range r.numbered(dir, "", maxKFDNodes) {
		p := r.kfdProperties(fmt.Sprintf("%s/%d/properties", dir, n))
		if p["type"] != kfdLinkXGMI || p["weight"] >= 30 || p["node_to"] >= maxKFDNodes {
			continue
		}
		from, to := address[node], address[int(p["node_to"])]
		if from == "" || to == "" || from == to {
			continue
		}
		count := 1
		if low, high := p["min_bandwidth"], p["max_bandwidth"]; low > 0 && high > low {
			count = int(min(high/low, maxNVLinks)) // the lower figure is one link's, the upper one all of them
		}
		pair := ordered(from, to)
		l := links[pair]
		l.XGMI = max(l.XGMI, count)
		links[pair] = l
	}
}

func (r *reader) kfdProperties(name string) map[string]uint64 {
	data, err := r.t.read(name, maxAttr)
	if err == nil {
		var out map[string]uint64
		if out, err = parseKFD(bytes.NewReader(data)); err == nil {
			return out
		}
	}
	if !absent(err) {
		r.warn(name, err)
	}
	return nil
}
