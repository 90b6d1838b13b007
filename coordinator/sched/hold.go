package sched

import (
	"slices"
	"time"

	"substrate/coordinator"
)

// hold is room that is promised to one waiting allocation (rules 20 and 21). While its victims still end, their room
// counts for them and for the holder, but once.
type hold struct {
	spec  Hold
	entry *entry // the holder, nil: it does not wait
	claim *claim // nil: not put down
	marks []*claim
}

// tallyHeld brings what is held into a tally of the claims that count. Room passes from victims to
// holders, so what is taken is what all claims have or what the lasting ones and the holders have,
// whichever is more.
func (n *node) tallyHeld(t *tally, counts func(*claim) bool) {
	u := &n.def.later
	u.reset(len(n.devices))
	held := false
	for _, h := range n.holds {
		if counts(h) {
			u.add(n, h)
			held = true
		}
	}
	if !held {
		return
	}
	for _, h := range n.claims {
		if counts(h) && h.victim == 0 {
			u.add(n, h)
		}
	}
	t.merge(n, u)
}

// merge makes a tally that leaves room only for what fits beside either.
func (t *tally) merge(n *node, u *tally) {
	both := t.gpus | u.gpus
	for i := range t.devices {
		set := n.set(i)
		blind := max(left(t.devices[i], uint64((t.gpus&set).count())), left(u.devices[i], uint64((u.gpus&set).count())))
		t.devices[i] = plus(blind, uint64((both & set).count()))
	}
	t.gpus = both
	t.cores, t.memory = max(t.cores, u.cores), max(t.memory, u.memory)
	if len(t.domains) == 0 && len(u.domains) > 0 {
		t.domains = zeros(t.domains, len(u.domains))
	}
	for d := range u.domains {
		t.domains[d].cores = max(t.domains[d].cores, u.domains[d].cores)
		t.domains[d].memory = max(t.domains[d].memory, u.domains[d].memory)
	}
	switch {
	case t.count == 0:
		t.workflow, t.mixed = u.workflow, u.mixed
	case u.count > 0:
		t.mixed = t.mixed || u.mixed || t.workflow != u.workflow
	}
	t.count += u.count
	t.lock = strongest(t.lock, u.lock)
}

// add counts in a claim that takes so many.
func (t *token) add(h *claim, n uint64) {
	if h.hold != nil {
		t.holds = append(t.holds, h)
		return
	}
	t.used += n
	t.claims = append(t.claims, h)
}

func (t *token) remove(h *claim, n uint64) {
	t.freed++
	if h.hold != nil {
		t.holds = without(t.holds, h)
		return
	}
	t.used -= n
	t.claims = without(t.claims, h)
}

// taken is what is left to nobody: see tallyHeld.
func (t *token) taken() uint64 {
	if len(t.holds) == 0 {
		return t.used
	}
	return t.sum(func(*claim) bool { return true })
}

func (t *token) sum(counts func(*claim) bool) uint64 {
	all, lasting, held := uint64(0), uint64(0), uint64(0)
	for _, h := range t.claims {
		if !counts(h) {
			continue
		}
		all += t.of(h)
		if h.victim == 0 {
			lasting += t.of(h)
		}
	}
	for _, h := range t.holds {
		if counts(h) {
			held += t.of(h)
		}
	}
	return max(all, lasting+held)
}

// SetHold tells of a hold that was promised before, as it was stored, less the victims that have ended since. What is wrong
// with it shows at the next decision.
func (s *Scheduler) SetHold(h Hold) {
	s.DropHold(h.For)
	s.holds[h.For] = &hold{spec: h}
}

// DropHold tells that a hold is no more. Victims that were told go on ending.
func (s *Scheduler) DropHold(id coordinator.AllocationID) {
	s.touch()
	if h := s.holds[id]; h != nil {
		s.release(h)
	}
}

// release ends a hold; its allocation waits like others again.
func (s *Scheduler) release(h *hold) {
	delete(s.holds, h.spec.For)
	s.lift(h)
	s.unmark(h)
	if h.entry != nil {
		h.entry.hold = nil
		s.requeue(h.entry)
	}
	h.entry = nil
}

// lift takes what is held off the nodes.
func (s *Scheduler) lift(h *hold) {
	if h.claim == nil {
		return
	}
	c := h.claim
	h.claim = nil
	s.c.take(c)
	for _, n := range c.nodes {
		s.c.dropNode(n)
	}
	s.c.dropArray(c.array)
}

