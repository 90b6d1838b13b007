package hwinfo

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is the tree of all who only read it: building it takes longer than reading it.
var server struct {
	once sync.Once
	root string
}

func sharedServer(tb testing.TB) string {
	server.once.Do(func() {
		root, err := os.MkdirTemp("", "server")
		if err != nil {
			tb.Fatal(err)
		}
		server.root = root
		buildServer(tb, root)
	})
	return server.root
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.root != "" {
		if err := os.RemoveAll(server.root); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// serverTree is a tree for one who changes it.
func serverTree(tb testing.TB) string {
	root := tb.TempDir()
	buildServer(tb, root)
	return root
}

// buildServer builds a node with 2 sockets, 32 cores each, 128 CPUs, 8 GPUs, 8 network ports and 240 PCI functions.
func buildServer(tb testing.TB, root string) {
	var info bytes.Buffer
	flags := strings.Repeat("some_flag another ", 60)
	for cpu := range 128 {
		socket, core := cpu/32%2, cpu%32
		fmt.Fprintf(&info, "processor\t: %d\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz\nstepping\t: 6\nphysical id\t: %d\ncore id\t\t: %d\nflags\t\t: %s\n\n",
			cpu, socket, core, flags)
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		put(tb, root, dir+"core_id", fmt.Appendln(nil, core))
		put(tb, root, dir+"physical_package_id", fmt.Appendln(nil, socket))
		put(tb, root, dir+"die_id", []byte("0\n"))
		thread, pkg := fmt.Sprintf("%d,%d\n", cpu%64, cpu%64+64), fmt.Sprintf("%d-%d,%d-%d\n", 32*socket, 32*socket+31, 32*socket+64, 32*socket+95)
		put(tb, root, dir+"core_cpus_list", []byte(thread))
		for _, name := range []string{"package_cpus_list", "die_cpus_list"} {
			put(tb, root, dir+name, []byte(pkg))
		}
		put(tb, root, fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/cpuinfo_max_freq", cpu), []byte("3400000\n"))
	}
	put(tb, root, "proc/cpuinfo", info.Bytes())
	put(tb, root, "proc/meminfo", []byte("MemTotal:       1056441856 kB\n"))
	put(tb, root, "proc/self/cgroup", []byte("0::/system.slice/agent.service\n"))
	put(tb, root, "etc/os-release", []byte("ID=rocky\nVERSION_ID=\"9.4\"\n"))
	put(tb, root, "uname", []byte("sysname: Linux\nnodename: gpu-01\nrelease: 5.14.0\nversion: #1 SMP\nmachine: x86_64\n"))
	put(tb, root, "sys/devices/system/cpu/online", []byte("0-127\n"))
	for node, cpus := range []string{"0-31,64-95", "32-63,96-127"} {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", node)
		put(tb, root, dir+"cpulist", []byte(cpus+"\n"))
		put(tb, root, dir+"meminfo", fmt.Appendf(nil, "Node %d MemTotal: 528220928 kB\n", node))
	}
	put(tb, root, "sys/devices/system/memory/block_size_bytes", []byte("80000000\n"))
	for n := range 504 { // blocks of 2 GiB, as x86 uses from 64 GiB on
		put(tb, root, fmt.Sprintf("sys/devices/system/memory/memory%d/state", n), []byte("online\n"))
	}
	put(tb, root, "proc/zoneinfo", zoneInfo(128, []uint64{4096, 520192, 131547136, 132120576}))
	for n := range 240 {
		dir := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/", n)
		modalias, driver := "pci:v00008086d0000352Asv00000000sd00000000bc06sc04i00\n", "pcieport"
		switch {
		case n%30 == 1:
			modalias, driver = "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00\n", "nvidia"
			put(tb, root, fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", n), []byte("Model: \t\t NVIDIA A100-SXM4-80GB\nGPU UUID: \t GPU-00000000\n"))
		case n%30 == 2:
			modalias, driver = "pci:v000015B3d0000101Bsv000015B3sd00000000bc02sc07i00\n", "mlx5_core"
			port := fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/", n/30)
			put(tb, root, port+"rate", []byte("200 Gb/sec (4X HDR)\n"))
			put(tb, root, port+"state", []byte("4: ACTIVE\n"))
			put(tb, root, port+"link_layer", []byte("InfiniBand\n"))
		}
		put(tb, root, dir+"modalias", []byte(modalias))
		put(tb, root, dir+"numa_node", fmt.Appendln(nil, n/120))
		putLink(tb, root, dir+"driver", "../../../bus/pci/drivers/"+driver)
	}
}

func serverFacts(tb testing.TB) Facts {
	f, w := Read(sharedServer(tb))
	if len(w) > 0 {
		tb.Fatal(w)
	}
	return f
}

func TestServer(t *testing.T) {
	f := serverFacts(t)
	if deref(f.CPU.Cores) != 64 || deref(f.CPU.LogicalCPUs) != 128 || len(f.GPUs) != 8 || len(f.PCI) != 240 || len(f.RDMA) != 8 {
		t.Errorf("got %s", asJSON(t, f))
	}
	if f.GPUs[7].Model != "NVIDIA A100-SXM4-80GB" || deref(f.GPUs[7].NUMANode) != 1 || f.CPU.Arch != "amd64" || f.Hostname != "gpu-01" {
		t.Errorf("got %+v, %q, %q", f.GPUs[7], f.CPU.Arch, f.Hostname)
	}
}

func BenchmarkReadServer(b *testing.B) {
	root := sharedServer(b)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		if f, _ := Read(root); len(f.GPUs) != 8 {
			b.Fatal("GPUs are missing")
		}
	}
	b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/1000/float64(b.N), "cpu-ms/op") // wall time is that of a busy machine
}

// cpuTime is what the process has used so far.
func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// zoneInfo is as long as the kernel's: lines for each zone and CPU.
func zoneInfo(cpus int, present []uint64) []byte {
	var b bytes.Buffer
	for zone, pages := range present {
		fmt.Fprintf(&b, "Node %d, zone   Normal\n  pages free     1234567\n        min      1127\n        spanned  %d\n        present  %d\n        managed  %d\n", zone/2, pages, pages, pages-pages/64)
		for cpu := range cpus {
			fmt.Fprintf(&b, "    cpu: %d\n              count: 1234\n              high:  13458\n              batch: 63\n  vm stats threshold: 125\n", cpu)
		}
	}
	return b.Bytes()
}

// TestBlocksByZones: one file stands for all states where it proves that none is offline, and only there.
func TestBlocksByZones(t *testing.T) {
	const blocks, page = 32, 4096
	tests := []struct {
		name    string
		present uint64 // pages
		offline int
	}{
		{"all of it", blocks << 30 / page, 0},
		{"holes", blocks<<30/page - 100000, 0},
		{"one block less", (blocks - 1) << 30 / page, 1},
		{"half", (blocks / 2) << 30 / page, blocks / 2},
		{"more than the blocks", (blocks + 1) << 30 / page, 3},
		{"nothing", 0, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, root, "sys/devices/system/memory/block_size_bytes", []byte("40000000\n"))
			for n := range blocks {
				state := "online\n"
				if n < tt.offline {
					state = "offline\n"
				}
				put(t, root, fmt.Sprintf("sys/devices/system/memory/memory%d/state", n), []byte(state))
			}
			if tt.present > 0 {
				put(t, root, zoneFile, zoneInfo(2, []uint64{tt.present}))
				put(t, root, "proc/meminfo", fmt.Appendf(nil, "MemTotal: %d kB\n", (tt.present-tt.present/64)*4))
			}
			f, w := Read(root)
			b := f.Memory.Blocks
			if b == nil || b.Online != uint64(blocks-tt.offline)<<30 || b.Offline != uint64(tt.offline)<<30 {
				t.Errorf("got %+v, %v", b, w)
			}
			checkSnapshot(t, root, f)
		})
	}
}

