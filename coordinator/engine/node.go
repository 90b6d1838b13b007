package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/inventory"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
	"substrate/hwinfo"
)

const (
	NodeNotReady NodeStatus = "not-ready"
	NodeReady    NodeStatus = "ready"
	NodeCordoned NodeStatus = "cordoned"
	NodeDraining NodeStatus = "draining"
	NodeOffline  NodeStatus = "offline"
)

// NodeStatus is the closed set of node states users see.
type NodeStatus string

// node is one machine. What is not in record is told again by the agent when it connects.
type node struct {
	id      coordinator.NodeID
	record  nodeRecord
	session *Session
	version string

	facts        hwinfo.Facts
	raw          []byte // facts as stored
	learned      uint64 // counts reports
	known        bool   // capacity can be promised
	capacity     coordinator.Hardware
	hardwareKeys map[string]string
	detail       detail
	warnings     []NodeWarning
	drift        string

	revision   coordinator.Revision // of conditions
	conditions []ConditionView
	conflicts  []coordinator.DefinitionID
	active     map[coordinator.AllocationID]*allocation
	connected  time.Time // when the session began
	lastSeen   time.Time
	lost       bool                       // its work has been given up
	released   string                     // why it is given up with its launch, "" when it is not
	looked     bool                       // it was launched for a look at its hardware: nothing is placed there
	short      map[string]deviceShortage  // devices of which a launched node has fewer than its type
	leaves     string                     // why it gets no new work: the configuration has no place for its launch
	idleSince  time.Time                  // of a launched node: nothing has run there since
	strays     map[coordinator.RunID]bool // runs that were given up and still live there
	// overdue is a run that should have ended long ago though its agent is connected, "" for none (rule 21).
	overdue coordinator.RunID
}

func newNode(id coordinator.NodeID) *node {
	return &node{id: id, active: map[coordinator.AllocationID]*allocation{}}
}

// status is what users see.
func (n *node) status() NodeStatus {
	switch {
	case n.session == nil && n.lost:
		return NodeOffline
	case n.session == nil || !n.known || n.revision == 0 || n.record.Definition == "" || n.overdue != "" || len(n.strays) > 0:
		return NodeNotReady
	case n.record.Scheduling == "cordoned":
		return NodeCordoned
	case n.record.Scheduling == "draining" || !n.record.Taken.IsZero() || n.released != "" || n.leaves != "" || n.looked:
		return NodeDraining
	}
	return NodeReady
}

// why explains a node that is not ready or not assigned.
func (n *node) why(s *state) string {
	switch {
	case n.isSlot() && n.released == "":
		return n.record.Reason
	case n.isSlot():
		return "it is given up: " + n.released
	case n.session == nil:
		return "its agent is not connected"
	case len(n.raw) == 0:
		return "no hardware report yet"
	case !n.known:
		return "its report does not tell cores and memory"
	case s.config.Revision == 0:
		return "no configuration is set; see `substrate cluster config set --help`"
	case n.revision < s.config.Revision:
		return fmt.Sprintf("has not evaluated configuration revision %d yet", s.config.Revision)
	case n.overdue != "":
		return fmt.Sprintf("run %s was killed and does not end; see the node's log, a restart of the machine helps", n.overdue)
	case len(n.strays) > 0:
		return fmt.Sprintf("run %s was given up and still ends there", slices.Min(slices.Collect(maps.Keys(n.strays))))
	case n.record.Definition == "" && n.record.Bound != "":
		return fmt.Sprintf("it joined for definition %s only, whose condition is not true here; see `substrate node explain %s`", n.record.Bound, n.id)
	case n.record.Definition == "":
		return "no definition's condition is true; see `substrate node explain " + string(n.id) + "`"
	}
	if why := cmp.Or(n.released, n.leaves); why != "" {
		return "it is given up: " + why
	}
	if !n.record.Taken.IsZero() {
		return n.takenText()
	}
	return n.record.Reason
}

