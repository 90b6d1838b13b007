// Package catalogue knows what clouds say of their instance types, and estimates from it what a node of a type will have. It asks nobody, keeps
// nothing that nodes have reported, and knows no definition.
package catalogue

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"substrate/coordinator"
	"substrate/strictyaml"
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
	GPUs           *uint32            // whole ones; nil: unknown, where there is a vendor
	Fraction       bool               // its GPU is a part of one, which nobody is given as a whole
	CostPerHour    *float64           // USD, on demand, us-east-1
	Shortfall      *coordinator.Bytes // of Memory, as measured on such a node
	Seen           *coordinator.Bytes // what such a node had, as it said itself
	BareMetal      bool
	UsageClasses   []string // on-demand, spot, capacity-block; empty: unknown
	// Zones are those that have it, sorted; empty: unknown, or all of the place.
	Zones []string
	// Flexible: cores and memory are the buyer's to choose, and unknown before.
	Flexible bool
	// Ends is what the provider says of a type that it will give up, "" of others.
	Ends string
}

// Catalogue knows the types of one cloud. It does not change.
type Catalogue struct {
	types    []Type // by name
	names    []string
	complete bool
}

// Complete reports whether it lists all types of its cloud, so that a pattern stands for all that it matches and a miss is worth a word.
func (c *Catalogue) Complete() bool { return c.complete }

// Set holds the catalogues by the kind of definitions that are for them. It does not change; nil is empty.
type Set struct{ of map[string]*Catalogue }

// NewSet makes a set of catalogues by kind.
func NewSet(of map[string]*Catalogue) *Set { return &Set{of: maps.Clone(of)} }

// Embedded is what is built in, parsed anew each time: a caller keeps the result.
func Embedded() (*Set, error) {
	ec2, err := EC2()
	if err != nil {
		return nil, err
	}
	return NewSet(map[string]*Catalogue{"aws": ec2, "coreweave": CoreWeave()}), nil
}

// Of is the catalogue for definitions of a kind, nil when there is none.
func (s *Set) Of(kind string) *Catalogue {
	if s == nil {
		return nil
	}
	return s.of[kind]
}

// add puts types in order of their names.
func (c *Catalogue) add(types []Type) error {
	c.types = slices.SortedFunc(slices.Values(types), func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
	c.names = make([]string, 0, len(types))
	for i, t := range c.types {
		if i > 0 && c.names[i-1] == t.Name {
			return fmt.Errorf("cannot read catalogue: the type %s is listed twice", t.Name)
		}
		c.names = append(c.names, t.Name)
	}
	return nil
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
	end := strings.IndexAny(pattern, "*?")
	if end < 0 {
		if t, ok := c.Type(pattern); ok {
			return []Type{t}
		}
		return nil
	}
	prefix := pattern[:end]
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
	if !strings.ContainsAny(pattern, "*?") {
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
	if t.Seen != nil {
		h.Memory = *t.Seen
	}
	switch name := deviceName(t.GPUVendor); {
	case t.GPUVendor == "" && t.GPUs != nil && *t.GPUs > 0: // whose they are is not told: they may be any
		h.Unknown = []string{coordinator.DeviceAMD, coordinator.DeviceNVIDIA}
	case name == "" || t.Fraction:
	case t.GPUs != nil && *t.GPUs > 0:
		h.Devices = map[string]uint32{name: *t.GPUs}
	case t.GPUs == nil:
		h.Unknown = []string{name}
	}
	return h
}

func deviceName(vendor string) string {
	switch strings.ToLower(vendor) {
	case "nvidia":
		return coordinator.DeviceNVIDIA
	case "amd":
		return coordinator.DeviceAMD
	case "habana":
		return coordinator.DeviceGaudi
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

// New makes a catalogue of types. A complete one lists all that its cloud has.
func New(types []Type, complete bool) (*Catalogue, error) {
	c := &Catalogue{complete: complete}
	if err := c.add(types); err != nil {
		return nil, err
	}
	return c, nil
}

// Flags are what is worth a word about a type before it is launched.
func (t Type) Flags(spot bool) []string {
	var out []string
	if t.BareMetal {
		out = append(out, "bare metal")
	}
	if t.Fraction {
		out = append(out, "a fraction of a GPU, which counts as none")
	}
	if t.Arch != "" && t.Arch != "amd64" {
		out = append(out, "architecture "+t.Arch)
	}
	if spot && len(t.UsageClasses) > 0 && !slices.Contains(t.UsageClasses, "spot") {
		out = append(out, "not sold as spot")
	}
	return out
}
