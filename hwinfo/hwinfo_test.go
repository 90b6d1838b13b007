package hwinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func deref(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

func TestReadLive(t *testing.T) {
	f, _ := Read("/")
	if f.CPU.Arch != runtime.GOARCH {
		t.Errorf("arch %q, want %q", f.CPU.Arch, runtime.GOARCH)
	}
	if host, err := os.Hostname(); err != nil || f.Hostname != host {
		t.Errorf("hostname %q, want %q (%v)", f.Hostname, host, err)
	}
	if f.Memory.Total == nil || f.OSRelease.ID == "" || f.Uname.Release == "" {
		t.Errorf("memory, os-release or kernel release is missing: %s", asJSON(t, f))
	}
	checkSnapshot(t, "/", f)
}

func TestReadNoRoot(t *testing.T) {
	f, w := Read(filepath.Join(t.TempDir(), "nowhere"))
	if f.Digest() != (Facts{}).Digest() || len(w) != 1 || w[0].Source != "." || strings.Contains(w[0].Message, "nowhere") {
		t.Errorf("got %+v, %v", f, w)
	}
}

func TestEmptyRoot(t *testing.T) {
	f, w := Read(t.TempDir())
	if f.Digest() != (Facts{}).Digest() {
		t.Errorf("an empty root gives %s", asJSON(t, f))
	}
	var sources []string
	for _, x := range w {
		sources = append(sources, x.Source)
	}
	want := []string{"etc/os-release", "proc/cpuinfo", "proc/meminfo", "sys/bus/pci/devices"}
	if !slices.Equal(sources, want) {
		t.Errorf("warned of %v, want %v", sources, want)
	}
}

// TestLinks: a link is resolved inside the root, whatever it says.
func TestLinks(t *testing.T) {
	outside := t.TempDir()
	put(t, outside, "os-release", []byte("ID=outside\n"))
	tests := []struct{ name, target, id string }{
		{"absolute", "/usr/lib/os-release", "inside"},
		{"relative", "../usr/lib/os-release", "inside"},
		{"above the root", "../../../../usr/lib/os-release", "inside"},
		{"through a directory link", "/lib/os-release", "inside"},
		{"absolute to the outside", filepath.Join(outside, "os-release"), "usr"},
		{"loop", "os-release", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			id := tt.id
			if id == "" {
				id = "usr"
			}
			put(t, root, "usr/lib/os-release", []byte("ID="+id+"\n"))
			putLink(t, root, "lib", "usr/lib")
			putLink(t, root, "etc/os-release", tt.target)
			f, _ := Read(root)
			if f.OSRelease.ID != tt.id {
				t.Errorf("id %q, want %q", f.OSRelease.ID, tt.id)
			}
			checkWalk(t, root, f)
		})
	}
}

