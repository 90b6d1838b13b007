package engine

import (
	"context"
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// MemberChange is a change of who belongs to an organisation or to a group of it, and as what.
type MemberChange struct {
	Organization string // "" is the caller's
	Group        string // "" for the organisation itself
	User         string // name in the organisation, or id
	Role         coordinator.Role
	Add          bool // one who is no member yet becomes one; else only roles change
}

// SetMembership gives a member of an organisation or of a group its role.
func (e *Engine) SetMembership(ctx context.Context, c Caller, in MemberChange) (out UserView, err error) {
	err = e.do(ctx, func(t *tx) error {
		set := t.setOrganizationMember
		if in.Group != "" {
			set = t.setGroupMember
		}
		u, err := set(c, "set member "+in.User, in)
		if err == nil {
			out = t.state.userView(u)
		}
		return err
	})
	return out, err
}

func (t *tx) setOrganizationMember(c Caller, op string, in MemberChange) (*coordinator.User, error) {
	s := t.state
	o, err := s.permitted(c, auth.PermissionManageOrg, op, in.Organization)
	if err != nil {
		return nil, err
	}
	u := s.user(o.ID, in.User)
	if u == nil || u.Organization != o.ID && !c.Admin {
		return nil, noSuch(op, "user", in.User)
	}
	if u.Organization != o.ID {
		if !in.Add {
			return nil, coordinator.Errorf(coordinator.ErrNotFound, op, "it is no member of organisation %s", o.Slug)
		}
		if u.Organization != "" {
			return nil, coordinator.Errorf(coordinator.ErrConflict, op, "it belongs to organisation %s, and a user belongs to one", s.orgs[u.Organization].Slug).
				WithHint("take it out of there first: `substrate organization member remove %s %s`", s.orgs[u.Organization].Slug, u.ID)
		}
		if s.user(o.ID, u.Name) != nil {
			return nil, coordinator.Errorf(coordinator.ErrExists, op, "organisation %s has a user %s already", o.Slug, u.Name)
		}
		s.moveUser(u, o.ID)
		if g := s.group(o.ID, defaultGroup); g != nil {
			u.Groups = []coordinator.GroupID{g.ID}
		}
	}
	u.Role = in.Role
	t.putUser(u)
	t.group()
	t.event(Event{Kind: "member-set", Subject: o.Slug + "/" + u.Name, Message: in.Role.String() + ", by " + c.Name})
	return u, nil
}

func (t *tx) setGroupMember(c Caller, op string, in MemberChange) (*coordinator.User, error) {
	s := t.state
	o, g, err := s.permittedGroup(c, auth.PermissionManageGroup, op, in.Organization, in.Group)
	if err != nil {
		return nil, err
	}
	if err := t.editable(c, op, g.Replica); err != nil {
		return nil, err
	}
	u := s.user(o.ID, in.User)
	if u == nil || u.Organization != o.ID {
		return nil, noSuch(op, "user", in.User)
	}
	if !slices.Contains(u.Groups, g.ID) {
		if !in.Add {
			return nil, coordinator.Errorf(coordinator.ErrNotFound, op, "it is no member of group %s", g.Slug)
		}
		u.Groups = append(slices.Clone(u.Groups), g.ID)
	}
	owns := slices.DeleteFunc(slices.Clone(u.Owns), func(id coordinator.GroupID) bool { return id == g.ID })
	if in.Role == coordinator.RoleOwner {
		owns = append(owns, g.ID)
	}
	u.Owns = owns
	t.putUser(u)
	t.group()
	t.event(Event{Kind: "member-set", Subject: o.Slug + "/" + g.Slug + "/" + u.Name, Message: in.Role.String() + ", by " + c.Name})
	return u, nil
}

// RemoveMembership takes a user out of a group, or out of its organisation and all its groups. Its work goes on unless it
// is to be cancelled, which is the organisation's to decide.
func (e *Engine) RemoveMembership(ctx context.Context, c Caller, in MemberChange, cancelWork bool) (out UserView, err error) {
	op := "remove member " + in.User
	err = e.do(ctx, func(t *tx) error {
		if in.Group != "" && cancelWork {
			return coordinator.Errorf(coordinator.ErrInvalid, op, "work is cancelled only with the membership of an organisation")
		}
		remove := t.removeOrganizationMember
		if in.Group != "" {
			remove = t.removeGroupMember
		}
		u, err := remove(c, op, in)
		if err != nil {
			return err
		}
		if cancelWork {
			t.cancelWork(u, "cancelled by "+c.Name+" with the membership")
		}
		out = t.state.userView(u)
		return nil
	})
	return out, err
}

func (t *tx) removeOrganizationMember(c Caller, op string, in MemberChange) (*coordinator.User, error) {
	s := t.state
	o, err := s.permitted(c, auth.PermissionManageOrg, op, in.Organization)
	if err != nil {
		return nil, err
	}
	if err := t.editable(c, op, o.Replica); err != nil {
		return nil, err
	}
	u := s.user(o.ID, in.User)
	if u == nil || u.Organization != o.ID {
		return nil, noSuch(op, "user", in.User)
	}
	if err := s.mayCurb(c, op, u); err != nil {
		return nil, err
	}
	s.moveUser(u, "")
	t.putUser(u)
	t.group()
	s.changedWaiting()
	t.event(Event{Kind: "member-removed", Subject: o.Slug + "/" + u.Name, Message: "by " + c.Name})
	return u, nil
}

func (t *tx) removeGroupMember(c Caller, op string, in MemberChange) (*coordinator.User, error) {
	s := t.state
	o, g, err := s.permittedGroup(c, auth.PermissionManageGroup, op, in.Organization, in.Group)
	if err != nil {
		return nil, err
	}
	if err := t.editable(c, op, g.Replica); err != nil {
		return nil, err
	}
	u := s.user(o.ID, in.User)
	if u == nil || u.Organization != o.ID || !slices.Contains(u.Groups, g.ID) {
		return nil, noSuch(op, "member", in.User)
	}
	is := func(id coordinator.GroupID) bool { return id == g.ID }
	u.Groups, u.Owns = slices.DeleteFunc(slices.Clone(u.Groups), is), slices.DeleteFunc(slices.Clone(u.Owns), is)
	t.putUser(u)
	t.group()
	t.event(Event{Kind: "member-removed", Subject: o.Slug + "/" + g.Slug + "/" + u.Name, Message: "by " + c.Name})
	return u, nil
}
