package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

// candidates asks every cluster how a submission would fare there, all at once, and orders the answers.
func (f *Federate) candidates(ctx context.Context, c engine.Caller, in engine.StartWorkflow) ([]federation.Candidate, federation.By, error) {
	id, attrs, err := f.engine.BehalfOf(ctx, c.User, in.Group)
	if err != nil {
		return nil, "", err
	}
	clusters, err := f.clusters(ctx)
	if err != nil {
		return nil, "", err
	}
	byPriority, err := f.engine.PriorityRouting(ctx)
	if err != nil {
		return nil, "", err
	}
	in.Group, in.ID, in.IdempotencyKey = id.Group.ID, "", ""
	out := make([]federation.Candidate, len(clusters))
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for i, m := range clusters {
		out[i].Cluster = m.Name
		if m.Drained {
			out[i].Skipped = "it is drained"
			continue
		}
		g.Go(func() error {
			out[i].Score, out[i].Skipped = f.ask(ctx, m, id, attrs, in)
			return nil
		})
	}
	_ = g.Wait() // each answer, or why there is none, is in out
	by := federation.ByAvailability
	if byPriority {
		by = federation.ByPriority
	}
	return federation.Order(out, by), by, nil
}

// ask gets one cluster's answer, or why there is none.
func (f *Federate) ask(ctx context.Context, m engine.RemoteCluster, id federation.Identity, attrs federation.Attributes, in engine.StartWorkflow) (*federation.Score, string) {
	l, err := f.link(m)
	if err != nil {
		return nil, err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.ScoreTimeout)
	defer cancel()
	if ctx, err = onBehalf(ctx, id, attrs); err != nil {
		return nil, err.Error()
	}
	s, err := l.workflows.ScoreWorkflow(ctx, submissionToProto(in))
	l.heard(f.opts.Now(), err)
	switch {
	case err == nil:
		return storedScore(s), ""
	case status.Code(err) == codes.Unimplemented:
		return nil, "its release gives no scores; upgrade it"
	case unanswered(err):
		return nil, "it does not answer: " + cut(status.Convert(err).Message())
	}
	return nil, "it refuses: " + cut(status.Convert(err).Message())
}

func submissionToProto(in engine.StartWorkflow) *apiv1.StartWorkflowRequest {
	return &apiv1.StartWorkflowRequest{Yaml: in.YAML, File: in.File, Name: in.Name, Preemptible: in.Preemptible, Priority: in.Priority,
		Group: in.Group, IdempotencyKey: in.IdempotencyKey, Id: string(in.ID)}
}

// nowhere is the error for a submission that no cluster can take.
func nowhere(op string, candidates []federation.Candidate) error {
	if len(candidates) == 0 {
		return coordinator.Errorf(coordinator.ErrUnavailable, op, "no cluster is registered").
			WithHint("an administrator registers one with `substrate cluster register`")
	}
	var reasons []string
	kind := coordinator.ErrDenied
	for _, c := range candidates {
		switch {
		case c.Skipped != "":
			reasons = append(reasons, c.Cluster+": "+c.Skipped)
			if !strings.HasPrefix(c.Skipped, "it refuses") {
				kind = coordinator.ErrUnavailable // that one might
			}
		case c.Score != nil:
			reasons = append(reasons, c.Cluster+": "+c.Score.Reason)
		}
	}
	return coordinator.Errorf(kind, op, "no cluster can take it: %s", strings.Join(reasons, "; "))
}

