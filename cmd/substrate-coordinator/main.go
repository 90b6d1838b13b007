// Command substrate-coordinator runs a cluster's coordinator: configuration, inventory, scheduler and API.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"substrate/coordinator"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "substrate-coordinator: %v\n", err)
		var e *coordinator.Error
		if errors.As(err, &e) && e.Hint != "" {
			fmt.Fprintf(os.Stderr, "hint: %s\n", e.Hint)
		}
		stop()
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "substrate-coordinator",
		Short:         "Coordinator of a Substrate cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	cmd.AddCommand(runCommand())
	return cmd
}
