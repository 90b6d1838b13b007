package hwinfo

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// nvidiaTree is a root with NVIDIA GPUs at the addresses, which are in order.
func nvidiaTree(t testing.TB, addresses ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, a := range addresses {
		put(t, root, pciDir+"/"+a+"/modalias", []byte("pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"))
		putLink(t, root, pciDir+"/"+a+"/driver", "../../../bus/pci/drivers/nvidia")
	}
	return root
}

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "nvidia", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sizes are the sizes of the fabrics, in their order.
func sizes(f Facts) []int {
	var out []int
	for _, group := range f.Fabrics() {
		out = append(out, len(group))
	}
	return out
}

// TestRecordedMatrices holds the parser to matrices as real machines print them.
func TestRecordedMatrices(t *testing.T) {
	tests := []struct {
		file       string
		gpus, nics int
		links      map[int]int    // links in a pair: number of such pairs
		paths      map[string]int // number of pairs
		numa0      []int
	}{
		{"hgx-h100.topo", 8, 9, map[int]int{18: 28}, nil, []int{0}},
		{"dgx-a100.topo", 8, 12, map[int]int{12: 28}, nil, []int{3}},
		{"dgx-2.topo", 16, 10, map[int]int{6: 120}, nil, nil},
		{"dgx-1-v100.topo", 8, 4, map[int]int{1: 8, 2: 8}, map[string]int{"SYS": 12}, nil},
		{"h100-nv6.topo", 4, 4, map[int]int{6: 6}, nil, []int{3}},
		{"h100-pcie-pair.topo", 2, 0, map[int]int{12: 1}, nil, []int{1}},
		{"gb200.topo", 4, 6, map[int]int{18: 6}, nil, []int{0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17}},
		{"8x4090.topo", 8, 2, nil, map[string]int{"SYS": 28}, []int{0}},
		{"six-escaped.topo", 6, 0, nil, map[string]int{"PIX": 3, "NODE": 4, "SYS": 8}, []int{0}},
		{"k80-old.topo", 8, 1, nil, map[string]int{"PIX": 4, "PHB": 8, "SYS": 16}, nil},
		{"vm-one.topo", 1, 1, nil, nil, []int{0}},
		{"lost-blanks.topo", 2, 4, map[int]int{18: 1}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			m, err := parseTopo(bytes.NewReader(recorded(t, tt.file)))
			if err != nil {
				t.Fatal(err)
			}
			links, paths := map[int]int{}, map[string]int{}
			for _, n := range m.links {
				links[n]++
			}
			for _, p := range m.paths {
				paths[p]++
			}
			if m.gpus != tt.gpus || m.nics != tt.nics || !maps.Equal(links, tt.links) || !maps.Equal(paths, tt.paths) || !slices.Equal(m.numa[0], tt.numa0) {
				t.Errorf("%d GPUs, %d cards, links %v, paths %v, nodes %v", m.gpus, m.nics, links, paths, m.numa[0])
			}
		})
	}
}

func TestBadMatrices(t *testing.T) {
	for name, text := range map[string]string{
		"empty":          "",
		"words":          "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
		"no rows":        "\tGPU0\tGPU1\n",
		"row twice":      "\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU0\t X \tNV1\n",
		"row too far":    "\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU2\tNV1\t X \n",
		"column missing": "\tGPU0\tGPU2\nGPU0\t X \tNV1\nGPU2\tNV1\t X \n",
		"bad link":       "\tGPU0\tGPU1\nGPU0\t X \tNVx\nGPU1\tNVx\t X \n",
		"no links":       "\tGPU0\tGPU1\nGPU0\t X \tNV0\nGPU1\tNV0\t X \n",
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := parseTopo(strings.NewReader(text)); err == nil {
				t.Errorf("got %+v", m)
			}
		})
	}
}

