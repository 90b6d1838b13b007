package azure

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"substrate/coordinator"
	"substrate/coordinator/provision/cloud"
	"substrate/coordinator/spec"
)

const (
	// retail is where the public cloud tells anybody what it asks. Others' prices are not known.
	retail = "https://prices.azure.com/api/retail/prices"
	// pricesFor is for how long prices count; after a failure they are asked for again sooner.
	pricesFor, pricesAgain = 6 * time.Hour, 30 * time.Minute
	// pricesWithin bounds what offers wait for prices.
	pricesWithin = 15 * time.Second
	// sizesAtOnce are in one question, whose answer has at most pricePages parts of at most mostOfPrices bytes.
	sizesAtOnce, pricePages, mostOfPrices = 10, 20, 8 << 20
)

// priceOf are prices by place, in US dollars for an hour, and when each was asked for.
type priceOf struct {
	of    map[place]float64
	again map[place]time.Time
}

// key is a place as prices are kept: sizes are the same in any case of letters.
func (p place) key() place { return place{strings.ToLower(p.size), p.location, p.spot} }

// cost is the configuration's own where it says one, else what the cloud asks of everybody; nil is unknown.
func (p *Provisioner) cost(d *coordinator.Definition, at place) *float64 {
	if d.CostPerHour != nil && !d.CostListed {
		if *d.CostPerHour > 0 {
			return d.CostPerHour
		}
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if price, ok := p.prices.of[at.key()]; ok {
		return &price
	}
	return nil
}

// askPrices asks what definitions cost that do not say so themselves. A price that cannot be had is unknown, which is not nothing.
func (p *Provisioner) askPrices(ctx context.Context, defs []coordinator.Definition) {
	if p.retail == "" {
		return
	}
	wanted := map[string][]string{}
	p.mu.Lock()
	for i := range defs {
		s, ok := defs[i].Spec.(spec.Azure)
		at := p.placeOf(s).key()
		if !ok || defs[i].CostPerHour != nil && !defs[i].CostListed || at.location == "" || p.now().Before(p.prices.again[at]) {
			continue
		}
		wanted[at.location] = append(wanted[at.location], s.VMSize)
	}
	p.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, pricesWithin)
	defer cancel()
	for where, sizes := range wanted {
		slices.Sort(sizes)
		for part := range slices.Chunk(slices.Compact(sizes), sizesAtOnce) {
			found, err := p.readPrices(limited, where, part)
			if err != nil {
				p.opt.Log.Warn("cannot ask for prices; they count as unknown", "location", where, "sizes", len(part), "err", err)
			}
			p.notePrices(where, part, found, err)
		}
	}
}

func (p *Provisioner) notePrices(where string, sizes []string, found map[place]float64, failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prices.of == nil {
		p.prices = priceOf{map[place]float64{}, map[place]time.Time{}}
	}
	again := p.now().Add(pricesFor)
	if failed != nil {
		again = p.now().Add(pricesAgain)
	}
	for _, size := range sizes {
		for _, spot := range []bool{false, true} {
			at := place{size, where, spot}.key()
			p.prices.again[at] = again
			if failed == nil {
				delete(p.prices.of, at)
			}
			if price, ok := found[at]; ok {
				p.prices.of[at] = price
			}
		}
	}
}

// readPrices asks what sizes cost in a location.
func (p *Provisioner) readPrices(ctx context.Context, where string, sizes []string) (map[place]float64, error) {
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	var named []string
	for _, size := range sizes {
		named = append(named, "armSkuName eq "+quoted(size))
	}
	filter := fmt.Sprintf("serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq %s and (%s)", quoted(where), strings.Join(named, " or "))
	next := p.retail + "?$filter=" + url.QueryEscape(filter)
	out := map[place]float64{}
	for range pricePages {
		items, after, err := p.pricePage(ctx, next)
		if err != nil {
			return nil, err
		}
		for _, i := range items {
			// Where there are several the dearest counts: nobody is to be surprised.
			if at, price := i.read(); at.location == where && price > out[at] {
				out[at] = price
			}
		}
		if after == "" {
			return out, nil
		}
		if !strings.HasPrefix(after, p.retail) {
			return nil, fmt.Errorf("cannot read prices: they go on elsewhere, at %q", after)
		}
		next = after
	}
	return nil, tooMany("prices")
}

func (p *Provisioner) pricePage(ctx context.Context, from string) ([]item, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := cmp.Or[policy.Transporter](p.opt.HTTPClient, cloud.BoundedDoer{Doer: &http.Client{}}).Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("cannot read prices: status %d", resp.StatusCode)
	}
	return decodePrices(io.LimitReader(resp.Body, mostOfPrices))
}

// item is one price.
type item struct {
	Currency string  `json:"currencyCode"`
	Price    float64 `json:"retailPrice"`
	Region   string  `json:"armRegionName"`
	Product  string  `json:"productName"`
	SKU      string  `json:"skuName"`
	Size     string  `json:"armSkuName"`
	Unit     string  `json:"unitOfMeasure"`
	Type     string  `json:"type"`
	Until    string  `json:"effectiveEndDate"`
}

func decodePrices(r io.Reader) (items []item, next string, err error) {
	var page struct {
		Items []item
		Next  string `json:"NextPageLink"`
	}
	if err := json.NewDecoder(r).Decode(&page); err != nil {
		return nil, "", fmt.Errorf("cannot read prices: %w", err)
	}
	return page.Items, page.Next, nil
}

// read is what an item is the price of; 0 where it is none of a machine as they are launched here: with a licence, in a service that is no more, of the
// market before spot, or of another time.
func (i item) read() (place, float64) {
	at := place{i.Size, location(i.Region), about(i.SKU, "spot")}.key()
	if i.Currency != "USD" || i.Unit != "1 Hour" || i.Type != "Consumption" || i.Until != "" || i.Price <= 0 || about(i.Product, "windows") || about(i.Product, "cloudservices") || about(i.Product, "cloud services") || about(i.SKU, "low priority") {
		return at, 0
	}
	return at, i.Price
}
