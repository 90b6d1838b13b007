package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// UserView is a user with names resolved.
type UserView struct {
	coordinator.User
	OrganizationSlug string
	GroupSlugs       []string
	OwnedSlugs       []string // of the groups it is an owner of
}

// NewUser describes a user to create; Organization "" is the caller's.
type NewUser struct {
	Name, Email, Organization string
	Groups                    []string
	UnixUser                  string
	Admin                     bool
	Role                      coordinator.Role
}

// UpdateUser changes what is not nil. The user is named by id, or by name in the organisation ("" is the caller's).
type UpdateUser struct {
	User, Organization string
	Priority           *int32
	UnixUser           *string
	Admin, Disabled    *bool
	CancelWork         bool // with Disabled: what it has waiting and running ends, too
}

// UserFilter chooses users to list.
type UserFilter struct {
	Organization string // "" is the caller's
	Group        string // only its members
	Unaffiliated bool   // those of no organisation instead; for cluster-admins
}

// Users lists an organisation's users, by name.
func (e *Engine) Users(ctx context.Context, c Caller, f UserFilter, p Page) (out []UserView, next string, err error) {
	const op = "list users"
	name, id := splitToken(p.Token)
	page := &walkPage[UserView]{size: p.size(), token: func(u UserView) string { return userToken(&u.User) }}
	verr := e.view(ctx, func(s *state) {
		var org coordinator.OrganizationID
		if f.Unaffiliated {
			err = c.authorize(auth.PermissionAdminCluster, op, auth.Target{})
		} else if o, perr := s.permitted(c, auth.PermissionReadOrg, op, f.Organization); perr != nil {
			err = perr
		} else {
			org = o.ID
		}
		if err != nil {
			return
		}
		var g *coordinator.Group
		if f.Group != "" {
			if g = s.group(org, f.Group); g == nil {
				err = noSuch(op, "group", f.Group)
				return
			}
		}
		s.eachUser(org, name, coordinator.UserID(id), func(u *coordinator.User) bool {
			if p.Token == userToken(u) || g != nil && !slices.Contains(u.Groups, g.ID) {
				return true
			}
			return page.add(s.userView(u))
		})
	})
	if verr != nil {
		return nil, "", verr
	}
	return page.items, page.next, err
}

func (s *state) userView(u *coordinator.User) UserView {
	v := UserView{User: *u}
	if o := s.orgs[u.Organization]; o != nil {
		v.OrganizationSlug = o.Slug
	}
	v.Groups, v.Owns = slices.Clone(u.Groups), slices.Clone(u.Owns)
	for _, id := range u.Groups {
		if g := s.groups[id]; g != nil {
			v.GroupSlugs = append(v.GroupSlugs, g.Slug)
			if u.GroupRole(id) == coordinator.RoleOwner {
				v.OwnedSlugs = append(v.OwnedSlugs, g.Slug)
			}
		}
	}
	return v
}

// putUser is the only place where a user's record is written: who it is follows at once in what its tokens open.
func (t *tx) putUser(u *coordinator.User) {
	t.put(prefixUser+string(u.ID), u)
	owner, disabled := auth.PrincipalOf(*u), u.Disabled
	t.then(func(int64) { t.engine.credentials.know(owner, disabled) })
}

// CreateUser makes a user of an organisation; without groups it joins "default".
func (e *Engine) CreateUser(ctx context.Context, c Caller, in NewUser) (out UserView, err error) {
	op := "create user " + in.Name
	err = e.do(ctx, func(t *tx) error {
		u, err := t.state.newUser(c, op, in)
		if err != nil {
			return err
		}
		if err := t.editable(c, op, t.state.orgs[u.Organization].Replica); err != nil {
			return err
		}
		id, err := e.newID()
		if err != nil {
			return err
		}
		u.ID, u.Created = coordinator.UserID(id), t.now
		t.state.addUser(u)
		t.putUser(u)
		t.group()
		out = t.state.userView(u)
		t.event(Event{Kind: "user-created", Subject: out.OrganizationSlug + "/" + u.Name})
		return nil
	})
	return out, err
}

// newUser checks everything about a user to be; it has no id yet.
func (s *state) newUser(c Caller, op string, in NewUser) (*coordinator.User, error) {
	o, err := s.permitted(c, auth.PermissionManageOrg, op, in.Organization)
	if err != nil {
		return nil, err
	}
	// Beyond the organisation: the cluster, accounts on its nodes, and the address, which policies may read.
	if in.Admin || in.UnixUser != "" || in.Email != "" {
		if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
			return nil, err
		}
	}
	if err := checkSlug(op, in.Name); err != nil {
		return nil, err
	}
	if err := checkUnixUser(op, in.UnixUser); err != nil {
		return nil, err
	}
	if s.user(o.ID, in.Name) != nil {
		return nil, coordinator.Errorf(coordinator.ErrExists, op, "organisation %s has one of this name", o.Slug)
	}
	u := &coordinator.User{Organization: o.ID, Name: in.Name, Email: in.Email, Admin: in.Admin, UnixUser: in.UnixUser, Role: in.Role}
	refs := in.Groups
	if len(refs) == 0 {
		refs = []string{defaultGroup}
	}
	for _, ref := range refs {
		g := s.group(o.ID, ref)
		if g == nil {
			return nil, noSuch(op, "group", ref)
		}
		if !slices.Contains(u.Groups, g.ID) {
			u.Groups = append(u.Groups, g.ID)
		}
	}
	return u, nil
}

