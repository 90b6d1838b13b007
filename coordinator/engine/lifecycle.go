package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
)

// set moves an allocation to a status and keeps every index and count in step. It is the only place
// where a status changes.
func (t *tx) set(a *allocation, to coordinator.Status) {
	from := a.record.Status
	if from == to {
		return
	}
	s, j := t.state, a.job
	j.counts[from]--
	j.counts[to]++
	a.record.Status = to
	s.index(a)
	if to == coordinator.StatusRunning && !a.ranBefore() {
		j.started++
	}
	if from.Holds() && !to.Holds() {
		s.detach(a)
	}
	if to.Ended() && !from.Ended() {
		j.workflow.open--
		s.open--
	}
	if !from.Holds() || !to.Holds() { // a start that is confirmed frees and takes nothing
		s.dirty = true
	}
	t.touch(a)
	t.wake(j)
}

// ranBefore reports whether an earlier attempt has run.
func (a *allocation) ranBefore() bool {
	for _, p := range a.record.Past {
		if !p.Started.IsZero() {
			return true
		}
	}
	return false
}

// index files an allocation under what it is now.
func (s *state) index(a *allocation) {
	delete(s.queued, a.id)
	delete(s.active, a.id)
	delete(s.deferred, a.id)
	delete(s.yielding, a.id)
	switch st := a.record.Status; {
	case st == coordinator.StatusQueued:
		s.queued[a.id] = a
		if !a.record.NotBefore.IsZero() {
			s.deferred[a.id] = a
		}
	case st.Holds():
		s.active[a.id] = a
		if st == coordinator.StatusPreempting {
			s.yielding[a.id] = a
		}
	}
}

// detach takes an allocation off its nodes.
func (s *state) detach(a *allocation) {
	for _, r := range a.record.Ranks {
		if n := s.nodes[r.Node]; n != nil {
			delete(n.active, a.id)
			if n.record.Launch != "" {
				s.changedNode(n) // it may be idle now
			}
		}
	}
}

// wake looks again at the jobs that depend on j, and at theirs if that ended them.
func (t *tx) wake(j *job) {
	for _, d := range j.dependents {
		if d.counts[coordinator.StatusPending] > 0 {
			t.settle(d, true)
		}
	}
}

// dependency is what has become of one dependency.
type dependency uint8

const (
	dependencyOpen dependency = iota
	dependencyMet
	dependencyImpossible
)

// resume looks once at every job that still waits for others: a crash between the groups of one turn may
// have kept what they wait for and lost what follows from it. A job of which a part has gone on has told so.
func (t *tx) resume() {
	t.backfillGrants()
	t.resumeLosses()
	t.resumeHolds()
	for _, id := range slices.Sorted(maps.Keys(t.state.workflows)) {
		w := t.state.workflows[id]
		if w.open == 0 {
			continue
		}
		for _, j := range w.jobs {
			if n := j.counts[coordinator.StatusPending]; n > 0 {
				t.settle(j, n == len(j.allocations))
			}
		}
	}
}

// resumeLosses gives up the work of nodes that were lost when the write of what follows from it was cut short. Of a node that
// is there again it says so, if that could not be written when it came.
func (t *tx) resumeLosses() {
	for _, n := range t.state.sortedNodes() {
		switch {
		case n.lost:
			t.loseWork(n)
		case n.record.Lost:
			n.record.Lost = false
			t.put(prefixNode+string(n.id), n.record)
			t.group()
		}
	}
}

// settle queues a pending job whose dependencies are met, or cancels it when one never can be.
func (t *tx) settle(j *job, tell bool) {
	for _, d := range j.spec.DependsOn {
		switch on := j.workflow.byName[d.Name]; on.outcome(d.Status) {
		case dependencyOpen:
			return
		case dependencyImpossible:
			t.unreachable(j, fmt.Sprintf("it waits for %s to be %s, which cannot happen any more", d.Name, d.Status), tell)
			return
		}
	}
	for _, a := range j.allocations {
		if a.record.Status == coordinator.StatusPending {
			t.set(a, coordinator.StatusQueued)
		}
	}
	if tell {
		t.event(Event{Kind: "ready", Workflow: j.workflow.id, Job: j.spec.Name, Message: readyText(j)})
	}
}

func readyText(j *job) string {
	if len(j.spec.DependsOn) == 0 {
		return "waits for resources"
	}
	return "dependencies are met; waits for resources"
}

// unreachable ends the tasks of a job that can never become ready.
func (t *tx) unreachable(j *job, why string, tell bool) {
	for _, a := range j.allocations {
		if a.record.Status == coordinator.StatusPending {
			a.record.Message = why
			a.record.Ended = t.now
			t.set(a, coordinator.StatusCancelled)
		}
	}
	if tell {
		t.event(Event{Kind: "cancelled", Workflow: j.workflow.id, Job: j.spec.Name, Message: why})
	}
	t.endWorkflow(j.workflow)
}

