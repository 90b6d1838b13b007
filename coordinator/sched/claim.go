package sched

import (
	"cmp"
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

const (
	never   = time.Duration(math.MaxInt64) // past every known end
	epsilon = time.Second                  // an overdue placement ends this much later (rule 14)
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
	affinity  coordinator.Affinity
	sockets   uint32
	memory    uint64
	loose     bool     // it does not matter how its GPUs are joined
	devices   []amount // by name
	tokens    []amount // by name
	exclusive coordinator.Exclusive
}

// claim occupies nodes and tokens from one time to another: a placement, a start or a plan.
type claim struct {
	id       coordinator.AllocationID
	workflow coordinator.WorkflowID
	need     *need
	nodes    []*node // by id
	shares   []Share // what is known of the share of each; nil: nothing
	array    *array  // nil: none
	from, to time.Duration
	ending   bool // a stop is under way
	plan     bool // nothing is occupied yet
	occupant
	killAt time.Duration // with ending; 0: not known
	hold   *hold         // it is one: it occupies its nodes for the holder
	victim int           // holds that wait for its end
	gone   bool          // scratch: as if it had ended

	reservation ReservationID // that it runs in
	booking     *booking      // likewise, of a start
}

// atNever marks the plan of a request that no known end lets start.
func (h *claim) atNever() bool { return h.from == never }

// lasts reports whether the claim has no known end.
func (h *claim) lasts() bool { return h.to == never && !h.ending }

// occupies reports whether the claim takes the same as another one from the same nodes.
func (h *claim) occupies(o *claim) bool {
	return h.workflow == o.workflow && h.array == o.array && slices.Equal(h.nodes, o.nodes) && h.need.same(o.need) &&
		slices.EqualFunc(h.shares, o.shares, sameShare)
}

func (w *need) same(o *need) bool {
	return w.cores == o.cores && w.threads == o.threads && w.affinity == o.affinity && w.sockets == o.sockets && w.memory == o.memory && w.exclusive == o.exclusive &&
		slices.Equal(w.devices, o.devices) && slices.Equal(w.tokens, o.tokens)
}

// token is one kind of licence: how many there are, who has claimed them and who is planned to.
type token struct {
	number int
	total  uint64
	used   uint64
	claims []*claim
	holds  []*claim
	plans  []*claim
	freed  uint64 // grows with each claim that ends
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

// names numbers the device kinds and tokens of a cluster.
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
