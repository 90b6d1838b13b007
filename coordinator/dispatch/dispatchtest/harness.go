// Package dispatchtest is what every backend of a batch system must do, as tests through its interfaces alone. It knows no system's
// commands: what a check needs beyond them (faults, times, where to work) a Harness says.
package dispatchtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
)

// Harness is one kind of batch system as the suite needs it.
type Harness struct {
	// Open gives a check a system to work on: a fresh one, or a site's own, on which Prefix keeps runs apart. What it starts it ends with
	// t.Cleanup; the suite itself stops every object that it has submitted.
	Open    func(t *testing.T) System
	Timings Timings
	// Prefix begins all job ids. Where a system remembers it differs from run to run.
	Prefix string
	// Spec is what submissions begin with: queue, account, size. Nodes 0 is 1.
	Spec dispatch.Spec
	// MustRun names checks that may not be left out, as "gate/keeps"; "*" is all.
	MustRun []string
	// Parallel lets the checks that disturb nobody run at the same time.
	Parallel bool
}

// Timings are sized for a system: long enough for a slow one, not longer than needed.
type Timings struct {
	Poll  time.Duration // between two looks
	Wait  time.Duration // until what was asked for has come about
	Quiet time.Duration // for which nothing may come about, as behind a gate
	Long  time.Duration // of a job that must be found running; more than Wait and Quiet together
	Call  time.Duration // deadline of a call whose reply is lost
	// Walltime is the shortest that the system keeps to, NodeLoss how long a silent node goes unnoticed at most, Requeue how long a
	// requeued object waits, Purge the longest window that is waited for. What needs one that is 0 is left out.
	Walltime, NodeLoss, Requeue, Purge time.Duration
}

// System is one cluster, opened for one check. What is nil or "" the system does not have, and checks that need it are left out.
type System struct {
	Backend dispatch.Backend // as dispatch.Open returns it
	Clock   dispatch.Clock   // the one that the system's times can be compared with, and that waiting goes by
	// Again is another client of the same cluster and account, as after its owner's restart; ReadOnly one that may change nothing.
	Again    func(t *testing.T) dispatch.Backend
	ReadOnly func(t *testing.T) dispatch.Backend
	// UnknownID has the form of an id and names nothing.
	UnknownID dispatch.ObjectID
	Workdir   string // a directory that jobs can enter, other than their home
	Launcher  string // what a script writes before a command that each process runs, as "srun"
	Faults    Faults
}

// Landing is what becomes of a call whose reply is lost.
type Landing uint8

const (
	Lands        Landing = iota // it has had its effect
	LandsNever                  // it has not, and will not
	LandsLate                   // it has its effect after its caller has given up, within CallBound of the deadline
	LandsTooLate                // it reaches the system after that: it must not have an effect any more
)

// Faults make a system fail.
type Faults struct {
	// LoseReply makes the next call that changes something end with ErrOutcomeUnknown.
	LoseReply func(t *testing.T, l Landing)
	// Unavailable cuts the way to the system, or mends it.
	Unavailable func(t *testing.T, on bool)
	// CrashRequeue makes the next Requeue end after its step 1 (the system may restart it), 2 (it was requeued) or 3 (all was done).
	CrashRequeue func(t *testing.T, step int)
	// NodeDown makes a node stop answering while its processes go on; NodeUp brings it back. Kill ends the node and what ran on it so that
	// somebody outside can prove it.
	NodeDown, NodeUp, Kill func(t *testing.T, node string)
	// End makes the system end a running object for a cause of its own: CausePreempted, CauseOutOfMemory.
	End func(t *testing.T, id dispatch.ObjectID, cause dispatch.Cause)
	// OperatorHold is what the system's operator does with its own means.
	OperatorHold func(t *testing.T, id dispatch.ObjectID, on bool)
	// Purge makes the system forget an object that is over at once.
	Purge func(t *testing.T, id dispatch.ObjectID)
}

// check is one property of every backend.
type check struct {
	name     string
	needs    []need
	disturbs bool // other checks on the same system
	run      func(s *session)
}

// need says what is missing for a check, "" when nothing is.
type need func(s *session) string

// Backend runs the suite.
func Backend(t *testing.T, h Harness) {
	t.Helper()
	all := slices.Concat(answerChecks(), gateChecks(), specChecks(), endChecks(), holdChecks(), outputChecks(), requeueChecks(), lostChecks(), faultChecks())
	checkNames(t, all, h.MustRun)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			if h.Parallel && !c.disturbs {
				t.Parallel()
			}
			s := newSession(t, h, c.name)
			for _, n := range c.needs {
				if missing := n(s); missing != "" {
					s.leaveOut(missing)
				}
			}
			c.run(s)
		})
	}
}

func checkNames(t *testing.T, all []check, must []string) {
	t.Helper()
	known := map[string]bool{"*": true}
	for _, c := range all {
		if known[c.name] {
			t.Errorf("two checks are named %q", c.name)
		}
		known[c.name] = true
	}
	for _, name := range must {
		if !known[name] {
			t.Errorf("MustRun names %q, which is no check", name)
		}
	}
}

func hook(name string, has func(f Faults) bool) need {
	return func(s *session) string {
		if has(s.sys.Faults) {
			return ""
		}
		return "the hook Faults." + name
	}
}

func timing(name string, of func(Timings) time.Duration) need {
	return func(s *session) string {
		if of(s.Timings) > 0 {
			return ""
		}
		return "Timings." + name
	}
}

func given(what string, has func(sys System) bool) need {
	return func(s *session) string {
		if has(s.sys) {
			return ""
		}
		return "System." + what
	}
}

func capable(c dispatch.Capability) need {
	return func(s *session) string {
		if got := s.can[c]; got.Answer != dispatch.Yes {
			return "the capability " + c.String() + ", which is " + got.Answer.String() + " (" + got.Reason + ")"
		}
		return ""
	}
}

func implements(i dispatch.Interface) need {
	return func(s *session) string {
		if slices.Contains(dispatch.InterfacesOf(s.b), i) {
			return ""
		}
		return "the interface " + i.String() + ", which this cluster does not offer"
	}
}

// jobName is a check's name as part of a job id.
func jobName(t *testing.T) string {
	name := t.Name()[strings.IndexByte(t.Name(), '/')+1:]
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, name)
}