func TestRemoteEnds(t *testing.T) {
	tests := []struct {
		file      string
		addresses []string
		links     int
		switched  bool
		sizes     []int
	}{
		{"h100-pcie-pair.nvlink", []string{"0000:c2:00.0", "0000:d5:00.0"}, 12, false, []int{2}},
		{"a100-switched.nvlink", []string{"0001:00:00.0", "0002:00:00.0"}, 12, true, []int{2}},
		{"h100-inactive.nvlink", []string{"0000:18:00.0", "0000:2a:00.0"}, 0, false, []int{1, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			root := nvidiaTree(t, tt.addresses...)
			f, w := ReadWith(root, Answers{AnswerRemote: recorded(t, tt.file)})
			if !slices.Equal(sizes(f), tt.sizes) || !f.GPUs[0].LinksKnown {
				t.Fatalf("fabrics %v, %v", f.Fabrics(), w)
			}
			if tt.links == 0 {
				if f.GPULinks != nil {
					t.Errorf("links %v", f.GPULinks)
				}
				return
			}
			want := GPULink{A: tt.addresses[0], B: tt.addresses[1], NVLinks: tt.links, Switched: tt.switched}
			if len(f.GPULinks) != 1 || f.GPULinks[0] != want {
				t.Errorf("links %+v, want %+v", f.GPULinks, want)
			}
			checkAnswered(t, root, Answers{AnswerRemote: recorded(t, tt.file)}, f)
		})
	}
}

// TestLinksToProcessors: links of POWER machines end in the processor, which joins no GPUs.
func TestLinksToProcessors(t *testing.T) {
	root := nvidiaTree(t, "0004:04:00.0", "0004:05:00.0")
	put(t, root, pciDir+"/0006:00:00.0/modalias", []byte("pci:v00001014d000004EAsv00000000sd00000000bc12sc00i00\n"))
	ends := []byte("GPU 0: x\n Link 0: Remote Device 00000006:00:00.0: Link 0\nGPU 1: x\n Link 0: Remote Device 00000006:00:00.0: Link 1\n")
	f, w := ReadWith(root, Answers{AnswerRemote: ends})
	if f.GPULinks != nil || !f.GPUs[0].LinksKnown {
		t.Errorf("links %+v, %v", f.GPULinks, w)
	}
	checkAnswered(t, root, Answers{AnswerRemote: ends}, f)
}

// checkAnswered: a snapshot keeps the answers, without what names one board.
func checkAnswered(t *testing.T, root string, answers Answers, f Facts) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := SnapshotWith(root, dir, answers); err != nil {
		t.Fatal(err)
	}
	if again, w := Read(dir); again.Digest() != f.Digest() {
		t.Errorf("the snapshot gives other facts:\n%s\nwant\n%s\n%v", asJSON(t, again), asJSON(t, f), w)
	}
	entries, err := os.ReadDir(filepath.Join(dir, probeDir))
	if err != nil || len(entries) != len(answers) {
		t.Fatalf("%d answers in the snapshot, %v", len(entries), err)
	}
	for _, e := range entries {
		if data, err := os.ReadFile(filepath.Join(dir, probeDir, e.Name())); err != nil || bytes.Contains(data, []byte("UUID")) {
			t.Errorf("%s holds %q, %v", e.Name(), data, err)
		}
	}
}

// TestSources: the library's answer is taken before the tool's, the matrix before the list of ends, and what cannot
// be read falls back to the next.
func TestSources(t *testing.T) {
	addresses := []string{"0000:c2:00.0", "0000:d5:00.0"}
	nvml := func(link string) []byte {
		return fmt.Appendf(nil, `{"version":1,"gpus":[{"index":0,"address":"00000000:C2:00.0","name":"NVIDIA H100 PCIe","memory_bytes":85520809984,"links":[{"to":"00000000:D5:00.0","count":12}]},
			{"index":1,"address":"00000000:D5:00.0","links":[{"to":"00000000:C2:00.0","count":12}]}],"pairs":[{"a":0,"b":1,"path":"%s"}]}`, link)
	}
	topo := []byte("\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-7\t0\nGPU1\tNV4\t X \t0-7\t0\n")
	tests := []struct {
		name    string
		answers Answers
		links   []GPULink
		known   bool
		warned  string
	}{
		{"nobody asked", nil, nil, false, ""},
		{"library", Answers{AnswerNVML: nvml("NODE"), AnswerTopo: topo}, []GPULink{{NVLinks: 12, Path: "NODE"}}, true, ""},
		{"library fails", Answers{AnswerNVML: []byte("{"), AnswerTopo: topo}, []GPULink{{NVLinks: 4}}, true, AnswerNVML},
		{"newer library", Answers{AnswerNVML: []byte(`{"version":2}`), AnswerTopo: topo}, []GPULink{{NVLinks: 4}}, true, AnswerNVML},
		{"matrix", Answers{AnswerTopo: topo, AnswerRemote: recorded(t, "h100-pcie-pair.nvlink")}, []GPULink{{NVLinks: 4}}, true, ""},
		{"matrix fails", Answers{AnswerTopo: []byte("No devices were found\n"), AnswerRemote: recorded(t, "h100-pcie-pair.nvlink")}, []GPULink{{NVLinks: 12}}, true, AnswerTopo},
		{"all fail", Answers{AnswerTopo: nil, AnswerRemote: []byte("error")}, nil, false, AnswerRemote},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := nvidiaTree(t, addresses...)
			f, w := ReadWith(root, tt.answers)
			for i := range tt.links {
				tt.links[i].A, tt.links[i].B = addresses[0], addresses[1]
			}
			if !slices.Equal(f.GPULinks, tt.links) || f.GPUs[0].LinksKnown != tt.known {
				t.Errorf("links %+v, known %v, want %+v", f.GPULinks, f.GPUs[0].LinksKnown, tt.links)
			}
			warned := slices.ContainsFunc(w, func(w Warning) bool { return w.Source == probeDir+"/"+tt.warned })
			if warned != (tt.warned != "") {
				t.Errorf("warnings %v", w)
			}
		})
	}
}

