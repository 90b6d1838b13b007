package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

// Row is what a catalogue knows of a definition's type.
type Row struct {
	Type   catalogue.Type   // without a name where no catalogue has it
	Source catalogue.Source // of the definition's hardware; "" where that is unknown
	Wild   bool             // a pattern stands for it
}

// RowOf is what the catalogue knows of a definition's type; it is false for kinds without types.
func (c *Checked) RowOf(id coordinator.DefinitionID) (Row, bool) {
	if c == nil {
		return Row{}, false
	}
	kept, ok := c.rows[id]
	r := Row{Source: kept.source, Wild: kept.wild}
	if kept.typ != nil {
		r.Type = *kept.typ
	}
	return r, ok
}

// row is a Row as it is kept: definitions of a type share what is known of it.
type row struct {
	typ    *catalogue.Type // nil: no catalogue has it
	source catalogue.Source
	wild   bool
}

// Wildcard is what a definition with a pattern for its type stands for.
type Wildcard struct {
	Definition string    `json:"definition"` // as written
	Pattern    string    `json:"pattern"`
	Backend    string    `json:"backend"`
	Source     string    `json:"source"`            // provider, catalogue
	Version    uint64    `json:"version"`           // of the provider's catalogue; 0: it is built in
	Told       string    `json:"told,omitempty"`    // when the provider did, RFC 3339
	Count      uint32    `json:"count"`             // of the members
	Members    []Member  `json:"members"`           // by type, as many as were asked for
	Flags      []Flagged `json:"flags,omitempty"`   // of all members
	Without    []Flagged `json:"without,omitempty"` // types that match and are no members, by the reason
}

// Member is one definition of a wildcard.
type Member struct {
	Definition  coordinator.DefinitionID `json:"definition"`
	Type        string                   `json:"type"`
	Arch        string                   `json:"arch,omitempty"`
	CostPerHour *float64                 `json:"cost_per_hour,omitempty"` // nil is unknown
	Flags       []string                 `json:"flags,omitempty"`
}

// Flagged counts types of which the same is to be said, and names the first ones.
type Flagged struct {
	Flag  string   `json:"flag"`
	Count uint32   `json:"count"`
	Types []string `json:"types"`
}

// maxFlagged bounds the names of a Flagged.
const maxFlagged = 8

// FlagNoPrice is of a type that nobody knows the price of, which is not nothing.
const FlagNoPrice = "price unknown"

// wildcard is a Wildcard with its members' place among the definitions.
type wildcard struct {
	Wildcard
	from, to int
}

func (p *parser) wildcard(d *draft, known *catalogue.Catalogue, from int) {
	w := wildcard{Wildcard: Wildcard{Definition: d.def.Configured, Pattern: d.spec.Type, Backend: cmp.Or(d.backend.Name, d.backend.Kind), Source: string(catalogue.SourceListed),
		Without: d.without}, from: from, to: len(p.out.Config.Definitions)}
	if told := known.Told(); told != nil {
		w.Source, w.Version, w.Told = string(catalogue.SourceProvider), told.Version, told.Asked.UTC().Format(time.RFC3339)
	}
	p.out.wildcards = append(p.out.wildcards, w)
}

// Wildcards lists what patterns stand for, in file order, each with as many members as asked for; a negative number is all.
func (c *Checked) Wildcards(members int) []Wildcard {
	out := make([]Wildcard, 0, len(c.wildcards))
	for i := range c.wildcards {
		w := c.wildcards[i].Wildcard
		flags := map[string]*Flagged{}
		for j := c.wildcards[i].from; j < c.wildcards[i].to; j++ {
			d := &c.Config.Definitions[j]
			m := c.member(d)
			for _, f := range m.Flags {
				if flags[f] == nil {
					flags[f] = &Flagged{Flag: f}
				}
				flags[f].add(m.Type)
			}
			if w.Count++; members < 0 || int(w.Count) <= members {
				w.Members = append(w.Members, m)
			}
		}
		w.Flags = ordered(flags)
		out = append(out, w)
	}
	return out
}

func (c *Checked) member(d *coordinator.Definition) Member {
	row, _ := c.RowOf(d.ID)
	m := Member{Definition: d.ID, Type: d.Instance, Arch: row.Type.Arch, CostPerHour: d.CostPerHour, Flags: row.Type.Flags(spec.Spot(d.Spec))}
	if m.CostPerHour == nil {
		m.Flags = append(m.Flags, FlagNoPrice)
	}
	return m
}

func (f *Flagged) add(name string) {
	if f.Count++; len(f.Types) < maxFlagged {
		f.Types = append(f.Types, name)
	}
}

func ordered(flags map[string]*Flagged) []Flagged {
	var out []Flagged
	for _, f := range flags {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Flagged) int { return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Flag, b.Flag)) })
	return out
}

