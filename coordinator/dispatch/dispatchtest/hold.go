package dispatchtest

import "substrate/coordinator/dispatch"

// holdChecks are about what keeps pending objects from starting.
func holdChecks() []check {
	h := implements(dispatch.InterfaceHolder)
	return []check{
		{name: "hold/placed, replaced, released", needs: []need{h}, run: holdLife},
		{name: "hold/released behind the gate", needs: []need{h}, run: holdBehindGate},
		{name: "hold/after the gate", needs: []need{h}, run: holdAfterGate},
		{name: "hold/instances", needs: []need{h}, run: holdInstances},
		{name: "hold/too late", needs: []need{h}, run: holdTooLate},
		{name: "hold/stopped", needs: []need{h}, run: holdStopped},
		{name: "hold/beside an operator's", needs: []need{h, hook("OperatorHold", func(f Faults) bool { return f.OperatorHold != nil })}, run: holdBesideOperator},
		{name: "hold/read by others", needs: []need{h, given("Again", func(s System) bool { return s.Again != nil })}, run: holdReadByOthers},
	}
}

func (s *session) held(id dispatch.ObjectID, n dispatch.Instance) {
	s.Helper()
	if o := s.inspect(id); o.Hold != n || o.State != dispatch.StatePending {
		s.Errorf("%s is %s, want it pending with hold %d", id, show(o), n)
	}
}

func holdLife(s *session) {
	h := s.holder()
	id := s.submit(s.long())
	s.must("hold 7", h.Hold(s.Context(), id, 7))
	s.held(id, 7)
	s.must("hold 7 again", h.Hold(s.Context(), id, 7))
	s.held(id, 7)
	s.must("hold 9", h.Hold(s.Context(), id, 9))
	s.held(id, 9)
	for _, stale := range []dispatch.Instance{1, 7, 8, 10, dispatch.EpochBound - 1} {
		s.wants("a stale release", h.Release(s.Context(), id, stale), dispatch.ErrStale)
		s.held(id, 9)
	}
	s.wants("an earlier hold", h.Hold(s.Context(), id, 8), dispatch.ErrStale)
	s.held(id, 9)
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	s.stays(id, "held", func(o dispatch.Observation) bool { return isPending(o) && o.Hold == 9 })
	if o := s.inspect(id); o.Cause != dispatch.CauseHeld {
		s.Errorf("with its gate open and a hold it is %s", show(o))
	}
	s.wants("a stale release with the gate open", h.Release(s.Context(), id, 7), dispatch.ErrStale)
	s.held(id, 9)
	s.must("release 9", h.Release(s.Context(), id, 9))
	s.await(id, s.Wait, "running", func(o dispatch.Observation) bool { return isRunning(o) && o.Hold == 0 })
}

func holdBehindGate(s *session) {
	h := s.holder()
	id := s.submit(s.long())
	s.must("hold", h.Hold(s.Context(), id, 1))
	s.must("release", h.Release(s.Context(), id, 1))
	s.wants("release again", h.Release(s.Context(), id, 1), dispatch.ErrStale)
	s.stays(id, "gated, with no hold", func(o dispatch.Observation) bool {
		return isPending(o) && o.Hold == 0 && o.Cause == dispatch.CauseGated
	})
	s.must("hold anew", h.Hold(s.Context(), id, 1))
	s.held(id, 1)
	s.must("release the new one", h.Release(s.Context(), id, 1))
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	s.await(id, s.Wait, "running", isRunning)
}

// holdAfterGate holds what waits with an open gate: a hold keeps it there while another is released.
func holdAfterGate(s *session) {
	h := s.holder()
	id := s.submit(s.long())
	s.must("hold", h.Hold(s.Context(), id, 1))
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	s.must("hold again", h.Hold(s.Context(), id, 2))
	s.wants("release the first", h.Release(s.Context(), id, 1), dispatch.ErrStale)
	s.stays(id, "held by the second", func(o dispatch.Observation) bool { return isPending(o) && o.Hold == 2 })
	s.must("release the second", h.Release(s.Context(), id, 2))
	s.await(id, s.Wait, "running", isRunning)
}

func holdInstances(s *session) {
	h := s.holder()
	id := s.submit(s.long())
	for _, n := range []dispatch.Instance{0, dispatch.EpochBound, 1<<32 - 1} {
		s.wants("hold with no instance", h.Hold(s.Context(), id, n), dispatch.ErrRefused)
		s.wants("release of no instance", h.Release(s.Context(), id, n), dispatch.ErrRefused, dispatch.ErrStale)
		s.held(id, 0)
	}
	for _, n := range []dispatch.Instance{1, 2, 59, 60, 61, 86_400, dispatch.EpochBound - 1} {
		s.must("hold", h.Hold(s.Context(), id, n))
		s.held(id, n)
	}
}

func holdTooLate(s *session) {
	h := s.holder()
	id := s.running()
	s.wants("hold what runs", h.Hold(s.Context(), id, 1), dispatch.ErrNotPending)
	s.wants("release of what runs", h.Release(s.Context(), id, 1), dispatch.ErrStale, dispatch.ErrNotPending)
	s.stays(id, "running", func(o dispatch.Observation) bool { return isRunning(o) && o.Hold == 0 && o.Execution == 0 })
	over, _ := s.ended("exit 0")
	s.wants("hold what is over", h.Hold(s.Context(), over, 1), dispatch.ErrEnded)
	s.wants("release of what is over", h.Release(s.Context(), over, 1), dispatch.ErrStale, dispatch.ErrEnded)
}

func holdStopped(s *session) {
	id := s.submit(s.long())
	s.must("hold", s.holder().Hold(s.Context(), id, 1))
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	s.must("stop", s.b.Stop(s.Context(), id))
	s.cancelled(id)
	s.wants("hold what was stopped", s.holder().Hold(s.Context(), id, 2), dispatch.ErrEnded)
}

func holdBesideOperator(s *session) {
	h := s.holder()
	id := s.submit(s.long())
	s.must("hold", h.Hold(s.Context(), id, 3))
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	s.sys.Faults.OperatorHold(s.T, id, true)
	s.held(id, 3)
	s.sys.Faults.OperatorHold(s.T, id, false)
	s.stays(id, "held by ours", func(o dispatch.Observation) bool { return isPending(o) && o.Hold == 3 })
	s.sys.Faults.OperatorHold(s.T, id, true)
	s.must("release", h.Release(s.Context(), id, 3))
	s.stays(id, "held by the operator", func(o dispatch.Observation) bool { return isPending(o) && o.Hold == 0 })
	if o := s.inspect(id); o.Cause != dispatch.CauseOperatorHeld && o.Cause != dispatch.CauseGated {
		s.Errorf("what the operator holds is %s", show(o))
	}
	s.sys.Faults.OperatorHold(s.T, id, false)
	s.await(id, s.Wait, "running", isRunning)
}

func holdReadByOthers(s *session) {
	id := s.submit(s.long())
	s.must("hold", s.holder().Hold(s.Context(), id, 12))
	b := s.sys.Again(s.T)
	o, err := b.Inspect(s.Context(), id)
	s.must("inspect after a restart", err)
	if o.Hold != 12 {
		s.Errorf("after a restart it is %s", show(o))
	}
	if found := s.find(s.refs[id]); len(found) != 1 || found[0].Hold != 12 {
		s.Errorf("it is found as %+v", found)
	}
	h, ok := b.(dispatch.Holder)
	if !ok {
		s.Fatal("the restarted owner cannot hold")
	}
	s.must("release after a restart", h.Release(s.Context(), id, 12))
	s.held(id, 0)
}
