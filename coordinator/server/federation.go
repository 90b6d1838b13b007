package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

// Metadata of a Federate's requests.
const (
	behalfMetadata        = "substrate-on-behalf-bin"
	schedulingMetadata    = "substrate-scheduling-bin"
	organizationsMetadata = "substrate-organizations-bin"
)

const maxReadWorkflows = 1000

// FederationEngine is what the federation port needs of the coordinator.
type FederationEngine interface {
	Engine
	behalfAPI
	uplinkAPI
	enrolAPI
}

type behalfAPI interface {
	OnBehalf(context.Context, engine.FederatePeer, *federation.Identity, *federation.Attributes) (context.Context, engine.Caller, error)
	Carried(context.Context) error
	FederateCaller(context.Context, engine.FederatePeer, []federation.Entity) (engine.Caller, error)
}

type uplinkAPI interface {
	CheckFederate(engine.FederatePeer) error
	Describe(context.Context, engine.FederatePeer) (engine.ClusterDescription, error)
	FederatedWorkflows(context.Context, engine.FederatePeer, []coordinator.WorkflowID) ([]engine.WorkflowView, error)
	Withdraw(context.Context, engine.FederatePeer, coordinator.UserID, string) (coordinator.WorkflowID, error)
}

type enrolAPI interface {
	Enrol(context.Context, *engine.Enrolment) error
	RenewFederate(context.Context, engine.FederatePeer, []byte) ([]byte, error)
	LeaveFederate(context.Context, engine.FederatePeer) error
}

// FederationOptions is what NewFederationServer needs besides the engine.
type FederationOptions struct {
	Version string
	// Peer is the Federate that a verified connection speaks for (auth.CA.FederateFromTLS).
	Peer func(tls.ConnectionState) (federate string, key auth.KeyID, err error)
	Now  func() time.Time
	Log  *slog.Logger
}

// NewFederationServer serves a Federate: users' services on behalf of its users, and Federation for itself.
func NewFederationServer(t *tls.Config, e FederationEngine, o FederationOptions) (*grpc.Server, error) {
	switch {
	case t == nil || t.ClientCAs == nil || t.ClientAuth < tls.VerifyClientCertIfGiven:
		return nil, errors.New("cannot make the federation server: its TLS configuration verifies no client certificate")
	case o.Peer == nil || o.Now == nil || o.Log == nil:
		return nil, errors.New("cannot make the federation server: peer reader, clock or log missing")
	}
	g := &federationGate{engine: e, opts: o, permissions: permissions()}
	t = t.Clone()
	t.Time = o.Now
	s := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(t)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxConfigMessage),
		grpc.MaxConcurrentStreams(4096),
		grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream),
		grpc.WaitForHandlers(true),
	)
	apiv1.RegisterFederationServer(s, federationService{engine: e, opts: o, failures: &g.failures})
	apiv1.RegisterWorkflowsServer(s, workflowService{engine: e, queue: e, streams: e, scores: e})
	apiv1.RegisterNodesServer(s, nodeService{engine: e, definitions: e})
	apiv1.RegisterIdentityServer(s, identityService{organizations: e, groups: e, users: e, grants: e, queue: e, version: o.Version})
	return s, nil
}

// federationGate is the one place where requests of a Federate come in: it checks who is at the other end, hands the
// engine what the request carries for its replicas, and lets it go on as the user's.
type federationGate struct {
	engine      FederationEngine
	opts        FederationOptions
	permissions auth.Table
	failures    failures
	recheck     time.Duration // of streams; 0: recheckEvery
}

type peerKey struct{}

// peerOf is the Federate that the gate put into the context.
func peerOf(ctx context.Context) engine.FederatePeer {
	p, _ := ctx.Value(peerKey{}).(engine.FederatePeer)
	return p
}

func (g *federationGate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = recovered(g.opts.Log, info.FullMethod, recover(), err) }()
	if ctx, err = g.admit(ctx, info.FullMethod); err != nil {
		return nil, toStatus(err)
	}
	resp, err = next(ctx, req)
	// What the request carried is durable before it is answered, also where it came to nothing.
	if err = cmp.Or(err, g.engine.Carried(ctx)); err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

func (g *federationGate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() { err = recovered(g.opts.Log, info.FullMethod, recover(), err) }()
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return toStatus(err)
	}
	if err := g.engine.Carried(ctx); err != nil { // a stream answers bit by bit
		return toStatus(err)
	}
	s := callerStream{ServerStream: ss, ctx: ctx, still: func(ctx context.Context) error {
		p, err := g.peer(ctx)
		return cmp.Or(err, g.engine.CheckFederate(p))
	}}
	stop := s.watch(cmp.Or(g.recheck, recheckEvery))
	err = next(srv, s)
	return toStatus(cmp.Or(stop(), err))
}

