package dispatchtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
)

// session is one check at work.
type session struct {
	*testing.T
	Timings
	h     Harness
	name  string
	sys   System
	b     dispatch.Backend
	clock dispatch.Clock
	can   dispatch.Capabilities
	decl  dispatch.Declarations
	jobs  int
	refs  map[dispatch.ObjectID]dispatch.Ref
	last  map[dispatch.ObjectID]dispatch.Observation
}

func newSession(t *testing.T, h Harness, name string) *session {
	t.Helper()
	sys := h.Open(t)
	can, err := sys.Backend.Capabilities(t.Context(), dispatch.Spec{})
	if err != nil {
		t.Fatalf("capabilities: %v", err)
	}
	s := &session{T: t, Timings: h.Timings, h: h, name: name, sys: sys, b: sys.Backend, clock: sys.Clock, can: can, decl: sys.Backend.Declarations(),
		refs: map[dispatch.ObjectID]dispatch.Ref{}, last: map[dispatch.ObjectID]dispatch.Observation{}}
	t.Cleanup(s.cleanup)
	return s
}

// leaveOut ends a check that lacks something; one that must run has failed.
func (s *session) leaveOut(missing string) {
	s.Helper()
	if slices.Contains(s.h.MustRun, s.name) || slices.Contains(s.h.MustRun, "*") {
		s.Fatalf("this check must run, and needs %s", missing)
	}
	s.Skip("needs " + missing)
}

// cleanup leaves nothing behind that could run.
func (s *session) cleanup() {
	ctx := context.WithoutCancel(s.Context())
	for _, id := range slices.Sorted(maps.Keys(s.refs)) {
		if o, err := s.b.Inspect(ctx, id); err == nil && o.State.Ended() {
			continue
		}
		if err := s.b.Stop(ctx, id); err != nil && !errors.Is(err, dispatch.ErrNotFound) {
			s.Errorf("cannot stop %s afterwards: %v", id, err)
		}
	}
}

// ref draws a job that nobody has used.
func (s *session) ref() dispatch.Ref {
	s.jobs++
	return dispatch.Ref{Job: dispatch.JobID(fmt.Sprintf("%s%s.%d", s.h.Prefix, jobName(s.T), s.jobs)), Submission: 1, Attempt: 1}
}

// spec is the harness's with a script of its lines.
func (s *session) spec(lines ...string) dispatch.Spec {
	spec := s.h.Spec
	spec.Nodes = max(spec.Nodes, 1)
	spec.Ref = s.ref()
	spec.Script = "#!/bin/sh\n" + strings.Join(lines, "\n") + "\n"
	if s.can[dispatch.OutputPath].Answer == dispatch.Yes {
		spec.Output = &dispatch.Output{}
	}
	return spec
}

// long is a job that is found running.
func (s *session) long() dispatch.Spec { return s.spec("sleep " + seconds(s.Long)) }

func seconds(d time.Duration) string { return fmt.Sprint(int64((d + time.Second - 1) / time.Second)) }

func (s *session) submit(spec dispatch.Spec) dispatch.ObjectID {
	s.Helper()
	id, err := s.b.Submit(s.Context(), spec)
	if err != nil {
		s.Fatalf("submit %s: %v", spec.Ref, err)
	}
	if id == "" {
		s.Fatalf("submit %s: no id and no error", spec.Ref)
	}
	if other, taken := s.refs[id]; taken {
		s.Fatalf("submit %s: the id %s is that of %s", spec.Ref, id, other)
	}
	s.refs[id] = spec.Ref
	return id
}

func (s *session) start(spec dispatch.Spec) dispatch.ObjectID {
	s.Helper()
	id := s.submit(spec)
	s.must("open the gate of "+string(id), s.b.OpenGate(s.Context(), id))
	return id
}

// running starts a long job and waits until it runs.
func (s *session) running() dispatch.ObjectID {
	s.Helper()
	id := s.start(s.long())
	s.await(id, s.Wait, "running", isRunning)
	return id
}

// ended starts a job of some lines and waits for its end.
func (s *session) ended(lines ...string) (dispatch.ObjectID, dispatch.Observation) {
	s.Helper()
	id := s.start(s.spec(lines...))
	return id, s.await(id, s.Wait, "over", isEnded)
}

func isRunning(o dispatch.Observation) bool { return o.State == dispatch.StateRunning }
func isPending(o dispatch.Observation) bool { return o.State == dispatch.StatePending }
func isEnded(o dispatch.Observation) bool   { return o.State.Ended() }

func (s *session) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// wants checks that an error is one of those wanted; nil among them allows none.
func (s *session) wants(what string, err error, want ...error) {
	s.Helper()
	for _, w := range want {
		if w == nil && err == nil || w != nil && errors.Is(err, w) {
			return
		}
	}
	s.Errorf("%s: got %v, want one of %v", what, err, want)
}

func (s *session) inspect(id dispatch.ObjectID) dispatch.Observation {
	s.Helper()
	o, err := s.b.Inspect(s.Context(), id)
	s.must("inspect "+string(id), err)
	s.sane(id, o)
	return o
}

func (s *session) sleep(d time.Duration) {
	s.Helper()
	s.must("wait", s.clock.Sleep(s.Context(), d))
}

// await looks until an observation is as wanted, and returns it.
func (s *session) await(id dispatch.ObjectID, limit time.Duration, what string, is func(dispatch.Observation) bool) dispatch.Observation {
	s.Helper()
	o := s.inspect(id)
	for until := s.clock.Now().Add(limit); !is(o); o = s.inspect(id) {
		if s.clock.Now().After(until) {
			s.Fatalf("%s is not %s within %s, but %s", id, what, limit, show(o))
		}
		s.sleep(s.Poll)
	}
	return o
}

