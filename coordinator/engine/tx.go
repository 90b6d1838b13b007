package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
)

// tx collects what one turn of the loop wants written and what follows once it is durable.
type tx struct {
	engine  *Engine
	state   *state
	now     time.Time
	groups  []store.Group
	current store.Group // writes that belong together: closed by group()
	touched []*allocation
	events  []Event
	after   []func(revision int64)
}

// put writes v as JSON under key, atomically with the other writes of the group.
func (t *tx) put(key string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		// Only our own record types get here; a failure is a defect and must not be half-applied.
		panic(fmt.Sprintf("cannot encode %s: %v", key, err))
	}
	t.putBytes(key, data)
}

func (t *tx) putBytes(key string, data []byte) {
	t.current.Ops = append(t.current.Ops, store.Op{Key: key, Value: data})
}

func (t *tx) remove(key string) {
	t.current.Ops = append(t.current.Ops, store.Op{Key: key, Delete: true})
}

// group closes the current set of writes.
func (t *tx) group() {
	if len(t.current.Ops) > 0 {
		t.groups = append(t.groups, t.current)
		t.current = store.Group{}
	}
}

// touch marks an allocation as changed; it is written once per turn, as it stands at the end.
func (t *tx) touch(a *allocation) {
	if !a.touched {
		a.touched = true
		t.touched = append(t.touched, a)
	}
}

// event records something that happened in this turn.
func (t *tx) event(ev Event) {
	t.state.seq++
	ev.Sequence, ev.Time = t.state.seq, t.now
	t.events = append(t.events, ev)
}

// then runs f once everything of this turn is durable.
func (t *tx) then(f func(revision int64)) { t.after = append(t.after, f) }

// commit writes the turn and publishes it. Nothing is visible before.
func (t *tx) commit(ctx context.Context) error {
	t.group()
	t.groupWorkflows()
	var revision int64
	if len(t.groups) > 0 {
		var err error
		if revision, err = t.engine.opt.Store.Commit(ctx, t.groups); err != nil {
			return err
		}
		t.state.fence = uint64(revision)
	}
	for _, f := range t.after {
		f(revision)
	}
	t.engine.events.publish(t.events)
	return nil
}

// allocationsPerGroup keeps a group within the store's limits: a group is atomic, and what a workflow
// changes in one turn is only split beyond this.
const allocationsPerGroup = 90

// groupWorkflows makes one group of each workflow's changed allocations and their events.
func (t *tx) groupWorkflows() {
	events := map[coordinator.WorkflowID][]Event{}
	changed := map[coordinator.WorkflowID][]*allocation{}
	var ids []coordinator.WorkflowID
	seen := func(id coordinator.WorkflowID) {
		if events[id] == nil && changed[id] == nil {
			ids = append(ids, id)
		}
	}
	for _, a := range t.touched {
		a.touched = false
		seen(a.job.workflow.id)
		changed[a.job.workflow.id] = append(changed[a.job.workflow.id], a)
	}
	for _, ev := range t.events {
		seen(ev.Workflow)
		events[ev.Workflow] = append(events[ev.Workflow], ev)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if evs := events[id]; len(evs) > 0 {
			t.put(eventKey(id, evs[0].Sequence), evs)
		}
		for i, a := range changed[id] {
			t.put(a.key(), &a.record)
			if (i+1)%allocationsPerGroup == 0 {
				t.group()
			}
		}
		t.group()
	}
}
