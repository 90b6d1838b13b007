package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/strictyaml"
)

// maxLints bounds the findings of one kind.
const maxLints = 50

// Lints are warnings about conditions that only the known nodes show. file is the name for messages.
func (j *Judgement) Lints(file string) strictyaml.Diagnostics {
	l := linter{Judgement: j, file: file, trueOn: make([]int, len(j.order)), maybe: make([]int, len(j.order))}
	for i, n := range j.Nodes {
		if !n.Known {
			continue
		}
		l.known++
		for _, at := range j.verdicts[i].matched {
			l.trueOn[at]++
		}
		for _, at := range j.verdicts[i].uncertain {
			l.maybe[at]++
		}
	}
	if l.known == 0 {
		return nil
	}
	l.frequency()
	l.overlap()
	l.mixed()
	l.out.Sort()
	return l.out
}

type linter struct {
	*Judgement
	file   string
	known  int   // nodes that have reported
	trueOn []int // by condition
	maybe  []int
	out    strictyaml.Diagnostics
}

func (l *linter) warn(code string, id coordinator.DefinitionID, message, hint string) {
	if !slices.Contains(l.Config.Lints.Silence, code) {
		l.out = append(l.out, Finding(l.file, l.Config.ConditionPlaces[id], code, message, hint))
	}
}

// Finding is a warning at a place of a configuration.
func Finding(file string, at config.Place, code, message, hint string) strictyaml.Diagnostic {
	return strictyaml.Diagnostic{Severity: strictyaml.SeverityWarning, Code: code, File: file, Line: at.Line, Column: at.Column,
		Path: at.Path, Message: message, Hint: hint}
}

// frequency: conditions that are true nowhere, or everywhere in front of others.
func (l *linter) frequency() {
	never, always := 0, 0
	for at, id := range l.order {
		switch {
		case l.trueOn[at] == 0 && never < maxLints:
			never++
			message := fmt.Sprintf("the condition is true on none of the %d known nodes", l.known)
			switch {
			case l.known == 1 && l.maybe[at] > 0:
				message = "the condition is not true on the only known node: a fact that it reads is absent there"
			case l.known == 1:
				message = "the condition is not true on the only known node"
			case l.maybe[at] > 0:
				message += fmt.Sprintf("; on %d of them a fact that it reads is absent", l.maybe[at])
			}
			l.warn(config.LintNeverTrue, id, message, "see why with `substrate cluster config test`, or `substrate node explain` once it is set")
		case l.trueOn[at] == l.known && l.known > 1 && at+1 < len(l.order) && always < maxLints:
			always++
			l.warn(config.LintAlwaysTrue, id, fmt.Sprintf("the condition is true on all %d known nodes, so no definition below it gets one", l.known),
				"say what sets these nodes apart, or put the definition last")
		}
	}
}

// overlap names each pair once, at the definition that loses.
func (l *linter) overlap() {
	type pair struct{ winner, loser int32 }
	groups := map[pair]*Group{}
	for i, n := range l.Nodes {
		m := l.verdicts[i].matched
		for k := 1; k < min(len(m), maxOthers+1); k++ {
			p := pair{m[0], m[k]}
			if groups[p] == nil {
				groups[p] = &Group{}
			}
			groups[p].add(n.ID)
		}
	}
	pairs := slices.SortedFunc(maps.Keys(groups), func(a, b pair) int {
		return cmp.Or(cmp.Compare(groups[b].Count, groups[a].Count), cmp.Compare(a.loser, b.loser), cmp.Compare(a.winner, b.winner))
	})
	for _, p := range pairs[:min(len(pairs), maxLints)] {
		winner, g := l.order[p.winner], groups[p]
		l.warn(config.LintOverlap, l.order[p.loser], fmt.Sprintf("the condition is true on %s too, which %s on line %d gets: it stands first in the file",
			g.Listed(), winner, l.Config.Places[winner].Line), "make one of the two conditions narrower")
	}
}

// Listed names the nodes of a group.
func (g Group) Listed() string {
	names := make([]string, len(g.Nodes))
	for i, id := range g.Nodes {
		names[i] = string(id)
	}
	text := strings.Join(names, ", ")
	if rest := int(g.Count) - len(names); rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// mixed tells once for each definition that its nodes differ.
func (l *linter) mixed() {
	worst := map[coordinator.DefinitionID]*Drift{}
	for _, d := range l.drifts() {
		w := worst[d.Definition]
		if w == nil || cmp.Or(cmp.Compare(w.Count, d.Count), cmp.Compare(d.Difference, w.Difference)) < 0 {
			worst[d.Definition] = d
		}
	}
	ids := slices.Sorted(maps.Keys(worst))
	for _, id := range ids[:min(len(ids), maxLints)] {
		d := worst[id]
		l.warn(config.LintMixed, id, fmt.Sprintf("its nodes are not alike: %s: %s, as %s has", d.Listed(), d.Difference, d.Model),
			"one definition for each kind of hardware; `substrate cluster config suggest` drafts them")
	}
}