// start routes one submission: ask, choose, keep the choice, send. What has been kept is started once in the end,
// whatever dies in between, or refused.
func (f *Federate) start(ctx context.Context, c engine.Caller, in engine.StartWorkflow) (*apiv1.StartWorkflowResponse, error) {
	existing, warnings, err := f.engine.CheckRoutable(ctx, c, in)
	if err != nil {
		return nil, err
	}
	if existing != nil {
		return &apiv1.StartWorkflowResponse{Workflow: routeToProto(*existing), Existed: true, Warnings: warnings}, nil
	}
	list, by, err := f.candidates(ctx, c, in)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || !list[0].Usable() {
		return nil, nowhere("start workflow "+in.File, list)
	}
	f.routing.Lock()
	r, existed, err := f.engine.IntendRoute(ctx, c, engine.Intent{Start: in, Candidates: list, By: by})
	if err == nil && !existed {
		f.busy[r.ID] = true
	}
	f.routing.Unlock()
	if err != nil {
		return nil, err
	}
	if existed {
		return &apiv1.StartWorkflowResponse{Workflow: routeToProto(r), Existed: true, Warnings: warnings}, nil
	}
	defer f.release(r.ID)
	in.ID, in.IdempotencyKey, in.Group = r.ID, string(r.ID), string(r.Owner.Group)
	// Sent to the end even when the caller goes away: it is kept, so it is to come to something.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.opts.CallTimeout)
	defer cancel()
	res, err := f.send(work, engine.OpenRoute{Route: r, Start: in}, false)
	if err != nil {
		return nil, err
	}
	res.Warnings = append(res.Warnings, warnings...)
	return res, nil
}

func (f *Federate) release(id coordinator.WorkflowID) {
	f.routing.Lock()
	defer f.routing.Unlock()
	delete(f.busy, id)
}

// send submits a kept route to its cluster, and to the next one when it is refused and is known not to be there. asked
// marks one that was sent before: then a refusal alone does not say that the first never arrived.
func (f *Federate) send(ctx context.Context, r engine.OpenRoute, asked bool) (*apiv1.StartWorkflowResponse, error) {
	op := "start workflow " + r.Name
	for {
		m, err := f.cluster(ctx, r.Cluster)
		if coordinator.ErrorKindOf(err) == coordinator.ErrNotFound && err != nil {
			return nil, f.refuse(ctx, &r, op, err) // deregistered by force: it was said that nobody is to know
		}
		if err != nil {
			return nil, err
		}
		res, err := f.submit(ctx, m, &r)
		switch {
		case err == nil:
			settled, err := f.engine.SettleRoute(ctx, r.ID, arrived(res.GetWorkflow()))
			if err != nil {
				return nil, err
			}
			if settled.Cancel != "" {
				if w, err := f.cancelRemote(ctx, settled.Cancel, settled, ""); err == nil { // else follow does
					res.Workflow = w
				}
			}
			f.decorate(res.Workflow, settled)
			return res, nil
		case unanswered(err):
			w := routeToProto(r.Route)
			w.Note = proto.String(w.GetNote() + ": " + status.Convert(err).Message())
			return &apiv1.StartWorkflowResponse{Workflow: w, Warnings: []string{w.GetNote()}}, nil
		}
		if asked {
			if done, werr := f.withdraw(ctx, m, &r); done || werr != nil {
				return &apiv1.StartWorkflowResponse{Workflow: routeToProto(r.Route)}, werr
			}
		}
		asked = false // it is known not to be there
		next := nextCandidate(&r)
		if next == "" {
			return nil, f.refuse(ctx, &r, op, err)
		}
		moved, merr := f.engine.SettleRoute(ctx, r.ID, engine.RouteOutcome{Cluster: next,
			Message: fmt.Sprintf("cluster %s refused it: %s", r.Cluster, cut(status.Convert(err).Message()))})
		if merr != nil {
			return nil, merr
		}
		r.Route = moved
	}
}

// nextCandidate is the next usable cluster after the one that refused; "" when there is none.
func nextCandidate(r *engine.OpenRoute) string {
	for i := range r.Candidates {
		if r.Candidates[i].Cluster != r.Cluster {
			continue
		}
		for _, c := range r.Candidates[i+1:] {
			if c.Usable() {
				return c.Cluster
			}
		}
	}
	return ""
}