func (n *node) schedNode() sched.Node {
	out := sched.Node{
		ID: n.id, Definition: n.record.Definition, Cores: n.capacity.Cores, Threads: n.capacity.Threads,
		Memory: n.capacity.Memory, Devices: n.devices(),
		GPUs: n.detail.gpus, Links: n.detail.links, LinksKnown: n.detail.linksKnown, Domains: n.detail.domains,
	}
	if len(n.short) > 0 {
		out.GPUs, out.Links, out.LinksKnown = nil, nil, false
	}
	status := n.status()
	out.Schedulable, out.Draining = status == NodeReady, n.record.Scheduling == "draining" || !n.record.Taken.IsZero()
	out.Away = !out.Schedulable && !n.lost && n.record.Scheduling == "" && n.record.Taken.IsZero() && n.overdue == ""
	if !out.Schedulable {
		out.Why = string(status)
	}
	return out
}

// lossAt is when work on a node without a stream is given up (rule 27), zero when nothing is at stake.
func (n *node) lossAt(s *state) time.Time {
	if n.lost {
		return time.Time{}
	}
	return n.lastSeen.Add(s.config.Scheduler.NodeLossWindow)
}

// learn takes over a hardware report.
func (n *node) learn(facts hwinfo.Facts, raw []byte, warnings []NodeWarning) {
	n.facts, n.raw, n.warnings = facts, raw, warnings
	n.learned++
	n.capacity, n.known = inventory.Capacity(facts)
	n.hardwareKeys = inventory.Annotations(facts)
	n.detail = detailOf(&facts)
}

// assign moves a node to the definition its conditions say, and tells when that changes something.
func (t *tx) assign(n *node) {
	s := t.state
	matched := map[coordinator.DefinitionID]bool{}
	for _, c := range n.conditions {
		if c.Value == "true" {
			matched[c.Definition] = true
		}
	}
	def, conflicts := inventory.Assign(s.config.order, matched)
	if len(conflicts) > 0 && !slices.Equal(conflicts, n.conflicts) {
		t.event(Event{Kind: "warning", Subject: string(n.id), Message: fmt.Sprintf(
			"node matches %s and also %s: the first in the file wins", def, joinIDs(conflicts))})
	}
	n.conflicts = conflicts
	def = t.bound(n, def, matched)
	if def != n.record.Definition {
		was := n.record.Definition
		n.record.Definition = def
		t.put(prefixNode+string(n.id), n.record)
		t.group()
		s.config.move(n, was)
		s.core.windows = true // those of a definition are of other nodes now
		t.checkSiblings(was)
		t.checkDrift(n)
		s.admission++
		t.event(Event{Kind: "node-assigned", Subject: string(n.id), Message: fmt.Sprintf(
			"definition %s, before %s", orNone(def), orNone(was))})
	}
	s.changedNode(n)
}

// bound keeps a node to the definition that its join token named. What it reports beyond that does not count.
func (t *tx) bound(n *node, def coordinator.DefinitionID, matched map[coordinator.DefinitionID]bool) coordinator.DefinitionID {
	switch bound := n.record.Bound; {
	case bound == "" || def == bound:
		return def
	case n.record.Launch != "" && t.state.definition(bound) != nil && t.state.definition(bound).Kind != spec.KindStatic:
		return bound // what is launched for a definition is of it
	case matched[bound]:
		return bound
	case def != "":
		t.event(Event{Kind: "warning", Subject: string(n.id), Message: fmt.Sprintf(
			"node joined for definition %s only and does not match it; it is refused for %s, which it matches", bound, def)})
	}
	return ""
}

func orNone(id coordinator.DefinitionID) string { return cmp.Or(string(id), "none") }

func joinIDs(ids []coordinator.DefinitionID) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return strings.Join(out, ", ")
}

