package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

// FederateEngine is what a Federate keeps of its clusters and of what it routed to them.
type FederateEngine interface {
	remoteAPI
	clusterChangeAPI
	routeAPI
	followAPI
	pushAPI
}

type remoteAPI interface {
	ClusterID() string
	RemoteClusters(context.Context) ([]engine.RemoteCluster, error)
	BehalfOf(ctx context.Context, user coordinator.UserID, group string) (federation.Identity, federation.Attributes, error)
	PriorityRouting(context.Context) (bool, error)
}

type clusterChangeAPI interface {
	BeginCluster(ctx context.Context, c engine.Caller, name, address string, again bool) (engine.RemoteCluster, error)
	ConfirmCluster(ctx context.Context, name string, m auth.ClusterCredentials) error
	DrainCluster(ctx context.Context, c engine.Caller, name string, drained bool) (engine.RemoteCluster, error)
	RemoveCluster(ctx context.Context, c engine.Caller, name string, force bool) error
}

type routeAPI interface {
	CheckRoutable(context.Context, engine.Caller, engine.StartWorkflow) (existing *engine.Route, warnings []string, err error)
	IntendRoute(context.Context, engine.Caller, engine.Intent) (r engine.Route, existed bool, err error)
	SettleRoute(context.Context, coordinator.WorkflowID, engine.RouteOutcome) (engine.Route, error)
	FindRoute(ctx context.Context, c engine.Caller, p auth.Permission, op, ref string) (engine.Route, error)
	Routes(ctx context.Context, c engine.Caller, status string, p engine.Page) ([]engine.Route, string, error)
}

type followAPI interface {
	OpenRoutes(context.Context) ([]engine.OpenRoute, error)
	RunningRoutes(context.Context) (map[string][]engine.Route, error)
	ExpireRoutes(context.Context) error
}

type pushAPI interface {
	IntendPush(ctx context.Context, c engine.Caller, definitions, organizations []string, all bool) (engine.Push, error)
	SettlePush(ctx context.Context, id, cluster, refused string) error
	Pushes(context.Context) ([]engine.Push, error)
}

// FederateOptions is what NewFederate needs besides the engine. Zero times mean the defaults.
type FederateOptions struct {
	Version string
	URL     string // where users reach this Federate, for messages of its clusters
	Now     func() time.Time
	Log     *slog.Logger
	Rand    interface{ Read([]byte) (int, error) }

	Poll         time.Duration // how often clusters are asked how they are; default 10 s
	Retry        time.Duration // how often what has no answer is sent again; default 2 s
	ScoreTimeout time.Duration // for a candidate's answer; default 3 s
	CallTimeout  time.Duration // for a submission's and others'; default 15 s
}

func (o *FederateOptions) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Poll, 10*time.Second)
	def(&o.Retry, 2*time.Second)
	def(&o.ScoreTimeout, 3*time.Second)
	def(&o.CallTimeout, 15*time.Second)
}

// askedAtOnce bounds how many clusters are called at the same time for one purpose.
const askedAtOnce = 16

// Federate holds the connections to clusters, asks how they are, and sends again what has no answer yet.
type Federate struct {
	engine FederateEngine
	opts   FederateOptions

	mu    sync.Mutex
	links map[string]*link

	// A route is one goroutine's at a time: whoever finds or makes it holds routing until it is in busy.
	routing sync.Mutex
	busy    map[coordinator.WorkflowID]bool
	pushing map[string]bool // likewise, by push
}

// link is the connection to one cluster and what was last heard of it.
type link struct {
	name    string
	shown   auth.ClusterCredentials
	address string
	conn    *grpc.ClientConn
	expires time.Time

	federation apiv1.FederationClient
	workflows  apiv1.WorkflowsClient
	identity   apiv1.IdentityClient
	nodes      apiv1.NodesClient

	mu          sync.Mutex
	last        time.Time
	failed      string // why the last try failed; "" when it did not
	description *apiv1.DescribeResponse
}

// NewFederate makes the Federate's side of federation. Run keeps it going, Close ends its connections.
func NewFederate(e FederateEngine, o FederateOptions) (*Federate, error) {
	if o.Now == nil || o.Log == nil || o.Rand == nil {
		return nil, errors.New("cannot make the Federate: clock, log or chance missing")
	}
	o.defaults()
	return &Federate{engine: e, opts: o, links: map[string]*link{}, busy: map[coordinator.WorkflowID]bool{}, pushing: map[string]bool{}}, nil
}

