package sched

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"substrate/coordinator"
)

// coreAsk is what a job wants of one node's cores (rule 8).
type coreAsk struct {
	want     uint32 // whole cores; who asks for threads has them converted before
	affinity coordinator.Affinity
	sockets  uint32            // to spread over; 0: does not matter
	memory   coordinator.Bytes // that comes with the cores, evenly; by-core memory is multiplied out before
	near     []int             // ids of the domains of its GPUs, the best first; nil: any
}

// pickCores says how many cores to take in each of a node's NUMA domains (rule 8), given the cores and the memory that
// are free there; memory nil is not looked at.
//
// NUMA keeps the cores in one domain and SOCKET in one socket. CORE asks for no more than every job has, since no
// core is shared, and is placed like none. Sockets spreads the cores over exactly that many sockets, as evenly as the
// number permits: then NUMA keeps each socket's part in one domain. With NUMA and SOCKET a domain must also have
// the memory of the cores that are taken there, by their part of all; for other work that is a wish.
//
// The order of preference is: one domain, else one socket, else as few sockets, and in each as few domains, as
// will do. Of several domains or sockets that hold it all, the one nearest to the GPUs, then the one
// that has the least room, then the first. Of several sets of equally many, the one that leaves the largest as they are; all
// of a set but the last are used up.
//
// A node whose domains are not known, or a domain whose socket is not known, promises nothing that depends on it:
// that is no placement, and unknowable says why. One core, or work that asks for neither affinity nor
// sockets, is placed there all the same; with no domains at all its cores are counted for the node alone, and
// the answer is nil.
func pickCores(domains []Domain, free []uint32, memory []coordinator.Bytes, ask coreAsk) ([]uint32, bool) {
	if len(domains) == 0 {
		return nil, !ask.unknowable(nil)
	}
	p := corePick{domains: domains, room: free, ask: ask, take: make([]uint32, len(domains))}
	if ask.want <= 1 && ask.sockets <= 1 { // crosses no boundary
		p.ask.affinity, p.ask.sockets = coordinator.AffinityNone, 0
	}
	if memory != nil && ask.memory > 0 {
		p.room = make([]uint32, len(domains))
		for i, n := range free {
			p.room[i] = min(n, ask.coresWith(memory[i]))
		}
		if p.place() {
			return p.take, true
		}
		if ask.affinity == coordinator.AffinityNUMA || ask.affinity == coordinator.AffinitySocket {
			return nil, false
		}
		p.room = free
		clear(p.take)
	}
	if !p.place() {
		return nil, false
	}
	return p.take, true
}

// unknowable reports that nothing can be promised because the node's report lacks its domains, or their sockets. Such
// a node neither holds the work nor can be said to be too small for it (rule 6).
func (a coreAsk) unknowable(domains []Domain) bool {
	switch {
	case a.want <= 1 && a.sockets <= 1:
		return false
	case a.sockets > 0 || a.affinity == coordinator.AffinitySocket:
		return len(domains) == 0 || slices.ContainsFunc(domains, func(d Domain) bool { return d.Socket < 0 })
	}
	return a.affinity == coordinator.AffinityNUMA && len(domains) == 0
}

// coresWith is the number of cores for which this much memory is enough.
func (a coreAsk) coresWith(memory coordinator.Bytes) uint32 {
	hi, lo := bits.Mul64(uint64(memory), uint64(a.want))
	if hi >= uint64(a.memory) {
		return math.MaxUint32
	}
	n, _ := bits.Div64(hi, lo, uint64(a.memory))
	return uint32(min(n, math.MaxUint32))
}

// corePick is one call of pickCores.
type corePick struct {
	domains []Domain
	room    []uint32
	ask     coreAsk
	take    []uint32
}

// coreUnit is a domain or a socket.
type coreUnit struct {
	first int    // index of its first domain
	room  uint64 // cores that it could give
	far   int    // from the GPUs
	part  uint64 // cores to take
}

func (p *corePick) place() bool {
	want := uint64(p.ask.want)
	if want == 0 {
		return true
	}
	if p.ask.sockets > 0 {
		return p.even()
	}
	bySocket := p.ask.affinity == coordinator.AffinitySocket
	if p.inOne(bySocket) {
		return true
	}
	if p.ask.affinity == coordinator.AffinityNUMA {
		return false
	}
	sockets := p.sockets(bySocket)
	if i := tightest(sockets, want); i >= 0 {
		p.within(i, want)
		return true
	}
	if bySocket || !fillFewest(sockets, want) {
		return false
	}
	for _, s := range sockets {
		p.within(s.first, s.part)
	}
	return true
}

