package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/store"
)

// eventRing keeps the newest events for those who follow. Older ones are read from the store.
type eventRing struct {
	mu      sync.Mutex
	size    int
	events  []Event       // ascending by sequence, every one after base
	base    uint64        // sequence of the last event that is not in the ring
	changed chan struct{} // closed and replaced at each publish
	closed  bool
}

func newEventRing(size int) *eventRing {
	return &eventRing{size: size, changed: make(chan struct{})}
}

func (r *eventRing) publish(events []Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
	if over := len(r.events) - r.size; over > r.size/4 {
		r.base = r.events[over-1].Sequence
		r.events = slices.Clone(r.events[over:]) // cut in steps, not at every event
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *eventRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// after returns the events after a sequence, what to wait on for more, and whether some may be missing.
func (r *eventRing) after(seq uint64) (events []Event, more <-chan struct{}, gap, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq == math.MaxUint64 {
		return nil, r.changed, false, r.closed
	}
	i, _ := slices.BinarySearchFunc(r.events, seq+1, func(ev Event, seq uint64) int {
		switch {
		case ev.Sequence < seq:
			return -1
		case ev.Sequence > seq:
			return 1
		}
		return 0
	})
	return slices.Clone(r.events[i:]), r.changed, seq < r.base, r.closed
}

// reset empties the ring: the events up to a sequence are in the store, some perhaps unpublished.
func (r *eventRing) reset(base uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.base = nil, base
	close(r.changed)
	r.changed = make(chan struct{})
}

// Events sends a workflow's events after a sequence ("" is the whole cluster, for cluster-admins), then
// new ones while follow is set. Nothing is sent twice or left out.
func (e *Engine) Events(ctx context.Context, c Caller, ref string, after uint64, follow bool, send func([]Event) error) error {
	var id coordinator.WorkflowID
	if ref == "" {
		if err := c.authorize(auth.PermissionAdminCluster, "show events of the whole cluster", auth.Target{}); err != nil {
			return err
		}
	}
	if ref != "" {
		var err error
		if verr := e.view(ctx, func(s *state) {
			var w *submission
			if w, err = s.resolve(c, "show events", ref); err == nil {
				id = w.id
			}
		}); verr != nil {
			return verr
		}
		if err != nil {
			return err
		}
	}
	for {
		events, more, gap, closed := e.events.after(after)
		for gap {
			// Only the store has all of them, up to what was published before it is read; the ring has the rest.
			upTo := e.events.last()
			if err := e.storedEvents(ctx, id, after, upTo, send); err != nil {
				return err
			}
			after = upTo
			events, more, gap, closed = e.events.after(after)
		}
		events = ofWorkflow(events, id, &after)
		if len(events) > 0 {
			if err := send(events); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		if closed {
			return coordinator.Errorf(coordinator.ErrUnavailable, "follow events", "the coordinator is stopping")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
	}
}

// last is the sequence of the newest event that is durable and published.
func (r *eventRing) last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.events); n > 0 {
		return r.events[n-1].Sequence
	}
	return r.base
}

// ofWorkflow keeps one workflow's events and moves after past all of them.
func ofWorkflow(events []Event, id coordinator.WorkflowID, after *uint64) []Event {
	var out []Event
	for _, ev := range events {
		if id == "" || ev.Workflow == id {
			out = append(out, ev)
		}
		*after = max(*after, ev.Sequence)
	}
	return out
}

// eventPage is how many records of events are read at a time; each holds what one turn told of one workflow.
const eventPage = 64

// storedEvents sends what the store holds after a sequence and up to another, in order. The records of one
// workflow stand in the order of their first events and overlap within a turn only, so they are sent while
// they are read; those of the whole cluster are gathered and sorted, for one caller at a time.
func (e *Engine) storedEvents(ctx context.Context, id coordinator.WorkflowID, after, upTo uint64, send func([]Event) error) error {
	bySequence := func(a, b Event) int { return cmp.Compare(a.Sequence, b.Sequence) }
	prefix, gather := prefixEvent+string(id)+"/", false
	if id == "" {
		prefix, gather = prefixEvent, true
		e.history.Lock()
		defer e.history.Unlock()
	}
	var held []Event
	flush := func(before uint64) error {
		slices.SortFunc(held, bySequence)
		n, _ := slices.BinarySearchFunc(held, before, func(ev Event, seq uint64) int { return cmp.Compare(ev.Sequence, seq) })
		const atOnce = 1000
		for chunk := range slices.Chunk(held[:n], atOnce) {
			if err := send(slices.Clone(chunk)); err != nil {
				return err
			}
		}
		held = slices.Delete(held, 0, n)
		return nil
	}
	err := e.readEvents(ctx, prefix, after, upTo, func(first uint64, events []Event) error {
		if !gather {
			if err := flush(first); err != nil {
				return err
			}
		}
		held = append(held, events...)
		return nil
	})
	if err != nil {
		return err
	}
	return flush(math.MaxUint64)
}

// readEvents visits the events of records, those of one record in order.
func (e *Engine) readEvents(ctx context.Context, prefix string, after, upTo uint64, visit func(first uint64, events []Event) error) error {
	return walk(ctx, e.opt.Store, prefix, eventPage, func(entry store.Entry) error {
		var events []Event
		if err := json.Unmarshal(entry.Value, &events); err != nil {
			return coordinator.Errorf(coordinator.ErrInternal, "read events", "record %s: %w", entry.Key, err)
		}
		if len(events) == 0 {
			return nil
		}
		first := events[0].Sequence
		events = slices.DeleteFunc(events, func(ev Event) bool { return ev.Sequence <= after || ev.Sequence > upTo })
		if len(events) == 0 {
			return nil
		}
		return visit(first, events)
	})
}

// walk visits every entry under a prefix in key order, so many at a time.
func walk(ctx context.Context, st store.Store, prefix string, page int, visit func(store.Entry) error) error {
	for after := ""; ; {
		entries, err := st.List(ctx, prefix, after, page)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := visit(entry); err != nil {
				return err
			}
			after = entry.Key
		}
		if len(entries) < page {
			return nil
		}
	}
}
