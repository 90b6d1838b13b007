package expr

import (
	"sort"
	"strings"

	"substrate/hwinfo"
)

// Bounds on what a report may bring into an expression; a fact beyond them counts as absent.
const (
	maxText     = 1024     // bytes of one text
	maxListText = 16 << 10 // bytes of one list of texts
	maxDevices  = 4096
	maxAlias    = 128 // bytes of one modalias; those of PCI have 54
)

// NodeEnv is what a condition sees of one node. NewNodeEnv makes it; it does not change
// afterwards and is safe for concurrent use. Exported methods would become part of the language,
// so it has none.
type NodeEnv struct {
	Hostname  func() string  `expr:"hostname" doc:"the kernel's node name, as it is set"`
	FQDN      func() string  `expr:"fqdn" doc:"the full name, if the node's own files tell it"`
	CPUInfo   *NodeCPU       `expr:"cpuinfo"`
	OSRelease *NodeOSRelease `expr:"osrelease"`
	Uname     *NodeUname     `expr:"uname"`
	Modalias  *NodeModalias  `expr:"modalias"`

	absent uint64 // bit i: nodeFacts()[i] is absent
}

// NodeCPU is cpuinfo.*: counts are totals of the node.
type NodeCPU struct {
	VendorID       string   `expr:"vendor_id" doc:"'GenuineIntel', 'AuthenticAMD'; on Arm the implementer"`
	ModelName      string   `expr:"model_name" doc:"as the processor calls itself; on Arm the name of the part"`
	Microcode      string   `expr:"microcode" doc:"revision of the microcode, as the kernel writes it"`
	Flags          []string `expr:"flags" doc:"features: 'avx512f', 'sve'"`
	Family         int      `expr:"cpu_family" doc:"x86: family"`
	Model          int      `expr:"model" doc:"x86: model"`
	Stepping       int      `expr:"stepping" doc:"x86: stepping"`
	Cores          int      `expr:"cpu_cores" doc:"**physical cores of the whole node**, from the CPUs that are online"`
	CoresPerSocket int      `expr:"cores_per_socket" doc:"physical cores of one socket, where all have the same"`
	Sockets        int      `expr:"sockets" doc:"sockets with a CPU that is online"`
	ThreadsPerCore int      `expr:"threads_per_core" doc:"hardware threads of one core, where all have the same"`
	LogicalCPUs    int      `expr:"logical_cpus" doc:"hardware threads of the whole node that are online"`
	NUMANodes      int      `expr:"numa_nodes" doc:"NUMA nodes that have CPUs"`
	MHzMax         float64  `expr:"cpu_mhz_max" doc:"highest clock in MHz"`
	Arch           string   `expr:"arch" doc:"'amd64', 'arm64', 'ppc64le', 's390x', 'riscv64', 'loong64'"`
}

// NodeOSRelease is osrelease.*, see os-release(5).
type NodeOSRelease struct {
	ID              string   `expr:"id" doc:"'debian', 'rhel', 'sles'; 'linux' where the file names none"`
	IDLike          []string `expr:"id_like" doc:"what it derives from"`
	VersionID       string   `expr:"version_id" doc:"'12', '22.04': a text"`
	Version         string   `expr:"version" doc:"with the name of the release"`
	VersionCodename string   `expr:"version_codename" doc:"'bookworm'"`
	Name            string   `expr:"name" doc:"without the version"`
	PrettyName      string   `expr:"pretty_name" doc:"for people"`
	VariantID       string   `expr:"variant_id" doc:"'server', 'coreos'"`
	PlatformID      string   `expr:"platform_id" doc:"'platform:el9'"`
	BuildID         string   `expr:"build_id" doc:"of an image"`
}

// NodeUname is uname.*, see uname(2).
type NodeUname struct {
	Sysname string `expr:"sysname" doc:"'Linux'"`
	Release string `expr:"release" doc:"of the kernel: '6.1.0-18-amd64'"`
	Version string `expr:"version" doc:"of the build"`
	Machine string `expr:"machine" doc:"'x86_64', 'aarch64'"`
}

// NodeModalias is modalias.*: shell patterns over the modaliases of PCI functions.
type NodeModalias struct {
	Match func(string) bool `expr:"match" doc:"some PCI device matches the shell pattern"`
	Count func(string) int  `expr:"count" doc:"how many PCI devices do"`
	List  func() []string   `expr:"list" doc:"the modaliases of all PCI devices, by address"`

	devices *devices // what a compiled expression asks instead, with patterns parsed once
}

// nodeFacts are the facts that can be absent, each with its bit.
func nodeFacts() []string {
	return []string{"hostname()", "fqdn()",
		"cpuinfo.vendor_id", "cpuinfo.model_name", "cpuinfo.microcode", "cpuinfo.flags", "cpuinfo.cpu_family",
		"cpuinfo.model", "cpuinfo.stepping", "cpuinfo.cpu_cores", "cpuinfo.cores_per_socket", "cpuinfo.sockets",
		"cpuinfo.threads_per_core", "cpuinfo.logical_cpus", "cpuinfo.numa_nodes", "cpuinfo.cpu_mhz_max", "cpuinfo.arch",
		"osrelease.id", "osrelease.id_like", "osrelease.version_id", "osrelease.version", "osrelease.version_codename",
		"osrelease.name", "osrelease.pretty_name", "osrelease.variant_id", "osrelease.platform_id", "osrelease.build_id",
		"uname.sysname", "uname.release", "uname.version", "uname.machine", "modalias"}
}

// factBits collects presence by name.
type factBits struct{ absent uint64 }

