package azure

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	sizesFor   = 6 * time.Hour    // what a location has changes rarely
	configured = 10 * time.Minute // before a definition that cannot be launched as written is looked at again
	usualStart = 2 * time.Minute  // from the call to an agent that is ready
)

// market is what was last heard of the sizes of a location. Maps are replaced, never changed.
type market struct {
	sizes map[string]size // by name in lower-case letters
	asked time.Time
}

// size is a size of machines as it can be had in a location.
type size struct {
	catalogue.Type
	refused     string // why the subscription may not have it; "" for it may
	accelerated bool
}

// ask is what a location has. When it cannot be asked, what was heard before counts on.
func (p *Provisioner) ask(ctx context.Context, op, where string) (market, error) {
	p.mu.Lock()
	m := p.market[where]
	p.mu.Unlock()
	if m.sizes != nil && p.now().Sub(m.asked) < sizesFor {
		return m, nil
	}
	sizes, err := p.sizes(ctx, where)
	switch {
	case err == nil:
		fresh := market{sizes, p.now()}
		p.mu.Lock()
		p.market[where] = fresh
		p.mu.Unlock()
		return fresh, nil
	case m.sizes != nil:
		p.opt.Log.Warn("cannot ask which sizes there are; what was heard before counts", "location", where, "asked", m.asked, "err", err)
		return m, nil
	}
	return market{}, p.explain(op, err)
}

// sizes asks which sizes of machines there are in a location, "" for anywhere. One that several locations have is told of as it is where it can be had.
func (p *Provisioner) sizes(ctx context.Context, where string) (map[string]size, error) {
	var o *armcompute.ResourceSKUsClientListOptions
	if where != "" {
		o = &armcompute.ResourceSKUsClientListOptions{Filter: to.Ptr("location eq '" + strings.ReplaceAll(where, "'", "''") + "'")}
	}
	out := map[string]size{}
	pages := p.azure.skus(o)
	for n := 0; pages.More(); n++ {
		if n == mostPages {
			return nil, tooMany("sizes")
		}
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, sku := range page.Value {
			if sku == nil || sku.Name == nil || sku.ResourceType == nil || !strings.EqualFold(*sku.ResourceType, "virtualMachines") {
				continue
			}
			s := sizeOf(sku)
			key := strings.ToLower(s.Name)
			if had, twice := out[key]; !twice || had.refused != "" {
				out[key] = s
			}
		}
	}
	return out, nil
}

// accelerated reports whether a size is known to take the network's faster way, which costs nothing.
func (p *Provisioner) accelerated(s spec.Azure) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.market[p.locationOf(s)].sizes[strings.ToLower(s.VMSize)].accelerated
}

// Offers says what can be had where definitions are about. What a location was last asked for counts for some hours.
func (p *Provisioner) Offers(ctx context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	markets := map[string]market{}
	for i := range defs {
		s, ok := defs[i].Spec.(spec.Azure)
		where := p.locationOf(s)
		if _, known := markets[where]; !ok || known || where == "" {
			continue
		}
		m, err := p.ask(ctx, "ask for sizes", where)
		if err != nil {
			return nil, err
		}
		markets[where] = m
	}
	p.askPrices(ctx, defs)
	out := make([]provision.Offer, len(defs))
	for i := range defs {
		out[i] = p.offer(&defs[i], markets)
	}
	return out, nil
}

func (p *Provisioner) offer(d *coordinator.Definition, markets map[string]market) provision.Offer {
	o := provision.Offer{Definition: d.ID, Nodes: 1, Launch: usualStart, Available: true}
	no := func(until time.Time, why string) provision.Offer {
		o.Available, o.Until, o.Why = false, until, why
		return o
	}
	s, ok := d.Spec.(spec.Azure)
	if !ok {
		return no(p.now().Add(configured), "the definition is not of kind azure")
	}
	at := p.placeOf(s)
	o.CostPerHour = p.cost(d, at)
	m := markets[at.location]
	size, has := m.sizes[strings.ToLower(s.VMSize)]
	if has && d.Hardware == nil {
		o.Hardware = size.Hardware()
	}
	if why := p.unfit(s); why != "" {
		return no(p.now().Add(configured), why)
	}
	switch {
	case !has:
		return no(m.asked.Add(sizesFor), "location "+at.location+" has no "+s.VMSize)
	case size.refused != "":
		return no(m.asked.Add(sizesFor), "the subscription may not have "+s.VMSize+" in "+at.location+": "+size.refused)
	case s.Spot && !slices.Contains(size.UsageClasses, "spot"):
		return no(m.asked.Add(sizesFor), s.VMSize+" is not to be had as spot")
	}
	if dry, ok := p.empty.At(at, p.now()); ok {
		return no(dry.Until(), "no "+at.market()+" capacity: "+dry.Why)
	}
	return o
}

