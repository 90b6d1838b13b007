package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
)

// Caller is the authenticated user on whose behalf a method acts; the server fills it.
type Caller struct {
	auth.Principal
	From string // remote address, for events
	// Federate is the cluster id of the Federate that makes the request for the user; "" is the user directly.
	Federate string
	Force    bool // change replicas, which the next refresh overwrites
}

// authorize is how every method that acts for a caller asks whether it may. The server has asked before
// where no target is needed; it is asked again here, so that no other way in can forget it.
func (c Caller) authorize(permission auth.Permission, op string, target auth.Target) error {
	return auth.Authorize(c.Principal, permission, op, target)
}

// sees reports whether the caller may see a workflow.
func (c Caller) sees(w *submission) bool {
	return auth.Allowed(c.Principal, auth.PermissionReadWork, w.target())
}

func (w *submission) target() auth.Target {
	o := w.record.Owner
	return auth.Target{Organization: o.Organization, Group: o.Group, Owner: o.User}
}

func (o *organization) target() auth.Target { return auth.Target{Organization: o.ID} }

// GroupView is a group with names resolved.
type GroupView struct {
	coordinator.Group
	OrganizationSlug string
	PreemptNames     []string
}

// UpdateGroup changes priority and preemption list; groups are named by slug or id.
type UpdateGroup struct {
	Group, Organization string
	Priority            *int32
	Preempt, NoPreempt  []string
}

// UserView is a user with names resolved.
type UserView struct {
	coordinator.User
	OrganizationSlug string
	GroupSlugs       []string
}

// NewUser describes a user to create; Organization "" is the caller's.
type NewUser struct {
	Name, Email, Organization string
	Groups                    []string
	UnixUser                  string
	Admin                     bool
}

// WhoAmI shows the caller's own records.
func (e *Engine) WhoAmI(ctx context.Context, c Caller) (u coordinator.User, o coordinator.Organization, err error) {
	if err := c.authorize(auth.PermissionUser, "show user", auth.Target{}); err != nil {
		return u, o, err
	}
	verr := e.view(ctx, func(s *state) {
		rec, org := s.users[c.User], s.orgs[c.Organization]
		if rec == nil || org == nil {
			err = noSuch("show user", "user", string(c.User))
			return
		}
		u, o = *rec, org.Organization
		u.Groups = slices.Clone(rec.Groups)
	})
	if verr != nil {
		return u, o, verr
	}
	return u, o, err
}

// Organizations lists all, by slug.
func (e *Engine) Organizations(ctx context.Context, c Caller) (out []coordinator.Organization, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list organisations", auth.Target{}); err != nil {
		return nil, err
	}
	err = e.view(ctx, func(s *state) {
		for _, o := range s.sortedOrganizations() {
			out = append(out, o.Organization)
		}
	})
	return out, err
}

// CreateOrganization founds an organisation with a first group "default"; its grant starts with the
// definitions that exist now.
func (e *Engine) CreateOrganization(ctx context.Context, c Caller, slug string, priority int32) (out coordinator.Organization, err error) {
	op := "create organisation " + slug
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return out, err
	}
	if err := checkSlug(op, slug); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		if t.state.organization(slug, c) != nil {
			return coordinator.Errorf(coordinator.ErrExists, op, "there is one of this name")
		}
		o, err := e.found(t, slug, priority)
		if err == nil {
			out = o.Organization
		}
		return err
	})
	return out, err
}

