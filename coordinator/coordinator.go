// Package coordinator names what a cluster is made of: definitions, nodes,
// organisations, workflows, allocations and errors. It does no I/O and takes no decision.
package coordinator

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Ids are distinct types so that the compiler keeps them apart.
type (
	// OrganizationID, GroupID and UserID are UUIDs in canonical text form.
	OrganizationID string
	GroupID        string
	UserID         string
	// WorkflowID is a UUIDv7: ids sort by the time of submission.
	WorkflowID string
	// AllocationID is "<workflow>/<job>" or "<workflow>/<job>/<task index>".
	AllocationID string
	// RunID is "<allocation>#<attempt>"; every report from a run carries it.
	RunID string
	// NodeID is the name in the node's certificate.
	NodeID string
	// DefinitionID is an expanded definition id.
	DefinitionID string
	// Revision counts configurations from 1; 0 is "none set yet".
	Revision uint64
)

// Units. The zero value is a real zero, never "unknown".
type (
	Bytes uint64
	Cores uint32
)

// Run returns the id of the given attempt (from 1) of an allocation.
func (a AllocationID) Run(attempt uint32) RunID {
	return RunID(fmt.Sprintf("%s#%d", a, attempt))
}

// Class is the class of service an allocation belongs to. Lower classes come first in the queue (rule 1).
type Class uint8

const (
	ClassReserved Class = iota + 1
	ClassOnDemand
	ClassBatch
)

// Kind says what an allocation is for. Internal and system work is created by the coordinator alone.
type Kind uint8

const (
	KindJob Kind = iota + 1
	KindService
	KindInternal
	KindSystem
)

// Status is the one set of status words of CLI, REST, events and files.
type Status uint8

const (
	StatusPending    Status = iota + 1 // a dependency is open
	StatusQueued                       // waits for resources
	StatusStarting                     // placed; the node has not confirmed yet
	StatusRunning                      // the node reported the start
	StatusPreempting                   // notice given
	StatusPreempted
	StatusFinished
	StatusFailed
	StatusCancelled
	StatusLost // the node vanished and the work was not requeued
)

// Ended reports whether nothing more happens to work in this status.
func (s Status) Ended() bool { return s >= StatusPreempted }

// Holds reports whether work in this status occupies resources.
func (s Status) Holds() bool {
	return s == StatusStarting || s == StatusRunning || s == StatusPreempting
}

// Affinity is the unit whose boundaries a job's cores must not cross.
type Affinity uint8

const (
	AffinityNone Affinity = iota
	AffinityCore
	AffinitySocket
	AffinityNUMA
)

// Exclusive says who may share a node with a job.
type Exclusive uint8

const (
	ExclusiveNone Exclusive = iota
	ExclusiveJob
	ExclusiveWorkflow
)

// Resources is what one node must give to an allocation (per node for gangs).
type Resources struct {
	Cores     Cores             `json:"cores,omitempty"`
	Threads   bool              `json:"threads,omitempty"` // count hardware threads instead of cores
	Sockets   uint32            `json:"sockets,omitempty"`
	Affinity  Affinity          `json:"affinity,omitempty"`
	Memory    Bytes             `json:"memory,omitempty"`
	ByCore    bool              `json:"by_core,omitempty"` // Memory is per core
	Devices   map[string]uint32 `json:"devices,omitempty"`
	Exclusive Exclusive         `json:"exclusive,omitempty"`
	Tokens    map[string]uint32 `json:"tokens,omitempty"` // of the cluster, not of a node
}

// TotalMemory is the memory of one node's share with by-core memory multiplied out.
// It saturates instead of overflowing.
func (r Resources) TotalMemory() Bytes {
	if !r.ByCore || r.Cores == 0 {
		return r.Memory
	}
	if r.Memory > Bytes(1<<63)/Bytes(r.Cores) {
		return 1 << 63
	}
	return r.Memory * Bytes(r.Cores)
}

// RestartPolicy says what happens to work after an end that was not its own doing.
type RestartPolicy uint8

const (
	RestartNever RestartPolicy = iota
	RestartOnNodeFault
	RestartAlways
)

