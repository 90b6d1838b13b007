package federation

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func dollars(f float64) *float64 { return &f }

func names(cs []Candidate) string {
	var out []string
	for _, c := range cs {
		out = append(out, c.Cluster)
	}
	return strings.Join(out, " ")
}

func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		name       string
		by         By
		candidates []Candidate
		want       string
	}{
		{"fewest ahead for each node wins", ByPriority, []Candidate{
			{Cluster: "a", Score: &Score{Ahead: 10, UsableNodes: 10}},
			{Cluster: "b", Score: &Score{Ahead: 20, UsableNodes: 100}},
			{Cluster: "c", Score: &Score{Ahead: 1, UsableNodes: 2}}}, "b c a"},
		{"priority beats what is startable and cheap", ByPriority, []Candidate{
			{Cluster: "a", Score: &Score{Ahead: 1, UsableNodes: 1, Startable: true, Cost: dollars(1)}},
			{Cluster: "b", Score: &Score{Ahead: 0, UsableNodes: 1, Cost: dollars(9)}}}, "b a"},
		{"without the setting it does not count", ByAvailability, []Candidate{
			{Cluster: "a", Score: &Score{Ahead: 100, UsableNodes: 1, Startable: true}},
			{Cluster: "b", Score: &Score{Ahead: 0, UsableNodes: 9}}}, "a b"},
		{"equal loads: startable now", ByPriority, []Candidate{
			{Cluster: "a", Score: &Score{Ahead: 2, UsableNodes: 4, Cost: dollars(1)}},
			{Cluster: "b", Score: &Score{Ahead: 1, UsableNodes: 2, Startable: true, Cost: dollars(5)}}}, "b a"},
		{"then cost, unknown last", ByAvailability, []Candidate{
			{Cluster: "a", Score: &Score{UsableNodes: 1}},
			{Cluster: "b", Score: &Score{UsableNodes: 1, Cost: dollars(5)}},
			{Cluster: "c", Score: &Score{UsableNodes: 1, Cost: dollars(4)}},
			{Cluster: "d", Score: &Score{UsableNodes: 1, Cost: dollars(math.NaN())}}}, "c b a d"},
		{"then the name", ByPriority, []Candidate{
			{Cluster: "b", Score: &Score{UsableNodes: 1}}, {Cluster: "a", Score: &Score{UsableNodes: 1}}}, "a b"},
		{"no ready node comes after any load", ByPriority, []Candidate{
			{Cluster: "a", Score: &Score{}}, {Cluster: "b", Score: &Score{Ahead: 1 << 30, UsableNodes: 1}}}, "b a"},
		{"who cannot, or was not reached, comes last", ByPriority, []Candidate{
			{Cluster: "a", Skipped: "drained"}, {Cluster: "b", Score: &Score{UsableNodes: 9, Reason: "no GPU"}},
			{Cluster: "c", Score: &Score{Ahead: 9, UsableNodes: 1}}}, "c a b"},
		{"nobody", ByPriority, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := names(Order(tt.candidates, tt.by)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func candidates() *rapid.Generator[[]Candidate] {
	one := rapid.Custom(func(t *rapid.T) Candidate {
		c := Candidate{Cluster: rapid.StringMatching("[a-e][0-9]").Draw(t, "name")}
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			c.Skipped = "not reached"
			return c
		case 1:
			c.Score = &Score{Reason: "no node"}
			return c
		}
		c.Score = &Score{Ahead: uint32(rapid.IntRange(0, 4).Draw(t, "ahead")), UsableNodes: uint32(rapid.IntRange(0, 3).Draw(t, "nodes")),
			Startable: rapid.Bool().Draw(t, "startable")}
		if rapid.Bool().Draw(t, "known") {
			c.Score.Cost = dollars(float64(rapid.IntRange(0, 2).Draw(t, "cost")))
		}
		return c
	})
	return rapid.SliceOfNDistinct(one, 0, 12, func(c Candidate) string { return c.Cluster })
}

// TestOrderIsTotal: the same candidates in any order give the same answer, which holds all of them once.
func TestOrderIsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := candidates().Draw(t, "candidates")
		by := rapid.SampledFrom([]By{ByPriority, ByAvailability}).Draw(t, "by")
		want := Order(in, by)
		got := Order(rapid.Permutation(in).Draw(t, "shuffled"), by)
		if names(got) != names(want) {
			t.Fatalf("%s, then %s", names(want), names(got))
		}
		if len(got) != len(in) {
			t.Fatalf("%d of %d are left", len(got), len(in))
		}
	})
}

// TestNobodyBetterIsPassedOver: the first has the least load of the usable ones, and no dominated one comes before
// what dominates it.
func TestNobodyBetterIsPassedOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := Order(candidates().Draw(t, "candidates"), ByPriority)
		for i, a := range got {
			for _, b := range got[i+1:] {
				if b.Usable() && !a.Usable() {
					t.Fatalf("%s, which is not usable, is before %s", a.Cluster, b.Cluster)
				}
				if !b.Usable() {
					continue
				}
				x, y := a.Score, b.Score
				if y.Load() < x.Load() || y.Load() == x.Load() && (y.Startable && !x.Startable ||
					y.Startable == x.Startable && (cost(y) < cost(x) || cost(y) == cost(x) && b.Cluster < a.Cluster)) {
					t.Fatalf("%s is before %s: %+v, %+v", a.Cluster, b.Cluster, x, y)
				}
			}
		}
	})
}

// TestOneMoreThatCannotChangesNothing: a cluster that is skipped or refuses does not move the others.
func TestOneMoreThatCannotChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := candidates().Draw(t, "candidates")
		by := rapid.SampledFrom([]By{ByPriority, ByAvailability}).Draw(t, "by")
		more := Order(append(slices.Clone(in), Candidate{Cluster: "zz", Skipped: "not reached"}), by)
		rest := slices.DeleteFunc(more, func(c Candidate) bool { return c.Cluster == "zz" })
		if names(rest) != names(Order(in, by)) {
			t.Fatalf("%s, without it %s", names(rest), names(Order(in, by)))
		}
	})
}
