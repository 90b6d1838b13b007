package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

const (
	completeWithin = time.Second // a prompt must not hang
	completions    = 200         // offered at most
)

// completer gives what may stand at a place, each with a description or none.
type completer func(ctx context.Context, a *app, args []string) ([]cobra.Completion, error)

// completeArguments asks the coordinator for ids where a command takes one. Without an answer in time
// nothing is offered: a completion never fails and never asks for anything.
func (a *app) completeArguments(root *cobra.Command) {
	for path, c := range map[string]completer{
		"node describe": nodesOf, "node explain": nodesOf, "node cordon": nodesOf, "node uncordon": nodesOf, "node drain": nodesOf,
		"node provisioner describe": definitionsOf,
		"cluster config rollback":   revisionsOf,
		"workflow status":           workflowsOf, "workflow describe": workflowsOf, "workflow events": workflowsOf,
		"workflow cancel": workflowsAndJobs, "workflow explain": workflowsAndJobs, "workflow log": workflowsAndJobs,
	} {
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
	if f := cmd.Flags().Lookup("definition"); f != nil {
		_ = cmd.RegisterFlagCompletionFunc("definition", a.completion(func(ctx context.Context, a *app, _ []string) ([]cobra.Completion, error) {
			return definitionsOf(ctx, a, nil)
		}))
	}
	for _, name := range []string{"revision", "if-revision"} {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, a.completion(func(ctx context.Context, a *app, _ []string) ([]cobra.Completion, error) {
				return revisionsOf(ctx, a, nil)
			}))
		}
	}
	if cmd.Flags().Lookup("nodes") != nil {
		_ = cmd.MarkFlagDirname("nodes")
	}
	if cmd.Flags().Lookup("class") != nil {
		_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions([]string{"reserved", "on-demand", "batch"}, cobra.ShellCompDirectiveNoFileComp))
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
	for _, j := range w.GetJobs() {
		all = append(all, described(j.GetName(), j.GetStatus()))
	}
	return all, err
}
