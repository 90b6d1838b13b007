package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/workflow"
)

// RouteState is how far a routed workflow is known to have come. Append only.
type RouteState string

const (
	RouteIntended  RouteState = "intended"  // sent, or about to be; whether it arrived is not known
	RouteSubmitted RouteState = "submitted" // the cluster has it
	RouteRefused   RouteState = "refused"   // no cluster took it
	RouteCancelled RouteState = "cancelled" // withdrawn before it arrived
)

// over reports whether nothing more is to be heard of it.
func (r *routeRecord) over() bool {
	return r.State == RouteRefused || r.State == RouteCancelled || r.Status.Ended()
}

// Route is one routed workflow as the Federate knows it.
type Route struct {
	ID         coordinator.WorkflowID
	Remote     coordinator.WorkflowID // "" until it is known to have arrived
	Name       string
	Owner      coordinator.Owner
	Submitted  time.Time
	State      RouteState
	Cluster    string
	By         federation.By
	Candidates []federation.Candidate
	Message    string
	Cancel     string
	Status     coordinator.Status // as last heard of, 0: not yet
	Ended      time.Time
	Counts     map[coordinator.Status]int
}

func (r *routeRecord) view(id coordinator.WorkflowID) Route {
	return Route{ID: id, Remote: r.Remote, Name: r.Name, Owner: r.Owner, Submitted: r.Submitted, State: r.State, Cluster: r.Cluster,
		By: r.By, Candidates: slices.Clone(r.Candidates), Message: r.Message, Cancel: r.Cancel, Status: r.Status, Ended: r.Ended, Counts: r.Counts}
}

func (r *routeRecord) target() auth.Target {
	return auth.Target{Organization: r.Owner.Organization, Group: r.Owner.Group, Owner: r.Owner.User}
}

// Intent is a Federate's decision about one submission.
type Intent struct {
	Start      StartWorkflow
	Candidates []federation.Candidate // best first; the first is chosen
	By         federation.By
}

// CheckRoutable refuses a file that no cluster would take, and finds the workflow of an idempotency key.
func (e *Engine) CheckRoutable(ctx context.Context, c Caller, in StartWorkflow) (existing *Route, warnings []string, err error) {
	op := "start workflow " + cmp.Or(in.Name, in.File)
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, nil, err
	}
	spec, diags := workflow.Parse(in.File, in.YAML)
	if err := diags.Err(); err != nil {
		return nil, nil, &coordinator.Error{Kind: coordinator.ErrInvalid, Op: op, Err: err}
	}
	if err := overlay(&spec, in, op); err != nil {
		return nil, nil, err
	}
	verr := e.view(ctx, func(s *state) {
		if _, _, err = s.owner(c, in.Group, op); err == nil {
			existing, err = s.routeOf(c, op, in)
		}
	})
	for _, d := range diags.Warnings() {
		warnings = append(warnings, d.String())
	}
	return existing, warnings, errors.Join(verr, err)
}

// routeOf finds what an idempotency key stands for.
func (s *state) routeOf(c Caller, op string, in StartWorkflow) (*Route, error) {
	if in.IdempotencyKey == "" {
		return nil, nil
	}
	id := s.federation.byKey[idempotencyKey(c, in.IdempotencyKey)]
	rec := s.federation.routes[id]
	if rec == nil {
		return nil, nil
	}
	if digest := sha256.Sum256(in.YAML); rec.Digest != hex.EncodeToString(digest[:]) {
		return nil, coordinator.Errorf(coordinator.ErrConflict, op, "idempotency key %q was used for another file", in.IdempotencyKey)
	}
	r := rec.view(id)
	return &r, nil
}

// IntendRoute makes a decision durable before anything is sent. existed: the key's first submission counts instead.
func (e *Engine) IntendRoute(ctx context.Context, c Caller, in Intent) (r Route, existed bool, err error) {
	op := "start workflow " + cmp.Or(in.Start.Name, in.Start.File)
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return r, false, err
	}
	if !e.opt.Federate || len(in.Candidates) == 0 {
		return r, false, coordinator.Errorf(coordinator.ErrUnsupported, op, "there is no cluster to send it to")
	}
	spec, _ := workflow.Parse(in.Start.File, in.Start.YAML)
	digest := sha256.Sum256(in.Start.YAML)
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		owner, _, err := s.owner(c, in.Start.Group, op)
		if err != nil {
			return err
		}
		known, err := s.routeOf(c, op, in.Start)
		if err != nil {
			return err
		}
		if known != nil {
			r, existed = *known, true
			return nil
		}
		id, err := newWorkflowID(t.now, e.opt.Rand)
		if err != nil {
			return err
		}
		rec := &routeRecord{Name: cmp.Or(in.Start.Name, spec.Name), Owner: owner, Submitted: t.now, State: RouteIntended,
			Cluster: in.Candidates[0].Cluster, By: in.By, Candidates: in.Candidates, Digest: hex.EncodeToString(digest[:]),
			Request: routedRequest{in.Start.File, in.Start.Name, in.Start.Preemptible, in.Start.Priority}}
		if in.Start.IdempotencyKey != "" {
			rec.Idempotency = idempotencyKey(c, in.Start.IdempotencyKey)
			s.federation.byKey[rec.Idempotency] = id
		}
		s.federation.routes[id] = rec
		t.putBytes(prefixRouteFile+string(id), in.Start.YAML)
		t.putRoute(id, rec)
		t.event(Event{Kind: "routed", Workflow: id, Subject: rec.Cluster, Message: routeMessage(rec), Metadata: map[string]string{"by": string(rec.By)}})
		r = rec.view(id)
		return nil
	})
	return r, existed, err
}

