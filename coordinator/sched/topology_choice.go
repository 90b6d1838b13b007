package sched

import (
	"math/bits"
	"slices"
)

// tableGPUs is the number of free GPUs up to which every choice in a fabric is weighed.
const tableGPUs = 8

// fabric is a set of GPUs that NVLink or xGMI joins, directly or by way of others of the set. A GPU without
// links is one of its own.
type fabric struct {
	set    gpuSet
	alike  int         // links of every pair; -1: they differ
	tables *linkTables // where they differ, unless there are too many GPUs
}

func (t *topology) newFabric(set gpuSet) fabric {
	f := fabric{set: set, alike: -1}
	for x := set; x != 0; x &= x - 1 {
		for y := x & (x - 1); y != 0; y &= y - 1 {
			links := int(t.links[x.lowest()][y.lowest()])
			if f.alike >= 0 && links != f.alike {
				f.alike = -1
				if set.count() <= tableGPUs {
					f.tables = new(linkTables)
					f.tables.build(t, set)
				}
				return f
			}
			f.alike = links
		}
	}
	f.alike = max(f.alike, 0)
	return f
}

// gpuChoice is a set with what speaks for it, in the order of topology.pick; less is better.
type gpuChoice struct {
	set   gpuSet
	inner uint32 // its own links, see ownLinks
	left  int    // free GPUs of the fabric before
	harm  uint64 // by how much what is left is worth less, see worth
	far   int
}

func (c *gpuChoice) before(d *gpuChoice) bool {
	switch {
	case c.inner != d.inner:
		return c.inner < d.inner
	case c.left != d.left:
		return c.left < d.left
	case c.harm != d.harm:
		return c.harm < d.harm
	case c.far != d.far:
		return c.far < d.far
	}
	return c.set.before(d.set)
}

// The fields of a packed order, from the right. 64 GPUs have 2,016 pairs and 64 links each at most.
const (
	linkBits = 17 // up to 129,024 links
	pairBits = 11
	mostOf   = 1<<linkBits - 1
)

// ownLinks packs the first preference: apart, pairs without a link, links (the more the better).
func ownLinks(apart bool, gaps, links int) uint32 {
	return uint32(oneIf(apart))<<(linkBits+pairBits) | uint32(gaps)<<linkBits | uint32(mostOf-links)
}

func pairsOf(n int) int { return n * (n - 1) / 2 }

// cliqueShift is the place of the number of linked sets of a size in a worth: eight GPUs have at most
// 28, 56, 70, 56, 28, 8 and 1 of the sizes 2 to 8. Each has a bit to spare, for the sum of two fabrics.
func cliqueShift(size int) uint {
	return [tableGPUs + 1]uint{2: linkBits, 3: 23, 4: 30, 5: 38, 6: 45, 7: 51, 8: 56}[size]
}

// worth packs the third preference: how many linked sets of each size there are, the largest first, then the links.
// No field overflows into the next, so that worths can be subtracted and added.
func worth(cliques *[tableGPUs + 1]uint8, links int) uint64 {
	w := uint64(links)
	for size := 2; size <= tableGPUs; size++ {
		w |= uint64(cliques[size]) << cliqueShift(size)
	}
	return w
}

// wideWorth is the worth where more GPUs are free: pairs and links only.
func wideWorth(pairs, links int) uint64 { return uint64(pairs)<<linkBits | uint64(links) }

// harmAlike is what taking n of the free GPUs does where every pair has the same links.
func harmAlike(free, n, links int) uint64 {
	if links == 0 {
		return 0
	}
	rest := free - n
	cut := links * (pairsOf(free) - pairsOf(rest))
	if free > tableGPUs {
		return wideWorth(pairsOf(free)-pairsOf(rest), cut)
	}
	var before, after [tableGPUs + 1]uint8
	before[0], after[0] = 1, 1
	for k := 1; k <= free; k++ { // binomials
		before[k] = uint8(int(before[k-1]) * (free - k + 1) / k)
		if k <= rest {
			after[k] = uint8(int(after[k-1]) * (rest - k + 1) / k)
		}
	}
	return worth(&before, links*pairsOf(free)) - worth(&after, links*pairsOf(rest))
}

