package sched

import (
	"cmp"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// linkTwin answers pick by looking at every set, from the links as reported and with nothing prepared.
type linkTwin struct {
	gpus  []GPU
	links [][]int
}

func newLinkTwin(m machine) *linkTwin {
	tw := &linkTwin{gpus: m.gpus, links: make([][]int, len(m.gpus))}
	for i := range tw.links {
		tw.links[i] = make([]int, len(m.gpus))
	}
	if !m.known {
		return tw
	}
	hung := make([][]bool, len(m.gpus)) // on one switch
	into := make([]int, len(m.gpus))
	for i := range hung {
		hung[i] = make([]bool, len(m.gpus))
	}
	for _, l := range m.links {
		if m.gpus[l.A].Dead || m.gpus[l.B].Dead || m.gpus[l.A].Kind != m.gpus[l.B].Kind {
			continue
		}
		count := l.Count
		if l.Switched {
			count = max(1, count)
			hung[l.A][l.B], hung[l.B][l.A] = true, true
			into[l.A], into[l.B] = max(into[l.A], count), max(into[l.B], count)
		}
		tw.links[l.A][l.B] = max(tw.links[l.A][l.B], count)
		tw.links[l.B][l.A] = tw.links[l.A][l.B]
	}
	for k := range hung {
		for i := range hung {
			for j := range hung {
				hung[i][j] = hung[i][j] || i != j && hung[i][k] && hung[k][j]
			}
		}
	}
	for i := range hung {
		for j := range hung {
			if hung[i][j] {
				tw.links[i][j] = max(tw.links[i][j], min(into[i], into[j]))
			}
		}
	}
	return tw
}

// parts are the sizes and sets of what hangs together among the given GPUs.
func (tw *linkTwin) parts(of gpuSet) []gpuSet {
	var out []gpuSet
	for of != 0 {
		part := of & -of
		for again := true; again; {
			again = false
			for _, i := range part.indexes() {
				for _, j := range (of &^ part).indexes() {
					if tw.links[i][j] > 0 {
						part |= 1 << j
						again = true
					}
				}
			}
		}
		out = append(out, part)
		of &^= part
	}
	return out
}

func (tw *linkTwin) count(set gpuSet) (pairs, links int) {
	for _, i := range set.indexes() {
		for _, j := range set.indexes() {
			if i < j && tw.links[i][j] > 0 {
				pairs++
				links += tw.links[i][j]
			}
		}
	}
	return pairs, links
}

// key holds the preferences of pick as numbers, the smaller the better.
func (tw *linkTwin) key(set, free, all gpuSet, near []int, inner bool) []int {
	var key []int
	if inner {
		pairs, links := tw.count(set)
		key = append(key, min(len(tw.parts(set))-1, 1), -pairs, -links)
	}
	rest := free &^ set
	var sizes []int
	for _, f := range tw.parts(all) {
		sizes = append(sizes, -(f & rest).count())
	}
	slices.Sort(sizes)
	key = append(key, sizes...)
	cliques := make([]int, len(tw.gpus)+1)
	for s := rest; s != 0; s = (s - 1) & rest {
		if pairs, _ := tw.count(s); s.count() > 1 && pairs == s.count()*(s.count()-1)/2 {
			cliques[len(cliques)-1-s.count()]--
		}
	}
	key = append(key, cliques...)
	_, links := tw.count(rest)
	key = append(key, -links)
	far := 0
	for _, i := range set.indexes() {
		if d := slices.Index(near, tw.gpus[i].Domain); d >= 0 && tw.gpus[i].Domain >= 0 {
			far += d
		} else {
			far += len(near)
		}
	}
	key = append(key, far)
	return append(key, set.indexes()...)
}

func (tw *linkTwin) pick(kind string, free gpuSet, n int, near []int, loose bool) (gpuSet, bool) {
	var all gpuSet
	for i, g := range tw.gpus {
		if g.Kind == kind && !g.Dead {
			all |= 1 << i
		}
	}
	free &= all
	fabrics := tw.parts(all)
	var best gpuSet
	var bestKey []int
	found := n == 0
	for s := free; s != 0 && n > 0; s = (s - 1) & free {
		if bits.OnesCount64(uint64(s)) != n {
			continue
		}
		if !loose && !slices.ContainsFunc(fabrics, func(f gpuSet) bool { return s&^f == 0 }) {
			continue
		}
		key := tw.key(s, free, all, near, n > 1 && !loose)
		if !found || slices.Compare(key, bestKey) < 0 {
			best, bestKey, found = s, key, true
		}
	}
	return best, found
}

// drawMachine is one of the known machines, with luck spoiled, or any graph.
func drawMachine(t *rapid.T, most int) machine {
	draw := func(label string, low, high int) int { return rapid.IntRange(low, high).Draw(t, label) }
	var m machine
	names := []string{"nvswitch", "crossed pairs", "pairs", "cube mesh", "mi300x", "quads", "pci", "unreadable", "one dead"}
	if name := draw("machine", 0, 2*len(names)); name < len(names) {
		m = machines()[names[name]]
	} else {
		m = machine{gpus: testGPUs(draw("gpus", 1, most)), known: draw("known", 0, 9) > 0}
		density, top := draw("density", 1, 9), draw("most links", 1, 3)
		for a := range m.gpus {
			for b := a + 1; b < len(m.gpus); b++ {
				if draw("linked", 0, 9) < density {
					m.links = append(m.links, Link{A: a, B: b, Count: draw("count", 0, top), Switched: draw("switched", 0, 19) == 0})
				}
			}
		}
	}
	m.gpus, m.links = slices.Clone(m.gpus), slices.Clone(m.links)
	for i := range m.gpus {
		m.gpus[i].Domain = draw("domain", -1, 2)
		m.gpus[i].Dead = m.gpus[i].Dead || draw("dead", 0, 19) == 0
		if draw("other kind", 0, 19) == 0 {
			m.gpus[i].Kind = "other"
		}
	}
	return m
}

// TestPickIsBest: the choice is the twin's, in every case that the twin can answer.
func TestPickIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 8)
		top, tw := m.topology(), newLinkTwin(m)
		for range 4 {
			free := gpuSet(rapid.Uint64().Draw(t, "free") | rapid.Uint64().Draw(t, "more free"))
			n := rapid.IntRange(0, 8).Draw(t, "n")
			loose := rapid.IntRange(0, 3).Draw(t, "loose") == 0
			var near []int
			if rapid.Bool().Draw(t, "near") {
				near = rapid.Permutation([]int{0, 1, 2}).Draw(t, "domains")[:rapid.IntRange(0, 3).Draw(t, "first")]
			}
			got, ok := top.pick(testKind, free, n, near, loose)
			want, can := tw.pick(testKind, free, n, near, loose)
			if got != want || ok != can {
				t.Fatalf("%d of %b near %v, loose %v: got %v %v, the twin %v %v", n, free&top.all(testKind), near, loose,
					got.indexes(), ok, want.indexes(), can)
			}
			if fits := top.fits(testKind, free, n, loose); fits != ok {
				t.Fatalf("fits says %v", fits)
			}
		}
	})
}

