package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) joinTokenCommand() *cobra.Command {
	var ttl time.Duration
	req := &apiv1.CreateJoinTokenRequest{}
	cmd := &cobra.Command{
		Use: "create", Short: "Make a token that lets machines join; it is shown once", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < time.Second || ttl%time.Second != 0 {
				return usagef("--ttl %s is not a number of whole seconds", ttl)
			}
			if req.Uses == 0 {
				return usagef("--uses is at least 1")
			}
			req.TtlSeconds = uint64(ttl / time.Second)
			r, err := get(cmd.Context(), a, "making a token", (*connection).createJoinToken, req)
			if err != nil {
				return err
			}
			if a.output == "json" || a.output == "yaml" {
				return a.show(r, table{})
			}
			fmt.Fprintln(a.out, r.GetToken())
			if a.output != "name" && !a.quiet {
				a.warn("valid until %s", when(r.GetExpires()))
			}
			return nil
		},
	}
	cmd.Flags().Var(durationFlag(&ttl, time.Hour), "ttl", "how long it is valid")
	cmd.Flags().Uint32Var(&req.Uses, "uses", 1, "how many machines may use it")
	cmd.Flags().StringVar(&req.Definition, "definition", "", "machines that use it are of this definition, or of none")
	cmd.Flags().StringVar(&req.Launch, "launch", "", "only machines whose agents say that they are of this launch may use it")
	return cmd
}

func (a *app) joinTokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the join tokens that can be used; secrets are never shown", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := &apiv1.ListJoinTokensResponse{}
			var err error
			r.Tokens, err = pages(func(token string) ([]*apiv1.JoinToken, string, error) {
				p, err := get(cmd.Context(), a, "listing the join tokens", (*connection).listJoinTokens,
					&apiv1.ListJoinTokensRequest{PageSize: pageSize, PageToken: token})
				return p.GetTokens(), p.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			t := table{head: []string{"ID", "USES LEFT", "EXPIRES", "BY", "DEFINITION", "LAUNCH", "CREATED"}, wide: 6, empty: "there is no join token"}
			for _, k := range r.GetTokens() {
				left := number(k.GetUsesLeft())
				if k.GetUses() > 0 {
					left = fmt.Sprintf("%d/%d", k.GetUsesLeft(), k.GetUses())
				}
				t.add(k.GetId(), k.GetId(), left, when(k.GetExpires()), k.GetCreatedBy(), k.GetDefinition(), k.GetLaunch(), when(k.GetCreated()))
			}
			return a.show(r, t)
		},
	}
}

func (a *app) joinTokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID", Short: "End a join token; nodes that joined with it stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := get(cmd.Context(), a, "revoking the join token", (*connection).revokeJoinToken, &apiv1.RevokeJoinTokenRequest{Id: args[0]})
			return err
		},
	}
}

func (a *app) nodeRevokeCommand() *cobra.Command {
	req := &apiv1.RevokeNodeRequest{}
	cmd := &cobra.Command{
		Use: "revoke NODE", Short: "End a node's certificates and its stream; it comes back with a new join token only", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			n, err := get(cmd.Context(), a, "revoking the node", (*connection).revokeNode, req)
			if err != nil {
				return err
			}
			t := table{head: []string{"NODE", "STATUS", "REASON"}}
			t.add(n.GetId(), n.GetId(), n.GetStatus(), n.GetReason())
			return a.show(n, t)
		},
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "told to the node, and in the audit log")
	return cmd
}

func (a *app) nodeRemoveCommand() *cobra.Command {
	req := &apiv1.RemoveNodeRequest{}
	cmd := &cobra.Command{
		Use: "remove NODE", Short: "Revoke a node and forget it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			_, err := get(cmd.Context(), a, "removing the node", (*connection).removeNode, req)
			return err
		},
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "told to the node, and in the audit log")
	cmd.Flags().BoolVar(&req.Force, "force", false, "give up the work that is on it")
	return cmd
}
