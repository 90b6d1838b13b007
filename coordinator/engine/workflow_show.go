package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// WorkflowView is a workflow as users see it. Jobs is nil in lists.
type WorkflowView struct {
	ID        coordinator.WorkflowID
	Name      string
	Status    coordinator.Status
	Owner     coordinator.Owner
	Submitted time.Time
	Started   time.Time // zero: not yet
	Ended     time.Time
	Counts    map[coordinator.Status]int
	Jobs      []JobView
}

// JobView is one allocation as users see it.
type JobView struct {
	ID                 coordinator.AllocationID
	Workflow           coordinator.WorkflowID
	Name               string // "train" or "train/3"
	Kind               coordinator.Kind
	Class              coordinator.Class
	Status             coordinator.Status
	Attempt            uint32
	Nodes              []coordinator.NodeID
	Definition         coordinator.DefinitionID
	Submitted          time.Time
	Started            time.Time
	Ended              time.Time
	ExitCode           *int32
	Signal             int32
	Message            string
	Reason             *Reason
	Position           int
	Ahead              int
	EstimatedStart     time.Time
	Preempted          uint32
	Failures           uint32
	NoticeEnds         time.Time
	DependsOn          []string
	WorkflowName, User string
	Reservation        string // name of the one it runs in, or waits for by name
}

// Reason says why an allocation waits, with the number of the scheduling rule.
type Reason struct {
	Code     string
	Rule     int
	Text     string
	Blocking []coordinator.AllocationID
	Nearest  coordinator.NodeID
}

// DefinitionOutcome is what became of one definition for one request.
type DefinitionOutcome struct {
	Definition  coordinator.DefinitionID
	Admissible  bool
	RefusedBy   string // policy, grant, annotation, resources, class, backend
	Reason      string
	CostPerHour *float64
	Ready       int
}

// JobExplanation is a job with the outcome of every definition, in the order they are tried.
type JobExplanation struct {
	Job         JobView
	Definitions []DefinitionOutcome
}

// view copies a workflow for a reader outside the loop.
func (w *submission) view(s *state, jobs bool) WorkflowView {
	v := WorkflowView{ID: w.id, Name: w.record.Spec.Name, Status: w.status(), Owner: w.record.Owner,
		Submitted: w.record.Submitted, Counts: map[coordinator.Status]int{}}
	if jobs {
		n := 0
		for _, j := range w.jobs {
			n += len(j.allocations)
		}
		v.Jobs = make([]JobView, 0, n)
	}
	for _, j := range w.jobs {
		for st, n := range j.counts {
			if n > 0 {
				v.Counts[coordinator.Status(st)] += n
			}
		}
		for _, a := range j.allocations {
			if st := a.record.Started; !st.IsZero() && (v.Started.IsZero() || st.Before(v.Started)) {
				v.Started = st
			}
			if w.open == 0 && a.record.Ended.After(v.Ended) {
				v.Ended = a.record.Ended
			}
			if jobs {
				v.Jobs = append(v.Jobs, a.view(s))
			}
		}
	}
	return v
}

