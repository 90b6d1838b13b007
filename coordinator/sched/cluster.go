package sched

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// Times inside a decision are durations since Snapshot.Now. never is past every known end.
const (
	never   = time.Duration(math.MaxInt64)
	epsilon = time.Second // an overdue placement ends this much later (rule 14)
)

// amount is n of the device or token with that number.
type amount struct {
	kind int
	n    uint64
}

// need is what a request takes from each of its nodes, and its tokens from the cluster.
type need struct {
	cores     uint64
	threads   bool
	memory    uint64
	devices   []amount // by name
	tokens    []amount // by name
	exclusive coordinator.Exclusive
}

// claim occupies nodes and tokens from one time to another: a placement, a start or a plan.
type claim struct {
	id       coordinator.AllocationID
	workflow coordinator.WorkflowID
	need     *need
	nodes    []*node
	array    int // -1: none
	from, to time.Duration
}

// atNever marks the plan of a request that no known end lets start.
func (h *claim) atNever() bool { return h.from == never }

// activeAt reports whether the claim occupies its nodes at t.
func (h *claim) activeAt(t time.Duration) bool { return h.from <= t && t < h.to }

// names numbers the device kinds and tokens of a snapshot.
type names struct {
	list []string
	byID map[string]int
}

func (n *names) number(name string) int {
	if i, ok := n.byID[name]; ok {
		return i
	}
	if n.byID == nil {
		n.byID = make(map[string]int)
	}
	n.byID[name] = len(n.list)
	n.list = append(n.list, name)
	return len(n.list) - 1
}

// amounts lists what is not zero, by name.
func (n *names) amounts(m map[string]uint32) []amount {
	if len(m) == 0 {
		return nil
	}
	list := make([]amount, 0, len(m))
	for name, count := range m {
		if count > 0 {
			list = append(list, amount{n.number(name), uint64(count)})
		}
	}
	slices.SortFunc(list, func(a, b amount) int { return cmp.Compare(n.list[a.kind], n.list[b.kind]) })
	return list
}

// token is one kind of licence: how many there are, who has claimed them and who is planned to.
type token struct {
	number int
	total  uint64
	used   uint64
	claims []*claim
	plans  []*claim
}

// of is how many of the token a claim takes.
func (t *token) of(h *claim) uint64 {
	for _, a := range h.need.tokens {
		if a.kind == t.number {
			return a.n
		}
	}
	return 0
}

// cluster is the working state of one decision.
type cluster struct {
	defs     []*definition // in candidate order (rule 6)
	nodes    map[coordinator.NodeID]*node
	kinds    names
	tokNames names
	tokens   []*token
	notice   time.Duration
	now      time.Duration
	ends     endHeap
	planned  []*node // nodes that carry plans
	scratch  tally
	times    []time.Duration // scratch
	arrays   []int           // free places per array with limited concurrency
	arrayIDs names
	work     int // node examinations so far; bounds planning and estimating
}

func newCluster(s *Snapshot) *cluster {
	c := &cluster{
		nodes:  make(map[coordinator.NodeID]*node, len(s.Nodes)),
		notice: max(0, s.Config.PreemptionNotice),
	}
	c.addDefinitions(s.Definitions)
	c.addNodes(s.Nodes)
	for name, total := range s.Tokens {
		c.tokenNumber(name).total = uint64(total)
	}
	return c
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

func (c *cluster) addDefinitions(defs []Definition) {
	for _, d := range defs {
		cost := d.CostPerHour
		if math.IsNaN(cost) {
			cost = math.Inf(1)
		}
		c.defs = append(c.defs, &definition{id: d.ID, cost: cost, order: d.Order, exclusive: d.Exclusive, maxTPC: 1})
	}
	slices.SortFunc(c.defs, func(a, b *definition) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.order, b.order), cmp.Compare(a.id, b.id))
	})
	for i, d := range c.defs {
		d.number = i
	}
}

func (c *cluster) addNodes(list []Node) {
	byID := make(map[coordinator.DefinitionID]*definition, len(c.defs))
	for _, d := range c.defs {
		byID[d.id] = d
	}
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
		for name, count := range list[i].Devices {
			if d := byID[list[i].Definition]; d != nil && count > 0 {
				d.addKind(c.kinds.number(name))
			}
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(list[a].ID, list[b].ID) })
	for rank, i := range order {
		def := byID[list[i].Definition]
		if def == nil {
			continue // unassigned: nothing is placed there
		}
		n := newNode(&list[i], def, &c.kinds, rank)
		c.nodes[n.id] = n
		def.nodes = append(def.nodes, n)
	}
	for _, d := range c.defs {
		for _, n := range d.nodes {
			d.maxTPC = max(d.maxTPC, n.perCore)
			n.reset()
		}
	}
}

