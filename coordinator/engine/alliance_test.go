package engine

import (
	"context"
	"crypto/rand"
	"log/slog"
	"testing"
	"time"

	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

// alliance is a stage that belongs to a Federate.
type alliance struct {
	*stage
	fed   *Engine
	boss  Caller // the Federate's administrator
	peer  FederatePeer
	users map[string]UserView
}

// allied runs a play on a cluster of a Federate whose organisation lab has the groups research and spare, with the
// members rita and ron, and sam.
func allied(t *testing.T, play func(*testing.T, *alliance)) {
	t.Helper()
	onStage(t, func(t *testing.T, s *stage) {
		a := &alliance{stage: s, users: map[string]UserView{}}
		a.fed, a.boss = startFederate(t, store.NewMemory())
		a.enrol()
		if _, err := a.fed.CreateOrganization(t.Context(), a.boss, "lab", 0); err != nil {
			t.Fatal(err)
		}
		for _, slug := range []string{"research", "spare"} {
			if _, err := a.fed.CreateGroup(t.Context(), a.boss, slug, "lab", 0); err != nil {
				t.Fatal(err)
			}
		}
		for name, group := range map[string]string{"rita": "research", "ron": "research", "sam": "spare"} {
			u, err := a.fed.CreateUser(t.Context(), a.boss, NewUser{Name: name, Organization: "lab", Groups: []string{group}, Email: name + "@lab.example"})
			if err != nil {
				t.Fatal(err)
			}
			a.users[name] = u
		}
		play(t, a)
	})
}

func startFederate(t testing.TB, st store.Store) (*Engine, Caller) {
	t.Helper()
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e, err := New(ctx, Options{Store: st, Logs: out, Log: slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.Reader, Federate: true,
		Limits: Limits{StopGrace: time.Millisecond}})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	boss := Caller{}
	for _, u := range e.state.users {
		if u.Admin {
			boss = Caller{Principal: auth.PrincipalOf(*u)}
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			t.Errorf("the Federate ended: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return e, boss
}

// enrol registers the stage's cluster.
func (a *alliance) enrol() {
	a.t.Helper()
	token, _, err := a.engine.CreateFederationToken(a.t.Context(), a.admin, 0)
	if err != nil {
		a.t.Fatal(err)
	}
	key, err := auth.NewFederateKey(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	csr, err := key.CSR(rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	req, err := auth.ParseRequest(csr)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.engine.Enrol(a.t.Context(), &Enrolment{Token: token, Federate: a.fed.ClusterID(), Name: "here", URL: "https://federate.example", CSR: csr}); err != nil {
		a.t.Fatal(err)
	}
	a.peer = FederatePeer{ID: a.fed.ClusterID(), Key: req.Key}
}

// request is any request of a user through the Federate.
func (a *alliance) request(user string) Caller {
	a.t.Helper()
	id, attrs, err := a.fed.BehalfOf(a.t.Context(), a.users[user].ID, "")
	if err != nil {
		a.t.Fatal(err)
	}
	return a.deliver(id, &attrs)
}

// older is the same from a Federate of an older release.
func (a *alliance) older(user string) Caller {
	a.t.Helper()
	id, _, err := a.fed.BehalfOf(a.t.Context(), a.users[user].ID, "")
	if err != nil {
		a.t.Fatal(err)
	}
	return a.deliver(id, nil)
}

func (a *alliance) deliver(id federation.Identity, attrs *federation.Attributes) Caller {
	a.t.Helper()
	c, err := a.engine.brought(a.t.Context(), a.peer, &id, attrs)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// brought is a request that is over, with nothing in it but what it carried.
func (e *Engine) brought(ctx context.Context, p FederatePeer, id *federation.Identity, attrs *federation.Attributes) (Caller, error) {
	ctx, c, err := e.OnBehalf(ctx, p, id, attrs)
	if err != nil {
		return c, err
	}
	return c, e.Carried(ctx)
}

// raise sets priorities on the Federate: of the organisation, a group, a user.
func (a *alliance) raise(noun, name string, p int32) {
	a.t.Helper()
	var err error
	switch noun {
	case "organization":
		_, err = a.fed.UpdateOrganization(a.t.Context(), a.boss, string(a.users["rita"].Organization), &p)
	case "group":
		_, err = a.fed.UpdateGroup(a.t.Context(), a.boss, UpdateGroup{Group: name, Organization: "lab", Priority: &p})
	case "user":
		_, err = a.fed.UpdateUser(a.t.Context(), a.boss, UpdateUser{User: string(a.users[name].ID), Priority: &p})
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *alliance) list(in UpdateGroup) {
	a.t.Helper()
	in.Group, in.Organization = "research", "lab"
	if _, err := a.fed.UpdateGroup(a.t.Context(), a.boss, in); err != nil {
		a.t.Fatal(err)
	}
}

// priority is a replica's, by noun.
func (a *alliance) priority(noun, name string) (p int32, ok bool) {
	a.t.Helper()
	err := a.engine.view(a.t.Context(), func(s *state) {
		switch noun {
		case "organization":
			if o := s.orgs[a.users["rita"].Organization]; o != nil {
				p, ok = o.Priority, true
			}
		case "group":
			if g := s.group(a.users["rita"].Organization, name); g != nil {
				p, ok = g.Priority, true
			}
		case "user":
			if u := s.users[a.users[name].ID]; u != nil {
				p, ok = u.Priority, true
			}
		}
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return p, ok
}

func (a *alliance) wants(noun, name string, want int32) {
	a.t.Helper()
	if p, ok := a.priority(noun, name); !ok || p != want {
		a.t.Errorf("%s %s has priority %d (known: %v), want %d", noun, name, p, ok, want)
	}
}
