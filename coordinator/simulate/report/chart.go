package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"substrate/coordinator/simulate"
)

// The plotting library writes colours as numbers. These stand for the page's own, which follow the reader's light or
// dark setting.
func ink() color.Color         { return color.RGBA{1, 2, 3, 255} }
func grid() color.Color        { return color.RGBA{4, 5, 6, 255} }
func series(i int) color.Color { return color.RGBA{7, 8, uint8(9 + i), 255} }

// colours turns those numbers into the page's variables.
func colours() *strings.Replacer {
	return strings.NewReplacer("#010203", "var(--ink)", "#040506", "var(--grid)", "#070809", "var(--s1)", "#07080A", "var(--s2)")
}

// curve is one line of a chart.
type curve struct {
	points plotter.XYs
	steps  bool
}

// chart is a picture with its caption.
type chart struct {
	Title, Note string
	SVG         template.HTML
	Legend      []string // one for each curve, if there are several
}

const (
	width, height = 520, 240 // points
	textSize      = 9
)

// axes names what is drawn.
type axes struct {
	x, y string
	log  bool // of x
	top  float64
}

// draw makes a chart of curves.
func drawn(title, note string, a axes, curves []curve, legend []string) (chart, error) {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.X.Label.Text, p.Y.Label.Text = a.x, a.y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.LineStyle.Color, axis.LineStyle.Width = grid(), 1
		axis.Tick.LineStyle.Color, axis.Tick.LineStyle.Width = grid(), 1
		for _, style := range []*draw.TextStyle{&axis.Label.TextStyle, &axis.Tick.Label} {
			style.Color = ink()
			style.Font = font.From(plot.DefaultFont, textSize)
		}
		axis.Padding = 2
	}
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = color.Transparent, grid()
	lines.Vertical.Width, lines.Horizontal.Width = 0, 0.5
	p.Add(lines)
	for i, c := range curves {
		if len(c.points) == 0 {
			continue
		}
		l, err := plotter.NewLine(c.points)
		if err != nil {
			return chart{}, fmt.Errorf("cannot draw %q: %w", title, err)
		}
		l.Color, l.Width = series(i), 1.6
		if c.steps {
			l.StepStyle = plotter.PostStep
		}
		p.Add(l)
	}
	p.Y.Min = 0
	if a.top > 0 {
		p.Y.Max = a.top
	}
	if p.Y.Max <= p.Y.Min || math.IsInf(p.Y.Max, 0) {
		p.Y.Max = p.Y.Min + 1
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = steps{}, steps{}
	if a.log {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, times{}
	}
	if p.X.Max <= p.X.Min || math.IsInf(p.X.Max, 0) {
		p.X.Min, p.X.Max = 1, 10
	}
	canvas := vgsvg.New(vg.Length(width), vg.Length(height))
	p.Draw(draw.New(canvas))
	var buf bytes.Buffer
	if _, err := canvas.WriteTo(&buf); err != nil {
		return chart{}, fmt.Errorf("cannot draw %q: %w", title, err)
	}
	return chart{Title: title, Note: note, SVG: embedded(buf.String(), title), Legend: legend}, nil
}

// embedded makes a picture a part of a page: without its own header, as wide as there is room, with a name for those who
// hear the page.
func embedded(svg, title string) template.HTML {
	if i := strings.Index(svg, "<svg"); i > 0 {
		svg = svg[i:]
	}
	if i := strings.Index(svg, ">"); i > 0 {
		svg = fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img" aria-label="%s" xmlns="http://www.w3.org/2000/svg">`, width, height, template.HTMLEscapeString(title)) + svg[i+1:]
	}
	return template.HTML(colours().Replace(svg))
}

// steps marks an axis at round numbers.
type steps struct{}

func (steps) Ticks(low, high float64) []plot.Tick {
	const about = 6
	raw := (high - low) / about
	if !(raw > 0) || math.IsInf(raw, 0) {
		return nil
	}
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, k := range [...]float64{1, 2, 2.5, 5, 10} {
		if k*step >= raw {
			step *= k
			break
		}
	}
	var out []plot.Tick
	for i := math.Ceil(low / step); i*step <= high && len(out) < 4*about; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return out
}

// times marks a logarithmic axis of seconds with the words of a clock.
type times struct{}

func (times) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	for _, t := range [...]struct {
		at   float64
		name string
	}{{1, "1 s"}, {10, "10 s"}, {60, "1 min"}, {600, "10 min"}, {3600, "1 h"}, {6 * 3600, "6 h"}, {86400, "1 d"}, {7 * 86400, "7 d"}, {30 * 86400, "30 d"}} {
		if t.at >= low && t.at <= high {
			out = append(out, plot.Tick{Value: t.at, Label: t.name})
		}
	}
	return out
}

// overTime is a series with its times in days.
func overTime(points []simulate.Point, scale float64) curve {
	out := make(plotter.XYs, len(points))
	for i, p := range points {
		out[i] = plotter.XY{X: p.At / 86400, Y: p.Value * scale}
	}
	return curve{points: out}
}

const quantiles = 200

// shares says of waits, ascending, which share of the jobs waited no longer.
func shares(waits []float64) curve {
	var out plotter.XYs
	for i := range quantiles + 1 {
		q := float64(i) / quantiles
		if len(waits) > 0 {
			out = append(out, plotter.XY{X: max(simulate.Quantile(waits, q), 1), Y: 100 * q})
		}
	}
	return curve{points: out, steps: true}
}

// charts draws everything, with a curve for each result.
func charts(results []*simulate.Result) ([]chart, error) {
	var names []string
	if len(results) > 1 {
		for _, r := range results {
			names = append(names, r.Configuration)
		}
	}
	each := func(f func(*simulate.Result) curve) []curve {
		var out []curve
		for _, r := range results {
			out = append(out, f(r))
		}
		return out
	}
	type picture struct {
		title, note string
		axes        axes
		curve       func(*simulate.Result) curve
	}
	list := []picture{
		{"Utilisation of cores", "Share of all cores that work ran on.", axes{x: "days", y: "%", top: 100},
			func(r *simulate.Result) curve { return overTime(r.Series.Cores, 100) }},
		{"Waiting jobs", "Mean number of jobs that waited.", axes{x: "days", y: "jobs"},
			func(r *simulate.Result) curve { return overTime(r.Series.Waiting, 1) }},
		{"Waits", "Share of jobs that waited no longer than this. All waits of less than a second stand at 1 s.", axes{x: "wait", y: "% of jobs", log: true, top: 100},
			func(r *simulate.Result) curve { return shares(r.Waits) }},
	}
	if results[0].GPUs > 0 {
		gpus := picture{"Utilisation of GPUs", "Share of all GPUs that work ran on.", axes{x: "days", y: "%", top: 100},
			func(r *simulate.Result) curve { return overTime(r.Series.GPUs, 100) }}
		list = append([]picture{gpus}, list...)
		list = append(list, picture{"Fragmented GPUs", "Free GPUs that a job of the trace's mix could not use.", axes{x: "days", y: "GPUs"},
			func(r *simulate.Result) curve { return overTime(r.Series.Fragments, 1) }})
	}
	var out []chart
	for _, p := range list {
		c, err := drawn(p.title, p.note, p.axes, each(p.curve), names)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// number writes a figure with as many digits as it deserves.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
