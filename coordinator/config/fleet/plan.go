package fleet

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/expr"
	"substrate/hwinfo"
	"substrate/strictyaml"
)

// Bounds of an answer.
const (
	maxGroups = 200 // of each section
	maxNamed  = 8   // nodes or jobs named in a group
)

// Plan is what a configuration would do. Its JSON is the API's message, field for field.
type Plan struct {
	Changed     bool                   `json:"changed"`
	Revision    coordinator.Revision   `json:"revision"` // that it was held against; 0 is none
	Nodes       uint32                 `json:"nodes"`
	NodesMoved  uint32                 `json:"nodes_moved"`
	Unassigned  uint32                 `json:"nodes_unassigned"` // afterwards
	Unreported  uint32                 `json:"nodes_unreported"` // nothing is known of them
	Settings    []string               `json:"settings,omitempty"`
	Definitions []Change               `json:"definitions,omitempty"`
	Moves       []Move                 `json:"moves,omitempty"`
	Overlaps    []Overlap              `json:"overlaps,omitempty"`
	Drifts      []Drift                `json:"drifts,omitempty"`
	Uncertain   []Uncertain            `json:"uncertain,omitempty"`
	Orphans     []Orphan               `json:"orphans,omitempty"`
	Before      Cost                   `json:"cost_before"`
	After       Cost                   `json:"cost_after"`
	LeftOut     map[string]uint32      `json:"left_out,omitempty"` // groups, by section
	Diagnostics strictyaml.Diagnostics `json:"diagnostics,omitempty"`
	Wildcards   []config.Wildcard      `json:"wildcards,omitempty"` // whoever asks says of how many members
}

// Change is what happens to one definition: added, removed or changed; Keys says where.
type Change struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Change     string                   `json:"change"`
	Keys       []string                 `json:"keys,omitempty"`
}

// Group counts nodes and names the first ones.
type Group struct {
	Count uint32               `json:"count"`
	Nodes []coordinator.NodeID `json:"nodes"`
}

func (g *Group) add(id coordinator.NodeID) {
	if g.Count++; len(g.Nodes) < maxNamed {
		g.Nodes = append(g.Nodes, id)
	}
}

// Move is a group of nodes that go from one definition to another; "" is none.
type Move struct {
	From coordinator.DefinitionID `json:"from"`
	To   coordinator.DefinitionID `json:"to"`
	Group
}

// Overlap is a group of nodes on which several definitions are true. The first in the file wins.
type Overlap struct {
	Definition coordinator.DefinitionID   `json:"definition"`
	Line       uint32                     `json:"line"`
	Others     []coordinator.DefinitionID `json:"others"`
	OtherLines []uint32                   `json:"other_lines"`
	Group
}

// Drift is a group of nodes of a definition that differ in the same way from its first one.
type Drift struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Model      coordinator.NodeID       `json:"model"`
	Difference string                   `json:"difference"`
	Group
}

// Uncertain is a group of nodes on which a condition has no value.
type Uncertain struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Facts      []string                 `json:"facts,omitempty"` // absent ones that it reads
	Error      string                   `json:"error,omitempty"` // where it failed instead
	Group
}

// Orphan is work that loses its definition.
type Orphan struct {
	Definition coordinator.DefinitionID `json:"definition"` // it runs on, "" while it waits
	Status     string                   `json:"status"`
	Reason     string                   `json:"reason"`
	Count      uint32                   `json:"count"`
	Jobs       []string                 `json:"jobs"`
}

// Cost is in USD per hour. Nil is unknown.
type Cost struct {
	Lowest   *float64 `json:"lowest,omitempty"` // of a node of any definition
	Highest  *float64 `json:"highest,omitempty"`
	PerHour  *float64 `json:"per_hour,omitempty"` // of all nodes that have a price
	Unpriced uint32   `json:"unpriced"`           // nodes of definitions without one
}

// Compare plans the change from what runs (nil is nothing) to what was judged.
func Compare(running *config.Checked, j *Judgement) *Plan {
	p := &Plan{Nodes: uint32(len(j.Nodes)), LeftOut: map[string]uint32{}}
	p.configuration(running, j.Config)
	moves := map[[2]coordinator.DefinitionID]*Move{}
	for i, n := range j.Nodes {
		to := j.Assigned(i)
		if to == "" {
			p.Unassigned++
		}
		if !n.Known {
			p.Unreported++
		}
		if to == n.Definition {
			continue
		}
		p.NodesMoved++
		key := [2]coordinator.DefinitionID{n.Definition, to}
		if moves[key] == nil {
			moves[key] = &Move{From: n.Definition, To: to}
		}
		moves[key].add(n.ID)
	}
	p.Moves = bounded(p, "moves", moves, func(m *Move) (Group, string) { return m.Group, string(m.From) + "\x00" + string(m.To) })
	p.Overlaps = bounded(p, "overlaps", j.overlaps(), func(o *Overlap) (Group, string) { return o.Group, string(o.Definition) + "\x00" + joined(o.Others) })
	p.Drifts = bounded(p, "drifts", j.drifts(), func(d *Drift) (Group, string) { return d.Group, string(d.Definition) + "\x00" + d.Difference })
	p.Uncertain = bounded(p, "uncertain", j.uncertain(), func(u *Uncertain) (Group, string) {
		return u.Group, string(u.Definition) + "\x00" + strings.Join(u.Facts, " ") + u.Error
	})
	p.After = costOf(j.Config, func(i int) coordinator.DefinitionID { return j.Assigned(i) }, len(j.Nodes))
	if running != nil {
		p.Before = costOf(running, func(i int) coordinator.DefinitionID { return j.Nodes[i].Definition }, len(j.Nodes))
	}
	p.Changed = p.NodesMoved > 0 || len(p.Settings) > 0 || len(p.Definitions) > 0
	return p
}