// requeue puts an entry into the queue where it belongs now.
func (s *Scheduler) requeue(e *entry) {
	was := e.shape
	if s.c.trials > 0 && was.own { // those like it may have started before it
		was.held = e.hold != nil
		return
	}
	r := was.request(e)
	next := was.queue.at(was.taken)
	if next == e {
		next = was.queue.at(was.queue.after(was.taken))
	}
	s.dequeue(e)
	was.taken = was.queue.from(next)
	s.enqueue(e, r)
	s.c.note(move{kind: moveOther, undo: func() {
		s.dequeue(e)
		e.shape = was
		was.queue.insert(e)
		was.q.count++
	}})
}

// prune forgets victims that have ended: who comes back under the same id is a victim no more, and its room is its own.
func (s *Scheduler) prune(h *hold) {
	if s.c.trials > 0 {
		return // victims do not come back there
	}
	ended := func(id coordinator.AllocationID) bool { return s.c.claims[id] == nil }
	if slices.ContainsFunc(h.spec.Victims, ended) {
		h.spec.Victims = slices.DeleteFunc(slices.Clone(h.spec.Victims), ended)
	}
}

// mark counts a hold at each of its victims that still occupies something.
func (s *Scheduler) mark(h *hold) {
	for _, id := range h.spec.Victims {
		if v := s.c.claims[id]; v != nil {
			v.victim++
			v.recount(s.c)
			h.marks = append(h.marks, v)
		}
	}
}

func (s *Scheduler) unmark(h *hold) {
	for _, v := range h.marks {
		v.victim--
		if s.c.claims[v.id] == v {
			v.recount(s.c)
		}
	}
	h.marks = h.marks[:0]
}

// recount tells the nodes of a claim that it counts differently.
func (h *claim) recount(c *cluster) {
	for _, n := range h.nodes {
		c.unindex(n)
		n.recount()
		c.index(n)
	}
}

// holdsInOrder lists the holds: by class and queue, those whose allocation does not wait last.
func (s *Scheduler) holdsInOrder() []*hold {
	list := make([]*hold, 0, len(s.holds))
	for _, h := range s.holds {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *hold) int {
		switch {
		case a.entry == nil || b.entry == nil:
			if (a.entry == nil) != (b.entry == nil) {
				return order(b.entry == nil)
			}
			return compareIDs(a.spec.For, b.spec.For)
		case a.entry.shape.q.class != b.entry.shape.q.class:
			return order(a.entry.shape.q.class < b.entry.shape.q.class)
		}
		return a.entry.compare(b.entry)
	})
	return list
}

func compareIDs(a, b coordinator.AllocationID) int {
	if a == b {
		return 0
	}
	return order(a < b)
}

// settleHolds looks at each hold at the beginning of a decision: it ends, starts, or stays (rules 20 and 21).
func (s *Scheduler) settleHolds() {
	if len(s.holds) == 0 {
		return
	}
	for _, h := range s.holds {
		s.lift(h)
		s.unmark(h)
		s.prune(h)
		if h.entry = s.entries[h.spec.For]; h.entry != nil && h.entry.hold != h {
			h.entry.hold = h
			s.requeue(h.entry)
		}
	}
	holds := s.holdsInOrder()
	for _, h := range holds {
		s.mark(h)
	}
	for _, h := range holds {
		why := s.layDown(h)
		if why == 0 {
			continue
		}
		s.drops = append(s.drops, Drop{For: h.spec.For, Why: why})
		s.release(h)
		s.c.freed++
	}
	for _, h := range holds {
		if h.claim != nil && h.claim.here() && s.c.clear(h.claim) && !s.robs(h) {
			s.startHeld(h)
		}
	}
}

