package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/expr"
	"substrate/hwinfo"
)

func ptr[T any](v T) *T { return &v }

// machine is a node of some kind: enough devices and flags to cost what real ones cost.
type machine struct {
	vendor, model  string
	sockets, cores int
	memory         uint64
	gpus           int
	os             string
}

func kindsOfMachine() []machine {
	return []machine{
		{"GenuineIntel", "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 2, 40, 192 << 30, 0, "rocky"},
		{"GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+", 2, 112, 512 << 30, 0, "rocky"},
		{"AuthenticAMD", "AMD EPYC 7763 64-Core Processor", 2, 128, 1024 << 30, 0, "ubuntu"},
		{"AuthenticAMD", "AMD EPYC 9654 96-Core Processor", 2, 192, 1536 << 30, 0, "ubuntu"},
		{"AuthenticAMD", "AMD EPYC 7763 64-Core Processor", 2, 128, 1024 << 30, 4, "ubuntu"},
		{"GenuineIntel", "Intel(R) Xeon(R) Platinum 8480+", 2, 112, 2048 << 30, 8, "ubuntu"},
		{"ARM", "Neoverse-V2", 1, 72, 480 << 30, 1, "ubuntu"},
		{"GenuineIntel", "Intel(R) Xeon(R) E-2388G CPU @ 3.20GHz", 1, 8, 64 << 30, 0, "debian"},
	}
}

func (m machine) facts(host string) hwinfo.Facts {
	arch := "amd64"
	if m.vendor == "ARM" {
		arch = "arm64"
	}
	f := hwinfo.Facts{Hostname: host, FQDN: host + ".example.org"}
	f.CPU = hwinfo.CPU{Arch: arch, VendorID: m.vendor, ModelName: m.model, Cores: ptr(m.cores), Sockets: ptr(m.sockets),
		LogicalCPUs: ptr(2 * m.cores), ThreadsPerCore: ptr(2), NUMANodes: ptr(m.sockets), Family: ptr(6), Model: ptr(85), Stepping: ptr(7)}
	for i := range 120 {
		f.CPU.Flags = append(f.CPU.Flags, fmt.Sprintf("flag%03d", i))
	}
	f.Memory.Total = ptr(m.memory - m.memory/50)
	f.OSRelease = hwinfo.OSRelease{ID: m.os, VersionID: "9.4", PrettyName: m.os + " 9.4"}
	f.Uname = hwinfo.Uname{Sysname: "Linux", Release: "6.1.0", Machine: "x86_64"}
	for i := range 40 {
		f.PCI = append(f.PCI, hwinfo.PCI{Address: fmt.Sprintf("0000:00:%02x.0", i), Vendor: ptr(uint16(0x8086)), Device: ptr(uint16(0x2000 + i)),
			Class: ptr(uint32(0x060000)), Modalias: fmt.Sprintf("pci:v00008086d%08Xsv00000000sd00000000bc06sc00i00", 0x2000+i)})
	}
	f.PCI = append(f.PCI, hwinfo.PCI{Address: "0000:01:00.0", Vendor: ptr(uint16(0x15b3)), Device: ptr(uint16(0x101b)), Class: ptr(uint32(0x020700)),
		Modalias: "pci:v000015B3d0000101Bsv000015B3sd00000007bc02sc07i00"})
	for i := range m.gpus {
		addr := fmt.Sprintf("0000:%02x:00.0", 0x20+i)
		f.PCI = append(f.PCI, hwinfo.PCI{Address: addr, Vendor: ptr(uint16(0x10de)), Device: ptr(uint16(0x20b2)), Class: ptr(uint32(0x030200)),
			Modalias: "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00"})
		f.GPUs = append(f.GPUs, hwinfo.GPU{Address: addr, Vendor: "nvidia", Resource: "nvidia.com/gpu", Model: "NVIDIA A100-SXM4-80GB", Driver: true})
	}
	return f
}

// planted is a fleet with the faults that were put into it.
type planted struct {
	nodes    []Node
	overlaps map[coordinator.NodeID]string // node → loser
	drifts   map[coordinator.NodeID]string // node → what differs
	unknown  map[coordinator.NodeID]bool
}

// fleetConfig has one definition for each kind, and one below them that overlaps with some hosts.
func fleetConfig() string {
	var b strings.Builder
	b.WriteString("definitions:\n")
	for i, m := range kindsOfMachine() {
		fmt.Fprintf(&b, "  - id: kind%d\n    provisioner: static\n    provisionerSpec:\n      costPerHour: %d\n      condition: |-\n        hostname() matches \"^k%d-[0-9]{4}$\" &&\n        cpuinfo.cpu_cores >= %d &&\n        osrelease.id == %q\n",
			i, i+1, i, m.cores-4, m.os)
	}
	for i := range 40 { // that no node matches
		fmt.Fprintf(&b, "  - id: idle%d\n    provisioner: static\n    provisionerSpec: {condition: 'cpuinfo.cpu_cores == %d && modalias.match(\"pci:v000010DEd0000%04Xsv*\")'}\n", i, 1000+i, i)
	}
	b.WriteString("  - id: late\n    provisioner: static\n    provisionerSpec:\n      condition: hostname() matches \"[05]7$\"\n")
	return b.String()
}

func plant(seed uint64, n int) planted {
	r := rand.New(rand.NewPCG(seed, 1))
	p := planted{overlaps: map[coordinator.NodeID]string{}, drifts: map[coordinator.NodeID]string{}, unknown: map[coordinator.NodeID]bool{}}
	kinds := kindsOfMachine()
	first := map[int]bool{}
	for i := range n {
		k := i % len(kinds)
		m := kinds[k]
		id := fmt.Sprintf("k%d-%04d", k, i)
		what := ""
		if first[k] { // the first of a kind is what the others are compared with
			switch r.IntN(40) {
			case 0:
				m.memory, what = m.memory/2, "memory"
			case 1:
				m.cores, what = m.cores-2, "topology"
			case 2:
				m.gpus, what = m.gpus+1, "gpus"
			}
		}
		first[k] = true
		f := m.facts(id)
		if strings.HasSuffix(id, "07") || strings.HasSuffix(id, "57") {
			p.overlaps[coordinator.NodeID(id)] = "late"
		}
		if what == "" && r.IntN(60) == 0 {
			f.OSRelease.ID = ""
			p.unknown[coordinator.NodeID(id)] = true
			delete(p.overlaps, coordinator.NodeID(id))
		} else if what != "" {
			p.drifts[coordinator.NodeID(id)] = what
		}
		p.nodes = append(p.nodes, Node{ID: coordinator.NodeID(id), Facts: f, Known: true})
	}
	r.Shuffle(n, func(i, j int) { p.nodes[i], p.nodes[j] = p.nodes[j], p.nodes[i] })
	return p
}

func parse(t testing.TB, text string) *config.Checked {
	t.Helper()
	c, ds := config.Parse("c.yaml", []byte(text), config.Options{Catalogues: &catalogue.Set{}})
	if c == nil {
		t.Fatal(ds)
	}
	return c
}

func judge(t testing.TB, c *config.Checked, nodes []Node) *Judgement {
	t.Helper()
	j, err := Judge(t.Context(), c, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestPlantedFaults: every overlap, drift and missing fact of a fleet of 2,000 is found, and nothing else.
func TestPlantedFaults(t *testing.T) {
	c := parse(t, fleetConfig())
	for seed := range uint64(3) {
		p := plant(seed, 2000)
		j := judge(t, c, p.nodes)
		if len(p.overlaps) < 20 || len(p.drifts) < 50 || len(p.unknown) < 10 {
			t.Fatalf("too little is planted: %d, %d, %d", len(p.overlaps), len(p.drifts), len(p.unknown))
		}
		overlaps, drifts, unknown := map[coordinator.NodeID]string{}, map[coordinator.NodeID]string{}, map[coordinator.NodeID]bool{}
		for i, n := range j.Nodes {
			if others := j.Conflicts(i); len(others) > 0 {
				overlaps[n.ID] = joined(others)
			}
			if len(j.verdicts[i].uncertain) > 0 {
				unknown[n.ID] = true
			}
		}
		for i, text := range j.differs {
			if text != "" {
				drifts[j.Nodes[i].ID], _, _ = strings.Cut(text, ":")
			}
		}
		for name, pair := range map[string][2]string{"overlaps": {fmt.Sprint(overlaps), fmt.Sprint(p.overlaps)},
			"drifts": {fmt.Sprint(drifts), fmt.Sprint(p.drifts)}, "unknown": {fmt.Sprint(unknown), fmt.Sprint(p.unknown)}} {
			if pair[0] != pair[1] {
				t.Errorf("seed %d: %s\n got %s\nwant %s", seed, name, pair[0], pair[1])
			}
		}
		plan := Compare(nil, j)
		total := func(list []Drift) (n uint32) {
			for _, d := range list {
				n += d.Count
			}
			return n
		}
		if total(plan.Drifts) != uint32(len(p.drifts)) {
			t.Errorf("seed %d: the plan counts %d drifting nodes, %d were planted", seed, total(plan.Drifts), len(p.drifts))
		}
		var over uint32
		for _, o := range plan.Overlaps {
			over += o.Count
			if o.OtherLines[0] == 0 || o.Line == 0 || o.Line > o.OtherLines[0] {
				t.Errorf("lines %d and %v", o.Line, o.OtherLines)
			}
		}
		if over != uint32(len(p.overlaps)) {
			t.Errorf("seed %d: the plan counts %d overlaps, %d were planted", seed, over, len(p.overlaps))
		}
	}
}

// TestJudgeAgreesWithEach: what is evaluated once for a kind is what each node would have said.
func TestJudgeAgreesWithEach(t *testing.T) {
	c := parse(t, fleetConfig()+`  - id: fails
    provisioner: static
    provisionerSpec: {condition: 'int(split(hostname(), "-")[1]) > 900 || cpuinfo.cpu_cores > 100'}
  - id: either
    provisioner: static
    provisionerSpec: {condition: 'cpuinfo.cpu_cores > 100 || hostname() startsWith "k0"'}
`)
	p := plant(7, 400)
	p.nodes[3].Facts.Hostname = "nodash"
	p.nodes[4].Facts.Hostname = ""
	p.nodes[5].Facts = hwinfo.Facts{}
	j := judge(t, c, p.nodes)
	for i, n := range j.Nodes {
		env := expr.NewNodeEnv(n.Facts)
		var matched, uncertain []int32
		for at, condition := range j.conditions {
			switch condition.Match(env) {
			case expr.True:
				matched = append(matched, int32(at))
			case expr.Unknown:
				uncertain = append(uncertain, int32(at))
			}
		}
		if !slices.Equal(matched, j.verdicts[i].matched) {
			t.Errorf("%s: %v, alone %v", n.ID, j.verdicts[i].matched, matched)
		}
		for _, at := range uncertain {
			if !slices.Contains(j.verdicts[i].uncertain, at) {
				t.Errorf("%s: condition %d is unknown alone", n.ID, at)
			}
		}
	}
}

func TestJudgeStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Judge(ctx, parse(t, fleetConfig()), plant(1, 50).nodes); err == nil {
		t.Error("no error of a context that is over")
	}
}

func TestCompare(t *testing.T) {
	was := parse(t, `nodeAnnotations: {a: b}
definitions:
  - {id: gone, provisioner: static, provisionerSpec: {condition: hostname() == "n1", costPerHour: 1}}
  - {id: kept, provisioner: static, provisionerSpec: {condition: 'hostname() in ["n2", "n3"]', costPerHour: 2}}
  - {id: same, provisioner: static, provisionerSpec: {condition: hostname() == "n5"}}
`)
	now := parse(t, `definitions:
  - {id: same, provisioner: static, provisionerSpec: {condition: hostname() == "n5"}}
  - {id: kept, provisioner: static, policy: request.nodes == 1, provisionerSpec: {condition: hostname() == "n2", costPerHour: 3}}
  - {id: new, provisioner: static, provisionerSpec: {condition: 'hostname() in ["n3", "n4"]'}}
`)
	var nodes []Node
	for i, d := range []string{"gone", "kept", "kept", "", "same"} {
		id := fmt.Sprintf("n%d", i+1)
		nodes = append(nodes, Node{ID: coordinator.NodeID(id), Facts: kindsOfMachine()[0].facts(id), Known: true, Definition: coordinator.DefinitionID(d)})
	}
	p := Compare(was, judge(t, now, nodes))
	got := fmt.Sprint(p.Changed, p.NodesMoved, p.Unassigned, p.Settings, p.Definitions, p.Moves)
	want := "true 3 1 [nodeAnnotations definitions (order)] [{gone removed []} {kept changed [policy condition costPerHour]} {new added []}] " +
		"[{ new {1 [n4]}} {gone  {1 [n1]}} {kept new {1 [n3]}}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if *p.Before.PerHour != 5 || p.Before.Unpriced != 1 || *p.After.PerHour != 3 || p.After.Unpriced != 3 || *p.After.Highest != 3 {
		t.Errorf("cost %+v %+v", p.Before, p.After)
	}
	for i := range nodes {
		nodes[i].Definition = judge(t, was, nodes).Assigned(i)
	}
	if p := Compare(was, judge(t, was, nodes)); p.Changed || len(p.Moves)+len(p.Definitions)+len(p.Settings) > 0 {
		t.Errorf("the same configuration changes something: %+v", p)
	}
}

// TestLints: what the known nodes show, with its place.
func TestLints(t *testing.T) {
	nodes := []Node{{ID: "a1", Known: true}, {ID: "a2", Known: true}, {ID: "b1", Known: true}, {ID: "silent"}}
	for i := range 3 {
		nodes[i].Facts = kindsOfMachine()[i].facts(string(nodes[i].ID))
	}
	nodes[1].Facts.OSRelease.ID = ""
	text := `definitions:
  - id: a
    provisioner: static
    provisionerSpec: {condition: 'hostname() startsWith "a"'}
  - id: nobody
    provisioner: static
    provisionerSpec:
      condition: |-
        osrelease.id == "plan9"
  - id: all
    provisioner: static
    provisionerSpec:
      condition: cpuinfo.cpu_cores > 1
  - id: b
    provisioner: static
    provisionerSpec: {condition: hostname() == "b1"}
`
	var b strings.Builder
	for _, d := range judge(t, parse(t, text), nodes).Lints("c.yaml") {
		fmt.Fprintf(&b, "%s %s\n", d.Code, d)
	}
	want := `mixed-hardware c.yaml:4:35: definitions[0].provisionerSpec.condition: its nodes are not alike: a2: cpu: amd64 GenuineIntel Intel(R) Xeon(R) Platinum 8480+, expected amd64 GenuineIntel Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz; topology: 2 sockets, 112 cores, 224 CPUs, expected 2 sockets, 40 cores, 80 CPUs; memory: 538760697611 bytes, expected 202035261604 bytes, as a1 has (one definition for each kind of hardware; ` + "`substrate cluster config suggest` drafts them)" + `
true-on-no-node c.yaml:9:9: definitions[1].provisionerSpec.condition: the condition is true on none of the 3 known nodes; on 1 of them a fact that it reads is absent (see why with ` + "`substrate cluster config test`, or `substrate node explain` once it is set)" + `
overlap c.yaml:13:18: definitions[2].provisionerSpec.condition: the condition is true on a1, a2 too, which a on line 2 gets: it stands first in the file (make one of the two conditions narrower)
true-on-every-node c.yaml:13:18: definitions[2].provisionerSpec.condition: the condition is true on all 3 known nodes, so no definition below it gets one (say what sets these nodes apart, or put the definition last)
overlap c.yaml:16:34: definitions[3].provisionerSpec.condition: the condition is true on b1 too, which all on line 10 gets: it stands first in the file (make one of the two conditions narrower)
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	silent := "lints: {silence: [overlap, mixed-hardware, true-on-no-node, true-on-every-node]}\n" + text
	if ds := judge(t, parse(t, silent), nodes).Lints("c.yaml"); len(ds) > 0 {
		t.Errorf("silenced: %v", ds)
	}
	if ds := judge(t, parse(t, text), nil).Lints("c.yaml"); len(ds) > 0 {
		t.Errorf("without nodes: %v", ds)
	}
}

func BenchmarkPlan2000(b *testing.B) {
	c := parse(b, fleetConfig())
	p := plant(1, 2000)
	for b.Loop() {
		j := judge(b, c, p.nodes)
		if plan := Compare(nil, j); len(plan.Overlaps) == 0 || len(j.Lints("c.yaml")) == 0 {
			b.Fatal(plan)
		}
	}
}
