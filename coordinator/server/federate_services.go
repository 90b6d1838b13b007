package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

// routedService is Workflows on a Federate: what it knows itself, and the rest from the workflow's cluster.
type routedService struct {
	apiv1.UnimplementedWorkflowsServer
	federate *Federate
	local    workflowService
}

func (s routedService) StartWorkflow(ctx context.Context, r *apiv1.StartWorkflowRequest) (*apiv1.StartWorkflowResponse, error) {
	key, err := onceKey(ctx, r.GetIdempotencyKey(), "start the workflow")
	if err != nil {
		return nil, err
	}
	if r.GetId() != "" {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "start the workflow", "the id of a workflow is not the submitter's to choose")
	}
	return s.federate.start(ctx, callerOf(ctx), startFromProto(r, key))
}

func (s routedService) ScoreWorkflow(ctx context.Context, r *apiv1.StartWorkflowRequest) (*apiv1.ScoreWorkflowResponse, error) {
	in := startFromProto(r, "")
	if _, _, err := s.federate.engine.CheckRoutable(ctx, callerOf(ctx), in); err != nil {
		return nil, err
	}
	list, _, err := s.federate.candidates(ctx, callerOf(ctx), in)
	if err != nil {
		return nil, err
	}
	out := &apiv1.ScoreWorkflowResponse{}
	if len(list) > 0 && list[0].Usable() {
		out = candidateToProto(list[0]).GetScore()
	} else {
		out.Reason = nowhere("score workflow "+in.File, list).(*coordinator.Error).Err.Error()
	}
	out.Candidates = each(list, candidateToProto)
	return out, nil
}

func (s routedService) ValidateWorkflow(ctx context.Context, r *apiv1.ValidateWorkflowRequest) (*apiv1.ValidateWorkflowResponse, error) {
	in := engine.StartWorkflow{YAML: r.GetYaml(), File: r.GetFile()}
	if _, _, err := s.federate.engine.CheckRoutable(ctx, callerOf(ctx), in); err != nil {
		return s.local.ValidateWorkflow(ctx, r) // with the places of its findings
	}
	list, _, err := s.federate.candidates(ctx, callerOf(ctx), in)
	if err != nil {
		return nil, err
	}
	out := &apiv1.ValidateWorkflowResponse{}
	if len(list) > 0 && list[0].Usable() {
		return out, nil
	}
	out.Diagnostics = append(out.Diagnostics, &apiv1.ValidationMessage{Severity: "error", File: r.GetFile(),
		Message: nowhere("run workflow "+r.GetFile(), list).Error()})
	return out, nil
}

func (s routedService) ListWorkflows(ctx context.Context, r *apiv1.ListWorkflowsRequest) (*apiv1.ListWorkflowsResponse, error) {
	routes, next, err := s.federate.engine.Routes(ctx, callerOf(ctx), r.GetStatus(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	ws, err := s.federate.list(ctx, routes)
	return &apiv1.ListWorkflowsResponse{Workflows: ws, NextPageToken: next}, err
}

func (s routedService) GetWorkflow(ctx context.Context, r *apiv1.GetWorkflowRequest) (*apiv1.Workflow, error) {
	const op = "show workflow"
	c := callerOf(ctx)
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionReadWork, op, r.GetId())
	if err != nil {
		return nil, err
	}
	if route.State != engine.RouteSubmitted {
		return routeToProto(route), nil
	}
	w, err := remotely(ctx, s.federate, op, c.Name, route, func(ctx context.Context, l *link) (*apiv1.Workflow, error) {
		return l.workflows.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: string(route.Remote)})
	})
	if err != nil {
		w = routeToProto(route)
		w.Note = proto.String("the status is the last that is known: " + cut(status.Convert(toStatus(err)).Message()))
		return w, nil
	}
	if o := outcomeOf(w); o.Status != route.Status {
		if _, err := s.federate.engine.SettleRoute(ctx, route.ID, o); err != nil {
			return nil, err
		}
	}
	s.federate.decorate(w, route)
	return w, nil
}

