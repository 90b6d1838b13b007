package hwinfo

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// amdTree is a root with MI300X at buses 0x05, 0x26, … and their nodes in the driver's topology. parts is the
// number of nodes of each GPU.
func amdTree(t testing.TB, gpus, parts int) string {
	t.Helper()
	root := t.TempDir()
	for n := range 2 { // the processors come first
		put(t, root, fmt.Sprintf("%s/%d/properties", kfdDir, n), []byte("cpu_cores_count 48\nsimd_count 0\nlocation_id 0\ndomain 0\n"))
	}
	nodes := gpus * parts
	for n := range nodes {
		bus, part := 5+0x21*(n/parts), n%parts
		dir := fmt.Sprintf("%s/%d/", kfdDir, 2+n)
		put(t, root, dir+"properties", fmt.Appendf(nil, "cpu_cores_count 0\nsimd_count 1216\nlocation_id %d\ndomain 0\nunique_id 17430218914932432077\nhive_id 9230218914932432077\n", bus<<8|part<<28))
		put(t, root, dir+"gpu_id", []byte("28851\n"))
		put(t, root, dir+"io_links/0/properties", fmt.Appendf(nil, "type 2\nnode_from %d\nnode_to 0\nweight 20\n", 2+n))
		k := 1
		for to := range nodes {
			if to == n {
				continue
			}
			put(t, root, fmt.Sprintf("%sio_links/%d/properties", dir, k), fmt.Appendf(nil, "type 11\nversion_major 0\nnode_from %d\nnode_to %d\nweight 15\nmin_bandwidth 64000\nmax_bandwidth 64000\n", 2+n, 2+to))
			k++
		}
		if part > 0 {
			continue
		}
		dir = fmt.Sprintf("%s/0000:%02x:00.0/", pciDir, bus)
		put(t, root, dir+"modalias", []byte("pci:v00001002d000074A1sv00001002sd000074A1bc12sc00i00\n"))
		put(t, root, dir+"mem_info_vram_total", []byte("206141652992\n"))
		put(t, root, dir+"local_cpulist", []byte("0-47,96-143\n"))
		put(t, root, dir+"unique_id", []byte("f1e5c0ffee000001\n"))
		mode := "SPX\n"
		if parts > 1 {
			mode = "CPX\n"
		}
		put(t, root, dir+"current_compute_partition", []byte(mode))
		putLink(t, root, dir+"driver", "../../../bus/pci/drivers/amdgpu")
	}
	return root
}

// TestXGMI: eight MI300X, each joined with every other.
func TestXGMI(t *testing.T) {
	root := amdTree(t, 8, 1)
	f, w := Read(root)
	if len(f.GPUs) != 8 || len(f.GPULinks) != 28 || !slices.Equal(sizes(f), []int{8}) {
		t.Fatalf("%d GPUs, %d links, fabrics %v, %v", len(f.GPUs), len(f.GPULinks), f.Fabrics(), w)
	}
	if want := (GPULink{A: "0000:05:00.0", B: "0000:26:00.0", XGMI: 1}); f.GPULinks[0] != want {
		t.Errorf("%+v, want %+v", f.GPULinks[0], want)
	}
	g := f.GPUs[7]
	if deref(g.Index) != 7 || !g.LinksKnown || !g.Whole() || g.Memory == nil || *g.Memory != 206141652992 || g.CPUs != "0-47,96-143" || !g.Driver {
		t.Errorf("%+v", g)
	}
	checkSnapshot(t, root, f)
}

