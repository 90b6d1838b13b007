package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/coordinator/store"
	"substrate/proto/apiv1"
)

// What a Federate promises when clusters, or it itself, fail in between: nothing that was kept is lost, nothing is
// started twice, and whatever is not known is said.

// restart is a crash and the next life on the same addresses.
func (s *site) restart() {
	s.t.Helper()
	s.stop()
	federate := s.federate != nil
	s.federate = nil
	s.start(federate, s.api, s.address)
}

// holds counts the workflows of a name on a cluster.
func (s *site) holds(name string) int {
	s.t.Helper()
	n, token := 0, ""
	for {
		r, err := s.admin().ListWorkflows(s.t.Context(), &apiv1.ListWorkflowsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, w := range r.GetWorkflows() {
			if w.GetName() == name {
				n++
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			return n
		}
	}
}

// slow is a store whose commits of new workflows wait while it is told to.
type slow struct {
	store.Store
	mu   sync.Mutex
	wait chan struct{} // nil: does not
}

func (s *slow) Commit(ctx context.Context, groups []store.Group) (int64, error) {
	s.mu.Lock()
	wait := s.wait
	s.mu.Unlock()
	if wait != nil && slices.ContainsFunc(groups, func(g store.Group) bool {
		return slices.ContainsFunc(g.Ops, func(o store.Op) bool { return strings.HasPrefix(o.Key, "workflow/") })
	}) {
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return s.Store.Commit(ctx, groups)
}

func (s *slow) set(wait chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait = wait
}

// TestAnAnswerThatDoesNotComeIsAskedForAgainAndNowhereElse: the cluster has taken the work, and the Federate does not
// hear of it.
func TestAnAnswerThatDoesNotComeIsAskedForAgainAndNowhereElse(t *testing.T) {
	fed, east := startSite(t, "federate", true), &site{t: t, name: "east", store: &slow{Store: store.NewMemory()}, as: map[string]*clients{}}
	east.start(false, "127.0.0.1:0", "127.0.0.1:0")
	west := startSite(t, "west", false)
	for _, s := range []*site{east, west} {
		s.set(siteConfig)
		s.node("n1", 4)
		fed.register(s)
	}
	fed.federate.opts.CallTimeout = 300 * time.Millisecond
	_, rita := fed.person("rita", "research")
	start(t, rita, jobOf(1, ""))
	release := make(chan struct{})
	east.store.(*slow).set(release)
	r, err := rita.StartWorkflow(t.Context(), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: "once", File: "w", IdempotencyKey: "k"})
	if err != nil || r.GetWorkflow().GetRouting().GetState() != "intended" || r.GetWorkflow().GetStatus() != "pending" || !strings.Contains(r.GetWorkflow().GetNote(), "east") {
		t.Fatalf("%v, %v", r, err)
	}
	again, err := rita.StartWorkflow(t.Context(), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: "once", File: "w", IdempotencyKey: "k"})
	if err != nil || !again.GetExisted() || again.GetWorkflow().GetId() != r.GetWorkflow().GetId() {
		t.Errorf("the same key: %v, %v", again, err)
	}
	time.Sleep(500 * time.Millisecond) // it is sent again meanwhile
	if n := west.holds("once"); n != 0 {
		t.Error("it was sent elsewhere")
	}
	east.store.(*slow).set(nil)
	close(release)
	fed.eventually("it to run", func() error { return isStatus(t, rita, r.GetWorkflow().GetId(), "running") })
	if n := east.holds("once"); n != 1 {
		t.Errorf("%d of it", n)
	}
}

// TestACrashBetweenIntentAndSubmissionLosesNothing: the intent is all that the first life did.
func TestACrashBetweenIntentAndSubmissionLosesNothing(t *testing.T) {
	fed, east, west := federated(t)
	u, rita := fed.person("rita", "research")
	id, _, err := fed.engine.BehalfOf(t.Context(), engineUser(u), "")
	if err != nil {
		t.Fatal(err)
	}
	caller := engine.Caller{}
	caller.User, caller.Name, caller.Organization = engineUser(u), "rita", engineOrg(id)
	caller.Groups = append(caller.Groups, engineGroup(id))
	fed.federate.routing.Lock() // nobody sends it in this life
	r, _, err := fed.engine.IntendRoute(t.Context(), caller, engine.Intent{Start: engine.StartWorkflow{YAML: jobOf(1, ""), File: "w", Name: "kept"},
		Candidates: []federation.Candidate{{Cluster: "west", Score: &federation.Score{}}, {Cluster: "east", Score: &federation.Score{}}}, By: federation.ByPriority})
	if err != nil {
		t.Fatal(err)
	}
	fed.federate.busy[r.ID] = true
	fed.federate.routing.Unlock()
	if n := west.holds("kept"); n != 0 {
		t.Fatal("it was sent")
	}
	fed.restart()
	fed.eventually("it to run", func() error { return isStatus(t, rita, string(r.ID), "running") })
	if e, w := east.holds("kept"), west.holds("kept"); e != 0 || w != 1 {
		t.Errorf("%d in the east, %d in the west", e, w)
	}
	got, err := rita.GetWorkflow(t.Context(), &apiv1.GetWorkflowRequest{Id: string(r.ID)})
	if err != nil || len(got.GetRouting().GetCandidates()) != 2 || got.GetRouting().GetBy() != "priority" {
		t.Errorf("the answers of the candidates are kept: %v, %v", got, err)
	}
}

func TestAnUnreachableClusterIsSkippedAndNamedAndWhatIsKnownIsShown(t *testing.T) {
	fed, east, west := federated(t)
	_, rita := fed.person("rita", "research")
	first := start(t, rita, jobOf(4, ""))
	fed.eventually("it to run", func() error { return isStatus(t, rita, first.GetId(), "running") })
	east.gate.set(true)
	second := start(t, rita, jobOf(1, ""))
	skipped := ""
	for _, c := range second.GetRouting().GetCandidates() {
		if c.GetCluster() == "east" {
			skipped = c.GetSkipped()
		}
	}
	if second.GetCluster() != "west" || !strings.Contains(skipped, "does not answer") {
		t.Errorf("%v", second.GetRouting())
	}
	ctx := t.Context()
	got, err := rita.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: first.GetId()})
	if err != nil || got.GetStatus() != "running" || !strings.Contains(got.GetNote(), "cluster east does not answer") || got.GetRouting() == nil {
		t.Errorf("%v, %v", got, err)
	}
	list, err := rita.ListWorkflows(ctx, &apiv1.ListWorkflowsRequest{})
	if err != nil || len(list.GetWorkflows()) != 2 || list.GetWorkflows()[1].GetNote() == "" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := rita.CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: first.GetId()}); statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "east") {
		t.Errorf("%v", err)
	}
	explained, err := rita.ExplainWorkflow(ctx, &apiv1.ExplainWorkflowRequest{Id: first.GetId()})
	if err != nil || explained.GetRouting().GetCluster() != "east" || !strings.Contains(explained.GetNote(), "east") {
		t.Errorf("%v, %v", explained, err)
	}
	s, err := rita.WatchEvents(ctx, &apiv1.WatchEventsRequest{Workflow: first.GetId()})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := s.Recv(); err != nil || e.GetKind() != "routed" {
		t.Errorf("what the Federate knows comes first: %v, %v", e, err)
	}
	if _, err := s.Recv(); statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "cluster east") {
		t.Errorf("%v", err)
	}
	west.gate.set(true)
	if _, err := rita.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w"}); statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "east") || !strings.Contains(err.Error(), "west") {
		t.Errorf("nobody answers: %v", err)
	}
	east.gate.set(false)
	fed.eventually("the east to be back", func() error {
		c, err := fed.admin().GetCluster(ctx, &apiv1.GetClusterRequest{Name: "east"})
		if err == nil && c.GetState() != "ready" {
			err = fmt.Errorf("%v", c)
		}
		return err
	})
	if _, err := rita.CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: first.GetId()}); err != nil {
		t.Error(err)
	}
}

