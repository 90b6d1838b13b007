package agree

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"substrate/hwinfo"
)

// program is the agent's, which TestMain builds.
var program string

func TestMain(m *testing.M) { os.Exit(withProgram(m)) }

func withProgram(m *testing.M) int {
	dir, err := os.MkdirTemp("", "agree")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "substrated")
	if given := os.Getenv("SUBSTRATE_BIN"); given != "" {
		program = filepath.Join(given, "substrated")
		return m.Run()
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "substrate/cmd/substrated")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build substrated: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// inspect is what the program prints.
func inspect(t *testing.T) hwinfo.Facts {
	t.Helper()
	out, err := exec.Command(program, "inspect", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Facts hwinfo.Facts }
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	return r.Facts
}

// tool runs another program. One that is missing is a failure where everything is to be compared, else it is said aloud.
func tool(t *testing.T, pkg, name string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed (%s): make deps installs it", name, pkg)
		}
		t.Skipf("NOT COMPARED with %s, which is not installed (%s): make deps installs it", name, pkg)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return out
}

func number(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: we say %v, they say %v", what, got, want)
	}
}

type field struct {
	Name     string  `json:"field"`
	Data     string  `json:"data"`
	Children []field `json:"children"`
}

func flatten(fields []field, into map[string]string) {
	for _, f := range fields {
		into[strings.TrimSuffix(f.Name, ":")] = f.Data
		flatten(f.Children, into)
	}
}

func TestLscpu(t *testing.T) {
	var doc struct {
		Fields []field `json:"lscpu"`
	}
	if err := json.Unmarshal(tool(t, "util-linux", "lscpu", "-J"), &doc); err != nil {
		t.Fatal(err)
	}
	theirs := map[string]string{}
	flatten(doc.Fields, theirs)
	f := inspect(t)
	count := func(key string) int {
		n, err := strconv.Atoi(theirs[key])
		if err != nil {
			return -1 // it prints "-" or nothing where it does not know
		}
		return n
	}
	same(t, "machine", f.Uname.Machine, theirs["Architecture"])
	same(t, "CPUs", number(f.CPU.LogicalCPUs), count("CPU(s)"))
	sockets, perSocket := count("Socket(s)"), count("Core(s) per socket")
	if sockets > 0 && perSocket > 0 {
		same(t, "sockets", number(f.CPU.Sockets), sockets)
		same(t, "cores", number(f.CPU.Cores), sockets*perSocket)
		same(t, "threads per core", number(f.CPU.ThreadsPerCore), count("Thread(s) per core"))
	}
	if n := count("NUMA node(s)"); n > 0 {
		same(t, "NUMA nodes with CPUs", number(f.CPU.NUMANodes), n)
	}
	for _, n := range f.NUMA {
		if cpus, ok := theirs[fmt.Sprintf("NUMA node%d CPU(s)", n.ID)]; ok && !n.Implied {
			same(t, fmt.Sprintf("CPUs of node %d", n.ID), fmt.Sprint(n.CPUs), fmt.Sprint(expand(t, cpus)))
		}
	}
	if f.CPU.Arch == "amd64" {
		same(t, "vendor", f.CPU.VendorID, theirs["Vendor ID"])
		same(t, "model name", f.CPU.ModelName, theirs["Model name"])
		same(t, "family", number(f.CPU.Family), count("CPU family"))
		same(t, "model", number(f.CPU.Model), count("Model"))
		same(t, "stepping", number(f.CPU.Stepping), count("Stepping"))
		same(t, "flags", strings.Join(f.CPU.Flags, " "), strings.Join(strings.Fields(theirs["Flags"]), " "))
		if theirs["Hypervisor vendor"] != "" && f.Machine.Virtualization == "none" {
			t.Errorf("virtualization: we say none, they say %s", theirs["Hypervisor vendor"])
		}
	}
}

