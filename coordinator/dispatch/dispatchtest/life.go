package dispatchtest

import (
	"slices"
	"time"

	"substrate/coordinator/dispatch"
)

// gateChecks are about submitting, the gate, and being found.
func gateChecks() []check {
	again := given("Again", func(s System) bool { return s.Again != nil })
	return []check{
		{name: "gate/keeps", run: gateKeeps},
		{name: "gate/opened twice", run: gateOpenedTwice},
		{name: "gate/of what is over", run: gateOfEnded},
		{name: "gate/opened after a restart", needs: []need{again}, run: gateAfterRestart},
		{name: "find/by numbers", run: findByNumbers},
		{name: "find/by the beginning of the job's id", run: findByPrefix},
		{name: "find/nothing", run: findNothing},
		{name: "find/many", needs: []need{implements(dispatch.InterfaceMultiFinder)}, run: findMany},
		{name: "find/unknown ids", run: unknownIDs},
	}
}

func gateKeeps(s *session) {
	id := s.submit(s.long())
	s.stays(id, "behind the gate", func(o dispatch.Observation) bool { return isPending(o) && o.Hold == 0 })
	if o := s.inspect(id); o.Cause != dispatch.CauseGated {
		s.Errorf("behind the gate it is %s", show(o))
	}
	s.must("open the gate", s.b.OpenGate(s.Context(), id))
	o := s.await(id, s.Wait, "running", isRunning)
	if o.Execution != 0 || o.Started.IsZero() || o.Submitted.IsZero() || o.Started.Before(o.Submitted) || len(o.Nodes) == 0 || o.Raw == "" {
		s.Errorf("it runs without its facts: %+v", o)
	}
	if o.Ref != s.refs[id] {
		s.Errorf("its Ref is read back as %v, want %v", o.Ref, s.refs[id])
	}
}

func gateOpenedTwice(s *session) {
	id := s.submit(s.long())
	s.must("open", s.b.OpenGate(s.Context(), id))
	s.must("open again", s.b.OpenGate(s.Context(), id))
	s.await(id, s.Wait, "running", isRunning)
	s.must("open while it runs", s.b.OpenGate(s.Context(), id))
	s.stays(id, "running its only execution", func(o dispatch.Observation) bool { return isRunning(o) && o.Execution == 0 })
}

func gateOfEnded(s *session) {
	id, _ := s.ended("exit 0")
	s.wants("open", s.b.OpenGate(s.Context(), id), nil, dispatch.ErrEnded)
	s.stays(id, "over", isEnded)
}

// gateAfterRestart: an owner that died between Submit and OpenGate finds its object and lets it start.
func gateAfterRestart(s *session) {
	spec := s.long()
	id := s.submit(spec)
	b := s.sys.Again(s.T)
	found, err := b.Find(s.Context(), spec.Ref)
	s.must("find after a restart", err)
	if !slices.Equal(objects(found), []dispatch.ObjectID{id}) || found[0].Ref != spec.Ref || found[0].Cause != dispatch.CauseGated {
		s.Fatalf("after a restart %v is found as %+v", spec.Ref, found)
	}
	s.must("open", b.OpenGate(s.Context(), id))
	s.await(id, s.Wait, "running", isRunning)
}

func findByNumbers(s *session) {
	first := s.long()
	second, third, other := first, first, s.long()
	second.Ref.Submission, third.Ref = 2, dispatch.Ref{Job: first.Ref.Job, Submission: 3, Attempt: 2}
	longer := first
	longer.Ref.Job += "0" // a job whose id begins with the first's
	var ids []dispatch.ObjectID
	for _, spec := range []dispatch.Spec{first, second, third, other, longer} {
		ids = append(ids, s.submit(spec))
	}
	job := first.Ref.Job
	for name, c := range map[string]struct {
		ref  dispatch.Ref
		want []dispatch.ObjectID
	}{
		"one submission":     {first.Ref, ids[:1]},
		"all of a job":       {dispatch.Ref{Job: job}, ids[:3]},
		"an attempt":         {dispatch.Ref{Job: job, Attempt: 1}, ids[:2]},
		"by submission":      {dispatch.Ref{Job: job, Submission: 3}, ids[2:3]},
		"not of the attempt": {dispatch.Ref{Job: job, Submission: 3, Attempt: 1}, nil},
		"another job":        {other.Ref, ids[3:4]},
	} {
		if got := objects(s.find(c.ref)); !slices.Equal(got, c.want) {
			s.Errorf("%s: %v finds %v, want %v", name, c.ref, got, c.want)
		}
	}
}

func findNothing(s *session) {
	if list := s.find(s.ref()); len(list) != 0 {
		s.Errorf("nobody submitted it, and %+v is found", list)
	}
}

// oddIDs are no ids of any system.
func oddIDs() []dispatch.ObjectID {
	return []dispatch.ObjectID{"", " ", "--help", "-1", "1;id", "1 2", "1\n2", "*", "$(id)", "999999999999999999999999", "..", "\x00"}
}

