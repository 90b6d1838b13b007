package sched

import "fmt"

// Reason is the closed, append-only set of reasons for waiting (docs/scheduler-rules.md lists them).
type Reason uint8

const (
	ReasonInsufficientResources Reason = iota + 1
	ReasonTokenExhausted
	ReasonDrained
	ReasonNoAdmissibleDefinition
	ReasonBlockedByOrder // an earlier allocation of the class waits for the same nodes (rule 4)
	ReasonBackfillNoWalltime
	ReasonBackfillWouldDelayHead
	ReasonBackfillNoFit
	ReasonArrayConcurrency
	ReasonNoNode // admissible, but no node of those definitions exists or is ready
	ReasonQueueDepth
	ReasonHardwareUnknown
	ReasonReservation  // what it could have is reserved, or it has no reservation yet (rules 10 and 11)
	ReasonMaintenance  // it might still run when maintenance begins (rule 26)
	ReasonHeld         // room is held for it until those who were told to give way have ended (rule 21)
	ReasonProvisioning // it needs a node that cannot be launched now (rule 28)
)

var reasonWords = [...]string{
	ReasonInsufficientResources:  "insufficient-resources",
	ReasonTokenExhausted:         "token-exhausted",
	ReasonDrained:                "drained",
	ReasonNoAdmissibleDefinition: "no-admissible-definition",
	ReasonBlockedByOrder:         "blocked-by-order",
	ReasonBackfillNoWalltime:     "backfill-no-walltime",
	ReasonBackfillWouldDelayHead: "backfill-would-delay-head",
	ReasonBackfillNoFit:          "backfill-no-fit",
	ReasonArrayConcurrency:       "array-concurrency",
	ReasonNoNode:                 "awaiting-provisioning",
	ReasonQueueDepth:             "queue-depth",
	ReasonHardwareUnknown:        "hardware-unknown",
	ReasonHeld:                   "held",
	ReasonProvisioning:           "provisioning-blocked",
	ReasonReservation:            "blocked-by-reservation",
	ReasonMaintenance:            "maintenance-window",
}

func (r Reason) String() string {
	if r > 0 && int(r) < len(reasonWords) {
		return reasonWords[r]
	}
	return fmt.Sprintf("unknown(%d)", uint8(r))
}

// MarshalText writes the word that users see.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
