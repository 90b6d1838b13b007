package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// LaunchView is a launch as callers see it.
type LaunchView struct {
	ID         string
	Definition coordinator.DefinitionID
	Backend    string
	State      string // asked, requested, starting, running, joined, releasing
	Detail     string // the provider's words, or what is wrong
	Instance   string
	Nodes      []coordinator.NodeID
	Wanted     uint32
	For        []coordinator.AllocationID
	Since      time.Time
	Ends       time.Time
}

func (l *launch) view() LaunchView {
	r := &l.record
	v := LaunchView{ID: string(r.ID), Definition: r.Definition, Backend: r.Backend.String(), Instance: string(r.Handle), Nodes: slices.Clone(r.Joined),
		Wanted: r.Nodes, For: slices.Clone(r.For), Since: r.Since, Ends: r.Ends, Detail: cmp.Or(l.trouble, r.Release, l.detail)}
	switch {
	case r.Release != "":
		v.State = "releasing"
	case len(r.Joined) > 0:
		v.State = "joined"
	case !l.called():
		v.State = "asked"
	default:
		v.State = l.state.String()
	}
	return v
}

// Launches lists the nodes that are coming, up, or on their way out.
func (e *Engine) Launches(ctx context.Context, c Caller, p Page) (out []LaunchView, next string, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list launches", auth.Target{}); err != nil {
		return nil, "", err
	}
	err = e.view(ctx, func(s *state) {
		var all []LaunchView
		for _, l := range s.launches {
			if v := l.view(); l.isSlot() {
				all = append(all, s.slotView(l, v))
			} else {
				all = append(all, v)
			}
		}
		slices.SortFunc(all, func(a, b LaunchView) int { return cmp.Compare(a.ID, b.ID) })
		out, next = page(all, p, func(v LaunchView) string { return v.ID }, func(v LaunchView, token string) bool { return v.ID <= token })
	})
	return out, next, err
}

// BackendView is a connection to a cloud or batch system as callers see it.
type BackendView struct {
	Name        string
	Kind        string
	State       string // opening, open, unreachable
	Trouble     string
	Definitions []coordinator.DefinitionID
	Launches    int
	Leaving     bool       // the running configuration does not have it any more; launches are released through it
	Batch       *BatchView // of a batch system, once it is open

	target string
}

// BatchView is what a batch system said of itself, and what that means.
type BatchView struct {
	Report       dispatch.Report
	Capabilities dispatch.Capabilities
	Declarations dispatch.Declarations
	Interfaces   []dispatch.Interface
	Rules        []dispatch.RuleSupport
}

// dispatcher is a provisioner whose nodes are jobs of a batch system.
type dispatcher interface{ Backend() dispatch.Backend }

// Backends lists the connections that the running configuration's definitions use.
func (e *Engine) Backends(ctx context.Context, c Caller) ([]BackendView, error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list backends", auth.Target{}); err != nil {
		return nil, err
	}
	views, here := map[backendID]*BackendView{}, map[backendID]bool{}
	err := e.view(ctx, func(s *state) {
		of := func(id backendID) *BackendView {
			if views[id] == nil {
				views[id] = &BackendView{Name: id.String(), Kind: id.Kind, target: id.Target}
			}
			return views[id]
		}
		for _, b := range s.config.checked.Backends {
			of(idOf(b))
			here[idOf(b)] = true
		}
		for i := range s.config.Definitions {
			if d := &s.config.Definitions[i]; d.Kind != spec.KindStatic {
				v := of(s.backendOf(d))
				v.Definitions = append(v.Definitions, d.ID)
				here[s.backendOf(d)] = true
			}
		}
		for _, l := range s.launches {
			of(l.record.Backend).Launches++
		}
	})
	if err != nil {
		return nil, err
	}
	out := make([]BackendView, 0, len(views))
	for id, v := range views {
		e.describe(ctx, id, v)
		if v.Leaving = !here[id]; v.Leaving {
			v.Trouble = cmp.Or(v.Trouble, "gone from the configuration; open until its last launch is released")
		}
		out = append(out, *v)
	}
	rank := func(v BackendView) int { // the configuration's first: that is what a name means
		if v.Leaving {
			return 1
		}
		return 0
	}
	slices.SortFunc(out, func(a, b BackendView) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.target, b.target))
	})
	return out, nil
}

