package server

import (
	"context"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/config/access"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/engine"
	"substrate/coordinator/grant"
	"substrate/strictyaml"
)

// Engine is what the API needs of the coordinator; *engine.Engine has it. The parts are
// apart so that a test fakes only what it uses.
type Engine interface {
	authAPI
	loginAPI
	configAPI
	planAPI
	nodeAPI
	backendAPI
	hardwareAPI
	catalogueAPI
	workflowAPI
	queueAPI
	streamAPI
	organizationAPI
	groupAPI
	userAPI
	membershipAPI
	tokenAPI
	joinTokenAPI
	grantAPI
	reservationAPI
	maintenanceAPI
	scoreAPI
	federateAPI
	auditAPI
}

type scoreAPI interface {
	ScoreWorkflow(context.Context, engine.Caller, engine.StartWorkflow) (engine.ScoreView, error)
}

// federateAPI is the Federate that a cluster belongs to, for its administrators.
type federateAPI interface {
	Federate(context.Context, engine.Caller) (engine.FederateView, error)
	CreateFederationToken(ctx context.Context, c engine.Caller, ttl time.Duration) (string, time.Time, error)
	ForgetFederate(context.Context, engine.Caller) error
}

type authAPI interface {
	Authenticate(ctx context.Context, token string) (engine.Caller, error)
	NoteRefused(ctx context.Context, refused error) error
}

type configAPI interface {
	SetConfig(context.Context, engine.Caller, engine.SetConfig) (engine.SetConfigResult, error)
	ValidateConfig(ctx context.Context, file string, yaml []byte) strictyaml.Diagnostics
	Config(context.Context, engine.Caller, *coordinator.Revision) (engine.ConfigRevision, []byte, error)
	ConfigRevisions(context.Context, engine.Caller, engine.Page) ([]engine.ConfigRevision, string, error)
	Definitions(context.Context) (coordinator.Revision, []engine.DefinitionView, error)
}

type planAPI interface {
	PlanConfig(ctx context.Context, c engine.Caller, file string, yaml []byte, members int) (*fleet.Plan, error)
	SuggestConfig(context.Context, engine.Caller) (*fleet.Suggestion, error)
	AuditPolicies(context.Context, engine.Caller, engine.AuditPolicies) ([]access.Row, string, error)
}

type catalogueAPI interface {
	Catalogues(context.Context, engine.Caller) ([]engine.CatalogueView, error)
	RefreshCatalogues(context.Context, engine.Caller, []string) ([]engine.CatalogueView, error)
	InstanceTypes(context.Context, engine.Caller, engine.ListTypes, engine.Page) ([]engine.TypeView, string, error)
}

type nodeAPI interface {
	Nodes(context.Context, engine.Caller, coordinator.DefinitionID, engine.Page) ([]engine.NodeView, string, error)
	Node(context.Context, engine.Caller, coordinator.NodeID) (engine.NodeView, error)
	ExplainNode(context.Context, coordinator.NodeID) (engine.NodeExplanation, error)
	SetScheduling(ctx context.Context, c engine.Caller, node coordinator.NodeID, action, reason string, active bool) (engine.NodeView, error)
}

// hardwareAPI is what is known of the types that nodes are launched of.
type hardwareAPI interface {
	Discover(context.Context, engine.Caller, []coordinator.DefinitionID) ([]engine.DiscoveryView, error)
	ResetHardware(context.Context, engine.Caller, coordinator.DefinitionID) error
	ResumeDefinition(context.Context, engine.Caller, coordinator.DefinitionID) error
}

type backendAPI interface {
	Backends(context.Context, engine.Caller) ([]engine.BackendView, error)
	ReopenBackend(ctx context.Context, c engine.Caller, name string) error
	WriteOffLaunch(ctx context.Context, c engine.Caller, launch string) error
	Launches(context.Context, engine.Caller, engine.Page) ([]engine.LaunchView, string, error)
}

