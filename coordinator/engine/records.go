package engine

import (
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/federation"
	"substrate/coordinator/grant"
	"substrate/coordinator/provision"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
)

// This file is the disk format: everything that the engine stores as JSON (keys.go tells where), besides the nouns of package coordinator,
// records of auth, grant and catalogue, the entries of audit.go, and RunStatus, which agents send. Fields are added, never renamed or given another
// meaning; a golden file holds them.

const maxPast = 16 // attempts that are remembered

// clusterRecord is the first thing a new cluster writes.
type clusterRecord struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	Schema  int       `json:"schema"`
	// Federate is the role it was founded in: to route to other clusters instead of running work.
	Federate bool `json:"federate,omitempty"`
}

// newestGrant is kept apart from the grant itself, or a rollback would be invisible.
type newestGrant struct {
	Serial grant.Serial `json:"serial"`
	Digest grant.Digest `json:"digest"`
}

// workflowRecord is an accepted submission; it never changes.
type workflowRecord struct {
	Spec        coordinator.WorkflowSpec `json:"spec"`
	Owner       coordinator.Owner        `json:"owner"`
	Priorities  priorities               `json:"priorities"`         // as at submission
	Preempts    []coordinator.GroupID    `json:"preempts,omitempty"` // the group's list as at submission (rule 17)
	Submitted   time.Time                `json:"submitted"`
	Idempotency string                   `json:"idempotency,omitempty"`
	Digest      string                   `json:"digest,omitempty"` // sha256 of the file, with an idempotency key
}

type priorities struct {
	Organization int32 `json:"organization,omitempty"`
	Group        int32 `json:"group,omitempty"`
	User         int32 `json:"user,omitempty"`
}

// allocRecord is what is stored. An allocation without a record has not been placed yet.
type allocRecord struct {
	Status     coordinator.Status       `json:"status"`
	Attempt    uint32                   `json:"attempt,omitempty"`
	Definition coordinator.DefinitionID `json:"definition,omitempty"`
	Ranks      []rankRecord             `json:"ranks,omitempty"` // one per node, by node id
	Placed     time.Time                `json:"placed,omitzero"`
	// Reservation is the one that it was started in.
	Reservation sched.ReservationID `json:"reservation,omitempty"`
	Started     time.Time           `json:"started,omitzero"`
	Ended       time.Time           `json:"ended,omitzero"`
	ExitCode    *int32              `json:"exit_code,omitempty"`
	Signal      int32               `json:"signal,omitempty"`
	Message     string              `json:"message,omitempty"`
	Stop        stopReason          `json:"stop,omitempty"`
	NoticeEnds  time.Time           `json:"notice_ends,omitzero"`
	Preempted   uint32              `json:"preempted,omitempty"`
	Failures    uint32              `json:"failures,omitempty"`
	NodeFaults  uint32              `json:"node_faults,omitempty"`
	Returned    bool                `json:"returned,omitempty"` // front of its class (rule 3)
	Launches    uint32              `json:"launches,omitempty"` // for it that came to nothing
	NotBefore   time.Time           `json:"not_before,omitzero"`
	Priorities  *priorities         `json:"priorities,omitempty"` // as at the last start; running work keeps them
	Past        []attemptRecord     `json:"past,omitempty"`       // newest last, at most maxPast
}

// attemptRecord is what is kept of an attempt that was sent back to the queue.
type attemptRecord struct {
	Attempt uint32               `json:"attempt"`
	Nodes   []coordinator.NodeID `json:"nodes"`
	Started time.Time            `json:"started,omitzero"`
	Ended   time.Time            `json:"ended,omitzero"`
	Message string               `json:"message,omitempty"`
}

// rankRecord is one node's share of a run.
type rankRecord struct {
	Node  coordinator.NodeID `json:"node"`
	State RunState           `json:"state"`
	shareRecord
	End *RunStatus `json:"end,omitempty"`
	// Book is of a run that is a job of a batch system: what was submitted, and what may still arrive.
	Book *dispatch.Book `json:"book,omitempty"`
}

