package config

import (
	"fmt"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

// draft is one definition as written.
type draft struct {
	place   strictyaml.Value
	id      strictyaml.Value
	policy  strictyaml.Value
	ttl     strictyaml.Value
	buffer  strictyaml.Value
	def     coordinator.Definition // what all expansions share
	spec    *spec.Decoded
	backend spec.Backend
	types   []instance
	without []Flagged // types that its pattern matches and that it is not about
}

// instance is one expansion.
type instance struct {
	id       coordinator.DefinitionID
	name     string // of the type, "" for kinds without
	hardware *coordinator.Hardware
	cost     *float64
	listed   bool // the cost is the catalogue's
	source   catalogue.Source
	row      *catalogue.Type // nil: the catalogue does not have it
}

func (p *parser) definitions(v strictyaml.Value) {
	if !v.Valid() {
		return
	}
	list, _ := v.List()
	if p.opt.Federate {
		if p.out.DefinitionsIgnored = len(list); len(list) > 0 {
			v.Report(strictyaml.SeverityNotice, "definitions-ignored",
				fmt.Sprintf("this is a Federate cluster: its %d definitions are stored and not used", len(list)),
				"set them on the Orchestrate clusters")
		}
		return
	}
	p.drafts = make([]*draft, 0, len(list))
	p.matched = map[string][]catalogue.Type{}
	p.out.Places = map[coordinator.DefinitionID]Place{}
	p.out.backendOf = map[coordinator.DefinitionID]spec.Backend{}
	p.out.rows = map[coordinator.DefinitionID]row{}
	first := make(map[coordinator.DefinitionID]*draft, len(list))
	for _, e := range list {
		d := p.definition(e)
		if d == nil {
			continue
		}
		p.drafts = append(p.drafts, d)
		if !p.expand(d, first) {
			return
		}
	}
}

func (p *parser) definition(v strictyaml.Value) *draft {
	d := &draft{place: v}
	o := v.Object()
	defer o.Close()
	if !v.IsMap() {
		return nil
	}
	id, _ := strictyaml.Required(o, "id", func(v strictyaml.Value) (string, bool) { d.id = v; return v.Text() })
	d.def.Configured = id
	kind, known := strictyaml.Required(o, "provisioner", strictyaml.OneOf(spec.Kinds()...))
	d.def.Kind = kind
	backend := o.Take("backend")
	d.def.Annotations = strictyaml.Default(o, "annotations", nil, annotations)
	d.def.Policy = strictyaml.Default(o, "policy", "", func(v strictyaml.Value) (string, bool) {
		d.policy = v
		return v.FilledText()
	})
	if d.ttl = o.Take("ttl"); d.ttl.Valid() {
		d.def.TTL, _ = d.ttl.Seconds()
	}
	if d.buffer = o.Take("ttlBuffer"); d.buffer.Valid() {
		d.def.TTLBuffer, _ = d.buffer.Seconds()
	}
	d.def.Exclusive = strictyaml.Default(o, "exclusive", coordinator.ExclusiveNone, strictyaml.Enum[coordinator.Exclusive])
	maxNodes, idle, join, discover := o.Take("maxNodes"), o.Take("idleTimeout"), o.Take("joinTimeout"), o.Take("autoDiscover")
	if maxNodes.Valid() {
		n, _ := maxNodes.Int(0, 1e6)
		d.def.MaxNodes = int(n)
	}
	if idle.Valid() {
		d.def.IdleTimeout, _ = idle.Duration()
	}
	if join.Valid() {
		d.def.JoinTimeout, _ = join.Duration()
	}
	if discover.Valid() {
		d.def.AutoDiscover, _ = discover.Bool()
	}
	body := o.Take("provisionerSpec", "spec")
	if !body.Valid() {
		v.Report(strictyaml.SeverityError, strictyaml.CodeMissing, "the key provisionerSpec is missing", "")
		return nil
	}
	if !known { // the spec of an unknown kind cannot be judged, its id can
		if d.id.Valid() && d.id.IsText() && !strings.Contains(id, "${") {
			p.id(d, "")
		}
		return nil
	}
	d.spec = spec.Decode(kind, body)
	p.noEffect(kind, maxNodes, idle, join, discover, d.ttl)
	if least := spec.LeastJoin(kind); join.Valid() && d.def.JoinTimeout > 0 && d.def.JoinTimeout < least {
		p.warn(join, LintNoEffect, fmt.Sprintf("joinTimeout has no effect: agents on %s have %s at the least", kind, least), "remove it")
	}
	ok := p.bind(d, backend)
	if ok {
		p.native(d, body, join)
	}
	if !d.id.Valid() || !ok {
		return nil
	}
	d.def.Fingerprint = spec.Fingerprint(d.spec, d.backend)
	if s, static := d.spec.Spec.(spec.Static); static {
		d.def.Condition = s.Condition
	}
	return d
}

// noEffect warns about settings of dynamic nodes where nodes are not made.
func (p *parser) noEffect(kind string, maxNodes, idle, join, discover, ttl strictyaml.Value) {
	tell := func(v strictyaml.Value, name, why string) {
		if v.Valid() {
			p.warn(v, LintNoEffect, name+" has no effect: "+why, "remove it")
		}
	}
	if kind == spec.KindStatic {
		const why = "static nodes are neither launched nor released"
		tell(maxNodes, "maxNodes", why)
		tell(idle, "idleTimeout", why)
		tell(join, "joinTimeout", why)
		tell(ttl, "ttl", why)
	}
	if kind == spec.KindStatic || spec.Batch(kind) || kind == spec.KindCoreWeave {
		tell(discover, "autoDiscover", "hardware is discovered on aws, gcp, azure and oci")
	}
}

// native checks a definition whose jobs are handed over to a batch system.
func (p *parser) native(d *draft, body, join strictyaml.Value) {
	w, _ := spec.RequestOf(d.spec.Spec)
	if w.Mode != spec.ModeNative {
		return
	}
	if w.Nodes > 1 {
		body.Report(strictyaml.SeverityError, strictyaml.CodeValue, fmt.Sprintf("nodes is %d, and in mode native each job is of one node", w.Nodes),
			"remove nodes, or use mode pilot")
	}
	if !d.backend.AllowSiteIdentity {
		name := "its backend, which must then be named in backends,"
		if d.backend.Name != "" {
			name = "backend " + d.backend.Name
		}
		body.Report(strictyaml.SeverityError, strictyaml.CodeValue,
			"in mode native jobs run as the account that the batch system is connected with, whoever they belong to, and "+name+" does not allow that",
			"set allowSiteIdentity: true there, or use mode pilot")
	}
	const why = "in mode native each job ends with its own time limit, and no agent joins"
	for _, unused := range []struct {
		v    strictyaml.Value
		name string
	}{{d.ttl, "ttl"}, {d.buffer, "ttlBuffer"}, {join, "joinTimeout"}} {
		if unused.v.Valid() {
			p.warn(unused.v, LintNoEffect, unused.name+" has no effect: "+why, "remove it")
		}
	}
}

// bind finds the connection: by name, else the only one of the kind, else the implicit one.
func (p *parser) bind(d *draft, v strictyaml.Value) bool {
	var ofKind []spec.Backend
	names := make([]string, 0, len(p.out.Backends))
	for _, b := range p.out.Backends {
		names = append(names, b.Name)
		if b.Kind == d.def.Kind {
			ofKind = append(ofKind, b)
		}
	}
	if !v.Valid() {
		switch len(ofKind) {
		case 0:
			d.backend = spec.Implicit(d.def.Kind)
		case 1:
			d.backend = ofKind[0]
		default:
			d.place.Report(strictyaml.SeverityError, strictyaml.CodeMissing,
				fmt.Sprintf("the key backend is missing: there are %d backends of kind %s", len(ofKind), d.def.Kind), "")
			return false
		}
		return true
	}
	name, ok := v.Text()
	if !ok {
		return false
	}
	d.def.Backend = name
	for _, b := range p.out.Backends {
		if b.Name != name {
			continue
		}
		if b.Kind != d.def.Kind {
			v.Errorf(strictyaml.CodeValue, "the backend %s is of kind %s, expected %s", name, b.Kind, d.def.Kind)
			return false
		}
		d.backend = b
		return true
	}
	hint := ""
	if near := strictyaml.Nearest(name, names, 1); len(near) > 0 {
		hint = "did you mean " + near[0] + "?"
	}
	v.Report(strictyaml.SeverityError, strictyaml.CodeValue, "there is no backend "+fmt.Sprintf("%q", name), hint)
	return false
}

// expand makes the definitions of a draft, by type name. It is false when the file has too many.
func (p *parser) expand(d *draft, first map[coordinator.DefinitionID]*draft) bool {
	types, ok := p.types(d)
	if !ok {
		return true
	}
	known := p.opt.Catalogues.At(d.spec.Kind, d.backend.Target())
	wild := d.spec.TypeKey != "" && spec.Wildcard(d.spec.Type)
	from := len(p.out.Config.Definitions)
	for _, t := range types {
		if t.id, ok = p.id(d, t.name); !ok {
			return true
		}
		if other := first[t.id]; other != nil {
			line, _ := other.id.Position()
			what := fmt.Sprintf("the id %s is taken, first on line %d", t.id, line)
			if other == d {
				what = fmt.Sprintf("the id %s would name several expansions", t.id)
			}
			d.id.Report(strictyaml.SeverityError, "duplicate-id", what, "")
			return true
		}
		first[t.id] = d
		d.types = append(d.types, t)
		p.out.Config.Definitions = append(p.out.Config.Definitions, p.finish(d, t))
		line, column := d.place.Position()
		p.out.Places[t.id] = Place{line, column, d.place.Path()}
		p.out.backendOf[t.id] = d.backend
		if t.source != "" || t.row != nil {
			p.out.rows[t.id] = row{t.row, t.source, wild}
		}
		if len(p.out.Config.Definitions) > MaxDefinitions {
			d.id.Errorf(strictyaml.CodeTooLarge, "there are more than %d definitions after expansion", MaxDefinitions)
			return false
		}
	}
	if wild {
		p.wildcard(d, known, from)
	}
	return true
}

func (p *parser) finish(d *draft, t instance) coordinator.Definition {
	def := d.def
	def.ID, def.Instance, def.Hardware, def.CostPerHour = t.id, t.name, t.hardware, t.cost
	def.CostListed = t.listed
	def.Spec = d.spec.WithType(t.name)
	return def
}

// id replaces the placeholders of a definition's id and checks the result.
func (p *parser) id(d *draft, typeName string) (coordinator.DefinitionID, bool) {
	text := d.def.Configured
	if strings.Contains(text, "${") {
		var ok bool
		if text, ok = substitute(d, text, typeName); !ok {
			return "", false
		}
	}
	if !validID(text) {
		what := fmt.Sprintf("%q is not an id", text)
		if text != d.def.Configured {
			what = fmt.Sprintf("%q, from %q, is not an id", text, d.def.Configured)
		}
		d.id.Report(strictyaml.SeverityError, strictyaml.CodeValue, what, "an id has 1 to 128 letters, digits, . _ -")
		return "", false
	}
	return coordinator.DefinitionID(text), true
}

func substitute(d *draft, text, typeName string) (string, bool) {
	var b strings.Builder
	for range len(text) {
		before, rest, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		key, inSpec := strings.CutPrefix(name, "spec.")
		value, known := d.spec.Placeholder(key)
		if key == d.spec.TypeKey && key != "" {
			value, known = typeName, true
		}
		if !closed || !inSpec || !known {
			hint := "this spec has no value that an id could use"
			if keys := d.spec.Placeholders(); len(keys) > 0 {
				hint = "this spec offers ${spec." + strings.Join(keys, "}, ${spec.") + "}"
			}
			d.id.Report(strictyaml.SeverityError, "placeholder", fmt.Sprintf("unknown placeholder in the id %q", d.def.Configured), hint)
			return "", false
		}
		b.WriteString(value)
		text = after
	}
	return b.String(), true
}

func validID(s string) bool {
	ok := !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	})
	return ok && s != "" && len(s) <= 128
}

// sharedTemplates warns when one id with a placeholder stands for different targets: grants
// name ids as written.
func (p *parser) sharedTemplates() {
	seen := map[string]*draft{}
	for _, d := range p.drafts {
		other := seen[d.def.Configured]
		if other == nil {
			seen[d.def.Configured] = d
			continue
		}
		if other.def.Fingerprint != d.def.Fingerprint && len(d.types) > 0 {
			line, _ := other.id.Position()
			p.warn(d.id, LintSharedID,
				fmt.Sprintf("the id %s is written on line %d too; a grant names ids as written and cannot tell the two apart", d.def.Configured, line),
				"give each definition its own prefix")
		}
	}
}
