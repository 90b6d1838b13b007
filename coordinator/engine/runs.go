package engine

import (
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
)

// startRun is the order for one node. job and environment are shared by all its sendings.
func (s *state) startRun(a *allocation, id coordinator.NodeID) *StartRun {
	w, spec := a.job.workflow, a.job.spec
	nodes := a.nodeIDs()
	rank := slices.Index(nodes, id)
	env := append(slices.Clone(spec.Env),
		"SUBSTRATE_CLUSTER="+s.cluster.ID,
		"SUBSTRATE_WORKFLOW_ID="+string(w.id),
		"SUBSTRATE_WORKFLOW_NAME="+w.record.Spec.Name,
		"SUBSTRATE_JOB_NAME="+spec.Name,
		"SUBSTRATE_ALLOCATION_ID="+string(a.id),
		"SUBSTRATE_ATTEMPT="+fmt.Sprint(a.record.Attempt),
		"SUBSTRATE_DEFINITION="+string(a.record.Definition),
	)
	if spec.Array != nil {
		env = append(env, "SUBSTRATE_TASK_INDEX="+fmt.Sprint(a.task),
			"SUBSTRATE_TASK_START="+fmt.Sprint(spec.Array.Start), "SUBSTRATE_TASK_END="+fmt.Sprint(spec.Array.End))
	}
	if a.record.Reservation != "" {
		env = append(env, "SUBSTRATE_RESERVATION="+s.reservationName(a.record.Reservation))
	}
	if spec.ProcsPerNode > 0 {
		env = append(env, "SUBSTRATE_PROCS_PER_NODE="+fmt.Sprint(spec.ProcsPerNode))
	}
	if n := s.nodes[id]; n != nil && rank >= 0 {
		env = append(env, n.visible(a.record.Ranks[rank].Devices)...)
	}
	return &StartRun{
		Run: a.run(), Fence: s.fence, Job: spec, Env: env, UnixUser: w.record.Owner.UnixUser,
		Walltime: spec.Walltime, KillAfter: s.config.Scheduler.KillTimeout, Rank: uint32(max(rank, 0)), Nodes: nodes,
	}
}

// stop asks every node of a run to end it, once the reason is durable.
func (t *tx) stop(a *allocation, grace time.Duration, reason string) {
	s, run := t.state, a.run()
	for _, r := range a.record.Ranks {
		if r.State == RunEnded {
			continue
		}
		id := r.Node
		t.then(func(int64) {
			if n := s.nodes[id]; n != nil && n.session != nil {
				n.session.push(ToNode{Stop: &StopRun{Run: run, Grace: grace, Reason: reason}})
			}
		})
	}
}

// report takes in what a node says about a run. Reports of earlier attempts, of runs placed elsewhere
// and of runs nobody knows never touch anything; the node is told to end and forget them.
func (t *tx) report(n *node, st RunStatus) {
	s := t.state
	a, current := s.runOwner(st.Run)
	var r *rankRecord
	if current && a.record.Status.Holds() {
		r = a.rank(n.id)
	}
	if st.State == RunEnded {
		run := st.Run
		t.strayed(n, run, false)
		t.then(func(int64) {
			if n.session != nil {
				n.session.push(ToNode{Ended: []coordinator.RunID{run}})
			}
		})
	}
	if r == nil || r.State == RunEnded {
		if st.State != RunEnded {
			run := st.Run
			t.strayed(n, run, true)
			t.then(func(int64) {
				if n.session != nil {
					n.session.push(ToNode{Stop: &StopRun{Run: run, Grace: s.config.Scheduler.KillTimeout, Reason: "superseded"}})
				}
			})
		}
		return
	}
	switch st.State {
	case RunRunning:
		t.running(a, r, st)
	case RunEnded:
		end := st
		r.State, r.End = RunEnded, &end
		t.touch(a)
		t.rankEnded(a, end)
	}
}

