package engine

import (
	"time"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// SetConfig is one request to replace the configuration.
type SetConfig struct {
	YAML         []byte
	File         string                // name for messages
	IfRevision   *coordinator.Revision // nil: whatever runs now
	AppendGrants bool
}

// SetConfigResult tells what a set did. Diagnostics hold warnings even when it succeeded.
type SetConfigResult struct {
	Revision    ConfigRevision
	Unchanged   bool
	Diagnostics strictyaml.Diagnostics
	Ungranted   []Ungranted
}

// Ungranted names organisations (slugs) whose grant does not name a configured definition.
type Ungranted struct {
	Definition    string
	Organizations []string
}

// Page asks for at most Size items after Token ("" from the start).
type Page struct {
	Size  int
	Token string
}

// NodeView is a node as users see it.
type NodeView struct {
	ID           coordinator.NodeID
	Status       NodeStatus
	Definition   coordinator.DefinitionID
	Conflicts    []coordinator.DefinitionID
	Reason       string
	Revision     coordinator.Revision // last one it evaluated
	Capacity     coordinator.Hardware
	Used         coordinator.Hardware
	LastSeen     time.Time
	AgentVersion string
	Annotations  map[string]string
	Runs         []coordinator.RunID
	Work         []NodeWork
	Warnings     []NodeWarning
	Facts        []byte // hwinfo.Facts as JSON
	Arch         string
	OS           string
	CPUModel     string
	Certificate  NodeCertificate          // of its connection; zero while it has none
	Bound        coordinator.DefinitionID // it joined for this definition only
	Launch       string                   // it joined for this launch
}

// NodeWork is a run on a node, and how long it may stay.
type NodeWork struct {
	Run        coordinator.RunID
	Class      coordinator.Class
	Status     coordinator.Status
	Started    time.Time
	EndsBy     time.Time // by its walltime; zero: never by itself
	NoticeEnds time.Time // it was told to end by then
}

// NodeWarning is a source the agent could not read, or a problem of the node.
type NodeWarning struct {
	Source  string
	Message string
}

// ConditionView is one definition's condition as the node evaluated it.
type ConditionView struct {
	Definition coordinator.DefinitionID
	Value      string // true, false, unknown, error
	Error      string
	Parts      []ConditionPart
}

// ConditionPart is a sub-expression that decided, with the facts it saw.
type ConditionPart struct {
	Source string
	Value  string
	Seen   map[string]string
}

// NodeExplanation is every condition of the node's last evaluation, in file order.
type NodeExplanation struct {
	Node       coordinator.NodeID
	Definition coordinator.DefinitionID
	Revision   coordinator.Revision
	Conditions []ConditionView
}

// DefinitionView is one configured definition with what the inventory knows of it.
type DefinitionView struct {
	coordinator.Definition
	Nodes, Ready int
	State        string // "active" or why not
	Capacity     *coordinator.Hardware
}

// StartWorkflow is one submission.
type StartWorkflow struct {
	YAML           []byte
	File           string
	Name           string
	Preemptible    *bool
	Priority       int32
	Group          string
	IdempotencyKey string
	ID             coordinator.WorkflowID // "" is the engine's to choose; the Federate's requests alone may set it
}

// StartWorkflowResult is the accepted workflow; Existed marks a repeated idempotency key.
type StartWorkflowResult struct {
	Workflow WorkflowView
	Existed  bool
	Warnings strictyaml.Diagnostics
}

// WorkflowView is a workflow as users see it. Jobs is nil in lists.
type WorkflowView struct {
	ID        coordinator.WorkflowID
	Name      string
	Status    coordinator.Status
	Owner     coordinator.Owner
	Submitted time.Time
	Started   time.Time // zero: not yet
	Ended     time.Time
	Counts    map[coordinator.Status]int
	Jobs      []JobView
}

// JobView is one allocation as users see it.
type JobView struct {
	ID                 coordinator.AllocationID
	Workflow           coordinator.WorkflowID
	Name               string // "train" or "train/3"
	Kind               coordinator.Kind
	Class              coordinator.Class
	Status             coordinator.Status
	Attempt            uint32
	Nodes              []coordinator.NodeID
	Definition         coordinator.DefinitionID
	Submitted          time.Time
	Started            time.Time
	Ended              time.Time
	ExitCode           *int32
	Signal             int32
	Message            string
	Reason             *Reason
	Position           int
	Ahead              int
	EstimatedStart     time.Time
	Preempted          uint32
	Failures           uint32
	NoticeEnds         time.Time
	DependsOn          []string
	WorkflowName, User string
	Reservation        string // name of the one it runs in, or waits for by name
}

// Reason says why an allocation waits, with the number of the scheduling rule.
type Reason struct {
	Code     string
	Rule     int
	Text     string
	Blocking []coordinator.AllocationID
	Nearest  coordinator.NodeID
}

// DefinitionOutcome is what became of one definition for one request.
type DefinitionOutcome struct {
	Definition  coordinator.DefinitionID
	Admissible  bool
	RefusedBy   string // policy, grant, annotation, resources, class, backend
	Reason      string
	CostPerHour *float64
	Ready       int
}

// JobExplanation is a job with the outcome of every definition, in the order they are tried.
type JobExplanation struct {
	Job         JobView
	Definitions []DefinitionOutcome
}

// CapacityView is what is free now, from the same state the scheduler decides on.
type CapacityView struct {
	GeneratedAt time.Time
	Definitions []DefinitionCapacity
	Classes     []ClassCapacity
}

// DefinitionCapacity sums the nodes of one definition.
type DefinitionCapacity struct {
	Definition   coordinator.DefinitionID
	Nodes, Ready int
	Total, Free  coordinator.Hardware
}

// ClassCapacity is one class's view. WaitMinutes is nil when unknown.
type ClassCapacity struct {
	Class       coordinator.Class
	FreeCores   coordinator.Cores
	FreeGPUs    uint32
	Waiting     int
	WaitMinutes *float64
}

// GrantView is an organisation's grant as it stands.
type GrantView struct {
	Organization coordinator.OrganizationID
	Slug         string
	Serial       uint64
	IssuedAt     time.Time
	Definitions  []string
	Orphans      []string
	State        string // valid, missing, altered, rolled-back, foreign-cluster, foreign-organisation
	JWS          string
}

// AppendResult is the outcome for one definition and organisation.
type AppendResult struct {
	Definition     string
	Organization   string
	AlreadyExisted bool
}

// StatusView is the cluster at a glance.
type StatusView struct {
	ClusterID              string
	Revision               coordinator.Revision
	NodesReady, NodesTotal int
	Waiting, Running       int
	Warnings               []string
}

// NodeStatus is the closed set of node states users see.
type NodeStatus string

const (
	NodeNotReady NodeStatus = "not-ready"
	NodeReady    NodeStatus = "ready"
	NodeCordoned NodeStatus = "cordoned"
	NodeDraining NodeStatus = "draining"
	NodeOffline  NodeStatus = "offline"
)

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
