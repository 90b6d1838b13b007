package auth

import (
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
	tests := []struct {
		method string
		caller Principal
		kind   coordinator.ErrorKind
		ok     bool
	}{
		{"/a/Public", Principal{}, 0, true},
		{"/a/Admin", Principal{User: "root", Admin: true}, 0, true},
		{"/a/Admin", Principal{User: "ann"}, coordinator.ErrDenied, false},
		{"/a/Admin", Principal{}, coordinator.ErrUnauthenticated, false},
		{"/a/Unknown", Principal{User: "root", Admin: true}, coordinator.ErrDenied, false},
		{"/a/Forgotten", Principal{User: "root", Admin: true}, coordinator.ErrDenied, false},
	}
	for _, tt := range tests {
		err := table.Authorize(tt.caller, tt.method, Target{})
		if (err == nil) != tt.ok || err != nil && coordinator.ErrorKindOf(err) != tt.kind {
			t.Errorf("%s by %+v: %v", tt.method, tt.caller, err)
		}
	}
	if got := table.Unlisted([]string{"/a/Z", "/a/Public", "/a/Forgotten"}); !slices.Equal(got, []string{"/a/Forgotten", "/a/Z"}) {
		t.Errorf("unlisted are %v", got)
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
	u := coordinator.User{ID: "ann", Organization: "physics", Groups: []coordinator.GroupID{"hep"}, Admin: true}
	p := PrincipalOf(u)
	if p.User != "ann" || p.Organization != "physics" || !p.Admin || !slices.Equal(p.Groups, u.Groups) {
		t.Errorf("%+v", p)
	}
	u.Groups[0] = "other"
	if p.Groups[0] != "hep" {
		t.Error("the principal shares the user's groups")
	}
}