// linkTables answers for each subset of up to eight GPUs; bit i of an index stands for members[i].
type linkTables struct {
	members [tableGPUs]uint8
	size    int
	inner   [1 << tableGPUs]uint32
	worth   [1 << tableGPUs]uint64
}

func (b *linkTables) build(t *topology, set gpuSet) {
	var joined [tableGPUs]uint8
	for b.size = 0; set != 0; set &= set - 1 {
		b.members[b.size] = uint8(set.lowest())
		b.size++
	}
	for i := range b.size {
		for j := range b.size {
			joined[i] |= uint8(oneIf(t.joined[b.members[i]].has(int(b.members[j])))) << j
		}
	}
	var cliques [1 << tableGPUs][tableGPUs + 1]uint8
	var links [1 << tableGPUs]int
	cliques[0][0] = 1
	for s := 1; s < 1<<b.size; s++ {
		top := bits.Len(uint(s)) - 1
		rest := s &^ (1 << top)
		with := &cliques[uint8(rest)&joined[top]] // a linked set with the top one is one among its neighbours
		cliques[s] = cliques[rest]
		for size := range tableGPUs {
			cliques[s][size+1] += with[size]
		}
		links[s] = links[rest]
		for i := range top {
			if rest>>i&1 != 0 {
				links[s] += int(t.links[b.members[top]][b.members[i]])
			}
		}
		b.worth[s] = worth(&cliques[s], links[s])
		gaps := pairsOf(bits.OnesCount(uint(s))) - int(cliques[s][2])
		b.inner[s] = ownLinks(!hangTogether(uint8(s), &joined), gaps, links[s])
	}
}

func hangTogether(s uint8, joined *[tableGPUs]uint8) bool {
	seen := s & -s
	for edge := seen; edge != 0; {
		grown := joined[bits.TrailingZeros8(edge)] & s &^ seen
		seen |= grown
		edge = edge&(edge-1) | grown
	}
	return seen == s
}

func (b *linkTables) local(set gpuSet) int {
	s := 0
	for i := range b.size {
		s |= int(set>>b.members[i]&1) << i
	}
	return s
}

func (b *linkTables) global(s int) gpuSet {
	set := gpuSet(0)
	for ; s != 0; s &= s - 1 {
		set |= 1 << b.members[bits.TrailingZeros(uint(s))]
	}
	return set
}

// picking is one call of pick.
type picking struct {
	*topology
	n       int
	aware   bool           // distances differ
	farness [maxGPUs]uint8 // of each free GPU from the cores
}

func (w *picking) measure(free gpuSet, near []int) {
	if w.aware = len(near) > 0; !w.aware {
		return
	}
	near = near[:min(len(near), 255)]
	for s := free; s != 0; s &= s - 1 {
		i := s.lowest()
		w.farness[i] = uint8(len(near))
		if d := slices.Index(near, w.domains[i]); d >= 0 && w.domains[i] >= 0 {
			w.farness[i] = uint8(d)
		}
	}
}

func (w *picking) far(set gpuSet) int {
	sum := 0
	if w.aware {
		for ; set != 0; set &= set - 1 {
			sum += int(w.farness[set.lowest()])
		}
	}
	return sum
}

// choose is the best n of the free GPUs of a fabric; without linked the first preference is skipped.
func (w *picking) choose(f *fabric, free gpuSet, n int, linked bool) gpuChoice {
	count := free.count()
	switch {
	case f.alike >= 0:
		return w.nearest(f, free, n, linked)
	case count > tableGPUs && linked:
		return w.grow(free, n)
	case count > tableGPUs:
		return w.peel(free, n)
	case f.tables != nil:
		return w.weigh(f.tables, free, n, linked)
	}
	var b linkTables
	b.build(w.topology, free)
	return w.weigh(&b, free, n, linked)
}

