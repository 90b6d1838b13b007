package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"substrate/coordinator/simulate"
)

// Text writes the figures for a terminal: of one simulation, or of several side by side. A failed write shows at the
// end of the writer.
func Text(w io.Writer, results []*simulate.Result) {
	first := results[0]
	gpus := ""
	if first.GPUs > 0 {
		gpus = " and " + counted(first.GPUs, "GPU")
	}
	fmt.Fprintf(w, "%s: %s in %s on %s with %s%s\n", first.Trace, counted(first.All.Jobs, "job"), Duration(first.Span), counted(first.Nodes, "node"), counted(first.Cores, "core"), gpus)
	for _, n := range notes(first) {
		fmt.Fprintf(w, "  %s\n", n)
	}
	fmt.Fprintln(w)
	var buf bytes.Buffer
	tw := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	if len(results) > 1 {
		for _, r := range results {
			fmt.Fprintf(tw, "\t%s", r.Configuration)
		}
		fmt.Fprintln(tw, "\tCHANGE")
	}
	for _, l := range Summary(results) {
		if l.Head {
			fmt.Fprintf(tw, "%s%s\n", l.Name, strings.Repeat("\t", len(results)+1)) // as many cells as below: one table
			continue
		}
		fmt.Fprintf(tw, "  %s", l.Name)
		for _, v := range l.Values {
			fmt.Fprintf(tw, "\t%s", v)
		}
		if len(results) > 1 {
			fmt.Fprintf(tw, "\t%s", strings.TrimSpace(l.Change+map[int]string{1: " better", -1: " worse"}[l.Better]))
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush() // a buffer takes everything
	for line := range strings.Lines(buf.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	for _, r := range results {
		fmt.Fprintln(w)
		if len(results) > 1 {
			fmt.Fprintf(w, "%s\n", r.Configuration)
		}
		tw = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, t := range []struct {
			head string
			list []simulate.Group
		}{{"CLASS", r.Classes}, {"GROUP", simulate.Largest(r.Groups, topGroups)}, {"USER", simulate.Largest(r.Users, topUsers)}} {
			groups(tw, t.head, t.list, r.GPUs > 0)
		}
		_ = tw.Flush() // the end of the writer tells
	}
}

func groups(w io.Writer, head string, list []simulate.Group, gpus bool) {
	columns := [...]struct {
		head string
		text func(*simulate.Group) string
		gpus bool
	}{
		{"JOBS", func(g *simulate.Group) string { return fmt.Sprint(g.Jobs) }, false},
		{"MEAN WAIT", func(g *simulate.Group) string { return Duration(g.MeanWait) }, false},
		{"MEDIAN", func(g *simulate.Group) string { return Duration(g.MedianWait) }, false},
		{"95 %", func(g *simulate.Group) string { return Duration(g.P95Wait) }, false},
		{"SLOWDOWN", func(g *simulate.Group) string { return number(g.Slowdown) }, false},
		{"CORE-H", func(g *simulate.Group) string { return number(g.CoreHours) }, false},
		{"GPU-H", func(g *simulate.Group) string { return number(g.GPUHours) }, true},
		{"PREEMPTED", func(g *simulate.Group) string { return fmt.Sprint(g.Preemptions) }, false},
		{"WASTED CORE-H", func(g *simulate.Group) string { return number(g.WastedCores) }, false},
		{"WASTED GPU-H", func(g *simulate.Group) string { return number(g.WastedGPUs) }, true},
	}
	fmt.Fprint(w, head)
	for _, c := range columns {
		if gpus || !c.gpus {
			fmt.Fprint(w, "\t", c.head)
		}
	}
	fmt.Fprintln(w)
	for i := range list {
		fmt.Fprint(w, list[i].Name)
		for _, c := range columns {
			if gpus || !c.gpus {
				fmt.Fprint(w, "\t", c.text(&list[i]))
			}
		}
		fmt.Fprintln(w)
	}
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
