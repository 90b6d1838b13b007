// Package batch makes nodes of a batch system: a pilot is a job that holds a node for a time and starts an agent on it. It speaks to the
// system through coordinator/dispatch and keeps nothing on disk: what exists is found by what stands in the jobs themselves.
package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// Options is what a provisioner of pilots needs.
type Options struct {
	Backend dispatch.Backend
	Kind    string // spec.KindSlurm or spec.KindPBS
	Cluster string // id of this cluster: pilots of another one are not ours
	Clock   dispatch.Clock
	// Pace is how often the system is asked how the pilots are; 0: DefaultPace, or the longest at which nothing is missed.
	Pace  time.Duration
	Pilot Pilot
}

// DefaultPace is easy on a batch system that serves many, and quick enough for a pilot that has started.
const DefaultPace = 10 * time.Second

const (
	// everyFind is how many polls go by between two searches for pilots that nobody here remembers.
	everyFind = 30
	// keepEnded is for how long a pilot that is over is told of.
	keepEnded = time.Hour
	// settle is how long a pilot may look as if it could never start before that is believed.
	settle = 5 * time.Minute
	// unknownBound stands in for the bound of calls where the system has none that is known.
	unknownBound = 10 * time.Minute
	// usualWait is what a pilot takes from its submission to an agent that is ready, when it need not wait in a queue.
	usualWait = 30 * time.Second
)

// Provisioner makes pilots. It is safe for concurrent use.
type Provisioner struct {
	opt    Options
	prefix dispatch.JobID
	began  time.Time

	mu     sync.Mutex
	pilots map[dispatch.ObjectID]*pilot
	unsure map[provision.LaunchID]time.Time // a submission may still land until then
	polls  int
}

// pilot is what is known of one.
type pilot struct {
	track    dispatch.Track
	hopeless time.Time // since when it looks as if it could never start
	ended    time.Time // when its end was seen
	heard    bool      // its last words were asked for
	given    bool      // its end was asked for here
	words    string
}

// New makes the provisioner of an open backend.
func New(o Options) (*Provisioner, error) {
	decl := o.Backend.Declarations()
	if o.Pace == 0 {
		o.Pace = DefaultPace
		if shortest, ok := decl.ShortestWindow(); ok && shortest < o.Pace {
			o.Pace = shortest
		}
	}
	if err := dispatch.CheckInterval(o.Pace, decl); err != nil {
		return nil, err
	}
	o.Pilot = o.Pilot.withDefaults()
	return &Provisioner{
		opt: o, prefix: dispatch.JobID("substrate/" + o.Cluster + "/"), began: o.Clock.Now(),
		pilots: map[dispatch.ObjectID]*pilot{}, unsure: map[provision.LaunchID]time.Time{},
	}, nil
}

// Pace is how often List should be asked.
func (p *Provisioner) Pace() time.Duration { return p.opt.Pace }

// Backend is the batch system.
func (p *Provisioner) Backend() dispatch.Backend { return p.opt.Backend }

func (p *Provisioner) job(id provision.LaunchID) dispatch.JobID { return p.prefix + dispatch.JobID(id) }

// launchOf reads the launch out of a pilot's Ref.
func (p *Provisioner) launchOf(r dispatch.Ref) provision.LaunchID {
	id, ours := strings.CutPrefix(string(r.Job), string(p.prefix))
	if !ours {
		return ""
	}
	return provision.LaunchID(id)
}

// Offers says that pilots can be had; whether the queue is long, the system alone knows.
func (p *Provisioner) Offers(_ context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	out := make([]provision.Offer, 0, len(defs))
	for i := range defs {
		o := provision.Offer{Definition: defs[i].ID, Nodes: 1, Launch: usualWait, Available: true}
		w, ok := spec.RequestOf(defs[i].Spec)
		switch {
		case !ok:
			o.Available, o.Why = false, fmt.Sprintf("definition %s is of kind %s, not of a batch system", defs[i].ID, defs[i].Kind)
			o.Until = p.opt.Clock.Now().Add(10 * time.Minute)
		case p.readOnly():
			o.Available, o.Why = false, "the connection to the batch system is read-only"
			o.Until = p.opt.Clock.Now().Add(10 * time.Minute)
		case w.Mode == spec.ModeNative:
			o.Launch = 0 // nothing is started: what is placed there is handed over
		default:
			o.Nodes = max(w.Nodes, 1)
		}
		out = append(out, o)
	}
	return out, nil
}

