// Package catalogue knows what clouds say of their instance types, and estimates from it what a node of a type will have. It asks nobody, keeps
// nothing that nodes have reported, and knows no definition.
package catalogue

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// Type is what a catalogue says about one instance type. A nil pointer is unknown.
type Type struct {
	Name           string             `json:"name"`
	VCPUs          *uint32            `json:"vcpus,omitempty"`
	Cores          *uint32            `json:"cores,omitempty"`
	ThreadsPerCore *uint32            `json:"threads_per_core,omitempty"`
	Memory         *coordinator.Bytes `json:"memory,omitempty"` // as sold; a node sees less
	Arch           string             `json:"arch,omitempty"`   // amd64, arm64; "" unknown
	GPUVendor      string             `json:"gpu_vendor,omitempty"`
	GPUs           *uint32            `json:"gpus,omitempty"`          // whole ones; nil: unknown, where there is a vendor
	Fraction       bool               `json:"fraction,omitempty"`      // its GPU is a part of one, which nobody is given as a whole
	CostPerHour    *float64           `json:"cost_per_hour,omitempty"` // USD, on demand
	Shortfall      *coordinator.Bytes `json:"-"`                       // of Memory, as measured on such a node
	Seen           *coordinator.Bytes `json:"-"`                       // what such a node had, as it said itself
	PricedIn       string             `json:"-"`                       // the region that CostPerHour is of, where it is not the type's
	BareMetal      bool               `json:"bare_metal,omitempty"`
	UsageClasses   []string           `json:"usage_classes,omitempty"` // on-demand, spot, capacity-block; empty: unknown
	// Zones are those that have it, sorted; empty: unknown, or all of the place.
	Zones []string `json:"zones,omitempty"`
	// Flexible: cores and memory are the buyer's to choose, and unknown before.
	Flexible bool `json:"flexible,omitempty"`
	// Ends is what the provider says of a type that it will give up, "" of others.
	Ends string `json:"ends,omitempty"`
	// Missing is since when the provider does not tell of it any more; zero: it does.
	Missing time.Time `json:"missing,omitzero"`
}

// Catalogue knows the types of one cloud. It does not change.
type Catalogue struct {
	types    []Type // by name
	names    []string
	complete bool
	priced   string    // the region that its prices are of, "" for any
	told     *Provided // nil: it is built in
}

// Complete reports whether it lists all types of its cloud, so that a pattern stands for all that it matches and a miss is worth a word.
func (c *Catalogue) Complete() bool { return c.complete }

// Told is the provider's word that it was made of, nil where it is built in.
func (c *Catalogue) Told() *Provided {
	if c == nil {
		return nil
	}
	return c.told
}

// All lists its types, by name.
func (c *Catalogue) All() []Type { return slices.Clone(c.types) }

// Set holds the catalogues by the kind of definitions that are for them, and those of places by their backend's target. It does not change;
// nil is empty.
type Set struct {
	of map[string]*Catalogue
	at map[string]*Catalogue
}

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

// PlaceOf names a place: the kind of its provider, and the target of a backend.
func PlaceOf(kind, target string) string { return kind + "/" + target }

// At is the catalogue for definitions of a kind at a place: what its provider has told of it, else what is built in for the kind, else nil.
func (s *Set) At(kind, target string) *Catalogue {
	if s == nil {
		return nil
	}
	if c := s.at[PlaceOf(kind, target)]; c != nil {
		return c
	}
	return s.of[kind]
}

// With is the set with what the provider of a place has told.
func (s *Set) With(p *Provided) (*Set, error) {
	c, err := p.Catalogue(s.Of(p.Kind))
	if err != nil {
		return nil, err
	}
	out := &Set{at: map[string]*Catalogue{}}
	if s != nil {
		out.of = s.of
		maps.Copy(out.at, s.at)
	}
	out.at[p.Place()] = c
	return out, nil
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

// Matches reports whether a pattern names the whole of a type's name.
func Matches(pattern, name string) bool { return globMatch(pattern, name) }

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

// Measured reports whether what a node sees of its memory was measured on one.
func (t Type) Measured() bool { return t.Shortfall != nil && *t.Shortfall > 0 || t.Seen != nil }

// Flags are what is worth a word about a type before it is launched.
func (t Type) Flags(spot bool) []string {
	var out []string
	if t.BareMetal {
		out = append(out, FlagMetal)
	}
	if t.Fraction {
		out = append(out, FlagFraction)
	}
	switch gpus := t.GPUs != nil && *t.GPUs > 0; {
	case t.Fraction:
	case t.GPUVendor == "" && gpus:
		out = append(out, FlagUnnamed)
	case t.GPUVendor != "" && !gpus:
		out = append(out, FlagUncounted)
	}
	if t.Arch != "" && t.Arch != "amd64" {
		out = append(out, "architecture "+t.Arch)
	}
	if spot && !t.sold("spot") {
		out = append(out, FlagNoSpot)
	}
	if t.PricedIn != "" {
		out = append(out, "price of "+t.PricedIn)
	}
	if t.Ends != "" {
		out = append(out, t.Ends)
	}
	if !t.Missing.IsZero() {
		out = append(out, t.gone())
	}
	return out
}

// The flags that say the same of each type.
const (
	FlagMetal     = "bare metal"
	FlagFraction  = "a fraction of a GPU, which counts as none"
	FlagUncounted = "an unknown number of GPUs"
	FlagUnnamed   = "GPUs of an unknown make"
	FlagNoSpot    = "not sold as spot"
)

// sold reports whether a type can be had in a way, as far as anybody says.
func (t Type) sold(class string) bool {
	return len(t.UsageClasses) == 0 || slices.Contains(t.UsageClasses, class)
}

func (t Type) gone() string {
	return "the provider has not told of it since " + t.Missing.UTC().Format(time.RFC3339)
}

// Gone says since when the provider does not tell of a type any more, "" where it does.
func (t Type) Gone() string {
	if t.Missing.IsZero() {
		return ""
	}
	return t.gone()
}

// Where reports whether a zone has the type, as far as anybody says; "" is anywhere.
func (t Type) Where(zone string) bool {
	return zone == "" || len(t.Zones) == 0 || slices.Contains(t.Zones, zone)
}
