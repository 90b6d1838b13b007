package coreweave

import (
	"context"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	configured = 10 * time.Minute // before a definition that cannot be launched as written is looked at again
	usualStart = 20 * time.Minute // a real machine is set up from a clean image
)

// Offers says what can be had as far as that is known: there is no list of types to ask for, and what a quota leaves shows when a pool has been made.
func (p *Provisioner) Offers(_ context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	out := make([]provision.Offer, len(defs))
	for i := range defs {
		out[i] = p.offer(&defs[i])
	}
	return out, nil
}

func (p *Provisioner) offer(d *coordinator.Definition) provision.Offer {
	o := provision.Offer{Definition: d.ID, Nodes: 1, Launch: usualStart, Available: true}
	no := func(until time.Time, why string) provision.Offer {
		o.Available, o.Until, o.Why = false, until, why
		return o
	}
	s, ok := d.Spec.(spec.CoreWeave)
	if !ok {
		return no(p.now().Add(configured), "the definition is not of kind coreweave")
	}
	if own := d.CostPerHour; own != nil && *own > 0 {
		o.CostPerHour = own
	}
	if why := p.unfit(); why != "" {
		return no(p.now().Add(configured), why)
	}
	if dry, ok := p.emptyTypes.At(s.InstanceType, p.now()); ok {
		return no(dry.Until(), "no capacity: "+dry.Why)
	}
	return o
}
