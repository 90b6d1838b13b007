package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"substrate/agent"
	"substrate/cmd/internal/daemon"
)

func discoverCommand() *cobra.Command {
	var f runFlags
	var once bool
	cmd := &cobra.Command{
		Use: "discover --once", Short: "Report what this node is, and end",
		Long: "Join, wait until the hardware is there that the coordinator expects of the instance's type, or until\n" +
			"discovery.settleTimeout of the configuration is over, report what is there, and end once the coordinator\n" +
			"has stored it. It runs no jobs. Instances that are launched for a look at their hardware run this.\n\n" +
			"Every flag is also an environment variable: --state-dir is " + envPrefix + "STATE_DIR.\n" +
			"The join token is never a flag: give it in a file or as " + joinTokenEnv + ".",
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := daemon.FromEnvironment(cmd.Flags(), envPrefix, os.LookupEnv); err != nil {
				return usage(err, "")
			}
			if !once {
				return usage(errors.New("cannot discover hardware: it is reported once"), "give --once; a node that is to stay takes `substrated run`")
			}
			return discover(cmd.Context(), f, cmd.ErrOrStderr())
		},
	}
	f.common(cmd.Flags())
	cmd.Flags().BoolVar(&once, "once", false, "end when the report is stored; nothing else is possible")
	return cmd
}

func discover(ctx context.Context, f runFlags, errOut io.Writer) error {
	m, err := f.enter(ctx, "discover hardware", errOut)
	if err != nil {
		return err
	}
	if m == nil {
		return failed(errors.New("cannot discover hardware: told to stop before it had joined"), "")
	}
	defer m.lock.Close()
	m.log.Info("looking at the hardware", "node", m.id.Node, "version", version)
	if err := agent.Discover(ctx, f.options(m)); err != nil {
		return failed(err, joinHint(err))
	}
	m.log.Info("the hardware is reported", "node", m.id.Node)
	return nil
}
