package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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
type may struct{ nobody, colleague, stranger, owner, admin rune }

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
	return slices.Concat(clusterCases(), nodeCases(), identityCases(ann), memberCases(), tokenCases(ann), workCases(work), calendarCases())
}

func clusterCases() []permissionCase {
	adminOnly, notHere := may{'u', 'd', 'd', 'd', '+'}, may{'u', 'd', 'd', 'd', '?'} // of a Federate, which this cluster is not
	return []permissionCase{
		{"SetConfig", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetConfig(ctx, c, SetConfig{YAML: []byte(plainConfig), File: "c"})
			return err
		}, adminOnly},
		{"PlanConfig", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.PlanConfig(ctx, c, "c", []byte(plainConfig))
			return err
		}, adminOnly},
		{"SuggestConfig", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.SuggestConfig(ctx, c); return err }, adminOnly},
		{"AuditPolicies", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.AuditPolicies(ctx, c, AuditPolicies{})
			return err
		}, adminOnly},
		{"Config", func(ctx context.Context, e *Engine, c Caller) error { _, _, err := e.Config(ctx, c, nil); return err }, adminOnly},
		{"ConfigRevisions", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.ConfigRevisions(ctx, c, Page{})
			return err
		}, adminOnly},
		{"SetScheduling", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetScheduling(ctx, c, "n1", "uncordon", "", false)
			return err
		}, adminOnly},
		{"CreateJoinToken", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateJoinToken(ctx, c, NewJoinToken{})
			return err
		}, adminOnly},
		{"Organizations", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Organizations(ctx, c, Page{})
			return err
		}, may{'u', '+', '+', '+', '+'}},
		{"CreateOrganization", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CreateOrganization(ctx, c, "made", 0)
			return err
		}, adminOnly},
		{"UpdateOrganization", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UpdateOrganization(ctx, c, firstOrg, nil)
			return err
		}, adminOnly},
		{"SetGrant", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetGrant(ctx, c, firstOrg, []string{"small"})
			return err
		}, adminOnly},
		{"AppendDefinitions", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.AppendDefinitions(ctx, c, []string{"small"}, nil, true)
			return err
		}, adminOnly},
		{"Federate", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Federate(ctx, c); return err }, may{'u', 'd', 'd', 'd', 'h'}},
		{"CreateFederationToken", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateFederationToken(ctx, c, 0)
			return err
		}, adminOnly},
		{"ForgetFederate", func(ctx context.Context, e *Engine, c Caller) error { return e.ForgetFederate(ctx, c) }, may{'u', 'd', 'd', 'd', 'h'}},
		{"BeginMember", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.BeginMember(ctx, c, "east", "east:1")
			return err
		}, notHere},
		{"DrainMember", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.DrainMember(ctx, c, "east", true)
			return err
		}, notHere},
		{"RemoveMember", func(ctx context.Context, e *Engine, c Caller) error { return e.RemoveMember(ctx, c, "east", false) }, notHere},
		{"IntendPush", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.IntendPush(ctx, c, []string{"small"}, nil, true)
			return err
		}, notHere},
		{"Events of the whole cluster", func(ctx context.Context, e *Engine, c Caller) error {
			return e.Events(ctx, c, "", 0, false, func([]Event) error { return nil })
		}, adminOnly},
	}
}

func nodeCases() []permissionCase {
	adminOnly := may{'u', 'd', 'd', 'd', '+'}
	return []permissionCase{
		{"JoinTokens", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.JoinTokens(ctx, c, Page{})
			return err
		}, adminOnly},
		{"RevokeJoinToken", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.RevokeJoinToken(ctx, c, "none"))
		}, adminOnly},
		{"RevokeNode", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.RevokeNode(ctx, c, "none", "")
			return missing(err)
		}, adminOnly},
		{"RemoveNode", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.RemoveNode(ctx, c, "none", "", false))
		}, adminOnly},
		{"Audit", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Audit(ctx, c, AuditFilter{}, Page{})
			return err
		}, adminOnly},
		{"Nodes", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Nodes(ctx, c, "", Page{})
			return err
		}, may{'+', '+', '+', '+', '+'}},
		{"Node", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Node(ctx, c, "n1"); return err }, may{'+', '+', '+', '+', '+'}},
	}
}

// missing takes the answer to somebody who may do it, to a thing that is not there.
func missing(err error) error {
	if coordinator.ErrorKindOf(err) == coordinator.ErrNotFound {
		return nil
	}
	return err
}