// found writes an organisation, its first group and its first grant.
func (e *Engine) found(t *tx, slug string, priority int32) (*organization, error) {
	orgID, err := e.newID()
	if err != nil {
		return nil, err
	}
	groupID, err := e.newID()
	if err != nil {
		return nil, err
	}
	o := &organization{Organization: coordinator.Organization{
		ID: coordinator.OrganizationID(orgID), Slug: slug, Priority: priority, Created: t.now}}
	g := &coordinator.Group{ID: coordinator.GroupID(groupID), Organization: o.ID, Slug: "default", Created: t.now}
	var signed []signedGrant
	if len(t.state.revisions) > 0 {
		signed, err = t.state.signAppends([]*organization{o}, grant.Entries(t.state.config.Definitions), t.now)
		if err != nil {
			return nil, err
		}
	}
	t.state.orgs[o.ID], t.state.groups[g.ID] = o, g
	t.put(prefixOrg+orgID, o.Organization)
	t.put(prefixGroup+groupID, g)
	t.group()
	for _, g := range signed {
		t.grant(g, "grant-appended", "what exists at the organisation's beginning")
	}
	t.event(Event{Kind: "organization-created", Subject: slug})
	return o, nil
}

// UpdateOrganization sets an organisation's scheduling priority.
func (e *Engine) UpdateOrganization(ctx context.Context, c Caller, id string, priority *int32) (out coordinator.Organization, err error) {
	op := "update organisation " + id
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		o := t.state.organization(id, c)
		if o == nil || id == "" {
			return noSuch(op, "organisation", id)
		}
		if err := t.editable(c, op, o.Replica); err != nil {
			return err
		}
		if priority != nil {
			o.Priority = *priority
			t.prioritySet(o.Slug, *priority)
		}
		o.Set = t.revision(o.Created)
		t.force(&o.Replica)
		t.put(prefixOrg+string(o.ID), o.Organization)
		t.group()
		out = o.Organization
		return nil
	})
	return out, err
}

func (t *tx) prioritySet(subject string, p int32) {
	t.state.changedWaiting()
	t.event(Event{Kind: "priority-set", Subject: subject, Message: fmt.Sprintf("priority %d", p)})
}

// Groups lists an organisation's groups, by slug.
func (e *Engine) Groups(ctx context.Context, c Caller, organization string) (out []GroupView, err error) {
	verr := e.view(ctx, func(s *state) {
		o, perr := s.permitted(c, auth.PermissionReadOrg, "list groups", organization)
		if perr != nil {
			err = perr
			return
		}
		for _, g := range s.groups {
			if g.Organization == o.ID {
				out = append(out, s.groupView(g))
			}
		}
		slices.SortFunc(out, func(a, b GroupView) int { return strings.Compare(a.Slug, b.Slug) })
	})
	if verr != nil {
		return nil, verr
	}
	return out, err
}

func (s *state) groupView(g *coordinator.Group) GroupView {
	v := GroupView{Group: *g, OrganizationSlug: s.orgs[g.Organization].Slug}
	v.Preempts = slices.Clone(g.Preempts)
	for _, id := range g.Preempts {
		if other := s.groups[id]; other != nil {
			v.PreemptNames = append(v.PreemptNames, other.Slug)
		}
	}
	return v
}

// CreateGroup makes a group of an organisation.
func (e *Engine) CreateGroup(ctx context.Context, c Caller, slug, organization string, priority int32) (out GroupView, err error) {
	op := "create group " + slug
	err = e.do(ctx, func(t *tx) error {
		o, err := t.state.permitted(c, auth.PermissionManageOrg, op, organization)
		if err != nil {
			return err
		}
		if err := checkSlug(op, slug); err != nil {
			return err
		}
		if err := t.editable(c, op, o.Replica); err != nil {
			return err
		}
		if t.state.group(o.ID, slug) != nil {
			return coordinator.Errorf(coordinator.ErrExists, op, "organisation %s has one of this name", o.Slug)
		}
		id, err := e.newID()
		if err != nil {
			return err
		}
		g := &coordinator.Group{ID: coordinator.GroupID(id), Organization: o.ID, Slug: slug, Priority: priority, Created: t.now}
		t.state.groups[g.ID] = g
		t.put(prefixGroup+id, g)
		t.group()
		t.event(Event{Kind: "group-created", Subject: o.Slug + "/" + slug})
		out = t.state.groupView(g)
		return nil
	})
	return out, err
}

