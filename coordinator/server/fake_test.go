package server

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/config/access"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/engine"
	"substrate/coordinator/grant"
	"substrate/strictyaml"
)

// fakeEngine answers through its fields; a field that is not set fails the call.
type fakeEngine struct {
	fakeFederation
	logInFunc               func(context.Context, engine.LogIn) (string, engine.TokenView, error)
	authenticateFunc        func(context.Context, string) (engine.Caller, error)
	setConfigFunc           func(context.Context, engine.Caller, engine.SetConfig) (engine.SetConfigResult, error)
	validateConfigFunc      func(context.Context, string, []byte) strictyaml.Diagnostics
	planConfigFunc          func(context.Context, engine.Caller, string, []byte, int) (*fleet.Plan, error)
	cataloguesFunc          func(context.Context, engine.Caller) ([]engine.CatalogueView, error)
	refreshCataloguesFunc   func(context.Context, engine.Caller, []string) ([]engine.CatalogueView, error)
	instanceTypesFunc       func(context.Context, engine.Caller, engine.ListTypes, engine.Page) ([]engine.TypeView, string, error)
	suggestConfigFunc       func(context.Context, engine.Caller) (*fleet.Suggestion, error)
	configFunc              func(context.Context, engine.Caller, *coordinator.Revision) (engine.ConfigRevision, []byte, error)
	configRevisionsFunc     func(context.Context, engine.Caller, engine.Page) ([]engine.ConfigRevision, string, error)
	definitionsFunc         func(context.Context) (coordinator.Revision, []engine.DefinitionView, error)
	nodesFunc               func(context.Context, engine.Caller, coordinator.DefinitionID, engine.Page) ([]engine.NodeView, string, error)
	nodeFunc                func(context.Context, engine.Caller, coordinator.NodeID) (engine.NodeView, error)
	explainNodeFunc         func(context.Context, coordinator.NodeID) (engine.NodeExplanation, error)
	setSchedulingFunc       func(context.Context, engine.Caller, coordinator.NodeID, string, string, bool) (engine.NodeView, error)
	createJoinTokenFunc     func(context.Context, engine.Caller, engine.NewJoinToken) (string, engine.JoinTokenView, error)
	startWorkflowFunc       func(context.Context, engine.Caller, engine.StartWorkflow) (engine.StartWorkflowResult, error)
	validateWorkflowFunc    func(context.Context, engine.Caller, string, []byte) strictyaml.Diagnostics
	workflowsFunc           func(context.Context, engine.Caller, string, engine.Page) ([]engine.WorkflowView, string, error)
	workflowFunc            func(context.Context, engine.Caller, string) (engine.WorkflowView, error)
	cancelWorkflowFunc      func(context.Context, engine.Caller, string, string) (engine.WorkflowView, error)
	explainWorkflowFunc     func(context.Context, engine.Caller, string, string) ([]engine.JobExplanation, error)
	jobFunc                 func(context.Context, engine.Caller, coordinator.AllocationID) (engine.JobView, error)
	queueFunc               func(context.Context, engine.Caller, bool, coordinator.Class, engine.Page) ([]engine.JobView, int, string, error)
	capacityFunc            func(context.Context, engine.Caller) (engine.CapacityView, error)
	statusFunc              func(context.Context) (engine.StatusView, error)
	eventsFunc              func(context.Context, engine.Caller, string, uint64, bool, func([]engine.Event) error) error
	logFunc                 func(context.Context, engine.Caller, engine.LogRequest, func(engine.LogPart) error) error
	whoAmIFunc              func(context.Context, engine.Caller) (engine.UserView, coordinator.Organization, error)
	organizationsFunc       func(context.Context, engine.Caller, engine.Page) ([]coordinator.Organization, string, error)
	createOrganizationFunc  func(context.Context, engine.Caller, string, int32) (coordinator.Organization, error)
	updateOrganizationFunc  func(context.Context, engine.Caller, string, *int32) (coordinator.Organization, error)
	groupsFunc              func(context.Context, engine.Caller, string, engine.Page) ([]engine.GroupView, string, error)
	createGroupFunc         func(context.Context, engine.Caller, string, string, int32) (engine.GroupView, error)
	updateGroupFunc         func(context.Context, engine.Caller, engine.UpdateGroup) (engine.GroupView, error)
	usersFunc               func(context.Context, engine.Caller, engine.UserFilter, engine.Page) ([]engine.UserView, string, error)
	createUserFunc          func(context.Context, engine.Caller, engine.NewUser) (engine.UserView, error)
	updateUserFunc          func(context.Context, engine.Caller, engine.UpdateUser) (engine.UserView, error)
	createUserTokenFunc     func(context.Context, engine.Caller, engine.NewToken) (string, engine.TokenView, error)
	joinTokensFunc          func(context.Context, engine.Caller, engine.Page) ([]engine.JoinTokenView, string, error)
	revokeJoinTokenFunc     func(context.Context, engine.Caller, string) error
	revokeNodeFunc          func(context.Context, engine.Caller, coordinator.NodeID, string) (engine.NodeView, error)
	discoverFunc            func(context.Context, engine.Caller, []coordinator.DefinitionID) ([]engine.DiscoveryView, error)
	resetHardwareFunc       func(context.Context, engine.Caller, coordinator.DefinitionID) error
	resumeDefinitionFunc    func(context.Context, engine.Caller, coordinator.DefinitionID) error
	removeNodeFunc          func(context.Context, engine.Caller, coordinator.NodeID, string, bool) error
	deleteGroupFunc         func(context.Context, engine.Caller, string, string) error
	useGroupFunc            func(context.Context, engine.Caller, string) (engine.UserView, error)
	deleteUserFunc          func(context.Context, engine.Caller, string, string, bool) error
	setMembershipFunc       func(context.Context, engine.Caller, engine.MemberChange) (engine.UserView, error)
	removeMembershipFunc    func(context.Context, engine.Caller, engine.MemberChange, bool) (engine.UserView, error)
	userTokensFunc          func(context.Context, engine.Caller, string, string) ([]engine.TokenView, error)
	revokeUserTokenFunc     func(context.Context, engine.Caller, string, string, string) error
	auditFunc               func(context.Context, engine.Caller, engine.AuditFilter, engine.Page) ([]engine.AuditEntry, string, error)
	noteRefusedFunc         func(context.Context, error) error
	grantFunc               func(context.Context, engine.Caller, string) (engine.GrantView, error)
	grantHistoryFunc        func(context.Context, engine.Caller, string, engine.Page) (grant.Export, string, error)
	rotateGrantKeyFunc      func(context.Context, engine.Caller) (engine.GrantKey, error)
	setGrantFunc            func(context.Context, engine.Caller, string, []string) (engine.GrantView, error)
	appendDefinitionsFunc   func(context.Context, engine.Caller, []string, []string, bool) ([]engine.AppendResult, error)
	createReservationFunc   func(context.Context, engine.Caller, engine.NewReservation) (engine.ReservationView, []string, error)
	reservationsFunc        func(context.Context, engine.Caller, string, bool, engine.Page) ([]engine.ReservationView, string, error)
	reservationFunc         func(context.Context, engine.Caller, string) (engine.ReservationView, error)
	deleteReservationFunc   func(context.Context, engine.Caller, string) (engine.ReservationView, error)
	announceMaintenanceFunc func(context.Context, engine.Caller, engine.NewMaintenance) (engine.MaintenanceView, []string, error)
	maintenanceFunc         func(context.Context, engine.Caller, bool, engine.Page) ([]engine.MaintenanceView, string, error)
	cancelMaintenanceFunc   func(context.Context, engine.Caller, string) (engine.MaintenanceView, error)
	statusHistoryFunc       func(context.Context, engine.Caller, engine.Page) ([]engine.StatusEntry, string, error)
	addStatusNoteFunc       func(context.Context, engine.Caller, string) (engine.StatusEntry, error)
	auditPoliciesFunc       func(context.Context, engine.Caller, engine.AuditPolicies) ([]access.Row, string, error)
}

