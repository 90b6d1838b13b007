package native

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// Options is what a driver needs.
type Options struct {
	Backend dispatch.Backend
	Cluster string // id of this cluster: jobs of another one are not ours
	Clock   dispatch.Clock
	Pace    time.Duration // between two polls; 0: DefaultPace, or the longest at which nothing is missed
	Log     *slog.Logger
}

// DefaultPace is easy on a batch system that serves many.
const DefaultPace = 10 * time.Second

const (
	tick         = time.Second
	callsAtOnce  = 8                // of one system
	callWithin   = 2 * time.Minute  // for one call to it
	firstRetry   = 2 * time.Second  // after a call that failed
	longestRetry = time.Minute      // between two tries
	sweepEvery   = 5 * time.Minute  // for jobs of ours that nobody here knows
	stopAgain    = 30 * time.Second // after a stop that succeeded and had no effect yet
	settle       = 5 * time.Minute  // a job may look as if it could never start before that is believed
	readEvery    = 2 * time.Second  // of one job's output, while it runs
	readShare    = 250 * time.Millisecond
	outputWithin = 2 * time.Minute  // after an end, for the rest of its output
	proofWithin  = 10 * time.Minute // after an end in doubt, for the proof that its processes are gone
)

// Driver carries out the runs of one batch system. One Serve at a time.
type Driver struct {
	opt    Options
	decl   dispatch.Declarations
	prefix dispatch.JobID

	host  Host
	watch *dispatch.Supervisor
	bell  chan struct{} // holds one: something was found
	work  sync.WaitGroup
	calls chan struct{} // places for calls

	mu    sync.Mutex
	runs  map[coordinator.RunID]*run
	refs  map[dispatch.ObjectID]dispatch.Ref // of what a sweep has found
	sweep time.Time                          // next
}

// New makes the driver of an open backend.
func New(o Options) (*Driver, error) {
	decl := o.Backend.Declarations()
	if o.Pace == 0 {
		o.Pace = DefaultPace
		if shortest, ok := decl.ShortestWindow(); ok && shortest < o.Pace {
			o.Pace = shortest
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := dispatch.CheckInterval(o.Pace, decl); err != nil {
		return nil, err
	}
	return &Driver{opt: o, decl: decl, prefix: prefixOf(o.Cluster)}, nil
}

// begin forgets everything: what counts is what the host has written, and what the system tells.
func (d *Driver) begin(h Host) error {
	d.host, d.runs, d.refs, d.sweep = h, map[coordinator.RunID]*run{}, map[dispatch.ObjectID]dispatch.Ref{}, time.Time{}
	d.bell, d.calls = make(chan struct{}, 1), make(chan struct{}, callsAtOnce)
	var err error
	d.watch, err = dispatch.NewSupervisor(d.opt.Backend, d.opt.Clock, dispatch.SupervisorOptions{Interval: d.opt.Pace, Call: callWithin, Log: d.opt.Log},
		func(context.Context, dispatch.Track, []dispatch.Event) error { d.ring(); return nil })
	return err
}

func (d *Driver) ring() {
	select {
	case d.bell <- struct{}{}:
	default:
	}
}

// Serve carries out what the host orders until ctx ends. It looks when it is woken, when something was found, and each second.
func (d *Driver) Serve(ctx context.Context, h Host, wake <-chan struct{}) error {
	if err := d.begin(h); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer d.work.Wait()
	defer cancel()
	d.work.Go(func() { _ = d.watch.Run(ctx) }) // it ends with ctx alone
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		d.round(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wake:
		case <-d.bell:
		case <-ticks.C:
		}
	}
}

// round compares what is to be with what is, and begins what is due.
func (d *Driver) round(ctx context.Context) {
	found, swept := d.look(ctx)
	orders, elsewhere, err := d.host.Orders(ctx)
	if err != nil {
		return // the host is stopping, or reads its state again
	}
	wanted := make(map[coordinator.RunID]bool, len(orders))
	jobs := make(map[dispatch.JobID]bool, len(orders)+len(elsewhere))
	for _, run := range elsewhere {
		jobs[jobID(d.prefix, run)] = true
	}
	d.mu.Lock()
	for _, o := range orders {
		r := d.runs[o.Run]
		if r == nil {
			r = &run{d: d, job: jobID(d.prefix, o.Run), book: o.Book, reported: o.Running}
			d.runs[o.Run] = r
		}
		if !r.busy {
			r.order = o
		}
		r.stopping.Store(o.Stop)
		wanted[o.Run], jobs[r.job] = true, true
	}
	for id, r := range d.runs {
		if !wanted[id] {
			r.gone.Store(true)
			r.stopping.Store(true)
			jobs[r.job] = true
		}
	}
	d.mu.Unlock()
	if swept {
		d.reap(ctx, found, jobs)
	}
	d.steps(ctx)
	d.show(ctx, orders)
}

// look searches, now and then, for all jobs of this cluster.
func (d *Driver) look(ctx context.Context) ([]dispatch.Observation, bool) {
	now := d.opt.Clock.Now()
	d.mu.Lock()
	due := !now.Before(d.sweep)
	d.mu.Unlock()
	if !due {
		return nil, false
	}
	limited, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	found, err := d.opt.Backend.Find(limited, dispatch.Ref{Job: d.prefix})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.sweep = now.Add(longestRetry)
		if ctx.Err() == nil {
			d.opt.Log.Warn("cannot look for jobs that were handed over", "err", err)
		}
		return nil, false
	}
	d.sweep = now.Add(sweepEvery)
	clear(d.refs)
	for _, o := range found {
		d.refs[o.Object] = o.Ref
	}
	return found, true
}

