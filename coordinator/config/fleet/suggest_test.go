package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
)

// TestSuggestedDefinitionsHold: whatever the fleet, the draft is a configuration without errors, and each of its
// conditions is true on exactly the nodes that it is for.
func TestSuggestedDefinitionsHold(t *testing.T) {
	catalogue := &catalogue.Set{}
	rapid.Check(t, func(t *rapid.T) {
		var nodes []Node
		for i := range rapid.IntRange(0, 14).Draw(t, "nodes") {
			m := rapid.SampledFrom(kindsOfMachine()).Draw(t, "kind")
			id := fmt.Sprintf("%s%02d", rapid.SampledFrom([]string{"a", "b-", "x.y"}).Draw(t, "name"), i)
			if rapid.Bool().Draw(t, "half") {
				m.memory /= 2
			}
			n := Node{ID: coordinator.NodeID(id), Facts: m.facts(id), Known: true}
			switch rapid.IntRange(0, 11).Draw(t, "flaw") {
			case 0:
				n.Facts.Hostname = ""
			case 1:
				n.Facts.CPU.ModelName = "odd \"model\" \\ name: #1\u00e9 "
			case 2:
				n.Facts.PCI, n.Facts.GPUs = nil, nil
			case 3:
				n.Facts.CPU.Cores = nil
			case 4:
				n.Known = false
			case 5:
				n.Definition = "there"
			}
			nodes = append(nodes, n)
		}
		s := Suggest(nodes, []coordinator.DefinitionID{"intel-40c-192g"})
		c, ds := config.Parse("draft.yaml", []byte(s.YAML), config.Options{Catalogues: catalogue})
		if c == nil || len(ds.Warnings()) > 0 {
			t.Fatalf("%v\n%s", ds, s.YAML)
		}
		j, err := Judge(t.Context(), c, nodes)
		if err != nil {
			t.Fatal(err)
		}
		covered := map[coordinator.DefinitionID]uint32{}
		left := strings.Join(s.LeftOut, "\n")
		for i, n := range j.Nodes {
			id := j.Assigned(i)
			covered[id]++
			if len(j.Conflicts(i)) > 0 {
				t.Fatalf("%s matches %s and %v\n%s", n.ID, id, j.Conflicts(i), s.YAML)
			}
			if wants := n.Known && n.Definition == "" && measured(n.Facts); id != "" && !wants {
				t.Fatalf("%s got %s\n%s", n.ID, id, s.YAML)
			} else if id == "" && wants && !strings.Contains(left, string(n.ID)) && !strings.Contains(left, "more") {
				t.Fatalf("%s got nothing, and nothing is said of it\n%s", n.ID, s.YAML)
			}
		}
		for _, d := range s.Definitions {
			if covered[d.Definition] != d.Count || d.Definition == "intel-40c-192g" {
				t.Fatalf("%s is true on %d nodes, drafted for %d\n%s", d.Definition, covered[d.Definition], d.Count, s.YAML)
			}
		}
	})
}

func TestSuggestReads(t *testing.T) {
	var nodes []Node
	add := func(kind int, hosts ...string) {
		for _, h := range hosts {
			nodes = append(nodes, Node{ID: coordinator.NodeID(h), Facts: kindsOfMachine()[kind].facts(h), Known: true})
		}
	}
	add(0, "c1", "c2")
	add(2, "e1")
	add(4, "g1", "g2")
	for _, h := range []string{"h1", "h2"} { // like c1 and c2 but for their memory, which no condition can read
		f := kindsOfMachine()[0].facts(h)
		*f.Memory.Total *= 2
		nodes = append(nodes, Node{ID: coordinator.NodeID(h), Facts: f, Known: true})
	}
	got := Suggest(nodes, nil)
	want := `definitions:
  # Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz, 2 sockets, 40 cores, 188.16 GiB: c1, c2
  - id: "intel-40c-192g"
    provisioner: static
    provisionerSpec:
      condition: |-
        cpuinfo.model_name == "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz" &&
        cpuinfo.sockets == 2 &&
        cpuinfo.cpu_cores == 40 &&
        hostname() matches "^c[0-9]+$"
  # AMD EPYC 7763 64-Core Processor, 2 sockets, 128 cores, 1003.52 GiB: e1
  - id: "amd-128c-1024g"
    provisioner: static
    provisionerSpec:
      condition: |-
        cpuinfo.model_name == "AMD EPYC 7763 64-Core Processor" &&
        cpuinfo.sockets == 2 &&
        cpuinfo.cpu_cores == 128 &&
        !modalias.match("pci:v*bc03sc*i*")
  # AMD EPYC 7763 64-Core Processor, 2 sockets, 128 cores, 1003.52 GiB, 4 × NVIDIA A100-SXM4-80GB: g1, g2
  - id: "amd-128c-1024g-a100x4"
    provisioner: static
    provisionerSpec:
      condition: |-
        cpuinfo.model_name == "AMD EPYC 7763 64-Core Processor" &&
        cpuinfo.sockets == 2 &&
        cpuinfo.cpu_cores == 128 &&
        modalias.count("pci:v000010DEd000020B2sv*sd*bc03sc*i*") == 4
  # Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz, 2 sockets, 40 cores, 376.32 GiB: h1, h2
  - id: "intel-40c-384g"
    provisioner: static
    provisionerSpec:
      condition: |-
        cpuinfo.model_name == "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz" &&
        cpuinfo.sockets == 2 &&
        cpuinfo.cpu_cores == 40 &&
        hostname() matches "^h[0-9]+$"
`
	if got.YAML != want {
		t.Errorf("got\n%s", got.YAML)
	}
}

