package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/proto/apiv1"
)

// revision is a stored configuration with the name that messages use.
type revision struct {
	name   string
	number uint64 // 0 is a file
	sha256 string
	yaml   []byte
}

// storedRevision reads a revision, nil being the running one.
func (a *app) storedRevision(ctx context.Context, number *uint64) (revision, error) {
	r, err := get(ctx, a, "reading the configuration", (*connection).getConfig, &apiv1.GetConfigRequest{Revision: number})
	if err != nil {
		return revision{}, err
	}
	n := r.GetRevision().GetRevision()
	return revision{fmt.Sprintf("revision %d", n), n, r.GetRevision().GetSha256(), r.GetYaml()}, nil
}

func (a *app) configRollbackCommand() *cobra.Command {
	var ifRevision uint64
	var grants bool
	cmd := &cobra.Command{
		Use: "rollback [REVISION]", Short: "Set an earlier revision again, as a new one", Args: cobra.MaximumNArgs(1),
		Long: "Set the text of an earlier revision again, as a new one: revisions never vanish.\n" +
			"Without REVISION it is the one before the running one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var want uint64
			if len(args) > 0 {
				var err error
				if want, err = parseRevision(args[0]); err != nil {
					return err
				}
			}
			req := &apiv1.SetConfigRequest{AppendGrants: grants}
			if cmd.Flags().Changed("if-revision") {
				req.IfRevision = &ifRevision
			}
			return a.rollback(cmd.Context(), want, req)
		},
	}
	cmd.Flags().Uint64Var(&ifRevision, "if-revision", 0, "refuse unless this revision is the running one")
	cmd.Flags().BoolVar(&grants, "append-grants", false, "let every organization use the definitions that come back")
	return cmd
}

func parseRevision(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, failf(exitUsage, "list them with `substrate cluster config get --list-revisions`", "%q is not a revision: expected a whole number from 1", text)
	}
	return n, nil
}

func (a *app) rollback(ctx context.Context, want uint64, req *apiv1.SetConfigRequest) error {
	running, err := a.storedRevision(ctx, nil)
	if err != nil {
		return err
	}
	if want == 0 {
		if want = running.number - 1; want == 0 {
			return failf(exitNotFound, "", "cannot roll back: revision 1 runs, and none was before it")
		}
	}
	if want == running.number {
		return failf(exitFailed, "list them with `substrate cluster config get --list-revisions`", "cannot roll back to revision %d: it is the running one", want)
	}
	old, err := a.storedRevision(ctx, &want)
	if err != nil {
		return err
	}
	if bytes.Equal(old.yaml, running.yaml) {
		return failf(exitFailed, "", "cannot roll back to revision %d: revision %d runs, and its text is the same", want, running.number)
	}
	// What was compared must be what is replaced.
	if req.IfRevision == nil {
		req.IfRevision = &running.number
	}
	req.File, req.Yaml = old.name, old.yaml
	if err := a.setConfig(ctx, req); err != nil {
		return err
	}
	if a.output == "table" || a.output == "wide" {
		added, removed := changedLines(diff.Diff(running.name, running.yaml, old.name, old.yaml))
		a.say("it is the text of revision %d: %s added and %s removed against revision %d", want,
			counted(added, "line"), counted(removed, "line"), running.number)
		a.say("  see `substrate cluster config diff %d`", running.number)
	}
	return nil
}

func changedLines(unified []byte) (added, removed int) {
	for i, line := range strings.Split(string(unified), "\n") {
		switch {
		case i < 3: // the names
		case strings.HasPrefix(line, "+"):
			added++
		case strings.HasPrefix(line, "-"):
			removed++
		}
	}
	return added, removed
}

func (a *app) configDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use: "diff [A] [B]", Short: "Show what differs between two revisions or files", Args: cobra.MaximumNArgs(2),
		Long: "Show what differs between two configurations, each a revision or a file.\n" +
			"Without B it is the running revision, without A the one before it. Exit code 0: nothing differs, 6: something does.",
		Example: "  substrate cluster config diff\n  substrate cluster config diff 3\n  substrate cluster config diff 3 cluster.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			left, right, err := a.sides(cmd.Context(), args)
			if err != nil {
				return err
			}
			text := diff.Diff(left.name, left.yaml, right.name, right.yaml)
			if len(text) == 0 {
				return nil
			}
			a.printDiff(string(text))
			return errChanges()
		},
	}
}

