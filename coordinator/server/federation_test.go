package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
	"substrate/hwinfo"
	"substrate/proto/apiv1"
)

// site is one coordinator, real but for its nodes: engine on a store in memory, API and federation port on loopback.
type site struct {
	t        *testing.T
	name     string
	store    store.Store
	engine   *engine.Engine
	living   atomic.Pointer[engine.Engine] // the same, for nodes
	federate *Federate
	address  string // of the federation port
	token    string // the administrator's
	as       map[string]*clients
	api      string
	url      string
	stop     func()
	gate     *gateListener
	clock    *atomic.Int64 // how far its clock is ahead, ns; nil: not at all
}

func (s *site) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(s.clock.Load()))
}

// clients are the API as one user.
type clients struct {
	apiv1.ConfigClient
	apiv1.WorkflowsClient
	apiv1.IdentityClient
	apiv1.ClustersClient
}

type bearerCreds string

func (b bearerCreds) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}
func (bearerCreds) RequireTransportSecurity() bool { return false }

// gateListener lets a test take a port off the net: connections are cut and new ones are not answered.
type gateListener struct {
	net.Listener
	shut  atomic.Bool
	conns chan net.Conn
}

func (g *gateListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.shut.Load() {
			_ = c.Close()
			continue
		}
		select {
		case g.conns <- c:
		default:
		}
		return c, nil
	}
}

func (g *gateListener) set(shut bool) {
	g.shut.Store(shut)
	for shut {
		select {
		case c := <-g.conns:
			_ = c.Close()
		default:
			return
		}
	}
}

func startSite(t *testing.T, name string, federate bool) *site {
	t.Helper()
	s := &site{t: t, name: name, store: store.NewMemory(), as: map[string]*clients{}}
	s.start(federate, "127.0.0.1:0", "127.0.0.1:0")
	return s
}

