package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

func listed(node Node, kind string) bool {
	return slices.ContainsFunc(node.GPUs, func(g GPU) bool { return g.Kind == kind })
}

func joins(node Node) *topology { return newTopology(node.GPUs, node.Links, node.LinksKnown) }

// usableDevices is what a node has of each kind: those that are listed and not dead, or what is counted.
func usableDevices(node Node) map[string]int64 {
	devices := map[string]int64{}
	for name, count := range node.Devices {
		devices[name] = int64(count)
	}
	for _, g := range node.GPUs {
		devices[g.Kind] = int64(joins(node).all(g.Kind).count())
	}
	return devices
}

func shareOf(node Node, o run) (Share, bool) {
	i := slices.IndexFunc(o.shares, func(s Share) bool { return s.Node == node.ID })
	if i < 0 {
		return Share{}, false
	}
	return o.shares[i], true
}

// countOf is how many devices of a kind count as taken.
func countOf(node Node, o run, kind string, wanted uint32) int64 {
	s, ok := shareOf(node, o)
	if !ok || len(s.Devices) == 0 || !listed(node, kind) || joins(node).all(kind) == 0 {
		return int64(wanted)
	}
	return int64((gpusAt(s.Devices) & joins(node).all(kind)).count())
}

// freeGPUs is what nobody has of a kind at any of the moments.
func (n *naive) freeGPUs(node Node, kind string, moments []time.Duration, keep bool) gpuSet {
	free, most := joins(node).all(kind), 0
	for _, at := range moments {
		had, count := gpuSet(0), 0
		for _, o := range n.there(at, keep) {
			if slices.Contains(o.nodes, node.ID) {
				count += int(countOf(node, o, kind, o.res.Devices[kind]))
				s, _ := shareOf(node, o)
				had |= gpusAt(s.Devices)
			}
		}
		free &^= had
		most = max(most, count-(had&joins(node).all(kind)).count())
	}
	for ; most > 0 && free != 0; most-- {
		free &^= 1 << free.lowest()
	}
	return free
}

// freeCores is what nobody has in each domain at any of the moments.
func (n *naive) freeCores(node Node, moments []time.Duration, keep bool) (cores []uint32, memory []coordinator.Bytes) {
	for _, d := range node.Domains {
		cores = append(cores, uint32(d.Cores))
		memory = append(memory, d.Memory)
		if d.Memory == 0 {
			memory[len(memory)-1] = node.Memory
		}
	}
	for _, at := range moments {
		used, bytes, blind := make([]int64, len(cores)), make([]uint64, len(cores)), int64(0)
		for _, o := range n.there(at, keep) {
			if !slices.Contains(o.nodes, node.ID) {
				continue
			}
			blind += wholeCores(node, o.res)
			s, _ := shareOf(node, o)
			total := uint64(0)
			for _, c := range s.Cores {
				total += uint64(c.Cores)
			}
			for _, c := range s.Cores {
				for d := range node.Domains {
					if node.Domains[d].ID == c.Domain {
						used[d] += int64(c.Cores)
						bytes[d] += uint64(o.res.TotalMemory()) / total * uint64(c.Cores)
						blind -= int64(c.Cores)
					}
				}
			}
		}
		for d := range node.Domains {
			more := max(0, min(blind, int64(node.Domains[d].Cores)-used[d]))
			blind -= more
			cores[d] = min(cores[d], uint32(max(0, int64(node.Domains[d].Cores)-used[d]-more)))
			whole := node.Domains[d].Memory
			if whole > 0 {
				memory[d] = min(memory[d], whole-min(whole, coordinator.Bytes(bytes[d])))
			}
		}
	}
	return cores, memory
}