func (a *app) sides(ctx context.Context, args []string) (left, right revision, err error) {
	if len(args) < 2 {
		if right, err = a.storedRevision(ctx, nil); err != nil {
			return left, right, err
		}
	} else if right, err = a.side(ctx, args[1]); err != nil {
		return left, right, err
	}
	if len(args) > 0 {
		left, err = a.side(ctx, args[0])
		return left, right, err
	}
	if right.number < 2 {
		return left, right, failf(exitNotFound, "", "cannot compare: revision %d runs, and none was before it", right.number)
	}
	before := right.number - 1
	left, err = a.storedRevision(ctx, &before)
	return left, right, err
}

// side reads a revision where the word is a number, else a file.
func (a *app) side(ctx context.Context, word string) (revision, error) {
	if n, err := strconv.ParseUint(word, 10, 64); err == nil {
		return a.storedRevision(ctx, &n)
	}
	data, err := a.readFile(word, maxConfigBytes)
	return revision{name: word, yaml: data}, err
}

// printDiff marks what came and went on terminals.
func (a *app) printDiff(text string) {
	coloured := a.terminal && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if i == 0 {
			continue // "diff A B", which the next two lines say too
		}
		line = printable(strings.ReplaceAll(line, "\t", "    "))
		code := ""
		switch {
		case !coloured:
		case i < 3:
			code = "1"
		case strings.HasPrefix(line, "@@"):
			code = "36"
		case strings.HasPrefix(line, "+"):
			code = "32"
		case strings.HasPrefix(line, "-"):
			code = "31"
		}
		if code != "" {
			line = "\x1b[" + code + "m" + line + "\x1b[0m"
		}
		fmt.Fprintln(a.out, line)
	}
}

func (a *app) configSuggestCommand() *cobra.Command {
	var dir, file string
	cmd := &cobra.Command{
		Use: "suggest", Short: "Draft definitions for nodes that belong to none", Args: cobra.NoArgs,
		Long: "Draft one definition for each kind of hardware among the nodes that belong to none. Its condition is true on\n" +
			"these nodes and on no other known one. With --nodes DIR no coordinator is asked; --running FILE leaves out\n" +
			"the nodes of that configuration's definitions.",
		Example: "  substrate cluster config suggest > draft.yaml\n  substrate cluster config suggest --nodes fleet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" && dir == "" {
				return usagef("--running goes with --nodes: a coordinator knows what runs")
			}
			var r *apiv1.SuggestConfigResponse
			var err error
			if dir == "" {
				r, err = get(cmd.Context(), a, "reading the nodes", (*connection).suggestConfig, &apiv1.SuggestConfigRequest{})
			} else {
				r, err = a.suggestOffline(cmd.Context(), dir, file)
			}
			if err != nil {
				return err
			}
			return a.showSuggestion(r)
		},
	}
	cmd.Flags().StringVar(&dir, "nodes", "", "read the nodes from this directory instead of a coordinator")
	cmd.Flags().StringVar(&file, "running", "", "with --nodes: a configuration whose nodes need no definition")
	return cmd
}

func (a *app) suggestOffline(ctx context.Context, dir, file string) (*apiv1.SuggestConfigResponse, error) {
	nodes, err := a.fleetFrom(dir)
	if err != nil {
		return nil, err
	}
	var taken []coordinator.DefinitionID
	if file != "" {
		known, err := catalogue.Embedded()
		if err != nil {
			return nil, err
		}
		data, err := a.readFile(file, maxConfigBytes)
		if err != nil {
			return nil, err
		}
		var running *config.Checked
		if running, _, err = a.parseConfig(file, data, known); err != nil {
			return nil, err
		}
		if nodes, err = placed(ctx, running, nodes); err != nil {
			return nil, err
		}
		for i := range running.Config.Definitions {
			taken = append(taken, running.Config.Definitions[i].ID)
		}
	}
	return sameFields(fleet.Suggest(nodes, taken), &apiv1.SuggestConfigResponse{})
}

func (a *app) showSuggestion(r *apiv1.SuggestConfigResponse) error {
	switch {
	case a.output == "json":
		return a.show(r, table{})
	case a.output == "name" || a.quiet:
		for _, d := range r.GetDefinitions() {
			fmt.Fprintln(a.out, d.GetDefinition())
		}
		return nil
	}
	_, err := fmt.Fprint(a.out, r.GetYaml()) // with -o yaml too: a file to go on with
	if n := len(r.GetDefinitions()); n > 0 {
		a.warn("%s drafted: review them, add policies and costs, then see `substrate cluster config plan`", counted(n, "definition"))
	} else {
		a.warn("%s", cmp.Or(strings.Join(r.GetLeftOut(), "; "), "every node that has reported belongs to a definition"))
	}
	return err
}
