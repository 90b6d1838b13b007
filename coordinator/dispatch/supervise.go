package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// parallelInspects is how many objects are asked for at once where each needs a call of its own.
	parallelInspects = 4
	// longestBackoff is between two polls of a system that cannot be asked, where no evidence sets a pace.
	longestBackoff = 5 * time.Minute
)

// CheckInterval refuses an interval of polling at which something could be missed that is kept for a while.
func CheckInterval(interval time.Duration, d Declarations) error {
	if interval <= 0 {
		return fmt.Errorf("cannot poll every %s: the interval must be positive", interval)
	}
	shortest, ok := d.ShortestWindow()
	if !ok || interval <= shortest {
		return nil
	}
	var lost []string
	for _, e := range AllEvidence() {
		if time.Duration(d.PolledLoss[e]) == shortest {
			lost = append(lost, e.String())
		}
	}
	return fmt.Errorf("cannot poll every %s: %s of what has ended can be read for %s only, and would be missed; poll at least every %s",
		interval, strings.Join(lost, ", "), shortest, shortest)
}

// Handle is told what a poll has found of one object. It writes the Track and acts on the events; when it fails the
// Track stays as it was, and the next poll finds the same again.
type Handle func(ctx context.Context, t Track, events []Event) error

// SupervisorOptions are how a Supervisor polls.
type SupervisorOptions struct {
	Interval time.Duration // from the beginning of one poll to that of the next
	Call     time.Duration // deadline of one call; 0: the caller's
	Log      *slog.Logger  // of what keeps it from asking; nil: nobody
}

// Supervisor follows objects by asking for them again and again, and tells what has come of them: one object's events in order, objects by their
// id, one Handle at a time. There is no queue: it does not ask again before everything was handled.
type Supervisor struct {
	backend Backend
	clock   Clock
	options SupervisorOptions
	handle  Handle
	decl    Declarations

	turn   chan struct{} // holds one: a poll at a time
	mu     sync.Mutex
	tracks map[ObjectID]Track
	failed int // polls in a row that could not ask
}

// NewSupervisor refuses an interval at which evidence would be missed.
func NewSupervisor(b Backend, clock Clock, o SupervisorOptions, h Handle) (*Supervisor, error) {
	d := b.Declarations()
	if err := CheckInterval(o.Interval, d); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Supervisor{backend: b, clock: clock, options: o, handle: h, decl: d, turn: make(chan struct{}, 1), tracks: map[ObjectID]Track{}}, nil
}

// Watch begins to follow an object, with what its owner already knew of it. For one that is followed it changes nothing,
// unless that carried another mark: a system that has forgotten its last objects gives their ids again.
func (s *Supervisor) Watch(t Track) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, followed := s.tracks[t.Object]; !followed || now.Ref != (Ref{}) && t.Ref != (Ref{}) && now.Ref != t.Ref {
		s.tracks[t.Object] = t
	}
}

// Forget stops following an object.
func (s *Supervisor) Forget(id ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tracks, id)
}

// Tracks is what is known now of everything that is followed, by object. What waits may wait for something else than when Handle last heard of it.
func (s *Supervisor) Tracks() map[ObjectID]Track {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.tracks)
}

// Run polls until ctx ends, and returns when nothing of it goes on.
func (s *Supervisor) Run(ctx context.Context) error {
	for {
		begun := s.clock.Now()
		err := s.Poll(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := s.pause(err)
		took := s.clock.Now().Sub(begun)
		if took > s.options.Interval {
			s.options.Log.Warn("a poll took longer than the interval; evidence may be missed", "took", took, "interval", s.options.Interval)
		}
		if err := s.clock.Sleep(ctx, wait-took); err != nil {
			return err
		}
	}
}

// pause is from the beginning of a poll to that of the next: longer and longer while the system cannot be asked, but not longer than
// evidence lasts.
func (s *Supervisor) pause(err error) time.Duration {
	if err == nil {
		s.failed = 0
		return s.options.Interval
	}
	s.options.Log.Warn("cannot poll the batch system", "error", err)
	longest, ok := s.decl.ShortestWindow()
	if !ok {
		longest = longestBackoff
	}
	wait := s.options.Interval
	for range s.failed {
		if wait = min(2*wait, longest); wait == longest {
			break
		}
	}
	s.failed++
	return max(wait, s.options.Interval)
}

// Poll asks once for everything that is followed and has something to tell. Its error is that some of it could not be asked for, or handled.
func (s *Supervisor) Poll(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	var ids []ObjectID
	for _, id := range slices.Sorted(maps.Keys(s.tracks)) {
		if t := s.tracks[id]; !t.Over() || !t.Last.State.Ended() {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	looks, err := s.looks(ctx, ids)
	failed := []error{err}
	for i, id := range ids {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = append(failed, s.tell(ctx, id, looks[i]))
	}
	return errors.Join(failed...)
}

// tell handles one look. What is not followed any more is left out.
func (s *Supervisor) tell(ctx context.Context, id ObjectID, look Look) error {
	s.mu.Lock()
	before, followed := s.tracks[id]
	s.mu.Unlock()
	if !followed {
		return nil
	}
	after, events := Fold(before, look, s.clock.Now(), s.decl)
	after.Object = id
	if len(events) > 0 {
		if err := s.handle(ctx, after, events); err != nil {
			return fmt.Errorf("cannot handle what was found of %s: %w", id, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, followed := s.tracks[id]; followed {
		s.tracks[id] = after
	}
	return nil
}

// looks asks for objects: with one request where there is one, and for those that it leaves out, or without it, one by one.
func (s *Supervisor) looks(ctx context.Context, ids []ObjectID) ([]Look, error) {
	looks := make([]Look, len(ids))
	known := map[ObjectID]Observation{}
	if m, ok := s.backend.(MultiFinder); ok {
		var err error
		if known, err = s.findMany(ctx, m, ids); err != nil {
			for i := range looks {
				looks[i].Err = err
			}
			return looks, err
		}
	}
	var g errgroup.Group
	g.SetLimit(parallelInspects)
	for i, id := range ids {
		if o, has := known[id]; has {
			looks[i].Observation = o
			continue
		}
		g.Go(func() error {
			ctx, cancel := s.deadline(ctx)
			defer cancel()
			looks[i].Observation, looks[i].Err = s.backend.Inspect(ctx, id)
			return nil
		})
	}
	_ = g.Wait() // errors stand in the looks
	for _, l := range looks {
		if l.Err != nil && !errors.Is(l.Err, ErrNotFound) {
			return looks, l.Err
		}
	}
	return looks, nil
}

func (s *Supervisor) findMany(ctx context.Context, m MultiFinder, ids []ObjectID) (map[ObjectID]Observation, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	return m.FindMany(ctx, ids)
}

func (s *Supervisor) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.options.Call <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.options.Call)
}
