package sched

import (
	"fmt"
	"time"

	"substrate/coordinator"
)

// PreemptKind is the right by which work is asked to give way (rule 17).
type PreemptKind uint8

const (
	// PreemptClass is batch work that yields to on-demand work, whatever PreemptionEnabled says.
	PreemptClass PreemptKind = iota + 1
	// PreemptGroup is preemptible work of a group on the preemptor's list, over a gap of priority.
	PreemptGroup
	// PreemptReservation is batch work that yields to the owner of the reserved GPUs it sits on.
	PreemptReservation
)

var preemptWords = [...]string{PreemptClass: "class", PreemptGroup: "group", PreemptReservation: "reservation"}

func (k PreemptKind) String() string {
	if k > 0 && int(k) < len(preemptWords) {
		return preemptWords[k]
	}
	return fmt.Sprintf("unknown(%d)", uint8(k))
}

// MarshalText writes the word that users see.
func (k PreemptKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Hold is room that is promised to one waiting allocation (rule 20). It is stored with the kills that it
// waits for, and is told to a new Scheduler as it was stored.
type Hold struct {
	For        coordinator.AllocationID
	Definition coordinator.DefinitionID
	Shares     []Share // by node
	// Victims are the placements whose room passes to the holder when they end, by id: those that the plan
	// gave notice, and those that were about to end anyhow. One that has ended and started again is none.
	Victims []coordinator.AllocationID
	Since   time.Time
}

// Preempt is one plan to make room: a full one, or there is none (rule 18). The engine writes the hold and
// gives notice to all the victims in one transaction, or does neither.
type Preempt struct {
	For      coordinator.AllocationID
	Why      PreemptKind // of the victim that needed most: group before class before reservation
	Priority float64     // of the preemptor, with age, as of the decision
	Hold     Hold
	Victims  []Victim // to be given notice now, by id; never empty
}

// Victim is one placement that gives way, with what a reader needs to work the verdict out again.
type Victim struct {
	ID       coordinator.AllocationID
	Class    coordinator.Class
	Why      PreemptKind
	Priority float64 // with age, as of the decision
	Gap      float64 // Preempt.Priority − Priority
	// Lost is what it has done since its last start: device-seconds, or core-seconds if it has no device,
	// over all its nodes.
	Lost   float64
	KillAt time.Time // end of the notice
}

// DropReason says why a hold ended without a start.
type DropReason uint8

const (
	DropGone       DropReason = iota + 1 // its allocation does not wait any more
	DropNode                             // a node of it is gone, not schedulable or of another definition
	DropChanged                          // what is asked for is not what is held
	DropImpossible                       // something else has taken the room
)

var dropWords = [...]string{
	DropGone: "gone", DropNode: "node-lost", DropChanged: "request-changed", DropImpossible: "impossible",
}

func (d DropReason) String() string {
	if d > 0 && int(d) < len(dropWords) {
		return dropWords[d]
	}
	return fmt.Sprintf("unknown(%d)", uint8(d))
}

// MarshalText writes the word that users see.
func (d DropReason) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Drop ends a hold without a start. Victims that were told stay told. The allocation, if it still waits, is
// decided about anew in the same plan.
type Drop struct {
	For coordinator.AllocationID
	Why DropReason
}