// addPlacements puts down what runs now and then builds the indexes.
func (c *cluster) addPlacements(s *Snapshot) {
	for i := range s.Placements {
		p := &s.Placements[i]
		h := &claim{
			id: p.ID, workflow: p.Workflow, need: c.needOf(&p.Resources), array: -1,
			from: -never, to: c.endOf(p, s.Now),
		}
		if g, ok := c.arrayIDs.byID[p.Array]; ok && p.Array != "" {
			h.array = g
		}
		for _, id := range p.Nodes {
			if n := c.nodes[id]; n != nil && !slices.Contains(h.nodes, n) {
				h.nodes = append(h.nodes, n)
			}
		}
		for _, n := range h.nodes {
			n.claims = append(n.claims, h)
			n.now.add(n, h)
		}
		c.claimTokens(h)
		c.ends = append(c.ends, h)
	}
	heap.Init(&c.ends)
	for _, d := range c.defs {
		for _, n := range d.nodes {
			if n.schedulable {
				d.root = insert(d.root, n)
			}
		}
	}
}

// endOf is the planned end of a placement (rule 14): never in the past, never without walltime.
func (c *cluster) endOf(p *Placement, now time.Time) time.Duration {
	end := never
	if p.Walltime > 0 {
		end = later(later(p.Started.Sub(now), p.Walltime), c.notice)
	}
	if p.Ending {
		end = min(end, c.notice)
	}
	return max(end, epsilon)
}

func (c *cluster) needOf(r *coordinator.Resources) *need {
	w := &need{
		cores: uint64(r.Cores), threads: r.Threads, memory: uint64(r.TotalMemory()),
		devices: c.kinds.amounts(r.Devices), tokens: c.tokNames.amounts(r.Tokens),
		exclusive: r.Exclusive,
	}
	c.growTokens()
	return w
}

// place puts down a claim that begins now.
func (c *cluster) place(h *claim) {
	for _, n := range h.nodes {
		n.def.root = remove(n.def.root, n)
		n.claims = append(n.claims, h)
		n.now.add(n, h)
		n.def.root = insert(n.def.root, n)
	}
	c.claimTokens(h)
	if h.array >= 0 {
		c.arrays[h.array]--
	}
	heap.Push(&c.ends, h)
}

func (c *cluster) claimTokens(h *claim) {
	for _, a := range h.need.tokens {
		t := c.tokens[a.kind]
		t.used += a.n
		t.claims = append(t.claims, h)
	}
}

// release takes a claim away that has been popped from the ends.
func (c *cluster) release(h *claim) {
	for _, n := range h.nodes {
		if n.schedulable {
			n.def.root = remove(n.def.root, n)
		}
		n.claims = without(n.claims, h)
		n.reset()
		for _, other := range n.claims {
			n.now.add(n, other)
		}
		if n.schedulable {
			n.def.root = insert(n.def.root, n)
		}
	}
	for _, a := range h.need.tokens {
		t := c.tokens[a.kind]
		t.used -= a.n
		t.claims = without(t.claims, h)
	}
	if h.array >= 0 {
		c.arrays[h.array]++
	}
}

// addPlan reserves what a blocked request will take.
func (c *cluster) addPlan(h *claim) {
	for _, n := range h.nodes {
		if len(n.plans) == 0 {
			c.planned = append(c.planned, n)
		}
		n.plans = append(n.plans, h)
	}
	for _, a := range h.need.tokens {
		c.tokens[a.kind].plans = append(c.tokens[a.kind].plans, h)
	}
}

func (c *cluster) clearPlans() {
	for _, n := range c.planned {
		n.plans = n.plans[:0]
	}
	c.planned = c.planned[:0]
	for _, t := range c.tokens {
		t.plans = t.plans[:0]
	}
}

// tokensFit reports whether the tokens are free from one time to another, beside the plans if
// those are respected. Between now and a later time claims only end, so the start of the
// span and the starts of plans within it are the only times to look at.
func (c *cluster) tokensFit(w *need, from, to time.Duration, plans bool) bool {
	for _, a := range w.tokens {
		t := c.tokens[a.kind]
		if !t.fits(a.n, c.now, from, plans) {
			return false
		}
		if !plans {
			continue
		}
		for _, p := range t.plans {
			if p.atNever() && to == never {
				return false
			}
			if p.from > from && p.from < to && !t.fits(a.n, c.now, p.from, plans) {
				return false
			}
		}
	}
	return true
}

func (t *token) fits(n uint64, now, at time.Duration, plans bool) bool {
	used := t.used
	if at > now {
		used = 0
		for _, h := range t.claims {
			if h.activeAt(at) {
				used += t.of(h)
			}
		}
	}
	if plans {
		for _, p := range t.plans {
			if p.activeAt(at) {
				used += t.of(p)
			}
		}
	}
	return n <= left(t.total, used)
}

// endHeap orders claims by their end, then id.
type endHeap []*claim

func (e endHeap) Len() int { return len(e) }
func (e endHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].to, e[j].to), cmp.Compare(e[i].id, e[j].id)) < 0
}
func (e endHeap) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *endHeap) Push(x any)   { *e = append(*e, x.(*claim)) }
func (e *endHeap) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// later adds durations and stops at never.
func later(a, b time.Duration) time.Duration {
	if b > 0 && a > never-b {
		return never
	}
	return a + b
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
		list[i] = list[len(list)-1]
		return list[:len(list)-1]
	}
	return list
}