// checkUnixUser refuses what no node would run as.
func checkUnixUser(op, name string) error {
	if name == "root" || name == "0" {
		return coordinator.Errorf(coordinator.ErrDenied, op, "jobs never run as root")
	}
	if len(name) > 64 || strings.ContainsAny(name, "/: \t\n\x00") {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "%q is not the name of an account", name)
	}
	return nil
}

// UpdateUser changes a user. What reaches beyond the organisation is the cluster's administrators' to change.
func (e *Engine) UpdateUser(ctx context.Context, c Caller, in UpdateUser) (out UserView, err error) {
	op := "update user " + in.User
	err = e.do(ctx, func(t *tx) error {
		u, err := t.state.permittedUser(c, auth.PermissionManageOrg, op, in.Organization, in.User)
		if err != nil {
			return err
		}
		if err := t.state.mayUpdate(c, op, u, in); err != nil {
			return err
		}
		owned := in.Priority != nil || in.UnixUser != nil || in.Admin == nil && in.Disabled == nil
		if owned { // the rest is this cluster's to say of replicas, too
			if err := t.editable(c, op, u.Replica); err != nil {
				return err
			}
			u.Set = t.revision(u.Created)
			t.force(&u.Replica)
		}
		if in.UnixUser != nil {
			u.UnixUser = *in.UnixUser
			t.did("account %s", cmp.Or(u.UnixUser, "none"))
		}
		if in.Admin != nil {
			u.Admin = *in.Admin
			t.did("cluster-admin %v", u.Admin)
		}
		if in.Disabled != nil && *in.Disabled != u.Disabled {
			u.Disabled = *in.Disabled
			t.event(Event{Kind: map[bool]string{true: "user-disabled", false: "user-enabled"}[u.Disabled], Subject: u.Name, Message: "by " + c.Name})
		}
		if in.Priority != nil {
			u.Priority = *in.Priority
			t.prioritySet(u.Name, u.Priority)
		}
		t.putUser(u)
		t.group()
		if in.CancelWork {
			t.cancelWork(u, "cancelled by "+c.Name+" with the user's account")
		}
		out = t.state.userView(u)
		return nil
	})
	return out, err
}

func (s *state) mayUpdate(c Caller, op string, u *coordinator.User, in UpdateUser) error {
	if in.UnixUser != nil || in.Admin != nil {
		if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
			return err
		}
	}
	if in.UnixUser != nil {
		if err := checkUnixUser(op, *in.UnixUser); err != nil {
			return err
		}
	}
	if in.CancelWork && (in.Disabled == nil || !*in.Disabled) {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "its work is cancelled only with the user being disabled")
	}
	if in.Disabled != nil && *in.Disabled || in.Admin != nil && !*in.Admin {
		return s.mayCurb(c, op, u)
	}
	return nil
}

// mayCurb refuses to take power from who has more than the caller, or from the last who could give it back.
func (s *state) mayCurb(c Caller, op string, u *coordinator.User) error {
	if !u.Admin {
		return nil
	}
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	if !u.Disabled && !s.otherAdmin(u) {
		return coordinator.Errorf(coordinator.ErrConflict, op, "nobody else administers the cluster").
			WithHint("make another administrator first: `substrate user update USER --admin`")
	}
	return nil
}

// DeleteUser removes a user and its tokens. What it has waiting and running goes on unless it is to be cancelled.
func (e *Engine) DeleteUser(ctx context.Context, c Caller, organization, ref string, cancelWork bool) error {
	op := "remove user " + ref
	return e.do(ctx, func(t *tx) error {
		s := t.state
		u, err := s.permittedUser(c, auth.PermissionManageOrg, op, organization, ref)
		if err != nil {
			return err
		}
		if err := s.mayCurb(c, op, u); err != nil {
			return err
		}
		if err := t.editable(c, op, u.Replica); err != nil {
			return err
		}
		t.delete(prefixUser + string(u.ID))
		for _, tok := range s.tokensOf(u.ID) { // few: maxTokens
			delete(s.tokens, tok.ID)
			t.delete(prefixToken + tok.ID)
		}
		t.group()
		s.dropUser(u)
		t.then(func(int64) { e.credentials.forget(u.ID) })
		s.changedWaiting() // its priority does not count any more
		t.event(Event{Kind: "user-removed", Subject: u.Name, Message: "by " + c.Name})
		if cancelWork {
			t.cancelWork(u, "cancelled by "+c.Name+" with the user's account")
		}
		return nil
	})
}
