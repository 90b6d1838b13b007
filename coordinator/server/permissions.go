package server

import (
	"fmt"
	"maps"
	"strings"
	"unicode"

	"google.golang.org/grpc"

	"substrate/coordinator/auth"
	"substrate/proto/apiv1"
)

// permissions names every RPC of the API with what it asks of its caller. The gate decides what needs no
// target; the rest is the engine's to decide, which knows whose work or organisation is meant.
func permissions() auth.Table {
	table := auth.Table{
		apiv1.Login_GetLoginOptions_FullMethodName: auth.PermissionPublic,
		apiv1.Login_LogIn_FullMethodName:           auth.PermissionPublic,

		apiv1.Config_SetConfig_FullMethodName:           auth.PermissionAdminCluster,
		apiv1.Config_GetConfig_FullMethodName:           auth.PermissionAdminCluster,
		apiv1.Config_ListConfigRevisions_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Config_ValidateConfig_FullMethodName:      auth.PermissionAdminCluster,
		apiv1.Config_PlanConfig_FullMethodName:          auth.PermissionAdminCluster,
		apiv1.Config_SuggestConfig_FullMethodName:       auth.PermissionAdminCluster,
		apiv1.Config_AuditPolicies_FullMethodName:       auth.PermissionAdminCluster,

		apiv1.Nodes_ListNodes_FullMethodName:         auth.PermissionUser,
		apiv1.Nodes_GetNode_FullMethodName:           auth.PermissionUser,
		apiv1.Nodes_ExplainNode_FullMethodName:       auth.PermissionUser,
		apiv1.Nodes_SetNodeScheduling_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Nodes_ListDefinitions_FullMethodName:   auth.PermissionUser,
		apiv1.Nodes_ListCatalogues_FullMethodName:    auth.PermissionAdminCluster,
		apiv1.Nodes_RefreshCatalogues_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Nodes_ListInstanceTypes_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Nodes_DiscoverHardware_FullMethodName:  auth.PermissionAdminCluster,
		apiv1.Nodes_ResetHardware_FullMethodName:     auth.PermissionAdminCluster,
		apiv1.Nodes_ResumeDefinition_FullMethodName:  auth.PermissionAdminCluster,
		apiv1.Nodes_CreateJoinToken_FullMethodName:   auth.PermissionAdminCluster,
		apiv1.Nodes_ListJoinTokens_FullMethodName:    auth.PermissionAdminCluster,
		apiv1.Nodes_RevokeJoinToken_FullMethodName:   auth.PermissionAdminCluster,
		apiv1.Nodes_RevokeNode_FullMethodName:        auth.PermissionAdminCluster,
		apiv1.Nodes_RemoveNode_FullMethodName:        auth.PermissionAdminCluster,

		apiv1.Backends_ListBackends_FullMethodName:   auth.PermissionAdminCluster,
		apiv1.Backends_GetBackend_FullMethodName:     auth.PermissionAdminCluster,
		apiv1.Backends_ReopenBackend_FullMethodName:  auth.PermissionAdminCluster,
		apiv1.Backends_ListLaunches_FullMethodName:   auth.PermissionAdminCluster,
		apiv1.Backends_WriteOffLaunch_FullMethodName: auth.PermissionAdminCluster,

		apiv1.Workflows_StartWorkflow_FullMethodName:    auth.PermissionSubmit,
		apiv1.Workflows_ValidateWorkflow_FullMethodName: auth.PermissionSubmit,
		apiv1.Workflows_ListWorkflows_FullMethodName:    auth.PermissionReadWork,
		apiv1.Workflows_GetWorkflow_FullMethodName:      auth.PermissionReadWork,
		apiv1.Workflows_CancelWorkflow_FullMethodName:   auth.PermissionManageWork,
		apiv1.Workflows_ExplainWorkflow_FullMethodName:  auth.PermissionReadWork,
		apiv1.Workflows_WatchEvents_FullMethodName:      auth.PermissionReadWork,
		apiv1.Workflows_ReadLog_FullMethodName:          auth.PermissionReadOutput,
		apiv1.Workflows_ShowQueue_FullMethodName:        auth.PermissionReadWork,
		apiv1.Workflows_GetCapacity_FullMethodName:      auth.PermissionUser,
		apiv1.Workflows_GetJob_FullMethodName:           auth.PermissionReadWork,

		apiv1.Reservations_CreateReservation_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Reservations_ListReservations_FullMethodName:  auth.PermissionReadOrg,
		apiv1.Reservations_GetReservation_FullMethodName:    auth.PermissionReadOrg,
		apiv1.Reservations_DeleteReservation_FullMethodName: auth.PermissionAdminCluster,

		apiv1.Maintenance_AnnounceMaintenance_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Maintenance_ListMaintenance_FullMethodName:     auth.PermissionUser,
		apiv1.Maintenance_CancelMaintenance_FullMethodName:   auth.PermissionAdminCluster,
		apiv1.Maintenance_ListStatusHistory_FullMethodName:   auth.PermissionUser,
		apiv1.Maintenance_AddStatusNote_FullMethodName:       auth.PermissionAdminCluster,

		apiv1.Workflows_ScoreWorkflow_FullMethodName: auth.PermissionSubmit,
	}
	maps.Copy(table, identityPermissions())
	maps.Copy(table, federationPermissions())
	return table
}

