package expr

import (
	"cmp"
	"maps"
	"slices"
)

// Part is a smallest part of an expression that kept it from being true, its value, and the
// inputs it saw ("(absent)" for what is not there). Under a `not` such a part may well be true.
type Part struct {
	Source string            `json:"source"`
	Value  Truth             `json:"value"`
	Seen   map[string]string `json:"seen,omitempty"`
}

// flips says which leaves would have to change, and to what.
type flips map[int32]Truth

// Bounds of the search where leaves repeat.
const (
	maxAlternatives = 32 // sets of flips that are kept on the way
	maxExact        = 6  // leaves whose every combination is tried
)

// explainer finds the leaves that keep a formula from being true.
type explainer struct {
	formula *formula
	values  []Truth
	run     evaluation // over values
	needs   map[wish][]flips
}

// wish is a value for a part of the formula.
type wish struct {
	part  *logic
	value Truth
}

// parts evaluates every leaf, so it costs more than a match; it is for people.
func (f *formula) parts(r *evaluation) []Part {
	wanted := newExplainer(r).blame()
	var out []Part
	for i, l := range f.leaves {
		if !slices.Contains(wanted, int32(i)) {
			continue
		}
		p := Part{Source: l.source, Value: r.leafValue(int32(i))}
		for _, n := range l.names {
			if p.Seen == nil {
				p.Seen = map[string]string{}
			}
			p.Seen[n.text] = n.seen(r.env, r.absent)
		}
		out = append(out, p)
	}
	return out
}

func newExplainer(r *evaluation) *explainer {
	x := &explainer{formula: r.formula, values: make([]Truth, len(r.formula.leaves)), needs: map[wish][]flips{}}
	for i := range x.values {
		x.values[i] = r.leafValue(int32(i))
	}
	x.run = evaluation{formula: r.formula, values: slices.Clone(x.values)}
	return x
}

// blame is every leaf that stands in the way: changing all of them makes the formula true, and
// each is in a smallest set of leaves that does. So all sides of an untrue `or` are named.
func (x *explainer) blame() []int32 {
	failed := slices.Contains(x.values, Failed) // once that is mended the rest may be as it is
	if !x.formula.once || failed {
		if sets := x.exact(); sets != nil {
			named := slices.Concat(sets...)
			slices.Sort(named)
			if named = slices.Compact(named); x.changing(named, flips{}) {
				return named
			}
			return sets[0] // changing all would undo itself
		}
	}
	all := flips{}
	if x.union(&x.formula.root, True, all) && x.works(all) && !failed {
		return keys(all)
	}
	if way := x.way(); way != nil {
		return way
	}
	return keys(all) // it can never be true: name all that was looked at
}

// exact is every minimal set of leaves whose change makes the formula true, nil where leaves are
// too many to try or where it can never be true.
func (x *explainer) exact() [][]int32 {
	if len(x.values) > maxExact {
		return nil
	}
	all := make([]int32, len(x.values))
	for i := range all {
		all[i] = int32(i)
	}
	return x.minimal(all)
}

// way is one set of leaves whose change makes the formula true and of which none is spare, nil
// where the search found none.
func (x *explainer) way() []int32 {
	for _, found := range x.need(&x.formula.root, True) { // fewest changes first
		if !x.works(found) {
			continue
		}
		a := maps.Clone(found)
		for i, v := range a {
			if x.values[i] == v {
				delete(a, i)
			}
		}
		for _, i := range keys(a) { // changed on the way, and not needed in the end
			v := a[i]
			if delete(a, i); !x.works(a) {
				a[i] = v
			}
		}
		if len(a) <= maxExact {
			return x.minimal(keys(a))[0]
		}
		return keys(a)
	}
	return nil
}

