package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"substrate/coordinator"
	"substrate/proto/apiv1"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Configuration and state of the cluster"}
	config := &cobra.Command{Use: "config", Short: "The revisioned configuration"}
	config.AddCommand(a.configSetCommand(), a.configGetCommand(), a.configValidateCommand(), a.configPlanCommand(),
		a.configTestCommand(), a.configSuggestCommand(), a.configRollbackCommand(), a.configDiffCommand())
	named := ""
	status := &cobra.Command{Use: "status [NAME]", Short: "The cluster at a glance, or one of a Federate's clusters", Args: cobra.MaximumNArgs(1),
		PreRun: func(_ *cobra.Command, args []string) { named = strings.Join(args, "") }}
	cmd.AddCommand(config, a.watchable(status, func(ctx context.Context) error {
		if named != "" {
			return a.oneCluster(ctx, named)
		}
		return a.clusterStatus(ctx)
	}))
	cmd.AddCommand(a.federateCommands()...)
	return cmd
}

func (a *app) clusterStatus(ctx context.Context) error {
	s, err := get(ctx, a, "reading the status", (*connection).getStatus, &apiv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	revision := "none set yet"
	if s.GetConfigurationRevision() > 0 {
		revision = number(s.GetConfigurationRevision())
	}
	fs := []field{{"Cluster", s.GetClusterId()}, {"Version", s.GetVersion()}, {"Configuration", revision}}
	if s.GetRole() == "federate" { // what follows is the sum of its clusters
		fs = append(fs, field{"Role", "Federate"}, field{"Clusters", fmt.Sprintf("%d of %d ready", s.GetClustersReady(), s.GetClustersTotal())})
	}
	fs = append(fs, []field{
		{"Nodes", fmt.Sprintf("%d of %d ready", s.GetNodesReady(), s.GetNodesTotal())},
		{"Running", number(s.GetRunning())}, {"Waiting", number(s.GetWaiting())},
	}...)
	for _, w := range s.GetWarnings() {
		fs = append(fs, field{"Warning", w})
	}
	return a.describe(s, s.GetClusterId(), fs)
}

func (a *app) configSetCommand() *cobra.Command {
	var revision uint64
	var grants bool
	cmd := &cobra.Command{
		Use: "set FILE", Short: "Make FILE the next revision of the configuration (- is standard input)", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &apiv1.SetConfigRequest{File: fileName(args[0]), AppendGrants: grants}
			if cmd.Flags().Changed("if-revision") {
				req.IfRevision = &revision
			}
			var err error
			if req.Yaml, err = a.readFile(args[0], maxConfigBytes); err != nil {
				return err
			}
			return a.setConfig(cmd.Context(), req)
		},
	}
	cmd.Flags().Uint64Var(&revision, "if-revision", 0, "refuse unless this revision is the running one")
	cmd.Flags().BoolVar(&grants, "append-grants", false, "let every organization use the new definitions")
	return cmd
}

func (a *app) setConfig(ctx context.Context, req *apiv1.SetConfigRequest) error {
	res, err := invoke(ctx, a, "setting the configuration", longCallTimeout, (*connection).setConfig, req)
	if err != nil {
		return err
	}
	rev := res.GetRevision()
	printDiagnostics(a.errOut, res.GetDiagnostics())
	if a.output == "json" || a.output == "yaml" {
		return a.show(res, table{})
	}
	if a.output == "name" || a.quiet {
		fmt.Fprintln(a.out, rev.GetRevision())
	} else if res.GetUnchanged() {
		a.say("unchanged: revision %d already holds these bytes", rev.GetRevision())
		if req.GetAppendGrants() && len(res.GetUngranted()) == 0 {
			a.say("granted: every organization may use its definitions")
		}
	} else {
		a.say("revision %d is set (%d bytes, sha256 %s)", rev.GetRevision(), rev.GetBytes(), rev.GetSha256())
	}
	a.printUngranted(res.GetUngranted())
	return nil
}

