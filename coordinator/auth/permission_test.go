package auth

import (
	"errors"
	"slices"
	"testing"

	"substrate/coordinator"
)

func TestAllowed(t *testing.T) {
	member := Principal{User: "ann", Organization: "physics", Groups: []coordinator.GroupID{"hep"}}
	admin := Principal{User: "root", Organization: "ops", Groups: []coordinator.GroupID{"ops"}, Admin: true}
	homeless := Principal{User: "eve"}
	nobody := Principal{Admin: true} // a flag without a user is worth nothing
	own := Target{Organization: "physics", Group: "hep", Owner: "ann"}
	colleague := Target{Organization: "physics", Group: "astro", Owner: "bob"}
	stranger := Target{Organization: "biology", Group: "dna", Owner: "cid"}
	none := Target{}
	type row struct {
		permission Permission
		// which targets of own, colleague, stranger, none each may touch
		member, admin, homeless, nobody string
	}
	rows := []row{
		{PermissionNone, "----", "----", "----", "----"},
		{PermissionPublic, "ocsn", "ocsn", "ocsn", "ocsn"},
		{PermissionUser, "ocsn", "ocsn", "ocsn", "----"},
		{PermissionReadOrg, "oc--", "ocsn", "----", "----"},
		{PermissionManageOrg, "----", "ocsn", "----", "----"},
		{PermissionSubmit, "o---", "----", "----", "----"},
		{PermissionReadWork, "oc--", "ocsn", "----", "----"},
		{PermissionManageWork, "o---", "ocsn", "----", "----"},
		{PermissionReadOutput, "o---", "ocsn", "----", "----"},
		{PermissionManageUser, "o---", "ocsn", "----", "----"},
		{PermissionAdminCluster, "----", "ocsn", "----", "----"},
		{Permission(99), "----", "----", "----", "----"},
	}
	for _, r := range rows {
		for _, who := range []struct {
			name string
			p    Principal
			want string
		}{{"member", member, r.member}, {"admin", admin, r.admin}, {"homeless", homeless, r.homeless}, {"nobody", nobody, r.nobody}} {
			for i, target := range []Target{own, colleague, stranger, none} {
				got, want := Allowed(who.p, r.permission, target), who.want[i] != '-'
				if got != want {
					t.Errorf("%s, %s on %+v: %v, want %v", who.name, r.permission, target, got, want)
				}
			}
		}
	}
	if !Allowed(admin, PermissionSubmit, Target{Organization: "ops"}) {
		t.Error("an admin submits for its own organisation")
	}
}

func TestTable(t *testing.T) {
	table := Table{"/a/Public": PermissionPublic, "/a/Admin": PermissionAdminCluster, "/a/Forgotten": PermissionNone}
	for method, want := range map[string]Permission{
		"/a/Public": PermissionPublic, "/a/Admin": PermissionAdminCluster, "/a/Unknown": PermissionNone, "/a/Forgotten": PermissionNone,
	} {
		got, err := table.Permission(method)
		if got != want || (err == nil) != (want != PermissionNone) {
			t.Errorf("%s: %s, %v", method, got, err)
		}
		if err != nil && coordinator.ErrorKindOf(err) != coordinator.ErrDenied {
			t.Errorf("%s: %v", method, err)
		}
	}
	if got := table.Unlisted([]string{"/a/Z", "/a/Public", "/a/Forgotten"}); !slices.Equal(got, []string{"/a/Forgotten", "/a/Z"}) {
		t.Errorf("unlisted are %v", got)
	}
}

func TestAuthorize(t *testing.T) {
	ann := Principal{User: "u-1", Name: "ann", Organization: "physics"}
	tests := []struct {
		name       string
		caller     Principal
		permission Permission
		target     Target
		want       string
		kind       coordinator.ErrorKind
	}{
		{"nobody in public", Principal{}, PermissionPublic, Target{}, "", 0},
		{"admin", Principal{User: "root", Admin: true}, PermissionAdminCluster, Target{}, "", 0},
		{"own work", ann, PermissionManageWork, Target{Owner: "u-1"}, "", 0},
		{"member", ann, PermissionAdminCluster, Target{}, `cannot set config: user "ann" lacks the permission "cluster-admin"`, coordinator.ErrDenied},
		{"other's work", ann, PermissionManageWork, Target{Owner: "u-2"}, `cannot set config: user "ann" lacks the permission "manage-work"`, coordinator.ErrDenied},
		{"nobody", Principal{}, PermissionAdminCluster, Target{}, "cannot set config: no valid token was shown", coordinator.ErrUnauthenticated},
		{"a flag without a user", Principal{Admin: true}, PermissionUser, Target{}, "cannot set config: no valid token was shown", coordinator.ErrUnauthenticated},
		{"none", Principal{User: "root", Name: "root", Admin: true}, PermissionNone, Target{}, `cannot set config: user "root" lacks the permission ""`, coordinator.ErrDenied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Authorize(tt.caller, tt.permission, "set config", tt.target)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *coordinator.Error
			if !errors.As(err, &e) || e.Error() != tt.want || e.Kind != tt.kind || e.Hint == "" {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestNeedsTarget: whatever can be decided without a target must come out the same for every target.
func TestNeedsTarget(t *testing.T) {
	callers := []Principal{{}, {User: "ann", Organization: "physics", Groups: []coordinator.GroupID{"hep"}}, {User: "root", Organization: "ops", Admin: true}}
	targets := []Target{{}, {Organization: "physics"}, {Organization: "physics", Group: "hep", Owner: "ann"}, {Organization: "biology", Group: "dna", Owner: "cid"}}
	for p := PermissionNone; p <= PermissionAdminCluster; p++ {
		differ := false
		for _, who := range callers {
			for _, target := range targets {
				differ = differ || Allowed(who, p, target) != Allowed(who, p, Target{})
			}
		}
		if differ && !p.NeedsTarget() {
			t.Errorf("%s depends on its target and does not say so", p)
		}
		if p.NeedsTarget() && !differ && p != PermissionManageOrg { // until organisations have owners
			t.Errorf("%s says that it depends on its target and does not", p)
		}
	}
}

func TestPermissionWords(t *testing.T) {
	for p := PermissionPublic; p <= PermissionAdminCluster; p++ {
		text, _ := p.MarshalText()
		var back Permission
		if err := back.UnmarshalText(text); err != nil || back != p {
			t.Errorf("%s came back as %s, %v", p, back, err)
		}
	}
	var p Permission
	if p.UnmarshalText([]byte("everything")) == nil || Permission(99).String() != "unknown(99)" {
		t.Error("unknown words")
	}
}

func TestPrincipalOf(t *testing.T) {
	u := coordinator.User{ID: "ann", Name: "Ann", Organization: "physics", Groups: []coordinator.GroupID{"hep"}, Admin: true}
	p := PrincipalOf(u)
	if p.User != "ann" || p.Name != "Ann" || p.Organization != "physics" || !p.Admin || !slices.Equal(p.Groups, u.Groups) {
		t.Errorf("%+v", p)
	}
	u.Groups[0] = "other"
	if p.Groups[0] != "hep" {
		t.Error("the principal shares the user's groups")
	}
}
