package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator/auth"
	"substrate/proto/apiv1"
)

// What users and administrators are promised of a federated deployment where it takes the wire to show it, one test
// for each sentence.

// rawFederate is a Federate of another release: it registers and sends what the test gives it.
type rawFederate struct {
	t    *testing.T
	conn *grpc.ClientConn
}

func enrolRaw(t *testing.T, cluster *site) *rawFederate {
	t.Helper()
	token, err := cluster.admin().CreateFederationToken(t.Context(), &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	shown, err := auth.ParseJoinToken(token.GetToken())
	if err != nil {
		t.Fatal(err)
	}
	key, err := auth.NewFederateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := key.CSR(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := grpc.NewClient("passthrough:///"+cluster.address, grpc.WithTransportCredentials(credentials.NewTLS(auth.PinnedTLS(shown.Pin, cluster.now))))
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	r, err := apiv1.NewFederationClient(pinned).Enrol(t.Context(), &apiv1.EnrolRequest{Token: token.GetToken(), Csr: csr, FederateId: rawID(0), FederateName: "x", FederateUrl: "https://old.example"})
	if err != nil {
		t.Fatal(err)
	}
	conf, _, err := (&auth.ClusterCredentials{Cluster: r.GetClusterId(), Key: key, Certificate: r.GetCertificate(), CA: r.GetCa()}).TLS(cluster.now)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+cluster.address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &rawFederate{t, conn}
}

func rawID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// behalf is rita's of the group research; scheduling nil is an older release.
func (r *rawFederate) behalf(scheduling *apiv1.SchedulingAttributes) context.Context {
	r.t.Helper()
	group := &apiv1.FederatedEntity{Id: rawID(2), Name: "research"}
	ctx := r.with(r.t.Context(), behalfMetadata, &apiv1.OnBehalf{Organization: &apiv1.FederatedEntity{Id: rawID(1), Name: "lab"}, Group: group,
		User: &apiv1.FederatedUser{Id: rawID(3), Name: "rita", UnixUser: "rita", Groups: []*apiv1.FederatedEntity{group}}})
	if scheduling != nil {
		ctx = r.with(ctx, schedulingMetadata, scheduling)
	}
	return ctx
}

func (r *rawFederate) with(ctx context.Context, name string, m proto.Message) context.Context {
	r.t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(ctx, name, string(data))
}

func (s *site) groupPriority(org, group string) int32 {
	s.t.Helper()
	r, err := s.admin().ListGroups(s.t.Context(), &apiv1.ListGroupsRequest{Organization: org})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, g := range r.GetGroups() {
		if g.GetName() == group {
			return g.GetPriority()
		}
	}
	s.t.Fatalf("there is no group %s", group)
	return 0
}

// TestEveryRequestOfTheFederateRefreshesTheReplica: whichever the RPC, streams too, and whether it succeeds or not.
func TestEveryRequestOfTheFederateRefreshesTheReplica(t *testing.T) {
	east := startSite(t, "east", false)
	east.set(siteConfig)
	raw := enrolRaw(t, east)
	revision := uint64(0)
	methods := apiMethods()
	for _, name := range methodsOnBehalf() {
		revision++
		ctx := raw.behalf(&apiv1.SchedulingAttributes{Schema: 1, Group: &apiv1.SchedulingValue{Priority: int32(revision), Revision: revision}})
		_ = call(ctx, raw.conn, name, methods[name]) // an empty request: most are refused
		if got := east.groupPriority("lab", "research"); got != int32(revision) {
			t.Errorf("%s: the replica has %d, want %d", name, got, revision)
		}
	}
}

func TestWhatTheFederateOwnsIsNotChangedThroughIt(t *testing.T) {
	east := startSite(t, "east", false)
	raw := enrolRaw(t, east)
	allowed := map[string]bool{}
	for _, name := range append(methodsOnBehalf(), methodsOfTheFederate()...) {
		allowed[name] = true
	}
	for name, m := range apiMethods() {
		if allowed[name] || strings.Contains(name, ".Config/") || strings.Contains(name, ".Clusters/") ||
			strings.Contains(name, ".Reservations/") || strings.Contains(name, ".Maintenance/") {
			continue // the latter are not on this port at all
		}
		for who, ctx := range map[string]context.Context{"a user": raw.behalf(nil), "the Federate": t.Context()} {
			err := call(ctx, raw.conn, name, m)
			if body := statusKind(err); body != "denied" && body != "unsupported" {
				t.Errorf("%s by %s: %v", name, who, err)
			}
		}
	}
}

func statusKind(err error) string {
	for _, k := range kinds() {
		if err != nil && k.code == codeOf(err) {
			return k.reason
		}
	}
	return fmt.Sprint(err)
}

func TestAnOlderFederatesRequestsAreServedWithWhatIsKnown(t *testing.T) {
	east := startSite(t, "east", false)
	east.set(siteConfig)
	east.node("n1", 4)
	raw := enrolRaw(t, east)
	w, err := apiv1.NewWorkflowsClient(raw.conn).StartWorkflow(raw.behalf(nil), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w"})
	if err != nil || w.GetWorkflow().GetUser() != "rita" {
		t.Fatalf("%v, %v", w, err)
	}
	if p := east.groupPriority("lab", "research"); p != 0 {
		t.Errorf("never synced: %d", p)
	}
	synced := &apiv1.SchedulingAttributes{Schema: 1, Group: &apiv1.SchedulingValue{Priority: 8, Revision: 5}}
	for _, attributes := range []*apiv1.SchedulingAttributes{synced, nil} { // upgraded, then downgraded
		if _, err := apiv1.NewIdentityClient(raw.conn).WhoAmI(raw.behalf(attributes), &apiv1.WhoAmIRequest{}); err != nil {
			t.Fatal(err)
		}
		if p := east.groupPriority("lab", "research"); p != 8 {
			t.Errorf("%d", p)
		}
	}
	f, err := east.admin().GetFederate(t.Context(), &apiv1.GetFederateRequest{})
	if err != nil || f.GetAttributesSchema() != 0 || f.GetUrl() != "https://old.example" {
		t.Errorf("%v, %v", f, err)
	}
}

// olderCluster is an Orchestrate cluster of a release that knows nothing of attributes: what it does not know it
// passes over.
type olderCluster struct {
	apiv1.UnimplementedFederationServer
	apiv1.UnimplementedWorkflowsServer
	real *site
}

func (o *olderCluster) Describe(context.Context, *apiv1.DescribeRequest) (*apiv1.DescribeResponse, error) {
	return &apiv1.DescribeResponse{ClusterId: o.real.engine.ClusterID(), Version: "v-old"}, nil
}

func (o *olderCluster) Enrol(ctx context.Context, r *apiv1.EnrolRequest) (*apiv1.EnrolResponse, error) {
	ca := o.real.engine.ServerIdentity()
	cert, err := ca.SignFederate(r.GetCsr(), r.GetFederateId(), time.Now(), time.Hour, rand.Reader)
	return &apiv1.EnrolResponse{ClusterId: ca.Cluster(), Certificate: cert, Ca: ca.CertificatePEM()}, err
}

func (o *olderCluster) ScoreWorkflow(context.Context, *apiv1.StartWorkflowRequest) (*apiv1.ScoreWorkflowResponse, error) {
	return &apiv1.ScoreWorkflowResponse{UsableNodes: 1, Startable: true}, nil
}

func (o *olderCluster) StartWorkflow(context.Context, *apiv1.StartWorkflowRequest) (*apiv1.StartWorkflowResponse, error) {
	return &apiv1.StartWorkflowResponse{Workflow: &apiv1.Workflow{Id: "its-own-id", Status: "running"}}, nil // field id is unknown to it
}

func (o *olderCluster) GetWorkflow(_ context.Context, r *apiv1.GetWorkflowRequest) (*apiv1.Workflow, error) {
	if r.GetId() != "its-own-id" {
		return nil, errors.New("no such workflow")
	}
	return &apiv1.Workflow{Id: "its-own-id", Status: "running"}, nil
}

func TestAnOlderClusterIsShownAsSuchAndStillUsed(t *testing.T) {
	fed, real := startSite(t, "federate", true), startSite(t, "old", false)
	old := &olderCluster{real: real}
	ca := real.engine.ServerIdentity()
	cert, err := ca.ServerCertificate([]string{"x.example"}, time.Now(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(ca.FederationTLS(cert))))
	apiv1.RegisterFederationServer(srv, old)
	apiv1.RegisterWorkflowsServer(srv, old)
	l := listenLoopback(t)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	real.address = l.Addr().String()
	c := fed.register(real)
	if !strings.Contains(c.GetAttributes(), "older release") || c.GetVersion() != "v-old" || c.GetState() != "ready" {
		t.Errorf("%v", c)
	}
	_, rita := fed.person("rita", "research")
	w := start(t, rita, jobOf(1, ""))
	got, err := rita.GetWorkflow(t.Context(), &apiv1.GetWorkflowRequest{Id: fed.onlyRoute().GetId()})
	if err != nil || got.GetStatus() != "running" || w.GetCluster() != "old" {
		t.Errorf("%v, %v", got, err)
	}
}

// onlyRoute is the one workflow that the Federate has routed.
func (s *site) onlyRoute() *apiv1.Workflow {
	s.t.Helper()
	r, err := s.admin().ListWorkflows(s.t.Context(), &apiv1.ListWorkflowsRequest{})
	if err != nil || len(r.GetWorkflows()) != 1 {
		s.t.Fatalf("%v, %v", r, err)
	}
	return r.GetWorkflows()[0]
}

// busy fills a cluster with one node of four cores and lets n more jobs wait there, of a local user.
func (s *site) busy(waiting int) {
	s.t.Helper()
	for range waiting + 1 {
		start(s.t, s.admin(), jobOf(4, ""))
	}
	s.eventually("the queue", func() error {
		q, err := s.admin().ShowQueue(s.t.Context(), &apiv1.ShowQueueRequest{})
		if err == nil && q.GetTotal() != uint32(waiting) {
			err = fmt.Errorf("%d wait", q.GetTotal())
		}
		return err
	})
}

func TestHigherPriorityWorkRoutesIntoABusyClusterWhereItIsAheadOfTheQueue(t *testing.T) {
	fed, east, west := federated(t)
	east.busy(3) // more waits in the east than in the west
	west.busy(1)
	fed.set("scheduler: {federationPriorityRoutingEnabled: true}\n")
	_, rita := fed.person("rita", "research")
	low := start(t, rita, jobOf(4, ""))
	if low.GetCluster() != "west" || low.GetRouting().GetBy() != "priority" {
		t.Errorf("what waits longest goes where less is ahead: %v", low.GetRouting())
	}
	ten := int32(10)
	if _, err := fed.admin().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "research", Organization: "lab", Priority: &ten}); err != nil {
		t.Fatal(err)
	}
	// Under its raised priority nothing is ahead of it anywhere, however busy: its own first job in the west apart,
	// which was raised with it and is older.
	high := start(t, rita, jobOf(4, ""))
	if high.GetCluster() != "east" {
		t.Errorf("%v", high.GetRouting())
	}
	for _, c := range high.GetRouting().GetCandidates() {
		if want := map[string]uint32{"east": 0, "west": 1}[c.GetCluster()]; c.GetScore().GetAhead() != want {
			t.Errorf("%s: %d ahead, want %d", c.GetCluster(), c.GetScore().GetAhead(), want)
		}
	}
	v, err := rita.GetWorkflow(t.Context(), &apiv1.GetWorkflowRequest{Id: high.GetId()})
	if err != nil || v.GetJobs()[0].GetPosition() > 1 {
		t.Errorf("and is scheduled ahead of the queue there: %v, %v", v, err)
	}
}

func TestWithoutTheSettingPriorityDoesNotRoute(t *testing.T) {
	fed, east, west := federated(t)
	east.busy(3)
	west.busy(1)
	_, rita := fed.person("rita", "research")
	if w := start(t, rita, jobOf(4, "")); w.GetCluster() != "east" || w.GetRouting().GetBy() != "availability" {
		t.Errorf("neither is free, both cost the same: the first by name: %v", w.GetRouting())
	}
}

func TestAPreemptionIsSeenThroughTheFederateWithWhoTriggeredItAndWhere(t *testing.T) {
	fed, east := startSite(t, "federate", true), startSite(t, "east", false)
	east.set(siteConfig + "scheduler: {preemptionEnabled: true, preemptionNotice: 1s}\n")
	east.node("n1", 4)
	fed.register(east)
	_, sam := fed.person("sam", "spare")
	_, rita := fed.person("rita", "research")
	fifty := int32(50)
	if _, err := fed.admin().UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "research", Organization: "lab", Priority: &fifty, Preempt: []string{"spare"}}); err != nil {
		t.Fatal(err)
	}
	victim := start(t, sam, jobOf(4, "preemptible: true"))
	fed.eventually("the victim to run", func() error { return isStatus(t, sam, victim.GetId(), "running") })
	taker := start(t, rita, jobOf(4, ""))
	fed.eventually("the victim to be preempted", func() error { return isStatus(t, sam, victim.GetId(), "preempted") })
	for who, c := range map[string]*clients{victim.GetId(): sam, taker.GetId(): rita} {
		found := false
		for _, e := range eventsOf(t, c, who) {
			if e.GetKind() == "preempt-initiated" {
				found = true
				if !strings.HasPrefix(e.GetMetadata()["preemptor"], taker.GetId()) || e.GetCluster() != "east" || e.GetMetadata()["cluster"] != east.engine.ClusterID() {
					t.Errorf("%v", e)
				}
			}
		}
		if !found {
			t.Errorf("%s has no event of it", who)
		}
	}
}

