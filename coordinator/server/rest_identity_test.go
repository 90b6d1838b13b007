package server

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

func recordIdentity(f *fakeEngine, note func(string, ...any)) {
	f.whoAmIFunc = func(_ context.Context, c engine.Caller) (engine.UserView, coordinator.Organization, error) {
		return engine.UserView{User: coordinator.User{ID: c.User, Name: c.Name}, GroupSlugs: []string{"lab"}, OwnedSlugs: []string{"lab"}}, sampleOrganization(), nil
	}
	f.organizationsFunc = func(_ context.Context, _ engine.Caller, p engine.Page) ([]coordinator.Organization, string, error) {
		note("Organizations %+v", p)
		return []coordinator.Organization{sampleOrganization()}, "acme", nil
	}
	f.createOrganizationFunc = func(_ context.Context, c engine.Caller, slug string, p int32) (coordinator.Organization, error) {
		note("CreateOrganization by %s %q %d", c.Name, slug, p)
		return sampleOrganization(), nil
	}
	f.updateOrganizationFunc = func(_ context.Context, c engine.Caller, id string, p *int32) (coordinator.Organization, error) {
		note("UpdateOrganization by %s %q %s", c.Name, id, num(p))
		return sampleOrganization(), nil
	}
	f.groupsFunc = func(_ context.Context, _ engine.Caller, o string, p engine.Page) ([]engine.GroupView, string, error) {
		note("Groups %q %+v", o, p)
		return []engine.GroupView{sampleGroup()}, "lab", nil
	}
	f.createGroupFunc = func(_ context.Context, _ engine.Caller, slug, o string, p int32) (engine.GroupView, error) {
		note("CreateGroup %q %q %d", slug, o, p)
		return sampleGroup(), nil
	}
	f.updateGroupFunc = func(_ context.Context, _ engine.Caller, u engine.UpdateGroup) (engine.GroupView, error) {
		note("UpdateGroup %q in %q priority %s +%v -%v", u.Group, u.Organization, num(u.Priority), u.Preempt, u.NoPreempt)
		return sampleGroup(), nil
	}
	f.usersFunc = func(_ context.Context, _ engine.Caller, u engine.UserFilter, p engine.Page) ([]engine.UserView, string, error) {
		note("Users %+v %+v", u, p)
		return []engine.UserView{sampleUser()}, "mia/u-1", nil
	}
	f.createUserFunc = func(_ context.Context, _ engine.Caller, u engine.NewUser) (engine.UserView, error) {
		note("CreateUser %+v", u)
		return sampleUser(), nil
	}
	f.updateUserFunc = func(_ context.Context, _ engine.Caller, u engine.UpdateUser) (engine.UserView, error) {
		note("UpdateUser %q in %q priority %s account %s cancel %v", u.User, u.Organization, num(u.Priority), text(u.UnixUser), u.CancelWork)
		return sampleUser(), nil
	}
	f.deleteUserFunc = func(_ context.Context, _ engine.Caller, o, u string, cancel bool) error {
		note("DeleteUser %q in %q cancel %v", u, o, cancel)
		return nil
	}
	f.deleteGroupFunc = func(_ context.Context, _ engine.Caller, o, g string) error {
		note("DeleteGroup %q in %q", g, o)
		return nil
	}
	f.useGroupFunc = func(_ context.Context, _ engine.Caller, g string) (engine.UserView, error) {
		note("UseGroup %q", g)
		return sampleUser(), nil
	}
	recordMembers(f, note)
	recordTokens(f, note)
}

func recordMembers(f *fakeEngine, note func(string, ...any)) {
	f.setMembershipFunc = func(_ context.Context, _ engine.Caller, m engine.MemberChange) (engine.UserView, error) {
		note("SetMember %+v", m)
		return sampleUser(), nil
	}
	f.removeMembershipFunc = func(_ context.Context, _ engine.Caller, m engine.MemberChange, cancel bool) (engine.UserView, error) {
		note("RemoveMember %+v cancel %v", m, cancel)
		return sampleUser(), nil
	}
}

func sampleToken() engine.TokenView {
	return engine.TokenView{ID: "0123456789abcdef", Name: "laptop", User: "u-1", UserName: "mia", Created: at(1), Expires: at(2), Used: at(3), Expired: true}
}

