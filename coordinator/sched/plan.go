package sched

import (
	"cmp"
	"slices"
	"time"

	"substrate/coordinator"
)

// planStart gives a blocked entry its planned start (rule 14) and reserves it. Without backfill only the plan of a
// reserved allocation binds others; that of any other is made when somebody asks for it.
func (s *Scheduler) planStart(sh *shape, e *entry, full bool) {
	if s.config.Backfill == coordinator.BackfillNone && sh.q.class >= coordinator.ClassOnDemand {
		return
	}
	if !full && s.c.work > s.limit {
		s.spent = true
		return
	}
	h := s.c.planFor(sh, e, s.respectsPlans(sh.q.class))
	if h == nil {
		return
	}
	s.c.addPlan(h)
	if full {
		s.plans = append(s.plans, h)
		if sh.plan == nil && e == sh.first {
			sh.plan = h
		}
	}
}

// planOf is the planned start of the first entry of a shape, nil without one.
func (s *Scheduler) planOf(sh *shape) *claim {
	if sh.plan == nil && sh.first != nil && sh.ahead == sh.first && s.config.Backfill == coordinator.BackfillNone {
		sh.plan = s.c.planFor(sh, sh.first, s.respectsPlans(sh.q.class))
	}
	return sh.plan
}

// planFor finds the earliest time, and the nodes at that time, at which the shape fits whole. It
// is nil only for a shape that no empty cluster could hold.
func (c *cluster) planFor(s *shape, e *entry, plans bool) *claim {
	at, best := never, (*definition)(nil)
	for _, def := range s.defs {
		if t := c.earliest(def, s, plans, at); t < at {
			at, best = t, def
		}
	}
	var nodes []*node
	if best == nil {
		nodes = c.nodesAtNever(s)
	} else {
		nodes = c.nodesAt(best, s, plans, at)
	}
	if nodes == nil && best != nil {
		at, nodes = never, c.nodesAtNever(s)
	}
	if nodes == nil {
		return nil
	}
	h := s.claimFor(e, nodes, at, later(at, s.span))
	h.plan = true
	c.divide(h, plans)
	return h
}

// nodesAtNever picks the nodes that are cleared first if anybody ends the work without end.
func (c *cluster) nodesAtNever(s *shape) []*node {
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
		freest := func(a, b *node) int {
			return cmp.Or(cmp.Compare(a.lasting, b.lasting), cmp.Compare(a.id, b.id))
		}
		if s.count == 1 {
			return []*node{slices.MinFunc(nodes, freest)}
		}
		slices.SortFunc(nodes, freest)
		return nodes[:s.count:s.count]
	}
	return nil
}

// examined counts a look at a node.
func (c *cluster) examined(looks int) {
	c.work += looks
	c.planWork += looks
}

// usable reports whether the shape may go to the node once it is empty.
func (c *cluster) usable(n *node, s *shape) bool {
	c.examined(1)
	return n.schedulable && !s.excludes(n) && n.large(s.need)
}

// openLater is openFor for a plan.
func (c *cluster) openLater(n *node, s *shape, at time.Duration, plans bool) bool {
	c.examined((1 + len(n.plans)) * (len(n.claims) + len(n.plans)) / 8)
	return c.openFor(n, s, at, later(at, s.span), plans)
}

// outlook is when the nodes of a definition can take a shape.
type outlook struct {
	from    []time.Duration // nodes without plans: the first ones to be free from then on, ascending
	planned []*node         // nodes with plans: to be asked for each time
	times   []time.Duration // when anything changes, ascending
}

// earliest is the first time before the limit at which enough nodes of the definition, and the
// tokens, are free for the whole span; the limit if there is none.
func (c *cluster) earliest(def *definition, s *shape, plans bool, limit time.Duration) time.Duration {
	look := c.outlookOf(def, s, plans, limit)
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
			if c.openLater(look.planned[i], s, t, plans) {
				enough++
			}
		}
		if enough >= s.count {
			return t
		}
	}
	return limit
}

// outlookOf looks for the first nodes to be free, as many as are wanted.
func (c *cluster) outlookOf(def *definition, s *shape, plans bool, limit time.Duration) outlook {
	look := outlook{times: []time.Duration{c.now}}
	for _, n := range c.plannedIn(def, plans) {
		if c.usable(n, s) {
			look.planned = append(look.planned, n)
			look.times = c.appendEnds(c.appendEnds(c.appendEnds(look.times, n.claims), n.holds), n.plans)
			for _, w := range n.closed {
				if w.until > c.now {
					look.times = append(look.times, w.until)
				}
			}
		}
	}
	ahead := lookAhead{search: search{c: c, shape: s}, limit: limit}
	ahead.visit = func(n *node) {
		if plans && len(n.plans) > 0 || !c.usable(n, s) {
			return
		}
		t := n.opening(c.freeFrom(n, s, ahead.limit), s.proto.Walltime)
		if t >= ahead.limit {
			return
		}
		i, _ := slices.BinarySearch(look.from, t)
		look.from = slices.Insert(look.from, i, t)
		if len(look.from) >= s.count {
			look.from = look.from[:s.count]
			ahead.limit = look.from[s.count-1]
		}
	}
	ahead.walk(def.root)
	look.times = append(look.times, look.from...)
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		look.times = c.appendEnds(c.appendEnds(look.times, t.claims), t.holds)
		if plans {
			look.times = c.appendEnds(look.times, t.plans)
		}
	}
	slices.Sort(look.times)
	look.times = slices.Compact(look.times)
	return look
}