// TestPickIsLegal: on large nodes, too, a choice is free, of the kind, of one fabric, and found when there is one;
// and the order of the links in the report does not matter.
func TestPickIsLegal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 64)
		top, tw := m.topology(), newLinkTwin(m)
		free := gpuSet(rapid.Uint64().Draw(t, "free") | rapid.Uint64().Draw(t, "more free"))
		n := rapid.IntRange(1, 64).Draw(t, "n")
		loose := rapid.IntRange(0, 3).Draw(t, "loose") == 0
		got, ok := top.pick(testKind, free, n, []int{1, 0}, loose)
		usable := free & top.all(testKind)
		largest := usable
		if !loose && n > 1 {
			largest = slices.MaxFunc(append(tw.parts(top.all(testKind)), 0), func(a, b gpuSet) int {
				return cmp.Compare((a & usable).count(), (b & usable).count())
			})
		}
		if can := (largest & usable).count() >= n; ok != can || top.fits(testKind, free, n, loose) != can {
			t.Fatalf("%d of %d, loose %v: %v", n, (largest & usable).count(), loose, ok)
		}
		if !ok {
			return
		}
		if got.count() != n || got&^usable != 0 {
			t.Fatalf("%b of %b", got, usable)
		}
		inOne := slices.ContainsFunc(tw.parts(top.all(testKind)), func(f gpuSet) bool { return got&^f == 0 })
		if !loose && !inOne {
			t.Fatalf("%b crosses fabrics", got)
		}
		turned := slices.Clone(m.links)
		slices.Reverse(turned)
		if again, _ := newTopology(m.gpus, turned, m.known).pick(testKind, free, n, []int{1, 0}, loose); again != got {
			t.Fatalf("%b, with the links in another order %b", got, again)
		}
	})
}