func findMany(s *session) {
	many := s.b.(dispatch.MultiFinder)
	var ids []dispatch.ObjectID
	for range 3 {
		ids = append(ids, s.submit(s.long()))
	}
	s.submit(s.long()) // not asked for
	if got, err := many.FindMany(s.Context(), nil); err != nil || len(got) != 0 {
		s.Errorf("no ids give %v, %v", got, err)
	}
	ask := slices.Concat(ids[:1], oddIDs(), ids[1:], ids[:1])
	if s.sys.UnknownID != "" {
		ask = append(ask, s.sys.UnknownID)
	}
	for _, list := range [][]dispatch.ObjectID{ids, ask} {
		got, err := many.FindMany(s.Context(), list)
		s.must("find many", err)
		if len(got) != len(ids) {
			s.Errorf("asked for %q, it finds %v", list, got)
		}
		for _, id := range ids {
			o, has := got[id]
			if !has || o.Ref != s.refs[id] || o.State != dispatch.StatePending || o.Cause != dispatch.CauseGated {
				s.Errorf("%s is %+v, %v", id, o, has)
			}
		}
	}
	if s.sys.UnknownID != "" {
		if got, err := many.FindMany(s.Context(), []dispatch.ObjectID{s.sys.UnknownID}); err != nil || len(got) != 0 {
			s.Errorf("an unknown id alone gives %v, %v", got, err)
		}
	}
}

func unknownIDs(s *session) {
	id := s.submit(s.long())
	before := s.inspect(id)
	ids := oddIDs()
	if s.sys.UnknownID != "" {
		ids = append(ids, s.sys.UnknownID)
	}
	for _, odd := range ids {
		_, err := s.b.Inspect(s.Context(), odd)
		if odd == s.sys.UnknownID {
			s.wants("inspect "+string(odd), err, dispatch.ErrNotFound)
		} else {
			s.wants("inspect an odd id", err, dispatch.ErrNotFound, dispatch.ErrRefused)
		}
		s.wants("open "+string(odd), s.b.OpenGate(s.Context(), odd), dispatch.ErrNotFound, dispatch.ErrRefused)
		s.wants("stop "+string(odd), s.b.Stop(s.Context(), odd), nil, dispatch.ErrNotFound, dispatch.ErrRefused)
		if h, ok := s.b.(dispatch.Holder); ok {
			s.wants("hold "+string(odd), h.Hold(s.Context(), odd, 1), dispatch.ErrNotFound, dispatch.ErrRefused)
			s.wants("release "+string(odd), h.Release(s.Context(), odd, 1), dispatch.ErrNotFound, dispatch.ErrRefused, dispatch.ErrStale)
		}
		if r, ok := s.b.(dispatch.Requeuer); ok {
			s.wants("requeue "+string(odd), r.Requeue(s.Context(), odd), dispatch.ErrNotFound, dispatch.ErrRefused)
		}
		if c, ok := s.b.(dispatch.CessationSignal); ok {
			if got, _ := c.Ceased(s.Context(), odd, 0); got == dispatch.Yes {
				s.Errorf("the processes of %q are said to be gone", odd)
			}
		}
	}
	if o := s.inspect(id); o.State != before.State || o.Cause != before.Cause {
		s.Errorf("calls with odd ids changed it from %s to %s", show(before), show(o))
	}
}

// endChecks are about how objects end and are stopped.
func endChecks() []check {
	end := hook("End", func(f Faults) bool { return f.End != nil })
	return []check{
		{name: "end/exit 0", run: func(s *session) { s.endsWith(dispatch.StateSucceeded, dispatch.CauseNone, 0, 0, "exit 0") }},
		{name: "end/exit 3", run: func(s *session) { s.endsWith(dispatch.StateFailed, dispatch.CauseExitCode, 3, 0, "exit 3") }},
		{name: "end/exit 255", run: func(s *session) { s.endsWith(dispatch.StateFailed, dispatch.CauseExitCode, 255, 0, "exit 255") }},
		{name: "end/signal", run: func(s *session) {
			s.endsWith(dispatch.StateFailed, dispatch.CauseSignalled, -1, 9, "kill -9 $$", "sleep 60")
		}},
		{name: "end/walltime", needs: []need{timing("Walltime", func(t Timings) time.Duration { return t.Walltime })}, run: endByWalltime},
		{name: "end/preempted", needs: []need{end}, run: func(s *session) { s.endedFor(dispatch.CausePreempted) }},
		{name: "end/out of memory", needs: []need{end}, run: func(s *session) { s.endedFor(dispatch.CauseOutOfMemory) }},
		{name: "stop/pending", run: stopPending},
		{name: "stop/running", run: stopRunning},
		{name: "stop/over", run: stopOver},
	}
}

