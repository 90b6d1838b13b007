package memory_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/memory"
)

// record is what the owner has written of a job.
type record struct {
	spec    dispatch.Spec
	book    dispatch.Book
	track   dispatch.Track
	stop    bool      // its user wants it over
	restore time.Time // until then a requeue that went wrong may land, and the bit is taken back again; zero: none
	result  string
	closed  bool
}

// owner follows the contract with the package's pure decisions. It dies at any step, and goes on with what was written.
type owner struct {
	t       *rapid.T
	c       *memory.Cluster
	clock   *memory.Clock
	b       dispatch.Backend
	books   map[dispatch.JobID]record
	bounded bool // it is known how late a call may land
	budget  int  // steps until it dies; below 0: it does not
	dead    bool
}

type crash struct{}

const callTime = 10 * time.Second

// step is a place where the owner may die: before and after each write and each call.
func (o *owner) step() {
	if o.budget == 0 {
		panic(crash{})
	}
	o.budget--
}

func (o *owner) write(r record) record {
	o.step()
	o.books[r.spec.Ref.Job] = r
	o.step()
	return r
}

func (o *owner) call(f func(context.Context) error) error {
	o.step()
	err := f(context.Background())
	o.step()
	return err
}

// alive does something as the owner, and has it dead when it died.
func (o *owner) alive(f func()) {
	if o.dead {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			if _, died := p.(crash); !died {
				panic(p)
			}
			o.dead, o.budget = true, -1
		}
	}()
	f()
}

func (o *owner) restart() {
	b, err := dispatch.Open(context.Background(), o.c.Client(false))
	if err != nil {
		o.t.Fatal(err)
	}
	o.b, o.dead, o.budget = b, false, -1
}

func (o *owner) turn() {
	o.alive(func() {
		for _, job := range slices.Sorted(maps.Keys(o.books)) {
			o.job(o.books[job])
		}
	})
}

// job does the next of one job.
func (o *owner) job(r record) {
	if r.closed {
		return
	}
	var found []dispatch.Observation
	err := o.call(func(ctx context.Context) (err error) {
		found, err = o.b.Find(ctx, dispatch.Ref{Job: r.spec.Ref.Job})
		return err
	})
	switch {
	case err != nil:
		o.expect("find", err, dispatch.ErrUnavailable)
	case r.stop && r.result == "" && r.book.Object == "": // there may never be one
		r.result = dispatch.StateCancelled.String()
		o.write(r)
	case r.result != "":
		o.close(r, found)
	default:
		o.goOn(r, found)
	}
}

// close ends what is left, and waits until nothing can turn up any more.
func (o *owner) close(r record, found []dispatch.Observation) {
	for _, f := range found {
		if !f.State.Ended() {
			o.end(f.Object)
		}
	}
	if r.book.Settled(found, o.clock.Now()) {
		r.closed = true
		o.write(r)
	}
}

func (o *owner) end(id dispatch.ObjectID) error {
	err := o.call(func(ctx context.Context) error { return o.b.Stop(ctx, id) })
	o.expect("stop", err, nil, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown, dispatch.ErrNotFound)
	return err
}

func (o *owner) goOn(r record, found []dispatch.Observation) {
	dec := dispatch.Ensure(r.book, found, o.clock.Now(), callTime, o.b.Declarations())
	if dec.Book != r.book {
		r.book = dec.Book
		r = o.write(r)
	}
	for _, id := range dec.Stop {
		_ = o.end(id)
	}
	switch dec.Act {
	case dispatch.ActYield:
		o.t.Fatalf("%s: the owner yields to nobody; found %+v", r.spec.Ref.Job, found)
	case dispatch.ActSubmit:
		spec := r.spec
		spec.Ref = dec.Ref
		var id dispatch.ObjectID
		err := o.call(func(ctx context.Context) (err error) {
			id, err = o.b.Submit(ctx, spec)
			return err
		})
		o.expect("submit", err, nil, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown)
		r.book = r.book.Submitted(id, err, o.clock.Now())
		o.write(r)
	case dispatch.ActOpen:
		err := o.call(func(ctx context.Context) error { return o.b.OpenGate(ctx, r.book.Object) })
		o.expect("open", err, nil, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown, dispatch.ErrEnded)
		if err == nil {
			r.book.Opened = true
			o.write(r)
		}
	case dispatch.ActNone:
		o.follow(r)
	}
}