// share is what the request gets of a node for all the moments, if that is together as it has to be.
func (n *naive) share(node Node, r Request, moments []time.Duration, keep bool) (Share, bool) {
	s := Share{Node: node.ID}
	cores, memory := n.freeCores(node, moments, keep)
	ask := coreAsk{want: uint32(min(wholeCores(node, r.Resources), math.MaxUint32)), affinity: r.Resources.Affinity, sockets: r.Resources.Sockets,
		memory: r.Resources.TotalMemory()}
	take, ok := pickCores(node.Domains, cores, memory, ask)
	if !ok && (ask.affinity != 0 || ask.sockets > 0) {
		return s, false
	}
	var near []int
	if ok && len(node.Domains) > 0 && ask.want > 0 {
		var list []int
		for d := range node.Domains {
			if take[d] > 0 || cores[d] >= ask.want {
				list = append(list, d)
			}
		}
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(take[b], take[a]) })
		for _, d := range list {
			near = append(near, node.Domains[d].ID)
		}
	}
	gpus := gpuSet(0)
	for kind, count := range r.Resources.Devices {
		if count == 0 || !listed(node, kind) || joins(node).all(kind) == 0 {
			continue
		}
		set, ok := joins(node).pick(kind, n.freeGPUs(node, kind, moments, keep), int(count), near, r.Loose)
		if !ok {
			return s, false
		}
		gpus |= set
	}
	if gpus != 0 {
		s.Devices, ask.near = gpus.indexes(), joins(node).home(gpus)
	}
	if ask.want > 0 {
		take, _ = pickCores(node.Domains, cores, memory, ask)
		for d, count := range take {
			if count > 0 {
				s.Cores = append(s.Cores, DomainCores{node.Domains[d].ID, count})
			}
		}
	}
	return s, true
}

// unknowable: the amounts are there, but it is not known whether they are together.
func (n *naive) unknowable(node Node, r Request) bool {
	apart := r
	apart.Loose, apart.Resources.Affinity, apart.Resources.Sockets = true, 0, 0
	if !n.couldHold(node, apart) {
		return false
	}
	unknown := false
	for kind, count := range r.Resources.Devices {
		if listed(node, kind) && !joins(node).fits(kind, joins(node).all(kind), int(count), r.Loose) {
			if node.LinksKnown {
				return false
			}
			unknown = true
		}
	}
	cores, memory := n.freeCores(node, nil, false)
	ask := coreAsk{want: uint32(wholeCores(node, r.Resources)), affinity: r.Resources.Affinity, sockets: r.Resources.Sockets, memory: r.Resources.TotalMemory()}
	if _, ok := pickCores(node.Domains, cores, memory, ask); !ok && (ask.affinity != 0 || ask.sockets > 0) {
		return ask.unknowable(node.Domains)
	}
	return unknown
}

// shares divides each of the nodes, if any has detail.
func (n *naive) shares(ids []coordinator.NodeID, r Request, from time.Duration, keep bool) []Share {
	list, detailed := make([]Share, len(ids)), false
	for i, id := range ids {
		for _, node := range n.s.Nodes {
			if node.ID == id {
				list[i], _ = n.share(node, r, n.moments(from, n.end(r, from), keep), keep)
				detailed = detailed || len(node.GPUs)+len(node.Domains) > 0
			}
		}
	}
	if !detailed {
		return nil
	}
	return list
}

// checkShares: a start has of each node what was asked for, alive, and joined unless that does not matter.
func checkShares(nodes map[coordinator.NodeID]Node, r Request, st Start) string {
	for _, sh := range st.Shares {
		node := nodes[sh.Node]
		if sh.Node != "" && !slices.Contains(st.Nodes, sh.Node) {
			return fmt.Sprintf("%s has a share of %s, where it is not", st.ID, sh.Node)
		}
		for kind, count := range r.Resources.Devices {
			if !listed(node, kind) {
				continue
			}
			set := gpusAt(sh.Devices) & joins(node).all(kind)
			if set.count() != int(count) || !joins(node).fits(kind, set, int(count), r.Loose) {
				return fmt.Sprintf("%s wants %d %s of %s, got %v", st.ID, count, kind, node.ID, sh.Devices)
			}
		}
		sum := int64(0)
		for _, c := range sh.Cores {
			sum += int64(c.Cores)
		}
		if r.Resources.Affinity == coordinator.AffinityNUMA && r.Resources.Sockets == 0 && sum > 1 && len(sh.Cores) != 1 {
			return fmt.Sprintf("%s has cores of %v", st.ID, sh.Cores)
		}
	}
	return ""
}
