package native_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/memory"
	"substrate/coordinator/provision/native"
	"substrate/coordinator/spec"
)

// owner is a host on paper: what is in it outlives drivers.
type owner struct {
	mu     sync.Mutex
	runs   map[coordinator.RunID]*paper
	others []coordinator.RunID // that other connections carry out
	budget int                 // writes and calls until the driver dies; below 0: it does not
	cut    context.CancelFunc
}

type paper struct {
	order  native.Order
	ends   []native.Report
	output [2][]byte
}

var errDead = errors.New("dead")

// step is a place where a driver may die: from then on nothing of it has an effect.
func (o *owner) step() error {
	if o.budget == 0 {
		o.cut()
		return errDead
	}
	o.budget--
	return nil
}

func (o *owner) Orders(context.Context) (out []native.Order, others []coordinator.RunID, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(o.runs)) {
		if p := o.runs[id]; len(p.ends) == 0 {
			out = append(out, p.order)
		}
	}
	return out, o.others, nil
}

// Write may be cut before it is durable, or after that and before anybody hears.
func (o *owner) Write(_ context.Context, run coordinator.RunID, b dispatch.Book) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.step(); err != nil {
		return err
	}
	p := o.runs[run]
	if p == nil || len(p.ends) > 0 {
		return native.ErrGone
	}
	p.order.Book = b
	return o.step()
}

func (o *owner) Report(_ context.Context, run coordinator.RunID, r native.Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.step(); err != nil {
		return err
	}
	p := o.runs[run]
	switch {
	case p == nil:
	case r.Over:
		p.ends = append(p.ends, r)
	default:
		p.order.Running = true
	}
	return o.step()
}

func (o *owner) Show(_ context.Context, seen map[coordinator.RunID]dispatch.Observation) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for run, s := range seen {
		if p := o.runs[run]; p != nil {
			p.order.Shown = native.Text(s)
		}
	}
	return nil
}

func (o *owner) Output(run coordinator.RunID, of dispatch.Stream, at uint64, data []byte) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.runs[run]
	have := uint64(len(p.output[of]))
	if end := at + uint64(len(data)); at <= have && end > have {
		p.output[of] = append(p.output[of], data[have-at:]...)
	}
	return uint64(len(p.output[of])), nil
}

// line is a connection that dies with its driver, before a call or after it.
type line struct {
	dispatch.Backend
	dispatch.MultiFinder
	dispatch.OutputReader
	o *owner
	w *world
}

func (l line) around(call func() error) error {
	l.o.mu.Lock()
	err := l.o.step()
	l.o.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%w: %w", dispatch.ErrUnavailable, err)
	}
	err = call()
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if dead := l.o.step(); dead != nil {
		return fmt.Errorf("%w: %w", dispatch.ErrOutcomeUnknown, dead)
	}
	return err
}

func (l line) Submit(ctx context.Context, s dispatch.Spec) (id dispatch.ObjectID, err error) {
	err = l.around(func() error { id, err = l.Backend.Submit(ctx, s); return err })
	return id, err
}

func (l line) OpenGate(ctx context.Context, id dispatch.ObjectID) error {
	if l.w.hook != nil {
		l.w.hook("open")
	}
	return l.around(func() error { return l.Backend.OpenGate(ctx, id) })
}

func (l line) Stop(ctx context.Context, id dispatch.ObjectID) error {
	return l.around(func() error { return l.Backend.Stop(ctx, id) })
}

// world is an owner, a batch system, and one driver after the other.
type world struct {
	t      failer
	clock  *memory.Clock
	system *memory.Cluster
	owner  *owner
	driver *native.Driver
	ctx    context.Context
	hook   func(call string) // before a call of the driver's
}