// AddOrphans puts groups of work into the plan, the largest first.
func (p *Plan) AddOrphans(orphans []Orphan) {
	slices.SortFunc(orphans, func(a, b Orphan) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Definition, b.Definition),
			cmp.Compare(a.Status, b.Status), cmp.Compare(a.Reason, b.Reason))
	})
	if len(orphans) > maxGroups {
		p.LeftOut["orphans"] += uint32(len(orphans) - maxGroups)
		orphans = orphans[:maxGroups]
	}
	p.Orphans = orphans
	p.Changed = p.Changed || len(orphans) > 0
}

// bounded gives the largest groups in a total order.
func bounded[K comparable, G any](p *Plan, section string, groups map[K]*G, of func(*G) (Group, string)) []G {
	list := slices.SortedFunc(maps.Values(groups), func(a, b *G) int {
		x, nx := of(a)
		y, ny := of(b)
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(nx, ny))
	})
	if n := len(list) - maxGroups; n > 0 {
		p.LeftOut[section] = uint32(n)
		list = list[:maxGroups]
	}
	out := make([]G, len(list))
	for i, g := range list {
		out[i] = *g
	}
	return out
}

func joined(ids []coordinator.DefinitionID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(id))
	}
	return b.String()
}

// maxOthers bounds the losers that one overlap names.
const maxOthers = 16

func (j *Judgement) overlaps() map[string]*Overlap {
	out := map[string]*Overlap{}
	for i, n := range j.Nodes {
		m := j.verdicts[i].matched
		if len(m) < 2 {
			continue
		}
		others := j.Conflicts(i)
		others = others[:min(len(others), maxOthers)]
		key := string(j.order[m[0]]) + "\x00" + joined(others)
		if out[key] == nil {
			o := &Overlap{Definition: j.order[m[0]], Line: j.line(j.order[m[0]]), Others: others}
			for _, id := range others {
				o.OtherLines = append(o.OtherLines, j.line(id))
			}
			out[key] = o
		}
		out[key].add(n.ID)
	}
	return out
}

func (j *Judgement) line(id coordinator.DefinitionID) uint32 {
	return uint32(max(j.Config.Places[id].Line, 0))
}

// drifts groups the nodes that are not like the model of their definition.
func (j *Judgement) drifts() map[[2]string]*Drift {
	out := map[[2]string]*Drift{}
	for i, n := range j.Nodes {
		text := j.differs[i]
		if text == "" {
			continue
		}
		id := j.Assigned(i)
		key := [2]string{string(id), text}
		if out[key] == nil {
			out[key] = &Drift{Definition: id, Model: j.Nodes[j.models[id]].ID, Difference: text}
		}
		out[key].add(n.ID)
	}
	return out
}

// measured: cores and memory are known, without which nothing is placed on a node.
func measured(f hwinfo.Facts) bool {
	return f.CPU.Cores != nil && *f.CPU.Cores > 0 && f.Memory.Total != nil && *f.Memory.Total > 0
}

// uncertain groups what has no value. A node without a report is counted elsewhere; a condition that stands
// behind the one that wins changes nothing.
func (j *Judgement) uncertain() map[string]*Uncertain {
	type reason struct {
		facts []string
		err   string
	}
	type seen struct {
		at  int32
		env *expr.NodeEnv
	}
	why := map[seen]reason{} // nodes of one kind share their environment unless names matter
	out := map[string]*Uncertain{}
	for i, n := range j.Nodes {
		v := j.verdicts[i]
		if !n.Known {
			continue
		}
		for _, at := range v.uncertain {
			if len(v.matched) > 0 && v.matched[0] < at {
				break
			}
			r, ok := why[seen{at, j.envs[i]}]
			if !ok {
				r.facts, r.err = absent(j.conditions[at].Eval(j.envs[i]))
				why[seen{at, j.envs[i]}] = r
			}
			key := string(j.order[at]) + "\x00" + strings.Join(r.facts, " ") + "\x00" + r.err
			if out[key] == nil {
				out[key] = &Uncertain{Definition: j.order[at], Facts: r.facts, Error: r.err}
			}
			out[key].add(n.ID)
		}
	}
	return out
}

// absent names the facts that a condition missed.
func absent(o expr.Outcome) (facts []string, failed string) {
	if o.Value == expr.Failed {
		return nil, o.Err
	}
	for _, part := range o.Parts {
		for fact, value := range part.Seen {
			if value == "(absent)" && !slices.Contains(facts, fact) {
				facts = append(facts, fact)
			}
		}
	}
	slices.Sort(facts)
	return facts, ""
}

