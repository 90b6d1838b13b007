package hwinfo

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const nodeDir = "sys/devices/system/node"

// readNUMA reads the nodes by number; numbers are sparse, nodes without CPUs and without memory exist.
func (r *reader) readNUMA(online []int) []NUMA {
	numbers := r.numbered(nodeDir, "node", maxNodes)
	if len(numbers) == 0 {
		return nil
	}
	gpus := r.gpuNodes()
	var nodes []NUMA
	for _, id := range numbers {
		n := NUMA{ID: id, GPU: gpus[id]}
		dir := fmt.Sprintf("%s/node%d/", nodeDir, id)
		text, err := r.t.attr(dir + "cpulist")
		if err == nil {
			n.CPUs, err = parseList(text, maxCPUs)
		}
		if err != nil && !absent(err) {
			r.warn(dir+"cpulist", err)
		}
		if len(online) > 0 {
			n.CPUs = intersect(n.CPUs, online)
		}
		data, err := r.t.read(dir+"meminfo", maxAttr)
		if err == nil {
			var total uint64
			if total, err = parseTotal(bytes.NewReader(data)); err == nil {
				n.Memory = &total
			}
		}
		if err != nil && !absent(err) {
			r.warn(dir+"meminfo", err)
		}
		n.Distances = r.distances(dir+"distance", len(numbers))
		n.HugePages = r.readHugePages(dir + "hugepages")
		nodes = append(nodes, n)
	}
	return nodes
}

// distances has one number for each node that is online, in their order; any other count could not be told apart.
func (r *reader) distances(source string, nodes int) []int {
	text, err := r.t.attr(source)
	if err != nil {
		if !absent(err) {
			r.warn(source, err)
		}
		return nil
	}
	list, err := parseDistances(text)
	if err == nil && len(list) != nodes {
		err = fmt.Errorf("%d distances for %d nodes", len(list), nodes)
	}
	if err != nil {
		r.warn(source, err)
		return nil
	}
	return list
}

func parseDistances(s string) ([]int, error) {
	var out []int
	for word := range strings.FieldsSeq(s) {
		n, err := strconv.ParseUint(word, 10, 8)
		if err != nil || len(out) >= maxNodes {
			return nil, fmt.Errorf("%q is not a list of distances", short(s))
		}
		out = append(out, int(n))
	}
	return out, nil
}

// impliedNode stands for the whole machine where the kernel shows no nodes.
func (r *reader) impliedNode(nodes []NUMA, online []int, m Memory) []NUMA {
	if len(nodes) > 0 || len(online) == 0 && m.Total == nil {
		return nodes
	}
	return []NUMA{{ID: 0, CPUs: online, Memory: m.Total, Implied: true}}
}

func nodesWithCPUs(nodes []NUMA) int {
	count := 0
	for _, n := range nodes {
		if len(n.CPUs) > 0 {
			count++
		}
	}
	return count
}

// intersect keeps what both ascending lists hold.
func intersect(a, b []int) []int {
	var out []int
	for _, n := range a {
		if _, ok := slices.BinarySearch(b, n); ok {
			out = append(out, n)
		}
	}
	return out
}

const nvidiaDir = "proc/driver/nvidia/gpus"

// gpuNodes maps a node's number to the GPU whose memory it is, as the NVIDIA driver of coherent machines says.
func (r *reader) gpuNodes() map[int]string {
	out := map[int]string{}
	names, err := r.t.list(nvidiaDir)
	if err != nil {
		return out
	}
	for _, name := range names[:min(len(names), maxPCI)] {
		addr, err := ParsePCIAddress(name)
		if err != nil {
			continue
		}
		source := nvidiaDir + "/" + name + "/numa_status"
		data, err := r.t.read(source, maxAttr)
		if err != nil {
			continue // only coherent machines have the file
		}
		node, ok, err := parseNUMAStatus(bytes.NewReader(data))
		if err != nil {
			r.warn(source, err)
		} else if ok {
			out[node] = addr.String()
		}
	}
	return out
}

// parseNUMAStatus reads "Node: 255"; -1 is none.
func parseNUMAStatus(r io.Reader) (node int, ok bool, err error) {
	data, err := readLimited(r, maxAttr)
	if err != nil {
		return 0, false, err
	}
	for line := range lines(data) {
		key, value, found := keyValue(line)
		if !found || key != "Node" {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return 0, false, fmt.Errorf("%q is not a node", short(value))
		}
		return int(n), n >= 0, nil
	}
	return 0, false, nil
}
