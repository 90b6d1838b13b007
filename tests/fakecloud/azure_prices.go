package fakecloud

import (
	"net/http"
	"net/url"
	"strings"
)

// azurePrices is where anybody may ask what the cloud asks.
const azurePrices = "/api/retail/prices"

// prices lists what types cost that a question names, among other things that go by their names, two in a page.
func (a *Azure) prices(r *http.Request) (int, any, error) {
	filter := r.URL.Query().Get("$filter")
	if !strings.Contains(filter, "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '") {
		return 0, nil, &azureError{400, "BadRequest", "that would be all prices"}
	}
	items := []map[string]any{}
	for _, t := range a.Cloud.Types() {
		if t.Price <= 0 || !strings.Contains(filter, "armSkuName eq '"+t.Name+"'") || !strings.Contains(filter, "armRegionName eq '"+a.Location+"'") {
			continue
		}
		name := strings.ReplaceAll(strings.TrimPrefix(t.Name, "Standard_"), "_", " ")
		add := func(product, sku string, price float64) {
			items = append(items, map[string]any{"currencyCode": "USD", "tierMinimumUnits": 0, "retailPrice": price, "unitPrice": price, "armRegionName": a.Location, "location": "EU West",
				"effectiveStartDate": "2023-01-01T00:00:00Z", "meterName": sku, "productName": product, "skuName": sku, "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour",
				"type": "Consumption", "isPrimaryMeterRegion": true, "armSkuName": t.Name})
		}
		add("Virtual Machines Fake Series Windows", name, 2*t.Price)
		add("Virtual Machines Fake Series", name+" Low Priority", t.Price/2)
		add("Virtual Machines Fake Series", name, t.Price)
		if t.Spot {
			add("Virtual Machines Fake Series", name+" Spot", t.Price/4)
		}
	}
	out := map[string]any{"BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail", "NextPageLink": nil}
	const page = 2
	if r.URL.Query().Get("$skip") == "2" {
		items = items[min(page, len(items)):]
	} else if len(items) > page {
		items = items[:page]
		out["NextPageLink"] = "https://" + r.Host + azurePrices + "?$filter=" + url.QueryEscape(filter) + "&$skip=2"
	}
	out["Items"], out["Count"] = items, len(items)
	return 200, out, nil
}
