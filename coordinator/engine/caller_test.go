package engine

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

// token makes a token of a user.
func (c *cluster) token(who Caller, user string) (string, error) {
	text, _, err := c.engine.CreateUserToken(c.t.Context(), who, NewToken{User: user})
	return text, err
}

// user makes a user and logs it in.
func (c *cluster) user(in NewUser) (UserView, Caller) {
	c.t.Helper()
	u, err := c.engine.CreateUser(c.t.Context(), c.admin, in)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := c.token(c.admin, string(u.ID))
	if err != nil {
		c.t.Fatal(err)
	}
	caller, err := c.engine.Authenticate(c.t.Context(), text)
	if err != nil {
		c.t.Fatal(err)
	}
	return u, caller
}

// may is what each caller gets from a method: + done, d denied, h told that there is no such thing,
// u told to log in, i refused in the diagnostics of a file.
type may struct {
	nobody, colleague, stranger, owner, admin rune
	orgOwner, groupOwner                      rune // of her organisation, of her group; without a word as a colleague
	everyOwner                                bool // those of other organisations too
}

func row(nobody, colleague, stranger, owner, admin rune) may {
	return may{nobody, colleague, stranger, owner, admin, colleague, colleague, false}
}

// owners are the rights of those who own her organisation and her group. Owners elsewhere are always strangers.
func (m may) owners(org, group rune) may {
	m.orgOwner, m.groupOwner = org, group
	return m
}

func outcomeOf(err error) rune {
	if err == nil {
		return '+'
	}
	switch coordinator.ErrorKindOf(err) {
	case coordinator.ErrDenied:
		return 'd'
	case coordinator.ErrNotFound:
		return 'h'
	case coordinator.ErrUnauthenticated:
		return 'u'
	case coordinator.ErrInvalid:
		return 'i'
	}
	return '?'
}

// permissionCase is one engine method on a fixed target: ann's work, or her organisation "default".
type permissionCase struct {
	method string // of *Engine, perhaps with a remark after a space
	call   func(context.Context, *Engine, Caller) error
	want   may
}

func permissionCases(work WorkflowView, ann UserView) []permissionCase {
	return slices.Concat(clusterCases(), grantCases(), nodeCases(), identityCases(ann), memberCases(), tokenCases(ann), workCases(work), calendarCases())
}

// farOwner is what an owner of another organisation gets: its own part of what every owner sees a part of.
func (m may) farOwner() rune {
	if m.everyOwner {
		return m.orgOwner
	}
	return m.stranger
}

// owners logs in an owner of an organisation and one of a group in it.
func (c *cluster) owners(org, group, prefix string) (ofOrg, ofGroup Caller) {
	c.t.Helper()
	_, ofOrg = c.user(NewUser{Name: prefix + "org-owner", Organization: org, Role: coordinator.RoleOwner})
	u, _ := c.user(NewUser{Name: prefix + "group-owner", Organization: org, Groups: []string{group}})
	change := MemberChange{Organization: org, Group: group, User: u.Name, Role: coordinator.RoleOwner}
	if _, err := c.engine.SetMembership(c.t.Context(), c.admin, change); err != nil {
		c.t.Fatal(err)
	}
	token, err := c.token(c.admin, string(u.ID))
	if err != nil {
		c.t.Fatal(err)
	}
	if ofGroup, err = c.engine.Authenticate(c.t.Context(), token); err != nil || len(ofGroup.Owns) != 1 {
		c.t.Fatalf("%+v, %v", ofGroup, err)
	}
	return ofOrg, ofGroup
}

