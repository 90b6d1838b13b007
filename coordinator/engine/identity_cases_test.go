package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

func clusterCases() []permissionCase {
	adminOnly := row('u', 'd', 'd', 'd', '+')
	return []permissionCase{
		{"SetConfig", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetConfig(ctx, c, SetConfig{YAML: []byte(plainConfig), File: "c"})
			return err
		}, adminOnly},
		{"PlanConfig", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.PlanConfig(ctx, c, "c", []byte(plainConfig), 20)
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
		}, row('u', '+', '+', '+', '+')},
		{"CreateOrganization", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.CreateOrganization(ctx, c, "made", 0)
			return err
		}, adminOnly},
		{"UpdateOrganization", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.UpdateOrganization(ctx, c, firstOrg, nil)
			return err
		}, adminOnly},
	}
}

func grantCases() []permissionCase {
	adminOnly, notHere := row('u', 'd', 'd', 'd', '+'), row('u', 'd', 'd', 'd', '?') // of a Federate, which this cluster is not
	return []permissionCase{
		{"SetGrant", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.SetGrant(ctx, c, firstOrg, []string{"small"})
			return err
		}, adminOnly},
		{"RotateGrantKey", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.RotateGrantKey(ctx, c); return err }, adminOnly},
		{"AppendDefinitions", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.AppendDefinitions(ctx, c, []string{"small"}, nil, true)
			return err
		}, adminOnly},
		{"Federate", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Federate(ctx, c); return err }, row('u', 'd', 'd', 'd', 'h')},
		{"CreateFederationToken", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateFederationToken(ctx, c, 0)
			return err
		}, adminOnly},
		{"ForgetFederate", func(ctx context.Context, e *Engine, c Caller) error { return e.ForgetFederate(ctx, c) }, row('u', 'd', 'd', 'd', 'h')},
		{"BeginCluster", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.BeginCluster(ctx, c, "east", "east:1", false)
			return err
		}, notHere},
		{"DrainCluster", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.DrainCluster(ctx, c, "east", true)
			return err
		}, notHere},
		{"RemoveCluster", func(ctx context.Context, e *Engine, c Caller) error { return e.RemoveCluster(ctx, c, "east", false) }, notHere},
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
	everyOwner := row('u', 'd', 'd', 'd', '+').owners('+', 'd') // its organisation's part
	everyOwner.everyOwner = true
	adminOnly := row('u', 'd', 'd', 'd', '+')
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
		{"Backends", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.Backends(ctx, c)
			return err
		}, adminOnly},
		{"WriteOffLaunch", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.WriteOffLaunch(ctx, c, "none"))
		}, adminOnly},
		{"ReopenBackend", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.ReopenBackend(ctx, c, "none"))
		}, adminOnly},
		{"Discover", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.Discover(ctx, c, nil)
			return err
		}, adminOnly},
		{"Catalogues", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Catalogues(ctx, c); return err }, adminOnly},
		{"RefreshCatalogues", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.RefreshCatalogues(ctx, c, nil)
			return err
		}, adminOnly},
		{"InstanceTypes", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.InstanceTypes(ctx, c, ListTypes{}, Page{})
			return err
		}, adminOnly},
		{"ResumeDefinition", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.ResumeDefinition(ctx, c, "none"))
		}, adminOnly},
		{"ResetHardware", func(ctx context.Context, e *Engine, c Caller) error {
			return missing(e.ResetHardware(ctx, c, "none"))
		}, adminOnly},
		{"Launches", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Launches(ctx, c, Page{})
			return err
		}, adminOnly},
		{"Audit", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Audit(ctx, c, AuditFilter{}, Page{})
			return err
		}, everyOwner},
		{"Nodes", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Nodes(ctx, c, "", Page{})
			return err
		}, row('+', '+', '+', '+', '+')},
		{"Node", func(ctx context.Context, e *Engine, c Caller) error { _, err := e.Node(ctx, c, "n1"); return err }, row('+', '+', '+', '+', '+')},
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
	reads, manages := row('u', '+', 'h', '+', '+'), row('u', 'd', 'h', 'd', '+').owners('+', 'd')
	n := 0
	name := func() string { n++; return fmt.Sprint("made-", n) }
	return []permissionCase{
		{"WhoAmI", func(ctx context.Context, e *Engine, c Caller) error { _, _, err := e.WhoAmI(ctx, c); return err }, row('u', '+', '+', '+', '+')},
		{"Groups", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Groups(ctx, c, firstOrg, Page{})
			return err
		}, reads},
		{"Groups of one's own", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Groups(ctx, c, "", Page{})
			return err
		}, row('u', '+', '+', '+', '+')},
		{"Users", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Users(ctx, c, UserFilter{Organization: firstOrg}, Page{})
			return err
		}, reads},
		{"GrantHistory", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.GrantHistory(ctx, c, firstOrg, Page{})
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
		}, row('u', 'd', 'd', '+', 'd').owners('d', '+')},
	}
}

