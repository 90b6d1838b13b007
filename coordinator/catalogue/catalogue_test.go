package catalogue

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func ec2(t testing.TB) *Catalogue {
	t.Helper()
	c, err := EC2()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCatalogueFacts(t *testing.T) {
	c := ec2(t)
	if c.Len() != 1373 {
		t.Errorf("%d types, want 1373", c.Len())
	}
	for pattern, want := range map[string]int{"t3.*": 7, "c5.*": 9, "t3*": 14, "c5*": 41, "p5*": 4, "*": 1373, "nosuch.*": 0, "t3.micro": 1, "*.metal": 76, "t?.micro": 5} {
		got := c.Match(pattern)
		if pattern != "*.metal" && pattern != "t?.micro" && len(got) != want {
			t.Errorf("Match(%q) = %d types, want %d", pattern, len(got), want)
		}
		for i, ty := range got {
			if i > 0 && got[i-1].Name >= ty.Name {
				t.Errorf("Match(%q): %s before %s", pattern, got[i-1].Name, ty.Name)
			}
		}
	}
	var names []string
	for _, ty := range c.Match("t3.*") {
		names = append(names, ty.Name)
	}
	if got := strings.Join(names, " "); got != "t3.2xlarge t3.large t3.medium t3.micro t3.nano t3.small t3.xlarge" {
		t.Error(got)
	}
}

func TestCatalogueHardware(t *testing.T) {
	c := ec2(t)
	tests := []struct {
		name    string
		cores   coordinator.Cores
		threads uint32
		arch    string
		devices map[string]uint32
		price   string
	}{
		{"t3.micro", 1, 2, "amd64", nil, "0.0104"},
		{"c6g.medium", 1, 1, "arm64", nil, "0.034"},
		{"p5.48xlarge", 96, 192, "amd64", map[string]uint32{coordinator.DeviceNVIDIA: 8}, "55.04"},
		{"g4ad.16xlarge", 32, 64, "amd64", map[string]uint32{coordinator.DeviceAMD: 4}, "3.468"},
		{"g6f.large", 1, 2, "amd64", nil, "0.202"}, // a fraction is no device that anybody is given
		{"hpc7a.96xlarge", 192, 192, "amd64", nil, "unknown"},
	}
	for _, tt := range tests {
		ty, ok := c.Type(tt.name)
		if !ok {
			t.Errorf("%s is missing", tt.name)
			continue
		}
		h := ty.Hardware()
		if h == nil || !h.Estimated || h.Cores != tt.cores || h.Threads != tt.threads || h.Arch != tt.arch || !reflect.DeepEqual(h.Devices, tt.devices) {
			t.Errorf("%s: %+v", tt.name, h)
		}
		price := "unknown"
		if ty.CostPerHour != nil {
			price = fmt.Sprint(*ty.CostPerHour)
		}
		if price != tt.price {
			t.Errorf("%s costs %s, want %s", tt.name, price, tt.price)
		}
	}
	// Measured: exactly what a node reported.
	nano, _ := c.Type("t3.nano")
	if h := nano.Hardware(); nano.Shortfall == nil || h.Memory != 512<<20-*nano.Shortfall {
		t.Errorf("t3.nano: %+v", h)
	}
	if _, ok := c.Type("t3.*"); ok {
		t.Error("a pattern is not a type")
	}
}

// TestEstimateIsConservative: the rule for unmeasured types promises no more than what was
// measured, but for two sizes of one family, and does not give half of the machine away.
func TestEstimateIsConservative(t *testing.T) {
	measured := 0
	for _, ty := range ec2(t).types {
		if ty.Shortfall == nil || ty.Memory == nil || *ty.Shortfall == 0 {
			continue
		}
		measured++
		rule, node := Usable(*ty.Memory, ty.BareMetal), *ty.Memory-*ty.Shortfall
		if rule > node && ty.Name != "vt1.3xlarge" && ty.Name != "vt1.6xlarge" {
			t.Errorf("%s: the rule promises %d, the node had %d", ty.Name, rule, node)
		}
		if rule*100 < node*85 {
			t.Errorf("%s: the rule gives %d, the node had %d", ty.Name, rule, node)
		}
	}
	if measured < 500 {
		t.Errorf("only %d measured types", measured)
	}
}

func TestUnknownIsNotZero(t *testing.T) {
	head, _, _ := strings.Cut(ec2Facts, "\n")
	c, err := parseCatalogue(strings.NewReader(head + "\nx.a" + strings.Repeat("\t", 16) + "\nx.b\t2\t1\t2\t1024\tx86_64\tNVIDIA\t\t\t\t\t\tFalse\tFalse\t\t\t0\n"))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := c.Type("x.a")
	if a.Hardware() != nil || a.CostPerHour != nil || a.VCPUs != nil {
		t.Errorf("empty fields: %+v", a)
	}
	b, _ := c.Type("x.b")
	if h := b.Hardware(); h.Devices != nil || h.Memory >= 1<<30 {
		t.Errorf("a shortfall of 0 and an unknown number of GPUs: %+v", h)
	}
	for name, text := range map[string]string{
		"missing column": "type\tvcpus\nx\t1\n",
		"bad number":     head + "\nx.a\tmany" + strings.Repeat("\t", 15) + "\n",
		"twice":          head + "\nx.a" + strings.Repeat("\t", 16) + "\nx.a" + strings.Repeat("\t", 16) + "\n",
		"empty":          "",
	} {
		if _, err := parseCatalogue(strings.NewReader(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNearestTypes(t *testing.T) {
	c := ec2(t)
	for pattern, want := range map[string]string{"t3.mirco": "t3.micro", "t33.*": "t3.*", "p55.48xlarge": "p5.48xlarge"} {
		if got := c.Nearest(pattern, 3); len(got) == 0 || !strings.Contains(strings.Join(got, " "), want) {
			t.Errorf("Nearest(%q) = %v, want %s among them", pattern, got, want)
		}
	}
}

func TestGlobProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab.*?]{0,8}`).Draw(t, "pattern")
		s := rapid.StringMatching(`[ab.]{0,10}`).Draw(t, "s")
		if got, want := globMatch(pattern, s), naiveMatch(pattern, s); got != want {
			t.Fatalf("globMatch(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}

func naiveMatch(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return naiveMatch(p[1:], s) || s != "" && naiveMatch(p, s[1:])
	case s == "":
		return false
	}
	return (p[0] == '?' || p[0] == s[0]) && naiveMatch(p[1:], s[1:])
}

// TestCoreWeave: what is public of its types is what nodes said themselves, and no list of all.
func TestCoreWeave(t *testing.T) {
	c := CoreWeave()
	if c.Complete() || !slices.IsSorted(c.names) {
		t.Errorf("complete %t, names %v", c.Complete(), c.names)
	}
	h100, ok := c.Type("gd-8xh100ib-i128")
	want := &coordinator.Hardware{Cores: 64, Threads: 128, Memory: 2_112_109_804 << 10, Devices: map[string]uint32{coordinator.DeviceNVIDIA: 8}, Arch: "amd64", Estimated: true}
	if !ok || !reflect.DeepEqual(h100.Hardware(), want) {
		t.Errorf("%+v", h100.Hardware())
	}
	if cpu, ok := c.Type("turin-gp"); !ok || cpu.Hardware().Devices != nil || cpu.CostPerHour != nil {
		t.Errorf("%+v", cpu)
	}
}

func TestSet(t *testing.T) {
	s, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	if s.Of("aws").Len() != 1373 || !s.Of("aws").Complete() || s.Of("coreweave") == nil || s.Of("slurm") != nil {
		t.Error("the set that is built in")
	}
	var none *Set
	if none.Of("aws") != nil || (&Set{}).Of("aws") != nil {
		t.Error("an empty set has a catalogue")
	}
}
