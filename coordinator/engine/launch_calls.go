package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	callsAtOnce    = 8 // of one backend
	firstRetry     = 2 * time.Second
	longestRetry   = 2 * time.Minute
	offersEvery    = time.Minute
	callWithin     = 2 * time.Minute  // for one call to a provider
	missingLists   = 2                // in a row without an instance: it is gone
	unneededFor    = 30 * time.Second // work that comes and goes would have a pilot lose its place in the queue each time
	landsWithin    = 20 * time.Minute // after it was given up, what was asked for without an answer may still appear
	launchTokenTTL = 30 * 24 * time.Hour
	// joinWithin is for definitions without joinTimeout: from when the provider runs the instance to its agent's first word.
	joinWithin = 20 * time.Minute
)

// joinDeadline is how long an agent of a definition may take until its first word.
func joinDeadline(d *coordinator.Definition) time.Duration {
	return max(cmp.Or(d.JoinTimeout, joinWithin), spec.LeastJoin(d.Kind))
}

// Provisioners is how nodes are launched here. Without kinds none are.
type Provisioners struct {
	Kinds []string // of definitions: slurm, aws
	// Open opens the connection to a backend. It may take minutes, as when a batch system is probed first; anew: although what was found out
	// before is kept.
	Open         func(ctx context.Context, b spec.Backend, anew bool) (provision.Provisioner, error)
	AgentAddress func() string // host:port at which agents on launched nodes find the coordinator
}

// provisioners are the backends that are open, one goroutine each; the loop never waits for a provider.
type provisioners struct {
	mu      sync.Mutex
	bells   map[backendID]chan struct{}
	drivers map[backendID]chan struct{} // that wake the drivers of runs
	trouble map[backendID]string        // why a backend does not answer
	open    map[backendID]provision.Provisioner
	stale   map[string]bool // to be opened anew, by name
	// configured counts changes of the definitions.
	configured atomic.Uint64
}

func (p *provisioners) reopen(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stale == nil {
		p.stale = map[string]bool{}
	}
	p.stale[name] = true
}

// isStale reports whether a connection is to be opened anew, once.
func (p *provisioners) isStale(b backendID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stale := p.stale[b.String()]
	delete(p.stale, b.String())
	return stale
}

// wake has every backend look for something to do.
func (p *provisioners) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, bells := range []map[backendID]chan struct{}{p.bells, p.drivers} {
		for _, bell := range bells {
			select {
			case bell <- struct{}{}:
			default:
			}
		}
	}
}

func (p *provisioners) set(b backendID, open provision.Provisioner, trouble string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble == nil {
		p.trouble, p.open = map[backendID]string{}, map[backendID]provision.Provisioner{}
	}
	p.trouble[b], p.open[b] = trouble, open
}

func (p *provisioners) troubleOf(b backendID) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble[b]
}

