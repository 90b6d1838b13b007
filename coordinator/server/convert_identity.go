package server

import (
	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/grant"
	"substrate/proto/apiv1"
)

func organizationToProto(o coordinator.Organization) *apiv1.Organization {
	return &apiv1.Organization{Id: string(o.ID), Name: o.Slug, Priority: o.Priority, Created: stamp(o.Created), Replica: replicaToProto(o.Replica)}
}

func groupToProto(g engine.GroupView) *apiv1.Group {
	return &apiv1.Group{
		Id: string(g.ID), Name: g.Slug, Organization: g.OrganizationSlug, Priority: g.Priority,
		Preempts: g.PreemptNames, Created: stamp(g.Created), Replica: replicaToProto(g.Replica),
	}
}

func userToProto(u engine.UserView) *apiv1.User {
	return &apiv1.User{
		Id: string(u.ID), Name: u.Name, Email: u.Email, Organization: u.OrganizationSlug, Groups: u.GroupSlugs,
		Priority: u.Priority, Admin: u.Admin, UnixUser: u.UnixUser, Created: stamp(u.Created), Replica: replicaToProto(u.Replica),
		Role: u.Role.String(), OwnedGroups: u.OwnedSlugs, Disabled: u.Disabled,
	}
}

func tokenToProto(t engine.TokenView) *apiv1.UserToken {
	return &apiv1.UserToken{
		Id: t.ID, Name: t.Name, User: t.UserName, Created: stamp(t.Created), Expires: stamp(t.Expires), LastUsed: stamp(t.Used), Expired: t.Expired,
	}
}

func joinTokenToProto(t engine.JoinTokenView) *apiv1.JoinToken {
	return &apiv1.JoinToken{
		Id: t.ID, Uses: t.Uses, UsesLeft: t.UsesLeft, Created: stamp(t.Created), Expires: stamp(t.Expires),
		CreatedBy: t.By, Definition: string(t.Definition), Launch: t.Launch,
	}
}

func grantStepToProto(d grant.Delta) *apiv1.GrantStep {
	entry := func(e grant.Entry) *apiv1.GrantEntry { return &apiv1.GrantEntry{Id: e.ID, Fingerprint: e.Fingerprint} }
	return &apiv1.GrantStep{Serial: uint64(d.Serial), IssuedAt: stamp(d.IssuedAt), Digest: string(d.Digest), Header: d.Header,
		Signature: d.Signature, Added: each(d.Added, entry), Removed: each(d.Removed, entry)}
}

func grantToProto(g engine.GrantView) *apiv1.Grant {
	name := g.Slug
	if name == "" {
		name = string(g.Organization)
	}
	return &apiv1.Grant{
		Organization: name, Serial: g.Serial, IssuedAt: stamp(g.IssuedAt),
		Definitions: g.Definitions, Orphans: g.Orphans, State: g.State, Jws: g.JWS,
	}
}

func statusToProto(version string, s engine.StatusView) *apiv1.GetStatusResponse {
	return &apiv1.GetStatusResponse{
		Version: version, Role: "orchestrate", ClusterId: s.ClusterID, ConfigurationRevision: uint64(s.Revision),
		NodesReady: count(s.NodesReady), NodesTotal: count(s.NodesTotal),
		Waiting: count(s.Waiting), Running: count(s.Running), Warnings: s.Warnings,
	}
}
