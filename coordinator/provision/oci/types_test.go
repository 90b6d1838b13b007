package oci

import (
	"slices"
	"testing"

	"substrate/coordinator/catalogue"
	"substrate/tests/fakecloud"
)

// TestTypes: each shape once with its availability domains, and nothing said of a flexible one's size.
func TestTypes(t *testing.T) {
	t.Parallel()
	a := newAccount(t, fakecloud.Options{})
	some := a.cloud.Types()
	a.front.Only = map[string][]string{gpus: {"Fake:EU-FRANKFURT-1-AD-2"}}
	got, err := a.open(t, cluster).Types(t.Context())
	if err != nil || len(got) != len(some) {
		t.Fatalf("%d shapes of %d: %v", len(got), len(some), err)
	}
	c, err := catalogue.New(got, true)
	if err != nil {
		t.Fatal(err)
	}
	if typ, ok := c.Type(flex); !ok || !typ.Flexible || typ.Cores != nil || typ.Memory != nil || typ.Hardware() != nil || typ.Arch != "amd64" || len(typ.Zones) < 2 || !slices.IsSorted(typ.Zones) {
		t.Errorf("a flexible shape is %+v", typ)
	}
	if typ, ok := c.Type(gpus); !ok || typ.Flexible || typ.Hardware() == nil || len(typ.Zones) != 1 || typ.GPUs == nil {
		t.Errorf("%+v", typ)
	}
}