func identityCases(ann UserView) []permissionCase {
	reads, manages := may{'u', '+', 'h', '+', '+'}, may{'u', 'd', 'h', 'd', '+'}
	n := 0
	name := func() string { n++; return fmt.Sprint("made-", n) }
	return []permissionCase{
		{"WhoAmI", func(ctx context.Context, e *Engine, c Caller) error { _, _, err := e.WhoAmI(ctx, c); return err }, may{'u', '+', '+', '+', '+'}},
		{"Groups", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Groups(ctx, c, firstOrg, Page{})
			return err
		}, reads},
		{"Groups of one's own", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Groups(ctx, c, "", Page{})
			return err
		}, may{'u', '+', '+', '+', '+'}},
		{"Users", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Users(ctx, c, UserFilter{Organization: firstOrg}, Page{})
			return err
		}, reads},
		{"Grant", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Grant(ctx, c, firstOrg); return err }, reads},
		{"CreateGroup", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CreateGroup(ctx, c, name(), firstOrg, 0)
			return err
		}, manages},
		{"UpdateGroup", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UpdateGroup(ctx, c, UpdateGroup{Group: "lab", Organization: firstOrg})
			return err
		}, manages},
		{"CreateUser", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CreateUser(ctx, c, NewUser{Name: name(), Organization: firstOrg})
			return err
		}, manages},
		{"UpdateUser", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UpdateUser(ctx, c, UpdateUser{User: string(ann.ID)})
			return err
		}, manages},
		{"DeleteGroup", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateGroup(ctx, c, name(), firstOrg, 0)
			if err != nil {
				return err
			}
			return e.DeleteGroup(ctx, c, firstOrg, made.Slug)
		}, manages},
		{"UseGroup", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UseGroup(ctx, c, "lab")
			return err
		}, may{'u', 'd', 'd', '+', 'd'}},
	}
}

func memberCases() []permissionCase {
	manages := may{'u', 'd', 'h', 'd', '+'}
	n := 0
	name := func() string { n++; return fmt.Sprint("member-", n) }
	return []permissionCase{
		{"SetMembership of the organisation", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetMembership(ctx, c, MemberChange{Organization: firstOrg, User: "ann"})
			return err
		}, manages},
		{"SetMembership of a group", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetMembership(ctx, c, MemberChange{Organization: firstOrg, Group: "lab", User: "ann"})
			return err
		}, manages},
		{"RemoveMembership of the organisation", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, c, NewUser{Name: name(), Organization: firstOrg})
			if err == nil {
				_, err = e.RemoveMembership(ctx, c, MemberChange{Organization: firstOrg, User: made.Name}, true)
			}
			return err
		}, manages},
		{"RemoveMembership of a group", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, c, NewUser{Name: name(), Organization: firstOrg, Groups: []string{"lab"}})
			if err == nil {
				_, err = e.RemoveMembership(ctx, c, MemberChange{Organization: firstOrg, Group: "lab", User: made.Name}, false)
			}
			return err
		}, manages},
		{"DeleteUser", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, c, NewUser{Name: name(), Organization: firstOrg})
			if err == nil {
				err = e.DeleteUser(ctx, c, firstOrg, made.Name, true)
			}
			return err
		}, manages},
	}
}

func tokenCases(ann UserView) []permissionCase {
	return []permissionCase{
		{"UserTokens", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UserTokens(ctx, c, "", string(ann.ID))
			return err
		}, may{'u', 'd', 'h', '+', '+'}},
		{"RevokeUserToken", func(ctx context.Context, e *Engine, c Caller) error {
			err := e.RevokeUserToken(ctx, c, "", string(ann.ID), "none")
			if strings.Contains(fmt.Sprint(err), "there is no token") {
				return nil
			}
			return err
		}, may{'u', 'd', 'h', '+', '+'}},
		{"CreateUserToken", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateUserToken(ctx, c, NewToken{User: string(ann.ID)})
			return err
		}, may{'u', 'd', 'h', '+', '+'}},
	}
}