// types lists what the spec's type name stands for; one nameless entry for kinds without types.
func (p *parser) types(d *draft) ([]instance, bool) {
	s := d.spec
	known := p.opt.Catalogues.At(s.Kind, d.backend.Target())
	switch {
	case s.TypeKey == "":
		i := instance{hardware: s.Hardware, cost: s.CostPerHour}
		if s.Hardware != nil {
			i.source = catalogue.SourceConfigured
		}
		return []instance{i}, true
	case s.Type == "":
		return nil, false // reported already
	case known != nil && known.Complete():
		return p.listed(d, known)
	case spec.Wildcard(s.Type):
		p.noCatalogue(d)
		return nil, false
	}
	if known != nil {
		if listed, ok := known.Type(s.Type); ok && p.boots(d, &listed) {
			return []instance{instanceOf(s, &listed, true, known)}, true
		}
	}
	return []instance{instanceOf(s, &catalogue.Type{Name: s.Type}, false, known)}, true
}

// wild reports what is wrong with a pattern. In a configuration that was accepted once it stands for nothing until a catalogue has its types again.
func (p *parser) wild(v strictyaml.Value, message, hint string) {
	severity := strictyaml.SeverityError
	if p.opt.Stored {
		severity = strictyaml.SeverityWarning
	}
	v.Report(severity, "wildcard", message, hint)
}

// noCatalogue refuses a wildcard that nobody can say the types of.
func (p *parser) noCatalogue(d *draft) {
	s := d.spec
	what, hint := fmt.Sprintf("there is no catalogue of %s types to expand %s", s.Kind, s.Type), "name one exact type for each definition"
	if p.opt.Unknown != nil {
		if why, do := p.opt.Unknown(d.backend); why != "" {
			what, hint = what+": "+why, cmp.Or(do, hint)
		}
	}
	p.wild(s.TypeValue, what, hint)
}

// here refuses a wildcard of another location than the backend tells the types of.
func (p *parser) here(d *draft) bool {
	of, ok := d.spec.Spec.(spec.Azure)
	squeeze := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "")) }
	if !ok || of.Location == "" || d.backend.Region == "" || squeeze(of.Location) == squeeze(d.backend.Region) {
		return true
	}
	p.wild(d.spec.TypeValue, fmt.Sprintf("the types of %s are not known: the backend tells of those of %s", of.Location, d.backend.Region), "give the definition a backend of its location")
	return false
}

// boots refuses a type that the image is not for.
func (p *parser) boots(d *draft, t *catalogue.Type) bool {
	s := d.spec
	if s.Architecture == "" || t.Arch == "" || s.Architecture == t.Arch {
		return true
	}
	s.TypeValue.Report(strictyaml.SeverityError, "architecture", fmt.Sprintf("%s is an %s machine, and the image is for %s", t.Name, t.Arch, s.Architecture),
		"name a type of the image's architecture, or an image of the type's")
	return false
}

// listed lists the types of a complete catalogue that a spec names.
func (p *parser) listed(d *draft, known *catalogue.Catalogue) ([]instance, bool) {
	s := d.spec
	pattern := catalogue.PlaceOf(s.Kind, d.backend.Target()) + " " + s.Type
	found, ok := p.matched[pattern]
	if !ok {
		found = known.Match(s.Type)
		p.matched[pattern] = found
	}
	wild := spec.Wildcard(s.Type)
	if wild && !p.here(d) {
		return nil, false
	}
	hint := ""
	if len(found) == 0 {
		if near := known.Nearest(s.Type, 5); len(near) > 0 {
			hint = "the nearest are " + strings.Join(near, ", ")
		}
	}
	switch {
	case len(found) == 0 && wild:
		what := "no instance type matches " + s.Type
		if known.Told() == nil && p.opt.Unknown != nil { // the cloud may have some that are newer
			if why, do := p.opt.Unknown(d.backend); why != "" {
				what, hint = what+": "+why, cmp.Or(hint, do)
			}
		}
		p.wild(s.TypeValue, what, hint)
		return nil, false
	case len(found) == 0:
		// A type may be newer than the catalogue: its hardware is unknown until it reports.
		p.warn(s.TypeValue, LintUnknownType, "the catalogue does not know the instance type "+s.Type, hint)
		return []instance{instanceOf(s, &catalogue.Type{Name: s.Type}, false, known)}, true
	case wild && !strings.Contains(d.def.Configured, "${spec."+s.TypeKey+"}"):
		d.id.Report(strictyaml.SeverityError, "wildcard",
			fmt.Sprintf("%s stands for %d types, but the id has no place for their names", s.Type, len(found)),
			"write ${spec."+s.TypeKey+"} in the id")
		return nil, false
	case !wild:
		if gone := found[0].Gone(); gone != "" {
			p.warn(s.TypeValue, LintUnknownType, found[0].Name+": "+gone, "nothing is launched of it; name another type")
		}
		return []instance{instanceOf(s, &found[0], true, known)}, p.boots(d, &found[0])
	}
	return p.members(d, found, known)
}

