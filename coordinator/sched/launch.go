package sched

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
)

const (
	needsAtOnce    = 1_000 // waiting allocations of a class for which a decision looks for nodes to launch
	launchesAtOnce = 256   // of one decision; the next one goes on
)

// provision finds out what to launch and what to give up (rule 28).
type provision struct {
	s      *Scheduler
	coming map[*definition][]*arrival
	used   map[*node]bool // up, and counted on by somebody who waits for more
	tokens map[int]uint64
	arrays map[*array]int
	closed map[*definition]bool // strict order: somebody waits for it who has nothing coming
	from   map[*shape]map[*definition]int
	fresh  []*arrival
	met    map[*entry]bool
	own    map[*entry][]*arrival // that were launched for it
}

// arrival is a node that is coming, with what is meant for it.
type arrival struct {
	Launch
	n  *node
	at time.Duration
}

// awaited is what becomes of the nodes that a waiting allocation lacks.
type awaited struct {
	nodes int // that it waits for
	of    coordinator.DefinitionID
	until time.Duration
	why   string // none is launched
}

// provide decides about launches and releases at the end of a decision.
func (s *Scheduler) provide() {
	s.launches, s.releases, s.review = nil, nil, never
	if s.awaits = nil; len(s.offers) == 0 {
		return
	}
	s.awaits = make(map[*entry]awaited)
	p := &provision{
		s: s, coming: make(map[*definition][]*arrival), used: make(map[*node]bool), tokens: make(map[int]uint64),
		arrays: make(map[*array]int), closed: make(map[*definition]bool), from: make(map[*shape]map[*definition]int), met: make(map[*entry]bool), own: make(map[*entry][]*arrival),
	}
	for _, key := range slices.Sorted(maps.Keys(s.coming)) {
		if a := p.arrive(s.coming[key]); a != nil {
			p.promise(a)
		}
	}
	for _, list := range p.coming {
		slices.SortStableFunc(list, func(a, b *arrival) int { return cmp.Compare(a.at, b.at) })
	}
	for _, q := range s.queues {
		p.class(q)
	}
	for _, a := range p.fresh {
		s.launches = append(s.launches, a.Launch)
		if s.coming == nil {
			s.coming = make(map[string]Launch)
		}
		s.coming[a.Key] = a.Launch
	}
	p.release()
}

// arrive puts down a node that is coming.
func (p *provision) arrive(l Launch) *arrival {
	c, o := p.s.c, p.s.offers[l.Definition]
	def := c.byID[l.Definition]
	if def == nil || o == nil {
		return nil
	}
	def.addKinds(&o.Node, &c.kinds)
	n := &node{spec: o.Node, perCore: 1}
	n.spec.Schedulable = true
	n.read(def, c)
	n.now.reset(len(n.devices))
	n.closed = slices.Clone(c.closedAll)
	if o.TTL > 0 {
		n.closed = append(n.closed, closing{from: later(since(l.Since), o.TTL-o.TTLBuffer), until: never, life: true})
	}
	a := &arrival{Launch: l, n: n, at: max(since(l.Until), c.now)}
	p.coming[def] = append(p.coming[def], a)
	return a
}

// promise keeps the room of a node that is coming for those that it was launched for, as far as they still wait.
func (p *provision) promise(a *arrival) {
	for _, id := range a.For {
		e := p.s.entries[id]
		if e == nil || e.hold != nil || e.shape.queue.before(e.shape.queue.find(e)) < e.shape.queue.before(e.shape.taken) {
			continue
		}
		if len(p.own[e]) < e.shape.count && slices.Contains(e.shape.defs, a.n.def) && a.holds(e.shape) {
			p.own[e] = append(p.own[e], a)
			a.n.now.add(a.n, &claim{need: e.shape.need, workflow: e.workflow})
		}
	}
}

// holds reports whether there is room for a shape.
func (a *arrival) holds(sh *shape) bool {
	return a.n.large(sh.need) && a.n.fits(&a.n.now, sh.need, sh.workflow) && a.n.opens(a.at, sh.proto.Walltime)
}