// shareRecord is what a run has, or is promised, of one node beyond counts.
type shareRecord struct {
	Devices []string      `json:"devices,omitempty"` // GPUs by PCI address, where the node's report names them
	Cores   []domainCores `json:"cores,omitempty"`   // by NUMA domain, where it tells those
}

// domainCores is a number of whole cores in one NUMA domain.
type domainCores struct {
	Domain int    `json:"domain"`
	Cores  uint32 `json:"cores"`
}

// nodeRecord is what is stored of a node.
type nodeRecord struct {
	Created    time.Time                `json:"created"`
	Definition coordinator.DefinitionID `json:"definition,omitempty"`
	Bound      coordinator.DefinitionID `json:"bound,omitempty"`      // of this definition or of none: its join token said so
	Launch     string                   `json:"launch,omitempty"`     // what it joined for
	Scheduling string                   `json:"scheduling,omitempty"` // "", "cordoned", "draining"
	Reason     string                   `json:"reason,omitempty"`     // the administrator's words
	BootID     string                   `json:"boot_id,omitempty"`
	LastSeen   time.Time                `json:"last_seen,omitzero"` // when the agent of this boot first connected
	Lost       bool                     `json:"lost,omitempty"`     // its work has been given up
	Taken      time.Time                `json:"taken,omitzero"`     // when its provider takes it back, as that says
	TakenText  string                   `json:"taken_text,omitempty"`
}

// ConfigRevision describes one stored configuration.
type ConfigRevision struct {
	Revision coordinator.Revision `json:"revision"`
	SetAt    time.Time            `json:"set_at"`
	SetBy    string               `json:"set_by"`
	SHA256   string               `json:"sha256"`
	Bytes    int                  `json:"bytes"`
}

// Event is one thing that happened. Sequence grows with time and is unique in the cluster.
type Event struct {
	Sequence uint64                 `json:"seq"`
	Time     time.Time              `json:"time"`
	Kind     string                 `json:"kind"`
	Workflow coordinator.WorkflowID `json:"workflow,omitempty"`
	Job      string                 `json:"job,omitempty"`
	Subject  string                 `json:"subject,omitempty"`
	Message  string                 `json:"message,omitempty"`
	Metadata map[string]string      `json:"metadata,omitempty"`
}

// holdRecord is room promised to a waiting allocation together with the notices that make it (rule 20). It is
// written before the victims' own records: a crash in between leaves the notices to the next life, which
// gives them, or nothing at all.
type holdRecord struct {
	Definition coordinator.DefinitionID   `json:"definition"`
	Shares     []heldRecord               `json:"shares"`
	Victims    []coordinator.AllocationID `json:"victims"`            // whose room passes to the holder
	Attempts   []uint32                   `json:"attempts,omitempty"` // of the victims: a later attempt is none
	Told       []toldRecord               `json:"told"`               // those of them that this plan gave notice
	Since      time.Time                  `json:"since"`
}

// heldRecord is what is held of one node.
type heldRecord struct {
	Node coordinator.NodeID `json:"node"`
	shareRecord
}

// toldRecord is a victim, in the attempt that was given notice.
type toldRecord struct {
	ID         coordinator.AllocationID `json:"id"`
	Attempt    uint32                   `json:"attempt"`
	NoticeEnds time.Time                `json:"notice_ends"`
}

// reservationRecord is a reservation (rule 10). It stays as a trace when it is over, until retention.events.
type reservationRecord struct {
	Name         string                     `json:"name"`
	Organization coordinator.OrganizationID `json:"organization"`
	Group        coordinator.GroupID        `json:"group,omitempty"` // "": the whole organisation
	Definition   coordinator.DefinitionID   `json:"definition"`
	Device       string                     `json:"device,omitempty"`
	GPUs         uint32                     `json:"gpus,omitempty"`  // how many of that device; 0: whole nodes
	Nodes        uint32                     `json:"nodes,omitempty"` // whole nodes
	From         time.Time                  `json:"from"`
	Until        time.Time                  `json:"until"`
	Created      time.Time                  `json:"created"`
	CreatedBy    string                     `json:"created_by"`
	Shares       []reservedRecord           `json:"shares,omitempty"`     // what it consists of since its beginning
	Began        time.Time                  `json:"began,omitzero"`       // its beginning was told
	Ended        time.Time                  `json:"ended,omitzero"`       // it is over
	DeletedBy    string                     `json:"deleted_by,omitempty"` // who ended it before its time
	Idempotency  string                     `json:"idempotency,omitempty"`
	Digest       string                     `json:"digest,omitempty"` // of the request, with an idempotency key
}

