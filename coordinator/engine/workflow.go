package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/workflow"
	"substrate/strictyaml"
)

// StartWorkflow is one submission.
type StartWorkflow struct {
	YAML           []byte
	File           string
	Name           string
	Preemptible    *bool
	Priority       int32
	Group          string
	IdempotencyKey string
	ID             coordinator.WorkflowID // "" is the engine's to choose; the Federate's requests alone may set it
}

// StartWorkflowResult is the accepted workflow; Existed marks a repeated idempotency key.
type StartWorkflowResult struct {
	Workflow WorkflowView
	Existed  bool
	Warnings strictyaml.Diagnostics
}

// StartWorkflow accepts a workflow durably, or refuses all of it.
func (e *Engine) StartWorkflow(ctx context.Context, c Caller, in StartWorkflow) (res StartWorkflowResult, err error) {
	op := "start workflow " + cmp.Or(in.Name, in.File)
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil { // who may submit is known with the group
		return res, err
	}
	spec, diags := workflow.Parse(in.File, in.YAML)
	if err := diags.Err(); err != nil {
		return res, &coordinator.Error{Kind: coordinator.ErrInvalid, Op: op, Err: err}
	}
	res.Warnings = diags.Warnings()
	if err := overlay(&spec, in, op); err != nil {
		return res, err
	}
	if n := allocations(spec); n > e.opt.MaxAllocations {
		return res, coordinator.Errorf(coordinator.ErrExhausted, op, "%d jobs and tasks, at most %d fit in one workflow", n, e.opt.MaxAllocations)
	}
	if in.ID != "" && (c.Federate == "" || checkWorkflowID(in.ID) != nil) {
		return res, coordinator.Errorf(coordinator.ErrInvalid, op, "the id of a workflow is not the submitter's to choose")
	}
	digest := sha256.Sum256(in.YAML)
	var id coordinator.WorkflowID
	err = e.doView(ctx, func(t *tx) error {
		if in.IdempotencyKey != "" {
			if known := t.state.workflows[t.state.idempotency[idempotencyKey(c, in.IdempotencyKey)]]; known != nil {
				if known.record.Digest != hex.EncodeToString(digest[:]) {
					return coordinator.Errorf(coordinator.ErrConflict, op, "idempotency key %q was used for another file", in.IdempotencyKey)
				}
				id, res.Existed = known.id, true
				return nil
			}
			if _, gone := t.state.federation.withdrawn[idempotencyKey(c, in.IdempotencyKey)]; gone {
				return coordinator.Errorf(coordinator.ErrConflict, op, "it was withdrawn before it arrived")
			}
		}
		owner, prio, err := t.state.owner(c, in.Group, op)
		if err != nil {
			return err
		}
		rec := workflowRecord{Spec: spec, Owner: owner, Priorities: prio, Submitted: t.now,
			Preempts: slices.Clone(t.state.groups[owner.Group].Preempts)}
		if in.IdempotencyKey != "" {
			rec.Idempotency = idempotencyKey(c, in.IdempotencyKey)
			rec.Digest = hex.EncodeToString(digest[:])
		}
		id, err = e.accept(t, op, rec, in.ID)
		return err
	}, func(s *state) {
		res.Workflow = s.workflows[id].view(s, true)
		s.veil(c, res.Workflow.Jobs)
	})
	return res, err
}

// overlay applies what the command line says on top of the file.
func overlay(spec *coordinator.WorkflowSpec, in StartWorkflow, op string) error {
	if in.Name != "" {
		if err := workflow.CheckName(in.Name); err != nil {
			return coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
		}
		spec.Name = in.Name
	}
	if in.Priority > 0 {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "priority %d: a submitter can only lower the priority of its work, so at most 0", in.Priority)
	}
	if in.Priority < 0 {
		spec.Priority = in.Priority
	}
	if in.Preemptible != nil {
		spec.Preemptible = *in.Preemptible
		for i := range spec.Jobs {
			if j := &spec.Jobs[i]; !j.PreemptibleSet && j.Class != coordinator.ClassReserved {
				j.Preemptible = *in.Preemptible
			}
		}
	}
	return nil
}

func allocations(spec coordinator.WorkflowSpec) int {
	n := 0
	for _, j := range spec.Jobs {
		if j.Array != nil {
			n += j.Array.Len()
		} else {
			n++
		}
	}
	return n
}

func idempotencyKey(c Caller, key string) string { return string(c.User) + "/" + key }