// largeTree builds a node of any size: sockets of 64 CPUs and as many blocks of memory as CPUs.
func largeTree(tb testing.TB, cpus, functions int) string {
	root := tb.TempDir()
	var info bytes.Buffer
	for n := range cpus {
		fmt.Fprintf(&info, "processor\t: %d\nvendor_id\t: GenuineIntel\nmodel name\t: X\nflags\t\t: %s\n\n", n, strings.Repeat("flag ", 200))
		socket := n / 64
		putCPU(tb, root, n, socket, 0, n%64, map[string]string{"core_cpus_list": fmt.Sprint(n), "package_cpus_list": fmt.Sprintf("%d-%d", socket*64, socket*64+63)})
		put(tb, root, fmt.Sprintf("sys/devices/system/memory/memory%d/state", n), []byte("online\n"))
		put(tb, root, fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/cpuinfo_max_freq", n), []byte("3400000\n"))
	}
	put(tb, root, "proc/cpuinfo", info.Bytes())
	put(tb, root, cpuDir+"online", fmt.Appendf(nil, "0-%d\n", cpus-1))
	put(tb, root, cpuDir+"present", fmt.Appendf(nil, "0-%d\n", cpus-1))
	put(tb, root, "sys/devices/system/memory/block_size_bytes", []byte("80000000\n"))
	for n := range functions {
		dir := fmt.Sprintf("sys/bus/pci/devices/%04x:%02x:00.0/", n/256, n%256)
		put(tb, root, dir+"modalias", []byte("pci:v00008086d0000352Asv00000000sd00000000bc06sc04i00\n"))
		put(tb, root, dir+"numa_node", []byte("0\n"))
	}
	return root
}

// TestLinear: twice the node costs twice the opens and about twice the memory, whatever it is made of.
func TestLinear(t *testing.T) {
	cost := func(cpus, functions int) (opens int, allocated float64) {
		root := largeTree(t, cpus, functions)
		f, warnings := readBroken(t, root, func(string) error { opens++; return nil })
		if deref(f.CPU.Cores) != cpus || deref(f.CPU.Sockets) != cpus/64 || len(f.PCI) != functions {
			t.Fatalf("%d cores, %d sockets, %d functions, %v", deref(f.CPU.Cores), deref(f.CPU.Sockets), len(f.PCI), warnings)
		}
		if f.Memory.Blocks == nil || f.Memory.Blocks.Online != uint64(cpus)<<31 {
			t.Fatalf("blocks %+v", f.Memory.Blocks)
		}
		allocated = testing.AllocsPerRun(1, func() { Read(root) })
		return opens, allocated
	}
	opens, allocated := cost(256, 200)
	opens2, allocated2 := cost(512, 400)
	if opens2 > 2*opens || allocated2 > 2.2*allocated {
		t.Errorf("256 CPUs: %d opens, %.0f allocations; 512 CPUs: %d and %.0f", opens, allocated, opens2, allocated2)
	}
}

func BenchmarkReadLarge(b *testing.B) {
	root := largeTree(b, 512, 400)
	b.ReportAllocs()
	for b.Loop() {
		if f, _ := Read(root); len(f.PCI) != 400 {
			b.Fatal("functions are missing")
		}
	}
}

func BenchmarkReadLive(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if f, _ := Read("/"); f.CPU.LogicalCPUs == nil {
			b.Fatal("CPUs are missing")
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	f := serverFacts(b)
	for b.Loop() {
		f.Digest()
	}
}
