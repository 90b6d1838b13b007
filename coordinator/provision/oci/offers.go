package oci

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/core"
	"github.com/oracle/oci-go-sdk/v65/identity"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	shapesFor  = 6 * time.Hour    // what a region has changes rarely
	configured = 10 * time.Minute // before a definition that cannot be launched as written is looked at again
	usualStart = 2 * time.Minute  // from the call to an agent that is ready
	metalStart = 15 * time.Minute // a real machine goes through its firmware
)

// market is what was last heard of what the region has. Maps are replaced, never changed.
type market struct {
	shapes map[string]map[string]core.Shape // by availability domain and name; one without any is there too
	asked  time.Time
}

// having are the availability domains that have a shape, sorted.
func (m *market) having(shape string) []string {
	var out []string
	for domain, shapes := range m.shapes {
		if _, ok := shapes[shape]; ok {
			out = append(out, domain)
		}
	}
	slices.Sort(out)
	return out
}

func (p *Provisioner) absent(shape string) string {
	return "region " + p.region + " has no " + shape + " for compartment " + p.compartment
}

// ask is what the region has. When it cannot be asked, what was heard before counts on.
func (p *Provisioner) ask(ctx context.Context, op string) (market, error) {
	p.mu.Lock()
	m := p.market
	p.mu.Unlock()
	if m.shapes != nil && p.now().Sub(m.asked) < shapesFor {
		return m, nil
	}
	fresh, err := p.askAll(ctx, op)
	switch {
	case err == nil:
		p.mu.Lock()
		p.market = fresh
		p.mu.Unlock()
		return fresh, nil
	case m.shapes != nil:
		p.opt.Log.Warn("cannot ask which shapes there are; what was heard before counts", "asked", m.asked, "err", err)
		return m, nil
	}
	return market{}, err
}

func (p *Provisioner) askAll(ctx context.Context, op string) (market, error) {
	m := market{map[string]map[string]core.Shape{}, p.now()}
	domains, err := p.oci.domains(ctx, identity.ListAvailabilityDomainsRequest{CompartmentId: &p.compartment})
	if err != nil {
		return m, p.explain(op, err, domains.RawResponse)
	}
	for _, d := range domains.Items {
		if d.Name == nil {
			continue
		}
		shapes, err := p.askShapes(ctx, op, *d.Name)
		if err != nil {
			return m, err
		}
		m.shapes[*d.Name] = shapes
	}
	return m, nil
}

func (p *Provisioner) askShapes(ctx context.Context, op, domain string) (map[string]core.Shape, error) {
	in := core.ListShapesRequest{CompartmentId: &p.compartment, AvailabilityDomain: &domain, Limit: common.Int(pageSize)}
	out := map[string]core.Shape{}
	for range mostPages {
		page, err := p.oci.shapes(ctx, in)
		if err != nil {
			return nil, p.explain(op, err, page.RawResponse)
		}
		for _, s := range page.Items {
			if s.Shape != nil {
				out[*s.Shape] = s
			}
		}
		if page.OpcNextPage == nil || *page.OpcNextPage == "" {
			return out, nil
		}
		in.Page = page.OpcNextPage
	}
	return nil, p.explain(op, tooMany("shapes"), nil)
}

// Offers says what can be had in the compartment. What it was last asked for counts for some hours.
func (p *Provisioner) Offers(ctx context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	m, err := p.ask(ctx, "ask for shapes")
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
	s, ok := d.Spec.(spec.OCI)
	if !ok {
		return no(p.now().Add(configured), "the definition is not of kind oci")
	}
	if !d.CostListed { // the cloud itself names no prices here
		o.CostPerHour = d.CostPerHour
	}
	if metal(s.Shape) {
		o.Launch = metalStart
	}
	domains := m.having(s.Shape)
	if len(domains) > 0 {
		shape := m.shapes[domains[0]][s.Shape]
		if why := misfit(&shape, s); why != "" {
			return no(p.now().Add(configured), why)
		}
		// The configuration itself knows no more of a flexible shape than its cores and memory.
		if d.Hardware == nil || d.Hardware.Estimated && d.Hardware.Arch == "" {
			o.Hardware = typeOf(&shape, s).Hardware()
		}
	}
	if why := p.unfit(s); why != "" {
		return no(p.now().Add(configured), why)
	}
	_, known := m.shapes[s.AvailabilityDomain]
	switch {
	case len(domains) == 0:
		return no(m.asked.Add(shapesFor), p.absent(s.Shape))
	case s.AvailabilityDomain != "" && !known:
		return no(m.asked.Add(shapesFor), fmt.Sprintf("region %s has no availability domain %s, it has %s", p.region, s.AvailabilityDomain,
			strings.Join(slices.Sorted(maps.Keys(m.shapes)), ", ")))
	case s.AvailabilityDomain != "" && !slices.Contains(domains, s.AvailabilityDomain):
		return no(m.asked.Add(shapesFor), "availability domain "+s.AvailabilityDomain+" has no "+s.Shape)
	case s.AvailabilityDomain != "":
		domains = []string{s.AvailabilityDomain}
	}
	var until time.Time
	why := ""
	for _, domain := range domains {
		dry, ok := p.empty.At(placeOf(s, domain), p.now())
		if !ok {
			return o
		}
		if until.IsZero() || dry.Until().Before(until) {
			until, why = dry.Until(), dry.Why
		}
	}
	return no(until, "no "+placeOf(s, "").market()+" capacity: "+why)
}

