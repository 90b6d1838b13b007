package server

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/engine"
)

func recordCatalogues(f *fakeEngine, note func(string, ...any)) {
	v := engine.CatalogueView{Backend: "gcp", Kind: "gcp", Source: "provider", Version: 3, Types: 400, Missing: 1, Asked: at(6), Changed: at(6), Trouble: "no answer", Since: at(6)}
	f.cataloguesFunc = func(_ context.Context, c engine.Caller) ([]engine.CatalogueView, error) {
		note("Catalogues by %s", c.Name)
		return []engine.CatalogueView{v}, nil
	}
	f.refreshCataloguesFunc = func(_ context.Context, c engine.Caller, names []string) ([]engine.CatalogueView, error) {
		note("RefreshCatalogues by %s: %q", c.Name, names)
		v.Text = "1 new (n2-x)"
		return []engine.CatalogueView{v}, nil
	}
	f.instanceTypesFunc = func(_ context.Context, c engine.Caller, in engine.ListTypes, p engine.Page) ([]engine.TypeView, string, error) {
		note("InstanceTypes by %s: %+v %+v", c.Name, in, p)
		t := catalogue.Type{Name: "n2-x", Arch: "amd64", Zones: []string{"a", "b"}}
		return []engine.TypeView{{Kind: "gcp", Backend: "gcp", Type: t, Source: "provider", At: at(6), Hardware: &coordinator.Hardware{Cores: 2, Threads: 4, Memory: 1 << 30},
			CostPerHour: pointer(0.2), Flags: []string{"bare metal"}}, {Kind: "gcp", Type: t, Image: "img", Source: "report", At: at(6), Reports: 2}}, "n2-x", nil
	}
}
