// Package simulate replays a trace on simulated nodes, with the coordinator's own engine and core under a virtual
// clock, and measures what became of the work. It renders nothing, and it reads no clock.
package simulate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/store"
	"substrate/expr"
)

// Options is one configuration to try on one trace.
type Options struct {
	Name   string // of the configuration, for messages and the report
	Config []byte // YAML; DefaultConfig if empty
	Trace  *Trace
	Nodes  []Node
	// Classes decide the class of the jobs of a queue (SWF) or quality of service (pods), before what the trace says.
	Classes    map[string]coordinator.Class
	Priorities map[string]int32    // of groups
	Preempts   map[string][]string // by group: whom it may preempt
	Reserve    []Reserve           // from the beginning to the end
	TermDelay  time.Duration       // how long work takes to end after SIGTERM
	TickEvery  time.Duration       // how often the queue is looked at though nothing has changed; default 1 min
	AskEvery   time.Duration       // how often estimates are asked for again; default 1 h
	Progress   func(done, of int)  // jobs that were submitted, nil: nobody asks
}

// Reserve is a reservation of a group.
type Reserve struct {
	Group      string
	Size       int    // GPUs, on nodes without any whole nodes; 0: as many as the group's reserved work ever used at one time
	Definition string // "": the only one that has nodes
}

// DefaultConfig is a cluster of one definition for whatever nodes there are.
const DefaultConfig = `scheduler:
  backfill: easy
  maxWalltime: {reserved: 3650d, on-demand: 3650d, batch: 3650d}
definitions:
  - id: node
    provisioner: static
    provisionerSpec: {condition: cpuinfo.cpu_cores >= 1, costPerHour: 1}
`

// epoch is when every simulation begins.
func epoch() time.Time { return time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC) }

// work is a job of the trace on its way.
type work struct {
	*Job
	number    int // in the trace
	nodes     int // asked for
	cores     int // of each
	workflow  coordinator.WorkflowID
	submitted time.Time
	first     time.Time // start
	last      time.Time // start of the last attempt
	end       time.Time
	waiting   bool
	refused   string
	outcome   string // finished, walltime, ""
	attempts  []attempt
	estimate  estimate
}

// attempt is one that did not end by itself.
type attempt struct{ started, ended time.Time }

// gpus is how many the job has in all.
func (w *work) gpus() int { return w.GPUs * w.nodes }

type amount struct{ cores, gpus int }

// world is the simulated cluster.
type world struct {
	opt        Options
	engine     *engine.Engine
	admin      engine.Caller
	callers    map[string]engine.Caller // by "group/user"
	now        time.Time
	hosts      []*host
	byNode     map[coordinator.NodeID]*host
	conditions *expr.Cache
	total      amount
	busy       amount
	jobs       []work
	byWorkflow map[coordinator.WorkflowID]*work
	next       int // of jobs, to be submitted
	runs       map[coordinator.RunID]*run
	ends       ends
	waiting    waiting
	fresh      []*work // submitted now
	nextAsk    time.Time
	series     []sample
	fragments  fragments
	begun      func(*run) // told of each run that begins, nil: nobody is
}

// Run replays the trace until all of it has ended, or nothing moves any more.
func Run(ctx context.Context, opt Options) (*Result, error) {
	w, err := found(ctx, withDefaults(opt))
	if err != nil {
		return nil, err
	}
	return w.replay(ctx)
}

func withDefaults(opt Options) Options {
	if len(opt.Config) == 0 {
		opt.Config = []byte(DefaultConfig)
	}
	if opt.TickEvery == 0 {
		opt.TickEvery = time.Minute
	}
	if opt.AskEvery == 0 {
		opt.AskEvery = time.Hour
	}
	return opt
}