var _ Engine = (*fakeEngine)(nil)

func unset(method string) error {
	return coordinator.Errorf(coordinator.ErrUnsupported, "call "+method, "the test does not set it")
}

func (f *fakeEngine) LogIn(a0 context.Context, a1 engine.LogIn) (string, engine.TokenView, error) {
	if f.logInFunc == nil {
		return "", engine.TokenView{}, unset("LogIn")
	}
	return f.logInFunc(a0, a1)
}

func (f *fakeEngine) Authenticate(a0 context.Context, a1 string) (engine.Caller, error) {
	if f.authenticateFunc == nil {
		return engine.Caller{}, unset("Authenticate")
	}
	return f.authenticateFunc(a0, a1)
}

func (f *fakeEngine) SetConfig(a0 context.Context, a1 engine.Caller, a2 engine.SetConfig) (engine.SetConfigResult, error) {
	if f.setConfigFunc == nil {
		return engine.SetConfigResult{}, unset("SetConfig")
	}
	return f.setConfigFunc(a0, a1, a2)
}

func (f *fakeEngine) ValidateConfig(a0 context.Context, a1 string, a2 []byte) strictyaml.Diagnostics {
	if f.validateConfigFunc == nil {
		return nil
	}
	return f.validateConfigFunc(a0, a1, a2)
}

