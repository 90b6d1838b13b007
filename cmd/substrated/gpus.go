package main

import (
	"context"
	"strings"

	"substrate/hwinfo"
	"substrate/hwinfo/probe"
)

// readNode reads the facts below a root, and asks programs what no file tells if the root is this node's own.
func readNode(ctx context.Context, root string) (hwinfo.Facts, []hwinfo.Warning) {
	var asker probe.Asker
	answers, unanswered := asker.Ask(ctx, root)
	facts, warnings := hwinfo.ReadWith(root, answers)
	return facts, append(warnings, unanswered...)
}

// fabrics prints the sets of GPUs that links join, where it is known whether there are any.
func fabrics(p printer, f *hwinfo.Facts) {
	known := map[string]bool{}
	for _, g := range f.GPUs {
		known[g.Address] = g.LinksKnown
	}
	for _, group := range f.Fabrics() {
		if len(group) > 1 && known[group[0]] {
			p.line("gpu fabric", "%s", strings.Join(group, " "))
		}
	}
}
