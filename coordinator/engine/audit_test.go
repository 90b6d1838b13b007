package engine

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

// TestAuditStandsWithTheChange: each command of a request leaves one entry in the same write, with the digests of the
// record before and after; one that is refused or changes nothing leaves none.
func TestAuditStandsWithTheChange(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	ctx := WithRequest(t.Context(), Request{ID: "r1", Method: "Identity.CreateGroup", From: "10.0.0.1", Caller: c.admin.Principal, Token: "t"})
	g, err := c.engine.CreateGroup(ctx, c.admin, "lab", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.CreateGroup(ctx, c.admin, "lab", "", 0); coordinator.ErrorKindOf(err) != coordinator.ErrExists {
		t.Fatal(err)
	}
	p := int32(3)
	ctx = WithRequest(t.Context(), Request{ID: "r2", Method: "Identity.UpdateGroup", Caller: c.admin.Principal})
	if _, err := c.engine.UpdateGroup(ctx, c.admin, UpdateGroup{Group: "lab", Priority: &p}); err != nil {
		t.Fatal(err)
	}
	list, next, err := c.engine.Audit(t.Context(), c.admin, AuditFilter{Object: "lab"}, Page{})
	if err != nil || next != "" || len(list) != 2 {
		t.Fatalf("%+v, %q, %v", list, next, err)
	}
	made, changed := list[0], list[1]
	key := prefixGroup + string(g.ID)
	if made.Object != key || made.Name != "lab" || made.UserName != firstAdmin || made.From != "10.0.0.1" || made.Records[0].Before != "" || made.Records[0].After == "" ||
		made.Outcome != OutcomeDone || len(made.Organizations) != 1 {
		t.Errorf("%+v", made)
	}
	if changed.Records[0].Before != made.Records[0].After || changed.Records[0].After == changed.Records[0].Before {
		t.Errorf("the digests are no chain: %+v, %+v", made.Records, changed.Records)
	}
	entries, err := st.List(t.Context(), prefixAudit, "", 10)
	group, gerr := st.Get(t.Context(), key)
	if err != nil || gerr != nil || len(entries) != 2 || entries[1].Revision != group.Revision {
		t.Errorf("entry and change are not one write: %v, %v, %+v", err, gerr, entries)
	}
}

// TestAuditIsForWhoManages: owners read what is about their organisation, members nothing.
func TestAuditIsForWhoManages(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "other", 0); err != nil {
		t.Fatal(err)
	}
	_, owner := c.user(NewUser{Name: "olga", Role: coordinator.RoleOwner})
	_, member := c.user(NewUser{Name: "mia"})
	for i, org := range []string{firstOrg, "other"} {
		ctx := WithRequest(t.Context(), Request{ID: org, Method: "Identity.CreateGroup", Caller: c.admin.Principal})
		if _, err := c.engine.CreateGroup(ctx, c.admin, "g"+string(rune('0'+i)), org, 0); err != nil {
			t.Fatal(err)
		}
	}
	list, _, err := c.engine.Audit(t.Context(), owner, AuditFilter{}, Page{})
	if err != nil || len(list) != 1 || list[0].Request != firstOrg {
		t.Errorf("%+v, %v", list, err)
	}
	if _, _, err := c.engine.Audit(t.Context(), member, AuditFilter{}, Page{}); coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
		t.Errorf("a member: %v", err)
	}
}

