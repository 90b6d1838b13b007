package azure

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/spec"
	"substrate/tests/fakecloud"
)

// TestPrices: what a definition does not say is asked of the cloud, for its market, without what goes by the same name; what nobody says is unknown.
func TestPrices(t *testing.T) {
	t.Parallel()
	types := someTypes()
	types[0].Price = 0.2 // of general
	a := newAccount(t, fakecloud.Options{Types: types})
	o := a.options(cluster)
	o.Prices = a.srv.URL + "/api/retail/prices"
	asked := 0
	down := false
	o.HTTPClient = transport(func(r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(r.URL.Path, "/api/retail/") {
			if asked++; down {
				return a.srv.Client().Get(a.srv.URL + "/nowhere")
			}
		}
		return a.srv.Client().Do(r)
	})
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	own, listed := 0.7, 0.9
	said, fromList, none := definition(general, false), definition(general, false), definition(gpus, false)
	said.CostPerHour, fromList.CostPerHour, fromList.CostListed = &own, &listed, true
	defs := []coordinator.Definition{definition(general, false), definition(general, true), said, fromList, none}
	check := func(what string, want ...float64) {
		t.Helper()
		offers, err := p.Offers(t.Context(), defs)
		if err != nil {
			t.Fatal(err)
		}
		for n, o := range offers {
			if o.CostPerHour == nil && want[n] != 0 || o.CostPerHour != nil && *o.CostPerHour != want[n] {
				t.Errorf("%s: the cost of %d is %v, expected %g", what, n, o.CostPerHour, want[n])
			}
		}
	}
	check("at first", 0.2, 0.05, 0.7, 0.2, 0)
	before := asked
	check("again", 0.2, 0.05, 0.7, 0.2, 0)
	if asked != before || asked != 2 {
		t.Errorf("asked %d times, then %d", before, asked)
	}
	down = true
	a.cloud.Advance(pricesFor + time.Minute)
	check("when nobody answers what was heard counts", 0.2, 0.05, 0.7, 0.2, 0)
	before = asked
	check("and is not asked for at once", 0.2, 0.05, 0.7, 0.2, 0)
	if asked != before {
		t.Errorf("asked again at once")
	}
}

// TestWhosePrices: the public cloud's prices are the public cloud's.
func TestWhosePrices(t *testing.T) {
	a := newAccount(t, fakecloud.Options{})
	t.Setenv("AZURE_TENANT_ID", "")
	for endpoint, want := range map[string]string{"": retail, "https://management.usgovcloudapi.net": "", "https://arm.example.org": ""} {
		o := a.options(cluster)
		o.Backend = spec.Backend{ResourceGroup: group, Subscription: subscription, Endpoint: endpoint}
		if p, err := New(o); err != nil || p.retail != want {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

// FuzzPrices: whatever is told as prices is read or refused; what counts is a price.
func FuzzPrices(f *testing.F) {
	f.Add(`{"Items":[{"currencyCode":"USD","retailPrice":0.1,"armRegionName":"westeurope","productName":"p","skuName":"D4s v5 Spot","armSkuName":"Standard_D4s_v5","unitOfMeasure":"1 Hour","type":"Consumption"}],"NextPageLink":null}`)
	f.Add(`{"Items":[{"retailPrice":-1}],"NextPageLink":"x"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		items, _, err := decodePrices(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, i := range items {
			if _, price := i.read(); price < 0 {
				t.Errorf("%+v costs %g", i, price)
			}
		}
	})
}