func (f *fakeEngine) PlanConfig(a0 context.Context, a1 engine.Caller, a2 string, a3 []byte, a4 int) (*fleet.Plan, error) {
	if f.planConfigFunc == nil {
		return nil, unset("PlanConfig")
	}
	return f.planConfigFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) AuditPolicies(a0 context.Context, a1 engine.Caller, a2 engine.AuditPolicies) ([]access.Row, string, error) {
	if f.auditPoliciesFunc == nil {
		return nil, "", unset("AuditPolicies")
	}
	return f.auditPoliciesFunc(a0, a1, a2)
}

func (f *fakeEngine) SuggestConfig(a0 context.Context, a1 engine.Caller) (*fleet.Suggestion, error) {
	if f.suggestConfigFunc == nil {
		return nil, unset("SuggestConfig")
	}
	return f.suggestConfigFunc(a0, a1)
}

func (f *fakeEngine) Config(a0 context.Context, a1 engine.Caller, a2 *coordinator.Revision) (engine.ConfigRevision, []byte, error) {
	if f.configFunc == nil {
		return engine.ConfigRevision{}, nil, unset("Config")
	}
	return f.configFunc(a0, a1, a2)
}

func (f *fakeEngine) ConfigRevisions(a0 context.Context, a1 engine.Caller, a2 engine.Page) ([]engine.ConfigRevision, string, error) {
	if f.configRevisionsFunc == nil {
		return nil, "", unset("ConfigRevisions")
	}
	return f.configRevisionsFunc(a0, a1, a2)
}

func (f *fakeEngine) Definitions(a0 context.Context) (coordinator.Revision, []engine.DefinitionView, error) {
	if f.definitionsFunc == nil {
		return 0, nil, unset("Definitions")
	}
	return f.definitionsFunc(a0)
}

