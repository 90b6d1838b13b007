package sched

import (
	"container/heap"
	"slices"
)

// general looks for the victims of one that wants several nodes, or tokens that others have: a victim counts once,
// wherever it helps.
func (p *preemption) general() {
	for _, def := range p.sh.defs {
		g := gangSearch{preemption: p, open: p.s.open[:0]}
		g.survey(def)
		g.search()
		p.s.open = g.open[:0]
		if p.seen.waits {
			return
		}
	}
}

// gangSearch is the search in one definition.
type gangSearch struct {
	*preemption
	ready   []*node   // have room without any victim
	targets []target  // could have with some
	open    prospects // nodes that may become targets
	list    []prey    // those who may be victims, while they are few
	many    bool      // they are not: the list is of no use
}

// target is a node that has room once its victims are gone.
type target struct {
	n     *node
	list  []prey // that may be victims there, once it is worked out
	least int
	bound uint64 // device-milliseconds that are lost at least
	set   []prey // the cheapest that will do, nil: not worked out
	cost  toll   // of those
	open  bool   // it has room by now
}

// survey sorts the nodes and looks at who is on those that may cost least, until it knows enough of them.
func (g *gangSearch) survey(def *definition) {
	for _, n := range def.nodes {
		g.s.looks++
		if !g.usable(n) {
			continue
		}
		if !g.steady(n) {
			if t, ok := g.examine(n, g.ofUs(n, g.after(n))); ok {
				g.open = append(g.open, prospect{n: n, least: t.least, bound: t.bound, target: t})
			}
			continue
		}
		switch {
		case n.fits(&n.now, g.sh.need, g.sh.workflow):
			g.ready = append(g.ready, n)
		case n.now.count > 0:
			least, bound := g.atLeast(n)
			g.open = append(g.open, prospect{n: n, least: least, bound: bound})
		}
	}
	if g.tokensWill() {
		if len(g.ready) >= g.sh.count {
			return
		}
	} else {
		for _, a := range g.sh.need.tokens {
			g.scratch = g.eligible(g.scratch[:0], g.c.tokens[a.kind].claims)
			g.collect()
		}
	}
	g.cheapestTargets()
}

// prospect is a node by what it costs, or while nobody has looked at who is there, by what it costs at least.
type prospect struct {
	n      *node
	least  int
	bound  uint64
	target *target // what it costs, once that is known
}

// prospects is a heap.
type prospects []prospect

func (p prospects) Len() int { return len(p) }
func (p prospects) Less(i, j int) bool {
	a, b := &p[i], &p[j]
	switch {
	case a.least != b.least:
		return a.least < b.least
	case a.bound != b.bound:
		return a.bound < b.bound
	}
	return a.n.id < b.n.id
}
func (p prospects) Swap(i, j int) { p[i], p[j] = p[j], p[i] }
func (p *prospects) Push(x any)   { *p = append(*p, x.(prospect)) }
func (p *prospects) Pop() any {
	*p = (*p)[:len(*p)-1] // nobody asks for it
	return nil
}

// cheapestTargets puts the nodes down that cost least, first things first: all of them while the candidates on them are few, else as many as
// promise to be enough, with what they cost.
func (g *gangSearch) cheapestTargets() {
	heap.Init(&g.open)
	kept, worked := 0, 0
	for len(g.open) > 0 && (!g.many || kept < 4*g.sh.count+gangPrecise) {
		p := &g.open[0]
		if p.target == nil {
			t, ok := g.examine(p.n, &p.n.now)
			if ok {
				p.target, p.least, p.bound = t, t.least, t.bound
				heap.Fix(&g.open, 0)
				continue
			}
		} else {
			g.targets = append(g.targets, *p.target)
		}
		heap.Pop(&g.open)
		for ; g.many && worked < len(g.targets); worked++ {
			if g.work(&g.targets[worked]); g.targets[worked].set != nil {
				kept++
			}
		}
	}
	if !g.many {
		slices.SortFunc(g.targets, func(a, b target) int { return byID(a.n, b.n) })
		return
	}
	g.targets = slices.DeleteFunc(g.targets, func(t target) bool { return t.set == nil })
}