func (s routedService) CancelWorkflow(ctx context.Context, r *apiv1.CancelWorkflowRequest) (*apiv1.Workflow, error) {
	const op = "cancel workflow"
	c := callerOf(ctx)
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionManageWork, op, r.GetId())
	if err != nil {
		return nil, err
	}
	if route.State == engine.RouteIntended {
		if r.GetJob() != "" {
			return nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "whether it arrived at cluster %s is not known yet", route.Cluster)
		}
		// Kept first: whoever finds out what became of the submission ends it.
		route, err = s.federate.engine.SettleRoute(ctx, route.ID, engine.RouteOutcome{Cancel: c.Name})
		if err != nil {
			return nil, err
		}
		if err := s.federate.resolve(ctx); err != nil {
			return nil, err
		}
		if route, err = s.federate.engine.FindRoute(ctx, c, auth.PermissionReadWork, op, string(route.ID)); err != nil {
			return nil, err
		}
	}
	if route.State != engine.RouteSubmitted {
		return routeToProto(route), nil
	}
	w, err := s.federate.cancelRemote(ctx, c.Name, route, r.GetJob())
	if err != nil {
		return nil, err
	}
	s.federate.decorate(w, route)
	return w, nil
}

func (s routedService) ExplainWorkflow(ctx context.Context, r *apiv1.ExplainWorkflowRequest) (*apiv1.ExplainWorkflowResponse, error) {
	const op = "explain workflow"
	c := callerOf(ctx)
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionReadWork, op, r.GetId())
	if err != nil {
		return nil, err
	}
	out := &apiv1.ExplainWorkflowResponse{Note: routeToProto(route).Note}
	if route.State == engine.RouteSubmitted {
		res, err := remotely(ctx, s.federate, op, c.Name, route, func(ctx context.Context, l *link) (*apiv1.ExplainWorkflowResponse, error) {
			return l.workflows.ExplainWorkflow(ctx, &apiv1.ExplainWorkflowRequest{Id: string(route.Remote), Job: r.GetJob()})
		})
		switch {
		case err == nil:
			out = res
		case coordinator.ErrorKindOf(err) == coordinator.ErrUnavailable: // the choice can be explained without it
			out.Note = proto.String(cut(err.Error()))
		default:
			return nil, err
		}
	}
	out.Routing = routingToProto(route)
	return out, nil
}

// WatchEvents begins with the Federate's choice, which is no event of the cluster and has no number; with the number
// of an event it goes on after that one. Events of the Federate itself are those of no workflow.
func (s routedService) WatchEvents(r *apiv1.WatchEventsRequest, out grpc.ServerStreamingServer[apiv1.Event]) error {
	const op = "show events"
	if r.GetWorkflow() == "" {
		return s.local.WatchEvents(r, out)
	}
	ctx := out.Context()
	c := callerOf(ctx)
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionReadWork, op, r.GetWorkflow())
	if err != nil {
		return err
	}
	after := r.GetAfter()
	if n, ok := lastEventID(ctx); ok && n > after {
		after = n
	}
	if after == 0 {
		text := fmt.Sprintf("to cluster %s by %s: %s", route.Cluster, route.By, route.State)
		if route.Message != "" {
			text += ", " + route.Message
		}
		if err := out.Send(&apiv1.Event{Time: stamp(route.Submitted), Kind: "routed", Workflow: string(route.ID), Subject: route.Cluster, Message: text, Cluster: &route.Cluster}); err != nil {
			return err
		}
	}
	return relay(ctx, s.federate, op, c.Name, route, func(ctx context.Context, l *link) (grpc.ServerStreamingClient[apiv1.Event], error) {
		return l.workflows.WatchEvents(ctx, &apiv1.WatchEventsRequest{Workflow: string(route.Remote), After: after, Follow: r.GetFollow()})
	}, func(e *apiv1.Event) error {
		e.Cluster = &route.Cluster
		return out.Send(e)
	})
}

