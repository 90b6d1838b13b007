package main

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"substrate/coordinator/config"
	"substrate/coordinator/inventory"
	"substrate/coordinator/simulate"
	"substrate/coordinator/simulate/report"
)

// maxTrace bounds what is read of a trace, after decompression.
const maxTrace = 4 << 30

// simulated is what one command line measured.
type simulated struct {
	Simulations []*simulate.Result `json:"simulations"`
	Seconds     float64            `json:"seconds"` // that it took
	Ratio       float64            `json:"ratio"`   // simulated time over real time, of one simulation
}

// simulate tries one or two configurations on a trace.
func (a *app) simulate(ctx context.Context, args []string) error {
	configs, file, err := a.configurations(args)
	if err != nil {
		return err
	}
	trace, err := a.trace(file)
	if err != nil {
		return err
	}
	spec := a.flags.Nodes
	if spec == "" && trace.Cores > 0 {
		spec = fmt.Sprintf("%dx1c", trace.Cores)
	}
	if spec == "" {
		return &usageError{fmt.Sprintf("%s does not say on which nodes to simulate it: give them with --nodes, such as 9x8gpu,128c,1TiB", file)}
	}
	nodes, err := simulate.ParseNodes(spec, func(name string) ([]byte, error) { return readFile(name, 2*inventory.MaxFacts) })
	if err != nil {
		return err
	}
	if err := a.writable(append(configs, file)); err != nil {
		return err
	}
	inputs := make([]report.Input, len(configs))
	began := time.Now()
	bar := newProgress(a.errOut, len(configs)*len(trace.Jobs))
	group, inner := errgroup.WithContext(ctx)
	for i, name := range configs {
		opt := simulate.Options{Name: "built in", Trace: trace, Nodes: nodes, Classes: a.flags.Classes, Priorities: a.flags.Priorities,
			Preempts: a.flags.Preempts, TermDelay: a.flags.TermDelay, AskEvery: a.flags.AskEvery, TickEvery: a.flags.TickEach, Progress: bar.step}
		for _, r := range a.flags.Reserve {
			opt.Reserve = append(opt.Reserve, simulate.Reserve(r))
		}
		if name != "" {
			if opt.Config, err = readFile(name, config.MaxBytes); err != nil {
				return err
			}
			opt.Name = shortest(name, configs)
		}
		inputs[i].Config = cmp.Or(string(opt.Config), simulate.DefaultConfig)
		group.Go(func() (err error) {
			inputs[i].Result, err = simulate.Run(inner, opt)
			return err
		})
	}
	err = group.Wait()
	bar.end()
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	out := simulated{Seconds: took, Ratio: inputs[0].Result.Span / max(took, 1e-9)}
	for _, in := range inputs {
		out.Simulations = append(out.Simulations, in.Result)
	}
	return a.write(inputs, &out)
}

// writable refuses reports that could not be written, better now than after minutes, or that would overwrite what is read.
func (a *app) writable(read []string) error {
	for _, name := range []string{a.flags.HTML, a.flags.Jobs} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(name)); err != nil || !info.IsDir() {
			return fmt.Errorf("cannot write %s: there is no directory %s", name, filepath.Dir(name))
		}
		for _, other := range read {
			if other != "" && sameFile(name, other) {
				return &usageError{fmt.Sprintf("cannot write %s: the simulation reads it", name)}
			}
		}
		_, missing := os.Lstat(name)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666) // what is in it stays until there is a report
		if err != nil {
			return fmt.Errorf("cannot write %s: %w", name, errors.Unwrap(err))
		}
		err = f.Close()
		if missing != nil { // a simulation that fails leaves no empty report
			err = cmp.Or(err, os.Remove(name))
		}
		if err != nil {
			return fmt.Errorf("cannot write %s: %w", name, errors.Unwrap(err))
		}
	}
	if a.flags.HTML != "" && a.flags.Jobs != "" && sameFile(a.flags.HTML, a.flags.Jobs) {
		return &usageError{"--html and --jobs name the same file"}
	}
	return nil
}

// sameFile compares files that are there; what is not there is another one.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	y, err := os.Stat(b)
	return err == nil && x.Mode().IsRegular() && os.SameFile(x, y)
}

// shortest is a file's name without its folder, where that tells it from the others.
func shortest(name string, all []string) string {
	for _, other := range all {
		if other != name && filepath.Base(other) == filepath.Base(name) {
			return name
		}
	}
	return filepath.Base(name)
}

