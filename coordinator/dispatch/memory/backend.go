package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// Backend is a client of a cluster.
type Backend struct {
	c        *Cluster
	readOnly bool
}

var (
	_ dispatch.Backend         = (*Backend)(nil)
	_ dispatch.Holder          = (*Backend)(nil)
	_ dispatch.Requeuer        = (*Backend)(nil)
	_ dispatch.CessationSignal = (*Backend)(nil)
	_ dispatch.OutputReader    = (*Backend)(nil)
	_ dispatch.MultiFinder     = (*Backend)(nil)
	_ dispatch.Reporter        = (*Backend)(nil)
	_ dispatch.Selective       = (*Backend)(nil)
)

// Client is a client of the cluster, for dispatch.Open. A read-only one changes nothing.
func (c *Cluster) Client(readOnly bool) func(context.Context) (dispatch.Backend, error) {
	return func(context.Context) (dispatch.Backend, error) { return &Backend{c: c, readOnly: readOnly}, nil }
}

// ask makes a call that changes nothing.
func (b *Backend) ask(ctx context.Context, verb string, f func() error) error {
	if err := b.reach(ctx, verb); err != nil {
		return err
	}
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.advance()
	if b.c.faults.unavailable {
		return fmt.Errorf("cannot %s: %w", verb, dispatch.ErrUnavailable)
	}
	if err := f(); err != nil {
		return fmt.Errorf("cannot %s: %w", verb, err)
	}
	return nil
}

// reach waits as long as the system takes.
func (b *Backend) reach(ctx context.Context, verb string) error {
	b.c.mu.Lock()
	slow := b.c.faults.slow
	b.c.mu.Unlock()
	if err := b.c.clock.Sleep(ctx, slow); err != nil {
		return fmt.Errorf("cannot %s: %w: %w", verb, dispatch.ErrUnavailable, err)
	}
	return nil
}

// order makes a call that changes something, which may land without its caller hearing of it.
func (b *Backend) order(ctx context.Context, verb string, f func() error) error {
	if b.readOnly {
		return fmt.Errorf("cannot %s: %w", verb, dispatch.ErrReadOnly)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot %s: %w: %w", verb, dispatch.ErrUnavailable, err)
	}
	c := b.c
	c.mu.Lock()
	sent, slow := c.clock.Now(), c.faults.slow
	c.mu.Unlock()
	err := c.clock.Sleep(ctx, slow)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	switch lose := c.faults.lose; {
	case c.faults.unavailable:
		return fmt.Errorf("cannot %s: %w", verb, dispatch.ErrUnavailable)
	case err != nil: // the caller gave up; the call is on its way
		c.send(sent.Add(slow), f)
		return fmt.Errorf("cannot %s: %w: %w", verb, dispatch.ErrOutcomeUnknown, err)
	case lose != nil:
		c.faults.lose = nil
		if !lose.Never {
			c.send(c.now.Add(lose.After), f)
		}
		return fmt.Errorf("cannot %s: the reply is lost: %w", verb, dispatch.ErrOutcomeUnknown)
	}
	if err := f(); err != nil {
		return fmt.Errorf("cannot %s: %w", verb, err)
	}
	c.work()
	return nil
}

// send has a call arrive at a time, unless the system takes it no more then. Nobody hears what it answers.
func (c *Cluster) send(at time.Time, f func() error) {
	expires := at
	if c.options.CallBound > 0 {
		expires = c.now.Add(c.options.CallBound)
	}
	c.landings = append(c.landings, landing{at: at, expires: expires, apply: func() { _ = f() }})
	c.advance()
}

// find is the object of an id, by its form first.
func (c *Cluster) find(id dispatch.ObjectID) (*object, error) {
	number, ok := strings.CutSuffix(string(id), c.options.Tail)
	if n, err := strconv.ParseUint(number, 10, 32); !ok || err != nil || strconv.FormatUint(n, 10) != number {
		return nil, fmt.Errorf("%w: %q is no id", dispatch.ErrRefused, id)
	}
	o := c.byID[id]
	if o == nil || !c.listed(o) {
		return nil, fmt.Errorf("%s: %w", id, dispatch.ErrNotFound)
	}
	return o, nil
}

