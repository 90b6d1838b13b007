package sched

import (
	"cmp"
	"math/big"
	"slices"
	"time"

	"substrate/coordinator"
)

// naive is the dumb twin of Decide: no index, no shapes, no memory of what failed; everything is
// summed up again from lists each time it is asked for.
type naive struct {
	s     Snapshot
	now   time.Duration
	runs  []run
	plans []run
}

type run struct {
	id       coordinator.AllocationID
	workflow coordinator.WorkflowID
	res      coordinator.Resources
	nodes    []coordinator.NodeID
	from, to time.Duration
	array    string
	never    bool
	shares   []Share
}

type naiveWait struct {
	r      Request
	ahead  bool
	reason Reason // fixed in the pass; 0: to be found out afterwards
}

func naiveDecide(s Snapshot) Plan {
	n := &naive{s: s}
	for _, p := range s.Placements {
		end := never
		if p.Walltime > 0 {
			end = p.Started.Add(p.Walltime).Add(s.Config.PreemptionNotice).Sub(s.Now)
		}
		if p.Ending {
			end = min(end, s.Config.PreemptionNotice)
		}
		n.runs = append(n.runs, run{p.ID, p.Workflow, p.Resources, p.Nodes, -1, max(end, time.Second), p.Array, false, p.Shares})
	}
	queue := slices.Clone(s.Requests)
	slices.SortFunc(queue, func(a, b Request) int {
		back := func(r Request) int {
			if r.Returned {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(back(a), back(b)), cmp.Compare(s.effective(b), s.effective(a)),
			a.Submitted.Compare(b.Submitted), cmp.Compare(a.Workflow, b.Workflow), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
	})
	starts, waiting := n.pass(queue)
	plan := Plan{Starts: starts}
	position := map[coordinator.Class]int{}
	for _, w := range waiting {
		position[w.r.Class]++
		reason, rule := n.reason(w)
		plan.Waits = append(plan.Waits, Wait{ID: w.r.ID, Class: w.r.Class, Position: position[w.r.Class], Priority: s.effective(w.r),
			Verdict: Verdict{Reason: reason, Rule: rule}})
	}
	estimates := n.forward(waiting)
	for i := range plan.Waits {
		if t, ok := estimates[plan.Waits[i].ID]; ok {
			plan.Waits[i].EstimatedStart = s.Now.Add(t)
		}
	}
	return plan
}

// effective is the priority with age.
func (s Snapshot) effective(r Request) float64 {
	return r.Priority + s.Config.AgeRate*s.Now.Sub(r.Submitted).Seconds()
}

func (n *naive) forward(waiting []naiveWait) map[coordinator.AllocationID]time.Duration {
	estimates := map[coordinator.AllocationID]time.Duration{}
	for {
		next := never
		for _, r := range n.runs {
			next = min(next, r.to)
		}
		if next == never || len(waiting) == 0 {
			return estimates
		}
		n.now = next
		n.runs = slices.DeleteFunc(n.runs, func(r run) bool {
			return r.to == next
		})
		var queue []Request
		for _, w := range waiting {
			queue = append(queue, w.r)
		}
		var starts []Start
		starts, waiting = n.pass(queue)
		for _, st := range starts {
			estimates[st.ID] = n.now
		}
	}
}

func (n *naive) pass(queue []Request) (starts []Start, waiting []naiveWait) {
	n.plans = nil
	mode := n.s.Config.Backfill
	for _, r := range queue {
		w := naiveWait{r: r}
		looked := 0
		for _, o := range waiting {
			if o.r.Class != r.Class || o.reason == ReasonArrayConcurrency || n.stuck(o.r) != 0 {
				continue
			}
			looked++
			w.ahead = w.ahead || overlaps(o.r, r, n.s)
		}
		keep := mode != coordinator.BackfillNone || r.Class != coordinator.ClassBatch
		switch {
		case n.stuck(r) != 0:
		case r.Array != "" && n.inArray(r.Array) >= r.ArrayLimit:
			w.reason = ReasonArrayConcurrency
		case w.ahead && mode == coordinator.BackfillNone:
			w.reason = ReasonBlockedByOrder
		case w.ahead && n.s.Config.QueueDepth > 0 && looked >= n.s.Config.QueueDepth:
			w.reason = ReasonQueueDepth
		default:
			if def, nodes := n.choose(r, n.now, keep); nodes != nil {
				sorted := slices.Sorted(slices.Values(nodes))
				shares := n.shares(sorted, r, n.now, keep)
				n.runs = append(n.runs, run{r.ID, r.Workflow, r.Resources, nodes, n.now, n.end(r, n.now), r.Array, false, shares})
				rule := 4
				if w.ahead {
					rule = 15
				}
				starts = append(starts, Start{ID: r.ID, Definition: def, Nodes: sorted, Shares: shares, Rule: rule})
				continue
			}
			if _, nodes := n.choose(r, n.now, false); nodes != nil {
				w.reason = ReasonBackfillWouldDelayHead
				if r.Walltime <= 0 {
					w.reason = ReasonBackfillNoWalltime
				}
			}
			if !w.ahead || mode == coordinator.BackfillConservative {
				n.plan(r, keep)
			}
		}
		waiting = append(waiting, w)
	}
	return starts, waiting
}

func (n *naive) end(r Request, from time.Duration) time.Duration {
	if r.Walltime <= 0 {
		return never
	}
	return from + r.Walltime + n.s.Config.PreemptionNotice
}

func (n *naive) inArray(array string) (count int) {
	for _, r := range n.runs {
		if r.array == array {
			count++
		}
	}
	return count
}

func (n *naive) plan(r Request, keep bool) {
	times := []time.Duration{n.now}
	for _, o := range slices.Concat(n.runs, n.plans) {
		if o.to < never {
			times = append(times, o.to)
		}
	}
	slices.Sort(times)
	for _, t := range times {
		if _, nodes := n.choose(r, t, keep); nodes != nil {
			n.plans = append(n.plans, run{r.ID, r.Workflow, r.Resources, nodes, t, n.end(r, t), "", false, n.shares(nodes, r, t, keep)})
			return
		}
	}
	for _, def := range candidates(r, n.s) {
		var nodes []Node
		for _, node := range n.s.Nodes {
			if node.Definition == def.ID && node.Schedulable && n.couldHold(node, r) {
				nodes = append(nodes, node)
			}
		}
		if len(nodes) < int(max(1, r.Nodes)) {
			continue
		}
		lasting := func(id coordinator.NodeID) (count int) {
			for _, o := range n.runs {
				if o.to == never && slices.Contains(o.nodes, id) {
					count++
				}
			}
			return count
		}
		slices.SortFunc(nodes, func(a, b Node) int {
			return cmp.Or(cmp.Compare(lasting(a.ID), lasting(b.ID)), cmp.Compare(a.ID, b.ID))
		})
		p := run{id: r.ID, workflow: r.Workflow, res: r.Resources, from: never, to: never, never: true}
		for _, node := range nodes[:max(1, r.Nodes)] {
			p.nodes = append(p.nodes, node.ID)
		}
		p.shares = n.shares(p.nodes, r, never, keep)
		n.plans = append(n.plans, p)
		return
	}
}

// choose finds nodes of one definition that hold the request from a time on, for as long as it may run.
func (n *naive) choose(r Request, from time.Duration, keep bool) (coordinator.DefinitionID, []coordinator.NodeID) {
	if !n.tokensHold(r, from, keep) {
		return "", nil
	}
	for _, def := range candidates(r, n.s) {
		var open []Node
		for _, node := range n.s.Nodes {
			if node.Definition == def.ID && node.Schedulable && n.holds(node, r, from, keep) {
				open = append(open, node)
			}
		}
		if len(open) < int(max(1, r.Nodes)) {
			continue
		}
		// Look at the nodes as they are at that time: with the plans for a plan, without for a start.
		slices.SortFunc(open, func(a, b Node) int {
			if d := n.compareFullness(a, b, from, keep && from > n.now); d != 0 {
				return d
			}
			if now := n.holds(b, r, n.now, false); from > n.now && n.holds(a, r, n.now, false) != now { // is better left to others
				return order(now)
			}
			return cmp.Compare(a.ID, b.ID)
		})
		var ids []coordinator.NodeID
		for _, node := range open[:max(1, r.Nodes)] {
			ids = append(ids, node.ID)
		}
		return def.ID, ids
	}
	return "", nil
}

func (n *naive) moments(from, to time.Duration, keep bool) []time.Duration {
	times := []time.Duration{from}
	if keep {
		for _, p := range n.plans {
			if p.from > from && p.from < to {
				times = append(times, p.from)
			}
		}
	}
	return times
}

func (n *naive) there(at time.Duration, keep bool) []run {
	var list []run
	for _, r := range n.runs {
		if at < r.to {
			list = append(list, r)
		}
	}
	for _, p := range n.plans {
		if keep && p.from <= at && at < p.to {
			list = append(list, p)
		}
	}
	return list
}

func (n *naive) tokensHold(r Request, from time.Duration, keep bool) bool {
	to := n.end(r, from)
	for name, want := range r.Resources.Tokens {
		if want == 0 {
			continue
		}
		for _, p := range n.plans {
			if keep && p.never && to == never && p.res.Tokens[name] > 0 {
				return false
			}
		}
		for _, t := range n.moments(from, to, keep) {
			used := uint64(want)
			for _, o := range n.there(t, keep) {
				used += uint64(o.res.Tokens[name])
			}
			if used > uint64(n.s.Tokens[name]) {
				return false
			}
		}
	}
	return true
}

func (n *naive) holds(node Node, r Request, from time.Duration, keep bool) bool {
	to := n.end(r, from)
	for _, p := range n.plans {
		if keep && p.never && to == never && slices.Contains(p.nodes, node.ID) {
			return false
		}
	}
	moments := n.moments(from, to, keep)
	for _, t := range moments {
		if !n.fitsAt(node, r, t, keep) {
			return false
		}
	}
	_, ok := n.share(node, r, moments, keep)
	return ok && n.couldHold(node, r)
}

// couldHold is fitting on the empty node.
func (n *naive) couldHold(node Node, r Request) bool {
	empty := naive{s: n.s}
	return !slices.Contains(r.Exclude, node.ID) && empty.fitsAt(node, r, 0, false)
}

func (n *naive) free(node Node, at time.Duration, keep bool) (cores int64, memory *big.Int, devices map[string]int64) {
	cores, memory, devices = int64(node.Cores), bytes(node.Memory), map[string]int64{}
	for name, count := range usableDevices(node) {
		devices[name] = count
	}
	for _, o := range n.there(at, keep) {
		if !slices.Contains(o.nodes, node.ID) {
			continue
		}
		cores -= wholeCores(node, o.res)
		memory.Sub(memory, bytes(o.res.TotalMemory()))
		for name, count := range o.res.Devices {
			devices[name] -= countOf(node, o, name, count)
		}
	}
	return cores, memory, devices
}

func bytes(n coordinator.Bytes) *big.Int { return new(big.Int).SetUint64(uint64(n)) }

func notBelowZero(n *big.Int) *big.Int {
	if n.Sign() < 0 {
		return new(big.Int)
	}
	return n
}

func wholeCores(node Node, r coordinator.Resources) int64 {
	per := int64(1)
	if node.Cores > 0 && node.Threads > uint32(node.Cores) {
		per = int64(node.Threads) / int64(node.Cores)
	}
	if !r.Threads {
		return int64(r.Cores)
	}
	return (int64(r.Cores) + per - 1) / per
}

func (n *naive) fitsAt(node Node, r Request, at time.Duration, keep bool) bool {
	cores, memory, devices := n.free(node, at, keep)
	if wholeCores(node, r.Resources) > max(0, cores) || bytes(r.Resources.TotalMemory()).Cmp(notBelowZero(memory)) > 0 {
		return false
	}
	for name, count := range r.Resources.Devices {
		if count > 0 && int64(count) > devices[name] {
			return false
		}
	}
	if _, ok := n.share(node, r, []time.Duration{at}, keep); !ok {
		return false
	}
	modes := n.modes(node, r.Resources)
	others := map[coordinator.WorkflowID]bool{}
	for _, o := range n.there(at, keep) {
		if slices.Contains(o.nodes, node.ID) {
			modes = append(modes, n.modes(node, o.res)...)
			others[o.workflow] = true
		}
	}
	switch {
	case len(others) == 0:
		return true
	case slices.Contains(modes, coordinator.ExclusiveJob):
		return false
	case slices.Contains(modes, coordinator.ExclusiveWorkflow):
		return len(others) == 1 && others[r.Workflow]
	}
	return true
}

func (n *naive) modes(node Node, r coordinator.Resources) []coordinator.Exclusive {
	i := slices.IndexFunc(n.s.Definitions, func(d Definition) bool { return d.ID == node.Definition })
	if i < 0 {
		return []coordinator.Exclusive{r.Exclusive}
	}
	return []coordinator.Exclusive{r.Exclusive, n.s.Definitions[i].Exclusive}
}

func (n *naive) compareFullness(a, b Node, at time.Duration, keep bool) int {
	key := func(node Node) (gpus bool, free, cores int64, memory *big.Int) {
		cores, memory, devices := n.free(node, at, keep)
		for _, left := range devices {
			free += max(0, left)
		}
		for _, count := range usableDevices(node) {
			gpus = gpus || count > 0
		}
		return gpus, free, max(0, cores), notBelowZero(memory)
	}
	gpusA, freeA, coresA, memoryA := key(a)
	gpusB, freeB, coresB, memoryB := key(b)
	if gpusA != gpusB {
		if gpusB {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(freeA, freeB), cmp.Compare(coresA, coresB), memoryA.Cmp(memoryB))
}

func candidates(r Request, s Snapshot) []Definition {
	var list []Definition
	for _, d := range s.Definitions {
		if r.Unrestricted || slices.Contains(r.Admissible, d.ID) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b Definition) int {
		return cmp.Or(cmp.Compare(a.CostPerHour, b.CostPerHour), cmp.Compare(a.Order, b.Order), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func overlaps(a, b Request, s Snapshot) bool {
	for _, d := range candidates(a, s) {
		for _, e := range candidates(b, s) {
			if d.ID == e.ID {
				return true
			}
		}
	}
	for name, n := range a.Resources.Tokens {
		if n > 0 && b.Resources.Tokens[name] > 0 {
			return true
		}
	}
	return false
}

// stuck is the reason why no end of running work helps, 0 if one does.
func (n *naive) stuck(r Request) Reason {
	defs := candidates(r, n.s)
	if len(defs) == 0 {
		return ReasonNoAdmissibleDefinition
	}
	for name, count := range r.Resources.Tokens {
		if count > n.s.Tokens[name] {
			return ReasonTokenExhausted
		}
	}
	want := int(max(1, r.Nodes))
	var drained, unknown, few, empty, small bool
	for _, d := range defs {
		ready, large, all := 0, 0, 0
		for _, node := range n.s.Nodes {
			if node.Definition != d.ID {
				continue
			}
			all++
			switch {
			case slices.Contains(r.Exclude, node.ID):
			case !n.couldHold(node, r):
				small, unknown = true, unknown || n.unknowable(node, r)
			default:
				large++
				if node.Schedulable {
					ready++
				}
			}
		}
		if ready >= want {
			return 0
		}
		drained = drained || large >= want
		few = few || large > 0 && large < want || all == 0
		empty = empty || all == 0
	}
	switch {
	case drained:
		return ReasonDrained
	case unknown:
		return ReasonHardwareUnknown
	case few || empty:
		return ReasonNoNode
	case small:
		return ReasonInsufficientResources
	}
	return ReasonNoAdmissibleDefinition
}

func (n *naive) reason(w naiveWait) (Reason, int) {
	rules := map[Reason]int{ReasonNoAdmissibleDefinition: 6, ReasonTokenExhausted: 9, ReasonDrained: 25, ReasonNoNode: 6, ReasonHardwareUnknown: 6,
		ReasonInsufficientResources: 5, ReasonArrayConcurrency: 5, ReasonBlockedByOrder: 4, ReasonQueueDepth: 15,
		ReasonBackfillNoWalltime: 15, ReasonBackfillWouldDelayHead: 15}
	if reason := n.stuck(w.r); reason != 0 {
		return reason, rules[reason]
	}
	if w.reason != 0 {
		return w.reason, rules[w.reason]
	}
	if !n.tokensHold(w.r, n.now, false) {
		return ReasonTokenExhausted, 9
	}
	if w.ahead {
		return ReasonBackfillNoFit, 15
	}
	return ReasonInsufficientResources, 5
}