// stays looks for a while whether an observation stays as it should.
func (s *session) stays(id dispatch.ObjectID, what string, is func(dispatch.Observation) bool) {
	s.Helper()
	for until := s.clock.Now().Add(s.Quiet); ; s.sleep(s.Poll) {
		if o := s.inspect(id); !is(o) {
			s.Fatalf("%s does not stay %s: %s", id, what, show(o))
		}
		if s.clock.Now().After(until) {
			return
		}
	}
}

func show(o dispatch.Observation) string {
	text := fmt.Sprintf("%s/%s, hold %d, execution %d", o.State, o.Cause, o.Hold, o.Execution)
	if o.ExitCode != nil {
		text += fmt.Sprintf(", exit code %d", *o.ExitCode)
	}
	if o.Signal != nil {
		text += fmt.Sprintf(", signal %d", *o.Signal)
	}
	return text + fmt.Sprintf(" (%s)", o.Raw)
}

// sane checks what holds for every observation, alone and after the last one of its object.
func (s *session) sane(id dispatch.ObjectID, o dispatch.Observation) {
	s.Helper()
	last, seen := s.last[id]
	ref, ours := s.refs[id]
	pending := o.Cause >= dispatch.CauseGated && o.Cause <= dispatch.CauseStarting
	over := o.Cause >= dispatch.CauseExitCode
	for problem, is := range map[string]bool{
		"another id":                                 o.Object != id,
		"another Ref than was submitted":             ours && o.Ref != ref && o.Ref != (dispatch.Ref{}),
		"an exit code before the end":                o.ExitCode != nil && !o.State.Ended(),
		"a signal before the end":                    o.Signal != nil && !o.State.Ended(),
		"an end's time before the end":               !o.Ended.IsZero() && !o.State.Ended(),
		"a start's time while it is pending":         !o.Started.IsZero() && o.State == dispatch.StatePending,
		"nodes while it is pending":                  len(o.Nodes) > 0 && o.State == dispatch.StatePending,
		"a cause of waiting though it does not wait": pending && o.State != dispatch.StatePending,
		"a cause of an end before the end":           over && !o.State.Ended() && o.State != dispatch.StateEnding,
		"a node lost while it is pending":            o.Cause == dispatch.CauseNodeLost && o.State == dispatch.StatePending,
		"success for a cause":                        o.State == dispatch.StateSucceeded && o.Cause != dispatch.CauseNone,
		"an end before its start":                    !o.Ended.IsZero() && o.Ended.Before(o.Started),
		"success with another code than 0":           o.State == dispatch.StateSucceeded && o.ExitCode != nil && *o.ExitCode != 0,
		"a hold that is no instance":                 o.Hold >= dispatch.EpochBound,
		"a hold though it does not wait":             o.Hold != 0 && o.State != dispatch.StatePending,
		"a state without a name":                     o.State > dispatch.StateCancelled,
		"an earlier execution than before":           seen && o.Execution < last.Execution,
		"an end taken back without a new execution":  seen && o.Execution == last.Execution && last.State.Ended() && !o.State.Ended(),
		"a start taken back without a new execution": seen && o.Execution == last.Execution && last.State == dispatch.StateRunning && o.State == dispatch.StatePending,
		"another end than before": seen && last.State.Ended() && o.Execution == last.Execution && o.State.Ended() &&
			(o.State != last.State || o.Cause != dispatch.CauseNone && o.Cause != last.Cause),
		"executions out of order":                 !slices.IsSortedFunc(o.Earlier, func(a, b dispatch.Past) int { return int(a.Execution) - int(b.Execution) }),
		"an earlier execution that is the newest": slices.ContainsFunc(o.Earlier, func(p dispatch.Past) bool { return p.Execution >= o.Execution }),
	} {
		if is {
			s.Errorf("%s shows %s: %s, after %s", id, problem, show(o), show(last))
		}
	}
	s.last[id] = o
}

// keeps reports whether a piece of evidence can be read after an end.
func (s *session) keeps(e dispatch.Evidence) bool { return s.decl.PolledLoss[e] != 0 }

// holder and the like are there when the check's needs are.
func (s *session) holder() dispatch.Holder {
	s.Helper()
	h, ok := s.b.(dispatch.Holder)
	if !ok {
		s.Fatal("the backend is no Holder")
	}
	return h
}

func (s *session) requeuer() dispatch.Requeuer {
	s.Helper()
	r, ok := s.b.(dispatch.Requeuer)
	if !ok {
		s.Fatal("the backend is no Requeuer")
	}
	return r
}

func (s *session) find(ref dispatch.Ref) []dispatch.Observation {
	s.Helper()
	list, err := s.b.Find(s.Context(), ref)
	s.must("find "+ref.String(), err)
	for _, o := range list {
		if !o.Ref.Matches(ref) {
			s.Errorf("find %s also lists %s", ref, o.Ref)
		}
		if _, ours := s.refs[o.Object]; !ours {
			s.refs[o.Object] = o.Ref // so that it is stopped afterwards
		}
		s.sane(o.Object, o)
	}
	return list
}

func objects(list []dispatch.Observation) []dispatch.ObjectID {
	ids := make([]dispatch.ObjectID, len(list))
	for i, o := range list {
		ids[i] = o.Object
	}
	return ids
}