// reservedRecord is what a reservation has of one node.
type reservedRecord struct {
	Node    coordinator.NodeID `json:"node"`
	Devices []string           `json:"devices,omitempty"` // by PCI address, where the node's report names them
	Count   uint32             `json:"count,omitempty"`   // of devices; 0: the whole node
}

// windowRecord is announced maintenance (rule 26). It stays as a trace when it is over, until retention.events.
type windowRecord struct {
	Nodes       []coordinator.NodeID     `json:"nodes,omitempty"`
	Definition  coordinator.DefinitionID `json:"definition,omitempty"` // without both, every node
	From        time.Time                `json:"from"`
	Until       time.Time                `json:"until"`
	Message     string                   `json:"message"`
	Emergency   bool                     `json:"emergency,omitempty"` // announced later than scheduler.maintenanceNotice asks for
	Announced   time.Time                `json:"announced"`
	AnnouncedBy string                   `json:"announced_by"`
	Began       time.Time                `json:"began,omitzero"` // its beginning was told
	Ended       time.Time                `json:"ended,omitzero"` // it is over
	CancelledBy string                   `json:"cancelled_by,omitempty"`
	Idempotency string                   `json:"idempotency,omitempty"`
	Digest      string                   `json:"digest,omitempty"` // of the request, with an idempotency key
}

// federateRecord is the Federate that this cluster belongs to.
type federateRecord struct {
	ID         string     `json:"id"`   // its cluster id
	Name       string     `json:"name"` // what it calls this cluster
	URL        string     `json:"url"`  // where people change what is replicated
	Key        auth.KeyID `json:"key"`  // its connections' key
	Registered time.Time  `json:"registered"`
}

// remoteRecord is one cluster that a Federate routes to. Without a certificate its registration has begun, no more.
type remoteRecord struct {
	Name        string                  `json:"name"`
	Address     string                  `json:"address"` // host:port of its federation port
	Registered  time.Time               `json:"registered"`
	By          string                  `json:"by"`
	Drained     bool                    `json:"drained,omitempty"`
	Credentials auth.ClusterCredentials `json:"membership"`
}

// routeRecord is one workflow that a Federate routed. It is durable before anything is sent.
type routeRecord struct {
	Name        string                     `json:"name"`
	Owner       coordinator.Owner          `json:"owner"`
	Submitted   time.Time                  `json:"submitted"`
	State       RouteState                 `json:"state"`
	Cluster     string                     `json:"cluster"`
	Remote      coordinator.WorkflowID     `json:"remote,omitempty"` // its id there
	By          federation.By              `json:"by"`
	Candidates  []federation.Candidate     `json:"candidates"` // as they answered, best first
	Message     string                     `json:"message,omitempty"`
	Idempotency string                     `json:"idempotency,omitempty"`
	Digest      string                     `json:"digest"`           // of the file
	Cancel      string                     `json:"cancel,omitempty"` // who wants it cancelled, before it was known to have arrived
	Status      coordinator.Status         `json:"status,omitempty"` // as last heard of; kept when it has ended
	Ended       time.Time                  `json:"ended,omitzero"`   // likewise
	Request     routedRequest              `json:"request"`          // beside the file
	Counts      map[coordinator.Status]int `json:"counts,omitempty"`
}

