package sched

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
)

func byID(a, b *node) int { return cmp.Compare(a.id, b.id) }

func sameShare(a, b Share) bool {
	return a.Node == b.Node && slices.Equal(a.Devices, b.Devices) && slices.Equal(a.Cores, b.Cores)
}

// sameNode reports whether two descriptions say the same.
func sameNode(a, b *Node) bool {
	return a.ID == b.ID && a.Definition == b.Definition && a.Cores == b.Cores && a.Threads == b.Threads &&
		a.Memory == b.Memory && a.Schedulable == b.Schedulable && a.Draining == b.Draining && a.Away == b.Away && a.Why == b.Why && maps.Equal(a.Devices, b.Devices) &&
		a.Expires.Equal(b.Expires) && a.IdleSince.Equal(b.IdleSince) &&
		a.LinksKnown == b.LinksKnown && slices.Equal(a.GPUs, b.GPUs) && slices.Equal(a.Links, b.Links) && slices.Equal(a.Domains, b.Domains)
}

// read takes over what a placement is known to have of its nodes.
func (h *claim) read(shares []Share) {
	for _, s := range shares {
		i, ok := slices.BinarySearchFunc(h.nodes, s.Node, func(n *node, id coordinator.NodeID) int { return cmp.Compare(n.id, id) })
		if !ok {
			continue
		}
		if h.shares == nil {
			h.shares = make([]Share, len(h.nodes))
		}
		s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d int) bool { return d < 0 || d >= maxGPUs })
		h.shares[i] = s
	}
}

// share is what is known of the claim's share of a node, nil if nothing.
func (h *claim) share(n *node) *Share {
	if h.shares == nil {
		return nil
	}
	if len(h.nodes) == 1 {
		return &h.shares[0]
	}
	i, _ := slices.BinarySearchFunc(h.nodes, n, byID)
	return &h.shares[i]
}

// readDetail takes over what is known of the node's GPUs and domains. More GPUs than a set holds are only counted.
func (n *node) readDetail(c *cluster) {
	n.topo, n.domains, n.sets = nil, n.spec.Domains, nil
	if len(n.spec.GPUs) == 0 || len(n.spec.GPUs) > maxGPUs {
		return
	}
	n.topo = c.shared.of(n.spec.GPUs, n.spec.Links, n.spec.LinksKnown)
	n.sets = make([]gpuSet, len(n.def.kinds))
	for i, kind := range n.def.kinds {
		name := c.kinds.list[kind]
		if !slices.ContainsFunc(n.spec.GPUs, func(g GPU) bool { return g.Kind == name }) {
			continue
		}
		n.sets[i] = n.topo.all(name)
		n.devices[i] = uint64(n.sets[i].count())
	}
}

// set is the usable GPUs of a kind, none if the kind is only counted.
func (n *node) set(i int) gpuSet {
	if n.topo == nil {
		return 0
	}
	return n.sets[i]
}

// usage is what is taken of a node in detail, at one time or the most of it over a span.
type usage struct {
	gpus   gpuSet
	blind  []int    // devices by the definition's index that somebody has, nobody knows which
	cores  []uint32 // by domain
	memory []uint64 // by domain
}

func (u *usage) reset(n *node) {
	u.gpus = 0
	u.blind = zeros(u.blind, len(n.sets))
	u.cores = zeros(u.cores, len(n.domains))
	u.memory = zeros(u.memory, len(n.domains))
}

// zeros is a list of so many zero values, in the room of another one.
func zeros[T any](list []T, n int) []T {
	list = slices.Grow(list[:0], n)[:n]
	clear(list)
	return list
}

// cover adds a time of the span.
func (u *usage) cover(n *node, t *tally) {
	if n.topo != nil {
		u.gpus |= t.gpus
		for i, set := range n.sets {
			u.blind[i] = max(u.blind[i], int(t.devices[i])-(t.gpus&set).count())
		}
	}
	blind := t.cores // of cores that somebody has, nobody knows where
	for d := range t.domains {
		blind -= min(blind, uint64(t.domains[d].cores))
	}
	for d := range n.domains {
		var used domainUse
		if len(t.domains) > 0 {
			used = t.domains[d]
		}
		more := min(blind, left(uint64(n.domains[d].Cores), uint64(used.cores)))
		blind -= more
		u.cores[d] = max(u.cores[d], used.cores+uint32(more))
		u.memory[d] = max(u.memory[d], used.memory)
	}
}