// follow looks at the object that stands for the attempt.
func (o *owner) follow(r record) {
	var look dispatch.Look
	_ = o.call(func(ctx context.Context) error {
		look.Observation, look.Err = o.b.Inspect(ctx, r.book.Object)
		return look.Err
	})
	o.expect("inspect", look.Err, nil, dispatch.ErrUnavailable, dispatch.ErrNotFound)
	if r.track.Object == "" {
		r.track = dispatch.Track{Object: r.book.Object}
	}
	track, _ := dispatch.Fold(r.track, look, o.clock.Now(), o.b.Declarations())
	r.track = track
	r = o.write(r)
	if !r.restore.IsZero() {
		r = o.takeBack(r)
	}
	if r.stop {
		_ = o.end(r.book.Object)
	}
	if track.Phase != dispatch.PhaseAlive && track.Phase != dispatch.PhaseUnseen {
		o.after(r)
	}
}

// takeBack restores the bit after a requeue that went wrong, now and when it can land no more.
func (o *owner) takeBack(r record) record {
	err := o.call(func(ctx context.Context) error { return o.b.(dispatch.Requeuer).RestoreRequeueBit(ctx, r.book.Object) })
	o.expect("restore", err, nil, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown, dispatch.ErrNotFound, dispatch.ErrEnded)
	if !errors.Is(err, dispatch.ErrUnavailable) && !errors.Is(err, dispatch.ErrOutcomeUnknown) && !o.clock.Now().Before(r.restore) {
		r.restore = time.Time{}
		return o.write(r)
	}
	return r
}

// after decides about what is over: again, or a result.
func (o *owner) after(r record) {
	if dispatch.MustStop(r.track) && !errors.Is(o.end(r.book.Object), dispatch.ErrNotFound) && o.end(r.book.Object) != nil {
		return
	}
	p := dispatch.Policy{Rules: []dispatch.Rule{{Cause: dispatch.CausePreempted, Action: dispatch.ActionResubmit}, {Cause: dispatch.CauseNodeLost, Action: dispatch.ActionResubmit}}}
	action, _ := p.Decide(r.track.End, nil)
	if r.track.Over() && action == dispatch.ActionResubmit && !r.stop {
		ceased := dispatch.Unknown
		c, asks := o.b.(dispatch.CessationSignal)
		if asks {
			_ = o.call(func(ctx context.Context) (err error) {
				ceased, err = c.Ceased(ctx, r.book.Object, r.track.End.Execution)
				return err
			})
		}
		may, _ := dispatch.MayFollow(r.track, ceased)
		switch {
		case may:
			r.book, r.track, r.restore = r.book.Again(), dispatch.Track{}, time.Time{}
			o.write(r)
			return
		case asks:
			return
		}
	}
	r.result = r.track.Phase.String()
	if r.track.Over() {
		r.result = r.track.End.State.String()
	}
	o.write(r)
}

// requeue is an operator's order.
func (o *owner) requeue(r record) {
	q, can := o.b.(dispatch.Requeuer)
	if !can || r.closed || r.result != "" || r.track.Last.State != dispatch.StateRunning || r.track.Phase != dispatch.PhaseAlive || r.stop {
		return
	}
	r.restore = o.clock.Now().Add(callTime + o.b.Declarations().CallBound)
	r = o.write(r)
	err := o.call(func(ctx context.Context) error { return q.Requeue(ctx, r.book.Object) })
	o.expect("requeue", err, nil, dispatch.ErrUnavailable, dispatch.ErrOutcomeUnknown, dispatch.ErrNotFound, dispatch.ErrEnded, dispatch.ErrRefused)
}

func (o *owner) expect(what string, err error, want ...error) {
	o.t.Helper()
	for _, w := range want {
		if w == nil && err == nil || w != nil && errors.Is(err, w) {
			return
		}
	}
	o.t.Fatalf("%s: got %v, want one of %v", what, err, want)
}