// accept checks that every job could run somewhere and files the workflow.
func (e *Engine) accept(t *tx, op string, rec workflowRecord, id coordinator.WorkflowID) (coordinator.WorkflowID, error) {
	s := t.state
	if n := allocations(rec.Spec); s.open+n > e.opt.MaxOpenAllocations {
		return "", coordinator.Errorf(coordinator.ErrExhausted, op, "%d jobs wait or run already, at most %d do", s.open, e.opt.MaxOpenAllocations).
			WithHint("try again when some have ended")
	}
	if err := s.fillWalltimes(op, &rec.Spec); err != nil {
		return "", err
	}
	var err error
	if id == "" {
		id, err = newWorkflowID(t.now, e.opt.Rand)
	} else if s.workflows[id] != nil {
		err = coordinator.Errorf(coordinator.ErrExists, op, "there is one of this id")
	}
	if err != nil {
		return "", err
	}
	w := newWorkflow(id, rec)
	for _, j := range w.jobs {
		if err := s.refuseImpossible(op, j); err != nil {
			return "", err
		}
	}
	s.workflows[id] = w
	if rec.Idempotency != "" {
		s.idempotency[rec.Idempotency] = id
	}
	s.open += w.open
	t.filed = append(t.filed, w)
	t.event(Event{Kind: "submitted", Workflow: id, Subject: "workflow",
		Message:  fmt.Sprintf("workflow %s by %s, jobs: %d", rec.Spec.Name, rec.Owner.UserName, w.open),
		Metadata: map[string]string{"organization": rec.Owner.OrganizationSlug, "group": rec.Owner.GroupSlug}})
	for _, j := range w.jobs {
		t.settle(j, true)
	}
	return id, nil
}

// fillWalltimes gives jobs without a walltime the longest of their class, and refuses longer ones.
func (s *state) fillWalltimes(op string, spec *coordinator.WorkflowSpec) error {
	for i := range spec.Jobs {
		j := &spec.Jobs[i]
		longest := s.config.Scheduler.MaxWalltime[j.Class]
		switch {
		case j.Kind == coordinator.KindService:
		case j.Walltime == 0:
			j.Walltime = longest
		case longest > 0 && j.Walltime > longest:
			return coordinator.Errorf(coordinator.ErrInvalid, op, "job %s asks for %s, the longest walltime of class %s is %s", j.Name, j.Walltime, j.Class, longest).
				WithHint("shorten policy.timeout.execute or max-minutes, or run it as a service")
		}
	}
	return nil
}

// checkWorkflowID takes what newWorkflowID makes.
func checkWorkflowID(id coordinator.WorkflowID) error {
	u, err := uuid.Parse(string(id))
	if err == nil && (u.Version() != 7 || u.String() != string(id)) {
		err = fmt.Errorf("%q is not a workflow id", id)
	}
	return err
}

// newWorkflowID makes a UUIDv7 of the engine's time and chance.
func newWorkflowID(now time.Time, rand io.Reader) (coordinator.WorkflowID, error) {
	var u uuid.UUID
	if _, err := io.ReadFull(rand, u[:]); err != nil {
		return "", fmt.Errorf("cannot make a workflow id: %w", err)
	}
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return coordinator.WorkflowID(u.String()), nil
}

// owner resolves who a submission belongs to, with the priorities that count for it.
func (s *state) owner(c Caller, group, op string) (coordinator.Owner, priorities, error) {
	u, o := s.users[c.User], s.orgs[c.Organization]
	if u == nil || o == nil {
		return coordinator.Owner{}, priorities{}, noSuch(op, "user", string(c.User))
	}
	if len(u.Groups) == 0 {
		return coordinator.Owner{}, priorities{}, coordinator.Errorf(coordinator.ErrDenied, op, "user %s belongs to no group", u.Name)
	}
	g := s.groups[u.Groups[0]]
	if group != "" {
		g = s.group(o.ID, group)
		if g == nil || !slices.Contains(u.Groups, g.ID) {
			return coordinator.Owner{}, priorities{}, coordinator.Errorf(coordinator.ErrDenied, op, "user %s is not a member of group %q", u.Name, group)
		}
	}
	if err := c.authorize(auth.PermissionSubmit, op, auth.Target{Organization: o.ID, Group: g.ID, Owner: u.ID}); err != nil {
		return coordinator.Owner{}, priorities{}, err
	}
	return coordinator.Owner{
		Organization: o.ID, OrganizationSlug: o.Slug, Group: g.ID, GroupSlug: g.Slug,
		User: u.ID, UserName: u.Name, Email: u.Email, UnixUser: u.UnixUser,
	}, priorities{Organization: o.Priority, Group: g.Priority, User: u.Priority}, nil
}

