package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/expr"
)

func holdKey(id coordinator.AllocationID) string { return prefixHold + string(id) }

// hold is a stored hold in the scheduler's terms.
func (s *state) hold(id coordinator.AllocationID, r *holdRecord) sched.Hold {
	h := sched.Hold{For: id, Definition: r.Definition, Since: r.Since}
	for _, a := range s.leaving(r) {
		h.Victims = append(h.Victims, a.id)
	}
	for i := range r.Shares {
		h.Shares = append(h.Shares, s.share(r.Shares[i].Node, &r.Shares[i].shareRecord))
	}
	return h
}

// leaving lists the victims of a hold that have not ended yet.
func (s *state) leaving(r *holdRecord) []*allocation {
	var out []*allocation
	for i, id := range r.Victims {
		a := s.active[id]
		if a != nil && (i >= len(r.Attempts) || r.Attempts[i] == a.record.Attempt) { // a record of an earlier version has no attempts
			out = append(out, a)
		}
	}
	return out
}

// makeRoom writes a preemption plan: the hold, then the notices (rules 18 to 21).
func (t *tx) makeRoom(p *sched.Preempt) {
	s := t.state
	holder := s.queued[p.For]
	if holder == nil {
		return
	}
	rec := &holdRecord{Definition: p.Hold.Definition, Victims: p.Hold.Victims, Since: p.Hold.Since}
	for i := range p.Hold.Shares {
		share := &p.Hold.Shares[i]
		rec.Shares = append(rec.Shares, heldRecord{Node: share.Node, shareRecord: recordOf(s.nodes[share.Node], share)})
	}
	for _, id := range p.Hold.Victims {
		attempt := uint32(0)
		if a := s.active[id]; a != nil {
			attempt = a.record.Attempt
		}
		rec.Attempts = append(rec.Attempts, attempt)
	}
	for _, v := range p.Victims {
		if a := s.active[v.ID]; a != nil {
			rec.Told = append(rec.Told, toldRecord{ID: v.ID, Attempt: a.record.Attempt, NoticeEnds: v.KillAt})
		}
	}
	s.holds[p.For] = rec
	t.laid = append(t.laid, p.For)
	t.event(Event{Kind: "reservation-held", Workflow: holder.job.workflow.id, Job: holder.name(),
		Message: fmt.Sprintf("room on %s is held until %s", listed(heldNodes(rec)), countOf(len(rec.Told), "allocation ends", "allocations end"))})
	for i := range p.Victims {
		if a := s.active[p.Victims[i].ID]; a != nil {
			t.tellPreemption(p, &p.Victims[i], holder, a)
			t.giveNotice(a, p.Victims[i].KillAt)
		}
	}
}

func heldNodes(r *holdRecord) []coordinator.NodeID {
	out := make([]coordinator.NodeID, len(r.Shares))
	for i := range r.Shares {
		out[i] = r.Shares[i].Node
	}
	return out
}

