package sched

import (
	"time"

	"substrate/coordinator"
)

// The index of a definition is a treap over its schedulable nodes in order of fullness, where each
// subtree knows the most that one of its nodes has free. So the fullest node that fits
// is found, and a start recorded, in about the logarithm of the number of nodes.

// branch is a node's place in the index.
type branch struct {
	key         fullness
	left, right *node
	cores       uint64        // most free cores in the subtree
	memory      uint64        // most free memory
	devices     []uint64      // most free devices, by kind
	idle        bool          // some node in the subtree is empty
	firstEnd    time.Duration // no claim in the subtree ends before it
}

// weigh mixes the bytes of an id (FNV-1a, then the finish of MurmurHash3).
func weigh(id coordinator.NodeID) uint32 {
	x := uint32(2166136261)
	for i := range len(id) {
		x = (x ^ uint32(id[i])) * 16777619
	}
	x = (x ^ x>>16) * 0x85ebca6b
	x = (x ^ x>>13) * 0xc2b2ae35
	return x ^ x>>16
}

// insert puts a node into the tree by its present fullness and returns the new root.
func insert(root, n *node) *node {
	n.tree.key = n.fullness(&n.now)
	n.tree.left, n.tree.right = nil, nil
	return insertAt(root, n)
}

// above is the order of the heap.
func (n *node) above(m *node) bool {
	return n.weight > m.weight || n.weight == m.weight && n.id < m.id
}

func insertAt(root, n *node) *node {
	if root == nil {
		n.pull()
		return n
	}
	if n.above(root) {
		n.tree.left, n.tree.right = split(root, &n.tree.key)
		n.pull()
		return n
	}
	if n.tree.key.compare(&root.tree.key) < 0 {
		root.tree.left = insertAt(root.tree.left, n)
	} else {
		root.tree.right = insertAt(root.tree.right, n)
	}
	root.pull()
	return root
}

// split divides a tree into what comes before the key and what does not.
func split(root *node, key *fullness) (before, after *node) {
	if root == nil {
		return nil, nil
	}
	if root.tree.key.compare(key) < 0 {
		root.tree.right, after = split(root.tree.right, key)
		root.pull()
		return root, after
	}
	before, root.tree.left = split(root.tree.left, key)
	root.pull()
	return before, root
}

// remove takes a node out by the fullness it was put in with and returns the new root.
func remove(root, n *node) *node {
	if root == nil {
		return nil
	}
	if root == n {
		return merge(n.tree.left, n.tree.right)
	}
	if n.tree.key.compare(&root.tree.key) < 0 {
		root.tree.left = remove(root.tree.left, n)
	} else {
		root.tree.right = remove(root.tree.right, n)
	}
	root.pull()
	return root
}

func merge(a, b *node) *node {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.above(b):
		a.tree.right = merge(a.tree.right, b)
		a.pull()
		return a
	}
	b.tree.left = merge(a, b.tree.left)
	b.pull()
	return b
}

// pull recomputes what a subtree offers at most.
func (n *node) pull() {
	t := &n.tree
	t.cores, t.memory, t.idle, t.firstEnd = t.key.cores, t.key.memory, n.now.count == 0, n.firstEnd
	for i := range t.devices {
		t.devices[i] = left(n.devices[i], n.now.devices[i])
	}
	for _, child := range [2]*node{t.left, t.right} {
		if child == nil {
			continue
		}
		t.cores = max(t.cores, child.tree.cores)
		t.memory = max(t.memory, child.tree.memory)
		t.idle = t.idle || child.tree.idle
		t.firstEnd = min(t.firstEnd, child.tree.firstEnd)
		for i, most := range child.tree.devices {
			t.devices[i] = max(t.devices[i], most)
		}
	}
}

// search collects the first want nodes, fullest first, that hold the shape from now to an end.
type search struct {
	c      *cluster
	shape  *shape
	party  *party // nil: the shape's
	want   int
	plans  bool
	always bool // as if there were no maintenance
	barred bool // a plan or maintenance kept some node from being taken
	found  []*node
}

// walk visits a subtree in order of fullness and reports whether the search is complete.
func (s *search) walk(n *node) bool {
	s.c.work++
	if n == nil || !s.promising(n) {
		return false
	}
	if s.walk(n.tree.left) {
		return true
	}
	if s.take(n) {
		s.found = append(s.found, n)
		if len(s.found) == s.want {
			return true
		}
	}
	return s.walk(n.tree.right)
}

// promising is false when no node of the subtree has enough of one thing.
func (s *search) promising(n *node) bool {
	w := s.shape.need
	cores := w.cores
	if w.threads {
		cores = (cores + n.def.maxTPC - 1) / n.def.maxTPC
	}
	if cores > n.tree.cores || w.memory > n.tree.memory {
		return false
	}
	if n.mode(w) == coordinator.ExclusiveJob && !n.tree.idle {
		return false
	}
	for _, a := range w.devices {
		if i := n.def.device(a.kind); i < 0 || a.n > n.tree.devices[i] {
			return false
		}
	}
	return true
}

func (s *search) take(n *node) bool {
	p := s.party
	if p == nil {
		p = &s.shape.party
	}
	if s.shape.excludes(n) || !s.c.admits(n, &n.now, s.shape, p, s.c.now) {
		return false
	}
	if s.always || n.opens(s.c.now, s.shape.proto.Walltime) && (!s.plans || len(n.plans) == 0 ||
		s.c.openFor(n, s.shape, s.c.now, later(s.c.now, s.shape.span), true)) {
		return true
	}
	s.barred = true
	return false
}
