package sched

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"substrate/coordinator"
)

// entry is one waiting request and what became of it.
type entry struct {
	request  *Request
	shape    *shape
	position int // within the class, from 1
	began    bool
	nodes    []*node // where it starts
	rule     int     // that let it start
	kept     keptBy  // why not, as far as the pass itself decides
	room     *node   // where it would have fitted if no plan were in the way
	ahead    *entry  // the first earlier waiting allocation of the class that overlaps it
	plan     *claim  // its planned start, nil without one
	estimate time.Duration
	known    bool // estimate is set
}

// keptBy is what kept a request from being tried at all.
type keptBy uint8

const (
	keptByNothing keptBy = iota // it was tried and nothing was free for it
	keptByStuck                 // no end of running work helps
	keptByArray
	keptByOrder
	keptByDepth
	keptByPlan // there was room, but not for as long as it may run
)

// shape is what requests have in common that the decision treats alike: one search answers for all.
type shape struct {
	class    coordinator.Class
	need     *need
	count    int           // nodes
	span     time.Duration // walltime + notice; never without walltime
	defs     []*definition // candidates
	exclude  map[coordinator.NodeID]bool
	workflow coordinator.WorkflowID
	array    int      // -1: none
	stuck    *Verdict // no end of running work helps

	// Set during a pass; stale when pass is another.
	pass   int
	failed bool   // could not start: nor can the next one like it
	full   bool   // not even without plans: nor will it be later in the pass
	lined  bool   // its definitions and tokens are closed to later work
	ahead  *entry // once somebody is ahead, it stays the same one
	words  [headVerdict + 1]*Verdict
}

func (s *shape) excludes(n *node) bool { return s.exclude != nil && s.exclude[n.id] }

// renew forgets what an earlier pass found.
func (s *shape) renew(pass int) {
	if s.pass != pass {
		s.pass, s.failed, s.full, s.lined, s.ahead = pass, false, false, false, nil
	}
}

// classQueue is the queue of one class, in order.
type classQueue struct {
	class   coordinator.Class
	all     []*entry
	waiting []*entry // those a pass looks at
	shapes  int      // distinct ones among waiting that are not stuck
	defs    map[*definition]bool
}

// compareRequests is rule 1 within a class.
func compareRequests(a, b *Request) int {
	if a.Returned != b.Returned {
		return order(a.Returned)
	}
	if c := cmp.Compare(b.Priority, a.Priority); c != 0 {
		return c
	}
	if c := a.Submitted.Compare(b.Submitted); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Workflow, b.Workflow), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
}

// newQueue orders the requests and finds their shapes.
func newQueue(c *cluster, s *Snapshot) []*classQueue {
	sorter := newShaper(c, s)
	byClass := make(map[coordinator.Class]*classQueue)
	entries := make([]entry, len(s.Requests))
	for i := range s.Requests {
		e := &entries[i]
		e.request = &s.Requests[i]
		e.shape = sorter.shapeOf(e.request)
		q := byClass[e.request.Class]
		if q == nil {
			q = &classQueue{class: e.request.Class}
			byClass[q.class] = q
		}
		q.all = append(q.all, e)
	}
	queues := make([]*classQueue, 0, len(byClass))
	for _, class := range slices.Sorted(maps.Keys(byClass)) {
		q := byClass[class]
		slices.SortFunc(q.all, func(a, b *entry) int { return compareRequests(a.request, b.request) })
		for i, e := range q.all {
			e.position = i + 1
		}
		queues = append(queues, q)
	}
	return queues
}

// admit sets what the passes look at: the first limit entries that are not stuck and not started.
func (q *classQueue) admit(limit int) {
	seen := make(map[*shape]bool)
	q.waiting, q.defs = nil, make(map[*definition]bool)
	for _, e := range q.all {
		if e.began || e.shape.stuck != nil {
			continue
		}
		if len(q.waiting) == limit {
			break
		}
		q.waiting = append(q.waiting, e)
		if !seen[e.shape] {
			seen[e.shape] = true
			for _, d := range e.shape.defs {
				q.defs[d] = true
			}
		}
	}
	q.shapes = len(seen)
}

// shaper gives requests that are alike the same shape.
type shaper struct {
	c          *cluster
	byKey      map[string]*shape
	byID       map[coordinator.DefinitionID]*definition
	admissible map[admissibleKey]string
	exclusive  map[coordinator.WorkflowID]bool // workflows that hold, or may hold, nodes as a workflow
	everyone   bool                            // some definition is held per workflow
	key        []byte
}

// admissibleKey recognises a list that many requests share.
type admissibleKey struct {
	first *coordinator.DefinitionID
	count int
}

