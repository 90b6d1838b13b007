package sched

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const testKind = "nvidia.com/gpu"

func testGPUs(n int, domains ...int) []GPU {
	gpus := make([]GPU, n)
	for i := range gpus {
		gpus[i] = GPU{ID: fmt.Sprintf("0000:%02x:00.0", i+1), Kind: testKind, Domain: -1}
		if len(domains) > 0 {
			gpus[i].Domain = domains[i*len(domains)/n]
		}
	}
	return gpus
}

// mesh joins every pair of the listed GPUs.
func mesh(count int, switched bool, gpus ...int) []Link {
	var links []Link
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			links = append(links, Link{A: a, B: b, Count: count, Switched: switched, Path: "SYS"})
		}
	}
	return links
}

func joinLinks(lists ...[]Link) []Link { return slices.Concat(lists...) }

func upTo(from, to int) []int {
	var out []int
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func pairLinks(pairs ...[2]int) []Link {
	var links []Link
	for _, p := range pairs {
		links = append(links, Link{A: p[0], B: p[1], Count: 12, Path: "SYS"})
	}
	return links
}

// cubeMesh is the hybrid cube mesh of eight V100: two quads of single and double links, joined by double
// and single ones.
func cubeMesh() []Link {
	var links []Link
	for _, l := range [][3]int{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2}, {2, 6, 1},
		{3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
	} {
		links = append(links, Link{A: l[0], B: l[1], Count: l[2], Path: "NODE"})
	}
	return links
}

func pciOnly(n int) []Link {
	links := mesh(0, false, upTo(0, n)...)
	for i := range links {
		links[i].Path = "PIX"
	}
	return links
}

type machine struct {
	gpus  []GPU
	links []Link
	known bool
}

func (m machine) topology() *topology { return newTopology(m.gpus, m.links, m.known) }

func machines() map[string]machine {
	dead := machine{testGPUs(8, 0, 1), mesh(18, true, upTo(0, 8)...), true}
	dead.gpus = slices.Clone(dead.gpus)
	dead.gpus[2].Dead = true
	return map[string]machine{
		"nvswitch":      {testGPUs(8, 0, 1), mesh(18, true, upTo(0, 8)...), true},
		"crossed pairs": {testGPUs(8, 0, 1), pairLinks([2]int{0, 2}, [2]int{1, 3}, [2]int{4, 5}, [2]int{6, 7}), true},
		"pairs":         {testGPUs(8, 0, 1), pairLinks([2]int{0, 1}, [2]int{2, 3}, [2]int{4, 5}, [2]int{6, 7}), true},
		"cube mesh":     {testGPUs(8, 0, 1), cubeMesh(), true},
		"mi300x":        {testGPUs(8, 0, 1), mesh(1, false, upTo(0, 8)...), true},
		"quads":         {testGPUs(8, 0, 1), joinLinks(mesh(4, false, 0, 1, 2, 3), mesh(4, false, 4, 5, 6, 7)), true},
		"pci":           {testGPUs(8, 0, 1), pciOnly(8), true},
		"two domains":   {testGPUs(16, 0, 1), joinLinks(mesh(18, true, upTo(0, 8)...), mesh(18, true, upTo(8, 16)...)), true},
		"sixteen":       {testGPUs(16, 0, 1), mesh(6, true, upTo(0, 16)...), true},
		"two meshes":    {testGPUs(16, 0, 1), joinLinks(cubeMesh(), cubeMeshFrom(8)), true},
		"joined meshes": {testGPUs(16, 0, 1), joinLinks(cubeMesh(), cubeMeshFrom(8), mesh(1, false, 0, 8), mesh(1, false, 7, 15)), true},
		"unreadable":    {testGPUs(8, 0, 1), nil, false},
		"one dead":      dead,
	}
}

func cubeMeshFrom(first int) []Link {
	links := cubeMesh()
	for i := range links {
		links[i].A += first
		links[i].B += first
	}
	return links
}

func TestPick(t *testing.T) {
	all8, all16 := upTo(0, 8), upTo(0, 16)
	for _, c := range []struct {
		name, machine string
		free          []int
		n             int
		near          []int
		loose         bool
		want          []int // nil: none
	}{
		{"case 38: linked pair, not index neighbours", "crossed pairs", all8, 2, nil, false, []int{0, 2}},
		{"case 38: the pair that is left whole", "crossed pairs", []int{0, 1, 3, 6}, 2, nil, false, []int{1, 3}},
		{"case 38: no pair is whole", "crossed pairs", []int{0, 1, 4, 6}, 2, nil, false, nil},
		{"case 39: a single takes the broken pair", "pairs", []int{0, 1, 2, 4, 5, 6, 7}, 1, nil, false, []int{2}},
		{"case 39: near the cores matters less than pairs", "pairs", []int{0, 1, 2, 3, 5, 6, 7}, 1, []int{0}, false, []int{5}},
		{"among whole pairs the near one", "pairs", all8, 1, []int{1, 0}, false, []int{4}},
		{"case 40: not across domains", "two domains", []int{0, 1, 2, 3, 4, 5, 8, 9}, 8, nil, false, nil},
		{"case 40: the smaller rest is used up", "two domains", []int{0, 1, 2, 3, 4, 5, 8, 9}, 2, nil, false, []int{8, 9}},
		{"case 40: a single, too", "two domains", []int{0, 1, 2, 3, 4, 5, 8, 9}, 1, []int{0}, false, []int{8}},
		{"a whole domain", "two domains", []int{3, 8, 9, 10, 11, 12, 13, 14, 15}, 8, nil, false, upTo(8, 16)},
		{"case 42: links unreadable, single GPU", "unreadable", []int{4, 5}, 1, nil, false, []int{4}},
		{"case 42: links unreadable, two GPUs", "unreadable", all8, 2, nil, false, nil},
		{"case 42: links unreadable, two that do not care", "unreadable", all8, 2, nil, true, []int{0, 1}},
		{"case 42: the dead one is left out", "one dead", all8, 7, nil, false, []int{0, 1, 3, 4, 5, 6, 7}},
		{"case 42: eight with a dead one", "one dead", all8, 8, nil, false, nil},
		{"case 42: nobody gets the dead one", "one dead", []int{2}, 1, nil, true, nil},
		{"PCI is no fabric", "pci", all8, 2, nil, false, nil},
		{"PCI, single GPU", "pci", all8, 1, []int{1}, false, []int{4}},
		{"PCI, do not care", "pci", all8, 3, []int{1, 0}, true, []int{4, 5, 6}},
		{"switch, near", "nvswitch", all8, 2, []int{1}, false, []int{4, 5}},
		{"switch, near runs out", "nvswitch", []int{0, 1, 2, 7}, 2, []int{1}, false, []int{0, 7}},
		{"mesh of equals", "mi300x", all8, 4, nil, false, []int{0, 1, 2, 3}},
		{"cube: a pair of double links that leaves most", "cube mesh", all8, 2, nil, false, []int{0, 3}},
		{"cube: double before single", "cube mesh", []int{0, 1, 2, 4}, 2, nil, false, []int{0, 4}},
		{"cube: a quad for four", "cube mesh", []int{0, 1, 3, 4, 5, 6, 7}, 4, nil, false, []int{4, 5, 6, 7}},
		{"cube: the single leaves the quad", "cube mesh", []int{1, 4, 5, 6, 7}, 1, nil, false, []int{1}},
		{"cube: far apart, but one fabric", "cube mesh", []int{0, 6}, 2, nil, false, []int{0, 6}},
		{"quads: loose work takes the rests", "quads", []int{0, 1, 2, 3, 5, 6}, 3, nil, true, []int{0, 5, 6}},
		{"pairs: loose work breaks one at most", "pairs", all8, 3, nil, true, []int{0, 1, 2}},
		{"sixteen on switches", "sixteen", all16, 16, nil, false, all16},
		{"large mesh: one of its halves", "joined meshes", []int{0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 8, nil, false, upTo(8, 16)},
		{"large mesh: a quad", "joined meshes", []int{0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 13, 14}, 4, nil, false, upTo(8, 12)},
		{"large mesh: a pair of double links that is missed least", "joined meshes", []int{0, 1, 3, 5, 6, 9, 10, 11, 13, 15}, 2, []int{1}, false, []int{5, 6}},
		{"large mesh: the single that nobody misses", "joined meshes", []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 13}, 1, nil, false, []int{11}},
		{"large mesh: few are free", "joined meshes", []int{0, 1, 2, 3, 6, 9, 13}, 4, nil, false, []int{0, 1, 2, 3}},
		{"zero", "sixteen", all16, 0, nil, false, []int{}},
		{"more than there are", "sixteen", all16, 17, nil, true, nil},
		{"nothing free", "sixteen", nil, 1, nil, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := machines()[c.machine].topology()
			got, ok := top.pick(testKind, gpusAt(c.free), c.n, c.near, c.loose)
			if ok != (c.want != nil) || !slices.Equal(got.indexes(), append([]int{}, c.want...)) {
				t.Errorf("got %v %v, want %v", got.indexes(), ok, c.want)
			}
			if fits := top.fits(testKind, gpusAt(c.free), c.n, c.loose); fits != ok {
				t.Errorf("fits says %v", fits)
			}
		})
	}
}