// reap ends what carries this cluster's mark and is nobody's.
func (d *Driver) reap(ctx context.Context, found []dispatch.Observation, known map[dispatch.JobID]bool) {
	for _, o := range found {
		if known[o.Ref.Job] || o.State.Ended() {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callWithin)
		err := d.opt.Backend.Stop(limited, o.Object)
		cancel()
		if err != nil && !errors.Is(err, dispatch.ErrEnded) && !errors.Is(err, dispatch.ErrNotFound) {
			d.opt.Log.Warn("cannot stop a job that no run is known of", "object", o.Object, "job", o.Ref.Job, "err", err)
			continue
		}
		d.opt.Log.Info("stopped a job that no run is known of", "object", o.Object, "job", o.Ref.Job)
	}
}

// steps begins the next step of every run that is due, each at most once at a time: what moves work on first, then who has waited longest.
func (d *Driver) steps(ctx context.Context) {
	tracks := d.watch.Tracks()
	now := d.opt.Clock.Now()
	every := max(time.Duration(len(tracks))*readShare, readEvery)
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []*run
	for id, r := range d.runs {
		if r.busy {
			continue
		}
		t, ok := tracks[r.book.Object]
		mine := !ok || t.Ref == r.track.Ref || r.track.Ref == (dispatch.Ref{})
		switch {
		case ok && r.watched && mine:
			r.track = t
		case ok && r.watched: // the system has forgotten it, and given its number to another
			r.track, _ = dispatch.Fold(r.track, dispatch.Look{Observation: dispatch.Observation{Object: t.Object, Ref: t.Ref}}, now, d.decl)
		}
		switch over := r.done || r.gone.Load() && (r.book.Object == "" || r.watched && r.track.Last.State.Ended()); {
		case over && r.gone.Load():
			if mine {
				d.watch.Forget(r.book.Object)
			}
			delete(d.runs, id)
			if r.book.Sent && r.book.Object == "" {
				d.sweep = time.Time{} // a submission may have arrived
			}
		case over || now.Before(r.next):
		default:
			if r.urgent = r.moves(now); r.urgent || r.reads(now, every) {
				due = append(due, r)
			}
		}
	}
	slices.SortFunc(due, func(a, b *run) int {
		if a.urgent != b.urgent {
			return map[bool]int{true: -1, false: 1}[a.urgent]
		}
		return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.order.Run, b.order.Run))
	})
	for _, r := range due {
		select {
		case d.calls <- struct{}{}:
		default:
			return // all places are taken; what is left has its turn in the next round
		}
		r.busy, r.began = true, now
		d.work.Go(func() {
			defer d.ring()
			defer func() { d.mu.Lock(); r.busy = false; d.mu.Unlock(); <-d.calls }()
			r.step(ctx)
		})
	}
}

// show tells the host how runs are, where that is something else than it knows.
func (d *Driver) show(ctx context.Context, orders []Order) {
	seen := map[coordinator.RunID]dispatch.Observation{}
	d.mu.Lock()
	for _, o := range orders {
		r := d.runs[o.Run]
		if r == nil || r.busy || r.done {
			continue
		}
		last := r.track.Last
		switch known := r.watched && r.track.Phase != dispatch.PhaseUnseen; {
		case !known && (r.book.Object != "" || r.trouble == ""):
			continue
		case !known: // it is not there yet, for a reason that only the log would tell
			last = dispatch.Observation{Raw: r.trouble}
		}
		if text := Text(last); text != o.Shown {
			seen[o.Run] = last
		}
	}
	d.mu.Unlock()
	if len(seen) > 0 {
		_ = d.host.Show(ctx, seen) // told again in the next round
	}
}

// failed lets a run rest after a call that failed.
func (r *run) failed(what string, err error) {
	now := r.d.opt.Clock.Now()
	r.pause = min(max(2*r.pause, firstRetry), longestRetry)
	r.next, r.trouble = now.Add(r.pause), err.Error()
	r.d.opt.Log.Warn("a call to the batch system failed", "run", r.order.Run, "asked to", what, "err", err, "again", r.pause)
}

func (r *run) answered() { r.pause, r.next, r.trouble = 0, time.Time{}, "" }

// call makes one call to the system within its time.
func (d *Driver) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	return f(ctx)
}

// reference is the Ref of an object that stands for a run.
func (d *Driver) reference(r *run) dispatch.Ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ref, ok := d.refs[r.book.Object]; ok && ref.Job == r.job {
		return ref
	}
	return dispatch.Ref{Job: r.job, Submission: max(r.book.Submission, 1), Attempt: max(r.book.Attempt, 1)}
}
