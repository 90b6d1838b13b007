package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

// Options is what an engine needs. Now and Rand are the only sources of time and chance.
type Options struct {
	Store store.Store
	Logs  *logs.Logs
	Log   *slog.Logger
	Now   func() time.Time
	Rand  io.Reader
	// Inline has each request carried out in its caller's goroutine, and decisions taken by Step, instead of Run: for
	// one goroutine that owns the clock too.
	Inline       bool
	Provisioners Provisioners
	// Federate is the role: a cluster that routes work to others and has no nodes of its own.
	Federate bool
	Limits
}

// Limits bounds what the engine takes on. Zero values mean the defaults.
type Limits struct {
	CertificateLifetime time.Duration // of nodes, which renew theirs in time; default a day
	MaxAllocations      int           // of one workflow; default 100,000
	MaxOpenAllocations  int           // in the cluster; default 1,000,000
	RetainedEvents      int           // kept in memory for followers; default 65,536
	StopGrace           time.Duration // for the write that is under way when Run is told to stop; default 2 s
	TickEvery           time.Duration // how often what waits is looked at though nothing has changed; default 1 s
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.MaxAllocations, 100_000)
	def(&l.MaxOpenAllocations, 1_000_000)
	def(&l.RetainedEvents, 65_536)
	if l.StopGrace == 0 {
		l.StopGrace = 2 * time.Second
	}
	if l.TickEvery == 0 {
		l.TickEvery = time.Second
	}
	if l.CertificateLifetime == 0 {
		l.CertificateLifetime = 24 * time.Hour
	}
	return l
}

// Engine owns the cluster's working state. One goroutine, Run, changes it; everything else asks.
type Engine struct {
	opt          Options
	commands     chan *command
	stopped      chan struct{} // closed when Run has returned
	state        *state
	events       *eventRing
	history      sync.Mutex // the events of the whole cluster are read for one caller at a time
	newest       uint64     // store revision of the newest record seen while loading
	sessions     sessions
	credentials  credentials
	peers        peers
	builtIn      *catalogue.Set                // never changes
	catalogues   atomic.Pointer[catalogue.Set] // built in, and as providers have told
	ca           *auth.CA                      // never changes
	nextPass     time.Time                     // no scheduling pass before: passes take at most a fifth of the loop's time
	lastTurn     time.Time                     // end of the last turn
	pace         time.Duration
	together     *[]*command // requests that wait for one turn, nil: each has its own
	provisioners provisioners
	fullUntil    time.Time // the store was full: nothing is written before
}

// A turn follows the last after three times as long as that one took, within these bounds: under load, what
// comes at about the same time shares one decision and one durable write. A lone request does not wait.
const (
	minPace = 2 * time.Millisecond
	maxPace = 20 * time.Millisecond
)

// fullPause is how long nothing is written after the store was found full. Requests of users are refused meanwhile;
// reports of nodes wait.
const fullPause = time.Second

// maxBatch bounds how many commands share one durable write.
const maxBatch = 2048

// command is one request to the loop: apply changes state (after checking everything), read looks at
// what is durable afterwards.
type command struct {
	apply func(*tx) error
	bare  bool // apply writes nothing
	// request is what the command is for, nil for the coordinator's own: what it changes is audited.
	request *Request
	carried *carried // of a Federate's request, brought in before apply and read; nil: nothing
	read    func(*state)
	err     error
	done    chan struct{}
	taken   atomic.Bool // by the loop, or by a caller that gave up: whoever is first
}

// take reports whether the command is the caller's to run or to drop.
func (c *command) take() bool { return c.taken.CompareAndSwap(false, true) }

// New loads the state from the store; on an empty store it founds the cluster.
func New(ctx context.Context, opt Options) (*Engine, error) {
	opt.Limits = opt.Limits.withDefaults()
	e := &Engine{
		opt:      opt,
		commands: make(chan *command, maxBatch),
		stopped:  make(chan struct{}),
		events:   newEventRing(opt.RetainedEvents),
	}
	var err error
	if e.builtIn, err = catalogue.Embedded(); err != nil {
		return nil, err
	}
	e.catalogues.Store(e.builtIn)
	if err := e.reload(ctx); err != nil {
		return nil, err
	}
	e.ca = e.state.ca
	return e, nil
}