func costOf(c *config.Checked, definition func(int) coordinator.DefinitionID, nodes int) Cost {
	var out Cost
	prices := make(map[coordinator.DefinitionID]*float64, len(c.Config.Definitions))
	for i := range c.Config.Definitions {
		d := &c.Config.Definitions[i]
		prices[d.ID] = d.CostPerHour
		if p := d.CostPerHour; p != nil {
			if out.Lowest == nil || *p < *out.Lowest {
				out.Lowest = p
			}
			if out.Highest == nil || *p > *out.Highest {
				out.Highest = p
			}
		}
	}
	sum, priced := 0.0, false
	for i := range nodes {
		switch id := definition(i); {
		case id == "":
		case prices[id] == nil:
			out.Unpriced++
		default:
			sum, priced = sum+*prices[id], true
		}
	}
	if priced {
		out.PerHour = &sum
	}
	return out
}

// configuration says what differs in the text itself.
func (p *Plan) configuration(was, is *config.Checked) {
	if was == nil {
		p.definitions(nil, is.Config.Definitions)
		return
	}
	p.Revision = was.Config.Revision
	for _, s := range []struct {
		name     string
		was, now any
	}{
		{"nodeAnnotations", was.Config.NodeAnnotations, is.Config.NodeAnnotations},
		{"softwareTokens", was.Config.SoftwareTokens, is.Config.SoftwareTokens},
		{"scheduler", was.Config.Scheduler, is.Config.Scheduler},
		{"backends", was.Backends, is.Backends},
		{"discovery", was.Discovery, is.Discovery},
		{"retention", was.Retention, is.Retention},
		{"webhooks", was.Webhooks, is.Webhooks},
		{"lints", was.Lints, is.Lints},
	} {
		if !alike(s.was, s.now) {
			p.Settings = append(p.Settings, s.name)
		}
	}
	p.definitions(was.Config.Definitions, is.Config.Definitions)
}

// alike does not tell nothing from an empty list or map.
func alike(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if k := x.Kind(); (k == reflect.Map || k == reflect.Slice) && x.Len() == 0 && y.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a, b)
}

func (p *Plan) definitions(was, is []coordinator.Definition) {
	before := make(map[coordinator.DefinitionID]*coordinator.Definition, len(was))
	for i := range was {
		before[was[i].ID] = &was[i]
	}
	all := make([]Change, 0)
	kept := make([]coordinator.DefinitionID, 0, len(is))
	for i := range is {
		id := is[i].ID
		old := before[id]
		if old == nil {
			all = append(all, Change{Definition: id, Change: "added"})
			continue
		}
		delete(before, id)
		kept = append(kept, id)
		if keys := differing(old, &is[i]); len(keys) > 0 {
			all = append(all, Change{Definition: id, Change: "changed", Keys: keys})
		}
	}
	for id := range before {
		all = append(all, Change{Definition: id, Change: "removed"})
	}
	if reordered(was, before, kept) {
		p.Settings = append(p.Settings, "definitions (order)")
	}
	slices.SortFunc(all, func(a, b Change) int { return cmp.Compare(a.Definition, b.Definition) })
	if n := len(all) - maxGroups; n > 0 {
		p.LeftOut["definitions"] = uint32(n)
		all = all[:maxGroups]
	}
	p.Definitions = all
}

// reordered reports whether definitions that stay stand in another order, which decides who wins. kept is
// their new order.
func reordered(was []coordinator.Definition, removed map[coordinator.DefinitionID]*coordinator.Definition, kept []coordinator.DefinitionID) bool {
	i := 0
	for k := range was {
		if removed[was[k].ID] == nil {
			if kept[i] != was[k].ID {
				return true
			}
			i++
		}
	}
	return false
}

// differing lists the keys of a definition that are not as before.
func differing(was, is *coordinator.Definition) []string {
	var out []string
	for _, k := range []struct {
		name     string
		was, now any
	}{
		{"provisioner", was.Kind, is.Kind}, {"backend", was.Backend, is.Backend}, {"annotations", was.Annotations, is.Annotations},
		{"policy", was.Policy, is.Policy}, {"ttl", was.TTL, is.TTL}, {"ttlBuffer", was.TTLBuffer, is.TTLBuffer},
		{"exclusive", was.Exclusive, is.Exclusive}, {"maxNodes", was.MaxNodes, is.MaxNodes},
		{"idleTimeout", was.IdleTimeout, is.IdleTimeout}, {"joinTimeout", was.JoinTimeout, is.JoinTimeout},
		{"autoDiscover", was.AutoDiscover, is.AutoDiscover}, {"condition", was.Condition, is.Condition},
		{"costPerHour", was.CostPerHour, is.CostPerHour},
	} {
		if !alike(k.was, k.now) {
			out = append(out, k.name)
		}
	}
	if was.Condition == is.Condition && !alike(was.Spec, is.Spec) || was.Fingerprint != is.Fingerprint {
		out = append(out, "provisionerSpec")
	}
	return out
}
