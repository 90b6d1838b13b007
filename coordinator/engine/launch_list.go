package engine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
)

// lists asks the provider for its instances, and ends those that nobody knows.
func (w *backendWorker) lists(ctx context.Context) {
	e := w.engine
	pace := provision.DefaultPace
	if p, ok := provision.As[provision.Pacer](w.p); ok {
		pace = p.Pace()
	}
	limited, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	began := e.opt.Now().UTC()
	list, err := w.p.List(limited)
	if err != nil {
		w.list = w.failed(ctx, "instances", err)
		return
	}
	w.answered()
	w.list = e.opt.Now().Add(pace)
	var orphans []provision.Instance
	err = e.do(ctx, func(t *tx) error {
		orphans = t.compareInstances(w.id, began, list)
		t.review(w.id)
		return nil
	})
	if err != nil {
		return // the next list says the same
	}
	for _, o := range orphans {
		if err := w.p.Release(limited, o.Handle); err != nil && provision.FaultOf(err) != provision.FaultNotFound {
			e.opt.Log.Warn("cannot release an instance that no launch is known of", "backend", w.id, "instance", o.Handle, "err", err)
			continue
		}
		e.opt.Log.Info("released an instance that no launch is known of", "backend", w.id, "instance", o.Handle, "launch", o.ID)
	}
}

// compareInstances compares what is stored with what a backend has, as of a list that began at a time. It returns the instances that nothing is stored of.
func (t *tx) compareInstances(b backendID, began time.Time, list []provision.Instance) (orphans []provision.Instance) {
	s := t.state
	found := map[provision.LaunchID]provision.Instance{}
	for _, inst := range list {
		l := s.launches[inst.ID]
		switch {
		case l != nil && l.record.Backend != b: // two connections lead to the same place: the other one's
		case inst.ID == "" || l == nil || l.called() && l.record.Handle != inst.Handle:
			if inst.State != provision.StateGone && inst.State != provision.StateEnding {
				orphans = append(orphans, inst)
			}
		default:
			found[inst.ID] = inst
		}
	}
	for _, l := range s.sortedLaunches(b) {
		inst, ok := found[l.record.ID]
		switch {
		case ok && inst.State == provision.StateGone:
			t.launchOver(l, cmp.Or(inst.Detail, l.record.Release, "the instance has ended"), inst.Failed)
		case ok:
			l.missing = 0
			switch half := inst.Incomplete && l.record.Release == ""; {
			case half && l.called(): // it is launched again, by the same id
				l.record.Handle = ""
				t.putLaunch(l)
			case !half && !l.called():
				l.record.Handle, l.next = inst.Handle, time.Time{}
				t.putLaunch(l)
			}
			t.observe(l, inst)
		case l.called() && l.listedSince(began):
			if l.missing++; l.missing >= missingLists {
				t.launchOver(l, cmp.Or(l.record.Release, "the provider knows the instance no more"), provision.FaultNone)
			}
		}
	}
	return orphans
}

// listedSince reports whether a list that began then should have the launch: providers are late to list what is new.
func (l *launch) listedSince(began time.Time) bool { return began.Sub(l.record.Asked) > 30*time.Second }

// observe takes over how an instance is.
func (t *tx) observe(l *launch, inst provision.Instance) {
	l.state, l.detail, l.console = inst.State, inst.Detail, cmp.Or(inst.Console, l.console)
	switch failed := inst.Failed != provision.FaultNone; {
	case failed && len(l.record.Joined) == 0:
		t.giveUp(l, cmp.Or(inst.Detail, "it can never start"), l.cause(inst.Failed))
	case failed && inst.State == provision.StateUnknown && t.deserted(l): // it is there, is of no use any more, and may cost what it did
		t.giveUp(l, cmp.Or(inst.Detail, "it has failed"), provision.FaultNone)
	}
	running, ends := inst.Running.UTC(), inst.Ends.UTC()
	if inst.State == provision.StateRunning && running.IsZero() && l.record.Running.IsZero() {
		running = t.now
	}
	if (running.IsZero() || running.Equal(l.record.Running)) && (ends.IsZero() || ends.Equal(l.record.Ends)) {
		return
	}
	if !running.IsZero() {
		l.record.Running = running
	}
	if !ends.IsZero() {
		l.record.Ends = ends
	}
	t.putLaunch(l)
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil {
			t.state.changedNode(n)
		}
	}
}

// deserted reports whether all of a launch's nodes are lost: where an agent still speaks, its provider is wrong.
func (t *tx) deserted(l *launch) bool {
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil && (n.session != nil || !n.lost) {
			return false
		}
	}
	return true
}

// review gives up launches whose agents never came, and those that nobody needs any more.
func (t *tx) review(b backendID) {
	s := t.state
	var awaited map[coordinator.DefinitionID]bool
	for _, l := range s.sortedLaunches(b) {
		if l.record.Release != "" {
			if !l.called() && t.now.Sub(l.record.GivenUp) > landsWithin {
				t.launchOver(l, l.record.Release, l.record.Failed)
			}
			continue
		}
		if awaited == nil {
			awaited = s.awaited()
		}
		d := s.definition(l.record.Definition)
		if t.leave(l) || d == nil {
			continue
		}
		if t.taken(l) {
			t.giveUp(l, "its provider takes it back", provision.FaultNone)
			continue
		}
		within := joinDeadline(d)
		if l.record.Discovery {
			t.reviewDiscovery(l, d)
			continue
		}
		switch running := l.record.Running; {
		case len(l.record.Joined) == 0 && !running.IsZero() && t.now.Sub(running) > within:
			t.giveUp(l, fmt.Sprintf("it runs since %s and no agent has come within %s", running.Format(time.RFC3339), within), provision.FaultUnreachable)
		case len(l.record.Joined) > 0 || l.state == provision.StateRunning || awaited[l.record.Definition]:
			l.unneeded = time.Time{}
		case l.unneeded.IsZero():
			l.unneeded = t.now
		case t.now.Sub(l.unneeded) >= unneededFor:
			t.giveUp(l, "nothing waits for it any more", provision.FaultNone)
		}
	}
}

// busy reports whether work is on a launch's nodes.
func (t *tx) busy(l *launch) bool {
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil && len(n.active) > 0 {
			return true
		}
	}
	return false
}

// awaited are the definitions that anything which waits may run on.
func (s *state) awaited() map[coordinator.DefinitionID]bool {
	out := map[coordinator.DefinitionID]bool{}
	seen := map[*job]bool{}
	for _, a := range s.queued {
		if seen[a.job] {
			continue
		}
		seen[a.job] = true
		adm := s.admit(a.job)
		for _, id := range adm.admissible {
			out[id] = true
		}
		if adm.unrestricted {
			for i := range s.config.Definitions {
				out[s.config.Definitions[i].ID] = true
			}
		}
	}
	return out
}
