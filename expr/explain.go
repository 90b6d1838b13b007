package expr

import (
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
type flips map[int]Truth

// maxAlternatives bounds the search for a set of flips where leaves repeat.
const maxAlternatives = 64

// explainer finds the leaves that keep a formula from being true.
type explainer struct {
	formula *formula
	values  []Truth
}

// parts evaluates every leaf, so it costs more than a match; it is for people.
func (f *formula) parts(r *evaluation) []Part {
	x := &explainer{formula: f}
	for i := range f.leaves {
		x.values = append(x.values, r.leafValue(i))
	}
	wanted := x.smallest()
	var out []Part
	for i, l := range f.leaves {
		if _, ok := wanted[i]; !ok {
			continue
		}
		p := Part{Source: l.source, Value: x.values[i]}
		for k := range l.names {
			if p.Seen == nil {
				p.Seen = map[string]string{}
			}
			p.Seen[l.names[k].text] = l.names[k].seen(r.env, r.absent)
		}
		out = append(out, p)
	}
	return out
}

// smallest is every leaf that stands in the way; where leaves repeat or fail and changing all of
// them would not help, it is the smallest set that does.
func (x *explainer) smallest() flips {
	all := flips{}
	if x.union(x.formula.root, True, all) && x.works(all) {
		return all
	}
	for _, a := range x.need(x.formula.root, True) { // fewest changes first
		if x.works(a) {
			for i, v := range a {
				if x.values[i] == v {
					delete(a, i)
				}
			}
			return a
		}
	}
	return all // it can never be true: name all that was looked at
}

// works reports whether the formula is true with these leaves changed.
func (x *explainer) works(f flips) bool {
	return x.eval(x.formula.root, f) == True
}

func (x *explainer) eval(l *logic, f flips) Truth {
	return l.eval(func(i int) Truth {
		if v, ok := f[i]; ok {
			return v
		}
		return x.values[i]
	})
}

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
	if x.eval(l, nil) == want {
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
		return x.union(l.kids[0], opposite(want), out)
	}
	ok := true
	for _, k := range l.kids {
		ok = x.union(k, want, out) && ok
		if !l.each(want) && x.eval(k, nil) == Failed {
			break // nothing behind an error is reached
		}
	}
	return ok
}

// need lists assignments of leaves, fewest changes first, each of which gives l the wanted value.
func (x *explainer) need(l *logic, want Truth) []flips {
	switch l.op {
	case opLeaf:
		return []flips{{l.leaf: want}}
	case opNot:
		return x.need(l.kids[0], opposite(want))
	}
	before := []flips{{}}
	if l.each(want) {
		for _, k := range l.kids {
			before = x.product(before, x.need(k, want))
		}
		return before
	}
	var out []flips
	for _, k := range l.kids {
		out = append(out, x.product(before, x.need(k, want))...)
		if x.eval(k, nil) == Failed { // what follows is only reached once this does not fail
			before = x.product(before, x.need(k, opposite(want)))
		}
	}
	return x.fewest(out)
}

// fewest sorts by the number of leaves that change and keeps the first.
func (x *explainer) fewest(list []flips) []flips {
	changes := func(f flips) (n int) {
		for i, v := range f {
			if x.values[i] != v {
				n++
			}
		}
		return n
	}
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
