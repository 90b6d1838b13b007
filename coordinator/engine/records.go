package engine

import (
	"time"

	"substrate/coordinator"
	"substrate/coordinator/grant"
	"substrate/coordinator/sched"
)

// This file is the disk format: everything that the engine stores as JSON (keys.go tells where), besides
// the nouns of package coordinator, and records of auth and grant. Fields are added, never renamed or given
// another meaning; a golden file holds them.

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
