package sched

import (
	"slices"
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
}

func (d *definition) addKind(kind int) {
	for len(d.local) <= kind {
		d.local = append(d.local, 0)
	}
	if d.local[kind] == 0 {
		d.kinds = append(d.kinds, kind)
		d.local[kind] = len(d.kinds)
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
	def         *definition
	rank        int // by id
	schedulable bool
	why         string
	cores       uint64
	perCore     uint64 // hardware threads per core
	memory      uint64
	devices     []uint64 // by the definition's device index
	hasDevices  bool
	now         tally
	claims      []*claim
	plans       []*claim
	tree        branch
}

func newNode(n *Node, def *definition, kinds *names, rank int) *node {
	made := &node{
		id: n.ID, def: def, rank: rank, schedulable: n.Schedulable, why: n.Why,
		cores: uint64(n.Cores), perCore: 1, memory: uint64(n.Memory),
		devices: make([]uint64, len(def.kinds)),
	}
	if n.Cores > 0 && n.Threads > uint32(n.Cores) {
		made.perCore = uint64(n.Threads) / uint64(n.Cores)
	}
	if def.nothing == nil {
		def.nothing = &tally{devices: make([]uint64, len(def.kinds))}
	}
	for i, kind := range def.kinds {
		made.devices[i] = uint64(n.Devices[kinds.list[kind]])
		made.hasDevices = made.hasDevices || made.devices[i] > 0
	}
	return made
}

// reset empties the sums of what is on the node.
func (n *node) reset() { n.now.reset(len(n.devices)) }

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
}

func (t *tally) reset(devices int) {
	kept := t.devices[:0]
	*t = tally{devices: slices.Grow(kept, devices)[:devices]}
	clear(t.devices)
}

// joins reports whether exclusive use, of the node or by the request, lets the two share.
func (n *node) joins(t *tally, w *need, workflow coordinator.WorkflowID) bool {
	if t.count == 0 {
		return true
	}
	mode := n.mode(w)
	switch strongest(mode, t.lock) {
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

// tallyAt sums what occupies the node at a time, plans included if asked.
func (n *node) tallyAt(t *tally, at time.Duration, plans bool) {
	t.reset(len(n.devices))
	for _, h := range n.claims {
		if h.activeAt(at) {
			t.add(n, h)
		}
	}
	if !plans {
		return
	}
	for _, p := range n.plans {
		if p.activeAt(at) {
			t.add(n, p)
		}
	}
}

// openFor reports whether the request fits on the node for the whole span, beside the plans
// there. Claims only end, so usage can rise only where a plan starts.
func (c *cluster) openFor(n *node, s *shape, from, to time.Duration) bool {
	c.work += 1 + (1+len(n.plans))*(len(n.claims)+len(n.plans))/8
	for _, p := range n.plans {
		if p.atNever() && to == never {
			return false
		}
	}
	n.tallyAt(&c.scratch, from, true)
	if !n.fits(&c.scratch, s.need, s.workflow) {
		return false
	}
	for _, p := range n.plans {
		if p.from <= from || p.from >= to {
			continue
		}
		n.tallyAt(&c.scratch, p.from, true)
		if !n.fits(&c.scratch, s.need, s.workflow) {
			return false
		}
	}
	return true
}

// fullness orders nodes for packing (rule 6): see the package comment.
type fullness struct {
	hasDevices bool
	devices    uint64 // free, of all kinds
	cores      uint64 // free
	memory     uint64 // free
	rank       int
}

func (n *node) fullness(t *tally) fullness {
	f := fullness{hasDevices: n.hasDevices, cores: left(n.cores, t.cores), memory: left(n.memory, t.memory), rank: n.rank}
	for i, total := range n.devices {
		f.devices += left(total, t.devices[i])
	}
	return f
}

func (f fullness) compare(g fullness) int {
	switch {
	case f.hasDevices != g.hasDevices:
		return order(g.hasDevices)
	case f.devices != g.devices:
		return order(f.devices < g.devices)
	case f.cores != g.cores:
		return order(f.cores < g.cores)
	case f.memory != g.memory:
		return order(f.memory < g.memory)
	case f.rank != g.rank:
		return order(f.rank < g.rank)
	}
	return 0
}

func order(less bool) int {
	if less {
		return -1
	}
	return 1
}

// lasting counts the occupants that have no known end.
func (n *node) lasting() int {
	count := 0
	for _, h := range n.claims {
		if h.to == never {
			count++
		}
	}
	return count
}
