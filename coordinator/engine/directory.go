package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/google/btree"
	"github.com/google/uuid"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// directory is who there is: organisations, groups and users, found by id and by name. The trees are in the
// order of lists, so that a page costs what is on it.
type directory struct {
	orgs       map[coordinator.OrganizationID]*organization
	groups     map[coordinator.GroupID]*coordinator.Group
	users      map[coordinator.UserID]*coordinator.User
	externals  map[coordinator.ExternalID]*coordinator.User
	orgSlugs   *btree.BTreeG[*organization]
	groupSlugs *btree.BTreeG[*coordinator.Group] // by organisation and slug
	userNames  *btree.BTreeG[*coordinator.User]  // by organisation, name and id
}

const treeDegree = 32

func newDirectory() directory {
	return directory{
		orgs:   map[coordinator.OrganizationID]*organization{},
		groups: map[coordinator.GroupID]*coordinator.Group{},
		users:  map[coordinator.UserID]*coordinator.User{},

		externals: map[coordinator.ExternalID]*coordinator.User{},
		orgSlugs: btree.NewG(treeDegree, func(a, b *organization) bool {
			return cmp.Or(cmp.Compare(a.Slug, b.Slug), cmp.Compare(a.ID, b.ID)) < 0
		}),
		groupSlugs: btree.NewG(treeDegree, func(a, b *coordinator.Group) bool {
			return cmp.Or(cmp.Compare(a.Organization, b.Organization), cmp.Compare(a.Slug, b.Slug), cmp.Compare(a.ID, b.ID)) < 0
		}),
		userNames: btree.NewG(treeDegree, func(a, b *coordinator.User) bool {
			return cmp.Or(cmp.Compare(a.Organization, b.Organization), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) < 0
		}),
	}
}

func (d *directory) addOrganization(o *organization) {
	d.orgs[o.ID] = o
	d.orgSlugs.ReplaceOrInsert(o)
}

func (d *directory) addGroup(g *coordinator.Group) {
	d.groups[g.ID] = g
	d.groupSlugs.ReplaceOrInsert(g)
}

func (d *directory) dropGroup(g *coordinator.Group) {
	delete(d.groups, g.ID)
	d.groupSlugs.Delete(g)
}

func (d *directory) addUser(u *coordinator.User) {
	d.users[u.ID] = u
	d.userNames.ReplaceOrInsert(u)
	if u.External != nil {
		d.externals[*u.External] = u
	}
}

func (d *directory) dropUser(u *coordinator.User) {
	delete(d.users, u.ID)
	d.userNames.Delete(u)
	if u.External != nil {
		delete(d.externals, *u.External)
	}
}

// moveUser puts a user into another organisation, "" for none; its groups stay behind.
func (d *directory) moveUser(u *coordinator.User, to coordinator.OrganizationID) {
	d.userNames.Delete(u)
	u.Organization, u.Role, u.Groups, u.Owns = to, coordinator.RoleMember, nil, nil
	if u.Given != nil {
		u.Given = &coordinator.Given{Admin: u.Given.Admin}
	}
	d.userNames.ReplaceOrInsert(u)
}

// organization finds by id or slug; "" is the caller's own.
func (d *directory) organization(ref string, c Caller) *organization {
	if ref == "" {
		return d.orgs[c.Organization]
	}
	if o := d.orgs[coordinator.OrganizationID(ref)]; o != nil {
		return o
	}
	var found *organization
	d.orgSlugs.AscendGreaterOrEqual(&organization{Organization: coordinator.Organization{Slug: ref}}, func(o *organization) bool {
		if o.Slug == ref {
			found = o
		}
		return false
	})
	return found
}

// group finds by id, or by slug within an organisation.
func (d *directory) group(org coordinator.OrganizationID, ref string) *coordinator.Group {
	if g := d.groups[coordinator.GroupID(ref)]; g != nil && g.Organization == org {
		return g
	}
	var found *coordinator.Group
	d.groupSlugs.AscendGreaterOrEqual(&coordinator.Group{Organization: org, Slug: ref}, func(g *coordinator.Group) bool {
		if g.Organization == org && g.Slug == ref {
			found = g
		}
		return false
	})
	return found
}

