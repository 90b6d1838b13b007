package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"substrate/expr"
	"substrate/hwinfo"
)

func rootFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("root", "/", "where the node's files are: / or a directory or file made by snapshot")
}

// checkRoot is for a mistyped --root: a directory without files would only be a node that tells nothing.
func checkRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return failed(fmt.Errorf("cannot read node files: there is no directory or file %q", root), "check --root")
	case err != nil:
		return failed(fmt.Errorf("cannot read node files: %w", err), "check --root")
	case !info.IsDir() && !info.Mode().IsRegular():
		return failed(fmt.Errorf("cannot read node files: %q is neither a directory nor a file", root), "check --root")
	}
	if err := hwinfo.Check(root); err != nil {
		return failed(fmt.Errorf("cannot read node files: %s: %w", root, err), "check --root")
	}
	return nil
}

func outputFlag(cmd *cobra.Command, words ...string) *string {
	return cmd.Flags().StringP("output", "o", words[0], "form of the output: "+strings.Join(words, " or "))
}

func checkOutput(got string, words ...string) error {
	for _, w := range words {
		if got == w {
			return nil
		}
	}
	return usage(fmt.Errorf("cannot write output as %q: unknown form", got), "use "+strings.Join(words, " or "))
}

// report is what inspect prints.
type report struct {
	Facts      hwinfo.Facts     `json:"facts"`
	Warnings   []hwinfo.Warning `json:"warnings,omitempty"`
	Conditions []held           `json:"conditions,omitempty"`
}

// held is a condition's value on this node.
type held struct {
	Source string `json:"source"`
	expr.Outcome
}

func inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect", Short: "Print what this node is", Args: exactly(0, ""),
		Example: "  substrated inspect --conditions conditions.txt",
	}
	dir, form := rootFlag(cmd), outputFlag(cmd, "table", "json")
	conditions := cmd.Flags().String("conditions", "", "file of conditions, one a line, to evaluate on this node")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(*form, "table", "json"); err != nil {
			return err
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		var r report
		r.Facts, r.Warnings = readNode(cmd.Context(), *dir)
		if *conditions != "" {
			var err error
			if r.Conditions, err = evaluate(*conditions, r.Facts); err != nil {
				return err
			}
		}
		if *form == "json" {
			return writeJSON(cmd.OutOrStdout(), r)
		}
		return table(cmd.OutOrStdout(), r)
	}
	return cmd
}

const maxConditions = 4 << 20 // bytes of a file of conditions

// evaluate reads one condition a line; blank lines and lines that begin with // are passed over.
func evaluate(name string, facts hwinfo.Facts) ([]held, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, failed(fmt.Errorf("cannot read conditions: %w", err), "")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConditions+1))
	if err != nil {
		return nil, failed(fmt.Errorf("cannot read conditions: %w", err), "")
	}
	if len(data) > maxConditions {
		return nil, failed(fmt.Errorf("cannot read conditions: %s is longer than %d bytes", name, maxConditions), "")
	}
	cache, env := expr.NewCache(nil), expr.NewNodeEnv(facts)
	var out []held
	for number, line := range strings.Split(string(data), "\n") {
		source := strings.TrimSpace(line)
		if source == "" || strings.HasPrefix(source, "//") {
			continue
		}
		condition, err := cache.Condition(source)
		var place *expr.Error
		if errors.As(err, &place) {
			return nil, failed(fmt.Errorf("cannot evaluate condition: %s:%d:%d: %s", name, number+1, place.Column, place.Message), place.Hint)
		} else if err != nil {
			return nil, failed(fmt.Errorf("cannot evaluate condition: %s:%d: %w", name, number+1, err), "")
		}
		out = append(out, held{source, condition.Eval(env)})
	}
	return out, nil
}

func evalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "eval EXPR", Short: "Evaluate an expression on this node", Args: exactly(1, "one expression"),
		Example: "  substrated eval 'cpuinfo.cpu_cores >= 32'\n  substrated eval --explain 'hostname() == \"a\" and cpuinfo.cpu_cores >= 32'",
	}
	dir, form := rootFlag(cmd), outputFlag(cmd, "text", "json")
	explain := cmd.Flags().Bool("explain", false, "for a condition, the parts that kept it from being true and what they saw")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(*form, "text", "json"); err != nil {
			return err
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		facts, _ := hwinfo.Read(*dir)
		env := expr.NewNodeEnv(facts)
		if *explain {
			return explainCondition(cmd, *form, args[0], env)
		}
		value, err := expr.EvalAny(args[0], env)
		if err != nil {
			return notEvaluated(err)
		}
		remarks(cmd.ErrOrStderr(), expr.LintCondition(args[0])) // none where it is no condition
		out := cmd.OutOrStdout()
		text, isText := value.(string)
		switch {
		case *form == "json":
			return writeJSON(out, value)
		case value == nil:
			_, err = fmt.Fprintln(out, "unknown")
		case isText:
			_, err = fmt.Fprintln(out, text)
		default:
			return writeJSON(out, value)
		}
		return err
	}
	return cmd
}

func notEvaluated(err error) error {
	var place *expr.Error
	if errors.As(err, &place) {
		return failed(fmt.Errorf("cannot evaluate expression: line %d, column %d: %s", place.Line, place.Column, place.Message), place.Hint)
	}
	return failed(fmt.Errorf("cannot evaluate expression: %w", err), "")
}