// outcome tells how far a job is towards a status that others wait for. A task array counts as a whole.
func (j *job) outcome(want coordinator.DependencyStatus) dependency {
	n := len(j.allocations)
	ended := 0
	for s := coordinator.StatusPreempted; s <= coordinator.StatusLost; s++ {
		ended += j.counts[s]
	}
	finished := j.counts[coordinator.StatusFinished]
	pick := func(met, impossible bool) dependency {
		switch {
		case met:
			return dependencyMet
		case impossible:
			return dependencyImpossible
		}
		return dependencyOpen
	}
	switch want {
	case coordinator.DependsRunning:
		return pick(j.started == n, ended > 0 && j.neverStarted())
	case coordinator.DependsFailed:
		return pick(ended == n && finished < n, ended == n)
	case coordinator.DependsAny:
		return pick(ended == n, false)
	default:
		return pick(finished == n, ended > finished)
	}
}

// neverStarted reports whether some task ended without having run.
func (j *job) neverStarted() bool {
	for _, a := range j.allocations {
		if a.record.Status.Ended() && a.record.Started.IsZero() && !a.ranBefore() {
			return true
		}
	}
	return false
}

// end gives an allocation its final status and says so.
func (t *tx) end(a *allocation, to coordinator.Status, message string) {
	if a.record.Ended.IsZero() {
		a.record.Ended = t.now
	}
	a.record.Message = message
	t.event(Event{Kind: to.String(), Workflow: a.job.workflow.id, Job: a.name(), Message: message,
		Metadata: endMetadata(a)})
	t.set(a, to) // after the event: what follows from the end is told after it
	t.endWorkflow(a.job.workflow)
}

func endMetadata(a *allocation) map[string]string {
	if a.record.Attempt == 0 {
		return nil
	}
	m := map[string]string{"run": string(a.run())}
	if a.record.ExitCode != nil {
		m["exit_code"] = fmt.Sprint(*a.record.ExitCode)
	}
	if a.record.Signal != 0 {
		m["signal"] = fmt.Sprint(a.record.Signal)
	}
	return m
}

// endWorkflow says once that nothing more happens to a workflow.
func (t *tx) endWorkflow(w *submission) {
	if w.open > 0 || w.ended {
		return
	}
	w.ended = true
	for _, j := range w.jobs {
		j.admission = nil // only placement needs it
	}
	status := w.status()
	t.event(Event{Kind: status.String(), Workflow: w.id, Subject: "workflow",
		Message: fmt.Sprintf("workflow %s %s", w.record.Spec.Name, status)})
}

// status is derived from the allocations: a workflow adds nothing of its own.
func (w *submission) status() coordinator.Status {
	var n [coordinator.StatusLost + 1]int
	for _, j := range w.jobs {
		for s, c := range j.counts {
			n[s] += c
		}
	}
	if w.open > 0 {
		for _, s := range []coordinator.Status{coordinator.StatusPreempting, coordinator.StatusRunning,
			coordinator.StatusStarting, coordinator.StatusQueued} {
			if n[s] > 0 {
				return s
			}
		}
		return coordinator.StatusPending
	}
	for _, s := range []coordinator.Status{coordinator.StatusFailed, coordinator.StatusLost,
		coordinator.StatusPreempted, coordinator.StatusCancelled} {
		if n[s] > 0 {
			return s
		}
	}
	return coordinator.StatusFinished
}

// requeue sends an allocation back to the queue. It keeps its submit time (rule 2).
func (t *tx) requeue(a *allocation, why string, delay time.Duration) {
	r := &a.record
	t.state.detach(a)
	if len(r.Past) == maxPast {
		r.Past = slices.Delete(r.Past, 0, 1)
	}
	r.Past = append(r.Past, attemptRecord{Attempt: r.Attempt, Nodes: a.nodeIDs(), Started: r.Started, Ended: t.now, Message: why})
	r.Ranks, r.Definition, r.Reservation = nil, "", ""
	r.Started, r.Ended, r.Placed = time.Time{}, time.Time{}, time.Time{}
	r.ExitCode, r.Signal, r.Stop, r.NoticeEnds = nil, 0, "", time.Time{}
	r.Message = why
	r.NotBefore = time.Time{}
	if delay > 0 {
		r.NotBefore = t.now.Add(delay)
	}
	t.set(a, coordinator.StatusQueued)
	t.event(Event{Kind: "requeued", Workflow: a.job.workflow.id, Job: a.name(), Message: why,
		Metadata: map[string]string{"attempt": fmt.Sprint(r.Attempt), "preempted": fmt.Sprint(r.Preempted), "failures": fmt.Sprint(r.Failures)}})
}
