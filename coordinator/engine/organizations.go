package engine

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
)

// defaultGroup is the group that every organisation begins with and new users begin in.
const defaultGroup = "default"

// Organizations lists by slug: all for administrators, else the caller's own.
func (e *Engine) Organizations(ctx context.Context, c Caller, p Page) (out []coordinator.Organization, next string, err error) {
	if err := c.authorize(auth.PermissionUser, "list organisations", auth.Target{}); err != nil {
		return nil, "", err
	}
	page := &walkPage[coordinator.Organization]{size: p.size(), token: func(o coordinator.Organization) string { return o.Slug }}
	err = e.view(ctx, func(s *state) {
		if !c.Admin {
			if o := s.orgs[c.Organization]; o != nil && p.Token < o.Slug {
				page.add(o.Organization)
			}
			return
		}
		s.orgSlugs.AscendGreaterOrEqual(&organization{Organization: coordinator.Organization{Slug: p.Token}}, func(o *organization) bool {
			return o.Slug == p.Token || page.add(o.Organization)
		})
	})
	return page.items, page.next, err
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
	g := &coordinator.Group{ID: coordinator.GroupID(groupID), Organization: o.ID, Slug: defaultGroup, Created: t.now}
	var signed []signedGrant
	if len(t.state.revisions) > 0 {
		signed, err = t.state.signAppends([]*organization{o}, grant.Entries(t.state.config.Definitions), t.now)
		if err != nil {
			return nil, err
		}
	}
	t.state.addOrganization(o)
	t.state.addGroup(g)
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