func (a *allocation) view(s *state) JobView {
	r, spec := &a.record, a.job.spec
	v := JobView{ID: a.id, Workflow: a.job.workflow.id, Name: a.name(), Kind: spec.Kind, Class: spec.Class,
		Status: r.Status, Attempt: r.Attempt, Nodes: a.nodeIDs(), Definition: r.Definition,
		Submitted: a.job.workflow.record.Submitted, Started: r.Started, Ended: r.Ended,
		ExitCode: r.ExitCode, Signal: r.Signal, Message: r.Message, Preempted: r.Preempted, Failures: r.Failures,
		NoticeEnds: r.NoticeEnds, WorkflowName: a.job.workflow.record.Spec.Name, User: a.job.workflow.record.Owner.UserName,
		Reservation: spec.Reservation}
	if r.Reservation != "" {
		v.Reservation = s.reservationName(r.Reservation)
	}
	for _, d := range spec.DependsOn {
		v.DependsOn = append(v.DependsOn, d.Name)
	}
	w, waits := s.wait(a, s.now().UTC())
	switch {
	case r.Status == coordinator.StatusPending:
		v.Reason = &Reason{Code: "waiting-dependency", Text: "waits for " + a.job.openDependencies()}
	case r.Status == coordinator.StatusQueued && !waits && s.deferred[a.id] != nil:
		v.Reason = &Reason{Code: "deferred", Text: "not before " + r.NotBefore.Format("15:04:05") + ", since it ended " + fmt.Sprint(r.Failures) + " times"}
	case r.Status.Holds():
		v.Reason = a.batchReason(s)
	case r.Status == coordinator.StatusQueued && !waits:
		v.Reason = &Reason{Code: "deciding", Text: "the next decision takes it in"}
	case waits:
		v.Reason = &Reason{Code: w.Verdict.Reason.String(), Rule: w.Verdict.Rule, Text: w.Verdict.Text,
			Blocking: w.Verdict.Blocking, Nearest: w.Verdict.Nearest}
		if len(s.admit(a.job).admissible) == 0 {
			v.Reason.Code, v.Reason.Text = s.unmet(a.job, v.Reason.Code, v.Reason.Text)
		}
		v.Position, v.Ahead, v.EstimatedStart = w.Position, max(w.Position-1, 0), w.EstimatedStart
	}
	return v
}

func (j *job) openDependencies() string {
	text := ""
	for _, d := range j.spec.DependsOn {
		if on := j.workflow.byName[d.Name]; on.outcome(d.Status) == dependencyOpen {
			if text != "" {
				text += ", "
			}
			text += d.Name + " to be " + d.Status.String()
		}
	}
	return text
}

// Workflows lists what the caller may see, newest first.
func (e *Engine) Workflows(ctx context.Context, c Caller, status string, p Page) (list []WorkflowView, next string, err error) {
	if err := c.authorize(auth.PermissionUser, "list workflows", auth.Target{}); err != nil {
		return nil, "", err
	}
	var want coordinator.Status
	if status != "" {
		if err := want.UnmarshalText([]byte(status)); err != nil {
			return nil, "", coordinator.Errorf(coordinator.ErrInvalid, "list workflows", "%w", err)
		}
	}
	err = e.view(ctx, func(s *state) {
		var seen []*submission
		for _, w := range s.workflows {
			if c.sees(w) && (want == 0 || w.status() == want) {
				seen = append(seen, w)
			}
		}
		slices.SortFunc(seen, func(a, b *submission) int { return cmp.Compare(b.id, a.id) })
		var chosen []*submission
		chosen, next = page(seen, p, func(w *submission) string { return string(w.id) },
			func(w *submission, token string) bool { return string(w.id) >= token })
		for _, w := range chosen {
			list = append(list, w.view(s, false))
		}
	})
	return list, next, err
}

// Workflow shows one workflow with its jobs.
func (e *Engine) Workflow(ctx context.Context, c Caller, ref string) (v WorkflowView, err error) {
	verr := e.view(ctx, func(s *state) {
		var w *submission
		if w, err = s.resolve(c, "show workflow", ref); err == nil {
			v = w.view(s, true)
			s.veil(c, v.Jobs)
		}
	})
	if verr != nil {
		return v, verr
	}
	return v, err
}

// Job shows one allocation.
func (e *Engine) Job(ctx context.Context, c Caller, id coordinator.AllocationID) (v JobView, err error) {
	if err := c.authorize(auth.PermissionUser, "show job", auth.Target{}); err != nil {
		return v, err
	}
	verr := e.view(ctx, func(s *state) {
		a := s.allocation(id)
		if a == nil || !c.sees(a.job.workflow) {
			err = noSuch("show job", "job", string(id))
			return
		}
		v = s.veiled(c, a.view(s))
	})
	if verr != nil {
		return v, verr
	}
	return v, err
}

