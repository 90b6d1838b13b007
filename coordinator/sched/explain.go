package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"substrate/coordinator"
)

// maxBlocking is how many placements a verdict names.
const maxBlocking = 8

// stuckVerdict says why no end of running work would let a shape start, nil if one would.
func (c *cluster) stuckVerdict(s *shape) *Verdict {
	if len(s.defs) == 0 {
		return &Verdict{Reason: ReasonNoAdmissibleDefinition, Rule: 6, Text: "no definition admits it"}
	}
	for _, a := range s.need.tokens {
		if total := c.tokens[a.kind].total; a.n > total {
			return &Verdict{Reason: ReasonTokenExhausted, Rule: 9, Text: fmt.Sprintf(
				"wants %d of token %s, the cluster has %d", a.n, c.tokNames.list[a.kind], total)}
		}
	}
	var f stuckFacts
	for _, def := range s.defs {
		if f.count(c, def, s) {
			return nil
		}
	}
	return f.verdict(c, s)
}

// stuckFacts counts what the candidates of a shape offer.
type stuckFacts struct {
	off      *definition // would hold the shape if all its nodes were schedulable
	ready    int         // large enough and schedulable there
	offNodes []*node     // large enough and not schedulable there
	few      *definition // has nodes that are large enough, but too few
	fewCount int         // how many
	empty    *definition // has no node at all
	most     *node       // the largest node that is too small
	unknown  *node       // the first that might be large enough
}

// count reports whether the definition holds the shape once its nodes are empty.
func (f *stuckFacts) count(c *cluster, def *definition, s *shape) bool {
	ready, off := 0, []*node(nil)
	for _, n := range def.nodes {
		switch {
		case s.excludes(n):
			// as good as absent
		case !n.large(s.need):
			if f.unknown == nil && n.unknowable(s.need) {
				f.unknown = n
			}
			if f.most == nil || n.shortfall(def.nothing, s.need) < f.most.shortfall(f.most.def.nothing, s.need) {
				f.most = n
			}
		case n.schedulable:
			ready++
			if ready == s.count {
				return true
			}
		default:
			off = append(off, n)
		}
	}
	switch {
	case ready+len(off) >= s.count:
		if f.off == nil {
			f.off, f.ready, f.offNodes = def, ready, off
		}
	case ready+len(off) > 0:
		if f.few == nil {
			f.few, f.fewCount = def, ready+len(off)
		}
	case len(def.nodes) == 0 && f.empty == nil:
		f.empty = def
	}
	return false
}

// notTogether says of what a node has not enough in one place.
func (c *cluster) notTogether(l lack, w *need, empty bool) string {
	noun, where := "cores", "in one socket"
	switch {
	case l.kind >= 0:
		noun, where = c.kinds.list[l.kind], "in one fabric"
	case w.sockets > 0:
		where = fmt.Sprintf("in one socket (wanted evenly from %d)", w.sockets)
	case w.affinity == coordinator.AffinityNUMA:
		where = "in one NUMA domain"
	}
	switch {
	case l.unknown:
		return fmt.Sprintf("no report of which %s are %s", noun, where)
	case empty:
		return fmt.Sprintf("at most %d %s %s", l.total, noun, where)
	}
	text := fmt.Sprintf("at most %d free of %d %s %s", l.free, l.total, noun, where)
	if l.kind == lackCores && l.free >= l.wants && w.sockets == 0 {
		text += ", without their memory"
	}
	return text
}

// unknowable reports whether the node would hold the request if what is not known of it were so.
func (n *node) unknowable(w *need) bool {
	unknown := true
	lacks := n.lacks(n.def.nothing, w, func(l lack) bool {
		unknown = l.unknown
		return unknown
	})
	return lacks && unknown
}

func (f *stuckFacts) verdict(c *cluster, s *shape) *Verdict {
	switch {
	case f.off != nil:
		return &Verdict{Reason: ReasonDrained, Rule: 25, Text: drainedText(f, s), Nearest: f.offNodes[0].id}
	case f.unknown != nil:
		return &Verdict{Reason: ReasonHardwareUnknown, Rule: 6, Text: fmt.Sprintf(
			"wants %s: %s", c.wants(s), c.lacks(f.unknown, s, nil)), Nearest: f.unknown.id}
	case f.few != nil:
		return &Verdict{Reason: ReasonNoNode, Rule: 6, Text: fmt.Sprintf(
			"wants %d nodes at once, definition %s has %d that are large enough", s.count, f.few.id, f.fewCount)}
	case f.empty != nil:
		return &Verdict{Reason: ReasonNoNode, Rule: 6, Text: fmt.Sprintf("definition %s has no node yet", f.empty.id)}
	case f.most == nil:
		return &Verdict{Reason: ReasonNoAdmissibleDefinition, Rule: 6, Text: "every node of its definitions is excluded for it"}
	}
	return &Verdict{Reason: ReasonInsufficientResources, Rule: 5, Text: fmt.Sprintf(
		"wants %s, no node is that large: %s", c.wants(s), c.lacks(f.most, s, nil))}
}

