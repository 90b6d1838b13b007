package auth

import (
	"fmt"
	"slices"

	"substrate/coordinator"
)

// Principal is the caller of an RPC. The zero value is nobody in particular.
type Principal struct {
	User         coordinator.UserID
	Name         string // of the user, for messages
	Organization coordinator.OrganizationID
	Groups       []coordinator.GroupID
	Owns         []coordinator.GroupID // groups it is an owner of
	Owner        bool                  // of the organisation
	Admin        bool                  // cluster-admin
}

// PrincipalOf is the caller that a user's token stands for.
func PrincipalOf(u coordinator.User) Principal {
	return Principal{User: u.ID, Name: u.Name, Organization: u.Organization, Groups: slices.Clone(u.Groups), Owns: slices.Clone(u.Owns),
		Owner: u.Role == coordinator.RoleOwner, Admin: u.Admin}
}

// Member reports whether the caller belongs to the organisation.
func (p Principal) Member(org coordinator.OrganizationID) bool {
	return p.User != "" && org != "" && p.Organization == org
}

// owns reports whether the caller is an owner of the organisation.
func (p Principal) owns(org coordinator.OrganizationID) bool { return p.Owner && p.Member(org) }

// Permission is what an RPC asks of its caller. Append only; the zero value allows nothing.
type Permission uint8

const (
	PermissionNone         Permission = iota
	PermissionPublic                  // nobody is asked who they are
	PermissionUser                    // any user: the caller's own affairs, and what every user may see of the cluster
	PermissionReadOrg                 // members of the target's organisation
	PermissionManageOrg               // owners of the target's organisation
	PermissionSubmit                  // members of the target's group and organisation; not for others, even as admin
	PermissionReadWork                // members of the organisation the work belongs to
	PermissionManageWork              // the work's owner
	PermissionReadOutput              // the work's owner: output may hold secrets
	PermissionManageUser              // the target user
	PermissionAdminCluster            // cluster-admin
	PermissionManageGroup             // owners of the target's group or of its organisation
	PermissionCurbUser                // the target user, and owners of its organisation: what only takes power away
)

func permissionWords() []string {
	return []string{"", "public", "user", "read-organization", "manage-organization", "submit",
		"read-work", "manage-work", "read-output", "manage-user", "cluster-admin", "manage-group", "curb-user"}
}

func (p Permission) String() string {
	if words := permissionWords(); int(p) < len(words) {
		return words[p]
	}
	return fmt.Sprintf("unknown(%d)", uint8(p))
}

func (p Permission) MarshalText() ([]byte, error) { return []byte(p.String()), nil }
func (p *Permission) UnmarshalText(text []byte) error {
	i := slices.Index(permissionWords(), string(text))
	if i < 0 {
		return fmt.Errorf("unknown permission %q", text)
	}
	*p = Permission(i)
	return nil
}

// NeedsTarget reports whether the permission can only be decided by who knows what the RPC acts on.
func (p Permission) NeedsTarget() bool {
	switch p {
	case PermissionReadOrg, PermissionManageOrg, PermissionSubmit, PermissionReadWork,
		PermissionManageWork, PermissionReadOutput, PermissionManageUser, PermissionManageGroup, PermissionCurbUser:
		return true
	}
	return false
}

// remedy says who could do it.
func (p Permission) remedy() string {
	switch p {
	case PermissionReadOrg, PermissionReadWork:
		return "members of its organisation may, and cluster administrators"
	case PermissionSubmit:
		return "members of the group may; ask an owner of the group to add you"
	case PermissionManageOrg:
		return "owners of the organisation may, and cluster administrators"
	case PermissionManageGroup:
		return "owners of the group and of its organisation may, and cluster administrators"
	case PermissionCurbUser:
		return "the user may, owners of its organisation, and cluster administrators"
	case PermissionManageWork, PermissionReadOutput:
		return "its owner may, and cluster administrators"
	case PermissionManageUser:
		return "the user may, and cluster administrators"
	}
	return "ask a cluster administrator"
}

// Target is what an RPC acts on; "" is "not of that kind".
type Target struct {
	Organization coordinator.OrganizationID
	Group        coordinator.GroupID
	Owner        coordinator.UserID // of the work, or the user itself
}

// Allowed reports whether the caller may do this to the target.
func Allowed(p Principal, permission Permission, target Target) bool {
	if permission == PermissionPublic {
		return true
	}
	if p.User == "" {
		return false
	}
	switch permission {
	case PermissionUser:
		return true
	case PermissionSubmit:
		return p.Member(target.Organization) && (target.Group == "" || slices.Contains(p.Groups, target.Group))
	case PermissionReadOrg, PermissionReadWork:
		return p.Admin || p.Member(target.Organization)
	case PermissionManageWork, PermissionReadOutput, PermissionManageUser:
		return p.Admin || p.User == target.Owner
	case PermissionManageOrg:
		return p.Admin || p.owns(target.Organization)
	case PermissionManageGroup:
		return p.Admin || p.owns(target.Organization) ||
			p.Member(target.Organization) && target.Group != "" && slices.Contains(p.Owns, target.Group)
	case PermissionCurbUser:
		return p.Admin || p.User == target.Owner || p.owns(target.Organization)
	case PermissionAdminCluster:
		return p.Admin
	}
	return false
}

// Table is the permission of each RPC by full method name ("/substrate.v1.Identity/WhoAmI").
type Table map[string]Permission

// Permission looks a method up. One that is not listed is refused to everybody.
func (t Table) Permission(fullMethod string) (Permission, error) {
	p, ok := t[fullMethod]
	if !ok || p == PermissionNone {
		return PermissionNone, coordinator.Errorf(coordinator.ErrDenied, "call "+fullMethod, "it has no entry in the permission table")
	}
	return p, nil
}

// Unlisted returns the methods without an entry, sorted: a server with any should not start.
func (t Table) Unlisted(fullMethods []string) []string {
	var out []string
	for _, m := range fullMethods {
		if _, err := t.Permission(m); err != nil {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return out
}

// Authorize is Allowed with the error that the caller gets; op is what was tried ("<verb> <object>").
func Authorize(p Principal, permission Permission, op string, target Target) error {
	if Allowed(p, permission, target) {
		return nil
	}
	if p.User == "" {
		return coordinator.Errorf(coordinator.ErrUnauthenticated, op, "no valid token was shown").
			WithHint("log in with `substrate login` or set SUBSTRATE_TOKEN")
	}
	return coordinator.Errorf(coordinator.ErrDenied, op, "user %q lacks the permission %q", p.Name, permission).
		WithHint("%s", permission.remedy())
}