// TestPipe: a pipe in place of a file neither blocks nor spoils the rest.
func TestPipe(t *testing.T) {
	root := t.TempDir()
	put(t, root, "etc/os-release", []byte("ID=x\n"))
	put(t, root, "proc/self/cgroup", []byte("0::/\n"))
	if err := syscall.Mkfifo(filepath.Join(root, "proc/meminfo"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, w := Read(root)
	if f.OSRelease.ID != "x" || f.Memory.Total != nil {
		t.Errorf("got %s", asJSON(t, f))
	}
	if !slices.Contains(w, Warning{"proc/meminfo", "not a regular file"}) {
		t.Errorf("warnings %v", w)
	}
	checkWalk(t, root, f)
}

func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	dir := "sys/bus/pci/devices/0000:01:00.0/"
	put(t, root, dir+"vendor", []byte("0x10de\n"))
	put(t, root, dir+"device", []byte("nonsense\n"))
	put(t, root, dir+"class", []byte("0x030200\n"))
	put(t, root, dir+"numa_node", []byte("1\n"))
	putLink(t, root, dir+"driver", "../../../bus/pci/drivers/nvidia")
	f, w := Read(root)
	if len(f.GPUs) != 1 || f.GPUs[0].Vendor != "nvidia" || !f.GPUs[0].Driver || deref(f.GPUs[0].NUMANode) != 1 {
		t.Errorf("one bad attribute lost the GPU: %s", asJSON(t, f))
	}
	if f.PCI[0].Device != nil || f.PCI[0].Driver != "nvidia" {
		t.Errorf("function %+v", f.PCI[0])
	}
	if !slices.ContainsFunc(w, func(w Warning) bool { return w.Source == dir+"device" }) {
		t.Errorf("no warning about the device id: %v", w)
	}
}

// TestGPURules: what shares a vendor or class with GPUs and is none.
func TestGPURules(t *testing.T) {
	id := func(vendor, device uint16, class uint32) PCI {
		return PCI{Address: "0000:17:00.0", Vendor: &vendor, Device: &device, Class: &class}
	}
	virtual := id(0x1002, 0x7410, 0x038000)
	virtual.Virtual = true
	dead := id(0x10de, 0x2330, 0x030200)
	dead.Dead = true
	onBoard := id(0x8086, 0x3e98, 0x030000)
	onBoard.Address = "0000:00:02.0"
	tests := []struct {
		name     string
		f        PCI
		resource string
	}{
		{"H100", id(0x10de, 0x2330, 0x030200), "nvidia.com/gpu"},
		{"MI300X", id(0x1002, 0x74a1, 0x120000), "amd.com/gpu"},
		{"MI210", id(0x1002, 0x740f, 0x038000), "amd.com/gpu"},
		{"Max 1550", id(0x8086, 0x0bd5, 0x038000), "intel.com/gpu"},
		{"Gaudi2", id(0x1da3, 0x1020, 0x120000), "habana.ai/gaudi"},
		{"NVSwitch", id(0x10de, 0x22a3, 0x068000), ""},
		{"audio", id(0x10de, 0x10f7, 0x040300), ""},
		{"ASPEED", id(0x1a03, 0x2000, 0x030000), ""},
		{"Amazon VGA", id(0x1d0f, 0x1111, 0x030000), ""},
		{"virtio-gpu", id(0x1af4, 0x1050, 0x038000), ""},
		{"Intel FPGA", id(0x8086, 0x09c4, 0x120000), ""},
		{"processor graphics", onBoard, ""},
		{"virtual function", virtual, ""},
		{"dead", dead, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, ok := classifyGPU(&tt.f)
			if g.Resource != tt.resource || ok != (tt.resource != "") {
				t.Errorf("got %+v, %v", g, ok)
			}
		})
	}
}

func TestVirtualAndDeadFunctions(t *testing.T) {
	root := t.TempDir()
	dir := "sys/bus/pci/devices/"
	modalias := func(v, d, class string) []byte {
		return fmt.Appendf(nil, "pci:v0000%sd0000%ssv00000000sd00000000bc%ssc%si%s\n", v, d, class[:2], class[2:4], class[4:])
	}
	put(t, root, dir+"0000:03:00.0/modalias", modalias("1002", "7410", "038000"))
	put(t, root, dir+"0000:03:02.0/modalias", modalias("1002", "7410", "038000"))
	putLink(t, root, dir+"0000:03:02.0/physfn", "../0000:03:00.0")
	put(t, root, dir+"0000:04:00.0/modalias", modalias("FFFF", "FFFF", "FFFFFF"))
	put(t, root, dir+"00010:03:00.0/modalias", modalias("8086", "1592", "020000"))
	put(t, root, dir+"0002:03:00.0/modalias", modalias("8086", "1592", "020000"))
	put(t, root, dir+"not-an-address/modalias", modalias("8086", "1592", "020000"))
	f, _ := Read(root)
	var addresses []string
	for _, p := range f.PCI {
		addresses = append(addresses, p.Address)
	}
	if want := []string{"0000:03:00.0", "0000:03:02.0", "0000:04:00.0", "0002:03:00.0", "00010:03:00.0"}; !slices.Equal(addresses, want) {
		t.Fatalf("addresses %v, want %v", addresses, want)
	}
	if len(f.GPUs) != 1 || !f.PCI[1].Virtual || f.PCI[0].Virtual {
		t.Errorf("got %s", asJSON(t, f))
	}
	if p := f.PCI[2]; !p.Dead || p.Vendor != nil || p.Modalias != "" {
		t.Errorf("dead function %+v", p)
	}
	if len(f.Modaliases()) != 4 {
		t.Errorf("modaliases %v", f.Modaliases())
	}
	checkSnapshot(t, root, f)
}

func TestPCIAddress(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"0000:2B:00.0", "0000:2b:00.0"}, {"2b:00.0", "0000:2b:00.0"}, {"00000000:2B:00.0", "0000:2b:00.0"},
		{"10001:8a:1f.7", "10001:8a:1f.7"}, {"ffffffff:00:00.0", "ffffffff:00:00.0"},
		{"0000:2b:20.0", ""}, {"0000:2b:00.8", ""}, {"100000000:00:00.0", ""}, {"0000:2b:00", ""}, {"", ""}, {"+000:2b:00.0", ""},
	} {
		a, err := ParsePCIAddress(tt.in)
		if (err == nil) != (tt.want != "") || err == nil && a.String() != tt.want {
			t.Errorf("%q is %v, %v, want %q", tt.in, a, err, tt.want)
		}
	}
}