// TestXGMIPairs: links of several lanes, ways through other GPUs, and GPUs without any.
func TestXGMIPairs(t *testing.T) {
	root := amdTree(t, 4, 1)
	link := func(node, n int, text string) {
		put(t, root, fmt.Sprintf("%s/%d/io_links/%d/properties", kfdDir, node, n), []byte(text))
	}
	for node := 2; node < 6; node++ {
		for n := 1; n < 4; n++ {
			link(node, n, "type 2\n")
		}
	}
	link(2, 1, "type 11\nnode_from 2\nnode_to 3\nweight 15\nmin_bandwidth 50000\nmax_bandwidth 200000\n")
	link(3, 1, "type 11\nnode_from 3\nnode_to 2\nweight 15\n")
	link(2, 2, "type 11\nnode_from 2\nnode_to 4\nweight 30\nmin_bandwidth 0\nmax_bandwidth 0\n")
	link(4, 2, "type 11\nnode_from 4\nnode_to 99999999999\nweight 15\n")
	link(5, 2, "nonsense\ntype\n")
	f, w := Read(root)
	want := []GPULink{{A: "0000:05:00.0", B: "0000:26:00.0", XGMI: 4}}
	if !slices.Equal(f.GPULinks, want) || !slices.Equal(sizes(f), []int{2, 1, 1}) {
		t.Errorf("links %+v, fabrics %v, %v", f.GPULinks, f.Fabrics(), w)
	}
}

// TestPartitions: an MI300X in parts is eight nodes of one function.
func TestPartitions(t *testing.T) {
	root := amdTree(t, 2, 8)
	f, _ := Read(root)
	if got, want := f.CountGPUs()["amd.com/gpu"], (GPUCount{Physical: 2, Instances: 16}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if s := f.GPUs[1].Split; s == nil || s.Mode != "CPX" || deref(f.GPUs[1].Index) != 1 || len(f.GPULinks) != 1 {
		t.Errorf("split %+v, links %+v", s, f.GPULinks)
	}
	checkSnapshot(t, root, f)
}

// TestGPUMemory: each driver states memory in its own place.
func TestGPUMemory(t *testing.T) {
	tests := []struct {
		name, modalias string
		files          map[string]string
		want           uint64
		warns          bool
	}{
		{"amdgpu", "pci:v00001002d0000740Fsv00001002sd00000C34bc03sc80i00", map[string]string{"mem_info_vram_total": "68702699520"}, 68702699520, false},
		{"amdgpu, no number", "pci:v00001002d0000740Fsv00001002sd00000C34bc03sc80i00", map[string]string{"mem_info_vram_total": "many"}, 0, true},
		{"xe, two tiles", "pci:v00008086d00000BD5sv00008086sd00000000bc03sc80i00", map[string]string{"tile0/physical_vram_size_bytes": "0x1000000000", "tile1/physical_vram_size_bytes": "68719476736"}, 137438953472, false},
		{"i915", "pci:v00008086d00000BD9sv00008086sd00000000bc03sc80i00", map[string]string{"drm/card1/lmem_total_bytes": "51539607552"}, 51539607552, false},
		{"habana", "pci:v00001DA3d00001020sv00001DA3sd00001020bc12sc00i00", nil, 0, false},
		{"nvidia, nobody asked", "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00", nil, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			dir := pciDir + "/0000:17:00.0/"
			put(t, root, dir+"modalias", []byte(tt.modalias+"\n"))
			for name, text := range tt.files {
				put(t, root, dir+name, []byte(text+"\n"))
			}
			f, w := Read(root)
			if len(f.GPUs) != 1 {
				t.Fatalf("%d GPUs", len(f.GPUs))
			}
			if m := f.GPUs[0].Memory; (m != nil) != (tt.want > 0) || m != nil && *m != tt.want {
				t.Errorf("memory %v, want %d", m, tt.want)
			}
			if warned := slices.ContainsFunc(w, func(w Warning) bool { return w.Source == dir+"mem_info_vram_total" }); warned != tt.warns {
				t.Errorf("warnings %v", w)
			}
			checkSnapshot(t, root, f)
		})
	}
}