func (g *federationGate) admit(ctx context.Context, method string) (context.Context, error) {
	if method == apiv1.Federation_Enrol_FullMethodName {
		return withRequest(ctx, rand.Reader, method, engine.Caller{From: remoteAddress(ctx, nil)})
	}
	p, err := g.peer(ctx)
	if err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, peerKey{}, p)
	if federationMethod(method) {
		return withRequest(ctx, rand.Reader, method, engine.Caller{From: remoteAddress(ctx, nil), Federate: p.ID}) // the engine checks the peer
	}
	ctx, caller, err := g.caller(ctx, p, method)
	if err != nil {
		return nil, err
	}
	caller.From = remoteAddress(ctx, nil)
	if ctx, err = withRequest(ctx, rand.Reader, method, caller); err != nil {
		return nil, err
	}
	permission, err := g.permissions.Permission(method)
	if err != nil {
		return nil, err
	}
	if permission.NeedsTarget() {
		permission = auth.PermissionUser
	}
	if err := auth.Authorize(caller.Principal, permission, deed(method), auth.Target{}); err != nil {
		return nil, cmp.Or(g.engine.Carried(ctx), err)
	}
	return context.WithValue(ctx, callerKey{}, caller), nil
}

func (g *federationGate) peer(ctx context.Context) (engine.FederatePeer, error) {
	p, _ := peer.FromContext(ctx)
	if p != nil {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			id, key, err := g.opts.Peer(info.State)
			if err == nil {
				if end := info.State.PeerCertificates[0].NotAfter; g.opts.Now().After(end) { // the connection is older than that
					return engine.FederatePeer{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "identify the Federate", "its certificate expired at %s", end.UTC().Format(time.RFC3339)).
						WithHint("register the cluster again: `substrate cluster federation token create` here, `substrate cluster register` on the Federate")
				}
				return engine.FederatePeer{ID: id, Key: key}, nil
			}
			return engine.FederatePeer{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "identify the Federate", "%w", err)
		}
	}
	return engine.FederatePeer{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "identify the Federate", "the connection is not TLS")
}

// caller reads for whom the request is. What newer Federates add to the messages is passed over.
func (g *federationGate) caller(ctx context.Context, p engine.FederatePeer, method string) (context.Context, engine.Caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	var behalf apiv1.OnBehalf
	present, err := header(md, behalfMetadata, &behalf)
	if err != nil {
		return ctx, engine.Caller{}, err
	}
	if !present {
		if !slices.Contains(methodsOfTheFederate(), method) {
			return ctx, engine.Caller{}, coordinator.Errorf(coordinator.ErrDenied, deed(method), "a Federate does this for a user only, and the request names none")
		}
		var orgs apiv1.FederatedOrganizations
		if _, err := header(md, organizationsMetadata, &orgs); err != nil {
			return ctx, engine.Caller{}, err
		}
		caller, err := g.engine.FederateCaller(ctx, p, each(orgs.GetOrganizations(), entityFromProto))
		return ctx, caller, err
	}
	if !slices.Contains(methodsOnBehalf(), method) {
		return ctx, engine.Caller{}, coordinator.Errorf(coordinator.ErrDenied, deed(method), "the Federate's users do this on the Federate")
	}
	var scheduling apiv1.SchedulingAttributes
	var attrs *federation.Attributes
	if present, err = header(md, schedulingMetadata, &scheduling); err != nil {
		return ctx, engine.Caller{}, err
	} else if present {
		attrs = attributesFromProto(&scheduling)
	}
	return g.engine.OnBehalf(ctx, p, identityFromProto(&behalf), attrs)
}

func header(md metadata.MD, name string, into proto.Message) (present bool, err error) {
	values := md.Get(name)
	if len(values) == 0 {
		return false, nil
	}
	if err := proto.Unmarshal([]byte(values[len(values)-1]), into); err != nil {
		return false, coordinator.Errorf(coordinator.ErrInvalid, "read the Federate's request", "metadata %s: %w", name, err)
	}
	return true, nil
}

func federationMethod(method string) bool {
	return len(method) > 1 && method[1:] != "" && slices.Contains([]string{
		apiv1.Federation_Renew_FullMethodName, apiv1.Federation_Describe_FullMethodName, apiv1.Federation_ReadWorkflows_FullMethodName,
		apiv1.Federation_Withdraw_FullMethodName, apiv1.Federation_Leave_FullMethodName,
	}, method)
}

// methodsOfTheFederate is what a Federate does for nobody in particular.
func methodsOfTheFederate() []string {
	return []string{apiv1.Identity_AppendProvisionerDefinitions_FullMethodName, apiv1.Identity_GetStatus_FullMethodName,
		apiv1.Nodes_ListDefinitions_FullMethodName}
}

