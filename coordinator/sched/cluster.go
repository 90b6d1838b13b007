package sched

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// cluster is who has what: definitions, nodes, tokens and arrays with the claims on them. It is
// updated by what changes.
type cluster struct {
	defs     []*definition // in candidate order (rule 6)
	byID     map[coordinator.DefinitionID]*definition
	limbo    *definition // of nodes that are in no definition, or only named by claims
	nodes    map[coordinator.NodeID]*node
	claims   map[coordinator.AllocationID]*claim
	arrays   map[string]*array
	kinds    names
	shared   topologies
	tokNames names
	tokens   []*token
	notice   time.Duration
	began    time.Duration // of the decision
	now      time.Duration // later than that while estimates step forward
	freed    uint64        // grows whenever something may have got free
	batch    int           // claims of class batch
	marked   int           // claims that are preemptible
	windows  []Window
	mortal   int // nodes whose life has an end

	closings  map[coordinator.NodeID][]closing
	closedAll []closing
	draining  map[*node]bool

	reserving    bool // there may be reservations
	reservations []Reservation
	bookings     []*booking
	bookedNodes  []*node
	promises     map[coordinator.NodeID]promise // for the choice of reservations
	altered      uint64                         // grows whenever nodes, definitions or totals change
	planned      []*node                        // nodes that carry plans
	licensed     []*token                       // tokens that are in plans
	touched      []*node                        // out of the index for a moment
	scratch      tally
	span         usage           // scratch
	times        []time.Duration // scratch
	work         int             // node examinations so far; bounds estimating
	planWork     int             // the part of them that plans took; bounds planning
	trials       int             // that are under way, one within the other
	journal      []move          // of what they changed
}

func newCluster() *cluster {
	return &cluster{
		limbo:  newDefinition(&Definition{}),
		nodes:  make(map[coordinator.NodeID]*node),
		claims: make(map[coordinator.AllocationID]*claim),
		arrays: make(map[string]*array),

		draining: make(map[*node]bool),
	}
}

// configure takes over definitions, totals of tokens and the notice, and sorts the nodes again.
func (c *cluster) configure(notice time.Duration, defs []Definition, tokens map[string]uint32) {
	for _, h := range c.claims {
		if h.to != never {
			h.to = later(h.to-c.notice, notice)
		}
	}
	c.notice = notice
	c.defs, c.byID = nil, make(map[coordinator.DefinitionID]*definition, len(defs))
	for i := range defs {
		d := newDefinition(&defs[i])
		c.defs = append(c.defs, d)
		c.byID[d.id] = d
	}
	slices.SortFunc(c.defs, func(a, b *definition) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.order, b.order), cmp.Compare(a.id, b.id))
	})
	for i, d := range c.defs {
		d.number = i
	}
	for _, id := range slices.Sorted(maps.Keys(c.nodes)) {
		c.nodes[id].indexed = false
		c.attach(c.nodes[id])
	}
	for _, t := range c.tokens {
		t.total = 0
	}
	for name, total := range tokens {
		c.tokenNumber(name).total = uint64(total)
	}
	c.freed++
	c.altered++
}

// nodeOf is the node with an id; one that is only named by a claim is in no definition.
func (c *cluster) nodeOf(id coordinator.NodeID) *node {
	n := c.nodes[id]
	if n == nil {
		n = &node{id: id, weight: weigh(id), def: c.limbo, perCore: 1, firstEnd: never, rate: math.MaxUint64}
		c.nodes[id] = n
	}
	return n
}

// setNode takes over what is known about a node.
func (c *cluster) setNode(spec *Node) {
	n := c.nodeOf(spec.ID)
	if n.known && sameNode(&n.spec, spec) {
		return
	}
	c.detach(n)
	c.mortal -= oneFor(!n.spec.Expires.IsZero())
	n.spec, n.known = *spec, true
	c.attach(n)
	delete(c.draining, n)
	c.mortal += oneFor(!spec.Expires.IsZero())
	if n.spec.Draining {
		c.draining[n] = true
	}
}

func (c *cluster) removeNode(id coordinator.NodeID) {
	n := c.nodes[id]
	if n == nil || !n.known {
		return
	}
	c.detach(n)
	delete(c.draining, n)
	c.mortal -= oneFor(!n.spec.Expires.IsZero())
	n.spec, n.known = Node{}, false
	c.attach(n)
	c.dropNode(n)
}

// dropNode forgets a node that is neither known nor named by a claim.
func (c *cluster) dropNode(n *node) {
	if c.trials == 0 && !n.known && len(n.claims)+len(n.holds) == 0 {
		delete(c.nodes, n.id)
	}
}