// members are the types of a wildcard that its spec can be for.
func (p *parser) members(d *draft, found []catalogue.Type, known *catalogue.Catalogue) ([]instance, bool) {
	s := d.spec
	out := make([]instance, 0, len(found))
	without, arches := map[string]*Flagged{}, map[string]*Flagged{}
	for i := range found {
		t := &found[i]
		if why := unlike(s, t); why != "" {
			if without[why] == nil {
				without[why] = &Flagged{Flag: why}
			}
			without[why].add(t.Name)
			continue
		}
		if t.Arch != "" {
			if arches[t.Arch] == nil {
				arches[t.Arch] = &Flagged{Flag: t.Arch}
			}
			arches[t.Arch].add(t.Name)
		}
		out = append(out, instanceOf(s, t, true, known))
	}
	d.without = ordered(without)
	if len(out) == 0 {
		p.wild(s.TypeValue, fmt.Sprintf("%s matches %d types and stands for none: %s", s.Type, len(found), flaggedText(d.without)), "")
		return nil, false
	}
	if _, image := spec.TypeOf(d.spec.Spec); len(arches) > 1 && image != "" {
		p.warn(s.TypeValue, LintMixedArch, fmt.Sprintf("%s stands for types of several architectures, and one image boots on one of them: %s", s.Type, flaggedText(ordered(arches))),
			"write architecture: amd64 or arm64 beside the image; only types of it are taken then")
	}
	return out, true
}

func flaggedText(list []Flagged) string {
	var parts []string
	for _, f := range list {
		more := ""
		if n := int(f.Count) - len(f.Types); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		parts = append(parts, fmt.Sprintf("%s: %s%s", f.Flag, strings.Join(f.Types, ", "), more))
	}
	return strings.Join(parts, "; ")
}

// unlike says why a type that a pattern matches cannot be what the spec is about.
func unlike(s *spec.Decoded, t *catalogue.Type) string {
	if zone := spec.Zone(s.Spec); !t.Where(zone) {
		return "not in " + zone
	}
	if s.Architecture != "" && t.Arch != "" && t.Arch != s.Architecture {
		return "not for an image of " + s.Architecture
	}
	of, ok := s.Spec.(spec.OCI)
	switch sized := ok && of.OCPUs > 0 && of.Memory > 0; {
	case !ok:
	case t.Flexible && !sized:
		return "flexible, and the spec says neither ocpus nor memory"
	case !t.Flexible && (of.OCPUs > 0 || of.Memory > 0):
		return "of a fixed size, and the spec says ocpus and memory"
	}
	return ""
}

// instanceOf is one expansion: what the text says goes before the catalogue.
func instanceOf(s *spec.Decoded, t *catalogue.Type, listed bool, known *catalogue.Catalogue) instance {
	i := instance{name: t.Name, cost: s.CostPerHour}
	if listed {
		i.row = t
	}
	as := sized(s, *t)
	switch i.hardware = as.Hardware(); {
	case s.Hardware != nil && (i.hardware == nil || !t.Flexible):
		bought := *s.Hardware
		bought.Memory = catalogue.Usable(bought.Memory, t.BareMetal)
		i.hardware, i.source = &bought, catalogue.SourceEstimate
	case i.hardware == nil:
	case known.Told() != nil:
		i.source = catalogue.SourceProvider
	case t.Measured():
		i.source = catalogue.SourceListed
	default:
		i.source = catalogue.SourceEstimate
	}
	if i.cost == nil && t.CostPerHour != nil {
		i.cost, i.listed = t.CostPerHour, true
	}
	return i
}

// sized is a type with what the spec adds to it: accelerators, and the size of what has none of its own.
func sized(s *spec.Decoded, t catalogue.Type) catalogue.Type {
	switch of := s.Spec.(type) {
	case spec.GCP:
		if a := of.Accelerator; a != nil && t.GPUVendor == "" && strings.HasPrefix(a.Type, "nvidia") {
			t.GPUVendor, t.GPUs = "nvidia", &a.Count
		}
	case spec.OCI:
		if t.Flexible && of.OCPUs > 0 && of.Memory > 0 {
			threads := uint32(1)
			if t.ThreadsPerCore != nil {
				threads = *t.ThreadsPerCore
			}
			cores, all := max(1, uint32(of.OCPUs)), max(1, uint32(of.OCPUs*float64(threads)))
			t.Cores, t.VCPUs, t.Memory = &cores, &all, &of.Memory
		}
	}
	return t
}