// user finds by id, or by name within an organisation.
func (d *directory) user(org coordinator.OrganizationID, ref string) *coordinator.User {
	if u := d.users[coordinator.UserID(ref)]; u != nil {
		return u
	}
	if org == "" {
		return nil // a name alone could be anybody's
	}
	var found *coordinator.User
	d.userNames.AscendGreaterOrEqual(&coordinator.User{Organization: org, Name: ref}, func(u *coordinator.User) bool {
		if u.Organization == org && u.Name == ref {
			found = u
		}
		return false
	})
	return found
}

func (d *directory) sortedOrganizations() []*organization {
	out := make([]*organization, 0, len(d.orgs))
	d.orgSlugs.Ascend(func(o *organization) bool { out = append(out, o); return true })
	return out
}

// members are the users of a group, by name.
func (d *directory) members(g *coordinator.Group) []*coordinator.User {
	var out []*coordinator.User
	d.eachUser(g.Organization, "", "", func(u *coordinator.User) bool {
		if slices.Contains(u.Groups, g.ID) {
			out = append(out, u)
		}
		return true
	})
	return out
}

// eachUser visits an organisation's users by name, from a name and id on.
func (d *directory) eachUser(org coordinator.OrganizationID, name string, id coordinator.UserID, visit func(*coordinator.User) bool) {
	d.userNames.AscendGreaterOrEqual(&coordinator.User{Organization: org, Name: name, ID: id}, func(u *coordinator.User) bool {
		return u.Organization == org && visit(u)
	})
}

// otherAdmin reports whether somebody else could administer the cluster.
func (d *directory) otherAdmin(than *coordinator.User) bool {
	for _, u := range d.users {
		if u.Admin && !u.Disabled && u.ID != than.ID {
			return true
		}
	}
	return false
}

// walkPage gathers one page of a walk in order. Its token is the last item's, so that a page goes on at the right
// place whatever has come or gone in between.
type walkPage[T any] struct {
	size  int
	token func(T) string
	items []T
	next  string
}

// add takes an item and reports whether the page has room for more.
func (p *walkPage[T]) add(item T) bool {
	if len(p.items) == p.size {
		p.next = p.token(p.items[p.size-1])
		return false
	}
	p.items = append(p.items, item)
	return true
}

// userToken tells users of one name apart; a name has no "/".
func userToken(u *coordinator.User) string { return u.Name + "/" + string(u.ID) }

func splitToken(token string) (name, id string) {
	name, id, _ = strings.Cut(token, "/")
	return name, id
}

// noSuch is the error for something that is not there, or that the caller may not see.
func noSuch(op, noun, ref string) *coordinator.Error {
	return coordinator.Errorf(coordinator.ErrNotFound, op, "there is no %s %q", noun, ref)
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

// permittedGroup finds a group that the caller may do this to, likewise.
func (s *state) permittedGroup(c Caller, permission auth.Permission, op, organization, ref string) (*organization, *coordinator.Group, error) {
	o, err := s.permitted(c, auth.PermissionReadOrg, op, organization)
	if err != nil {
		return nil, nil, err
	}
	g := s.group(o.ID, ref)
	if g == nil {
		if err := c.authorize(permission, op, o.target()); err != nil && permission == auth.PermissionManageOrg {
			return nil, nil, err
		}
		return nil, nil, noSuch(op, "group", ref)
	}
	return o, g, c.authorize(permission, op, auth.Target{Organization: o.ID, Group: g.ID})
}

// permittedUser finds a user that the caller may do this to, likewise. A name is looked up in the organisation.
func (s *state) permittedUser(c Caller, permission auth.Permission, op, organization, ref string) (*coordinator.User, error) {
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return nil, err
	}
	org := c.Organization
	if organization != "" {
		o, err := s.permitted(c, auth.PermissionReadOrg, op, organization)
		if err != nil {
			return nil, err
		}
		org = o.ID
	}
	u := s.user(org, ref)
	if u == nil || organization != "" && u.Organization != org ||
		u.ID != c.User && !auth.Allowed(c.Principal, auth.PermissionReadOrg, auth.Target{Organization: u.Organization}) {
		return nil, noSuch(op, "user", ref)
	}
	return u, c.authorize(permission, op, auth.Target{Organization: u.Organization, Owner: u.ID})
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
