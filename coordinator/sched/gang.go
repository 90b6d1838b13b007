package sched

import (
	"cmp"
	"slices"
)

// general looks for the victims of one that wants several nodes, or tokens that others have: a victim counts once,
// wherever it helps.
func (p *preemption) general() {
	for _, def := range p.sh.defs {
		g := gangSearch{preemption: p}
		g.survey(def)
		g.search()
		if p.seen.waits {
			return
		}
	}
}

// gangSearch is the search in one definition.
type gangSearch struct {
	*preemption
	ready   []*node  // have room without any victim
	targets []target // could have with some
	list    []prey   // those who may be victims, while they are few
	many    bool     // they are not: the list is of no use
}

// target is a node that has room once its victims are gone.
type target struct {
	n     *node
	list  []prey // that may be victims there, once it is worked out
	least int
	bound uint64 // device-milliseconds that are lost at least
	set   []prey // the cheapest that will do, nil: not worked out
	open  bool   // it has room by now
}

// survey sorts the nodes and collects who may be a victim.
func (g *gangSearch) survey(def *definition) {
	for _, n := range def.nodes {
		g.s.looks++
		if !g.usable(n) {
			continue
		}
		g.scratch = g.eligible(g.scratch[:0], n.claims)
		t := &n.now
		if !g.steady(n) {
			t = g.ofUs(n, g.after(n))
		}
		if n.fits(t, g.sh.need, g.sh.workflow) {
			g.ready = append(g.ready, n)
			continue
		}
		if least, ok := n.least(t, g.sh.need, g.scratch); ok && len(g.scratch) > 0 {
			g.targets = append(g.targets, target{n: n, least: least, bound: cheapestOf(g.scratch, least)})
			g.collect()
		}
	}
	if !g.tokensWill() {
		for _, a := range g.sh.need.tokens {
			g.scratch = g.eligible(g.scratch[:0], g.c.tokens[a.kind].claims)
			g.collect()
		}
	}
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
		return
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
	g.narrow()
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

// narrow keeps the nodes that promise most, and works out what each of them costs.
func (g *gangSearch) narrow() {
	slices.SortFunc(g.targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.least, b.least), cmp.Compare(a.bound, b.bound), cmp.Compare(a.n.id, b.n.id))
	})
	most := min(len(g.targets), 4*g.sh.count+gangPrecise)
	kept := g.targets[:0]
	for _, t := range g.targets {
		if len(kept) == most {
			break
		}
		t.list = g.eligible(nil, t.n.claims)
		t.set, _ = cheapest(t.list, t.least, noToll(), g.fitsWith(t.list, func() bool { return g.fitsOn(t.n) }))
		if t.set != nil {
			kept = append(kept, t)
		}
	}
	g.targets = kept
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
		t.set, _ = cheapest(rest, 1, noToll(), g.fitsWith(rest, func() bool { return g.fitsOn(t.n) }))
	}
	return opened
}

// bestSet is the victims that open most nodes for each of them, up to a number; of equal ones the cheapest.
func (g *gangSearch) bestSet(wanted int) []prey {
	var best []prey
	var cost toll
	gained := 0
	for i := range g.targets {
		t := &g.targets[i]
		if t.open || t.set == nil {
			continue
		}
		gain := min(wanted, g.gain(t))
		all := make([]bool, len(t.set))
		for j := range all {
			all[j] = true
		}
		sum := tollOf(t.set, all)
		better := gain*max(1, len(best)) - gained*len(t.set)
		if best == nil || better > 0 || better == 0 && sum.compare(&cost) < 0 {
			best, cost, gained = t.set, sum, gain
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