// ValidateWorkflow checks a file and whether each of its jobs could run here, without starting it.
func (e *Engine) ValidateWorkflow(ctx context.Context, c Caller, file string, yaml []byte) strictyaml.Diagnostics {
	spec, diags := workflow.Parse(file, yaml)
	if diags.Err() != nil {
		return diags
	}
	err := e.view(ctx, func(s *state) {
		owner, prio, err := s.owner(c, "", "validate workflow")
		if err != nil {
			diags = append(diags, strictyaml.Diagnostic{File: file, Message: err.Error()})
			return
		}
		if err := s.fillWalltimes("run workflow", &spec); err != nil {
			diags = append(diags, strictyaml.Diagnostic{File: file, Message: err.Error()})
			return
		}
		if n := allocations(spec); n > e.opt.MaxAllocations {
			diags = append(diags, strictyaml.Diagnostic{File: file, Message: fmt.Sprintf("%d jobs and tasks, at most %d fit in one workflow", n, e.opt.MaxAllocations)})
			return
		}
		w := newWorkflow("", workflowRecord{Spec: spec, Owner: owner, Priorities: prio})
		for _, j := range w.jobs {
			if err := s.refuseImpossible("run job "+j.spec.Name, j); err != nil {
				diags = append(diags, strictyaml.Diagnostic{File: file, Path: "jobs." + j.spec.Name, Message: err.Error()})
			}
		}
	})
	if err != nil {
		diags = append(diags, strictyaml.Diagnostic{File: file, Message: err.Error()})
	}
	return diags
}

// resolve finds a workflow the caller may see: by id, by a unique beginning of an id, or by name (the newest).
func (s *state) resolve(c Caller, op, ref string) (*submission, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, err
	}
	if w := s.workflows[coordinator.WorkflowID(ref)]; w != nil && c.sees(w) {
		return w, nil
	}
	var byPrefix, own, others []*submission
	for _, w := range s.workflows {
		switch {
		case !c.sees(w):
		case w.record.Spec.Name == ref && w.record.Owner.User == c.User:
			own = append(own, w)
		case w.record.Spec.Name == ref:
			others = append(others, w)
		case len(ref) >= 4 && strings.HasPrefix(string(w.id), ref):
			byPrefix = append(byPrefix, w)
		}
	}
	newest := func(list []*submission) *submission {
		return slices.MaxFunc(list, func(a, b *submission) int { return strings.Compare(string(a.id), string(b.id)) })
	}
	switch {
	case len(own) > 0:
		return newest(own), nil
	case len(others) > 0:
		// Of somebody else: only when the name cannot mean the work of two people.
		if owner := others[0].record.Owner.User; slices.ContainsFunc(others, func(w *submission) bool { return w.record.Owner.User != owner }) {
			return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "workflows of several users are called %q", ref).WithHint("name it by its id: %s", idList(others))
		}
		return newest(others), nil
	case len(byPrefix) == 1:
		return byPrefix[0], nil
	case len(byPrefix) > 1:
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%q is the beginning of %d workflow ids", ref, len(byPrefix)).WithHint("one of %s", idList(byPrefix))
	}
	return nil, noSuch(op, "workflow", ref)
}

// idList names at most eight workflows, the newest first.
func idList(list []*submission) string {
	ids := make([]string, 0, len(list))
	for _, w := range list {
		ids = append(ids, fmt.Sprintf("%s (%s)", w.id, w.record.Owner.UserName))
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	if len(ids) > 8 {
		ids = append(ids[:8], "…")
	}
	return strings.Join(ids, ", ")
}

// CancelWorkflow ends a workflow, or one job of it. What waits ends now, what runs after its grace.
func (e *Engine) CancelWorkflow(ctx context.Context, c Caller, ref, jobName string) (view WorkflowView, err error) {
	const op = "cancel workflow"
	var id coordinator.WorkflowID
	err = e.doView(ctx, func(t *tx) error {
		w, err := t.state.resolve(c, op, ref)
		if err != nil {
			return err
		}
		if err := c.authorize(auth.PermissionManageWork, op+" of "+w.record.Owner.UserName, w.target()); err != nil {
			return err
		}
		chosen, err := w.choose(op, jobName)
		if err != nil {
			return err
		}
		id = w.id
		for _, a := range chosen {
			t.cancel(a, "cancelled by "+c.Name)
		}
		return nil
	}, func(s *state) {
		view = s.workflows[id].view(s, true)
		s.veil(c, view.Jobs)
	})
	return view, err
}

// choose gives the allocations that a job name stands for: "" all, "train" a job with all its tasks,
// "train/3" one task.
func (w *submission) choose(op, name string) ([]*allocation, error) {
	if name == "" {
		var all []*allocation
		for _, j := range w.jobs {
			all = append(all, j.allocations...)
		}
		return all, nil
	}
	if j := w.byName[name]; j != nil {
		return j.allocations, nil
	}
	if a := w.find(coordinator.AllocationID(string(w.id) + "/" + name)); a != nil {
		return []*allocation{a}, nil
	}
	return nil, noSuch(op, "job", name)
}

// cancel ends an allocation that waits, and asks the nodes to end one that runs.
func (t *tx) cancel(a *allocation, why string) {
	switch st := a.record.Status; {
	case st.Ended():
	case st.Holds():
		if a.record.Stop != stopCancel {
			a.record.Stop = stopCancel
			a.record.Message = why
			t.touch(a)
			t.stop(a, t.state.config.Scheduler.KillTimeout, "cancelled")
		}
	default:
		t.end(a, coordinator.StatusCancelled, why)
	}
}
