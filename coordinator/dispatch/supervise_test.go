package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// system is a backend of functions. Only what a test sets is there.
type system struct {
	Backend
	inspect func(ctx context.Context, id ObjectID) (Observation, error)
	windows map[Evidence]Window
}

func (s *system) Inspect(ctx context.Context, id ObjectID) (Observation, error) {
	return s.inspect(ctx, id)
}
func (s *system) Declarations() Declarations {
	return Declarations{NodeLossWindow: time.Minute, PolledLoss: s.windows}
}

// many is one that finds many at once.
type many struct {
	*system
	find func(ctx context.Context, ids []ObjectID) (map[ObjectID]Observation, error)
}

func (m *many) FindMany(ctx context.Context, ids []ObjectID) (map[ObjectID]Observation, error) {
	return m.find(ctx, ids)
}

type realClock struct{}

func (realClock) Now() time.Time { return time.Now() }
func (realClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func supervisor(t *testing.T, b Backend, interval time.Duration, h Handle, ids ...ObjectID) *Supervisor {
	t.Helper()
	s, err := NewSupervisor(b, realClock{}, SupervisorOptions{Interval: interval}, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		s.Watch(Track{Object: id})
	}
	return s
}

// during runs a supervisor for a while and waits for its end.
func during(t *testing.T, s *Supervisor, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := s.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
}

func TestIntervalAgainstWindows(t *testing.T) {
	minute := Window(time.Minute)
	for name, c := range map[string]struct {
		interval time.Duration
		windows  map[Evidence]Window
		want     []string // parts of the refusal; none: it is taken
	}{
		"as long as the shortest":  {time.Minute, map[Evidence]Window{EvidenceState: minute}, nil},
		"longer than the shortest": {time.Minute + time.Second, map[Evidence]Window{EvidenceState: 2 * minute, EvidenceCause: minute, EvidenceExitCode: minute}, []string{"1m1s", "1m0s", "cause, exit-code"}},
		"what is always lost":      {time.Minute, map[Evidence]Window{EvidenceState: minute, EvidenceExecution: 0}, nil},
		"what is never lost":       {time.Hour, map[Evidence]Window{EvidenceState: Unbounded, EvidenceExecution: Unbounded}, nil},
		"nothing is declared":      {time.Hour, nil, nil},
		"no interval":              {0, nil, []string{"positive"}},
		"a negative one":           {-time.Second, nil, []string{"positive"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewSupervisor(&system{windows: c.windows}, realClock{}, SupervisorOptions{Interval: c.interval}, nil)
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

// TestOneRequestForAll: with FindMany a poll is one request, and only what it leaves out is asked for alone.
func TestOneRequestForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests [][]ObjectID
		var alone []ObjectID
		m := &many{system: &system{inspect: func(_ context.Context, id ObjectID) (Observation, error) {
			alone = append(alone, id)
			return Observation{}, ErrNotFound
		}}}
		m.find = func(_ context.Context, ids []ObjectID) (map[ObjectID]Observation, error) {
			requests = append(requests, ids)
			got := map[ObjectID]Observation{}
			for _, id := range ids {
				switch {
				case id == "2" && len(requests) > 1: // forgotten
				case id == "3":
					got[id] = Observation{Object: id, State: StateSucceeded}
				default:
					got[id] = Observation{Object: id, State: StateRunning}
				}
			}
			return got, nil
		}
		var events []string
		s := supervisor(t, m, 10*time.Second, nil, "3", "1", "2")
		s.handle = func(_ context.Context, tr Track, list []Event) error {
			for _, e := range list {
				events = append(events, fmt.Sprint(e.Object, " ", e.Kind))
			}
			if tr.Phase == PhaseLost {
				s.Forget(tr.Object)
			}
			return nil
		}
		during(t, s, 25*time.Second)
		if want := [][]ObjectID{{"1", "2", "3"}, {"1", "2"}, {"1"}}; fmt.Sprint(requests) != fmt.Sprint(want) {
			t.Errorf("requests %v, want %v", requests, want)
		}
		if !slices.Equal(alone, []ObjectID{"2"}) {
			t.Errorf("asked alone for %v", alone)
		}
		want := []string{"1 seen", "1 started", "2 seen", "2 started", "3 seen", "3 ended", "2 lost"}
		if !slices.Equal(events, want) {
			t.Errorf("events %v, want %v", events, want)
		}
	})
}

// TestInspectsAreBounded: without FindMany each is asked for, a few at a time, and events are in the order of ids all the same.
func TestInspectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		b := &system{inspect: func(_ context.Context, id ObjectID) (Observation, error) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(time.Duration(100-len(id)) * time.Millisecond)
			now.Add(-1)
			return Observation{Object: id, State: StatePending}, nil
		}}
		var order []ObjectID
		s := supervisor(t, b, time.Minute, func(_ context.Context, tr Track, _ []Event) error {
			order = append(order, tr.Object)
			return nil
		})
		for i := range 50 {
			s.Watch(Track{Object: ObjectID(strings.Repeat("x", i+1))})
		}
		if err := s.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if most.Load() != parallelInspects {
			t.Errorf("%d at once, want %d", most.Load(), parallelInspects)
		}
		if len(order) != 50 || !slices.Contains(order, "x") || !slices.IsSorted(order) {
			t.Errorf("handled in the order %v", order)
		}
	})
}