// TestLibraryAnswer: switches join what the library says is joined; a GPU that PCI does not show is not taken.
func TestLibraryAnswer(t *testing.T) {
	addresses := []string{"0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0"}
	root := nvidiaTree(t, addresses...)
	answer := []byte(`{"version":1,"gpus":[
		{"index":2,"address":"00000000:18:00.0","name":"NVIDIA H100 80GB HBM3","memory_bytes":85520809984,"links":[{"switch":true,"count":18}]},
		{"index":0,"address":"00000000:2A:00.0","mig":true,"instances":["3g.40gb","1g.10gb"],"links":[{"to":"00000000:07:00.0","switch":true,"count":16}]},
		{"index":1,"address":"00000000:3A:00.0"},
		{"index":3,"address":"00000000:99:00.0"}],
		"pairs":[{"a":0,"b":2,"path":"SYS","nvlink":true},{"a":0,"b":1,"path":"PIX"},{"a":7,"b":1,"nvlink":true},{"a":3,"b":1,"nvlink":true},{"a":1,"b":2,"path":"odd"}]}`)
	f, w := ReadWith(root, Answers{AnswerNVML: answer})
	want := []GPULink{{A: addresses[0], B: addresses[1], NVLinks: 16, Switched: true, Path: "SYS"}, {A: addresses[1], B: addresses[2], Path: "PIX"}}
	if !slices.Equal(f.GPULinks, want) || !slices.Equal(sizes(f), []int{2, 1}) {
		t.Errorf("links %+v, want %+v", f.GPULinks, want)
	}
	if deref(f.GPUs[0].Index) != 2 || *f.GPUs[0].Memory != 85520809984 || f.GPUs[1].Whole() || f.GPUs[1].Split.Instances != 2 || f.GPUs[2].Split != nil {
		t.Errorf("GPUs %s", asJSON(t, f))
	}
	if !slices.ContainsFunc(w, func(w Warning) bool { return w.Message == "GPU 0000:99:00.0 is not on the bus" }) {
		t.Errorf("warnings %v", w)
	}
	if n := f.Nearness(); n[0][1] != 32 || n[1][0] != 32 || n[1][2] != 5 || n[0][2] != 0 || n[0][0] != 0 {
		t.Errorf("nearness %v", n)
	}
	checkAnswered(t, root, Answers{AnswerNVML: answer}, f)
}

func TestTopoMismatch(t *testing.T) {
	root, _ := buildTree(t, "testdata/cases/u04-nvlink-pairs-only.txtar")
	if err := os.RemoveAll(filepath.Join(root, pciDir, "0000:40:00.0")); err != nil {
		t.Fatal(err)
	}
	f, w := Read(root)
	if f.GPULinks != nil || f.GPUs[0].LinksKnown || !slices.Contains(w, Warning{probeDir + "/" + AnswerTopo, "4 GPUs in the matrix, 3 on the bus"}) {
		t.Errorf("got %v, %v", f.GPULinks, w)
	}
}

