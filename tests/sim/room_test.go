package sim

import (
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
)

// plan is room that one write holds for somebody, with those that it asks to go.
type plan struct {
	holder *allocation
	held   *holdRecord
	told   map[coordinator.RunID]*allocation
}

// inVain judges whether each victim of the plans of a write has to go (rule 19): with it still there, and all that was decided before,
// the room that is held would not be.
func (j *judge) inVain() {
	for i, p := range j.plans {
		if j.respects(p) {
			continue // room that is planned for others counts, too, and is in no record
		}
		for _, run := range slices.Sorted(maps.Keys(p.told)) {
			j.w.count("victims weighed")
			if !j.needed(p, p.told[run], j.plans[i+1:]) {
				j.w.fail("%s need not go for %s", run, p.holder.id)
			}
		}
	}
}

// respects reports whether a plan may have had to leave room to planned starts.
func (j *judge) respects(p *plan) bool {
	if j.now.backfill == "none" && p.holder.spec.Class == coordinator.ClassBatch {
		return false
	}
	for _, a := range j.allocs {
		waits := a != p.holder && a.record.Status == coordinator.StatusQueued && a.spec.Class <= p.holder.spec.Class
		if waits && (j.now.backfill != "none" || a.spec.Class == coordinator.ClassReserved) {
			return true
		}
	}
	return false
}

// needed: with the victim still there, what is held would not fit. Plans that came later in the same write say nothing of it.
func (j *judge) needed(p *plan, victim *allocation, later []*plan) bool {
	held := j.holdsBut(later)
	stays := func(a *allocation) bool { return a == victim || !j.dying(a, p, held, later) }
	for _, s := range p.held.Shares {
		n := j.w.node(s.Node)
		i := slices.IndexFunc(victim.record.Ranks, func(r rankRecord) bool { return r.Node == s.Node })
		if n == nil || i < 0 {
			continue
		}
		if slices.ContainsFunc(victim.record.Ranks[i].Devices, func(g string) bool { return slices.Contains(s.Devices, g) }) {
			return true
		}
		if p.holder.spec.Resources.Exclusive != coordinator.ExclusiveNone || victim.spec.Resources.Exclusive != coordinator.ExclusiveNone ||
			p.holder.spec.Resources.Affinity != coordinator.AffinityNone || len(s.Devices) > 0 || j.reserved(n) {
			return true // shares of domains and the cores near GPUs are finer than what is added up here
		}
		need := j.load(n, stays)
		for id, h := range held {
			if h.on(n) {
				need.add(j.find(id))
			}
		}
		if !need.fits(n.machine) {
			return true
		}
	}
	const kind = "licence"
	if p.holder.spec.Resources.Tokens[kind] == 0 || victim.spec.Resources.Tokens[kind] == 0 {
		return false
	}
	sum := uint32(0)
	for _, a := range j.active {
		if stays(a) {
			sum += a.spec.Resources.Tokens[kind]
		}
	}
	for id := range held {
		sum += j.find(id).spec.Resources.Tokens[kind]
	}
	return sum > uint32(j.now.licences)
}

// holdsBut lists the holds of those who wait, without those of some plans.
func (j *judge) holdsBut(later []*plan) map[coordinator.AllocationID]*holdRecord {
	out := map[coordinator.AllocationID]*holdRecord{}
	for id, h := range j.holds {
		if a := j.find(id); a == nil || !a.waits() || slices.ContainsFunc(later, func(p *plan) bool { return p.holder == a }) {
			continue
		}
		out[id] = h
	}
	return out
}

func (h *holdRecord) on(n *vnode) bool {
	return slices.ContainsFunc(h.Shares, func(s heldShare) bool { return s.Node == n.id })
}

// dying reports whether a plan could rely on somebody's end: it was asked for before, or its walltime is over within
// the notice (rule 22).
func (j *judge) dying(a *allocation, p *plan, held map[coordinator.AllocationID]*holdRecord, later []*plan) bool {
	for _, h := range held {
		if h.victims[a.run()] {
			return true
		}
	}
	for _, l := range later {
		if l.told[a.run()] != nil {
			return false
		}
	}
	if a.record.Stop != "" && a.stopped < j.write {
		return true
	}
	began := a.record.Started
	if began.IsZero() {
		began = a.record.Placed
	}
	return a.spec.Walltime > 0 && !began.Add(a.spec.Walltime).After(p.held.Since.Add(j.now.notice))
}

