package dispatch

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"
)

func found(id ObjectID, submission, attempt uint32, s State, c Cause) Observation {
	o := Observation{Object: id, Ref: Ref{"j", submission, attempt}, State: s, Cause: c}
	if s == StateRunning {
		o.Started = at(1)
	}
	return o
}

func TestEnsure(t *testing.T) {
	const call = 10 * time.Second
	d := Declarations{CallBound: 20 * time.Second}
	gated := func(id ObjectID, submission, attempt uint32) Observation {
		return found(id, submission, attempt, StatePending, CauseGated)
	}
	fresh := Book{Job: "j", Attempt: 1}
	sent := Book{Job: "j", Attempt: 1, Submission: 1, Sent: true, Lands: at(30)}
	adopted, opened := sent, sent
	adopted.Object, opened.Object, opened.Opened = "7", "7", true
	second := Book{Job: "j", Attempt: 2, Submission: 1, Lands: at(30)}
	resent := Book{Job: "j", Attempt: 1, Submission: 2, Sent: true, Lands: at(60), Before: at(30)}
	for name, c := range map[string]struct {
		book  Book
		found []Observation
		at    int
		want  Decision
	}{
		"nothing was sent":                  {fresh, nil, 0, Decision{Book: sent, Act: ActSubmit, Ref: Ref{"j", 1, 1}}},
		"it may still land":                 {sent, nil, 29, Decision{Book: sent, Act: ActWait, Until: at(30)}},
		"it lands no more: the next number": {sent, nil, 30, Decision{Book: resent, Act: ActSubmit, Ref: Ref{"j", 2, 1}}},
		"it turns up":                       {sent, []Observation{gated("7", 1, 1)}, 29, Decision{Book: adopted, Act: ActAdopt}},
		"it turns up after the next was sent: the older one stays": {resent, []Observation{gated("8", 2, 1), gated("7", 1, 1)}, 31,
			Decision{Book: with(resent, "7"), Act: ActAdopt, Stop: []ObjectID{"8"}}},
		"one that an operator let run is the one": {resent, []Observation{gated("7", 1, 1), found("8", 2, 1, StateRunning, CauseNone)}, 31,
			Decision{Book: with(resent, "8"), Act: ActAdopt, Stop: []ObjectID{"7"}}},
		"what is over stands behind what can run": {resent, []Observation{found("7", 1, 1, StateCancelled, CauseNone), gated("8", 2, 1)}, 31,
			Decision{Book: with(resent, "8"), Act: ActAdopt}},
		"all are over":                        {sent, []Observation{found("7", 1, 1, StateCancelled, CauseNone)}, 5, Decision{Book: adopted, Act: ActAdopt}},
		"the gate":                            {adopted, []Observation{gated("7", 1, 1)}, 5, Decision{Book: adopted, Act: ActOpen}},
		"the gate of what an operator holds":  {adopted, []Observation{found("7", 1, 1, StatePending, CauseOperatorHeld)}, 5, Decision{Book: adopted, Act: ActOpen}},
		"a gate is opened once":               {opened, []Observation{gated("7", 1, 1)}, 5, Decision{Book: opened}},
		"it runs":                             {opened, []Observation{found("7", 1, 1, StateRunning, CauseNone)}, 5, Decision{Book: opened}},
		"it runs though its gate is unopened": {adopted, []Observation{found("7", 1, 1, StateRunning, CauseNone)}, 5, Decision{Book: adopted}},
		"forgotten":                           {opened, nil, 5, Decision{Book: opened}},
		"a duplicate turns up":                {with(resent, "8"), []Observation{gated("7", 1, 1), gated("8", 2, 1)}, 99, Decision{Book: with(resent, "8"), Act: ActOpen, Stop: []ObjectID{"7"}}},
		"a duplicate that is over":            {with(resent, "8"), []Observation{found("7", 1, 1, StateCancelled, CauseNone), gated("8", 2, 1)}, 99, Decision{Book: with(resent, "8"), Act: ActOpen}},
		"the next attempt": {second, []Observation{found("7", 1, 1, StateFailed, CausePreempted)}, 40,
			Decision{Book: Book{Job: "j", Attempt: 2, Submission: 2, Sent: true, Lands: at(70), Before: at(30)}, Act: ActSubmit, Ref: Ref{"j", 2, 2}}},
		"the next attempt does not wait for what the last has left, and stops it": {second, []Observation{gated("7", 1, 1)}, 5,
			Decision{Book: Book{Job: "j", Attempt: 2, Submission: 2, Sent: true, Lands: at(35), Before: at(30)}, Act: ActSubmit, Ref: Ref{"j", 2, 2}, Stop: []ObjectID{"7"}}},
		"somebody is further: an attempt":    {sent, []Observation{gated("9", 1, 2)}, 5, Decision{Book: sent, Act: ActYield}},
		"somebody is further: a submission":  {sent, []Observation{gated("7", 1, 1), gated("9", 2, 1)}, 5, Decision{Book: sent, Act: ActYield}},
		"there is no number any more":        {Book{Job: "j", Attempt: 1, Submission: EpochBound - 1}, nil, 5, Decision{Book: Book{Job: "j", Attempt: 1, Submission: EpochBound - 1}, Act: ActYield}},
		"what is being ended is not in line": {with(resent, "8"), []Observation{found("7", 1, 1, StateEnding, CauseNone)}, 9, Decision{Book: with(resent, "8"), Stop: []ObjectID{"7"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Ensure(c.book, c.found, at(c.at), call, d); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
	if got := Ensure(fresh, nil, at(0), call, Declarations{}); !got.Book.Lands.Equal(at(0).Add(call + BlindBound)) {
		t.Errorf("with no bound that anybody knows it waits until %v", got.Book.Lands)
	}
}

func with(b Book, id ObjectID) Book {
	b.Object = id
	return b
}

func TestSubmitted(t *testing.T) {
	sent := Book{Job: "j", Attempt: 1, Submission: 2, Sent: true, Lands: at(30), Before: at(20)}
	if got := sent.Submitted("7", nil, at(5)); got.Object != "7" || !got.Lands.Equal(at(5)) || !got.Before.Equal(at(20)) {
		t.Errorf("after its id: %+v", got)
	}
	if got := sent.Submitted("", fmt.Errorf("timeout: %w", ErrOutcomeUnknown), at(5)); got != sent {
		t.Errorf("after an unknown outcome: %+v", got)
	}
	if got := sent.Submitted("", errors.Join(ErrUnavailable), at(5)); got.Object != "" || !got.Lands.Equal(at(5)) {
		t.Errorf("after nothing has changed: %+v", got)
	}
	over := []Observation{found("7", 1, 1, StateCancelled, CauseNone)}
	for _, c := range []struct {
		found []Observation
		at    int
		want  bool
	}{{nil, 29, false}, {nil, 30, true}, {over, 30, true}, {append(over, found("8", 2, 1, StateEnding, CauseNone)), 30, false}} {
		if got := sent.Settled(c.found, at(c.at)); got != c.want {
			t.Errorf("settled at %d with %d objects: %v", c.at, len(c.found), got)
		}
	}
	if got := sent.Submitted("7", nil, at(5)); got.Settled(nil, at(19)) {
		t.Error("settled while an earlier submission may land")
	}
}

func TestMayFollow(t *testing.T) {
	ended := Track{Phase: PhaseOver, Last: Observation{State: StateFailed}}
	doubtful, given := ended, ended
	doubtful.Doubt = true
	given.Doubt, given.Last.State = true, StateRunning
	for name, c := range map[string]struct {
		track Track
		asked Answer
		may   bool
		stop  bool
	}{
		"ended":                        {ended, Unknown, true, false},
		"ended in doubt":               {doubtful, Unknown, false, false},
		"ended in doubt, alive":        {doubtful, No, false, false},
		"ended in doubt, and ceased":   {doubtful, Yes, true, false},
		"given up":                     {given, Unknown, false, true},
		"given up, and ceased":         {given, Yes, true, true},
		"lost":                         {Track{Phase: PhaseLost}, Unknown, false, true},
		"lost, and ceased":             {Track{Phase: PhaseLost}, Yes, true, true},
		"its id is somebody's":         {Track{Phase: PhaseReused}, Unknown, false, false},
		"alive, whatever anybody says": {Track{Phase: PhaseAlive}, Yes, false, false},
		"unseen":                       {Track{}, Yes, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if may, why := MayFollow(c.track, c.asked); may != c.may || (why == "") != may {
				t.Errorf("may follow: %v (%s)", may, why)
			}
			if stop := MustStop(c.track); stop != c.stop {
				t.Errorf("must be stopped: %v", stop)
			}
		})
	}
}
