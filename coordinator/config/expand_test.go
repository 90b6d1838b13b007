package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

func number(n uint32) *uint32 { return &n }

func size(gib uint64) *coordinator.Bytes { b := coordinator.Bytes(gib << 30); return &b }

// told is what built in catalogues and one place are known to have.
func told(t *testing.T, b spec.Backend, types ...catalogue.Type) *catalogue.Set {
	t.Helper()
	set, err := catalogue.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := (*catalogue.Provided)(nil).Merge(types, nil, func(string) bool { return false }, time.Unix(1_000_000, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	p.Kind, p.Target, p.Backend = b.Kind, b.Target(), b.Name
	if set, err = set.With(p); err != nil {
		t.Fatal(err)
	}
	return set
}

// TestToldTypes: wildcards of a cloud stand for what it tells of, as far as the spec can be for it.
func TestToldTypes(t *testing.T) {
	gcp := told(t, spec.Backend{Name: "g", Kind: spec.KindGCP, Project: "p"},
		catalogue.Type{Name: "n2-4", VCPUs: number(4), Cores: number(2), Memory: size(16), Arch: "amd64", Zones: []string{"r-a", "r-b"}},
		catalogue.Type{Name: "n2-8", VCPUs: number(8), Cores: number(4), Memory: size(32), Arch: "amd64", Zones: []string{"r-b"}},
		catalogue.Type{Name: "n2-odd", Arch: "amd64", GPUVendor: "nvidia", Fraction: true, UsageClasses: []string{"on-demand"}, BareMetal: true},
		catalogue.Type{Name: "t2a-4", VCPUs: number(4), Cores: number(4), Memory: size(16), Arch: "arm64"})
	oci := told(t, spec.Backend{Name: "o", Kind: spec.KindOCI, Compartment: "c"},
		catalogue.Type{Name: "VM.A.Flex", Flexible: true, ThreadsPerCore: number(2), Arch: "amd64"}, catalogue.Type{Name: "VM.B1", VCPUs: number(2), Cores: number(1), Memory: size(15), Arch: "amd64"})
	azure := told(t, spec.Backend{Name: "a", Kind: spec.KindAzure, Region: "westeurope"},
		catalogue.Type{Name: "Standard_NC4", VCPUs: number(4), Cores: number(2), Memory: size(28), Arch: "amd64", GPUs: number(1), UsageClasses: []string{"on-demand"}})
	backends := "backends: [{name: g, kind: gcp, project: p}, {name: o, kind: oci, compartment: c}, {name: a, kind: azure, region: westeurope}]\ndefinitions:\n"
	for _, tt := range []struct {
		name, kind, spec string
		known            *catalogue.Set
		want             string // ids with cores, threads, devices and source
		flags, without   string
	}{
		{"a zone", "gcp", "machineType: 'n2-?', zone: r-a", gcp, "n2-4 2/4 map[] provider", "price unknown", "not in r-a"},
		{"all", "gcp", "machineType: 'n2-?', costPerHour: 1", gcp, "n2-4 2/4 map[] provider, n2-8 4/8 map[] provider", "", ""},
		{"odd ones", "gcp", "machineType: 'n2-o*', spot: true, costPerHour: 1", gcp, "n2-odd unknown", "a fraction of a GPU, which counts as none; bare metal; not sold as spot", ""},
		{"architecture", "gcp", "machineType: '*-4', image: i, architecture: arm64, costPerHour: 1", gcp, "t2a-4 4/4 map[] provider", "architecture arm64", "not for an image of arm64"},
		{"accelerators", "gcp", "machineType: n2-8, accelerator: {type: nvidia-l4, count: 2}", gcp, "n2-8 4/8 map[nvidia.com/gpu:2] provider", "-", ""},
		{"an exact type that nobody tells of", "gcp", "machineType: n9-8", gcp, "n9-8 unknown", "-", ""},
		{"flexible", "oci", "shape: 'VM.*', ocpus: 3, memory: 8GiB", oci, "VM.A.Flex 3/6 map[] provider", "price unknown", "of a fixed size, and the spec says ocpus and memory"},
		{"fixed", "oci", "shape: 'VM.*'", oci, "VM.B1 1/2 map[] provider", "price unknown", "flexible, and the spec says neither ocpus nor memory"},
		{"GPUs of nobody", "azure", "vmSize: 'Standard_N*', location: West Europe, costPerHour: 1", azure, "Standard_NC4 2/4 map[] provider", "GPUs of an unknown make", ""},
		{"one flexible", "oci", "shape: VM.A.Flex, ocpus: 3, memory: 8GiB", oci, "VM.A.Flex 3/6 map[] provider", "-", ""},
	} {
		key := map[string]string{"gcp": "machineType", "oci": "shape", "azure": "vmSize"}[tt.kind]
		c, ds := Parse("c.yaml", []byte(backends+"  - {id: '${spec."+key+"}', provisioner: "+tt.kind+", provisionerSpec: {"+tt.spec+"}}\n"), Options{Catalogues: tt.known})
		if c == nil {
			t.Errorf("%s: %v", tt.name, ds)
			continue
		}
		var got []string
		for _, d := range c.Config.Definitions {
			row, _ := c.RowOf(d.ID)
			if h := d.Hardware; h == nil {
				got = append(got, string(d.ID)+" unknown")
			} else {
				got = append(got, fmt.Sprintf("%s %d/%d %v %s", d.ID, h.Cores, h.Threads, h.Devices, row.Source))
			}
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
		flags, without := "-", ""
		if list := c.Wildcards(-1); len(list) > 0 {
			flags, without = flagText(list[0].Flags), flagText(list[0].Without)
		}
		if flags != tt.flags || without != tt.without {
			t.Errorf("%s: flags %q and without %q, want %q and %q", tt.name, flags, without, tt.flags, tt.without)
		}
	}
}

// TestAnotherLocation: a backend's types are those of its own location.
func TestAnotherLocation(t *testing.T) {
	set := told(t, spec.Backend{Kind: spec.KindAzure, Region: "westeurope"}, catalogue.Type{Name: "Standard_D4"})
	text := "backends: [{name: a, kind: azure, region: westeurope}]\ndefinitions:\n  - {id: '${spec.vmSize}', provisioner: azure, provisionerSpec: {vmSize: 'Standard_*', location: eastus}}\n"
	if c, ds := Parse("c.yaml", []byte(text), Options{Catalogues: set}); c != nil || !strings.Contains(fmt.Sprint(ds.Errors()), "the types of eastus are not known") {
		t.Errorf("%v", ds)
	}
}

func flagText(list []Flagged) string {
	var out []string
	for _, f := range list {
		out = append(out, f.Flag)
	}
	return strings.Join(out, "; ")
}

// TestNothingLeft: a wildcard that stands for nothing is refused with the reasons; one that was accepted before costs its members alone.
func TestNothingLeft(t *testing.T) {
	set := told(t, spec.Backend{Kind: spec.KindGCP}, catalogue.Type{Name: "n2-4", Arch: "amd64", Zones: []string{"r-b"}})
	for _, tt := range []struct{ typ, zone, want string }{
		{"n2-*", "r-a", "n2-* matches 1 types and stands for none: not in r-a: n2-4"}, {"n9-*", "r-b", "no instance type matches n9-*"},
	} {
		text := []byte("definitions:\n  - {id: '${spec.machineType}', provisioner: gcp, provisionerSpec: {machineType: '" + tt.typ + "', zone: " + tt.zone + "}}\n" +
			"  - {id: s, provisioner: static, provisionerSpec: {condition: 'true'}}\n")
		if c, ds := Parse("c.yaml", text, Options{Catalogues: set}); c != nil || !strings.Contains(fmt.Sprint(ds.Errors()), tt.want) {
			t.Errorf("%v", ds)
		}
		c, ds := Parse("c.yaml", text, Options{Catalogues: set, Stored: true})
		if c == nil || len(c.Config.Definitions) != 1 || !strings.Contains(fmt.Sprint(ds), tt.want) {
			t.Errorf("stored: %v", ds)
		}
	}
}

// TestUnknownPlace: whoever knows why a place has no catalogue says so where the pattern stands.
func TestUnknownPlace(t *testing.T) {
	text := []byte("backends: [{name: g, kind: gcp, project: p}]\ndefinitions:\n  - {id: '${spec.machineType}', provisioner: gcp, provisionerSpec: {machineType: 'n2-*'}}\n")
	var asked []string
	_, ds := Parse("c.yaml", text, Options{Unknown: func(b spec.Backend) (string, string) {
		asked = append(asked, b.Name)
		return "it does not answer", "try again"
	}})
	e := ds.Errors()
	if fmt.Sprint(asked) != "[g]" || len(e) != 1 || e[0].Code != "wildcard" || e[0].Line != 3 || !strings.HasSuffix(e[0].Message, "to expand n2-*: it does not answer") || e[0].Hint != "try again" {
		t.Errorf("%v, %v", asked, ds)
	}
	if c, ds := Parse("c.yaml", text, Options{Stored: true}); c == nil || ds[0].Severity != strictyaml.SeverityWarning {
		t.Errorf("%v", ds)
	}
}

// TestWildcardsAreBounded: all are counted, and as many listed as asked for.
func TestWildcardsAreBounded(t *testing.T) {
	text := []byte("definitions:\n  - {id: '${spec.instanceType}', provisioner: aws, provisionerSpec: {instanceType: '*', spot: true}}\n")
	c, ds := Parse("c.yaml", text, Options{})
	if c == nil {
		t.Fatal(ds)
	}
	w := c.Wildcards(3)[0]
	if w.Count != 1373 || len(w.Members) != 3 || w.Source != "catalogue" || w.Version != 0 || w.Members[0].Definition != "a1.2xlarge" {
		t.Errorf("%+v", w)
	}
	counted := map[string]uint32{}
	for _, f := range w.Flags {
		counted[f.Flag] = f.Count
		if len(f.Types) > maxFlagged {
			t.Errorf("%s names %d types", f.Flag, len(f.Types))
		}
	}
	if counted["bare metal"] != 152 || counted["price unknown"] != 28 || counted["a fraction of a GPU, which counts as none"] == 0 || counted["not sold as spot"] == 0 || counted["architecture arm64"] < 396 {
		t.Errorf("%v", counted)
	}
	if text, err := json.Marshal(w); err != nil || len(text) > 4096 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if all := c.Wildcards(-1)[0]; len(all.Members) != 1373 {
		t.Errorf("%d of all members", len(all.Members))
	}
}
