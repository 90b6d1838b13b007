package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"substrate/hwinfo"
	"substrate/hwinfo/probe"
)

// archiveSuffix is the end of the name of a snapshot that is one file.
const archiveSuffix = ".txtar"

func snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot DIR|FILE.txtar|-", Short: "Copy the files that say what this node is", Args: exactly(1, "one directory or file"),
		Long: "Copy the files that say what this node is into DIR, which must be empty or missing, or into one text:\n" +
			"FILE.txtar, which must be missing, or the standard output for -.\n" +
			"They hold no serial numbers and no addresses; inspect and eval read them with --root.",
		Example: "  substrated snapshot node.txtar\n  ssh node7 substrated snapshot - > fleet/node7.txtar",
	}
	dir := rootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "" {
			return usage(errors.New("cannot take snapshot: the directory's name is empty"), "")
		}
		if err := checkRoot(*dir); err != nil {
			return err
		}
		return snapshotNode(cmd.Context(), *dir, args[0], cmd.OutOrStdout())
	}
	return cmd
}

// snapshotNode copies what readNode reads. A program that gives no answer costs the snapshot that answer only.
func snapshotNode(ctx context.Context, root, to string, out io.Writer) error {
	var asker probe.Asker
	answers, _ := asker.Ask(ctx, root)
	switch {
	case to == "-":
		return hwinfo.WriteArchive(out, root, answers)
	case !strings.HasSuffix(to, archiveSuffix):
		return hwinfo.SnapshotWith(root, to, answers)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return failed(fmt.Errorf("cannot write snapshot: there is %s already", to), "remove it, or choose another name")
	} else if err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	if err = hwinfo.WriteArchive(f, root, answers); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil && closed != nil {
		err = fmt.Errorf("cannot write snapshot: %w", closed)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to)) // half of one is none
	}
	return err
}