// routedRequest is a submission without its file.
type routedRequest struct {
	File        string `json:"file,omitempty"`
	Name        string `json:"name,omitempty"`
	Preemptible *bool  `json:"preemptible,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
}

// pushRecord is a change of grants that is carried to every registered cluster once, however often it is tried.
type pushRecord struct {
	Definitions   []string            `json:"definitions"`
	Organizations []federation.Entity `json:"organizations,omitempty"`
	All           bool                `json:"all,omitempty"`
	By            string              `json:"by"`
	At            time.Time           `json:"at"`
	Waiting       []string            `json:"waiting"` // clusters, by name
}

// longestLifetime is the record of how long a certificate may live at most that was ever issued here, in seconds.
type longestLifetime struct {
	Seconds int64 `json:"seconds"`
}

// launchRecord is what is stored of a launch: from before the provider is called until it says that there is no such instance any more.
type launchRecord struct {
	ID         provision.LaunchID         `json:"id"`
	Keys       []string                   `json:"keys"` // of the scheduler; a launch may bring more nodes than were asked for
	Definition coordinator.DefinitionID   `json:"definition"`
	Backend    backendID                  `json:"backend"`
	Connection spec.Backend               `json:"connection"` // as it was: the configuration may lose it before the instance is gone
	Spec       string                     `json:"spec"`       // digest of what is launched: the definition may change
	Type       catalogue.Key              `json:"type,omitzero"`
	Nodes      uint32                     `json:"nodes"`
	For        []coordinator.AllocationID `json:"for"`
	Since      time.Time                  `json:"since"`
	Until      time.Time                  `json:"until"`          // expected to be ready
	Asked      time.Time                  `json:"asked,omitzero"` // the provider may have heard of it since
	Handle     provision.Handle           `json:"handle,omitempty"`
	Lifetime   time.Duration              `json:"lifetime,omitempty"` // asked for: a call that is repeated asks for the same; 0: no end
	Running    time.Time                  `json:"running,omitzero"`   // at the provider, since
	Ends       time.Time                  `json:"ends,omitzero"`      // by the provider
	Joined     []coordinator.NodeID       `json:"joined,omitempty"`
	Release    string                     `json:"release,omitempty"` // why it is given up
	GivenUp    time.Time                  `json:"given_up,omitzero"`
	Failed     provision.Fault            `json:"failed,omitempty"` // it is given up because it came to nothing
	Slot       *coordinator.Hardware      `json:"slot,omitempty"`   // of mode native: what the slot counts as having
	// Discovery is for a look at the type's hardware: nothing is placed there.
	Discovery   bool    `json:"discovery,omitempty"`
	CostPerHour float64 `json:"cost_per_hour,omitempty"` // of a discovery, in USD; 0: nobody knows
	SetAside    float64 `json:"set_aside,omitempty"`     // of the day's budget
}

// discoveryRecord is a type that is to be looked at, until a node of it has reported or that came to nothing.
type discoveryRecord struct {
	Key        catalogue.Key            `json:"key"`
	Definition coordinator.DefinitionID `json:"definition"`
	By         string                   `json:"by"`
	At         time.Time                `json:"at"`
	Waits      string                   `json:"-"` // what keeps it from being launched
}

// discoverySpent is what discoveries cost on the last day on which there were any, in UTC.
type discoverySpent struct {
	Day   string  `json:"day"`
	USD   float64 `json:"usd"`
	Boots int     `json:"boots"`
}

// backendID names a connection: "" is the only one of its kind.
type backendID struct {
	Kind   string `json:"kind"`
	Name   string `json:"name,omitempty"`
	Target string `json:"target,omitempty"` // see spec.Backend.Target
}

// StatusEntry is a line of the status history, which every user may read. Entries are added, never changed.
type StatusEntry struct {
	Number     uint64                   `json:"number"`
	Time       time.Time                `json:"time"`
	Kind       StatusKind               `json:"kind"`
	Window     string                   `json:"window,omitempty"` // id of the maintenance
	Nodes      []coordinator.NodeID     `json:"nodes,omitempty"`
	Definition coordinator.DefinitionID `json:"definition,omitempty"`
	From       time.Time                `json:"from,omitzero"`
	Until      time.Time                `json:"until,omitzero"`
	Emergency  bool                     `json:"emergency,omitempty"`
	Message    string                   `json:"message,omitempty"`
	By         string                   `json:"by,omitempty"`
}