// layDown makes a hold occupy its nodes, unless it has come to an end.
func (s *Scheduler) layDown(h *hold) DropReason {
	e := h.entry
	if e == nil {
		return DropGone
	}
	sh := e.shape
	if sh.assign(s.c); sh.party.denied != nil {
		return DropChanged
	}
	nodes := make([]*node, 0, len(h.spec.Shares))
	for i := range h.spec.Shares {
		n := s.c.nodes[h.spec.Shares[i].Node]
		if n == nil || !n.schedulable && !n.spec.Away || n.def.id != h.spec.Definition || !n.opens(s.c.now, sh.proto.Walltime) {
			return DropNode
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, byID)
	nodes = slices.Compact(nodes)
	if len(nodes) != sh.count || !slices.Contains(sh.defs, nodes[0].def) {
		return DropChanged
	}
	for _, n := range nodes {
		if sh.excludes(n) || !n.large(sh.need) {
			return DropChanged
		}
	}
	c := sh.claimFor(e, nodes, -never, never)
	c.read(h.spec.Shares)
	c.hold = h
	if !c.covers() {
		return DropChanged
	}
	if !s.c.possible(c, nil) {
		return DropImpossible
	}
	s.c.extend(h, c, sh.span)
	h.claim = c
	s.c.put(c)
	return 0
}

// covers reports whether the shares of a hold are as large as what is asked for.
func (h *claim) covers() bool {
	for _, n := range h.nodes {
		s := h.share(n)
		for _, a := range h.need.devices {
			i := n.def.device(a.kind)
			if i < 0 || n.set(i) == 0 {
				continue
			}
			if s == nil || uint64((gpusAt(s.Devices)&n.set(i)).count()) != a.n {
				return false
			}
		}
	}
	return true
}

// extend sets when a hold is expected to become a start, and that to end.
func (c *cluster) extend(h *hold, of *claim, span time.Duration) {
	at := c.now
	for _, id := range h.spec.Victims {
		if v := c.claims[id]; v != nil {
			at = max(at, c.until(v))
		}
	}
	of.to = later(at, span)
}

// robs reports whether a hold that starts while its own victims are still there would take what the victims of another one have
// left: that would be impossible then, and its victims have gone in vain.
func (s *Scheduler) robs(h *hold) bool {
	if !slices.ContainsFunc(h.marks, func(v *claim) bool { return s.c.claims[v.id] == v && !v.ending }) {
		return false
	}
	for _, o := range s.holds {
		if o != h && o.claim != nil && !s.c.possible(o.claim, h) {
			return true
		}
	}
	return false
}

// possible reports whether a hold fits beside what lasts and what else is held. Of one that starts before its victims are
// gone, they last.
func (c *cluster) possible(h *claim, starts *hold) bool {
	lasts := func(o *claim) bool {
		waiting := o.victim
		if starts != nil && slices.Contains(starts.marks, o) {
			waiting--
		}
		return waiting == 0 && !o.ending
	}
	for _, n := range h.nodes {
		t := &c.scratch
		t.reset(len(n.devices))
		for _, o := range n.holds {
			if o != h {
				t.add(n, o)
			}
		}
		for _, o := range n.claims {
			if lasts(o) {
				t.add(n, o)
			}
		}
		if !n.takes(t, h) {
			return false
		}
	}
	for _, a := range h.need.tokens {
		t := c.tokens[a.kind]
		used := uint64(0)
		for _, o := range t.claims {
			if lasts(o) {
				used += t.of(o)
			}
		}
		for _, o := range t.holds {
			if o != h {
				used += t.of(o)
			}
		}
		if a.n > left(t.total, used) {
			return false
		}
	}
	return true
}

// here reports whether none of the nodes is away.
func (h *claim) here() bool {
	return !slices.ContainsFunc(h.nodes, func(n *node) bool { return !n.schedulable })
}

// clear reports whether nobody is on the room of a hold any more.
func (c *cluster) clear(h *claim) bool {
	for _, n := range h.nodes {
		t := &c.scratch
		t.reset(len(n.devices))
		for _, o := range n.claims {
			t.add(n, o)
		}
		if !n.takes(t, h) {
			return false
		}
	}
	for _, a := range h.need.tokens {
		if t := c.tokens[a.kind]; a.n > left(t.total, t.used) {
			return false
		}
	}
	return true
}

// takes reports whether a claim fits beside a tally on the very GPUs and cores of its share.
func (n *node) takes(t *tally, h *claim) bool {
	for _, a := range h.need.devices {
		if i := n.def.device(a.kind); i < 0 || a.n > left(n.devices[i], t.devices[i]) {
			return false
		}
	}
	if n.coresFor(h.need) > left(n.cores, t.cores) || h.need.memory > left(n.memory, t.memory) || !n.joins(t, h.need, h.workflow) {
		return false
	}
	s := h.share(n)
	if s == nil {
		return true
	}
	if n.topo != nil && gpusAt(s.Devices)&t.gpus != 0 {
		return false
	}
	for _, c := range s.Cores {
		d := slices.IndexFunc(n.domains, func(d Domain) bool { return d.ID == c.Domain })
		if d < 0 {
			continue
		}
		used := uint32(0)
		if len(t.domains) > 0 {
			used = t.domains[d].cores
		}
		if uint64(c.Cores) > left(uint64(n.domains[d].Cores), uint64(used)) {
			return false
		}
	}
	return true
}

// startHeld makes a hold a start, past everybody else (rule 20).
func (s *Scheduler) startHeld(h *hold) {
	e := h.entry
	sh := e.shape
	shares := h.claim.shares
	nodes := h.claim.nodes
	s.lift(h)
	start := sh.claimFor(e, nodes, s.c.now, later(s.c.now, sh.span))
	start.shares = shares
	delete(s.holds, h.spec.For)
	s.unmark(h)
	s.c.put(start)
	e.hold, e.start, e.rule = nil, start, 20
	sh.taken = sh.queue.after(place{})
	s.begun(e)
}