func countOf(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// giveNotice asks a run to end by a time (rule 21). It counts as preempted however it ends.
func (t *tx) giveNotice(a *allocation, killAt time.Time) {
	a.record.NoticeEnds, a.record.Stop = killAt, stopPreempt
	t.set(a, coordinator.StatusPreempting)
	t.stop(a, max(killAt.Sub(t.now), 0), string(stopPreempt))
}

// tellPreemption puts the same story on both workflows, with all that is needed to work the verdict out again
// (rule 24).
func (t *tx) tellPreemption(p *sched.Preempt, v *sched.Victim, holder, victim *allocation) {
	cfg := &t.state.config.Scheduler
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	meta := map[string]string{
		"cluster": t.state.cluster.ID, "right": v.Why.String(),
		"preemptor": string(holder.id), "preemptor_priority": number(p.Priority), "preemptor_inputs": t.inputs(holder),
		"victim": string(victim.run()), "victim_priority": number(v.Priority), "victim_inputs": t.inputs(victim),
		"gap": number(v.Gap), "lost_seconds": number(v.Lost), "notice_ends": v.KillAt.Format(time.RFC3339Nano),
	}
	if v.Why == sched.PreemptGroup {
		meta["gap_needed"], meta["threshold"] = number(cfg.PreemptionGap), number(cfg.PreemptionThreshold)
	}
	figures := fmt.Sprintf("priority %s over %s; notice ends %s", number(p.Priority), number(v.Priority), moment(v.KillAt))
	t.event(Event{Kind: "preempt-initiated", Workflow: victim.job.workflow.id, Job: victim.name(), Subject: string(holder.id),
		Message: fmt.Sprintf("gives way to %s by %s: %s", holder.id, v.Why, figures), Metadata: meta})
	if holder.job.workflow != victim.job.workflow {
		t.event(Event{Kind: "preempt-initiated", Workflow: holder.job.workflow.id, Job: holder.name(), Subject: string(victim.id),
			Message: fmt.Sprintf("%s gives way to it by %s: %s", victim.id, v.Why, figures), Metadata: maps.Clone(meta)})
	}
}

// inputs are what scheduler.priority saw of an allocation.
func (t *tx) inputs(a *allocation) string {
	env := &expr.PriorityEnv{}
	t.state.fillPriority(t.now, a, env)
	return fmt.Sprintf("organization_priority=%d group_priority=%d user_priority=%d workflow_priority=%d age_seconds=%.3f cores=%d memory_bytes=%d gpus=%d nodes=%d class=%s",
		env.OrganizationPriority, env.GroupPriority, env.UserPriority, env.WorkflowPriority, env.AgeSeconds, env.Cores, env.MemoryBytes, env.GPUs, env.Nodes, env.Class)
}

// dropHold forgets a hold: its holder starts, is gone, or cannot use it. It is deleted after what the turn does to
// the holder: a crash in between leaves a hold that the next life drops, and never a holder without.
func (t *tx) dropHold(id coordinator.AllocationID) {
	if t.state.holds[id] == nil {
		return
	}
	delete(t.state.holds, id)
	t.unheld = append(t.unheld, id)
}

// groupLaid writes the holds of this turn, each before the notices that it stands for.
func (t *tx) groupLaid() {
	for _, id := range t.laid {
		if rec := t.state.holds[id]; rec != nil {
			t.put(holdKey(id), rec)
			t.group()
		}
	}
}

// groupUnheld deletes the holds that this turn ended and did not lay anew.
func (t *tx) groupUnheld() {
	for _, id := range t.unheld {
		if t.state.holds[id] == nil {
			t.delete(holdKey(id))
			t.group()
		}
	}
}

// dropped tells of a hold that ended without a start.
func (t *tx) dropped(d *sched.Drop) {
	if t.state.holds[d.For] == nil {
		return
	}
	t.dropHold(d.For)
	if a := t.state.queued[d.For]; a != nil {
		t.event(Event{Kind: "hold-dropped", Workflow: a.job.workflow.id, Job: a.name(),
			Message: "the room that was held for it is not any more: " + d.Why.String()})
	}
}

// clear gives notice to work on a node that is to be cleared (rules 25 and 26).
func (t *tx) clear(st *sched.Stop) {
	a := t.state.active[st.ID]
	if a == nil || a.record.Stop != "" {
		return
	}
	why := "is drained"
	if st.Rule == 26 {
		why = "goes into maintenance"
	}
	t.event(Event{Kind: "preempt-initiated", Workflow: a.job.workflow.id, Job: a.name(), Subject: string(st.Node),
		Message: fmt.Sprintf("node %s %s; notice ends %s", st.Node, why, moment(st.KillAt))})
	t.giveNotice(a, st.KillAt)
}

// resumeHolds finishes what a crash cut short: notices of a plan that stands, holds of allocations that do not
// wait any more.
func (t *tx) resumeHolds() {
	s := t.state
	for _, id := range slices.Sorted(maps.Keys(s.holds)) {
		if s.queued[id] == nil {
			t.dropHold(id)
			continue
		}
		for _, v := range s.holds[id].Told {
			if a := s.active[v.ID]; a != nil && a.record.Attempt == v.Attempt && a.record.Stop == "" {
				whole := t.now.Add(s.config.Scheduler.PreemptionNotice) // it has not heard of it yet
				if v.NoticeEnds.After(whole) {
					whole = v.NoticeEnds
				}
				t.giveNotice(a, whole)
			}
		}
	}
}

// overdueAt is when a run that was given notice should have ended on a node whose agent is connected, with all that
// killing it takes (rule 21); zero when it has, or the agent is not there to be asked.
func (s *state) overdueAt(a *allocation, r *rankRecord) time.Time {
	n := s.nodes[r.Node]
	if r.State == RunEnded || n == nil || n.session == nil {
		return time.Time{}
	}
	from := a.record.NoticeEnds
	if told := n.connected.Add(s.config.Scheduler.PreemptionNotice); told.After(from) { // it may have been told no earlier
		from = told
	}
	return from.Add(s.config.Scheduler.KillTimeout)
}

// watchNotices takes nodes on which a run does not end after its notice out of the plans, and back when it has: who waits for
// that room goes elsewhere. The run stays where it is in the books, since it may still live: its devices are nobody
// else's, and no second copy starts.
func (t *tx) watchNotices() {
	s := t.state
	overdue := map[coordinator.NodeID]coordinator.RunID{}
	for _, a := range s.yielding {
		for i := range a.record.Ranks {
			r := &a.record.Ranks[i]
			if at := s.overdueAt(a, r); !at.IsZero() && !t.now.Before(at) {
				if other := overdue[r.Node]; other == "" || a.run() < other {
					overdue[r.Node] = a.run()
				}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.overdue)) {
		if n := s.nodes[id]; n != nil && overdue[id] == "" {
			n.overdue = ""
			s.changedNode(n)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(overdue)) {
		n := s.nodes[id]
		if n.overdue == "" {
			t.event(Event{Kind: "warning", Subject: string(id), Message: fmt.Sprintf(
				"run %s does not end though it was killed: nothing new is placed on the node", overdue[id])})
			s.changedNode(n)
		}
		n.overdue = overdue[id]
	}
	s.overdue = overdue
}

// nextOverdue is when the next such run is overdue.
func (s *state) nextOverdue() time.Time {
	var next time.Time
	for _, a := range s.yielding {
		for i := range a.record.Ranks {
			r := &a.record.Ranks[i]
			if at := s.overdueAt(a, r); !at.IsZero() && s.overdue[r.Node] == "" && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}
