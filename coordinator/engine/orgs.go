package engine

import (
	"cmp"
	"slices"

	"substrate/coordinator"
)

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