// TestWhatMayNotHaveArrivedCanBeCancelled: durably, and it never arrives afterwards.
func TestWhatMayNotHaveArrivedCanBeCancelled(t *testing.T) {
	fed, east, _ := federated(t)
	fed.federate.opts.CallTimeout = 300 * time.Millisecond
	_, rita := fed.person("rita", "research")
	start(t, rita, jobOf(1, ""))
	// The score is answered, the submission is not: cut between the two.
	fed.federate.routing.Lock()
	done := make(chan *apiv1.StartWorkflowResponse, 1)
	go func() {
		r, err := rita.StartWorkflow(context.WithoutCancel(t.Context()), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: "unwanted", File: "w"})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	time.Sleep(200 * time.Millisecond)
	east.gate.set(true)
	fed.federate.routing.Unlock()
	r := <-done
	if r.GetWorkflow().GetRouting().GetState() != "intended" {
		t.Fatalf("%v", r)
	}
	w, err := rita.CancelWorkflow(t.Context(), &apiv1.CancelWorkflowRequest{Id: r.GetWorkflow().GetId()})
	if err != nil || !strings.Contains(w.GetNote(), "withdrawn") {
		t.Errorf("%v, %v", w, err)
	}
	fed.restart()
	east.gate.set(false)
	fed.eventually("it to be withdrawn", func() error { return isStatus(t, rita, w.GetId(), "cancelled") })
	if n := east.holds("unwanted"); n != 0 {
		t.Errorf("%d arrived", n)
	}
	// A copy of the submission that was under way all the time is refused.
	id, attrs, err := fed.engine.BehalfOf(t.Context(), engineUser(userNamed(t, fed, "rita")), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := onBehalf(t.Context(), id, attrs)
	if err != nil {
		t.Fatal(err)
	}
	l := fed.federate.links["east"]
	if _, err := l.workflows.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: "unwanted", File: "w", Id: w.GetId(), IdempotencyKey: w.GetId()}); statusKind(err) != "conflict" {
		t.Errorf("%v", err)
	}
}