// nearest chooses where all pairs are alike.
func (w *picking) nearest(f *fabric, free gpuSet, n int, linked bool) gpuChoice {
	c := gpuChoice{left: free.count()}
	c.harm = harmAlike(c.left, n, f.alike)
	if linked {
		c.inner = ownLinks(false, 0, f.alike*pairsOf(n))
	}
	for rest := free; n > 0; n-- {
		best := rest.lowest()
		if w.aware {
			for s := rest & (rest - 1); s != 0; s &= s - 1 {
				if i := s.lowest(); w.farness[i] < w.farness[best] {
					best = i
				}
			}
		}
		c.set |= 1 << best
		c.far += int(w.farness[best])
		rest &^= 1 << best
	}
	return c
}

// weigh looks at all choices.
func (w *picking) weigh(b *linkTables, free gpuSet, n int, linked bool) gpuChoice {
	var best gpuChoice
	local := b.local(free)
	for s := 1<<n - 1; s < 1<<b.size; s = nextSubset(s) {
		if s&^local != 0 {
			continue
		}
		c := gpuChoice{left: free.count(), harm: b.worth[local] - b.worth[local&^s]}
		if linked {
			c.inner = b.inner[s]
		}
		if best.set != 0 && (c.inner > best.inner || c.inner == best.inner && c.harm > best.harm) {
			continue
		}
		c.set = b.global(s)
		if c.far = w.far(c.set); best.set == 0 || c.before(&best) {
			best = c
		}
	}
	return best
}

// nextSubset is the next larger number with as many bits.
func nextSubset(s int) int {
	low := s & -s
	up := s + low
	return up | (s^up)>>(2+bits.TrailingZeros(uint(low)))
}

// grow builds a set from each free GPU, adding what has most links to it, and takes the best of them.
func (w *picking) grow(free gpuSet, n int) gpuChoice {
	var best gpuChoice
	var fresh growth
	fresh.start(w, free)
	for seeds := free; seeds != 0; seeds &= seeds - 1 {
		g := fresh
		g.add(w, seeds.lowest())
		for range n - 1 {
			g.add(w, g.next(w, true))
		}
		if c := w.judge(g.set, free); best.set == 0 || c.before(&best) {
			best = c
		}
	}
	return best
}

// peel takes one GPU after the other, each time that which has least to do with the rest.
func (w *picking) peel(free gpuSet, n int) gpuChoice {
	var g growth
	g.start(w, free)
	for range n {
		g.add(w, g.next(w, false))
	}
	c := w.judge(g.set, free)
	c.inner = 0
	return c
}

// growth is a set that is being chosen, and how each GPU of the rest is joined to it and to the others of the rest.
type growth struct {
	set, rest            gpuSet
	pairs, links, others [maxGPUs]uint16
}

func (g *growth) start(w *picking, free gpuSet) {
	g.rest = free
	for s := free; s != 0; s &= s - 1 {
		g.others[s.lowest()] = uint16((w.joined[s.lowest()] & free).count())
	}
}

func (g *growth) add(w *picking, gpu int) {
	g.set |= 1 << gpu
	g.rest &^= 1 << gpu
	for s := g.rest & w.joined[gpu]; s != 0; s &= s - 1 {
		i := s.lowest()
		g.pairs[i]++
		g.links[i] += w.links[gpu][i]
		g.others[i]--
	}
}

// next is the GPU that is joined best to the set, if that matters; of equal ones that which has least to do with the rest.
func (g *growth) next(w *picking, linked bool) int {
	best, most := -1, 0
	for s := g.rest; s != 0; s &= s - 1 {
		i := s.lowest()
		score := (maxGPUs-int(g.others[i]))<<8 | (255 - int(w.farness[i]))
		if linked {
			score |= int(g.pairs[i])<<(16+linkBits) | int(g.links[i])<<16
		}
		if best < 0 || score > most {
			best, most = i, score
		}
	}
	return best
}

// tied counts the linked pairs and the links of a GPU with a set.
func (w *picking) tied(i int, set gpuSet) (pairs, links int) {
	set &= w.joined[i]
	for s := set; s != 0; s &= s - 1 {
		links += int(w.links[i][s.lowest()])
	}
	return set.count(), links
}