// misfit says why a flexible shape cannot be had in a size.
func misfit(shape *core.Shape, s spec.OCI) string {
	if s.OCPUs == 0 {
		return ""
	}
	gib := float64(s.Memory) / (1 << 30)
	outside := func(x float64, least, most *float32) bool {
		return least != nil && x < float64(*least) || most != nil && *most > 0 && x > float64(*most)
	}
	if o := shape.OcpuOptions; o != nil && outside(s.OCPUs, o.Min, o.Max) {
		return fmt.Sprintf("%s cannot have %g OCPUs: %s", s.Shape, s.OCPUs, between(o.Min, o.Max))
	}
	if o := shape.MemoryOptions; o != nil {
		if outside(gib, o.MinInGBs, o.MaxInGBs) {
			return fmt.Sprintf("%s cannot have %g GiB of memory: %s", s.Shape, gib, between(o.MinInGBs, o.MaxInGBs))
		}
		if outside(gib/s.OCPUs, o.MinPerOcpuInGBs, o.MaxPerOcpuInGBs) {
			return fmt.Sprintf("%s cannot have %g GiB of memory for each OCPU: %s", s.Shape, gib/s.OCPUs, between(o.MinPerOcpuInGBs, o.MaxPerOcpuInGBs))
		}
	}
	return ""
}

func between(least, most *float32) string {
	switch {
	case least != nil && most != nil:
		return fmt.Sprintf("from %g to %g", *least, *most)
	case least != nil:
		return fmt.Sprintf("%g or more", *least)
	}
	return fmt.Sprintf("up to %g", *most)
}

func metal(shape string) bool { return strings.HasPrefix(shape, "BM.") }

// typeOf is a shape as a catalogue would have it, in the size that is asked for. An OCPU is a core: two threads where the processor is an x86, one on
// Arm; two cores on the newest of those, which a node says itself. The name of a GPU is the vendor's and no device's: it is left out.
func typeOf(shape *core.Shape, s spec.OCI) catalogue.Type {
	out := catalogue.Type{Name: s.Shape, BareMetal: metal(s.Shape)}
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return strings.ToLower(*p)
	}
	threads := uint32(1)
	switch cpu := text(shape.ProcessorDescription); {
	case strings.Contains(cpu, "ampere"), strings.Contains(cpu, "grace"), strings.Contains(cpu, "arm"):
		out.Arch = "arm64"
	case strings.Contains(cpu, "intel"), strings.Contains(cpu, "amd"):
		out.Arch, threads = "amd64", 2
	}
	ocpus, memory := s.OCPUs, s.Memory
	if ocpus == 0 && shape.Ocpus != nil {
		ocpus = float64(*shape.Ocpus)
	}
	if memory == 0 && shape.MemoryInGBs != nil {
		memory = coordinator.Bytes(float64(*shape.MemoryInGBs) * (1 << 30))
	}
	if ocpus > 0 {
		cores, all := max(1, uint32(ocpus)), max(1, uint32(ocpus*float64(threads)))
		out.Cores, out.VCPUs, out.ThreadsPerCore = &cores, &all, &threads
	}
	if memory > 0 {
		out.Memory = &memory
	}
	gpu := text(shape.GpuDescription)
	for _, vendor := range []string{"nvidia", "amd"} {
		if strings.Contains(gpu, vendor) {
			out.GPUVendor = vendor
		}
	}
	if n := shape.Gpus; n != nil && *n > 0 {
		count := uint32(*n)
		out.GPUs = &count
	}
	return out
}
