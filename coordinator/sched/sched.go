package sched

import (
	"time"

	"substrate/coordinator"
)

// Snapshot is everything one decision depends on. Slices may come in any order:
// the plan does not depend on it. Decide does not change the snapshot, nor does a Scheduler what it
// is told; both keep its slices and maps, so that they must not be changed afterwards. Ids are
// unique within each slice, and no id is both a request and a placement.
type Snapshot struct {
	Now         time.Time
	Config      Config
	Definitions []Definition
	Nodes       []Node
	Requests    []Request   // waiting: nothing of theirs occupies a node
	Placements  []Placement // starting, running or preempting
	Holds       []Hold      // of those that wait for victims to end
	Windows     []Window    // of maintenance
	Offers      []Offer     // of definitions whose nodes can be launched (rule 28)
	Launching   []Launch    // nodes that are coming
	// Reservations that are not over. Nil is none, and reserved work is placed like other; empty is none, and it
	// waits for one.
	Reservations []Reservation
	Tokens       map[string]uint32
}

// Config is the part of the `scheduler:` block that placement depends on.
type Config struct {
	Backfill         coordinator.Backfill
	PreemptionNotice time.Duration
	// AgeRate is the priority that a second of waiting adds, the same for everybody, so that the order
	// of the queue does not change with time.
	AgeRate    float64
	QueueDepth int // 0: no limit
	// The rest is what rule 17 asks for, and how long a victim has to end.
	PreemptionEnabled    bool
	PreemptionThreshold  float64
	PreemptionGap        float64
	MinPreemptionRuntime time.Duration
	// NoEstimates leaves EstimatedStart at zero: a caller that decides many times a second need not
	// step the queue forward each time. Starts, positions and verdicts do not depend on it.
	NoEstimates bool
}

// Definition orders the candidates of rule 6.
type Definition struct {
	ID          coordinator.DefinitionID
	Order       int     // position in the file
	CostPerHour float64 // USD; unknown costs are given as +Inf and come last
	Exclusive   coordinator.Exclusive
}

// Node is one machine that is known to the coordinator.
type Node struct {
	ID         coordinator.NodeID
	Definition coordinator.DefinitionID // "" is unassigned: nothing is placed there
	Cores      coordinator.Cores        // physical cores in total
	Threads    uint32                   // logical CPUs in total
	Memory     coordinator.Bytes
	Devices    map[string]uint32
	// GPUs are the devices that are known one by one; those of a kind that is not among them are only
	// counted. LinksKnown is false when it could not be read how they are joined (rule 7).
	GPUs       []GPU
	Links      []Link
	LinksKnown bool
	Domains    []Domain // NUMA domains; empty: unknown (rule 8)
	// Schedulable is false when the node is cordoned, draining, not ready or lost (rule 25).
	Schedulable bool
	Draining    bool // batch work there is given notice (rule 25); such a node is not schedulable
	// Away: it is not schedulable because it is not heard of just now. It is not lost: what is held there for
	// somebody stays held, and starts when it is back (rule 20).
	Away bool
	Why  string // in words, when not schedulable: "cordoned", "draining", "not-ready"
	// Expires is the end of the life of a node that was launched: nothing is placed there that might not be over by then. Zero: none.
	Expires time.Time
	// IdleSince is since when nothing has run on a node that was launched, and it was ready. Zero: something runs.
	IdleSince time.Time
}

// Request is one allocation that waits. Admissible holds the definitions that policy, grant,
// annotations, resources and class allow (rule 6), found by the engine before the call.
type Request struct {
	ID         coordinator.AllocationID
	Workflow   coordinator.WorkflowID
	Class      coordinator.Class
	Returned   bool    // preempted with retry: goes to the front of its class (rule 3)
	Priority   float64 // at age 0; see Config.AgeRate
	Submitted  time.Time
	Order      uint64        // place within the workflow: jobs in file order, tasks by index
	Walltime   time.Duration // 0: none ("never ends")
	Nodes      uint32        // gang size; ≥ 1
	Resources  coordinator.Resources
	Loose      bool // it does not care how its GPUs are joined
	Admissible []coordinator.DefinitionID
	// Unrestricted marks internal and system work that every policy refused.
	Unrestricted bool
	// Exclude lists nodes that this request must not use (annotation mismatch by hardware keys).
	Exclude []coordinator.NodeID
	// Array names the task array whose concurrency is limited ("" for none) and ArrayLimit is the
	// number of its tasks that may be placed at one time.
	Array      string
	ArrayLimit int
	// Attempt is in the keys of launches. It grows with each start, and when a launch for the request has come to nothing.
	Attempt uint32

	Organization coordinator.OrganizationID
	Group        coordinator.GroupID
	Reservation  ReservationID         // of reserved work that names one; "": the oldest of its owner that is large enough
	Preempts     []coordinator.GroupID // the list of its group as it was at the submission (rule 17)
	// Preemptible and PreemptionsLeft are those of the placement that it becomes.
	Preemptible     bool
	PreemptionsLeft int
}