// describe adds what the open connection knows.
func (e *Engine) describe(ctx context.Context, id backendID, v *BackendView) {
	ps := &e.provisioners
	ps.mu.Lock()
	open, trouble := ps.open[id], ps.trouble[id]
	ps.mu.Unlock()
	v.Trouble = trouble
	switch {
	case trouble != "":
		v.State = "unreachable"
	case open != nil:
		v.State = "open"
	case len(v.Definitions) == 0 && v.Launches == 0:
		v.State, v.Trouble = "unused", "no definition uses it"
	case !slices.Contains(e.opt.Provisioners.Kinds, id.Kind):
		v.State, v.Trouble = "unreachable", "backend not in this build"
	default:
		v.State = "opening"
	}
	d, ok := provision.As[dispatcher](open)
	if !ok {
		return
	}
	b := d.Backend()
	v.Batch = &BatchView{Declarations: b.Declarations(), Interfaces: dispatch.InterfacesOf(b), Rules: b.Rules(everyAction())}
	v.Batch.Report, _ = dispatch.ReportOf(b)
	var err error
	if v.Batch.Capabilities, err = b.Capabilities(ctx, dispatch.Spec{}); err != nil {
		v.Trouble = err.Error()
	}
}

// everyAction is a policy that asks for each recovery action once.
func everyAction() (p dispatch.Policy) {
	for _, a := range []dispatch.Action{dispatch.ActionResubmit, dispatch.ActionEscalate, dispatch.ActionRestart, dispatch.ActionRequeue, dispatch.ActionHold} {
		p.Rules = append(p.Rules, dispatch.Rule{Action: a})
	}
	return p
}

// ReopenBackend has a connection opened anew, as after a change at the other end.
func (e *Engine) ReopenBackend(ctx context.Context, c Caller, name string) error {
	op := "reopen backend " + name
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	list, err := e.Backends(ctx, c)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(v BackendView) bool { return v.Name == name }) {
		return noSuch(op, "backend", name)
	}
	e.provisioners.reopen(name)
	return nil
}

// WriteOffLaunch forgets a launch that was given up and whose provider does not say that its instance is gone, as when an account is closed.
func (e *Engine) WriteOffLaunch(ctx context.Context, c Caller, id string) error {
	op := "write off launch " + id
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		l := t.state.launches[provision.LaunchID(id)]
		switch {
		case l == nil:
			return noSuch(op, "launch", id)
		case l.record.Release == "":
			return coordinator.Errorf(coordinator.ErrConflict, op, "it is not given up: its nodes can be drained, or its definition taken out of the configuration")
		case l.isSlot():
			return coordinator.Errorf(coordinator.ErrConflict, op, "it is a slot, whose jobs end in the batch system")
		case t.busy(l):
			return coordinator.Errorf(coordinator.ErrConflict, op, "work is on its nodes: cancel it first")
		}
		t.event(Event{Kind: "launch-written-off", Subject: id, Message: fmt.Sprintf("by %s; if its instance %s still runs, nobody here ends it", c.Name, cmp.Or(string(l.record.Handle), "of unknown name")),
			Metadata: map[string]string{"definition": string(l.record.Definition), "backend": l.record.Backend.String(), "instance": string(l.record.Handle)}})
		t.launchOver(l, "written off by "+c.Name, l.record.Failed)
		return nil
	})
}

// offerTrouble is what keeps a definition's nodes from being launched.
func (s *state) offerTrouble(e *Engine, d *coordinator.Definition) string {
	if d.Kind == spec.KindStatic || !s.provides(d.Kind) {
		return ""
	}
	var parts []string
	if why := e.provisioners.troubleOf(s.backendOf(d)); why != "" {
		parts = append(parts, why)
	}
	if why := s.protected(d); why != "" {
		parts = append(parts, why)
	}
	if why := s.unavailable(d); why != "" {
		parts = append(parts, why)
	} else if o := s.offers[d.ID]; o == nil {
		parts = append(parts, "its backend has not answered yet")
	} else if s.now().Before(o.until) {
		parts = append(parts, fmt.Sprintf("not launched before %s: %s", o.until.UTC().Format(time.RFC3339), o.why))
	}
	return strings.Join(parts, "; ")
}
