package dispatchtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator/dispatch"
)

// requeueChecks are about an operator's order to run an object again.
func requeueChecks() []check {
	r := implements(dispatch.InterfaceRequeuer)
	crash := hook("CrashRequeue", func(f Faults) bool { return f.CrashRequeue != nil })
	end := hook("End", func(f Faults) bool { return f.End != nil })
	again := timing("Requeue", func(t Timings) time.Duration { return t.Requeue })
	checks := []check{
		{name: "requeue/another execution", needs: []need{r}, run: requeueReplaces},
		{name: "requeue/runs again", needs: []need{r, again}, run: requeueRuns},
		{name: "requeue/output of each", needs: []need{r, again, implements(dispatch.InterfaceOutputReader)}, run: requeueOutput},
		{name: "requeue/refused", needs: []need{r}, run: requeueRefused},
		{name: "requeue/leaves no bit", needs: []need{r, again, end}, run: requeueLeavesNoBit},
	}
	for step := 1; step <= 3; step++ {
		checks = append(checks, check{name: fmt.Sprintf("requeue/crash after step %d", step), needs: []need{r, crash}, disturbs: true,
			run: func(s *session) { s.requeueCrash(step) }})
	}
	return append(checks, check{name: "requeue/the bit is taken back", needs: []need{r, crash, end}, disturbs: true, run: requeueBitTakenBack})
}

func isReplaced(o dispatch.Observation) bool { return o.Execution == 1 && !o.State.Ended() }

// pasts checks what can be read of the execution that was replaced.
func (s *session) pasts(id dispatch.ObjectID) {
	s.Helper()
	if !s.keeps(dispatch.EvidenceExecution) {
		return
	}
	o := s.await(id, s.Wait, "shown with its earlier execution", func(o dispatch.Observation) bool { return len(o.Earlier) == 1 })
	if p := o.Earlier[0]; p.Execution != 0 || !p.State.Ended() || p.Cause != dispatch.CauseReplaced || p.Started.IsZero() || p.Ended.Before(p.Started) {
		s.Errorf("the execution that was replaced is %+v", p)
	}
}

func requeueReplaces(s *session) {
	id := s.running()
	s.must("requeue", s.requeuer().Requeue(s.Context(), id))
	s.await(id, s.Wait, "another execution", isReplaced)
	s.pasts(id)
	s.must("stop", s.b.Stop(s.Context(), id))
	s.cancelled(id)
	s.pasts(id)
}

func requeueRuns(s *session) {
	id := s.running()
	s.must("requeue", s.requeuer().Requeue(s.Context(), id))
	o := s.await(id, s.Requeue+s.Wait, "running again", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 1 })
	if o.Started.IsZero() || len(o.Nodes) == 0 || o.ExitCode != nil {
		s.Errorf("it runs again as %+v", o)
	}
	s.pasts(id)
}

func requeueOutput(s *session) {
	id := s.start(s.spec(`echo "execution $`+dispatch.EnvExecution+`"`, "sleep "+seconds(s.Long)))
	s.await(id, s.Wait, "running", isRunning)
	s.sleep(s.Quiet)
	s.must("requeue", s.requeuer().Requeue(s.Context(), id))
	s.await(id, s.Requeue+s.Wait, "running again", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 1 })
	s.sleep(s.Quiet)
	got := s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id]})
	if len(got) != 2 || got[0] != "execution 0\n" || got[1] != "execution 1\n" {
		s.Errorf("the executions have written %v", got)
	}
	if got := s.pieces(dispatch.OutputRequest{Object: id, Ref: s.refs[id], From: 1}); len(got) != 1 || got[1] != "execution 1\n" {
		s.Errorf("the second has written %v", got)
	}
}

func requeueRefused(s *session) {
	over, before := s.ended("exit 3")
	s.wants("requeue what is over", s.requeuer().Requeue(s.Context(), over), dispatch.ErrEnded)
	s.stays(over, "as it ended", func(o dispatch.Observation) bool {
		return o.State == before.State && o.Execution == 0 && o.Cause == before.Cause
	})
	s.wants("restore the bit of what is over", s.requeuer().RestoreRequeueBit(s.Context(), over), nil, dispatch.ErrEnded)
}