func drainedText(f *stuckFacts, s *shape) string {
	why := f.offNodes[0].spec.Why
	if why == "" {
		why = "not schedulable"
	}
	rest := ""
	if more := len(f.offNodes) - 1; more > 0 {
		rest = " and " + plural(more, "more node is", "more nodes are") + " out of use"
	}
	return fmt.Sprintf("wants %s of definition %s, %d ready; node %s is %s%s",
		plural(s.count, "node", "nodes"), f.off.id, f.ready, f.offNodes[0].id, why, rest)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// keptBy is what kept a request from starting.
type keptBy uint8

const (
	keptByNothing keptBy = iota // it was tried, behind others, and nothing was free for it
	keptByArray
	keptByOrder
	keptByDepth
	keptByPlan  // there was room, but not for as long as it may run
	headVerdict // it was tried with nobody ahead
)

// kept is what kept an entry from starting in the last pass. It follows from where the entry is in relation to a
// few others, so that nothing has to be noted for each.
func (s *Scheduler) kept(e *entry) keptBy {
	sh := e.shape
	behind := sh.ahead != nil && sh.ahead != e
	switch {
	case sh.array != nil && sh.array.at(e) >= sh.limit:
		return keptByArray
	case sh.shut:
		return headVerdict
	case behind && s.config.Backfill == coordinator.BackfillNone:
		return keptByOrder
	case behind && sh.q.deep != nil && sh.q.deep.compare(e) <= 0:
		return keptByDepth
	case sh.room != nil && (sh.until == nil || e.compare(sh.until) < 0):
		return keptByPlan
	case behind:
		return keptByNothing
	}
	return headVerdict
}

// at is how many tasks of the array had a place when the last pass came to an entry.
func (g *array) at(e *entry) int {
	before := sort.Search(len(g.log), func(i int) bool {
		o := g.log[i]
		return cmp.Or(cmp.Compare(o.shape.q.class, e.shape.q.class), o.compare(e)) > 0
	})
	return g.count - len(g.log) + before
}

// nearestShapes is how many shapes of a class get a nearest node when everything is listed.
const nearestShapes = 256

// explainer finds the verdicts of the last pass. Those of a shape are shared.
type explainer struct {
	s      *Scheduler
	budget int // nearest nodes still to be looked for
}

func (x *explainer) verdict(e *entry) *Verdict {
	sh := e.shape
	if e.hold != nil && e.hold.claim != nil {
		return x.heldVerdict(e.hold)
	}
	if sh.party.denied != nil && sh.pass == x.s.pass {
		return sh.party.denied
	}
	if v := x.provisionVerdict(e); v != nil {
		return v
	}
	if sh.stuck != nil {
		return sh.stuck
	}
	if sh.pass != x.s.pass || sh.pass == 0 {
		return &Verdict{} // nobody has looked at it yet
	}
	slot := x.s.kept(e)
	if v := sh.words[slot]; v != nil {
		return v
	}
	var v *Verdict
	switch slot {
	case keptByArray:
		v = &Verdict{Reason: ReasonArrayConcurrency, Rule: 5, Text: fmt.Sprintf(
			"as many tasks of %s as its concurrency allows have started", sh.array.name)}
	case keptByOrder:
		v = x.orderVerdict(sh)
	case keptByDepth:
		v = &Verdict{Reason: ReasonQueueDepth, Rule: 15, Text: "too far back in the queue for backfill to look at"}
	case keptByPlan:
		v = x.s.c.planVerdict(sh)
	default:
		v = x.triedVerdict(sh, slot)
	}
	sh.words[slot] = v
	return v
}

func (x *explainer) orderVerdict(sh *shape) *Verdict {
	ahead := x.verdict(sh.ahead)
	return &Verdict{
		Reason: ReasonBlockedByOrder, Rule: 4,
		Text:     fmt.Sprintf("%s is ahead of it and waits for %s", sh.ahead.id, x.shared(sh)),
		Blocking: ahead.Blocking, Nearest: ahead.Nearest,
	}
}

// shared names what the shape and the one ahead both want.
func (x *explainer) shared(sh *shape) string {
	for _, def := range sh.defs {
		if slices.Contains(sh.ahead.shape.defs, def) {
			return "nodes of definition " + string(def.id)
		}
	}
	for _, a := range sh.need.tokens {
		for _, b := range sh.ahead.shape.need.tokens {
			if a.kind == b.kind {
				return "token " + x.s.c.tokNames.list[a.kind]
			}
		}
	}
	return "what it wants too"
}

// triedVerdict is for work that was tried: what it lacked, as things stand after the plan's starts.
func (x *explainer) triedVerdict(sh *shape, slot keptBy) *Verdict {
	c := x.s.c
	v := &Verdict{}
	near := x.nearest(sh)
	if near != nil {
		v.Nearest = near.id
	}
	var plan *claim
	if slot == headVerdict || sh.first != sh.ahead {
		plan = x.s.planOf(sh)
	}
	v.Blocking = c.blocking(sh, plan, near)
	if !c.tokensFit(sh.need, c.now, later(c.now, sh.span), false) {
		v.Reason, v.Rule, v.Text = ReasonTokenExhausted, 9, c.tokenText(sh)
		return v
	}
	if w := x.windowVerdict(sh); w != nil {
		return w
	}
	if r := x.reservedVerdict(sh); r != nil {
		return r
	}
	v.Reason, v.Rule, v.Text = ReasonInsufficientResources, 5, x.roomText(sh, near)
	if slot == keptByNothing {
		v.Reason, v.Rule = ReasonBackfillNoFit, 15
	} else {
		x.s.notePreemption(v, sh.tried)
	}
	return v
}

// planVerdict is for work that had room but would have been in the way of a planned start.
func (c *cluster) planVerdict(s *shape) *Verdict {
	who := "work that is planned before it"
	if p := c.conflict(s); p != nil {
		who = "the planned start of " + string(p.id)
	}
	v := &Verdict{Reason: ReasonBackfillWouldDelayHead, Rule: 15, Nearest: s.room.id}
	v.Text = fmt.Sprintf("may run for %s, which would delay %s", s.span.Round(time.Second), who)
	if s.span == never {
		v.Reason, v.Text = ReasonBackfillNoWalltime, "has no walltime, so it might delay "+who
	}
	if s.plan != nil {
		v.Blocking = c.blocking(s, s.plan, nil)
	}
	return v
}

// conflict is the first plan that leaves no room for the shape, on the node that has room now
// or among the tokens it wants.
func (c *cluster) conflict(s *shape) *claim {
	to := later(c.now, s.span)
	within := func(p *claim) bool { return p != s.plan && p.from > c.now && p.from < to }
	for _, p := range s.room.plans {
		if p != s.plan && p.atNever() && to == never {
			return p
		}
		c.tallyAt(&c.scratch, s.room, p.from, true)
		if within(p) && !s.room.fits(&c.scratch, s.need, s.workflow) {
			return p
		}
	}
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		for _, p := range t.plans {
			if p != s.plan && p.atNever() && to == never || within(p) && !c.tokenFits(t, a.n, p.from, true) {
				return p
			}
		}
	}
	return nil
}

