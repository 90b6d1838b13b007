package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/grant"
)

// OnBehalf is the caller of a request that the Federate makes for a user. What the request carries goes with the
// context: the first command of the request brings the replicas up to it, in the write that is the command's own, and
// Carried does it where no command has. Attributes that are older than what is here are passed over, none at all (an
// older Federate) leave what is here.
func (e *Engine) OnBehalf(ctx context.Context, p FederatePeer, id *federation.Identity, attrs *federation.Attributes) (context.Context, Caller, error) {
	f, err := e.checkPeer(p)
	if err != nil {
		return ctx, Caller{}, err
	}
	if err := id.Check(); err != nil {
		return ctx, Caller{}, coordinator.Errorf(coordinator.ErrInvalid, takeRequest, "on whose behalf: %w", err)
	}
	schema := uint32(0)
	if attrs != nil {
		schema = attrs.Schema
		if err := attrs.Check(); err != nil {
			return ctx, Caller{}, coordinator.Errorf(coordinator.ErrInvalid, takeRequest, "scheduling attributes: %w", err)
		}
	}
	e.peers.heard(e.opt.Now(), schema)
	digest, err := carries(p, id, attrs)
	if err != nil {
		return ctx, Caller{}, err
	}
	if c, ok := e.peers.known(digest); ok {
		return ctx, c, nil
	}
	c := e.credentials.onBehalf(id)
	c.Federate = f.ID
	return context.WithValue(ctx, carriedKey{}, &carried{federate: f.ID, id: id, attrs: attrs, digest: digest}), c, nil
}

const takeRequest = "take the request from the Federate"

// carried is what a request brings of the Federate's, until it is durable here.
type carried struct {
	federate string
	id       *federation.Identity
	attrs    *federation.Attributes
	digest   [sha256.Size]byte
	durable  atomic.Bool
}

type carriedKey struct{}

// carriedBy is what the request of a context still has to bring, nil for nothing.
func carriedBy(ctx context.Context) *carried {
	r, _ := ctx.Value(carriedKey{}).(*carried)
	if r == nil || r.durable.Load() {
		return nil
	}
	return r
}

// refresh brings the replicas up to the request.
func (r *carried) refresh(t *tx) error {
	in := &refresh{tx: t, federate: r.federate, id: r.id, attrs: r.attrs}
	if err := in.check(takeRequest); err != nil {
		return err
	}
	u, err := in.apply()
	if err != nil {
		return err
	}
	c := callerFor(auth.PrincipalOf(*u), r.id)
	c.Federate = r.federate
	t.then(func(int64) {
		r.durable.Store(true)
		t.engine.peers.remember(r.digest, c)
	})
	return nil
}

// callerFor is the caller that a user's replica makes: of this cluster no administrator, and called after who asked.
func callerFor(p auth.Principal, id *federation.Identity) Caller {
	p.Admin = false // of this cluster only who is so here
	if id.Actor != "" {
		p.Name = id.Actor
	}
	return Caller{Principal: p}
}

// Carried returns when what the request brought is durable here, whatever became of the request itself.
func (e *Engine) Carried(ctx context.Context) error {
	if carriedBy(ctx) == nil {
		return nil
	}
	return e.do(ctx, func(*tx) error { return nil })
}

func carries(p FederatePeer, id *federation.Identity, attrs *federation.Attributes) (d [sha256.Size]byte, err error) {
	data, err := json.Marshal([]any{p, id, attrs})
	return sha256.Sum256(data), err
}

