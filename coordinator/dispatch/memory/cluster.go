package memory

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

// Cluster is the batch system. Backends opened on it are its clients; methods here are what happens to it.
type Cluster struct {
	clock   dispatch.Clock
	options Options

	mu       sync.Mutex
	now      time.Time // up to which everything has been worked out
	nodes    []*node
	objects  []*object // in the order of their submission
	byID     map[dispatch.ObjectID]*object
	last     uint32
	landings []landing
	doubles  []string
	faults   faults
}

type node struct {
	Node
	silent time.Time // since when it does not answer; zero: it does
	dead   bool      // it and its processes are gone, and that can be proved
}

// object is what a submission has made.
type object struct {
	id        dispatch.ObjectID
	spec      dispatch.Spec
	first     time.Time // submission
	submitted time.Time // shown as; anew with a requeue
	gate      bool      // open
	opened    time.Time // its gate
	operator  bool      // holds it
	hold      dispatch.Instance
	begin     time.Time // not before
	bit       bool      // the system may run it again
	stopped   time.Time // when somebody asked for its end
	ended     time.Time
	state     dispatch.State // of one that never ran and is over
	runs      []*execution
	execution dispatch.Execution
	forgotten bool
}

// execution is one run, and the processes that it has.
type execution struct {
	of      *object
	n       dispatch.Execution
	nodes   []*node
	started time.Time
	plan    plan
	limit   time.Time // of its walltime; zero: none

	gone    time.Time // when its processes were; zero: they live
	natural bool      // by themselves
	over    bool      // for the system
	ended   time.Time
	state   dispatch.State
	cause   dispatch.Cause
	code    *int
	signal  *int
}

// landing is a call that is on its way though its caller has given up.
type landing struct {
	at      time.Time
	expires time.Time // the system takes no call that is older
	apply   func()
}

// New is a cluster with nothing on it.
func New(clock dispatch.Clock, o Options) *Cluster {
	c := &Cluster{clock: clock, options: o, now: clock.Now(), byID: map[dispatch.ObjectID]*object{}}
	for _, n := range o.Nodes {
		c.nodes = append(c.nodes, &node{Node: n})
	}
	return c
}

// running is the execution that the system counts as running, nil when there is none.
func (o *object) running() *execution {
	if len(o.runs) == 0 {
		return nil
	}
	if e := o.runs[len(o.runs)-1]; !e.over {
		return e
	}
	return nil
}

func (o *object) over() bool { return !o.ended.IsZero() }

func (e *execution) silent() bool {
	return slices.ContainsFunc(e.nodes, func(n *node) bool { return !n.silent.IsZero() })
}

// silentSince is when the first of its nodes fell silent.
func (e *execution) silentSince() (since time.Time) {
	for _, n := range e.nodes {
		if !n.silent.IsZero() && (since.IsZero() || n.silent.Before(since)) {
			since = n.silent
		}
	}
	return since
}

// advance works out everything up to the clock's time.
func (c *Cluster) advance() {
	now := c.clock.Now()
	c.schedule()
	for {
		at, ok := c.next()
		if !ok || at.After(now) {
			break
		}
		if at.After(c.now) {
			c.now = at
		}
		c.land()
		c.work()
	}
	if now.After(c.now) {
		c.now = now
	}
}

// work does what is due now.
func (c *Cluster) work() {
	for _, o := range c.objects {
		for _, e := range o.runs {
			c.step(e)
		}
	}
	c.schedule()
}