// Run decides and acts until ctx ends or the store fails for good.
func (e *Engine) Run(ctx context.Context) error {
	sweeping, stopSweeping := context.WithCancel(ctx)
	swept := make(chan struct{})
	go func() { defer close(swept); e.sweep(sweeping) }()
	defer func() { stopSweeping(); <-swept }()
	if len(e.opt.Provisioners.Kinds) > 0 {
		provisioning, stop := context.WithCancel(ctx)
		provided := make(chan struct{})
		go func() { defer close(provided); e.provision(provisioning) }()
		defer func() { stop(); <-provided }()
	}
	defer close(e.stopped)
	defer e.sessions.closeAll()
	defer e.events.close()
	// A write that has begun is not cut off by the end: its callers deserve to know what became of it.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(e.opt.StopGrace, cancel) })()
	for {
		batch := e.wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := e.turn(work, batch, true); err != nil {
			return err
		}
	}
}

// wait returns when there is something to do. What is asked goes before what time alone makes due: a turn does both.
func (e *Engine) wait(ctx context.Context) []*command {
	var first *command
	select {
	case first = <-e.commands:
	default:
		wake := time.NewTimer(e.untilNext())
		defer wake.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-wake.C:
			return nil
		case first = <-e.commands:
		}
	}
	if rest := e.pace - e.opt.Now().Sub(e.lastTurn); rest > 0 {
		time.Sleep(rest)
	}
	return e.drain(first)
}

