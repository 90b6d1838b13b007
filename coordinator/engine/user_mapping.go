package engine

import (
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// mapped are the memberships that an administrator declared for groups that the provider says somebody is in; nil when
// it says nothing of groups.
func (in *LogIn) mapped() []auth.Mapping {
	if in.Groups == nil {
		return nil
	}
	out := []auth.Mapping{}
	for _, m := range in.Mappings {
		if slices.Contains(in.Groups, m.Claim) {
			out = append(out, m)
		}
	}
	return out
}

// home is the organisation that a newcomer's groups say, "" for none.
func (s *state) home(op string, in *LogIn) (string, error) {
	home := ""
	for _, m := range in.mapped() {
		switch {
		case m.Admin || m.Organization == home || s.organization(m.Organization, Caller{}) == nil:
		case home != "":
			return "", coordinator.Errorf(coordinator.ErrDenied, op, "the identity provider's groups say both organisation %s and %s, and a user belongs to one", home, m.Organization).
				WithHint("a cluster administrator can make the user in one of them: `substrate user create`")
		default:
			home = m.Organization
		}
	}
	return home, nil
}

// follow brings a user's memberships in line with the provider's groups: what they are declared to give is given, and
// what an earlier log-in gave and this one does not is taken back. What an administrator gave is not touched, and nobody
// is moved to another organisation.
func (t *tx) follow(u *coordinator.User, in *LogIn) {
	mapped := in.mapped()
	if mapped == nil {
		return
	}
	want, had := t.state.wanted(u, mapped), coordinator.Given{}
	if u.Given != nil {
		had = *u.Given
	}
	now := coordinator.Given{Groups: given(u.Groups, had.Groups, want.Groups), Owns: given(u.Owns, had.Owns, want.Owns),
		Owner: want.Owner && (had.Owner || u.Role != coordinator.RoleOwner), Admin: want.Admin && (had.Admin || !u.Admin)}
	if had.Admin && !want.Admin && u.Admin && !t.state.otherAdmin(u) {
		now.Admin = true // somebody has to be
	}
	groups := changed(u.Groups, had.Groups, now.Groups)
	owns := slices.DeleteFunc(changed(u.Owns, had.Owns, now.Owns), func(g coordinator.GroupID) bool { return !slices.Contains(groups, g) })
	role, admin := u.Role, u.Admin && !had.Admin || now.Admin
	switch {
	case now.Owner:
		role = coordinator.RoleOwner
	case had.Owner:
		role = coordinator.RoleMember
	}
	if slices.Equal(groups, u.Groups) && slices.Equal(owns, u.Owns) && role == u.Role && admin == u.Admin && now.Equal(had) {
		return
	}
	u.Groups, u.Owns, u.Role, u.Admin, u.Given = groups, owns, role, admin, &now
	t.putUser(u)
	t.group()
	t.event(Event{Kind: "member-set", Subject: u.Name, Message: "by the identity provider's groups, as declared: " + t.state.describe(u)})
}

// wanted is what mappings give a user in its organisation; what is not there, or is a Federate's, they do not.
func (s *state) wanted(u *coordinator.User, mapped []auth.Mapping) (want coordinator.Given) {
	add := func(list *[]coordinator.GroupID, g coordinator.GroupID) {
		if !slices.Contains(*list, g) {
			*list = append(*list, g)
		}
	}
	for _, m := range mapped {
		if m.Admin {
			want.Admin = true
			continue
		}
		o := s.organization(m.Organization, Caller{})
		if o == nil || o.ID != u.Organization || o.Replica != nil {
			continue
		}
		g := s.group(o.ID, m.Group)
		switch {
		case m.Group == "":
			want.Owner = want.Owner || m.Role == coordinator.RoleOwner
		case g != nil && g.Replica == nil:
			add(&want.Groups, g.ID)
			if m.Role == coordinator.RoleOwner {
				add(&want.Owns, g.ID)
			}
		}
	}
	return want
}

// given are those of want that the provider gives: what the user has otherwise is an administrator's.
func given(has, had, want []coordinator.GroupID) (out []coordinator.GroupID) {
	for _, g := range want {
		if slices.Contains(had, g) || !slices.Contains(has, g) {
			out = append(out, g)
		}
	}
	return out
}

// changed takes what was given out of a list, unless it is given again, and adds what is new; what stays keeps its place.
func changed(list, had, now []coordinator.GroupID) []coordinator.GroupID {
	out := slices.DeleteFunc(slices.Clone(list), func(g coordinator.GroupID) bool { return slices.Contains(had, g) && !slices.Contains(now, g) })
	for _, g := range now {
		if !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// describe says what a user is a member of.
func (s *state) describe(u *coordinator.User) string {
	text := u.Role.String()
	if u.Admin {
		text += ", cluster-admin"
	}
	for _, id := range u.Groups {
		if g := s.groups[id]; g != nil {
			text += ", " + g.Slug
			if slices.Contains(u.Owns, id) {
				text += " (" + coordinator.RoleOwner.String() + ")"
			}
		}
	}
	return text
}
