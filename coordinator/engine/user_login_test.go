package engine

import (
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

const issuer = "https://login.example.org"

func external(subject, name, email string) LogIn {
	return LogIn{External: auth.External{Issuer: issuer, Subject: subject, Username: name, Email: email}, TTL: time.Hour}
}

// TestLogIn: a subject is the same user each time, whatever else the provider says of it; the first time it becomes the
// user with its address, or a new one where newcomers are taken.
func TestLogIn(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	ann, _ := c.user(NewUser{Name: "ann", Organization: firstOrg, Email: "ann@example.org"})
	enter := func(in LogIn) (Caller, TokenView) {
		t.Helper()
		text, token, err := c.engine.LogIn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		who, err := c.engine.Authenticate(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return who, token
	}
	who, token := enter(external("s1", "somebody", "Ann@example.org"))
	if who.User != ann.ID || token.Expires.Sub(token.Created) != time.Hour {
		t.Errorf("%+v, token %+v", who, token)
	}
	if who, _ = enter(external("s1", "else", "")); who.User != ann.ID {
		t.Errorf("the second time: %+v", who)
	}

	fresh := external("s2", "Bob.Builder@Example.org", "bob@example.org")
	if _, _, err := c.engine.LogIn(t.Context(), fresh); coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
		t.Errorf("a stranger: %v", err)
	}
	fresh.CreateIn, fresh.UnixUser = firstOrg, "bob"
	bob, _ := enter(fresh)
	if bob.Name != "bob.builder" || bob.Admin || bob.Organization != ann.Organization {
		t.Errorf("newcomer %+v", bob)
	}
	second := external("s3", "bob.builder", "")
	second.CreateIn = firstOrg
	if other, _ := enter(second); other.Name != "bob.builder-2" || other.User == bob.User {
		t.Errorf("of the same name: %+v", other)
	}

	c.close()
	c = newCluster(t, st.Clone())
	if again, _ := enter(external("s2", "x", "")); again.User != bob.User {
		t.Errorf("after a restart: %+v", again)
	}
	views, _, err := c.engine.Users(t.Context(), c.admin, UserFilter{Organization: firstOrg}, Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range views {
		if v.ID == bob.User && (v.UnixUser != "bob" || v.Email != "bob@example.org") {
			t.Errorf("stored %+v", v)
		}
	}
}

func TestLogInRefusals(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	ann, _ := c.user(NewUser{Name: "ann", Organization: firstOrg, Email: "same@example.org"})
	c.user(NewUser{Name: "amy", Organization: firstOrg, Email: "same@example.org"})
	dan, _ := c.user(NewUser{Name: "dan", Organization: firstOrg, Email: "dan@example.org"})
	yes := true
	if _, err := c.engine.UpdateUser(t.Context(), c.admin, UpdateUser{User: string(dan.ID), Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
	root := external("r", "root", "")
	root.CreateIn, root.UnixUser = firstOrg, "root"
	nowhere := external("n", "nora", "")
	nowhere.CreateIn = "no-such-organisation"
	for name, tt := range map[string]struct {
		in   LogIn
		kind coordinator.ErrorKind
		want string
	}{
		"two with the address":  {external("s", "ann", "same@example.org"), coordinator.ErrDenied, "several users"},
		"disabled":              {external("d", "dan", "dan@example.org"), coordinator.ErrUnauthenticated, "disabled"},
		"root":                  {root, coordinator.ErrDenied, "root"},
		"no organisation":       {nowhere, coordinator.ErrDenied, "does not exist"},
		"no subject":            {external("", "ann", ""), coordinator.ErrInvalid, "missing"},
		"no verified address":   {external("a", "ann", ""), coordinator.ErrDenied, "nobody here"},
		"a name is no identity": {external("b", "amy", "amy@example.org"), coordinator.ErrDenied, "nobody here"},
	} {
		_, _, err := c.engine.LogIn(t.Context(), tt.in)
		if coordinator.ErrorKindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v, err := c.engine.UserTokens(t.Context(), c.admin, "", string(ann.ID)); err != nil || len(v) != 1 {
		t.Errorf("tokens %v, %v", v, err)
	}
}

func FuzzSlugOf(f *testing.F) {
	for _, s := range []string{"Ann@example.org", "", "@", "Ünï", "--", strings.Repeat("a-", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if s := slugOf(name); len(s) == 0 || len(s) > 50 || strings.ContainsAny(s[:1], "-_.") {
			t.Errorf("%q gives %q", name, s)
		}
	})
}
