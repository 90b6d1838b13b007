package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"substrate/expr"
	"substrate/hwinfo"
)

func rootFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("root", "/", "where the node's files are: / or a directory made by snapshot")
}

// checkRoot is for a mistyped --root: a directory without files would only be a node that tells nothing.
func checkRoot(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return failed(fmt.Errorf("cannot read node files: there is no directory %q", dir), "check --root")
	case err != nil:
		return failed(fmt.Errorf("cannot read node files: %w", err), "check --root")
	case !info.IsDir():
		return failed(fmt.Errorf("cannot read node files: %q is not a directory", dir), "check --root")
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

func inspectCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "inspect", Short: "Print what this node is", Args: exactly(0, "")}
	dir, form := rootFlag(cmd), outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(*form, "table", "json"); err != nil {
			return err
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		facts, warnings := hwinfo.Read(*dir)
		if *form == "json" {
			return writeJSON(cmd.OutOrStdout(), struct {
				Facts    hwinfo.Facts     `json:"facts"`
				Warnings []hwinfo.Warning `json:"warnings,omitempty"`
			}{facts, warnings})
		}
		return table(cmd.OutOrStdout(), facts, warnings)
	}
	return cmd
}

func evalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "eval EXPR", Short: "Evaluate an expression on this node", Args: exactly(1, "one expression"),
		Example: "  substrated eval 'cpuinfo.cpu_cores >= 32'",
	}
	dir, form := rootFlag(cmd), outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(*form, "text", "json"); err != nil {
			return err
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		facts, _ := hwinfo.Read(*dir)
		value, err := expr.EvalAny(args[0], expr.NewNodeEnv(facts))
		var place *expr.Error
		if errors.As(err, &place) {
			return failed(fmt.Errorf("cannot evaluate expression: line %d, column %d: %s", place.Line, place.Column, place.Message), place.Hint)
		} else if err != nil {
			return failed(fmt.Errorf("cannot evaluate expression: %w", err), "")
		}
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

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot DIR", Short: "Copy the files that say what this node is", Args: exactly(1, "one directory"),
		Long: "Copy the files that say what this node is into DIR, which must be empty or missing.\n" +
			"They hold no serial numbers and no addresses; inspect and eval read them with --root DIR.",
	}
	dir := rootFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if args[0] == "" {
			return usage(errors.New("cannot take snapshot: the directory's name is empty"), "")
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		return hwinfo.Snapshot(*dir, args[0])
	}
	return cmd
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

// table prints one fact a line; absent ones are left out, as everywhere.
func table(w io.Writer, f hwinfo.Facts, warnings []hwinfo.Warning) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	text := func(name, value string) {
		if value != "" {
			line(name, "%s", value)
		}
	}
	number := func(name string, n *int) {
		if n != nil {
			line(name, "%d", *n)
		}
	}
	text("hostname", f.Hostname)
	text("os", f.OSRelease.PrettyName)
	text("kernel", strings.TrimSpace(f.Uname.Sysname+" "+f.Uname.Release))
	text("architecture", f.CPU.Arch)
	text("cpu", f.CPU.ModelName)
	number("sockets", f.CPU.Sockets)
	number("cores", f.CPU.Cores)
	number("logical cpus", f.CPU.LogicalCPUs)
	number("numa nodes", f.CPU.NUMANodes)
	if f.Memory.Total != nil {
		line("memory", "%.1f GiB", float64(*f.Memory.Total)/(1<<30))
	}
	for _, g := range f.GPUs {
		state := ""
		if !g.Driver {
			state = ", no driver"
		}
		line("gpu "+g.Address, "%s", strings.TrimSpace(g.Resource+" "+g.Model)+state)
	}
	line("pci functions", "%d", len(f.PCI))
	for _, x := range warnings {
		line("warning "+x.Source, "%s", x.Message)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("cannot write output: %w", err)
	}
	return nil
}
