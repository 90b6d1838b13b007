package hwinfo

import (
	"fmt"
	"math"
	"reflect"
	"strings"
)

const (
	maxLinked  = maxGPUs * (maxGPUs - 1) / 2 // pairs of GPUs
	maxBytes   = 1 << 60                     // of anything; no machine is near
	maxPools   = 64
	maxShares  = 4096 // of one GPU
	maxID      = math.MaxInt32
	maxDistant = math.MaxUint8 // as ACPI's table has them
)

// Check says what in facts from elsewhere Read makes of no files, such as -5 cores or a million GPUs; nil: nothing. Those who
// reckon with facts rely on it: on counts that fit their types and lists that are short enough to go through.
func (f *Facts) Check() error {
	c := &checker{}
	c.cpu(&f.CPU)
	c.memory(&f.Memory)
	c.devices(f)
	c.nodes(f.NUMA)
	c.length("cpuset", len(f.Limits.CPUSet), maxCPUs)
	c.float("limits.cpus", f.Limits.CPUs)
	c.bytes("limits.memory_bytes", f.Limits.Memory)
	return c.err
}

// checker keeps the first thing that is wrong.
type checker struct{ err error }

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

func (c *checker) number(name string, n *int, low, high int) {
	if n != nil && (*n < low || *n > high) {
		c.fail("%s is %d, expected %d to %d", name, *n, low, high)
	}
}

func (c *checker) float(name string, v *float64) {
	if v != nil && !(*v >= 0 && *v <= math.MaxFloat64) {
		c.fail("%s is %g, expected a positive number", name, *v)
	}
}

func (c *checker) bytes(name string, n *uint64) {
	if n != nil && *n > maxBytes {
		c.fail("%s is %d, expected at most %d", name, *n, uint64(maxBytes))
	}
}

func (c *checker) length(name string, n, limit int) {
	if n > limit {
		c.fail("%s has %d entries, expected at most %d", name, n, limit)
	}
}

func (c *checker) cpu(p *CPU) {
	for _, n := range [...]struct {
		name  string
		value *int
		low   int
		high  int
	}{
		{"cpu.cpu_cores", p.Cores, 1, maxCPUs}, {"cpu.cores_per_socket", p.CoresPerSocket, 1, maxCPUs},
		{"cpu.sockets", p.Sockets, 1, maxCPUs}, {"cpu.threads_per_core", p.ThreadsPerCore, 1, maxCPUs},
		{"cpu.logical_cpus", p.LogicalCPUs, 1, maxCPUs}, {"cpu.numa_nodes", p.NUMANodes, 1, maxNodes},
		{"cpu.dies", p.Dies, 1, maxCPUs}, {"cpu.clusters", p.Clusters, 1, maxCPUs},
		{"cpu.cpu_family", p.Family, 0, maxID}, {"cpu.model", p.Model, 0, maxID}, {"cpu.stepping", p.Stepping, 0, maxID},
	} {
		c.number(n.name, n.value, n.low, n.high)
	}
	c.float("cpu.cpu_mhz_max", p.MHzMax)
	c.length("cpu.flags", len(p.Flags), maxFlags)
	c.length("cpu.offline_cpus", len(p.Offline), maxCPUs)
	c.length("cpu.core_kinds", len(p.Kinds), maxCPUs)
}

func (c *checker) memory(m *Memory) {
	c.bytes("memory.total_bytes", m.Total)
	c.bytes("memory.host_bytes", m.Host)
	c.bytes("memory.device_bytes", m.Device)
	c.bytes("memory.usable_bytes", m.Usable)
	c.length("memory.huge_pages", len(m.HugePages), maxPools)
	c.length("memory.modules", len(m.Modules), maxModules)
}

func (c *checker) devices(f *Facts) {
	c.length("pci", len(f.PCI), maxPCI)
	c.length("gpus", len(f.GPUs), maxGPUs)
	c.length("gpu_links", len(f.GPULinks), maxLinked)
	c.length("nics", len(f.NICs), maxNICs)
	c.length("rdma", len(f.RDMA), maxNICs)
	c.length("disks", len(f.Disks), maxDisks)
	if c.err != nil {
		return
	}
	seen := map[string]bool{}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		if g.Address != "" && seen[g.Address] {
			c.fail("gpus[%d].address is %.40q, expected one of its own", i, g.Address)
		}
		seen[g.Address] = true
		c.number("gpus.numa_node", g.NUMANode, 0, maxID)
		c.number("gpus.index", g.Index, 0, maxID)
		c.bytes("gpus.memory_bytes", g.Memory)
		if s := g.Split; s != nil {
			c.number("gpus.split.instances", &s.Instances, 0, maxShares)
			c.length("gpus.split.profiles", len(s.Profiles), maxShares)
		}
	}
	for i := range f.GPULinks {
		c.number("gpu_links.nvlinks", &f.GPULinks[i].NVLinks, 0, maxID)
		c.number("gpu_links.xgmi_links", &f.GPULinks[i].XGMI, 0, maxID)
	}
}

func (c *checker) nodes(nodes []NUMA) {
	c.length("numa", len(nodes), maxNodes)
	last := -1
	for i := range nodes[:min(len(nodes), maxNodes)] {
		n := &nodes[i]
		if n.ID <= last || n.ID > maxID {
			c.fail("numa[%d].id is %d, expected ids in order", i, n.ID)
		}
		last = n.ID
		c.length("numa.cpus", len(n.CPUs), maxCPUs)
		c.length("numa.huge_pages", len(n.HugePages), maxPools)
		c.length("numa.distances", len(n.Distances), maxNodes)
		c.bytes("numa.memory_bytes", n.Memory)
		for _, d := range n.Distances {
			c.number("numa.distances", &d, 0, maxDistant)
		}
	}
}

// Tidy makes every text of facts from elsewhere fit to show: valid UTF-8 without control characters, of bounded length, as Read
// gives it.
func (f *Facts) Tidy() { tidy(reflect.ValueOf(f).Elem()) }

func tidy(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			v.SetString(clean(s))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			tidy(v.Field(i))
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.String {
			for i := range v.Len() {
				tidy(v.Index(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() && v.Type().Elem().Kind() == reflect.Struct {
			tidy(v.Elem())
		}
	}
}
