package slurm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// TestForgotten: what accounting has of a job that squeue does not know counts for as long as it may be told more, and not after a controller
// began anew that has lost the job.
func TestForgotten(t *testing.T) {
	const same = -1 << 31 // boot: in the submission's second
	type outcome struct {
		state dispatch.State
		cause dispatch.Cause
		phase dispatch.Phase
		doubt bool
		err   error
	}
	unknown := outcome{state: dispatch.StateUnknown, phase: dispatch.PhaseAlive}
	never := outcome{phase: dispatch.PhaseLost, err: dispatch.ErrNotFound}
	lost := outcome{state: dispatch.StateFailed, cause: dispatch.CauseNodeLost, phase: dispatch.PhaseOver, doubt: true}
	cancelled := outcome{state: dispatch.StateCancelled, cause: dispatch.CauseNeverRan, phase: dispatch.PhaseOver}
	for name, c := range map[string]struct {
		row  fakeJob
		boot int64 // seconds after the submission; 0: not told
		want outcome
	}{
		"waits, the same controller":           {fakeJob{state: "PENDING"}, -500, unknown},
		"waits, in the second of the start":    {fakeJob{state: "PENDING"}, same, unknown},
		"waits, the controller does not say":   {fakeJob{state: "PENDING"}, 0, unknown},
		"waits, forgotten":                     {fakeJob{state: "PENDING"}, 1, never},
		"waits, the controller has just begun": {fakeJob{state: "PENDING"}, 580, unknown},
		"runs, the same controller":            {fakeJob{state: "RUNNING", start: 5, nodes: "n1"}, -500, unknown},
		"runs, forgotten":                      {fakeJob{state: "RUNNING", start: 5, nodes: "n1"}, 100, lost},
		"suspended, forgotten":                 {fakeJob{state: "SUSPENDED", start: 5, nodes: "n1"}, 100, lost},
		"waits with a start, forgotten":        {fakeJob{state: "PENDING", start: 5, nodes: "n1"}, 100, lost},
		"was cancelled":                        {fakeJob{state: "CANCELLED", ends: 5}, 100, cancelled},
		"a word that nobody knows":             {fakeJob{state: "QUANTUM"}, 100, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			b := f.new(t, f.options())
			j := c.row
			ref := dispatch.Ref{Job: "org/job", Submission: 1, Attempt: 1}
			j.id, j.submit, j.comment = "77", f.now()-600, ref.Mark("")
			for _, at := range []*int64{&j.start, &j.ends} {
				if *at > 0 {
					*at += j.submit
				}
			}
			switch c.boot {
			case 0:
			case same:
				f.config["BOOT_TIME"] = fmt.Sprint(j.submit)
			default:
				f.config["BOOT_TIME"] = fmt.Sprint(j.submit + c.boot)
			}
			f.past = append(f.past, &j)
			for range 2 { // the second time from memory
				o, err := b.Inspect(t.Context(), "77")
				track, _ := dispatch.Fold(dispatch.Track{Object: "77", Ref: ref}, dispatch.Look{Observation: o, Err: err}, f.clock.Now(), b.Declarations())
				got := outcome{o.State, o.Cause, track.Phase, track.Doubt, c.want.err}
				if got != c.want || !errors.Is(err, c.want.err) {
					t.Fatalf("got %+v, %v, want %+v", got, err, c.want)
				}
				if may, _ := dispatch.MayFollow(track, dispatch.Unknown); may != (c.want == cancelled) {
					t.Errorf("another attempt may follow: %v", may)
				}
			}
		})
	}
}

// TestForgottenAsksSeldom: about the controller's start for what needs it, at most once a minute, and nothing is concluded when it cannot be asked.
func TestForgottenAsksSeldom(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	f.config["BOOT_TIME"] = fmt.Sprint(f.now() - 100)
	f.past = append(f.past, &fakeJob{id: "77", state: "PENDING", submit: f.now()}, &fakeJob{id: "78", state: "FAILED", submit: f.now(), start: f.now(), ends: f.now(), nodes: "n1"})
	look := func(id dispatch.ObjectID, want error, asked int) {
		t.Helper()
		f.calls = nil
		if _, err := b.Inspect(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if n := strings.Count(strings.Join(f.calls, "\n"), "scontrol show config"); n != asked {
			t.Errorf("asked %d times, want %d: %q", n, asked, f.calls)
		}
	}
	look("78", nil, 0)
	look("77", nil, 1)
	look("77", nil, 0)
	f.clock.Sleep(t.Context(), 2*time.Minute)
	f.answer = on("scontrol show", exit(1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"), nil)
	look("77", dispatch.ErrUnavailable, 1)
	f.answer = func(string, transport.Command) (r transport.Result, err error, ok bool) { return r, err, false }
	f.config["BOOT_TIME"] = fmt.Sprint(f.now() - 20)
	look("77", nil, 1)
	f.clock.Sleep(t.Context(), 15*time.Second) // it has run for long enough by now, which is worked out
	look("77", dispatch.ErrNotFound, 0)
	f.clock.Sleep(t.Context(), time.Hour)
	look("77", dispatch.ErrNotFound, 0)
	if err := b.Stop(t.Context(), "77"); !errors.Is(err, dispatch.ErrNotFound) {
		t.Errorf("stopping it: %v", err)
	}
}

// TestForgottenMayHaveCeased: a command of the site's can still prove that what was forgotten is gone from its nodes.
func TestForgottenMayHaveCeased(t *testing.T) {
	f := newFake()
	o := f.options()
	o.CessationCommand = []string{"/usr/sbin/fence"}
	b := f.new(t, o)
	f.config["BOOT_TIME"] = fmt.Sprint(f.now() - 100)
	f.past = append(f.past, &fakeJob{id: "77", state: "RUNNING", submit: f.now() - 200, start: f.now() - 190, nodes: "n[1-2]"})
	f.answer = on("/usr/sbin/fence 77 0 n1,n2", exit(0, "", ""), nil)
	if got, err := b.Ceased(t.Context(), "77", 0); got != dispatch.Yes || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}
