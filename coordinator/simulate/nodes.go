package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/inventory"
	"substrate/hwinfo"
	"substrate/strictyaml"
)

// Node is one simulated machine. Machines of one kind share their facts, apart from the name.
type Node struct {
	ID    coordinator.NodeID
	Facts hwinfo.Facts
}

const (
	maxNodes      = 20_000
	maxNodeCores  = 4096
	maxNodeGPUs   = 64
	coresPerGPU   = 16
	memoryPerGPU  = 128 << 30
	memoryPerCore = 4 << 30
)

// ParseNodes makes nodes of a description: kinds joined by +, each COUNTxPARTS or COUNTxFILE.json. Parts are separated by
// commas: 128c (cores), 8gpu, 1TiB (memory), 2numa (NUMA domains), 4linked (GPUs that are joined to one another).
// read gives a file of facts.
func ParseNodes(spec string, read func(name string) ([]byte, error)) ([]Node, error) {
	var nodes []Node
	for k, text := range strings.Split(spec, "+") {
		number, kind, ok := strings.Cut(text, "x")
		count, err := strconv.Atoi(number)
		if !ok || err != nil || count < 1 || kind == "" {
			return nil, fmt.Errorf("cannot read nodes %q: expected COUNTxPARTS, such as 9x8gpu or 240x1c, or COUNTxFILE.json", text)
		}
		if len(nodes)+count > maxNodes {
			return nil, fmt.Errorf("cannot read nodes %q: more than %d", spec, maxNodes)
		}
		facts, err := kindOf(kind, read)
		if err != nil {
			return nil, fmt.Errorf("cannot read nodes %q: %w", text, err)
		}
		for i := range count {
			id := fmt.Sprintf("n%d-%05d", k+1, i+1)
			facts.Hostname, facts.FQDN = id, id
			nodes = append(nodes, Node{ID: coordinator.NodeID(id), Facts: facts})
		}
	}
	return nodes, nil
}

func kindOf(text string, read func(string) ([]byte, error)) (hwinfo.Facts, error) {
	if strings.HasSuffix(text, ".json") {
		data, err := read(text)
		if err != nil {
			return hwinfo.Facts{}, err
		}
		var inspected struct {
			Facts json.RawMessage `json:"facts"`
		}
		if err := json.Unmarshal(data, &inspected); err == nil && len(inspected.Facts) > 0 {
			data = inspected.Facts
		}
		facts, err := inventory.DecodeFacts(data)
		if err != nil {
			return facts, err
		}
		if _, known := inventory.Capacity(facts); !known {
			return facts, errors.New("the facts tell no cores or no memory; they are what `substrated inspect -o json` prints")
		}
		return facts, nil
	}
	m := machine{domains: 1}
	for _, part := range strings.Split(text, ",") {
		if err := m.add(part); err != nil {
			return hwinfo.Facts{}, err
		}
	}
	return m.facts()
}

// machine is a node in few words.
type machine struct {
	cores, gpus, domains, linked int
	memory                       uint64
}

func (m *machine) add(part string) error {
	for _, unit := range []struct {
		suffix string
		into   *int
		most   int
	}{{"gpu", &m.gpus, maxNodeGPUs}, {"c", &m.cores, maxNodeCores}, {"numa", &m.domains, 64}, {"linked", &m.linked, maxNodeGPUs}} {
		if number, ok := strings.CutSuffix(part, unit.suffix); ok {
			v, err := strconv.Atoi(number)
			if err != nil || v < 1 || v > unit.most {
				return fmt.Errorf("%q: expected a number from 1 to %d before %s", part, unit.most, unit.suffix)
			}
			*unit.into = v
			return nil
		}
	}
	v, err := strictyaml.ParseSize(part)
	if err != nil || v == 0 {
		return fmt.Errorf("unknown part %q, expected such as 128c, 8gpu, 1TiB, 2numa, 4linked", part)
	}
	m.memory = v
	return nil
}

// facts writes a machine down as its agent would report it.
func (m *machine) facts() (hwinfo.Facts, error) {
	if m.cores == 0 {
		m.cores = max(m.gpus*coresPerGPU, 1)
	}
	if m.memory == 0 {
		m.memory = max(uint64(m.gpus)*memoryPerGPU, uint64(m.cores)*memoryPerCore)
	}
	if m.linked == 0 {
		m.linked = m.gpus
	}
	if m.cores%m.domains != 0 {
		return hwinfo.Facts{}, fmt.Errorf("%d cores are not divided by %d NUMA domains", m.cores, m.domains)
	}
	one := 1
	f := hwinfo.Facts{OSRelease: hwinfo.OSRelease{PrettyName: "simulated"}}
	f.CPU = hwinfo.CPU{Arch: "amd64", ModelName: "simulated", Cores: &m.cores, LogicalCPUs: &m.cores, ThreadsPerCore: &one,
		Sockets: &m.domains, NUMANodes: &m.domains}
	f.Memory.Total, f.Memory.Host = &m.memory, &m.memory
	each, part := m.cores/m.domains, m.memory/uint64(m.domains)
	for d := range m.domains {
		n := hwinfo.NUMA{ID: d, Memory: &part}
		for c := range each {
			n.CPUs = append(n.CPUs, d*each+c)
		}
		for other := range m.domains {
			n.Distances = append(n.Distances, 10+min(other^d, 1)*10)
		}
		f.NUMA = append(f.NUMA, n)
	}
	for g := range m.gpus {
		domain := g * m.domains / m.gpus
		f.GPUs = append(f.GPUs, hwinfo.GPU{Address: address(g), Vendor: "nvidia", Resource: gpuDevice, Model: "simulated",
			NUMANode: &domain, Driver: true, Index: &g, LinksKnown: true})
		for other := g - g%m.linked; other < g; other++ {
			f.GPULinks = append(f.GPULinks, hwinfo.GPULink{A: address(other), B: address(g), NVLinks: 18, Switched: m.linked > 4})
		}
	}
	return f, f.Check()
}

const gpuDevice = "nvidia.com/gpu"

func address(gpu int) string { return fmt.Sprintf("0000:%02x:00.0", gpu+1) }

// report is the facts as an agent sends them.
func (n *Node) report() ([]byte, error) {
	data, err := json.Marshal(n.Facts)
	if err != nil {
		return nil, fmt.Errorf("cannot write the facts of node %s: %w", n.ID, err)
	}
	return data, nil
}