// inOne is tightest over the domains, without a list of them: most work fits in one.
func (p *corePick) inOne(known bool) bool {
	best := coreUnit{first: -1}
	for i, room := range p.room {
		if room < p.ask.want || known && p.domains[i].Socket < 0 {
			continue
		}
		if u := (coreUnit{first: i, room: uint64(room), far: p.far(i)}); best.first < 0 || u.before(best) {
			best = u
		}
	}
	if best.first < 0 {
		return false
	}
	p.take[best.first] = p.ask.want
	return true
}

// even spreads the cores over a number of sockets.
func (p *corePick) even() bool {
	sockets := p.sockets(true)
	if uint64(len(sockets)) < uint64(p.ask.sockets) || p.ask.want < p.ask.sockets {
		return false
	}
	if p.ask.affinity == coordinator.AffinityNUMA {
		for i := range sockets {
			sockets[i].room = 0
			for _, u := range p.of(sockets[i].first) {
				sockets[i].room = max(sockets[i].room, u.room)
			}
		}
	}
	base, more := uint64(p.ask.want/p.ask.sockets), p.ask.want%p.ask.sockets
	for i := range p.ask.sockets { // the larger parts first: what holds them holds the others
		part := base
		if i < more {
			part++
		}
		s := tightest(sockets, part)
		if s < 0 {
			return false
		}
		p.within(s, part)
		sockets = slices.DeleteFunc(sockets, func(u coreUnit) bool { return u.first == s })
	}
	return true
}

// within takes cores of one socket that has them.
func (p *corePick) within(socket int, want uint64) {
	if want == 0 {
		return
	}
	units := p.of(socket)
	if i := tightest(units, want); i >= 0 {
		p.take[i] = uint32(want)
		return
	}
	fillFewest(units, want)
	for _, u := range units {
		p.take[u.first] = uint32(u.part)
	}
}

// of lists the domains of the socket of a domain. One whose socket is unknown stands for itself.
func (p *corePick) of(socket int) []coreUnit {
	units := make([]coreUnit, 0, 8)
	for i, d := range p.domains {
		if i == socket || d.Socket >= 0 && d.Socket == p.domains[socket].Socket {
			units = append(units, coreUnit{first: i, room: uint64(p.room[i]), far: p.far(i)})
		}
	}
	return units
}

// sockets lists them in the order of their first domains.
func (p *corePick) sockets(known bool) []coreUnit {
	sockets := make([]coreUnit, 0, 8)
	for i, d := range p.domains {
		if d.Socket < 0 && known {
			continue
		}
		k := slices.IndexFunc(sockets, func(s coreUnit) bool { return d.Socket >= 0 && p.domains[s.first].Socket == d.Socket })
		if k < 0 {
			k = len(sockets)
			sockets = append(sockets, coreUnit{first: i, far: len(p.ask.near)})
		}
		sockets[k].room += uint64(p.room[i])
		if p.room[i] > 0 {
			sockets[k].far = min(sockets[k].far, p.far(i))
		}
	}
	return sockets
}

func (p *corePick) far(domain int) int {
	if i := slices.Index(p.ask.near, p.domains[domain].ID); i >= 0 {
		return i
	}
	return len(p.ask.near)
}

// before orders units that hold all of it; those that are equal stay in the order of the node's domains.
func (u coreUnit) before(v coreUnit) bool {
	return u.far < v.far || u.far == v.far && u.room < v.room
}

// tightest is the first domain of the best unit that holds all of it, -1 if none does.
func tightest(units []coreUnit, want uint64) int {
	best := coreUnit{first: -1}
	for _, u := range units {
		if u.room >= want && (best.first < 0 || u.before(best)) {
			best = u
		}
	}
	return best.first
}

// fillFewest sets the parts of as few units as hold all of it, and reports whether they do. Of all such sets the largest
// units that can be left out are; of equal ones the first are taken.
func fillFewest(units []coreUnit, want uint64) bool {
	bySize := make([]int, len(units))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortFunc(bySize, func(a, b int) int { return cmp.Or(cmp.Compare(units[b].room, units[a].room), b-a) })
	reach := make([]uint64, len(bySize)+1) // room of the first i
	count := -1
	for i, u := range bySize {
		if reach[i+1] = reach[i] + units[u].room; count < 0 && reach[i+1] >= want {
			count = i + 1
		}
	}
	if count < 0 {
		return false
	}
	held, last := uint64(0), -1
	for i, u := range bySize {
		if count > 0 && i+1+count <= len(bySize) && held+reach[i+1+count]-reach[i+1] >= want {
			continue // the smaller ones will do
		}
		if count == 0 {
			break
		}
		units[u].part = units[u].room
		held, last = held+units[u].room, max(last, u)
		count--
	}
	units[last].part -= held - want // less than its room: without it the others are too few
	return true
}
