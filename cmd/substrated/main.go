// Command substrated is the agent of a node: it reports what the node is and runs what it is told to run.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == keeperCommand {
		os.Exit(keep(os.Args[2:])) // before anything that a keeper has no use for
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(errOut, "substrated: %v\n", err)
	var f *failure
	if !errors.As(err, &f) {
		return exitFailed
	}
	if f.hint != "" {
		fmt.Fprintf(errOut, "hint: %s\n", f.hint)
	}
	return f.code
}

// failure is an error with what the reader can do about it.
type failure struct {
	err  error
	hint string
	code int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func usage(err error, hint string) error { return &failure{err, hint, exitUsage} }
func failed(err error, hint string) error {
	return &failure{err, hint, exitFailed}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "substrated", Short: "Agent of a Substrate node", Version: version,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("cannot run command %q: there is none of that name", args[0]), "see substrated --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("cannot read flags: %w", err), "see "+cmd.CommandPath()+" --help")
	})
	cmd.AddCommand(runCommand(), discoverCommand(), inspectCommand(), evalCommand(), snapshotCommand(), versionCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}

// exactly is cobra.ExactArgs with our words and exit code.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == n:
			return nil
		case n == 0:
			return usage(fmt.Errorf("cannot run %s: it takes no arguments", cmd.CommandPath()), "")
		}
		return usage(fmt.Errorf("cannot run %s: expected %s", cmd.CommandPath(), what), "see "+cmd.CommandPath()+" --help")
	}
}