// Organization owns groups, users and one signed grant.
type Organization struct {
	ID       OrganizationID `json:"id"`
	Slug     string         `json:"slug"`
	Priority int32          `json:"priority,omitempty"`
	Created  time.Time      `json:"created"`
	Set      uint64         `json:"set,omitempty"` // revision of the priority, see Replica
	Replica  *Replica       `json:"replica,omitempty"`
}

// Replica marks an organisation, group or user that a Federate owns. Priority and preemption list are as the Federate
// sent them last; where it has not yet, they are 0 and empty.
type Replica struct {
	Federate string    `json:"federate"`           // its cluster id
	Revision uint64    `json:"revision,omitempty"` // of the values, as the Federate numbers them
	Synced   time.Time `json:"synced,omitzero"`    // when they came
	Forced   bool      `json:"forced,omitempty"`   // changed here; the next refresh overwrites it
}

// Group belongs to one organisation; its slug is unique there.
type Group struct {
	ID           GroupID        `json:"id"`
	Organization OrganizationID `json:"organization"`
	Slug         string         `json:"slug"`
	Priority     int32          `json:"priority,omitempty"`
	Preempts     []GroupID      `json:"preempts,omitempty"`
	Created      time.Time      `json:"created"`
	Set          uint64         `json:"set,omitempty"` // revision of priority and list
	Replica      *Replica       `json:"replica,omitempty"`
}

// User belongs to one organisation, and to groups of it. UnixUser is the account
// its jobs run as; empty is unmapped and refused unless the node runs jobs as its caller.
type User struct {
	ID           UserID         `json:"id"`
	Organization OrganizationID `json:"organization"` // "" for one that was taken out of its organisation
	Name         string         `json:"name"`
	Email        string         `json:"email,omitempty"`
	Groups       []GroupID      `json:"groups"` // the first is the default
	Priority     int32          `json:"priority,omitempty"`
	Admin        bool           `json:"admin,omitempty"` // cluster-admin
	Role         Role           `json:"role,omitempty"`  // in the organisation
	Owns         []GroupID      `json:"owns,omitempty"`  // the groups it is an owner of, each also in Groups
	Disabled     bool           `json:"disabled,omitempty"`
	UnixUser     string         `json:"unix_user,omitempty"`
	Created      time.Time      `json:"created"`
	Set          uint64         `json:"set,omitempty"` // revision of priority and identity
	Replica      *Replica       `json:"replica,omitempty"`
	External     *ExternalID    `json:"external,omitempty"` // who it is for an identity provider
	Given        *Given         `json:"given,omitempty"`    // which of the above came with the provider's word, and go with it
}

// Given are memberships and roles.
type Given struct {
	Groups []GroupID `json:"groups,omitempty"`
	Owns   []GroupID `json:"owns,omitempty"`
	Owner  bool      `json:"owner,omitempty"` // of the organisation
	Admin  bool      `json:"admin,omitempty"` // cluster-admin
}

// Equal compares in order.
func (g Given) Equal(o Given) bool {
	return slices.Equal(g.Groups, o.Groups) && slices.Equal(g.Owns, o.Owns) && g.Owner == o.Owner && g.Admin == o.Admin
}

// ExternalID is somebody as an identity provider knows them.
type ExternalID struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// Role is what a member of an organisation or of a group may do there.
type Role uint8

const (
	RoleMember Role = iota // reads, and submits work
	RoleOwner              // manages it
)

// GroupRole is the user's role in a group it is a member of.
func (u *User) GroupRole(id GroupID) Role {
	if slices.Contains(u.Owns, id) {
		return RoleOwner
	}
	return RoleMember
}

// Owner is who a workflow belongs to, as it stood at submission.
type Owner struct {
	Organization     OrganizationID `json:"organization"`
	OrganizationSlug string         `json:"organization_slug"`
	Group            GroupID        `json:"group"`
	GroupSlug        string         `json:"group_slug"`
	User             UserID         `json:"user"`
	UserName         string         `json:"user_name"`
	Email            string         `json:"email,omitempty"`
	UnixUser         string         `json:"unix_user,omitempty"`
}

// String writes bytes in the largest binary unit with at most two decimals, rounded down: what there is
// must not look like more.
func (b Bytes) String() string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(b), 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return strconv.FormatFloat(math.Floor(v*100)/100, 'f', -1, 64) + " " + units[i]
}
