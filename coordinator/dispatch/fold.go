package dispatch

import (
	"errors"
	"time"
)

// Look is what came of asking for one object: an observation, or an error of Inspect's.
type Look struct {
	Observation Observation
	Err         error
}

// Phase is what is known of an object's way.
type Phase uint8

const (
	PhaseUnseen Phase = iota // never seen
	PhaseAlive               // seen, and not over
	PhaseOver                // its newest execution has ended, or was given up
	PhaseLost                // the system has forgotten it before its end was seen
	PhaseReused              // the id names somebody else's object now, and its end was not seen
)

func phaseNames() enum { return enum{"unseen", "alive", "over", "lost", "reused"} }

func (p Phase) String() string { return phaseNames().text("phase", uint8(p)) }

func (p Phase) MarshalText() ([]byte, error) { return phaseNames().marshal("phase", uint8(p)) }

func (p *Phase) UnmarshalText(b []byte) error {
	v, err := phaseNames().parse("phase", b)
	*p = Phase(v)
	return err
}

// Track is what was learnt of one object so far. It begins with the Object and Ref that its owner has written down; the zero Track, which
// knows nothing, takes those of the first observation. It is a value: Fold makes the next one.
type Track struct {
	Object ObjectID    `json:"object"`
	Ref    Ref         `json:"ref"`
	Phase  Phase       `json:"phase"`
	Last   Observation `json:"last"` // the newest of its own
	Seen   time.Time   `json:"seen"` // when that was
	// NodeLost is since when it has been running with a lost node; zero when it is not.
	NodeLost time.Time `json:"nodeLost"`
	// End is the observation that it is over by. For one that was given up it is Last with state failed and cause node-lost.
	End Observation `json:"end"`
	// Doubt: processes of an execution that counts as over may live on. Only a CessationSignal can end it.
	Doubt bool `json:"doubt"`
	// Returned: it was over, given up or lost, and has been seen alive since. Its owner stops it, or begins anew with it.
	Returned bool `json:"returned"`
}

// Over reports whether the newest execution counts as over.
func (t Track) Over() bool { return t.Phase == PhaseOver }

// EventKind is what a Fold has found.
type EventKind uint8

const (
	EventSeen     EventKind = iota // for the first time
	EventChanged                   // another state, cause or hold
	EventStarted                   // an execution
	EventReplaced                  // an execution by the next one; Earlier tells of it as far as it can be read
	EventNodeLost                  // it runs on a node that does not answer
	EventNodeBack                  // which answers again
	EventEnded                     // it is over
	EventGivenUp                   // the window of a lost node is over, and so it counts as over
	EventLost                      // the system has forgotten it before its end was seen
	EventReused                    // its id names another object; its end was not seen
	EventReturned                  // it was over, given up or lost, and is alive
)

func eventNames() enum {
	return enum{"seen", "changed", "started", "replaced", "node-lost", "node-back", "ended", "given-up", "lost", "reused", "returned"}
}

func (k EventKind) String() string { return eventNames().text("event", uint8(k)) }

func (k EventKind) MarshalText() ([]byte, error) { return eventNames().marshal("event", uint8(k)) }

func (k *EventKind) UnmarshalText(b []byte) error {
	v, err := eventNames().parse("event", b)
	*k = EventKind(v)
	return err
}

// Event is one thing that was found, in the order in which it came about.
type Event struct {
	Object    ObjectID
	Ref       Ref
	Kind      EventKind
	At        time.Time // when it was found
	Execution Execution
	// Observation that it was found by; for what has no own, as a loss, the last one.
	Observation Observation
	// Earlier is of EventReplaced: the execution that was replaced, nil when nobody can tell.
	Earlier *Past
}

// Fold is what one look adds to what was known. It is pure: the same look twice adds nothing the second time.
func Fold(t Track, look Look, now time.Time, d Declarations) (Track, []Event) {
	f := folding{t: t, now: now, window: d.NodeLossWindow}
	switch {
	case errors.Is(look.Err, ErrNotFound):
		f.missing()
	case look.Err != nil: // nothing was learnt: nobody is given up unseen
	case f.foreign(look.Observation):
		f.reused()
	default:
		f.see(look.Observation)
		f.giveUp()
	}
	return f.t, f.events
}

type folding struct {
	t      Track
	now    time.Time
	window time.Duration
	events []Event
}

func (f *folding) add(k EventKind, o Observation) {
	f.events = append(f.events, Event{Object: f.t.Object, Ref: f.t.Ref, Kind: k, At: f.now, Execution: o.Execution, Observation: o})
}

