package sim

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/store"
)

// judge reads every durable write and sees every process of every node. It knows the rules, and nothing of how the
// coordinator keeps them. world.mu guards it.
type judge struct {
	w            *world
	workflows    map[coordinator.WorkflowID]*workflowRecord
	allocs       map[coordinator.AllocationID]*allocation
	holds        map[coordinator.AllocationID]*holdRecord
	told         map[coordinator.RunID]coordinator.AllocationID // notices of plans, by whom they are for
	procs        map[coordinator.RunID]map[string]*process      // what really ran, by node
	live         map[string]map[coordinator.RunID]*vrun         // what runs now, by node
	taken        map[[2]string]time.Time                        // who took whose room by group, last
	moved        time.Time                                      // somebody began or ended, last
	changed      time.Time                                      // priorities, lists or settings last changed
	groups       map[coordinator.GroupID]int32
	active       map[coordinator.AllocationID]*allocation
	windows      map[string]windowRecord
	plans        []*plan                           // of the write that is read
	undone       map[coordinator.AllocationID]bool // holds whose end was decided and is not durable: the write was cut short
	write        int                               // number of the write that is read
	reservations map[string]reservationRecord
	numbers      map[uint64]bool // of events
	sequence     uint64          // the newest event of an earlier write
	newest       uint64
	cluster      string
	known        map[string]settings // by text
	now          settings
	loose        time.Duration // the shortest notice of any configuration so far
}

func newJudge(w *world) *judge {
	return &judge{w: w, workflows: map[coordinator.WorkflowID]*workflowRecord{}, allocs: map[coordinator.AllocationID]*allocation{},
		holds: map[coordinator.AllocationID]*holdRecord{}, told: map[coordinator.RunID]coordinator.AllocationID{},
		procs: map[coordinator.RunID]map[string]*process{}, live: map[string]map[coordinator.RunID]*vrun{},
		taken: map[[2]string]time.Time{}, groups: map[coordinator.GroupID]int32{}, active: map[coordinator.AllocationID]*allocation{},
		windows: map[string]windowRecord{}, undone: map[coordinator.AllocationID]bool{}, reservations: map[string]reservationRecord{}, numbers: map[uint64]bool{}, known: map[string]settings{}}
}

// The records as they are on disk; only what is judged.
type workflowRecord struct {
	Spec       coordinator.WorkflowSpec `json:"spec"`
	Owner      coordinator.Owner        `json:"owner"`
	Priorities struct {
		Organization int32 `json:"organization"`
		Group        int32 `json:"group"`
		User         int32 `json:"user"`
	} `json:"priorities"`
	Preempts  []coordinator.GroupID `json:"preempts"`
	Submitted time.Time             `json:"submitted"`
}

type allocRecord struct {
	Status      coordinator.Status `json:"status"`
	Attempt     uint32             `json:"attempt"`
	Definition  string             `json:"definition"`
	Reservation string             `json:"reservation"`
	Ranks       []rankRecord       `json:"ranks"`
	Placed      time.Time          `json:"placed"`
	Started     time.Time          `json:"started"`
	Ended       time.Time          `json:"ended"`
	Stop        string             `json:"stop"`
	NoticeEnds  time.Time          `json:"notice_ends"`
	Preempted   uint32             `json:"preempted"`
	Message     string             `json:"message"`
	Priorities  *struct {
		Group int32 `json:"group"`
	} `json:"priorities"`
}

type rankRecord struct {
	Node    string            `json:"node"`
	State   engine.RunState   `json:"state"`
	Devices []string          `json:"devices"`
	End     *engine.RunStatus `json:"end"`
}

