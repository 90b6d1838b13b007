package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

var update = flag.Bool("update", false, "rewrite the expected part of testdata")

func ec2(t testing.TB) *catalogue.Set {
	t.Helper()
	c, err := catalogue.Embedded()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStories parses each input of testdata. The findings follow, and what an accepted
// configuration became. A name that begins with federate is read on a Federate cluster.
func TestStories(t *testing.T) {
	catalogue := ec2(t)
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, f := range files {
		ar, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(ar.Files); i += 2 {
			in, want := ar.Files[i], &ar.Files[i+1]
			t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar")+"/"+in.Name, func(t *testing.T) {
				c, ds := Parse("c.yaml", in.Data, Options{Catalogues: catalogue, Federate: strings.HasPrefix(in.Name, "federate")})
				if (c == nil) != (ds.Err() != nil) {
					t.Fatalf("a result exactly when there is no error: %v", ds)
				}
				got := describe(c, ds)
				if *update {
					want.Data = []byte(got)
				} else if got != string(want.Data) {
					t.Errorf("got\n%swant\n%s", got, want.Data)
				}
			})
		}
		if *update {
			if err := os.WriteFile(f, txtar.Format(ar), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func describe(c *Checked, ds strictyaml.Diagnostics) string {
	var b strings.Builder
	for _, d := range ds {
		fmt.Fprintf(&b, "%s %s %s\n", d.Severity, d.Code, d)
	}
	if c == nil {
		return b.String()
	}
	plain, _ := Parse("", []byte("{}"), Options{Catalogues: &catalogue.Set{}})
	show := func(name string, v, absent any) { // what differs from the defaults
		text, err := json.Marshal(v)
		other, _ := json.Marshal(absent)
		if err != nil {
			text = []byte(err.Error())
		}
		if s := string(text); s != string(other) && s != "[]" {
			fmt.Fprintf(&b, "%s %s\n", name, s)
		}
	}
	show("nodeAnnotations", c.Config.NodeAnnotations, plain.Config.NodeAnnotations)
	show("softwareTokens", c.Config.SoftwareTokens, plain.Config.SoftwareTokens)
	show("scheduler", c.Config.Scheduler, plain.Config.Scheduler)
	show("backends", c.Backends, plain.Backends)
	show("discovery", c.Discovery, plain.Discovery)
	show("retention", c.Retention, plain.Retention)
	show("webhooks", c.Webhooks, plain.Webhooks)
	show("lints", c.Lints, plain.Lints)
	for i, d := range c.Config.Definitions {
		if len(c.Config.Definitions) > 12 && i == 6 {
			fmt.Fprintf(&b, "... %d definitions in all\n", len(c.Config.Definitions))
			break
		}
		cost := "?"
		if d.CostPerHour != nil {
			cost = fmt.Sprintf("%g", *d.CostPerHour)
		}
		fmt.Fprintf(&b, "definition %s (%s) %s cost %s ttl %s compiled %v/%v", d.ID, d.Configured, d.Kind, cost, d.TTL,
			c.Conditions[d.ID] != nil, c.Policies[d.ID] != nil)
		if d.Hardware != nil {
			fmt.Fprintf(&b, " %d cores %s %v estimated=%v", d.Hardware.Cores, d.Hardware.Memory, d.Hardware.Devices, d.Hardware.Estimated)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestBadInput: what must be refused, and where.
func TestBadInput(t *testing.T) {
	def := "definitions:\n  - id: a\n    provisioner: static\n    provisionerSpec: {condition: 'true'}\n"
	tests := map[string]struct {
		in   string
		code string
		line int
	}{
		"unknown key":   {def + "definition: []\n", strictyaml.CodeUnknownKey, 5},
		"two documents": {def + "---\n" + def, strictyaml.CodeDocuments, 5},
		"tab":           {"definitions:\n\t- id: a\n", strictyaml.CodeTab, 2},
		"duplicate id":  {def + def[len("definitions:\n"):], "duplicate-id", 5},
		"duplicate key": {def + "definitions: []\n", strictyaml.CodeDuplicate, 5},
		"100 MB":        {strings.Repeat(" ", 100_000_000), strictyaml.CodeTooLarge, 0},
		"not UTF-8":     {"nodeAnnotations:\n  a: \xff\n", strictyaml.CodeEncoding, 2},
		"empty":         {"# nothing\n", strictyaml.CodeEmpty, 0},
		"wrong type":    {"definitions: {}\n", strictyaml.CodeType, 1},
		"nothing":       {"definitions:\n", strictyaml.CodeType, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := processorTime(t)
			c, ds := Parse("c.yaml", []byte(tt.in), Options{})
			errs := ds.Errors()
			if c != nil || len(errs) != 1 || errs[0].Code != tt.code || errs[0].Line != tt.line {
				t.Errorf("got %v, want %s on line %d", ds, tt.code, tt.line)
			}
			if d := processorTime(t) - before; d > 5*time.Second {
				t.Errorf("took %v of processor time", d)
			}
		})
	}
}

func TestExpansion(t *testing.T) {
	c, ds := Parse("c.yaml", []byte(`definitions:
  - id: z-${spec.instanceType}
    provisioner: aws
    annotations: {tier: small}
    provisionerSpec: {instanceType: t3.*, spot: true}
    policy: request.job_kind == "job"
  - id: fixed
    provisioner: aws
    provisionerSpec: {instanceType: p5.48xlarge, costPerHour: 70}
    policy: request.job_kind == "job"
`), Options{})
	if c == nil {
		t.Fatal(ds)
	}
	var ids []string
	for _, d := range c.Config.Definitions {
		ids = append(ids, string(d.ID))
	}
	want := "z-t3.2xlarge z-t3.large z-t3.medium z-t3.micro z-t3.nano z-t3.small z-t3.xlarge fixed"
	if got := strings.Join(ids, " "); got != want {
		t.Errorf("ids %s, want %s", got, want)
	}
	nano, p5 := c.Config.Definitions[4], c.Config.Definitions[7]
	if nano.Configured != "z-${spec.instanceType}" || nano.Instance != "t3.nano" || nano.Spec.(spec.AWS).InstanceType != "t3.nano" ||
		!nano.Spec.(spec.AWS).Spot || *nano.CostPerHour != 0.0052 || !nano.Hardware.Estimated {
		t.Errorf("%+v", nano)
	}
	if *p5.CostPerHour != 70 || p5.Hardware.Devices[coordinator.DeviceNVIDIA] != 8 {
		t.Errorf("%+v", p5)
	}
	if c.Policies["z-t3.nano"] != c.Policies["fixed"] || c.Policies["fixed"] == nil {
		t.Error("one source must be compiled once")
	}
	if nano.Fingerprint == p5.Fingerprint || nano.Fingerprint != c.Config.Definitions[0].Fingerprint {
		t.Error("expansions share the fingerprint of what is written")
	}
	if place := c.Places["z-t3.nano"]; place != (Place{2, 5, "definitions[0]"}) {
		t.Errorf("%+v", place)
	}
	if b, ok := c.BackendOf("fixed"); !ok || b.Kind != spec.KindAWS || b.Name != "" {
		t.Errorf("%+v", b)
	}
}

// TestOtherCatalogues: what is known of a type of other kinds, and what the text itself says.
func TestOtherCatalogues(t *testing.T) {
	c, ds := Parse("c.yaml", []byte(`definitions:
  - {id: h100, provisioner: coreweave, provisionerSpec: {instanceType: gd-8xh100ib-i128, costPerHour: 15.5}}
  - {id: new, provisioner: coreweave, provisionerSpec: {instanceType: gd-8xb900}}
  - {id: flex, provisioner: oci, provisionerSpec: {shape: VM.Standard.E4.Flex, ocpus: 4, memory: 64GiB}}
`), Options{})
	if c == nil {
		t.Fatal(ds)
	}
	defs := c.Config.Definitions
	if h := defs[0].Hardware; h == nil || h.Cores != 64 || h.Devices[coordinator.DeviceNVIDIA] != 8 || *defs[0].CostPerHour != 15.5 {
		t.Errorf("h100: %+v", h)
	}
	if defs[1].Hardware != nil || defs[1].CostPerHour != nil {
		t.Errorf("a type that nobody knows: %+v", defs[1])
	}
	if h := defs[2].Hardware; h == nil || h.Cores != 4 || h.Memory >= 61<<30 || h.Memory < 60<<30 || !h.Estimated {
		t.Errorf("flex: %+v", h)
	}
}

func TestTooManyExpansions(t *testing.T) {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i := range 80 {
		fmt.Fprintf(&b, "  - {id: 'd%d-${spec.instanceType}', provisioner: aws, provisionerSpec: {instanceType: '*'}}\n", i)
	}
	c, ds := Parse("c.yaml", []byte(b.String()), Options{})
	if c != nil || len(ds.Errors()) != 1 || ds.Errors()[0].Code != strictyaml.CodeTooLarge || ds.Errors()[0].Line != 74 {
		t.Errorf("%v", ds.Errors())
	}
}

func TestPreviousLendsPrograms(t *testing.T) {
	text := "scheduler: {priority: age_seconds * 2}\ndefinitions:\n  - {id: a, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores > 4}}\n"
	first, ds := Parse("c.yaml", []byte(text), Options{})
	if first == nil {
		t.Fatal(ds)
	}
	second, _ := Parse("c.yaml", []byte(text+"  - {id: b, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores > 5}}\n"), Options{Previous: first})
	if second == nil || second.Conditions["a"] != first.Conditions["a"] || second.Conditions["b"] == nil || second.Priority != first.Priority {
		t.Error("a condition of the same text was compiled again")
	}
	if second.SHA256 == first.SHA256 || len(second.SHA256) != 64 {
		t.Error("digest")
	}
}

func TestDefaults(t *testing.T) {
	c, ds := Parse("c.yaml", []byte("{}"), Options{})
	if c == nil || len(ds) != 0 {
		t.Fatal(ds)
	}
	s := c.Config.Scheduler
	if s.PreemptionEnabled || s.PreemptionGap != 10 || s.PreemptionThreshold != 0 || s.PreemptionNotice != time.Minute || s.MinPreemptionRuntime != 0 ||
		s.Backfill != coordinator.BackfillNone || s.NodeLossWindow != time.Minute || s.KillTimeout != 10*time.Second || s.MaintenanceNotice != 7*24*time.Hour || s.QueueDepth != 0 ||
		len(s.IgnoredAnnotations) != 0 || s.FederationPriorityRouting || s.MaxWalltime[coordinator.ClassBatch] != 24*time.Hour ||
		s.MaxWalltime[coordinator.ClassReserved] != 24*time.Hour || s.MaxWalltime[coordinator.ClassOnDemand] != 24*time.Hour {
		t.Errorf("%+v", s)
	}
	if c.Priority == nil || *c.Retention.Logs != 30*24*time.Hour || c.Retention.Events != 0 || c.Discovery.BudgetPerDay != nil {
		t.Errorf("%+v", c)
	}
}

// TestDeterministic: the same bytes give the same findings, whatever the order of maps and
// of goroutines.
func TestDeterministic(t *testing.T) {
	in := manyDefinitions(400, "cpuinfo.cpu_cors >= 1")
	_, first := Parse("c.yaml", in, Options{})
	for range 5 {
		if _, ds := Parse("c.yaml", in, Options{}); ds.Error() != first.Error() {
			t.Fatal("two readings differ")
		}
	}
	if len(first.Errors()) != 200 || first[200].Code != strictyaml.CodeTooMany {
		t.Errorf("%d errors", len(first.Errors()))
	}
}

func TestCodeOnly(t *testing.T) {
	for in, want := range map[string]string{
		`a == "b // c" // d`: `a ==                `[:5] + strings.Repeat(" ", 13),
		"a /* x\ny */ + `q`": "a     \n     +    ",
		`'it\'s' + x`:        `        + x`,
		`"open`:              `     `,
		"// all":             "      ",
		`x["k"] /* open`:     `x[   ]        `,
	} {
		if got := codeOnly(in); got != want {
			t.Errorf("codeOnly(%q) = %q, want %q", in, got, want)
		}
	}
}

func manyDefinitions(n int, also string) []byte {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i := range n {
		fmt.Fprintf(&b, `  - id: node-%05d
    provisioner: static
    annotations:
      node.class: "compute"
      site.row: "r%d"
      site.rack: "k%d"
    provisionerSpec:
      condition: |-
        hostname() matches "^n%05d-[0-9]{3}$" &&
        cpuinfo.vendor_id == "GenuineIntel" &&
        cpuinfo.cpu_cores >= 16 &&
        osrelease.id == "rocky" && %s
      costPerHour: 0.40
    policy: |-
      request.owner.organization_id in ["physics", "chemistry"] &&
      request.job_resource.cpu.cores <= %d
`, i, i/100, i/10, i, also, 1+i%64)
	}
	return []byte(b.String())
}

// TestTenThousandDefinitions guards the bar of BenchmarkParse10000 by processor time, which
// other programs on the machine do not change.
func TestTenThousandDefinitions(t *testing.T) {
	in := manyDefinitions(10_000, "true")
	catalogue := ec2(t)
	before := processorTime(t)
	c, ds := Parse("c.yaml", in, Options{Catalogues: catalogue})
	d := processorTime(t) - before
	if c == nil || len(c.Config.Definitions) != 10_000 || len(c.Conditions) != 10_000 {
		t.Fatal(ds)
	}
	t.Logf("%d bytes in %v of processor time", len(in), d)
	if d > 20*time.Second*raceSlowdown {
		t.Errorf("took %v of processor time", d)
	}
}

func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkParse10000(b *testing.B) {
	in := manyDefinitions(10_000, "true")
	catalogue := ec2(b)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		if c, ds := Parse("c.yaml", in, Options{Catalogues: catalogue}); c == nil {
			b.Fatal(ds)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("definitions:\n  - id: a-${spec.instanceType}\n    provisioner: aws\n    provisionerSpec: {instanceType: t3.*}\n"))
	f.Add([]byte("definitions:\n  - {id: a, provisioner: static, provisionerSpec: {condition: >-\n      true // x\n      && false}}\n"))
	f.Add([]byte("scheduler: {priority: '1/0', maxWalltime: {batch: 1h}}\nlints: {silence: [short-ttl]}\n"))
	f.Add([]byte("backends: [{name: a, kind: pbs}]\ndefinitions: [{id: '${', provisioner: pbs, provisionerSpec: {cpu: 1, memory: 1GiB}}]\n"))
	catalogue := ec2(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c, ds := Parse("f.yaml", data, Options{Catalogues: catalogue})
		if (c == nil) != (ds.Err() != nil) {
			t.Fatalf("a result exactly when there is no error: %v", ds)
		}
		if c == nil {
			return
		}
		seen := map[coordinator.DefinitionID]bool{}
		for _, d := range c.Config.Definitions {
			if seen[d.ID] || !validID(string(d.ID)) || d.Fingerprint == "" || spec.Wildcard(d.Instance) {
				t.Fatalf("accepted %+v", d)
			}
			seen[d.ID] = true
			if d.Kind == spec.KindStatic && c.Conditions[d.ID] == nil || d.Policy != "" && c.Policies[d.ID] == nil {
				t.Fatalf("not compiled: %+v", d)
			}
		}
	})
}