// TestTopologyReports: what a report may hold that is no link, and what a switch implies.
func TestTopologyReports(t *testing.T) {
	gpus := testGPUs(4)
	gpus[3].Kind = "amd.com/gpu"
	for _, c := range []struct {
		name             string
		links            []Link
		free             int // of testKind
		pair             bool
		links02, pairs02 int
	}{
		{"out of range, itself, other kinds", []Link{{A: 0, B: 9, Count: 4}, {A: -1, B: 1, Count: 4}, {A: 1, B: 1, Count: 4}, {A: 0, B: 3, Count: 4}}, 3, false, 0, 0},
		{"a switch joins all on it", []Link{{A: 0, B: 1, Count: 6, Switched: true}, {A: 1, B: 2, Count: 4, Switched: true}}, 3, true, 4, 1},
		{"a chain does not", []Link{{A: 0, B: 1, Count: 6}, {A: 1, B: 2, Count: 4}}, 3, true, 0, 0},
		{"twice, turned round", []Link{{A: 2, B: 0, Count: 3}, {A: 0, B: 2, Count: 2}}, 3, true, 3, 1},
		{"switched without a count", []Link{{A: 0, B: 2, Switched: true}}, 3, true, 1, 1},
		{"absurd counts", []Link{{A: 0, B: 2, Count: 1 << 40}, {A: 0, B: 1, Count: -5}}, 3, true, maxLinks, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := newTopology(gpus, c.links, true)
			if top.all(testKind).count() != c.free || top.all("amd.com/gpu") != 1<<3 || top.all("none") != 0 {
				t.Errorf("wrong GPUs: %b", top.all(testKind))
			}
			if top.fits(testKind, top.all(testKind), 2, false) != c.pair {
				t.Errorf("pair: %v", !c.pair)
			}
			if got := int(top.links[0][2]); got != c.links02 {
				t.Errorf("%d links of GPUs 0 and 2, want %d", got, c.links02)
			}
			if got := top.joined[0].has(2); got != (c.pairs02 > 0) {
				t.Errorf("joined: %v", got)
			}
		})
	}
	many := newTopology(testGPUs(70), mesh(2, true, upTo(0, 70)...), true)
	if got, ok := many.pick(testKind, ^gpuSet(0), 64, nil, false); !ok || got.count() != 64 {
		t.Errorf("of 70 GPUs got %d", got.count())
	}
	if got := machines()["two domains"].topology().home(gpusAt([]int{1, 8, 9})); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("home: %v", got)
	}
}

// TestSinglesKeepPairs: single GPUs, however they come and go, break no pair while a broken one has room.
func TestSinglesKeepPairs(t *testing.T) {
	for _, name := range []string{"pairs", "crossed pairs"} {
		top := machines()[name].topology()
		pairs := top.kind(testKind).fabrics
		rapid.Check(t, func(t *rapid.T) {
			free := top.all(testKind)
			for _, raw := range rapid.SliceOfN(rapid.Uint16(), 1, 30).Draw(t, "steps") {
				held := (top.all(testKind) &^ free).indexes()
				if raw%3 == 0 && len(held) > 0 {
					free |= 1 << held[int(raw/3)%len(held)]
					continue
				}
				broken := slices.ContainsFunc(pairs, func(f fabric) bool { return (f.set & free).count() == 1 })
				got, ok := top.pick(testKind, free, 1, nil, false)
				if ok != (free != 0) || got&^free != 0 {
					t.Fatalf("pick of %b: %b %v", free, got, ok)
				}
				for _, f := range pairs {
					if got&f.set != 0 && broken && f.set&^free == 0 {
						t.Fatalf("%b free, %b breaks a pair", free, got)
					}
				}
				free &^= got
			}
		})
	}
}