func (f *Federate) refuse(ctx context.Context, r *engine.OpenRoute, op string, cause error) error {
	message := status.Convert(cause).Message()
	if _, err := f.engine.SettleRoute(ctx, r.ID, engine.RouteOutcome{State: engine.RouteRefused,
		Message: fmt.Sprintf("cluster %s: %s", r.Cluster, cut(message))}); err != nil {
		return err
	}
	kind := coordinator.ErrDenied
	for _, k := range kinds() {
		if k.code == status.Code(cause) {
			kind = k.kind
		}
	}
	return coordinator.Errorf(kind, op, "cluster %s refused it: %s", r.Cluster, message)
}

func arrived(w *apiv1.Workflow) engine.RouteOutcome {
	o := outcomeOf(w)
	o.State, o.Remote = engine.RouteSubmitted, coordinator.WorkflowID(w.GetId())
	return o
}

// submit sends a route to a cluster once. It is the same submission however often it is sent: the key is the route's.
func (f *Federate) submit(ctx context.Context, m engine.RemoteCluster, r *engine.OpenRoute) (*apiv1.StartWorkflowResponse, error) {
	l, err := f.link(m)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	id, attrs, err := f.behalfOf(ctx, r.Route)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if ctx, err = onBehalf(ctx, id, attrs); err != nil {
		return nil, err
	}
	res, err := l.workflows.StartWorkflow(ctx, submissionToProto(r.Start))
	l.heard(f.opts.Now(), err)
	return res, err
}

// behalfOf is the owner of a route, with the group that it counts for; a former member acts in the default group.
func (f *Federate) behalfOf(ctx context.Context, r engine.Route) (federation.Identity, federation.Attributes, error) {
	id, attrs, err := f.engine.BehalfOf(ctx, r.Owner.User, string(r.Owner.Group))
	if coordinator.ErrorKindOf(err) == coordinator.ErrDenied {
		id, attrs, err = f.engine.BehalfOf(ctx, r.Owner.User, "")
	}
	return id, attrs, err
}

// withdraw makes sure that a route's submission does not arrive any more; done when it has, or is wanted cancelled.
func (f *Federate) withdraw(ctx context.Context, m engine.RemoteCluster, r *engine.OpenRoute) (done bool, err error) {
	l, err := f.link(m)
	if err != nil {
		return false, err
	}
	res, err := l.federation.Withdraw(ctx, &apiv1.WithdrawRequest{User: string(r.Owner.User), IdempotencyKey: string(r.ID)})
	l.heard(f.opts.Now(), err)
	if err != nil {
		return false, unreachable("withdraw workflow "+r.Name, m.Name, err)
	}
	outcome := engine.RouteOutcome{}
	switch {
	case res.GetWorkflow() != "":
		outcome = engine.RouteOutcome{State: engine.RouteSubmitted, Remote: coordinator.WorkflowID(res.GetWorkflow())}
	case r.Cancel != "":
		outcome = engine.RouteOutcome{State: engine.RouteCancelled, Message: "cancelled by " + r.Cancel + " before it arrived"}
	default:
		return false, nil
	}
	r.Route, err = f.engine.SettleRoute(ctx, r.ID, outcome)
	return true, err
}

// resolve sends again what has no answer, each to the cluster that it was kept for.
func (f *Federate) resolve(ctx context.Context) error {
	f.routing.Lock()
	open, err := f.engine.OpenRoutes(ctx)
	var mine []engine.OpenRoute
	for _, r := range open {
		if !f.busy[r.ID] {
			f.busy[r.ID] = true
			mine = append(mine, r)
		}
	}
	f.routing.Unlock()
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for _, r := range mine {
		g.Go(func() error {
			defer f.release(r.ID)
			limited, cancel := context.WithTimeout(ctx, f.opts.CallTimeout)
			defer cancel()
			if err := f.settle(limited, r); err != nil && ctx.Err() == nil {
				f.opts.Log.Info("a routed workflow has no answer yet, or was refused", "workflow", r.ID, "cluster", r.Cluster, "err", err)
			}
			return nil
		})
	}
	return g.Wait()
}