// strayed notes a run that a node still holds though it was given up, or that it has ended: what it uses is not free, so
// nothing new comes to the node meanwhile.
func (t *tx) strayed(n *node, run coordinator.RunID, lives bool) {
	if n.strays[run] == lives || n.isSlot() { // what a batch system has free, it knows itself
		return
	}
	if lives {
		if n.strays == nil {
			n.strays = map[coordinator.RunID]bool{}
		}
		n.strays[run] = true
	} else {
		delete(n.strays, run)
	}
	t.state.changedNode(n)
}

// running notes that a node has started its share; the run has started when all have.
func (t *tx) running(a *allocation, r *rankRecord, st RunStatus) {
	if r.State == RunRunning {
		return
	}
	r.State = RunRunning
	t.touch(a)
	for _, other := range a.record.Ranks {
		if other.State == RunStarting {
			return
		}
	}
	t.markStarted(a, st.Started)
}

func (t *tx) markStarted(a *allocation, at time.Time) {
	if !a.record.Started.IsZero() {
		return
	}
	if at.IsZero() || at.Before(a.record.Placed) || at.After(t.now) {
		at = t.now // the node's clock is off: never start before the placement or in the future
	}
	a.record.Started = at
	switch a.record.Status {
	case coordinator.StatusStarting:
		t.set(a, coordinator.StatusRunning)
	case coordinator.StatusPreempting: // notice came first: it has run all the same
		if !a.ranBefore() {
			a.job.started++
		}
		t.wake(a.job)
	}
	t.event(Event{Kind: "started", Workflow: a.job.workflow.id, Job: a.name(),
		Message:  fmt.Sprintf("on %s", listed(a.nodeIDs())),
		Metadata: map[string]string{"run": string(a.run()), "definition": string(a.record.Definition)}})
}

// listed names at most eight.
func listed[S ~string](list []S) string {
	const most = 8
	text := ""
	for i, name := range list {
		if i == most {
			return fmt.Sprintf("%s and %d more", text, len(list)-most)
		}
		if i > 0 {
			text += ", "
		}
		text += string(name)
	}
	return text
}

// rankEnded ends the run when its last node is done; a failure of one node stops the others.
func (t *tx) rankEnded(a *allocation, end RunStatus) {
	open := 0
	for _, r := range a.record.Ranks {
		if r.State != RunEnded {
			open++
		}
	}
	if open > 0 {
		if !end.clean() && a.record.Stop == "" {
			a.record.Stop = stopGang
			t.stop(a, t.state.config.Scheduler.KillTimeout, string(stopGang))
		}
		return
	}
	t.finish(a, a.worst())
}

func (st RunStatus) clean() bool { return st.Cause == CauseExited && st.ExitCode == 0 }

// worst picks the report that tells the run's outcome: the earliest that was not clean, and not the
// consequence of our own stop.
func (a *allocation) worst() RunStatus {
	var pick RunStatus
	for i, r := range a.record.Ranks {
		if r.End == nil {
			continue
		}
		end := *r.End
		switch {
		case i == 0:
			pick = end
		case pick.clean() && !end.clean():
			pick = end
		case !end.clean() && pick.Cause == CauseStopped && end.Cause != CauseStopped:
			pick = end
		case !end.clean() && (end.Cause == CauseStopped) == (pick.Cause == CauseStopped) && end.Ended.Before(pick.Ended):
			pick = end
		}
	}
	return pick
}

// nodeFault ends a run's share on a node that is gone or no longer knows the run.
func (t *tx) nodeFault(a *allocation, id coordinator.NodeID, why string) {
	r := a.rank(id)
	if r == nil || r.State == RunEnded {
		return
	}
	end := RunStatus{Run: a.run(), State: RunEnded, Cause: CauseLostStatus, Message: why, Ended: t.now}
	r.State, r.End = RunEnded, &end
	t.touch(a)
	t.rankEnded(a, end)
}

// began reports whether a run that has ended had started. What waits in a batch system's queue can end there.
func (a *allocation) began(s *state, end RunStatus) bool {
	switch end.Cause {
	case CauseStartFailed, CauseLostStatus, CauseNeverRan:
		return false
	case CauseStopped, CausePreempted, CauseEnded:
		return !a.onSlot(s) || !end.Started.IsZero()
	}
	return true
}