func (f *fakeEngine) Nodes(a0 context.Context, a1 engine.Caller, a2 coordinator.DefinitionID, a3 engine.Page) ([]engine.NodeView, string, error) {
	if f.nodesFunc == nil {
		return nil, "", unset("Nodes")
	}
	return f.nodesFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Node(a0 context.Context, a1 engine.Caller, a2 coordinator.NodeID) (engine.NodeView, error) {
	if f.nodeFunc == nil {
		return engine.NodeView{}, unset("Node")
	}
	return f.nodeFunc(a0, a1, a2)
}

func (f *fakeEngine) ExplainNode(a0 context.Context, a1 coordinator.NodeID) (engine.NodeExplanation, error) {
	if f.explainNodeFunc == nil {
		return engine.NodeExplanation{}, unset("ExplainNode")
	}
	return f.explainNodeFunc(a0, a1)
}

func (f *fakeEngine) SetScheduling(a0 context.Context, a1 engine.Caller, a2 coordinator.NodeID, a3 string, a4 string, a5 bool) (engine.NodeView, error) {
	if f.setSchedulingFunc == nil {
		return engine.NodeView{}, unset("SetScheduling")
	}
	return f.setSchedulingFunc(a0, a1, a2, a3, a4, a5)
}

func (f *fakeEngine) CreateJoinToken(a0 context.Context, a1 engine.Caller, a2 engine.NewJoinToken) (string, engine.JoinTokenView, error) {
	if f.createJoinTokenFunc == nil {
		return "", engine.JoinTokenView{}, unset("CreateJoinToken")
	}
	return f.createJoinTokenFunc(a0, a1, a2)
}

func (f *fakeEngine) StartWorkflow(a0 context.Context, a1 engine.Caller, a2 engine.StartWorkflow) (engine.StartWorkflowResult, error) {
	if f.startWorkflowFunc == nil {
		return engine.StartWorkflowResult{}, unset("StartWorkflow")
	}
	return f.startWorkflowFunc(a0, a1, a2)
}

func (f *fakeEngine) ValidateWorkflow(a0 context.Context, a1 engine.Caller, a2 string, a3 []byte) strictyaml.Diagnostics {
	if f.validateWorkflowFunc == nil {
		return nil
	}
	return f.validateWorkflowFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Workflows(a0 context.Context, a1 engine.Caller, a2 string, a3 engine.Page) ([]engine.WorkflowView, string, error) {
	if f.workflowsFunc == nil {
		return nil, "", unset("Workflows")
	}
	return f.workflowsFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Workflow(a0 context.Context, a1 engine.Caller, a2 string) (engine.WorkflowView, error) {
	if f.workflowFunc == nil {
		return engine.WorkflowView{}, unset("Workflow")
	}
	return f.workflowFunc(a0, a1, a2)
}

func (f *fakeEngine) CancelWorkflow(a0 context.Context, a1 engine.Caller, a2 string, a3 string) (engine.WorkflowView, error) {
	if f.cancelWorkflowFunc == nil {
		return engine.WorkflowView{}, unset("CancelWorkflow")
	}
	return f.cancelWorkflowFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) ExplainWorkflow(a0 context.Context, a1 engine.Caller, a2 string, a3 string) ([]engine.JobExplanation, error) {
	if f.explainWorkflowFunc == nil {
		return nil, unset("ExplainWorkflow")
	}
	return f.explainWorkflowFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Job(a0 context.Context, a1 engine.Caller, a2 coordinator.AllocationID) (engine.JobView, error) {
	if f.jobFunc == nil {
		return engine.JobView{}, unset("Job")
	}
	return f.jobFunc(a0, a1, a2)
}

func (f *fakeEngine) Queue(a0 context.Context, a1 engine.Caller, a2 bool, a3 coordinator.Class, a4 engine.Page) ([]engine.JobView, int, string, error) {
	if f.queueFunc == nil {
		return nil, 0, "", unset("Queue")
	}
	return f.queueFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) Capacity(a0 context.Context, a1 engine.Caller) (engine.CapacityView, error) {
	if f.capacityFunc == nil {
		return engine.CapacityView{}, unset("Capacity")
	}
	return f.capacityFunc(a0, a1)
}

func (f *fakeEngine) Status(a0 context.Context) (engine.StatusView, error) {
	if f.statusFunc == nil {
		return engine.StatusView{}, unset("Status")
	}
	return f.statusFunc(a0)
}

func (f *fakeEngine) Events(ctx context.Context, c engine.Caller, workflow string, after uint64, follow bool, send func([]engine.Event) error) error {
	if f.eventsFunc == nil {
		return unset("Events")
	}
	return f.eventsFunc(ctx, c, workflow, after, follow, send)
}

func (f *fakeEngine) Log(ctx context.Context, c engine.Caller, r engine.LogRequest, send func(engine.LogPart) error) error {
	if f.logFunc == nil {
		return unset("Log")
	}
	return f.logFunc(ctx, c, r, send)
}

func (f *fakeEngine) WhoAmI(a0 context.Context, a1 engine.Caller) (engine.UserView, coordinator.Organization, error) {
	if f.whoAmIFunc == nil {
		return engine.UserView{}, coordinator.Organization{}, unset("WhoAmI")
	}
	return f.whoAmIFunc(a0, a1)
}

func (f *fakeEngine) Organizations(a0 context.Context, a1 engine.Caller, a2 engine.Page) ([]coordinator.Organization, string, error) {
	if f.organizationsFunc == nil {
		return nil, "", unset("Organizations")
	}
	return f.organizationsFunc(a0, a1, a2)
}

func (f *fakeEngine) CreateOrganization(a0 context.Context, a1 engine.Caller, a2 string, a3 int32) (coordinator.Organization, error) {
	if f.createOrganizationFunc == nil {
		return coordinator.Organization{}, unset("CreateOrganization")
	}
	return f.createOrganizationFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) UpdateOrganization(a0 context.Context, a1 engine.Caller, a2 string, a3 *int32) (coordinator.Organization, error) {
	if f.updateOrganizationFunc == nil {
		return coordinator.Organization{}, unset("UpdateOrganization")
	}
	return f.updateOrganizationFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Groups(a0 context.Context, a1 engine.Caller, a2 string, a3 engine.Page) ([]engine.GroupView, string, error) {
	if f.groupsFunc == nil {
		return nil, "", unset("Groups")
	}
	return f.groupsFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) CreateGroup(a0 context.Context, a1 engine.Caller, a2 string, a3 string, a4 int32) (engine.GroupView, error) {
	if f.createGroupFunc == nil {
		return engine.GroupView{}, unset("CreateGroup")
	}
	return f.createGroupFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) UpdateGroup(a0 context.Context, a1 engine.Caller, a2 engine.UpdateGroup) (engine.GroupView, error) {
	if f.updateGroupFunc == nil {
		return engine.GroupView{}, unset("UpdateGroup")
	}
	return f.updateGroupFunc(a0, a1, a2)
}

func (f *fakeEngine) Users(a0 context.Context, a1 engine.Caller, a2 engine.UserFilter, a3 engine.Page) ([]engine.UserView, string, error) {
	if f.usersFunc == nil {
		return nil, "", unset("Users")
	}
	return f.usersFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) CreateUser(a0 context.Context, a1 engine.Caller, a2 engine.NewUser) (engine.UserView, error) {
	if f.createUserFunc == nil {
		return engine.UserView{}, unset("CreateUser")
	}
	return f.createUserFunc(a0, a1, a2)
}

func (f *fakeEngine) UpdateUser(a0 context.Context, a1 engine.Caller, a2 engine.UpdateUser) (engine.UserView, error) {
	if f.updateUserFunc == nil {
		return engine.UserView{}, unset("UpdateUser")
	}
	return f.updateUserFunc(a0, a1, a2)
}

func (f *fakeEngine) CreateUserToken(a0 context.Context, a1 engine.Caller, a2 engine.NewToken) (string, engine.TokenView, error) {
	if f.createUserTokenFunc == nil {
		return "", engine.TokenView{}, unset("CreateUserToken")
	}
	return f.createUserTokenFunc(a0, a1, a2)
}

func (f *fakeEngine) Grant(a0 context.Context, a1 engine.Caller, a2 string) (engine.GrantView, error) {
	if f.grantFunc == nil {
		return engine.GrantView{}, unset("Grant")
	}
	return f.grantFunc(a0, a1, a2)
}

func (f *fakeEngine) GrantHistory(a0 context.Context, a1 engine.Caller, a2 string, a3 engine.Page) (grant.Export, string, error) {
	if f.grantHistoryFunc == nil {
		return grant.Export{}, "", unset("GrantHistory")
	}
	return f.grantHistoryFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) RotateGrantKey(a0 context.Context, a1 engine.Caller) (engine.GrantKey, error) {
	if f.rotateGrantKeyFunc == nil {
		return engine.GrantKey{}, unset("RotateGrantKey")
	}
	return f.rotateGrantKeyFunc(a0, a1)
}

func (f *fakeEngine) SetGrant(a0 context.Context, a1 engine.Caller, a2 string, a3 []string) (engine.GrantView, error) {
	if f.setGrantFunc == nil {
		return engine.GrantView{}, unset("SetGrant")
	}
	return f.setGrantFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) AppendDefinitions(a0 context.Context, a1 engine.Caller, a2 []string, a3 []string, a4 bool) ([]engine.AppendResult, error) {
	if f.appendDefinitionsFunc == nil {
		return nil, unset("AppendDefinitions")
	}
	return f.appendDefinitionsFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) CreateReservation(a0 context.Context, a1 engine.Caller, a2 engine.NewReservation) (engine.ReservationView, []string, error) {
	if f.createReservationFunc == nil {
		return engine.ReservationView{}, nil, unset("CreateReservation")
	}
	return f.createReservationFunc(a0, a1, a2)
}

func (f *fakeEngine) Reservations(a0 context.Context, a1 engine.Caller, a2 string, a3 bool, a4 engine.Page) ([]engine.ReservationView, string, error) {
	if f.reservationsFunc == nil {
		return nil, "", unset("Reservations")
	}
	return f.reservationsFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) Reservation(a0 context.Context, a1 engine.Caller, a2 string) (engine.ReservationView, error) {
	if f.reservationFunc == nil {
		return engine.ReservationView{}, unset("Reservation")
	}
	return f.reservationFunc(a0, a1, a2)
}

func (f *fakeEngine) DeleteReservation(a0 context.Context, a1 engine.Caller, a2 string) (engine.ReservationView, error) {
	if f.deleteReservationFunc == nil {
		return engine.ReservationView{}, unset("DeleteReservation")
	}
	return f.deleteReservationFunc(a0, a1, a2)
}

func (f *fakeEngine) AnnounceMaintenance(a0 context.Context, a1 engine.Caller, a2 engine.NewMaintenance) (engine.MaintenanceView, []string, error) {
	if f.announceMaintenanceFunc == nil {
		return engine.MaintenanceView{}, nil, unset("AnnounceMaintenance")
	}
	return f.announceMaintenanceFunc(a0, a1, a2)
}

func (f *fakeEngine) Maintenance(a0 context.Context, a1 engine.Caller, a2 bool, a3 engine.Page) ([]engine.MaintenanceView, string, error) {
	if f.maintenanceFunc == nil {
		return nil, "", unset("Maintenance")
	}
	return f.maintenanceFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) CancelMaintenance(a0 context.Context, a1 engine.Caller, a2 string) (engine.MaintenanceView, error) {
	if f.cancelMaintenanceFunc == nil {
		return engine.MaintenanceView{}, unset("CancelMaintenance")
	}
	return f.cancelMaintenanceFunc(a0, a1, a2)
}

func (f *fakeEngine) StatusHistory(a0 context.Context, a1 engine.Caller, a2 engine.Page) ([]engine.StatusEntry, string, error) {
	if f.statusHistoryFunc == nil {
		return nil, "", unset("StatusHistory")
	}
	return f.statusHistoryFunc(a0, a1, a2)
}

func (f *fakeEngine) AddStatusNote(a0 context.Context, a1 engine.Caller, a2 string) (engine.StatusEntry, error) {
	if f.addStatusNoteFunc == nil {
		return engine.StatusEntry{}, unset("AddStatusNote")
	}
	return f.addStatusNoteFunc(a0, a1, a2)
}

func (f *fakeEngine) JoinTokens(a0 context.Context, a1 engine.Caller, a2 engine.Page) ([]engine.JoinTokenView, string, error) {
	if f.joinTokensFunc == nil {
		return nil, "", unset("JoinTokens")
	}
	return f.joinTokensFunc(a0, a1, a2)
}

func (f *fakeEngine) RevokeJoinToken(a0 context.Context, a1 engine.Caller, a2 string) error {
	if f.revokeJoinTokenFunc == nil {
		return unset("RevokeJoinToken")
	}
	return f.revokeJoinTokenFunc(a0, a1, a2)
}

func (f *fakeEngine) RevokeNode(a0 context.Context, a1 engine.Caller, a2 coordinator.NodeID, a3 string) (engine.NodeView, error) {
	if f.revokeNodeFunc == nil {
		return engine.NodeView{}, unset("RevokeNode")
	}
	return f.revokeNodeFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Catalogues(a0 context.Context, a1 engine.Caller) ([]engine.CatalogueView, error) {
	if f.cataloguesFunc == nil {
		return nil, unset("Catalogues")
	}
	return f.cataloguesFunc(a0, a1)
}

func (f *fakeEngine) RefreshCatalogues(a0 context.Context, a1 engine.Caller, a2 []string) ([]engine.CatalogueView, error) {
	if f.refreshCataloguesFunc == nil {
		return nil, unset("RefreshCatalogues")
	}
	return f.refreshCataloguesFunc(a0, a1, a2)
}

func (f *fakeEngine) InstanceTypes(a0 context.Context, a1 engine.Caller, a2 engine.ListTypes, a3 engine.Page) ([]engine.TypeView, string, error) {
	if f.instanceTypesFunc == nil {
		return nil, "", unset("InstanceTypes")
	}
	return f.instanceTypesFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) Discover(a0 context.Context, a1 engine.Caller, a2 []coordinator.DefinitionID) ([]engine.DiscoveryView, error) {
	if f.discoverFunc == nil {
		return nil, unset("Discover")
	}
	return f.discoverFunc(a0, a1, a2)
}

func (f *fakeEngine) ResumeDefinition(a0 context.Context, a1 engine.Caller, a2 coordinator.DefinitionID) error {
	if f.resumeDefinitionFunc == nil {
		return unset("ResumeDefinition")
	}
	return f.resumeDefinitionFunc(a0, a1, a2)
}

func (f *fakeEngine) ResetHardware(a0 context.Context, a1 engine.Caller, a2 coordinator.DefinitionID) error {
	if f.resetHardwareFunc == nil {
		return unset("ResetHardware")
	}
	return f.resetHardwareFunc(a0, a1, a2)
}

func (f *fakeEngine) RemoveNode(a0 context.Context, a1 engine.Caller, a2 coordinator.NodeID, a3 string, a4 bool) error {
	if f.removeNodeFunc == nil {
		return unset("RemoveNode")
	}
	return f.removeNodeFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) DeleteGroup(a0 context.Context, a1 engine.Caller, a2 string, a3 string) error {
	if f.deleteGroupFunc == nil {
		return unset("DeleteGroup")
	}
	return f.deleteGroupFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) UseGroup(a0 context.Context, a1 engine.Caller, a2 string) (engine.UserView, error) {
	if f.useGroupFunc == nil {
		return engine.UserView{}, unset("UseGroup")
	}
	return f.useGroupFunc(a0, a1, a2)
}

func (f *fakeEngine) DeleteUser(a0 context.Context, a1 engine.Caller, a2 string, a3 string, a4 bool) error {
	if f.deleteUserFunc == nil {
		return unset("DeleteUser")
	}
	return f.deleteUserFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) SetMembership(a0 context.Context, a1 engine.Caller, a2 engine.MemberChange) (engine.UserView, error) {
	if f.setMembershipFunc == nil {
		return engine.UserView{}, unset("SetMembership")
	}
	return f.setMembershipFunc(a0, a1, a2)
}

func (f *fakeEngine) RemoveMembership(a0 context.Context, a1 engine.Caller, a2 engine.MemberChange, a3 bool) (engine.UserView, error) {
	if f.removeMembershipFunc == nil {
		return engine.UserView{}, unset("RemoveMembership")
	}
	return f.removeMembershipFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) UserTokens(a0 context.Context, a1 engine.Caller, a2 string, a3 string) ([]engine.TokenView, error) {
	if f.userTokensFunc == nil {
		return nil, unset("UserTokens")
	}
	return f.userTokensFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) RevokeUserToken(a0 context.Context, a1 engine.Caller, a2 string, a3 string, a4 string) error {
	if f.revokeUserTokenFunc == nil {
		return unset("RevokeUserToken")
	}
	return f.revokeUserTokenFunc(a0, a1, a2, a3, a4)
}

func (f *fakeEngine) Audit(a0 context.Context, a1 engine.Caller, a2 engine.AuditFilter, a3 engine.Page) ([]engine.AuditEntry, string, error) {
	if f.auditFunc == nil {
		return nil, "", unset("Audit")
	}
	return f.auditFunc(a0, a1, a2, a3)
}

func (f *fakeEngine) NoteRefused(a0 context.Context, a1 error) error {
	if f.noteRefusedFunc == nil {
		return unset("NoteRefused")
	}
	return f.noteRefusedFunc(a0, a1)
}
