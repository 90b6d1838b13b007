package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// ReservationID names a reservation.
type ReservationID string

// Reservation gives an organisation, or one group of it, devices or whole nodes of a definition for a time (rule 10).
type Reservation struct {
	ID           ReservationID
	Name         string // for people; "": the id
	Organization coordinator.OrganizationID
	Group        coordinator.GroupID // "": the whole organisation
	Definition   coordinator.DefinitionID
	Device       string // in requests, such as "nvidia.com/gpu"
	GPUs         uint32 // how many of that device; 0: whole nodes
	Nodes        uint32 // whole nodes, where GPUs is 0
	From, Until  time.Time
	Created      time.Time
	// Shares is what was chosen at its beginning, nil until then. A share of GPUs lists devices, also where a node only
	// counts them: then their number is what matters. A share without devices is the whole node.
	Shares []Share
}

// Reserve says what a reservation that begins consists of. The engine stores the shares with the reservation.
type Reserve struct {
	ID     ReservationID
	Shares []Share
}

// maxCounted is how many devices of a node that only counts them can be reserved.
const maxCounted = 1024

// booking is a reservation as a decision sees it: with what it consists of, or would if it began now.
type booking struct {
	*Reservation
	shares      []Share
	from, until time.Duration
}

// booked is a booking as a node sees it.
type booked struct {
	of    *booking
	set   gpuSet // where the node knows its GPUs
	kind  int    // of device
	count uint64
	whole bool
}