// reserved reports whether something of a node's definition is, or will be, kept for somebody.
func (j *judge) reserved(n *vnode) bool {
	for _, r := range j.reservations {
		if r.Definition == n.definition && r.Until.After(time.Now()) {
			return true
		}
	}
	return false
}

// load is what is taken of a node.
type load struct {
	cores  int
	memory uint64
	gpus   int
}

func (l *load) add(a *allocation) {
	r := a.spec.Resources
	l.cores += int(r.Cores)
	l.memory += uint64(r.TotalMemory())
	l.gpus += int(r.Devices["nvidia.com/gpu"])
}

func (l load) fits(m *machine) bool {
	return l.cores <= m.cores && l.memory <= m.memory && l.gpus <= m.gpus()
}

// load adds up what the records promise of a node.
func (j *judge) load(n *vnode, counts func(*allocation) bool) (l load) {
	for _, a := range j.active {
		if slices.ContainsFunc(a.record.Ranks, func(r rankRecord) bool { return r.Node == n.id }) && counts(a) {
			l.add(a)
		}
	}
	return l
}

// room adds up what the records of a node promise, after a whole write: once what runs, and once what would run when
// all that is asked to go has gone, and those for whom room is held have begun (rule 20).
func (j *judge) room(n *vnode) {
	runs := func(a *allocation) bool { // an end may be in a later group than the start that it makes room for
		p := j.procs[a.run()][n.id]
		return p == nil || p.ended.IsZero()
	}
	all := j.load(n, runs)
	if !all.fits(n.machine) {
		j.w.fail("the records promise %+v of %s", all, n.id)
	}
	j.gpusTwice(n, "the records give", runs, nil)
	held := map[coordinator.AllocationID]*holdRecord{}
	for id, h := range j.holds {
		if a := j.find(id); a != nil && a.waits() && !j.undone[id] && h.on(n) {
			held[id] = h
		}
	}
	if len(held) == 0 {
		return
	}
	stays := func(a *allocation) bool {
		for _, h := range j.holds {
			if h.victims[a.run()] {
				return false
			}
		}
		return runs(a) && a.record.Stop == ""
	}
	after := j.load(n, stays)
	for id := range held {
		after.add(j.find(id))
	}
	if !after.fits(n.machine) {
		j.w.fail("what is held on %s for %v does not fit beside what stays: %+v", n.id, slices.Sorted(maps.Keys(held)), after)
	}
	j.gpusTwice(n, "what is held and stays has", stays, held)
}

// gpusTwice fails if a GPU of a node belongs to two.
func (j *judge) gpusTwice(n *vnode, what string, counts func(*allocation) bool, held map[coordinator.AllocationID]*holdRecord) {
	used := map[string]coordinator.AllocationID{}
	take := func(id coordinator.AllocationID, devices []string) {
		for _, g := range devices {
			if used[g] != "" {
				j.w.fail("%s GPU %s of %s for %s and for %s", what, g, n.id, used[g], id)
			}
			used[g] = id
		}
	}
	for _, a := range j.active {
		for _, r := range a.record.Ranks {
			if r.Node == n.id && counts(a) {
				take(a.id, r.Devices)
			}
		}
	}
	for id, h := range held {
		for _, s := range h.Shares {
			if s.Node == n.id {
				take(id, s.Devices)
			}
		}
	}
}

// unasked: after a whole write nobody runs on without a notice that a stored plan says was given. After a crash between the two
// the next life gives it.
func (j *judge) unasked() {
	for id, h := range j.holds {
		for _, v := range h.Told {
			if a := j.active[v.ID]; a != nil && a.record.Attempt == v.Attempt && a.record.Stop == "" && !j.undone[id] {
				j.w.fail("%s has no notice, though the plan for %s is stored", a.run(), id)
			}
		}
	}
}
