package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/proto/apiv1"
)

func outputs() []string { return []string{"table", "wide", "json", "yaml", "name"} }

// table is an answer for people. The columns from wide on show with -o wide only (0: none are hidden).
type table struct {
	head  []string
	wide  int
	rows  [][]string
	names []string
	empty string // said instead of an empty table
}

// add appends a row; name is what -o name prints.
func (t *table) add(name string, cells ...string) {
	t.names = append(t.names, name)
	t.rows = append(t.rows, cells)
}

// show prints an answer in the asked form: json and yaml are the API's message, field for field.
func (a *app) show(m proto.Message, t table) error {
	if a.output != "json" && a.output != "yaml" {
		return a.showTable(t)
	}
	data, err := messageJSON(m)
	if err != nil {
		return err
	}
	return a.showJSON(data)
}

// showValue is show for what is not a message.
func (a *app) showValue(v any, t table) error {
	if a.output != "json" && a.output != "yaml" {
		return a.showTable(t)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode the answer: %w", err)
	}
	return a.showJSON(data)
}

func messageJSON(m proto.Message) ([]byte, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the answer: %w", err)
	}
	var b bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&b, data); err != nil {
		return nil, fmt.Errorf("cannot encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

func (a *app) showJSON(data []byte) error {
	if a.output == "yaml" {
		var n yaml.Node
		if err := yaml.Unmarshal(data, &n); err != nil { // JSON is YAML; a node keeps the order of fields
			return fmt.Errorf("cannot encode the answer: %w", err)
		}
		blockStyle(&n)
		e := yaml.NewEncoder(a.out)
		e.SetIndent(2)
		if err := e.Encode(&n); err != nil {
			return fmt.Errorf("cannot encode the answer: %w", err)
		}
		return e.Close()
	}
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return fmt.Errorf("cannot encode the answer: %w", err)
	}
	fmt.Fprintln(a.out, b.String())
	return nil
}

func blockStyle(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode && len(n.Content) > 0 {
		n.Style = 0
	}
	// Quotes of strings that would read as something else stay.
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Style == yaml.DoubleQuotedStyle {
		n.Style = 0
	}
	for _, c := range n.Content {
		blockStyle(c)
	}
}

func (a *app) showTable(t table) error {
	if a.output == "name" || a.quiet {
		for _, n := range t.names {
			fmt.Fprintln(a.out, n)
		}
		return nil
	}
	if len(t.rows) == 0 && t.empty != "" {
		fmt.Fprintln(a.out, t.empty)
		return nil
	}
	for _, line := range a.lines(t) {
		fmt.Fprintln(a.out, line)
	}
	return nil
}

// lines aligns a table; the last column is not padded.
func (a *app) lines(t table) []string {
	columns := len(t.head)
	if t.wide > 0 && a.output != "wide" {
		columns = min(columns, t.wide)
	}
	rows := append([][]string{t.head}, t.rows...)
	widths := make([]int, columns)
	for _, r := range rows {
		for i := range columns {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell(r, i)))
		}
	}
	var out []string
	for n, r := range rows {
		var b strings.Builder
		for i := range columns {
			text := cell(r, i)
			b.WriteString(a.colour(n > 0, text))
			if i < columns-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2))
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

func cell(row []string, i int) string {
	if i >= len(row) || row[i] == "" {
		return "-"
	}
	return printable(row[i])
}