// fewOrganizations are named each, also where there are no others.
const fewOrganizations = 5

// printUngranted names who cannot use what yet; definitions that lack the same organizations share a command.
func (a *app) printUngranted(ungranted []*apiv1.UngrantedDefinition) {
	var order []string
	definitions := map[string][]string{}
	organizations := map[string][]string{}
	everybody := map[string]bool{}
	for _, u := range ungranted {
		orgs := slices.Sorted(slices.Values(u.GetOrganizations()))
		if len(orgs) == 0 {
			continue
		}
		key := strings.Join(orgs, "\x00")
		if _, ok := definitions[key]; !ok {
			order = append(order, key)
		}
		definitions[key] = append(definitions[key], u.GetDefinition())
		organizations[key], everybody[key] = orgs, u.GetAllOrganizations() && len(orgs) > fewOrganizations
	}
	for _, key := range order {
		who := strings.Join(organizations[key], ", ")
		if everybody[key] {
			who = fmt.Sprintf("all %d organizations", len(organizations[key]))
		}
		a.warn("warning: not granted yet: %s cannot use %s", who, strings.Join(definitions[key], ", "))
		command := "substrate grant append"
		for _, d := range definitions[key] {
			command += " " + shellWord(d)
		}
		for _, o := range organizations[key] {
			if everybody[key] {
				break // without a name it is for all
			}
			command += " --organization " + shellWord(o)
		}
		a.warn("  hint: %s", command)
	}
}

// shellWord quotes what a shell would change.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:@%+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return coordinator.ShellWord(s)
}

func (a *app) configGetCommand() *cobra.Command {
	var revision uint64
	var list bool
	cmd := &cobra.Command{
		Use: "get", Short: "Print the configuration, or list its revisions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen := cmd.Flags().Changed("revision")
			switch {
			case list && chosen:
				return usagef("--revision and --list-revisions exclude each other")
			case list:
				return a.listRevisions(cmd.Context())
			}
			req := &apiv1.GetConfigRequest{}
			if chosen {
				req.Revision = &revision
			}
			return a.getConfig(cmd.Context(), req)
		},
	}
	cmd.Flags().Uint64Var(&revision, "revision", 0, "this revision instead of the running one")
	cmd.Flags().BoolVar(&list, "list-revisions", false, "list the stored revisions, newest first")
	return cmd
}

func (a *app) getConfig(ctx context.Context, req *apiv1.GetConfigRequest) error {
	res, err := get(ctx, a, "reading the configuration", (*connection).getConfig, req)
	if err != nil {
		return err
	}
	switch a.output {
	case "json":
		return a.show(res, table{})
	case "name":
		fmt.Fprintln(a.out, res.GetRevision().GetRevision())
		return nil
	}
	_, err = a.out.Write(res.GetYaml()) // the bytes as they were set, with -o yaml too
	return err
}

func (a *app) listRevisions(ctx context.Context) error {
	all := &apiv1.ListConfigRevisionsResponse{}
	var err error
	all.Revisions, err = pages(func(token string) ([]*apiv1.ConfigRevision, string, error) {
		r, err := get(ctx, a, "listing the revisions", (*connection).listConfigRevisions,
			&apiv1.ListConfigRevisionsRequest{PageSize: 1000, PageToken: token})
		return r.GetRevisions(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{head: []string{"REVISION", "SET", "BY", "BYTES", "SHA256"}, empty: "no configuration is set yet"}
	for _, r := range all.GetRevisions() {
		sum := r.GetSha256()
		if a.output != "wide" && len(sum) > 12 {
			sum = sum[:12]
		}
		t.add(number(r.GetRevision()), number(r.GetRevision()), when(r.GetSetAt()), r.GetSetBy(), number(r.GetBytes()), sum)
	}
	return a.show(all, t)
}