// federationPermissions are those of a Federate and its clusters.
func federationPermissions() auth.Table {
	return auth.Table{
		apiv1.Clusters_CreateFederationToken_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Clusters_GetFederate_FullMethodName:           auth.PermissionAdminCluster,
		apiv1.Clusters_ForgetFederate_FullMethodName:        auth.PermissionAdminCluster,
		apiv1.Clusters_RegisterCluster_FullMethodName:       auth.PermissionAdminCluster,
		apiv1.Clusters_ListClusters_FullMethodName:          auth.PermissionUser,
		apiv1.Clusters_GetCluster_FullMethodName:            auth.PermissionUser,
		apiv1.Clusters_SetClusterDrained_FullMethodName:     auth.PermissionAdminCluster,
		apiv1.Clusters_DeregisterCluster_FullMethodName:     auth.PermissionAdminCluster,
	}
}

// identityPermissions are those of who may do what, and of who did.
func identityPermissions() auth.Table {
	return auth.Table{
		apiv1.Identity_WhoAmI_FullMethodName:                       auth.PermissionUser,
		apiv1.Identity_ListOrganizations_FullMethodName:            auth.PermissionUser,
		apiv1.Identity_CreateOrganization_FullMethodName:           auth.PermissionAdminCluster,
		apiv1.Identity_UpdateOrganization_FullMethodName:           auth.PermissionAdminCluster,
		apiv1.Identity_ListGroups_FullMethodName:                   auth.PermissionReadOrg,
		apiv1.Identity_CreateGroup_FullMethodName:                  auth.PermissionManageOrg,
		apiv1.Identity_UpdateGroup_FullMethodName:                  auth.PermissionManageOrg,
		apiv1.Identity_ListUsers_FullMethodName:                    auth.PermissionReadOrg,
		apiv1.Identity_CreateUser_FullMethodName:                   auth.PermissionManageOrg,
		apiv1.Identity_UpdateUser_FullMethodName:                   auth.PermissionManageOrg,
		apiv1.Identity_DeleteGroup_FullMethodName:                  auth.PermissionManageOrg,
		apiv1.Identity_UseGroup_FullMethodName:                     auth.PermissionUser,
		apiv1.Identity_SetMember_FullMethodName:                    auth.PermissionManageGroup,
		apiv1.Identity_RemoveMember_FullMethodName:                 auth.PermissionManageGroup,
		apiv1.Identity_DeleteUser_FullMethodName:                   auth.PermissionManageOrg,
		apiv1.Identity_CreateUserToken_FullMethodName:              auth.PermissionManageUser,
		apiv1.Identity_ListUserTokens_FullMethodName:               auth.PermissionCurbUser,
		apiv1.Identity_RevokeUserToken_FullMethodName:              auth.PermissionCurbUser,
		apiv1.Identity_GetGrant_FullMethodName:                     auth.PermissionReadOrg,
		apiv1.Identity_ListGrantHistory_FullMethodName:             auth.PermissionReadOrg,
		apiv1.Identity_SetGrant_FullMethodName:                     auth.PermissionAdminCluster,
		apiv1.Identity_RotateGrantKey_FullMethodName:               auth.PermissionAdminCluster,
		apiv1.Identity_AppendProvisionerDefinitions_FullMethodName: auth.PermissionAdminCluster,
		apiv1.Identity_GetStatus_FullMethodName:                    auth.PermissionUser,

		apiv1.Audit_ListAudit_FullMethodName: auth.PermissionManageOrg,
	}
}

// checkListed refuses to serve an RPC that nobody has decided about.
func checkListed(table auth.Table, services map[string]grpc.ServiceInfo) error {
	var methods []string
	for service, info := range services {
		for _, m := range info.Methods {
			methods = append(methods, "/"+service+"/"+m.Name)
		}
	}
	if unlisted := table.Unlisted(methods); len(unlisted) > 0 {
		return fmt.Errorf("cannot serve the API: no permission is declared for %s", strings.Join(unlisted, ", "))
	}
	return nil
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