// printable keeps a job's or node's text from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// colour marks status words on terminals.
func (a *app) colour(body bool, text string) string {
	if !body || !a.terminal || a.env("NO_COLOR") != "" || a.env("TERM") == "dumb" {
		return text
	}
	code := ""
	switch text {
	case "running", "ready", "valid", "true":
		code = "32"
	case "failed", "lost", "error", "offline", "altered", "rolled-back":
		code = "31"
	case "starting", "preempting", "preempted", "draining", "cordoned", "not-ready", "unknown", "missing":
		code = "33"
	case "finished":
		code = "36"
	case "pending", "queued", "cancelled":
		code = "90"
	}
	if code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// field is one line of a description.
type field struct{ name, value string }

func fieldLines(fs []field) []string {
	width := 0
	for _, f := range fs {
		width = max(width, len(f.name))
	}
	var out []string
	for _, f := range fs {
		if f.value == "" {
			continue
		}
		out = append(out, f.name+":"+strings.Repeat(" ", width-len(f.name)+2)+printable(f.value))
	}
	return out
}

// describe prints a description, or the message with -o json.
func (a *app) describe(m proto.Message, name string, fs []field, rest ...table) error {
	switch {
	case a.output == "json" || a.output == "yaml":
		return a.show(m, table{})
	case a.output == "name" || a.quiet:
		fmt.Fprintln(a.out, name)
		return nil
	}
	for _, l := range fieldLines(fs) {
		fmt.Fprintln(a.out, l)
	}
	for _, t := range rest {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprintln(a.out)
		for _, l := range a.lines(t) {
			fmt.Fprintln(a.out, l)
		}
	}
	return nil
}

// watchable is a list with --watch: the list again whenever it changed.
func (a *app) watchable(cmd *cobra.Command, print func(context.Context) error) *cobra.Command {
	var watch bool
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep showing changes until interrupted")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !watch {
			return print(cmd.Context())
		}
		return a.watch(cmd.Context(), print)
	}
	return cmd
}

func (a *app) watch(ctx context.Context, print func(context.Context) error) error {
	real := a.out
	defer func() { a.out = real }()
	var before []byte
	return a.resume(ctx, false, func() (moved bool, err error) {
		for {
			var b bytes.Buffer
			a.out = &b
			err := print(ctx)
			a.out = real
			if err != nil {
				return moved, err
			}
			moved = true
			if !bytes.Equal(before, b.Bytes()) {
				if a.terminal {
					fmt.Fprint(a.out, "\x1b[H\x1b[2J")
				}
				_, _ = a.out.Write(b.Bytes()) // shows at the last flush
				a.flush()
				before = b.Bytes()
			}
			if err := wait(ctx, a.every); err != nil {
				return moved, err
			}
		}
	})
}

// Texts of values; "" shows as "-": absent is not zero.

func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format("2006-01-02 15:04:05Z")
}

func (a *app) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return span(a.now().Sub(t.AsTime()))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

func size(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%dB", n)
	}
	value, i := float64(n), -1
	for value >= unit && i < 4 {
		value /= unit
		i++
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + []string{"KiB", "MiB", "GiB", "TiB", "PiB"}[i]
}

func cost(c *float64) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%g", *c)
}

func devices(c *apiv1.Capacity) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(c.GetDevices())) {
		parts = append(parts, fmt.Sprintf("%s=%d", k, c.GetDevices()[k]))
	}
	return strings.Join(parts, " ")
}

func pairs(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, " ")
}

func number[N ~uint32 | ~uint64 | ~int32 | ~int](n N) string { return fmt.Sprint(n) }

// nonzero hides counts that mean "none".
func nonzero[N ~uint32 | ~uint64 | ~int32](n N) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// progress says on a terminal what takes longer than a second; the answer ends it.
func (a *app) progress(doing string) (end func()) {
	if !a.terminal || !isTerminal(a.errOut) || a.quiet {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		spin(done, a.errOut, doing)
	}()
	return func() { close(done); <-ended }
}

func spin(done <-chan struct{}, w io.Writer, doing string) {
	first := time.NewTimer(time.Second)
	defer first.Stop()
	select {
	case <-done:
		return
	case <-first.C:
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		fmt.Fprintf(w, "\r%c %s…", `|/-\`[i%4], doing)
		select {
		case <-done:
			fmt.Fprint(w, "\r\x1b[K")
			return
		case <-tick.C:
		}
	}
}