// expand reads "0-3,8" and "0,1".
func expand(t *testing.T, s string) []int {
	t.Helper()
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || b-a > 1<<16 {
			t.Fatalf("it lists %q", s)
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	return out
}

var (
	pciLine   = regexp.MustCompile(`^([0-9a-f:.]+) .*?\[([0-9a-f]{4})\]:? .*\[([0-9a-f]{4}):([0-9a-f]{4})\]`)
	driverUse = regexp.MustCompile(`^\tKernel driver in use: (\S+)`)
)

func TestLspci(t *testing.T) {
	type function struct {
		class, vendor, device, driver string
	}
	theirs := map[string]function{}
	last := ""
	for line := range strings.Lines(string(tool(t, "pciutils", "lspci", "-D", "-nnk"))) {
		if m := pciLine.FindStringSubmatch(line); m != nil {
			last = m[1]
			theirs[last] = function{class: m[2], vendor: m[3], device: m[4]}
		} else if m := driverUse.FindStringSubmatch(line); m != nil {
			f := theirs[last]
			f.driver = m[1]
			theirs[last] = f
		}
	}
	ours := map[string]function{}
	for _, p := range inspect(t).PCI {
		f := function{driver: p.Driver}
		if p.Vendor != nil && p.Device != nil && p.Class != nil {
			f.class, f.vendor, f.device = fmt.Sprintf("%04x", *p.Class>>8), fmt.Sprintf("%04x", *p.Vendor), fmt.Sprintf("%04x", *p.Device)
			want := fmt.Sprintf("pci:v%08Xd%08X", *p.Vendor, *p.Device)
			if p.Modalias != "" && !strings.HasPrefix(p.Modalias, want) {
				t.Errorf("%s: modalias %s does not begin %s", p.Address, p.Modalias, want)
			}
		}
		ours[p.Address] = f
	}
	same(t, "functions", len(ours), len(theirs))
	for address, want := range theirs {
		same(t, address, ours[address], want)
	}
}

func TestNumactl(t *testing.T) {
	if _, err := os.Stat("/sys/devices/system/node/node0"); err != nil {
		t.Skip("the kernel of this machine shows no NUMA nodes, numactl refuses to say anything")
	}
	theirs := string(tool(t, "numactl", "numactl", "-H"))
	nodes := inspect(t).NUMA
	if m := regexp.MustCompile(`(?m)^available: (\d+) nodes`).FindStringSubmatch(theirs); m != nil {
		same(t, "nodes", strconv.Itoa(len(nodes)), m[1])
	} else {
		t.Fatalf("it says %q", theirs)
	}
	line := func(id int, what string) string {
		m := regexp.MustCompile(fmt.Sprintf(`(?m)^node %d %s: ?(.*)$`, id, what)).FindStringSubmatch(theirs)
		if m == nil {
			t.Fatalf("it does not speak of node %d: %s", id, theirs)
		}
		return strings.TrimSpace(m[1])
	}
	for _, n := range nodes {
		same(t, fmt.Sprintf("CPUs of node %d", n.ID), strings.Trim(fmt.Sprint(n.CPUs), "[]"), line(n.ID, "cpus"))
		if n.Memory == nil {
			t.Errorf("memory of node %d is unknown", n.ID)
			continue
		}
		same(t, fmt.Sprintf("memory of node %d", n.ID), fmt.Sprintf("%d MB", *n.Memory>>20), line(n.ID, "size"))
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d: +(.*)$`, n.ID)).FindStringSubmatch(theirs)
		if row == nil {
			t.Fatalf("no distances of node %d: %s", n.ID, theirs)
		}
		same(t, fmt.Sprintf("distances of node %d", n.ID), strings.Trim(fmt.Sprint(n.Distances), "[]"), strings.Join(strings.Fields(row[1]), " "))
	}
}

// TestMeminfo reads the kernel's file by another way than the product's.
func TestMeminfo(t *testing.T) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kB uint64
	for line := range strings.Lines(string(data)) {
		if n, err := fmt.Sscanf(line, "MemTotal: %d kB", &kB); n == 1 && err == nil {
			break
		}
	}
	f := inspect(t)
	if f.Memory.Total == nil || kB == 0 {
		t.Fatalf("total %v, the file says %d", f.Memory.Total, kB)
	}
	same(t, "MemTotal", *f.Memory.Total, kB<<10)
	if b := f.Memory.Blocks; b != nil && b.Online < *f.Memory.Total {
		t.Errorf("%d bytes in blocks, %d of memory", b.Online, *f.Memory.Total)
	}
}

// TestLsmem compares memory blocks, whose states the product need not read one by one.
func TestLsmem(t *testing.T) {
	f := inspect(t)
	if f.Memory.Blocks == nil {
		t.Skip("the kernel of this machine has no memory blocks")
	}
	var doc struct {
		Memory []struct {
			Size  uint64 `json:"size"`
			State string `json:"state"`
		} `json:"memory"`
	}
	if err := json.Unmarshal(tool(t, "util-linux", "lsmem", "-J", "-b"), &doc); err != nil {
		t.Fatal(err)
	}
	var online, offline uint64
	for _, m := range doc.Memory {
		if m.State == "online" {
			online += m.Size
		} else {
			offline += m.Size
		}
	}
	same(t, "memory online", f.Memory.Blocks.Online, online)
	same(t, "memory offline", f.Memory.Blocks.Offline, offline)
}

func TestLsblk(t *testing.T) {
	var doc struct {
		Devices []struct {
			Name string `json:"name"`
			Type string `json:"type"`
			Size uint64 `json:"size"`
			Rota bool   `json:"rota"`
			RM   bool   `json:"rm"`
			Sub  string `json:"subsystems"`
		} `json:"blockdevices"`
	}
	out := tool(t, "util-linux", "lsblk", "-J", "-b", "-d", "-o", "NAME,TYPE,SIZE,ROTA,RM,SUBSYSTEMS")
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatal(err)
	}
	ours := map[string]hwinfo.Disk{}
	for _, d := range inspect(t).Disks {
		ours[d.Name] = d
	}
	for _, d := range doc.Devices {
		// What has no device below it (zram, loop, device mapper) is no disk for us.
		if d.Type != "disk" || d.Size == 0 || d.Sub == "block" {
			continue
		}
		got, ok := ours[d.Name]
		if !ok {
			t.Errorf("%s: lsblk has it, we do not", d.Name)
			continue
		}
		if got.Size == nil || got.Rotational == nil {
			t.Errorf("%s: size or rotation is unknown", d.Name)
			continue
		}
		same(t, d.Name+" size", *got.Size, d.Size)
		same(t, d.Name+" rotational", *got.Rotational, d.Rota)
		same(t, d.Name+" removable", got.Removable, d.RM)
		delete(ours, d.Name)
	}
	for name := range ours {
		t.Errorf("%s: we have it, lsblk does not", name)
	}
}

// TestVirt compares with systemd whether there is a hypervisor. Which one is a matter of whom one asks where one
// hypervisor answers in the name of another: systemd asks the processor, we the files.
func TestVirt(t *testing.T) {
	path, err := exec.LookPath("systemd-detect-virt")
	if err != nil {
		t.Skip("this machine has no systemd-detect-virt")
	}
	out, _ := exec.Command(path, "--vm").Output() // fails where there is none, and says so
	theirs := strings.TrimSpace(string(out))
	if got := inspect(t).Machine.Virtualization; got != "" {
		same(t, "a hypervisor", got != "none", theirs != "none")
	}
}
