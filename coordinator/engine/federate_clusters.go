package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
)

// RemoteCluster is one cluster that this Federate routes to.
type RemoteCluster struct {
	Name, Address string
	Registered    time.Time
	Pending       bool // its registration has begun, no more
	Drained       bool
	Credentials   auth.ClusterCredentials
	Open          int // workflows routed there that have not ended, as far as is known
}

func (m *remoteRecord) view(s *state) RemoteCluster {
	v := RemoteCluster{Name: m.Name, Address: m.Address, Registered: m.Registered, Drained: m.Drained, Credentials: m.Credentials,
		Pending: len(m.Credentials.Certificate) == 0}
	for _, r := range s.federation.routes {
		if r.Cluster == m.Name && !r.over() {
			v.Open++
		}
	}
	return v
}

// federateOnly refuses on a cluster that runs work itself.
func (e *Engine) federateOnly(c Caller, op string) error {
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	if !e.opt.Federate {
		return coordinator.Errorf(coordinator.ErrUnsupported, op, "this cluster is not a Federate").
			WithHint("call the Federate: --server or `substrate context use`")
	}
	return nil
}

// ClusterID names this cluster to others.
func (e *Engine) ClusterID() string { return e.ca.Cluster() }

// BeginCluster makes the key for a new cluster, durably, before it is shown to it: when the answer is lost, the same
// question asked again costs no second token. again takes one that is registered: the cluster takes its certificate no more.
func (e *Engine) BeginCluster(ctx context.Context, c Caller, name, address string, again bool) (m RemoteCluster, err error) {
	op := "register cluster " + name
	if err := e.federateOnly(c, op); err != nil {
		return m, err
	}
	if err := checkSlug(op, name); err != nil {
		return m, err
	}
	err = e.do(ctx, func(t *tx) error {
		clusters := t.state.federation.clusters
		rec := clusters[name]
		if rec != nil && len(rec.Credentials.Certificate) > 0 && !again {
			return coordinator.Errorf(coordinator.ErrExists, op, "there is one of this name").
				WithHint("`substrate cluster deregister %s` first", name)
		}
		if rec == nil {
			key, err := auth.NewFederateKey(e.opt.Rand)
			if err != nil {
				return err
			}
			rec = &remoteRecord{Name: name, Registered: t.now, Credentials: auth.ClusterCredentials{Key: key}}
			clusters[name] = rec
		}
		rec.Address, rec.By = address, c.Name
		t.put(prefixRemote+name, rec)
		t.group()
		m = rec.view(t.state)
		return nil
	})
	return m, err
}

// ConfirmCluster keeps what a cluster answered to a registration or a renewal.
func (e *Engine) ConfirmCluster(ctx context.Context, name string, ms auth.ClusterCredentials) error {
	return e.do(ctx, func(t *tx) error {
		op := "register cluster " + name
		rec := t.state.federation.clusters[name]
		if rec == nil {
			return noSuch(op, "cluster", name)
		}
		if was := rec.Credentials.Cluster; was != "" && was != ms.Cluster {
			return coordinator.Errorf(coordinator.ErrConflict, op, "another cluster answers there than the one that is registered under this name").
				WithHint("`substrate cluster federation forget` there, as it has taken this Federate in; another name for it here")
		}
		for _, other := range t.state.federation.clusters {
			if other.Name != name && other.Credentials.Cluster == ms.Cluster {
				return coordinator.Errorf(coordinator.ErrExists, op, "it is registered as %s already", other.Name)
			}
		}
		isNew := len(rec.Credentials.Certificate) == 0
		next := *rec
		next.Credentials = ms
		t.state.federation.clusters[name] = &next
		t.put(prefixRemote+name, &next)
		t.group()
		if isNew {
			t.event(Event{Kind: "cluster-registered", Subject: name, Message: "at " + rec.Address + " by " + rec.By,
				Metadata: map[string]string{"cluster": ms.Cluster}})
		}
		return nil
	})
}

// DrainCluster sends no new work to a cluster, or does again. What is there goes on.
func (e *Engine) DrainCluster(ctx context.Context, c Caller, name string, drained bool) (m RemoteCluster, err error) {
	op := "drain cluster " + name
	if err := e.federateOnly(c, op); err != nil {
		return m, err
	}
	err = e.do(ctx, func(t *tx) error {
		rec := t.state.federation.clusters[name]
		if rec == nil {
			return noSuch(op, "cluster", name)
		}
		if rec.Drained != drained {
			next := *rec
			next.Drained = drained
			t.state.federation.clusters[name], rec = &next, &next
			t.put(prefixRemote+name, rec)
			t.group()
			kind := "cluster-drained"
			if !drained {
				kind = "cluster-undrained"
			}
			t.event(Event{Kind: kind, Subject: name, Message: "by " + c.Name})
		}
		m = rec.view(t.state)
		return nil
	})
	return m, err
}

