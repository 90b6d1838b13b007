package oci

import (
	"context"
	"maps"
	"slices"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

// Types tells of the shapes that the compartment may launch in the region, each with the availability domains that have it. Of a flexible one
// the cores and the memory are the buyer's.
func (p *Provisioner) Types(ctx context.Context) ([]catalogue.Type, error) {
	const op = "tell of shapes"
	m, err := p.askAll(ctx, op)
	if err != nil {
		return nil, err
	}
	known := map[string]*catalogue.Type{}
	for _, domain := range slices.Sorted(maps.Keys(m.shapes)) {
		for name, shape := range m.shapes[domain] {
			if known[name] == nil {
				of := typeOf(&shape, spec.OCI{Shape: name})
				if flexible := shape.IsFlexible; flexible != nil && *flexible {
					of.Flexible, of.VCPUs, of.Cores, of.Memory = true, nil, nil, nil
				}
				known[name] = &of
			}
			known[name].Zones = append(known[name].Zones, domain)
		}
	}
	if len(known) > provision.MostTypes {
		return nil, provision.Errorf(provision.FaultUnsupported, op, "there are more than %d", provision.MostTypes)
	}
	out := make([]catalogue.Type, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, *known[name])
	}
	return out, nil
}
