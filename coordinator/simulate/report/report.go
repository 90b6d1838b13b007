// Package report writes what simulations measured: tables for a terminal, and one HTML page that needs nothing from
// anywhere else. It measures nothing itself.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"substrate/coordinator/simulate"
)

//go:embed page.html
var page string

// Input is one simulation with what a reader wants to know about it besides.
type Input struct {
	Result *simulate.Result
	Config string // YAML
}

const (
	topUsers   = 15
	topGroups  = 30
	topReasons = 12
)

// line is a row of a table: what, and a value for each configuration.
type line struct {
	Name   string
	Values []string
	Change string // from the first to the second, "" where there are not two
	Better int    // 1: the second is better, -1: worse
	Head   bool
}

// HTML writes the page of one simulation, or of several of one trace side by side.
func HTML(w io.Writer, inputs []Input) error {
	results := make([]*simulate.Result, len(inputs))
	for i := range inputs {
		results[i] = inputs[i].Result
	}
	pictures, err := charts(results)
	if err != nil {
		return err
	}
	t, err := template.New("page").Funcs(template.FuncMap{"number": number, "span": Duration, "percent": percent, "counted": counted,
		"largest": simulate.Largest, "topUsers": func() int { return topUsers }, "topGroups": func() int { return topGroups },
		"rows": func(r *simulate.Result, list []simulate.Group) any {
			return struct {
				List []simulate.Group
				GPUs int
			}{list, r.GPUs}
		}}).Parse(page)
	if err != nil {
		return fmt.Errorf("cannot read the page's template: %w", err)
	}
	if err := t.Execute(w, struct {
		Inputs  []Input
		First   *simulate.Result
		Several bool
		Charts  []chart
		Summary []line
		Notes   []string
	}{inputs, results[0], len(results) > 1, pictures, Summary(results), notes(results[0])}); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	return nil
}

// figure is one row of the summary: how to read it off a result, how to write it, and whether less of it is better.
type figure struct {
	name  string
	value func(*simulate.Result) float64
	text  func(float64) string
	less  int // 1: less is better, -1: more is, 0: neither
}

// Summary compares results figure by figure.
func Summary(results []*simulate.Result) []line {
	var out []line
	gpus := results[0].GPUs > 0
	add := func(f figure) {
		l := line{Name: f.name}
		for _, r := range results {
			l.Values = append(l.Values, f.text(f.value(r)))
		}
		if len(results) == 2 {
			l.Change, l.Better = change(f, f.value(results[0]), f.value(results[1]))
		}
		out = append(out, l)
	}
	head := func(name string) { out = append(out, line{Name: name, Head: true}) }
	for _, f := range figures(gpus) {
		if f.value == nil {
			head(f.name)
		} else {
			add(f)
		}
	}
	return out
}

func change(f figure, a, b float64) (text string, better int) {
	d := b - a
	switch {
	case d == 0 || f.text(a) == f.text(b):
		return "=", 0
	case a != 0:
		text = fmt.Sprintf("%+.1f %%", 100*d/math.Abs(a))
	case f.less == 0 && d > 0:
		text = "more"
	case f.less == 0:
		text = "less"
	}
	if f.less != 0 {
		better = 1
		if (d > 0) == (f.less > 0) {
			better = -1
		}
	}
	return text, better
}