// TestPermissions asks every method that acts for a caller, as everybody.
func TestPermissions(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "other", 0); err != nil {
		t.Fatal(err)
	}
	for group, org := range map[string]string{"lab": firstOrg, "far-lab": "other"} {
		if _, err := c.engine.CreateGroup(t.Context(), c.admin, group, org, 0); err != nil {
			t.Fatal(err)
		}
	}
	ann, owner := c.user(NewUser{Name: "ann", Groups: []string{"lab"}})
	_, colleague := c.user(NewUser{Name: "bob"})
	_, stranger := c.user(NewUser{Name: "cid", Organization: "other"})
	orgOwner, groupOwner := c.owners(firstOrg, "lab", "own-")
	farOrgOwner, farGroupOwner := c.owners("other", "far-lab", "far-")
	c.join(newHost("n1", 4, nil))
	started, err := c.engine.StartWorkflow(t.Context(), owner, StartWorkflow{YAML: []byte(oneJob), File: "w"})
	if err != nil {
		t.Fatal(err)
	}
	work := c.await(started.Workflow.ID, "running", func(v WorkflowView) bool { return v.Counts[coordinator.StatusRunning] == 1 })
	cases := permissionCases(work, ann)
	asked := map[string]bool{}
	for _, tt := range cases {
		asked[method(tt.method)] = true
		for _, who := range []struct {
			name   string
			caller Caller
			want   rune
		}{
			{"nobody", Caller{}, tt.want.nobody}, {"a flag without a user", Caller{Principal: auth.Principal{Admin: true, Organization: owner.Organization}}, tt.want.nobody},
			{"colleague", colleague, tt.want.colleague}, {"stranger", stranger, tt.want.stranger},
			{"owner", owner, tt.want.owner}, {"admin", c.admin, tt.want.admin},
			{"owner of the organisation", orgOwner, tt.want.orgOwner}, {"owner of the group", groupOwner, tt.want.groupOwner},
			{"owner of another organisation", farOrgOwner, tt.want.farOwner()}, {"owner of a group there", farGroupOwner, tt.want.stranger},
		} {
			if err := tt.call(t.Context(), c.engine, who.caller); outcomeOf(err) != who.want {
				t.Errorf("%s as %s: %v, want %c", tt.method, who.name, err, who.want)
			}
		}
	}
	for m := range reflect.TypeFor[*Engine]().Methods() {
		for i := range m.Type.NumIn() {
			if m.Type.In(i) == reflect.TypeFor[Caller]() && !asked[m.Name] {
				t.Errorf("%s acts for a caller and has no row", m.Name)
			}
		}
	}
	for who, n := range map[*Caller]bool{&colleague: true, &stranger: false, &owner: true, &c.admin: true} {
		list, _, err := c.engine.Workflows(t.Context(), *who, "", Page{})
		if seen := slices.ContainsFunc(list, func(v WorkflowView) bool { return v.ID == work.ID }); err != nil || seen != n {
			t.Errorf("%s sees ann's work in the list: %v, %v", who.Name, seen, err)
		}
	}
}

func method(text string) string {
	for i, r := range text {
		if r == ' ' {
			return text[:i]
		}
	}
	return text
}

// TestPowerBeyondTheOrganisation: administrators and accounts on nodes are the cluster's to give.
func TestPowerBeyondTheOrganisation(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	for name, in := range map[string]NewUser{
		"root": {Name: "mallory", UnixUser: "root"}, "path": {Name: "mallory", UnixUser: "a/b"}, "name": {Name: "Mallory"},
		"group": {Name: "mallory", Groups: []string{"none"}}, "organisation": {Name: "mallory", Organization: "none"},
	} {
		if _, err := c.engine.CreateUser(t.Context(), c.admin, in); err == nil {
			t.Errorf("%s: the user was made", name)
		}
	}
	users, _, err := c.engine.Users(t.Context(), c.admin, UserFilter{}, Page{})
	if err != nil || len(users) != 1 {
		t.Errorf("%+v, %v", users, err)
	}
}

func TestSlugs(t *testing.T) {
	for slug, ok := range map[string]bool{
		"a": true, "0a": true, "a-b_c.d": true, "": false, "-a": false, ".a": false, "_a": false, "A": false, "a b": false, "ä": false,
		"a/b": false, "a\x00": false, "6f1e2a34-1b2c-4d3e-8f90-0123456789ab": false,
	} {
		if err := checkSlug("make x", slug); (err == nil) != ok {
			t.Errorf("%q: %v", slug, err)
		}
	}
	long := make([]byte, 64)
	for i := range long {
		long[i] = 'a'
	}
	if checkSlug("make x", string(long)) == nil || checkSlug("make x", string(long[1:])) != nil {
		t.Error("63 characters are the most")
	}
}

// draws gives a number of random bytes and then fails.
type draws struct{ left int }

var errDrawn = errors.New("no more chance")

