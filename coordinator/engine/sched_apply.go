package engine

import (
	"fmt"
	"math"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/expr"
)

// schedule asks the pure core what to do and turns its plan into writes and orders.
func (e *Engine) schedule(t *tx) {
	s := t.state
	s.tell(t)
	plan := s.core.scheduler.Decide(t.now)
	for i := range plan.Drops {
		t.dropped(&plan.Drops[i])
	}
	for i := range plan.Reserves {
		t.placeReservation(&plan.Reserves[i])
	}
	for i := range plan.Starts {
		if a := s.queued[plan.Starts[i].ID]; a != nil {
			t.place(a, &plan.Starts[i])
		}
	}
	for i := range plan.Preempts {
		t.makeRoom(&plan.Preempts[i])
	}
	for i := range plan.Stops {
		t.clear(&plan.Stops[i])
	}
	t.launch(plan.Launches)
	t.release(plan.Releases)
	// Starting changes what later passes see only through ends and arrivals; both mark the state.
	s.dirty = len(plan.Launches)+len(plan.Releases) > 0
}

// place writes an allocation's new run and orders it from its nodes once that is durable.
func (t *tx) place(a *allocation, start *sched.Start) {
	r := &a.record
	prio := t.state.prioritiesOf(a)
	r.Priorities = &prio
	r.Attempt++
	a.seen = nil
	r.Definition, r.Placed, r.Returned, r.NotBefore = start.Definition, t.now, false, time.Time{}
	r.Message, r.NoticeEnds, r.Stop = "", time.Time{}, ""
	r.Reservation = start.Reservation
	r.Ranks = make([]rankRecord, len(start.Nodes))
	for i, id := range start.Nodes {
		r.Ranks[i] = rankRecord{Node: id, State: RunStarting}
		if i < len(start.Shares) {
			r.Ranks[i].shareRecord = recordOf(t.state.nodes[id], &start.Shares[i])
		}
	}
	t.set(a, coordinator.StatusStarting)
	t.warnUnrestricted(a)
	t.dropHold(a.id)
	for _, id := range start.Nodes {
		if n := t.state.nodes[id]; n != nil {
			n.active[a.id] = a
		}
		t.order(a, id)
	}
}

// warnUnrestricted says that internal or system work was placed though nothing admits it, so that what is missing is added.
func (t *tx) warnUnrestricted(a *allocation) {
	j := a.job
	if j.spec.Kind != coordinator.KindInternal && j.spec.Kind != coordinator.KindSystem || !t.state.admit(j).unrestricted {
		return
	}
	why := fmt.Sprintf("no policy admits %q", j.spec.Kind)
	if q := t.state.ask(j); q.grantErr != nil {
		why = q.grantErr.Error()
	}
	t.event(Event{Kind: "warning", Workflow: j.workflow.id, Job: a.name(), Subject: string(a.record.Definition),
		Message: "placed without restriction, the fallback of internal and system work: " + why})
}

// order sends the start of a run to one of its nodes after the write.
func (t *tx) order(a *allocation, id coordinator.NodeID) {
	s := t.state
	t.then(func(int64) {
		if n := s.nodes[id]; n != nil && n.session != nil && a.rank(id) != nil {
			n.session.push(ToNode{Start: s.startRun(a, id)})
		}
	})
}

func (s *state) request(t *tx, a *allocation, env *expr.PriorityEnv) sched.Request {
	j, adm := a.job, s.admit(a.job)
	req := sched.Request{
		ID: a.id, Workflow: j.workflow.id, Class: j.spec.Class, Returned: a.record.Returned,
		Priority: s.priority(t, a, env), Submitted: j.workflow.record.Submitted, Order: uint64(j.place)<<32 | uint64(a.task),
		Walltime: j.spec.Walltime, Nodes: max(j.spec.Nodes, 1), Resources: j.spec.Resources,
		Admissible: adm.admissible, Unrestricted: adm.unrestricted, Exclude: adm.exclude,
		Organization: j.workflow.record.Owner.Organization, Group: j.workflow.record.Owner.Group,
		Preempts: j.workflow.record.Preempts, Preemptible: j.spec.Preemptible, PreemptionsLeft: a.preemptionsLeft(),
		Reservation: s.named(j), Loose: j.spec.LooseGPUs, Attempt: a.record.Attempt + a.record.Launches,
	}
	if arr := j.spec.Array; arr != nil && arr.Concurrency > 0 {
		req.Array = string(j.workflow.id) + "/" + j.spec.Name
		req.ArrayLimit = int(arr.Concurrency)
	}
	return req
}