// examine says what a node costs, if its victims make room beside what stays there.
func (g *gangSearch) examine(n *node, t *tally) (*target, bool) {
	g.scratch = g.eligible(g.scratch[:0], n.claims)
	if n.fits(t, g.sh.need, g.sh.workflow) {
		g.ready = append(g.ready, n)
		return nil, false
	}
	least, ok := n.least(t, g.sh.need, g.scratch)
	if !ok || len(g.scratch) == 0 {
		return nil, false
	}
	g.collect()
	return &target{n: n, least: least, bound: cheapestOf(g.scratch, least)}, true
}

// work finds out who would have to go from a node.
func (g *gangSearch) work(t *target) {
	t.list = g.eligible(nil, t.n.claims)
	t.set, t.cost = cheapest(t.list, t.least, noToll(), g.fitsWith(t.list, func() bool { return g.fitsOn(t.n) }))
}

// atLeast is less than what a steady node costs, from what is known of all that are there.
func (p *preemption) atLeast(n *node) (least int, bound uint64) {
	least = p.fewest(n)
	return least, times(times(n.rate, n.latest.ran(1, p.c.now)), uint64(least))
}

// collect adds to the list who is not on it, until they are too many to be weighed in all ways.
func (g *gangSearch) collect() {
	for i := range g.scratch {
		v := &g.scratch[i]
		if g.many || slices.ContainsFunc(g.list, func(o prey) bool { return o.of == v.of }) {
			continue
		}
		g.many = len(g.list) == exactPrey
		g.list = append(g.list, *v)
	}
}

// cheapestOf is less than what so many of a list lose together.
func cheapestOf(list []prey, n int) uint64 {
	least := list[0].gpu
	for i := range list {
		least = min(least, list[i].gpu)
	}
	return times(least, uint64(n))
}

func (g *gangSearch) search() {
	if len(g.ready) >= g.sh.count && g.tokensWill() {
		g.awaits(g.ready[:g.sh.count])
		return
	}
	if len(g.ready)+len(g.targets) < g.sh.count {
		return // nobody was left out
	}
	fits := func() bool { return g.tokensWill() && g.enough() }
	var found []prey
	cost := g.best
	if g.many {
		found, cost = g.greedy(fits)
	} else {
		found, cost = cheapest(g.list, 1, g.best, g.fitsWith(g.list, fits))
	}
	if found == nil || cost.compare(&g.best) >= 0 {
		for i := range g.open { // the verdict names who comes nearest to giving way
			g.scratch = g.eligible(g.scratch[:0], g.open[i].n.claims)
		}
		return
	}
	g.best, g.found, g.nodes = cost, found, slices.Clone(g.ready[:min(len(g.ready), g.sh.count)])
	setGone(found, true)
	for i := 0; i < len(g.targets) && len(g.nodes) < g.sh.count; i++ {
		if g.fitsOn(g.targets[i].n) {
			g.nodes = append(g.nodes, g.targets[i].n)
		}
	}
	setGone(found, false)
}

func setGone(list []prey, gone bool) {
	for i := range list {
		list[i].of.gone = gone
	}
}

// enough reports whether as many nodes as are wanted have room.
func (g *gangSearch) enough() bool {
	n := len(g.ready)
	for i := 0; i < len(g.targets) && n < g.sh.count; i++ {
		g.s.looks++
		if g.fitsOn(g.targets[i].n) {
			n++
		}
	}
	return n >= g.sh.count
}