// drain takes what is already waiting, so that one write serves many callers.
func (e *Engine) drain(first *command) []*command {
	batch := []*command{first}
	for len(batch) < maxBatch {
		select {
		case c := <-e.commands:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// turn applies a batch, decides if it is to, writes, and only then lets anybody see it.
func (e *Engine) turn(ctx context.Context, batch []*command, decide bool) error {
	t := &tx{engine: e, state: e.state, now: e.opt.Now().UTC()}
	full := t.now.Before(e.fullUntil)
	if !e.state.resumed && !full {
		e.state.resumed = true
		t.resume()
	}
	batch = slices.DeleteFunc(batch, func(c *command) bool { return !c.take() })
	for _, c := range batch {
		c.err = t.carryOut(ctx, c, full)
	}
	if decide && !full {
		e.timers(t)
		e.pass(t)
	}
	if err := t.commit(ctx); err != nil {
		return e.failed(ctx, batch, err)
	}
	for _, c := range batch {
		if c.err == nil && c.read != nil {
			c.read(e.state)
		}
		close(c.done)
	}
	e.lastTurn = e.opt.Now()
	e.pace = min(max(3*e.lastTurn.Sub(t.now), minPace), maxPace)
	if len(batch) == 1 && batch[0].apply == nil {
		e.pace = minPace // what a question of the Federate brought was written, and the submission that it asked for follows
	}
	return nil
}

// pass schedules if there is reason to.
func (e *Engine) pass(t *tx) {
	if !e.state.dirty && t.now.Before(e.nextTick()) || t.now.Before(e.nextPass) {
		return
	}
	began := e.opt.Now()
	e.schedule(t)
	end := e.opt.Now()
	e.nextPass = end.Add(4 * end.Sub(began))
}

func storeFull(cause error) error {
	return coordinator.Errorf(coordinator.ErrExhausted, "write the cluster's state", "%w", cause).
		WithHint("free space in the coordinator's data directory or raise its quota; running work goes on")
}

// failed answers a batch whose write failed and starts again from what the store holds: the memory
// may be ahead of it, and the outcome may be unknown. Who only reads is answered from what was stored.
func (e *Engine) failed(ctx context.Context, batch []*command, cause error) error {
	e.opt.Log.Error("write failed, reading the state again", "err", cause)
	var answer error = coordinator.Errorf(coordinator.ErrUnavailable, "write the cluster's state", "%w", cause)
	full := errors.Is(cause, store.ErrFull)
	if full {
		answer = storeFull(cause)
		e.fullUntil = e.opt.Now().UTC().Add(fullPause)
	}
	var readers []*command
	for _, c := range batch {
		if c.apply == nil && c.carried == nil {
			readers = append(readers, c)
			continue
		}
		c.err = cmp.Or(c.err, answer)
		close(c.done)
	}
	defer func() {
		for _, c := range readers {
			c.err = answer
			close(c.done)
		}
	}()
	old := e.state
	var err error
	for try := range 5 {
		if err = e.reload(ctx); err == nil {
			e.carry(old, e.state)
			if full {
				e.state.spareAbsent(e.fullUntil)
			}
			for _, c := range readers {
				c.read(e.state)
				close(c.done)
			}
			readers = nil
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Duration(try+1) * 200 * time.Millisecond):
		}
	}
	return fmt.Errorf("cannot read the state again after %w: %w", cause, err)
}

// do runs apply in the loop and returns when its effects are durable.
func (e *Engine) do(ctx context.Context, apply func(*tx) error) error {
	return e.send(ctx, &command{apply: apply, request: requestFrom(ctx), done: make(chan struct{})})
}

// doBare is do for what changes only memory: it is carried out even while nothing can be written.
func (e *Engine) doBare(ctx context.Context, apply func(*tx) error) error {
	return e.send(ctx, &command{apply: apply, bare: true, done: make(chan struct{})})
}

// doReport is do for what a node tells: while the store is full it waits, so that the node keeps its stream
// and what it has to tell.
func (e *Engine) doReport(ctx context.Context, apply func(*tx) error) error {
	for {
		err := e.do(ctx, apply)
		if coordinator.ErrorKindOf(err) != coordinator.ErrExhausted {
			return err
		}
		select {
		case <-time.After(fullPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// view runs read in the loop on durable state. read must not keep references to what it sees.
func (e *Engine) view(ctx context.Context, read func(*state)) error {
	return e.send(ctx, &command{read: read, done: make(chan struct{})})
}

// doView does both: read sees the state after apply became durable.
func (e *Engine) doView(ctx context.Context, apply func(*tx) error, read func(*state)) error {
	return e.send(ctx, &command{apply: apply, read: read, request: requestFrom(ctx), done: make(chan struct{})})
}

func (e *Engine) send(ctx context.Context, c *command) error {
	c.carried = carriedBy(ctx)
	if e.opt.Inline {
		return e.inline(ctx, c)
	}
	stopped := coordinator.Errorf(coordinator.ErrUnavailable, "reach the scheduler", "the coordinator is stopping")
	select {
	case e.commands <- c:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.stopped:
		return stopped
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if c.take() {
			return ctx.Err() // the loop will pass over it
		}
	case <-e.stopped:
	}
	// Being carried out, or the loop has stopped: what the command writes to is ours once it is done.
	select {
	case <-c.done:
		return c.err
	case <-e.stopped:
	}
	select {
	case <-c.done:
		return c.err
	default:
		return stopped
	}
}

// nextTick is when to decide although nothing changed: time alone makes victims old enough, plans due and windows
// near. Nothing waits for it where nothing waits.
func (e *Engine) nextTick() time.Time {
	if len(e.state.queued) > 0 {
		return e.nextPass.Add(e.opt.TickEvery)
	}
	next := e.opt.Now().UTC().Add(time.Hour)
	if len(e.state.launches) > 0 && e.state.core.scheduler != nil { // nodes are given up though nothing waits
		if at := e.state.core.scheduler.Next(); !at.IsZero() && at.Before(next) {
			return at
		}
	}
	return next
}

// maxSleep is how long the loop sleeps at most.
const maxSleep = time.Minute

// untilNext is how long the loop may sleep without a command.
func (e *Engine) untilNext() time.Duration {
	now := e.opt.Now()
	return min(max(e.due().Sub(now), 0), maxSleep)
}

// due is when something is to be done although nobody asks.
func (e *Engine) due() time.Time {
	next := e.nextTick()
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	if e.state.dirty && e.nextPass.Before(next) {
		next = e.nextPass
	}
	for _, n := range e.state.absent {
		earlier(n.lossAt(e.state))
	}
	earlier(e.state.nextOverdue())
	earlier(e.state.nextDate)
	earlier(e.state.nextDeferred())
	if next.Before(e.fullUntil) {
		next = e.fullUntil
	}
	return next
}