// RemoveCluster forgets a cluster. With force, though work is open there: it is not known any more what becomes of it.
func (e *Engine) RemoveCluster(ctx context.Context, c Caller, name string, force bool) error {
	op := "deregister cluster " + name
	if err := e.federateOnly(c, op); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		rec := t.state.federation.clusters[name]
		if rec == nil {
			return noSuch(op, "cluster", name)
		}
		if n := rec.view(t.state).Open; n > 0 && !force {
			return coordinator.Errorf(coordinator.ErrConflict, op, "%s open there", countOf(n, "workflow is", "workflows are")).
				WithHint("drain it and wait, or --force: the work runs on, and is not shown here any more")
		}
		delete(t.state.federation.clusters, name)
		t.delete(prefixRemote + name)
		t.group()
		t.event(Event{Kind: "cluster-deregistered", Subject: name, Message: "by " + c.Name})
		for _, id := range slices.Sorted(maps.Keys(t.state.federation.pushes)) {
			t.pushed(id, name, "")
		}
		return nil
	})
}

// RemoteClusters lists the clusters by name.
func (e *Engine) RemoteClusters(ctx context.Context) (out []RemoteCluster, err error) {
	err = e.view(ctx, func(s *state) {
		for _, m := range s.federation.clusters {
			out = append(out, m.view(s))
		}
		slices.SortFunc(out, func(a, b RemoteCluster) int { return cmp.Compare(a.Name, b.Name) })
	})
	return out, err
}

// PriorityRouting reports scheduler.federationPriorityRoutingEnabled.
func (e *Engine) PriorityRouting(ctx context.Context) (on bool, err error) {
	err = e.view(ctx, func(s *state) { on = s.config.Scheduler.FederationPriorityRouting })
	return on, err
}

// BehalfOf is what a request to a cluster carries for a user and one of the user's groups ("" is the default).
func (e *Engine) BehalfOf(ctx context.Context, user coordinator.UserID, group string) (id federation.Identity, attrs federation.Attributes, err error) {
	const op = "act for the user"
	verr := e.view(ctx, func(s *state) {
		u := s.users[user]
		if u == nil || s.orgs[u.Organization] == nil {
			err = noSuch(op, "user", string(user))
			return
		}
		if len(u.Groups) == 0 {
			err = coordinator.Errorf(coordinator.ErrDenied, op, "user %s belongs to no group", u.Name)
			return
		}
		g := s.groups[u.Groups[0]]
		if group != "" {
			g = s.group(u.Organization, group)
		}
		if g == nil || !slices.Contains(u.Groups, g.ID) {
			err = coordinator.Errorf(coordinator.ErrDenied, op, "user %s is not a member of group %q", u.Name, group)
			return
		}
		id, attrs = s.behalf(u, g)
	})
	return id, attrs, errors.Join(verr, err)
}

func (s *state) behalf(u *coordinator.User, g *coordinator.Group) (federation.Identity, federation.Attributes) {
	o := s.orgs[u.Organization]
	entity := func(g *coordinator.Group) federation.Entity { return federation.Entity{ID: string(g.ID), Name: g.Slug} }
	id := federation.Identity{Organization: federation.Entity{ID: string(o.ID), Name: o.Slug}, Group: entity(g),
		User: federation.Entity{ID: string(u.ID), Name: u.Name}, Email: u.Email, UnixUser: u.UnixUser}
	for _, ref := range u.Groups {
		if member := s.groups[ref]; member != nil {
			id.Groups = append(id.Groups, entity(member))
		}
	}
	attrs := federation.Attributes{Schema: federation.Schema,
		Organization: federation.Value{Priority: o.Priority, Revision: revisionOf(o.Set, o.Created)},
		Group:        federation.Value{Priority: g.Priority, Revision: revisionOf(g.Set, g.Created)},
		User:         federation.Value{Priority: u.Priority, Revision: revisionOf(u.Set, u.Created)}}
	for _, ref := range g.Preempts {
		if other := s.groups[ref]; other != nil {
			attrs.Preempts = append(attrs.Preempts, entity(other))
		}
	}
	return id, attrs
}