func isStatus(t *testing.T, c *clients, id, want string) error {
	w, err := c.GetWorkflow(t.Context(), &apiv1.GetWorkflowRequest{Id: id})
	if err == nil && w.GetStatus() != want {
		err = fmt.Errorf("it is %s", w.GetStatus())
	}
	return err
}

func eventsOf(t *testing.T, c *clients, id string) (out []*apiv1.Event) {
	t.Helper()
	s, err := c.WatchEvents(t.Context(), &apiv1.WatchEventsRequest{Workflow: id})
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
}

func TestDefinitionsOnAFederateAreStoredAndIgnoredWithANotice(t *testing.T) {
	fed := startSite(t, "federate", true)
	r := fed.set(siteConfig)
	notice := false
	for _, d := range r.GetDiagnostics() {
		notice = notice || d.GetCode() == "definitions-ignored"
	}
	got, err := fed.admin().GetConfig(t.Context(), &apiv1.GetConfigRequest{})
	if err != nil || string(got.GetYaml()) != siteConfig || !notice {
		t.Errorf("%v, %v, %v", got, r.GetDiagnostics(), err)
	}
	_, rita := fed.person("rita", "research")
	if _, err := rita.StartWorkflow(t.Context(), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w"}); statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "no cluster is registered") {
		t.Errorf("%v", err)
	}
}