func (c *cluster) tokenText(s *shape) string {
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		if free := left(t.total, t.taken()); a.n > free {
			return fmt.Sprintf("wants %d of token %s, %d free of %d", a.n, c.tokNames.list[a.kind], free, t.total)
		}
	}
	return "wants tokens that are taken"
}

func (x *explainer) roomText(sh *shape, near *node) string {
	text := "wants " + x.s.c.wants(sh)
	if sh.count > 1 {
		text += fmt.Sprintf("; %s room now", plural(x.room(sh), "node has", "nodes have"))
	}
	if near == nil {
		return text
	}
	if b := sh.party.booking; b != nil && near.fits(&near.now, sh.need, sh.workflow) {
		return text + ", " + x.s.c.leftOf(b)
	}
	return text + ", nearest node " + x.s.c.lacks(near, sh, &near.now) + heldFor(near)
}

// wants says what a shape asks for.
func (c *cluster) wants(s *shape) string {
	var parts []string
	w := s.need
	if w.cores > 0 {
		parts = append(parts, plural(int(w.cores), coreWord(w, true), coreWord(w, false)))
	}
	if w.memory > 0 {
		parts = append(parts, coordinator.Bytes(w.memory).String())
	}
	for _, a := range w.devices {
		parts = append(parts, fmt.Sprintf("%d %s", a.n, c.kinds.list[a.kind]))
	}
	text := strings.Join(parts, ", ")
	if text == "" {
		text = "a place"
	}
	if w.exclusive != coordinator.ExclusiveNone {
		text += " (exclusive " + w.exclusive.String() + ")"
	}
	if s.count > 1 {
		return fmt.Sprintf("%d nodes with %s each", s.count, text)
	}
	return text
}

func coreWord(w *need, one bool) string {
	switch {
	case w.threads && one:
		return "thread"
	case w.threads:
		return "threads"
	case one:
		return "core"
	}
	return "cores"
}