var _ provision.Typer = (*Provisioner)(nil)

// Types tells of all sizes that the backend's region has, or the cloud where it names none, but for those that the subscription may not have.
func (p *Provisioner) Types(ctx context.Context) ([]catalogue.Type, error) {
	all, err := p.sizes(ctx, location(p.region))
	if err != nil {
		return nil, p.explain("ask for sizes", err)
	}
	if len(all) > provision.MostTypes {
		return nil, p.explain("ask for sizes", fmt.Errorf("there are %d, more than %d", len(all), provision.MostTypes))
	}
	var out []catalogue.Type
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if s := all[key]; s.refused == "" {
			out = append(out, s.Type)
		}
	}
	slices.SortFunc(out, func(a, b catalogue.Type) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// sizeOf reads what is told of a size. Capabilities are words with words for values; one that is absent or odd is unknown. The vendor and the model of a GPU
// are not told, and a part of one counts as one: both are unknown until a node has reported.
func sizeOf(sku *armcompute.ResourceSKU) size {
	says := map[string]string{}
	for _, c := range sku.Capabilities {
		if c != nil && c.Name != nil && c.Value != nil {
			says[strings.ToLower(*c.Name)] = *c.Value
		}
	}
	count := func(name string) *uint32 {
		n, err := strconv.ParseUint(says[name], 10, 32)
		if err != nil || n == 0 {
			return nil
		}
		return to.Ptr(uint32(n))
	}
	out := size{Type: catalogue.Type{Name: *sku.Name, VCPUs: count("vcpus"), ThreadsPerCore: count("vcpuspercore"), GPUs: count("gpus")}}
	out.accelerated = strings.EqualFold(says["acceleratednetworkingenabled"], "true")
	if fewer := count("vcpusavailable"); fewer != nil { // sizes with the memory of a larger one
		out.VCPUs = fewer
	}
	switch strings.ToLower(says["cpuarchitecturetype"]) {
	case "x64":
		out.Arch = "amd64"
	case "arm64":
		out.Arch = "arm64"
	}
	if out.ThreadsPerCore == nil && out.Arch != "" { // on x86 a core has two in all but old sizes, whose nodes say so themselves
		out.ThreadsPerCore = to.Ptr(map[string]uint32{"amd64": 2, "arm64": 1}[out.Arch])
	}
	if v, t := out.VCPUs, out.ThreadsPerCore; v != nil && t != nil {
		out.Cores = to.Ptr(max(1, *v / *t))
	}
	if gib, err := strconv.ParseFloat(says["memorygb"], 64); err == nil && gib > 0 && gib < math.MaxUint16 {
		out.Memory = to.Ptr(coordinator.Bytes(gib * (1 << 30)))
	}
	out.UsageClasses = []string{"on-demand"}
	if strings.EqualFold(says["lowprioritycapable"], "true") {
		out.UsageClasses = append(out.UsageClasses, "spot")
	}
	out.refused = refused(sku)
	for _, at := range sku.LocationInfo {
		if at == nil {
			continue
		}
		for _, zone := range at.Zones {
			if zone != nil && !slices.Contains(out.Zones, *zone) {
				out.Zones = append(out.Zones, *zone)
			}
		}
	}
	slices.Sort(out.Zones)
	return out
}

// refused is why a subscription may not have a size. A restriction of some zones is none here: the cloud chooses the zone.
func refused(sku *armcompute.ResourceSKU) string {
	for _, r := range sku.Restrictions {
		if r == nil || r.Type == nil || *r.Type != armcompute.ResourceSKURestrictionsTypeLocation {
			continue
		}
		if r.ReasonCode != nil && *r.ReasonCode != "" {
			return string(*r.ReasonCode)
		}
		return "it is restricted"
	}
	return ""
}
