package sim

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

// placed judges a start that has been decided (rules 4 to 9 and 25, as far as records tell).
func (j *judge) placed(a *allocation, was allocRecord) {
	j.w.count("placements")
	if n := int(max(a.spec.Nodes, 1)); len(a.record.Ranks) != n {
		j.w.fail("%s is placed on %d of %d nodes", a.id, len(a.record.Ranks), n)
	}
	seen := map[string]bool{}
	gpus := int(a.spec.Resources.Devices["nvidia.com/gpu"])
	for _, r := range a.record.Ranks {
		n := j.w.node(r.Node)
		switch {
		case n == nil || seen[r.Node]:
			j.w.fail("%s is placed on %s, which is unknown or named twice", a.id, r.Node)
			continue
		case n.scheduling != "" || n.lost:
			j.w.fail("%s is placed on %s, which is %q, lost %v", a.id, r.Node, n.scheduling, n.lost)
		case a.record.Definition != n.definition:
			j.w.fail("%s is placed by %s on %s of %s", a.id, a.record.Definition, r.Node, n.definition)
		case len(r.Devices) != gpus:
			j.w.fail("%s gets GPUs %v on %s, it asked for %d", a.id, r.Devices, r.Node, gpus)
		}
		seen[r.Node] = true
		if until := a.record.Placed.Add(a.spec.Walltime); a.spec.Walltime > 0 && j.maintained(r.Node, a.record.Placed, until) {
			j.w.fail("%s is placed on %s until %s at the latest, in maintenance", a.id, r.Node, stamp(until.Sub(j.w.began)))
		}
		for _, h := range j.promised(a.id, r) {
			j.w.fail("%s gets what is held for %s on %s", a.id, h, r.Node)
		}
	}
	for _, d := range a.spec.DependsOn {
		if d.Status == coordinator.DependsFinished && !j.allFinished(a.flow, d.Name) {
			j.w.fail("%s starts before %s has finished", a.id, d.Name)
		}
	}
	if was.Status.Ended() {
		j.w.fail("%s starts again after it was %s", a.id, was.Status)
	}
}

// promised lists for whom else GPUs of a rank are held.
func (j *judge) promised(id coordinator.AllocationID, r rankRecord) (out []coordinator.AllocationID) {
	for holder, h := range j.holds {
		if a := j.find(holder); holder == id || a == nil || !a.waits() {
			continue
		}
		for _, s := range h.Shares {
			if s.Node == r.Node && slices.ContainsFunc(r.Devices, func(g string) bool { return slices.Contains(s.Devices, g) }) {
				out = append(out, holder)
			}
		}
	}
	return out
}

func (j *judge) allFinished(flow coordinator.WorkflowID, name string) bool {
	a := j.find(coordinator.AllocationID(string(flow) + "/" + name))
	return a == nil || a.spec.Array != nil || a.record.Status == coordinator.StatusFinished
}

// clockSlip is how long after a turn decided what it writes may become durable.
const clockSlip = 10 * time.Second

// notice: who is asked to end stands in a plan that is durable before it, or on a node that is drained.
func (j *judge) notice(a *allocation, was allocRecord) {
	j.w.count("victims")
	if _, ok := j.told[a.run()]; ok {
		return
	}
	for _, r := range a.record.Ranks {
		if n := j.w.node(r.Node); n != nil && (n.scheduling == "draining" || j.maintained(r.Node, time.Now().Add(-clockSlip), time.Now())) && a.spec.Class == coordinator.ClassBatch {
			return
		}
	}
	j.w.fail("%s is given notice without a plan", a.run())
}