// class looks for nodes for what waits in a class, in order.
func (p *provision) class(q *classQueue) {
	var h heads
	for _, sh := range q.shapes {
		offered := slices.ContainsFunc(sh.defs, func(d *definition) bool { return p.s.offers[d.id] != nil })
		if offered && !sh.held && sh.party.booking == nil && sh.party.denied == nil && sh.move(sh.taken) {
			h = append(h, sh)
		}
	}
	clear(p.closed)
	heap.Init(&h)
	for looked := 0; len(h) > 0 && looked < needsAtOnce; looked++ {
		sh := h[0]
		if p.need(sh, sh.head) && sh.move(sh.queue.after(sh.at)) {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
}

// need finds or launches the nodes that an entry lacks and reports whether it is worth looking at the next one like it.
func (p *provision) need(sh *shape, e *entry) bool {
	if sh.array != nil && sh.array.count+p.arrays[sh.array] >= sh.limit || !p.tokensFor(sh) || p.behind(sh, e) {
		return false
	}
	defs := sh.defs
	if own := p.own[e]; len(own) > 0 {
		defs = []*definition{own[0].n.def}
	}
	for _, def := range defs {
		found := p.look(def, sh, e)
		if len(found.up) == sh.count {
			return false // something else keeps it
		}
		if found.missing == 0 {
			p.meet(sh, e, found)
			return true
		}
	}
	var why string
	for _, def := range defs {
		o := p.s.offers[def.id]
		if o == nil {
			continue
		}
		found := p.look(def, sh, e)
		if refused := p.refuse(o, def, sh, found.missing); refused != "" {
			why = cmp.Or(why, refused)
			continue
		}
		for range found.missing {
			found.coming = append(found.coming, p.launch(o, e, p.ordinal(e, def)))
		}
		p.meet(sh, e, found)
		return true
	}
	p.s.awaits[e] = awaited{why: why}
	if sh.stuck == nil && !sh.shut {
		for _, def := range sh.defs {
			p.closed[def] = true
		}
	}
	return false
}

// behind reports whether strict order keeps an entry from starting on what is launched for it.
func (p *provision) behind(sh *shape, e *entry) bool {
	if p.s.config.Backfill != coordinator.BackfillNone || sh.stuck != nil || sh.shut {
		return false
	}
	return sh.pass == p.s.pass && sh.ahead != nil && sh.ahead != e && !p.met[sh.ahead] ||
		slices.ContainsFunc(sh.defs, func(d *definition) bool { return p.closed[d] })
}

func (p *provision) tokensFor(sh *shape) bool {
	for _, a := range sh.need.tokens {
		t := p.s.c.tokens[a.kind]
		if a.n > left(t.total, plus(t.taken(), p.tokens[a.kind])) {
			return false
		}
	}
	return true
}

// up is the nodes that are up and have room now, as many as are wanted at most.
func (p *provision) up(def *definition, sh *shape) []*node {
	look := search{c: p.s.c, shape: sh, want: sh.count + len(p.used)}
	look.walk(def.root)
	found := slices.DeleteFunc(look.found, func(n *node) bool { return p.used[n] })
	return found[:min(len(found), sh.count)]
}

// found is what of the nodes that an entry wants in a definition there is, or will be.
type found struct {
	up      []*node
	own     []*arrival
	coming  []*arrival
	missing int
}

func (p *provision) look(def *definition, sh *shape, e *entry) found {
	f := found{own: p.own[e]}
	if len(f.own) == 0 || len(f.own) < sh.count {
		f.up = p.up(def, sh)
		f.up = f.up[:min(len(f.up), sh.count-len(f.own))]
	}
	f.coming = p.room(def, sh, f.own, sh.count-len(f.own)-len(f.up))
	f.missing = sh.count - len(f.own) - len(f.up) - len(f.coming)
	return f
}

// room is the coming nodes of a definition that have room, as many as are wanted at most. Those that had none for the shape have none later.
func (p *provision) room(def *definition, sh *shape, own []*arrival, want int) []*arrival {
	list := p.coming[def]
	first := p.from[sh][def]
	var found []*arrival
	for i := first; i < len(list) && len(found) < want; i++ {
		a := list[i]
		switch fits := a.holds(sh); {
		case fits && !slices.Contains(own, a):
			found = append(found, a)
		case !fits && i == first:
			first++
		}
	}
	if p.from[sh] == nil {
		p.from[sh] = make(map[*definition]int)
	}
	p.from[sh][def] = first
	return found
}

// refuse says why no nodes are launched, "" if they may be.
func (p *provision) refuse(o *Offer, def *definition, sh *shape, missing int) string {
	if o.Stopped != "" {
		return fmt.Sprintf("definition %s is %s", def.id, o.Stopped)
	}
	now := p.s.c.now
	if until := since(o.UnavailableUntil); !o.UnavailableUntil.IsZero() && until > now {
		p.s.review = min(p.s.review, until)
		text := fmt.Sprintf("definition %s is unavailable until %s", def.id, p.s.moment(until))
		if o.Why != "" {
			text += ": " + o.Why
		}
		return text
	}
	if there := len(def.nodes) + len(p.coming[def]); o.MaxNodes > 0 && there+missing > o.MaxNodes {
		return fmt.Sprintf("definition %s may have %s, has %d with those that are coming, and %d more would be needed",
			def.id, plural(o.MaxNodes, "node", "nodes"), there, missing)
	}
	if len(p.fresh)+missing > launchesAtOnce {
		p.s.review = min(p.s.review, later(now, epsilon))
		return "enough nodes are launched for now"
	}
	trial := provision{s: p.s, coming: make(map[*definition][]*arrival)}
	a := trial.arrive(Launch{Definition: def.id, Since: p.s.now, Until: p.s.now.Add(o.Launch)})
	switch {
	case !a.n.large(sh.need):
		return fmt.Sprintf("wants %s, a node of definition %s is expected to have less", p.s.c.wants(sh), def.id)
	case a.n.opens(a.at, sh.proto.Walltime):
		return ""
	case o.TTL > 0 && (sh.proto.Walltime <= 0 || later(a.at, sh.proto.Walltime) > a.n.closed[len(a.n.closed)-1].from):
		return fmt.Sprintf("nodes of definition %s live for %s, which is too short for it", def.id, o.TTL)
	}
	return fmt.Sprintf("maintenance is announced for nodes of definition %s", def.id)
}

// ordinal is the first number of a launch that nobody else has.
func (p *provision) ordinal(e *entry, def *definition) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("%s.%d.%s.%d", e.id, e.attempt, def.id, i)
		if !slices.ContainsFunc(p.coming[def], func(a *arrival) bool { return a.Key == key }) {
			return key
		}
	}
}

