package dispatch

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func at(seconds int) time.Time {
	return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

// saw is an observation of the object 7 at work.
func saw(s State, c Cause, changes ...func(*Observation)) Look {
	o := Observation{Object: "7", Ref: Ref{"j", 1, 1}, State: s, Cause: c, Submitted: at(0)}
	if s != StatePending {
		o.Started = at(1)
	}
	for _, change := range changes {
		change(&o)
	}
	return Look{Observation: o}
}

func execution(n Execution) func(*Observation) {
	return func(o *Observation) { o.Execution, o.Submitted = n, at(100*int(n)) }
}

func gone() Look { return Look{Err: fmt.Errorf("no such job: %w", ErrNotFound)} }
func deaf() Look { return Look{Err: fmt.Errorf("no route: %w", ErrUnavailable)} }

type timedLook struct {
	at   int
	look Look
	want string // the events
}

type foldStory struct {
	begin Track
	looks []timedLook
	phase Phase
	doubt bool
}

// foldStories are looks at given seconds, and the events that each of them finds.
func foldStories() map[string]foldStory {
	nodeLost, running := saw(StateRunning, CauseNodeLost), saw(StateRunning, CauseNone)
	return map[string]foldStory{
		"an ordinary life": {looks: []timedLook{
			{0, saw(StatePending, CauseGated), "seen"}, {1, saw(StatePending, CauseGated), ""}, {2, saw(StatePending, CauseCapacity), "changed"},
			{3, running, "started changed"}, {4, running, ""}, {5, saw(StateEnding, CauseNone), "changed"}, {6, saw(StateSucceeded, CauseNone), "ended"},
			{7, saw(StateSucceeded, CauseNone), ""}, {8, gone(), ""}}, phase: PhaseOver},
		"first seen when it is over": {looks: []timedLook{{0, saw(StateFailed, CauseExitCode), "seen started ended"}}, phase: PhaseOver},
		"over before it ran": {looks: []timedLook{
			{0, saw(StatePending, CauseGated), "seen"}, {1, saw(StateCancelled, CauseNone, func(o *Observation) { o.Started = time.Time{} }), "ended"}}, phase: PhaseOver},
		"a node is lost and comes back": {looks: []timedLook{
			{0, running, "seen started"}, {10, nodeLost, "changed node-lost"}, {69, nodeLost, ""}, {70, running, "changed node-back"},
			{80, nodeLost, "changed node-lost"}, {139, nodeLost, ""}, {140, nodeLost, "given-up"}}, phase: PhaseOver, doubt: true},
		"a lost node is given up by the system": {looks: []timedLook{
			{0, running, "seen started"}, {10, nodeLost, "changed node-lost"}, {20, saw(StateFailed, CauseNodeLost), "ended"}}, phase: PhaseOver, doubt: true},
		"an end that came while its node was lost is in doubt": {looks: []timedLook{
			{0, nodeLost, "seen started node-lost"}, {20, saw(StateCancelled, CauseNone), "ended"}}, phase: PhaseOver, doubt: true},
		"nobody is given up unseen": {looks: []timedLook{
			{0, nodeLost, "seen started node-lost"}, {100, deaf(), ""}, {101, running, "changed node-back"}}, phase: PhaseAlive},
		"given up, and back": {looks: []timedLook{
			{0, nodeLost, "seen started node-lost"}, {60, nodeLost, "given-up"}, {61, nodeLost, ""}, {62, running, "changed node-back returned"}, {63, running, ""},
			{64, saw(StateSucceeded, CauseNone), ""}}, phase: PhaseOver, doubt: true},
		"forgotten while it ran":     {looks: []timedLook{{0, running, "seen started"}, {10, gone(), "lost"}, {20, gone(), ""}}, phase: PhaseLost},
		"forgotten with a lost node": {looks: []timedLook{{0, nodeLost, "seen started node-lost"}, {10, gone(), "lost"}}, phase: PhaseLost, doubt: true},
		"lost, and found again": {looks: []timedLook{
			{0, running, "seen started"}, {10, gone(), "lost"}, {20, running, "returned"}, {30, saw(StateSucceeded, CauseNone), "ended"}}, phase: PhaseOver},
		"lost, and its history told": {looks: []timedLook{
			{0, running, "seen started"}, {10, gone(), "lost"}, {20, saw(StateFailed, CauseExitCode), "ended"}}, phase: PhaseOver},
		"never seen":                           {looks: []timedLook{{0, gone(), ""}, {1, deaf(), ""}}, phase: PhaseUnseen},
		"written down, and forgotten unseen":   {begin: Track{Object: "7"}, looks: []timedLook{{0, deaf(), ""}, {1, gone(), "lost"}}, phase: PhaseLost},
		"cannot be asked":                      {looks: []timedLook{{0, running, "seen started"}, {10, deaf(), ""}, {20, running, ""}}, phase: PhaseAlive},
		"another's id":                         {begin: Track{Object: "7", Ref: Ref{"other", 1, 1}}, looks: []timedLook{{0, running, "reused"}, {1, running, ""}}, phase: PhaseReused},
		"another's id after it was over":       {looks: []timedLook{{0, saw(StateSucceeded, CauseNone), "seen started ended"}, {1, saw(StateRunning, CauseNone, func(o *Observation) { o.Ref.Job = "k" }), ""}}, phase: PhaseOver},
		"another's id, which tells no Ref":     {looks: []timedLook{{0, running, "seen started"}, {1, saw(StatePending, CauseGated, func(o *Observation) { o.Ref, o.Submitted = Ref{}, at(50) }), "reused"}}, phase: PhaseReused},
		"a history that tells no Ref":          {looks: []timedLook{{0, running, "seen started"}, {1, saw(StateSucceeded, CauseNone, func(o *Observation) { o.Ref = Ref{} }), "ended"}}, phase: PhaseOver},
		"a requeue without a Ref is no other":  {looks: []timedLook{{0, running, "seen started"}, {1, saw(StatePending, CauseDelayed, execution(1), func(o *Observation) { o.Ref = Ref{} }), "replaced"}}, phase: PhaseAlive},
		"a requeue":                            {looks: []timedLook{{0, running, "seen started"}, {1, saw(StatePending, CauseDelayed, execution(1)), "replaced"}, {2, saw(StateRunning, CauseNone, execution(1)), "started changed"}}, phase: PhaseAlive},
		"two requeues between looks":           {looks: []timedLook{{0, running, "seen started"}, {1, saw(StateRunning, CauseNone, execution(2)), "replaced replaced started"}}, phase: PhaseAlive},
		"a requeue ends the loss of a node":    {looks: []timedLook{{0, nodeLost, "seen started node-lost"}, {90, saw(StatePending, CauseDelayed, execution(1)), "replaced"}}, phase: PhaseAlive},
		"a requeue of what was over":           {looks: []timedLook{{0, saw(StateSucceeded, CauseNone), "seen started ended"}, {1, saw(StatePending, CauseDelayed, execution(1)), "replaced returned"}}, phase: PhaseAlive},
		"a requeued one is over":               {looks: []timedLook{{0, running, "seen started"}, {1, saw(StateFailed, CauseExitCode, execution(1)), "replaced started ended"}}, phase: PhaseOver},
		"what the system does not name is not": {looks: []timedLook{{0, saw(StateUnknown, CauseNone), "seen started"}, {1, running, "changed"}}, phase: PhaseAlive},
	}
}

func TestFold(t *testing.T) {
	window := Declarations{NodeLossWindow: time.Minute}
	for name, c := range foldStories() {
		t.Run(name, func(t *testing.T) {
			track := c.begin
			for _, l := range c.looks {
				var events []Event
				track, events = Fold(track, l.look, at(l.at), window)
				var got []string
				for _, e := range events {
					got = append(got, e.Kind.String())
				}
				if strings.Join(got, " ") != l.want {
					t.Errorf("at %d: events %v, want %s", l.at, got, l.want)
				}
			}
			if track.Phase != c.phase || track.Doubt != c.doubt {
				t.Errorf("it is %s, doubt %v, want %s, %v", track.Phase, track.Doubt, c.phase, c.doubt)
			}
		})
	}
}

// TestFoldTellsOfEarlier: the execution that was replaced comes with what can be read of it, and as nothing when that is lost.
func TestFoldTellsOfEarlier(t *testing.T) {
	code := 3
	past := Past{Execution: 0, State: StateCancelled, Cause: CauseReplaced, ExitCode: &code}
	track, _ := Fold(Track{}, saw(StateRunning, CauseNone), at(0), Declarations{})
	_, events := Fold(track, saw(StateRunning, CauseNone, execution(2), func(o *Observation) { o.Earlier = []Past{past} }), at(1), Declarations{})
	if len(events) != 3 || events[0].Execution != 0 || events[1].Execution != 1 || events[2].Execution != 2 {
		t.Fatalf("events %+v", events)
	}
	if !reflect.DeepEqual(events[0].Earlier, &past) || events[1].Earlier != nil {
		t.Errorf("earlier executions are %+v and %+v", events[0].Earlier, events[1].Earlier)
	}
}

// TestFoldIsIdempotent: the same look at the same time adds nothing, and an end is never taken back without a new execution.
func TestFoldIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Declarations{NodeLossWindow: 20 * time.Second}
		track, now := Track{}, 0
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			now += rapid.IntRange(0, 15).Draw(t, "seconds")
			l := saw(State(rapid.IntRange(0, int(StateCancelled)).Draw(t, "state")), Cause(rapid.IntRange(0, int(CauseReplaced)).Draw(t, "cause")),
				execution(Execution(rapid.IntRange(0, 3).Draw(t, "execution"))))
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				l = gone()
			case 1:
				l = deaf()
			case 2:
				l.Observation.Ref = Ref{}
			}
			next, _ := Fold(track, l, at(now), d)
			again, events := Fold(next, l, at(now), d)
			if len(events) > 0 || !reflect.DeepEqual(again, next) {
				t.Fatalf("the same look again finds %v: %+v and %+v", events, next, again)
			}
			if track.Phase == PhaseOver && next.Phase != PhaseOver && next.Last.Execution == track.Last.Execution {
				t.Fatalf("an end is taken back: %+v, then %+v", track, next)
			}
			if next.Phase == PhaseOver && !next.End.State.Ended() {
				t.Fatalf("it is over as %s", next.End.State)
			}
			track = next
		}
	})
}
