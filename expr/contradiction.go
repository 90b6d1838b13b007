package expr

import (
	"math"
	"slices"
)

// interval is what the comparisons of an `and` leave of one number.
type interval struct{ low, high float64 }

// contradictions looks for comparisons that exclude each other: directly below one `and`, of the
// same input with constants. at are the places of the leaves.
func (w *linter) contradictions(f *formula, at []int) {
	var visit func(l *logic)
	visit = func(l *logic) {
		if l.op == opAnd {
			w.excluding(f, l, at)
		}
		for i := range l.kids {
			visit(&l.kids[i])
		}
	}
	visit(&f.root)
}

func (w *linter) excluding(f *formula, and *logic, at []int) {
	texts, numbers := map[*name]*textTest{}, map[*name]interval{}
	for _, k := range and.kids {
		if k.op != opLeaf {
			continue
		}
		switch t := f.leaves[k.leaf].test.(type) {
		case *textTest:
			if t.op != "==" || t.alt != nil {
				continue
			}
			if other := texts[t.name]; other != nil && other.want != t.want {
				w.exclude(at[k.leaf], t.name)
				return
			}
			texts[t.name] = t
		case *numberTest:
			known, ok := numbers[t.name]
			if !ok {
				known = interval{math.Inf(-1), math.Inf(1)}
			}
			known = t.narrow(known)
			if known.low > known.high {
				w.exclude(at[k.leaf], t.name)
				return
			}
			numbers[t.name] = known
		}
	}
}

func (w *linter) exclude(at int, n *name) {
	w.add(LintContradiction, at, "this excludes an earlier comparison of "+n.text+" in the same and: both are never true",
		"join them with or, or split the definition")
}

// narrow is what a comparison leaves of an interval. Whole numbers of any size are compared as
// fractions here, so that what it calls empty is empty.
func (t *numberTest) narrow(v interval) interval {
	c := t.float
	if !t.isFloat {
		c = float64(t.whole)
	}
	if math.Abs(c) > 1<<53 {
		return v
	}
	op := t.op
	if t.turned {
		if i := slices.Index([]string{"<", "<=", ">", ">="}, op); i >= 0 {
			op = []string{">", ">=", "<", "<="}[i]
		}
	}
	switch op {
	case "==":
		v.low, v.high = max(v.low, c), min(v.high, c)
	case ">=":
		v.low = max(v.low, c)
	case ">":
		v.low = max(v.low, math.Nextafter(c, math.Inf(1)))
	case "<=":
		v.high = min(v.high, c)
	case "<":
		v.high = min(v.high, math.Nextafter(c, math.Inf(-1)))
	}
	return v
}