// trace reads the file in the form that the flag or its name says, and cuts it.
func (a *app) trace(file string) (*simulate.Trace, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, errors.Unwrap(err))
	}
	defer f.Close()
	name, packed := strings.CutSuffix(filepath.Base(file), ".gz")
	var r io.Reader = f
	if packed {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: it is not packed with gzip, or is cut off", file)
		}
		defer z.Close()
		r = z
	}
	r = &bounded{r: r, left: maxTrace}
	var t *simulate.Trace
	switch format := cmp.Or(a.flags.Format, strings.TrimPrefix(filepath.Ext(name), ".")); format {
	case "swf":
		t, err = simulate.ReadSWF(file, r)
	case "csv":
		t, err = simulate.ReadCSV(file, r)
	default:
		if a.flags.Format != "" {
			return nil, &usageError{fmt.Sprintf("unknown format %q, expected swf or csv", a.flags.Format)}
		}
		return nil, &usageError{fmt.Sprintf("%s is neither called .swf nor .csv: say what it is with --format", file)}
	}
	if err != nil {
		return nil, err
	}
	all := len(t.Jobs)
	t.Name = name
	t.Between(a.flags.Skip, a.flags.Until)
	switch {
	case all == 0:
		return nil, fmt.Errorf("cannot simulate %s: it has no job that ran", file)
	case len(t.Jobs) == 0:
		return nil, fmt.Errorf("cannot simulate %s: of its %d jobs that ran, none was submitted between --skip and --until", file, all)
	}
	return t, nil
}

// bounded refuses what is too long instead of cutting it.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, fmt.Errorf("it has more than %d bytes", int64(maxTrace))
	}
	return n, err
}

// write gives the answer in all the forms that were asked for.
func (a *app) write(inputs []report.Input, out *simulated) error {
	if a.flags.HTML != "" {
		if err := toFile(a.flags.HTML, func(w io.Writer) error { return report.HTML(w, inputs) }); err != nil {
			return err
		}
	}
	if a.flags.Jobs != "" {
		if err := toFile(a.flags.Jobs, func(w io.Writer) error { return jobs(w, out.Simulations) }); err != nil {
			return err
		}
	}
	if a.output == "json" {
		e := json.NewEncoder(a.out)
		e.SetIndent("", "  ")
		if err := e.Encode(out); err != nil {
			return fmt.Errorf("cannot write the answer: %w", err)
		}
		return nil
	}
	w := bufio.NewWriter(a.out)
	report.Text(w, out.Simulations)
	fmt.Fprintf(w, "\nsimulated %s in %.1f s, %s times as fast as it happened\n", report.Duration(out.Simulations[0].Span), out.Seconds, thousands(out.Ratio))
	if a.flags.HTML != "" {
		fmt.Fprintf(w, "report: %s\n", a.flags.HTML)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("cannot write the answer: %w", err)
	}
	return nil
}

func toFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, errors.Unwrap(err))
	}
	w := bufio.NewWriter(f)
	err = cmp.Or(write(w), w.Flush())
	err = cmp.Or(err, f.Close())
	for errors.Unwrap(err) != nil { // the system's own words: the rest names the file again
		err = errors.Unwrap(err)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// jobs writes one line for each job and configuration.
func jobs(w io.Writer, results []*simulate.Result) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"configuration", "line", "id", "group", "user", "class", "submitted", "wait", "ran", "preempted", "outcome"}) // Error tells
	text := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, r := range results {
		for _, j := range r.Jobs {
			wait := text(j.Wait)
			if j.Wait < 0 {
				wait = ""
			}
			_ = out.Write([]string{r.Configuration, strconv.Itoa(j.Line), j.ID, j.Group, j.User, j.Class, text(j.Submitted), wait, text(j.Ran),
				strconv.Itoa(j.Preempted), j.Outcome})
		}
	}
	out.Flush()
	return out.Error()
}

func thousands(v float64) string {
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// progress tells a person at a terminal how far a simulation is, once it takes longer than a second.
type progress struct {
	w     io.Writer
	of    int
	done  atomic.Int64
	stop  chan struct{}
	ended chan struct{}
}

func newProgress(w io.Writer, of int) *progress {
	p := &progress{w: w, of: of, stop: make(chan struct{}), ended: make(chan struct{})}
	f, ok := w.(*os.File)
	terminal := false
	if ok {
		info, err := f.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if terminal {
					fmt.Fprintf(p.w, "\r%d %% of the jobs submitted", 100*p.done.Load()/int64(p.of))
				}
			case <-p.stop:
				if terminal {
					fmt.Fprint(p.w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return p
}

func (p *progress) step(int, int) { p.done.Add(1) }

func (p *progress) end() {
	close(p.stop)
	<-p.ended
}