// ExplainWorkflow tells for the jobs that wait (or the named one) why, and what became of every definition.
func (e *Engine) ExplainWorkflow(ctx context.Context, c Caller, ref, name string) (out []JobExplanation, err error) {
	const op = "explain workflow"
	verr := e.view(ctx, func(s *state) {
		var w *submission
		if w, err = s.resolve(c, op, ref); err != nil {
			return
		}
		var chosen []*allocation
		if chosen, err = w.choose(op, name); err != nil {
			return
		}
		for _, a := range chosen {
			if name == "" && !a.waits(s) {
				continue
			}
			x := JobExplanation{Job: s.veiled(c, a.view(s)), Definitions: s.outcomes(a.job)}
			for i := range x.Definitions {
				x.Definitions[i].Ready = s.readyNodes(x.Definitions[i].Definition)
			}
			out = append(out, x)
			if len(out) == maxExplained {
				return
			}
		}
	})
	if verr != nil {
		return nil, verr
	}
	return out, err
}

// waits reports whether an allocation waits, for others, for room, or in a batch system's queue.
func (a *allocation) waits(s *state) bool {
	st := a.record.Status
	return st == coordinator.StatusQueued || st == coordinator.StatusPending || st == coordinator.StatusStarting && a.batchReason(s) != nil
}

const maxExplained = 1000

// Queue lists what waits for resources, in the order of the queue.
func (e *Engine) Queue(ctx context.Context, c Caller, mine bool, class coordinator.Class, p Page) (jobs []JobView, total int, next string, err error) {
	if err := c.authorize(auth.PermissionUser, "show queue", auth.Target{}); err != nil {
		return nil, 0, "", err
	}
	err = e.view(ctx, func(s *state) {
		shown := func(a *allocation) bool {
			w := a.job.workflow
			return c.sees(w) && (!mine || w.record.Owner.User == c.User) && (class == 0 || a.job.spec.Class == class)
		}
		for _, a := range s.queued {
			if shown(a) {
				total++
			}
		}
		seen := s.waitingAfter(p.Token, p.size()+1, class, shown)
		var chosen []ranked
		chosen, next = page(seen, p, ranked.token, func(r ranked, token string) bool { return r.token() <= token })
		for _, r := range chosen {
			jobs = append(jobs, s.veiled(c, r.view(s)))
		}
	})
	return jobs, total, next, err
}

// ranked is an allocation with its place in the queue of its class.
type ranked struct {
	*allocation
	position int
}

// undecided sorts what no decision has seen behind the rest.
const undecided = 1 << 30

// token orders as the queue does. Positions move up as work starts, so a page that is asked for later
// may leave out what has moved past the token; it never repeats or ends early.
func (r ranked) token() string {
	return fmt.Sprintf("%d %010d %s", r.job.spec.Class, r.position, r.id)
}

const queuePage = 1000 // of the scheduler's queue looked at in one go

// waitingAfter lists what waits behind a token, in the order of the queue, up to a limit.
func (s *state) waitingAfter(token string, limit int, class coordinator.Class, shown func(*allocation) bool) []ranked {
	var out []ranked
	add := func(r ranked) {
		if shown(r.allocation) && r.token() > token {
			out = append(out, r)
		}
	}
	decided := map[coordinator.AllocationID]bool{}
	for _, k := range []coordinator.Class{coordinator.ClassReserved, coordinator.ClassOnDemand, coordinator.ClassBatch} {
		if class != 0 && class != k {
			continue
		}
		for after := coordinator.AllocationID(""); s.core.scheduler != nil && len(out) < limit; {
			waits := s.core.scheduler.Waiting(s.now().UTC(), k, after, queuePage)
			for _, w := range waits {
				decided[w.ID] = true
				if a := s.queued[w.ID]; a != nil {
					add(ranked{a, w.Position})
				}
				after = w.ID
			}
			if len(waits) < queuePage {
				break
			}
		}
		if len(out) >= limit {
			return out
		}
		from := len(out)
		for _, a := range s.queued {
			if a.job.spec.Class == k && !decided[a.id] {
				add(ranked{a, undecided})
			}
		}
		slices.SortFunc(out[from:], func(a, b ranked) int { return cmp.Compare(a.id, b.id) })
	}
	return out
}