type joinTokenAPI interface {
	CreateJoinToken(context.Context, engine.Caller, engine.NewJoinToken) (string, engine.JoinTokenView, error)
	JoinTokens(context.Context, engine.Caller, engine.Page) ([]engine.JoinTokenView, string, error)
	RevokeJoinToken(ctx context.Context, c engine.Caller, id string) error
	RevokeNode(ctx context.Context, c engine.Caller, node coordinator.NodeID, reason string) (engine.NodeView, error)
	RemoveNode(ctx context.Context, c engine.Caller, node coordinator.NodeID, reason string, force bool) error
}

type workflowAPI interface {
	StartWorkflow(context.Context, engine.Caller, engine.StartWorkflow) (engine.StartWorkflowResult, error)
	ValidateWorkflow(ctx context.Context, c engine.Caller, file string, yaml []byte) strictyaml.Diagnostics
	Workflows(ctx context.Context, c engine.Caller, status string, page engine.Page) ([]engine.WorkflowView, string, error)
	Workflow(ctx context.Context, c engine.Caller, ref string) (engine.WorkflowView, error)
	CancelWorkflow(ctx context.Context, c engine.Caller, ref, job string) (engine.WorkflowView, error)
}

type queueAPI interface {
	ExplainWorkflow(ctx context.Context, c engine.Caller, ref, job string) ([]engine.JobExplanation, error)
	Job(context.Context, engine.Caller, coordinator.AllocationID) (engine.JobView, error)
	Queue(ctx context.Context, c engine.Caller, mine bool, class coordinator.Class, page engine.Page) ([]engine.JobView, int, string, error)
	Capacity(context.Context, engine.Caller) (engine.CapacityView, error)
	Status(context.Context) (engine.StatusView, error)
}

type streamAPI interface {
	Events(ctx context.Context, c engine.Caller, workflow string, after uint64, follow bool, send func([]engine.Event) error) error
	Log(ctx context.Context, c engine.Caller, req engine.LogRequest, send func(engine.LogPart) error) error
}

type organizationAPI interface {
	WhoAmI(context.Context, engine.Caller) (engine.UserView, coordinator.Organization, error)
	Organizations(context.Context, engine.Caller, engine.Page) ([]coordinator.Organization, string, error)
	CreateOrganization(ctx context.Context, c engine.Caller, slug string, priority int32) (coordinator.Organization, error)
	UpdateOrganization(ctx context.Context, c engine.Caller, id string, priority *int32) (coordinator.Organization, error)
}

type groupAPI interface {
	Groups(ctx context.Context, c engine.Caller, organization string, page engine.Page) ([]engine.GroupView, string, error)
	CreateGroup(ctx context.Context, c engine.Caller, slug, organization string, priority int32) (engine.GroupView, error)
	UpdateGroup(context.Context, engine.Caller, engine.UpdateGroup) (engine.GroupView, error)
	DeleteGroup(ctx context.Context, c engine.Caller, organization, group string) error
	UseGroup(ctx context.Context, c engine.Caller, group string) (engine.UserView, error)
}

type userAPI interface {
	Users(context.Context, engine.Caller, engine.UserFilter, engine.Page) ([]engine.UserView, string, error)
	CreateUser(context.Context, engine.Caller, engine.NewUser) (engine.UserView, error)
	UpdateUser(context.Context, engine.Caller, engine.UpdateUser) (engine.UserView, error)
	DeleteUser(ctx context.Context, c engine.Caller, organization, user string, cancelWork bool) error
}

type membershipAPI interface {
	SetMembership(context.Context, engine.Caller, engine.MemberChange) (engine.UserView, error)
	RemoveMembership(ctx context.Context, c engine.Caller, in engine.MemberChange, cancelWork bool) (engine.UserView, error)
}