// provision keeps a goroutine for each backend that definitions or launches use, until ctx ends.
func (e *Engine) provision(ctx context.Context) {
	type worker struct {
		of     spec.Backend
		cancel context.CancelFunc
		done   chan struct{}
	}
	workers := map[backendID]worker{}
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		e.keepSlots(ctx)
		wanted, err := e.backends(ctx)
		if err == nil {
			anew := map[backendID]bool{}
			for _, id := range slices.SortedFunc(maps.Keys(workers), compareBackends) {
				anew[id] = e.provisioners.isStale(id)
				if b, ok := wanted[id]; !ok || !reflect.DeepEqual(b, workers[id].of) || anew[id] {
					workers[id].cancel()
					<-workers[id].done
					delete(workers, id)
				}
			}
			for _, id := range slices.SortedFunc(maps.Keys(wanted), compareBackends) {
				if _, ok := workers[id]; !ok {
					own, cancel := context.WithCancel(ctx)
					done, of := make(chan struct{}), wanted[id]
					workers[id] = worker{of, cancel, done}
					all.Go(func() { defer close(done); defer cancel(); e.backend(own, id, of, anew[id]) })
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func compareBackends(a, b backendID) int {
	return cmp.Or(cmp.Compare(a.Kind+"/"+a.Name, b.Kind+"/"+b.Name), cmp.Compare(a.Target, b.Target))
}

// backends are the connections of the running configuration that something is launched through, and those of launches that it has no place for.
func (e *Engine) backends(ctx context.Context) (map[backendID]spec.Backend, error) {
	out := map[backendID]spec.Backend{}
	err := e.view(ctx, func(s *state) {
		for i := range s.config.Definitions {
			if d := &s.config.Definitions[i]; d.Kind != spec.KindStatic && s.provides(d.Kind) {
				id, b := connectionOf(s.config.checked, d)
				out[id] = b
			}
		}
		for _, b := range s.config.checked.Backends {
			if id := idOf(b); slices.ContainsFunc(slices.Collect(maps.Values(s.launches)), func(l *launch) bool { return l.record.Backend == id }) {
				out[id] = b
			}
		}
		maps.Copy(out, s.oldConnections(out))
	})
	return out, err
}

// backend opens one connection and serves it until ctx ends.
func (e *Engine) backend(ctx context.Context, id backendID, b spec.Backend, anew bool) {
	pause := firstRetry
	for ctx.Err() == nil {
		p, err := e.opt.Provisioners.Open(ctx, b, anew)
		if err == nil {
			e.provisioners.set(id, p, "")
			w := &backendWorker{engine: e, id: id, p: p, bell: make(chan struct{}, 1)}
			stop, stopAsking := e.driveRuns(ctx, id, p), e.keepCatalogue(ctx, b, p)
			w.serve(ctx)
			stopAsking()
			stop()
			if c, ok := provision.As[provision.Closer](p); ok {
				if err := c.Close(); err != nil {
					e.opt.Log.Warn("cannot close a backend", "backend", id, "err", err)
				}
			}
			e.provisioners.set(id, nil, "")
			return
		}
		if ctx.Err() == nil {
			e.opt.Log.Warn("cannot open a backend", "backend", id, "err", err, "again", pause)
		}
		e.provisioners.set(id, nil, err.Error())
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, longestRetry)
	}
}

// driveRuns has the runs of a backend's slots carried out, if it does that, until the function that it returns has returned.
func (e *Engine) driveRuns(ctx context.Context, id backendID, p provision.Provisioner) (stop func()) {
	d, ok := provision.As[dispatcherOfRuns](p)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	bell, done := make(chan struct{}, 1), make(chan struct{})
	e.provisioners.setDriver(id, bell)
	go func() {
		defer close(done)
		if err := d.Serve(ctx, slots{e, id}, bell); err != nil && ctx.Err() == nil {
			e.opt.Log.Error("a backend's runs are not carried out", "backend", id, "err", err)
		}
	}()
	return func() { cancel(); <-done; e.provisioners.setDriver(id, nil) }
}

func (p *provisioners) setDriver(b backendID, bell chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drivers == nil {
		p.drivers = map[backendID]chan struct{}{}
	}
	if p.drivers[b] = bell; bell == nil {
		delete(p.drivers, b)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// backendWorker carries out what is stored about a backend's launches, and hears how its instances are.
type backendWorker struct {
	engine *Engine
	id     backendID
	p      provision.Provisioner
	bell   chan struct{}
	offers time.Time // next
	list   time.Time // next
	pause  time.Duration
	// configured is the change of definitions after which offers were asked for.
	configured uint64
}

func (w *backendWorker) serve(ctx context.Context) {
	ps := &w.engine.provisioners
	ps.mu.Lock()
	if ps.bells == nil {
		ps.bells = map[backendID]chan struct{}{}
	}
	ps.bells[w.id] = w.bell
	ps.mu.Unlock()
	defer func() { ps.mu.Lock(); delete(ps.bells, w.id); ps.mu.Unlock() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		w.round(ctx)
		select {
		case <-ctx.Done():
		case <-w.bell:
		case <-tick.C:
		}
	}
}

// round does what is due: offers, calls, the list.
func (w *backendWorker) round(ctx context.Context) {
	now := w.engine.opt.Now()
	if n := w.engine.provisioners.configured.Load(); n != w.configured { // there are definitions that nothing is known of
		w.configured, w.offers = n, now
	}
	if !now.Before(w.offers) {
		w.askOffers(ctx)
	}
	w.calls(ctx)
	if !now.Before(w.list) {
		w.lists(ctx)
	}
}

// failed notes that a backend does not answer, and when it is asked again.
func (w *backendWorker) failed(ctx context.Context, what string, err error) time.Time {
	w.pause = min(max(2*w.pause, firstRetry), longestRetry)
	if ctx.Err() == nil {
		w.engine.opt.Log.Warn("a backend does not answer", "backend", w.id, "asked for", what, "err", err, "again", w.pause)
		w.engine.provisioners.set(w.id, w.p, err.Error())
	}
	return w.engine.opt.Now().Add(w.pause)
}

func (w *backendWorker) answered() {
	w.pause = 0
	w.engine.provisioners.set(w.id, w.p, "")
}

func (w *backendWorker) askOffers(ctx context.Context) {
	e := w.engine
	var defs []coordinator.Definition
	err := e.view(ctx, func(s *state) {
		for i := range s.config.Definitions {
			if d := &s.config.Definitions[i]; d.Kind != spec.KindStatic && s.backendOf(d) == w.id {
				defs = append(defs, *d)
			}
		}
	})
	if err != nil || len(defs) == 0 {
		w.offers = e.opt.Now().Add(time.Second)
		return
	}
	limited, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	offers, err := w.p.Offers(limited, defs)
	if err != nil {
		w.offers = w.failed(ctx, "offers", err)
		return
	}
	w.answered()
	w.offers = e.opt.Now().Add(offersEvery)
	_ = e.doBare(ctx, func(t *tx) error { t.offered(offers); return nil }) // asked again in a minute
}

// offered takes over what a backend offers.
func (t *tx) offered(list []provision.Offer) {
	s := t.state
	for _, in := range list {
		in.Nodes = max(in.Nodes, 1)
		o := s.offers[in.Definition]
		if o == nil {
			o = &offer{}
			s.offers[in.Definition] = o
			s.core.offers, s.dirty = true, true
		}
		if !reflect.DeepEqual(o.Offer, in) {
			s.core.offers, s.dirty = true, true
		}
		o.Offer = in
		if !in.Available && in.Until.After(o.until) {
			o.until, o.why = in.Until, in.Why
		}
	}
	s.reprice()
}

// call is one thing to ask a provider for.
type call struct {
	id      provision.LaunchID
	release bool
	handle  provision.Handle
	request provision.Request
}

// calls asks the provider for every launch and release that is due, and returns when all have been answered.
func (w *backendWorker) calls(ctx context.Context) {
	var list []call
	err := w.engine.do(ctx, func(t *tx) error { list = t.dueCalls(w.id); return nil })
	if err != nil {
		return
	}
	var all sync.WaitGroup
	places := make(chan struct{}, callsAtOnce)
	for _, c := range list {
		places <- struct{}{}
		all.Go(func() { defer func() { <-places }(); w.call(ctx, c) })
	}
	all.Wait()
}

func (w *backendWorker) call(ctx context.Context, c call) {
	limited, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	e := w.engine
	if c.release {
		err := w.p.Release(limited, c.handle)
		_ = e.do(ctx, func(t *tx) error { t.releaseAnswered(c.id, err); return nil }) // else it is asked again
		return
	}
	inst, err := w.p.Launch(limited, c.request)
	if ctx.Err() != nil && err != nil {
		return // stopping; the outcome is unknown and the call repeated in the next life
	}
	_ = e.do(ctx, func(t *tx) error { t.launchAnswered(c.id, inst, err); return nil }) // else it is asked again, by the same id
}

// dueCalls collects the calls of a backend that are due.
func (t *tx) dueCalls(b backendID) []call {
	var out []call
	t.startDiscoveries(b)
	for _, l := range t.state.sortedLaunches(b) {
		if t.now.Before(l.next) || len(out) >= 256 {
			continue
		}
		switch {
		case l.record.Release == "" && !l.called():
			if c, ok := t.launchCall(l); ok {
				out = append(out, c)
			}
		case l.record.Release != "" && l.called():
			out = append(out, call{id: l.record.ID, release: true, handle: l.record.Handle})
		case l.record.Release != "" && l.tries == 0 && !l.asked():
			t.launchOver(l, l.record.Release, l.record.Failed) // the provider has never heard of it
		}
	}
	return out
}

// asked reports whether the provider may have heard of a launch: its token is made before the first call.
func (l *launch) asked() bool { return !l.record.Asked.IsZero() }

// launchCall makes the request of a launch. The token is stored, as a hash, before the provider hears of it.
func (t *tx) launchCall(l *launch) (call, bool) {
	s, e := t.state, t.engine
	d := s.definition(l.record.Definition)
	if d == nil || specDigest(d) != l.record.Spec || s.backendOf(d) != l.record.Backend {
		t.giveUp(l, "its definition has changed", provision.FaultNone)
		return call{}, false
	}
	token, rec, err := s.ca.LaunchToken(string(l.record.ID), l.record.Nodes, t.now, launchTokenTTL)
	if err != nil {
		e.opt.Log.Error("cannot make a launch's join token", "launch", l.record.ID, "err", err)
		return call{}, false
	}
	again := l.asked()
	if _, ok := s.joinTokens[rec.ID]; !ok {
		rec.By, rec.Definition, rec.Launch = "the scheduler", l.record.Definition, string(l.record.ID)
		s.joinTokens[rec.ID] = rec
		l.record.Asked, l.record.Lifetime = t.now, d.TTL
		if l.record.Discovery {
			l.record.Lifetime = s.longestLook(d)
		}
		t.put(prefixJoin+rec.ID, rec)
		t.put(launchKey(l.record.ID), l.record)
		t.group()
		t.then(func(int64) { e.credentials.issueJoin(rec) })
	}
	l.next = t.now.Add(callWithin) // until it is answered
	return call{id: l.record.ID, request: provision.Request{
		ID: l.record.ID, Asked: l.record.Asked, Again: again, Definition: *d, Nodes: l.record.Nodes, Lifetime: l.record.Lifetime,
		Boot: provision.Boot{Coordinator: e.opt.Provisioners.AgentAddress(), Token: token, Node: provision.NodeOf(d.ID, l.record.ID), Discover: l.record.Discovery},
	}}, true
}

func (s *state) sortedLaunches(b backendID) []*launch {
	var out []*launch
	for _, l := range s.launches {
		if l.record.Backend == b && !l.isSlot() { // of slots the provider knows nothing
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *launch) int { return cmp.Compare(string(a.record.ID), string(b.record.ID)) })
	return out
}

// launchAnswered takes over what came of a launch call.
func (t *tx) launchAnswered(id provision.LaunchID, inst provision.Instance, err error) {
	l := t.state.launches[id]
	if l == nil {
		return // given up meanwhile; a list finds the instance and has it reaped
	}
	switch kind := provision.FaultOf(err); {
	case err == nil:
		l.record.Handle, l.next, l.tries, l.trouble = inst.Handle, time.Time{}, 0, ""
		t.observe(l, inst)
		t.putLaunch(l)
		t.event(Event{Kind: "node-launched", Subject: string(id), Message: fmt.Sprintf("%s is %s, %s", nodesOf(l), inst.Handle, inst.State),
			Metadata: map[string]string{"definition": string(l.record.Definition), "backend": l.record.Backend.String()}})
	case kind.Again() || l.record.Release != "":
		l.tries++
		l.trouble = err.Error()
		l.next = t.now.Add(retryAfter(l.tries, err))
	default:
		t.launchOver(l, err.Error(), kind)
	}
}

func retryAfter(tries int, err error) time.Duration {
	pause := firstRetry
	for i := 1; i < tries && pause < longestRetry; i++ {
		pause *= 2
	}
	var e *provision.Error
	if errors.As(err, &e) && e.After > pause {
		return e.After
	}
	return min(pause, longestRetry)
}

// releaseAnswered takes over what came of a release call; it is repeated until the instance is gone.
func (t *tx) releaseAnswered(id provision.LaunchID, err error) {
	l := t.state.launches[id]
	if l == nil {
		return
	}
	l.tries++
	l.trouble = ""
	l.next = t.now.Add(retryAfter(l.tries, err))
	if err == nil {
		return
	}
	if provision.FaultOf(err) == provision.FaultNotFound {
		t.launchOver(l, l.record.Release, l.record.Failed)
		return
	}
	l.trouble = err.Error()
}
