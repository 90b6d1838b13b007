package server

import (
	"strings"
	"unicode"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

// Permission is what a caller must be to use an RPC. What a member may do to which group or
// workflow is the engine's to say.
type Permission string

const (
	AnyUser            Permission = "any-user"
	OrganizationMember Permission = "organisation-member"
	ClusterAdmin       Permission = "cluster-admin"
)

// permissions names every RPC of the API; an RPC that is missing here is refused to everybody.
func permissions() map[string]Permission {
	return map[string]Permission{
		apiv1.Config_SetConfig_FullMethodName:           ClusterAdmin,
		apiv1.Config_GetConfig_FullMethodName:           ClusterAdmin,
		apiv1.Config_ListConfigRevisions_FullMethodName: ClusterAdmin,
		apiv1.Config_ValidateConfig_FullMethodName:      ClusterAdmin,

		apiv1.Nodes_ListNodes_FullMethodName:         AnyUser,
		apiv1.Nodes_GetNode_FullMethodName:           AnyUser,
		apiv1.Nodes_ExplainNode_FullMethodName:       AnyUser,
		apiv1.Nodes_SetNodeScheduling_FullMethodName: ClusterAdmin,
		apiv1.Nodes_ListDefinitions_FullMethodName:   AnyUser,
		apiv1.Nodes_CreateJoinToken_FullMethodName:   ClusterAdmin,

		apiv1.Workflows_StartWorkflow_FullMethodName:    OrganizationMember,
		apiv1.Workflows_ValidateWorkflow_FullMethodName: OrganizationMember,
		apiv1.Workflows_ListWorkflows_FullMethodName:    OrganizationMember,
		apiv1.Workflows_GetWorkflow_FullMethodName:      OrganizationMember,
		apiv1.Workflows_CancelWorkflow_FullMethodName:   OrganizationMember,
		apiv1.Workflows_ExplainWorkflow_FullMethodName:  OrganizationMember,
		apiv1.Workflows_WatchEvents_FullMethodName:      OrganizationMember,
		apiv1.Workflows_ReadLog_FullMethodName:          OrganizationMember,
		apiv1.Workflows_ShowQueue_FullMethodName:        OrganizationMember,
		apiv1.Workflows_GetCapacity_FullMethodName:      AnyUser,
		apiv1.Workflows_GetJob_FullMethodName:           OrganizationMember,

		apiv1.Identity_WhoAmI_FullMethodName:                       AnyUser,
		apiv1.Identity_ListOrganizations_FullMethodName:            ClusterAdmin,
		apiv1.Identity_CreateOrganization_FullMethodName:           ClusterAdmin,
		apiv1.Identity_UpdateOrganization_FullMethodName:           ClusterAdmin,
		apiv1.Identity_ListGroups_FullMethodName:                   OrganizationMember,
		apiv1.Identity_CreateGroup_FullMethodName:                  OrganizationMember,
		apiv1.Identity_UpdateGroup_FullMethodName:                  OrganizationMember,
		apiv1.Identity_ListUsers_FullMethodName:                    OrganizationMember,
		apiv1.Identity_CreateUser_FullMethodName:                   OrganizationMember,
		apiv1.Identity_UpdateUser_FullMethodName:                   OrganizationMember,
		apiv1.Identity_CreateUserToken_FullMethodName:              OrganizationMember,
		apiv1.Identity_GetGrant_FullMethodName:                     OrganizationMember,
		apiv1.Identity_SetGrant_FullMethodName:                     ClusterAdmin,
		apiv1.Identity_AppendProvisionerDefinitions_FullMethodName: ClusterAdmin,
		apiv1.Identity_GetStatus_FullMethodName:                    AnyUser,
	}
}

// allows reports whether the caller has the permission.
func (p Permission) allows(c engine.Caller) bool {
	switch p {
	case AnyUser:
		return c.User != ""
	case OrganizationMember:
		return c.User != "" && (c.Admin || c.Organization != "")
	case ClusterAdmin:
		return c.User != "" && c.Admin
	}
	return false
}

func (p Permission) check(method string, c engine.Caller) error {
	if p.allows(c) {
		return nil
	}
	return coordinator.Errorf(coordinator.ErrDenied, deed(method), "user %q lacks the permission %q", c.Name, p).
		WithHint("ask a cluster administrator")
}

// deed says a method in words: "append provisioner definitions".
func deed(method string) string {
	name := method[strings.LastIndex(method, "/")+1:]
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' && i > 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