// TestWhatOneClusterRefusesGoesToTheNext: it is known not to be there.
func TestWhatOneClusterRefusesGoesToTheNext(t *testing.T) {
	fed, east, west := federated(t)
	_, rita := fed.person("rita", "research")
	start(t, rita, jobOf(1, ""))
	fed.federate.routing.Lock() // between answer and submission the east changes its mind
	done := make(chan *apiv1.Workflow, 1)
	go func() {
		r, err := rita.StartWorkflow(context.WithoutCancel(t.Context()), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: "moved", File: "w"})
		if err != nil {
			t.Error(err)
		}
		done <- r.GetWorkflow()
	}()
	time.Sleep(200 * time.Millisecond)
	east.set("definitions: []\n")
	fed.federate.routing.Unlock()
	w := <-done
	if w.GetCluster() != "west" || east.holds("moved") != 0 || west.holds("moved") != 1 || !strings.Contains(w.GetRouting().GetMessage(), "east refused it") {
		t.Errorf("%v", w)
	}
}

// TestNothingIsLostNorStartedTwice: submissions go on while clusters are cut off and everybody dies now and then.
func TestNothingIsLostNorStartedTwice(t *testing.T) {
	fed, east, west := federated(t)
	_, rita := fed.person("rita", "research")
	fed.federate.opts.CallTimeout = 300 * time.Millisecond
	const submissions = 60
	names := map[string]bool{}
	for i := range submissions {
		name := fmt.Sprintf("w-%d", i)
		switch k := rand.IntN(12); k {
		case 0:
			east.restart()
		case 1:
			fed.restart()
			fed.federate.opts.CallTimeout = 300 * time.Millisecond
		case 2, 3:
			east.gate.set(k == 2)
		case 4, 5:
			west.gate.set(k == 4)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(60)+1)*time.Millisecond)
		if rand.IntN(3) > 0 {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		}
		r, err := rita.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), Name: name, File: "w", IdempotencyKey: name})
		cancel()
		if err == nil {
			names[name] = true
			if r.GetWorkflow().GetId() == "" {
				t.Fatalf("%v", r)
			}
		}
	}
	east.gate.set(false)
	west.gate.set(false)
	fed.restart()
	fed.eventually("every route to have an outcome", func() error {
		open, err := fed.engine.OpenRoutes(t.Context())
		if err == nil && len(open) > 0 {
			err = fmt.Errorf("%d are open", len(open))
		}
		return err
	})
	started := 0
	for i := range submissions {
		name := fmt.Sprintf("w-%d", i)
		n := east.holds(name) + west.holds(name)
		started += n
		if n > 1 {
			t.Errorf("%s was started %d times", name, n)
		}
		if names[name] && n == 0 {
			t.Errorf("%s was accepted and is nowhere", name)
		}
	}
	routes, err := rita.ListWorkflows(t.Context(), &apiv1.ListWorkflowsRequest{PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	submitted := 0
	for _, w := range routes.GetWorkflows() {
		if w.GetStatus() != "failed" {
			submitted++
		}
	}
	if submitted != started {
		t.Errorf("the Federate knows of %d, the clusters of %d", submitted, started)
	}
	t.Logf("%d of %d accepted, %d started", len(names), submissions, started)
}

func TestDrainDeregisterAndDivergence(t *testing.T) {
	fed, east, west := federated(t)
	ctx := t.Context()
	_, rita := fed.person("rita", "research")
	if c, err := fed.admin().SetClusterDrained(ctx, &apiv1.SetClusterDrainedRequest{Name: "east", Drained: true}); err != nil || c.GetState() != "drained" {
		t.Errorf("%v, %v", c, err)
	}
	w := start(t, rita, jobOf(1, ""))
	if w.GetCluster() != "west" {
		t.Errorf("a drained cluster gets new work: %v", w)
	}
	if _, err := fed.admin().DeregisterCluster(ctx, &apiv1.DeregisterClusterRequest{Name: "west"}); statusKind(err) != "conflict" {
		t.Errorf("work is open there: %v", err)
	}
	if _, err := fed.admin().SetClusterDrained(ctx, &apiv1.SetClusterDrainedRequest{Name: "east"}); err != nil {
		t.Error(err)
	}
	west.set(siteConfig + "scheduler: {priority: \"group_priority * 2\"}\n")
	fed.eventually("the divergence to be seen", func() error {
		list, err := fed.admin().ListClusters(ctx, &apiv1.ListClustersRequest{})
		for _, c := range list.GetClusters() {
			if !c.GetPriorityDiffers() || c.GetVersion() != "v-"+c.GetName() || c.GetAttributes() != "schema 1" || strings.Join(c.GetDefinitions(), "") != "any" {
				err = fmt.Errorf("%v", c)
			}
		}
		return err
	})
	r, err := fed.admin().DeregisterCluster(ctx, &apiv1.DeregisterClusterRequest{Name: "east"})
	if err != nil || r.GetWarning() != "" {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := east.admin().GetFederate(ctx, &apiv1.GetFederateRequest{}); statusKind(err) != "not-found" {
		t.Errorf("the cluster was told: %v", err)
	}
	fed.register(east) // and can be registered again
	west.gate.set(true)
	r, err = fed.admin().DeregisterCluster(ctx, &apiv1.DeregisterClusterRequest{Name: "west", Force: true})
	if err != nil || !strings.Contains(r.GetWarning(), "forget") {
		t.Errorf("%v, %v", r, err)
	}
}

func TestRegistration(t *testing.T) {
	fed, east := startSite(t, "federate", true), startSite(t, "east", false)
	ctx := t.Context()
	token, err := east.admin().CreateFederationToken(ctx, &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	register := func(s *site, name, address, token string) error {
		_, err := s.admin().RegisterCluster(ctx, &apiv1.RegisterClusterRequest{Name: name, Address: address, Token: token})
		return err
	}
	other := startSite(t, "other", false)
	for name, tt := range map[string]struct {
		err  error
		kind string
	}{
		"not a token":           {register(fed, "a", east.address, "nonsense"), "invalid"},
		"no address":            {register(fed, "a", "nowhere", token.GetToken()), "invalid"},
		"a bad name":            {register(fed, "Not A Name", east.address, token.GetToken()), "invalid"},
		"another cluster's pin": {register(fed, "b", other.address, token.GetToken()), "unavailable"},
		"nobody listens":        {register(fed, "c", "127.0.0.1:1", token.GetToken()), "unavailable"},
		"this is no Federate":   {register(east, "d", east.address, token.GetToken()), "unsupported"},
		"a Federate has no port": {func() error {
			_, err := fed.admin().CreateFederationToken(ctx, &apiv1.CreateFederationTokenRequest{})
			return err
		}(), "unsupported"},
	} {
		if got := statusKind(tt.err); got != tt.kind {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	if err := register(fed, "east", east.address, token.GetToken()); err != nil {
		t.Fatal(err)
	}
	if err := register(fed, "east", east.address, token.GetToken()); statusKind(err) != "exists" {
		t.Errorf("%v", err)
	}
	second := startSite(t, "second", true)
	if err := register(second, "east", east.address, token.GetToken()); err == nil {
		t.Error("one token registered two Federates")
	}
	more, err := east.admin().CreateFederationToken(ctx, &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := register(second, "east", east.address, more.GetToken()); statusKind(err) != "conflict" {
		t.Errorf("a cluster belongs to one Federate: %v", err)
	}
	fed.restart() // keys of both sides are durable
	east.restart()
	fed.eventually("the east to answer", func() error {
		c, err := fed.admin().GetCluster(ctx, &apiv1.GetClusterRequest{Name: "east"})
		if err == nil && c.GetState() != "ready" {
			err = fmt.Errorf("%v", c)
		}
		return err
	})
}

func TestOthersWorkIsNotReachedThroughTheFederate(t *testing.T) {
	fed, _, _ := federated(t)
	_, rita := fed.person("rita", "research")
	_, sam := fed.person("sam", "spare")
	w := start(t, rita, jobOf(1, ""))
	ctx := t.Context()
	if _, err := sam.CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: w.GetId()}); statusKind(err) != "denied" {
		t.Errorf("%v", err)
	}
	if _, err := rita.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w", Group: "spare"}); statusKind(err) != "denied" {
		t.Errorf("%v", err)
	}
	if _, err := rita.StartWorkflow(ctx, &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w", Id: w.GetId()}); statusKind(err) != "invalid" {
		t.Errorf("%v", err)
	}
	// An administrator of the Federate may, and is named by the cluster.
	if _, err := fed.admin().CancelWorkflow(ctx, &apiv1.CancelWorkflowRequest{Id: w.GetId()}); err != nil {
		t.Fatal(err)
	}
	fed.eventually("it to be cancelled", func() error { return isStatus(t, rita, w.GetId(), "cancelled") })
	got, err := rita.GetWorkflow(ctx, &apiv1.GetWorkflowRequest{Id: w.GetId()})
	if err != nil || !strings.Contains(got.GetJobs()[0].GetMessage(), "admin") {
		t.Errorf("%v, %v", got, err)
	}
}