// TestDefinitionsArePushedToEveryClusterByOneCallOfEach: one that is down is named and called again.
func TestDefinitionsArePushedToEveryClusterByOneCallOfEach(t *testing.T) {
	fed, east, west := federated(t)
	_, rita := fed.person("rita", "research")
	more := siteConfig[:len(siteConfig)-2] + ", {id: more, provisioner: static, provisionerSpec: {condition: \"false\"}}]\n"
	start(t, rita, jobOf(1, "")) // both know the organisation: each was asked for its score
	east.set(more)
	west.set(more)
	west.gate.set(true)
	fed.eventually("the west to be gone", func() error {
		c, err := fed.admin().GetCluster(t.Context(), &apiv1.GetClusterRequest{Name: "west"})
		if err == nil && c.GetState() != "unreachable" {
			err = fmt.Errorf("%v", c)
		}
		return err
	})
	r, err := fed.admin().AppendProvisionerDefinitions(t.Context(), &apiv1.AppendProvisionerDefinitionsRequest{Definitions: []string{"more"}, Organizations: []string{"lab"}})
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, c := range r.GetClusters() {
		states[c.GetCluster()] = c.GetState()
	}
	if states["east"] != "done" || states["west"] != "pending" || len(r.GetResults()) != 1 || r.GetResults()[0].GetCluster() != "east" {
		t.Errorf("%v", r)
	}
	granted := func(s *site) error {
		g, err := s.admin().GetGrant(t.Context(), &apiv1.GetGrantRequest{Organization: "lab"})
		if err == nil && !strings.Contains(strings.Join(g.GetDefinitions(), " "), "more") {
			err = fmt.Errorf("%v", g.GetDefinitions())
		}
		return err
	}
	if err := granted(east); err != nil {
		t.Error(err)
	}
	if granted(west) == nil {
		t.Error("the west has it while it is cut off")
	}
	west.gate.set(false)
	fed.eventually("the west to have it", func() error { return granted(west) })
	g, err := east.admin().GetGrant(t.Context(), &apiv1.GetGrantRequest{Organization: "lab"})
	if err != nil || g.GetSerial() != 2 {
		t.Errorf("the others are left alone: %v, %v", g, err)
	}
	fed.eventually("the push to be over", func() error {
		p, err := fed.engine.Pushes(t.Context())
		if err == nil && len(p) > 0 {
			err = fmt.Errorf("%v", p)
		}
		return err
	})
}

func TestAPushMayBeTheFirstThatAClusterHearsOfAnOrganization(t *testing.T) {
	fed, east, _ := federated(t)
	fed.person("rita", "research")
	r, err := fed.admin().AppendProvisionerDefinitions(t.Context(), &apiv1.AppendProvisionerDefinitionsRequest{Definitions: []string{"any"}, Organizations: []string{"lab"}})
	if err != nil || len(r.GetResults()) != 2 || r.GetClusters()[0].GetState() != "done" || !r.GetResults()[0].GetAlreadyExisted() {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := east.admin().GetGrant(t.Context(), &apiv1.GetGrantRequest{Organization: "lab"}); err != nil {
		t.Error(err)
	}
	r, err = fed.admin().AppendProvisionerDefinitions(t.Context(), &apiv1.AppendProvisionerDefinitionsRequest{Definitions: []string{"none"}, AllOrganizations: true})
	if err != nil || r.GetClusters()[0].GetState() != "refused" || r.GetClusters()[0].GetError() == "" {
		t.Errorf("what no cluster has: %v, %v", r, err)
	}
}