// TestSplits: a GPU in MIG mode is physical, not whole, whichever source tells it (8 GPUs, two of them split).
func TestSplits(t *testing.T) {
	var addresses, rows, list, gpus []string
	for i := range 8 {
		a := fmt.Sprintf("0000:%02x:00.0", 16+i)
		addresses = append(addresses, a)
		mode, parts := "Disabled", ""
		list = append(list, fmt.Sprintf("GPU %d: NVIDIA A100-SXM4-40GB (UUID: GPU-0000)", i))
		names := map[int][]string{0: slices.Repeat([]string{"3g.20gb"}, 2), 1: slices.Repeat([]string{"1g.5gb"}, 7)}[i]
		for k, p := range names {
			mode = "Enabled"
			list = append(list, fmt.Sprintf("  MIG %s     Device  %d: (UUID: MIG-0000)", p, k))
		}
		if names != nil {
			parts = `,"mig":true,"instances":["` + strings.Join(names, `","`) + `"]`
		}
		rows = append(rows, fmt.Sprintf("%d, 00000000:%02X:00.0, NVIDIA A100-SXM4-40GB, 40960, %s", i, 16+i, mode))
		gpus = append(gpus, fmt.Sprintf(`{"index":%d,"address":"%s"%s}`, i, a, parts))
	}
	query, nodes := []byte(strings.Join(rows, "\n")+"\n"), []byte(strings.Join(list, "\n")+"\n")
	tests := []struct {
		name     string
		answers  Answers
		files    bool
		profiles []string
	}{
		{"library", Answers{AnswerNVML: []byte(`{"version":1,"gpus":[` + strings.Join(gpus, ",") + `]}`)}, false, []string{"3g.20gb", "3g.20gb"}},
		{"tool", Answers{AnswerGPUs: query, AnswerList: nodes}, false, []string{"3g.20gb", "3g.20gb"}},
		{"list alone", Answers{AnswerList: nodes}, false, []string{"3g.20gb", "3g.20gb"}},
		{"driver's files", nil, true, nil},
		{"files and mode", Answers{AnswerGPUs: query}, true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := nvidiaTree(t, addresses...)
			if tt.files {
				for i, a := range addresses {
					// The minor number need not follow the bus.
					put(t, root, nvidiaDir+"/"+a+"/information", fmt.Appendf(nil, "Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-0000\nDevice Minor: \t %d\n", 7-i))
				}
				for _, name := range []string{"gpu7/mig/gi1/ci0", "gpu7/mig/gi2/ci0", "gpu5/mig"} {
					put(t, root, "proc/driver/nvidia/capabilities/"+name+"/access", []byte("DeviceFileMinor: 12\n"))
				}
				for n := range 7 {
					put(t, root, fmt.Sprintf("proc/driver/nvidia/capabilities/gpu6/mig/gi%d/ci0/access", 7+n), []byte("DeviceFileMinor: 12\n"))
				}
			}
			f, w := ReadWith(root, tt.answers)
			if got, want := f.CountGPUs()["nvidia.com/gpu"], (GPUCount{Physical: 8, Whole: 6, Instances: 9}); got != want {
				t.Errorf("%+v, want %+v; %v", got, want, w)
			}
			if s := f.GPUs[0].Split; s == nil || s.Mode != "mig" || !slices.Equal(s.Profiles, tt.profiles) {
				t.Errorf("split %+v", s)
			}
			checkAnsweredSnapshot(t, root, tt.answers, f)
		})
	}
}

func checkAnsweredSnapshot(t *testing.T, root string, answers Answers, f Facts) {
	t.Helper()
	if len(answers) > 0 {
		checkAnswered(t, root, answers, f)
		return
	}
	checkSnapshot(t, root, f)
}

// TestModeWithoutInstances: a GPU in MIG mode that has no instance yet is not whole either.
func TestModeWithoutInstances(t *testing.T) {
	root := nvidiaTree(t, "0000:17:00.0")
	f, _ := ReadWith(root, Answers{AnswerGPUs: []byte("0, 00000000:17:00.0, NVIDIA H100 80GB HBM3, 81559, Enabled\n")})
	if got, want := f.CountGPUs()["nvidia.com/gpu"], (GPUCount{Physical: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	f, _ = ReadWith(root, Answers{AnswerGPUs: []byte("0, 00000000:17:00.0, NVIDIA H100 80GB HBM3, 81559, [N/A]\n")})
	if got, want := f.CountGPUs()["nvidia.com/gpu"], (GPUCount{Physical: 1, Whole: 1}); got != want || *f.GPUs[0].Memory != 81559<<20 {
		t.Errorf("%+v, want %+v", got, want)
	}
}
