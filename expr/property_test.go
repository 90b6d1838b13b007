package expr

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"substrate/hwinfo"
)

// Five facts of a node carry five truth values: a leaf is true when its fact is 1, false when it
// is 2 and unknown when it is absent; where the host name asks for it, it fails instead.
func variables() []string {
	return []string{"cpuinfo.cpu_cores", "cpuinfo.sockets", "cpuinfo.model", "cpuinfo.stepping", "cpuinfo.cpu_family"}
}

func nodeOf(values []Truth) *NodeEnv {
	f := hwinfo.Facts{}
	for i, at := range []**int{&f.CPU.Cores, &f.CPU.Sockets, &f.CPU.Model, &f.CPU.Stepping, &f.CPU.Family} {
		switch values[i] {
		case True:
			*at = ptr(1)
		case False:
			*at = ptr(2)
		case Failed:
			*at = ptr(0)
		}
	}
	return NewNodeEnv(f)
}

// formulaText draws a condition and its value by the definition, over leaves drawn by leaf.
type drawn struct {
	text  string
	value func(values []Truth) Truth
}

func drawFormula(t *rapid.T, depth int, leaf func() int) drawn {
	kind := 0
	if depth > 0 {
		kind = rapid.IntRange(0, 4).Draw(t, "kind")
	}
	switch kind {
	case 1:
		a := drawFormula(t, depth-1, leaf)
		word := rapid.SampledFrom([]string{"not (%s)", "!(%s)"}).Draw(t, "not")
		return drawn{fmt.Sprintf(word, a.text), func(v []Truth) Truth { return not(a.value(v)) }}
	case 2, 3:
		a, b := drawFormula(t, depth-1, leaf), drawFormula(t, depth-1, leaf)
		word := rapid.SampledFrom([]string{"(%s) and (%s)", "(%s) && (%s)"}).Draw(t, "word")
		stop := False
		if kind == 3 {
			word, stop = strings.NewReplacer("and", "or", "&&", "||").Replace(word), True
		}
		return drawn{fmt.Sprintf(word, a.text, b.text), func(v []Truth) Truth { return kleene(a.value(v), func() Truth { return b.value(v) }, stop) }}
	case 4:
		c, a, b := drawFormula(t, depth-1, leaf), drawFormula(t, depth-1, leaf), drawFormula(t, depth-1, leaf)
		return drawn{fmt.Sprintf("((%s) ? (%s) : (%s))", c.text, a.text, b.text), func(v []Truth) Truth {
			yes := kleene(c.value(v), func() Truth { return a.value(v) }, False)
			return kleene(yes, func() Truth {
				return kleene(not(c.value(v)), func() Truth { return b.value(v) }, False)
			}, True)
		}}
	}
	i := leaf()
	return drawn{
		// 1/(x) fails for 0; otherwise the leaf is x == 1.
		fmt.Sprintf("1 / %s == 1", variables()[i]),
		func(v []Truth) Truth { return v[i] },
	}
}

func not(t Truth) Truth {
	switch t {
	case True:
		return False
	case False:
		return True
	}
	return t
}

// kleene is and (stop False) or or (stop True), left to right; an error that is reached decides.
func kleene(a Truth, b func() Truth, stop Truth) Truth {
	if a == stop || a == Failed {
		return a
	}
	switch v := b(); {
	case v == stop || v == Failed:
		return v
	case a == Unknown || v == Unknown:
		return Unknown
	}
	return not(stop)
}

func drawValues(t *rapid.T) []Truth {
	return rapid.SliceOfN(rapid.SampledFrom([]Truth{True, False, Unknown, Failed}), 5, 5).Draw(t, "values")
}

func TestKleeneByDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFormula(t, 4, func() int { return rapid.IntRange(0, 4).Draw(t, "leaf") })
		values := drawValues(t)
		c, err := CompileCondition(f.text)
		if err != nil {
			t.Skip(err) // too many parts
		}
		env := nodeOf(values)
		want := f.value(values)
		if got := c.Match(env); got != want {
			t.Fatalf("Match of %s with %v = %v, want %v", f.text, values, got, want)
		}
		out := c.Eval(env)
		if out.Value != want || (want == True) != (len(out.Parts) == 0) || (want == Failed) != (out.Err != "") {
			t.Fatalf("Eval of %s with %v = %+v, want %v", f.text, values, out, want)
		}
	})
}