// requeueLeavesNoBit: after a requeue the system still restarts nothing by itself.
func requeueLeavesNoBit(s *session) {
	id := s.running()
	s.must("requeue", s.requeuer().Requeue(s.Context(), id))
	s.await(id, s.Requeue+s.Wait, "running again", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 1 })
	s.preemptedForGood(id, 1)
}

// preemptedForGood: a preemption ends it, unless the system requeues by itself.
func (s *session) preemptedForGood(id dispatch.ObjectID, execution dispatch.Execution) {
	s.Helper()
	s.sys.Faults.End(s.T, id, dispatch.CausePreempted)
	if s.can[dispatch.NativeRequeue].Answer == dispatch.Yes {
		return
	}
	o := s.await(id, s.Wait, "over", isEnded)
	if o.Cause != dispatch.CausePreempted || o.Execution != execution {
		s.Errorf("after a preemption it is %s", show(o))
	}
	s.stays(id, "over", func(o dispatch.Observation) bool { return o.State.Ended() && o.Execution == execution })
}

// requeueCrash: whatever step the call ends after, its caller hears that the outcome is unknown, and the object shows what was done.
func (s *session) requeueCrash(step int) {
	id := s.running()
	s.sys.Faults.CrashRequeue(s.T, step)
	s.wants("a requeue that crashes", s.requeuer().Requeue(s.Context(), id), dispatch.ErrOutcomeUnknown)
	s.must("restore the bit", s.requeuer().RestoreRequeueBit(s.Context(), id))
	s.must("restore it again", s.requeuer().RestoreRequeueBit(s.Context(), id))
	if step == 1 {
		s.stays(id, "running its first execution", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 0 })
		return
	}
	s.await(id, s.Wait, "another execution", isReplaced)
	s.pasts(id)
}

func requeueBitTakenBack(s *session) {
	id := s.running()
	s.sys.Faults.CrashRequeue(s.T, 1)
	s.wants("a requeue that crashes", s.requeuer().Requeue(s.Context(), id), dispatch.ErrOutcomeUnknown)
	s.must("restore the bit", s.requeuer().RestoreRequeueBit(s.Context(), id))
	s.preemptedForGood(id, 0)
}

// lostChecks are about calls whose reply is lost.
func lostChecks() []check {
	lose := hook("LoseReply", func(f Faults) bool { return f.LoseReply != nil })
	bound := func(s *session) string {
		if s.decl.CallBound > 0 {
			return ""
		}
		return "a bound of how late a call may land"
	}
	h := implements(dispatch.InterfaceHolder)
	return []check{
		{name: "lost/submit that landed", needs: []need{lose}, disturbs: true, run: func(s *session) { s.lostSubmit(Lands, 1) }},
		{name: "lost/submit that never lands", needs: []need{lose}, disturbs: true, run: func(s *session) { s.lostSubmit(LandsNever, 0) }},
		{name: "lost/submit that lands late", needs: []need{lose, bound}, disturbs: true, run: func(s *session) { s.lostSubmit(LandsLate, 1) }},
		{name: "lost/submit that comes too late", needs: []need{lose, bound}, disturbs: true, run: func(s *session) { s.lostSubmit(LandsTooLate, 0) }},
		{name: "lost/open gate", needs: []need{lose}, disturbs: true, run: lostOpenGate},
		{name: "lost/stop", needs: []need{lose}, disturbs: true, run: lostStop},
		{name: "lost/hold", needs: []need{lose, h}, disturbs: true, run: lostHold},
		{name: "lost/hold that comes too late", needs: []need{lose, bound, h}, disturbs: true, run: lostHoldTooLate},
	}
}

// losing makes a call whose reply is lost, and returns when its deadline was.
func (s *session) losing(what string, l Landing, call func(context.Context) error) (deadline time.Time) {
	s.Helper()
	ctx, cancel := s.Context(), context.CancelFunc(func() {})
	if s.Call > 0 {
		ctx, cancel = context.WithTimeout(ctx, s.Call)
	}
	defer cancel()
	s.sys.Faults.LoseReply(s.T, l)
	deadline = s.clock.Now().Add(s.Call)
	if err := call(ctx); !errors.Is(err, dispatch.ErrOutcomeUnknown) {
		s.Fatalf("%s, with its reply lost: got %v, want that the outcome is unknown", what, err)
	}
	if now := s.clock.Now(); now.After(deadline) {
		deadline = now
	}
	return deadline
}

