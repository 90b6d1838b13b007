package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

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

// Groups lists an organisation's groups, by slug.
func (e *Engine) Groups(ctx context.Context, c Caller, organization string, p Page) (out []GroupView, next string, err error) {
	page := &walkPage[GroupView]{size: p.size(), token: func(g GroupView) string { return g.Slug }}
	verr := e.view(ctx, func(s *state) {
		o, perr := s.permitted(c, auth.PermissionReadOrg, "list groups", organization)
		if perr != nil {
			err = perr
			return
		}
		s.groupSlugs.AscendGreaterOrEqual(&coordinator.Group{Organization: o.ID, Slug: p.Token}, func(g *coordinator.Group) bool {
			return g.Organization == o.ID && (g.Slug == p.Token || page.add(s.groupView(g)))
		})
	})
	if verr != nil {
		return nil, "", verr
	}
	return page.items, page.next, err
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
		t.state.addGroup(g)
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
		o, g, err := s.permittedGroup(c, auth.PermissionManageOrg, op, in.Organization, in.Group)
		if err != nil {
			return err
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
			if slices.ContainsFunc(in.Preempt, func(ref string) bool { return s.group(o.ID, ref) == other }) {
				return coordinator.Errorf(coordinator.ErrInvalid, op, "whether it may preempt %s is said both ways", other.Slug)
			}
			preempts = slices.DeleteFunc(preempts, func(id coordinator.GroupID) bool { return id == other.ID })
		}
		if !slices.Equal(preempts, g.Preempts) {
			t.did("may preempt %s", cmp.Or(strings.Join(s.groupView(&coordinator.Group{Organization: o.ID, Preempts: preempts}).PreemptNames, ", "), "nobody"))
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

// recordsAtOnce keeps a group of writes within the store's limits, with room for what stands beside them.
const recordsAtOnce = 90

// DeleteGroup removes a group that has no open work. Its members stay in their organisation.
func (e *Engine) DeleteGroup(ctx context.Context, c Caller, organization, ref string) error {
	op := "delete group " + ref
	return e.do(ctx, func(t *tx) error {
		s := t.state
		o, g, err := s.permittedGroup(c, auth.PermissionManageOrg, op, organization, ref)
		if err != nil {
			return err
		}
		if err := t.editable(c, op, g.Replica); err != nil {
			return err
		}
		if g.Slug == defaultGroup {
			return coordinator.Errorf(coordinator.ErrInvalid, op, "new users of organisation %s begin in it", o.Slug)
		}
		if open := s.openWork(func(o *coordinator.Owner) bool { return o.Group == g.ID }); len(open) > 0 {
			return coordinator.Errorf(coordinator.ErrConflict, op, "%d of its workflows have not ended, one is %s", len(open), open[0].id).
				WithHint("wait for them or cancel them: `substrate workflow list` names them")
		}
		s.dropGroup(g)
		is := func(id coordinator.GroupID) bool { return id == g.ID }
		n := 0
		room := func() {
			if n++; n%recordsAtOnce == 0 {
				t.group()
			}
		}
		for _, u := range s.members(g) {
			u.Groups, u.Owns = slices.DeleteFunc(slices.Clone(u.Groups), is), slices.DeleteFunc(slices.Clone(u.Owns), is)
			t.putUser(u)
			room()
		}
		s.groupSlugs.AscendGreaterOrEqual(&coordinator.Group{Organization: o.ID}, func(other *coordinator.Group) bool {
			if other.Organization == o.ID && slices.Contains(other.Preempts, g.ID) {
				other.Preempts = slices.DeleteFunc(slices.Clone(other.Preempts), is)
				t.put(prefixGroup+string(other.ID), other)
				room()
			}
			return other.Organization == o.ID
		})
		t.delete(prefixGroup + string(g.ID)) // last: cut short before, the group has lost members, which a repetition mends
		t.group()
		t.event(Event{Kind: "group-deleted", Subject: o.Slug + "/" + g.Slug, Message: "by " + c.Name})
		return nil
	})
}

// UseGroup makes one of the caller's groups the one that its work belongs to unless it names another.
func (e *Engine) UseGroup(ctx context.Context, c Caller, ref string) (out UserView, err error) {
	op := "use group " + ref
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		u := t.state.users[c.User]
		if u == nil {
			return noSuch(op, "user", string(c.User))
		}
		g := t.state.group(u.Organization, ref)
		if g == nil || !slices.Contains(u.Groups, g.ID) {
			return coordinator.Errorf(coordinator.ErrDenied, op, "user %s is not a member of it", u.Name).
				WithHint("%s", "your groups are in `substrate whoami`")
		}
		if u.Groups[0] != g.ID {
			rest := slices.DeleteFunc(slices.Clone(u.Groups), func(id coordinator.GroupID) bool { return id == g.ID })
			u.Groups = append([]coordinator.GroupID{g.ID}, rest...)
			t.putUser(u)
			t.group()
		}
		out = t.state.userView(u)
		return nil
	})
	return out, err
}

// openWork lists the workflows of some owners that have not ended, by id.
func (s *state) openWork(of func(*coordinator.Owner) bool) []*submission {
	var out []*submission
	for _, w := range s.workflows {
		if w.open > 0 && of(&w.record.Owner) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *submission) int { return cmp.Compare(a.id, b.id) })
	return out
}

// cancelWork ends everything of a user that has not ended.
func (t *tx) cancelWork(u *coordinator.User, why string) {
	open := t.state.openWork(func(o *coordinator.Owner) bool { return o.User == u.ID })
	for _, w := range open {
		for _, j := range w.jobs {
			for _, a := range j.allocations {
				t.cancel(a, why)
			}
		}
	}
	if len(open) > 0 {
		t.event(Event{Kind: "work-cancelled", Subject: u.Name, Message: fmt.Sprintf("%d workflows, %s", len(open), why)})
	}
}
