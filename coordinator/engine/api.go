// Package engine is the one loop that decides and acts: event, snapshot, decision, durable write, effect.
// It does not speak the wire; coordinator/server does.
package engine

// Surface for coordinator/server (all methods are safe for concurrent use; every answer shows
// only what is durable):
//
//	SetConfig(ctx, Caller, SetConfig) (SetConfigResult, error)      // *coordinator.Error; strictyaml.Diagnostics in the chain when refused
//	ValidateConfig(ctx, file string, yaml []byte) strictyaml.Diagnostics
//	Config(ctx, rev *coordinator.Revision) (ConfigRevision, []byte, error)
//	ConfigRevisions(ctx, Page) ([]ConfigRevision, string, error)    // newest first
//	Nodes(ctx, definition coordinator.DefinitionID, Page) ([]NodeView, string, error)
//	Node(ctx, coordinator.NodeID) (NodeView, error)
//	ExplainNode(ctx, coordinator.NodeID) (NodeExplanation, error)
//	SetScheduling(ctx, Caller, coordinator.NodeID, action, reason string, active bool) (NodeView, error)
//	Definitions(ctx) (coordinator.Revision, []DefinitionView, error)
//	CreateJoinToken(ctx, Caller, ttl time.Duration, uses uint32) (text string, expires time.Time, err error)
//	Join(ctx, token, node string, csr []byte) (certificatePEM, caPEM []byte, err error)
//	StartWorkflow(ctx, Caller, StartWorkflow) (StartWorkflowResult, error)
//	ValidateWorkflow(ctx, Caller, file string, yaml []byte) strictyaml.Diagnostics
//	Workflows(ctx, Caller, status string, Page) ([]WorkflowView, string, error)
//	Workflow(ctx, Caller, ref string) (WorkflowView, error)         // id, unique prefix, or name of the newest
//	CancelWorkflow(ctx, Caller, ref, job string) (WorkflowView, error)
//	ExplainWorkflow(ctx, Caller, ref, job string) ([]JobExplanation, error)
//	Job(ctx, Caller, coordinator.AllocationID) (JobView, error)
//	Queue(ctx, Caller, mine bool, class coordinator.Class, Page) (jobs []JobView, total int, next string, err error)
//	Capacity(ctx) (CapacityView, error)
//	Events(ctx, Caller, workflow string, after uint64, follow bool, send func([]Event) error) error // blocks
//	Log(ctx, Caller, LogRequest, send func(LogPart) error) error                                    // blocks
//	Authenticate(ctx, token string) (Caller, error)
//	identity: WhoAmI, Organizations, CreateOrganization, UpdateOrganization, Groups, CreateGroup, UpdateGroup,
//	          Users, CreateUser, UpdateUser, CreateUserToken        // see identity.go
//	grants:   Grant, SetGrant, AppendDefinitions                    // see grants.go
//	Status(ctx) (StatusView, error)
//
// Agents:
//
//	Connect(ctx, coordinator.NodeID, Hello) (*Session, error)       // a second stream of a node closes the first
//	(*Session) Next(ctx) ([]ToNode, error)                          // blocks for at least one message
//	(*Session) Hardware(ctx, HardwareReport) error
//	(*Session) Conditions(ctx, ConditionReport) error
//	(*Session) RunStatus(ctx, []RunStatus) error
//	(*Session) AppendLog(run coordinator.RunID, stream string, offset uint64, data []byte, last bool) (next uint64, err error)
//	(*Session) Offsets() []LogOffset                                // for the welcome message
//	(*Session) Close()

import "substrate/coordinator"

// LogRequest names one job's output. Attempt 0 is the newest; Stream "" is both.
type LogRequest struct {
	Workflow string
	Job      string
	Attempt  uint32
	Stream   string
	Follow   bool
}

// LogPart is a piece of one stream, of one rank if several nodes share the run.
type LogPart struct {
	Job    string
	Stream string
	Data   []byte
	Rank   uint32
	Ranks  uint32 // how many the run has; 1 without a gang
}

// LogOffset is how much of a stream is stored.
type LogOffset struct {
	Run    coordinator.RunID
	Stream string
	Offset uint64
}