// start brings a life of the site up; a later one has the addresses of the first.
func (s *site) start(federate bool, api, federationPort string) {
	s.t.Helper()
	out, err := logs.Open(s.t.TempDir())
	if err != nil {
		s.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(context.Background())
	s.engine, err = engine.New(ctx, engine.Options{Store: s.store, Logs: out, Log: log, Now: s.now, Rand: rand.Reader, Federate: federate})
	if err != nil {
		s.t.Fatal(err)
	}
	s.living.Store(s.engine)
	var running []chan error
	run := func(f func() error) {
		done := make(chan error, 1)
		running = append(running, done)
		go func() { done <- f() }()
	}
	run(func() error { return s.engine.Run(ctx) })
	if federate {
		s.federate, err = NewFederate(s.engine, FederateOptions{Version: "v-test", URL: "https://federate.example:7440", Now: s.now, Log: log, Rand: rand.Reader,
			Poll: 100 * time.Millisecond, Retry: 50 * time.Millisecond, ScoreTimeout: 2 * time.Second, CallTimeout: 5 * time.Second})
		if err != nil {
			s.t.Fatal(err)
		}
		run(func() error { return s.federate.Run(ctx) })
	}
	handler, err := NewAPI(s.engine, APIOptions{Version: "v-test", Now: s.now, Log: log, Federate: s.federate, FederationPort: !federate})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("tcp", api)
	if err != nil {
		s.t.Fatal(err)
	}
	s.api = l.Addr().String()
	srv := HTTPServer(handler, nil, log)
	run(func() error { return srv.Serve(l) })
	var fed *grpc.Server
	if !federate {
		fed = s.serveFederation(federationPort, run)
	}
	if s.token == "" {
		if s.token, err = s.engine.AdminToken(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
	s.stop = sync.OnceFunc(func() {
		_ = srv.Close()
		if fed != nil {
			fed.Stop()
		}
		cancel()
		if s.federate != nil {
			_ = s.federate.Close()
		}
		_ = handler.Close()
		s.await(running)
	})
	s.t.Cleanup(s.stop)
}

// await has what was running end.
func (s *site) await(running []chan error) {
	for _, done := range running {
		if err := <-done; err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
			s.t.Errorf("%s: %v", s.name, err)
		}
	}
}

func (s *site) serveFederation(address string, run func(func() error)) *grpc.Server {
	s.t.Helper()
	ca := s.engine.ServerIdentity()
	issuer, err := ca.NewServing([]string{"elsewhere.example"}, 90*24*time.Hour, s.now, rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	srv, err := NewFederationServer(issuer.Keep(ca.FederationTLS(tls.Certificate{})), s.engine, FederationOptions{Version: "v-" + s.name, Peer: ca.FederateFromTLS, Now: s.now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = l.Addr().String()
	s.gate = &gateListener{Listener: l, conns: make(chan net.Conn, 1000)}
	run(func() error { return srv.Serve(s.gate) })
	return srv
}

// client is the API with a token.
func (s *site) client(token string) *clients {
	s.t.Helper()
	conn := s.dial(token)
	return &clients{apiv1.NewConfigClient(conn), apiv1.NewWorkflowsClient(conn), apiv1.NewIdentityClient(conn), apiv1.NewClustersClient(conn)}
}

func (s *site) dial(token string) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.api, grpc.WithTransportCredentials(insecureCredentials()), grpc.WithPerRPCCredentials(bearerCreds(token)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *site) admin() *clients {
	if s.as["admin"] == nil {
		s.as["admin"] = s.client(s.token)
	}
	return s.as["admin"]
}

func (s *site) set(yaml string) *apiv1.SetConfigResponse {
	s.t.Helper()
	r, err := s.admin().SetConfig(s.t.Context(), &apiv1.SetConfigRequest{Yaml: []byte(yaml), File: "c.yaml"})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

const siteConfig = "definitions: [{id: any, provisioner: static, provisionerSpec: {condition: \"true\", costPerHour: 1}}]\n"

// node joins a pretended node, whose runs never end by themselves.
func (s *site) node(name string, cores int) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s.serveNode(ctx, name, cores)
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	s.eventually("node "+name+" to be ready", func() error {
		n, err := s.engine.Node(s.t.Context(), engine.Caller{}, coordinator.NodeID(name))
		if err == nil && n.Status != engine.NodeReady {
			err = errors.New(string(n.Status))
		}
		return err
	})
}

func (s *site) serveNode(ctx context.Context, name string, cores int) {
	ses, err := s.living.Load().Connect(ctx, coordinator.NodeID(name), engine.Hello{Version: "test", BootID: "boot", RunsAsCaller: true})
	if err != nil {
		return
	}
	defer ses.Close()
	facts := hwinfo.Facts{Hostname: name}
	memory := uint64(64 << 30)
	facts.CPU.Cores, facts.CPU.LogicalCPUs, facts.Memory.Total = &cores, &cores, &memory
	raw, err := json.Marshal(facts)
	if err != nil || ses.Hardware(ctx, engine.HardwareReport{Facts: raw}) != nil {
		return
	}
	for {
		messages, err := ses.Next(ctx)
		if err != nil {
			return
		}
		for _, m := range messages {
			switch {
			case m.Configuration != nil:
				report := engine.ConditionReport{Revision: m.Configuration.Revision}
				for _, d := range m.Configuration.Definitions {
					report.Results = append(report.Results, engine.ConditionView{Definition: d.ID, Value: "true"})
				}
				err = ses.Conditions(ctx, report)
			case m.Start != nil:
				err = ses.RunStatus(ctx, []engine.RunStatus{{Run: m.Start.Run, State: engine.RunRunning, Started: time.Now()}})
			case m.Stop != nil:
				err = ses.RunStatus(ctx, []engine.RunStatus{{Run: m.Stop.Run, State: engine.RunEnded, Cause: engine.CauseStopped, Signal: 15, Ended: time.Now()}})
			}
			if err != nil {
				return
			}
		}
	}
}

func (s *site) eventually(what string, ok func() error) {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = ok(); err == nil {
			return
		}
	}
	s.t.Fatalf("waited for %s: %v", what, err)
}

// register has a Federate take a cluster in.
func (s *site) register(cluster *site) *apiv1.Cluster {
	s.t.Helper()
	token, err := cluster.admin().CreateFederationToken(s.t.Context(), &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := s.admin().RegisterCluster(s.t.Context(), &apiv1.RegisterClusterRequest{Name: cluster.name, Address: cluster.address, Token: token.GetToken()})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// person makes a user of the Federate's organisation lab and logs it in.
func (s *site) person(name, group string) (*apiv1.User, *clients) {
	s.t.Helper()
	ctx := s.t.Context()
	if _, err := s.admin().CreateOrganization(ctx, &apiv1.CreateOrganizationRequest{Name: "lab"}); err != nil && !strings.Contains(err.Error(), "there is one") {
		s.t.Fatal(err)
	}
	if _, err := s.admin().CreateGroup(ctx, &apiv1.CreateGroupRequest{Name: group, Organization: "lab"}); err != nil && !strings.Contains(err.Error(), "has one") {
		s.t.Fatal(err)
	}
	u, err := s.admin().CreateUser(ctx, &apiv1.CreateUserRequest{Name: name, Organization: "lab", Groups: []string{group}, UnixUser: name, Email: name + "@lab.example"})
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := s.admin().CreateUserToken(ctx, &apiv1.CreateUserTokenRequest{User: u.GetId()})
	if err != nil {
		s.t.Fatal(err)
	}
	return u, s.client(token.GetToken())
}

// federated is a Federate with two clusters of one node each.
func federated(t *testing.T) (fed, east, west *site) {
	t.Helper()
	fed, east, west = startSite(t, "federate", true), startSite(t, "east", false), startSite(t, "west", false)
	for _, s := range []*site{east, west} {
		s.set(siteConfig)
		s.node("n1", 4)
		fed.register(s)
	}
	return fed, east, west
}

func jobOf(cores int, more string) []byte {
	return fmt.Appendf(nil, "version: v1\nname: w\n%s\njobs: {j: {command: [x], resource: {cpu: {cores: %d}}}}\n", more, cores)
}

func start(t *testing.T, c *clients, yaml []byte) *apiv1.Workflow {
	t.Helper()
	r, err := c.StartWorkflow(t.Context(), &apiv1.StartWorkflowRequest{Yaml: yaml, File: "w.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetWorkflow()
}

func TestAWorkflowIsRoutedAndSeenThroughTheFederate(t *testing.T) {
	fed, east, _ := federated(t)
	_, una := fed.person("una", "team")
	ctx := t.Context()
	w := start(t, una, jobOf(4, ""))
	if w.GetCluster() != "east" || w.GetUser() != "una" || w.GetOrganization() != "lab" {
		t.Fatalf("%v", w)
	}
	if _, err := east.admin().GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: w.GetId()}); err != nil {
		t.Errorf("the id is another there: %v", err)
	}
	second := start(t, una, jobOf(4, "")) // east is full
	if second.GetCluster() != "west" {
		t.Errorf("routed to %s", second.GetCluster())
	}
	for _, id := range []string{w.GetId(), second.GetId()} {
		fed.eventually("it to run", func() error {
			got, err := una.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: id})
			if err == nil && (got.GetStatus() != "running" || len(got.GetJobs()) != 1 || len(got.GetRouting().GetCandidates()) != 2) {
				err = fmt.Errorf("%v", got)
			}
			return err
		})
	}
	list, err := una.ListWorkflows(ctx, &apiv1.ListWorkflowsRequest{})
	if err != nil || len(list.GetWorkflows()) != 2 || list.GetWorkflows()[0].GetStatus() != "running" || list.GetWorkflows()[0].GetId() != second.GetId() {
		t.Errorf("%v, %v", list, err)
	}
	events, err := una.WatchEvents(ctx, &apiv1.WatchEventsRequest{Workflow: w.GetId()})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.GetCluster() != "east" {
			t.Errorf("event of cluster %q", e.GetCluster())
		}
		kinds = append(kinds, e.GetKind())
	}
	if len(kinds) < 3 || kinds[0] != "routed" || kinds[1] != "submitted" {
		t.Errorf("%v", kinds)
	}
	explained, err := una.ExplainWorkflow(ctx, &apiv1.ExplainWorkflowRequest{Id: second.GetId(), Job: "j"})
	if err != nil || len(explained.GetJobs()) != 1 || explained.GetRouting().GetCluster() != "west" || explained.GetRouting().GetCandidates()[0].GetScore().GetUsableNodes() != 1 {
		t.Errorf("%v, %v", explained, err)
	}
	if _, err := una.CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: w.GetId()}); err != nil {
		t.Fatal(err)
	}
	fed.eventually("it to be cancelled", func() error {
		got, err := una.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: w.GetId()})
		if err == nil && got.GetStatus() != "cancelled" {
			err = fmt.Errorf("%v", got)
		}
		return err
	})
	if _, err := una.ReadLog(ctx, &apiv1.ReadLogRequest{Workflow: second.GetId()}); err != nil {
		t.Error(err)
	}
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func codeOf(err error) codes.Code { return status.Code(err) }

func engineUser(u *apiv1.User) coordinator.UserID { return coordinator.UserID(u.GetId()) }

func engineOrg(id federation.Identity) coordinator.OrganizationID {
	return coordinator.OrganizationID(id.Organization.ID)
}

func engineGroup(id federation.Identity) coordinator.GroupID { return coordinator.GroupID(id.Group.ID) }

func userNamed(t *testing.T, s *site, name string) *apiv1.User {
	t.Helper()
	r, err := s.admin().ListUsers(t.Context(), &apiv1.ListUsersRequest{Organization: "lab"})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.GetUsers() {
		if u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no user %s", name)
	return nil
}