// TestLongLine: a line of a mebibyte is read like any other.
func TestLongLine(t *testing.T) {
	var b bytes.Buffer
	for i := range 2 {
		fmt.Fprintf(&b, "processor\t: %d\nvendor_id\t: GenuineIntel\nbugs\t: %s\nmodel name\t: X\nphysical id\t: 0\ncore id\t: %d\n\n",
			i, strings.Repeat("b ", 1<<19), i)
	}
	text, err := parseCPUInfo(&b)
	if err != nil || text.logical() != 2 || text.value("model name") != "X" || len(text.places()) != 2 {
		t.Errorf("%d CPUs, %q, %v", text.logical(), text.value("model name"), err)
	}
}

func TestFQDN(t *testing.T) {
	const hosts = "127.0.0.1 localhost localhost.localdomain\n10.0.0.7\tn1.cluster.example n1 # n1.wrong.example\n::1 n1.localdomain\n"
	for _, tt := range []struct{ node, want string }{
		{"n1", "n1.cluster.example"}, {"N1", ""}, {"n2", ""}, {"localhost", ""},
	} {
		got, err := parseHosts(strings.NewReader(hosts), tt.node)
		if err != nil || got != tt.want {
			t.Errorf("%s is %q, %v, want %q", tt.node, got, err, tt.want)
		}
	}
}

// TestLimits: the tightest limit between the group and the root binds; names of groups stay out of snapshots.
func TestLimits(t *testing.T) {
	root := t.TempDir()
	put(t, root, "proc/meminfo", []byte("MemTotal: 8388608 kB\n"))
	put(t, root, "proc/self/cgroup", []byte("0::/user.slice/user-4711.slice/app\n"))
	put(t, root, "sys/devices/system/cpu/online", []byte("0-7\n"))
	group := "sys/fs/cgroup/user.slice/"
	put(t, root, group+"memory.max", []byte("max\n"))
	put(t, root, group+"cpu.max", []byte("150000 100000\n"))
	put(t, root, group+"user-4711.slice/memory.max", []byte("1073741824\n"))
	put(t, root, group+"user-4711.slice/app/memory.max", []byte("4294967296\n"))
	put(t, root, group+"user-4711.slice/app/cpu.max", []byte("400000 100000\n"))
	put(t, root, group+"user-4711.slice/app/cpuset.cpus.effective", []byte("0-5\n"))
	f, w := Read(root)
	if f.Limits.Memory == nil || *f.Limits.Memory != 1<<30 || f.Limits.CPUs == nil || *f.Limits.CPUs != 1.5 || len(f.Limits.CPUSet) != 6 {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
	checkSnapshot(t, root, f)
	dir := filepath.Join(t.TempDir(), "s")
	if err := Snapshot(root, dir); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if strings.Contains(p, "4711") {
			t.Errorf("%s names a user's group", p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := Snapshot(root, dir); err == nil || err.Error() != "cannot write snapshot: directory is not empty" {
		t.Errorf("a second snapshot into the same directory: %v", err)
	}
}

func TestLimitsV1(t *testing.T) {
	root := t.TempDir()
	put(t, root, "proc/self/cgroup", []byte("4:memory:/a/b\n3:cpu,cpuacct:/a\n2:cpuset:/a\n1:name=systemd:/user\n0::/x\n"))
	put(t, root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", []byte("1000000\n"))
	put(t, root, "sys/fs/cgroup/memory/memory.limit_in_bytes", []byte("9223372036854710272\n"))
	put(t, root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", []byte("50000\n"))
	put(t, root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", []byte("100000\n"))
	put(t, root, "sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", []byte("2,4\n"))
	f, w := Read(root)
	if f.Limits.Memory == nil || *f.Limits.Memory != 1000000 || f.Limits.CPUs == nil || *f.Limits.CPUs != 0.5 || !slices.Equal(f.Limits.CPUSet, []int{2, 4}) {
		t.Errorf("got %s, %v", asJSON(t, f), w)
	}
	checkSnapshot(t, root, f)
}

func TestDigestAndDrift(t *testing.T) {
	a, b := serverFacts(t), serverFacts(t)
	if a.Digest() != b.Digest() || Fingerprint(a) != Fingerprint(b) || len(Drift(a, b)) != 0 {
		t.Error("the same tree differs from itself")
	}
	b.Memory.Total = ptr(*a.Memory.Total - *a.Memory.Total/60)
	if d := Drift(a, b); len(d) != 0 || a.Digest() == b.Digest() {
		t.Errorf("1.7 %% of memory: %v", d)
	}
	b.Memory.Total = ptr(*a.Memory.Total - *a.Memory.Total/40)
	b.GPUs = b.GPUs[1:]
	b.CPU.Cores = ptr(60)
	if d := Drift(a, b); len(d) != 3 {
		t.Errorf("drift %q", d)
	}
	c := serverFacts(t)
	c.GPUs[0].Driver = !c.GPUs[0].Driver
	if d := Drift(a, c); len(d) != 1 || !strings.HasPrefix(d[0], "gpus without a driver: ") || Fingerprint(a) != Fingerprint(c) {
		t.Errorf("a driver more or less: %q", d)
	}
	if Fingerprint(a) == Fingerprint(b) {
		t.Error("a node without a GPU has the same fingerprint")
	}
}

// TestListProperty: a list is read back as it was written.
func TestListProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.SliceOfNDistinct(rapid.IntRange(0, 9000), 0, 200, rapid.ID).Draw(t, "numbers")
		slices.Sort(ns)
		got, err := parseList(formatList(ns)+"\n", maxCPUs)
		if err != nil || !slices.Equal(got, ns) {
			t.Fatalf("%v came back as %v, %v", ns, got, err)
		}
	})
}

// TestOSReleaseProperty: any value survives being written and read.
func TestOSReleaseProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vars := map[string]string{}
		for _, key := range osReleaseKeys() {
			if rapid.Bool().Draw(t, "set "+key) {
				vars[key] = rapid.String().Draw(t, key)
			}
		}
		got, problems, err := parseOSRelease(bytes.NewReader(formatOSRelease(vars)))
		if err != nil || len(problems) > 0 || len(got) != len(vars) {
			t.Fatalf("%v, %v, %q", problems, err, got)
		}
		for k, v := range vars {
			if got[k] != v {
				t.Fatalf("%s=%q came back as %q", k, v, got[k])
			}
		}
	})
}

