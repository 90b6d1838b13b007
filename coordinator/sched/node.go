package sched

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
)

// definition is one class of nodes with the index of those that can be used.
type definition struct {
	id        coordinator.DefinitionID
	cost      float64
	order     int
	number    int // position in candidate order
	exclusive coordinator.Exclusive
	nodes     []*node // by id, usable or not
	root      *node   // index of schedulable nodes, fullest first
	kinds     []int   // device kinds that its nodes have
	local     []int   // device kind → 1 + index in kinds
	maxTPC    uint64  // most threads per core of any node
	nothing   *tally  // of any of its nodes when it is empty
	freed     uint64  // grows whenever one of its nodes may have more room
	altered   uint64  // grows whenever its nodes change
	use       usage   // scratch
	later     tally   // scratch
}

func newDefinition(d *Definition) *definition {
	cost := d.CostPerHour
	if math.IsNaN(cost) {
		cost = math.Inf(1)
	}
	return &definition{id: d.ID, cost: cost, order: d.Order, exclusive: d.Exclusive, maxTPC: 1, nothing: &tally{}}
}

// addKind makes room for a device kind on every node.
func (d *definition) addKind(kind int) {
	for len(d.local) <= kind {
		d.local = append(d.local, 0)
	}
	if d.local[kind] > 0 {
		return
	}
	d.kinds = append(d.kinds, kind)
	d.local[kind] = len(d.kinds)
	d.nothing.devices = append(d.nothing.devices, 0)
	for _, n := range d.nodes {
		n.devices = append(n.devices, 0)
		n.now.devices = append(n.now.devices, 0)
		n.tree.devices = append(n.tree.devices, 0)
		if n.topo != nil {
			n.sets = append(n.sets, 0)
		}
	}
}

// addKinds makes room for the devices of a node.
func (d *definition) addKinds(n *Node, kinds *names) {
	for name, count := range n.Devices {
		if count > 0 {
			d.addKind(kinds.number(name))
		}
	}
	for _, g := range n.GPUs {
		d.addKind(kinds.number(g.Kind))
	}
}

// device is the index of a device kind among those of the definition, -1 if it has none.
func (d *definition) device(kind int) int {
	if kind < len(d.local) {
		return d.local[kind] - 1
	}
	return -1
}

// node is one machine: what it has, who is there, and its place in the index.
type node struct {
	id          coordinator.NodeID
	spec        Node // as it was given
	known       bool // false: only claims name it
	def         *definition
	schedulable bool
	cores       uint64
	perCore     uint64 // hardware threads per core
	memory      uint64
	devices     []uint64 // by the definition's device index
	hasDevices  bool
	names       *names    // of device kinds
	topo        *topology // nil: devices are only counted
	sets        []gpuSet  // usable GPUs by the definition's device index, none where devices are only counted
	domains     []Domain
	now         tally
	claims      []*claim
	holds       []*claim
	plans       []*claim
	closed      []closing
	booked      []booked
	lasting     int           // claims without a known end
	firstEnd    time.Duration // no claim ends before it
	changes     uint64        // of the claims
	memo        freeMemo
	latest      starts // of the claims
	rate        uint64 // no claim loses fewer device-seconds in a second
	most        uint64 // no claim has more devices of one kind here
	indexed     bool
	weight      uint32 // in the index: a fixed hash of the id, so the shape is always the same
	tree        branch
}

// freeMemo is the last answer of freeFrom.
type freeMemo struct {
	shape   *shape
	changes uint64
	began   time.Duration
	at      time.Duration
}

// read takes over what the node has, in the terms of a definition.
func (n *node) read(def *definition, c *cluster) {
	n.def, n.schedulable, n.names = def, n.spec.Schedulable, &c.kinds
	n.cores, n.perCore, n.memory = uint64(n.spec.Cores), 1, uint64(n.spec.Memory)
	if n.spec.Cores > 0 && n.spec.Threads > uint32(n.spec.Cores) {
		n.perCore = uint64(n.spec.Threads) / uint64(n.spec.Cores)
	}
	n.devices, n.hasDevices = make([]uint64, len(def.kinds)), false
	n.tree.devices = make([]uint64, len(def.kinds))
	for i, kind := range def.kinds {
		n.devices[i] = uint64(n.spec.Devices[c.kinds.list[kind]])
	}
	n.readDetail(c)
	n.hasDevices = slices.ContainsFunc(n.devices, func(count uint64) bool { return count > 0 })
}

// add counts in a claim.
func (n *node) add(h *claim) {
	n.join(h)
	if len(n.holds) > 0 {
		n.recount()
	} else {
		n.count(h)
	}
}

// join lists a claim; what it takes is counted elsewhere.
func (n *node) join(h *claim) {
	if h.hold != nil {
		n.holds = append(n.holds, h)
	} else {
		n.claims = append(n.claims, h)
	}
}

func (n *node) drop(h *claim) {
	if h.hold != nil {
		n.holds = without(n.holds, h)
	} else {
		n.claims = without(n.claims, h)
	}
}