type failer interface {
	Helper()
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func newWorld(t failer, options memory.Options) *world {
	clock := memory.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	w := &world{t: t, clock: clock, system: memory.New(clock, options), owner: &owner{runs: map[coordinator.RunID]*paper{}, budget: -1}}
	w.restart(-1)
	return w
}

// restart is a driver of a new life, that dies after so many steps.
func (w *world) restart(budget int) {
	w.t.Helper()
	b, err := dispatch.Open(context.Background(), w.system.Client(false))
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
	l := line{Backend: b, o: w.owner, w: w}
	l.MultiFinder, _ = b.(dispatch.MultiFinder)
	l.OutputReader, _ = b.(dispatch.OutputReader)
	var backend dispatch.Backend = l
	if l.MultiFinder == nil || l.OutputReader == nil {
		backend = struct{ dispatch.Backend }{l}
	}
	w.driver, err = native.New(native.Options{Backend: backend, Cluster: "c1", Clock: w.clock, Pace: 10 * time.Second})
	if err == nil {
		err = w.driver.Begin(w.owner)
	}
	if err != nil {
		w.t.Fatalf("driver: %v", err)
	}
	w.ctx, w.owner.cut = context.WithCancel(context.Background())
	w.owner.budget = budget
}

const job = coordinator.RunID("0190/a#1")

func (w *world) order(run coordinator.RunID, script string) {
	w.owner.mu.Lock()
	defer w.owner.mu.Unlock()
	w.owner.runs[run] = &paper{order: native.Order{Run: run, Attempt: 1, Name: "w/a", Definition: definition(),
		Job: &coordinator.JobSpec{Name: "a", Kind: coordinator.KindJob, Script: script, Nodes: 1, Walltime: time.Hour, Resources: coordinator.Resources{Cores: 2, Memory: 1 << 30}}}}
}

func definition() *coordinator.Definition {
	return &coordinator.Definition{ID: "queue", Kind: spec.KindSlurm, Spec: spec.Slurm{CPU: 4, Memory: 8 << 30, Partition: "batch", Mode: spec.ModeNative}}
}

// turns lets time go by with the driver's turns in it, until the run has ended.
func (w *world) turns(most int, over func() bool) {
	for range most {
		if w.ctx.Err() != nil {
			w.restart(-1)
		}
		w.driver.Turn(w.ctx)
		w.check()
		if over() {
			return
		}
		_ = w.clock.Sleep(context.Background(), 5*time.Second)
	}
}

func (w *world) ended(run coordinator.RunID) func() bool {
	return func() bool {
		w.owner.mu.Lock()
		defer w.owner.mu.Unlock()
		return len(w.owner.runs[run].ends) > 0
	}
}

// check looks at what really is: no run has two jobs that may run, or has been started twice.
func (w *world) check() {
	w.t.Helper()
	for run := range w.owner.runs {
		truth := w.system.Truth(native.JobID("c1", run))
		if len(truth.Doubles)+len(truth.Same) > 0 || len(truth.Open) > 1 || truth.Succeeded > 1 || truth.Alive > 1 {
			w.t.Fatalf("%s: %+v", run, truth)
		}
	}
}

// TestRunOnce: wherever the driver dies, before or after any write and any call, the next one goes on; the job runs once, and its end and its
// output come back whole.
func TestRunOnce(t *testing.T) {
	for name, options := range map[string]memory.Options{"slurm": memory.Slurm(), "pbs": memory.PBS(), "bare": memory.Bare()} {
		for budget := range 24 {
			w := newWorld(t, options)
			w.order(job, "echo hello\nsleep 20\necho bye\nexit 7\n")
			w.restart(budget)
			w.turns(300, w.ended(job))
			p := w.owner.runs[job]
			if len(p.ends) != 1 || p.ends[0].Cause != native.CauseExited || p.ends[0].ExitCode != 7 {
				t.Errorf("%s, dead after %d steps: ends %+v", name, budget, p.ends)
			}
			if want := "hello\nbye\n"; name != "bare" && string(p.output[0]) != want {
				t.Errorf("%s, dead after %d steps: output %q, want %q", name, budget, p.output[0], want)
			}
			if left := w.system.Truth(native.JobID("c1", job)).Left; len(left) > 0 {
				w.turns(100, func() bool { return len(w.system.Truth(native.JobID("c1", job)).Left) == 0 })
				if left = w.system.Truth(native.JobID("c1", job)).Left; len(left) > 0 {
					t.Errorf("%s, dead after %d steps: left are %v", name, budget, left)
				}
			}
		}
	}
}

// TestRunOnceWhateverFails: lost answers, calls that land late, outages, silent nodes, cancels and deaths in any order.
func TestRunOnceWhateverFails(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.SampledFrom([]func() memory.Options{memory.Slurm, memory.PBS}).Draw(t, "system")())
		for n := range rapid.IntRange(1, 3).Draw(t, "runs") {
			w.order(coordinator.RunID(fmt.Sprintf("0190/j%d#1", n)), fmt.Sprintf("sleep %d\n", rapid.IntRange(1, 100).Draw(t, "seconds")))
		}
		one := func(t *rapid.T) *paper {
			return w.owner.runs[rapid.SampledFrom(slices.Sorted(maps.Keys(w.owner.runs))).Draw(t, "run")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) { w.turns(rapid.IntRange(1, 6).Draw(t, "turns"), func() bool { return false }) },
			"die":  func(t *rapid.T) { w.restart(rapid.IntRange(0, 12).Draw(t, "steps")) },
			"lose": func(t *rapid.T) {
				w.system.LoseReply(memory.Loss{Never: rapid.Bool().Draw(t, "never"), After: time.Duration(rapid.IntRange(0, 30).Draw(t, "after")) * time.Second})
			},
			"outage": func(t *rapid.T) { w.system.Unavailable(rapid.Bool().Draw(t, "on")) },
			"silent": func(t *rapid.T) { _ = w.system.Down(rapid.SampledFrom(w.system.Nodes()).Draw(t, "node")) },
			"back":   func(t *rapid.T) { _ = w.system.Up(rapid.SampledFrom(w.system.Nodes()).Draw(t, "node")) },
			"cancel": func(t *rapid.T) { one(t).order.Stop = true },
		})
		w.system.Unavailable(false)
		for _, n := range w.system.Nodes() {
			_ = w.system.Up(n)
		}
		w.restart(-1)
		w.turns(400, func() bool {
			open, _, _ := w.owner.Orders(context.Background())
			return len(open) == 0
		})
		for run, p := range w.owner.runs {
			truth := w.system.Truth(native.JobID("c1", run))
			if len(p.ends) != 1 {
				t.Fatalf("%s has the ends %+v, and %+v", run, p.ends, truth)
			}
			if end := p.ends[0]; end.Cause == native.CauseExited && truth.Succeeded != 1 {
				t.Errorf("%s is told to have succeeded: %+v, %+v", run, end, truth)
			}
		}
	})
}