func memberCases() []permissionCase {
	manages, inGroup := row('u', 'd', 'h', 'd', '+').owners('+', 'd'), row('u', 'd', 'h', 'd', '+').owners('+', '+')
	maker := Caller{Principal: auth.Principal{User: "maker", Name: "maker", Admin: true}} // of what is then removed
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
		}, inGroup},
		{"RemoveMembership of the organisation", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, maker, NewUser{Name: name(), Organization: firstOrg})
			if err == nil {
				_, err = e.RemoveMembership(ctx, c, MemberChange{Organization: firstOrg, User: made.Name}, true)
			}
			return err
		}, manages},
		{"RemoveMembership of a group", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, maker, NewUser{Name: name(), Organization: firstOrg, Groups: []string{"lab"}})
			if err == nil {
				_, err = e.RemoveMembership(ctx, c, MemberChange{Organization: firstOrg, Group: "lab", User: made.Name}, false)
			}
			return err
		}, inGroup},
		{"SetMembership of one who is no member of the group yet", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, maker, NewUser{Name: name(), Organization: firstOrg})
			if err == nil {
				_, err = e.SetMembership(ctx, c, MemberChange{Organization: firstOrg, Group: "lab", User: made.Name, Add: true})
			}
			return err
		}, inGroup},
		{"SetMembership of an owner of the group", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, maker, NewUser{Name: name(), Organization: firstOrg, Groups: []string{"lab"}})
			if err == nil {
				_, err = e.SetMembership(ctx, c, MemberChange{Organization: firstOrg, Group: "lab", User: made.Name, Role: coordinator.RoleOwner})
			}
			return err
		}, inGroup},
		{"DeleteUser", func(ctx context.Context, e *Engine, c Caller) error {
			made, err := e.CreateUser(ctx, maker, NewUser{Name: name(), Organization: firstOrg})
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
		}, row('u', 'd', 'h', '+', '+').owners('+', 'd')},
		{"RevokeUserToken", func(ctx context.Context, e *Engine, c Caller) error {
			err := e.RevokeUserToken(ctx, c, "", string(ann.ID), "none")
			if strings.Contains(fmt.Sprint(err), "there is no token") {
				return nil
			}
			return err
		}, row('u', 'd', 'h', '+', '+').owners('+', 'd')},
		{"CreateUserToken", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateUserToken(ctx, c, NewToken{User: string(ann.ID)})
			return err
		}, row('u', 'd', 'h', '+', '+')},
	}
}

func calendarCases() []permissionCase {
	adminOnly, all := row('u', 'd', 'd', 'd', '+'), row('u', '+', '+', '+', '+')
	window := NewMaintenance{Until: time.Now().Add(time.Hour), Message: "m", Emergency: true}
	return []permissionCase{
		{"CreateReservation", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.CreateReservation(ctx, c, NewReservation{Name: "seats", Organization: firstOrg, Definition: "small", Nodes: 1, Until: time.Now().Add(time.Hour)})
			return err
		}, adminOnly},
		{"Reservation", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.Reservation(ctx, c, "seats")
			return err
		}, row('u', '+', 'h', '+', '+')},
		{"Reservations", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Reservations(ctx, c, "", true, Page{})
			return err
		}, all},
		{"Reservations of an organisation", func(ctx context.Context, e *Engine, c Caller) error {
			_, _, err := e.Reservations(ctx, c, firstOrg, true, Page{})
			return err
		}, row('u', '+', 'h', '+', '+')},
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
	all, reads, owners := row('u', '+', '+', '+', '+'), row('u', '+', 'h', '+', '+'), row('u', 'd', 'h', '+', '+')
	submit := func(group string) func(context.Context, *Engine, Caller) error {
		return func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.StartWorkflow(ctx, c, StartWorkflow{YAML: []byte(oneJob), File: "w", Group: group})
			return err
		}
	}
	return []permissionCase{
		{"StartWorkflow", submit(""), all},
		{"StartWorkflow in ann's group", submit("lab"), row('u', 'd', 'd', '+', 'd').owners('d', '+')}, // not for others, even as admin
		{"ValidateWorkflow", func(ctx context.Context, e *Engine, c Caller) error {
			if err := e.ValidateWorkflow(ctx, c, "w", []byte(oneJob)).Err(); err != nil {
				return coordinator.Errorf(coordinator.ErrInvalid, "validate", "%w", err)
			}
			return nil
		}, row('i', '+', '+', '+', '+')},
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
		}, row('u', '?', '?', '?', '?')},
		{"FindRoute", func(ctx context.Context, e *Engine, c Caller) error {
			_, err := e.FindRoute(ctx, c, auth.PermissionReadWork, "show workflow", ref)
			return err
		}, row('u', 'h', 'h', 'h', 'h')},
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
