package sched

import (
	"cmp"
	"slices"
	"time"

	"substrate/coordinator"
)

// planStart gives a blocked entry its planned start (rule 14) and reserves it.
func (d *decision) planStart(e *entry, full bool) {
	plans := d.respectsPlans(e.shape.class)
	if !full {
		// While stepping forward without backfill only a reserved allocation's plan binds others.
		if d.s.Config.Backfill == coordinator.BackfillNone && e.shape.class >= coordinator.ClassOnDemand {
			return
		}
		if d.c.work > d.limit {
			d.spent = true
			return
		}
	}
	h := d.c.planFor(e, plans)
	if h == nil {
		return
	}
	d.c.addPlan(h)
	if full {
		e.plan = h
	}
}

// planFor finds the earliest time, and the nodes at that time, at which the entry fits whole. It
// is nil only for a shape that no empty cluster could hold.
func (c *cluster) planFor(e *entry, plans bool) *claim {
	at, best := never, (*definition)(nil)
	for _, def := range e.shape.defs {
		if t := c.earliest(def, e.shape, plans, at); t < at {
			at, best = t, def
		}
	}
	if best == nil {
		return c.planAtNever(e)
	}
	nodes := c.nodesAt(best, e.shape, plans, at)
	return c.claimFor(e, nodes, at)
}

// planAtNever picks the nodes that are cleared first if anybody ends the work without end.
func (c *cluster) planAtNever(e *entry) *claim {
	s := e.shape
	for _, def := range s.defs {
		var nodes []*node
		for _, n := range def.nodes {
			if c.usable(n, s) {
				nodes = append(nodes, n)
			}
		}
		if len(nodes) < s.count {
			continue
		}
		slices.SortFunc(nodes, func(a, b *node) int {
			return cmp.Or(cmp.Compare(a.lasting(), b.lasting()), cmp.Compare(a.rank, b.rank))
		})
		return c.claimFor(e, nodes[:s.count], never)
	}
	return nil
}

// usable reports whether the shape may go to the node once it is empty.
func (c *cluster) usable(n *node, s *shape) bool {
	c.work++
	return n.schedulable && !s.excludes(n) && n.large(s.need)
}

// outlook is when the nodes of a definition can take a shape.
type outlook struct {
	from    []time.Duration // nodes without plans: free from then on, ascending
	planned []*node         // nodes with plans: to be asked for each time
	times   []time.Duration // when anything changes, ascending
}

// earliest is the first time before the limit at which enough nodes of the definition, and the
// tokens, are free for the whole span; the limit if there is none.
func (c *cluster) earliest(def *definition, s *shape, plans bool, limit time.Duration) time.Duration {
	look := c.outlookOf(def, s, plans)
	if len(look.from)+len(look.planned) < s.count {
		return limit
	}
	freed := 0
	for _, t := range look.times {
		if t >= limit {
			break
		}
		for freed < len(look.from) && look.from[freed] <= t {
			freed++
		}
		if freed+len(look.planned) < s.count || !c.tokensFit(s.need, t, later(t, s.span), plans) {
			continue
		}
		enough := freed
		for i := 0; i < len(look.planned) && enough < s.count; i++ {
			if c.openFor(look.planned[i], s, t, later(t, s.span)) {
				enough++
			}
		}
		if enough >= s.count {
			return t
		}
	}
	return limit
}

func (c *cluster) outlookOf(def *definition, s *shape, plans bool) outlook {
	look := outlook{times: []time.Duration{c.now}}
	for _, n := range def.nodes {
		if !c.usable(n, s) {
			continue
		}
		if plans && len(n.plans) > 0 {
			look.planned = append(look.planned, n)
			look.times = appendEnds(appendEnds(look.times, n.claims), n.plans)
			continue
		}
		if t := c.freeFrom(n, s); t < never {
			look.from = append(look.from, t)
			look.times = append(look.times, t)
		}
	}
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		look.times = appendEnds(look.times, t.claims)
		if plans {
			look.times = appendEnds(look.times, t.plans)
		}
	}
	slices.Sort(look.from)
	slices.Sort(look.times)
	look.times = slices.Compact(look.times)
	return look
}

func appendEnds(times []time.Duration, claims []*claim) []time.Duration {
	for _, h := range claims {
		if h.to < never {
			times = append(times, h.to)
		}
	}
	return times
}

// freeFrom is when a node without plans can take the shape; from then on it stays so. Room only
// grows there, so the first end that makes enough is found by halving.
func (c *cluster) freeFrom(n *node, s *shape) time.Duration {
	if n.fits(&n.now, s.need, s.workflow) {
		return c.now
	}
	ends := appendEnds(c.times[:0], n.claims)
	c.times = ends
	slices.Sort(ends)
	i, _ := slices.BinarySearchFunc(ends, true, func(end time.Duration, _ bool) int {
		c.work++
		n.tallyAt(&c.scratch, end, false)
		if n.fits(&c.scratch, s.need, s.workflow) {
			return 1
		}
		return -1
	})
	if i == len(ends) {
		return never
	}
	return ends[i]
}

// nodesAt picks the nodes that the shape will take at a time, fullest first as at a start.
func (c *cluster) nodesAt(def *definition, s *shape, plans bool, at time.Duration) []*node {
	type choice struct {
		n   *node
		key fullness
	}
	var open []choice
	for _, n := range def.nodes {
		if !c.usable(n, s) {
			continue
		}
		if plans && len(n.plans) > 0 && !c.openFor(n, s, at, later(at, s.span)) {
			continue
		}
		n.tallyAt(&c.scratch, at, plans)
		if n.fits(&c.scratch, s.need, s.workflow) {
			open = append(open, choice{n, n.fullness(&c.scratch)})
		}
	}
	slices.SortFunc(open, func(a, b choice) int { return a.key.compare(b.key) })
	nodes := make([]*node, s.count)
	for i := range nodes {
		nodes[i] = open[i].n
	}
	return nodes
}
