package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/strictyaml"
)

// codeLaunchesDrained marks findings about launches that a configuration has no place for.
const codeLaunchesDrained = "launches-drained"

// connectionOf is the connection that a definition's nodes are launched through. Its target tells two apart that had the same name one after
// the other.
func connectionOf(c *config.Checked, d *coordinator.Definition) (backendID, spec.Backend) {
	b, ok := c.BackendOf(d.ID)
	if !ok {
		b = spec.Implicit(d.Kind)
	}
	return idOf(b), b
}

func idOf(b spec.Backend) backendID { return backendID{Kind: b.Kind, Name: b.Name, Target: b.Target()} }

// leaves says why a launch has no place in a configuration: "" is that it has one.
func leaves(l *launch, c *config.Checked) string {
	i := slices.IndexFunc(c.Config.Definitions, func(d coordinator.Definition) bool { return d.ID == l.record.Definition })
	if i < 0 {
		return "its definition is gone from the configuration"
	}
	switch id, _ := connectionOf(c, &c.Config.Definitions[i]); {
	case id == l.record.Backend:
		return ""
	case id.String() == l.record.Backend.String():
		return fmt.Sprintf("backend %s leads to another place now", id)
	default:
		return fmt.Sprintf("nodes of its definition come from %s now", id)
	}
}

// leave keeps new work from a launch that the running configuration has no place for, and gives it up once nothing runs there any more. It reports
// whether that is so.
func (t *tx) leave(l *launch) bool {
	why := leaves(l, t.state.config.checked)
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n != nil && n.leaves != why {
			n.leaves = why
			t.state.changedNode(n)
		}
	}
	if why != "" && !t.busy(l) {
		t.giveUp(l, why, provision.FaultNone)
	}
	return why != ""
}

// leaveAll compares all launches with a configuration that has just been set.
func (t *tx) leaveAll() {
	for _, id := range slices.Sorted(maps.Keys(t.state.launches)) {
		l := t.state.launches[id]
		if l.record.Release == "" && t.leave(l) && l.record.Release == "" {
			t.event(Event{Kind: "node-draining", Subject: string(id), Message: leaves(l, t.state.config.checked) + "; it is released when its work is over",
				Metadata: map[string]string{"definition": string(l.record.Definition), "backend": l.record.Backend.String()}})
		}
	}
}

// oldConnections are those that the running configuration does not have any more, while launches are to be released through them.
func (s *state) oldConnections(wanted map[backendID]spec.Backend) map[backendID]spec.Backend {
	out := map[backendID]spec.Backend{}
	for _, l := range s.launches {
		if _, ok := wanted[l.record.Backend]; !ok && s.provides(l.record.Backend.Kind) {
			out[l.record.Backend] = l.record.Connection
		}
	}
	return out
}

// drained says of each definition how many launches a configuration has no place for.
func (s *state) drained(file string, c *config.Checked) strictyaml.Diagnostics {
	type group struct {
		definition coordinator.DefinitionID
		backend    backendID
		why        string
	}
	count, busy := map[group]int{}, map[group]int{}
	for _, l := range s.launches {
		if why := leaves(l, c); why != "" {
			g := group{l.record.Definition, l.record.Backend, why}
			count[g]++
			if (&tx{state: s}).busy(l) {
				busy[g]++
			}
		}
	}
	var out strictyaml.Diagnostics
	for _, g := range slices.SortedFunc(maps.Keys(count), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.definition, b.definition), compareBackends(a.backend, b.backend), cmp.Compare(a.why, b.why))
	}) {
		out = append(out, strictyaml.Diagnostic{Severity: strictyaml.SeverityNotice, Code: codeLaunchesDrained, File: file,
			Message: fmt.Sprintf("%d launches of definition %s are drained and released, %d of them after the work that is on them: %s",
				count[g], g.definition, busy[g], g.why),
			Hint: fmt.Sprintf("backend %s stays open until the last of them is gone; see `substrate backend launches`", g.backend)})
	}
	return out
}