func recordTokens(f *fakeEngine, note func(string, ...any)) {
	f.createUserTokenFunc = func(_ context.Context, _ engine.Caller, in engine.NewToken) (string, engine.TokenView, error) {
		note("CreateUserToken %+v", in)
		return "t.s", sampleToken(), nil
	}
	f.userTokensFunc = func(_ context.Context, _ engine.Caller, o, u string) ([]engine.TokenView, error) {
		note("UserTokens of %q in %q", u, o)
		return []engine.TokenView{sampleToken()}, nil
	}
	f.revokeUserTokenFunc = func(_ context.Context, _ engine.Caller, o, u, token string) error {
		note("RevokeUserToken %q of %q in %q", token, u, o)
		return nil
	}
	f.auditFunc = func(_ context.Context, _ engine.Caller, a engine.AuditFilter, p engine.Page) ([]engine.AuditEntry, string, error) {
		note("Audit %+v %+v", a, p)
		return []engine.AuditEntry{{Time: at(1), Request: "r-1", User: "u-1", UserName: "mia", Token: "t-1", From: "10.0.0.1", Method: "Identity.CreateGroup",
			Object: "group/g-1", Name: "lab", Records: []engine.AuditRecord{{Key: "group/g-1", After: "ab"}}, More: 1, Outcome: engine.OutcomeDone, Message: "m"}}, "audit/1", nil
	}
}

func recordJoinTokens(f *fakeEngine, note func(string, ...any)) {
	view := engine.JoinTokenView{ID: "id", Uses: 3, UsesLeft: 2, Created: at(1), Expires: at(30), By: "ada", Binding: auth.Binding{Definition: "gpu", Launch: "l-1"}}
	f.createJoinTokenFunc = func(_ context.Context, c engine.Caller, in engine.NewJoinToken) (string, engine.JoinTokenView, error) {
		note("CreateJoinToken by %s: %+v", c.Name, in)
		return "id.secret", view, nil
	}
	f.joinTokensFunc = func(_ context.Context, _ engine.Caller, p engine.Page) ([]engine.JoinTokenView, string, error) {
		note("JoinTokens %+v", p)
		return []engine.JoinTokenView{view}, "next", nil
	}
	f.revokeJoinTokenFunc = func(_ context.Context, _ engine.Caller, id string) error {
		note("RevokeJoinToken %q", id)
		return nil
	}
	f.revokeNodeFunc = func(_ context.Context, _ engine.Caller, n coordinator.NodeID, why string) (engine.NodeView, error) {
		note("RevokeNode %q %q", n, why)
		return sampleNode(n), nil
	}
	f.removeNodeFunc = func(_ context.Context, _ engine.Caller, n coordinator.NodeID, why string, force bool) error {
		note("RemoveNode %q %q force %v", n, why, force)
		return nil
	}
}

// identityRequests go beside those of restRequests.
func identityRequests() [][]string {
	return [][]string{
		{"GET", "/v1/organizations?page_size=2&page_token=" + pageAfter("/substrate.v1.Identity/ListOrganizations", &apiv1.ListOrganizationsRequest{}, "a"), ""},
		{"GET", "/v1/users?group=lab&page_token=" + pageAfter("/substrate.v1.Identity/ListUsers", &apiv1.ListUsersRequest{Group: "lab"}, "mia/u-1"), ""},
		{"GET", "/v1/users?unaffiliated=true", ""},
		{"DELETE", "/v1/users/u-1?cancel_work=true&organization=acme", ""},
		{"PATCH", "/v1/users/u-1", `{"disabled":true,"cancel_work":true,"organization":"acme"}`},
		{"DELETE", "/v1/groups/lab", ""},
		{"POST", "/v1/groups/lab/use", "{}"},
		{"POST", "/v1/members", `{"group":"lab","user":"mia","role":"owner","add":true}`},
		{"POST", "/v1/members", `{"user":"mia","role":"king"}`},
		{"DELETE", "/v1/members?user=mia&organization=acme&cancel_work=true", ""},
		{"GET", "/v1/users/-/tokens", ""},
		{"POST", "/v1/users/-/tokens", `{"name":"laptop","ttl_seconds":"3600"}`},
		{"POST", "/v1/users/-/tokens", `{"ttl_seconds":"99999999999"}`},
		{"DELETE", "/v1/users/mia/tokens/laptop", ""},
		{"GET", "/v1/join-tokens", ""},
		{"DELETE", "/v1/join-tokens/0123", ""},
		{"POST", "/v1/join-tokens", `{"definition":"gpu","launch":"l-1","uses":3}`},
		{"POST", "/v1/nodes/n1/revoke", `{"reason":"stolen"}`},
		{"DELETE", "/v1/nodes/n1?force=true", ""},
		{"GET", "/v1/audit?since=2026-01-02T03:04:05Z&user=mia&verb=group", ""},
	}
}