// flipped changes the facts that the parts name, and no other.
func flipped(t *rapid.T, values []Truth, parts []Part) []Truth {
	out := append([]Truth{}, values...)
	for _, p := range parts {
		for i, name := range variables() {
			if p.Source != "1 / "+name+" == 1" {
				continue
			}
			if p.Value != values[i] {
				t.Fatalf("part %+v, but the value is %v", p, values[i])
			}
			seen := map[Truth]string{True: "1", False: "2", Unknown: absentText, Failed: "0"}[values[i]]
			if len(p.Seen) != 1 || p.Seen[name] != seen {
				t.Fatalf("part %+v saw %v, want %s", p, p.Seen, seen)
			}
			out[i] = Unknown // decided by the caller
		}
	}
	return out
}

// Changing only what the parts name can make the condition true.
func TestPartsSuffice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		next := 0
		// Each leaf stands once: where a leaf repeats, the condition may be impossible.
		f := drawFormula(t, 2, func() int { next++; return (next - 1) % 5 })
		if next > 5 {
			t.Skip("leaves repeat")
		}
		checkParts(t, f, drawValues(t))
	})
}

// The same where leaves repeat, as far as the condition can be true at all.
func TestPartsSufficeWhereLeavesRepeat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFormula(t, 2, func() int { return rapid.IntRange(0, 2).Draw(t, "leaf") })
		possible := false
		for i := range 32 {
			possible = possible || f.value(assignment(i)) == True
		}
		if !possible {
			t.Skip("never true")
		}
		checkParts(t, f, drawValues(t))
	})
}

func assignment(bits int) []Truth {
	out := make([]Truth, 5)
	for i := range out {
		out[i] = truthOf(bits>>i&1 == 1)
	}
	return out
}

func checkParts(t *rapid.T, f drawn, values []Truth) {
	c, err := CompileCondition(f.text)
	if err != nil {
		t.Skip(err)
	}
	out := c.Eval(nodeOf(values))
	if out.Value == True {
		return
	}
	if len(out.Parts) == 0 {
		t.Fatalf("%s with %v is %v without a reason", f.text, values, out.Value)
	}
	open := flipped(t, values, out.Parts)
	named := map[int]bool{}
	for i := range open {
		for _, p := range out.Parts {
			named[i] = named[i] || p.Source == "1 / "+variables()[i]+" == 1"
		}
	}
	for bits := range 32 {
		try := append([]Truth{}, values...)
		for i, v := range assignment(bits) {
			if named[i] {
				try[i] = v
			}
		}
		if c.Match(nodeOf(try)) == True {
			return
		}
	}
	t.Fatalf("%s with %v: changing only %+v never makes it true", f.text, values, out.Parts)
}

// Each part alone stands in the way: with it as it is and all else as the condition wishes, a
// condition without `or` stays untrue.
func TestPartsAreNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := drawValues(t)
		var texts []string
		var signs []bool
		for i, name := range variables() {
			positive := rapid.Bool().Draw(t, "sign")
			signs = append(signs, positive)
			text := "1 / " + name + " == 1"
			if !positive {
				text = "not (" + text + ")"
			}
			_ = i
			texts = append(texts, text)
		}
		c, err := CompileCondition(strings.Join(texts, " and "))
		if err != nil {
			t.Fatal(err)
		}
		out := c.Eval(nodeOf(values))
		wrong := 0
		for i := range values {
			if values[i] != truthOf(signs[i]) {
				wrong++
			}
		}
		if len(out.Parts) != wrong {
			t.Fatalf("%d parts %+v, want %d", len(out.Parts), out.Parts, wrong)
		}
		for _, p := range out.Parts {
			try := make([]Truth, 5)
			for i, name := range variables() {
				try[i] = truthOf(signs[i])
				if p.Source == "1 / "+name+" == 1" {
					try[i] = values[i]
				}
			}
			if c.Match(nodeOf(try)) == True {
				t.Fatalf("%+v is named but not needed", p)
			}
		}
	})
}