// timers does what is due by time alone: nodes that stayed away too long lose their work.
func (e *Engine) timers(t *tx) {
	var gone []*node
	for _, n := range t.state.absent {
		if !t.now.Before(n.lossAt(t.state)) {
			gone = append(gone, n)
		}
	}
	slices.SortFunc(gone, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	for _, n := range gone {
		t.lose(n)
	}
	t.watchNotices()
	t.calendar()
	for _, a := range t.state.deferred {
		if !t.now.Before(a.record.NotBefore) {
			delete(t.state.deferred, a.id)
			t.state.changed(a)
			t.state.dirty = true
		}
	}
}

// spareAbsent gives the nodes without a stream the whole loss window again: they could not come back while
// nothing could be written.
func (s *state) spareAbsent(now time.Time) {
	for _, n := range s.absent {
		n.lastSeen = now
	}
}

// lose gives up the work of a node (rule 27).
func (t *tx) lose(n *node) {
	n.lost, n.record.Lost = true, true
	delete(t.state.absent, n.id)
	t.put(prefixNode+string(n.id), n.record)
	t.group()
	t.state.changedNode(n)
	t.event(Event{Kind: "lost", Subject: string(n.id), Message: fmt.Sprintf(
		"node lost: no stream for %s", t.state.config.Scheduler.NodeLossWindow)})
	t.loseWork(n)
}

func (t *tx) loseWork(n *node) {
	for _, a := range sortedAllocations(n.active) {
		t.nodeFault(a, n.id, "node "+string(n.id)+" was lost")
	}
}

func sortedAllocations(m map[coordinator.AllocationID]*allocation) []*allocation {
	out := make([]*allocation, 0, len(m))
	for _, a := range m {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *allocation) int { return cmp.Compare(a.id, b.id) })
	return out
}

func (s *state) sortedNodes() []*node {
	out := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return out
}

// SetScheduling cordons, uncordons or drains a node (rule 25).
func (e *Engine) SetScheduling(ctx context.Context, c Caller, id coordinator.NodeID, action, reason string, active bool) (view NodeView, err error) {
	op := action + " node " + string(id)
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, err
	}
	err = e.doView(ctx, func(t *tx) error {
		n := t.state.nodes[id]
		if n == nil {
			return noSuch(op, "node", string(id))
		}
		state, ok := map[string]string{"cordon": "cordoned", "uncordon": "", "drain": "draining"}[action]
		if !ok {
			return coordinator.Errorf(coordinator.ErrInvalid, op, "unknown action %q, expected cordon, uncordon or drain", action)
		}
		if reason != "" || n.record.Scheduling != state {
			n.record.Reason = reason
		}
		n.record.Scheduling = state
		t.put(prefixNode+string(id), n.record)
		t.group()
		t.event(Event{Kind: "node-" + cmp.Or(state, "uncordoned"), Subject: string(id), Message: fmt.Sprintf("by %s %s", c.Name, reason)})
		t.state.changedNode(n)
		if action == "drain" && active {
			t.sendAway(n)
		}
		return nil
	}, func(s *state) { view = s.nodeView(c, s.nodes[id], false, e.opt.Now().UTC()) })
	return view, err
}

// sendAway requeues restartable work of a node, batch work after its notice. Batch work that comes back from preemption gets
// that from the scheduler, and the rest runs on.
func (t *tx) sendAway(n *node) {
	for _, a := range sortedAllocations(n.active) {
		if a.record.Stop != "" {
			continue
		}
		spec := a.job.spec
		if spec.Restart == coordinator.RestartNever || spec.Class == coordinator.ClassBatch && spec.RetryOnPreempt {
			continue
		}
		a.record.Stop = stopRequeue
		t.touch(a)
		if spec.Class != coordinator.ClassBatch {
			t.stop(a, t.state.config.Scheduler.KillTimeout, string(stopRequeue))
			continue
		}
		a.record.NoticeEnds = t.now.Add(t.state.config.Scheduler.PreemptionNotice)
		t.set(a, coordinator.StatusPreempting)
		t.stop(a, t.state.config.Scheduler.PreemptionNotice, string(stopRequeue))
	}
}
