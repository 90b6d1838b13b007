package main

import (
	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) organizationMemberCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "member", Short: "Who belongs to an organization, and as what"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "list ORGANIZATION", Short: "List the members of an organization", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.listUsers(cmd, &apiv1.ListUsersRequest{Organization: args[0]})
			},
		},
		a.memberSetCommand("add ORGANIZATION USER", "Take a user that belongs to no organization into one", func(args []string) *apiv1.SetMemberRequest {
			return &apiv1.SetMemberRequest{Organization: args[0], User: args[1], Add: true}
		}),
		a.memberSetCommand("set ORGANIZATION USER", "Change a member's role", func(args []string) *apiv1.SetMemberRequest {
			return &apiv1.SetMemberRequest{Organization: args[0], User: args[1]}
		}),
		a.organizationMemberRemoveCommand(),
	)
	return cmd
}

func (a *app) organizationMemberRemoveCommand() *cobra.Command {
	req := &apiv1.RemoveMemberRequest{}
	cmd := &cobra.Command{
		Use: "remove ORGANIZATION USER", Short: "Take a user out of an organization and its groups; its work goes on unless --cancel-work is given",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Organization, req.User = args[0], args[1]
			u, err := get(cmd.Context(), a, "changing the members", (*connection).removeMember, req)
			if err != nil {
				return err
			}
			return a.showUsers(u, u)
		},
	}
	cmd.Flags().BoolVar(&req.CancelWork, "cancel-work", false, "cancel what it has waiting and running, too")
	return cmd
}

func (a *app) groupMemberCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "member", Short: "Who belongs to a group, and as what"}
	var organization string
	remove := &cobra.Command{
		Use: "remove GROUP USER", Short: "Take a user out of a group", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := get(cmd.Context(), a, "changing the members", (*connection).removeMember,
				&apiv1.RemoveMemberRequest{Organization: organization, Group: args[0], User: args[1]})
			if err != nil {
				return err
			}
			return a.showUsers(u, u)
		},
	}
	list := &cobra.Command{
		Use: "list GROUP", Short: "List the members of a group", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listUsers(cmd, &apiv1.ListUsersRequest{Organization: organization, Group: args[0]})
		},
	}
	add := a.memberSetCommand("add GROUP USER", "Take a member of the organization into a group", func(args []string) *apiv1.SetMemberRequest {
		return &apiv1.SetMemberRequest{Organization: organization, Group: args[0], User: args[1], Add: true}
	})
	set := a.memberSetCommand("set GROUP USER", "Change a member's role", func(args []string) *apiv1.SetMemberRequest {
		return &apiv1.SetMemberRequest{Organization: organization, Group: args[0], User: args[1]}
	})
	for _, c := range []*cobra.Command{list, add, set, remove} {
		c.Flags().StringVar(&organization, "organization", "", "name or id (default: your own)")
		cmd.AddCommand(c)
	}
	return cmd
}

func (a *app) memberSetCommand(use, short string, request func(args []string) *apiv1.SetMemberRequest) *cobra.Command {
	var role string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := request(args)
			if req.Role = role; !req.GetAdd() && !cmd.Flags().Changed("role") {
				return usagef("member set needs --role member or --role owner")
			}
			u, err := get(cmd.Context(), a, "changing the members", (*connection).setMember, req)
			if err != nil {
				return err
			}
			return a.showUsers(u, u)
		},
	}
	cmd.Flags().StringVar(&role, "role", "member", "member or owner")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"member", "owner"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