// TestCountProperty: with every id known, the counts follow from the shape that was built.
func TestCountProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sockets, dies := rapid.IntRange(1, 8).Draw(t, "sockets"), rapid.IntRange(1, 4).Draw(t, "dies")
		cores, threads := rapid.IntRange(1, 16).Draw(t, "cores"), rapid.IntRange(1, 8).Draw(t, "threads")
		var places []place
		for s := range sockets {
			for d := range dies {
				for k := range cores {
					for range threads {
						places = append(places, place{pkg: s * 3, die: d, core: k * 2}) // ids have gaps and repeat
					}
				}
			}
		}
		places = rapid.Permutation(places).Draw(t, "order")
		var c CPU
		c.count(len(places), places)
		if deref(c.Cores) != sockets*dies*cores || deref(c.Sockets) != sockets ||
			deref(c.CoresPerSocket) != dies*cores || deref(c.ThreadsPerCore) != threads {
			t.Fatalf("%d %d %d %d", deref(c.Cores), deref(c.Sockets), deref(c.CoresPerSocket), deref(c.ThreadsPerCore))
		}
	})
}

func TestCountUnknown(t *testing.T) {
	tests := []struct {
		name                    string
		places                  []place
		cores, sockets, perSock int
	}{
		{"core unknown", []place{{pkg: 0, core: -1}, {pkg: 0, core: -1}}, 2, 1, 2},
		{"package unknown", []place{{pkg: -1, core: 0}, {pkg: -1, core: 0}}, 2, 1, 2},
		{"one package unknown", []place{{pkg: 0, core: 0}, {pkg: 1, core: 0}, {pkg: -1, core: 0}}, 3, 2, -1},
		{"uneven sockets", []place{{pkg: 0, core: 0}, {pkg: 0, core: 1}, {pkg: 1, core: 0}}, 3, 2, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c CPU
			c.count(len(tt.places), tt.places)
			if deref(c.Cores) != tt.cores || deref(c.Sockets) != tt.sockets || deref(c.CoresPerSocket) != tt.perSock {
				t.Errorf("%d cores, %d sockets, %d per socket", deref(c.Cores), deref(c.Sockets), deref(c.CoresPerSocket))
			}
		})
	}
}

func TestClean(t *testing.T) {
	for _, s := range []string{"\xff\xfe", strings.Repeat("ä", maxText), "a\x00b\x1b[31m", "  x  ", "\u0085"} {
		got := clean(s)
		if !utf8.ValidString(got) || len(got) > maxText || strings.ContainsAny(got, "\x00\x1b\u0085") || got != strings.TrimSpace(got) {
			t.Errorf("%.20q became %.20q", s, got)
		}
	}
}