// A policy as one program and as a split formula are the same.
func TestPolicyExplainAgreesWithAdmit(t *testing.T) {
	leaves := []string{`request.owner.organization_id == "org"`, `request.job_ttl <= 60`, `request.nodes in [1, 2]`,
		`request.job_annotations["k"] == "v"`, `1 / request.nodes > 0`}
	rapid.Check(t, func(t *rapid.T) {
		text := leaves[rapid.IntRange(0, 4).Draw(t, "first")]
		for range rapid.IntRange(0, 4).Draw(t, "more") {
			op := rapid.SampledFrom([]string{"and", "or"}).Draw(t, "op")
			text = fmt.Sprintf("(%s) %s %s", text, op, leaves[rapid.IntRange(0, 4).Draw(t, "leaf")])
			if rapid.Bool().Draw(t, "not") {
				text = "not (" + text + ")"
			}
		}
		p, err := CompilePolicy(text)
		if err != nil {
			t.Fatal(err)
		}
		r := NewRequestEnv()
		r.Request.Owner.OrganizationName = rapid.SampledFrom([]string{"org", "other"}).Draw(t, "org")
		r.Request.JobTTL = rapid.Float64Range(0, 120).Draw(t, "ttl")
		r.Request.Nodes = rapid.Uint32Range(0, 4).Draw(t, "nodes")
		if rapid.Bool().Draw(t, "annotated") {
			r.Request.JobAnnotations["k"] = "v"
		}
		ok, err := p.Admit(r)
		if err != nil && ok {
			t.Fatal("admitted with an error")
		}
		if parts := p.Explain(r); ok != (len(parts) == 0) {
			t.Fatalf("%s: admitted %v (%v), explained by %+v", text, ok, err, parts)
		}
	})
}

// The smallest change: a formula with repeated leaves, one way that the search gives, and every
// strict part of it. Changing the way makes the condition true, changing less does not.
func TestNothingSpareIsNamed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFormula(t, 3, func() int { return rapid.IntRange(0, 4).Draw(t, "leaf") })
		c, err := CompileCondition(f.text)
		if err != nil {
			t.Skip(err)
		}
		env := nodeOf(drawValues(t))
		r := c.language.evaluation(c.formula, env, env.absent)
		defer r.end()
		if r.eval(&c.formula.root) == True {
			t.Skip("nothing to explain")
		}
		x := newExplainer(&r)
		all := slices.Collect(maps.Keys(x.everyLeaf()))
		slices.Sort(all)
		possible := x.anySubset(all)
		way := x.way()
		if possible != (way != nil) {
			t.Fatalf("%s: possible %v, way %v", f.text, possible, way)
		}
		if way == nil {
			return
		}
		if !x.changing(way, flips{}) {
			t.Fatalf("%s: changing %v does not make it true", f.text, way)
		}
		for mask := range 1<<len(way) - 1 {
			if x.changing(subset(way, mask), flips{}) {
				t.Fatalf("%s: %v is named, %v would do", f.text, way, subset(way, mask))
			}
		}
		named := x.blame()
		if !x.changing(named, flips{}) {
			t.Fatalf("%s: changing all of %v does not make it true", f.text, named)
		}
		for _, i := range named { // each is in a set of which nothing is spare
			if !slices.ContainsFunc(x.minimal(named), func(set []int32) bool { return slices.Contains(set, i) }) {
				t.Fatalf("%s: %d of %v is spare", f.text, i, named)
			}
		}
	})
}

func (x *explainer) everyLeaf() flips {
	out := flips{}
	for i := range x.values {
		out[int32(i)] = True
	}
	return out
}

func (x *explainer) anySubset(of []int32) bool {
	for mask := range 1 << len(of) {
		if x.changing(subset(of, mask), flips{}) {
			return true
		}
	}
	return false
}

func subset(of []int32, mask int) []int32 {
	var out []int32
	for k, i := range of {
		if mask>>k&1 == 1 {
			out = append(out, i)
		}
	}
	return out
}