func (s routedService) ReadLog(r *apiv1.ReadLogRequest, out grpc.ServerStreamingServer[apiv1.LogData]) error {
	const op = "read the log"
	ctx := out.Context()
	c := callerOf(ctx)
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionReadOutput, op, r.GetWorkflow())
	if err != nil {
		return err
	}
	return relay(ctx, s.federate, op, c.Name, route, func(ctx context.Context, l *link) (grpc.ServerStreamingClient[apiv1.LogData], error) {
		return l.workflows.ReadLog(ctx, &apiv1.ReadLogRequest{Workflow: string(route.Remote), Job: r.GetJob(), Attempt: r.GetAttempt(), Stream: r.GetStream(), Follow: r.GetFollow()})
	}, out.Send)
}

// relay passes a stream of a route's cluster on.
func relay[T any](ctx context.Context, f *Federate, op, actor string, r engine.Route,
	open func(context.Context, *link) (grpc.ServerStreamingClient[T], error), send func(*T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx, l, err := f.towards(ctx, op, actor, r)
	if err != nil {
		return err
	}
	stream, err := open(ctx, l)
	for err == nil {
		var m *T
		if m, err = stream.Recv(); err == nil {
			if err := send(m); err != nil {
				return err
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	l.heard(f.opts.Now(), err)
	if err != nil && unanswered(err) && ctx.Err() == nil {
		return unreachable(op, l.name, err)
	}
	return err
}

func (s routedService) GetJob(ctx context.Context, r *apiv1.GetJobRequest) (*apiv1.Job, error) {
	const op = "show job"
	c := callerOf(ctx)
	ref, rest, _ := strings.Cut(r.GetId(), "/")
	route, err := s.federate.engine.FindRoute(ctx, c, auth.PermissionReadWork, op, ref)
	if err != nil {
		return nil, err
	}
	return remotely(ctx, s.federate, op, c.Name, route, func(ctx context.Context, l *link) (*apiv1.Job, error) {
		return l.workflows.GetJob(ctx, &apiv1.GetJobRequest{Id: string(route.Remote) + "/" + rest})
	})
}

func (s routedService) ShowQueue(context.Context, *apiv1.ShowQueueRequest) (*apiv1.ShowQueueResponse, error) {
	return nil, ofOneCluster("show the queue")
}

func (s routedService) GetCapacity(context.Context, *apiv1.GetCapacityRequest) (*apiv1.GetCapacityResponse, error) {
	return nil, ofOneCluster("show the capacity")
}

func ofOneCluster(op string) error {
	return coordinator.Errorf(coordinator.ErrUnsupported, op, "a Federate has none of its own").
		WithHint("`substrate cluster list` shows how busy each cluster is, `substrate workflow score FILE` how a file would fare on each")
}

// pushedService is Identity on a Federate: changes of grants go to every cluster.
type pushedService struct {
	identityService
	federate *Federate
}

func (s pushedService) AppendProvisionerDefinitions(ctx context.Context, r *apiv1.AppendProvisionerDefinitionsRequest) (*apiv1.AppendProvisionerDefinitionsResponse, error) {
	if err := checkAppend(r); err != nil {
		return nil, err
	}
	f := s.federate
	f.routing.Lock()
	p, err := f.engine.IntendPush(ctx, callerOf(ctx), r.GetDefinitions(), r.GetOrganizations(), r.GetAllOrganizations())
	if err == nil {
		f.pushing[p.ID] = true
	}
	f.routing.Unlock()
	if err != nil {
		return nil, err
	}
	results, outcomes := f.pushOnce(context.WithoutCancel(ctx), p)
	return &apiv1.AppendProvisionerDefinitionsResponse{Results: results, Clusters: outcomes}, nil
}

// GetStatus sums up what was last heard of the clusters: a Federate has no nodes.
func (s pushedService) GetStatus(ctx context.Context, r *apiv1.GetStatusRequest) (*apiv1.GetStatusResponse, error) {
	out, err := s.identityService.GetStatus(ctx, r)
	if err != nil {
		return nil, err
	}
	list, err := s.federate.shown(ctx)
	if err != nil {
		return nil, err
	}
	out.Role, out.ClustersTotal = "federate", count(len(list))
	for _, c := range list {
		if c.GetState() == "ready" || c.GetState() == "drained" {
			out.ClustersReady++
		} else {
			out.Warnings = append(out.Warnings, fmt.Sprintf("cluster %s is %s: %s", c.GetName(), c.GetState(), cmp.Or(c.GetError(), "no answer yet")))
		}
		out.NodesReady, out.NodesTotal = out.GetNodesReady()+c.GetNodesReady(), out.GetNodesTotal()+c.GetNodesTotal()
		out.Waiting, out.Running = out.GetWaiting()+c.GetWaiting(), out.GetRunning()+c.GetRunning()
	}
	return out, nil
}

// clusterService is Clusters: on a Federate its clusters, on another cluster its Federate.
type clusterService struct {
	apiv1.UnimplementedClustersServer
	federate *Federate // nil: not one
	engine   federateAPI
	port     bool
}

func (s clusterService) CreateFederationToken(ctx context.Context, r *apiv1.CreateFederationTokenRequest) (*apiv1.CreateFederationTokenResponse, error) {
	if !s.port && s.federate == nil {
		return nil, coordinator.Errorf(coordinator.ErrUnsupported, "create a federation token", "this cluster has no federation port").
			WithHint("start its coordinator with --federation-listen")
	}
	text, expires, err := s.engine.CreateFederationToken(ctx, callerOf(ctx), time.Duration(r.GetTtlSeconds())*time.Second)
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateFederationTokenResponse{Token: text, Expires: stamp(expires)}, nil
}

func (s clusterService) GetFederate(ctx context.Context, _ *apiv1.GetFederateRequest) (*apiv1.Federate, error) {
	v, err := s.engine.Federate(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return &apiv1.Federate{Id: v.ID, Name: v.Name, Url: v.URL, Registered: stamp(v.Registered), LastRequest: stamp(v.Last), AttributesSchema: v.Schema}, nil
}

func (s clusterService) ForgetFederate(ctx context.Context, _ *apiv1.ForgetFederateRequest) (*apiv1.ForgetFederateResponse, error) {
	return &apiv1.ForgetFederateResponse{}, s.engine.ForgetFederate(ctx, callerOf(ctx))
}

// here refuses what only a Federate does.
func (s clusterService) here(op string) error {
	if s.federate == nil {
		return coordinator.Errorf(coordinator.ErrUnsupported, op, "this cluster is not a Federate").WithHint("call the Federate: --server or `substrate context use`")
	}
	return nil
}

func (s clusterService) RegisterCluster(ctx context.Context, r *apiv1.RegisterClusterRequest) (*apiv1.Cluster, error) {
	op := "register cluster " + r.GetName()
	if err := s.here(op); err != nil {
		return nil, err
	}
	if host, _, err := net.SplitHostPort(r.GetAddress()); err != nil || host == "" {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "address %q is not HOST:PORT", r.GetAddress()).WithHint("name the cluster's federation port")
	}
	shown, err := auth.ParseJoinToken(r.GetToken())
	if err != nil || shown.Pin == "" {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "the token is not one of `substrate cluster federation token create`")
	}
	m, err := s.federate.engine.BeginCluster(ctx, callerOf(ctx), r.GetName(), r.GetAddress(), s.federate.mayRegisterAgain(ctx, r.GetName()))
	if err != nil {
		return nil, err
	}
	if m.Credentials, err = s.federate.enrol(ctx, op, m, r.GetToken(), shown.Pin); err != nil {
		return nil, err
	}
	if err := s.federate.engine.ConfirmCluster(ctx, m.Name, m.Credentials); err != nil {
		return nil, err
	}
	return s.federate.show(ctx, r.GetName(), true)
}

// mayRegisterAgain reports whether a cluster takes this Federate's certificate no more: it has expired, or the cluster
// says that it does not belong to it.
func (f *Federate) mayRegisterAgain(ctx context.Context, name string) bool {
	m, err := f.cluster(ctx, name)
	if err != nil || m.Pending {
		return false
	}
	if _, expires, err := m.Credentials.TLS(f.opts.Now); err == nil && f.opts.Now().After(expires) {
		return true
	}
	return status.Code(f.describe(ctx, m)) == codes.Unauthenticated
}

// enrol trades the token for a certificate. The cluster is known by the pin in the token.
func (f *Federate) enrol(ctx context.Context, op string, m engine.RemoteCluster, token, pin string) (ms auth.ClusterCredentials, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.opts.CallTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+m.Address, grpc.WithTransportCredentials(credentials.NewTLS(auth.PinnedTLS(pin, f.opts.Now))))
	if err != nil {
		return ms, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	csr, err := m.Credentials.Key.CSR(f.opts.Rand)
	if err != nil {
		return ms, err
	}
	res, err := apiv1.NewFederationClient(conn).Enrol(ctx, &apiv1.EnrolRequest{
		Token: token, Csr: csr, FederateId: f.engine.ClusterID(), FederateName: m.Name, FederateUrl: f.opts.URL})
	if err != nil {
		if unanswered(err) {
			return ms, unreachable(op, m.Name, err)
		}
		return ms, err
	}
	ms = auth.ClusterCredentials{Cluster: res.GetClusterId(), Key: m.Credentials.Key, Certificate: res.GetCertificate(), CA: res.GetCa()}
	if err := auth.CheckCA(ms.CA, ms.Cluster, pin); err != nil {
		return ms, coordinator.Errorf(coordinator.ErrDenied, op, "%w", err)
	}
	_, _, err = ms.TLS(f.opts.Now)
	return ms, err
}

func (s clusterService) ListClusters(ctx context.Context, _ *apiv1.ListClustersRequest) (*apiv1.ListClustersResponse, error) {
	if err := s.here("list clusters"); err != nil {
		return nil, err
	}
	list, err := s.federate.shown(ctx)
	return &apiv1.ListClustersResponse{Clusters: list}, err
}

func (s clusterService) GetCluster(ctx context.Context, r *apiv1.GetClusterRequest) (*apiv1.Cluster, error) {
	if err := s.here("show cluster " + r.GetName()); err != nil {
		return nil, err
	}
	return s.federate.show(ctx, r.GetName(), true)
}

func (s clusterService) SetClusterDrained(ctx context.Context, r *apiv1.SetClusterDrainedRequest) (*apiv1.Cluster, error) {
	if err := s.here("drain cluster " + r.GetName()); err != nil {
		return nil, err
	}
	if _, err := s.federate.engine.DrainCluster(ctx, callerOf(ctx), r.GetName(), r.GetDrained()); err != nil {
		return nil, err
	}
	return s.federate.show(ctx, r.GetName(), false)
}

func (s clusterService) DeregisterCluster(ctx context.Context, r *apiv1.DeregisterClusterRequest) (*apiv1.DeregisterClusterResponse, error) {
	if err := s.here("deregister cluster " + r.GetName()); err != nil {
		return nil, err
	}
	f := s.federate
	m, found := f.cluster(ctx, r.GetName())
	if err := f.engine.RemoveCluster(ctx, callerOf(ctx), r.GetName(), r.GetForce()); err != nil {
		return nil, err
	}
	out := &apiv1.DeregisterClusterResponse{}
	if found == nil && !m.Pending {
		if err := f.leave(ctx, m); err != nil {
			out.Warning = fmt.Sprintf("the cluster could not be told: %s; run `substrate cluster federation forget` there", status.Convert(err).Message())
		}
	}
	_, err := f.clusters(ctx) // closes the connection
	return out, err
}

func (f *Federate) leave(ctx context.Context, m engine.RemoteCluster) error {
	l, err := f.link(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.ScoreTimeout)
	defer cancel()
	_, err = l.federation.Leave(ctx, &apiv1.LeaveRequest{})
	return err
}

// show is one cluster, asked anew how it is if that is wanted.
func (f *Federate) show(ctx context.Context, name string, ask bool) (*apiv1.Cluster, error) {
	if ask {
		m, err := f.cluster(ctx, name)
		if err != nil {
			return nil, err
		}
		_ = f.describe(ctx, m) // what became of it is shown
	}
	list, err := f.shown(ctx)
	for _, c := range list {
		if c.GetName() == name {
			return c, nil
		}
	}
	return nil, cmp.Or[error](err, coordinator.Errorf(coordinator.ErrNotFound, "show cluster "+name, "it is not registered"))
}

func (f *Federate) shown(ctx context.Context) ([]*apiv1.Cluster, error) {
	clusters, err := f.clusters(ctx)
	if err != nil {
		return nil, err
	}
	var out []*apiv1.Cluster
	for _, m := range clusters {
		out = append(out, f.clusterToProto(m))
	}
	compareExpressions(out)
	return out, nil
}

func (f *Federate) clusterToProto(m engine.RemoteCluster) *apiv1.Cluster {
	c := &apiv1.Cluster{Name: m.Name, Address: m.Address, ClusterId: m.Credentials.Cluster, State: "registering", Registered: stamp(m.Registered), OpenWorkflows: count(m.Open)}
	l, err := f.link(m)
	if err != nil {
		c.Error = err.Error()
		if !m.Pending {
			c.State = "unreachable"
		}
		return c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.description
	c.State, c.LastContact, c.Error, c.CertificateExpires = "ready", stamp(l.last), l.failed, stamp(l.expires)
	switch {
	case m.Drained:
		c.State = "drained"
	case l.failed != "" || d == nil:
		c.State = "unreachable"
	}
	if d == nil {
		return c
	}
	c.Version, c.PrioritySha256, c.Priority, c.Definitions = d.GetVersion(), d.GetPrioritySha256(), d.GetPriority(), d.GetDefinitions()
	c.NodesReady, c.NodesTotal, c.Waiting, c.Running = d.GetNodesReady(), d.GetNodesTotal(), d.GetWaiting(), d.GetRunning()
	c.PreemptionEnabled, c.Attributes = d.GetPreemptionEnabled(), attributesText(d.GetAttributesSchema())
	return c
}

func attributesText(schema uint32) string {
	switch {
	case schema == 0:
		return "not understood (older release): priorities and preemption lists do not take effect there"
	case schema < federation.Schema:
		return fmt.Sprintf("schema %d, what schema %d adds is passed over there (older release)", schema, federation.Schema)
	}
	return fmt.Sprintf("schema %d", min(schema, federation.Schema))
}

// compareExpressions marks the clusters whose priority expression is not that of the most; without a most, all.
func compareExpressions(list []*apiv1.Cluster) {
	counts := map[string]int{}
	known := 0
	for _, c := range list {
		if c.GetPrioritySha256() != "" {
			counts[c.GetPrioritySha256()]++
			known++
		}
	}
	usual := ""
	for sum, n := range counts {
		if 2*n > known {
			usual = cmp.Or(usual, sum)
		}
	}
	for _, c := range list {
		c.PriorityDiffers = c.GetPrioritySha256() != "" && c.GetPrioritySha256() != usual
	}
}
