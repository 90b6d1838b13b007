package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// A slot is the node of a launch of mode native: a place in the books for work that is handed over to a batch system, with as much as its
// definition lets one job ask for. It has no agent and no machine; what is placed on it becomes a job of the system, through the backend's
// driver, under the rules of all runs.

// slotIdle is for definitions without idleTimeout. A slot costs nothing, but is in the lists.
const slotIdle = 30 * time.Second

// isSlot reports whether a launch is one of mode native.
func (l *launch) isSlot() bool { return l.record.Slot != nil }

// isSlot reports whether a node is a slot.
func (n *node) isSlot() bool { return n.session != nil && n.session.slot }

// openSlot makes the node of a launch at once: there is nobody to ask.
func (t *tx) openSlot(l *launch, d *coordinator.Definition) {
	hardware := *d.Hardware
	l.record.Slot, l.record.Asked, l.record.Running = &hardware, t.now, t.now
	l.record.Handle = provision.Handle(l.record.ID)
	id := coordinator.NodeID(provision.NodeOf(d.ID, l.record.ID))
	l.record.Joined = []coordinator.NodeID{id}
	n := newNode(id)
	n.record.Created, n.record.LastSeen = t.now, t.now
	n.record.Definition, n.record.Bound, n.record.Launch = d.ID, d.ID, string(l.record.ID)
	t.state.nodes[id] = n
	t.state.attachSlot(t.engine, l, n)
	for _, key := range l.keys() {
		t.state.dropComing(key)
	}
	t.put(prefixNode+string(id), n.record)
	t.putLaunch(l)
	t.state.config.move(n, "")
	t.state.admission++
	t.state.changedNode(n)
}

// attachSlot gives a slot what an agent would tell of a machine. It is never away: when the batch system cannot be asked, what runs there runs on.
func (s *state) attachSlot(e *Engine, l *launch, n *node) {
	n.session = &Session{engine: e, node: n.id, slot: true}
	n.capacity, n.known, n.lost = *l.record.Slot, true, false
	n.revision = max(s.config.Revision, 1)
	n.connected, n.lastSeen = l.record.Since, s.now().UTC()
	n.released = l.record.Release
	delete(s.absent, n.id)
	l.state = provision.StateRunning
	l.arrived[n.id] = true
}

// reviewSlots gives up the slots whose definition has changed, and forgets those that are given up once nothing is on them.
func (t *tx) reviewSlots() {
	s := t.state
	for _, id := range slices.Sorted(maps.Keys(s.launches)) {
		l := s.launches[id]
		if !l.isSlot() {
			continue
		}
		if l.record.Release == "" && !t.leave(l) && !s.stands(l) {
			t.giveUp(l, "its definition has changed", provision.FaultNone)
		}
		if l.record.Release != "" && !t.busy(l) {
			t.launchOver(l, l.record.Release, provision.FaultNone)
		}
	}
}

// keepSlots reviews the slots, if there are any.
func (e *Engine) keepSlots(ctx context.Context) {
	due := false
	err := e.view(ctx, func(s *state) {
		for _, l := range s.launches {
			due = due || l.isSlot() && (l.record.Release != "" || !s.stands(l))
		}
	})
	if err == nil && due {
		_ = e.do(ctx, func(t *tx) error { t.reviewSlots(); return nil }) // else it is done in a second
	}
}

// stands reports whether a slot is what the running configuration would make it.
func (s *state) stands(l *launch) bool {
	d := s.definition(l.record.Definition)
	return d != nil && specDigest(d) == l.record.Spec && leaves(l, s.config.checked) == ""
}

// forgetSlot ends what there is of a slot; it has no certificate to revoke.
func (t *tx) forgetSlot(n *node, why string) {
	t.delete(prefixNode + string(n.id))
	t.group()
	t.drop(n, why)
}

// revocation is of a node whose instance is gone.
func (t *tx) revocation(id coordinator.NodeID) auth.Revocation {
	r := auth.Revoke(id, t.now, t.state.longest)
	r.Reason = "its instance is gone"
	return r
}

// idleTimeout is how long a node that was launched for a definition may stand idle.
func idleTimeout(d *coordinator.Definition) time.Duration {
	if spec.Native(d) {
		return cmp.Or(d.IdleTimeout, slotIdle)
	}
	return d.IdleTimeout
}

// onSlot reports whether a run is a job of a batch system.
func (a *allocation) onSlot(s *state) bool {
	n := (*node)(nil)
	if len(a.record.Ranks) == 1 {
		n = s.nodes[a.record.Ranks[0].Node]
	}
	return n != nil && n.isSlot()
}

// batchReason says of a run that is a job of a batch system how it waits or runs there, nil for others.
func (a *allocation) batchReason(s *state) *Reason {
	if !a.record.Status.Holds() || !a.onSlot(s) {
		return nil
	}
	r := &a.record.Ranks[0]
	l := s.launchOf(s.nodes[r.Node])
	text := ""
	switch handed := r.Book != nil && r.Book.Object != ""; {
	case r.State == RunStarting && !handed:
		text = "is being handed over to " + l.system()
		if a.seen != nil {
			text += "; so far in vain: " + a.seen.text
		}
	case r.State == RunStarting && a.seen == nil:
		text = fmt.Sprintf("waits in %s as job %s", l.system(), r.Book.Object)
	case r.State == RunStarting:
		text = fmt.Sprintf("waits in %s as job %s: %s", l.system(), r.Book.Object, a.seen.text)
	case r.State == RunRunning && handed && a.seen != nil && a.seen.odd:
		text = fmt.Sprintf("is job %s of %s: %s", r.Book.Object, l.system(), a.seen.text)
	default:
		return nil
	}
	return &Reason{Code: codeBatch, Rule: 28, Text: text}
}

// codeBatch is the reason of what waits in a batch system's own queue.
const codeBatch = "waiting-in-batch-system"

func (l *launch) system() string {
	if l == nil {
		return "the batch system"
	}
	return l.record.Backend.system()
}

// system names a backend for people: slurm hpc.
func (b backendID) system() string {
	if b.Name == "" {
		return b.Kind
	}
	return b.Kind + " " + b.Name
}