// readOnly reports whether the backend submits nothing: work waits for another then, and does not fail there.
func (p *Provisioner) readOnly() bool {
	report, tells := dispatch.ReportOf(p.opt.Backend)
	return tells && report.ReadOnly
}

// Launch finds the pilot of a launch, or submits it behind the gate and then opens that.
func (p *Provisioner) Launch(ctx context.Context, r provision.Request) (provision.Instance, error) {
	op := "launch " + string(r.ID)
	found, err := p.opt.Backend.Find(ctx, dispatch.Ref{Job: p.job(r.ID)})
	if err != nil {
		return provision.Instance{}, explain(op, err)
	}
	if kept := p.pick(ctx, found); kept != nil {
		return p.open(ctx, op, *kept)
	}
	if wait := p.mayLand(r); wait > 0 {
		e := provision.Errorf(provision.FaultTransient, op, "an earlier submission may still arrive for %s", wait.Round(time.Second))
		e.After = wait
		return provision.Instance{}, e
	}
	s, err := p.spec(r)
	if err != nil {
		return provision.Instance{}, provision.Errorf(provision.FaultInvalid, op, "%w", err)
	}
	id, err := p.opt.Backend.Submit(ctx, s)
	if errors.Is(err, dispatch.ErrOutcomeUnknown) {
		p.mu.Lock()
		p.unsure[r.ID] = p.opt.Clock.Now().Add(p.bound())
		p.mu.Unlock()
	}
	if err != nil {
		return provision.Instance{}, explain(op, err)
	}
	return p.open(ctx, op, dispatch.Observation{Object: id, Ref: s.Ref, State: dispatch.StatePending, Cause: dispatch.CauseGated, Submitted: p.opt.Clock.Now()})
}

// pick is the pilot that stands for a launch: the oldest that lives, else the last that ended. Others that live are stopped.
func (p *Provisioner) pick(ctx context.Context, found []dispatch.Observation) *dispatch.Observation {
	live := slices.IndexFunc(found, func(o dispatch.Observation) bool { return !o.State.Ended() })
	if live < 0 {
		if len(found) == 0 {
			return nil
		}
		return &found[len(found)-1]
	}
	for i := range found {
		if i != live && !found[i].State.Ended() {
			_ = p.opt.Backend.Stop(ctx, found[i].Object) // a list tells of it as nobody's if this fails
		}
	}
	return &found[live]
}

// mayLand is how much longer a submission may arrive whose answer nobody heard.
func (p *Provisioner) mayLand(r provision.Request) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.opt.Clock.Now()
	until := p.unsure[r.ID]
	if r.Again && r.Asked.Before(p.began) { // in an earlier life of this process
		if earlier := p.began.Add(p.bound()); earlier.After(until) {
			until = earlier
		}
	}
	return until.Sub(now)
}

// bound is how long after a call it may still take effect.
func (p *Provisioner) bound() time.Duration {
	if b := p.opt.Backend.Declarations().CallBound; b > 0 {
		return b
	}
	return unknownBound
}

// open opens the gate of a pilot that has been written down by its launch.
func (p *Provisioner) open(ctx context.Context, op string, o dispatch.Observation) (provision.Instance, error) {
	if o.State == dispatch.StatePending && o.Cause == dispatch.CauseGated {
		if err := p.opt.Backend.OpenGate(ctx, o.Object); err != nil && !errors.Is(err, dispatch.ErrEnded) {
			return provision.Instance{}, explain(op, err)
		}
		o.Cause = dispatch.CauseNone
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unsure, p.launchOf(o.Ref))
	if one := p.pilots[o.Object]; one != nil && one.other(o.Ref) {
		delete(p.pilots, o.Object)
	}
	return p.see(o.Object, dispatch.Look{Observation: o}), nil
}

// Release stops a pilot, whether it waits or runs.
func (p *Provisioner) Release(ctx context.Context, h provision.Handle) error {
	err := p.opt.Backend.Stop(ctx, dispatch.ObjectID(h))
	p.mu.Lock()
	if one := p.pilots[dispatch.ObjectID(h)]; one != nil && (err == nil || errors.Is(err, dispatch.ErrOutcomeUnknown)) {
		one.given = true
	}
	p.mu.Unlock()
	if errors.Is(err, dispatch.ErrEnded) {
		return nil
	}
	if errors.Is(err, dispatch.ErrNotFound) {
		p.mu.Lock()
		delete(p.pilots, dispatch.ObjectID(h))
		p.mu.Unlock()
	}
	return explain("release "+string(h), err)
}