// TestSlowPollsDoNotOverlap: a poll that takes longer than the interval is followed by the next at once, not joined by it.
func TestSlowPollsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, polls atomic.Int32
		b := &system{inspect: func(context.Context, ObjectID) (Observation, error) {
			if now.Add(1) > 1 {
				t.Error("two polls at once")
			}
			polls.Add(1)
			time.Sleep(25 * time.Second)
			now.Add(-1)
			return Observation{Object: "1", State: StateRunning}, nil
		}}
		s := supervisor(t, b, 10*time.Second, func(context.Context, Track, []Event) error { return nil }, "1")
		ctx, cancel := context.WithTimeout(t.Context(), 99*time.Second)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(time.Second)
		_ = s.Poll(ctx) // somebody else's poll waits for its turn
		<-ended
		if n := polls.Load(); n < 4 || n > 5 {
			t.Errorf("%d polls of 25 s in 99 s", n)
		}
	})
}

// TestBackoff: while the system cannot be asked polls become rarer, never rarer than evidence lasts, and the first answer ends that.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var polls []int
		b := &system{windows: map[Evidence]Window{EvidenceState: Window(45 * time.Second)}}
		b.inspect = func(context.Context, ObjectID) (Observation, error) {
			second := int(time.Since(begun) / time.Second)
			polls = append(polls, second)
			if second < 150 {
				return Observation{}, ErrUnavailable
			}
			return Observation{Object: "1", State: StateRunning}, nil
		}
		var events []EventKind
		s := supervisor(t, b, 10*time.Second, func(_ context.Context, _ Track, list []Event) error {
			for _, e := range list {
				events = append(events, e.Kind)
			}
			return nil
		}, "1")
		during(t, s, 195*time.Second)
		if want := []int{0, 10, 30, 70, 115, 160, 170, 180, 190}; !slices.Equal(polls, want) {
			t.Errorf("polls at %v, want %v", polls, want)
		}
		if !slices.Equal(events, []EventKind{EventSeen, EventStarted}) {
			t.Errorf("events %v: an outage is no event", events)
		}
	})
}

// TestWhatIsNotHandledIsFoundAgain: a Track goes on only when its events were handled.
func TestWhatIsNotHandledIsFoundAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &system{inspect: func(context.Context, ObjectID) (Observation, error) {
			return Observation{Object: "1", State: StateFailed, Cause: CausePreempted}, nil
		}}
		calls := 0
		var got []EventKind
		s := supervisor(t, b, 10*time.Second, func(_ context.Context, _ Track, list []Event) error {
			if calls++; calls < 3 {
				return errors.New("the disk is full")
			}
			for _, e := range list {
				got = append(got, e.Kind)
			}
			return nil
		}, "1")
		if err := s.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("got %v", err)
		}
		during(t, s, time.Minute)
		if calls != 3 || !slices.Equal(got, []EventKind{EventSeen, EventEnded}) {
			t.Errorf("%d calls, events %v", calls, got)
		}
	})
}

// TestSupervisorStops: what hangs is left at the deadline of the call, and the end of the context ends all of it.
func TestSupervisorStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := 0
		b := &system{inspect: func(ctx context.Context, _ ObjectID) (Observation, error) {
			hung++
			<-ctx.Done()
			return Observation{}, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}}
		s, err := NewSupervisor(b, realClock{}, SupervisorOptions{Interval: 10 * time.Second, Call: 5 * time.Second}, func(context.Context, Track, []Event) error {
			t.Error("something was found")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Watch(Track{Object: "1"})
		begun := time.Now()
		during(t, s, 12*time.Second)
		if took := time.Since(begun); took != 12*time.Second || hung != 2 {
			t.Errorf("it stopped after %s and %d calls", took, hung)
		}
	})
}

// TestWatchOfANumberGivenAgain: another's object under the id of one that is followed still is followed in its place; the same one is not begun anew.
func TestWatchOfANumberGivenAgain(t *testing.T) {
	s := supervisor(t, &system{}, 10*time.Second, nil)
	first, second := Ref{Job: "a", Submission: 1, Attempt: 1}, Ref{Job: "b", Submission: 1, Attempt: 1}
	s.Watch(Track{Object: "1", Ref: first, Phase: PhaseLost})
	for _, c := range []struct{ watch, want Track }{
		{Track{Object: "1", Ref: first}, Track{Object: "1", Ref: first, Phase: PhaseLost}},
		{Track{Object: "1"}, Track{Object: "1", Ref: first, Phase: PhaseLost}},
		{Track{Object: "1", Ref: second}, Track{Object: "1", Ref: second}},
	} {
		s.Watch(c.watch)
		if got := s.Tracks()["1"]; got.Ref != c.want.Ref || got.Phase != c.want.Phase {
			t.Errorf("watching %+v: %+v", c.watch, got)
		}
	}
}