// FederateCaller is the Federate itself, for the few things that it does for nobody in particular. organizations are
// those that it means: what is not here yet is made.
func (e *Engine) FederateCaller(ctx context.Context, p FederatePeer, organizations []federation.Entity) (Caller, error) {
	f, err := e.checkPeer(p)
	if err != nil {
		return Caller{}, err
	}
	if len(organizations) > 0 {
		err = e.do(ctx, func(t *tx) error {
			for _, o := range organizations {
				if err := o.Check(); err != nil {
					return coordinator.Errorf(coordinator.ErrInvalid, takeRequest, "organization: %w", err)
				}
				r := &refresh{tx: t, federate: f.ID}
				if err := r.owned(takeRequest, o, t.state.replicaOf("organization", o.ID)); err != nil {
					return err
				}
				if _, err := r.organization(o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return Caller{Principal: auth.Principal{User: "federate", Name: "the Federate " + f.URL, Admin: true}, Federate: f.ID}, err
}

// refresh brings replicas up to one request.
type refresh struct {
	*tx
	federate string
	id       *federation.Identity
	attrs    *federation.Attributes // nil: from an older Federate
}

// found is a record by noun and id: whether there is one and whose it is.
type found struct {
	exists  bool
	replica *coordinator.Replica
	org     coordinator.OrganizationID
}

func (s *state) replicaOf(noun, id string) found {
	switch noun {
	case "organization":
		if o := s.orgs[coordinator.OrganizationID(id)]; o != nil {
			return found{true, o.Replica, o.ID}
		}
	case "group":
		if g := s.groups[coordinator.GroupID(id)]; g != nil {
			return found{true, g.Replica, g.Organization}
		}
	case "user":
		if u := s.users[coordinator.UserID(id)]; u != nil {
			return found{true, u.Replica, u.Organization}
		}
	}
	return found{}
}

// owned refuses an id that stands for something else here.
func (r *refresh) owned(op string, e federation.Entity, have found) error {
	if have.exists && (have.replica == nil || have.replica.Federate != r.federate) {
		return coordinator.Errorf(coordinator.ErrConflict, op, "%s (%s) is not this Federate's here", e.Name, e.ID)
	}
	return nil
}

// check looks at everything before anything changes.
func (r *refresh) check(op string) error {
	s, org := r.state, coordinator.OrganizationID(r.id.Organization.ID)
	var errs []error
	look := func(noun string, list ...federation.Entity) {
		for _, e := range list {
			have := s.replicaOf(noun, e.ID)
			errs = append(errs, r.owned(op, e, have))
			if have.exists && have.org != org {
				errs = append(errs, coordinator.Errorf(coordinator.ErrConflict, op, "%s %s belongs to another organization here", noun, e.Name))
			}
		}
	}
	look("organization", r.id.Organization)
	look("group", r.id.Groups...)
	look("user", r.id.User)
	if r.attrs != nil {
		look("group", r.attrs.Preempts...)
	}
	return errors.Join(errs...)
}

func (r *refresh) apply() (*coordinator.User, error) {
	o, err := r.organization(r.id.Organization)
	if err != nil {
		return nil, err
	}
	groups := make([]coordinator.GroupID, 0, len(r.id.Groups))
	for _, e := range r.id.Groups {
		groups = append(groups, r.groupOf(o, e).ID)
	}
	u := r.user(o, groups)
	if r.attrs != nil {
		r.organizationValues(o)
		r.groupValues(o, r.state.groups[coordinator.GroupID(r.id.Group.ID)])
		r.userValues(u)
	}
	return u, nil
}

// organization finds a replica or founds it. Its grant begins with the definitions that exist now, as every new
// organisation's does.
func (r *refresh) organization(e federation.Entity) (*organization, error) {
	s := r.state
	if o := s.orgs[coordinator.OrganizationID(e.ID)]; o != nil {
		return o, nil
	}
	taken := func(slug string) bool { return s.organization(slug, Caller{}) != nil }
	o := &organization{Organization: coordinator.Organization{ID: coordinator.OrganizationID(e.ID), Slug: federation.LocalName(e, taken),
		Created: r.now, Replica: &coordinator.Replica{Federate: r.federate}}}
	var signed []signedGrant
	if len(s.revisions) > 0 {
		var err error
		if signed, err = s.signAppends([]*organization{o}, grant.Entries(s.config.Definitions), r.now); err != nil {
			return nil, err
		}
	}
	s.addOrganization(o)
	r.put(prefixOrg+e.ID, o.Organization)
	r.group()
	for _, g := range signed {
		r.grant(g, "grant-appended", "what exists at the organisation's beginning")
	}
	r.created("organization", o.Slug, e)
	return o, nil
}

func (r *refresh) created(noun, local string, e federation.Entity) {
	message := "replica from the Federate"
	if local != e.Name {
		message += fmt.Sprintf(", which calls it %s; that name is taken here", e.Name)
	}
	r.event(Event{Kind: noun + "-created", Subject: local, Message: message, Metadata: map[string]string{"id": e.ID}})
}

// groupOf finds a group of a replica or makes it: a member's, or one that another group may preempt.
func (r *refresh) groupOf(o *organization, e federation.Entity) *coordinator.Group {
	s := r.state
	if g := s.groups[coordinator.GroupID(e.ID)]; g != nil {
		return g
	}
	slug := federation.LocalName(e, func(slug string) bool { return s.group(o.ID, slug) != nil })
	g := &coordinator.Group{ID: coordinator.GroupID(e.ID), Organization: o.ID, Slug: slug, Created: r.now,
		Replica: &coordinator.Replica{Federate: r.federate}}
	s.addGroup(g)
	r.put(prefixGroup+e.ID, g)
	r.tx.group()
	r.created("group", o.Slug+"/"+slug, e)
	return g
}

// user finds the user's replica or makes it, and keeps who it is up to date unless the request is an old one.
func (r *refresh) user(o *organization, groups []coordinator.GroupID) *coordinator.User {
	s, e := r.state, r.id.User
	u := s.users[coordinator.UserID(e.ID)]
	isNew := u == nil
	if isNew {
		name := federation.LocalName(e, func(name string) bool { return s.user(o.ID, name) != nil })
		u = &coordinator.User{ID: coordinator.UserID(e.ID), Organization: o.ID, Name: name, Created: r.now,
			Replica: &coordinator.Replica{Federate: r.federate}}
		s.addUser(u)
		r.created("user", o.Slug+"/"+name, e)
	}
	unix := r.id.UnixUser
	if checkUnixUser("", unix) != nil {
		unix = "" // unmapped work is refused by its node, with that reason
	}
	old := r.attrs != nil && r.attrs.User.Revision < u.Replica.Revision
	if !isNew && (old || u.Email == r.id.Email && u.UnixUser == unix && slices.Equal(u.Groups, groups)) {
		return u
	}
	u.Email, u.UnixUser, u.Groups = r.id.Email, unix, groups
	r.putUser(u)
	return u
}

func (r *refresh) putUser(u *coordinator.User) {
	u.Owns = slices.DeleteFunc(slices.Clone(u.Owns), func(id coordinator.GroupID) bool { return !slices.Contains(u.Groups, id) })
	r.tx.putUser(u)
	r.tx.group()
}

// take notes that a replica has the values of a revision; false when it has newer ones, or has these.
func (r *refresh) take(replica **coordinator.Replica, revision uint64) bool {
	if !federation.Newer(revision, *replica) {
		return false
	}
	*replica = &coordinator.Replica{Federate: r.federate, Revision: revision, Synced: r.now}
	return true
}

func (r *refresh) organizationValues(o *organization) {
	v := r.attrs.Organization
	if !r.take(&o.Replica, v.Revision) {
		return
	}
	if o.Priority != v.Priority {
		o.Priority = v.Priority
		r.prioritySet(o.Slug, v.Priority)
	}
	r.put(prefixOrg+string(o.ID), o.Organization)
	r.tx.group()
}

func (r *refresh) groupValues(o *organization, g *coordinator.Group) {
	v := r.attrs.Group
	if !r.take(&g.Replica, v.Revision) {
		return
	}
	list := make([]coordinator.GroupID, 0, len(r.attrs.Preempts))
	for _, e := range r.attrs.Preempts {
		if id := r.groupOf(o, e).ID; id != g.ID && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	g.Preempts = list
	if g.Priority != v.Priority {
		g.Priority = v.Priority
		r.prioritySet(o.Slug+"/"+g.Slug, v.Priority)
	}
	r.put(prefixGroup+string(g.ID), g)
	r.tx.group()
}

func (r *refresh) userValues(u *coordinator.User) {
	v := r.attrs.User
	if !r.take(&u.Replica, v.Revision) {
		return
	}
	if u.Priority != v.Priority {
		u.Priority = v.Priority
		r.prioritySet(u.Name, v.Priority)
	}
	r.putUser(u)
}

// editable refuses to change what a Federate owns, unless the caller forces it.
func (t *tx) editable(c Caller, op string, r *coordinator.Replica) error {
	f := t.state.federation.federate
	if r == nil || c.Force || f == nil || f.ID != r.Federate {
		return nil // what a Federate owned that this cluster does not belong to any more is its own
	}
	return coordinator.Errorf(coordinator.ErrDenied, op, "it is a replica: the Federate %s owns it", f.URL).
		WithHint("change it there, `substrate --server %s …`: it comes here with the next request that carries it; --force changes it here until then", f.URL)
}

// force marks a replica that was changed here, so that the next refresh overwrites it.
func (t *tx) force(r **coordinator.Replica) {
	if *r == nil {
		return
	}
	forced := **r
	forced.Forced = true
	*r = &forced
	t.then(func(int64) { t.engine.peers.forget() })
}