func (d *draws) Read(p []byte) (int, error) {
	if d.left < len(p) {
		return 0, errDrawn
	}
	d.left -= len(p)
	for i := range p {
		p[i] = byte(d.left + i)
	}
	return len(p), nil
}

// TestRefusedCommandsChangeNothing: wherever chance or the signing key fails, neither memory nor the store
// holds a part of the command.
func TestRefusedCommandsChangeNothing(t *testing.T) {
	st := store.NewMemory()
	c := newCluster(t, st)
	c.set(plainConfig)
	csr := request(t)
	token, _, err := c.engine.CreateJoinToken(t.Context(), c.admin, NewJoinToken{})
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]func() error{
		"CreateOrganization": func() error { _, err := c.engine.CreateOrganization(t.Context(), c.admin, "x", 0); return err },
		"CreateGroup":        func() error { _, err := c.engine.CreateGroup(t.Context(), c.admin, "x", "", 0); return err },
		"CreateUser":         func() error { _, err := c.engine.CreateUser(t.Context(), c.admin, NewUser{Name: "x"}); return err },
		"CreateUserToken": func() error {
			_, _, err := c.engine.CreateUserToken(t.Context(), c.admin, NewToken{User: "admin"})
			return err
		},
		"CreateJoinToken": func() error { _, _, err := c.engine.CreateJoinToken(t.Context(), c.admin, NewJoinToken{}); return err },
		"Join": func() error {
			_, _, err := c.engine.Join(t.Context(), JoinRequest{Token: token, Node: "x", CSR: csr})
			return err
		},
		"StartWorkflow": func() error {
			_, err := c.engine.StartWorkflow(t.Context(), c.admin, StartWorkflow{YAML: []byte(oneJob), File: "w"})
			return err
		},
	}
	for name, command := range commands {
		for _, bytes := range []int{0, 15, 17} { // an organisation needs two ids of 16
			if name != "CreateOrganization" && bytes > 15 {
				continue
			}
			before := c.shape(st)
			c.inLoop(func(t *tx) { t.engine.opt.Rand = &draws{left: bytes} })
			if err := command(); err == nil {
				t.Errorf("%s went on with %d random bytes", name, bytes)
			}
			if after := c.shape(st); after != before {
				t.Errorf("%s with %d random bytes left\n%s, before\n%s", name, bytes, after, before)
			}
		}
	}
	c.inLoop(func(t *tx) { t.engine.opt.Rand = &draws{left: 1 << 20} })
	for name, command := range map[string]func() error{
		"CreateOrganization": commands["CreateOrganization"],
		"SetGrant":           func() error { _, err := c.engine.SetGrant(t.Context(), c.admin, "", nil); return err },
		"SetConfig": func() error {
			_, err := c.engine.SetConfig(t.Context(), c.admin, SetConfig{YAML: []byte(plainConfig + "  - {id: more, provisioner: static, provisionerSpec: {condition: \"true\"}}\n"), File: "c", AppendGrants: true})
			return err
		},
	} {
		before := c.shape(st)
		signer := c.signWith(nil)
		if err := command(); err == nil {
			t.Errorf("%s went on without a signing key", name)
		}
		c.signWith(&signer)
		if after := c.shape(st); after != before {
			t.Errorf("%s without a signing key left\n%s, before\n%s", name, after, before)
		}
	}
	for name, command := range commands {
		if err := command(); err != nil {
			t.Errorf("%s does not work afterwards: %v", name, err)
		}
	}
}

// TestAppendToTheSameOrganisationTwice: named by slug and by id it is one target, and its chain stays whole.
func TestAppendToTheSameOrganisationTwice(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	if _, err := c.engine.SetGrant(t.Context(), c.admin, "", nil); err != nil {
		t.Fatal(err)
	}
	res, err := c.engine.AppendDefinitions(t.Context(), c.admin, []string{"small"}, []string{firstOrg, string(c.admin.Organization), firstOrg}, false)
	if err != nil || len(res) != 1 || res[0].AlreadyExisted {
		t.Errorf("%+v, %v", res, err)
	}
	if g, err := c.engine.Grant(t.Context(), c.admin, ""); err != nil || g.State != "valid" || g.Serial != 3 || !slices.Equal(g.Definitions, []string{"small"}) {
		t.Errorf("%+v, %v", g, err)
	}
}
