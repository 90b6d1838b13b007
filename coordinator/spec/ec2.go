package spec

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// ec2Facts is the snapshot of the EC2 catalogue; see the file's header line for its columns.
// It is written once, by the compiler.
//
//go:embed ec2.tsv
var ec2Facts string

// Names of devices, as nodes report them.
const (
	DeviceNVIDIA = "nvidia.com/gpu"
	DeviceAMD    = "amd.com/gpu"
	DeviceGaudi  = "habana.ai/gaudi"
)

// Type is what a catalogue says about one instance type. A nil pointer is unknown.
type Type struct {
	Name           string
	VCPUs          *uint32
	Cores          *uint32
	ThreadsPerCore *uint32
	Memory         *coordinator.Bytes // as sold; a node sees less
	Arch           string             // amd64, arm64; "" unknown
	GPUVendor      string
	GPUs           *uint32  // logical: a fraction of a GPU is one device
	CostPerHour    *float64 // USD, on demand, us-east-1
	Shortfall      *coordinator.Bytes
	BareMetal      bool
	UsageClasses   []string // on-demand, spot, capacity-block
}

// Catalogue knows the types of one cloud. It does not change.
type Catalogue struct {
	types []Type // by name
	names []string
}

// EC2 parses the embedded snapshot; a caller does so once and keeps the result.
func EC2() (*Catalogue, error) { return parseCatalogue(strings.NewReader(ec2Facts)) }

func parseCatalogue(r io.Reader) (*Catalogue, error) {
	cr := csv.NewReader(r)
	cr.Comma, cr.LazyQuotes, cr.ReuseRecord = '\t', true, true
	header, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("cannot read catalogue: %w", err)
	}
	column := make(map[string]int, len(header))
	for i, name := range header {
		column[name] = i
	}
	for _, name := range []string{"type", "vcpus", "cores", "threads_per_core", "memory_mib", "architectures", "gpu_manufacturer",
		"gpu_count", "gpu_logical_count", "bare_metal", "usage_classes", "usd_per_hour_us_east_1", "node_memory_shortfall_bytes_2023"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("cannot read catalogue: the column %s is missing", name)
		}
	}
	c := &Catalogue{}
	for len(c.types) < 100_000 {
		rec, err := cr.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read catalogue: %w", err)
		}
		t, err := parseType(func(name string) string { return rec[column[name]] })
		if err != nil {
			return nil, err
		}
		c.types = append(c.types, t)
	}
	slices.SortFunc(c.types, func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
	for i, t := range c.types {
		if i > 0 && c.names[i-1] == t.Name {
			return nil, fmt.Errorf("cannot read catalogue: the type %s is listed twice", t.Name)
		}
		c.names = append(c.names, t.Name)
	}
	return c, nil
}

func parseType(field func(string) string) (Type, error) {
	t := Type{Name: strings.Clone(field("type")), GPUVendor: strings.Clone(field("gpu_manufacturer"))}
	var failed error
	number := func(name string) *uint64 {
		s := field(name)
		if s == "" || failed != nil {
			return nil
		}
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			failed = fmt.Errorf("cannot read catalogue: type %s, column %s: %q is not a whole number", t.Name, name, s)
			return nil
		}
		return &n
	}
	count := func(name string) *uint32 {
		n := number(name)
		if n == nil || *n > 1<<31 {
			return nil
		}
		c := uint32(*n)
		return &c
	}
	t.VCPUs, t.Cores, t.ThreadsPerCore = count("vcpus"), count("cores"), count("threads_per_core")
	if m := number("memory_mib"); m != nil && *m < 1<<40 {
		b := coordinator.Bytes(*m << 20)
		t.Memory = &b
	}
	if t.GPUs = count("gpu_logical_count"); t.GPUs == nil {
		t.GPUs = count("gpu_count")
	}
	if s := number("node_memory_shortfall_bytes_2023"); s != nil {
		b := coordinator.Bytes(*s)
		t.Shortfall = &b
	}
	if s := field("usd_per_hour_us_east_1"); s != "" && failed == nil {
		p, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return Type{}, fmt.Errorf("cannot read catalogue: type %s: %q is not a price", t.Name, s)
		}
		t.CostPerHour = &p
	}
	t.Arch = goArch(field("architectures"))
	t.BareMetal = strings.EqualFold(field("bare_metal"), "true")
	if s := field("usage_classes"); s != "" {
		t.UsageClasses = strings.Split(strings.Clone(s), ",")
	}
	return t, failed
}

