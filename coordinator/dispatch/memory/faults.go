package memory

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator/dispatch"
)

// ErrCrashed is a Requeue that ended between its steps.
var ErrCrashed = fmt.Errorf("the caller crashed: %w", dispatch.ErrOutcomeUnknown)

// faults are those that are armed.
type faults struct {
	lose        *Loss
	unavailable bool
	slow        time.Duration
	crash       int
}

// Loss is what becomes of a call whose reply is lost.
type Loss struct {
	Never bool          // it does not arrive at all
	After time.Duration // when it arrives; 0 is now. Beyond CallBound the system takes it no more, where it has a bound
}

// LoseReply takes the reply from the next call that changes something.
func (c *Cluster) LoseReply(l Loss) { c.change(func() { c.faults.lose = &l }) }

// Unavailable cuts the way to the system, or mends it.
func (c *Cluster) Unavailable(on bool) { c.change(func() { c.faults.unavailable = on }) }

// Slow makes every call take so long.
func (c *Cluster) Slow(d time.Duration) { c.change(func() { c.faults.slow = d }) }

// CrashRequeue ends the next Requeue after one of its three steps.
func (c *Cluster) CrashRequeue(step int) { c.change(func() { c.faults.crash = step }) }

// Down makes a node stop answering; what runs on it goes on.
func (c *Cluster) Down(name string) error {
	return c.onNode(name, func(n *node) {
		if n.silent.IsZero() {
			n.silent = c.now
		}
	})
}

// Kill ends a node and its processes so that Ceased can prove it.
func (c *Cluster) Kill(name string) error {
	return c.onNode(name, func(n *node) {
		n.dead = true
		if n.silent.IsZero() {
			n.silent = c.now
		}
		for _, o := range c.objects {
			for _, e := range o.runs {
				if e.gone.IsZero() && slices.Contains(e.nodes, n) {
					e.gone = c.now
				}
			}
		}
	})
}

// Up makes a node answer again.
func (c *Cluster) Up(name string) error {
	return c.onNode(name, func(n *node) { n.silent, n.dead = time.Time{}, false })
}

// End ends what runs, for a cause of the system's.
func (c *Cluster) End(id dispatch.ObjectID, cause dispatch.Cause) error {
	return c.onObject(id, func(o *object) error {
		e := o.running()
		if e == nil || e.silent() {
			return errors.New("it does not run on nodes that answer")
		}
		e.gone = c.now
		c.finish(e, dispatch.StateFailed, cause)
		return nil
	})
}

// OperatorHold is the operator's own hold.
func (c *Cluster) OperatorHold(id dispatch.ObjectID, on bool) error {
	return c.onObject(id, func(o *object) error {
		o.operator = on
		return nil
	})
}

// Purge forgets what is over at once.
func (c *Cluster) Purge(id dispatch.ObjectID) error {
	return c.onObject(id, func(o *object) error {
		if !o.over() {
			return errors.New("it is not over")
		}
		o.forgotten = true
		return nil
	})
}

// Forget has the system die and come back without what it had not written down: what was submitted within the time before it does not know,
// gates that were opened within it are shut, and what has started since then has not. Nodes end what the system knows nothing of.
// A history keeps what it was told: of what was submitted and had started it says, for ever, that it was given up.
func (c *Cluster) Forget(within time.Duration) {
	c.change(func() {
		since := c.now.Add(-within)
		c.objects = slices.DeleteFunc(c.objects, func(o *object) bool {
			if !o.first.After(since) || c.givenUp(o) {
				return false
			}
			delete(c.byID, o.id)
			c.last -= min(c.last, 1) // its number is given again
			return true
		})
		for _, o := range c.objects {
			if o.gate && o.opened.After(since) && !o.over() {
				o.gate, o.runs = false, nil
			}
		}
	})
}

// givenUp is what becomes of a forgotten object that the history has seen start; ok is false for any other.
func (c *Cluster) givenUp(o *object) (ok bool) {
	if c.options.History == HistoryNone || len(o.runs) == 0 {
		return false
	}
	if e := o.runs[len(o.runs)-1]; !e.over {
		e.over, e.ended, e.state, e.cause = true, c.now, dispatch.StateFailed, dispatch.CauseNodeLost
		e.gone, o.ended = c.now, c.now
	}
	return true
}

// Nodes lists the nodes' names.
func (c *Cluster) Nodes() []string { return names(c.nodes) }

func (c *Cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	f()
	c.work()
}

func (c *Cluster) onNode(name string, f func(*node)) (err error) {
	c.change(func() {
		i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.Name == name })
		if i < 0 {
			err = fmt.Errorf("cannot change node %s: there is none", name)
			return
		}
		f(c.nodes[i])
	})
	return err
}

func (c *Cluster) onObject(id dispatch.ObjectID, f func(*object) error) (err error) {
	c.change(func() {
		o := c.byID[id]
		if o == nil {
			err = fmt.Errorf("cannot change %s: %w", id, dispatch.ErrNotFound)
			return
		}
		if e := f(o); e != nil {
			err = fmt.Errorf("cannot change %s: %w", id, e)
		}
	})
	return err
}