// Run asks clusters how they are and resolves what has no answer, until ctx ends.
func (f *Federate) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	every := func(d time.Duration, do func(context.Context) error) {
		g.Go(func() error {
			for {
				if err := do(ctx); err != nil && ctx.Err() == nil {
					f.opts.Log.Warn("federation", "err", err)
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(d):
				}
			}
		})
	}
	every(f.opts.Poll, f.poll)
	every(f.opts.Retry, f.resolve)
	every(f.opts.Retry, f.push)
	every(time.Hour, f.engine.ExpireRoutes)
	return g.Wait()
}

// Close ends all connections.
func (f *Federate) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for name, l := range f.links {
		errs = append(errs, l.conn.Close())
		delete(f.links, name)
	}
	return errors.Join(errs...)
}

// clusters lists the clusters and closes connections to those that are gone.
func (f *Federate) clusters(ctx context.Context) ([]engine.RemoteCluster, error) {
	list, err := f.engine.RemoteClusters(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, m := range list {
		known[m.Name] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, l := range f.links {
		if !known[name] {
			_ = l.conn.Close() // nobody waits for it
			delete(f.links, name)
		}
	}
	return list, nil
}

func (f *Federate) cluster(ctx context.Context, name string) (engine.RemoteCluster, error) {
	list, err := f.clusters(ctx)
	for _, m := range list {
		if m.Name == name {
			return m, nil
		}
	}
	return engine.RemoteCluster{}, cmp.Or[error](err, coordinator.Errorf(coordinator.ErrNotFound, "find cluster "+name, "it is not registered"))
}

// link is the connection to a cluster, made anew when its address or certificate has changed.
func (f *Federate) link(m engine.RemoteCluster) (*link, error) {
	if m.Pending {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "call cluster "+m.Name, "its registration is not complete").
			WithHint("run `substrate cluster register %s` again with the same token, or with a new one", m.Name)
	}
	conf, expires, err := m.Credentials.TLS(f.opts.Now)
	if err != nil {
		return nil, err
	}
	if f.opts.Now().After(expires) {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "call cluster "+m.Name, "this Federate's certificate there expired at %s", expires.UTC().Format(time.RFC3339)).
			WithHint("`substrate cluster federation token create` there, then `substrate cluster register %s` here again: what is routed there is kept", m.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.links[m.Name]
	if old != nil && old.address == m.Address && bytes.Equal(old.shown.Certificate, m.Credentials.Certificate) {
		return old, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+m.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxConfigMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}}),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot call cluster %s: %w", m.Name, err)
	}
	l := &link{name: m.Name, shown: m.Credentials, address: m.Address, conn: conn, expires: expires,
		federation: apiv1.NewFederationClient(conn), workflows: apiv1.NewWorkflowsClient(conn),
		identity: apiv1.NewIdentityClient(conn), nodes: apiv1.NewNodesClient(conn)}
	if old != nil {
		l.last, l.failed, l.description = old.last, old.failed, old.description
		_ = old.conn.Close() // its calls fail as unavailable and are asked again
	}
	f.links[m.Name] = l
	return l, nil
}

// heard notes what became of a call.
func (l *link) heard(now time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && unanswered(err) {
		l.failed = status.Convert(err).Message()
		return
	}
	l.last, l.failed = now, ""
}

// unanswered reports whether a call may or may not have been carried out, or could not be.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true // also Unauthenticated: the cluster may take this Federate in again, and what it took before it still has
}

// unreachable is the error for a cluster that does not answer.
func unreachable(op, name string, err error) error {
	return coordinator.Errorf(coordinator.ErrUnavailable, op, "cluster %s does not answer: %s", name, status.Convert(err).Message()).
		WithHint("`substrate cluster list` shows since when; what this Federate knows is in `substrate workflow status`")
}

// onBehalf has calls made with the context count for a user; attrs is what the user's replica is refreshed with.
func onBehalf(ctx context.Context, id federation.Identity, attrs federation.Attributes) (context.Context, error) {
	behalf, err := proto.Marshal(identityToProto(id))
	if err != nil {
		return nil, err
	}
	scheduling, err := proto.Marshal(attributesToProto(attrs))
	if err != nil {
		return nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, behalfMetadata, string(behalf), schedulingMetadata, string(scheduling)), nil
}

// organizationsOf names organisations beside a request that the Federate makes for itself.
func organizationsOf(ctx context.Context, list []federation.Entity) (context.Context, error) {
	if len(list) == 0 {
		return ctx, nil
	}
	data, err := proto.Marshal(&apiv1.FederatedOrganizations{Organizations: each(list, entityToProto)})
	if err != nil {
		return nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, organizationsMetadata, string(data)), nil
}