// settle brings one route to an outcome: submitted, or withdrawn when its owner does not want it any more.
func (f *Federate) settle(ctx context.Context, r engine.OpenRoute) error {
	if r.Cancel == "" {
		_, err := f.send(ctx, r, true)
		return err
	}
	m, err := f.cluster(ctx, r.Cluster)
	if coordinator.ErrorKindOf(err) == coordinator.ErrNotFound {
		return f.refuse(ctx, &r, "cancel workflow "+r.Name, err)
	}
	if err != nil {
		return err
	}
	if _, err := f.withdraw(ctx, m, &r); err != nil {
		return err
	}
	if r.State == engine.RouteSubmitted {
		_, err = f.cancelRemote(ctx, r.Cancel, r.Route, "")
	}
	return err
}

func (f *Federate) cancelRemote(ctx context.Context, actor string, r engine.Route, job string) (*apiv1.Workflow, error) {
	return remotely(ctx, f, "cancel workflow "+r.Name, actor, r, func(ctx context.Context, l *link) (*apiv1.Workflow, error) {
		return l.workflows.CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: string(r.Remote), Job: job})
	})
}

// remotely makes one call to a route's cluster on behalf of its owner. The Federate has decided that the caller may.
func remotely[T any](ctx context.Context, f *Federate, op, actor string, r engine.Route, call func(context.Context, *link) (T, error)) (out T, err error) {
	ctx, l, err := f.towards(ctx, op, actor, r)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.CallTimeout)
	defer cancel()
	out, err = call(ctx, l)
	l.heard(f.opts.Now(), err)
	if err != nil && unanswered(err) {
		err = unreachable(op, l.name, err)
	}
	return out, err
}

// towards is the connection to a route's cluster and a context for calls on behalf of its owner.
func (f *Federate) towards(ctx context.Context, op, actor string, r engine.Route) (context.Context, *link, error) {
	if r.State != engine.RouteSubmitted {
		return nil, nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "%s", routeToProto(r).GetNote())
	}
	m, err := f.cluster(ctx, r.Cluster)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrorKindOf(err), op, "%w", err)
	}
	l, err := f.link(m)
	if err != nil {
		return nil, nil, err
	}
	id, attrs, err := f.behalfOf(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	if actor != id.User.Name {
		id.Actor = actor
	}
	ctx, err = onBehalf(ctx, id, attrs)
	return ctx, l, err
}

// decorate adds to a cluster's view of a workflow what the Federate knows.
func (f *Federate) decorate(w *apiv1.Workflow, r engine.Route) {
	w.Cluster, w.Routing = &r.Cluster, routingToProto(r)
	w.Organization, w.Group, w.User = r.Owner.OrganizationSlug, r.Owner.GroupSlug, r.Owner.UserName
}

// list shows routes with what their clusters say of them now; those that do not answer are noted.
func (f *Federate) list(ctx context.Context, routes []engine.Route) ([]*apiv1.Workflow, error) {
	byCluster := map[string][]engine.Route{}
	for _, r := range routes {
		if r.State == engine.RouteSubmitted && !r.Status.Ended() {
			byCluster[r.Cluster] = append(byCluster[r.Cluster], r)
		}
	}
	clusters, err := f.clusters(ctx)
	if err != nil {
		return nil, err
	}
	heard := make([]map[coordinator.WorkflowID]*apiv1.Workflow, len(clusters))
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for i, m := range clusters {
		g.Go(func() error {
			heard[i] = map[coordinator.WorkflowID]*apiv1.Workflow{}
			for _, w := range f.readWorkflows(ctx, m, byCluster[m.Name]) {
				heard[i][w.route.ID] = w.view
			}
			return nil
		})
	}
	_ = g.Wait() // who did not answer has nothing in heard
	out := make([]*apiv1.Workflow, 0, len(routes))
	for _, r := range routes {
		out = append(out, listed(r, heard))
	}
	return out, nil
}