// TestTopologiesShare: equal detail is kept once, different detail apart.
func TestTopologiesShare(t *testing.T) {
	var shared topologies
	rapid.Check(t, func(t *rapid.T) {
		m := drawMachine(t, 4)
		other := drawMachine(t, 4)
		same := topologyKey(m.gpus, m.links, m.known) == topologyKey(other.gpus, other.links, other.known)
		if same != (shared.of(m.gpus, m.links, m.known) == shared.of(other.gpus, other.links, other.known)) {
			t.Fatal("shared by the key, or not")
		}
		a, b := shared.of(m.gpus, m.links, m.known), m.topology()
		for free := range gpuSet(1) << len(m.gpus) {
			x, _ := a.pick(testKind, free, 2, nil, false)
			y, _ := b.pick(testKind, free, 2, nil, false)
			if x != y {
				t.Fatalf("%b: %b and %b", free, x, y)
			}
		}
	})
}

func BenchmarkPick(b *testing.B) {
	for _, c := range []struct {
		name, machine string
		n             int
		near          []int
		loose         bool
	}{
		{"nvswitch/1", "nvswitch", 1, nil, false},
		{"nvswitch/4", "nvswitch", 4, []int{1, 0}, false},
		{"pairs/1", "crossed pairs", 1, nil, false},
		{"pairs/2", "crossed pairs", 2, nil, false},
		{"cube/1", "cube mesh", 1, []int{1, 0}, false},
		{"cube/2", "cube mesh", 2, []int{1, 0}, false},
		{"cube/4", "cube mesh", 4, []int{1, 0}, false},
		{"pci/4/loose", "pci", 4, []int{1, 0}, true},
		{"sixteen/8", "sixteen", 8, []int{1, 0}, false},
		{"two-domains/4", "two domains", 4, nil, false},
		{"two-cubes/1", "two meshes", 1, nil, false},
		{"two-cubes/4", "two meshes", 4, nil, false},
		{"joined-cubes/8", "joined meshes", 8, []int{1, 0}, false},
		{"joined-cubes/2", "joined meshes", 2, nil, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			t := machines()[c.machine].topology()
			all := t.all(testKind)
			b.ReportAllocs()
			for b.Loop() {
				t.pick(testKind, all, c.n, c.near, c.loose)
			}
		})
	}
	b.Run("new/cube", func(b *testing.B) {
		m := machines()["cube mesh"]
		for b.Loop() {
			m.topology()
		}
	})
	b.Run("shared/cube", func(b *testing.B) {
		m := machines()["cube mesh"]
		var shared topologies
		for b.Loop() {
			shared.of(m.gpus, m.links, m.known)
		}
	})
}