// foreign reports whether an observation is of another object that has been given the same id. The Ref tells; where the system shows none,
// an object that was submitted at another time without a requeue in between is not ours.
func (f *folding) foreign(o Observation) bool {
	switch {
	case f.t.Object != "" && o.Object != f.t.Object:
		return true
	case f.t.Ref != (Ref{}) && o.Ref != (Ref{}):
		return o.Ref != f.t.Ref
	case f.t.Phase == PhaseUnseen || f.t.Last.Submitted.IsZero() || o.Submitted.IsZero():
		return false
	}
	return o.Execution <= f.t.Last.Execution && !o.Submitted.Equal(f.t.Last.Submitted)
}

func (f *folding) missing() {
	given := f.t.Phase == PhaseUnseen && f.t.Object != "" // its id was the answer to a submission
	if f.t.Phase == PhaseAlive || given {
		f.t.Phase, f.t.Doubt = PhaseLost, !f.t.NodeLost.IsZero()
		f.add(EventLost, f.t.Last)
	}
}

func (f *folding) reused() {
	if f.t.Phase == PhaseAlive || f.t.Phase == PhaseLost || f.t.Phase == PhaseUnseen {
		f.t.Phase, f.t.Doubt = PhaseReused, !f.t.NodeLost.IsZero()
		f.add(EventReused, f.t.Last)
	}
}

func (f *folding) see(o Observation) {
	last, first := f.t.Last, f.t.Phase == PhaseUnseen
	if o.Ref == (Ref{}) {
		o.Ref = f.t.Ref // a history without comments
	}
	f.t.Object, f.t.Last, f.t.Seen = o.Object, o, f.now
	if f.t.Ref == (Ref{}) {
		f.t.Ref = o.Ref
	}
	lostBefore := !f.t.NodeLost.IsZero()
	if first {
		f.t.Phase = PhaseAlive
		f.add(EventSeen, o)
	}
	f.replaced(last, o, first)
	fresh := first || o.Execution != last.Execution
	if begun(o) && (fresh || !begun(last)) {
		f.add(EventStarted, o)
	}
	if !fresh && (o.State != last.State || o.Cause != last.Cause || o.Hold != last.Hold) && !o.State.Ended() {
		f.add(EventChanged, o)
	}
	f.node(o, fresh)
	f.ends(o, last, fresh, lostBefore)
}

// begun reports whether an observation's execution has started at some time.
func begun(o Observation) bool {
	return o.State == StateRunning || o.State == StateSuspended || !o.Started.IsZero()
}

// replaced tells of each execution between the last that was seen and this one.
func (f *folding) replaced(last, o Observation, first bool) {
	from := last.Execution
	if first {
		from = 0
	}
	const most = 100 // a restart loop of the system's: the newest are told
	if o.Execution > from+most {
		from = o.Execution - most
	}
	for n := from; n < o.Execution; n++ {
		f.add(EventReplaced, o)
		e := &f.events[len(f.events)-1]
		e.Execution = n
		for _, p := range o.Earlier {
			if p.Execution == n {
				e.Earlier = &p
			}
		}
	}
}

// node follows whether the node answers.
func (f *folding) node(o Observation, fresh bool) {
	lost := o.Cause == CauseNodeLost && !o.State.Ended()
	switch {
	case lost && (fresh || f.t.NodeLost.IsZero()):
		f.t.NodeLost = f.now
		f.add(EventNodeLost, o)
	case !lost && !f.t.NodeLost.IsZero():
		f.t.NodeLost = time.Time{}
		if !fresh && !o.State.Ended() {
			f.add(EventNodeBack, o)
		}
	}
}

func (f *folding) ends(o, last Observation, fresh, lostBefore bool) {
	was := f.t.Phase
	switch {
	case o.State.Ended() && (was == PhaseAlive || was == PhaseLost || fresh):
		f.t.Phase, f.t.End = PhaseOver, o
		f.t.Doubt = o.Cause == CauseNodeLost || lostBefore && !fresh
		f.add(EventEnded, o)
	case o.State.Ended() || was == PhaseAlive:
	case was == PhaseOver && fresh && last.State.Ended(): // somebody has requeued what was over
		f.t.Phase, f.t.End, f.t.Doubt, f.t.Returned = PhaseAlive, Observation{}, false, true
		f.add(EventReturned, o)
	case !f.t.Returned && o.Cause != CauseNodeLost || was == PhaseLost:
		f.t.Returned = true
		if was == PhaseLost {
			f.t.Phase = PhaseAlive
		}
		f.add(EventReturned, o)
	}
}

// giveUp ends what has been seen on a lost node at both ends of the window.
func (f *folding) giveUp() {
	if f.t.Phase != PhaseAlive || f.t.NodeLost.IsZero() || f.now.Sub(f.t.NodeLost) < f.window {
		return
	}
	f.t.Phase, f.t.Doubt = PhaseOver, true
	f.t.End = f.t.Last
	f.t.End.State, f.t.End.Cause = StateFailed, CauseNodeLost
	f.add(EventGivenUp, f.t.End)
}
