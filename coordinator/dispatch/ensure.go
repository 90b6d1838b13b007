package dispatch

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// BlindBound stands for CallBound where nobody knows it. What lands later still lands behind its gate, is found and stopped: the bound
// saves clutter, the gate saves from running twice.
const BlindBound = 10 * time.Minute

// Book is what the owner of a job has written down. It writes the Book of a Decision before it does what the Decision says, so that
// whoever goes on with the Book after a crash decides alike.
type Book struct {
	Job     JobID  `json:"job"`
	Attempt uint32 `json:"attempt"` // that is wanted now; from 1
	// Submission is the last that was sent, or was about to be; 0: none. Numbers are never used again, whatever has come of them.
	Submission uint32 `json:"submission"`
	// Sent: the last submission is of this attempt.
	Sent bool `json:"sent"`
	// Lands is when the last submission can land no more, Before when that is so of all before it.
	Lands  time.Time `json:"lands"`
	Before time.Time `json:"before"`
	// Object is the one that stands for the attempt; once written it is no other until the next attempt.
	Object ObjectID `json:"object"`
	// Opened: its gate was opened, and is not opened again: what keeps it since then somebody else has placed.
	Opened bool `json:"opened"`
}

// Act is what an owner does next.
type Act uint8

const (
	ActNone   Act = iota // follow the object
	ActSubmit            // with the Decision's Ref
	ActWait              // and look again: a submission may still land
	ActAdopt             // nothing to call: an object was found that stands for the attempt
	ActOpen              // the gate of the object
	ActYield             // somebody goes on with a newer Book; leave the job alone
)

func actNames() enum { return enum{"none", "submit", "wait", "adopt", "open", "yield"} }

func (a Act) String() string { return actNames().text("act", uint8(a)) }

// Decision is what to write, and then to do.
type Decision struct {
	Book  Book
	Act   Act
	Ref   Ref       // of ActSubmit
	Until time.Time // of ActWait, at the latest
	// Stop are objects of the job that nobody is to wait for: duplicates, and what earlier attempts have left. They are stopped whatever the
	// Act is, and may be stopped again.
	Stop []ObjectID
}

// Ensure decides how a job's attempt comes to have just one object with an open gate. found is what Find lists of the job, all
// submissions and attempts; call is how long a submission is waited for. It is pure.
func Ensure(b Book, found []Observation, now time.Time, call time.Duration, d Declarations) Decision {
	for _, o := range found {
		if o.Ref.Attempt > b.Attempt || o.Ref.Submission > b.Submission {
			return Decision{Book: b, Act: ActYield}
		}
	}
	if b.Object == "" {
		return b.look(found, now, call, d)
	}
	dec := Decision{Book: b, Stop: others(b.Object, found)}
	for _, o := range found {
		if o.Object == b.Object && o.State == StatePending && !b.Opened {
			dec.Act = ActOpen
		}
	}
	return dec
}

// look is Ensure while no object stands for the attempt.
func (b Book) look(found []Observation, now time.Time, call time.Duration, d Declarations) Decision {
	var of, before []Observation
	for _, o := range found {
		if o.Ref.Attempt == b.Attempt {
			of = append(of, o)
		} else {
			before = append(before, o)
		}
	}
	switch {
	case len(of) > 0:
		b.Object = slices.MinFunc(of, compareFound).Object
		return Decision{Book: b, Act: ActAdopt, Stop: others(b.Object, found)}
	case b.Sent && now.Before(b.Lands):
		return Decision{Book: b, Act: ActWait, Until: b.Lands, Stop: others("", before)}
	case b.Submission+1 >= EpochBound:
		return Decision{Book: b, Act: ActYield}
	}
	b.Submission++
	if b.Lands.After(b.Before) {
		b.Before = b.Lands
	}
	b.Sent, b.Lands = true, now.Add(call+bound(d))
	return Decision{Book: b, Act: ActSubmit, Ref: Ref{b.Job, b.Submission, b.Attempt}, Stop: others("", before)}
}

func bound(d Declarations) time.Duration {
	if d.CallBound > 0 {
		return d.CallBound
	}
	return BlindBound
}

// compareFound puts first what has run although nobody here opened its gate, then what can run, then what is over; of these the
// oldest submission.
func compareFound(x, y Observation) int {
	rank := func(o Observation) int {
		switch {
		case begun(o):
			return 0
		case !o.State.Ended():
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Ref.Submission, y.Ref.Submission), cmp.Compare(x.Object, y.Object))
}

// others are the objects that are not over, but one.
func others(but ObjectID, found []Observation) (ids []ObjectID) {
	for _, o := range found {
		if o.Object != but && !o.State.Ended() {
			ids = append(ids, o.Object)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Submitted is the Book after the answer to a submission. Only an unknown outcome leaves something to wait for.
func (b Book) Submitted(id ObjectID, err error, now time.Time) Book {
	switch {
	case err == nil:
		b.Object, b.Lands = id, now
	case !errors.Is(err, ErrOutcomeUnknown):
		b.Lands = now
	}
	return b
}

// Again is the Book of the next attempt. MayFollow says when.
func (b Book) Again() Book {
	b.Attempt++
	b.Sent, b.Object, b.Opened = false, "", false
	return b
}

// Settled reports whether nothing of the job can turn up any more, and nothing is left of it.
func (b Book) Settled(found []Observation, now time.Time) bool {
	return !now.Before(b.Lands) && !now.Before(b.Before) && len(others("", found)) == 0
}

// MayFollow says whether another attempt may start after what is known of the last one's object, or why not. ceased is what a
// CessationSignal has said of its newest execution, Unknown without one. An object that is not over for the system must have been stopped
// with success before (MustStop).
func MayFollow(t Track, ceased Answer) (may bool, why string) {
	switch {
	case t.Phase == PhaseUnseen:
		return false, "nothing has been seen of it"
	case t.Phase == PhaseAlive:
		return false, "it is not over"
	case t.Phase == PhaseOver && !t.Doubt || ceased == Yes:
		return true, ""
	case t.Phase == PhaseOver:
		return false, "its node was lost, and its processes may live on"
	}
	return false, "its end was not seen, and its processes may live on"
}

// MustStop reports whether the system may still go on with an object that counts as over.
func MustStop(t Track) bool {
	return t.Phase == PhaseOver && !t.Last.State.Ended() || t.Phase == PhaseLost
}
