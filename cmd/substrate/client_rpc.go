package main

import (
	"context"

	"google.golang.org/grpc"

	"substrate/proto/apiv1"
)

// rpc is one unary method of the API.
type rpc[Q, R any] = func(context.Context, Q, ...grpc.CallOption) (R, error)

// The API's methods, for invoke: (*connection).listNodes.

func (c *connection) setConfig() rpc[*apiv1.SetConfigRequest, *apiv1.SetConfigResponse] {
	return c.config.SetConfig
}

func (c *connection) getConfig() rpc[*apiv1.GetConfigRequest, *apiv1.GetConfigResponse] {
	return c.config.GetConfig
}

func (c *connection) planConfig() rpc[*apiv1.PlanConfigRequest, *apiv1.PlanConfigResponse] {
	return c.config.PlanConfig
}

func (c *connection) suggestConfig() rpc[*apiv1.SuggestConfigRequest, *apiv1.SuggestConfigResponse] {
	return c.config.SuggestConfig
}

func (c *connection) auditPolicies() rpc[*apiv1.AuditPoliciesRequest, *apiv1.AuditPoliciesResponse] {
	return c.config.AuditPolicies
}

func (c *connection) listConfigRevisions() rpc[*apiv1.ListConfigRevisionsRequest, *apiv1.ListConfigRevisionsResponse] {
	return c.config.ListConfigRevisions
}

func (c *connection) listNodes() rpc[*apiv1.ListNodesRequest, *apiv1.ListNodesResponse] {
	return c.nodes.ListNodes
}

func (c *connection) getNode() rpc[*apiv1.GetNodeRequest, *apiv1.Node] {
	return c.nodes.GetNode
}

func (c *connection) explainNode() rpc[*apiv1.GetNodeRequest, *apiv1.ExplainNodeResponse] {
	return c.nodes.ExplainNode
}

func (c *connection) setNodeScheduling() rpc[*apiv1.SetNodeSchedulingRequest, *apiv1.Node] {
	return c.nodes.SetNodeScheduling
}

func (c *connection) listDefinitions() rpc[*apiv1.ListDefinitionsRequest, *apiv1.ListDefinitionsResponse] {
	return c.nodes.ListDefinitions
}

func (c *connection) createJoinToken() rpc[*apiv1.CreateJoinTokenRequest, *apiv1.CreateJoinTokenResponse] {
	return c.nodes.CreateJoinToken
}

func (c *connection) startWorkflow() rpc[*apiv1.StartWorkflowRequest, *apiv1.StartWorkflowResponse] {
	return c.workflows.StartWorkflow
}

func (c *connection) validateWorkflow() rpc[*apiv1.ValidateWorkflowRequest, *apiv1.ValidateWorkflowResponse] {
	return c.workflows.ValidateWorkflow
}

func (c *connection) listWorkflows() rpc[*apiv1.ListWorkflowsRequest, *apiv1.ListWorkflowsResponse] {
	return c.workflows.ListWorkflows
}

func (c *connection) getWorkflow() rpc[*apiv1.GetWorkflowRequest, *apiv1.Workflow] {
	return c.workflows.GetWorkflow
}

func (c *connection) cancelWorkflow() rpc[*apiv1.CancelWorkflowRequest, *apiv1.Workflow] {
	return c.workflows.CancelWorkflow
}

func (c *connection) explainWorkflow() rpc[*apiv1.ExplainWorkflowRequest, *apiv1.ExplainWorkflowResponse] {
	return c.workflows.ExplainWorkflow
}

func (c *connection) showQueue() rpc[*apiv1.ShowQueueRequest, *apiv1.ShowQueueResponse] {
	return c.workflows.ShowQueue
}

func (c *connection) getCapacity() rpc[*apiv1.GetCapacityRequest, *apiv1.GetCapacityResponse] {
	return c.workflows.GetCapacity
}

func (c *connection) whoAmI() rpc[*apiv1.WhoAmIRequest, *apiv1.WhoAmIResponse] {
	return c.identity.WhoAmI
}

func (c *connection) listOrganizations() rpc[*apiv1.ListOrganizationsRequest, *apiv1.ListOrganizationsResponse] {
	return c.identity.ListOrganizations
}

