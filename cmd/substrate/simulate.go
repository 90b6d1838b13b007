package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"substrate/cmd/internal/simflags"
)

const simulateProgram = "substrate-simulate"

// simulateCommand hands over to a program of its own: this one must not carry the engine.
func (a *app) simulateCommand() *cobra.Command {
	var flags simflags.Flags
	cmd := &cobra.Command{
		Use: "simulate TRACE|SCENARIO…", Short: "Try configurations on a trace of past work, or play a scenario",
		Long: `Try one configuration on a trace, or compare two, before it is set on a cluster. No coordinator is needed: the same
engine runs under a clock of its own. TRACE is a file in the Standard Workload Format (.swf) or a table (.csv), either
may be packed (.gz). SCENARIO is a story of a few lines (.txtar) about what the scheduler should decide.`,
		Example: `  substrate simulate past.swf --config cluster.yaml --html report.html
  substrate simulate past.swf --skip 7d --compare now.yaml next.yaml
  substrate simulate pods.csv --nodes 9x8gpu,128c,1TiB --config cluster.yaml
  substrate simulate --trace past.swf --config cluster.yaml --nodes 40x64c,256GiB
  substrate simulate bug.txtar`,
		Args: flags.Args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output != "table" && a.output != "json" {
				return usagef("unknown output %q, expected table or json", a.output)
			}
			return a.handOver(cmd.Context(), slices.Concat(given(cmd), []string{"--output=" + a.output, "--"}, args))
		},
	}
	flags.Add(cmd.Flags())
	_ = cmd.MarkFlagFilename("trace", "swf", "csv", "gz")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	_ = cmd.MarkFlagFilename("compare", "yaml", "yml")
	_ = cmd.MarkFlagFilename("html", "html")
	_ = cmd.MarkFlagFilename("jobs", "csv")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"swf", "csv"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return []cobra.Completion{"swf", "csv", "gz", "txtar", "yaml"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return cmd
}

// given writes the command's own flags down as they were set.
func given(cmd *cobra.Command) []string {
	var out []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if cmd.InheritedFlags().Lookup(f.Name) != nil {
			return
		}
		if list, ok := f.Value.(simflags.List); ok {
			for _, v := range list.Words() {
				out = append(out, "--"+f.Name+"="+v)
			}
			return
		}
		out = append(out, "--"+f.Name+"="+f.Value.String())
	})
	return out
}

// handOver runs the program that simulates in this one's place and ends as it does.
func (a *app) handOver(ctx context.Context, args []string) error {
	program, err := findProgram(simulateProgram)
	if err != nil {
		return err
	}
	a.flush()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.errOut
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return &failure{code: exit.ExitCode()} // it has said why
	case errors.As(err, &exit) && brokenPipe(exit):
		return &failure{code: exitFailed} // nobody reads on
	case errors.As(err, &exit):
		return failf(exitFailed, "", "cannot simulate: %s was killed: %s", simulateProgram, strings.TrimSpace(exit.Error()))
	case err != nil:
		return fmt.Errorf("cannot run %s: %w", program, err)
	}
	return nil
}

// brokenPipe reports whether a program ended because the reader of its output went away.
func brokenPipe(exit *exec.ExitError) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGPIPE
}