func routeMessage(r *routeRecord) string {
	var others []string
	for _, c := range r.Candidates[1:] {
		switch {
		case c.Skipped != "":
			others = append(others, c.Cluster+" was skipped: "+c.Skipped)
		case c.Score != nil && c.Score.Reason != "":
			others = append(others, c.Cluster+" cannot: "+c.Score.Reason)
		}
	}
	text := "to cluster " + r.Cluster + " by " + string(r.By)
	if len(others) > 0 {
		text += "; " + strings.Join(others, "; ")
	}
	return text
}

func (t *tx) putRoute(id coordinator.WorkflowID, rec *routeRecord) {
	t.put(prefixRoute+string(id), rec)
	t.group()
}

// RouteOutcome is news of a route; zero fields say nothing.
type RouteOutcome struct {
	State   RouteState
	Cluster string // it is to go there instead: only from a cluster that is known not to have it
	Remote  coordinator.WorkflowID
	Message string
	Cancel  string // who wants it cancelled
	Status  coordinator.Status
	Ended   time.Time
	Counts  map[coordinator.Status]int
}

// SettleRoute keeps what was heard of a route. How far running work is, is kept in memory alone.
func (e *Engine) SettleRoute(ctx context.Context, id coordinator.WorkflowID, o RouteOutcome) (r Route, err error) {
	err = e.do(ctx, func(t *tx) error {
		old := t.state.federation.routes[id]
		if old == nil {
			return noSuch("settle route", "workflow", string(id))
		}
		next := *old
		next.settle(o)
		t.state.federation.routes[id] = &next
		if next.State != old.State || next.Remote != old.Remote || next.Cluster != old.Cluster || next.Cancel != old.Cancel || next.over() != old.over() {
			if next.State != RouteIntended {
				t.delete(prefixRouteFile + string(id)) // it is where it was to go, or goes nowhere
			}
			t.putRoute(id, &next)
			if next.State != old.State || next.Cluster != old.Cluster {
				t.event(Event{Kind: "route-" + string(next.State), Workflow: id, Subject: next.Cluster, Message: next.Message})
			}
		}
		r = next.view(id)
		return nil
	})
	return r, err
}

func (r *routeRecord) settle(o RouteOutcome) {
	if r.State == RouteIntended {
		r.State, r.Cluster, r.Remote = cmp.Or(o.State, r.State), cmp.Or(o.Cluster, r.Cluster), cmp.Or(o.Remote, r.Remote)
		r.Message = cmp.Or(o.Message, r.Message)
	}
	r.Cancel = cmp.Or(o.Cancel, r.Cancel)
	if o.Status != 0 && !r.Status.Ended() {
		r.Status, r.Ended, r.Counts = o.Status, o.Ended, o.Counts
	}
}

// FindRoute finds a routed workflow that the caller may do this to: by id, a beginning of it, or name.
func (e *Engine) FindRoute(ctx context.Context, c Caller, permission auth.Permission, op, ref string) (r Route, err error) {
	verr := e.view(ctx, func(s *state) {
		var id coordinator.WorkflowID
		if id, err = s.resolveRoute(c, op, ref); err != nil {
			return
		}
		rec := s.federation.routes[id]
		if err = c.authorize(permission, op+" of "+rec.Owner.UserName, rec.target()); err == nil {
			r = rec.view(id)
		}
	})
	return r, errors.Join(verr, err)
}

func (s *state) resolveRoute(c Caller, op, ref string) (coordinator.WorkflowID, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return "", err
	}
	sees := func(r *routeRecord) bool { return auth.Allowed(c.Principal, auth.PermissionReadWork, r.target()) }
	if r := s.federation.routes[coordinator.WorkflowID(ref)]; r != nil && sees(r) {
		return coordinator.WorkflowID(ref), nil
	}
	var own, others, byPrefix []coordinator.WorkflowID
	owners := map[coordinator.UserID]bool{}
	for id, r := range s.federation.routes {
		switch {
		case !sees(r):
		case r.Name == ref && r.Owner.User == c.User:
			own = append(own, id)
		case r.Name == ref:
			others, owners[r.Owner.User] = append(others, id), true
		case len(ref) >= 4 && (strings.HasPrefix(string(id), ref) || r.Remote == coordinator.WorkflowID(ref)):
			byPrefix = append(byPrefix, id)
		}
	}
	switch {
	case len(own) > 0:
		return slices.Max(own), nil // the newest
	case len(others) > 0 && len(owners) == 1:
		return slices.Max(others), nil
	case len(others) > 0:
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "workflows of several users are called %q", ref).WithHint("name it by its id")
	case len(byPrefix) == 1:
		return byPrefix[0], nil
	case len(byPrefix) > 1:
		return "", coordinator.Errorf(coordinator.ErrInvalid, op, "%q is the beginning of %d workflow ids", ref, len(byPrefix))
	}
	return "", noSuch(op, "workflow", ref)
}