// free is the GPUs of a kind that nobody has during the span.
func (n *node) free(u *usage, i int) gpuSet {
	free := n.sets[i] &^ u.gpus
	for blind := u.blind[i]; blind > 0 && free != 0; blind-- {
		free &= free - 1
	}
	return free
}

// domainUse is what is taken of a NUMA domain.
type domainUse struct {
	cores  uint32
	memory uint64
}

// addShare counts in what a claim is known to have of the node and returns, of each of its devices, how many count.
func (t *tally) addShare(n *node, h *claim) (known gpuSet, detailed bool) {
	s := h.share(n)
	if s == nil {
		return 0, false
	}
	if len(s.Cores) > 0 && len(n.domains) > 0 {
		if len(t.domains) == 0 {
			t.domains = zeros(t.domains, len(n.domains))
		}
		total := uint64(0)
		for _, c := range s.Cores {
			total += uint64(c.Cores)
		}
		for _, c := range s.Cores {
			d := slices.IndexFunc(n.domains, func(d Domain) bool { return d.ID == c.Domain })
			if d >= 0 {
				t.domains[d].cores += c.Cores
				t.domains[d].memory = plus(t.domains[d].memory, part(h.need.memory, uint64(c.Cores), total))
			}
		}
	}
	if n.topo == nil || len(s.Devices) == 0 {
		return 0, false
	}
	known = gpusAt(s.Devices)
	t.gpus |= known
	return known, true
}

// part is of memory what goes with some of the cores, rounded down.
func part(memory, cores, total uint64) uint64 {
	if total == 0 {
		return 0
	}
	return memory / total * cores
}

// mostJoined is the most free GPUs of a kind in one fabric.
func (t *topology) mostJoined(kind string, free gpuSet) uint64 {
	most := 0
	for _, f := range t.kind(kind).fabrics {
		most = max(most, (f.set & free).count())
	}
	return uint64(most)
}

// detailed reports whether more than amounts decides about the need on this node.
func (n *node) detailed(w *need) bool {
	return w.affinity != coordinator.AffinityNone || w.sockets > 0 || n.topo != nil && len(w.devices) > 0
}

// lacksDetail hands over what is missing although the amounts are there: GPUs of one fabric, cores of one domain.
func (n *node) lacksDetail(u *usage, w *need, each func(lack) bool) bool {
	any := false
	for _, a := range w.devices {
		i := n.def.device(a.kind)
		if i < 0 || n.set(i) == 0 {
			continue
		}
		name, free := n.names.list[a.kind], n.free(u, i)
		if n.topo.fits(name, free, int(a.n), w.loose) {
			continue
		}
		any = true
		if !each(lack{kind: a.kind, together: true, unknown: !n.spec.LinksKnown, wants: a.n,
			free: n.topo.mostJoined(name, free), total: n.topo.mostJoined(name, n.sets[i])}) {
			return true
		}
	}
	if w.affinity == coordinator.AffinityNone && w.sockets == 0 {
		return any
	}
	ask := n.coreAsk(w)
	if _, ok := n.chooseCores(u, ask); ok {
		return any
	}
	l := lack{kind: lackCores, together: true, unknown: ask.unknowable(n.domains), wants: uint64(ask.want)}
	l.free, l.total = n.inOne(u, w)
	each(l)
	return true
}

// inOne is the most cores, free and at all, within the boundaries that the need sets: one socket or one domain.
func (n *node) inOne(u *usage, w *need) (free, total uint64) {
	bySocket := w.affinity != coordinator.AffinityNUMA
	for d := range n.domains {
		var sum, all uint64
		for o := range n.domains {
			if o == d || bySocket && n.domains[o].Socket == n.domains[d].Socket {
				sum += left(uint64(n.domains[o].Cores), uint64(u.cores[o]))
				all += uint64(n.domains[o].Cores)
			}
		}
		free, total = max(free, sum), max(total, all)
	}
	return free, total
}

func (n *node) coreAsk(w *need) coreAsk {
	return coreAsk{want: uint32(min(n.coresFor(w), uint64(^uint32(0)))), affinity: w.affinity, sockets: w.sockets, memory: coordinator.Bytes(w.memory)}
}