func (b *Backend) Submit(ctx context.Context, spec dispatch.Spec) (id dispatch.ObjectID, err error) {
	if err := spec.Check(); err != nil && !b.readOnly {
		return "", err
	}
	if spec.Image != nil && !b.c.options.Images {
		return "", fmt.Errorf("cannot submit %s: %w: %s", spec.Ref, dispatch.ErrRefused, noImages)
	}
	spec.Env = maps.Clone(spec.Env)
	if spec.Output != nil {
		out := *spec.Output
		spec.Output = &out
	}
	err = b.order(ctx, "submit "+spec.Ref.String(), func() error {
		id, err = b.c.accept(spec)
		return err
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

const noImages = "container images are not run here"

// accept makes an object with the next id that nothing has which can be seen.
func (c *Cluster) accept(spec dispatch.Spec) (dispatch.ObjectID, error) {
	for range max(c.options.Last, 1) {
		c.last++
		if c.options.Last > 0 && c.last > c.options.Last {
			c.last = 1
		}
		id := dispatch.ObjectID(fmt.Sprint(c.last) + c.options.Tail)
		if o := c.byID[id]; o != nil && c.listed(o) {
			continue
		}
		o := &object{id: id, spec: spec, first: c.now, submitted: c.now}
		c.objects, c.byID[id] = append(c.objects, o), o
		return id, nil
	}
	return "", fmt.Errorf("%w: no id is free", dispatch.ErrUnavailable)
}

func (b *Backend) OpenGate(ctx context.Context, id dispatch.ObjectID) error {
	return b.order(ctx, "open the gate of "+string(id), func() error {
		o, err := b.c.find(id)
		if err != nil {
			return err
		}
		if o.over() && !o.gate {
			return dispatch.ErrEnded
		}
		if !o.gate {
			o.gate, o.opened = true, b.c.now
		}
		return nil
	})
}

func (b *Backend) Inspect(ctx context.Context, id dispatch.ObjectID) (v dispatch.Observation, err error) {
	err = b.ask(ctx, "inspect "+string(id), func() error {
		if _, err := b.c.find(id); err != nil && b.c.byID[id] == nil {
			return err
		}
		var known bool
		if v, known = b.c.look(b.c.byID[id]); !known {
			return fmt.Errorf("%s: %w", id, dispatch.ErrNotFound)
		}
		return nil
	})
	return v, err
}

func (b *Backend) Stop(ctx context.Context, id dispatch.ObjectID) error {
	return b.order(ctx, "stop "+string(id), func() error {
		o, err := b.c.find(id)
		switch {
		case err != nil:
			return err
		case o.over():
		case o.running() == nil:
			o.state, o.ended = dispatch.StateCancelled, b.c.now
		case o.stopped.IsZero():
			o.stopped = b.c.now
		}
		return nil
	})
}

func (b *Backend) Find(ctx context.Context, ref dispatch.Ref) (list []dispatch.Observation, err error) {
	err = b.ask(ctx, "find "+ref.String(), func() error {
		type hit struct {
			first time.Time
			v     dispatch.Observation
		}
		var hits []hit
		for _, o := range b.c.objects {
			if v, known := b.c.look(o); known && v.Ref.Matches(ref) {
				hits = append(hits, hit{o.first, v})
			}
		}
		slices.SortStableFunc(hits, func(x, y hit) int { return cmp.Or(x.first.Compare(y.first)) })
		for _, h := range hits {
			list = append(list, h.v)
		}
		return nil
	})
	return list, err
}

// FindMany knows what the system itself knows.
func (b *Backend) FindMany(ctx context.Context, ids []dispatch.ObjectID) (map[dispatch.ObjectID]dispatch.Observation, error) {
	got := map[dispatch.ObjectID]dispatch.Observation{}
	err := b.ask(ctx, "find many", func() error {
		for _, id := range ids {
			if o, err := b.c.find(id); err == nil {
				got[id], _ = b.c.look(o)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return got, nil
}

// pending is an object that can be held.
func (c *Cluster) pending(id dispatch.ObjectID) (*object, error) {
	o, err := c.find(id)
	switch {
	case err != nil:
		return nil, err
	case o.over():
		return nil, dispatch.ErrEnded
	case o.running() != nil:
		return nil, dispatch.ErrNotPending
	}
	return o, nil
}

func (b *Backend) holds(verb string, n dispatch.Instance) error {
	if s := b.c.options.hold(); s.Answer != dispatch.Yes {
		return fmt.Errorf("cannot %s: %w: %s", verb, dispatch.ErrUnsupported, s.Reason)
	}
	if n < 1 || n >= dispatch.EpochBound {
		return fmt.Errorf("cannot %s: %w: the instance is outside 1 to %d", verb, dispatch.ErrRefused, dispatch.EpochBound-1)
	}
	return nil
}

func (b *Backend) Hold(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	verb := fmt.Sprintf("place hold %d on %s", n, id)
	if err := b.holds(verb, n); err != nil {
		return err
	}
	return b.order(ctx, verb, func() error {
		o, err := b.c.pending(id)
		if err != nil {
			return err
		}
		if b.c.held(o) > n {
			return fmt.Errorf("%w: hold %d is in place", dispatch.ErrStale, b.c.held(o))
		}
		o.hold = n
		if b.c.options.Holds == HoldsAsStart {
			o.begin = o.submitted.Add(time.Duration(holdBaseSeconds+int64(n)) * time.Second)
		}
		return nil
	})
}

func (b *Backend) Release(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	verb := fmt.Sprintf("release hold %d of %s", n, id)
	if err := b.holds(verb, n); err != nil {
		return err
	}
	return b.order(ctx, verb, func() error {
		o, err := b.c.pending(id)
		if err != nil {
			return err
		}
		if in := b.c.held(o); in != n {
			return fmt.Errorf("%w: hold %d is in place", dispatch.ErrStale, in)
		}
		o.hold, o.begin = 0, b.c.now
		return nil
	})
}

func (b *Backend) Requeue(ctx context.Context, id dispatch.ObjectID) error {
	verb := "requeue " + string(id)
	crash := 0
	for step, f := range []func(*object) error{b.c.allowRequeue, b.c.requeue, b.c.restoreBit} {
		err := b.order(ctx, verb, func() error {
			if step == 0 {
				crash, b.c.faults.crash = b.c.faults.crash, 0
			}
			o, err := b.c.find(id)
			if err != nil {
				return err
			}
			return f(o)
		})
		switch {
		case err != nil && step == 1:
			_ = b.RestoreRequeueBit(ctx, id) // the requeue was refused: nothing is to stay behind
			return err
		case err != nil && step == 2:
			return fmt.Errorf("cannot %s: %w: %w", verb, dispatch.ErrOutcomeUnknown, err)
		case err != nil:
			return err
		case crash == step+1:
			return fmt.Errorf("cannot %s: after step %d: %w", verb, crash, ErrCrashed)
		}
	}
	return nil
}

func (b *Backend) RestoreRequeueBit(ctx context.Context, id dispatch.ObjectID) error {
	return b.order(ctx, "restore the requeue bit of "+string(id), func() error {
		o, err := b.c.find(id)
		if err != nil {
			return err
		}
		return b.c.restoreBit(o)
	})
}

func (c *Cluster) allowRequeue(o *object) error {
	e := o.running()
	switch {
	case o.over():
		return dispatch.ErrEnded
	case e == nil || !o.stopped.IsZero():
		return fmt.Errorf("%w: it does not run", dispatch.ErrRefused)
	case e.silent():
		return fmt.Errorf("%w: %s does not answer", dispatch.ErrUnavailable, e.nodes[0].Name)
	}
	o.bit = true
	return nil
}

func (c *Cluster) requeue(o *object) error {
	bit := o.bit
	if err := c.allowRequeue(o); err != nil {
		return err
	}
	if o.bit = bit; !bit && !c.options.NativeRequeue {
		return fmt.Errorf("%w: requeues of it are disabled", dispatch.ErrRefused)
	}
	e := o.running()
	e.gone = c.now
	c.finish(e, dispatch.StateCancelled, dispatch.CauseReplaced)
	return nil
}

func (c *Cluster) restoreBit(o *object) error {
	o.bit = false
	return nil
}

// Ceased asks the nodes, not the batch system.
func (b *Backend) Ceased(ctx context.Context, id dispatch.ObjectID, n dispatch.Execution) (dispatch.Answer, error) {
	if err := ctx.Err(); err != nil {
		return dispatch.Unknown, err
	}
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	o := c.byID[id]
	if o == nil {
		return dispatch.Unknown, nil
	}
	for _, e := range o.runs {
		if e.n != n {
			continue
		}
		switch dead := !slices.ContainsFunc(e.nodes, func(n *node) bool { return !n.dead }); {
		case dead, !e.silent() && !e.gone.IsZero():
			return dispatch.Yes, nil
		case !e.silent():
			return dispatch.No, nil
		}
	}
	return dispatch.Unknown, nil
}
