package engine

import "substrate/coordinator"

// Identity surface:
//
//	WhoAmI(ctx, Caller) (coordinator.User, coordinator.Organization, error)
//	Organizations(ctx) ([]coordinator.Organization, error)
//	CreateOrganization(ctx, Caller, slug string, priority int32) (coordinator.Organization, error)
//	UpdateOrganization(ctx, Caller, id string, priority *int32) (coordinator.Organization, error)
//	Groups(ctx, Caller, organization string) ([]GroupView, error)
//	CreateGroup(ctx, Caller, slug, organization string, priority int32) (GroupView, error)
//	UpdateGroup(ctx, Caller, UpdateGroup) (GroupView, error)
//	Users(ctx, Caller, organization string) ([]UserView, error)
//	CreateUser(ctx, Caller, NewUser) (UserView, error)
//	UpdateUser(ctx, Caller, id string, priority *int32, unixUser *string) (UserView, error)
//	CreateUserToken(ctx, Caller, user string) (text string, err error)

// GroupView is a group with names resolved.
type GroupView struct {
	coordinator.Group
	OrganizationSlug string
	PreemptNames     []string
}

// UserView is a user with names resolved.
type UserView struct {
	coordinator.User
	OrganizationSlug string
	GroupSlugs       []string
}

// NewUser describes a user to create; Organization "" is the caller's.
type NewUser struct {
	Name, Email, Organization string
	Groups                    []string
	UnixUser                  string
	Admin                     bool
}

// UpdateGroup changes priority and preemption list; groups are named by slug or id.
type UpdateGroup struct {
	Group, Organization string
	Priority            *int32
	Preempt, NoPreempt  []string
}