func figures(gpus bool) []figure {
	count := func(f func(*simulate.Result) int) func(*simulate.Result) float64 {
		return func(r *simulate.Result) float64 { return float64(f(r)) }
	}
	whole := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	list := []figure{
		{name: "Jobs"},
		{"finished by themselves", count(func(r *simulate.Result) int { return r.Finished }), whole, 0},
		{"ended by their walltime", count(func(r *simulate.Result) int { return r.Walled }), whole, 0},
		{"never ended", count(func(r *simulate.Result) int { return r.Unfinished }), whole, 1},
		{"refused", func(r *simulate.Result) float64 { return float64(total(r.Refused)) }, whole, 1},
		{name: "Waits"},
		{"mean", func(r *simulate.Result) float64 { return r.All.MeanWait }, Duration, 1},
		{"median", func(r *simulate.Result) float64 { return r.All.MedianWait }, Duration, 1},
		{"95 %", func(r *simulate.Result) float64 { return r.All.P95Wait }, Duration, 1},
		{"99 %", func(r *simulate.Result) float64 { return r.All.P99Wait }, Duration, 1},
		{"bounded slowdown, mean", func(r *simulate.Result) float64 { return r.All.Slowdown }, number, 1},
		{"bounded slowdown, median", func(r *simulate.Result) float64 { return r.All.MedianSlow }, number, 1},
		{"fairness among users (Jain)", func(r *simulate.Result) float64 { return r.Fairness }, number, -1},
		{name: "Use"},
		{"cores in use", func(r *simulate.Result) float64 { return r.Utilisation.Cores }, percent, -1},
	}
	if gpus {
		list = append(list,
			figure{"GPUs in use", func(r *simulate.Result) float64 { return r.Utilisation.GPUs }, percent, -1},
			figure{"free GPUs, mean", func(r *simulate.Result) float64 { return r.Fragmentation.Free }, number, 0},
			figure{"free GPUs that are fragments", func(r *simulate.Result) float64 { return r.Fragmentation.Rate }, percent, 1},
			figure{"GPU-hours idle while wanted", func(r *simulate.Result) float64 { return r.Fragmentation.Wanted }, number, 1})
	}
	list = append(list,
		figure{name: "Preemption"},
		figure{"preemptions", count(func(r *simulate.Result) int { return r.All.Preemptions }), whole, 1},
		figure{"wasted core-hours", func(r *simulate.Result) float64 { return r.All.WastedCores }, number, 1})
	if gpus {
		list = append(list, figure{"wasted GPU-hours", func(r *simulate.Result) float64 { return r.All.WastedGPUs }, number, 1})
	}
	return append(list,
		figure{name: "Estimates"},
		figure{"jobs that had to wait", count(func(r *simulate.Result) int { return r.Estimates.Waited }), whole, 1},
		figure{"of them with an estimate", count(func(r *simulate.Result) int { return r.Estimates.Told }), whole, 0},
		figure{"median absolute error", func(r *simulate.Result) float64 { return r.Estimates.Median }, Duration, 1},
		figure{"mean signed error (early is +)", func(r *simulate.Result) float64 { return r.Estimates.Signed }, Duration, 0},
		figure{"started later than told", func(r *simulate.Result) float64 { return r.Estimates.Later }, percent, 1},
		figure{"jobs whose estimate moved later", count(func(r *simulate.Result) int { return r.Estimates.Slipped }), whole, 1},
		figure{"by, at a time", func(r *simulate.Result) float64 { return r.Estimates.Slip }, Duration, 0},
	)
}

func total(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// notes say what of the trace was left out.
func notes(r *simulate.Result) []string {
	var out []string
	for _, group := range []struct {
		what string
		m    map[string]int
	}{{"not replayed", r.Skipped}, {"refused", r.Refused}} {
		keys := slices.SortedFunc(maps.Keys(group.m), func(a, b string) int {
			if d := group.m[b] - group.m[a]; d != 0 {
				return d
			}
			return strings.Compare(a, b)
		})
		for i, reason := range keys {
			if i == topReasons {
				out = append(out, fmt.Sprintf("%d more reasons", len(keys)-i))
				break
			}
			out = append(out, fmt.Sprintf("%d %s: %s", group.m[reason], group.what, reason))
		}
	}
	return out
}

// Duration writes seconds as people say them.
func Duration(s float64) string {
	sign := ""
	if s < 0 {
		sign, s = "-", -s
	}
	d := time.Duration(s * float64(time.Second))
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%s%.1f d", sign, d.Hours()/24)
	case d >= time.Hour:
		return fmt.Sprintf("%s%d h %02d min", sign, int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%s%d min %02d s", sign, int(d.Minutes()), int(d.Seconds())%60)
	case d == d.Truncate(time.Second):
		return fmt.Sprintf("%s%d s", sign, int(d.Seconds()))
	}
	return fmt.Sprintf("%s%.1f s", sign, d.Seconds())
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
