package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"substrate/coordinator/store"
	"substrate/proto/apiv1"
)

// A Federate's certificate with a cluster lasts 90 days and is renewed in the last 30, over real connections that are
// checked by the sites' clock.

const day = 24 * time.Hour

// aging is a Federate with one cluster, on a clock that a test puts forward.
type aging struct {
	t         *testing.T
	clock     *atomic.Int64
	fed, east *site
	rita      *clients
}

func newAging(t *testing.T, of store.Store) *aging {
	t.Helper()
	a := &aging{t: t, clock: &atomic.Int64{}}
	a.fed = &site{t: t, name: "federate", store: of, as: map[string]*clients{}, clock: a.clock}
	a.east = &site{t: t, name: "east", store: store.NewMemory(), as: map[string]*clients{}, clock: a.clock}
	a.fed.start(true, "127.0.0.1:0", "127.0.0.1:0")
	a.east.start(false, "127.0.0.1:0", "127.0.0.1:0")
	a.east.set(siteConfig)
	a.east.node("n1", 4)
	a.fed.register(a.east)
	_, a.rita = a.fed.person("rita", "research")
	return a
}

func (a *aging) cluster() *apiv1.Cluster {
	a.t.Helper()
	c, err := a.fed.admin().GetCluster(a.t.Context(), &apiv1.GetClusterRequest{Name: "east"})
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// left is how long the certificate still counts, to the day.
func (a *aging) left() time.Duration {
	return a.cluster().GetCertificateExpires().AsTime().Sub(a.fed.now()).Round(day)
}

// polled has the Federate look at its clusters now.
func (a *aging) polled() {
	a.t.Helper()
	if err := a.fed.federate.poll(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
}

func TestACertificateOfAFederateIsRenewedInTheLastThirdOfItsLife(t *testing.T) {
	a := newAging(t, store.NewMemory())
	steps := []struct {
		after time.Duration
		left  time.Duration
	}{{0, 90 * day}, {59 * day, 31 * day}, {2 * day, 90 * day}, {59 * day, 31 * day}, {2 * day, 90 * day}, {61 * day, 90 * day}}
	total := time.Duration(0)
	for _, step := range steps {
		total += step.after
		a.clock.Store(int64(total))
		a.polled()
		if got := a.left(); got != step.left {
			t.Fatalf("after %s: %s left, want %s", total, got, step.left)
		}
		if w := start(t, a.rita, jobOf(1, "")); w.GetCluster() != "east" || w.GetRouting().GetState() != "submitted" {
			t.Errorf("after %s: %v", total, w)
		}
		a.east.gate.set(true) // the next connection is a new one, with what certificates there are by then
		a.east.gate.set(false)
		a.fed.eventually("the cluster to answer again", func() error {
			if c := a.cluster(); c.GetState() != "ready" {
				return fmt.Errorf("%v", c)
			}
			return nil
		})
	}
}

// TestARenewedCertificateThatIsNotKeptIsAskedForAgain: the Federate's store fails between answer and record, and the
// Federate dies; the former certificate counts on.
func TestARenewedCertificateThatIsNotKeptIsAskedForAgain(t *testing.T) {
	st := store.NewMemory()
	a := newAging(t, &unkept{Store: st})
	a.fed.store.(*unkept).lose.Store(true)
	a.clock.Store(int64(61 * day))
	a.polled()
	if got := a.left(); got != 29*day {
		t.Fatalf("%s left", got)
	}
	if w := start(t, a.rita, jobOf(1, "")); w.GetCluster() != "east" {
		t.Errorf("%v", w)
	}
	a.fed.store.(*unkept).lose.Store(false)
	a.fed.restart()
	a.polled()
	if got := a.left(); got != 90*day {
		t.Errorf("%s left", got)
	}
}

// unkept is a store that cannot write records of clusters while it is told so.
type unkept struct {
	store.Store
	lose atomic.Bool
}

func (u *unkept) Commit(ctx context.Context, groups []store.Group) (int64, error) {
	for _, g := range groups {
		for _, op := range g.Ops {
			if u.lose.Load() && strings.HasPrefix(op.Key, "federation/cluster/") {
				return 0, &store.CommitError{Groups: len(groups), Err: errors.New("the disk is gone")}
			}
		}
	}
	return u.Store.Commit(ctx, groups)
}

// TestAnExpiredCertificateIsRefusedPlainlyAndMendedByRegisteringAgain: the cluster was away for longer than it lasts.
func TestAnExpiredCertificateIsRefusedPlainlyAndMendedByRegisteringAgain(t *testing.T) {
	a := newAging(t, store.NewMemory())
	w := start(t, a.rita, jobOf(1, ""))
	a.clock.Store(int64(91 * day))
	c := a.cluster()
	if c.GetState() != "unreachable" || !strings.Contains(c.GetError(), "certificate there expired at") {
		t.Errorf("%v", c)
	}
	_, err := a.rita.StartWorkflow(t.Context(), &apiv1.StartWorkflowRequest{Yaml: jobOf(1, ""), File: "w"})
	if statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "certificate there expired at") {
		t.Errorf("a submission: %v", err)
	}
	token, err := a.east.admin().CreateFederationToken(t.Context(), &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	again := &apiv1.RegisterClusterRequest{Name: "east", Address: a.east.address, Token: token.GetToken()}
	if c, err := a.fed.admin().RegisterCluster(t.Context(), again); err != nil || c.GetState() != "ready" {
		t.Fatalf("%v, %v", c, err)
	}
	if got := a.left(); got != 90*day {
		t.Errorf("%s left", got)
	}
	a.fed.eventually("what was routed there to be shown", func() error { return isStatus(t, a.rita, w.GetId(), "running") })
	if _, err := a.fed.admin().RegisterCluster(t.Context(), again); statusKind(err) != "exists" {
		t.Errorf("a registration that counts was replaced: %v", err)
	}
}

// TestAConnectionDoesNotOutlastItsCertificate: one that was made in time, and a stream on it.
func TestAConnectionDoesNotOutlastItsCertificate(t *testing.T) {
	east := &site{t: t, name: "east", store: store.NewMemory(), as: map[string]*clients{}, clock: &atomic.Int64{}}
	east.start(false, "127.0.0.1:0", "127.0.0.1:0")
	raw := enrolRaw(t, east)
	identity := apiv1.NewIdentityClient(raw.conn)
	if _, err := identity.WhoAmI(raw.behalf(nil), &apiv1.WhoAmIRequest{}); err != nil {
		t.Fatal(err)
	}
	east.clock.Store(int64(91 * day))
	_, err := identity.WhoAmI(raw.behalf(nil), &apiv1.WhoAmIRequest{})
	if statusKind(err) != "unauthenticated" || !strings.Contains(err.Error(), "certificate expired at") {
		t.Errorf("an old connection: %v", err)
	}
	east.gate.set(true)
	east.gate.set(false)
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(fmt.Sprint(err), "expired certificate") && time.Now().Before(deadline); {
		_, err = identity.WhoAmI(raw.behalf(nil), &apiv1.WhoAmIRequest{})
	}
	if !strings.Contains(fmt.Sprint(err), "expired certificate") {
		t.Errorf("a new connection: %v", err)
	}
}

// TestAFederateThatWasCastOutIsRefusedAtOnce: its certificate has not expired, its requests and its streams end all the same, and it is told why.
func TestAFederateThatWasCastOutIsRefusedAtOnce(t *testing.T) {
	a := newAging(t, store.NewMemory())
	w := start(t, a.rita, jobOf(1, ""))
	events, err := a.rita.WatchEvents(t.Context(), &apiv1.WatchEventsRequest{Workflow: w.GetId(), Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.east.admin().ForgetFederate(t.Context(), &apiv1.ForgetFederateRequest{}); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		_, err = events.Recv()
	}
	if statusKind(err) != "unavailable" || !strings.Contains(err.Error(), "does not belong to it") {
		t.Errorf("a stream: %v", err)
	}
	a.clock.Store(int64(61 * day)) // in time to renew
	a.polled()
	c := a.cluster()
	if c.GetState() != "unreachable" || !strings.Contains(c.GetError(), "does not belong to it") {
		t.Errorf("%v", c)
	}
	if got := a.left(); got != 29*day {
		t.Errorf("renewed all the same: %s left", got)
	}
	a.fed.registerAgain(a.east)
	a.fed.eventually("what was routed there to be shown", func() error { return isStatus(t, a.rita, w.GetId(), "running") })
}

// TestAnotherClusterDoesNotTakeANamesPlace: registering again is with the cluster that it was.
func TestAnotherClusterDoesNotTakeANamesPlace(t *testing.T) {
	a := newAging(t, store.NewMemory())
	west := startSite(t, "west", false)
	if _, err := a.east.admin().ForgetFederate(t.Context(), &apiv1.ForgetFederateRequest{}); err != nil {
		t.Fatal(err)
	}
	token, err := west.admin().CreateFederationToken(t.Context(), &apiv1.CreateFederationTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.fed.admin().RegisterCluster(t.Context(), &apiv1.RegisterClusterRequest{Name: "east", Address: west.address, Token: token.GetToken()})
	if statusKind(err) != "conflict" || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("%v", err)
	}
}

func (s *site) registerAgain(cluster *site) {
	s.t.Helper()
	if c := s.register(cluster); c.GetState() != "ready" {
		s.t.Fatalf("%v", c)
	}
}