// hold judges a plan: whom it is for, whom it asks to go, and whether all of that is needed (rules 17 to 20).
func (j *judge) hold(id coordinator.AllocationID, rec *holdRecord, touched map[string]bool) {
	was := j.holds[id]
	j.holds[id] = rec
	for _, s := range rec.Shares {
		touched[s.Node] = true
	}
	if was != nil && was.Since.Equal(rec.Since) {
		return // written again after an outcome that was not told
	}
	j.w.count("plans")
	for _, v := range rec.Victims {
		if a := j.find(v); a != nil {
			j.leaving[a.run()] = true
		}
	}
	holder := j.find(id)
	if holder == nil || !holder.waits() {
		j.w.fail("room is held for %s, which does not wait", id)
		return
	}
	j.w.step("room is held for %s: %d victims, on %v, by the end of %v", id, len(rec.Told), rec.Shares, rec.Victims)
	for _, v := range rec.Told {
		run := v.ID.Run(v.Attempt)
		victim := j.find(v.ID)
		if by, ok := j.told[run]; ok {
			j.w.fail("%s is asked to go for %s, and was already for %s", run, id, by)
		}
		j.told[run] = id
		if victim == nil || victim.run() != run || !victim.record.Status.Holds() || victim.record.Stop != "" {
			j.w.fail("%s is asked to go for %s, it does not run", run, id)
			continue
		}
		if notice := v.NoticeEnds.Sub(rec.Since); notice < j.now.notice {
			j.w.fail("%s is given %s, the notice is %s", run, notice, j.now.notice)
		}
		if why := j.spared(holder, victim, rec.Since); why != "" {
			j.w.fail("%s must not go for %s: %s", run, id, why)
		}
		if !j.needed(holder, rec, victim) { // counts alone do not tell: see the package comment
			j.w.count("victims to look at")
			j.w.step("LOOK: %s need not go for %s by counts", run, id)
		}

	}
}

// spared is why one may not be taken for another, "" if it may.
func (j *judge) spared(holder, victim *allocation, at time.Time) string {
	since := victim.record.Started
	if since.IsZero() {
		since = victim.record.Placed
	}
	most := victim.spec.PreemptionsMax
	switch {
	case victim.spec.Class == coordinator.ClassReserved:
		return "it is reserved work"
	case holder.spec.Class == coordinator.ClassReserved && victim.spec.Class == coordinator.ClassBatch:
		return "" // on its own room; that nothing shields
	case at.Sub(since) < j.now.minRun:
		return "it has run for " + at.Sub(since).String()
	case most != nil && victim.record.Preempted >= *most:
		return "it has been preempted often enough"
	case holder.spec.Class < victim.spec.Class && victim.spec.Class == coordinator.ClassBatch:
		return ""
	case !j.now.enabled:
		return "preemption is off"
	case !victim.spec.Preemptible:
		return "it is not preemptible"
	case holder.spec.Class > victim.spec.Class:
		return "its class is before the other's"
	case !slices.Contains(holder.workflow.Preempts, victim.workflow.Owner.Group):
		return "its group is not on the list"
	}
	high, low := j.priority(holder, at), j.priority(victim, at)
	const slip = 1e-6
	if high-low < j.now.gap-slip || high <= low || high < j.now.least-slip {
		return "priorities " + strconv.FormatFloat(high, 'g', -1, 64) + " over " + strconv.FormatFloat(low, 'g', -1, 64)
	}
	return ""
}

// priority works scheduler.priority out as of a time.
func (j *judge) priority(a *allocation, at time.Time) float64 {
	nodes := float64(max(a.spec.Nodes, 1))
	group := j.groups[a.workflow.Owner.Group]
	if a.record.Status.Holds() && a.record.Priorities != nil {
		group = a.record.Priorities.Group // what it started with
	}
	return j.now.priority.eval(map[string]float64{
		"group_priority": float64(group), "user_priority": float64(a.workflow.Priorities.User),
		"workflow_priority": float64(a.workflow.Spec.Priority), "age_seconds": at.Sub(a.workflow.Submitted).Seconds(),
		"gpus": float64(a.spec.Resources.Devices["nvidia.com/gpu"]) * nodes,
	})
}

