package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

const (
	completeWithin = time.Second // a prompt must not hang
	completions    = 200         // offered at most
	idLength       = 36          // of a workflow's id
)

// completer gives what may stand at a place, each with a description or none.
type completer func(ctx context.Context, a *app, args []string) ([]cobra.Completion, error)

// completers are those of the arguments, by command.
func completers() map[string]completer {
	return map[string]completer{
		"node describe": nodesOf, "node explain": nodesOf, "node cordon": nodesOf, "node uncordon": nodesOf, "node drain": nodesOf,
		"node revoke": nodesOf, "node remove": nodesOf,
		"node provisioner describe": definitionsOf,
		"backend preflight":         backendsOf, "backend capabilities": backendsOf, "node provisioner catalogue": backendsOf,
		"cluster config rollback": earlierRevisions,
		"workflow status":         workflowsOf, "workflow describe": workflowsOf, "workflow events": workflowsOf,
		"workflow cancel": open(workflowsAndJobs), "workflow explain": workflowsAndJobs, "workflow log": workflowsAndJobs,
		"organization update": organizationsOf, "group update": groupsOf, "user update": usersOf, "user token create": usersOf, "user token list": usersOf,
		"user disable": usersOf, "user enable": usersOf, "user remove": usersOf, "group delete": groupsOf, "group use": groupsOf,
		"group member list": groupsOf, "group member add": groupThenUser, "group member set": groupThenUser, "group member remove": groupThenUser,
		"organization member list": organizationsOf, "organization member set": organizationThenUser, "organization member remove": organizationThenUser,
		"grant show": organizationsOf, "grant history": organizationsOf, "grant append": grantable, "grant set": organizationAndGrantable,
		"context use":      contextsOf,
		"reservation show": reservationsOf, "reservation delete": reservationsOf, "maintenance cancel": windowsOf,
	}
}

// completeArguments asks the coordinator for ids where a command takes one. Without an answer in time
// nothing is offered: a completion never fails and never asks for anything.
func (a *app) completeArguments(root *cobra.Command) {
	for path, c := range completers() {
		if cmd, _, err := root.Find(strings.Fields(path)); err == nil {
			cmd.ValidArgsFunction = a.completion(c)
		}
	}
	if cmd, _, err := root.Find([]string{"cluster", "config", "diff"}); err == nil {
		offer := a.completion(revisionsOf)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			found, _ := offer(cmd, nil, begun)
			return found, cobra.ShellCompDirectiveDefault // files too
		}
	}
	a.completeFlags(root)
}

func (a *app) completeFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.completeFlags(sub)
	}
	for name, c := range map[string]completer{
		"definition": definitionsOf, "revision": revisionsOf, "if-revision": revisionsOf,
		"organization": organizationsOf, "group": groupsOf, "preempt": groupsOf, "no-preempt": groupsOf,
	} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, a.completion(func(ctx context.Context, a *app, _ []string) ([]cobra.Completion, error) {
				return c(ctx, a, nil)
			}))
		}
	}
	for name, extensions := range map[string][]string{"request": {"yaml", "yml"}, "running": {"yaml", "yml"}} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.MarkFlagFilename(name, extensions...)
		}
	}
	if f := cmd.Flags().Lookup("nodes"); f != nil && f.Value.Type() == "string" {
		_ = cmd.MarkFlagDirname("nodes")
	} else if f != nil && f.Value.Type() == "stringSlice" {
		_ = cmd.RegisterFlagCompletionFunc("nodes", a.completion(func(ctx context.Context, a *app, _ []string) ([]cobra.Completion, error) {
			return nodesOf(ctx, a, nil)
		}))
	}
	if cmd.Flags().Lookup("class") != nil {
		_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions(classes(), cobra.ShellCompDirectiveNoFileComp))
	}
	if cmd.Flags().Lookup("status") != nil {
		_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(statuses(), cobra.ShellCompDirectiveNoFileComp))
	}
	if cmd.Flags().Lookup("stream") != nil {
		_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp))
	}
}