// greedy takes, again and again, the victims of that node that open most nodes for each of them, then what
// tokens are still missing, and takes back what turns out not to be needed, the dearest first.
func (g *gangSearch) greedy(fits func() bool) ([]prey, toll) {
	var chosen []prey
	take := func(set []prey) {
		setGone(set, true)
		chosen = append(chosen, set...)
	}
	for open := len(g.ready) + g.reopen(nil); open < g.sh.count; {
		set := g.bestSet(g.sh.count - open)
		if set == nil {
			setGone(chosen, false)
			return nil, g.best
		}
		take(set)
		open += g.reopen(set)
	}
	for !g.tokensWill() {
		v := g.bestTokens()
		if v == nil {
			setGone(chosen, false)
			return nil, g.best
		}
		take([]prey{*v})
	}
	g.targets = slices.DeleteFunc(g.targets, func(t target) bool { // the others have no room whoever is taken back
		return !slices.ContainsFunc(t.list, func(v prey) bool { return v.of.gone })
	})
	setGone(chosen, false)
	slices.SortFunc(chosen, func(a, b prey) int { return a.compare(&b) })
	gone := make([]bool, len(chosen))
	for i := range gone {
		gone[i] = true
	}
	takeBack(gone, g.fitsWith(chosen, fits))
	var found []prey
	for i := range chosen {
		if gone[i] {
			found = append(found, chosen[i])
		}
	}
	return found, tollOf(chosen, gone)
}

// reopen notes which nodes have room by now, works out again what the others that victims were on cost,
// and returns how many more have room.
func (g *gangSearch) reopen(after []prey) int {
	opened := 0
	for i := range g.targets {
		t := &g.targets[i]
		if t.open || !slices.ContainsFunc(t.list, func(v prey) bool { return v.of.gone }) {
			continue
		}
		if g.fitsOn(t.n) {
			t.open = true
			opened++
			continue
		}
		if !slices.ContainsFunc(after, func(v prey) bool { return slices.Contains(v.of.nodes, t.n) }) {
			continue
		}
		var rest []prey
		for _, v := range t.list {
			if !v.of.gone {
				rest = append(rest, v)
			}
		}
		t.set, t.cost = cheapest(rest, 1, noToll(), g.fitsWith(rest, func() bool { return g.fitsOn(t.n) }))
	}
	return opened
}

// bestSet is the victims that open most nodes for each of them, up to a number; of equal ones the cheapest.
func (g *gangSearch) bestSet(wanted int) []prey {
	var best []prey
	var cost *toll
	gained := 0
	for i := range g.targets {
		t := &g.targets[i]
		if t.open || t.set == nil {
			continue
		}
		gain := min(wanted, g.gain(t))
		better := gain*max(1, len(best)) - gained*len(t.set)
		if best == nil || better > 0 || better == 0 && t.cost.compare(cost) < 0 {
			best, cost, gained = t.set, &t.cost, gain
		}
	}
	return best
}

// gain is how many nodes the victims of one open.
func (g *gangSearch) gain(t *target) int {
	if !slices.ContainsFunc(t.set, func(v prey) bool { return len(v.of.nodes) > 1 }) {
		return 1
	}
	setGone(t.set, true)
	n := 0
	for i := range g.targets {
		o := &g.targets[i]
		if !o.open && slices.ContainsFunc(t.set, func(v prey) bool { return slices.Contains(v.of.nodes, o.n) }) && g.fitsOn(o.n) {
			n++
		}
	}
	setGone(t.set, false)
	return n
}

// bestTokens is the one that has most of the tokens that are missing.
func (g *gangSearch) bestTokens() *prey {
	var best *prey
	most := uint64(0)
	for _, a := range g.sh.need.tokens {
		list := g.eligible(nil, g.c.tokens[a.kind].claims)
		for i := range list {
			v := &list[i]
			if v.of.gone {
				continue
			}
			sum := uint64(0)
			for _, a := range g.sh.need.tokens {
				sum = plus(sum, g.c.tokens[a.kind].of(v.of))
			}
			if sum > most || sum == most && sum > 0 && v.compare(best) < 0 {
				best, most = v, sum
			}
		}
	}
	return best
}