func (n *node) count(h *claim) {
	n.changes++
	n.now.add(n, h)
	if h.lasts() {
		n.lasting++
	}
	if h.ending {
		n.firstEnd = -never // it moves with the clock
	}
	n.firstEnd = min(n.firstEnd, h.to)
	n.latest.add(h.started)
	rate := uint64(0)
	for _, a := range h.need.devices {
		rate = plus(rate, a.n)
		n.most = max(n.most, a.n)
	}
	n.rate = min(n.rate, times(rate, uint64(len(h.nodes))))
}

// recount sums up the claims again.
func (n *node) recount() {
	n.changes++
	n.now.reset(len(n.devices))
	n.lasting, n.firstEnd = 0, never
	n.changes++
	n.latest, n.rate, n.most = starts{}, math.MaxUint64, 0
	for _, h := range n.claims {
		n.count(h)
	}
	if len(n.holds) > 0 {
		n.firstEnd = -never // they move with the clock
		n.tallyHeld(&n.now, func(*claim) bool { return true })
	}
}

// mode is how a request would hold this node.
func (n *node) mode(w *need) coordinator.Exclusive { return strongest(w.exclusive, n.def.exclusive) }

func strongest(a, b coordinator.Exclusive) coordinator.Exclusive {
	switch {
	case a == coordinator.ExclusiveJob || b == coordinator.ExclusiveJob:
		return coordinator.ExclusiveJob
	case a == coordinator.ExclusiveWorkflow || b == coordinator.ExclusiveWorkflow:
		return coordinator.ExclusiveWorkflow
	}
	return coordinator.ExclusiveNone
}

// tally is the sum of what occupies a node at one time.
type tally struct {
	cores    uint64
	memory   uint64
	devices  []uint64
	count    int
	lock     coordinator.Exclusive  // strongest mode among the occupants
	workflow coordinator.WorkflowID // of all of them, unless mixed
	mixed    bool
	gpus     gpuSet      // that somebody is known to have
	domains  []domainUse // that somebody is known to take of each; empty: nobody
}

func (t *tally) reset(devices int) {
	*t = tally{devices: zeros(t.devices, devices), domains: t.domains[:0]}
}

// joins reports whether exclusive use, of the node or by the request, lets the two share.
func (n *node) joins(t *tally, w *need, workflow coordinator.WorkflowID) bool {
	if t.count == 0 {
		return true
	}
	switch strongest(n.mode(w), t.lock) {
	case coordinator.ExclusiveJob:
		return false
	case coordinator.ExclusiveWorkflow:
		return !t.mixed && t.workflow == workflow
	}
	return true
}

func (n *node) fits(t *tally, w *need, workflow coordinator.WorkflowID) bool {
	return n.room(t, w) && n.joins(t, w, workflow)
}

// tallyAt sums what occupies a node at a time, plans included if asked.
func (c *cluster) tallyAt(t *tally, n *node, at time.Duration, plans bool) {
	t.reset(len(n.devices))
	for _, h := range n.claims {
		if c.active(h, at) {
			t.add(n, h)
		}
	}
	if len(n.holds) > 0 {
		n.tallyHeld(t, func(h *claim) bool { return c.active(h, at) })
	}
	if !plans {
		return
	}
	for _, p := range n.plans {
		if c.active(p, at) {
			t.add(n, p)
		}
	}
}

// openFor reports whether the shape fits on the node for the whole span, beside the plans
// there. Claims only end, so usage can rise only where a plan starts.
func (c *cluster) openFor(n *node, s *shape, from, to time.Duration, plans bool) bool {
	if !n.opens(from, s.proto.Walltime) {
		return false
	}
	c.tallyAt(&c.scratch, n, from, plans)
	if !c.admits(n, &c.scratch, s, &s.party, from) {
		return false
	}
	if !plans {
		return true
	}
	for _, p := range n.plans {
		if p.atNever() && to == never {
			return false
		}
	}
	for _, p := range n.plans {
		if p.from <= from || p.from >= to {
			continue
		}
		c.tallyAt(&c.scratch, n, p.from, true)
		if !c.admits(n, &c.scratch, s, &s.party, p.from) {
			return false
		}
	}
	if !n.detailed(s.need) {
		return true
	}
	c.spanUsage(n, from, to, true, &s.party) // the same GPUs and cores have to be free all the time
	return !n.lacksDetail(&c.span, s.need, first)
}

// fullness orders nodes for packing (rule 6): see the package comment.
type fullness struct {
	hasDevices bool
	devices    uint64 // free, of all kinds
	cores      uint64 // free
	memory     uint64 // free
	id         coordinator.NodeID
}

func (n *node) fullness(t *tally) fullness {
	f := fullness{hasDevices: n.hasDevices, cores: left(n.cores, t.cores), memory: left(n.memory, t.memory), id: n.id}
	for i, total := range n.devices {
		f.devices += left(total, t.devices[i])
	}
	return f
}

func (f *fullness) compare(g *fullness) int {
	switch {
	case f.hasDevices != g.hasDevices:
		return order(g.hasDevices)
	case f.devices != g.devices:
		return cmp.Compare(f.devices, g.devices)
	case f.cores != g.cores:
		return cmp.Compare(f.cores, g.cores)
	case f.memory != g.memory:
		return cmp.Compare(f.memory, g.memory)
	}
	return strings.Compare(string(f.id), string(g.id))
}

func order(less bool) int {
	if less {
		return -1
	}
	return 1
}