// plannedIn is the nodes of a definition that carry plans, if those matter.
func (c *cluster) plannedIn(def *definition, plans bool) []*node {
	var list []*node
	for _, n := range c.planned {
		if plans && n.def == def {
			list = append(list, n)
		}
	}
	return list
}

// lookAhead visits the nodes of an index that may take a shape now or before a limit: most are passed over with their
// whole subtree, since there is no room and nothing ends before that.
type lookAhead struct {
	search
	limit time.Duration
	visit func(*node)
}

func (l *lookAhead) walk(n *node) {
	l.c.work++
	if n == nil || n.tree.firstEnd >= l.limit && !l.promising(n) {
		return
	}
	l.walk(n.tree.left)
	l.visit(n)
	l.walk(n.tree.right)
}

func (c *cluster) appendEnds(times []time.Duration, claims []*claim) []time.Duration {
	for _, h := range claims {
		if end := c.until(h); end < never {
			times = append(times, end)
		}
	}
	return times
}

// freeFrom is when a node without plans can take the shape, if that is before the limit; from then on it stays so.
// Room only grows there, so the first end that makes enough is found by halving.
func (c *cluster) freeFrom(n *node, s *shape, limit time.Duration) time.Duration {
	if c.admits(n, &n.now, s, &s.party, c.now) {
		return c.now
	}
	if n.firstEnd >= limit {
		return never
	}
	c.examined(1)
	if n.firstEnd <= later(c.now, epsilon) { // its ends move with the clock
		return c.freeAfter(n, s)
	}
	memo := freeMemo{shape: s, changes: n.changes, began: c.began, at: n.memo.at}
	if n.memo != memo {
		memo.at = c.freeAfter(n, s)
		n.memo = memo
	}
	return memo.at
}

// freeAfter is freeFrom for a node that has no room now.
func (c *cluster) freeAfter(n *node, s *shape) time.Duration {
	ends := c.appendEnds(c.appendEnds(c.times[:0], n.claims), n.holds)
	c.times = ends
	slices.Sort(ends)
	c.work += len(ends)
	i, _ := slices.BinarySearchFunc(ends, true, func(end time.Duration, _ bool) int {
		c.tallyAt(&c.scratch, n, end, false)
		if c.admits(n, &c.scratch, s, &s.party, end) {
			return 1
		}
		return -1
	})
	if i == len(ends) {
		return never
	}
	return ends[i]
}

// nodesAt picks the nodes that the shape will take at a time, fullest first as at a start. Of nodes that are alike then, those
// that it could have now come last: until that time they are good for what may pass it (rule 15).
func (c *cluster) nodesAt(def *definition, s *shape, plans bool, at time.Duration) []*node {
	type choice struct {
		n   *node
		key fullness
		now bool
	}
	var open []choice
	consider := func(n *node, planned bool) {
		if !c.usable(n, s) || !n.opens(at, s.proto.Walltime) || planned && !c.openLater(n, s, at, true) ||
			!planned && c.freeFrom(n, s, later(at, 1)) > at {
			return
		}
		c.work += len(n.claims)
		c.tallyAt(&c.scratch, n, at, planned)
		if c.admits(n, &c.scratch, s, &s.party, at) {
			key := n.fullness(&c.scratch)
			key.id = ""
			open = append(open, choice{n, key, c.admits(n, &n.now, s, &s.party, c.now)})
		}
	}
	for _, n := range c.plannedIn(def, plans) {
		consider(n, true)
	}
	ahead := lookAhead{search: search{c: c, shape: s}, limit: later(at, 1)}
	ahead.visit = func(n *node) {
		if !plans || len(n.plans) == 0 {
			consider(n, false)
		}
	}
	ahead.walk(def.root)
	slices.SortFunc(open, func(a, b choice) int {
		if d := a.key.compare(&b.key); d != 0 || a.now == b.now {
			return cmp.Or(d, cmp.Compare(a.n.id, b.n.id))
		}
		return order(b.now)
	})
	if len(open) < s.count {
		return nil // some are in maintenance just then
	}
	nodes := make([]*node, s.count)
	for i := range nodes {
		nodes[i] = open[i].n
	}
	return nodes
}
