package batch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision"
)

// List tells how the pilots are. Most of the time that is one question for all that are known; now and then all that carry this cluster's mark
// are looked for.
func (p *Provisioner) List(ctx context.Context) ([]provision.Instance, error) {
	p.mu.Lock()
	known := p.known()
	many, oneForAll := p.opt.Backend.(dispatch.MultiFinder)
	find := p.polls%everyFind == 0 || !oneForAll
	p.polls++
	p.mu.Unlock()
	looks := map[dispatch.ObjectID]dispatch.Look{}
	if find {
		found, err := p.opt.Backend.Find(ctx, dispatch.Ref{Job: p.prefix})
		if err != nil {
			p.again()
			return nil, explain("list pilots", err)
		}
		for _, o := range found {
			looks[o.Object] = dispatch.Look{Observation: o}
		}
	} else if len(known) > 0 {
		found, err := many.FindMany(ctx, known)
		if err != nil {
			return nil, explain("list pilots", err)
		}
		for id, o := range found {
			looks[id] = dispatch.Look{Observation: o}
		}
	}
	for _, id := range known { // what the system has just forgotten its history may still tell of
		if _, ok := looks[id]; ok {
			continue
		}
		o, err := p.opt.Backend.Inspect(ctx, id)
		if err != nil && !errors.Is(err, dispatch.ErrNotFound) {
			return nil, explain("inspect pilot "+string(id), err)
		}
		looks[id] = dispatch.Look{Observation: o, Err: err}
	}
	return p.hear(ctx, p.all(looks)), nil
}

// again has the next list look for everything.
func (p *Provisioner) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.polls = 0
}

// known are the pilots that are not over, in order.
func (p *Provisioner) known() []dispatch.ObjectID {
	var out []dispatch.ObjectID
	for id, one := range p.pilots {
		if one.ended.IsZero() {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (p *Provisioner) all(looks map[dispatch.ObjectID]dispatch.Look) []provision.Instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []provision.Instance
	for id, look := range looks {
		out = append(out, p.see(id, look))
	}
	now := p.opt.Clock.Now()
	for id, one := range p.pilots {
		if _, ok := looks[id]; ok {
			continue
		}
		if !one.ended.IsZero() && now.Sub(one.ended) > keepEnded {
			delete(p.pilots, id)
			continue
		}
		out = append(out, p.instance(id, one))
	}
	provision.Sort(out)
	return out
}

// see takes in a look at a pilot. The lock is held.
func (p *Provisioner) see(id dispatch.ObjectID, look dispatch.Look) provision.Instance {
	one := p.pilots[id]
	if one == nil || one.over() && one.other(look.Observation.Ref) {
		one = &pilot{}
		p.pilots[id] = one
	}
	now := p.opt.Clock.Now()
	one.track, _ = dispatch.Fold(one.track, look, now, p.opt.Backend.Declarations())
	last := &one.track.Last
	switch hopeless := last.State == dispatch.StatePending && last.Cause == dispatch.CauseUnsatisfiable; {
	case !hopeless:
		one.hopeless = time.Time{}
	case one.hopeless.IsZero():
		one.hopeless = now
	}
	if one.over() && one.ended.IsZero() {
		one.ended = now
	}
	return p.instance(id, one)
}

// other reports whether a mark is another's. A system that has forgotten its last jobs gives their numbers again.
func (one *pilot) other(ref dispatch.Ref) bool {
	return ref != (dispatch.Ref{}) && one.track.Ref != (dispatch.Ref{}) && ref != one.track.Ref
}

// over reports whether a pilot is over for us: ended, given up with its node, or forgotten by the system.
func (one *pilot) over() bool {
	return one.track.Over() || one.track.Phase == dispatch.PhaseLost || one.track.Phase == dispatch.PhaseReused
}

func (p *Provisioner) instance(id dispatch.ObjectID, one *pilot) provision.Instance {
	o := one.track.Last
	if one.track.Over() {
		o = one.track.End
	}
	inst := provision.Instance{Handle: provision.Handle(id), ID: p.launchOf(o.Ref), Detail: o.Raw, Launched: o.Submitted, Running: o.Started, Ends: o.Ends}
	switch {
	case one.track.Phase == dispatch.PhaseLost || one.track.Phase == dispatch.PhaseReused:
		inst.State, inst.Failed, inst.Detail = provision.StateGone, provision.FaultInterrupted, "the batch system has forgotten it"
	case one.over():
		inst.State, inst.Failed = provision.StateGone, failure(o)
		if one.given && o.State == dispatch.StateCancelled {
			inst.Failed = provision.FaultNone
		}
		inst.Detail = cmp.Or(o.Raw, o.Cause.String())
		if inst.Failed == provision.FaultUnreachable && one.words != "" {
			inst.Detail += "; its output ends with: " + one.words
		}
	default:
		inst.State = stateOf(o)
		// Its gate was never opened, or the system has lost that: one that dies forgets its last seconds.
		inst.Incomplete = o.State == dispatch.StatePending && o.Cause == dispatch.CauseGated
		if !one.hopeless.IsZero() && p.opt.Clock.Now().Sub(one.hopeless) > settle {
			inst.Failed = provision.FaultInvalid
		}
	}
	return inst
}

func stateOf(o dispatch.Observation) provision.State {
	switch o.State {
	case dispatch.StatePending:
		if o.Cause == dispatch.CauseStarting {
			return provision.StateStarting
		}
		return provision.StateRequested
	case dispatch.StateRunning, dispatch.StateSuspended:
		return provision.StateRunning
	case dispatch.StateEnding:
		return provision.StateEnding
	}
	return provision.StateUnknown
}

// failure is what the end of a pilot nobody here asked for means.
func failure(o dispatch.Observation) provision.Fault {
	switch o.Cause {
	case dispatch.CauseTimeout, dispatch.CauseDeadline:
		return provision.FaultNone // its time was over
	case dispatch.CausePreempted, dispatch.CauseNodeLost:
		return provision.FaultInterrupted
	case dispatch.CauseExitCode, dispatch.CauseSignalled, dispatch.CauseOutOfMemory, dispatch.CauseLimit:
		return provision.FaultUnreachable // its agent has ended
	case dispatch.CauseLaunch, dispatch.CauseRejected, dispatch.CauseNeverRan, dispatch.CauseUnsatisfiable:
		return provision.FaultInvalid
	}
	if o.State == dispatch.StateCancelled {
		return provision.FaultInterrupted
	}
	return provision.FaultNone
}

// explain puts an error of the batch system into a provisioner's terms.
func explain(op string, err error) error {
	if err == nil {
		return nil
	}
	kind := provision.FaultTransient
	for _, k := range []struct {
		is   error
		kind provision.Fault
	}{
		{dispatch.ErrNotFound, provision.FaultNotFound}, {dispatch.ErrRefused, provision.FaultInvalid}, {dispatch.ErrDenied, provision.FaultDenied},
		{dispatch.ErrUnsupported, provision.FaultUnsupported}, {dispatch.ErrReadOnly, provision.FaultUnsupported},
	} {
		if errors.Is(err, k.is) {
			kind = k.kind
		}
	}
	return provision.Errorf(kind, op, "%w", err)
}