func (a *app) completion(c completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completeWithin)
		defer cancel()
		all, err := c(ctx, a, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var fitting []cobra.Completion
		for _, x := range all {
			if strings.HasPrefix(x, begun) && len(fitting) < completions {
				fitting = append(fitting, x)
			}
		}
		return fitting, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// nearest gives an error about an unknown id the nearest known one as a hint, and says where to look.
func (a *app) nearest(ctx context.Context, cmd *cobra.Command, err error) error {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	c := completers()[path]
	var f *failure
	if c == nil || !errors.As(err, &f) || f.code != exitNotFound || f.hint != "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	args := cmd.Flags().Args()
	quoted := func(arg string) bool { return strings.Contains(f.message, strconv.Quote(arg)) }
	named := slices.ContainsFunc(args, quoted)
	for i, arg := range args {
		if named && !quoted(arg) {
			continue
		}
		all, listErr := c(ctx, a, args[:i])
		if listErr != nil {
			return err
		}
		known := make([]string, len(all))
		for k, x := range all {
			known[k], _, _ = strings.Cut(x, "\t")
		}
		if slices.ContainsFunc(known, func(k string) bool {
			return k == arg || len(arg) >= 4 && strings.HasPrefix(k, arg) && len(k) == idLength
		}) {
			continue
		}
		if flagOf(cmd, "organization") != "" {
			known = nil // those are of the caller's own organization
		}
		f.hint = didYouMean(arg, known, listing(cmd, args, i))
		return err
	}
	return err
}

// listing says which command shows what may stand at a place.
func listing(cmd *cobra.Command, args []string, at int) string {
	parent := cmd.Parent()
	command := ""
	switch noun := parent.Name(); {
	case noun == "workflow" && at > 0:
		command = "substrate workflow status " + shellWord(args[0])
	case noun == "member" && at == 0:
		command = parent.Parent().CommandPath() + " list"
	case noun == "member", noun == "token":
		command = "substrate user list"
	default:
		list, _, err := parent.Find([]string{"list"})
		if err != nil || list == parent {
			return ""
		}
		command = list.CommandPath()
	}
	of := flagOf(cmd, "organization")
	if parent.Name() == "member" && parent.Parent().Name() == "organization" && at > 0 {
		of = args[0]
	}
	see := "see `" + command + inOrganization(of) + "`"
	if f := cmd.Flags().Lookup("organization"); f != nil && of == "" {
		see += "; of another organization: add --organization NAME"
	}
	return see
}

// flagOf is what a flag was given, "" where the command has none of the name.
func flagOf(cmd *cobra.Command, flag string) string {
	if f := cmd.Flags().Lookup(flag); f != nil && f.Changed {
		return f.Value.String()
	}
	return ""
}

// described is a completion; a tab or newline would end the description's line in the shell.
func described(id, description string) cobra.Completion {
	return cobra.CompletionWithDesc(printable(id), printable(description))
}

func nodesOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the nodes", (*connection).listNodes, &apiv1.ListNodesRequest{PageSize: 1000})
	var all []cobra.Completion
	for _, n := range r.GetNodes() {
		all = append(all, described(n.GetId(), strings.TrimSpace(n.GetStatus()+" "+n.GetDefinition())))
	}
	return all, err
}

func definitionsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := a.definitions(ctx)
	var all []cobra.Completion
	for _, d := range r.GetDefinitions() {
		all = append(all, described(d.GetId(), d.GetProvisioner()))
	}
	return all, err
}

// revisionsOf offers the revisions of the configuration, newest first.
func revisionsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the revisions", (*connection).listConfigRevisions, &apiv1.ListConfigRevisionsRequest{PageSize: completions})
	var all []cobra.Completion
	for _, rev := range r.GetRevisions() {
		all = append(all, described(number(rev.GetRevision()), when(rev.GetSetAt())+" by "+rev.GetSetBy()))
	}
	return all, err
}

