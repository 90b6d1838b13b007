package sched

import (
	"math/bits"
	"slices"
	"strconv"

	"substrate/coordinator"
)

// GPU is one GPU of a node, in the order of the node's report.
type GPU struct {
	ID     string // PCI address
	Kind   string // the device's name in requests, such as "nvidia.com/gpu"
	Domain int    // NUMA domain, -1: unknown
	Dead   bool   // on the list, but not to be used
}

// Link joins two GPUs of a node.
type Link struct {
	A, B     int    // indexes into the node's GPUs, A < B
	Count    int    // NVLinks or xGMI links of the pair; 0: PCI alone
	Switched bool   // the links lead through switches
	Path     string // the way over PCI; placement does not look at it
}

// Domain is one NUMA domain of a node.
type Domain struct {
	ID, Socket int // Socket is -1 when it is unknown or the domain spans several
	Cores      coordinator.Cores
	Memory     coordinator.Bytes
}

// Share is what one allocation occupies of one node.
type Share struct {
	Node    coordinator.NodeID
	Devices []int         // indexes into the node's GPUs, ascending
	Cores   []DomainCores // in the order of the node's domains; empty: not known by domain
}

// DomainCores is a number of whole cores in a NUMA domain.
type DomainCores struct {
	Domain int // its ID
	Cores  uint32
}

const (
	maxGPUs       = 64 // of a node, the width of gpuSet; those past it are not placed by links
	maxLinks      = 64 // counted for a pair
	maxTopologies = 4096
)

// gpuSet holds indexes of a node's GPUs.
type gpuSet uint64

func (s gpuSet) count() int     { return bits.OnesCount64(uint64(s)) }
func (s gpuSet) lowest() int    { return bits.TrailingZeros64(uint64(s)) }
func (s gpuSet) has(i int) bool { return s>>i&1 != 0 }

// before orders sets of one size like their sorted lists of indexes.
func (s gpuSet) before(u gpuSet) bool {
	d := s ^ u
	return s&(d&-d) != 0
}

func (s gpuSet) indexes() []int {
	out := make([]int, 0, s.count())
	for ; s != 0; s &= s - 1 {
		out = append(out, s.lowest())
	}
	return out
}

func gpusAt(indexes []int) gpuSet {
	s := gpuSet(0)
	for _, i := range indexes {
		s |= 1 << i
	}
	return s
}

// topology is how the GPUs of a node are joined (rule 7). It never changes, so nodes of equal detail share one.
type topology struct {
	domains []int      // of each GPU
	kinds   []gpuKind  // in the order of their first GPU
	links   [][]uint16 // of each pair
	joined  []gpuSet   // those that a GPU has links to
}

type gpuKind struct {
	name    string
	all     gpuSet
	fabrics []fabric // by their lowest GPU; together they are all
}

// newTopology takes a node's report. Links of unreadable nodes are not believed, and dead GPUs
// neither are placed nor join others: what is left is placed one by one at least.
func newTopology(gpus []GPU, links []Link, known bool) *topology {
	gpus = gpus[:min(len(gpus), maxGPUs)]
	t := &topology{
		domains: make([]int, len(gpus)), links: make([][]uint16, len(gpus)), joined: make([]gpuSet, len(gpus)),
	}
	for i, g := range gpus {
		t.domains[i], t.links[i] = g.Domain, make([]uint16, len(gpus))
		if g.Dead {
			continue
		}
		k := slices.IndexFunc(t.kinds, func(k gpuKind) bool { return k.name == g.Kind })
		if k < 0 {
			k = len(t.kinds)
			t.kinds = append(t.kinds, gpuKind{name: g.Kind})
		}
		t.kinds[k].all |= 1 << i
	}
	if known {
		t.join(gpus, links)
	}
	for i := range t.kinds {
		k := &t.kinds[i]
		for rest := k.all; rest != 0; {
			set := t.reach(rest, t.joined)
			k.fabrics = append(k.fabrics, t.newFabric(set))
			rest &^= set
		}
	}
	return t
}

// join fills in the links. Of a pair that is listed twice the larger figure counts.
func (t *topology) join(gpus []GPU, links []Link) {
	switched := make([]gpuSet, len(gpus))
	into := make([]uint16, len(gpus)) // links of a GPU that lead into switches
	for _, l := range links {
		a, b := min(l.A, l.B), max(l.A, l.B)
		if a < 0 || a == b || b >= len(gpus) || gpus[a].Dead || gpus[b].Dead || gpus[a].Kind != gpus[b].Kind {
			continue
		}
		count := uint16(min(max(l.Count, 0), maxLinks))
		if l.Switched {
			count = max(count, 1)
			switched[a] |= 1 << b
			switched[b] |= 1 << a
			into[a], into[b] = max(into[a], count), max(into[b], count)
		}
		t.link(a, b, count)
	}
	// A switch joins all that hang on it, whichever pairs the report names.
	for rest := gpusBelow(len(gpus)); rest != 0; {
		set := t.reach(rest, switched)
		rest &^= set
		for x := set; x != 0; x &= x - 1 {
			for y := x & (x - 1); y != 0; y &= y - 1 {
				t.link(x.lowest(), y.lowest(), min(into[x.lowest()], into[y.lowest()]))
			}
		}
	}
}

