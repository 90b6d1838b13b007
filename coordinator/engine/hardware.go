package engine

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
)

// typeKey is what the nodes of a definition are alike by. Where nodes have no types, only those of the very same request are.
func typeKey(d *coordinator.Definition) catalogue.Key {
	name, image := spec.TypeOf(d.Spec)
	if name == "" {
		name = "request " + specDigest(d)
	}
	return catalogue.Key{Kind: d.Kind, Type: name, Image: image}
}

// reportOf is what nodes of a definition's type have reported, nil before the first one has.
func (s *state) reportOf(d *coordinator.Definition) *catalogue.Report {
	if d.Kind == spec.KindStatic {
		return nil
	}
	list := s.reports[s.config.types[d.ID]]
	if len(list) == 0 {
		return nil
	}
	if h := d.Hardware; h != nil && h.Arch != "" { // an image of another architecture does not boot there
		if i := slices.IndexFunc(list, func(r *catalogue.Report) bool { return r.Arch == h.Arch }); i >= 0 {
			return list[i]
		}
	}
	return list[0]
}

// expected is what a node of a definition will have, as far as anybody says, and who says so.
func (s *state) expected(d *coordinator.Definition) (*coordinator.Hardware, catalogue.Source) {
	row, _ := s.config.checked.RowOf(d.ID)
	known := catalogue.Known{Report: s.reportOf(d), Configured: d.Hardware, By: row.Source}
	if o := s.offers[d.ID]; o != nil {
		known.Provider = o.Hardware
	}
	return known.Hardware()
}

// price is what a node of a definition costs an hour, nil where nobody says so.
func (s *state) price(d *coordinator.Definition) *float64 {
	var provider, configured, listed *float64
	if o := s.offers[d.ID]; o != nil {
		provider = o.CostPerHour
	}
	if d.CostListed {
		listed = d.CostPerHour
	} else {
		configured = d.CostPerHour
	}
	return catalogue.Price(configured, provider, listed)
}

// reprice puts the definitions in order of what they cost now, if that has changed.
func (s *state) reprice() {
	a := s.config
	changed := false
	for i := range a.Definitions {
		d := &a.Definitions[i]
		if d.Kind == spec.KindStatic {
			continue
		}
		if price := orInfinite(s.price(d)); price != a.candidates[i].CostPerHour {
			a.candidates[i].CostPerHour, changed = price, true
		}
	}
	if changed {
		a.sortByCost()
		clear(a.index)
		s.admission++
		s.changedAll()
	}
}

// addReport takes over what is stored, in order of the architectures.
func (s *state) addReport(r *catalogue.Report) {
	list := slices.DeleteFunc(slices.Clone(s.reports[r.Key]), func(x *catalogue.Report) bool { return x.Arch == r.Arch })
	list = append(list, r)
	slices.SortFunc(list, func(a, b *catalogue.Report) int { return cmp.Compare(a.Arch, b.Arch) })
	s.reports[r.Key] = list
}

// takeReport makes what a launched node has reported the hardware of its type, and says what was expected otherwise.
func (t *tx) takeReport(n *node) {
	s := t.state
	l := s.launchOf(n)
	if l == nil || l.isSlot() || !n.known {
		return
	}
	t.unprotect(l.record.Definition)
	if l.record.Type.Type == "" {
		return
	}
	next := catalogue.Report{Key: l.record.Type, Arch: n.facts.CPU.Arch, Cores: n.capacity.Cores, Threads: n.capacity.Threads, Memory: n.capacity.Memory,
		Devices: n.capacity.Devices, Attributes: maps.Clone(n.hardwareKeys), Kernel: n.facts.Uname.Release, Last: t.now, Node: n.id}
	var old *catalogue.Report
	for _, r := range s.reports[next.Key] {
		if r.Arch == next.Arch {
			old = r
		}
	}
	d := s.definition(l.record.Definition)
	var before *coordinator.Hardware
	var source catalogue.Source
	if d != nil {
		before, source = s.expected(d)
	}
	merged, differs := old.Merge(next)
	s.addReport(&merged)
	t.put(prefixHardware+merged.ID(), &merged)
	t.group()
	if old == nil || !reflect.DeepEqual(old.Hardware(), merged.Hardware()) || !maps.Equal(old.Attributes, merged.Attributes) {
		s.admission++
		s.core.offers, s.dirty = true, true
	}
	meta := map[string]string{"definition": string(l.record.Definition), "type": next.Type}
	switch {
	case old == nil:
		t.event(Event{Kind: "hardware-reported", Subject: next.Type, Message: fmt.Sprintf("the first node of the type, %s, has %s", n.id, hardwareText(merged.Hardware())), Metadata: meta})
		if before != nil {
			if less := catalogue.Shortfall(merged.Hardware(), before); less != "" {
				t.event(Event{Kind: "warning", Subject: string(l.record.Definition), Metadata: meta, Message: fmt.Sprintf(
					"a node of the definition has less than was expected by its %s: %s; what is reported counts from now on", source, less)})
			}
		}
	case differs != "":
		t.event(Event{Kind: "hardware-differs", Subject: string(n.id), Metadata: meta, Message: fmt.Sprintf(
			"not alike, though of one type (%s): %s", next.Type, differs)})
	}
	t.quarantineAll(next.Key)
}

