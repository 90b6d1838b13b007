package sched

import (
	"cmp"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

const (
	exactPrey  = 12    // candidates up to which every set of victims is weighed
	exactTries = 5_000 // sets that are tried at most, for many candidates
)

// prey is a placement that may be chosen as a victim. A gang is one.
type prey struct {
	id      coordinator.AllocationID
	gpu     uint64 // device-milliseconds that would be lost
	core    uint64 // core-milliseconds, where there is no device
	started time.Duration
	of      *claim
	help    float64 // how much of what is missing it would free; only guides where not all sets are weighed
}

// compare is the order of rule 19 for single victims.
func (a *prey) compare(b *prey) int {
	return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.core, b.core), cmp.Compare(b.started, a.started), cmp.Compare(a.id, b.id))
}

// toll is what a set of victims costs (rule 19).
type toll struct {
	count     int
	gpu, core uint64
	oldest    time.Duration // first start of any of them
	ids       []coordinator.AllocationID
}

// noToll is dearer than any set.
func noToll() toll { return toll{count: math.MaxInt} }

// compare orders sets: fewest victims, least lost work, the latest start of the one that has run longest, ids.
func (a *toll) compare(b *toll) int {
	if c := a.compareWork(b); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(b.oldest, a.oldest), slices.Compare(a.ids, b.ids))
}

func (a *toll) compareWork(b *toll) int {
	return cmp.Or(cmp.Compare(a.count, b.count), cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.core, b.core))
}

// tollOf sums a set up.
func tollOf(list []prey, gone []bool) toll {
	t := toll{oldest: never}
	for i := range list {
		if gone[i] {
			t.add(&list[i])
			t.ids = append(t.ids, list[i].id)
		}
	}
	slices.Sort(t.ids)
	return t
}

func (a *toll) add(p *prey) {
	a.count++
	a.gpu, a.core = plus(a.gpu, p.gpu), plus(a.core, p.core)
	a.oldest = min(a.oldest, p.started)
}

// victims looks for the cheapest set whose end makes the request fit (rules 18 and 19). What fits without some
// fits without more.
type victims struct {
	list []prey
	fits func(gone []bool) bool
	gone []bool
	best toll
	set  []bool
	left int // sets that may still be tried
}

// cheapest says which of the list have to go, nil if no set makes room that is cheaper than the bound. No victim
// of it is in vain. The answer does not depend on the order of the list. least is a number of victims that are needed at
// any rate.
func cheapest(list []prey, least int, bound toll, fits func(gone []bool) bool) ([]prey, toll) {
	slices.SortFunc(list, func(a, b prey) int { return a.compare(&b) })
	v := victims{list: list, fits: fits, gone: make([]bool, len(list)), best: bound, left: exactTries}
	if len(list) <= exactPrey {
		v.left = math.MaxInt
	}
	for k := least; k <= min(len(list), v.best.count) && v.set == nil && v.left > 0; k++ {
		v.choose(0, k, toll{oldest: never})
	}
	if v.left <= 0 {
		clear(v.gone)
		v.greedy()
	}
	if v.set == nil {
		return nil, bound
	}
	out := make([]prey, 0, v.best.count)
	for i := range list {
		if v.set[i] {
			out = append(out, list[i])
		}
	}
	return out, v.best
}

// choose tries the sets with k more of those from a place on. They come in the order of what each would lose, so a
// set that is too dear already stays so.
func (v *victims) choose(from, k int, sum toll) {
	if k == 0 {
		v.left--
		if v.fits(v.gone) {
			v.offer()
		}
		return
	}
	for i := from; i+k <= len(v.list) && v.left > 0; i++ {
		next := sum
		next.add(&v.list[i])
		dearest := next
		for range k - 1 { // no later one is cheaper than this one
			dearest.count++
			dearest.gpu = plus(dearest.gpu, v.list[i].gpu)
			dearest.core = plus(dearest.core, v.list[i].core)
		}
		if c := dearest.compareWork(&v.best); c > 0 {
			return
		} else if c == 0 && next.oldest < v.best.oldest {
			continue
		}
		v.gone[i] = true
		v.choose(i+1, k-1, next)
		v.gone[i] = false
	}
}

// offer keeps a set that is cheaper than the best one.
func (v *victims) offer() {
	if t := tollOf(v.list, v.gone); t.compare(&v.best) < 0 {
		v.best, v.set = t, slices.Clone(v.gone)
	}
}

// greedy takes those that help most until it fits, and takes back what turns out not to be needed, the dearest first.
func (v *victims) greedy() {
	byHelp := make([]int, len(v.list))
	for i := range byHelp {
		byHelp[i] = i
	}
	slices.SortStableFunc(byHelp, func(a, b int) int { return cmp.Compare(v.list[b].help, v.list[a].help) })
	n := 0
	for ; n < len(byHelp) && !v.fits(v.gone); n++ {
		v.gone[byHelp[n]] = true
	}
	if !v.fits(v.gone) {
		return
	}
	takeBack(v.gone, v.fits)
	v.offer()
}

// takeBack spares every victim that is not needed, from the end of the list.
func takeBack(gone []bool, fits func([]bool) bool) {
	for i := len(gone) - 1; i >= 0; i-- {
		if !gone[i] {
			continue
		}
		gone[i] = false
		if !fits(gone) {
			gone[i] = true
		}
	}
}