// UpdateGroup changes a group's priority and the list of groups it may preempt.
func (e *Engine) UpdateGroup(ctx context.Context, c Caller, in UpdateGroup) (out GroupView, err error) {
	op := "update group " + in.Group
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		o, err := s.permitted(c, auth.PermissionManageOrg, op, in.Organization)
		if err != nil {
			return err
		}
		g := s.group(o.ID, in.Group)
		if g == nil {
			return noSuch(op, "group", in.Group)
		}
		if err := t.editable(c, op, g.Replica); err != nil {
			return err
		}
		preempts := slices.Clone(g.Preempts)
		for _, ref := range append(slices.Clone(in.Preempt), in.NoPreempt...) {
			if s.group(o.ID, ref) == nil {
				return noSuch(op, "group", ref)
			}
		}
		for _, ref := range in.Preempt {
			other := s.group(o.ID, ref)
			if other.ID == g.ID {
				return coordinator.Errorf(coordinator.ErrInvalid, op, "a group cannot preempt itself")
			}
			if !slices.Contains(preempts, other.ID) {
				preempts = append(preempts, other.ID)
			}
		}
		for _, ref := range in.NoPreempt {
			other := s.group(o.ID, ref)
			preempts = slices.DeleteFunc(preempts, func(id coordinator.GroupID) bool { return id == other.ID })
		}
		g.Preempts = preempts
		if in.Priority != nil {
			g.Priority = *in.Priority
			t.prioritySet(o.Slug+"/"+g.Slug, g.Priority)
		}
		g.Set = t.revision(g.Created)
		t.force(&g.Replica)
		t.put(prefixGroup+string(g.ID), g)
		t.group()
		out = s.groupView(g)
		return nil
	})
	return out, err
}

// Users lists an organisation's users, by name.
func (e *Engine) Users(ctx context.Context, c Caller, organization string) (out []UserView, err error) {
	verr := e.view(ctx, func(s *state) {
		o, perr := s.permitted(c, auth.PermissionReadOrg, "list users", organization)
		if perr != nil {
			err = perr
			return
		}
		for _, u := range s.users {
			if u.Organization == o.ID {
				out = append(out, s.userView(u))
			}
		}
		slices.SortFunc(out, func(a, b UserView) int { return strings.Compare(a.Name, b.Name) })
	})
	if verr != nil {
		return nil, verr
	}
	return out, err
}

func (s *state) userView(u *coordinator.User) UserView {
	v := UserView{User: *u, OrganizationSlug: s.orgs[u.Organization].Slug}
	v.Groups = slices.Clone(u.Groups)
	for _, id := range u.Groups {
		if g := s.groups[id]; g != nil {
			v.GroupSlugs = append(v.GroupSlugs, g.Slug)
		}
	}
	return v
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
		t.state.users[u.ID] = u
		t.put(prefixUser+id, u)
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
	if in.Admin || in.UnixUser != "" { // beyond the organisation: the cluster, and accounts on its nodes
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
	u := &coordinator.User{Organization: o.ID, Name: in.Name, Email: in.Email, Admin: in.Admin, UnixUser: in.UnixUser}
	refs := in.Groups
	if len(refs) == 0 {
		refs = []string{"default"}
	}
	for _, ref := range refs {
		g := s.group(o.ID, ref)
		if g == nil {
			return nil, noSuch(op, "group", ref)
		}
		u.Groups = append(u.Groups, g.ID)
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

// UpdateUser sets a user's scheduling priority and mapped account.
func (e *Engine) UpdateUser(ctx context.Context, c Caller, id string, priority *int32, unixUser *string) (out UserView, err error) {
	op := "update user " + id
	err = e.do(ctx, func(t *tx) error {
		u, err := t.state.permittedUser(c, auth.PermissionManageOrg, op, id)
		if err != nil {
			return err
		}
		if err := t.editable(c, op, u.Replica); err != nil {
			return err
		}
		if unixUser != nil {
			if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
				return err
			}
			if err := checkUnixUser(op, *unixUser); err != nil {
				return err
			}
			u.UnixUser = *unixUser
		}
		if priority != nil {
			u.Priority = *priority
			t.prioritySet(u.Name, u.Priority)
		}
		u.Set = t.revision(u.Created)
		t.force(&u.Replica)
		t.put(prefixUser+string(u.ID), u)
		t.group()
		out = t.state.userView(u)
		return nil
	})
	return out, err
}

// noSuch is the error for something that is not there, or that the caller may not see.
func noSuch(op, noun, ref string) *coordinator.Error {
	return coordinator.Errorf(coordinator.ErrNotFound, op, "there is no %s %q", noun, ref)
}

// organization finds by id or slug; "" is the caller's own.
func (s *state) organization(ref string, c Caller) *organization {
	if ref == "" {
		return s.orgs[c.Organization]
	}
	if o := s.orgs[coordinator.OrganizationID(ref)]; o != nil {
		return o
	}
	for _, o := range s.orgs {
		if o.Slug == ref {
			return o
		}
	}
	return nil
}

// permitted finds an organisation the caller may do this to. One that it may not even see is not there.
func (s *state) permitted(c Caller, permission auth.Permission, op, ref string) (*organization, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, err
	}
	o := s.organization(ref, c)
	if o == nil && ref == "" {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "user %q belongs to no organisation", c.Name)
	}
	if o == nil || !auth.Allowed(c.Principal, auth.PermissionReadOrg, o.target()) {
		return nil, noSuch(op, "organisation", ref)
	}
	return o, c.authorize(permission, op, o.target())
}

