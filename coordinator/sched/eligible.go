package sched

import (
	"math"
	"slices"
	"time"

	"substrate/coordinator"
)

// occupant is what of a placement decides whether it may be made to give way (rule 17).
type occupant struct {
	class       coordinator.Class
	preemptible bool
	left        int32 // preemptions that it may still suffer; negative: no limit
	group       int32
	priority    float64 // at age 0
	submitted   time.Duration
	started     time.Duration // its last start
}

// contender is a blocked allocation as far as others may have to give way to it.
type contender struct {
	class    coordinator.Class
	preempts []int32 // groups, ascending
	priority float64 // with age
}

// preemptRules is the part of the configuration that rule 17 names.
type preemptRules struct {
	enabled    bool
	threshold  float64
	gap        float64
	minRuntime time.Duration
	ageRate    float64
}

// noAge is the submission of work that is given its priority with age.
const noAge = -never

// aged is a priority with age.
func (r *preemptRules) aged(priority float64, submitted, now time.Duration) float64 {
	if r.ageRate == 0 || submitted == noAge {
		return priority
	}
	return priority + r.ageRate*(now-submitted).Seconds()
}

// refusal says why an occupant does not give way. Each later one means that more of the conditions are met.
type refusal uint8

const (
	mayPreempt        refusal = iota
	refusedClass              // reserved work, or a class before the contender's
	refusedDisabled           // by class it need not, and preemption by group is off
	refusedGroup              // its group is not on the list
	refusedUnmarked           // it is not preemptible
	refusedThreshold          // the contender's priority is below the threshold
	refusedRank               // its priority is not lower
	refusedGap                // it is lower by less than the gap
	refusedSpent              // it was preempted as often as it may be
	refusedMinRuntime         // it has not run long enough
)

// judge applies rule 17. owner says that the contender owns the reserved room that the occupant sits on.
func (r *preemptRules) judge(b *contender, o *occupant, owner bool, now time.Duration) (PreemptKind, refusal) {
	if now <= o.started { // nothing starts and is told to end by the same decision
		return PreemptGroup, refusedMinRuntime
	}
	if o.class == coordinator.ClassBatch && b.class < coordinator.ClassBatch {
		if owner && b.class == coordinator.ClassReserved {
			return PreemptReservation, mayPreempt
		}
		if b.class == coordinator.ClassOnDemand {
			return PreemptClass, r.protected(o, now)
		}
	}
	return PreemptGroup, r.judgeGroup(b, o, now)
}

func (r *preemptRules) judgeGroup(b *contender, o *occupant, now time.Duration) refusal {
	// Work of an earlier class would only take its room back by class.
	if o.class <= coordinator.ClassReserved || o.class < b.class {
		return refusedClass
	}
	if !r.enabled {
		return refusedDisabled
	}
	if _, listed := slices.BinarySearch(b.preempts, o.group); !listed {
		return refusedGroup
	}
	if !o.preemptible {
		return refusedUnmarked
	}
	if !(b.priority >= r.threshold) {
		return refusedThreshold
	}
	gap := b.priority - r.aged(o.priority, o.submitted, now)
	if !(gap > 0) {
		return refusedRank
	}
	if !(gap >= r.gap) {
		return refusedGap
	}
	return r.protected(o, now)
}

// protected is what shields an occupant that would have to give way otherwise.
func (r *preemptRules) protected(o *occupant, now time.Duration) refusal {
	if o.left == 0 {
		return refusedSpent
	}
	if now-o.started < r.minRuntime {
		return refusedMinRuntime
	}
	return mayPreempt
}

// exposed is when an occupant that started at a time is not protected any more.
func (r *preemptRules) exposed(started time.Duration, owner bool) time.Duration {
	if owner {
		return later(started, epsilon)
	}
	return later(started, max(r.minRuntime, epsilon))
}

// standing is what of a request decides who gives way to it, and what of it as a placement decides to whom it does.
type standing struct {
	preempts    []int32 // groups, ascending; shared
	group       int32
	left        int32
	preemptible bool
}

// occupant is what the entry becomes when it starts.
func (e *entry) occupant(class coordinator.Class, started time.Duration) occupant {
	return occupant{
		class: class, preemptible: e.preemptible, left: e.left, group: e.group,
		priority: e.priority, submitted: e.submitted, started: started,
	}
}

// groups numbers the groups that are named, and shares equal lists of them.
type groups struct {
	numbers map[coordinator.GroupID]int32
	lists   map[string][]int32
}

func (g *groups) number(id coordinator.GroupID) int32 {
	n, ok := g.numbers[id]
	if !ok {
		if g.numbers == nil {
			g.numbers = make(map[coordinator.GroupID]int32)
		}
		n = int32(len(g.numbers))
		g.numbers[id] = n
	}
	return n
}

// list is the numbers of groups in ascending order.
func (g *groups) list(ids []coordinator.GroupID) []int32 {
	if len(ids) == 0 {
		return nil
	}
	key := string(appendSorted(nil, ids))
	if list, ok := g.lists[key]; ok {
		return list
	}
	list := make([]int32, 0, len(ids))
	for _, id := range ids {
		list = append(list, g.number(id))
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if g.lists == nil || len(g.lists) >= maxLists {
		g.lists = make(map[string][]int32)
	}
	g.lists[key] = list
	return list
}

func (s *Scheduler) standingOf(r *Request) standing {
	return standing{
		preempts: s.groups.list(r.Preempts), group: s.groups.number(r.Group),
		left: clamp(r.PreemptionsLeft), preemptible: r.Preemptible,
	}
}

// claimOf is the claim of a placement with what makes it give way or not.
func (s *Scheduler) claimOf(p *Placement) *claim {
	h := s.c.claimOf(p)
	h.reservation = p.Reservation
	h.occupant = occupant{
		class: p.Class, preemptible: p.Preemptible, left: clamp(p.PreemptionsLeft), group: s.groups.number(p.Group),
		priority: number(p.Priority), submitted: noAge, started: since(p.Started),
	}
	if !p.Submitted.IsZero() {
		h.submitted = since(p.Submitted)
	}
	return h
}

func clamp(n int) int32 { return int32(min(max(n, -1), math.MaxInt32)) }

// number is zero for what is none.
func number(x float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return x
}

func rulesOf(c *Config) preemptRules {
	return preemptRules{
		enabled: c.PreemptionEnabled, threshold: number(c.PreemptionThreshold), gap: number(c.PreemptionGap),
		minRuntime: c.MinPreemptionRuntime, ageRate: c.AgeRate,
	}
}