func calendarCases() []permissionCase {
	adminOnly, all := may{'u', 'd', 'd', 'd', '+'}, may{'u', '+', '+', '+', '+'}
	window := NewMaintenance{Until: time.Now().Add(time.Hour), Message: "m", Emergency: true}
	return []permissionCase{
		{"CreateReservation", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateReservation(ctx, c, NewReservation{Name: "seats", Organization: firstOrg, Definition: "small", Nodes: 1, Until: time.Now().Add(time.Hour)})
			return err
		}, adminOnly},
		{"Reservation", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.Reservation(ctx, c, "seats")
			return err
		}, may{'u', '+', 'h', '+', '+'}},
		{"Reservations", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Reservations(ctx, c, "", true, Page{})
			return err
		}, all},
		{"Reservations of an organisation", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Reservations(ctx, c, firstOrg, true, Page{})
			return err
		}, may{'u', '+', 'h', '+', '+'}},
		{"DeleteReservation", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.DeleteReservation(ctx, c, "seats")
			return err
		}, adminOnly},
		{"AnnounceMaintenance", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.AnnounceMaintenance(ctx, c, window)
			return err
		}, adminOnly},
		{"Maintenance", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Maintenance(ctx, c, true, Page{})
			return err
		}, all},
		{"StatusHistory", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.StatusHistory(ctx, c, Page{})
			return err
		}, all},
		{"CancelMaintenance", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CancelMaintenance(ctx, c, "1")
			return err
		}, adminOnly},
		{"AddStatusNote", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.AddStatusNote(ctx, c, "all is well")
			return err
		}, adminOnly},
		{"Capacity", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Capacity(ctx, c); return err }, all},
	}
}

const oneJob = "version: v1\nname: sit\njobs:\n  sit: {command: [x]}\n"

func workCases(work WorkflowView) []permissionCase {
	ref := string(work.ID)
	all, reads, owners := may{'u', '+', '+', '+', '+'}, may{'u', '+', 'h', '+', '+'}, may{'u', 'd', 'h', '+', '+'}
	submit := func(group string) func(context.Context, *Engine, Caller) error {
		return func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte(oneJob), File: "w", Group: group})
			return err
		}
	}
	return []permissionCase{
		{"StartWorkflow", submit(""), all},
		{"StartWorkflow in ann's group", submit("lab"), may{'u', 'd', 'd', '+', 'd'}}, // not for others, even as admin
		{"ValidateWorkflow", func(ctx context.Context, e *Engine, c Caller) error {
			if err := e.ValidateWorkflow(ctx, c, "w", []byte(oneJob)).Err(); err != nil {
				return coordinator.Errorf(coordinator.ErrInvalid, "validate", "%w", err)
			}
			return nil
		}, may{'i', '+', '+', '+', '+'}},
		{"ScoreWorkflow", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.ScoreWorkflow(ctx, c, StartWorkflow{YAML: []byte(oneJob), File: "w"})
			return err
		}, all},
		{"CheckRoutable", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CheckRoutable(ctx, c, StartWorkflow{YAML: []byte(oneJob), File: "w"})
			return err
		}, all},
		{"IntendRoute", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.IntendRoute(ctx, c, Intent{Start: StartWorkflow{YAML: []byte(oneJob), File: "w"}})
			return err
		}, may{'u', '?', '?', '?', '?'}},
		{"FindRoute", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.FindRoute(ctx, c, auth.PermissionReadWork, "show workflow", ref)
			return err
		}, may{'u', 'h', 'h', 'h', 'h'}},
		{"Routes", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Routes(ctx, c, "", Page{})
			return err
		}, all},
		{"Workflows", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Workflows(ctx, c, "", Page{})
			return err
		}, all},
		{"Queue", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, _, err := e.Queue(ctx, c, false, 0, Page{})
			return err
		}, all},
		{"Workflow", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Workflow(ctx, c, ref); return err }, reads},
		{"Job", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.Job(ctx, c, work.Jobs[0].ID)
			return err
		}, reads},
		{"ExplainWorkflow", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.ExplainWorkflow(ctx, c, ref, "")
			return err
		}, reads},
		{"Events", func(ctx context.Context, e *Engine, c Caller) error {
			return e.Events(ctx, c, ref, 0, false, func([]Event) error { return nil })
		}, reads},
		{"Log", func(ctx context.Context, e *Engine, c Caller) error {
			return e.Log(ctx, c, LogRequest{Workflow: ref}, func(LogPart) error { return nil })
		}, owners},
		{"CancelWorkflow", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CancelWorkflow(ctx, c, ref, "")
			return err
		}, owners},
	}
}

// TestPermissions asks every method that acts for a caller, as everybody.
func TestPermissions(t *testing.T) {
	c := newCluster(t, store.NewMemory())
	c.set(plainConfig)
	if _, err := c.engine.CreateOrganization(t.Context(), c.admin, "other", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.engine.CreateGroup(t.Context(), c.admin, "lab", firstOrg, 0); err != nil {
		t.Fatal(err)
	}
	ann, owner := c.user(NewUser{Name: "ann", Groups: []string{"lab"}})
	_, colleague := c.user(NewUser{Name: "bob"})
	_, stranger := c.user(NewUser{Name: "cid", Organization: "other"})
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