// methodsOnBehalf is what users of a Federate do here through it. What they own is the Federate's to change.
func methodsOnBehalf() []string {
	return []string{
		apiv1.Workflows_StartWorkflow_FullMethodName, apiv1.Workflows_ScoreWorkflow_FullMethodName, apiv1.Workflows_ValidateWorkflow_FullMethodName,
		apiv1.Workflows_ListWorkflows_FullMethodName, apiv1.Workflows_GetWorkflow_FullMethodName, apiv1.Workflows_CancelWorkflow_FullMethodName,
		apiv1.Workflows_ExplainWorkflow_FullMethodName, apiv1.Workflows_WatchEvents_FullMethodName, apiv1.Workflows_ReadLog_FullMethodName,
		apiv1.Workflows_ShowQueue_FullMethodName, apiv1.Workflows_GetCapacity_FullMethodName, apiv1.Workflows_GetJob_FullMethodName,
		apiv1.Nodes_ListNodes_FullMethodName, apiv1.Nodes_GetNode_FullMethodName, apiv1.Nodes_ListDefinitions_FullMethodName,
		apiv1.Identity_WhoAmI_FullMethodName, apiv1.Identity_ListGroups_FullMethodName, apiv1.Identity_GetGrant_FullMethodName,
		apiv1.Identity_GetStatus_FullMethodName,
	}
}

// federationService is what a Federate asks for itself.
type federationService struct {
	apiv1.UnimplementedFederationServer
	engine   FederationEngine
	opts     FederationOptions
	failures *failures
}

func (s federationService) Enrol(ctx context.Context, r *apiv1.EnrolRequest) (*apiv1.EnrolResponse, error) {
	const op = "enrol the Federate"
	if len(r.GetCsr()) > maxCSR || len(r.GetToken()) > maxJoinText {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "a field of the request is too long")
	}
	in := &engine.Enrolment{Token: r.GetToken(), Federate: r.GetFederateId(), Name: r.GetFederateName(), URL: r.GetFederateUrl(), CSR: r.GetCsr()}
	if err := s.engine.Enrol(ctx, in); err != nil {
		return nil, s.failures.judge(op, remoteAddress(ctx, nil), s.opts.Now(), err)
	}
	return &apiv1.EnrolResponse{ClusterId: in.Cluster, Certificate: in.Certificate, Ca: in.CA}, nil
}

func (s federationService) Renew(ctx context.Context, r *apiv1.RenewRequest) (*apiv1.RenewResponse, error) {
	if len(r.GetCsr()) > maxCSR {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "renew the certificate", "the request is too long")
	}
	certificate, err := s.engine.RenewFederate(ctx, peerOf(ctx), r.GetCsr())
	if err != nil {
		return nil, err
	}
	return &apiv1.RenewResponse{Certificate: certificate}, nil
}

func (s federationService) Describe(ctx context.Context, _ *apiv1.DescribeRequest) (*apiv1.DescribeResponse, error) {
	d, err := s.engine.Describe(ctx, peerOf(ctx))
	if err != nil {
		return nil, err
	}
	return &apiv1.DescribeResponse{
		ClusterId: d.Cluster, Version: s.opts.Version, AttributesSchema: d.Schema, PrioritySha256: d.PrioritySHA256, Priority: d.Priority,
		ConfigurationRevision: uint64(d.Revision), Definitions: d.Definitions, NodesReady: count(d.Status.NodesReady),
		NodesTotal: count(d.Status.NodesTotal), Waiting: count(d.Status.Waiting), Running: count(d.Status.Running), PreemptionEnabled: d.PreemptionEnabled,
	}, nil
}

func (s federationService) ReadWorkflows(ctx context.Context, r *apiv1.ReadWorkflowsRequest) (*apiv1.ReadWorkflowsResponse, error) {
	if len(r.GetIds()) > maxReadWorkflows {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "read workflows", "%d ids, at most %d", len(r.GetIds()), maxReadWorkflows)
	}
	ids := each(r.GetIds(), func(s string) coordinator.WorkflowID { return coordinator.WorkflowID(s) })
	ws, err := s.engine.FederatedWorkflows(ctx, peerOf(ctx), ids)
	if err != nil {
		return nil, err
	}
	return &apiv1.ReadWorkflowsResponse{Workflows: each(ws, workflowToProto)}, nil
}

func (s federationService) Withdraw(ctx context.Context, r *apiv1.WithdrawRequest) (*apiv1.WithdrawResponse, error) {
	id, err := s.engine.Withdraw(ctx, peerOf(ctx), coordinator.UserID(r.GetUser()), r.GetIdempotencyKey())
	if err != nil {
		return nil, err
	}
	return &apiv1.WithdrawResponse{Workflow: string(id)}, nil
}

func (s federationService) Leave(ctx context.Context, _ *apiv1.LeaveRequest) (*apiv1.LeaveResponse, error) {
	if err := s.engine.LeaveFederate(ctx, peerOf(ctx)); err != nil {
		return nil, err
	}
	return &apiv1.LeaveResponse{}, nil
}