// attach puts a node into the definition that it says it is of.
func (c *cluster) attach(n *node) {
	def := c.limbo
	if d := c.byID[n.spec.Definition]; n.known && d != nil {
		def = d
	}
	if def != c.limbo {
		def.addKinds(&n.spec, &c.kinds)
		i, _ := slices.BinarySearchFunc(def.nodes, n.id, func(o *node, id coordinator.NodeID) int { return cmp.Compare(o.id, id) })
		def.nodes = slices.Insert(def.nodes, i, n)
	}
	n.read(def, c)
	n.closed = c.closedFor(n)
	n.recount()
	def.maxTPC = max(def.maxTPC, n.perCore)
	c.index(n)
	c.alter(def)
}

func (c *cluster) detach(n *node) {
	c.unindex(n)
	if i := slices.Index(n.def.nodes, n); i >= 0 {
		n.def.nodes = slices.Delete(n.def.nodes, i, i+1)
	}
	c.alter(n.def)
}

func (c *cluster) alter(def *definition) {
	def.altered++
	def.freed++
	c.altered++
	c.freed++
}

// index puts a node that can be used into the index of its definition.
func (c *cluster) index(n *node) {
	if n.schedulable && n.def != c.limbo {
		n.def.root = insert(n.def.root, n)
		n.indexed = true
	}
}

func (c *cluster) unindex(n *node) {
	if n.indexed {
		n.def.root = remove(n.def.root, n)
		n.indexed = false
	}
}

// claimOf is the claim that a placement makes.
func (c *cluster) claimOf(p *Placement) *claim {
	h := &claim{
		id: p.ID, workflow: p.Workflow, need: c.needOf(&p.Resources), array: c.arrayOf(p.Array),
		from: -never, to: never, ending: p.Ending,
	}
	if p.Ending && !p.KillAt.IsZero() {
		h.killAt = since(p.KillAt)
	}
	if p.Walltime > 0 {
		h.to = later(later(since(p.Started), p.Walltime), c.notice)
	}
	for _, id := range p.Nodes {
		h.nodes = append(h.nodes, c.nodeOf(id))
	}
	slices.SortFunc(h.nodes, byID)
	h.nodes = slices.Compact(h.nodes)
	h.read(p.Shares)
	return h
}

// put makes a claim occupy its nodes, tokens and place in the array.
func (c *cluster) put(h *claim) {
	for _, n := range h.nodes {
		c.unindex(n)
		n.add(h)
		c.index(n)
	}
	c.account(h, true)
	c.note(move{kind: movePut, h: h})
}

// account books what a claim takes of the cluster, not of nodes.
func (c *cluster) account(h *claim, put bool) {
	more := 1
	if !put {
		more = -1
	}
	c.census(h, more)
	for _, a := range h.need.tokens {
		if put {
			c.tokens[a.kind].add(h, a.n)
		} else {
			c.tokens[a.kind].remove(h, a.n)
		}
	}
	switch {
	case h.array == nil:
	case put:
		h.array.count++
	default:
		h.array.count--
	}
}

// take frees what claims occupy. A node is counted and put into the index again once.
func (c *cluster) take(claims ...*claim) {
	c.touched = c.touched[:0]
	for _, h := range claims {
		for _, n := range h.nodes {
			c.touch(n)
			n.drop(h)
		}
		c.account(h, false)
		c.note(move{kind: moveTake, h: h})
	}
	c.settle()
}

// touch takes a node out of the index until it is settled.
func (c *cluster) touch(n *node) {
	c.unindex(n)
	c.touched = append(c.touched, n)
}

// settle counts the touched nodes, which may have more room now.
func (c *cluster) settle() {
	for _, n := range c.touched {
		if !n.indexed {
			n.recount()
			n.def.freed++
			c.index(n)
		}
	}
	c.freed++
}

// census counts those who may have to give way.
func (c *cluster) census(h *claim, more int) {
	if h.hold != nil {
		return
	}
	if h.class == coordinator.ClassBatch {
		c.batch += more
	}
	if h.preemptible {
		c.marked += more
	}
}

// array is a task array with limited concurrency.
type array struct {
	name   string
	count  int      // tasks that have a place
	shapes int      // that are of it
	log    []*entry // that started in the last pass, in queue order
}

func (c *cluster) arrayOf(name string) *array {
	if name == "" {
		return nil
	}
	g := c.arrays[name]
	if g == nil {
		g = &array{name: name}
		c.arrays[name] = g
	}
	return g
}

