package engine

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/hwinfo"
)

// detail is what placement needs of a node's inside: GPUs one by one, how they are joined, NUMA domains.
type detail struct {
	gpus       []sched.GPU
	links      []sched.Link
	linksKnown bool
	domains    []sched.Domain
}

func detailOf(f *hwinfo.Facts) detail {
	d := detail{linksKnown: true, domains: domainsOf(f)}
	at := map[string]int{}
	for _, g := range f.GPUs {
		if g.Resource == "" || !g.Driver || !g.Whole() { // as the inventory counts
			continue
		}
		domain := -1
		if g.NUMANode != nil {
			domain = *g.NUMANode
		}
		at[g.Address] = len(d.gpus)
		d.gpus = append(d.gpus, sched.GPU{ID: g.Address, Kind: g.Resource, Domain: domain})
		d.linksKnown = d.linksKnown && g.LinksKnown
	}
	for _, l := range f.GPULinks {
		a, okA := at[l.A]
		b, okB := at[l.B]
		if okA && okB && l.Fabric() {
			d.links = append(d.links, sched.Link{A: min(a, b), B: max(a, b), Count: l.NVLinks + l.XGMI, Switched: l.Switched, Path: l.Path})
		}
	}
	return d
}

// domainsOf lists the NUMA domains with cores; none where the report does not add up.
func domainsOf(f *hwinfo.Facts) []sched.Domain {
	if f.CPU.Cores == nil || f.CPU.ThreadsPerCore == nil || *f.CPU.ThreadsPerCore < 1 {
		return nil
	}
	var out []sched.Domain
	var nodes []hwinfo.NUMA
	total := 0
	for _, n := range f.NUMA {
		cores := len(n.CPUs) / *f.CPU.ThreadsPerCore
		if cores == 0 || n.Implied {
			continue
		}
		d := sched.Domain{ID: n.ID, Socket: -1, Cores: coordinator.Cores(cores)}
		if n.Memory != nil {
			d.Memory = coordinator.Bytes(*n.Memory)
		}
		total += cores
		out, nodes = append(out, d), append(nodes, n)
	}
	if total != *f.CPU.Cores {
		return nil
	}
	if f.CPU.Sockets != nil {
		for i, socket := range socketsOf(nodes, f.NUMA, *f.CPU.Sockets) {
			out[i].Socket = socket
		}
	}
	return out
}

// socketsOf groups domains into as many sockets by their distances: those of one socket are nearer to each other
// than to any other. It is nil where the distances do not tell.
func socketsOf(nodes, all []hwinfo.NUMA, sockets int) []int {
	switch {
	case sockets == 1:
		return make([]int, len(nodes))
	case len(nodes) > maxDomains:
		return nil
	case sockets == len(nodes):
		out := make([]int, len(nodes))
		for i := range out {
			out[i] = i
		}
		return out
	}
	var limits []int
	for i := range nodes {
		for j := range i {
			if d, ok := distance(nodes[i], nodes[j], all); ok {
				limits = append(limits, d)
			}
		}
	}
	slices.Sort(limits)
	for _, limit := range slices.Compact(limits) {
		if out, count := within(nodes, all, limit); count == sockets {
			return out
		}
	}
	return nil
}

// within numbers the groups of nodes that are joined by distances up to a limit.
func within(nodes, all []hwinfo.NUMA, limit int) (group []int, count int) {
	group = make([]int, len(nodes))
	for i := range nodes {
		group[i] = -1
		for j := range i {
			if d, ok := distance(nodes[i], nodes[j], all); ok && d <= limit {
				group[i] = group[j]
				break
			}
		}
		if group[i] < 0 {
			group[i] = count
			count++
		}
	}
	return group, count
}

const maxDomains = 128 // more than any machine has; their distances are compared each with each

func distance(a, b hwinfo.NUMA, all []hwinfo.NUMA) (int, bool) {
	i := slices.IndexFunc(all, func(n hwinfo.NUMA) bool { return n.ID == b.ID })
	if i < 0 || i >= len(a.Distances) {
		return 0, false
	}
	return a.Distances[i], true
}

// shares is what the ranks of a run have of their nodes, in the scheduler's terms.
func (s *state) shares(a *allocation) []sched.Share {
	var out []sched.Share
	for i := range a.record.Ranks {
		if r := &a.record.Ranks[i]; len(r.Devices)+len(r.Cores) > 0 && s.nodes[r.Node] != nil {
			out = append(out, s.share(r.Node, &r.shareRecord))
		}
	}
	return out
}

// share translates a record: the scheduler counts GPUs in the order of the newest report, the record names them
// by address.
func (s *state) share(id coordinator.NodeID, r *shareRecord) sched.Share {
	share := sched.Share{Node: id}
	if n := s.nodes[id]; n != nil {
		for i, g := range n.detail.gpus {
			if slices.Contains(r.Devices, g.ID) {
				share.Devices = append(share.Devices, i)
			}
		}
	}
	for _, c := range r.Cores {
		share.Cores = append(share.Cores, sched.DomainCores{Domain: c.Domain, Cores: c.Cores})
	}
	return share
}

// recordOf writes down a share of a node.
func recordOf(n *node, share *sched.Share) shareRecord {
	var r shareRecord
	for _, i := range share.Devices {
		if n != nil && i < len(n.detail.gpus) {
			r.Devices = append(r.Devices, n.detail.gpus[i].ID)
		}
	}
	for _, c := range share.Cores {
		r.Cores = append(r.Cores, domainCores{Domain: c.Domain, Cores: c.Cores})
	}
	return r
}

// visibleBy is the variable by which a vendor's runtime shows a job some of the node's GPUs.
func visibleBy(vendor string) string {
	switch vendor {
	case "nvidia":
		return "CUDA_VISIBLE_DEVICES"
	case "amd":
		return "ROCR_VISIBLE_DEVICES"
	case "habana":
		return "HABANA_VISIBLE_DEVICES"
	}
	return ""
}

// visible tells a run its GPUs: SUBSTRATE_GPUS by PCI address, and the variables of the vendors' runtimes by
// index. Those are empty for a run without GPUs, and left out where the driver's indexes, or the node's own GPUs, are not known.
func (n *node) visible(devices []string) []string {
	if len(n.detail.gpus) == 0 && len(n.capacity.Devices) > 0 {
		return nil // they are counted only, as on a pilot that cannot tell its own: what its agent sees is all that a job can be told
	}
	indexes := map[string][]string{} // by variable
	unknown := map[string]bool{}
	for _, g := range n.facts.GPUs {
		name := visibleBy(g.Vendor)
		if name == "" || !g.Driver {
			continue
		}
		if g.Index == nil {
			unknown[name] = true
			continue
		}
		if _, ok := indexes[name]; !ok {
			indexes[name] = nil
		}
		if slices.Contains(devices, g.Address) {
			indexes[name] = append(indexes[name], strconv.Itoa(*g.Index))
		}
	}
	var env []string
	if len(devices) > 0 {
		env = append(env, "SUBSTRATE_GPUS="+strings.Join(devices, ","))
	}
	for _, name := range slices.Sorted(maps.Keys(indexes)) {
		if unknown[name] {
			continue
		}
		list := indexes[name]
		slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		env = append(env, name+"="+strings.Join(list, ","))
		if name == "CUDA_VISIBLE_DEVICES" {
			env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID") // what the driver's indexes count
		}
	}
	return env
}