// SetReservations replaces the reservations. Once it was called, with none too, reserved work runs in
// reservations only.
func (s *Scheduler) SetReservations(list []Reservation) {
	s.touch()
	s.c.reserving = true
	s.c.reservations = slices.Clone(list)
	slices.SortFunc(s.c.reservations, func(a, b Reservation) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}

// book works out what each reservation consists of and chooses for those that begin.
func (s *Scheduler) book() {
	c := s.c
	if !c.reserving {
		return
	}
	var list []*booking
	for i := range c.reservations {
		r := &c.reservations[i]
		if b := (&booking{Reservation: r, shares: r.Shares, from: since(r.From), until: since(r.Until)}); c.now < b.until && b.from < b.until {
			list = append(list, b)
		}
	}
	c.promises = s.promises()
	// Those that have begun have what they have; the others choose in the order of their beginning.
	slices.SortStableFunc(list, func(a, b *booking) int {
		if (a.shares == nil) != (b.shares == nil) {
			return order(a.shares != nil)
		}
		return cmp.Compare(a.from, b.from)
	})
	for i, b := range list {
		if b.shares != nil {
			continue
		}
		b.shares = c.choose(b, list[:i])
		if b.shares != nil && b.from <= c.now {
			b.Reservation.Shares = b.shares
			s.reserves = append(s.reserves, Reserve{ID: b.ID, Shares: b.shares})
		}
	}
	slices.SortFunc(s.reserves, func(a, b Reserve) int { return cmp.Compare(a.ID, b.ID) })
	if !slices.EqualFunc(list, c.bookings, (*booking).same) {
		c.rebook(list)
	}
}

func (b *booking) same(o *booking) bool {
	return b.Reservation == o.Reservation && b.from == o.from && b.until == o.until && slices.EqualFunc(b.shares, o.shares, sameShare)
}

// rebook tells nodes what of them is reserved.
func (c *cluster) rebook(list []*booking) {
	for _, n := range c.bookedNodes {
		n.booked = nil
		n.changes++
	}
	c.bookedNodes = c.bookedNodes[:0]
	c.bookings = list
	for _, b := range list {
		for i := range b.shares {
			sh := &b.shares[i]
			n := c.nodes[sh.Node]
			if n == nil {
				continue
			}
			part := booked{of: b, kind: -1, count: uint64(len(sh.Devices)), whole: len(sh.Devices) == 0}
			if !part.whole {
				part.kind = c.kinds.number(b.Device)
				if n.topo != nil {
					part.set = gpusOf(sh)
				}
			}
			n.booked = append(n.booked, part)
			n.changes++
			c.bookedNodes = append(c.bookedNodes, n)
		}
	}
	for _, d := range c.defs {
		d.freed++
	}
	c.freed++
}

// gpusOf is the GPUs of a share that a set can hold.
func gpusOf(sh *Share) gpuSet {
	set := gpuSet(0)
	for _, d := range sh.Devices {
		if d >= 0 && d < maxGPUs {
			set |= 1 << d
		}
	}
	return set
}

// takenBy is what of a node others have while the booking lasts.
func (b *booking) takenBy(others []*booking, node coordinator.NodeID) (gpus gpuSet, count int, whole bool) {
	for _, o := range others {
		if o.from >= b.until || b.from >= o.until {
			continue
		}
		for i := range o.shares {
			if sh := &o.shares[i]; sh.Node == node {
				gpus |= gpusOf(sh)
				count += len(sh.Devices)
				whole = whole || len(sh.Devices) == 0
			}
		}
	}
	return gpus, count, whole
}

// pool is GPUs of one fabric, or a node, that a booking may consist of.
type pool struct {
	n    *node
	gpus []int           // the first to be free first
	free []time.Duration // when each is: 0 idle, 1 with batch work, else the end of what is there
}

// until is when the first k are free.
func (p *pool) until(k int) time.Duration { return p.free[k-1] }

// choose picks what a reservation consists of: whole fabrics as long as they are not too large, then part of one; of those
// idle ones first, then those with batch work, then those that are free first. Nil if there is not enough.
func (c *cluster) choose(b *booking, others []*booking) []Share {
	def := c.byID[b.Definition]
	if def == nil {
		return nil
	}
	want := int(b.GPUs)
	var pools []pool
	for _, n := range def.nodes {
		gpus, count, whole := b.takenBy(others, n.id)
		if !n.schedulable || whole {
			continue
		}
		if b.GPUs == 0 {
			want = int(b.Nodes)
			if count == 0 {
				pools = append(pools, pool{n: n, gpus: []int{0}, free: []time.Duration{c.nodeFree(n)}})
			}
			continue
		}
		pools = c.poolsOf(pools, n, c.kinds.number(b.Device), gpus, count)
	}
	var shares []Share
	for want > 0 {
		p, k := bestPool(pools, want)
		if p == nil {
			return nil
		}
		share := Share{Node: p.n.id}
		if b.GPUs > 0 {
			share.Devices = slices.Sorted(slices.Values(p.gpus[:k]))
		}
		shares = append(shares, share)
		want -= k
		p.gpus, p.free = p.gpus[k:], p.free[k:]
	}
	return joinShares(shares)
}

// joinShares makes one share of those of the same node.
func joinShares(shares []Share) []Share {
	slices.SortStableFunc(shares, func(a, b Share) int { return cmp.Compare(a.Node, b.Node) })
	var out []Share
	for _, sh := range shares {
		if last := len(out) - 1; last >= 0 && out[last].Node == sh.Node {
			out[last].Devices = append(out[last].Devices, sh.Devices...)
			slices.Sort(out[last].Devices)
			continue
		}
		out = append(out, sh)
	}
	return out
}

// bestPool is where the next devices come from, and how many.
func bestPool(pools []pool, want int) (*pool, int) {
	var best *pool
	take := 0
	for i := range pools {
		p := &pools[i]
		k := min(want, len(p.gpus))
		if k == 0 {
			continue
		}
		if best == nil || p.before(k, best, take) {
			best, take = p, k
		}
	}
	return best, take
}

// before orders pools: whole ones before parts, what is free first, the larger number, what leaves least, the id.
func (p *pool) before(k int, o *pool, l int) bool {
	whole, other := k == len(p.gpus), l == len(o.gpus)
	if whole != other {
		return whole
	}
	return cmp.Or(cmp.Compare(p.until(k), o.until(l)), cmp.Compare(l, k), cmp.Compare(len(p.gpus), len(o.gpus)),
		cmp.Compare(p.n.id, o.n.id), cmp.Compare(p.gpus[0], o.gpus[0])) < 0
}

// poolsOf adds the fabrics of a node; one that only counts its devices is one pool.
func (c *cluster) poolsOf(pools []pool, n *node, kind int, taken gpuSet, count int) []pool {
	i := n.def.device(kind)
	if i < 0 {
		return pools
	}
	if set := n.set(i); set != 0 {
		for _, f := range n.topo.kind(c.kinds.list[kind]).fabrics {
			if gpus := (f.set & set &^ taken).indexes(); len(gpus) > 0 {
				pools = append(pools, c.poolOf(n, gpus, func(g int) time.Duration { return c.gpuFree(n, g) }))
			}
		}
		return pools
	}
	has := int(min(n.devices[i], maxCounted))
	total := has - count
	if total <= 0 {
		return pools
	}
	// Which devices are whose is not known: those that are idle come first, then batch's.
	var ends []time.Duration
	for _, h := range n.claims {
		for range min(h.need.device(kind), maxCounted) {
			ends = append(ends, c.foreign(h))
		}
	}
	for _, w := range c.promises[n.id].needs {
		for range min(w.device(kind), maxCounted) {
			ends = append(ends, never)
		}
	}
	slices.Sort(ends)
	gpus := make([]int, total)
	for g := range gpus {
		gpus[g] = count + g
	}
	idle := max(0, has-len(ends))
	return append(pools, c.poolOf(n, gpus, func(g int) time.Duration {
		if at := g - idle; at >= 0 && at < len(ends) {
			return ends[at]
		}
		return 0
	}))
}

func (c *cluster) poolOf(n *node, gpus []int, free func(int) time.Duration) pool {
	slices.SortStableFunc(gpus, func(a, b int) int { return cmp.Or(cmp.Compare(free(a), free(b)), cmp.Compare(a, b)) })
	p := pool{n: n, gpus: gpus}
	for _, g := range gpus {
		p.free = append(p.free, free(g))
	}
	return p
}

// foreign is when a claim is out of the way of a reservation: batch work at a word.
func (c *cluster) foreign(h *claim) time.Duration {
	if h.class == coordinator.ClassBatch {
		return 1
	}
	return c.until(h)
}

func (c *cluster) gpuFree(n *node, gpu int) time.Duration {
	at := time.Duration(0)
	for _, h := range n.claims {
		if sh := h.share(n); sh != nil && slices.Contains(sh.Devices, gpu) {
			at = max(at, c.foreign(h))
		}
	}
	if p, ok := c.promises[n.id]; ok && p.gpus.has(gpu) {
		at = never
	}
	return at
}

func (c *cluster) nodeFree(n *node) time.Duration {
	at := time.Duration(0)
	for _, h := range n.claims {
		at = max(at, c.foreign(h))
	}
	if _, ok := c.promises[n.id]; ok {
		at = never
	}
	return at
}

// promise is what is held on a node. It was told before a reservation that begins now, and is as good as taken.
type promise struct {
	gpus  gpuSet
	needs []*need
}

// promises lists what is held, by node.
func (s *Scheduler) promises() map[coordinator.NodeID]promise {
	list := make(map[coordinator.NodeID]promise)
	for _, h := range s.holds {
		e := s.entries[h.spec.For]
		if e == nil {
			continue
		}
		for i := range h.spec.Shares {
			sh := &h.spec.Shares[i]
			p := list[sh.Node]
			p.gpus |= gpusOf(sh)
			p.needs = append(p.needs, e.shape.need)
			list[sh.Node] = p
		}
	}
	return list
}

// party is for whom room is looked for, as far as reservations are concerned.
type party struct {
	class   coordinator.Class
	booking *booking // that it runs in
	keepOff bool     // batch work that would rather not sit on reserved room
	denied  *Verdict // why there is no reservation for it
}

// bounded reports whether reservations matter to a party on a node.
func (n *node) bounded(p *party) bool {
	return p.booking != nil || len(n.booked) > 0 && (p.class < coordinator.ClassBatch || p.keepOff)
}

// restrict counts what a party may not have as taken: to the owner everything that is not of its reservation, to
// on-demand work what is reserved before it would end (rules 10 and 11).
func (n *node) restrict(t *tally, p *party, from, to time.Duration) {
	if p.booking == nil {
		for i := range n.booked {
			if b := &n.booked[i]; b.of.from < to && b.of.until > from {
				n.keepOut(t, b)
			}
		}
		return
	}
	var own *booked
	for i := range n.booked {
		if n.booked[i].of == p.booking {
			own = &n.booked[i]
		}
	}
	switch {
	case own == nil:
		t.cores, t.memory = math.MaxUint64, math.MaxUint64
		t.count, t.lock = t.count+1, coordinator.ExclusiveJob
		for i := range t.devices {
			t.devices[i] = math.MaxUint64
		}
	case own.whole:
	default:
		n.keepIn(t, own)
	}
}

// keepOut takes a reservation's room away.
func (n *node) keepOut(t *tally, b *booked) {
	if b.whole {
		t.cores, t.memory = math.MaxUint64, math.MaxUint64
		for i := range t.devices {
			t.devices[i] = math.MaxUint64
		}
		t.count, t.lock = t.count+1, coordinator.ExclusiveJob
		return
	}
	i := n.def.device(b.kind)
	switch {
	case i < 0:
	case b.set != 0:
		n.block(t, i, b.set)
	default: // others may have as many as are not reserved, the owner's and batch work aside
		others := uint64(0)
		for _, h := range n.claims {
			if h.class == coordinator.ClassOnDemand {
				others += h.need.device(b.kind)
			}
		}
		reserved := uint64(0)
		for j := range n.booked {
			if n.booked[j].kind == b.kind && n.booked[j].of.from <= b.of.from {
				reserved += n.booked[j].count
			}
		}
		t.devices[i] = max(t.devices[i], plus(reserved, others))
	}
}

// keepIn leaves the reservation's room only.
func (n *node) keepIn(t *tally, b *booked) {
	for i := range t.devices {
		if i != n.def.device(b.kind) {
			continue
		}
		if b.set != 0 {
			n.block(t, i, n.set(i)&^b.set)
			continue
		}
		mine := uint64(0)
		for _, h := range n.claims {
			if h.reservation == b.of.ID {
				mine += h.need.device(b.kind)
			}
		}
		t.devices[i] = max(t.devices[i], left(n.devices[i], left(b.count, mine)))
	}
}

// block counts GPUs as taken.
func (n *node) block(t *tally, i int, gpus gpuSet) {
	set := n.set(i)
	blind := left(t.devices[i], uint64((t.gpus & set).count()))
	t.gpus |= gpus
	t.devices[i] = plus(blind, uint64((t.gpus & set).count()))
}

// admits reports whether a shape fits beside a tally on what of the node it may have from a time on.
func (c *cluster) admits(n *node, t *tally, s *shape, p *party, from time.Duration) bool {
	if !n.bounded(p) {
		return n.fits(t, s.need, s.workflow)
	}
	u := &n.def.later
	u.copyFrom(t)
	n.restrict(u, p, from, later(from, s.span))
	return n.fits(u, s.need, s.workflow)
}

func (t *tally) copyFrom(u *tally) {
	devices, domains := append(t.devices[:0], u.devices...), append(t.domains[:0], u.domains...)
	*t = *u
	t.devices, t.domains = devices, domains
}

// assign finds the reservation that reserved work runs in: the one that it names, or else the oldest of its owner that has
// begun and is large enough.
func (s *shape) assign(c *cluster) {
	was := s.party.booking
	s.party.booking, s.party.denied = nil, nil
	if !c.reserving || s.proto.Class != coordinator.ClassReserved {
		return
	}
	var found *booking
	why := &Verdict{Reason: ReasonReservation, Rule: 10, Text: "there is no reservation of its group or organisation"}
	if named := s.proto.Reservation; named != "" {
		why.Text = fmt.Sprintf("its group and organisation have no reservation %s any more", named)
	}
	for i := range c.reservations { // oldest first
		r := &c.reservations[i]
		if !r.serves(&s.proto) || since(r.Until) <= c.now {
			continue
		}
		var refused *Verdict
		if found, refused = c.bookingOf(r, s); found != nil {
			s.party.booking = found
			s.roomless = s.roomless && found == was // another one may have room
			return
		}
		why = refused
		if s.proto.Reservation == r.ID {
			break
		}
	}
	s.party.denied = why
}

// serves reports whether the request may run in the reservation.
func (r *Reservation) serves(q *Request) bool {
	if q.Reservation != "" && q.Reservation != r.ID {
		return false
	}
	return q.Organization == r.Organization && (r.Group == "" || r.Group == q.Group)
}

func (r *Reservation) called() string { return cmp.Or(r.Name, string(r.ID)) }

// bookingOf is the reservation as it is now, or why the shape cannot run in it.
func (c *cluster) bookingOf(r *Reservation, s *shape) (*booking, *Verdict) {
	if !s.proto.Unrestricted && !slices.Contains(s.proto.Admissible, r.Definition) {
		return nil, &Verdict{Reason: ReasonNoAdmissibleDefinition, Rule: 10, Text: fmt.Sprintf(
			"reservation %s is of definition %s, which does not admit it", r.called(), r.Definition)}
	}
	if from := since(r.From); from > c.now {
		return nil, &Verdict{Reason: ReasonReservation, Rule: 10, Text: fmt.Sprintf(
			"reservation %s begins at %s", r.called(), r.From.UTC().Format(momentLayout))}
	}
	devices := uint64(s.proto.Resources.Devices[r.Device])
	switch {
	case r.GPUs == 0 && uint64(s.count) > uint64(r.Nodes):
		return nil, &Verdict{Reason: ReasonInsufficientResources, Rule: 10, Text: fmt.Sprintf(
			"wants %s, reservation %s has %d", plural(s.count, "node", "nodes"), r.called(), r.Nodes)}
	case r.GPUs > 0 && times(devices, uint64(s.count)) > uint64(r.GPUs):
		return nil, &Verdict{Reason: ReasonInsufficientResources, Rule: 10, Text: fmt.Sprintf(
			"wants %d GPUs, reservation %s has %d", times(devices, uint64(s.count)), r.called(), r.GPUs)}
	}
	for _, b := range c.bookings {
		if b.Reservation == r && b.shares != nil {
			return b, nil
		}
	}
	return nil, &Verdict{Reason: ReasonReservation, Rule: 10, Text: fmt.Sprintf(
		"reservation %s has begun, and definition %s has not as many nodes in use", r.called(), r.Definition)}
}
