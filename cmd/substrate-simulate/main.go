// Command substrate-simulate tries configurations on traces, and plays scenarios. `substrate simulate` runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"substrate/cmd/internal/simflags"
	"substrate/coordinator"
)

// version is set by the linker.
var version = "dev"

// Exit codes: what they share with the program substrate means the same there.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{out: os.Stdout, errOut: os.Stderr}
	if err := a.command().ExecuteContext(ctx); err != nil {
		code := a.explain(err)
		stop()
		os.Exit(code)
	}
}

// app is one run of the program.
type app struct {
	out, errOut io.Writer
	flags       simflags.Flags
	output      string
	name        string
	started     bool
}

func (a *app) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "substrate-simulate TRACE|SCENARIO…", Short: "Try a configuration on a trace, or play a scenario", Version: version,
		SilenceErrors: true, SilenceUsage: true, Args: a.flags.Args,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.started = true
			if a.output != "table" && a.output != "json" {
				return &usageError{fmt.Sprintf("unknown output %q, expected table or json", a.output)}
			}
			if a.flags.Trace != "" {
				args = append(args, a.flags.Trace)
			}
			if isScenario(args[0]) {
				return a.scenarios(args)
			}
			return a.simulate(cmd.Context(), args)
		},
	}
	cmd.SetOut(a.out)
	cmd.SetErr(a.errOut)
	a.flags.Add(cmd.Flags())
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "table or json")
	return cmd
}

// usageError is a command line that asks for something that makes no sense.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

// explain prints an error and gives its exit code.
func (a *app) explain(err error) int {
	var usage *usageError
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(a.errOut, "interrupted")
		return exitInterrupted
	}
	if !errors.Is(err, errDisagrees) {
		fmt.Fprintln(a.errOut, err)
	}
	var e *coordinator.Error
	if errors.As(err, &e) && e.Hint != "" {
		fmt.Fprintf(a.errOut, "hint: %s\n", e.Hint)
	}
	if errors.As(err, &usage) || !a.started {
		fmt.Fprintln(a.errOut, "hint: see `substrate simulate --help`")
		return exitUsage
	}
	return exitFailed
}

func isScenario(name string) bool { return filepath.Ext(name) == ".txtar" }

func isConfig(name string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(name))
}

// configurations are the files to try, from flags and arguments; the rest of the arguments is the trace.
func (a *app) configurations(args []string) (configs []string, trace string, err error) {
	var rest []string
	for _, arg := range args {
		if isConfig(arg) {
			configs = append(configs, arg)
		} else {
			rest = append(rest, arg)
		}
	}
	switch {
	case len(rest) == 0:
		return nil, "", &usageError{"expected one trace, got none"}
	case len(rest) > 1:
		return nil, "", &usageError{fmt.Sprintf("expected one trace, got %d: %s", len(rest), strings.Join(rest, ", "))}
	case a.flags.Compare == "" && len(configs) > 0:
		return nil, "", &usageError{fmt.Sprintf("%s is no trace: give a configuration with --config, two with --compare", configs[0])}
	case a.flags.Compare != "" && a.flags.Config != "":
		return nil, "", &usageError{"--config and --compare exclude each other"}
	case a.flags.Compare != "" && len(configs) != 1:
		return nil, "", &usageError{fmt.Sprintf("--compare takes two configurations, got %d", 1+len(configs))}
	case a.flags.Compare != "":
		return append([]string{a.flags.Compare}, configs...), rest[0], nil
	}
	return []string{a.flags.Config}, rest[0], nil
}
