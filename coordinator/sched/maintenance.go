package sched

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
)

// Window is a time of maintenance that was announced (rule 26). Nothing is placed where it would still run when the
// window begins; while it lasts its nodes are like drained ones.
type Window struct {
	ID        string
	Nodes     []coordinator.NodeID // nil: all
	From      time.Time
	Until     time.Time
	Emergency bool // announced late; that makes no difference to placement
}

// Stop gives a placement notice without anybody taking its room (rules 25 and 26): batch work on a node that is
// drained or in maintenance. It counts as ending at once.
type Stop struct {
	ID     coordinator.AllocationID
	Node   coordinator.NodeID // the first of its nodes that is to be cleared
	Rule   int                // 25 drained, 26 in maintenance
	KillAt time.Time          // end of the notice
}

// closing is a window as a node sees it.
type closing struct {
	from, until time.Duration
	life        bool // the node's life ends with it, it is no window
}

// SetWindows replaces the announced windows.
func (s *Scheduler) SetWindows(list []Window) {
	s.touch()
	s.c.windows = slices.Clone(list)
	s.c.closings, s.c.closedAll = make(map[coordinator.NodeID][]closing), nil
	for i := range list {
		w := &list[i]
		closed := closing{from: since(w.From), until: since(w.Until)}
		switch {
		case closed.until <= closed.from:
		case w.Nodes == nil:
			s.c.closedAll = append(s.c.closedAll, closed)
		default:
			for _, id := range w.Nodes {
				s.c.closings[id] = append(s.c.closings[id], closed)
			}
		}
	}
	for _, n := range s.c.nodes {
		n.closed = s.c.closedFor(n)
	}
	for _, d := range s.c.defs {
		s.c.alter(d)
	}
}

func (c *cluster) closedFor(n *node) []closing {
	list := slices.Concat(c.closedAll, c.closings[n.id])
	if !n.spec.Expires.IsZero() {
		list = append(list, closing{from: since(n.spec.Expires), until: never, life: true})
	}
	slices.SortFunc(list, func(a, b closing) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.until, b.until)) })
	return list
}

// opens reports whether work that starts at a time is over before the next window. Without walltime it never is.
func (n *node) opens(at, walltime time.Duration) bool { return n.closedBy(at, walltime) == nil }

// closedBy is the first window that is in the way.
func (n *node) closedBy(at, walltime time.Duration) *closing {
	for i := range n.closed {
		w := &n.closed[i]
		if at < w.until && (walltime <= 0 || later(at, walltime) > w.from) {
			return w
		}
	}
	return nil
}

// opening is the first time from one on at which such work may start.
func (n *node) opening(at, walltime time.Duration) time.Duration {
	for at < never {
		w := n.closedBy(at, walltime)
		if w == nil {
			break
		}
		at = w.until
	}
	return at
}

// shutOut reports whether maintenance alone keeps a shape from every node: no end of running work helps it, so it stands
// outside the order.
func (c *cluster) shutOut(s *shape) bool {
	if len(c.windows)+c.mortal == 0 {
		return false
	}
	for _, def := range s.defs {
		open := 0
		for _, n := range def.nodes {
			if c.usable(n, s) && n.opens(c.now, s.proto.Walltime) {
				if open++; open == s.count {
					return false
				}
			}
		}
	}
	return true
}

// clearNodes gives notice to batch work where nodes are drained or in maintenance.
func (s *Scheduler) clearNodes() {
	c := s.c
	for n := range c.draining {
		if !s.stepping { // nothing new has come there
			s.clearNode(n, 25)
		}
	}
	for i := range c.windows {
		w := &c.windows[i]
		from := since(w.From)
		if c.now < from || c.now >= since(w.Until) || s.stepping && c.now > from {
			continue
		}
		if w.Nodes == nil {
			for _, n := range c.nodes {
				s.clearNode(n, 26)
			}
			continue
		}
		for _, id := range w.Nodes {
			if n := c.nodes[id]; n != nil {
				s.clearNode(n, 26)
			}
		}
	}
	slices.SortFunc(s.stops, func(a, b Stop) int {
		return cmp.Or(compareIDs(a.ID, b.ID), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Node, b.Node))
	})
	s.stops = slices.CompactFunc(s.stops, func(a, b Stop) bool { return a.ID == b.ID })
	for i := range s.stops {
		c.tellEnd(c.claims[s.stops[i].ID], later(c.now, c.notice))
	}
}

func (s *Scheduler) clearNode(n *node, rule int) {
	for _, h := range n.claims {
		if h.class == coordinator.ClassBatch && !h.ending {
			s.stops = append(s.stops, Stop{ID: h.id, Node: n.id, Rule: rule, KillAt: s.now.Add(s.c.notice)})
		}
	}
}

// windowVerdict is for work that would have room if it were not for a window, nil if none is in the way.
func (x *explainer) windowVerdict(sh *shape) *Verdict {
	if len(x.s.c.windows)+x.s.c.mortal == 0 {
		return nil
	}
	for _, def := range sh.defs {
		look := search{c: x.s.c, shape: sh, want: sh.count, found: x.s.found[:0], always: true}
		complete := look.walk(def.root)
		x.s.found = look.found
		if !complete {
			continue
		}
		if v := x.closedVerdict(sh, look.found, "there is room on "); v != nil {
			return v
		}
	}
	for i := 0; i < len(sh.defs) && sh.shut; i++ {
		if v := x.closedVerdict(sh, sh.defs[i].nodes, "no node is in use for long enough, nor is "); v != nil {
			return v
		}
	}
	return nil
}

// closedVerdict names the first of some nodes that is closed to a shape.
func (x *explainer) closedVerdict(sh *shape, nodes []*node, words string) *Verdict {
	runs := "it has no walltime"
	if sh.proto.Walltime > 0 {
		runs = "it may run for " + sh.proto.Walltime.String()
	}
	for _, n := range nodes {
		w := n.closedBy(x.s.c.now, sh.proto.Walltime)
		if w == nil || !x.s.c.usable(n, sh) {
			continue
		}
		if w.life {
			return &Verdict{Reason: ReasonProvisioning, Rule: 28, Nearest: n.id, Text: fmt.Sprintf(
				"%s%s, whose life ends at %s; %s", words, n.id, x.s.moment(w.from), runs)}
		}
		return &Verdict{Reason: ReasonMaintenance, Rule: 26, Nearest: n.id, Text: fmt.Sprintf(
			"%s%s, whose maintenance is from %s to %s; %s", words, n.id, x.s.moment(w.from), x.s.moment(w.until), runs)}
	}
	return nil
}