// chooseCores chooses cores by rule 8 among those that are free.
func (n *node) chooseCores(u *usage, ask coreAsk) ([]uint32, bool) {
	free := make([]uint32, len(n.domains))
	memory := make([]coordinator.Bytes, len(n.domains))
	for d := range n.domains {
		free[d] = uint32(left(uint64(n.domains[d].Cores), uint64(u.cores[d])))
		memory[d] = coordinator.Bytes(left(uint64(n.domains[d].Memory), u.memory[d]))
		if n.domains[d].Memory == 0 {
			memory[d] = coordinator.Bytes(n.memory) // not known by domain
		}
	}
	return pickCores(n.domains, free, memory, ask)
}

// choose is the share of a need that is known to fit: GPUs by rule 7 near cores by rule 8, then the cores near those GPUs.
func (n *node) choose(u *usage, w *need) Share {
	s := Share{Node: n.id}
	ask := n.coreAsk(w)
	var near []int
	if len(n.domains) > 0 && ask.want > 0 && n.topo != nil {
		if cores, ok := n.chooseCores(u, ask); ok {
			near = n.nearest(cores, u, ask.want)
		}
	}
	var gpus gpuSet
	for _, a := range w.devices {
		i := n.def.device(a.kind)
		if i < 0 || n.set(i) == 0 {
			continue
		}
		picked, _ := n.topo.pick(n.names.list[a.kind], n.free(u, i), int(a.n), near, w.loose)
		gpus |= picked
	}
	if gpus != 0 {
		s.Devices = gpus.indexes()
		ask.near = n.topo.home(gpus)
	}
	if len(n.domains) == 0 || ask.want == 0 {
		return s
	}
	cores, _ := n.chooseCores(u, ask)
	for d, count := range cores {
		if count > 0 {
			s.Cores = append(s.Cores, DomainCores{Domain: n.domains[d].ID, Cores: count})
		}
	}
	return s
}

// nearest lists domains for GPUs: those of the cores, most first, then those that could hold the cores as well.
func (n *node) nearest(cores []uint32, u *usage, want uint32) []int {
	var list []int
	for d := range n.domains {
		if cores[d] > 0 || left(uint64(n.domains[d].Cores), uint64(u.cores[d])) >= uint64(want) {
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(cores[b], cores[a]) })
	for i, d := range list {
		list[i] = n.domains[d].ID
	}
	return list
}

// divide sets what a claim will have of its nodes, beside the plans if those are respected. Without detail of any
// node there is nothing to say.
func (c *cluster) divide(h *claim, plans bool) {
	if !slices.ContainsFunc(h.nodes, func(n *node) bool { return n.topo != nil || len(n.domains) > 0 }) {
		return
	}
	h.shares = make([]Share, len(h.nodes))
	for i, n := range h.nodes {
		p := party{class: h.class, booking: h.booking, keepOff: h.class == coordinator.ClassBatch}
		c.spanUsage(n, h.from, h.to, plans, &p)
		if p.keepOff && len(n.booked) > 0 && !n.supplies(&c.span, h.need) {
			p.keepOff = false
			c.spanUsage(n, h.from, h.to, plans, &p)
		}
		h.shares[i] = n.choose(&c.span, h.need)
	}
}

// supplies reports whether what is known in detail is there beside a usage.
func (n *node) supplies(u *usage, w *need) bool {
	for _, a := range w.devices {
		if i := n.def.device(a.kind); i >= 0 && n.set(i) != 0 && uint64(n.free(u, i).count()) < a.n {
			return false
		}
	}
	return !n.lacksDetail(u, w, first)
}

// spanUsage is the most that is taken of a node from one time to another. Claims only end, so it is found where the span
// and where plans begin.
func (c *cluster) spanUsage(n *node, from, to time.Duration, plans bool, p *party) {
	c.span.reset(n)
	c.tallyAt(&c.scratch, n, from, plans)
	if n.bounded(p) {
		n.restrict(&c.scratch, p, from, to)
	}
	c.span.cover(n, &c.scratch)
	if !plans {
		return
	}
	for _, p := range n.plans {
		if p.from > from && p.from < to {
			c.tallyAt(&c.scratch, n, p.from, true)
			c.span.cover(n, &c.scratch)
		}
	}
}