// dropArray forgets an array that nobody is in any more.
func (c *cluster) dropArray(g *array) {
	if g != nil && c.trials == 0 && g.count == 0 && g.shapes == 0 {
		delete(c.arrays, g.name)
	}
}

// until is the end of a claim as it is planned at the time of the decision (rule 14): a plan ends where it
// was made to, anything else neither in the past nor later than a notice that was given. As estimates step forward, an end
// that nobody has named stays where it was.
func (c *cluster) until(h *claim) time.Duration {
	if h.plan {
		return h.to
	}
	to := h.to
	switch {
	case h.ending && h.killAt != 0:
		to = min(to, later(c.now, c.notice), h.killAt)
	case h.ending:
		to = min(to, later(c.began, c.notice))
	}
	return max(to, later(c.now, epsilon))
}

// active reports whether a claim occupies its nodes at a time.
func (c *cluster) active(h *claim, at time.Duration) bool { return h.from <= at && at < c.until(h) }

// addPlan reserves what a blocked request will take.
func (c *cluster) addPlan(h *claim) {
	for _, n := range h.nodes {
		if len(n.plans) == 0 {
			c.planned = append(c.planned, n)
		}
		n.plans = append(n.plans, h)
	}
	for _, a := range h.need.tokens {
		t := c.tokens[a.kind]
		if len(t.plans) == 0 {
			c.licensed = append(c.licensed, t)
		}
		t.plans = append(t.plans, h)
	}
}

func (c *cluster) clearPlans() {
	for _, n := range c.planned {
		n.plans = nil
	}
	for _, t := range c.licensed {
		t.plans = nil
	}
	c.planned, c.licensed = c.planned[:0], c.licensed[:0]
}

func (c *cluster) anyPlans() bool { return len(c.planned)+len(c.licensed) > 0 }

// tokensFit reports whether the tokens are free from one time to another, beside the plans if
// those are respected. Between now and a later time claims only end, so the start of the
// span and the starts of plans within it are the only times to look at.
func (c *cluster) tokensFit(w *need, from, to time.Duration, plans bool) bool {
	for _, a := range w.tokens {
		t := c.tokens[a.kind]
		if !c.tokenFits(t, a.n, from, plans) {
			return false
		}
		if !plans {
			continue
		}
		for _, p := range t.plans {
			if p.atNever() && to == never {
				return false
			}
			if p.from > from && p.from < to && !c.tokenFits(t, a.n, p.from, plans) {
				return false
			}
		}
	}
	return true
}

func (c *cluster) tokenFits(t *token, n uint64, at time.Duration, plans bool) bool {
	used := t.taken()
	if at > c.now {
		used = t.sum(func(h *claim) bool { return c.active(h, at) })
	}
	if plans {
		for _, p := range t.plans {
			if c.active(p, at) {
				used += t.of(p)
			}
		}
	}
	return n <= left(t.total, used)
}

func (c *cluster) tokenNumber(name string) *token {
	i := c.tokNames.number(name)
	c.growTokens()
	return c.tokens[i]
}

func (c *cluster) growTokens() {
	for len(c.tokens) < len(c.tokNames.list) {
		c.tokens = append(c.tokens, &token{number: len(c.tokens)})
	}
}

func (c *cluster) needOf(r *coordinator.Resources) *need {
	w := &need{
		cores: uint64(r.Cores), threads: r.Threads, affinity: r.Affinity, sockets: r.Sockets, memory: uint64(r.TotalMemory()),
		devices: c.kinds.amounts(r.Devices), tokens: c.tokNames.amounts(r.Tokens),
		exclusive: r.Exclusive,
	}
	c.growTokens()
	return w
}

// since is a time as a duration. All times inside a scheduler count from the same moment and are no more than 146
// years from it, so that there is always something later.
func since(t time.Time) time.Duration {
	const farthest = time.Duration(1 << 62)
	return min(max(t.Sub(time.Unix(0, 0)), -farthest), farthest)
}

// later adds durations and stops at never.
func later(a, b time.Duration) time.Duration {
	if b > 0 && a > never-b {
		return never
	}
	return a + b
}

func oneFor(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func left(total, used uint64) uint64 {
	if used >= total {
		return 0
	}
	return total - used
}

// plus adds and stops at the largest number.
func plus(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

func without(list []*claim, h *claim) []*claim {
	if i := slices.Index(list, h); i >= 0 {
		last := len(list) - 1
		list[i], list[last] = list[last], nil
		return list[:last]
	}
	return list
}