// Placement is an allocation that occupies resources now.
type Placement struct {
	ID       coordinator.AllocationID
	Workflow coordinator.WorkflowID
	Class    coordinator.Class
	Priority float64
	Started  time.Time
	Walltime time.Duration // 0: none
	Nodes    []coordinator.NodeID
	// Shares is what it has of the nodes one by one. On a node without detail it counts as having the first
	// domains' cores and the first devices that nobody else has.
	Shares    []Share
	Resources coordinator.Resources
	// Array names the task array whose concurrency is limited ("" for none); this task has one of
	// its places until it ends.
	Array string
	// Ending is set once a stop or notice is under way; the resources are held until the node says so.
	Ending bool
	KillAt time.Time // with Ending: when the notice ends; zero: not known

	Organization coordinator.OrganizationID
	Group        coordinator.GroupID
	Reservation  ReservationID // that it was started in
	Submitted    time.Time     // from which its priority ages; zero: Priority is with age
	Preemptible  bool
	// PreemptionsLeft is how often it may still be preempted, negative: without limit. At zero it gives way to
	// the owner of reserved GPUs only.
	PreemptionsLeft int
}

// Plan is what Decide wants done. The engine writes it, all of it in one transaction, before it acts on it; if
// that fails it makes a new Scheduler from what is stored. To the scheduler all of it is true from then on, so
// that nothing of it needs to be told back: starts occupy their nodes, victims and stops are ending with their KillAt, holds and
// shares of reservations are as in the plan. It is told when a placement has really ended (End), or came back (Submit). Parts
// are meant to be carried out in this order: Drops, Reserves, Stops, Preempts, Starts.
type Plan struct {
	// Starts are in queue order. A start of an allocation that had a hold ends the hold.
	Starts []Start
	// Preempts are new plans to make room, in queue order. Each is written with its hold in one transaction:
	// all victims get notice, or nothing happens. The allocation goes on waiting until a start with rule 20. A victim
	// that returns is a request with Returned, its old Submitted, and one of PreemptionsLeft less.
	Preempts []Preempt
	// Drops are holds that ended without a start; the engine deletes them. By class and queue, those whose allocation is gone last.
	Drops []Drop
	// Reserves are reservations that have begun, by id, with what they consist of from now on.
	Reserves []Reserve
	// Launches are nodes to ask for, in queue order of those that need them, and Releases nodes to give up, by id (rule 28).
	Launches []Launch
	Releases []Release
	// Stops are placements to be given notice now, because their node is to be cleared; by id.
	Stops []Stop
	Waits []Wait // one per request that does not start, in queue order
}

// Start places an allocation on nodes, all at once (rule 5).
type Start struct {
	ID         coordinator.AllocationID
	Definition coordinator.DefinitionID
	Nodes      []coordinator.NodeID // sorted; len == Request.Nodes
	Shares     []Share              // of those nodes, in the same order
	// Reservation is the one that reserved work runs in.
	Reservation ReservationID
	Rule        int // the rule that let it start: 4 in order, 15 by backfill, 20 on held room
}

// Wait says why an allocation does not start now.
type Wait struct {
	ID       coordinator.AllocationID
	Class    coordinator.Class
	Position int     // 1..n within the class (rule 1)
	Priority float64 // with age, as of the decision
	// EstimatedStart is zero when no known end lets it start, and for work so far back in the
	// queue that estimates stop before it. Never before Snapshot.Now.
	EstimatedStart time.Time
	Verdict        Verdict
}

// Verdict is a reason with its rule number and plain words.
type Verdict struct {
	Reason Reason
	Rule   int
	Text   string
	// Blocking names placements whose end would let the allocation start, at most 8, by id.
	Blocking []coordinator.AllocationID
	// Nearest is the node that is closest to holding the request, "" if none could.
	Nearest coordinator.NodeID
}
