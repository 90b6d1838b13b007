package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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
}

// count reports whether the definition holds the shape once its nodes are empty.
func (f *stuckFacts) count(c *cluster, def *definition, s *shape) bool {
	ready, off := 0, []*node(nil)
	for _, n := range def.nodes {
		switch {
		case s.excludes(n):
			// as good as absent
		case !n.large(s.need):
			if f.most == nil || n.shortfall(def.nothing, s.need) < f.most.shortfall(f.most.def.nothing, s.need) {
				f.most = n
			}
		case n.schedulable:
			ready++
		default:
			off = append(off, n)
		}
	}
	if ready >= s.count {
		return true
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

func (f *stuckFacts) verdict(c *cluster, s *shape) *Verdict {
	switch {
	case f.off != nil:
		return &Verdict{Reason: ReasonDrained, Rule: 25, Text: drainedText(f, s), Nearest: f.offNodes[0].id}
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
	why := f.offNodes[0].why
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

// explainer finds the verdicts of one class after the pass. Verdicts of a shape are shared.
type explainer struct {
	d      *decision
	budget int // nearest nodes still to be looked for
}

// headVerdict is the place in shape.words of what was tried without anybody ahead.
const headVerdict = keptByPlan + 1

func (x *explainer) verdict(e *entry) *Verdict {
	s := e.shape
	if s.stuck != nil {
		return s.stuck
	}
	slot := e.kept
	if e.kept == keptByNothing && e.ahead == nil {
		slot = headVerdict
	}
	if v := s.words[slot]; v != nil {
		return v
	}
	var v *Verdict
	switch e.kept {
	case keptByArray:
		v = &Verdict{Reason: ReasonArrayConcurrency, Rule: 5, Text: fmt.Sprintf(
			"as many tasks of %s as its concurrency allows have started", e.request.Array)}
	case keptByOrder:
		v = x.orderVerdict(e)
	case keptByDepth:
		v = &Verdict{Reason: ReasonQueueDepth, Rule: 15, Text: "too far back in the queue for backfill to look at"}
	case keptByPlan:
		v = x.d.c.planVerdict(e)
	default:
		v = x.triedVerdict(e)
	}
	s.words[slot] = v
	return v
}

func (x *explainer) orderVerdict(e *entry) *Verdict {
	ahead := x.verdict(e.ahead)
	return &Verdict{
		Reason: ReasonBlockedByOrder, Rule: 4,
		Text:     fmt.Sprintf("%s is ahead of it and waits for %s", e.ahead.request.ID, x.shared(e)),
		Blocking: ahead.Blocking, Nearest: ahead.Nearest,
	}
}

// shared names what the entry and the one ahead both want.
func (x *explainer) shared(e *entry) string {
	for _, def := range e.shape.defs {
		if slices.Contains(e.ahead.shape.defs, def) {
			return "nodes of definition " + string(def.id)
		}
	}
	for _, a := range e.shape.need.tokens {
		for _, b := range e.ahead.shape.need.tokens {
			if a.kind == b.kind {
				return "token " + x.d.c.tokNames.list[a.kind]
			}
		}
	}
	return "what it wants too"
}

// triedVerdict is for work that was tried: what it lacked, as things stand after the plan's starts.
func (x *explainer) triedVerdict(e *entry) *Verdict {
	c, s := x.d.c, e.shape
	v := &Verdict{}
	near, room := x.nearest(s)
	if near != nil {
		v.Nearest = near.id
	}
	v.Blocking = c.blocking(e, near)
	if !c.tokensFit(s.need, c.now, later(c.now, s.span), false) {
		v.Reason, v.Rule, v.Text = ReasonTokenExhausted, 9, c.tokenText(s)
		return v
	}
	v.Reason, v.Rule, v.Text = ReasonInsufficientResources, 5, c.roomText(s, near, room)
	if e.ahead != nil {
		v.Reason, v.Rule = ReasonBackfillNoFit, 15
	}
	return v
}

// planVerdict is for work that had room but would have been in the way of a planned start.
func (c *cluster) planVerdict(e *entry) *Verdict {
	s := e.shape
	who := "work that is planned before it"
	if p := c.conflict(e); p != nil {
		who = "the planned start of " + string(p.id)
	}
	v := &Verdict{Reason: ReasonBackfillWouldDelayHead, Rule: 15, Nearest: e.room.id}
	v.Text = fmt.Sprintf("may run for %s, which would delay %s", s.span.Round(time.Second), who)
	if s.span == never {
		v.Reason, v.Text = ReasonBackfillNoWalltime, "has no walltime, so it might delay "+who
	}
	if e.plan != nil {
		v.Blocking = c.blocking(e, nil)
	}
	return v
}

// conflict is the first plan that leaves no room for the entry, on the node that has room now
// or among the tokens it wants.
func (c *cluster) conflict(e *entry) *claim {
	s, to := e.shape, later(c.now, e.shape.span)
	within := func(p *claim) bool { return p != e.plan && p.from > c.now && p.from < to }
	for _, p := range e.room.plans {
		if p != e.plan && p.atNever() && to == never {
			return p
		}
		e.room.tallyAt(&c.scratch, p.from, true)
		if within(p) && !e.room.fits(&c.scratch, s.need, s.workflow) {
			return p
		}
	}
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		for _, p := range t.plans {
			if p != e.plan && p.atNever() && to == never || within(p) && !t.fits(a.n, c.now, p.from, true) {
				return p
			}
		}
	}
	return nil
}

func (c *cluster) tokenText(s *shape) string {
	for _, a := range s.need.tokens {
		t := c.tokens[a.kind]
		if free := left(t.total, t.used); a.n > free {
			return fmt.Sprintf("wants %d of token %s, %d free of %d", a.n, c.tokNames.list[a.kind], free, t.total)
		}
	}
	return "wants tokens that are taken"
}

func (c *cluster) roomText(s *shape, near *node, room int) string {
	text := "wants " + c.wants(s)
	if s.count > 1 {
		text += fmt.Sprintf("; %s room now", plural(room, "node has", "nodes have"))
	}
	if near == nil {
		return text
	}
	return text + ", nearest node " + c.lacks(near, s, &near.now)
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

// nearest is the node that misses least, and how many nodes of the best definition have room now.
func (x *explainer) nearest(s *shape) (*node, int) {
	if x.budget == 0 {
		return nil, x.room(s)
	}
	x.budget--
	var best *node
	least := math.Inf(1)
	for _, def := range s.defs {
		for _, n := range def.nodes {
			if !n.schedulable || s.excludes(n) || !n.large(s.need) {
				continue
			}
			short := n.shortfall(&n.now, s.need)
			if !n.joins(&n.now, s.need, s.workflow) {
				short += float64(n.now.count)
			}
			if s.count > 1 && short == 0 {
				continue // it has room: another one is missing
			}
			if short < least || short == least && n.rank < best.rank {
				best, least = n, short
			}
		}
	}
	return best, x.room(s)
}

// room is the most nodes of one candidate that would take the shape now, up to its count.
func (x *explainer) room(s *shape) int {
	most := 0
	for _, def := range s.defs {
		look := search{c: x.d.c, shape: s, want: s.count, found: x.d.found[:0]}
		look.walk(def.root)
		x.d.found = look.found
		most = max(most, len(look.found))
	}
	return most
}

// blocking names the claims whose end would let the entry start: on the planned nodes if it has
// a plan, else on the nearest node.
func (c *cluster) blocking(e *entry, near *node) []coordinator.AllocationID {
	s := e.shape
	var claims []*claim
	switch {
	case e.plan != nil:
		for _, n := range e.plan.nodes {
			claims = append(claims, n.inTheWay(c, s)...)
		}
	case near != nil && s.count == 1:
		claims = near.inTheWay(c, s)
	}
	for _, a := range s.need.tokens {
		claims = append(claims, c.tokens[a.kind].inTheWay(a.n)...)
	}
	ids := make([]coordinator.AllocationID, 0, len(claims))
	for _, h := range claims {
		ids = append(ids, h.id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	return ids[:min(len(ids), maxBlocking)]
}

func byEnd(a, b *claim) int {
	return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.id, b.id))
}

// inTheWay is the claims that have to end for the shape to fit, the first to end first, less
// those that turn out not to be needed.
func (n *node) inTheWay(c *cluster, s *shape) []*claim {
	ends := slices.SortedFunc(slices.Values(n.claims), byEnd)
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
func (t *token) inTheWay(n uint64) []*claim {
	free := left(t.total, t.used)
	var out []*claim
	for _, h := range slices.SortedFunc(slices.Values(t.claims), byEnd) {
		if n <= free {
			break
		}
		free += t.of(h)
		out = append(out, h)
	}
	return out
}