func (c *connection) createOrganization() rpc[*apiv1.CreateOrganizationRequest, *apiv1.Organization] {
	return c.identity.CreateOrganization
}

func (c *connection) updateOrganization() rpc[*apiv1.UpdateOrganizationRequest, *apiv1.Organization] {
	return c.identity.UpdateOrganization
}

func (c *connection) listGroups() rpc[*apiv1.ListGroupsRequest, *apiv1.ListGroupsResponse] {
	return c.identity.ListGroups
}

func (c *connection) createGroup() rpc[*apiv1.CreateGroupRequest, *apiv1.Group] {
	return c.identity.CreateGroup
}

func (c *connection) updateGroup() rpc[*apiv1.UpdateGroupRequest, *apiv1.Group] {
	return c.identity.UpdateGroup
}

func (c *connection) listUsers() rpc[*apiv1.ListUsersRequest, *apiv1.ListUsersResponse] {
	return c.identity.ListUsers
}

func (c *connection) createUser() rpc[*apiv1.CreateUserRequest, *apiv1.User] {
	return c.identity.CreateUser
}

func (c *connection) updateUser() rpc[*apiv1.UpdateUserRequest, *apiv1.User] {
	return c.identity.UpdateUser
}

func (c *connection) createUserToken() rpc[*apiv1.CreateUserTokenRequest, *apiv1.CreateUserTokenResponse] {
	return c.identity.CreateUserToken
}

func (c *connection) getGrant() rpc[*apiv1.GetGrantRequest, *apiv1.Grant] {
	return c.identity.GetGrant
}

func (c *connection) listGrantHistory() rpc[*apiv1.ListGrantHistoryRequest, *apiv1.ListGrantHistoryResponse] {
	return c.identity.ListGrantHistory
}

func (c *connection) rotateGrantKey() rpc[*apiv1.RotateGrantKeyRequest, *apiv1.RotateGrantKeyResponse] {
	return c.identity.RotateGrantKey
}
func (c *connection) setGrant() rpc[*apiv1.SetGrantRequest, *apiv1.Grant] {
	return c.identity.SetGrant
}

func (c *connection) appendProvisionerDefinitions() rpc[*apiv1.AppendProvisionerDefinitionsRequest, *apiv1.AppendProvisionerDefinitionsResponse] {
	return c.identity.AppendProvisionerDefinitions
}

func (c *connection) getStatus() rpc[*apiv1.GetStatusRequest, *apiv1.GetStatusResponse] {
	return c.identity.GetStatus
}

func (c *connection) createReservation() rpc[*apiv1.CreateReservationRequest, *apiv1.CreateReservationResponse] {
	return c.reservations.CreateReservation
}

func (c *connection) listReservations() rpc[*apiv1.ListReservationsRequest, *apiv1.ListReservationsResponse] {
	return c.reservations.ListReservations
}

func (c *connection) getReservation() rpc[*apiv1.GetReservationRequest, *apiv1.Reservation] {
	return c.reservations.GetReservation
}

func (c *connection) deleteReservation() rpc[*apiv1.DeleteReservationRequest, *apiv1.Reservation] {
	return c.reservations.DeleteReservation
}

func (c *connection) announceMaintenance() rpc[*apiv1.AnnounceMaintenanceRequest, *apiv1.AnnounceMaintenanceResponse] {
	return c.maintenance.AnnounceMaintenance
}

func (c *connection) listMaintenance() rpc[*apiv1.ListMaintenanceRequest, *apiv1.ListMaintenanceResponse] {
	return c.maintenance.ListMaintenance
}

func (c *connection) cancelMaintenance() rpc[*apiv1.CancelMaintenanceRequest, *apiv1.MaintenanceWindow] {
	return c.maintenance.CancelMaintenance
}

func (c *connection) listStatusHistory() rpc[*apiv1.ListStatusHistoryRequest, *apiv1.ListStatusHistoryResponse] {
	return c.maintenance.ListStatusHistory
}

func (c *connection) addStatusNote() rpc[*apiv1.AddStatusNoteRequest, *apiv1.StatusEntry] {
	return c.maintenance.AddStatusNote
}

func (c *connection) deleteGroup() rpc[*apiv1.DeleteGroupRequest, *apiv1.DeleteGroupResponse] {
	return c.identity.DeleteGroup
}

