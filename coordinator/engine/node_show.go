package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

// NodeView is a node as users see it.
type NodeView struct {
	ID           coordinator.NodeID
	Status       NodeStatus
	Definition   coordinator.DefinitionID
	Conflicts    []coordinator.DefinitionID
	Reason       string
	Revision     coordinator.Revision // last one it evaluated
	Capacity     coordinator.Hardware
	Used         coordinator.Hardware
	LastSeen     time.Time
	AgentVersion string
	Annotations  map[string]string
	Runs         []coordinator.RunID
	Work         []NodeWork
	Warnings     []NodeWarning
	Facts        []byte // hwinfo.Facts as JSON
	Arch         string
	OS           string
	CPUModel     string
	Certificate  NodeCertificate          // of its connection; zero while it has none
	Bound        coordinator.DefinitionID // it joined for this definition only
	Launch       string                   // it joined for this launch
}

// NodeWork is a run on a node, and how long it may stay.
type NodeWork struct {
	Run        coordinator.RunID
	Class      coordinator.Class
	Status     coordinator.Status
	Started    time.Time
	EndsBy     time.Time // by its walltime; zero: never by itself
	NoticeEnds time.Time // it was told to end by then
}

// NodeWarning is a source the agent could not read, or a problem of the node.
type NodeWarning struct {
	Source  string
	Message string
}

// ConditionView is one definition's condition as the node evaluated it.
type ConditionView struct {
	Definition coordinator.DefinitionID
	Value      string // true, false, unknown, error
	Error      string
	Parts      []ConditionPart
}

// ConditionPart is a sub-expression that decided, with the facts it saw.
type ConditionPart struct {
	Source string
	Value  string
	Seen   map[string]string
}

// NodeExplanation is every condition of the node's last evaluation, in file order.
type NodeExplanation struct {
	Node       coordinator.NodeID
	Definition coordinator.DefinitionID
	Revision   coordinator.Revision
	Conditions []ConditionView
}

// Nodes lists nodes by id, of one definition or all.
func (e *Engine) Nodes(ctx context.Context, c Caller, def coordinator.DefinitionID, p Page) (list []NodeView, next string, err error) {
	verr := e.view(ctx, func(s *state) {
		if _, known := s.config.annotations[def]; def != "" && !known {
			err = noSuch("list nodes", "definition", string(def))
			return
		}
		var seen []*node
		for _, n := range s.sortedNodes() {
			if def == "" || n.record.Definition == def {
				seen = append(seen, n)
			}
		}
		var chosen []*node
		chosen, next = page(seen, p, func(n *node) string { return string(n.id) },
			func(n *node, token string) bool { return string(n.id) <= token })
		for _, n := range chosen {
			list = append(list, s.nodeView(c, n, false, e.opt.Now().UTC()))
		}
	})
	return list, next, cmp.Or(verr, err)
}

// Node shows one node with its facts.
func (e *Engine) Node(ctx context.Context, c Caller, id coordinator.NodeID) (v NodeView, err error) {
	verr := e.view(ctx, func(s *state) {
		n := s.nodes[id]
		if n == nil {
			err = noSuch("show node", "node", string(id))
			return
		}
		v = s.nodeView(c, n, true, e.opt.Now().UTC())
	})
	if verr != nil {
		return v, verr
	}
	return v, err
}

func (s *state) nodeView(c Caller, n *node, facts bool, now time.Time) NodeView {
	v := NodeView{ID: n.id, Status: n.status(), Definition: n.record.Definition, Conflicts: slices.Clone(n.conflicts),
		Reason: n.why(s), Revision: n.revision, Capacity: n.capacity, LastSeen: n.lastSeen, AgentVersion: n.version,
		Annotations: maps.Clone(s.config.annotations[n.record.Definition]), Warnings: slices.Clone(n.warnings),
		Bound: n.record.Bound, Launch: n.record.Launch, Arch: n.facts.CPU.Arch, OS: n.facts.OSRelease.PrettyName, CPUModel: n.facts.CPU.ModelName}
	if v.Annotations == nil {
		v.Annotations = map[string]string{}
	}
	maps.Copy(v.Annotations, n.hardwareKeys)
	if n.session != nil {
		v.LastSeen, v.Certificate = now, n.session.certificate
	}
	if w, active := s.maintenanceOf(n, now); w != nil {
		v.Status, v.Reason = inMaintenance(v, w, active)
	}
	if n.drift != "" {
		v.Warnings = append(v.Warnings, NodeWarning{Source: "drift", Message: n.drift})
	}
	if a, _ := s.runOwner(n.overdue); a != nil && !c.sees(a.job.workflow) {
		v.Reason = strings.Replace(v.Reason, "run "+string(n.overdue), "a run", 1)
	}
	v.Used = s.used(n)
	for _, a := range sortedAllocations(n.active) {
		if !c.sees(a.job.workflow) { // the use of a node is everybody's to see, who uses it is not
			continue
		}
		v.Runs = append(v.Runs, a.run())
		v.Work = append(v.Work, NodeWork{Run: a.run(), Class: a.job.spec.Class, Status: a.record.Status, Started: a.record.Started,
			EndsBy: a.endsBy(), NoticeEnds: a.record.NoticeEnds})
	}
	if facts {
		v.Facts = bytes.Clone(n.raw)
	}
	return v
}

// inMaintenance is what a node shows because of a window: while it lasts, it is as good as drained.
func inMaintenance(v NodeView, w *window, active bool) (NodeStatus, string) {
	r := &w.record
	text := fmt.Sprintf("maintenance %s from %s to %s: %s", w.id, moment(r.From), moment(r.Until), r.Message)
	if v.Reason != "" {
		text = v.Reason + "; " + text
	}
	if active && v.Status == NodeReady {
		return NodeDraining, text
	}
	return v.Status, text
}

// used is what the runs on a node take of it.
func (s *state) used(n *node) coordinator.Hardware {
	if s.core.scheduler != nil {
		if used, known := s.core.scheduler.Used(n.id); known {
			return used
		}
	}
	return sched.Used(n.schedNode(), s.config.exclusive[n.record.Definition], func(yield func(*coordinator.Resources) bool) {
		for _, a := range n.active {
			if !yield(&a.job.spec.Resources) {
				return
			}
		}
	})
}

// ExplainNode shows every condition of the node's last evaluation.
func (e *Engine) ExplainNode(ctx context.Context, id coordinator.NodeID) (x NodeExplanation, err error) {
	op := "explain node " + string(id)
	verr := e.view(ctx, func(s *state) {
		n := s.nodes[id]
		switch {
		case n == nil:
			err = noSuch(op, "node", string(id))
		case n.revision == 0 && s.config.Revision == 0:
			err = coordinator.Errorf(coordinator.ErrUnavailable, op, "no configuration is set").WithHint("set one with `substrate cluster config set FILE`")
		case n.revision == 0:
			err = coordinator.Errorf(coordinator.ErrUnavailable, op, "it has not evaluated a configuration since the coordinator started")
		default:
			x = NodeExplanation{Node: id, Definition: n.record.Definition, Revision: n.revision, Conditions: slices.Clone(n.conditions)}
		}
	})
	if verr != nil {
		return x, verr
	}
	return x, err
}
