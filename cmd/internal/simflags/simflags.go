// Package simflags is the flags of a simulation, which the program that simulates and the one that users call share. It
// runs nothing.
package simflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// Flags is what a command line asks for.
type Flags struct {
	Trace              string // what may also stand as an argument
	Config, Compare    string
	Nodes, Format      string
	HTML, Jobs         string
	Skip, Until        time.Duration
	TermDelay          time.Duration
	AskEvery, TickEach time.Duration
	Classes            map[string]coordinator.Class
	Priorities         map[string]int32
	Preempts           map[string][]string
	Reserve            []Reserve
}

// Reserve is what a group has reserved for the whole simulation; Size 0 stands for the most that it used at one time.
type Reserve struct {
	Group      string
	Size       int
	Definition string
}

// Add declares the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	fs.StringVar(&f.Trace, "trace", "", "the trace, which may also be named without this flag")
	fs.StringVar(&f.Config, "config", "", "configuration to try (without: one definition for all nodes, backfill easy)")
	fs.StringVar(&f.Compare, "compare", "", "compare this configuration with the one that is named behind it: --compare A.yaml B.yaml")
	fs.StringVar(&f.Nodes, "nodes", "", "nodes: COUNTxPARTS or COUNTxFILE.json, joined by +, such as 240x1c or 9x8gpu,128c,1TiB+4x64c (default: the cores that an SWF trace names, one a node)")
	fs.StringVar(&f.Format, "format", "", "swf or csv (default: by the name of the file)")
	fs.StringVar(&f.HTML, "html", "", "write a report with plots to this file")
	fs.StringVar(&f.Jobs, "jobs", "", "write what became of each job to this file, as CSV")
	fs.Var((*duration)(&f.Skip), "skip", "leave out what was submitted in the first part of the trace, such as 7d")
	fs.Var((*duration)(&f.Until), "until", "leave out what was submitted after this time, counted from the beginning of the trace")
	fs.Var((*duration)(&f.TermDelay), "term-delay", "how long work takes to end after SIGTERM")
	fs.Var((*every)(&f.AskEvery), "ask-every", "how often those who wait ask again when they will start (default 1h)")
	fs.Var((*every)(&f.TickEach), "tick", "how often the queue is looked at though nothing has changed (default 1m)")
	fs.Var(&words{form: "QUEUE=CLASS", set: f.class}, "class", "class of the jobs of a queue (SWF: its number; pods: quality of service); may be repeated")
	fs.Var(&words{form: "GROUP=NUMBER", set: f.priority}, "priority", "priority of a group; may be repeated")
	fs.Var(&words{form: "GROUP=GROUP[,GROUP]", set: f.preempt}, "preempts", "whom a group may preempt; may be repeated")
	fs.Var(&words{form: "GROUP=SIZE[@DEFINITION]", set: f.reserve}, "reserve", "GPUs (whole nodes where there are none) that a group has reserved all the time, or peak: as many as its reserved work used at one time; may be repeated")
}

// Args is a check of arguments: there are some, or the trace is a flag.
func (f *Flags) Args(cmd *cobra.Command, args []string) error {
	if f.Trace != "" {
		return nil
	}
	return cobra.MinimumNArgs(1)(cmd, args)
}

type duration time.Duration

func (d *duration) String() string {
	if *d == 0 {
		return "0" // flags say so where no default is to be shown
	}
	return time.Duration(*d).String()
}
func (d *duration) Type() string { return "duration" }
func (d *duration) Set(text string) error {
	v, err := strictyaml.ParseDuration(text)
	if err == nil && v < 0 {
		err = errors.New("a time before the trace makes no sense, expected such as 30s, 4h or 7d")
	}
	*d = duration(v)
	return err
}

// every is how often something is done in simulated time; 0 stands for the default.
type every time.Duration

func (e *every) String() string { return (*duration)(e).String() }
func (e *every) Type() string   { return "duration" }
func (e *every) Set(text string) error {
	err := (*duration)(e).Set(text)
	if err == nil && *e != 0 && time.Duration(*e) < time.Second {
		err = errors.New("expected at least 1s: a simulation would hardly move")
	}
	return err
}

// List is a flag that may be repeated; Words are its values as they were given.
type List interface{ Words() []string }

// words keeps what was given besides what it means.
type words struct {
	list []string
	form string
	set  func(key, value string) error
}

func (w *words) String() string  { return strings.Join(w.list, " ") }
func (w *words) Type() string    { return w.form }
func (w *words) Words() []string { return w.list }
func (w *words) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" || value == "" {
		return fmt.Errorf("expected %s", w.form)
	}
	w.list = append(w.list, text)
	return w.set(key, value)
}

func (f *Flags) class(key, value string) error {
	var class coordinator.Class
	if err := class.UnmarshalText([]byte(value)); err != nil {
		return err
	}
	if f.Classes == nil {
		f.Classes = map[string]coordinator.Class{}
	}
	f.Classes[key] = class
	return nil
}

func (f *Flags) priority(key, value string) error {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", value)
	}
	if f.Priorities == nil {
		f.Priorities = map[string]int32{}
	}
	f.Priorities[key] = int32(n)
	return nil
}

func (f *Flags) preempt(key, value string) error {
	if f.Preempts == nil {
		f.Preempts = map[string][]string{}
	}
	f.Preempts[key] = append(f.Preempts[key], strings.Split(value, ",")...)
	return nil
}

func (f *Flags) reserve(key, value string) error {
	size, definition, _ := strings.Cut(value, "@")
	n := 0
	if size != "peak" {
		var err error
		if n, err = strconv.Atoi(size); err != nil || n < 1 {
			return fmt.Errorf("%q is neither a number from 1 nor peak", size)
		}
	}
	f.Reserve = append(f.Reserve, Reserve{Group: key, Definition: definition, Size: n})
	return nil
}
