package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	current store.Group   // writes that belong together: closed by group()
	filed   []*submission // new workflows
	touched []*allocation
	laid    []coordinator.AllocationID // whose holds began
	unheld  []coordinator.AllocationID // whose holds ended
	events  []Event
	after   []func(revision int64)
	audit   audit
	audited int // how many of filed have been audited
}

// carryOut runs one command after what its request carries of a Federate's. A command that is refused leaves that in
// place; what a Federate may not carry refuses the command.
func (t *tx) carryOut(ctx context.Context, c *command, full bool) error {
	if c.carried != nil {
		if full {
			return storeFull(store.ErrFull)
		}
		if err := t.attempt(ctx, nil, c.carried.refresh); err != nil {
			return err
		}
	}
	switch {
	case c.apply == nil:
		return nil
	case full && !c.bare:
		return storeFull(store.ErrFull)
	}
	return t.attempt(ctx, c.request, c.apply)
}

// attempt runs one command. What a command that is refused has collected to write is dropped: commands
// check everything before they change anything, and this keeps a slip of that rule off the disk.
func (t *tx) attempt(ctx context.Context, r *Request, apply func(*tx) error) error {
	t.group()
	groups, events, after, seq := len(t.groups), len(t.events), len(t.after), t.state.seq
	t.audit.begin(r, len(t.events))
	err := apply(t)
	if err != nil {
		t.current = store.Group{}
		t.groups, t.events, t.after = t.groups[:groups], t.events[:events], t.after[:after]
		t.state.seq = seq
		t.audit.drop()
		return err
	}
	t.group()
	t.note(ctx, groups)
	return nil
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

// delete removes a key, atomically with the other writes of the group.
func (t *tx) delete(key string) {
	t.current.Ops = append(t.current.Ops, store.Op{Key: key, Delete: true})
}

// group closes the current set of writes.
func (t *tx) group() {
	if len(t.current.Ops) > 0 {
		if slices.ContainsFunc(t.current.Ops, func(op store.Op) bool { return op.Delete }) {
			// The newest record tells the next life its fence: a deletion must not make that older.
			t.current.Ops = append(t.current.Ops, opJSON(keyFence, t.now))
		}
		t.groups = append(t.groups, t.current)
		t.current = store.Group{}
	}
}

// touch marks an allocation as changed; it is written once per turn, as it stands at the end.
func (t *tx) touch(a *allocation) {
	t.audit.touch(a)
	t.state.changed(a)
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

// commitWithin bounds a write: a store that does not answer must not hold the loop for ever.
const commitWithin = 15 * time.Second

// commit writes the turn and publishes it. Nothing is visible before.
func (t *tx) commit(ctx context.Context) error {
	t.group()
	t.finishAudit()
	t.groupWorkflows()
	t.groupUnheld()
	if len(t.events) > 0 {
		// Before the events themselves: a write that is cut short may leave a gap in the numbers, never a repetition.
		last := store.Group{Ops: []store.Op{opJSON(keySequence, t.state.seq)}}
		t.groups = append([]store.Group{last}, t.groups...)
	}
	var revision int64
	if len(t.groups) > 0 {
		limited, cancel := context.WithTimeout(ctx, commitWithin)
		defer cancel()
		var err error
		if revision, err = t.engine.opt.Store.Commit(limited, t.groups); err != nil {
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

// change is what a turn does to one workflow.
type change struct {
	filed       *submission // when it is new
	allocations []*allocation
	events      []Event
	holds       bool // room is held for something of it since this turn
	parts       []part
}

// part is what of a change is written at once.
type part struct {
	allocations []*allocation
	events      []Event
	yields      bool // it waits for the holds to be written
}

// groupWorkflows makes one group of each workflow's record, changed allocations and events. A hold stands between who waits
// for it and who makes room: a crash leaves no notice without a hold, and no hold without somebody who waits.
func (t *tx) groupWorkflows() {
	changes := t.changes()
	ids := slices.Sorted(maps.Keys(changes))
	for _, id := range ids {
		changes[id].split()
		t.groupParts(id, changes[id], false)
	}
	t.groupLaid()
	for _, id := range ids {
		t.groupParts(id, changes[id], true)
	}
}

// changes gathers what the turn does to each workflow.
func (t *tx) changes() map[coordinator.WorkflowID]*change {
	changes := map[coordinator.WorkflowID]*change{}
	of := func(id coordinator.WorkflowID) *change {
		c := changes[id]
		if c == nil {
			c = &change{}
			changes[id] = c
		}
		return c
	}
	for _, w := range t.filed {
		of(w.id).filed = w
	}
	for _, a := range t.touched {
		a.touched = false
		c := of(a.job.workflow.id)
		c.allocations = append(c.allocations, a)
		c.holds = c.holds || slices.Contains(t.laid, a.id)
	}
	for _, ev := range t.events {
		c := of(ev.Workflow)
		c.events = append(c.events, ev)
	}
	return changes
}

// yields reports whether an allocation was given notice.
func (a *allocation) yields() bool { return a.record.Stop == stopPreempt }

// split divides a change only where it must: where it is too large, and where a workflow that room is held for makes room itself.
// A crash may then leave the first parts alone: each event stands with the record of what it tells, so that it is told again if
// and only if it happens again.
func (c *change) split() {
	late := slices.ContainsFunc(c.allocations, (*allocation).yields)
	early, rest := []*allocation(nil), c.allocations
	if late && c.holds {
		for _, a := range c.allocations {
			if !a.yields() {
				early = append(early, a)
			}
		}
		rest = slices.DeleteFunc(c.allocations, func(a *allocation) bool { return !a.yields() })
	}
	for _, list := range slices.Collect(slices.Chunk(early, allocationsPerGroup)) {
		c.parts = append(c.parts, part{allocations: list})
	}
	for _, list := range slices.Collect(slices.Chunk(rest, allocationsPerGroup)) {
		c.parts = append(c.parts, part{allocations: list, yields: late})
	}
	if len(c.parts) == 0 {
		c.parts = []part{{}}
	}
	home := map[string]int{}
	for i, p := range c.parts {
		for _, a := range p.allocations {
			home[a.name()] = i
			if _, ok := home[a.job.spec.Name]; !ok {
				home[a.job.spec.Name] = i
			}
		}
	}
	for _, ev := range c.events {
		p := &c.parts[home[ev.Job]]
		if ev.Job == "" && c.filed == nil {
			p = &c.parts[len(c.parts)-1] // the workflow's end stands with its last job's
		}
		p.events = append(p.events, ev)
	}
}

// groupParts writes the parts of a change that come before the holds of the turn, or after them.
func (t *tx) groupParts(id coordinator.WorkflowID, c *change, yield bool) {
	for i := range c.parts {
		p := &c.parts[i]
		if p.yields != yield {
			continue
		}
		if i == 0 {
			t.putEntries(id)
			if c.filed != nil {
				t.put(prefixWorkflow+string(id), c.filed.record)
			}
		}
		if len(p.events) > 0 {
			t.put(eventKey(id, p.events[0].Sequence), p.events)
		}
		for _, a := range p.allocations {
			t.put(a.key(), &a.record)
		}
		t.group()
	}
}
