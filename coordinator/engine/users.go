package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
)

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
	if strings.Trim(slug, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.ContainsAny(slug[:1], "-_.") {
		return bad("has a character that is not allowed")
	}
	for _, r := range slug {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) {
			return bad("has a character that is not allowed")
		}
	}
	if _, err := uuid.Parse(slug); err == nil {
		return bad("has the shape of an id")
	}
	return nil
}

// mustAdmin keeps changes of who may do what to cluster-admins.
func (c Caller) mustAdmin(op string) error {
	if c.Admin {
		return nil
	}
	return coordinator.Errorf(coordinator.ErrDenied, op, "only a cluster-admin may")
}

// Authenticate finds the user behind an API token.
func (e *Engine) Authenticate(ctx context.Context, token string) (c Caller, err error) {
	denied := coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token is not known here")
	shown, perr := auth.ParseUserToken(token)
	if perr != nil {
		return c, denied
	}
	verr := e.view(ctx, func(s *state) {
		rec, ok := s.tokens[shown.ID]
		if !ok || rec.Check(shown, e.opt.Now()) != nil || s.users[rec.User] == nil {
			err = denied
			return
		}
		u := s.users[rec.User]
		c = Caller{User: u.ID, Name: u.Name, Organization: u.Organization, Admin: u.Admin}
	})
	if verr != nil {
		return c, verr
	}
	return c, err
}

// WhoAmI shows the caller's own records.
func (e *Engine) WhoAmI(ctx context.Context, c Caller) (u coordinator.User, o coordinator.Organization, err error) {
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
func (e *Engine) Organizations(ctx context.Context) (out []coordinator.Organization, err error) {
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
	if err := c.mustAdmin(op); err != nil {
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
	if err := c.mustAdmin(op); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		o := t.state.organization(id, c)
		if o == nil || id == "" {
			return noSuch(op, "organisation", id)
		}
		if priority != nil {
			o.Priority = *priority
			t.prioritySet(o.Slug, *priority)
		}
		t.put(prefixOrg+string(o.ID), o.Organization)
		t.group()
		out = o.Organization
		return nil
	})
	return out, err
}

func (t *tx) prioritySet(subject string, p int32) {
	t.state.dirty = true
	t.event(Event{Kind: "priority-set", Subject: subject, Message: fmt.Sprintf("priority %d", p)})
}