// workflowsOf offers names, which mean the newest workflow, and ids.
func workflowsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the workflows", (*connection).listWorkflows, &apiv1.ListWorkflowsRequest{PageSize: completions})
	var names, ids []cobra.Completion
	seen := map[string]bool{}
	for _, w := range r.GetWorkflows() {
		if !seen[w.GetName()] {
			seen[w.GetName()] = true
			names = append(names, described(w.GetName(), "newest, "+w.GetStatus()))
		}
		ids = append(ids, described(w.GetId(), w.GetName()+", "+w.GetStatus()))
	}
	return append(names, ids...), err
}

func workflowsAndJobs(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) != 1 {
		return workflowsOf(ctx, a, args)
	}
	w, err := a.workflow(ctx, args[0])
	var all []cobra.Completion
	array := ""
	for _, j := range w.GetJobs() {
		if name, _, task := strings.Cut(j.GetName(), "/"); task && name != array {
			array = name
			all = append(all, described(name, "all its tasks"))
		}
		all = append(all, described(j.GetName(), j.GetStatus()))
	}
	return all, err
}

// earlierRevisions leaves out the one that runs.
func earlierRevisions(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	all, err := revisionsOf(ctx, a, args)
	return all[min(1, len(all)):], err
}

// open leaves out what has ended: its description ends in the status.
func open(c completer) completer {
	return func(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
		all, err := c(ctx, a, args)
		return slices.DeleteFunc(all, func(x cobra.Completion) bool {
			return ended(x[strings.LastIndexAny(x, "\t ")+1:])
		}), err
	}
}

func contextsOf(_ context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	c, err := a.loadContexts()
	var all []cobra.Completion
	for _, x := range c.Contexts {
		all = append(all, described(x.Name, x.Server))
	}
	return all, err
}

func organizationsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the organizations", (*connection).listOrganizations, &apiv1.ListOrganizationsRequest{PageSize: completions})
	var all []cobra.Completion
	for _, o := range r.GetOrganizations() {
		all = append(all, described(o.GetName(), "organization"))
	}
	return all, err
}

func groupsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the groups", (*connection).listGroups, &apiv1.ListGroupsRequest{PageSize: completions})
	var all []cobra.Completion
	for _, g := range r.GetGroups() {
		all = append(all, described(g.GetName(), "group"))
	}
	return all, err
}

func usersOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the users", (*connection).listUsers, &apiv1.ListUsersRequest{PageSize: completions})
	var all []cobra.Completion
	for _, u := range r.GetUsers() {
		all = append(all, described(u.GetName(), u.GetEmail()))
	}
	return all, err
}

func reservationsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the reservations", (*connection).listReservations, &apiv1.ListReservationsRequest{PageSize: completions})
	var all []cobra.Completion
	for _, x := range r.GetReservations() {
		all = append(all, described(x.GetName(), x.GetState()+" "+holder(x)+" "+reserved(x)))
	}
	return all, err
}

func windowsOf(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) > 0 {
		return nil, nil
	}
	r, err := get(ctx, a, "listing the maintenance", (*connection).listMaintenance, &apiv1.ListMaintenanceRequest{PageSize: completions})
	var all []cobra.Completion
	for _, w := range r.GetMaintenance() {
		all = append(all, described(w.GetId(), when(w.GetFrom())+" "+w.GetMessage()))
	}
	return all, err
}

// grantable offers definitions as they are configured, which is how grants name them, once each.
func grantable(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	r, err := a.definitions(ctx)
	var all []cobra.Completion
	for _, d := range r.GetDefinitions() {
		x := described(d.GetConfigured(), d.GetProvisioner())
		if !slices.Contains(args, d.GetConfigured()) && !slices.Contains(all, x) {
			all = append(all, x)
		}
	}
	return all, err
}

func organizationAndGrantable(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) == 0 {
		return organizationsOf(ctx, a, args)
	}
	return grantable(ctx, a, args[1:])
}

func groupThenUser(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) == 0 {
		return groupsOf(ctx, a, args)
	}
	return usersOf(ctx, a, args[1:])
}

func organizationThenUser(ctx context.Context, a *app, args []string) ([]cobra.Completion, error) {
	if len(args) == 0 {
		return organizationsOf(ctx, a, args)
	}
	return usersOf(ctx, a, args[1:])
}