// quarantineAll compares the launched nodes of a type with what the type has: one with fewer devices gets no work for them.
func (t *tx) quarantineAll(key catalogue.Key) {
	for _, n := range t.state.sortedNodes() {
		l := t.state.launchOf(n)
		if l == nil || l.record.Type != key || !n.known {
			continue
		}
		was := n.short
		if t.state.quarantine(n); reflect.DeepEqual(was, n.short) {
			continue
		}
		t.state.admission++
		t.state.changedNode(n)
		for _, kind := range slices.Sorted(maps.Keys(n.short)) {
			t.event(Event{Kind: "node-quarantined", Subject: string(n.id), Message: n.short[kind].text(kind),
				Metadata: map[string]string{"definition": string(n.record.Definition), "device": kind}})
		}
	}
}

// shortage of devices: a node has some of what its type has.
type deviceShortage struct{ has, of uint32 }

func (d deviceShortage) text(kind string) string {
	return fmt.Sprintf("it has %d %s, nodes of its type have %d: no work for these is placed on it", d.has, kind, d.of)
}

// quarantine works out which devices a launched node has fewer of than its type, or than its definition claims.
func (s *state) quarantine(n *node) {
	n.short = nil
	l := s.launchOf(n)
	if l == nil || l.isSlot() || !n.known {
		return
	}
	want := map[string]uint32{}
	for _, r := range s.reports[l.record.Type] {
		if r.Arch == n.facts.CPU.Arch {
			maps.Copy(want, r.Devices)
		}
	}
	if d := s.definition(l.record.Definition); d != nil && d.Hardware != nil && !d.Hardware.Estimated {
		for kind, m := range d.Hardware.Devices {
			want[kind] = max(want[kind], m)
		}
	}
	for kind, of := range want {
		if has := n.capacity.Devices[kind]; has < of {
			if n.short == nil {
				n.short = map[string]deviceShortage{}
			}
			n.short[kind] = deviceShortage{has, of}
		}
	}
}

// devices are those that work may be placed for.
func (n *node) devices() map[string]uint32 {
	if len(n.short) == 0 {
		return n.capacity.Devices
	}
	out := maps.Clone(n.capacity.Devices)
	for kind := range n.short {
		delete(out, kind)
	}
	return out
}

func hardwareText(h *coordinator.Hardware) string {
	text := fmt.Sprintf("%d cores, %d threads, %s", h.Cores, h.Threads, h.Memory)
	for _, kind := range slices.Sorted(maps.Keys(h.Devices)) {
		text += fmt.Sprintf(", %d %s", h.Devices[kind], kind)
	}
	return text
}

// promised judges a definition by the nodes that would be launched for it. It is yes where nobody knows what those have, and unknown where the request
// hangs on something that only a node of the type can tell.
func (q *question) promised(d *coordinator.Definition) (yes, unknown bool, why func() string) {
	h, source := q.expected(d)
	if h == nil {
		return true, false, nil
	}
	lacks := sched.Missing(launchedNode(d.ID, h), q.job.spec.Resources)
	if len(lacks) == 0 {
		return true, false, nil
	}
	known := slices.DeleteFunc(slices.Clone(lacks), func(l sched.Lack) bool { return slices.Contains(h.Unknown, l.What) })
	if len(known) == 0 {
		return false, true, func() string {
			return fmt.Sprintf("the number of %s is not known until a node of the type has reported; %s", lacks[0].What, discoverHint(d))
		}
	}
	return false, false, func() string {
		less, _ := shortage(q.job.spec.Resources, known)
		if source == catalogue.SourceReport {
			return less + ", as a node of the type has reported"
		}
		return less + ", a node that is launched for it has less"
	}
}

func discoverHint(d *coordinator.Definition) string {
	return fmt.Sprintf("`substrate node provisioner discover %s` finds out", d.ID)
}

// flags are what is odd about a definition: of its type, by the catalogue, and where nodes have reported less than was said of them.
func (s *state) flags(d *coordinator.Definition) []string {
	row, _ := s.config.checked.RowOf(d.ID)
	out := row.Type.Flags(spec.Spot(d.Spec))
	r := s.reportOf(d)
	if r == nil {
		return out
	}
	if d.Hardware != nil {
		if less := catalogue.Shortfall(r.Hardware(), d.Hardware); less != "" {
			out = append(out, "nodes report less than the definition says: "+less)
		}
	}
	if r.Differs != "" {
		out = append(out, "nodes of the type are not alike: "+r.Differs)
	}
	return out
}