func listed(r engine.Route, heard []map[coordinator.WorkflowID]*apiv1.Workflow) *apiv1.Workflow {
	w := routeToProto(r)
	w.Routing = nil // as jobs, only of one workflow
	for _, h := range heard {
		if now := h[r.ID]; now != nil {
			w.Status, w.Counts, w.Started, w.Ended = now.GetStatus(), now.GetCounts(), now.GetStarted(), now.GetEnded()
			return w
		}
	}
	if r.State == engine.RouteSubmitted && !r.Status.Ended() {
		w.Note = proto.String("cluster " + r.Cluster + " does not answer; the status is the last that is known")
	}
	return w
}

// push carries changes of grants to clusters that have not answered them yet.
func (f *Federate) push(ctx context.Context) error {
	f.routing.Lock()
	pushes, err := f.engine.Pushes(ctx)
	var mine []engine.Push
	for _, p := range pushes {
		if !f.pushing[p.ID] {
			f.pushing[p.ID] = true
			mine = append(mine, p)
		}
	}
	f.routing.Unlock()
	for _, p := range mine {
		f.pushOnce(ctx, p)
	}
	return err
}

// pushOnce calls every cluster that waits for a change once, and tells what became of it. The change is in pushing.
func (f *Federate) pushOnce(ctx context.Context, p engine.Push) (results []*apiv1.AppendProvisionerDefinitionsResponse_Result, outcomes []*apiv1.ClusterOutcome) {
	defer func() {
		f.routing.Lock()
		defer f.routing.Unlock()
		delete(f.pushing, p.ID)
	}()
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for _, name := range p.Waiting {
		g.Go(func() error {
			res, o := f.pushTo(ctx, p, name)
			for _, r := range res {
				r.Cluster = &name
			}
			mu.Lock()
			defer mu.Unlock()
			results, outcomes = append(results, res...), append(outcomes, o)
			return nil
		})
	}
	_ = g.Wait() // the outcomes tell
	slices.SortFunc(outcomes, func(a, b *apiv1.ClusterOutcome) int { return cmp.Compare(a.GetCluster(), b.GetCluster()) })
	slices.SortStableFunc(results, func(a, b *apiv1.AppendProvisionerDefinitionsResponse_Result) int {
		return cmp.Compare(a.GetCluster(), b.GetCluster())
	})
	return results, outcomes
}

func (f *Federate) pushTo(ctx context.Context, p engine.Push, name string) ([]*apiv1.AppendProvisionerDefinitionsResponse_Result, *apiv1.ClusterOutcome) {
	o := &apiv1.ClusterOutcome{Cluster: name, State: "pending"}
	res, err := f.append(ctx, p, name)
	if err != nil {
		o.Error = status.Convert(err).Message()
		if unanswered(err) {
			return nil, o
		}
		o.State = "refused"
	} else {
		o.State = "done"
	}
	if err := f.engine.SettlePush(ctx, p.ID, name, o.GetError()); err != nil {
		o.State, o.Error = "pending", err.Error()
	}
	return res.GetResults(), o
}

func (f *Federate) append(ctx context.Context, p engine.Push, name string) (*apiv1.AppendProvisionerDefinitionsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.CallTimeout)
	defer cancel()
	m, err := f.cluster(ctx, name)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	l, err := f.link(m)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	ctx, err = organizationsOf(ctx, p.Organizations)
	if err != nil {
		return nil, err
	}
	res, err := l.identity.AppendProvisionerDefinitions(ctx, &apiv1.AppendProvisionerDefinitionsRequest{Definitions: p.Definitions,
		AllOrganizations: p.All, Organizations: each(p.Organizations, func(e federation.Entity) string { return e.ID })})
	l.heard(f.opts.Now(), err)
	return res, err
}