// TestOwnersStayInTheirBounds: what an owner of an organisation and of a group may and may not.
func TestOwnersStayInTheirBounds(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	_, owner := c.user(NewUser{Name: "olga", Role: coordinator.RoleOwner})
	mia, member := c.user(NewUser{Name: "mia"})
	p, account, yes := int32(5), "mia", true
	for name, tt := range map[string]struct {
		err  error
		want rune
	}{
		"priority of a user":         {second(c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: "mia", Priority: &p})), '+'},
		"account of a user":          {second(c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: "mia", UnixUser: &account})), 'd'},
		"administrator":              {second(c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: "olga", Admin: &yes})), 'd'},
		"address":                    {second(c.engine.CreateUser(t.Context(), owner, NewUser{Name: "eve", Email: "root@site"})), 'd'},
		"the organisation's":         {second(c.engine.UpdateOrganization(t.Context(), owner, firstOrg, &p)), 'd'},
		"disabling an administrator": {second(c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: firstAdmin, Disabled: &yes})), 'd'},
		"the last administrator":     {second(c.engine.UpdateUser(t.Context(), c.admin, UpdateUser{User: firstAdmin, Disabled: &yes})), '?'},
		"a member's own priority":    {second(c.engine.UpdateUser(t.Context(), member, UpdateUser{User: "mia", Priority: &p})), 'd'},
	} {
		if got := outcomeOf(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %c", name, tt.err, tt.want)
		}
	}
	if _, _, err := c.engine.CreateUserToken(t.Context(), owner, NewToken{User: "mia"}); outcomeOf(err) != 'd' {
		t.Errorf("an owner made a token of a member: %v", err)
	}
	text, rec, err := c.engine.CreateUserToken(t.Context(), member, NewToken{Name: "laptop", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: string(mia.ID), Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.Authenticate(t.Context(), text); err == nil || !strings.Contains(err.Error(), "disabled") {
		t.Errorf("a disabled user's token: %v", err)
	}
	no := false
	if _, err := c.engine.UpdateUser(t.Context(), owner, UpdateUser{User: string(mia.ID), Disabled: &no}); err != nil {
		t.Fatal(err)
	}
	if err := c.engine.RevokeUserToken(t.Context(), owner, "", "mia", rec.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.Authenticate(t.Context(), text); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestRevokedNodes: the stream ends, the certificate gets nothing any more, and one of a later join does.
func TestRevokedNodes(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	cert := NodeCertificate{Issued: c.now().Add(-time.Minute), Expires: c.now().Add(time.Hour)}
	s, err := c.engine.Connect(t.Context(), "n1", Hello{Certificate: cert})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.RevokeNode(t.Context(), c.admin, "n1", "stolen"); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.Next(t.Context()); err != nil {
			break // what was queued before may come first
		}
	}
	check := func(e *Engine, when string) {
		if _, err := e.Connect(t.Context(), "n1", Hello{Certificate: cert}); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated || !strings.Contains(err.Error(), "stolen") {
			t.Errorf("%s: %v", when, err)
		}
		if _, _, err := e.RenewCertificate(t.Context(), "n1", cert, request(t)); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
			t.Errorf("%s, renewal: %v", when, err)
		}
	}
	check(c.engine, "at once")
	c.close()
	c = newCluster(t, st)
	check(c.engine, "after a restart")
	later := NodeCertificate{Issued: auth.Revoke("n1", c.now(), 0).Before, Expires: c.now().Add(time.Hour)}
	if _, err := c.engine.Connect(t.Context(), "n1", Hello{Certificate: later}); err != nil {
		t.Errorf("a later certificate: %v", err)
	}
}

// TestBoundJoinTokens: another launch gets nothing, and the node is of the token's definition or of none.
func TestBoundJoinTokens(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig + "  - {id: big, provisioner: static, provisionerSpec: {condition: \"true\"}}\n")
	in := NewJoinToken{Uses: 2, Binding: auth.Binding{Definition: "big", Launch: "l-1"}}
	token, _, err := c.engine.CreateJoinToken(t.Context(), c.admin, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "n1", Launch: "l-2", CSR: request(t)}); coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
		t.Errorf("another launch: %v", err)
	}
	if _, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "n1", Launch: "l-1", CSR: request(t)}); err != nil {
		t.Fatal(err)
	}
	for name, only := range map[string]coordinator.DefinitionID{"big": "", "": "small"} {
		h := newHost("n1", 4, nil)
		if only != "" {
			h.matches = func(d coordinator.DefinitionID) bool { return d == only }
		}
		leave := c.join(h)
		deadline := time.Now().Add(20 * time.Second)
		for {
			v, err := c.engine.Node(t.Context(), c.admin, "n1")
			if err == nil && v.Revision > 0 && v.Definition == coordinator.DefinitionID(name) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("definition %q, want %q: %v", v.Definition, name, err)
			}
			time.Sleep(2 * time.Millisecond)
		}
		leave()
	}
	if _, _, err := c.engine.CreateJoinToken(t.Context(), c.admin, NewJoinToken{Binding: auth.Binding{Definition: "none"}}); coordinator.ErrorKindOf(err) != coordinator.ErrNotFound {
		t.Errorf("a definition that is not there: %v", err)
	}
}

// TestAuditSaysWhatWasDoneAndWithWhichToken, in the words of the events and never with a secret.
func TestAuditSaysWhatWasDoneAndWithWhichToken(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	c.join(newHost("n1", 4, nil))
	text, rec, err := c.engine.CreateUserToken(t.Context(), c.admin, NewToken{Name: "laptop"})
	if err != nil {
		t.Fatal(err)
	}
	who, err := c.engine.Authenticate(t.Context(), text)
	if err != nil || who.Token != rec.ID || who.TokenName != "laptop" {
		t.Fatalf("%+v, %v", who, err)
	}
	for _, g := range []string{"lab", "pool"} {
		if _, err := c.engine.CreateGroup(t.Context(), c.admin, g, "", 0); err != nil {
			t.Fatal(err)
		}
	}
	p, yes := int32(5), true
	mia, _ := c.user(NewUser{Name: "mia"})
	for want, do := range map[string]func(ctx context.Context) error{
		"node-draining by " + firstAdmin + " disk": func(ctx context.Context) error {
			_, err := c.engine.SetScheduling(ctx, who, "n1", "drain", "disk", false)
			return err
		},
		"may preempt pool; priority-set priority 5": func(ctx context.Context) error {
			_, err := c.engine.UpdateGroup(ctx, who, UpdateGroup{Group: "lab", Priority: &p, Preempt: []string{"pool"}})
			return err
		},
		"may preempt nobody": func(ctx context.Context) error {
			_, err := c.engine.UpdateGroup(ctx, who, UpdateGroup{Group: "lab", NoPreempt: []string{"pool"}})
			return err
		},
		"cluster-admin true": func(ctx context.Context) error {
			_, err := c.engine.UpdateUser(ctx, who, UpdateUser{User: string(mia.ID), Admin: &yes})
			return err
		},
	} {
		ctx := WithRequest(t.Context(), Request{ID: want, Method: "X.Y", Caller: who.Principal, Token: who.Token, TokenName: who.TokenName})
		if err := do(ctx); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		list, _, err := c.engine.Audit(t.Context(), c.admin, AuditFilter{Method: "X.Y"}, Page{})
		if err != nil {
			t.Fatal(err)
		}
		e := list[len(list)-1]
		if e.Action != want || e.Token != rec.ID || e.TokenName != "laptop" {
			t.Errorf("%+v, want %q", e, want)
		}
		if data, _ := json.Marshal(list); strings.Contains(string(data), text) || strings.Contains(string(data), text[len(text)-20:]) {
			t.Error("the secret is in the log")
		}
	}
}