// found makes the cluster of a simulation; nothing has joined it yet.
func found(ctx context.Context, opt Options) (*world, error) {
	if len(opt.Trace.Jobs) == 0 {
		return nil, errors.New("cannot simulate: the trace has no jobs")
	}
	w := &world{opt: opt, now: epoch(), callers: map[string]engine.Caller{}, byNode: map[coordinator.NodeID]*host{},
		byWorkflow: map[coordinator.WorkflowID]*work{}, runs: map[coordinator.RunID]*run{}, conditions: expr.NewCache(nil)}
	var err error
	w.engine, err = engine.New(ctx, engine.Options{Store: store.NewMemory(), Log: slog.New(slog.DiscardHandler), Inline: true,
		Now: func() time.Time { return w.now }, Rand: &counter{other: rand.NewChaCha8([32]byte{})},
		Limits: engine.Limits{TickEvery: opt.TickEvery, RetainedEvents: 1024, CertificateLifetime: maxTime}})
	if err != nil {
		return nil, fmt.Errorf("cannot simulate: %w", err)
	}
	return w, nil
}

func (w *world) replay(ctx context.Context) (*Result, error) {
	if err := w.prepare(ctx); err != nil {
		return nil, err
	}
	if err := w.play(ctx); err != nil {
		return nil, err
	}
	return w.result(ctx)
}

// maxIdle is how many looks at a queue that nothing is done about are taken after the last job has ended.
const maxIdle = 10_000

// play moves the clock from one moment at which something happens to the next.
func (w *world) play(ctx context.Context) error {
	for idle := 0; ; {
		at, more := w.moment()
		if !more && (w.waiting.jobs == 0 || idle >= maxIdle) {
			return w.compare(ctx)
		}
		if idle++; more {
			idle = 0
		}
		if at.Sub(epoch()) > 2*maxTime {
			return fmt.Errorf("cannot simulate beyond %s", at.Format(time.DateOnly))
		}
		w.now = at
		if err := w.endRuns(ctx); err != nil {
			return err
		}
		if err := w.submitDue(ctx); err != nil {
			return err
		}
		if err := w.settle(ctx); err != nil {
			return err
		}
		if err := w.ask(ctx); err != nil {
			return err
		}
		w.sample()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// moment is when something happens next; more tells whether it is more than time that passes.
func (w *world) moment() (at time.Time, more bool) {
	at = w.engine.Due()
	earlier := func(t time.Time) {
		if more = true; t.Before(at) {
			at = t
		}
	}
	if w.next < len(w.jobs) {
		earlier(epoch().Add(w.jobs[w.next].Submit))
	}
	if len(w.ends) > 0 {
		earlier(w.ends[0].ends)
	}
	if at.Before(w.now) {
		at = w.now
	}
	return at, more
}

// maxRounds bounds how often engine and nodes talk at one moment.
const maxRounds = 10_000

// settle has the engine decide and the nodes obey until nobody has anything to say.
func (w *world) settle(ctx context.Context) error {
	for range maxRounds {
		if err := w.engine.Step(ctx); err != nil {
			return err
		}
		told, err := w.pump(ctx)
		if err != nil {
			return err
		}
		if !told && w.engine.Due().After(w.now) {
			return nil
		}
	}
	return fmt.Errorf("cannot simulate %s: coordinator and nodes do not come to rest", w.now.Format(time.RFC3339))
}

// compare holds the simulation's own count against the engine's: they cannot differ unless one of them is wrong.
func (w *world) compare(ctx context.Context) error {
	st, err := w.engine.Status(ctx)
	if err != nil {
		return err
	}
	if st.Waiting != w.waiting.jobs || st.Running != len(w.runs) {
		return fmt.Errorf("cannot trust the simulation: the coordinator knows %d waiting and %d running jobs, the nodes %d and %d",
			st.Waiting, st.Running, w.waiting.jobs, len(w.runs))
	}
	return nil
}

// counter makes ids that count up: work that is submitted at one moment keeps the order of the trace.
type counter struct {
	ids   uint64
	other *rand.ChaCha8
}

const idBytes = 16

func (c *counter) Read(p []byte) (int, error) {
	if len(p) != idBytes {
		return c.other.Read(p)
	}
	clear(p)
	c.ids++
	binary.BigEndian.PutUint64(p[8:], c.ids)
	return len(p), nil
}