func (t *topology) link(a, b int, count uint16) {
	if count <= t.links[a][b] {
		return
	}
	t.links[a][b], t.links[b][a] = count, count
	t.joined[a] |= 1 << b
	t.joined[b] |= 1 << a
}

func gpusBelow(n int) gpuSet {
	if n >= maxGPUs {
		return ^gpuSet(0)
	}
	return 1<<n - 1
}

// reach is the lowest of a set's GPUs and all of the set that hang together with it.
func (t *topology) reach(within gpuSet, joined []gpuSet) gpuSet {
	set := within & -within
	for edge := set; edge != 0; {
		i := edge.lowest()
		edge &^= 1 << i
		grown := joined[i] & within &^ set
		set |= grown
		edge |= grown
	}
	return set
}

func (t *topology) kind(name string) *gpuKind {
	for i := range t.kinds {
		if t.kinds[i].name == name {
			return &t.kinds[i]
		}
	}
	return &gpuKind{}
}

// all is every usable GPU of a kind.
func (t *topology) all(kind string) gpuSet { return t.kind(kind).all }

// fits reports whether pick would find a set.
func (t *topology) fits(kind string, free gpuSet, n int, loose bool) bool {
	k := t.kind(kind)
	free &= k.all
	if n <= 1 || loose {
		return free.count() >= n
	}
	for i := range k.fabrics {
		if (k.fabrics[i].set & free).count() >= n {
			return true
		}
	}
	return false
}

// pick chooses n free GPUs of a kind (rule 7). They come from one fabric, unless the work is loose:
// then it does not care how its GPUs are joined. Of all sets that are possible it takes the one that comes
// first by this order:
//
//  1. it hangs together by its own links, then the fewest of its pairs lack a direct link, then it has the most
//     links (one GPU, and loose work, skip this);
//  2. fabrics with much free keep it: the free GPUs left by fabric, the largest number first, are as many as can be;
//  3. sets in which every pair is linked stay whole: of the largest as many as possible are left, then of
//     the next smaller, down to pairs, then the most links;
//  4. it is near the cores: near lists NUMA domains, the best first, and a GPU is as far as its domain is down
//     the list, or as the list is long;
//  5. the lowest indexes.
//
// By 2 and 3 single GPUs fill pairs that are broken, in whatever order work comes. The choice is exact while the fabric
// has no more than eight GPUs free or all its pairs are alike; past that it is a good one, and exact in 2.
func (t *topology) pick(kind string, free gpuSet, n int, near []int, loose bool) (gpuSet, bool) {
	k := t.kind(kind)
	free &= k.all
	if n <= 0 || free.count() < n {
		return 0, n <= 0
	}
	w := picking{topology: t, n: n}
	w.measure(free, near)
	if n == 1 || loose {
		return w.gather(k, free), true
	}
	var best gpuChoice
	for i := range k.fabrics {
		f := &k.fabrics[i]
		if has := f.set & free; has.count() >= n {
			if c := w.choose(f, has, n, true); best.set == 0 || c.before(&best) {
				best = c
			}
		}
	}
	return best.set, best.set != 0
}

// home lists the NUMA domains of a set, those of most GPUs first, then by id; unknown ones are left out.
func (t *topology) home(set gpuSet) []int {
	var out []int
	var count []int
	for ; set != 0; set &= set - 1 {
		d := t.domains[set.lowest()]
		if d < 0 {
			continue
		}
		i := slices.Index(out, d)
		if i < 0 {
			i = len(out)
			out, count = append(out, d), append(count, 0)
		}
		count[i]++
		for i > 0 && (count[i] > count[i-1] || count[i] == count[i-1] && out[i] < out[i-1]) {
			out[i], out[i-1] = out[i-1], out[i]
			count[i], count[i-1] = count[i-1], count[i]
			i--
		}
	}
	return out
}

// topologies shares what nodes of equal detail have in common; the zero value is ready.
type topologies struct {
	known map[string]*topology
}

func (c *topologies) of(gpus []GPU, links []Link, known bool) *topology {
	key := topologyKey(gpus, links, known)
	if t, ok := c.known[key]; ok {
		return t
	}
	if c.known == nil || len(c.known) >= maxTopologies {
		c.known = map[string]*topology{}
	}
	t := newTopology(gpus, links, known)
	c.known[key] = t
	return t
}

// topologyKey holds what newTopology looks at.
func topologyKey(gpus []GPU, links []Link, known bool) string {
	gpus = gpus[:min(len(gpus), maxGPUs)]
	key := make([]byte, 0, 24*len(gpus)+12*len(links))
	number := func(n int) { key = append(strconv.AppendInt(key, int64(n), 10), ' ') }
	for _, g := range gpus {
		number(len(g.Kind))
		key = append(key, g.Kind...)
		number(g.Domain)
		number(oneIf(g.Dead))
	}
	if key = append(key, '|'); !known {
		return string(key)
	}
	for _, l := range links {
		number(l.A)
		number(l.B)
		number(l.Count)
		number(oneIf(l.Switched))
	}
	return string(append(key, '|'))
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