func (s *state) placement(t *tx, a *allocation, env *expr.PriorityEnv) sched.Placement {
	j := a.job
	started := a.record.Started
	if started.IsZero() {
		started = a.record.Placed
	}
	array := ""
	if arr := j.spec.Array; arr != nil && arr.Concurrency > 0 {
		array = j.array()
	}
	return sched.Placement{
		ID: a.id, Array: array, Workflow: j.workflow.id, Class: j.spec.Class, Priority: s.priority(t, a, env),
		Started: started, Walltime: j.spec.Walltime, Nodes: a.nodeIDs(), Shares: s.shares(a), Resources: j.spec.Resources,
		Ending: a.record.Stop != "", KillAt: a.record.NoticeEnds,
		Organization: j.workflow.record.Owner.Organization, Group: j.workflow.record.Owner.Group,
		Submitted: j.workflow.record.Submitted, Preemptible: j.spec.Preemptible, PreemptionsLeft: a.preemptionsLeft(),
		Reservation: a.record.Reservation,
	}
}

// preemptionsLeft is how often the allocation may still be preempted, -1 for any number (rule 23).
func (a *allocation) preemptionsLeft() int {
	most := a.job.spec.PreemptionsMax
	if most == nil {
		return -1
	}
	return max(int(*most)-int(a.record.Preempted), 0)
}

// array names the task array of a job.
func (j *job) array() string { return string(j.workflow.id) + "/" + j.spec.Name }

// priority evaluates scheduler.priority: at age 0 where age only adds to it, which the core does, else as of now.
// What cannot be evaluated counts as 0, with one warning per configuration revision.
func (s *state) priority(t *tx, a *allocation, env *expr.PriorityEnv) float64 {
	s.fillPriority(t.now, a, env)
	if _, linear := s.config.priority.AgeLinear(); linear {
		env.AgeSeconds = 0
	}
	v, err := s.config.priority.Eval(env)
	if err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
		return v
	}
	if !s.config.priorityWarned {
		s.config.priorityWarned = true
		t.event(Event{Kind: "warning", Workflow: a.job.workflow.id, Job: a.name(), Subject: "scheduler.priority",
			Message: fmt.Sprintf("scheduler.priority counts as 0: %v", err)})
	}
	return 0
}

// prioritiesOf are the priorities of who owns an allocation: while it waits they follow changes, and running work keeps what
// it started with. Work that started by a changed priority would else be weaker than it was, and be taken by whom it took.
func (s *state) prioritiesOf(a *allocation) priorities {
	owner, prio := &a.job.workflow.record.Owner, a.job.workflow.record.Priorities
	if a.record.Status.Holds() {
		if a.record.Priorities != nil {
			return *a.record.Priorities
		}
		return prio // started by an earlier version
	}
	if o := s.orgs[owner.Organization]; o != nil {
		prio.Organization = o.Priority
	}
	if g := s.groups[owner.Group]; g != nil {
		prio.Group = g.Priority
	}
	if u := s.users[owner.User]; u != nil {
		prio.User = u.Priority
	}
	return prio
}

func (s *state) fillPriority(now time.Time, a *allocation, env *expr.PriorityEnv) {
	w, spec := a.job.workflow, a.job.spec
	prio := s.prioritiesOf(a)
	nodes := max(spec.Nodes, 1)
	var gpus uint32
	for name, n := range spec.Resources.Devices {
		if isGPU(name) {
			gpus += n
		}
	}
	*env = expr.PriorityEnv{
		OrganizationPriority: prio.Organization, GroupPriority: prio.Group, AccountPriority: prio.Group,
		UserPriority: prio.User, WorkflowPriority: w.record.Spec.Priority,
		AgeSeconds: now.Sub(w.record.Submitted).Seconds(),
		Cores:      uint32(spec.Resources.Cores) * nodes, MemoryBytes: uint64(spec.Resources.TotalMemory()) * uint64(nodes),
		GPUs: gpus * nodes, Nodes: nodes, Class: spec.Class.String(),
	}
}