func (p *provision) launch(o *Offer, e *entry, key string) *arrival {
	a := p.arrive(Launch{Key: key, Definition: o.Definition, Since: p.s.now, Until: p.s.now.Add(o.Launch)})
	p.fresh = append(p.fresh, a)
	return a
}

// meet gives an entry the nodes that it waits for.
func (p *provision) meet(sh *shape, e *entry, f found) {
	p.met[e] = true
	until := p.s.c.now
	for _, n := range f.up {
		p.used[n] = true
	}
	for _, a := range f.coming {
		a.n.now.add(a.n, &claim{need: sh.need, workflow: e.workflow})
		if slices.Contains(p.fresh, a) {
			a.For = append(a.For, e.id)
		}
	}
	coming := slices.Concat(f.own, f.coming)
	for _, a := range coming {
		until = max(until, a.at)
	}
	for _, a := range sh.need.tokens {
		p.tokens[a.kind] = plus(p.tokens[a.kind], a.n)
	}
	if sh.array != nil {
		p.arrays[sh.array]++
	}
	p.s.awaits[e] = awaited{nodes: len(coming), of: coming[0].Definition, until: until}
}

// release gives up nodes that are idle for long or at the end of their life. Nobody is on them, nothing is held, planned or reserved there,
// and nobody who waits for more nodes counts on them.
func (p *provision) release() {
	s := p.s
	for _, id := range slices.Sorted(maps.Keys(s.offers)) {
		def, o := s.c.byID[id], s.offers[id]
		if def == nil {
			continue
		}
		for _, n := range def.nodes {
			if !n.schedulable || len(n.claims)+len(n.holds)+len(n.plans)+len(n.booked) > 0 {
				continue
			}
			var why ReleaseReason
			if idle := later(since(n.spec.IdleSince), o.IdleTimeout); o.IdleTimeout > 0 && !n.spec.IdleSince.IsZero() && !p.used[n] {
				if why = ReleaseIdle; idle > s.c.now {
					why = ""
					s.review = min(s.review, idle)
				}
			}
			if ends := since(n.spec.Expires); !n.spec.Expires.IsZero() {
				if ends <= s.c.now {
					why = ReleaseTTL
				} else {
					s.review = min(s.review, ends)
				}
			}
			if why != "" {
				s.releases = append(s.releases, Release{Node: n.id, Why: why})
			}
		}
	}
	slices.SortFunc(s.releases, func(a, b Release) int { return cmp.Compare(a.Node, b.Node) })
}

// retire takes what is given up out of use.
func (s *Scheduler) retire() {
	c := s.c
	for _, r := range s.releases {
		n := c.nodes[r.Node]
		was := n.spec
		c.unindex(n)
		n.spec.Schedulable, n.spec.Why, n.schedulable = false, "released", false
		c.alter(n.def)
		c.note(move{kind: moveOther, undo: func() {
			n.spec, n.schedulable = was, true
			c.alter(n.def)
			c.touch(n)
		}})
	}
}

// provisionVerdict is for work that waits for nodes to be launched, nil for other.
func (x *explainer) provisionVerdict(e *entry) *Verdict {
	a, ok := x.s.awaits[e]
	switch {
	case !ok:
		return nil
	case a.nodes > 0:
		return &Verdict{Reason: ReasonNoNode, Rule: 28, Text: fmt.Sprintf("%s of definition %s %s coming, expected at %s",
			plural(a.nodes, "node", "nodes"), a.of, map[bool]string{true: "is", false: "are"}[a.nodes == 1], x.s.moment(a.until))}
	case e.shape.stuck != nil:
		return &Verdict{Reason: ReasonProvisioning, Rule: 28, Text: "no node is launched: " + a.why}
	}
	return nil
}