// lostSubmit: until the bound is over the object may turn up; after it, what is there is all there will be.
func (s *session) lostSubmit(l Landing, want int) {
	spec := s.long()
	deadline := s.losing("submit", l, func(ctx context.Context) error {
		_, err := s.b.Submit(ctx, spec)
		return err
	})
	until := deadline.Add(s.decl.CallBound)
	if s.decl.CallBound == 0 {
		until = deadline.Add(s.Wait)
	}
	for !s.clock.Now().After(until) && (want == 0 || len(s.find(spec.Ref)) == 0) {
		s.sleep(s.Poll)
	}
	found := s.find(spec.Ref)
	if len(found) != want {
		s.Fatalf("after the bound there are %d objects, want %d", len(found), want)
	}
	if want == 0 {
		s.sleep(s.Quiet)
		if list := s.find(spec.Ref); len(list) != 0 {
			s.Fatalf("it landed after the bound: %v", objects(list))
		}
		spec.Ref.Submission++ // now its owner submits again
		found = []dispatch.Observation{{Object: s.submit(spec)}}
	} else {
		s.stays(found[0].Object, "behind the gate", isPending)
	}
	s.must("open the gate", s.b.OpenGate(s.Context(), found[0].Object))
	s.await(found[0].Object, s.Wait, "running", isRunning)
	if list := s.find(dispatch.Ref{Job: spec.Ref.Job}); len(list) != 1 {
		s.Errorf("the job has the objects %v", objects(list))
	}
}

func lostOpenGate(s *session) {
	id := s.submit(s.long())
	s.losing("open the gate", Lands, func(ctx context.Context) error { return s.b.OpenGate(ctx, id) })
	s.must("open it again", s.b.OpenGate(s.Context(), id))
	s.await(id, s.Wait, "running", isRunning)
	s.stays(id, "running its first execution", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 0 })
}

func lostStop(s *session) {
	id := s.running()
	s.losing("stop", Lands, func(ctx context.Context) error { return s.b.Stop(ctx, id) })
	s.must("stop again", s.b.Stop(s.Context(), id))
	s.cancelled(id)
}

func lostHold(s *session) {
	id := s.submit(s.long())
	s.losing("hold", Lands, func(ctx context.Context) error { return s.holder().Hold(ctx, id, 4) })
	s.await(id, s.Wait+s.decl.CallBound, "held", func(o dispatch.Observation) bool { return o.Hold == 4 })
	s.must("hold again", s.holder().Hold(s.Context(), id, 4))
	s.losing("release", Lands, func(ctx context.Context) error { return s.holder().Release(ctx, id, 4) })
	s.await(id, s.Wait+s.decl.CallBound, "released", func(o dispatch.Observation) bool { return o.Hold == 0 })
}

func lostHoldTooLate(s *session) {
	id := s.submit(s.long())
	deadline := s.losing("hold", LandsTooLate, func(ctx context.Context) error { return s.holder().Hold(ctx, id, 4) })
	for !s.clock.Now().After(deadline.Add(s.decl.CallBound)) {
		s.sleep(s.Poll)
	}
	s.held(id, 0)
	s.stays(id, "without a hold", func(o dispatch.Observation) bool { return o.Hold == 0 })
}