// poll asks every cluster how it is and how far its work is.
func (f *Federate) poll(ctx context.Context) error {
	clusters, err := f.clusters(ctx)
	if err != nil {
		return err
	}
	routes, err := f.engine.RunningRoutes(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for _, m := range clusters {
		if m.Pending {
			continue
		}
		g.Go(func() error {
			if f.describe(ctx, m) == nil {
				f.follow(ctx, m, routes[m.Name])
			}
			return nil
		})
	}
	return g.Wait()
}

// describe asks one cluster how it is, and renews the certificate in the last third of its life.
func (f *Federate) describe(ctx context.Context, m engine.RemoteCluster) error {
	l, err := f.link(m)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, min(f.opts.CallTimeout, 5*time.Second))
	defer cancel()
	d, err := l.federation.Describe(limited, &apiv1.DescribeRequest{AttributesSchema: federation.Schema})
	if err == nil && d.GetClusterId() != m.Credentials.Cluster {
		err = status.Errorf(codes.Unavailable, "it is cluster %s now", d.GetClusterId())
	}
	l.heard(f.opts.Now(), err)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.description = d
	l.mu.Unlock()
	if l.expires.Sub(f.opts.Now()) < renewBefore {
		return f.renew(limited, m, l)
	}
	return nil
}

// renewBefore the end of a certificate a new one is asked for.
const renewBefore = 30 * 24 * time.Hour

func (f *Federate) renew(ctx context.Context, m engine.RemoteCluster, l *link) error {
	csr, err := m.Credentials.Key.CSR(f.opts.Rand)
	if err != nil {
		return err
	}
	r, err := l.federation.Renew(ctx, &apiv1.RenewRequest{Csr: csr})
	if err != nil {
		return err
	}
	next := m.Credentials
	next.Certificate = r.GetCertificate()
	if _, _, err := next.TLS(f.opts.Now); err != nil {
		return err
	}
	return f.engine.ConfirmCluster(ctx, m.Name, next)
}

// follow keeps how far work is.
func (f *Federate) follow(ctx context.Context, m engine.RemoteCluster, routes []engine.Route) {
	for _, w := range f.readWorkflows(ctx, m, routes) {
		if w.route.Status != w.status {
			if _, err := f.engine.SettleRoute(ctx, w.route.ID, outcomeOf(w.view)); err != nil {
				f.opts.Log.Warn("cannot keep the status of a workflow", "workflow", w.route.ID, "err", err)
			}
		}
		if w.route.Cancel != "" && !w.status.Ended() { // wanted before it was known to have arrived
			if _, err := f.cancelRemote(ctx, w.route.Cancel, w.route, ""); err != nil {
				f.opts.Log.Info("cannot cancel a routed workflow yet", "workflow", w.route.ID, "err", err)
			}
		}
	}
}

// heardWorkflow is a route with what its cluster told of it.
type heardWorkflow struct {
	route  engine.Route
	view   *apiv1.Workflow
	status coordinator.Status
}

// outcomeOf is what a cluster tells of a workflow, for the Federate's record.
func outcomeOf(w *apiv1.Workflow) engine.RouteOutcome {
	o := engine.RouteOutcome{Counts: map[coordinator.Status]int{}}
	_ = o.Status.UnmarshalText([]byte(w.GetStatus())) // a newer cluster's word: not known yet
	if w.GetEnded() != nil {
		o.Ended = w.GetEnded().AsTime()
	}
	for word, n := range w.GetCounts() {
		var s coordinator.Status
		if s.UnmarshalText([]byte(word)) == nil {
			o.Counts[s] = int(n)
		}
	}
	return o
}

// readWorkflows asks a cluster how far routes are; nil when it does not answer.
func (f *Federate) readWorkflows(ctx context.Context, m engine.RemoteCluster, routes []engine.Route) []heardWorkflow {
	l, err := f.link(m)
	if err != nil || len(routes) == 0 {
		return nil
	}
	byRemote := map[string]engine.Route{}
	req := &apiv1.ReadWorkflowsRequest{}
	for _, r := range routes[:min(len(routes), maxReadWorkflows)] {
		byRemote[string(r.Remote)] = r
		req.Ids = append(req.Ids, string(r.Remote))
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.ScoreTimeout)
	defer cancel()
	res, err := l.federation.ReadWorkflows(ctx, req)
	l.heard(f.opts.Now(), err)
	if err != nil {
		return nil
	}
	var out []heardWorkflow
	for _, w := range res.GetWorkflows() {
		if r, ok := byRemote[w.GetId()]; ok {
			out = append(out, heardWorkflow{route: r, view: w, status: outcomeOf(w).Status})
		}
	}
	return out
}