// Groups lists an organisation's groups, by slug.
func (e *Engine) Groups(ctx context.Context, c Caller, organization string) (out []GroupView, err error) {
	verr := e.view(ctx, func(s *state) {
		o := s.organization(organization, c)
		if o == nil || (!c.Admin && o.ID != c.Organization) {
			err = noSuch("list groups", "organisation", organization)
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
	if err := c.mustAdmin(op); err != nil {
		return out, err
	}
	if err := checkSlug(op, slug); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		o := t.state.organization(organization, c)
		switch {
		case o == nil:
			return noSuch(op, "organisation", organization)
		case t.state.group(o.ID, slug) != nil:
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
	if err := c.mustAdmin(op); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		o := s.organization(in.Organization, c)
		if o == nil {
			return noSuch(op, "organisation", in.Organization)
		}
		g := s.group(o.ID, in.Group)
		if g == nil {
			return noSuch(op, "group", in.Group)
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
			if !contains(preempts, other.ID) {
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
		o := s.organization(organization, c)
		if o == nil || (!c.Admin && o.ID != c.Organization) {
			err = noSuch("list users", "organisation", organization)
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
	if err := c.mustAdmin(op); err != nil {
		return out, err
	}
	if err := checkSlug(op, in.Name); err != nil {
		return out, err
	}
	if err := checkUnixUser(op, in.UnixUser); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		o := s.organization(in.Organization, c)
		switch {
		case o == nil:
			return noSuch(op, "organisation", in.Organization)
		case s.user(o.ID, in.Name) != nil:
			return coordinator.Errorf(coordinator.ErrExists, op, "organisation %s has one of this name", o.Slug)
		}
		u := &coordinator.User{Organization: o.ID, Name: in.Name, Email: in.Email, Admin: in.Admin, UnixUser: in.UnixUser, Created: t.now}
		refs := in.Groups
		if len(refs) == 0 {
			refs = []string{"default"}
		}
		for _, ref := range refs {
			g := s.group(o.ID, ref)
			if g == nil {
				return noSuch(op, "group", ref)
			}
			u.Groups = append(u.Groups, g.ID)
		}
		id, err := e.newID()
		if err != nil {
			return err
		}
		u.ID = coordinator.UserID(id)
		s.users[u.ID] = u
		t.put(prefixUser+id, u)
		t.group()
		t.event(Event{Kind: "user-created", Subject: o.Slug + "/" + u.Name})
		out = s.userView(u)
		return nil
	})
	return out, err
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
	if err := c.mustAdmin(op); err != nil {
		return out, err
	}
	if unixUser != nil {
		if err := checkUnixUser(op, *unixUser); err != nil {
			return out, err
		}
	}
	err = e.do(ctx, func(t *tx) error {
		u := t.state.user(c.Organization, id)
		if u == nil || (!c.Admin && u.Organization != c.Organization) {
			return noSuch(op, "user", id)
		}
		if priority != nil {
			u.Priority = *priority
			t.prioritySet(u.Name, u.Priority)
		}
		if unixUser != nil {
			u.UnixUser = *unixUser
		}
		t.put(prefixUser+string(u.ID), u)
		t.group()
		out = t.state.userView(u)
		return nil
	})
	return out, err
}

// CreateUserToken makes an API token; only its hash is kept.
func (e *Engine) CreateUserToken(ctx context.Context, c Caller, user string) (text string, err error) {
	err = e.do(ctx, func(t *tx) error {
		u := t.state.user(c.Organization, user)
		if u == nil || (!c.Admin && u.ID != c.User) {
			return noSuch("create token", "user", user)
		}
		text, err = e.newToken(t, u)
		return err
	})
	return text, err
}

func (e *Engine) newToken(t *tx, u *coordinator.User) (string, error) {
	text, rec, err := auth.NewUserToken(u.ID, t.now, e.opt.Rand)
	if err != nil {
		return "", err
	}
	t.state.tokens[rec.ID] = rec
	t.put(prefixToken+rec.ID, rec)
	t.group()
	t.event(Event{Kind: "token-created", Subject: u.Name})
	return text, nil
}

// AdminToken makes a token for the first administrator; the daemon keeps it in a file of its own.
func (e *Engine) AdminToken(ctx context.Context) (text string, err error) {
	err = e.do(ctx, func(t *tx) error {
		for _, u := range t.state.users {
			if u.Admin && u.Name == firstAdmin {
				text, err = e.newToken(t, u)
				return err
			}
		}
		return noSuch("create token", "user", firstAdmin)
	})
	return text, err
}

// ServerIdentity is the cluster's authority, for the daemon's listeners.
func (e *Engine) ServerIdentity() *auth.CA { return e.ca }

// CreateJoinToken makes a token with which nodes join, for a time and a number of uses.
func (e *Engine) CreateJoinToken(ctx context.Context, c Caller, ttl time.Duration, uses uint32) (text string, expires time.Time, err error) {
	if ttl == 0 {
		ttl = time.Hour
	}
	err = e.do(ctx, func(t *tx) error {
		var rec auth.JoinToken
		text, rec, err = auth.NewJoinToken(auth.Pin(t.state.ca), max(uses, 1), t.now, ttl, e.opt.Rand)
		if err != nil {
			return err
		}
		expires = rec.Expires
		t.state.joinTokens[rec.ID] = rec
		t.put(prefixJoin+rec.ID, rec)
		t.group()
		t.event(Event{Kind: "join-token-created", Subject: rec.ID, Message: fmt.Sprintf("by %s, %d uses", c.Name, rec.UsesLeft)})
		return nil
	})
	return text, expires, err
}

// Join trades a join token and a certificate request for a node's certificate. The use is durable
// before the certificate leaves.
func (e *Engine) Join(ctx context.Context, token, name string, csr []byte) (certificate, ca []byte, err error) {
	op := "join node " + name
	denied := coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the join token is not valid here").
		WithHint("make a new one with `substrate node join-token create`")
	shown, err := auth.ParseJoinToken(token)
	if err != nil {
		return nil, nil, denied
	}
	id, err := auth.ParseNodeName(name)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	req, err := auth.ParseRequest(csr)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	err = e.do(ctx, func(t *tx) error {
		rec, ok := t.state.joinTokens[shown.ID]
		if !ok {
			return denied
		}
		if n := t.state.nodes[id]; n != nil && n.session != nil {
			return coordinator.Errorf(coordinator.ErrConflict, op, "a node of this name is connected").
				WithHint("stop its agent first, or give this node another name with --node")
		}
		next, again, err := rec.Redeem(shown.Secret, id, req.Key, t.now)
		if err != nil {
			return err
		}
		certificate, err = t.state.ca.SignNode(csr, id, t.now, e.opt.CertificateLifetime, e.opt.Rand)
		if err != nil {
			return err
		}
		ca = t.state.ca.CertificatePEM()
		if again {
			return nil
		}
		t.state.joinTokens[shown.ID] = next
		t.put(prefixJoin+shown.ID, next)
		if t.state.nodes[id] == nil {
			n := newNode(id)
			n.record.Created = t.now
			n.lastSeen = t.now
			t.state.nodes[id] = n
			t.put(prefixNode+string(id), n.record)
		}
		t.group()
		t.event(Event{Kind: "node-joined", Subject: name, Message: "with join token " + shown.ID})
		return nil
	})
	return certificate, ca, err
}