// goArch turns EC2's list of architectures into Go's name of the widest.
func goArch(list string) string {
	for _, a := range strings.Split(list, ",") {
		switch strings.TrimSuffix(a, "_mac") {
		case "x86_64":
			return "amd64"
		case "arm64":
			return "arm64"
		}
	}
	return ""
}

// Len is the number of types.
func (c *Catalogue) Len() int { return len(c.types) }

// Type finds one type by its exact name.
func (c *Catalogue) Type(name string) (Type, bool) {
	i := sort.SearchStrings(c.names, name)
	if i < len(c.names) && c.names[i] == name {
		return c.types[i], true
	}
	return Type{}, false
}

// Match lists the types that a pattern names, by name. * is any text and ? any character.
func (c *Catalogue) Match(pattern string) []Type {
	if !Wildcard(pattern) {
		if t, ok := c.Type(pattern); ok {
			return []Type{t}
		}
		return nil
	}
	prefix := pattern[:strings.IndexAny(pattern, "*?")]
	var out []Type
	for i := sort.SearchStrings(c.names, prefix); i < len(c.types) && strings.HasPrefix(c.names[i], prefix); i++ {
		if globMatch(pattern, c.names[i]) {
			out = append(out, c.types[i])
		}
	}
	return out
}

// Nearest lists the names, or for a wildcard the families, that are closest to a miss.
func (c *Catalogue) Nearest(pattern string, n int) []string {
	if !Wildcard(pattern) {
		if near := strictyaml.Nearest(pattern, c.names, n); len(near) > 0 {
			return near
		}
	}
	wanted, _, _ := strings.Cut(strings.ReplaceAll(pattern, "?", "*"), ".")
	wanted = strings.ReplaceAll(wanted, "*", "")
	var families []string
	for _, name := range c.names {
		family, _, _ := strings.Cut(name, ".")
		if len(families) == 0 || families[len(families)-1] != family {
			families = append(families, family)
		}
	}
	families = slices.Compact(families)
	near := strictyaml.Nearest(wanted, families, n)
	for _, f := range families {
		if len(near) < n && wanted != "" && f[0] == wanted[0] && !slices.Contains(near, f) {
			near = append(near, f)
		}
	}
	for i, f := range near {
		near[i] = f + ".*"
	}
	return near
}

// globMatch reports whether pattern names the whole of s. It takes at most
// len(pattern)·len(s) steps.
func globMatch(pattern, s string) bool {
	p, i, star, from := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// Hardware is the estimate of what a node of the type reports; nil when the catalogue does
// not know cores or memory.
func (t Type) Hardware() *coordinator.Hardware {
	if t.Cores == nil || t.VCPUs == nil || t.Memory == nil {
		return nil
	}
	h := &coordinator.Hardware{Cores: coordinator.Cores(*t.Cores), Threads: *t.VCPUs, Arch: t.Arch, Estimated: true}
	h.Memory = Usable(*t.Memory, t.BareMetal)
	if t.Shortfall != nil && *t.Shortfall > 0 && *t.Shortfall < *t.Memory {
		h.Memory = *t.Memory - *t.Shortfall
	}
	if name := deviceName(t.GPUVendor); name != "" && t.GPUs != nil && *t.GPUs > 0 {
		h.Devices = map[string]uint32{name: *t.GPUs}
	}
	return h
}

func deviceName(vendor string) string {
	switch strings.ToLower(vendor) {
	case "nvidia":
		return DeviceNVIDIA
	case "amd":
		return DeviceAMD
	case "habana":
		return DeviceGaudi
	}
	return ""
}

// Usable estimates how much of a machine's memory a node reports, when nobody measured it.
// Firmware, hypervisor and kernel keep a share that shrinks with size; the steps lie above
// what was measured on EC2 (two vt1 sizes excepted, which are measured themselves), so that
// a request is refused rather than a useless node launched:
// up to 1 GiB 18 %, 4 GiB 12 %, 12 GiB 9 %, 32 GiB 6.5 %, beyond 5 %; bare metal 2.5 %.
func Usable(sold coordinator.Bytes, bareMetal bool) coordinator.Bytes {
	const gib = 1 << 30
	perMille := coordinator.Bytes(50)
	switch {
	case bareMetal:
		perMille = 25
	case sold <= 1*gib:
		perMille = 180
	case sold <= 4*gib:
		perMille = 120
	case sold <= 12*gib:
		perMille = 90
	case sold <= 32*gib:
		perMille = 65
	}
	return sold - sold/1000*perMille
}
