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
	if a.held = (time.Time{}); j.holds[a.id] != nil {
		a.held = j.holds[a.id].Since
	}
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
		// A node of it that cannot be used any more ends it in the turn that says so, and its record goes last there.
		if slices.ContainsFunc(h.Shares, func(s heldShare) bool { return j.outOfUse(s.Node) }) {
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

// outOfUse: a node that was given up, is closed, or has a run that did not end when it was killed (rule 21).
func (j *judge) outOfUse(id string) bool {
	n := j.w.node(id)
	if n == nil || n.lost || n.scheduling != "" {
		return true
	}
	const killTimeout = 10 * time.Second
	for _, a := range j.active {
		overdue := a.record.Stop != "" && !a.record.NoticeEnds.IsZero() && !time.Now().Before(a.record.NoticeEnds.Add(killTimeout))
		if overdue && slices.ContainsFunc(a.record.Ranks, func(r rankRecord) bool { return r.Node == id && r.State != engine.RunEnded }) {
			return true
		}
	}
	return false
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
	delete(j.undone, id)
	if was != nil && was.Since.Equal(rec.Since) {
		rec.victims = was.victims
		return // written again after an outcome that was not told
	}
	j.w.count("plans")
	rec.victims = map[coordinator.RunID]bool{}
	for _, v := range rec.Victims {
		if a := j.find(v); a != nil {
			rec.victims[a.run()] = true
		}
	}
	holder := j.find(id)
	if holder == nil || !holder.waits() {
		j.w.fail("room is held for %s, which does not wait", id)
		return
	}
	p := &plan{holder: holder, held: rec, told: map[coordinator.RunID]*allocation{}}
	j.plans = append(j.plans, p)
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
		p.told[run] = victim
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