// TestStopBeforeTheAnswer: a run that is ended while nobody knows whether its submission arrived never starts.
func TestStopBeforeTheAnswer(t *testing.T) {
	for name, loss := range map[string]memory.Loss{"arrived": {}, "late": {After: 15 * time.Second}, "never": {Never: true}} {
		w := newWorld(t, memory.Slurm())
		w.order(job, "sleep 5\n")
		w.system.LoseReply(loss)
		w.driver.Turn(w.ctx)
		w.owner.runs[job].order.Stop = true
		w.turns(60, w.ended(job))
		if p := w.owner.runs[job]; len(p.ends) != 1 || p.ends[0].Cause != native.CauseStopped || !p.ends[0].Started.IsZero() {
			t.Errorf("%s: ends %+v", name, p.ends)
		}
		if truth := w.system.Truth(native.JobID("c1", job)); truth.Succeeded > 0 || len(truth.Left) > 0 {
			t.Errorf("%s: %+v", name, truth)
		}
	}
}

// TestSystemIsDown: why a run is not handed over is shown, until it is.
func TestSystemIsDown(t *testing.T) {
	w := newWorld(t, memory.Slurm())
	w.order(job, "sleep 3000\n")
	shown := func() string { return w.owner.runs[job].order.Shown }
	w.system.Unavailable(true)
	w.turns(5, func() bool { return shown() != "" })
	if !strings.Contains(shown(), dispatch.ErrUnavailable.Error()) {
		t.Errorf("while the system is down %q is shown", shown())
	}
	w.system.Unavailable(false)
	w.turns(60, func() bool { // a second turn, as nothing is shown of a run that is just being read
		w.driver.Turn(w.ctx)
		return strings.HasPrefix(shown(), "running")
	})
	if !strings.HasPrefix(shown(), "running") {
		t.Errorf("when it is up again %q is shown", shown())
	}
}

