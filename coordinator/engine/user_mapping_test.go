package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

func mappings(t testing.TB, texts ...string) (out []auth.Mapping) {
	t.Helper()
	for _, text := range texts {
		m, err := auth.ParseMapping(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// mappedSite is a cluster with the organisations lab and firm, the former with the groups research and spare.
func mappedSite(t testing.TB) *cluster {
	t.Helper()
	c := newCluster(t, store.NewMemory())
	for _, o := range []string{"lab", "firm"} {
		if _, err := c.engine.CreateOrganization(t.Context(), c.admin, o, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range []string{"research", "spare"} {
		if _, err := c.engine.CreateGroup(t.Context(), c.admin, g, "lab", 0); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// is describes the user of a subject, "" for none.
func (c *cluster) is(subject string) (text string) {
	c.t.Helper()
	if err := c.engine.view(c.t.Context(), func(s *state) {
		if u := s.externals[coordinator.ExternalID{Issuer: issuer, Subject: subject}]; u != nil {
			text = s.describe(u)
			if o := s.orgs[u.Organization]; o != nil {
				text = o.Slug + ": " + text
			}
		}
	}); err != nil {
		c.t.Fatal(err)
	}
	return text
}

// TestGroupsOfTheProviderGiveWhatIsDeclared and take back what they gave, no more.
func TestGroupsOfTheProviderGiveWhatIsDeclared(t *testing.T) {
	declared := []string{"phys=lab/research", "heads=lab/research:owner", "deans=lab:owner", "ops=cluster-admin", "extra=lab/spare", "gone=lab/nothing", "firm=firm"}
	const fresh, nobody = "", "refused"
	steps := []struct {
		name   string
		groups []string // nil: the provider does not say
		want   string
	}{
		{"a newcomer", []string{"phys", "unheard-of"}, "lab: member, research"},
		{"it becomes a head", []string{"phys", "heads"}, "lab: member, research (owner)"},
		{"and a dean", []string{"deans", "extra"}, "lab: owner, spare"},
		{"the provider says nothing", nil, "lab: owner, spare"},
		{"operations", []string{"ops", "phys"}, "lab: member, cluster-admin, research"},
		{"a group that is not there", []string{"gone"}, "lab: member"},
		{"another organisation's", []string{"firm", "phys"}, "lab: member, research"},
		{"none", []string{}, "lab: member"},
	}
	c := mappedSite(t)
	for _, step := range steps {
		in := external("s1", "ann", "")
		in.Groups, in.Mappings = step.groups, mappings(t, declared...)
		if _, _, err := c.engine.LogIn(t.Context(), in); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := c.is("s1"); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
	for name, tt := range map[string]struct {
		groups []string
		create string
		want   string
	}{
		"no group that is declared":            {[]string{"unheard-of"}, "", nobody},
		"none, where newcomers are taken":      {[]string{}, "firm", "firm: member, default"},
		"an organisation alone":                {[]string{"firm"}, "", "firm: member, default"},
		"a declared one goes before":           {[]string{"phys"}, "firm", "lab: member, research"},
		"two organisations":                    {[]string{"firm", "phys"}, "firm", nobody},
		"administrators have to be somewhere":  {[]string{"ops"}, "", nobody},
		"an administrator that is a newcomer":  {[]string{"ops"}, "firm", "firm: member, cluster-admin, default"},
		"the claim is as a person is declared": {[]string{"lab/research", "cluster-admin", "lab"}, "", nobody},
	} {
		in := external(name, "bob", "")
		in.Groups, in.Mappings, in.CreateIn = tt.groups, mappings(t, declared...), tt.create
		_, _, err := c.engine.LogIn(t.Context(), in)
		if got := c.is(name); err == nil && got != tt.want || err != nil && (tt.want != nobody || got != fresh || coordinator.ErrorKindOf(err) != coordinator.ErrDenied) {
			t.Errorf("%s: %s, want %s, %v", name, got, tt.want, err)
		}
	}
}

// TestWhatAnAdministratorGaveTheProviderDoesNotTake, and what it took from a declaration that is gone is taken back.
func TestWhatAnAdministratorGaveTheProviderDoesNotTake(t *testing.T) {
	c := mappedSite(t)
	if _, err := c.engine.CreateUser(t.Context(), c.admin, NewUser{Name: "ann", Organization: "lab", Groups: []string{"research"}, Email: "ann@example.org"}); err != nil {
		t.Fatal(err)
	}
	enter := func(groups []string, declared ...string) string {
		t.Helper()
		in := external("s1", "ann", "ann@example.org")
		in.Groups, in.Mappings = groups, mappings(t, declared...)
		if _, _, err := c.engine.LogIn(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		return c.is("s1")
	}
	both := []string{"phys=lab/research:owner", "extra=lab/spare"}
	if got := enter([]string{"phys", "extra"}, both...); got != "lab: member, research (owner), spare" {
		t.Error(got)
	}
	if got := enter([]string{}, both...); got != "lab: member, research" {
		t.Error(got)
	}
	if got := enter([]string{"phys", "extra"}, "extra=lab/spare"); got != "lab: member, research, spare" {
		t.Error(got)
	}
	if got := enter([]string{"phys", "extra"}); got != "lab: member, research" {
		t.Errorf("the declaration is gone: %s", got)
	}
}

// TestTheLastAdministratorStaysOne though the provider does not say so any more.
func TestTheLastAdministratorStaysOne(t *testing.T) {
	c := mappedSite(t)
	enter := func(groups ...string) string {
		in := external("s1", "ann", "")
		in.Groups, in.Mappings, in.CreateIn = groups, mappings(t, "ops=cluster-admin"), "lab"
		if _, _, err := c.engine.LogIn(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		return c.is("s1")
	}
	enter("ops")
	no := false
	var ann Caller
	c.inLoop(func(t *tx) {
		ann = Caller{Principal: auth.PrincipalOf(*t.state.externals[coordinator.ExternalID{Issuer: issuer, Subject: "s1"}])}
	})
	if _, err := c.engine.UpdateUser(t.Context(), ann, UpdateUser{User: string(c.admin.User), Admin: &no}); err != nil {
		t.Fatal(err)
	}
	if got := enter([]string{}...); got != "lab: member, cluster-admin, default" {
		t.Error(got)
	}
	yes := true
	if _, err := c.engine.UpdateUser(t.Context(), ann, UpdateUser{User: string(c.admin.User), Admin: &yes}); err != nil {
		t.Fatal(err)
	}
	in := external("s1", "ann", "")
	in.Groups, in.Mappings = []string{}, mappings(t, "ops=cluster-admin")
	if _, _, err := c.engine.LogIn(t.Context(), in); err != nil || c.is("s1") != "lab: member, default" {
		t.Errorf("%s, %v", c.is("s1"), err)
	}
}

// TestNoClaimGivesMoreThanIsDeclared: whatever a provider says in whatever order, log-ins leave what an administrator
// gave and what the last claims are declared to give, and nothing else.
func TestNoClaimGivesMoreThanIsDeclared(t *testing.T) {
	targets := []string{"lab/research", "lab/research:owner", "lab/spare", "lab:owner", "lab", "firm:owner", "cluster-admin"}
	n := 0
	c := mappedSite(t)
	rapid.Check(t, func(rt *rapid.T) {
		n++
		subject, mail := fmt.Sprint("s", n), fmt.Sprintf("u%d@example.org", n)
		own := rapid.SampledFrom([][]string{{"research"}, {"spare"}, {"default"}, {"spare", "research"}}).Draw(rt, "own")
		if _, err := c.engine.CreateUser(t.Context(), c.admin, NewUser{Name: fmt.Sprint("u", n), Organization: "lab", Groups: own, Email: mail}); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 4).Draw(rt, "log-ins") {
			var declared []string
			for i, target := range rapid.SliceOfN(rapid.SampledFrom(targets), 0, 5).Draw(rt, "declared") {
				declared = append(declared, fmt.Sprintf("g%d=%s", i%3, target))
			}
			claims := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"g0", "g1", "g2", "cluster-admin", "lab"}), rapid.ID).Draw(rt, "claims")
			in := external(subject, "x", mail)
			in.Groups, in.Mappings = append([]string{}, claims...), mappings(t, declared...)
			if _, _, err := c.engine.LogIn(t.Context(), in); err != nil {
				rt.Fatal(err)
			}
			gives := func(targets ...string) bool {
				return slices.ContainsFunc(declared, func(d string) bool {
					claim, target, _ := strings.Cut(d, "=")
					return slices.Contains(claims, claim) && slices.Contains(targets, target)
				})
			}
			got := c.is(subject)
			for what, want := range map[string]bool{
				"cluster-admin":    gives("cluster-admin"),
				"lab: owner":       gives("lab:owner"),
				"research (owner)": gives("lab/research:owner"),
				", research":       gives("lab/research", "lab/research:owner") || slices.Contains(own, "research"),
				", spare":          gives("lab/spare") || slices.Contains(own, "spare"),
				", default":        slices.Contains(own, "default"),
				"spare (owner)":    false,
			} {
				if strings.Contains(got, what) != want {
					rt.Fatalf("declared %v, claims %v, own %v: %s; %s: want %v", declared, claims, own, got, what, want)
				}
			}
			if !strings.HasPrefix(got, "lab: ") {
				rt.Fatalf("moved: %s", got)
			}
		}
		if err := c.engine.DeleteUser(t.Context(), c.admin, "lab", fmt.Sprint("u", n), false); err != nil {
			rt.Fatal(err)
		}
	})
}