// TestOwnerRunsOnce: whatever fails and whenever the owner dies, no job has two executions that live or two open gates, and each job that was
// accepted comes to an end that is true.
func TestOwnerRunsOnce(t *testing.T) {
	for name, shape := range shapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { ownerRunsOnce(t, shape.options) })
		})
	}
}

func ownerRunsOnce(t *rapid.T, options memory.Options) {
	clock := memory.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	o := &owner{t: t, c: memory.New(clock, options), clock: clock, bounded: options.CallBound > 0, books: map[dispatch.JobID]record{}}
	o.restart()
	for range rapid.IntRange(1, 3).Draw(t, "jobs") {
		o.accept(t)
	}
	t.Repeat(o.actions(options))
	o.finish()
}

func (o *owner) accept(t *rapid.T) {
	id := dispatch.JobID(fmt.Sprintf("j%d", len(o.books)))
	spec := dispatch.Spec{Ref: dispatch.Ref{Job: id, Submission: 1, Attempt: 1}, Nodes: rapid.Uint32Range(1, 2).Draw(t, "nodes"), Cores: 2,
		Script: fmt.Sprintf("#!/bin/sh\nsleep %d\nexit %d\n", rapid.IntRange(5, 600).Draw(t, "seconds"), rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "code"))}
	o.books[id] = record{spec: spec, book: dispatch.Book{Job: id, Attempt: 1}}
}

// late is how long a call is on its way; where nobody knows a bound it can be longer than any that is waited for.
func (o *owner) late(t *rapid.T) time.Duration {
	most := 60
	if !o.bounded && rapid.Bool().Draw(t, "very late") {
		most = 900
	}
	return time.Duration(rapid.IntRange(most/60, most).Draw(t, "seconds")) * time.Second
}

