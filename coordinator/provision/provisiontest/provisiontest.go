// Package provisiontest is what every node provisioner must do, as tests. It knows no provider: a Harness brings an account and ways to look
// behind the provisioner's back. What a provider cannot show is left out aloud, and a Harness names what must not be.
package provisiontest

import (
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

// Call is a verb of a provisioner, as far as faults tell calls apart.
type Call uint8

const (
	CallLaunch Call = iota + 1
	CallRelease
	CallList
	CallOffers
)

// Account is a place of one provider where nothing runs yet. Functions may be nil where its provider cannot show such a thing.
type Account struct {
	// Open gives another provisioner of a cluster to the same place, as after a restart.
	Open func(t testing.TB, cluster string) provision.Provisioner
	// Definitions are two of different types that can be launched, on demand; Spot is of the first one's type.
	Definitions [2]coordinator.Definition
	Spot        *coordinator.Definition
	// Absent is of a type that the provider does not have.
	Absent *coordinator.Definition

	// Untyped: of an instance nobody can tell which type it was launched as.
	Untyped bool
	// Nothing is a handle that is like one that exists, and of nothing; nil: that with another last character.
	Nothing func(h provision.Handle) provision.Handle
	// Has are the names of all types that the provider has, in the order of names. A provisioner that is a Typer needs it.
	Has func() []string

	// Live is how many instances exist and cost something, as the provider knows, whoever they belong to.
	Live func() int
	// Boot is all that an instance can read of what it was launched with, decoded.
	Boot func(h provision.Handle) string
	// Visible is all that others with a right to look see of an instance: names, tags, descriptions.
	Visible func(h provision.Handle) string
	// Stray makes an instance that carries the cluster's mark and no launch that can be read.
	Stray func(cluster string) provision.Handle
	// Pass lets time pass at the provider, until instances that were asked for run and those that were ended are gone.
	Pass func(d time.Duration)
	// Fail has the next call of a verb fail as a kind, once.
	Fail func(c Call, fault provision.Fault)
	// Lose carries the next call of a verb out and loses the answer.
	Lose func(c Call)
	// Hang has the next call of a verb get no answer at all.
	Hang func(c Call)
	// Instead has the next call of a verb answered by something that is not the provider, as if all were well.
	Instead func(c Call, answer string)
	// Empty takes all capacity of a definition's type away.
	Empty func(d coordinator.Definition)
	// Reclaim takes an instance back, as spot instances are.
	Reclaim func(h provision.Handle)
	// Page is how many instances one page of a list holds; Asked counts the calls of a verb.
	Page  int
	Asked func(c Call) int
}

// Harness makes accounts.
type Harness struct {
	New func(t *testing.T) Account
	// Faults are those that Fail can play.
	Faults []provision.Fault
	// LeaveOut names checks that the provider cannot show, each with the reason. Any other that is left out is a failure.
	LeaveOut map[string]string
	// Settle is for how long the provider may need until an instance runs or is gone. With Pass it costs no time.
	Settle time.Duration
	// Serial has checks run one after the other.
	Serial bool
}

type check struct {
	name  string
	needs func(a *Account) string // what is missing, "" for nothing
	run   func(s *session)
}

// Run tests a provisioner.
func Run(t *testing.T, h Harness) {
	t.Helper()
	all := slices.Concat(launchChecks(), releaseChecks(), listChecks(), offerChecks(), typeChecks(), errorChecks(h.Faults))
	known := map[string]bool{}
	for _, c := range all {
		known[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			if !h.Serial {
				t.Parallel()
			}
			a := h.New(t)
			missing := ""
			if c.needs != nil {
				missing = c.needs(&a)
			}
			switch why := h.LeaveOut[c.name]; {
			case why != "" && missing == "":
				t.Fatalf("the check is left out (%s), and the account has all that it needs", why)
			case why != "":
				t.Logf("LEFT OUT: %s", why)
				return
			case missing != "":
				t.Fatalf("the account has no %s", missing)
			}
			c.run(newSession(t, h, a))
		})
	}
	for name := range h.LeaveOut {
		if !known[name] {
			t.Errorf("LeaveOut names %q, which is no check", name)
		}
	}
}

func need(name string, has func(a *Account) bool) func(*Account) string {
	return func(a *Account) string {
		if has(a) {
			return ""
		}
		return name
	}
}
