package sched

import (
	"iter"
	"math"

	"substrate/coordinator"
)

// This file is the one place that compares what a request wants with what a node has. Decide uses
// lacks and tally.add; Missing and Used are the same for those who ask about one node.

const (
	lackCores  = -1
	lackMemory = -2
)

// lack is one thing that a node has too little of for a request.
type lack struct {
	kind               int // of device, lackCores or lackMemory
	wants, free, total uint64
	together           bool // there is enough, but not in one fabric, domain or socket
	unknown            bool // it is not known what is together
}

// share is how much of what is wanted is missing, from 0 to 1.
func (l lack) share() float64 {
	if l.free >= l.wants { // enough in one place, but not by all that was asked
		return 1 / float64(max(1, l.wants))
	}
	return float64(l.wants-l.free) / float64(l.wants)
}

// coresFor is the number of whole cores that a request takes: no core is shared.
func (n *node) coresFor(w *need) uint64 {
	if !w.threads {
		return w.cores
	}
	return (w.cores + n.perCore - 1) / n.perCore
}

// lacks reports whether anything is missing beside the tally, and hands it over until each has seen
// enough: cores, memory, devices by name, and if all are there, what is not together.
func (n *node) lacks(t *tally, w *need, each func(lack) (more bool)) bool {
	any := false
	if cores, free := n.coresFor(w), left(n.cores, t.cores); cores > free {
		any = true
		if !each(lack{kind: lackCores, wants: cores, free: free, total: n.cores}) {
			return true
		}
	}
	if free := left(n.memory, t.memory); w.memory > free {
		any = true
		if !each(lack{kind: lackMemory, wants: w.memory, free: free, total: n.memory}) {
			return true
		}
	}
	for _, a := range w.devices {
		free, total := uint64(0), uint64(0)
		if i := n.def.device(a.kind); i >= 0 {
			free, total = left(n.devices[i], t.devices[i]), n.devices[i]
		}
		if a.n > free {
			any = true
			if !each(lack{kind: a.kind, wants: a.n, free: free, total: total}) {
				return true
			}
		}
	}
	if any || !n.detailed(w) {
		return any
	}
	u := &n.def.use
	u.reset(n)
	u.cover(n, t)
	return n.lacksDetail(u, w, each)
}

func first(lack) bool { return false }

// room reports whether the amounts fit beside the tally.
func (n *node) room(t *tally, w *need) bool { return !n.lacks(t, w, first) }

// large reports whether the node could hold the request if it were empty.
func (n *node) large(w *need) bool { return n.room(n.def.nothing, w) }

// shortfall is how far a node is from holding a request: the missing shares added up.
func (n *node) shortfall(t *tally, w *need) float64 {
	sum := 0.0
	n.lacks(t, w, func(l lack) bool {
		sum += l.share()
		return true
	})
	return sum
}

// add counts in what a claim takes of the node.
func (t *tally) add(n *node, h *claim) {
	t.cores = plus(t.cores, n.coresFor(h.need))
	t.memory = plus(t.memory, h.need.memory)
	gpus, known := t.addShare(n, h)
	for _, a := range h.need.devices {
		i := n.def.device(a.kind)
		switch {
		case i < 0:
		case known && n.set(i) != 0:
			t.devices[i] = plus(t.devices[i], uint64((gpus & n.set(i)).count()))
		default:
			t.devices[i] = plus(t.devices[i], a.n)
		}
	}
	if t.count == 0 {
		t.workflow = h.workflow
	} else if !t.mixed && t.workflow != h.workflow {
		t.mixed = true
	}
	t.count++
	t.lock = strongest(t.lock, n.mode(h.need))
}

// Lack is one thing that even the empty node has too little of for a request.
type Lack struct {
	What       string // "cores", "memory" or the device's name; "… together" is what one domain, socket or fabric has
	Wants, Has uint64 // whole cores, bytes, devices
}

// Share is how much of what is wanted is missing, from 0 to 1.
func (l Lack) Share() float64 { return lack{wants: l.Wants, free: l.Has}.share() }

// Missing lists what a node lacks to ever hold a request: cores, memory, then devices by name. Nothing
// missing is nil, and so is what is not known.
func Missing(on Node, r coordinator.Resources) []Lack {
	var c cluster
	n := c.lone(on, coordinator.ExclusiveNone)
	var out []Lack
	n.lacks(n.def.nothing, c.needOf(&r), func(l lack) bool {
		if l.unknown {
			return true // it may well have it
		}
		what := ""
		switch l.kind {
		case lackCores:
			what = "cores"
		case lackMemory:
			what = "memory"
		default:
			what = c.kinds.list[l.kind]
		}
		if l.together {
			what += " together"
		}
		out = append(out, Lack{what, l.wants, l.total})
		return true
	})
	return out
}

// Used is what requests on a node take of it together: whole cores, and all there is once somebody
// has the node for itself. own is the Exclusive of the node's definition.
func Used(on Node, own coordinator.Exclusive, requests iter.Seq[*coordinator.Resources]) coordinator.Hardware {
	var c cluster
	n := c.lone(on, own)
	t := tally{devices: make([]uint64, len(n.devices))}
	for r := range requests {
		t.add(n, &claim{need: c.needOf(r)})
	}
	return n.used(&t)
}

// Used is what of a node is taken, or held for somebody, as the function of that name says. It is false for a node that the scheduler
// was not told of.
func (s *Scheduler) Used(id coordinator.NodeID) (coordinator.Hardware, bool) {
	n := s.c.nodes[id]
	if n == nil || !n.known {
		return coordinator.Hardware{}, false
	}
	return n.used(&n.now), true
}

func (n *node) used(t *tally) coordinator.Hardware {
	cores, memory := t.cores, t.memory
	if t.lock != coordinator.ExclusiveNone {
		cores, memory = max(cores, n.cores), max(memory, n.memory)
	}
	used := coordinator.Hardware{
		Cores: coordinator.Cores(min(cores, math.MaxUint32)), Threads: uint32(min(cores*n.perCore, math.MaxUint32)),
		Memory: coordinator.Bytes(memory), Devices: make(map[string]uint32, len(n.devices)),
	}
	for i, kind := range n.def.kinds {
		taken := t.devices[i]
		if t.lock != coordinator.ExclusiveNone {
			taken = max(taken, n.devices[i])
		}
		used.Devices[n.names.list[kind]] = uint32(min(taken, math.MaxUint32))
	}
	return used
}

// lone is a node that is the only one of its definition.
func (c *cluster) lone(on Node, own coordinator.Exclusive) *node {
	def := newDefinition(&Definition{Exclusive: own})
	def.addKinds(&on, &c.kinds)
	n := &node{id: on.ID, spec: on}
	n.read(def, c)
	return n
}