// finish gives a run that is over on all its nodes its consequence.
func (t *tx) finish(a *allocation, end RunStatus) {
	if a.began(t.state, end) {
		t.markStarted(a, end.Started) // it may be over before a running report was seen
	}
	r := &a.record
	// The node's own time, so that an outage in between does not count as running; a clock that is off
	// never puts an end before the start or into the future.
	if !end.Ended.IsZero() && !end.Ended.Before(r.Started) && end.Ended.Before(t.now) {
		r.Ended = end.Ended.UTC()
	}
	switch end.Cause {
	case CauseExited:
		code := end.ExitCode
		r.ExitCode = &code
	case CauseSignalled, CauseStopped, CauseWalltime, CauseOOM:
		r.Signal = end.Signal
	}
	spec := a.job.spec
	switch r.Stop {
	case stopCancel:
		t.end(a, coordinator.StatusCancelled, r.Message)
		return
	case stopPreempt:
		t.preempted(a)
		return
	case stopRequeue:
		why := "its node is being drained"
		if t.leavesTakenNode(a) {
			why = "its node is taken back by the provider"
		}
		t.requeue(a, why, 0)
		return
	}
	switch {
	case end.Cause == CauseNeverRan:
		t.requeue(a, end.Message, 0)
	case end.Cause == CausePreempted:
		t.preempted(a)
	case end.Cause == CauseLostStatus && !end.Doubt && spec.Restart != coordinator.RestartNever && r.NodeFaults < maxNodeFaults:
		// The first time at once; work that takes one node after the other down slows and stops.
		delay := time.Duration(0)
		if r.NodeFaults > 0 {
			delay = restartDelay(r.NodeFaults)
		}
		r.NodeFaults++
		t.requeue(a, end.Message, delay)
	case end.Cause == CauseLostStatus:
		message := end.Message
		if r.NodeFaults > 0 {
			message = fmt.Sprintf("%s; after %d node faults it is not tried again", message, r.NodeFaults+1)
		}
		t.end(a, coordinator.StatusLost, message)
	case spec.Restart == coordinator.RestartAlways && spec.Kind == coordinator.KindService:
		r.Failures++
		t.requeue(a, endText(end, spec), restartDelay(r.Failures))
	case end.clean():
		t.end(a, coordinator.StatusFinished, "")
	default:
		r.Failures++
		t.end(a, coordinator.StatusFailed, endText(end, spec))
	}
}

// maxNodeFaults bounds how often work is sent elsewhere after its node was lost: it may be the cause.
const maxNodeFaults = 10

// preempted applies rule 3: back to the front of its class, or the final state. Preemptions are
// counted apart from failures (rule 23).
func (t *tx) preempted(a *allocation) {
	r, spec := &a.record, a.job.spec
	r.Preempted++
	if spec.RetryOnPreempt && (spec.PreemptionsMax == nil || r.Preempted <= *spec.PreemptionsMax) {
		t.event(Event{Kind: "preempted", Workflow: a.job.workflow.id, Job: a.name(), Message: "ended after its notice",
			Metadata: map[string]string{"run": string(a.run())}})
		r.Returned = true
		t.requeue(a, "preempted; goes back to the front of its class", 0)
		return
	}
	t.end(a, coordinator.StatusPreempted, "ended after its notice")
}

// restartDelay backs off from a service that keeps ending: 1 s, 2 s, … up to a minute.
func restartDelay(failures uint32) time.Duration {
	return min(time.Second<<min(failures-1, 6), time.Minute)
}

func endText(end RunStatus, spec *coordinator.JobSpec) string {
	switch end.Cause {
	case CauseExited:
		return fmt.Sprintf("exit code %d", end.ExitCode)
	case CauseSignalled:
		return fmt.Sprintf("killed by signal %d", end.Signal)
	case CauseWalltime:
		return fmt.Sprintf("reached its walltime of %s", spec.Walltime)
	case CauseOOM:
		return fmt.Sprintf("ran out of its memory of %s", spec.Resources.TotalMemory())
	}
	if end.Message != "" {
		return end.Message
	}
	return string(end.Cause)
}