// endsWith runs a script to its end; code -1 and signal 0 are none.
func (s *session) endsWith(state dispatch.State, cause dispatch.Cause, code, signal int, lines ...string) {
	s.Helper()
	id, o := s.ended(lines...)
	if o.State != state {
		s.Errorf("%s is %s, want %s", id, show(o), state)
	}
	if o.Cause != cause && s.keeps(dispatch.EvidenceCause) {
		s.Errorf("%s is %s, want cause %s", id, show(o), cause)
	}
	if code >= 0 && s.keeps(dispatch.EvidenceExitCode) && (o.ExitCode == nil || *o.ExitCode != code) {
		s.Errorf("%s is %s, want exit code %d", id, show(o), code)
	}
	if signal > 0 && s.keeps(dispatch.EvidenceExitCode) && (o.Signal == nil || *o.Signal != signal) {
		s.Errorf("%s is %s, want signal %d", id, show(o), signal)
	}
	if signal == 0 && o.Signal != nil && *o.Signal != 0 {
		s.Errorf("%s is %s, and no signal ended it", id, show(o))
	}
	if o.Ended.IsZero() || o.Started.IsZero() || o.Execution != 0 {
		s.Errorf("%s lacks when it started or ended: %+v", id, o)
	}
	s.stays(id, "over in the same way", func(now dispatch.Observation) bool { return now.State == state })
}

func endByWalltime(s *session) {
	spec := s.spec("sleep " + seconds(10*s.Walltime))
	spec.Walltime = s.Walltime
	id := s.start(spec)
	o := s.await(id, s.Wait, "running", isRunning)
	if o.Ends.IsZero() || o.Ends.Before(o.Started) {
		s.Errorf("when it will end at the latest is %v", o.Ends)
	}
	o = s.await(id, s.Walltime+s.Wait, "over", isEnded)
	if o.State != dispatch.StateFailed || o.Cause != dispatch.CauseTimeout {
		s.Errorf("after its walltime it is %s", show(o))
	}
}

func (s *session) endedFor(cause dispatch.Cause) {
	s.Helper()
	id := s.running()
	s.sys.Faults.End(s.T, id, cause)
	if s.can[dispatch.NativeRequeue].Answer == dispatch.Yes && cause == dispatch.CausePreempted {
		s.await(id, s.Wait, "another execution", func(o dispatch.Observation) bool { return o.Execution > 0 && !o.State.Ended() })
		return
	}
	o := s.await(id, s.Wait, "over", isEnded)
	if o.State != dispatch.StateFailed || o.Cause != cause {
		s.Errorf("it is %s, want failed/%s", show(o), cause)
	}
	s.stays(id, "over, with no other execution", func(o dispatch.Observation) bool { return o.State.Ended() && o.Execution == 0 })
}

func (s *session) cancelled(id dispatch.ObjectID) {
	s.Helper()
	if o := s.await(id, s.Wait, "over", isEnded); o.State != dispatch.StateCancelled {
		s.Errorf("what was stopped is %s", show(o))
	}
}

func stopPending(s *session) {
	id := s.submit(s.long())
	s.must("stop", s.b.Stop(s.Context(), id))
	s.must("stop again", s.b.Stop(s.Context(), id))
	s.cancelled(id)
	s.wants("open the gate of what was stopped", s.b.OpenGate(s.Context(), id), nil, dispatch.ErrEnded)
	s.stays(id, "cancelled", isEnded)
	if o := s.inspect(id); !o.Started.IsZero() {
		s.Errorf("it never ran and started at %v", o.Started)
	}
}

func stopRunning(s *session) {
	id := s.running()
	s.must("stop", s.b.Stop(s.Context(), id))
	s.must("stop again", s.b.Stop(s.Context(), id))
	s.cancelled(id)
	s.must("stop what was stopped", s.b.Stop(s.Context(), id))
	s.stays(id, "cancelled", func(o dispatch.Observation) bool { return o.State == dispatch.StateCancelled })
}

func stopOver(s *session) {
	id, before := s.ended("exit 3")
	s.must("stop", s.b.Stop(s.Context(), id))
	s.stays(id, "as it ended", func(o dispatch.Observation) bool { return o.State == before.State && o.Cause == before.Cause })
}

// findByPrefix: an owner that has lost its books finds everything of its own.
func findByPrefix(s *session) {
	one, two := s.long(), s.long()
	other := two.Ref.Job
	one.Ref.Job, two.Ref.Job = other+"/p/a", other+"/p/b"
	third := s.long()
	third.Ref.Job = other + "/px"
	ids := []dispatch.ObjectID{s.submit(one), s.submit(two)}
	s.submit(third)
	var got []dispatch.ObjectID
	for _, o := range s.find(dispatch.Ref{Job: other + "/p/"}) {
		got = append(got, o.Object)
	}
	if !slices.Equal(got, ids) {
		s.Errorf("found %v, want %v", got, ids)
	}
}