// TestOrphan: a job with our mark that no run is known of is ended; jobs of other clusters, and pilots, are not touched.
func TestOrphan(t *testing.T) {
	w := newWorld(t, memory.Slurm())
	b, err := w.system.Client(false)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := map[dispatch.JobID]bool{"substrate-run/c1/0190/x:1": false, "substrate-run/c2/0190/x:1": true, "substrate/c1/l0": true}
	for _, id := range slices.Sorted(maps.Keys(left)) {
		_, err := b.Submit(t.Context(), dispatch.Spec{Ref: dispatch.Ref{Job: id, Submission: 1, Attempt: 1}, Nodes: 1, Cores: 1, Script: "#!/bin/sh\nsleep 100\n"})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.driver.Turn(w.ctx)
	for id, want := range left {
		if got := len(w.system.Truth(id).Left) == 1; got != want {
			t.Errorf("%s is left: %v, want %v", id, got, want)
		}
	}
}

// TestTwoConnections: what another connection to the same system carries out is not ended, as while a backend is renamed.
func TestTwoConnections(t *testing.T) {
	w := newWorld(t, memory.Slurm())
	w.order(job, "sleep 20\n")
	w.driver.Turn(w.ctx)
	first, other := w.driver, &owner{runs: map[coordinator.RunID]*paper{}, others: []coordinator.RunID{job}, budget: -1}
	mine := w.owner
	w.owner = other
	w.restart(-1)
	w.driver.Turn(w.ctx)
	w.owner, w.driver = mine, first
	w.turns(60, w.ended(job))
	if p := w.owner.runs[job]; len(p.ends) != 1 || p.ends[0].Cause != native.CauseExited {
		t.Errorf("ends %+v", p.ends)
	}
}

// TestSystemForgets: a batch system that dies without having written its last seconds neither keeps a job waiting for ever, nor has it run twice.
func TestSystemForgets(t *testing.T) {
	full := memory.Slurm()
	full.Nodes = full.Nodes[:1]
	for name, c := range map[string]struct {
		busy   bool // it cannot start at once
		until  func(w *world)
		forget time.Duration
		want   native.Cause
	}{
		"the opening of its gate": {busy: true, until: func(w *world) { _ = w.clock.Sleep(context.Background(), 3*time.Second) }, forget: 4 * time.Second, want: native.CauseExited},
		"all of it":               {busy: true, until: func(*world) {}, forget: time.Minute, want: native.CauseNeverRan},
		"all of it, which had started unseen": {until: func(w *world) { _ = w.clock.Sleep(context.Background(), time.Second) }, forget: time.Minute,
			want: native.CauseLostStatus},
		"that it had started": {until: func(w *world) {
			w.turns(2, func() bool { return w.owner.runs[job].order.Running })
		}, forget: 29 * time.Second, want: native.CauseLostStatus},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, full)
			if c.busy {
				b, err := w.system.Client(false)(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				id, err := b.Submit(t.Context(), dispatch.Spec{Ref: dispatch.Ref{Job: "other", Submission: 1, Attempt: 1}, Nodes: 1, Cores: 4, Script: "#!/bin/sh\nsleep 100\n"})
				if err = errors.Join(err, b.OpenGate(t.Context(), id)); err != nil {
					t.Fatal(err)
				}
				_ = w.clock.Sleep(t.Context(), time.Minute)
			}
			w.order(job, "sleep 40\n")
			w.gate(t, 30*time.Second)
			c.until(w)
			w.system.Forget(c.forget)
			w.turns(100, w.ended(job))
			if p := w.owner.runs[job]; len(p.ends) != 1 || p.ends[0].Cause != c.want || p.ends[0].Doubt != (c.want == native.CauseLostStatus) {
				t.Errorf("ends %+v", p.ends)
			}
		})
	}
}

// gate has the run submitted, and its gate opened a while later.
func (w *world) gate(t *testing.T, later time.Duration) {
	w.system.Unavailable(false)
	w.hook = func(call string) {
		if call == "open" {
			w.hook = nil
			_ = w.clock.Sleep(t.Context(), later)
		}
	}
	w.driver.Turn(w.ctx)
}

// TestLostBeforeItsGate: what the system has lost between the submission and the opening is submitted again, and runs once.
func TestLostBeforeItsGate(t *testing.T) {
	w := newWorld(t, memory.Slurm())
	w.order(job, "sleep 5\n")
	w.hook = func(call string) {
		if call == "open" {
			w.hook = nil
			_ = w.clock.Sleep(t.Context(), time.Second)
			w.system.Forget(time.Minute)
		}
	}
	w.turns(60, w.ended(job))
	if p := w.owner.runs[job]; len(p.ends) != 1 || p.ends[0].Cause != native.CauseExited {
		t.Errorf("ends %+v", p.ends)
	}
}

// TestManyRuns: more runs than the system has room for, and more than there are places for calls, all come to their end.
func TestManyRuns(t *testing.T) {
	w := newWorld(t, memory.Slurm())
	for n := range 200 {
		w.order(coordinator.RunID(fmt.Sprintf("0190/j/%d#1", n)), "sleep 30\n")
	}
	w.turns(400, func() bool { open, _, _ := w.owner.Orders(context.Background()); return len(open) == 0 })
	for run, p := range w.owner.runs {
		if len(p.ends) != 1 || p.ends[0].Cause != native.CauseExited {
			t.Fatalf("%s: %+v", run, p.ends)
		}
	}
}