func newShaper(c *cluster, s *Snapshot) *shaper {
	f := &shaper{
		c: c, byKey: make(map[string]*shape),
		byID:       make(map[coordinator.DefinitionID]*definition, len(c.defs)),
		admissible: make(map[admissibleKey]string),
		exclusive:  make(map[coordinator.WorkflowID]bool),
	}
	for _, d := range c.defs {
		f.byID[d.id] = d
		f.everyone = f.everyone || d.exclusive == coordinator.ExclusiveWorkflow
	}
	for i := range s.Requests {
		r := &s.Requests[i]
		if r.Resources.Exclusive == coordinator.ExclusiveWorkflow {
			f.exclusive[r.Workflow] = true
		}
		if r.Array == "" {
			continue
		}
		g := c.arrayIDs.number(r.Array)
		if g == len(c.arrays) {
			c.arrays = append(c.arrays, r.ArrayFree)
		}
		c.arrays[g] = min(c.arrays[g], r.ArrayFree)
	}
	for i := range s.Placements {
		if s.Placements[i].Resources.Exclusive == coordinator.ExclusiveWorkflow {
			f.exclusive[s.Placements[i].Workflow] = true
		}
	}
	return f
}

func (f *shaper) shapeOf(r *Request) *shape {
	array := -1
	if r.Array != "" {
		array = f.c.arrayIDs.number(r.Array)
	}
	f.writeKey(r, array)
	if s := f.byKey[string(f.key)]; s != nil {
		return s
	}
	s := &shape{
		class: r.Class, need: f.c.needOf(&r.Resources), count: int(max(1, r.Nodes)),
		span: never, defs: f.candidates(r), array: array,
		// Where workflows do not matter, any one of those alike stands for the others: none of
		// them is the workflow of an exclusive holder.
		workflow: r.Workflow,
	}
	if r.Walltime > 0 {
		s.span = later(r.Walltime, f.c.notice)
	}
	for _, id := range r.Exclude {
		if s.exclude == nil {
			s.exclude = make(map[coordinator.NodeID]bool, len(r.Exclude))
		}
		s.exclude[id] = true
	}
	s.stuck = f.c.stuckVerdict(s)
	f.byKey[string(f.key)] = s
	return s
}

func (f *shaper) workflowMatters(r *Request) bool { return f.everyone || f.exclusive[r.Workflow] }

// candidates lists the admissible definitions in the order of rule 6.
func (f *shaper) candidates(r *Request) []*definition {
	if r.Unrestricted {
		return f.c.defs
	}
	list := make([]*definition, 0, len(r.Admissible))
	for _, id := range r.Admissible {
		if d := f.byID[id]; d != nil {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *definition) int { return cmp.Compare(a.number, b.number) })
	return slices.Compact(list)
}

// writeKey writes everything that sets one shape apart from another.
func (f *shaper) writeKey(r *Request, array int) {
	k := f.key[:0]
	res := &r.Resources
	for _, n := range [...]uint64{
		uint64(r.Class), uint64(max(1, r.Nodes)), uint64(max(0, r.Walltime)), uint64(res.Cores),
		uint64(res.TotalMemory()), uint64(res.Exclusive), uint64(array + 1),
	} {
		k = append(strconv.AppendUint(k, n, 36), ' ')
	}
	k = strconv.AppendBool(k, res.Threads)
	k = strconv.AppendBool(k, r.Unrestricted)
	k = appendCounts(k, res.Devices)
	k = appendCounts(k, res.Tokens)
	if f.workflowMatters(r) {
		k = strconv.AppendQuote(k, string(r.Workflow))
	}
	k = append(k, '|')
	k = append(k, f.admissibleText(r.Admissible)...)
	k = append(k, '|')
	if len(r.Exclude) > 0 {
		k = appendSorted(k, r.Exclude)
	}
	f.key = k
}

// admissibleText is the same for lists of the same definitions.
func (f *shaper) admissibleText(ids []coordinator.DefinitionID) string {
	if len(ids) == 0 {
		return ""
	}
	key := admissibleKey{&ids[0], len(ids)}
	text, ok := f.admissible[key]
	if !ok {
		text = string(appendSorted(nil, ids))
		f.admissible[key] = text
	}
	return text
}

func appendSorted[T ~string](k []byte, ids []T) []byte {
	if len(ids) > 1 {
		ids = slices.Sorted(slices.Values(ids))
	}
	for _, id := range ids {
		k = append(strconv.AppendInt(k, int64(len(id)), 10), ':')
		k = append(k, id...)
	}
	return k
}

// appendCounts writes a map by name.
func appendCounts(k []byte, m map[string]uint32) []byte {
	k = append(k, '{')
	if len(m) > 1 {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			k = appendCount(k, name, m[name])
		}
		return append(k, '}')
	}
	for name, n := range m {
		k = appendCount(k, name, n)
	}
	return append(k, '}')
}

func appendCount(k []byte, name string, n uint32) []byte {
	k = strconv.AppendQuote(k, name)
	return append(strconv.AppendUint(append(k, '='), uint64(n), 36), ' ')
}