// faultChecks are about systems that cannot be asked, forget, and lose nodes.
func faultChecks() []check {
	down := hook("NodeDown", func(f Faults) bool { return f.NodeDown != nil })
	up := hook("NodeUp", func(f Faults) bool { return f.NodeUp != nil })
	kill := hook("Kill", func(f Faults) bool { return f.Kill != nil })
	noticed := timing("NodeLoss", func(t Timings) time.Duration { return t.NodeLoss })
	return []check{
		{name: "fault/unavailable", needs: []need{hook("Unavailable", func(f Faults) bool { return f.Unavailable != nil })}, disturbs: true, run: unavailable},
		{name: "fault/forgotten", needs: []need{forgets}, run: forgotten},
		{name: "fault/kept for its window", needs: []need{timing("Purge", func(t Timings) time.Duration { return t.Purge })}, run: keptForWindow},
		{name: "fault/node lost", needs: []need{down, noticed}, disturbs: true, run: nodeLost},
		{name: "fault/node back", needs: []need{down, up, noticed}, disturbs: true, run: nodeBack},
		{name: "fault/ceased", needs: []need{implements(dispatch.InterfaceCessationSignal), down, kill, noticed}, disturbs: true, run: ceased},
	}
}

// unavailable: what cannot be asked is never said to be absent.
func unavailable(s *session) {
	spec := s.long()
	id := s.submit(s.long())
	s.sys.Faults.Unavailable(s.T, true)
	_, err := s.b.Inspect(s.Context(), id)
	s.wants("inspect", err, dispatch.ErrUnavailable)
	if s.sys.UnknownID != "" {
		_, err = s.b.Inspect(s.Context(), s.sys.UnknownID)
		s.wants("inspect an unknown id", err, dispatch.ErrUnavailable)
	}
	list, err := s.b.Find(s.Context(), s.refs[id])
	if s.wants("find", err, dispatch.ErrUnavailable); len(list) > 0 {
		s.Errorf("what cannot be asked finds %v", list)
	}
	if m, ok := s.b.(dispatch.MultiFinder); ok {
		_, err = m.FindMany(s.Context(), []dispatch.ObjectID{id})
		s.wants("find many", err, dispatch.ErrUnavailable)
	}
	_, submitted := s.b.Submit(s.Context(), spec)
	s.wants("submit", submitted, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown)
	s.wants("open the gate", s.b.OpenGate(s.Context(), id), dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown)
	s.wants("stop", s.b.Stop(s.Context(), id), dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown)
	if c, ok := s.b.(dispatch.CessationSignal); ok {
		if got, _ := c.Ceased(s.Context(), id, 0); got == dispatch.Yes {
			s.Error("nobody could be asked, and the processes are said to be gone")
		}
	}
	s.sys.Faults.Unavailable(s.T, false)
	if errors.Is(submitted, dispatch.ErrUnavailable) {
		if list := s.find(spec.Ref); len(list) > 0 {
			s.Errorf("the submission that changed nothing made %v", objects(list))
		}
	}
	s.inspect(id)
}

func forgotten(s *session) {
	id, before := s.ended("exit 3")
	o, remembered := s.forget(id)
	if remembered && (o.State != before.State || o.Cause != before.Cause || o.ExitCode == nil || *o.ExitCode != 3) {
		s.Errorf("history tells of %s what was %s", show(o), show(before))
	}
	if remembered && o.Ref != before.Ref && o.Ref != (dispatch.Ref{}) {
		s.Errorf("history tells of %v what was %v", o.Ref, before.Ref)
	}
	if s.listed(id) {
		s.Error("it is forgotten, and found among many")
	}
	s.wants("stop what is forgotten", s.b.Stop(s.Context(), id), nil, dispatch.ErrNotFound)
}

// keptForWindow: what the declarations promise can be read until just before it may be lost.
func keptForWindow(s *session) {
	window := time.Duration(s.decl.PolledLoss[dispatch.EvidenceState])
	if window <= 0 || window > s.Purge {
		s.leaveOut("Timings.Purge of at least " + s.decl.PolledLoss[dispatch.EvidenceState].String())
	}
	id, before := s.ended("exit 3")
	since := before.Ended
	for next := since.Add(window - s.Poll - s.Poll/2); s.clock.Now().Before(next); s.sleep(s.Poll) {
		o := s.inspect(id)
		if o.State != before.State {
			s.Fatalf("within its window it is %s", show(o))
		}
		age := s.clock.Now().Sub(since)
		if w := time.Duration(s.decl.PolledLoss[dispatch.EvidenceCause]); (w < 0 || age < w) && o.Cause != dispatch.CauseExitCode {
			s.Fatalf("%s after the end, within %s, its cause is %s", age, w, o.Cause)
		}
		if w := time.Duration(s.decl.PolledLoss[dispatch.EvidenceExitCode]); (w < 0 || age < w) && o.ExitCode == nil {
			s.Fatalf("%s after the end, within %s, its exit code is lost", age, w)
		}
	}
}