func TestGaudi(t *testing.T) {
	root := t.TempDir()
	for i, device := range []string{"1020", "9999"} {
		dir := fmt.Sprintf("%s/0000:%02x:00.0/", pciDir, 0x33+i)
		put(t, root, dir+"modalias", []byte("pci:v00001DA3d0000"+device+"sv00001DA3sd00000001bc12sc00i00\n"))
		put(t, root, dir+"device_type", []byte("GAUDI9 \n"))
	}
	f, _ := Read(root)
	if len(f.GPUs) != 2 || f.GPUs[0].Model != "Gaudi2" || f.GPUs[1].Model != "GAUDI9" || f.GPUs[1].Resource != "habana.ai/gaudi" {
		t.Errorf("%s", asJSON(t, f))
	}
	if got, want := f.CountGPUs(), map[string]GPUCount{"habana.ai/gaudi": {Physical: 2, Whole: 2, NoDriver: 2}}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNVSwitches(t *testing.T) {
	root := nvidiaTree(t, "0000:18:00.0")
	for _, a := range []string{"0000:07:00.0", "0000:08:00.0"} {
		put(t, root, pciDir+"/"+a+"/modalias", []byte("pci:v000010DEd000022A3sv000010DEsd00001796bc06sc80i00\n"))
	}
	f, _ := Read(root)
	if want := []string{"0000:07:00.0", "0000:08:00.0"}; !slices.Equal(f.NVSwitches(), want) || len(f.GPUs) != 1 {
		t.Errorf("switches %v, %d GPUs", f.NVSwitches(), len(f.GPUs))
	}
}

// TestPCIPaths: the way between GPUs over PCI, from where sysfs says they are plugged in.
func TestPCIPaths(t *testing.T) {
	const (
		below = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/"
		other = "sys/devices/pci0000:15/0000:15:03.0/"
		far   = "sys/devices/pci0000:85/0000:85:01.0/"
	)
	tests := []struct {
		name, a, b   string
		nodeA, nodeB string
		guest        bool
		want         string
	}{
		{"one switch", below + "0000:17:00.0/0000:18:00.0", below + "0000:17:01.0/0000:19:00.0", "0", "0", false, "PIX"},
		{"one card with two GPUs", below + "0000:18:00.0", below + "0000:18:00.1", "0", "0", false, "PIX"},
		{"switches below a switch", below + "0000:17:00.0/0000:20:00.0/0000:21:00.0/0000:22:00.0", below + "0000:17:01.0/0000:24:00.0", "0", "0", false, "PXB"},
		{"two ports of a host bridge", below + "0000:17:00.0/0000:18:00.0", other + "0000:30:00.0", "0", "0", false, "PHB"},
		{"two host bridges", below + "0000:17:00.0/0000:18:00.0", far + "0000:86:00.0", "0", "0", false, "NODE"},
		{"two processors", below + "0000:17:00.0/0000:18:00.0", far + "0000:86:00.0", "0", "1", false, "SYS"},
		{"nodes unknown", below + "0000:17:00.0/0000:18:00.0", far + "0000:86:00.0", "-1", "1", false, ""},
		{"virtual machine", "sys/devices/pci0000:00/0000:00:05.0", "sys/devices/pci0000:00/0000:00:06.0", "0", "0", true, ""},
		{"below a volume manager", "sys/devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0", "sys/devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:03.0/10000:02:00.0", "0", "0", false, "PIX"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.guest {
				put(t, root, "proc/cpuinfo", []byte("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n"))
			}
			for i, dir := range []string{tt.a, tt.b} {
				put(t, root, dir+"/modalias", []byte("pci:v000010DEd00002684sv000010DEsd0000167Cbc03sc00i00\n"))
				put(t, root, dir+"/numa_node", []byte([]string{tt.nodeA, tt.nodeB}[i]+"\n"))
				name := dir[len(dir)-12:]
				if dir[len(dir)-13] != '/' {
					name = dir[len(dir)-13:]
				}
				putLink(t, root, pciDir+"/"+name, "../../../../"+dir)
			}
			f, w := Read(root)
			got := ""
			if len(f.GPULinks) == 1 {
				got = f.GPULinks[0].Path
			}
			if len(f.GPUs) != 2 || got != tt.want || len(f.Fabrics()) != 2 || f.GPUs[0].LinksKnown {
				t.Errorf("path %q, want %q: %s, %v", got, tt.want, asJSON(t, f), w)
			}
			checkSnapshot(t, root, f)
			checkWalk(t, root, f)
		})
	}
}
