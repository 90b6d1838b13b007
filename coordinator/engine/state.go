package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/grant"
	"substrate/coordinator/provision"
	"substrate/coordinator/sched"
)

// state is the cluster as the loop knows it. After a start it is what the store says.
type state struct {
	cluster   clusterRecord
	fence     uint64 // store revision of the last write; carried by every order to a node
	seq       uint64 // of the last event
	config    *activeConfig
	revisions []ConfigRevision // by revision, ascending

	ca       *auth.CA
	signer   grant.Key
	ring     grant.Ring
	verified *grant.Cache
	directory
	tokens     map[string]auth.UserToken // by public id
	joinTokens map[string]auth.JoinToken
	revoked    map[coordinator.NodeID]auth.Revocation
	longest    time.Duration // that a certificate issued here may live
	audited    int64         // nanoseconds in the key of the last audit entry

	workflows        map[coordinator.WorkflowID]*submission
	idempotency      map[string]coordinator.WorkflowID // "<user>/<key>"
	queued           map[coordinator.AllocationID]*allocation
	active           map[coordinator.AllocationID]*allocation
	deferred         map[coordinator.AllocationID]*allocation // queued, but not before a time
	yielding         map[coordinator.AllocationID]*allocation // active, and given notice
	holds            map[coordinator.AllocationID]*holdRecord // by who it is for
	open             int                                      // allocations that have not ended
	nodes            map[coordinator.NodeID]*node
	reservations     map[sched.ReservationID]*reservation
	reservationKeys  map[string]sched.ReservationID // by idempotency key: "<user>/<key>"
	windows          map[string]*window             // of maintenance
	openReservations []*reservation                 // not over, the oldest first
	openWindows      []*window                      // not over, by beginning
	windowKeys       map[string]string
	history          []StatusEntry                            // by number, ascending
	nextDate         time.Time                                // when the next of reservations and windows begins or ends
	overdue          map[coordinator.NodeID]coordinator.RunID // runs that do not end after their notice
	absent           map[coordinator.NodeID]*node             // without a stream, and not yet given up
	launches         map[provision.LaunchID]*launch           // of nodes that are coming, up, or given up
	offers           map[coordinator.DefinitionID]*offer      // as last heard from the backends
	discoveries      map[string]*discoveryRecord              // by keyID
	unjoined         map[coordinator.DefinitionID]*unjoinedRecord
	spent            discoverySpent
	provided         map[string]*catalogue.Provided        // by place
	catalogueTrouble map[string]catalogueTrouble           // by place; places that answer have none
	generation       uint64                                // counts answers that were taken over
	reports          map[catalogue.Key][]*catalogue.Report // of launched nodes, by architecture

	federation federationState
	kinds      []string // of definitions that nodes are launched for

	resumed   bool // what a crash cut short has been looked for
	dirty     bool // something a decision depends on has changed
	core      core
	now       func() time.Time
	admission uint64 // grows when configuration, grants or nodes' hardware change
}

// organization is an organisation with its grant as stored.
type organization struct {
	coordinator.Organization
	jws    string
	newest newestGrant
}

// submission is one accepted submission.
type submission struct {
	id     coordinator.WorkflowID
	record workflowRecord
	jobs   []*job // in file order
	byName map[string]*job
	open   int  // allocations not ended
	ended  bool // its end has been told
}

// job is one job or service with all its allocations (more than one for a task array).
type job struct {
	workflow    *submission
	spec        *coordinator.JobSpec
	place       int // in the file
	allocations []*allocation
	dependents  []*job
	counts      [coordinator.StatusLost + 1]int
	started     int // allocations that ever ran
	admission   *admission
}

// allocation is one request for resources with its history.
type allocation struct {
	id      coordinator.AllocationID
	job     *job
	task    uint32
	record  allocRecord
	touched bool
	seen    *seen // in a batch system, nil: not yet, or it is not there
}

// stopReason says why the coordinator asked for an end, "" when it did not.
type stopReason string

const (
	stopCancel  stopReason = "cancelled"
	stopPreempt stopReason = "preempted"
	stopRequeue stopReason = "drained" // restartable work of a node that is drained with --active
	stopGang    stopReason = "gang"    // another rank has failed
)

func (a *allocation) key() string { return prefixAlloc + string(a.id) }

func (a *allocation) run() coordinator.RunID { return a.id.Run(a.record.Attempt) }