func (c *connection) useGroup() rpc[*apiv1.UseGroupRequest, *apiv1.User] {
	return c.identity.UseGroup
}

func (c *connection) setMember() rpc[*apiv1.SetMemberRequest, *apiv1.User] {
	return c.identity.SetMember
}

func (c *connection) removeMember() rpc[*apiv1.RemoveMemberRequest, *apiv1.User] {
	return c.identity.RemoveMember
}

func (c *connection) deleteUser() rpc[*apiv1.DeleteUserRequest, *apiv1.DeleteUserResponse] {
	return c.identity.DeleteUser
}

func (c *connection) listUserTokens() rpc[*apiv1.ListUserTokensRequest, *apiv1.ListUserTokensResponse] {
	return c.identity.ListUserTokens
}

func (c *connection) revokeUserToken() rpc[*apiv1.RevokeUserTokenRequest, *apiv1.RevokeUserTokenResponse] {
	return c.identity.RevokeUserToken
}

func (c *connection) listJoinTokens() rpc[*apiv1.ListJoinTokensRequest, *apiv1.ListJoinTokensResponse] {
	return c.nodes.ListJoinTokens
}

func (c *connection) revokeJoinToken() rpc[*apiv1.RevokeJoinTokenRequest, *apiv1.RevokeJoinTokenResponse] {
	return c.nodes.RevokeJoinToken
}

func (c *connection) revokeNode() rpc[*apiv1.RevokeNodeRequest, *apiv1.Node] {
	return c.nodes.RevokeNode
}

func (c *connection) discoverHardware() rpc[*apiv1.DiscoverHardwareRequest, *apiv1.DiscoverHardwareResponse] {
	return c.nodes.DiscoverHardware
}

func (c *connection) listCatalogues() rpc[*apiv1.ListCataloguesRequest, *apiv1.ListCataloguesResponse] {
	return c.nodes.ListCatalogues
}

func (c *connection) refreshCatalogues() rpc[*apiv1.RefreshCataloguesRequest, *apiv1.RefreshCataloguesResponse] {
	return c.nodes.RefreshCatalogues
}

func (c *connection) listInstanceTypes() rpc[*apiv1.ListInstanceTypesRequest, *apiv1.ListInstanceTypesResponse] {
	return c.nodes.ListInstanceTypes
}

func (c *connection) resumeDefinition() rpc[*apiv1.ResumeDefinitionRequest, *apiv1.ResumeDefinitionResponse] {
	return c.nodes.ResumeDefinition
}

func (c *connection) resetHardware() rpc[*apiv1.ResetHardwareRequest, *apiv1.ResetHardwareResponse] {
	return c.nodes.ResetHardware
}

func (c *connection) removeNode() rpc[*apiv1.RemoveNodeRequest, *apiv1.RemoveNodeResponse] {
	return c.nodes.RemoveNode
}

func (c *connection) listAudit() rpc[*apiv1.ListAuditRequest, *apiv1.ListAuditResponse] {
	return c.audit.ListAudit
}
func (c *connection) getLoginOptions() rpc[*apiv1.GetLoginOptionsRequest, *apiv1.LoginOptions] {
	return c.login.GetLoginOptions
}

func (c *connection) logIn() rpc[*apiv1.LogInRequest, *apiv1.LogInResponse] { return c.login.LogIn }

func (c *connection) listBackends() rpc[*apiv1.ListBackendsRequest, *apiv1.ListBackendsResponse] {
	return c.backends.ListBackends
}

func (c *connection) getBackend() rpc[*apiv1.GetBackendRequest, *apiv1.Backend] {
	return c.backends.GetBackend
}

func (c *connection) reopenBackend() rpc[*apiv1.GetBackendRequest, *apiv1.Backend] {
	return c.backends.ReopenBackend
}

func (c *connection) writeOffLaunch() rpc[*apiv1.WriteOffLaunchRequest, *apiv1.WriteOffLaunchResponse] {
	return c.backends.WriteOffLaunch
}

func (c *connection) listLaunches() rpc[*apiv1.ListLaunchesRequest, *apiv1.ListLaunchesResponse] {
	return c.backends.ListLaunches
}
