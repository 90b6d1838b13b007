package server

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

type identityService struct {
	apiv1.UnimplementedIdentityServer
	organizations organizationAPI
	groups        groupAPI
	users         userAPI
	members       membershipAPI
	tokens        tokenAPI
	grants        grantAPI
	queue         queueAPI
	version       string
}

func (s identityService) WhoAmI(ctx context.Context, _ *apiv1.WhoAmIRequest) (*apiv1.WhoAmIResponse, error) {
	u, o, err := s.organizations.WhoAmI(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	r := &apiv1.WhoAmIResponse{User: userToProto(u)}
	if o.ID != "" {
		r.Organization = organizationToProto(o)
	}
	return r, nil
}

func (s identityService) ListOrganizations(ctx context.Context, r *apiv1.ListOrganizationsRequest) (*apiv1.ListOrganizationsResponse, error) {
	os, next, err := s.organizations.Organizations(ctx, callerOf(ctx), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListOrganizationsResponse{Organizations: each(os, organizationToProto), NextPageToken: next}, nil
}

func (s identityService) CreateOrganization(ctx context.Context, r *apiv1.CreateOrganizationRequest) (*apiv1.Organization, error) {
	return one(organizationToProto)(s.organizations.CreateOrganization(ctx, callerOf(ctx), r.GetName(), r.GetPriority()))
}

func (s identityService) UpdateOrganization(ctx context.Context, r *apiv1.UpdateOrganizationRequest) (*apiv1.Organization, error) {
	return one(organizationToProto)(s.organizations.UpdateOrganization(ctx, forced(ctx, r), r.GetId(), r.Priority))
}

func (s identityService) ListGroups(ctx context.Context, r *apiv1.ListGroupsRequest) (*apiv1.ListGroupsResponse, error) {
	gs, next, err := s.groups.Groups(ctx, callerOf(ctx), r.GetOrganization(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListGroupsResponse{Groups: each(gs, groupToProto), NextPageToken: next}, nil
}

func (s identityService) CreateGroup(ctx context.Context, r *apiv1.CreateGroupRequest) (*apiv1.Group, error) {
	return one(groupToProto)(s.groups.CreateGroup(ctx, callerOf(ctx), r.GetName(), r.GetOrganization(), r.GetPriority()))
}

func (s identityService) UpdateGroup(ctx context.Context, r *apiv1.UpdateGroupRequest) (*apiv1.Group, error) {
	return one(groupToProto)(s.groups.UpdateGroup(ctx, forced(ctx, r), engine.UpdateGroup{
		Group: r.GetGroup(), Organization: r.GetOrganization(), Priority: r.Priority,
		Preempt: r.GetPreempt(), NoPreempt: r.GetNoPreempt(),
	}))
}

func (s identityService) DeleteGroup(ctx context.Context, r *apiv1.DeleteGroupRequest) (*apiv1.DeleteGroupResponse, error) {
	return &apiv1.DeleteGroupResponse{}, s.groups.DeleteGroup(ctx, callerOf(ctx), r.GetOrganization(), r.GetGroup())
}

func (s identityService) UseGroup(ctx context.Context, r *apiv1.UseGroupRequest) (*apiv1.User, error) {
	return one(userToProto)(s.groups.UseGroup(ctx, callerOf(ctx), r.GetGroup()))
}

func (s identityService) GetGrant(ctx context.Context, r *apiv1.GetGrantRequest) (*apiv1.Grant, error) {
	return one(grantToProto)(s.grants.Grant(ctx, callerOf(ctx), r.GetOrganization()))
}

func (s identityService) ListGrantHistory(ctx context.Context, r *apiv1.ListGrantHistoryRequest) (*apiv1.ListGrantHistoryResponse, error) {
	h, next, err := s.grants.GrantHistory(ctx, callerOf(ctx), r.GetOrganization(), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListGrantHistoryResponse{Steps: each(h.History, grantStepToProto), NextPageToken: next, ClusterId: h.Cluster,
		OrganizationId: string(h.Organization), Newest: h.Newest, Keys: string(h.Keys)}, nil
}

func (s identityService) RotateGrantKey(ctx context.Context, _ *apiv1.RotateGrantKeyRequest) (*apiv1.RotateGrantKeyResponse, error) {
	k, err := s.grants.RotateGrantKey(ctx, callerOf(ctx))
	return &apiv1.RotateGrantKeyResponse{Key: string(k.ID), Previous: string(k.Previous)}, err
}

func (s identityService) SetGrant(ctx context.Context, r *apiv1.SetGrantRequest) (*apiv1.Grant, error) {
	return one(grantToProto)(s.grants.SetGrant(ctx, callerOf(ctx), r.GetOrganization(), r.GetDefinitions()))
}

func (s identityService) AppendProvisionerDefinitions(ctx context.Context, r *apiv1.AppendProvisionerDefinitionsRequest) (*apiv1.AppendProvisionerDefinitionsResponse, error) {
	if err := checkAppend(r); err != nil {
		return nil, err
	}
	res, err := s.grants.AppendDefinitions(ctx, callerOf(ctx), r.GetDefinitions(), r.GetOrganizations(), r.GetAllOrganizations())
	if err != nil {
		return nil, err
	}
	return &apiv1.AppendProvisionerDefinitionsResponse{
		Results: each(res, func(a engine.AppendResult) *apiv1.AppendProvisionerDefinitionsResponse_Result {
			return &apiv1.AppendProvisionerDefinitionsResponse_Result{
				Definition: a.Definition, Organization: a.Organization, AlreadyExisted: a.AlreadyExisted,
			}
		}),
	}, nil
}

func checkAppend(r *apiv1.AppendProvisionerDefinitionsRequest) error {
	if r.GetAllOrganizations() == (len(r.GetOrganizations()) > 0) {
		return coordinator.Errorf(coordinator.ErrInvalid, "append to grants", "name organizations or set all_organizations, one of the two")
	}
	if len(r.GetDefinitions()) == 0 {
		return coordinator.Errorf(coordinator.ErrInvalid, "append to grants", "no definition is named")
	}
	return nil
}

func (s identityService) GetStatus(ctx context.Context, _ *apiv1.GetStatusRequest) (*apiv1.GetStatusResponse, error) {
	st, err := s.queue.Status(ctx)
	if err != nil {
		return nil, err
	}
	return statusToProto(s.version, st), nil
}

// forced is the caller of a request that may change replicas.
func forced(ctx context.Context, r interface{ GetForce() bool }) engine.Caller {
	c := callerOf(ctx)
	c.Force = r.GetForce()
	return c
}

// one converts the answer of an engine method unless it failed.
func one[A, B any](convert func(A) *B) func(A, error) (*B, error) {
	return func(a A, err error) (*B, error) {
		if err != nil {
			return nil, err
		}
		return convert(a), nil
	}
}