type tokenAPI interface {
	CreateUserToken(context.Context, engine.Caller, engine.NewToken) (string, engine.TokenView, error)
	UserTokens(ctx context.Context, c engine.Caller, organization, user string) ([]engine.TokenView, error)
	RevokeUserToken(ctx context.Context, c engine.Caller, organization, user, token string) error
}

type auditAPI interface {
	Audit(context.Context, engine.Caller, engine.AuditFilter, engine.Page) ([]engine.AuditEntry, string, error)
}

type grantAPI interface {
	Grant(ctx context.Context, c engine.Caller, organization string) (engine.GrantView, error)
	GrantHistory(ctx context.Context, c engine.Caller, organization string, p engine.Page) (grant.Export, string, error)
	SetGrant(ctx context.Context, c engine.Caller, organization string, definitions []string) (engine.GrantView, error)
	RotateGrantKey(ctx context.Context, c engine.Caller) (engine.GrantKey, error)
	AppendDefinitions(ctx context.Context, c engine.Caller, definitions, organizations []string, all bool) ([]engine.AppendResult, error)
}

type reservationAPI interface {
	CreateReservation(context.Context, engine.Caller, engine.NewReservation) (engine.ReservationView, []string, error)
	Reservations(ctx context.Context, c engine.Caller, organization string, all bool, page engine.Page) ([]engine.ReservationView, string, error)
	Reservation(ctx context.Context, c engine.Caller, ref string) (engine.ReservationView, error)
	DeleteReservation(ctx context.Context, c engine.Caller, ref string) (engine.ReservationView, error)
}

type maintenanceAPI interface {
	AnnounceMaintenance(context.Context, engine.Caller, engine.NewMaintenance) (engine.MaintenanceView, []string, error)
	Maintenance(ctx context.Context, c engine.Caller, all bool, page engine.Page) ([]engine.MaintenanceView, string, error)
	CancelMaintenance(ctx context.Context, c engine.Caller, id string) (engine.MaintenanceView, error)
	StatusHistory(context.Context, engine.Caller, engine.Page) ([]engine.StatusEntry, string, error)
	AddStatusNote(ctx context.Context, c engine.Caller, message string) (engine.StatusEntry, error)
}

// Agents is what the agents' server needs of the coordinator.
type Agents interface {
	nodeCertificates
	Connect(context.Context, coordinator.NodeID, engine.Hello) (Session, error)
}

// Session is one node's stream as the engine sees it.
type Session interface {
	sessionReports
	sessionOrders
}

type sessionReports interface {
	Hardware(context.Context, engine.HardwareReport) error
	Conditions(context.Context, engine.ConditionReport) error
	RunStatus(context.Context, []engine.RunStatus) error
	AppendLog(run coordinator.RunID, stream string, offset uint64, data []byte, last bool) (next uint64, err error)
	Reclaim(ctx context.Context, at time.Time, text string) error
}

type sessionOrders interface {
	Next(context.Context) ([]engine.ToNode, error)
	Offsets() []engine.LogOffset
	Look() *engine.Look
	Close()
}

// joiner is the engine with its own session type.
type joiner[S Session] interface {
	nodeCertificates
	Connect(context.Context, coordinator.NodeID, engine.Hello) (S, error)
}

type nodeCertificates interface {
	Join(context.Context, engine.JoinRequest) (certificatePEM, caPEM []byte, err error)
	RenewCertificate(ctx context.Context, node coordinator.NodeID, cert engine.NodeCertificate, csr []byte) (certificatePEM, caPEM []byte, err error)
}

// AgentsOf lets an engine whose Connect returns a concrete session serve agents.
func AgentsOf[S Session](e joiner[S]) Agents { return agentsOf[S]{e} }

type agentsOf[S Session] struct{ joiner[S] }

func (a agentsOf[S]) Connect(ctx context.Context, node coordinator.NodeID, hello engine.Hello) (Session, error) {
	s, err := a.joiner.Connect(ctx, node, hello)
	if err != nil {
		return nil, err
	}
	return s, nil
}
