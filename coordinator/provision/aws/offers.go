package aws

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
)

const (
	offeringsFor = 6 * time.Hour    // what a region has changes rarely
	pricesFor    = 10 * time.Minute // of spot instances
	configured   = 10 * time.Minute // before a definition that cannot be launched as written is looked at again
	usualStart   = 2 * time.Minute  // from the call to an agent that is ready
	metalStart   = 15 * time.Minute // a real machine goes through its firmware
	// most values of one filter, by EC2's manual; types of one question for prices are kept to as many.
	filterValues = 200
	priceRegion  = "us-east-1" // which the catalogue's prices are of
)

// market is what was last heard of what the region has. Maps are replaced, never changed.
type market struct {
	zones  map[string][]string // of each type that is offered, sorted
	zoned  time.Time
	types  map[string]catalogue.Type // those that the catalogue does not know
	typed  time.Time
	spots  map[string]map[string]float64 // by type and zone, USD per hour
	priced time.Time
}

// Offers says what can be had in the region. What it was last asked for counts for some hours.
func (p *Provisioner) Offers(ctx context.Context, defs []coordinator.Definition) ([]provision.Offer, error) {
	p.mu.Lock()
	m := p.market
	p.mu.Unlock()
	if err := p.askZones(ctx, &m); err != nil {
		return nil, p.explain("ask for instance types", err)
	}
	unknown, spots := map[string]bool{}, map[string]bool{}
	for i := range defs {
		s, ok := defs[i].Spec.(spec.AWS)
		if !ok || m.zones[s.InstanceType] == nil {
			continue
		}
		if _, known := p.opt.Catalogue.Type(s.InstanceType); !known {
			unknown[s.InstanceType] = true
		}
		if s.Spot {
			spots[s.InstanceType] = true
		}
	}
	p.askTypes(ctx, &m, unknown)
	p.askPrices(ctx, &m, spots)
	p.mu.Lock()
	p.market = m
	p.mu.Unlock()
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
	s, ok := d.Spec.(spec.AWS)
	if !ok {
		return no(p.now().Add(configured), "the definition is not of kind aws")
	}
	typ, known := p.opt.Catalogue.Type(s.InstanceType)
	if !known {
		typ, known = m.types[s.InstanceType]
	}
	if typ.BareMetal {
		o.Launch = metalStart
	}
	if d.Hardware == nil {
		o.Hardware = typ.Hardware()
	}
	o.CostPerHour = p.cost(d, s, typ, m)
	zones, offered := m.zones[s.InstanceType]
	if why := p.unfit(s); why != "" {
		return no(p.now().Add(configured), why)
	}
	switch refusal, empty := p.empty.At(placeOf(s), p.now()); {
	case !offered:
		return no(m.zoned.Add(offeringsFor), "region "+p.region+" has no "+s.InstanceType)
	case s.Zone != "" && !slices.Contains(zones, s.Zone):
		return no(m.zoned.Add(offeringsFor), "zone "+s.Zone+" has no "+s.InstanceType)
	case s.Spot && known && len(typ.UsageClasses) > 0 && !slices.Contains(typ.UsageClasses, "spot"):
		return no(p.now().Add(configured), s.InstanceType+" is not sold as spot")
	case empty:
		return no(refusal.Until(), "no "+placeOf(s).market()+" capacity: "+refusal.Why)
	}
	return o
}

// cost is the configuration's own where it says one, else what the cloud asks; nil is unknown. What the configuration has from the catalogue
// is a price of one region and on demand.
func (p *Provisioner) cost(d *coordinator.Definition, s spec.AWS, typ catalogue.Type, m *market) *float64 {
	if d.CostPerHour != nil && !d.CostListed {
		return d.CostPerHour
	}
	if !s.Spot {
		if p.region != priceRegion {
			return nil
		}
		return typ.CostPerHour
	}
	prices := m.spots[s.InstanceType]
	if s.Zone != "" {
		if price, ok := prices[s.Zone]; ok {
			return &price
		}
		return nil
	}
	if len(prices) == 0 {
		return nil
	}
	least := slices.Min(slices.Collect(maps.Values(prices)))
	return &least
}

// askZones asks which types the region has, and where. When that fails, what was heard before counts on.
func (p *Provisioner) askZones(ctx context.Context, m *market) error {
	if m.zones != nil && p.now().Sub(m.zoned) < offeringsFor {
		return nil
	}
	zones, err := p.describeOfferings(ctx)
	switch {
	case err != nil && m.zones != nil:
		p.opt.Log.Warn("cannot ask which instance types there are; what was heard before counts", "asked", m.zoned, "err", err)
		return nil
	case err != nil:
		return err
	}
	m.zones, m.zoned = zones, p.now()
	return nil
}

// askTypes asks about types that are newer than the catalogue. Without an answer their hardware is unknown until a node reports.
func (p *Provisioner) askTypes(ctx context.Context, m *market, wanted map[string]bool) {
	missing := maps.Clone(wanted)
	maps.DeleteFunc(missing, func(name string, _ bool) bool { _, ok := m.types[name]; return ok })
	if len(missing) == 0 || !m.typed.IsZero() && p.now().Sub(m.typed) < pricesFor {
		return
	}
	found := maps.Clone(m.types)
	if found == nil {
		found = map[string]catalogue.Type{}
	}
	m.typed = p.now()
	for names := range slices.Chunk(slices.Sorted(maps.Keys(missing)), filterValues) {
		list, err := p.describeTypes(ctx, names)
		if err != nil {
			p.opt.Log.Warn("cannot ask about instance types", "types", len(names), "err", err)
			continue
		}
		for _, t := range list {
			found[t.Name] = t
		}
	}
	m.types = found
}

// askPrices asks what spot instances cost now. A price that cannot be had is unknown, which is not nothing.
func (p *Provisioner) askPrices(ctx context.Context, m *market, wanted map[string]bool) {
	fresh := p.now().Sub(m.priced) < pricesFor
	if len(wanted) == 0 || fresh && !m.priced.IsZero() {
		return
	}
	now := p.now()
	spots := map[string]map[string]float64{}
	newest := map[[2]string]time.Time{}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), filterValues) {
		in := &ec2.DescribeSpotPriceHistoryInput{StartTime: &now, EndTime: &now, ProductDescriptions: []string{"Linux/UNIX"}, MaxResults: aws.Int32(pageSize)}
		for _, name := range names {
			in.InstanceTypes = append(in.InstanceTypes, types.InstanceType(name))
		}
		pages := ec2.NewDescribeSpotPriceHistoryPaginator(p.ec2, in)
		for n := 0; pages.HasMorePages() && n < mostPages; n++ {
			page, err := pages.NextPage(ctx)
			if err != nil {
				p.opt.Log.Warn("cannot ask for spot prices; they count as unknown", "err", err)
				m.spots, m.priced = nil, now
				return
			}
			for _, e := range page.SpotPriceHistory {
				key := [2]string{string(e.InstanceType), aws.ToString(e.AvailabilityZone)}
				price, err := strconv.ParseFloat(aws.ToString(e.SpotPrice), 64)
				if err != nil || price <= 0 || aws.ToTime(e.Timestamp).Before(newest[key]) {
					continue
				}
				newest[key] = aws.ToTime(e.Timestamp)
				if spots[key[0]] == nil {
					spots[key[0]] = map[string]float64{}
				}
				spots[key[0]][key[1]] = price
			}
		}
	}
	m.spots, m.priced = spots, now
}