// needed: with the victim still there, what is held would not fit.
func (j *judge) needed(holder *allocation, h *holdRecord, victim *allocation) bool {
	for _, s := range h.Shares {
		n := j.w.node(s.Node)
		i := slices.IndexFunc(victim.record.Ranks, func(r rankRecord) bool { return r.Node == s.Node })
		if n == nil || i < 0 {
			continue
		}
		if slices.ContainsFunc(victim.record.Ranks[i].Devices, func(g string) bool { return slices.Contains(s.Devices, g) }) {
			return true
		}
		if holder.spec.Resources.Exclusive != coordinator.ExclusiveNone || victim.spec.Resources.Exclusive != coordinator.ExclusiveNone ||
			holder.spec.Resources.Affinity != coordinator.AffinityNone || len(s.Devices) > 0 || j.reserved(n) {
			return true // shares of domains and the cores near GPUs are finer than what is added up here
		}
		need := j.load(n, func(a *allocation) bool {
			return a == victim || a.record.Stop == "" && !slices.Contains(h.Victims, a.id)
		})
		for other, oh := range j.holds {
			if a := j.find(other); a != nil && a.waits() && slices.ContainsFunc(oh.Shares, func(o heldShare) bool { return o.Node == s.Node }) {
				need.add(a) // the holder's own is among them
			}
		}
		if !need.fits(n.machine) {
			return true
		}
	}
	return holder.spec.Resources.Tokens["licence"] > 0 && victim.spec.Resources.Tokens["licence"] > 0
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

func (j *judge) load(n *vnode, counts func(*allocation) bool) (l load) {
	for _, a := range j.active {
		if p := j.procs[a.run()][n.id]; p != nil && !p.ended.IsZero() {
			continue // whatever the record still says
		}
		if slices.ContainsFunc(a.record.Ranks, func(r rankRecord) bool { return r.Node == n.id }) && counts(a) {
			l.add(a)
		}
	}
	return l
}

// room adds up what the records of a node promise, after a whole write: once what runs, and once what would run when
// all that is asked to go has gone.
func (j *judge) room(n *vnode) {
	all := j.load(n, func(*allocation) bool { return true })
	if !all.fits(n.machine) {
		j.w.fail("the records promise %+v of %s", all, n.id)
	}
	used := map[string]coordinator.AllocationID{}
	for _, a := range j.active {
		for _, r := range a.record.Ranks {
			if p := j.procs[a.run()][n.id]; p != nil && !p.ended.IsZero() {
				continue
			}
			for _, g := range r.Devices {
				if r.Node == n.id && used[g] != "" {
					j.w.fail("the records give GPU %s of %s to %s and to %s", g, n.id, used[g], a.id)
				}
				if r.Node == n.id {
					used[g] = a.id
				}
			}
		}
	}
	going := map[coordinator.AllocationID]bool{}
	held := false
	for _, h := range j.holds {
		for _, v := range h.Victims {
			going[v] = true
		}
	}
	after := j.load(n, func(a *allocation) bool { return a.record.Stop == "" && !going[a.id] && !j.leaving[a.run()] })
	for holder, h := range j.holds {
		a := j.find(holder)
		if a == nil || !a.waits() {
			continue
		}
		for _, s := range h.Shares {
			if s.Node == n.id {
				held = true
				after.add(a)
			}
		}
	}
	if held && !after.fits(n.machine) {
		j.w.count("holds to look at") // counts alone do not tell: see the package comment
		j.w.step("LOOK: what is held on %s does not fit beside what stays: %+v", n.id, after)
	}
}

// event: numbers are unique and grow from write to write; a preemption tells all that its verdict follows from.
func (j *judge) event(ev engine.Event) {
	if ev.Sequence <= j.sequence || j.numbers[ev.Sequence] {
		j.w.fail("event %d comes after %d: %s %s", ev.Sequence, j.sequence, ev.Kind, ev.Message)
	}
	j.numbers[ev.Sequence] = true
	j.newest = max(j.newest, ev.Sequence)
	m := ev.Metadata
	if ev.Kind != "preempt-initiated" || m["right"] == "" {
		return
	}
	j.w.count("preemptions by " + m["right"])
	j.w.step("%s gives way to %s by %s: %s over %s", m["victim"], m["preemptor"], m["right"], m["preemptor_priority"], m["victim_priority"])
	high, low := j.recompute(m["preemptor_inputs"]), j.recompute(m["victim_inputs"])
	same := func(text string, v float64) bool {
		f, err := strconv.ParseFloat(text, 64)
		return err == nil && math.Abs(f-v) < 0.01
	}
	if !same(m["preemptor_priority"], high) || !same(m["victim_priority"], low) || !same(m["gap"], high-low) || m["cluster"] != j.cluster {
		j.w.fail("the figures of a preemption do not follow from one another: %v", m)
	}
	if m["right"] != "group" || !strings.HasPrefix(m["victim"], string(ev.Workflow)) {
		return
	}
	victim, holder := string(allocationOf(coordinator.RunID(m["victim"]))), m["preemptor"]
	if at, ok := j.taken[[2]string{holder, victim}]; ok && at.After(j.changed) {
		j.w.fail("%s and %s take each other's room", holder, victim)
	}
	j.taken[[2]string{victim, holder}] = ev.Time
}

// recompute works a priority out of the inputs that an event tells.
func (j *judge) recompute(inputs string) float64 {
	in := map[string]float64{}
	for _, kv := range strings.Fields(inputs) {
		k, v, _ := strings.Cut(kv, "=")
		in[k], _ = strconv.ParseFloat(v, 64)
	}
	return j.now.priority.eval(in)
}
