package sched

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"substrate/coordinator"
)

// shape is what requests have in common that the decision treats alike: one search answers for all.
type shape struct {
	key      string
	proto    Request // one of them
	queue    ordered
	q        *classQueue
	index    int // among the shapes of the class
	need     *need
	count    int           // nodes
	span     time.Duration // walltime + notice; never without walltime
	defs     []*definition // candidates
	exclude  map[coordinator.NodeID]bool
	workflow coordinator.WorkflowID
	array    *array // nil: none
	limit    int    // places in the array

	// stuck is why no end of running work helps, nil if one does; judged again when its nodes change.
	stuck   *Verdict
	judged  bool
	altered uint64 // of the cluster, when it was judged
	ofNodes uint64 // of its definitions and the totals, likewise

	// roomless: as long as nothing got free in its definitions and tokens, there is no room for it.
	roomless bool
	freed    uint64 // of the cluster
	ofRoom   uint64 // of its definitions and tokens

	at    place  // the pass has come to
	head  *entry // there
	taken place  // those before it have started
	party party
	held  bool // somebody for whom room is held: it stands outside the order
	own   bool // it was made for one such
	vain  futile
	passed
}

// futile is an attempt to make room in vain, as estimates step forward: nobody could be a victim.
type futile struct {
	of      *entry // nil: there was none
	booking *booking
	until   time.Duration // somebody loses protection
	offered int           // who started later was not asked
}

// passed is what became of a shape in a pass.
type passed struct {
	pass   int
	failed bool   // could not start: nor can the next one like it
	first  *entry // that failed
	shut   bool   // maintenance keeps it from every node
	lined  bool   // its definitions and tokens are closed to later work
	ahead  *entry // the first waiting one that overlaps it; once there is one, it stays the same
	room   *node  // where it would have fitted if no plan were in the way
	seen   []*node
	until  *entry // with its start the room was gone, nil: it lasted
	plan   *claim // planned start of the first that failed
	tried  *attempt
	words  [headVerdict + 1]*Verdict
}

func (s *shape) reservation() ReservationID {
	if s.party.booking == nil {
		return ""
	}
	return s.party.booking.ID
}

func (s *shape) excludes(n *node) bool { return s.exclude != nil && s.exclude[n.id] }

// renew forgets what an earlier pass found.
func (s *shape) renew(pass int) {
	if s.pass != pass {
		s.passed = passed{pass: pass, seen: s.seen[:0]}
	}
}

// move goes to a place in the queue and reports whether somebody is there.
func (s *shape) move(p place) bool {
	s.at, s.head = p, s.queue.at(p)
	return s.head != nil
}

// hopeless reports whether nothing that the shape could use got free since it had no room.
func (s *shape) hopeless(c *cluster) bool {
	if !s.roomless || s.freed == c.freed {
		return s.roomless
	}
	s.freed, s.roomless = c.freed, s.ofRoom == s.freedSum(c)
	return s.roomless
}

func (s *shape) noRoom(c *cluster) {
	s.roomless, s.freed, s.ofRoom = true, c.freed, s.freedSum(c)
}

// freedSum grows whenever something that the shape could use may have got free.
func (s *shape) freedSum(c *cluster) uint64 {
	sum := uint64(0)
	for _, d := range s.defs {
		sum += d.freed
	}
	for _, a := range s.need.tokens {
		sum += c.tokens[a.kind].freed
	}
	return sum
}

// judge says whether any end of running work helps the shape.
func (s *shape) judge(c *cluster) *Verdict {
	if s.judged && s.altered == c.altered {
		return s.stuck
	}
	sum := uint64(0)
	for _, d := range s.defs {
		sum += d.altered
	}
	if !s.judged || sum != s.ofNodes {
		s.stuck = c.stuckVerdict(s)
	}
	s.judged, s.altered, s.ofNodes = true, c.altered, sum
	return s.stuck
}

// shaper gives requests that are alike the same shape.
type shaper struct {
	c        *cluster
	byKey    map[string]*shape
	sets     map[string]int        // numbers of sets of admissible definitions
	lists    map[admissibleKey]int // the same for lists that have been seen
	everyone bool                  // some definition is held per workflow
	key      []byte
}

// admissibleKey recognises a list that many requests share. It keeps the list from being reused.
type admissibleKey struct {
	first *coordinator.DefinitionID
	count int
}