func (b *factBits) mark(name string, present bool) {
	if present {
		return
	}
	for i, fact := range nodeFacts() {
		if fact == name {
			b.absent |= 1 << i
		}
	}
}

func (b *factBits) text(name, value string) string {
	if len(value) > maxText {
		value = ""
	}
	b.mark(name, value != "")
	return value
}

func (b *factBits) list(name string, value []string) []string {
	total := 0
	for _, s := range value {
		total += len(s)
	}
	if total > maxListText || len(value) > maxListText {
		value = nil
	}
	b.mark(name, value != nil)
	return value
}

func (b *factBits) number(name string, value *int) int {
	b.mark(name, value != nil)
	if value == nil {
		return 0
	}
	return *value
}

// NewNodeEnv is the environment of one node. Absent facts stay absent: what reads them is unknown.
func NewNodeEnv(f hwinfo.Facts) *NodeEnv {
	b := &factBits{}
	host, fqdn := b.text("hostname()", f.Hostname), b.text("fqdn()", f.FQDN)
	c, o, u := f.CPU, f.OSRelease, f.Uname
	mhz := 0.0
	if c.MHzMax != nil {
		mhz = *c.MHzMax
	}
	b.mark("cpuinfo.cpu_mhz_max", c.MHzMax != nil)
	env := &NodeEnv{
		Hostname: func() string { return host },
		FQDN:     func() string { return fqdn },
		CPUInfo: &NodeCPU{
			VendorID:       b.text("cpuinfo.vendor_id", c.VendorID),
			ModelName:      b.text("cpuinfo.model_name", c.ModelName),
			Microcode:      b.text("cpuinfo.microcode", c.Microcode),
			Flags:          b.list("cpuinfo.flags", c.Flags),
			Family:         b.number("cpuinfo.cpu_family", c.Family),
			Model:          b.number("cpuinfo.model", c.Model),
			Stepping:       b.number("cpuinfo.stepping", c.Stepping),
			Cores:          b.number("cpuinfo.cpu_cores", c.Cores),
			CoresPerSocket: b.number("cpuinfo.cores_per_socket", c.CoresPerSocket),
			Sockets:        b.number("cpuinfo.sockets", c.Sockets),
			ThreadsPerCore: b.number("cpuinfo.threads_per_core", c.ThreadsPerCore),
			LogicalCPUs:    b.number("cpuinfo.logical_cpus", c.LogicalCPUs),
			NUMANodes:      b.number("cpuinfo.numa_nodes", c.NUMANodes),
			MHzMax:         mhz,
			Arch:           b.text("cpuinfo.arch", c.Arch),
		},
		OSRelease: &NodeOSRelease{
			ID:              b.text("osrelease.id", o.ID),
			IDLike:          b.list("osrelease.id_like", o.IDLike),
			VersionID:       b.text("osrelease.version_id", o.VersionID),
			Version:         b.text("osrelease.version", o.Version),
			VersionCodename: b.text("osrelease.version_codename", o.VersionCodename),
			Name:            b.text("osrelease.name", o.Name),
			PrettyName:      b.text("osrelease.pretty_name", o.PrettyName),
			VariantID:       b.text("osrelease.variant_id", o.VariantID),
			PlatformID:      b.text("osrelease.platform_id", o.PlatformID),
			BuildID:         b.text("osrelease.build_id", o.BuildID),
		},
		Uname: &NodeUname{
			Sysname: b.text("uname.sysname", u.Sysname),
			Release: b.text("uname.release", u.Release),
			Version: b.text("uname.version", u.Version),
			Machine: b.text("uname.machine", u.Machine),
		},
	}
	// No list at all means that nobody could look; an empty one means no devices.
	b.mark("modalias", f.PCI != nil && len(f.PCI) <= maxDevices)
	d := newDevices(f.PCI)
	env.Modalias = &NodeModalias{
		Match:   func(pattern string) bool { return d.count(parseGlob(pattern)) > 0 },
		Count:   func(pattern string) int { return d.count(parseGlob(pattern)) },
		List:    func() []string { return append([]string{}, d.list...) },
		devices: d,
	}
	env.absent = b.absent
	return env
}

// devices are the modaliases of a node; equal ones are matched once.
type devices struct {
	list     []string // by PCI address, as reported
	distinct []string // sorted
	counts   []int    // of each in distinct
}

func newDevices(pci []hwinfo.PCI) *devices {
	d := &devices{}
	for _, p := range pci[:min(len(pci), maxDevices)] {
		if alias := strings.TrimRight(p.Modalias, "\n"); alias != "" && len(alias) <= maxAlias {
			d.list = append(d.list, alias)
		}
	}
	sorted := append([]string{}, d.list...)
	sort.Strings(sorted)
	for _, alias := range sorted {
		if n := len(d.distinct); n > 0 && d.distinct[n-1] == alias {
			d.counts[n-1]++
			continue
		}
		d.distinct = append(d.distinct, alias)
		d.counts = append(d.counts, 1)
	}
	return d
}

// count is how many devices match a shell pattern.
func (d *devices) count(g *glob) int {
	n := 0
	d.each(g, func(i int) bool {
		n += d.counts[i]
		return true
	})
	return n
}

// any reports whether some device matches a shell pattern.
func (d *devices) any(g *glob) bool {
	found := false
	d.each(g, func(int) bool {
		found = true
		return false
	})
	return found
}

// each calls f with every distinct modalias that matches until f is false.
func (d *devices) each(g *glob, f func(i int) bool) {
	for i := sort.SearchStrings(d.distinct, g.prefix); i < len(d.distinct); i++ {
		if !strings.HasPrefix(d.distinct[i], g.prefix) || g.match(d.distinct[i]) && !f(i) {
			return
		}
	}
}
