package gcp

import (
	"slices"
	"strings"
	"testing"

	"substrate/coordinator/catalogue"
	"substrate/tests/fakecloud"
)

// TestTypes: those of the region, each once with its zones; what is obsolete cannot be had, and an answer without one of the zones is none.
func TestTypes(t *testing.T) {
	t.Parallel()
	list := append(someTypes(), fakecloud.Type{Name: "n1-old-2", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Ends: "OBSOLETE"},
		fakecloud.Type{Name: "n1-older-2", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Ends: "DEPRECATED"})
	a := newAccount(t, fakecloud.Options{Types: list, Page: 3})
	a.front.Only = map[string][]string{arm: {"us-central1-a"}, gpus: {"europe-west4-b", "europe-west4-a"}}
	p := a.open(t, cluster)
	got, err := p.Types(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, typ := range got {
		names = append(names, typ.Name)
	}
	if want := []string{gpus, shared, "n1-older-2", hosting, plain}; !slices.Equal(names, want) {
		t.Fatalf("types are %v, want %v", names, want)
	}
	c, err := catalogue.New(got, true)
	if err != nil {
		t.Fatal(err)
	}
	if typ, _ := c.Type(gpus); strings.Join(typ.Zones, " ") != "europe-west4-a europe-west4-b" || typ.GPUs == nil || *typ.GPUs != 8 || typ.CostPerHour != nil {
		t.Errorf("%+v", typ)
	}
	if typ, _ := c.Type("n1-older-2"); !strings.Contains(typ.Ends, "deprecated") {
		t.Errorf("%+v", typ)
	}
	a.front.Dark = []string{"europe-west4-c"}
	if got, err := p.Types(t.Context()); err == nil {
		t.Errorf("without one of the zones there are %d types", len(got))
	}
}