// permittedUser finds a user that the caller may do this to, likewise.
func (s *state) permittedUser(c Caller, permission auth.Permission, op, ref string) (*coordinator.User, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, err
	}
	u := s.user(c.Organization, ref)
	if u == nil || !auth.Allowed(c.Principal, auth.PermissionReadOrg, auth.Target{Organization: u.Organization}) {
		return nil, noSuch(op, "user", ref)
	}
	return u, c.authorize(permission, op, auth.Target{Organization: u.Organization, Owner: u.ID})
}

// group finds by id, or by slug within an organisation.
func (s *state) group(org coordinator.OrganizationID, ref string) *coordinator.Group {
	if g := s.groups[coordinator.GroupID(ref)]; g != nil && g.Organization == org {
		return g
	}
	for _, g := range s.groups {
		if g.Organization == org && g.Slug == ref {
			return g
		}
	}
	return nil
}

// user finds by id, or by name within an organisation.
func (s *state) user(org coordinator.OrganizationID, ref string) *coordinator.User {
	if u := s.users[coordinator.UserID(ref)]; u != nil {
		return u
	}
	for _, u := range s.users {
		if u.Organization == org && u.Name == ref {
			return u
		}
	}
	return nil
}

func (s *state) sortedOrganizations() []*organization {
	out := make([]*organization, 0, len(s.orgs))
	for _, o := range s.orgs {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b *organization) int { return cmp.Compare(a.Slug, b.Slug) })
	return out
}

// newID makes a random UUID of the engine's chance.
func (e *Engine) newID() (string, error) {
	u, err := uuid.NewRandomFromReader(e.opt.Rand)
	if err != nil {
		return "", fmt.Errorf("cannot make an id: %w", err)
	}
	return u.String(), nil
}

// checkSlug refuses names that could be taken for something else. Slugs never change.
func checkSlug(op, slug string) error {
	bad := func(why string) error {
		return coordinator.Errorf(coordinator.ErrInvalid, op, "name %q %s", slug, why).
			WithHint("use 1 to 63 lower-case letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	if slug == "" || len(slug) > 63 {
		return bad("has the wrong length")
	}
	other := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) }
	if strings.ContainsFunc(slug, other) || strings.ContainsAny(slug[:1], "-_.") {
		return bad("has a character that is not allowed")
	}
	if _, err := uuid.Parse(slug); err == nil {
		return bad("has the shape of an id")
	}
	return nil
}