// onNode starts a long job and returns where it runs.
func (s *session) onNode() (dispatch.ObjectID, string) {
	s.Helper()
	spec := s.spec("sleep " + seconds(s.Long+s.NodeLoss+s.decl.NodeLossWindow))
	id := s.start(spec)
	o := s.await(id, s.Wait, "running", isRunning)
	if len(o.Nodes) == 0 {
		s.Fatal("nobody knows where it runs")
	}
	return id, o.Nodes[0]
}

func isNodeLost(o dispatch.Observation) bool { return o.Cause == dispatch.CauseNodeLost }

// nodeLost: the loss is seen, and over at the latest after the window.
func nodeLost(s *session) {
	id, node := s.onNode()
	s.sys.Faults.NodeDown(s.T, node)
	requeues := s.can[dispatch.NativeRequeue].Answer == dispatch.Yes
	seen := func(o dispatch.Observation) bool { return isNodeLost(o) || requeues && o.Execution > 0 }
	o := s.await(id, s.NodeLoss, "seen to be on a lost node", seen)
	if o.State != dispatch.StateRunning && o.State != dispatch.StateFailed && o.Execution == 0 {
		s.Errorf("on a lost node it is %s", show(o))
	}
	track, _ := dispatch.Fold(dispatch.Track{}, dispatch.Look{Observation: o}, s.clock.Now(), s.decl)
	for until := s.clock.Now().Add(s.decl.NodeLossWindow + 2*s.Poll); !track.Over() && track.Last.Execution == 0; s.sleep(s.Poll) {
		if s.clock.Now().After(until) {
			s.Fatalf("after its window it is %s, and not given up", show(track.Last))
		}
		track, _ = dispatch.Fold(track, dispatch.Look{Observation: s.inspect(id)}, s.clock.Now(), s.decl)
	}
	if track.Over() && (track.End.Cause != dispatch.CauseNodeLost || !track.Doubt) {
		s.Errorf("it is over as %+v, doubt %v", track.End, track.Doubt)
	}
}

func nodeBack(s *session) {
	id, node := s.onNode()
	s.sys.Faults.NodeDown(s.T, node)
	o := s.await(id, s.NodeLoss, "seen to be on a lost node", func(o dispatch.Observation) bool { return isNodeLost(o) || o.Execution > 0 })
	s.sys.Faults.NodeUp(s.T, node)
	if o.State != dispatch.StateRunning {
		s.leaveOut("a system that shows a lost node before it gives up")
	}
	s.await(id, s.NodeLoss, "running as before, or over", func(o dispatch.Observation) bool { return isRunning(o) && !isNodeLost(o) || o.State.Ended() })
}

// ceased: nothing but proof is a yes. Processes on a node that does not answer may live.
func ceased(s *session) {
	c := s.b.(dispatch.CessationSignal)
	id, node := s.onNode()
	no := func(what string) {
		s.Helper()
		if got, err := c.Ceased(s.Context(), id, 0); got == dispatch.Yes {
			s.Fatalf("%s, and its processes are said to be gone (%v)", what, err)
		}
	}
	no("it runs")
	s.sys.Faults.NodeDown(s.T, node)
	no("its node has just gone")
	s.await(id, s.NodeLoss, "seen to be on a lost node", func(o dispatch.Observation) bool { return isNodeLost(o) || o.Execution > 0 })
	no("its node is lost")
	s.sys.Faults.Kill(s.T, node)
	for until := s.clock.Now().Add(s.Wait); ; s.sleep(s.Poll) {
		got, err := c.Ceased(s.Context(), id, 0)
		if got == dispatch.Yes {
			break
		}
		if s.clock.Now().After(until) {
			s.Fatalf("its node was killed, and whether it has ceased is %s, %v", got, err)
		}
	}
	if !slices.Contains(dispatch.InterfacesOf(s.b), dispatch.InterfaceCessationSignal) {
		s.Error("the interface is gone")
	}
}
