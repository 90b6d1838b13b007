package gcp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	typesFor   = 6 * time.Hour    // what a zone has changes rarely
	configured = 10 * time.Minute // before a definition that cannot be launched as written is looked at again
	usualStart = 90 * time.Second // from the call to an agent that is ready
	metalStart = 10 * time.Minute // a real machine goes through its firmware
	// namesAtOnce bounds a filter.
	namesAtOnce = 50
)

// market is what was last heard of what the zones have. Maps are replaced, never changed.
type market struct {
	types map[string]map[string]*compute.MachineType // by zone and name
	asked map[string]time.Time                       // by name, also those that no zone has
}

// zonesOf are the zones of the backend's region that have a type, sorted.
func (p *Provisioner) zonesOf(m *market, typ string) []string {
	var out []string
	for zone, types := range m.types {
		if types[typ] != nil && p.region != "" && strings.HasPrefix(zone, p.region+"-") {
			out = append(out, zone)
		}
	}
	slices.Sort(out)
	return out
}

func (p *Provisioner) absent(typ string) string { return "region " + p.region + " has no " + typ }

// ask is what the zones have of some types. When they cannot be asked, what was heard before counts on.
func (p *Provisioner) ask(ctx context.Context, op string, names []string) (market, error) {
	p.mu.Lock()
	m := p.market
	p.mu.Unlock()
	var missing []string
	heard := true
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		at, ok := m.asked[name]
		if !ok || p.now().Sub(at) >= typesFor {
			missing = append(missing, name)
		}
		heard = heard && ok
	}
	if len(missing) == 0 {
		return m, nil
	}
	found, err := p.askTypes(ctx, missing)
	switch {
	case err != nil && heard:
		p.opt.Log.Warn("cannot ask which machine types there are; what was heard before counts", "types", len(missing), "err", err)
		return m, nil
	case err != nil:
		return m, p.explain(op, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := market{map[string]map[string]*compute.MachineType{}, maps.Clone(p.market.asked)}
	if fresh.asked == nil {
		fresh.asked = map[string]time.Time{}
	}
	for zone, types := range p.market.types {
		fresh.types[zone] = maps.Clone(types)
		maps.DeleteFunc(fresh.types[zone], func(name string, _ *compute.MachineType) bool { return slices.Contains(missing, name) })
	}
	for _, t := range found {
		if fresh.types[t.Zone] == nil {
			fresh.types[t.Zone] = map[string]*compute.MachineType{}
		}
		fresh.types[t.Zone][t.Name] = t
	}
	for _, name := range missing {
		fresh.asked[name] = p.now()
	}
	p.market = fresh
	return fresh, nil
}

// askTypes asks about types by name in all zones: one question for fifty of them, in pages.
func (p *Provisioner) askTypes(ctx context.Context, names []string) ([]*compute.MachineType, error) {
	var out []*compute.MachineType
	for part := range slices.Chunk(names, namesAtOnce) {
		var filters []string
		for _, name := range part {
			filters = append(filters, fmt.Sprintf("(name = %q)", name))
		}
		found, err := p.listTypes(ctx, strings.Join(filters, " OR "))
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// Offers says what can be had. What the zones were last asked for counts for some hours.
func (p *Provisioner) Offers(ctx context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	var names []string
	for i := range defs {
		if s, ok := defs[i].Spec.(spec.GCP); ok {
			names = append(names, s.MachineType)
		}
	}
	m, err := p.ask(ctx, "ask for machine types", names)
	if err != nil {
		return nil, err
	}
	out := make([]provision.Offer, len(defs))
	for i := range defs {
		out[i] = p.offer(&defs[i], &m)
	}
	return out, nil
}

func (p *Provisioner) offer(d *coordinator.Definition, m *market) provision.Offer {
	o := provision.Offer{Definition: d.ID, Nodes: 1, Launch: usualStart, Available: true}
	no := func(until time.Time, why string) provision.Offer {
		o.Available, o.Until, o.Why = false, until, why
		return o
	}
	s, ok := d.Spec.(spec.GCP)
	if !ok {
		return no(p.now().Add(configured), "the definition is not of kind gcp")
	}
	if !d.CostListed { // the cloud itself names no prices here
		o.CostPerHour = d.CostPerHour
	}
	if metal(s.MachineType) {
		o.Launch = metalStart
	}
	zones := p.zonesOf(m, s.MachineType)
	if s.Zone != "" {
		zones = nil
		if m.types[s.Zone][s.MachineType] != nil {
			zones = []string{s.Zone}
		}
	}
	if len(zones) > 0 {
		typ := m.types[zones[0]][s.MachineType]
		if d.Hardware == nil {
			o.Hardware = typeOf(typ, s).Hardware()
		}
		if why := mismatch(typ, s); why != "" {
			return no(p.now().Add(configured), why)
		}
	}
	if why := p.unfit(s); why != "" {
		return no(p.now().Add(configured), why)
	}
	switch {
	case len(zones) == 0 && s.Zone != "":
		return no(m.asked[s.MachineType].Add(typesFor), "zone "+s.Zone+" has no "+s.MachineType)
	case len(zones) == 0:
		return no(m.asked[s.MachineType].Add(typesFor), p.absent(s.MachineType))
	}
	var until time.Time
	why := ""
	for _, zone := range zones {
		dry, ok := p.empty.At(placeOf(s, zone), p.now())
		if !ok {
			return o
		}
		if until.IsZero() || dry.Until().Before(until) {
			until, why = dry.Until(), dry.Why
		}
	}
	return no(until, "no "+placeOf(s, "").market()+" capacity: "+why)
}

// mismatch says why a type cannot have the accelerators that the definition says: others of its own, or a family that takes none. The service says so
// only when it is asked to launch, and not of every zone.
func mismatch(typ *compute.MachineType, s spec.GCP) string {
	if s.Accelerator == nil {
		return ""
	}
	if len(typ.Accelerators) == 0 {
		if strings.HasPrefix(s.MachineType, "n1-") {
			return ""
		}
		return fmt.Sprintf("accelerators are attached to n1 machines only, and its provisionerSpec says %d %s with %s", s.Accelerator.Count, s.Accelerator.Type, s.MachineType)
	}
	has := typ.Accelerators[0]
	if last(has.GuestAcceleratorType) == s.Accelerator.Type && has.GuestAcceleratorCount == int64(s.Accelerator.Count) {
		return ""
	}
	return fmt.Sprintf("%s has %d %s, and its provisionerSpec says %d %s", s.MachineType, has.GuestAcceleratorCount, last(has.GuestAcceleratorType), s.Accelerator.Count, s.Accelerator.Type)
}

func metal(typ string) bool { return strings.HasSuffix(typ, "-metal") }

// typeOf is a type as a catalogue would have it. A vCPU is a thread: two of them are a core on x86, but for few families, whose nodes say so themselves; on Arm each is
// one. The name of an accelerator is the vendor's and no device's: it is left out.
func typeOf(t *compute.MachineType, s spec.GCP) catalogue.Type {
	out := catalogue.Type{Name: t.Name, BareMetal: metal(t.Name)}
	threads := uint32(2)
	switch t.Architecture {
	case "ARM64":
		out.Arch, threads = "arm64", 1
	case "X86_64":
		out.Arch = "amd64"
	}
	if t.GuestCpus > 0 {
		all := uint32(t.GuestCpus)
		cores := max(1, all/threads)
		out.VCPUs, out.Cores, out.ThreadsPerCore = &all, &cores, &threads
	}
	if t.MemoryMb > 0 {
		sold := coordinator.Bytes(t.MemoryMb) << 20
		out.Memory = &sold
	}
	kind, count := "", int64(0)
	if len(t.Accelerators) == 1 {
		kind, count = last(t.Accelerators[0].GuestAcceleratorType), t.Accelerators[0].GuestAcceleratorCount
	} else if a := s.Accelerator; a != nil && len(t.Accelerators) == 0 {
		kind, count = a.Type, int64(a.Count)
	}
	if strings.HasPrefix(kind, "nvidia") && count > 0 {
		n := uint32(count)
		out.GPUVendor, out.GPUs = "nvidia", &n
	}
	return out
}