// next is the time of the next thing that will come about.
func (c *Cluster) next() (at time.Time, ok bool) {
	sooner := func(t time.Time) {
		if !t.IsZero() && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	for _, l := range c.landings {
		sooner(l.at)
	}
	for _, o := range c.objects {
		if !o.over() && o.running() == nil && o.begin.After(c.now) {
			sooner(o.begin)
		}
		for _, e := range o.runs {
			sooner(c.due(e))
		}
	}
	return at, ok
}

// due is when the next thing comes about with an execution; zero is never.
func (c *Cluster) due(e *execution) (at time.Time) {
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if e.gone.IsZero() {
		sooner(e.started.Add(e.plan.length))
	}
	if e.over {
		return at
	}
	if e.silent() {
		if c.options.GiveUp > 0 {
			sooner(e.silentSince().Add(c.options.GiveUp))
		}
		return at
	}
	if !e.limit.IsZero() {
		sooner(e.limit)
	}
	if !e.of.stopped.IsZero() {
		sooner(e.of.stopped.Add(c.options.StopGrace))
	}
	if !e.gone.IsZero() {
		sooner(c.now) // it is heard of
	}
	return at
}

// step does what is due with an execution. What a silent node knows the system hears when it answers again.
func (c *Cluster) step(e *execution) {
	if natural := e.started.Add(e.plan.length); e.gone.IsZero() && !natural.After(c.now) {
		e.gone, e.natural = natural, true
	}
	switch {
	case e.over:
		if e.gone.IsZero() && !e.silent() {
			e.gone = c.now // the node ends what the system has given up
		}
	case e.silent():
		if c.options.GiveUp > 0 && !e.silentSince().Add(c.options.GiveUp).After(c.now) {
			c.finish(e, dispatch.StateFailed, dispatch.CauseNodeLost)
		}
	case !e.gone.IsZero() && e.natural:
		c.finishByItself(e)
	case !e.gone.IsZero():
		c.finish(e, dispatch.StateFailed, dispatch.CauseNodeLost)
	case !e.of.stopped.IsZero() && !e.of.stopped.Add(c.options.StopGrace).After(c.now):
		e.gone = c.now
		c.finish(e, dispatch.StateCancelled, dispatch.CauseNone)
	case !e.limit.IsZero() && !e.limit.After(c.now):
		e.gone = c.now
		c.finish(e, dispatch.StateFailed, dispatch.CauseTimeout)
	}
}

func (c *Cluster) finishByItself(e *execution) {
	switch p := e.plan; {
	case p.signal != 0:
		e.signal = &p.signal
		c.finish(e, dispatch.StateFailed, dispatch.CauseSignalled)
	case p.code != 0:
		e.code = &p.code
		c.finish(e, dispatch.StateFailed, dispatch.CauseExitCode)
	default:
		e.code = &p.code
		c.finish(e, dispatch.StateSucceeded, dispatch.CauseNone)
	}
}

// finish ends an execution for the system. Its processes are another matter.
func (c *Cluster) finish(e *execution, s dispatch.State, cause dispatch.Cause) {
	e.over, e.ended, e.state, e.cause = true, c.now, s, cause
	o := e.of
	again := (c.options.NativeRequeue || o.bit) && o.stopped.IsZero() && (cause == dispatch.CauseNodeLost || cause == dispatch.CausePreempted)
	if cause == dispatch.CauseReplaced || again {
		o.execution++
		o.submitted, o.begin, o.hold = c.now, c.now.Add(c.options.RequeueDelay), 0
		return
	}
	o.ended = c.now
}

// land takes what has been on its way.
func (c *Cluster) land() {
	var due []landing
	c.landings = slices.DeleteFunc(c.landings, func(l landing) bool {
		if !l.at.After(c.now) {
			due = append(due, l)
			return true
		}
		return false
	})
	slices.SortStableFunc(due, func(a, b landing) int { return a.at.Compare(b.at) })
	for _, l := range due {
		if !l.at.After(l.expires) {
			l.apply()
		}
	}
}

// schedule starts what can start, in the order of submission.
func (c *Cluster) schedule() {
	for _, o := range c.objects {
		if o.over() || o.running() != nil || c.waits(o) != dispatch.CauseNone {
			continue
		}
		if on := c.room(o.spec, func(n *node) bool { return n.silent.IsZero() }, true); on != nil {
			c.startOn(o, on)
		}
	}
}

// waits is what keeps an object from being looked at, none when nothing does.
func (c *Cluster) waits(o *object) dispatch.Cause {
	switch {
	case !o.gate:
		return dispatch.CauseGated
	case o.operator:
		return dispatch.CauseOperatorHeld
	case c.held(o) != 0:
		return dispatch.CauseHeld
	case o.begin.After(c.now):
		return dispatch.CauseDelayed
	}
	return dispatch.CauseNone
}

// held is the hold in place, read back from where such clusters keep it.
func (c *Cluster) held(o *object) dispatch.Instance {
	if c.options.Holds != HoldsAsStart {
		return o.hold
	}
	n := o.begin.Sub(o.submitted)/time.Second - holdBaseSeconds
	if n < 1 || n >= dispatch.EpochBound {
		return 0
	}
	return dispatch.Instance(n)
}

// room is the nodes that a spec could have, nil when there are too few; used: what runs now takes its part.
func (c *Cluster) room(spec dispatch.Spec, may func(*node) bool, used bool) []*node {
	want := max(spec.Cores, 1)
	var on []*node
	for _, n := range c.nodes {
		free := n.Cores
		if used {
			free -= c.taken(n)
		}
		if spec.Exclusive && free < n.Cores || free < want || !may(n) {
			continue
		}
		if on = append(on, n); len(on) == int(spec.Nodes) {
			return on
		}
	}
	return nil
}

func (c *Cluster) taken(n *node) (cores coordinator.Cores) {
	for _, o := range c.objects {
		if e := o.running(); e != nil && slices.Contains(e.nodes, n) {
			if o.spec.Exclusive {
				return n.Cores
			}
			cores += max(o.spec.Cores, 1)
		}
	}
	return cores
}

// why is what keeps an eligible object from starting.
func (c *Cluster) why(o *object) dispatch.Cause {
	all := func(*node) bool { return true }
	answering := func(n *node) bool { return n.silent.IsZero() }
	switch {
	case c.room(o.spec, all, false) == nil:
		return dispatch.CauseUnsatisfiable
	case c.room(o.spec, answering, false) == nil:
		return dispatch.CauseNodeUnavailable
	}
	return dispatch.CauseCapacity
}

func (c *Cluster) startOn(o *object, on []*node) {
	for _, other := range c.objects {
		for _, e := range other.runs {
			if other.spec.Ref.Job == o.spec.Ref.Job && e.gone.IsZero() {
				c.doubles = append(c.doubles, fmt.Sprintf("%s starts as %s.%d while %s.%d lives", o.spec.Ref, o.id, o.execution, other.id, e.n))
			}
		}
	}
	workdir := cmp.Or(o.spec.Workdir, home)
	processes := int(max(o.spec.ProcsPerNode, 1) * o.spec.Nodes)
	e := &execution{of: o, n: o.execution, nodes: on, started: c.now,
		plan: read(o.spec.Script, environment(o.spec, o.id, o.execution), workdir, processes)}
	if w := cmp.Or(o.spec.Walltime, c.options.Walltime); w > 0 {
		e.limit = c.now.Add(w)
	}
	o.runs = append(o.runs, e)
}