// name is the job's name, with the index for a task of an array.
func (a *allocation) name() string {
	if a.job.spec.Array == nil {
		return a.job.spec.Name
	}
	return fmt.Sprintf("%s/%d", a.job.spec.Name, a.task)
}

func (a *allocation) rank(id coordinator.NodeID) *rankRecord {
	for i := range a.record.Ranks {
		if a.record.Ranks[i].Node == id {
			return &a.record.Ranks[i]
		}
	}
	return nil
}

func (a *allocation) nodeIDs() []coordinator.NodeID {
	out := make([]coordinator.NodeID, len(a.record.Ranks))
	for i, r := range a.record.Ranks {
		out[i] = r.Node
	}
	return out
}

// newWorkflow builds the working form of a stored workflow; every allocation is pending.
func newWorkflow(id coordinator.WorkflowID, rec workflowRecord) *submission {
	w := &submission{id: id, record: rec, byName: map[string]*job{}}
	for i := range w.record.Spec.Jobs {
		spec := &w.record.Spec.Jobs[i]
		j := &job{workflow: w, spec: spec, place: i}
		w.jobs = append(w.jobs, j)
		w.byName[spec.Name] = j
		if spec.Array == nil {
			j.add(coordinator.AllocationID(string(id)+"/"+spec.Name), 0)
			continue
		}
		for task := spec.Array.Start; ; task++ {
			j.add(coordinator.AllocationID(fmt.Sprintf("%s/%s/%d", id, spec.Name, task)), task)
			if task == spec.Array.End {
				break
			}
		}
	}
	for _, j := range w.jobs {
		for _, d := range j.spec.DependsOn {
			if on := w.byName[d.Name]; on != nil {
				on.dependents = append(on.dependents, j)
			}
		}
	}
	return w
}

func (j *job) add(id coordinator.AllocationID, task uint32) {
	a := &allocation{id: id, job: j, task: task}
	a.record.Status = coordinator.StatusPending
	j.allocations = append(j.allocations, a)
	j.counts[coordinator.StatusPending]++
	j.workflow.open++
}

// find returns the allocation with the id, nil when it is not of this workflow.
func (w *submission) find(id coordinator.AllocationID) *allocation {
	rest, ok := strings.CutPrefix(string(id), string(w.id)+"/")
	if !ok {
		return nil
	}
	name, _, _ := strings.Cut(rest, "/")
	j := w.byName[name]
	if j == nil {
		return nil
	}
	if j.spec.Array == nil {
		if j.allocations[0].id == id {
			return j.allocations[0]
		}
		return nil
	}
	var task uint32
	if _, err := fmt.Sscanf(rest, name+"/%d", &task); err != nil {
		return nil
	}
	if task < j.spec.Array.Start || task > j.spec.Array.End {
		return nil
	}
	if a := j.allocations[task-j.spec.Array.Start]; a.id == id {
		return a
	}
	return nil
}

// allocation finds an allocation of any workflow, nil when unknown.
func (s *state) allocation(id coordinator.AllocationID) *allocation {
	wf, _, _ := strings.Cut(string(id), "/")
	if w := s.workflows[coordinator.WorkflowID(wf)]; w != nil {
		return w.find(id)
	}
	return nil
}

// runOwner finds the allocation of a run; current is false for an earlier attempt.
func (s *state) runOwner(run coordinator.RunID) (a *allocation, current bool) {
	i := strings.LastIndexByte(string(run), '#')
	if i < 0 {
		return nil, false
	}
	a = s.allocation(coordinator.AllocationID(run[:i]))
	return a, a != nil && a.run() == run
}

// rankOf is a node's rank in a run, of this attempt or an earlier one; -1 when it was not placed there.
func (s *state) rankOf(run coordinator.RunID, id coordinator.NodeID) int {
	a, current := s.runOwner(run)
	if a == nil {
		return -1
	}
	if current && len(a.record.Ranks) > 0 { // without, it was sent back to the queue
		return slices.Index(a.nodeIDs(), id)
	}
	for _, p := range a.record.Past {
		if a.id.Run(p.Attempt) == run {
			return slices.Index(p.Nodes, id)
		}
	}
	return -1
}

// nextDeferred is when the first allocation that must not start yet may start.
func (s *state) nextDeferred() time.Time {
	var next time.Time
	for _, a := range s.deferred {
		if t := a.record.NotBefore; !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}
