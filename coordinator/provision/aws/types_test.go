package aws

import (
	"fmt"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/tests/fakecloud"
)

// TestTypes: all of the region's, over several pages; a share of a GPU is no GPU, one that nobody has counted is unknown, and what nobody sells is not
// there.
func TestTypes(t *testing.T) {
	t.Parallel()
	list := append(someTypes(), fakecloud.Type{Name: "g6f.large", VCPUs: 2, Cores: 1, Memory: 8192, Arch: "amd64", GPUs: 1, GPU: "L4", Part: 0.125, Spot: true},
		fakecloud.Type{Name: "p5.4xlarge", VCPUs: 16, Cores: 8, Memory: 262144, Arch: "amd64", GPU: "H100", Uncounted: true})
	for n := range 230 {
		list = append(list, fakecloud.Type{Name: fmt.Sprintf("m9.%dxlarge", n+1), VCPUs: 4, Cores: 2, Memory: 16384, Arch: "amd64"})
	}
	a := newAccount(t, fakecloud.Options{Types: list})
	got, err := a.open(t, cluster).Types(t.Context())
	if err != nil || len(got) != len(list) {
		t.Fatalf("%d types of %d, %v", len(got), len(list), err)
	}
	c, err := catalogue.New(got, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"c5.large": "1 cores, 2 threads, amd64, map[] [], on-demand,spot", "c5.metal": "48 cores, 96 threads, amd64, map[] [], on-demand",
		"c6g.medium": "1 cores, 1 threads, arm64, map[] [], on-demand,spot", "z99.large": "2 cores, 4 threads, amd64, map[nvidia.com/gpu:2] [], on-demand,spot",
		"g6f.large": "1 cores, 2 threads, amd64, map[] [], on-demand,spot", "p5.4xlarge": "8 cores, 16 threads, amd64, map[] [nvidia.com/gpu], on-demand",
	} {
		typ, ok := c.Type(name)
		h := typ.Hardware()
		if !ok || h == nil {
			t.Errorf("%s is %+v", name, typ)
			continue
		}
		text := fmt.Sprintf("%d cores, %d threads, %s, %v %v, %s", h.Cores, h.Threads, h.Arch, h.Devices, h.Unknown, strings.Join(typ.UsageClasses, ","))
		if text != want || typ.CostPerHour != nil || len(typ.Zones) == 0 || !h.Estimated {
			t.Errorf("%s is %s, %+v", name, text, typ)
		}
	}
	if part, _ := c.Type("g6f.large"); !part.Fraction || part.GPUVendor != "nvidia" {
		t.Errorf("a share of a GPU is %+v", part)
	}
	if metal, _ := c.Type("c5.metal"); !metal.BareMetal || metal.Hardware().Memory > 196608<<20 || metal.Hardware().Memory < coordinator.Bytes(180000)<<20 {
		t.Errorf("a real machine is %+v", metal)
	}
}
