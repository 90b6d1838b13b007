package hwinfo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// seedRecorded adds what real machines printed.
func seedRecorded(f *testing.F, suffix string) {
	names, err := filepath.Glob("testdata/nvidia/*" + suffix)
	if err != nil || len(names) == 0 {
		f.Fatalf("no recorded text ends in %s, %v", suffix, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func FuzzTopo(f *testing.F) {
	seed(f, "nvidia-smi-topo")
	seedRecorded(f, ".topo")
	f.Add([]byte("\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\t0\nGPU1\tNV18\t X \t0\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseTopo(bytes.NewReader(data))
		if err != nil {
			return
		}
		inside := func(pair [2]int) bool { return 0 <= pair[0] && pair[0] < pair[1] && pair[1] < m.gpus }
		for pair, n := range m.links {
			if !inside(pair) || n < 1 || n > 255 {
				t.Errorf("%d links %v of %d GPUs", n, pair, m.gpus)
			}
		}
		for pair, path := range m.paths {
			if !inside(pair) || pathRank(path) == 0 {
				t.Errorf("path %q %v of %d GPUs", path, pair, m.gpus)
			}
		}
		for row, nodes := range m.numa {
			if row < 0 || row >= m.gpus || len(nodes) == 0 || len(nodes) > maxNodes {
				t.Errorf("%d nodes of GPU %d", len(nodes), row)
			}
		}
		again, err := parseTopo(bytes.NewReader(scrubAnswer(probeDir+"/"+AnswerTopo, data)))
		if !bytes.Contains(data, []byte("(UUID:")) && (err != nil || again.gpus != m.gpus) {
			t.Errorf("scrubbing changed the matrix: %v", err)
		}
	})
}

// FuzzRemote: the ends of links are addresses, and a snapshot gives the same ones.
func FuzzRemote(f *testing.F) {
	seedRecorded(f, ".nvlink")
	f.Add([]byte("GPU 0: x\n Link 0: Remote Device FFFFFFFF:FF:1F.7: Link 4294967295\nGPU 0: y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ends, err := parseRemote(bytes.NewReader(data))
		if err != nil {
			return
		}
		for gpu, list := range ends {
			if gpu < 0 || gpu > 1<<16 || len(list) > maxNVLinks {
				t.Errorf("GPU %d has %d links", gpu, len(list))
			}
			for _, a := range list {
				if _, err := ParsePCIAddress(a); err != nil {
					t.Error(err)
				}
			}
		}
		addresses := []string{"0000:c2:00.0", "0000:d5:00.0"}
		a := nvidiaAnswer{gpus: []nvidiaGPU{{index: 0, address: addresses[0]}, {index: 1, address: addresses[1]}}}
		a.takeRemote(ends, map[int]int{0: 0, 1: 1}, func(string) bool { return true })
		for _, l := range a.links {
			if !l.Fabric() || l.NVLinks > 2*maxNVLinks {
				t.Errorf("link %+v", l)
			}
		}
	})
}

func FuzzGPUList(f *testing.F) {
	seed(f, "nvidia-smi-list")
	f.Add([]byte("GPU 0: A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-1/7/0)\n  MIG 1g.5gb+me  Device  1: (UUID: MIG-2)\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseGPUList(bytes.NewReader(data))
		if err != nil {
			return
		}
		facts := Facts{}
		for _, profiles := range list {
			if len(profiles) > maxMIG {
				t.Errorf("%d instances", len(profiles))
			}
			facts.GPUs = append(facts.GPUs, GPU{Split: &GPUSplit{Profiles: profiles}})
		}
		checkText(t, facts)
		scrubbed := scrubAnswer(probeDir+"/"+AnswerList, data)
		if bytes.Contains(scrubbed, []byte("(UUID:")) {
			t.Errorf("scrubbed text holds a UUID: %q", scrubbed)
		}
	})
}

func FuzzGPUQuery(f *testing.F) {
	seed(f, "nvidia-smi-gpus")
	f.Add([]byte("0, 00000000:17:00.0, Tesla T4, 15360, [N/A]\n1, 00000000:65:00.0, [Unknown Error], [N/A], [Not Supported]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		gpus, err := parseGPUQuery(bytes.NewReader(data))
		if err != nil {
			return
		}
		if len(gpus) == 0 || len(gpus) > maxGPUs {
			t.Errorf("%d GPUs", len(gpus))
		}
		facts := Facts{}
		for _, g := range gpus {
			if g.memory%(1<<20) != 0 {
				t.Errorf("%d bytes", g.memory)
			}
			facts.GPUs = append(facts.GPUs, GPU{Address: g.address, Model: g.model})
		}
		checkText(t, facts)
	})
}

// FuzzNVML: any answer of the probe gives facts that hold together, and a snapshot of it gives the same.
func FuzzNVML(f *testing.F) {
	f.Add([]byte(`{"version":1,"gpus":[{"index":0,"address":"00000000:10:00.0","name":"NVIDIA H100","memory_bytes":1,"mig":true,"instances":["1g.10gb"],"links":[{"to":"0000:07:00.0","switch":true,"count":18}]},{"index":1,"address":"0000:20:00.0","links":[{"switch":true,"count":18}]}],"pairs":[{"a":0,"b":1,"path":"PIX","nvlink":true}]}`))
	f.Add([]byte(`{"version":1,"gpus":[{"index":-1,"address":"0000:10:00.0"}]}`))
	f.Add([]byte(`{"version":1,"gpus":[{"index":0,"address":"0000:10:00.0","links":[{"count":-5},{"count":9223372036854775807}]}],"pairs":[{"a":0,"b":0}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseNVML(bytes.NewReader(data))
		if err != nil {
			return
		}
		for pair, l := range a.links {
			if pair[0] == pair[1] || l.NVLinks < 0 || l.NVLinks > maxNVLinks*maxNVLinks || l.Path != "" && pathRank(l.Path) == 0 {
				t.Errorf("%v %+v", pair, l)
			}
		}
		facts := Facts{}
		for _, g := range a.gpus {
			facts.GPUs = append(facts.GPUs, GPU{Address: g.address, Model: g.model, Split: &GPUSplit{Profiles: g.profiles}})
		}
		checkText(t, facts)
		b, err := parseNVML(bytes.NewReader(scrubAnswer(probeDir+"/"+AnswerNVML, data)))
		if err != nil || len(a.gpus) != len(b.gpus) || len(a.links) != len(b.links) {
			t.Errorf("scrubbing changed the answer: %v", err)
		}
	})
}

func FuzzKFD(f *testing.F) {
	for _, s := range []string{
		"cpu_cores_count 0\nsimd_count 1216\nlocation_id 1280\ndomain 0\nunique_id 17430218914932432077\n",
		"type 11\nversion_major 0\nnode_from 2\nnode_to 3\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 200000\n",
		"location_id 18446744073709551615\ndomain 4294967296\nsimd_count -1\n", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseKFD(bytes.NewReader(data))
		if err != nil {
			return
		}
		if _, err := ParsePCIAddress(kfdAddress(p)); err != nil {
			t.Error(err)
		}
		scrubbed := scrubKFD(kfdDir+"/2/properties", data)
		again, err := parseKFD(bytes.NewReader(scrubbed))
		if err != nil || len(again) != len(p) || bytes.Contains(scrubbed, []byte("unique_id")) {
			t.Errorf("scrubbing changed %v to %v, %v", p, again, err)
		}
		for k, v := range p {
			if again[k] != v {
				t.Errorf("scrubbing changed %s from %d to %d", k, v, again[k])
			}
		}
	})
}

// FuzzSlot: a slot is read back as a snapshot writes it, and holds nothing of the path that is not PCI or a transport.
func FuzzSlot(f *testing.F) {
	for _, s := range []string{
		"../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
		"../devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda",
		"../devices/LNXSYSTM:00/VMBUS:00/00000000-0000-8899-0000-000000000001/host3/block/sdd",
		"../devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme0/nvme0n1",
		"pci0000:15/0000:15:01.0/via-sas", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		p := parseSlot(target)
		again := parseSlot(p.String())
		if again.String() != p.String() || again.function() != p.function() {
			t.Errorf("%q is %q, then %q", target, p, again)
		}
		if a := p.function(); a != "" {
			if _, err := ParsePCIAddress(a); err != nil {
				t.Error(err)
			}
		}
		if path := pciPath(p, again, nil, nil); path == "SYS" || path == "NODE" {
			t.Errorf("a device is %s from itself", path)
		}
	})
}

// serverAnswers are what programs tell on a machine of serverTree.
func serverAnswers(tb testing.TB, f Facts) Answers {
	report := NVMLReport{Version: 1}
	for i, g := range f.GPUs {
		report.GPUs = append(report.GPUs, NVMLGPU{Index: i, Address: g.Address, Name: "NVIDIA A100-SXM4-80GB", Memory: 80 << 30, Links: []NVMLLink{{Switch: true, Count: 12}}})
		for j := range i {
			report.Pairs = append(report.Pairs, NVMLPair{A: j, B: i, Path: "SYS", NVLink: true})
		}
	}
	data, err := json.Marshal(report)
	if err != nil {
		tb.Fatal(err)
	}
	return Answers{AnswerNVML: data}
}

// BenchmarkReadDevices reads the device side of a server with 8 GPUs, 8 ports and 240 functions.
func BenchmarkReadDevices(b *testing.B) {
	root := serverTree(b)
	f, _ := Read(root)
	answers := serverAnswers(b, f)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		t, err := openTree(root, nil)
		if err != nil {
			b.Fatal(err)
		}
		r := &reader{t: t, answers: answers}
		pci := r.readPCI()
		gpus := r.readGPUs(pci)
		links := r.readLinks(gpus, false)
		rdma := r.readRDMA(pci)
		r.readNICs(pci, rdma)
		r.readDisks(pci)
		if err := t.close(); err != nil || len(links) != 28 {
			b.Fatalf("%d links, %v", len(links), err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

func BenchmarkParseTopo(b *testing.B) {
	data := recorded(b, "dgx-2.topo")
	for b.Loop() {
		if m, err := parseTopo(bytes.NewReader(data)); err != nil || len(m.links) != 120 {
			b.Fatal(err)
		}
	}
}

func BenchmarkFingerprint(b *testing.B) {
	f := dgx()
	for b.Loop() {
		if len(Fingerprint(f)) != 16 {
			b.Fatal("no fingerprint")
		}
	}
}

func BenchmarkDrift(b *testing.B) {
	f, g := dgx(), dgx()
	for b.Loop() {
		if d := Drift(f, g); len(d) > 0 {
			b.Fatal(strings.Join(d, "; "))
		}
	}
}