// minimal are the subsets of some leaves that work and hold no smaller one that does; the smallest
// first, and among those the one with the fewest leaves that are true now.
func (x *explainer) minimal(of []int32) [][]int32 {
	var sets [][]int32
	var masks []int
	for size := 1; size <= len(of); size++ {
		for mask := range 1 << len(of) {
			var set []int32
			for k, i := range of {
				if mask>>k&1 == 1 {
					set = append(set, i)
				}
			}
			holds := func(m int) bool { return m&mask == m }
			if len(set) == size && !slices.ContainsFunc(masks, holds) && x.changing(set, flips{}) {
				sets, masks = append(sets, set), append(masks, mask)
			}
		}
	}
	trues := func(set []int32) (n int) {
		for _, i := range set {
			if x.values[i] == True {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(sets, func(a, b []int32) int { return cmp.Or(len(a)-len(b), trues(a)-trues(b)) })
	return sets
}

// changing reports whether changing all of some leaves can make the formula true. One that is
// unknown or failed can change either way.
func (x *explainer) changing(set []int32, f flips) bool {
	if len(set) == 0 {
		return x.works(f)
	}
	for _, v := range [2]Truth{True, False} {
		if x.values[set[0]] == v {
			continue
		}
		f[set[0]] = v
		if x.changing(set[1:], f) {
			return true
		}
	}
	delete(f, set[0])
	return false
}

// works reports whether the formula is true with these leaves changed.
func (x *explainer) works(f flips) bool {
	for i, v := range f {
		x.run.values[i] = v
	}
	out := x.run.eval(&x.formula.root)
	for i := range f {
		x.run.values[i] = x.values[i]
	}
	return out == True
}

// value is what a part of the formula is now.
func (x *explainer) value(l *logic) Truth { return x.run.eval(l) }

func opposite(t Truth) Truth {
	if t == True {
		return False
	}
	return True
}

// each reports whether all parts of an and/or must have the wanted value, or one is enough.
func (l *logic) each(want Truth) bool { return (l.op == opAnd) == (want == True) }

// union collects all leaves that stand in the way of want; false when two places want opposites.
func (x *explainer) union(l *logic, want Truth, out flips) bool {
	if x.value(l) == want {
		return true
	}
	switch l.op {
	case opLeaf:
		if v, ok := out[l.leaf]; ok && v != want {
			return false
		}
		out[l.leaf] = want
		return true
	case opNot:
		return x.union(&l.kids[0], opposite(want), out)
	case opIf:
		return x.unionIf(l, want, out)
	}
	ok := true
	for i := range l.kids {
		ok = x.union(&l.kids[i], want, out) && ok
		if !l.each(want) && x.value(&l.kids[i]) == Failed {
			break // nothing behind an error is reached
		}
	}
	return ok
}

// unionIf wants the branch that is taken to change, or the other one to be taken.
func (x *explainer) unionIf(l *logic, want Truth, out flips) bool {
	c, a, b := &l.kids[0], &l.kids[1], &l.kids[2]
	taken, other, turn := a, b, False
	switch x.value(c) {
	case False:
		taken, other, turn = b, a, True
	case Unknown, Failed: // one branch that would do decides, else either
		if x.value(a) != want && x.value(b) == want {
			return x.union(c, False, out)
		}
		ok := x.union(c, True, out)
		return x.union(a, want, out) && ok
	}
	if x.value(other) == want {
		ok := x.union(c, turn, out)
		free := flips{}
		if x.union(taken, want, free) { // named too: either change does
			maps.Copy(out, free)
		}
		return ok
	}
	return x.union(taken, want, out)
}

// need lists assignments of leaves, fewest changes first, each of which gives l the wanted value.
func (x *explainer) need(l *logic, want Truth) []flips {
	at := wish{l, want}
	out, known := x.needs[at]
	if !known {
		out = x.fewest(x.search(l, want))
		x.needs[at] = out
	}
	return out
}

func (x *explainer) search(l *logic, want Truth) []flips {
	switch l.op {
	case opLeaf:
		return []flips{{l.leaf: want}}
	case opNot:
		return x.need(&l.kids[0], opposite(want))
	case opIf:
		yes := x.product(x.need(&l.kids[0], True), x.need(&l.kids[1], want))
		no := x.product(x.need(&l.kids[0], False), x.need(&l.kids[2], want))
		return slices.Concat(yes, no)
	}
	before := []flips{{}}
	if l.each(want) {
		for i := range l.kids {
			before = x.product(before, x.need(&l.kids[i], want))
		}
		return before
	}
	var out []flips
	for i := range l.kids {
		k := &l.kids[i]
		out = append(out, x.product(before, x.need(k, want))...)
		if x.value(k) == Failed { // what follows is only reached once this does not fail
			before = x.product(before, x.need(k, opposite(want)))
		}
	}
	return out
}

// fewest sorts by the number of leaves that change and keeps the first.
func (x *explainer) fewest(list []flips) []flips {
	if len(list) < 2 {
		return list
	}
	changes := func(f flips) (n int) {
		for i, v := range f {
			if x.values[i] != v {
				n++
			}
		}
		return n
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b flips) int { return changes(a) - changes(b) })
	return list[:min(len(list), maxAlternatives)]
}

// product merges each of a with each of b, without those that contradict.
func (x *explainer) product(a, b []flips) []flips {
	var out []flips
	for _, f := range a {
		for _, g := range b {
			if m := merge(f, g); m != nil {
				out = append(out, m)
			}
		}
	}
	return x.fewest(out)
}

// merge is both assignments, nil when they contradict.
func merge(f, g flips) flips {
	out := maps.Clone(f)
	for i, v := range g {
		if w, ok := out[i]; ok && w != v {
			return nil
		}
		out[i] = v
	}
	return out
}

func keys(f flips) []int32 { return slices.Sorted(maps.Keys(f)) }