type holdRecord struct {
	Definition string                     `json:"definition"`
	Shares     []heldShare                `json:"shares"`
	Victims    []coordinator.AllocationID `json:"victims"`
	Told       []struct {
		ID         coordinator.AllocationID `json:"id"`
		Attempt    uint32                   `json:"attempt"`
		NoticeEnds time.Time                `json:"notice_ends"`
	} `json:"told"`
	Since time.Time `json:"since"`

	victims map[coordinator.RunID]bool // in the attempt that they were in when it was laid
}

type heldShare struct {
	Node    string   `json:"node"`
	Devices []string `json:"devices"`
}

type reservationRecord struct {
	Definition string      `json:"definition"`
	Until      time.Time   `json:"until"`
	Ended      time.Time   `json:"ended"`
	Shares     []heldShare `json:"shares"`

	since map[string]time.Time // by node and GPU, when it was known to be the reservation's
}

type windowRecord struct {
	Nodes []string  `json:"nodes"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	Ended time.Time `json:"ended"`
}

// maintained reports whether a node is in maintenance at some moment between two.
func (j *judge) maintained(id string, from, to time.Time) bool {
	for _, w := range j.windows {
		if slices.Contains(w.Nodes, id) && w.From.Before(to) && from.Before(w.Until) && (w.Ended.IsZero() || from.Before(w.Ended)) {
			return true
		}
	}
	return false
}

type nodeRecord struct {
	Definition string `json:"definition"`
	Scheduling string `json:"scheduling"`
	Lost       bool   `json:"lost"`
}

// allocation is a record with what it belongs to.
type allocation struct {
	id       coordinator.AllocationID
	workflow *workflowRecord
	flow     coordinator.WorkflowID
	spec     *coordinator.JobSpec
	record   allocRecord
	stopped  int       // write that set record.Stop
	held     time.Time // since when the room was held for it that it was placed in
}

// waits reports whether it could use what is held for it.
func (a *allocation) waits() bool { return !a.record.Status.Ended() && !a.record.Status.Holds() }

func (a *allocation) run() coordinator.RunID { return a.id.Run(a.record.Attempt) }

// process is what really happened to a run on a node.
type process struct {
	run      coordinator.RunID
	node     string
	began    time.Time
	ended    time.Time
	how      string
	code     int32
	recorded bool // its end is in the node's journal
	cause    string
}

// committed reads groups that have become durable. A crash may come between any two of them: rest is what it kept from it.
func (j *judge) committed(groups, rest []store.Group) {
	j.write++
	touched := map[string]bool{} // nodes whose room may have changed hands
	for _, g := range groups {
		for _, op := range g.Ops {
			j.read(op, touched)
		}
	}
	for _, g := range rest {
		for _, op := range g.Ops {
			if kind, id, _ := strings.Cut(op.Key, "/"); op.Delete && kind == "hold" {
				j.undone[coordinator.AllocationID(id)] = true
			}
		}
	}
	for _, n := range j.w.nodes {
		if touched[n.id] {
			j.room(n)
		}
	}
	if len(rest) == 0 { // else what was decided before a plan may be missing
		j.inVain()
		j.unasked()
	}
	j.plans = j.plans[:0]
	j.sequence = j.newest
}

func (j *judge) read(op store.Op, touched map[string]bool) {
	kind, rest, _ := strings.Cut(op.Key, "/")
	if op.Delete {
		j.deleted(kind, rest)
		return
	}
	decode := func(v any) {
		if err := json.Unmarshal(op.Value, v); err != nil {
			j.w.fail("record %s cannot be read: %v", op.Key, err)
		}
	}
	switch kind {
	case "cluster":
		var rec struct {
			ID string `json:"id"`
		}
		decode(&rec)
		j.cluster = rec.ID
	case "config-yaml":
		s, ok := j.known[string(op.Value)]
		if !ok {
			j.w.fail("a configuration that nobody set is stored")
		}
		j.now, j.changed = s, time.Now()
		if j.loose == 0 || s.notice < j.loose {
			j.loose = s.notice
		}
	case "group":
		var rec coordinator.Group
		decode(&rec)
		j.groups[rec.ID], j.changed = rec.Priority, time.Now()
	case "node":
		var rec nodeRecord
		decode(&rec)
		j.node(rest, rec)
	case "reservation":
		var rec reservationRecord
		decode(&rec)
		j.reservation(rest, rec)
	case "maintenance":
		var rec windowRecord
		decode(&rec)
		j.windows[rest] = rec
	case "workflow":
		rec := &workflowRecord{}
		decode(rec)
		if j.workflows[coordinator.WorkflowID(rest)] != nil {
			j.w.fail("workflow %s is written twice", rest)
		}
		j.workflows[coordinator.WorkflowID(rest)] = rec
	case "allocation":
		var rec allocRecord
		decode(&rec)
		j.allocation(coordinator.AllocationID(rest), rec, touched)
	case "hold":
		rec := &holdRecord{}
		decode(rec)
		j.hold(coordinator.AllocationID(rest), rec, touched)
	case "event":
		var list []engine.Event
		decode(&list)
		for _, ev := range list {
			j.event(ev)
		}
	}
}

func (j *judge) deleted(kind, rest string) {
	switch kind {
	case "workflow", "allocation":
		j.w.fail("the record of %s %s is deleted", kind, rest)
	case "hold":
		j.w.step("nothing is held for %s any more", rest)
		delete(j.holds, coordinator.AllocationID(rest))
		delete(j.undone, coordinator.AllocationID(rest))
	}
}

func (j *judge) node(id string, rec nodeRecord) {
	for _, n := range j.w.nodes {
		if n.id != id {
			continue
		}
		if rec.Lost && !n.lost {
			j.w.count("lost nodes")
			j.w.step("%s is given up", id)
			for _, r := range j.live[id] {
				r.wasLost = true
			}
		}
		n.scheduling, n.lost, n.definition = rec.Scheduling, rec.Lost, rec.Definition
		if rec.Definition != "" && rec.Definition != n.machine.definition {
			j.w.fail("%s is assigned to %s", id, rec.Definition)
		}
	}
}

// find gives the allocation with the id; its record may be the first.
func (j *judge) find(id coordinator.AllocationID) *allocation {
	if a := j.allocs[id]; a != nil {
		return a
	}
	flow, rest, _ := strings.Cut(string(id), "/")
	name, _, _ := strings.Cut(rest, "/")
	w := j.workflows[coordinator.WorkflowID(flow)]
	if w == nil {
		return nil
	}
	for i := range w.Spec.Jobs {
		if w.Spec.Jobs[i].Name == name {
			a := &allocation{id: id, workflow: w, flow: coordinator.WorkflowID(flow), spec: &w.Spec.Jobs[i]}
			a.record.Status = coordinator.StatusPending
			j.allocs[id] = a
			return a
		}
	}
	return nil
}

// edges are the ways from one status to another that a new attempt is not needed for.
func edges(from coordinator.Status) []coordinator.Status {
	const (
		queued, starting, running = coordinator.StatusQueued, coordinator.StatusStarting, coordinator.StatusRunning
		preempting, preempted     = coordinator.StatusPreempting, coordinator.StatusPreempted
		finished, failed          = coordinator.StatusFinished, coordinator.StatusFailed
		cancelled, lost           = coordinator.StatusCancelled, coordinator.StatusLost
	)
	switch from {
	case coordinator.StatusPending:
		return []coordinator.Status{queued, cancelled}
	case queued:
		return []coordinator.Status{cancelled}
	case starting:
		return []coordinator.Status{running, preempting, queued, preempted, finished, failed, cancelled, lost}
	case running:
		return []coordinator.Status{preempting, queued, preempted, finished, failed, cancelled, lost}
	case preempting:
		return []coordinator.Status{queued, preempted, cancelled}
	}
	return nil
}

func (j *judge) allocation(id coordinator.AllocationID, rec allocRecord, touched map[string]bool) {
	a := j.find(id)
	if a == nil {
		j.w.fail("allocation %s has no workflow", id)
		return
	}
	was := a.record
	a.record = rec
	if rec.Stop != was.Stop || rec.Attempt != was.Attempt {
		a.stopped = j.write
	}
	delete(j.active, id)
	if rec.Status.Holds() {
		j.active[id] = a
	}
	if rec.Status != was.Status || rec.Attempt != was.Attempt {
		j.moved = time.Now()
		j.w.step("%s #%d %s (was #%d %s) %s", id, rec.Attempt, rec.Status, was.Attempt, was.Status, rec.Message)
	}
	for _, r := range slices.Concat(was.Ranks, rec.Ranks) {
		touched[r.Node] = true
	}
	switch {
	case was.Status.Ended() && rec.Status != was.Status:
		j.w.fail("%s was %s and becomes %s", id, was.Status, rec.Status)
	case rec.Attempt == was.Attempt && rec.Status != was.Status && !slices.Contains(edges(was.Status), rec.Status):
		j.w.fail("%s goes from %s to %s in one attempt", id, was.Status, rec.Status)
	case rec.Attempt == was.Attempt+1:
		if rec.Status != coordinator.StatusStarting {
			j.w.fail("%s begins attempt %d as %s", id, rec.Attempt, rec.Status)
		}
		j.placed(a, was)
	case rec.Attempt != was.Attempt:
		j.w.fail("%s goes from attempt %d to %d", id, was.Attempt, rec.Attempt)
	}
	if rec.Stop == "preempted" && (was.Stop != rec.Stop || was.Attempt != rec.Attempt) {
		j.notice(a, was)
	}
	if rec.Attempt == was.Attempt {
		j.ranksEnded(a, was)
	}
	if rec.Status == coordinator.StatusFinished && was.Status != rec.Status {
		j.finished(a)
	}
}

// ranksEnded holds each end that is believed against what happened (old runs' reports are ignored).
func (j *judge) ranksEnded(a *allocation, was allocRecord) {
	for i, r := range a.record.Ranks {
		if r.State != engine.RunEnded || i < len(was.Ranks) && was.Ranks[i].State == engine.RunEnded {
			continue
		}
		if r.End == nil || r.End.Run != a.run() {
			j.w.fail("%s takes the end of another run: %+v", a.id, r.End)
			continue
		}
		p := j.procs[a.run()][r.Node]
		switch {
		case r.End.Cause == engine.CauseExited && (p == nil || p.how != "exited" || p.code != r.End.ExitCode):
			j.w.fail("%s on %s is told to have exited with %d, it did %+v", a.run(), r.Node, r.End.ExitCode, p)
		case p != nil && p.ended.IsZero() && !strings.Contains(r.End.Message, "was lost"):
			j.w.fail("%s on %s is told to have ended (%s: %s), it runs", a.run(), r.Node, r.End.Cause, r.End.Message)
		}
	}
}

// finished holds the best of ends against what happened on every node.
func (j *judge) finished(a *allocation) {
	for _, r := range a.record.Ranks {
		if p := j.procs[a.run()][r.Node]; p == nil || p.how != "exited" || p.code != 0 {
			j.w.fail("%s is finished, on %s it did %+v", a.run(), r.Node, p)
		}
	}
	if n := int(max(a.spec.Nodes, 1)); len(a.record.Ranks) != n {
		j.w.fail("%s is finished on %d of %d nodes", a.id, len(a.record.Ranks), n)
	}
}

// answered holds what a user was told against what is durable.
func (j *judge) answered(fl *flow) {
	if j.workflows[fl.id] == nil {
		j.w.fail("flow %d was answered as %s, which is not stored", fl.number, fl.id)
	}
}

// knows tells the judge of a configuration that may be set.
func (j *judge) knows(s settings) { j.known[s.yaml] = s }