// lacks says what a node has too little of; without a tally, of what it has in all.
func (c *cluster) lacks(n *node, s *shape, t *tally) string {
	empty := t == nil
	if empty {
		t = n.def.nothing
	}
	var parts []string
	n.lacks(t, s.need, func(l lack) bool {
		if l.together {
			parts = append(parts, c.notTogether(l, s.need, empty))
			return true
		}
		say := func(v uint64) string { return fmt.Sprint(v) }
		noun := " cores"
		switch {
		case l.kind == lackMemory:
			say = func(v uint64) string { return coordinator.Bytes(v).String() }
			noun = " memory"
		case l.kind >= 0:
			noun = " " + c.kinds.list[l.kind]
		}
		if empty {
			parts = append(parts, say(l.total)+noun)
		} else {
			parts = append(parts, say(l.free)+" free of "+say(l.total)+noun)
		}
		return true
	})
	if !empty && len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("%s in the way of exclusive use", plural(t.count, "allocation", "allocations")))
	}
	return fmt.Sprintf("%s has %s", n.id, strings.Join(parts, ", "))
}

// nearest is the node that misses least; one that maintenance closes to the shape only where all are closed.
func (x *explainer) nearest(sh *shape) *node {
	if x.budget == 0 {
		return nil
	}
	x.budget--
	var best *node
	least, open := math.Inf(1), false
	for _, def := range sh.defs {
		for _, n := range def.nodes {
			if !n.schedulable || sh.excludes(n) || !n.large(sh.need) {
				continue
			}
			short := n.shortfall(&n.now, sh.need)
			if !n.joins(&n.now, sh.need, sh.workflow) {
				short += float64(n.now.count)
			}
			if sh.count > 1 && short == 0 {
				continue // it has room: another one is missing
			}
			opens := n.opens(x.s.c.now, sh.proto.Walltime)
			if opens == open && (short < least || short == least && n.id < best.id) || opens && !open {
				best, least, open = n, short, opens
			}
		}
	}
	return best
}

// room is the most nodes of one candidate that would take the shape now, up to its count.
func (x *explainer) room(sh *shape) int {
	most := 0
	for _, def := range sh.defs {
		look := search{c: x.s.c, shape: sh, want: sh.count, found: x.s.found[:0]}
		look.walk(def.root)
		x.s.found = look.found
		most = max(most, len(look.found))
	}
	return most
}

// blocking names the claims whose end would let the shape start: on the planned nodes if there is
// a plan, else on the nearest node.
func (c *cluster) blocking(s *shape, plan *claim, near *node) []coordinator.AllocationID {
	var claims []*claim
	switch {
	case plan != nil:
		for _, n := range plan.nodes {
			claims = append(claims, c.inTheWay(n, s)...)
		}
	case near != nil && s.count == 1:
		claims = c.inTheWay(near, s)
	}
	for _, a := range s.need.tokens {
		claims = append(claims, c.tokensInTheWay(c.tokens[a.kind], a.n)...)
	}
	ids := make([]coordinator.AllocationID, 0, len(claims))
	for _, h := range claims {
		ids = append(ids, h.id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return ids[:min(len(ids), maxBlocking)]
}

func (c *cluster) byEnd(claims []*claim) []*claim {
	return slices.SortedFunc(slices.Values(claims), func(a, b *claim) int {
		return cmp.Or(cmp.Compare(c.until(a), c.until(b)), cmp.Compare(a.id, b.id))
	})
}

// inTheWay is the claims that have to end for the shape to fit, the first to end first, less
// those that turn out not to be needed.
func (c *cluster) inTheWay(n *node, s *shape) []*claim {
	ends := c.byEnd(n.claims)
	fits := func(claims ...[]*claim) bool {
		c.scratch.reset(len(n.devices))
		for _, list := range claims {
			for _, h := range list {
				c.scratch.add(n, h)
			}
		}
		return n.fits(&c.scratch, s.need, s.workflow)
	}
	gone := 0
	for gone < len(ends) && !fits(ends[gone:]) {
		gone++
	}
	var out, back []*claim
	for i, h := range ends[:gone] {
		if fits(ends[gone:], back, ends[i:i+1]) {
			back = append(back, h)
		} else {
			out = append(out, h)
		}
	}
	return out
}

// inTheWay is the first claims to end whose tokens make enough.
func (c *cluster) tokensInTheWay(t *token, n uint64) []*claim {
	free := left(t.total, t.taken())
	var out []*claim
	for _, h := range c.byEnd(t.claims) {
		if n <= free {
			break
		}
		free += t.of(h)
		out = append(out, h)
	}
	return out
}
