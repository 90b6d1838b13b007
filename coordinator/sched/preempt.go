package sched

import (
	"cmp"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

const (
	preemptWork  = 1_000_000 // node examinations that preemption takes in one decision
	gangPrecise  = 64        // nodes for which a gang's victims are looked for exactly, beside four for each that it wants
	secondMillis = 1_000
)

// attempt is what became of making room for the first blocked allocation of a shape (rules 17 to 19).
type attempt struct {
	priority float64
	closest  *claim // of those that do not give way, the one that comes nearest to it
	why      refusal
	their    float64       // priority of that one
	waits    bool          // it fits once those are gone that end anyhow
	until    time.Duration // then
	wake     time.Duration // when the first of those who are protected is not any more
	ripe     time.Duration // when the first of those who do not give way ends anyhow (rule 22)
	nobody   bool          // gives way, and time alone changes nothing about it
}

// preemption looks for the victims that make room for one entry.
type preemption struct {
	s     *Scheduler
	c     *cluster
	sh    *shape
	by    contender
	plans bool // those of earlier classes are respected
	to    time.Duration
	seen  attempt

	best    toll
	found   []prey
	nodes   []*node // of the best
	scratch []prey
	lost    []uint64 // scratch
}

// preempt makes a plan for a blocked entry, if there is one: the victims end and the room is held from now on.
func (s *Scheduler) preempt(sh *shape, e *entry) bool {
	if !s.mayPreempt(sh, e) || s.looks > preemptWork || s.inVain(sh, e) {
		return false
	}
	if s.stepping && s.c.work > s.limit {
		s.spent = true
		return false
	}
	before := s.looks
	p := preemption{
		s: s, c: s.c, sh: sh, plans: s.c.anyPlans() && s.respectsPlans(sh.q.class), to: later(later(s.c.now, s.c.notice), sh.span),
		by:   contender{class: sh.q.class, preempts: e.preempts, priority: s.rules.aged(e.priority, e.submitted, s.c.now)},
		best: noToll(),
	}
	p.seen.priority, p.seen.wake, p.seen.ripe, p.seen.nobody = p.by.priority, never, never, true
	switch {
	case sh.count == 1 && p.tokensWill():
		p.single()
	default:
		p.general()
	}
	sh.tried = &p.seen
	s.noteVain(sh, e, s.looks-before)
	if p.seen.waits || p.found == nil {
		return false
	}
	s.carryOut(&p, e)
	return true
}

// mayPreempt is false for those who have a right to nobody's room.
func (s *Scheduler) mayPreempt(sh *shape, e *entry) bool {
	byClass := sh.q.class == coordinator.ClassOnDemand
	byClass = byClass || sh.party.booking != nil
	byGroup := s.rules.enabled && len(e.preempts) > 0
	return byClass && s.c.batch > 0 || byGroup && s.c.marked > 0
}

// dying reports whether a placement ends without a new plan: notice was given, or its own walltime is over within the notice
// (rule 22).
func (c *cluster) dying(h *claim) bool {
	return h.ending || h.victim > 0 || h.to != never && h.to-c.notice <= later(c.now, c.notice)
}

// eligible adds those of some claims that may be made to give way.
func (p *preemption) eligible(list []prey, claims []*claim) []prey {
	now := p.c.now
	p.c.work += len(claims)
	for _, h := range claims {
		if p.c.dying(h) {
			continue
		}
		_, why := p.s.rules.judge(&p.by, &h.occupant, p.sh.party.booking != nil, now)
		if why != mayPreempt {
			p.refused(h, why)
			continue
		}
		p.seen.nobody = false
		list = append(list, preyOf(h, now))
	}
	return list
}

// refused remembers the one that comes nearest to giving way: by conditions met, then the lowest priority, then id.
func (p *preemption) refused(h *claim, why refusal) {
	a := &p.seen
	if h.to != never {
		a.ripe = min(a.ripe, h.to-2*p.c.notice)
	}
	switch why {
	case refusedMinRuntime:
		owner := p.sh.party.booking != nil && h.class == coordinator.ClassBatch
		a.wake = min(a.wake, p.s.rules.exposed(h.started, owner))
	case refusedThreshold, refusedRank, refusedGap:
		a.nobody = a.nobody && (p.s.rules.ageRate == 0 || why != refusedThreshold && h.submitted != noAge)
	case mayPreempt, refusedClass, refusedDisabled, refusedGroup, refusedUnmarked, refusedSpent:
	}
	if a.closest != nil && why < a.why {
		return
	}
	their := p.s.rules.aged(h.priority, h.submitted, p.c.now)
	if a.closest == nil || why > a.why || their < a.their || their == a.their && h.id < a.closest.id {
		a.closest, a.why, a.their = h, why, their
	}
}

func preyOf(h *claim, now time.Duration) prey {
	v := prey{id: h.id, started: h.started, of: h}
	ran := uint64(max(0, now-h.started) / time.Millisecond)
	devices := uint64(0)
	for _, a := range h.need.devices {
		devices = plus(devices, a.n)
	}
	nodes := uint64(len(h.nodes))
	if devices > 0 {
		v.gpu = times(times(devices, nodes), ran)
	} else if h.need.cores > 0 {
		cores := uint64(0)
		for _, n := range h.nodes {
			cores = plus(cores, n.coresFor(h.need))
		}
		v.core = times(cores, ran)
	}
	return v
}

// times multiplies and stops at the largest number.
func times(a, b uint64) uint64 {
	if a != 0 && b > math.MaxUint64/a {
		return math.MaxUint64
	}
	return a * b
}

// after sums what will be on a node when those that end are gone.
func (p *preemption) after(n *node) *tally {
	t := &p.c.scratch
	t.reset(len(n.devices))
	for _, h := range n.claims {
		if !h.gone && !p.c.dying(h) {
			t.add(n, h)
		}
	}
	for _, h := range n.holds {
		t.add(n, h)
	}
	if p.plans {
		for _, o := range n.plans {
			if o.from < p.to || o.atNever() {
				t.add(n, o)
			}
		}
	}
	return t
}

func (p *preemption) fitsOn(n *node) bool {
	return n.fits(p.ofUs(n, p.after(n)), p.sh.need, p.sh.workflow)
}

// ofUs leaves of what is free what reservations leave to the work.
func (p *preemption) ofUs(n *node, t *tally) *tally {
	if !n.bounded(&p.sh.party) {
		return t
	}
	u := &n.def.later
	u.copyFrom(t)
	n.restrict(u, &p.sh.party, p.c.now, p.to)
	return u
}

// tokensWill reports whether the tokens are there once those that end are gone.
func (p *preemption) tokensWill() bool {
	for _, a := range p.sh.need.tokens {
		t := p.c.tokens[a.kind]
		used := uint64(0)
		for _, h := range t.claims {
			if !h.gone && !p.c.dying(h) {
				used += t.of(h)
			}
		}
		for _, h := range t.holds {
			used += t.of(h)
		}
		if p.plans {
			for _, o := range t.plans {
				if o.from < p.to || o.atNever() {
					used += t.of(o)
				}
			}
		}
		if a.n > left(t.total, used) {
			return false
		}
	}
	return true
}

// single looks at each node for one that wants a single one.
func (p *preemption) single() {
	for _, def := range p.sh.defs {
		for _, n := range def.nodes {
			p.s.looks++
			if !p.usable(n) {
				continue
			}
			if p.weigh(n) {
				return
			}
		}
	}
}

// usable reports whether the work could go to a node once its victims are gone.
func (p *preemption) usable(n *node) bool {
	if !n.schedulable || p.sh.excludes(n) || !n.large(p.sh.need) {
		return false
	}
	w := n.closedBy(later(p.c.now, p.c.notice), p.sh.proto.Walltime)
	if w != nil {
		p.seen.wake = min(p.seen.wake, w.until-p.c.notice)
	}
	return w == nil
}

// weigh finds the victims of one node and reports whether none at all are needed.
func (p *preemption) weigh(n *node) bool {
	steady := p.steady(n)
	if steady && len(p.sh.need.tokens) == 0 && p.best.count < math.MaxInt && p.cannotWin(n) {
		return false
	}
	p.scratch = p.eligible(p.scratch[:0], n.claims)
	if len(p.scratch) == 0 && len(p.sh.need.tokens) == 0 && steady {
		return false // nobody there is about to end either, and it has no room now
	}
	t := &n.now
	if !steady {
		t = p.after(n)
	}
	t = p.ofUs(n, t)
	if n.fits(t, p.sh.need, p.sh.workflow) {
		p.awaits([]*node{n})
		return true
	}
	least, ok := n.least(t, p.sh.need, p.scratch)
	if !ok || len(p.scratch) == 0 || p.tooDear(least) {
		return false
	}
	found, cost := cheapest(p.scratch, least, p.best, p.fitsWith(p.scratch, func() bool { return p.fitsOn(n) }))
	if found != nil {
		p.best, p.found, p.nodes = cost, found, []*node{n}
	}
	return false
}

// steady reports whether a node will be as it is now: nobody ends anyhow, nothing is held or planned.
func (p *preemption) steady(n *node) bool {
	return len(n.holds) == 0 && !n.bounded(&p.sh.party) && (!p.plans || len(n.plans) == 0) && n.firstEnd > later(later(p.c.now, p.c.notice), p.c.notice)
}

// cannotWin reports whether even the cheapest that could be on a node costs more than the best so far.
func (p *preemption) cannotWin(n *node) bool {
	least := p.fewest(n)
	if least != p.best.count {
		return least > p.best.count
	}
	return times(n.rate, n.latest.ran(least, p.c.now)) > p.best.gpu
}

// fewest is a number of victims below which a steady node has no room.
func (p *preemption) fewest(n *node) int {
	least := uint64(1)
	for _, a := range p.sh.need.devices {
		if i := n.def.device(a.kind); i >= 0 && n.most > 0 {
			least = max(least, (left(a.n, left(n.devices[i], n.now.devices[i]))+n.most-1)/n.most)
		}
	}
	return int(min(least, math.MaxInt))
}

// starts is when the claims of a node started, the latest few of them.
type starts struct {
	at    [8]time.Duration // latest first
	count int
}

func (s *starts) add(at time.Duration) {
	i := min(s.count, len(s.at))
	for i > 0 && s.at[i-1] < at {
		if i < len(s.at) {
			s.at[i] = s.at[i-1]
		}
		i--
	}
	if i < len(s.at) {
		s.at[i] = at
	}
	s.count++
}

// ran is less than the milliseconds that n of the claims have run together.
func (s *starts) ran(n int, now time.Duration) uint64 {
	if n > s.count {
		return math.MaxUint64
	}
	sum, one := uint64(0), uint64(0)
	for i := range n {
		if i < len(s.at) {
			one = uint64(max(0, now-s.at[i]) / time.Millisecond)
		}
		sum = plus(sum, one)
	}
	return sum
}

// fitsWith asks a question as if those of a list that are gone had ended.
func (p *preemption) fitsWith(list []prey, fits func() bool) func(gone []bool) bool {
	return func(gone []bool) bool {
		for i := range list {
			list[i].of.gone = gone[i]
		}
		ok := fits()
		for i := range list {
			list[i].of.gone = false
		}
		return ok
	}
}

// awaits notes that the nodes have room once those are gone that end anyhow.
func (p *preemption) awaits(nodes []*node) {
	a := &p.seen
	until := p.c.now
	ends := func(claims []*claim) {
		for _, h := range claims {
			if p.c.dying(h) {
				until = max(until, p.c.until(h))
			}
		}
	}
	for _, n := range nodes {
		ends(n.claims)
	}
	for _, t := range p.sh.need.tokens {
		ends(p.c.tokens[t.kind].claims)
	}
	a.waits, a.until = true, until
}

// least is a number of victims below which a node has no room, and false if all of them together do not make any. It also
// says how much each would help.
func (n *node) least(t *tally, w *need, list []prey) (int, bool) {
	least := 1
	short := func(lacking uint64, of func(h *claim) uint64) bool {
		if lacking == 0 {
			return true
		}
		most, sum := uint64(0), uint64(0)
		for i := range list {
			a := of(list[i].of)
			most, sum = max(most, a), plus(sum, a)
			list[i].help += float64(min(a, lacking)) / float64(lacking)
		}
		if sum < lacking {
			return false
		}
		least = max(least, int((lacking+most-1)/most))
		return true
	}
	ok := short(left(n.coresFor(w), left(n.cores, t.cores)), func(h *claim) uint64 { return n.coresFor(h.need) }) &&
		short(left(w.memory, left(n.memory, t.memory)), func(h *claim) uint64 { return h.need.memory })
	for _, a := range w.devices {
		i := n.def.device(a.kind)
		if i < 0 {
			return 0, false
		}
		ok = ok && short(left(a.n, left(n.devices[i], t.devices[i])), func(h *claim) uint64 { return h.need.device(a.kind) })
	}
	return least, ok
}

// device is how many of a kind are wanted.
func (w *need) device(kind int) uint64 {
	for _, a := range w.devices {
		if a.kind == kind {
			return a.n
		}
	}
	return 0
}

// tooDear reports whether no set of at least so many of the candidates can be cheaper than the best one.
func (p *preemption) tooDear(least int) bool {
	if least != p.best.count {
		return least > p.best.count
	}
	core, first, latest := uint64(math.MaxUint64), p.scratch[0].id, p.scratch[0].started
	lost := p.lost[:0]
	for i := range p.scratch {
		v := &p.scratch[i]
		core, first, latest = min(core, v.core), min(first, v.id), max(latest, v.started)
		lost = append(lost, v.gpu)
	}
	p.lost = lost
	if least < len(lost) {
		slices.Sort(lost)
	}
	bound := toll{count: least, core: times(core, uint64(least)), oldest: latest}
	for _, gpu := range lost[:least] {
		bound.gpu = plus(bound.gpu, gpu)
	}
	if c := bound.compareWork(&p.best); c != 0 {
		return c > 0
	}
	if bound.oldest != p.best.oldest {
		return bound.oldest < p.best.oldest
	}
	return first > p.best.ids[0]
}

// carryOut gives the victims notice and holds the room.
func (s *Scheduler) carryOut(p *preemption, e *entry) {
	c := s.c
	killAt := later(c.now, c.notice)
	list := p.found
	slices.SortFunc(list, func(a, b prey) int { return cmp.Compare(a.id, b.id) })
	out := Preempt{For: e.id, Priority: p.by.priority, Why: PreemptReservation}
	for i := range list {
		h := list[i].of
		kind, _ := s.rules.judge(&p.by, &h.occupant, p.sh.party.booking != nil, c.now)
		if kind == PreemptGroup || out.Why == PreemptReservation {
			out.Why = kind
		}
		priority := s.rules.aged(h.priority, h.submitted, c.now)
		out.Victims = append(out.Victims, Victim{
			ID: h.id, Class: h.class, Why: kind, Priority: priority, Gap: number(out.Priority - priority),
			Lost: lostOf(&list[i]), KillAt: s.now.Add(c.notice),
		})
		c.tellEnd(h, killAt)
	}
	s.lay(p, &out, e)
	s.preempts = append(s.preempts, out)
}

// lay lays the hold of a new plan down.
func (s *Scheduler) lay(p *preemption, out *Preempt, e *entry) {
	c := s.c
	room := p.sh.claimFor(e, p.nodes, -never, never)
	out.Hold = Hold{For: e.id, Definition: room.nodes[0].def.id, Since: s.now}
	for i, n := range room.nodes {
		share := Share{Node: n.id}
		if n.topo != nil || len(n.domains) > 0 {
			c.span.reset(n)
			c.span.cover(n, p.ofUs(n, p.after(n)))
			share = n.choose(&c.span, room.need)
			if room.shares == nil {
				room.shares = make([]Share, len(room.nodes))
			}
			room.shares[i] = share
		}
		out.Hold.Shares = append(out.Hold.Shares, share)
	}
	out.Hold.Victims = c.inherited(room)
	for _, v := range out.Victims {
		out.Hold.Victims = append(out.Hold.Victims, v.ID)
	}
	slices.Sort(out.Hold.Victims)
	out.Hold.Victims = slices.Compact(out.Hold.Victims)
	h := &hold{spec: out.Hold, entry: e, claim: room}
	room.hold, e.hold, s.holds[e.id] = h, h, h
	s.mark(h)
	c.extend(h, room, p.sh.span)
	c.put(room)
}

// inherited lists those whose end the room needs, whether for this plan or not: of those that end anyhow
// the ones without which it would not be free.
func (c *cluster) inherited(room *claim) []coordinator.AllocationID {
	var ids []coordinator.AllocationID
	for _, n := range room.nodes {
		var stay []*claim
		for _, h := range sortedClaims(n.claims) {
			if !c.dying(h) {
				continue
			}
			if !c.freeBeside(n, room, append(stay, h)) {
				ids = append(ids, h.id)
			} else {
				stay = append(stay, h)
			}
		}
	}
	for _, a := range room.need.tokens {
		for _, h := range c.tokens[a.kind].claims {
			if c.dying(h) {
				ids = append(ids, h.id)
			}
		}
	}
	return ids
}

// sortedClaims puts those that another hold waits for first, then goes by id.
func sortedClaims(claims []*claim) []*claim {
	return slices.SortedFunc(slices.Values(claims), func(a, b *claim) int {
		if (a.victim > 0) != (b.victim > 0) {
			return order(a.victim > 0)
		}
		return compareIDs(a.id, b.id)
	})
}

// freeBeside reports whether a share is free although some of those that end stay.
func (c *cluster) freeBeside(n *node, room *claim, stay []*claim) bool {
	t, u := &c.scratch, &n.def.later
	t.reset(len(n.devices))
	u.reset(len(n.devices))
	for _, h := range n.claims {
		if !c.dying(h) {
			t.add(n, h)
			u.add(n, h)
		}
	}
	for _, h := range stay {
		t.add(n, h)
		if h.victim == 0 {
			u.add(n, h)
		}
	}
	for _, h := range n.holds {
		u.add(n, h)
	}
	t.merge(n, u)
	return n.takes(t, room)
}

// seclude moves those who got a hold to where they stand alone.
func (s *Scheduler) seclude(plans []Preempt) {
	for i := range plans {
		if e := s.entries[plans[i].For]; e != nil {
			s.requeue(e)
		}
	}
}

func lostOf(v *prey) float64 {
	if v.gpu > 0 {
		return float64(v.gpu) / secondMillis
	}
	return float64(v.core) / secondMillis
}