func (w *picking) judge(set, free gpuSet) gpuChoice {
	twice, twiceLinks, cut, cutLinks := 0, 0, 0, 0
	for s := set; s != 0; s &= s - 1 {
		pairs, links := w.tied(s.lowest(), set)
		out, outLinks := w.tied(s.lowest(), free&^set)
		twice, twiceLinks, cut, cutLinks = twice+pairs, twiceLinks+links, cut+out, cutLinks+outLinks
	}
	pairs, links := twice/2, twiceLinks/2
	return gpuChoice{
		set: set, left: free.count(), far: w.far(set),
		inner: ownLinks(w.reach(set, w.joined) != set, pairsOf(set.count())-pairs, links),
		harm:  wideWorth(cut+pairs, cutLinks+links),
	}
}

// gather chooses for work that has no use for links: one GPU, or GPUs anywhere. What is left over is kept where
// most is free: whole fabrics, in descending order, and then a part of one of the others; those are used up.
// Only fabrics that have as many free as the last one kept, and the one that is used in part, are a choice.
func (w *picking) gather(k *gpuKind, free gpuSet) gpuSet {
	switch len(k.fabrics) {
	case 1:
		return w.choose(&k.fabrics[0], free, w.n, false).set
	case k.all.count(): // no links at all
		return w.nearest(&fabric{}, free, w.n, false).set
	}
	var buf, wholes [maxGPUs]gpuChoice
	from, keep := k.largest(buf[:0], free), free.count()-w.n
	i := 0
	for from[i].left <= keep {
		keep -= from[i].left
		i++
	}
	size := from[i].left // of this size some are kept and some are not: lo to hi
	lo, hi := i, i
	for lo > 0 && from[lo-1].left == size {
		lo--
	}
	for hi < len(from) && from[hi].left == size {
		hi++
	}
	used, whole := hi-i, wholes[:0]
	if keep == 0 || used > 1 || hi < len(from) {
		for _, c := range from[lo:] {
			whole = append(whole, w.choose(k.of(c.set), c.set, c.left, false))
		}
		slices.SortFunc(whole[:hi-lo], func(c, d gpuChoice) int {
			if c.before(&d) {
				return -1
			}
			return 1
		})
	}
	if keep == 0 {
		c := addChoices(gpuChoice{}, whole[:hi-lo], used, 0)
		return addChoices(c, whole[hi-lo:], len(from), 0).set
	}
	var best gpuChoice
	for j, part := range from[lo:] {
		if part.left < keep {
			break
		}
		c, others := gpuChoice{}, used
		if part.left > keep {
			c = w.choose(k.of(part.set), part.set, part.left-keep, false)
		}
		if lo+j < hi {
			others--
		}
		if len(whole) > 0 {
			c = addChoices(c, whole[:hi-lo], others, part.set)
			c = addChoices(c, whole[hi-lo:], len(from), part.set)
		}
		if c.left = 0; best.set == 0 || c.before(&best) {
			best = c
		}
	}
	return best.set
}

// largest lists what is free by fabric, the most first.
func (k *gpuKind) largest(list []gpuChoice, free gpuSet) []gpuChoice {
	for i := range k.fabrics {
		has := k.fabrics[i].set & free
		if has == 0 {
			continue
		}
		list = append(list, gpuChoice{})
		j, n := len(list)-1, has.count()
		for ; j > 0 && list[j-1].left < n; j-- {
			list[j] = list[j-1]
		}
		list[j] = gpuChoice{set: has, left: n}
	}
	return list
}

func (k *gpuKind) of(set gpuSet) *fabric {
	for i := range k.fabrics {
		if k.fabrics[i].set&set != 0 {
			return &k.fabrics[i]
		}
	}
	return nil
}

// addChoices adds the first n of the choices that are not of one set.
func addChoices(c gpuChoice, choices []gpuChoice, n int, except gpuSet) gpuChoice {
	for i := range choices {
		if d := &choices[i]; n > 0 && d.set&except == 0 {
			c.set, c.harm, c.far = c.set|d.set, c.harm+d.harm, c.far+d.far
			n--
		}
	}
	return c
}