const maxLists = 4096

func newShaper(c *cluster) *shaper {
	f := &shaper{c: c, byKey: make(map[string]*shape), sets: make(map[string]int), lists: make(map[admissibleKey]int)}
	for _, d := range c.defs {
		f.everyone = f.everyone || d.exclusive == coordinator.ExclusiveWorkflow
	}
	return f
}

// shapeOf finds or makes the shape of a request. apart says that its workflow sets it apart, held that it has a
// hold and so is alone.
func (f *shaper) shapeOf(r *Request, apart, held bool) *shape {
	f.writeKey(r, apart || f.everyone)
	if held {
		f.key = strconv.AppendQuote(append(f.key, '!'), string(r.ID))
	}
	if s := f.byKey[string(f.key)]; s != nil {
		return s
	}
	s := &shape{
		key: string(f.key), proto: *r, need: f.c.needOf(&r.Resources), count: int(max(1, r.Nodes)),
		span: never, defs: f.candidates(r), array: f.c.arrayOf(r.Array), limit: r.ArrayLimit,
		// Where workflows do not matter, any one of those alike stands for the others: none of
		// them is the workflow of an exclusive holder.
		workflow: r.Workflow, held: held, own: held, party: party{class: r.Class},
	}
	s.need.loose = r.Loose
	if r.Walltime > 0 {
		s.span = later(r.Walltime, f.c.notice)
	}
	for _, id := range r.Exclude {
		if s.exclude == nil {
			s.exclude = make(map[coordinator.NodeID]bool, len(r.Exclude))
		}
		s.exclude[id] = true
	}
	f.byKey[s.key] = s
	return s
}

// candidates lists the admissible definitions in the order of rule 6.
func (f *shaper) candidates(r *Request) []*definition {
	if r.Unrestricted {
		return f.c.defs
	}
	list := make([]*definition, 0, len(r.Admissible))
	for _, id := range r.Admissible {
		if d := f.c.byID[id]; d != nil {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b *definition) int { return cmp.Compare(a.number, b.number) })
	return slices.Compact(list)
}

// writeKey writes everything that sets one shape apart from another.
func (f *shaper) writeKey(r *Request, apart bool) {
	k := f.key[:0]
	res := &r.Resources
	for _, n := range [...]uint64{
		uint64(r.Class), uint64(max(1, r.Nodes)), uint64(max(0, r.Walltime)), uint64(res.Cores),
		uint64(res.TotalMemory()), uint64(res.Exclusive), uint64(f.setOf(r.Admissible)), uint64(int64(r.ArrayLimit)),
	} {
		k = append(strconv.AppendUint(k, n, 36), ' ')
	}
	k = append(strconv.AppendUint(k, uint64(res.Affinity), 36), ' ')
	k = append(strconv.AppendUint(k, uint64(res.Sockets), 36), ' ')
	for _, b := range [...]bool{res.Threads, r.Unrestricted, r.Loose} {
		k = strconv.AppendBool(k, b)
	}
	k = appendCounts(k, res.Devices)
	k = appendCounts(k, res.Tokens)
	if r.Array != "" {
		k = strconv.AppendQuote(k, r.Array)
	}
	if apart {
		k = strconv.AppendQuote(append(k, '@'), string(r.Workflow))
	}
	if r.Class == coordinator.ClassReserved {
		for _, owner := range [...]string{string(r.Organization), string(r.Group), string(r.Reservation)} {
			k = strconv.AppendQuote(append(k, '%'), owner)
		}
	}
	if len(r.Exclude) > 0 {
		k = appendSorted(append(k, '|'), r.Exclude)
	}
	f.key = k
}

// setOf is the same number for lists of the same definitions.
func (f *shaper) setOf(ids []coordinator.DefinitionID) int {
	if len(ids) == 0 {
		return 0
	}
	key := admissibleKey{&ids[0], len(ids)}
	if n, ok := f.lists[key]; ok {
		return n
	}
	text := string(appendSorted(nil, ids))
	n, ok := f.sets[text]
	if !ok {
		n = len(f.sets) + 1
		f.sets[text] = n
	}
	if len(f.lists) == maxLists {
		clear(f.lists)
	}
	f.lists[key] = n
	return n
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