// TestTry: who would get what, and why not.
func TestTry(t *testing.T) {
	c := parse(t, `definitions:
  - id: gpu
    provisioner: static
    annotations: {tier: fast}
    policy: request.owner.organization_id == "ml" && request.job_ttl <= 7200
    provisionerSpec: {condition: 'modalias.match("pci:v000010DE*")', costPerHour: 3}
  - {id: plain, provisioner: static, provisionerSpec: {condition: 'hostname() == "c1"', costPerHour: 1}}
  - {id: cloud, provisioner: aws, provisionerSpec: {instanceType: x9.new, costPerHour: 9}}
`)
	var nodes []Node
	for h, kind := range map[string]int{"c1": 0, "g1": 4, "odd": 7} {
		n := Node{ID: coordinator.NodeID(h), Facts: kindsOfMachine()[kind].facts(h), Known: true, Keys: map[string]string{"nvidia.com/gpu.model": "A100"}}
		n.Capacity = &coordinator.Hardware{Cores: coordinator.Cores(*n.Facts.CPU.Cores), Threads: uint32(*n.Facts.CPU.LogicalCPUs), Memory: 64 << 30,
			Devices: map[string]uint32{"nvidia.com/gpu": uint32(len(n.Facts.GPUs))}}
		nodes = append(nodes, n)
	}
	job := func(name string, r coordinator.Resources, match map[string]string) coordinator.JobSpec {
		return coordinator.JobSpec{Name: name, Kind: coordinator.KindJob, Class: coordinator.ClassOnDemand, Nodes: 1, Resources: r, Match: match, Walltime: 3600e9}
	}
	long := job("long", coordinator.Resources{Cores: 41}, nil)
	long.Walltime = 0
	w := &coordinator.WorkflowSpec{Jobs: []coordinator.JobSpec{
		job("small", coordinator.Resources{Cores: 1}, nil),
		job("gpu", coordinator.Resources{Cores: 1, Devices: map[string]uint32{"nvidia.com/gpu": 4}}, map[string]string{"tier": "fast", "nvidia.com/gpu.model": "A100"}),
		job("wrong", coordinator.Resources{Cores: 1}, map[string]string{"tier": "slow"}),
		job("threads", coordinator.Resources{Cores: 257, Threads: true}, nil),
		long,
	}}
	j := judge(t, c, nodes)
	var b strings.Builder
	trial := j.Try(coordinator.Owner{Organization: "ml"}, w)
	for _, x := range trial.Jobs {
		for _, d := range x.Definitions {
			fmt.Fprintf(&b, "%s/%s %v %s %s\n", x.Job, d.Definition, d.Nodes, d.RefusedBy, d.Reason)
		}
	}
	const none = "cloud [] nodes its nodes are launched when they are needed; there are none here\n"
	want := "small/plain [c1]  \nsmall/gpu [g1]  \nsmall/" + none +
		"gpu/plain [] annotation neither the definition nor the hardware has annotation tier\ngpu/gpu [g1]  \ngpu/" + none +
		"wrong/plain [] annotation neither the definition nor the hardware has annotation tier\nwrong/gpu [] annotation annotation tier is \"fast\", wanted \"slow\"\nwrong/" + none +
		"threads/plain [] resources wants 129 cores, there are 40\nthreads/gpu [] resources wants 129 cores, there are 128\nthreads/" + none +
		"long/plain [] resources wants 41 cores, there are 40\nlong/gpu [] policy the policy is false: request.job_ttl <= 7200 (request.job_ttl is 86400)\nlong/" + none
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	i := slices.IndexFunc(trial.Unassigned, func(u Unassigned) bool { return u.Definition == "plain" })
	if len(trial.Unassigned) != 2 || trial.Unassigned[i].Reason != `hostname() == "c1" (hostname() is odd)` {
		t.Errorf("%+v", trial.Unassigned)
	}
}