// remarks says what a configuration with this condition would be warned of.
func remarks(w io.Writer, found []expr.Finding) {
	for _, f := range found {
		fmt.Fprintf(w, "warning: line %d, column %d: %s [%s]\n", f.Line, f.Column, f.Message, f.Code)
		if f.Hint != "" {
			fmt.Fprintln(w, "  hint: "+f.Hint)
		}
	}
}

// explainCondition says the same of a condition as a coordinator's `node explain`.
func explainCondition(cmd *cobra.Command, form, source string, env *expr.NodeEnv) error {
	condition, found, err := expr.NewCache(nil).LintCondition(source)
	if err != nil {
		return notEvaluated(err)
	}
	remarks(cmd.ErrOrStderr(), found)
	out, outcome := cmd.OutOrStdout(), condition.Eval(env)
	if form == "json" {
		return writeJSON(out, held{source, outcome})
	}
	lines := []string{fmt.Sprint(outcome.Value)}
	if outcome.Err != "" {
		lines[0] += ": " + outcome.Err
	}
	for _, p := range outcome.Parts {
		line := fmt.Sprintf("  %s is %v", p.Source, p.Value)
		between := "; here "
		for _, name := range slices.Sorted(maps.Keys(p.Seen)) {
			line += between + name + " = " + p.Seen[name]
			between = ", "
		}
		lines = append(lines, line)
	}
	if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("cannot write output: %w", err)
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("cannot write output: %w", err)
	}
	return nil
}

// printer writes lines of name and value; absent facts have none, as everywhere.
type printer struct{ w *tabwriter.Writer }

func (p printer) line(name, format string, args ...any) {
	fmt.Fprintf(p.w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
}

func (p printer) text(name string, words ...string) {
	if value := strings.TrimSpace(strings.Join(words, " ")); value != "" {
		p.line(name, "%s", value)
	}
}

func (p printer) number(name string, n *int) {
	if n != nil {
		p.line(name, "%d", *n)
	}
}

func (p printer) gibibytes(name string, n *uint64) {
	if n != nil {
		p.line(name, "%.1f GiB", float64(*n)/(1<<30))
	}
}

// table prints one fact a line.
func table(w io.Writer, r report) error {
	p := printer{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	host(p, &r.Facts)
	devices(p, &r.Facts)
	for _, x := range r.Warnings {
		p.line("warning "+x.Source, "%s", x.Message)
	}
	for _, c := range r.Conditions {
		p.line(fmt.Sprintf("condition %v", c.Value), "%s", c.Source)
	}
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("cannot write output: %w", err)
	}
	return nil
}

func host(p printer, f *hwinfo.Facts) {
	p.text("hostname", f.Hostname)
	p.text("os", f.OSRelease.PrettyName)
	p.text("kernel", f.Uname.Sysname, f.Uname.Release)
	p.text("machine", f.Machine.Vendor, f.Machine.Product)
	p.text("virtualization", f.Machine.Virtualization)
	p.text("container", f.Machine.Container)
	p.text("cloud", f.Machine.Cloud, f.Machine.InstanceType)
	p.text("architecture", f.CPU.Arch)
	p.text("cpu", f.CPU.ModelName)
	p.number("sockets", f.CPU.Sockets)
	p.number("cores", f.CPU.Cores)
	for _, k := range f.CPU.Kinds {
		if k.Cores != nil {
			p.line(strings.TrimSpace("cores "+k.Name), "%d with %d threads", *k.Cores, k.CPUs)
		} else {
			p.line(strings.TrimSpace("cpus "+k.Name), "%d", k.CPUs)
		}
	}
	p.number("logical cpus", f.CPU.LogicalCPUs)
	p.number("numa nodes", f.CPU.NUMANodes)
	p.gibibytes("memory", f.Memory.Total)
	if f.Memory.Device != nil {
		p.gibibytes("memory of the host", f.Memory.Host)
	}
	for _, m := range f.Memory.Modules {
		speed := ""
		if m.MTs != nil {
			speed = fmt.Sprintf(", %d MT/s", *m.MTs)
		}
		p.line("memory modules", "%d × %d GiB %s%s", m.Count, m.Size>>30, m.Type, speed)
	}
	if f.Limits.CPUs != nil || f.Limits.Memory != nil {
		e := f.Effective()
		if f.Limits.CPUs != nil {
			p.line("cpus within limits", "%g", *e.CPUs)
		}
		if f.Limits.Memory != nil {
			p.gibibytes("memory within limits", e.Memory)
		}
	}
}

func devices(p printer, f *hwinfo.Facts) {
	for _, g := range f.GPUs {
		state := ""
		if !g.Driver {
			state = ", no driver"
		}
		if s := g.Split; s != nil {
			state += fmt.Sprintf(", %s: %d instances", s.Mode, s.Instances)
		}
		p.line("gpu "+g.Address, "%s", strings.TrimSpace(g.Resource+" "+g.Model)+state)
	}
	fabrics(p, f)
	for _, d := range f.Disks {
		p.gibibytes(strings.TrimSpace("disk "+d.Name+" "+d.Transport), d.Size)
	}
	for _, n := range f.NICs {
		if n.Mbps != nil {
			p.line(strings.TrimSpace("nic "+n.Name+" "+n.LinkLayer), "%d Mb/s", *n.Mbps)
		}
	}
	if f.PCI != nil {
		p.line("pci functions", "%d", len(f.PCI))
	}
}