// pass lets time go by with the owner's turns in it.
func (o *owner) pass(t *rapid.T, most int) {
	for range rapid.IntRange(1, most).Draw(t, "turns") {
		_ = o.clock.Sleep(context.Background(), time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds"))*time.Second)
		o.turn()
		o.check()
	}
}

func (o *owner) actions(options memory.Options) map[string]func(*rapid.T) {
	job := func(t *rapid.T) record {
		return o.books[rapid.SampledFrom(slices.Sorted(maps.Keys(o.books))).Draw(t, "job")]
	}
	node := func(t *rapid.T) string { // one that a job runs on, most of the time
		if on := job(t).track.Last.Nodes; len(on) > 0 {
			return on[0]
		}
		return rapid.SampledFrom(o.c.Nodes()).Draw(t, "node")
	}
	lose := func(l memory.Loss) {
		o.c.LoseReply(l)
		o.turn()
	}
	hold := func(t *rapid.T, f func(dispatch.Holder, dispatch.ObjectID, dispatch.Instance) error) {
		if h, can := o.b.(dispatch.Holder); can {
			_ = f(h, job(t).book.Object, dispatch.Instance(rapid.IntRange(1, 3).Draw(t, "instance")))
		}
	}
	return map[string]func(*rapid.T){
		"":          func(*rapid.T) { o.check() },
		"pass":      func(t *rapid.T) { o.pass(t, 3) },
		"pass more": func(t *rapid.T) { o.pass(t, 6) },
		"pass long": func(t *rapid.T) { o.pass(t, 15) },
		"accept":    func(t *rapid.T) { o.accept(t) },
		"die":       func(t *rapid.T) { o.budget = rapid.IntRange(0, 25).Draw(t, "steps"); o.turn() },
		"restart":   func(*rapid.T) { o.restart(); o.turn() },
		"cut":       func(*rapid.T) { o.c.Unavailable(true); o.turn() },
		"mend":      func(*rapid.T) { o.c.Unavailable(false) },
		"lose":      func(*rapid.T) { lose(memory.Loss{}) },
		"lose all":  func(*rapid.T) { lose(memory.Loss{Never: true}) },
		"lose late": func(t *rapid.T) {
			lose(memory.Loss{After: time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second})
		},
		"preempt":    func(t *rapid.T) { _ = o.c.End(job(t).book.Object, dispatch.CausePreempted) },
		"operator":   func(t *rapid.T) { _ = o.c.OperatorHold(job(t).book.Object, rapid.Bool().Draw(t, "on")) },
		"requeue":    func(t *rapid.T) { r := job(t); o.alive(func() { o.requeue(r) }) },
		"half of it": func(t *rapid.T) { o.c.CrashRequeue(rapid.IntRange(1, 3).Draw(t, "step")) },
		"kill":       func(t *rapid.T) { _ = o.c.Kill(node(t)) },
		"up":         func(t *rapid.T) { _ = o.c.Up(rapid.SampledFrom(o.c.Nodes()).Draw(t, "node")) },
		"down": func(t *rapid.T) {
			if n := node(t); options.NativeRequeue || o.c.Truth("").Armed {
				_ = o.c.Kill(n) // the system itself would run it twice
			} else {
				_ = o.c.Down(n)
			}
		},
		"stop": func(t *rapid.T) {
			r := job(t)
			r.stop = true
			o.books[r.spec.Ref.Job] = r
		},
		"hold": func(t *rapid.T) {
			hold(t, func(h dispatch.Holder, id dispatch.ObjectID, n dispatch.Instance) error {
				return h.Hold(context.Background(), id, n)
			})
		},
		"release": func(t *rapid.T) {
			hold(t, func(h dispatch.Holder, id dispatch.ObjectID, n dispatch.Instance) error {
				return h.Release(context.Background(), id, n)
			})
		},
	}
}

// check is what holds at any time.
func (o *owner) check() {
	for job := range o.books {
		truth := o.c.Truth(job)
		if len(truth.Doubles) > 0 {
			o.t.Fatalf("a job runs twice: %q", truth.Doubles)
		}
		if len(truth.Open) > 1 {
			o.t.Fatalf("%s has the open gates %v", job, truth.Open)
		}
		if len(truth.Same) > 0 {
			o.t.Fatalf("%s was submitted twice under one number: %v", job, truth.Same)
		}
		if o.bounded && len(truth.Waiting) > 1 {
			o.t.Fatalf("%s waits behind several gates, though it is known when a call lands no more: %v", job, truth.Waiting)
		}
	}
}

// finish mends everything, and sees that each job comes to an end.
func (o *owner) finish() {
	o.c.Unavailable(false)
	for _, n := range o.c.Nodes() {
		_ = o.c.Up(n)
	}
	o.restart()
	for range 400 {
		_ = o.clock.Sleep(context.Background(), 10*time.Second)
		for _, r := range o.books {
			_ = o.c.OperatorHold(r.book.Object, false)
			if h, can := o.b.(dispatch.Holder); can && r.track.Last.Hold != 0 {
				_ = h.Release(context.Background(), r.book.Object, r.track.Last.Hold)
			}
		}
		o.turn()
		o.check()
		if !slices.ContainsFunc(slices.Collect(maps.Values(o.books)), func(r record) bool { return !r.closed }) {
			break
		}
	}
	for job, r := range o.books {
		truth := o.c.Truth(job)
		if !r.closed {
			o.t.Fatalf("%s is never over: %+v, track %+v, truth %+v", job, r.book, r.track, truth)
		}
		if left := len(truth.Left); left > 0 && (o.bounded || left > len(truth.Waiting)) || truth.Alive > 0 {
			o.t.Errorf("%s is closed as %s, and left %v, %d alive", job, r.result, truth.Left, truth.Alive)
		}
		if (r.result == dispatch.StateSucceeded.String()) && truth.Succeeded == 0 {
			o.t.Errorf("%s is closed as %s, and none of it succeeded", job, r.result)
		}
		if truth.Succeeded > 0 && (r.result == dispatch.StateFailed.String()) && r.track.End.Cause != dispatch.CauseNodeLost {
			o.t.Errorf("%s is closed as %s (%s) though it succeeded", job, r.result, r.track.End.Cause)
		}
	}
}