// Routes lists what the caller may see, newest first.
func (e *Engine) Routes(ctx context.Context, c Caller, status string, p Page) (list []Route, next string, err error) {
	const op = "list workflows"
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, "", err
	}
	var want coordinator.Status
	if status != "" {
		if err := want.UnmarshalText([]byte(status)); err != nil {
			return nil, "", coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
		}
	}
	err = e.view(ctx, func(s *state) {
		var ids []coordinator.WorkflowID
		for id, r := range s.federation.routes {
			if auth.Allowed(c.Principal, auth.PermissionReadWork, r.target()) && (want == 0 || r.shown() == want) {
				ids = append(ids, id)
			}
		}
		slices.SortFunc(ids, func(a, b coordinator.WorkflowID) int { return cmp.Compare(b, a) })
		ids, next = page(ids, p, func(id coordinator.WorkflowID) string { return string(id) },
			func(id coordinator.WorkflowID, token string) bool { return string(id) >= token })
		for _, id := range ids {
			list = append(list, s.federation.routes[id].view(id))
		}
	})
	return list, next, err
}

// shown is the status word for a route of which nothing newer is known.
func (r *routeRecord) shown() coordinator.Status { return shownStatus(r.State, r.Status) }

// Shown is the status word for a route of which nothing newer is known.
func (r *Route) Shown() coordinator.Status { return shownStatus(r.State, r.Status) }

func shownStatus(state RouteState, status coordinator.Status) coordinator.Status {
	switch {
	case state == RouteRefused:
		return coordinator.StatusFailed
	case state == RouteCancelled:
		return coordinator.StatusCancelled
	case status == 0:
		return coordinator.StatusPending
	}
	return status
}

// OpenRoute is a route whose outcome is not known, with all that is needed to ask again.
type OpenRoute struct {
	Route
	Start StartWorkflow
}

// OpenRoutes lists the routes of which it is not known whether they arrived, the oldest first, at most 1000.
func (e *Engine) OpenRoutes(ctx context.Context) (out []OpenRoute, err error) {
	err = e.view(ctx, func(s *state) {
		for id, r := range s.federation.routes {
			if r.State == RouteIntended {
				out = append(out, OpenRoute{Route: r.view(id), Start: r.start(id)})
			}
		}
	})
	slices.SortFunc(out, func(a, b OpenRoute) int { return cmp.Compare(a.ID, b.ID) })
	out = out[:min(len(out), 1000)]
	for i := range out {
		entry, gerr := e.opt.Store.Get(ctx, prefixRouteFile+string(out[i].ID))
		if gerr != nil {
			return nil, fmt.Errorf("cannot read the file of workflow %s: %w", out[i].ID, gerr)
		}
		out[i].Start.YAML = entry.Value
	}
	return out, err
}

// start is the submission as it is sent: the route's id is the workflow's id there, and the key that makes it one.
func (r *routeRecord) start(id coordinator.WorkflowID) StartWorkflow {
	return StartWorkflow{File: r.Request.File, Name: r.Request.Name, Preemptible: r.Request.Preemptible, Priority: r.Request.Priority,
		Group: string(r.Owner.Group), IdempotencyKey: string(id), ID: id}
}

// RunningRoutes lists what is known to be at a cluster and not known to have ended, by cluster, at most 1000 of each.
func (e *Engine) RunningRoutes(ctx context.Context) (out map[string][]Route, err error) {
	out = map[string][]Route{}
	err = e.view(ctx, func(s *state) {
		for id, r := range s.federation.routes {
			if r.State == RouteSubmitted && !r.Status.Ended() && len(out[r.Cluster]) < 1000 {
				out[r.Cluster] = append(out[r.Cluster], r.view(id))
			}
		}
	})
	return out, err
}

// ExpireRoutes forgets routes that ended before retention.finishedWorkflows.
func (e *Engine) ExpireRoutes(ctx context.Context) error {
	return e.do(ctx, func(t *tx) error {
		keep, n := t.state.config.checked.Retention.FinishedWorkflows, 0
		for id, r := range t.state.federation.routes {
			if keep <= 0 || !r.over() || n == erasedAtOnce || t.now.Sub(cmpTime(r.Ended, r.Submitted)) < keep {
				continue
			}
			n++
			delete(t.state.federation.routes, id)
			if t.state.federation.byKey[r.Idempotency] == id {
				delete(t.state.federation.byKey, r.Idempotency)
			}
			t.delete(prefixRoute + string(id))
			t.delete(prefixRouteFile + string(id))
			t.put(keySequence, t.state.seq)
			t.group()
		}
		return nil
	})
}

func cmpTime(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}
