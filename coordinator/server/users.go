package server

import (
	"context"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

// roleOf reads a role; "" is a member.
func roleOf(op, text string) (role coordinator.Role, err error) {
	if text == "" {
		return coordinator.RoleMember, nil
	}
	if err := role.UnmarshalText([]byte(text)); err != nil {
		return role, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	return role, nil
}

func (s identityService) ListUsers(ctx context.Context, r *apiv1.ListUsersRequest) (*apiv1.ListUsersResponse, error) {
	filter := engine.UserFilter{Organization: r.GetOrganization(), Group: r.GetGroup(), Unaffiliated: r.GetUnaffiliated()}
	us, next, err := s.users.Users(ctx, callerOf(ctx), filter, pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListUsersResponse{Users: each(us, userToProto), NextPageToken: next}, nil
}

func (s identityService) CreateUser(ctx context.Context, r *apiv1.CreateUserRequest) (*apiv1.User, error) {
	role, err := roleOf("create user "+r.GetName(), r.GetRole())
	if err != nil {
		return nil, err
	}
	return one(userToProto)(s.users.CreateUser(ctx, callerOf(ctx), engine.NewUser{
		Name: r.GetName(), Email: r.GetEmail(), Organization: r.GetOrganization(), Groups: r.GetGroups(),
		UnixUser: r.GetUnixUser(), Admin: r.GetAdmin(), Role: role,
	}))
}

func (s identityService) UpdateUser(ctx context.Context, r *apiv1.UpdateUserRequest) (*apiv1.User, error) {
	return one(userToProto)(s.users.UpdateUser(ctx, forced(ctx, r), engine.UpdateUser{
		User: r.GetId(), Organization: r.GetOrganization(), Priority: r.Priority, UnixUser: r.UnixUser,
		Admin: r.Admin, Disabled: r.Disabled, CancelWork: r.GetCancelWork(),
	}))
}

func (s identityService) DeleteUser(ctx context.Context, r *apiv1.DeleteUserRequest) (*apiv1.DeleteUserResponse, error) {
	return &apiv1.DeleteUserResponse{}, s.users.DeleteUser(ctx, callerOf(ctx), r.GetOrganization(), r.GetId(), r.GetCancelWork())
}

func (s identityService) SetMember(ctx context.Context, r *apiv1.SetMemberRequest) (*apiv1.User, error) {
	role, err := roleOf("set member "+r.GetUser(), r.GetRole())
	if err != nil {
		return nil, err
	}
	return one(userToProto)(s.members.SetMembership(ctx, callerOf(ctx), engine.MemberChange{
		Organization: r.GetOrganization(), Group: r.GetGroup(), User: r.GetUser(), Role: role, Add: r.GetAdd(),
	}))
}

func (s identityService) RemoveMember(ctx context.Context, r *apiv1.RemoveMemberRequest) (*apiv1.User, error) {
	in := engine.MemberChange{Organization: r.GetOrganization(), Group: r.GetGroup(), User: r.GetUser()}
	return one(userToProto)(s.members.RemoveMembership(ctx, callerOf(ctx), in, r.GetCancelWork()))
}

const maxTokenTTL = 100 * 365 * 24 * time.Hour

// lifetime reads a number of seconds that must not be longer than a bound.
func lifetime(op string, seconds uint64, most time.Duration) (time.Duration, error) {
	if seconds > uint64(most/time.Second) {
		return 0, coordinator.Errorf(coordinator.ErrInvalid, op, "it would live longer than %s", most)
	}
	return time.Duration(seconds) * time.Second, nil
}

func (s identityService) CreateUserToken(ctx context.Context, r *apiv1.CreateUserTokenRequest) (*apiv1.CreateUserTokenResponse, error) {
	ttl, err := lifetime("create token", r.GetTtlSeconds(), maxTokenTTL)
	if err != nil {
		return nil, err
	}
	text, rec, err := s.tokens.CreateUserToken(ctx, callerOf(ctx), engine.NewToken{
		User: self(r.GetUser()), Organization: r.GetOrganization(), Name: r.GetName(), TTL: ttl})
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateUserTokenResponse{Token: text, Record: tokenToProto(rec)}, nil
}

func (s identityService) ListUserTokens(ctx context.Context, r *apiv1.ListUserTokensRequest) (*apiv1.ListUserTokensResponse, error) {
	list, err := s.tokens.UserTokens(ctx, callerOf(ctx), r.GetOrganization(), self(r.GetUser()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListUserTokensResponse{Tokens: each(list, tokenToProto)}, nil
}

func (s identityService) RevokeUserToken(ctx context.Context, r *apiv1.RevokeUserTokenRequest) (*apiv1.RevokeUserTokenResponse, error) {
	return &apiv1.RevokeUserTokenResponse{}, s.tokens.RevokeUserToken(ctx, callerOf(ctx), r.GetOrganization(), self(r.GetUser()), r.GetToken())
}

// self lets a path of REST, whose parts are not empty, name the caller.
func self(user string) string {
	if user == "-" {
		return ""
	}
	return user
}
