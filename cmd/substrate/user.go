package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) userCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Users, their priority, account, roles and tokens"}
	req := &apiv1.ListUsersRequest{}
	list := &cobra.Command{
		Use: "list", Short: "List the users of an organization", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.listUsers(cmd, req); err != nil {
				return err
			}
			if !req.GetUnaffiliated() {
				a.ownOrganization(cmd.Context(), "users", req.GetOrganization())
			}
			return nil
		},
	}
	list.Flags().StringVar(&req.Organization, "organization", "", "name or id (default: your own)")
	list.Flags().StringVar(&req.Group, "group", "", "only the members of this group")
	list.Flags().BoolVar(&req.Unaffiliated, "unaffiliated", false, "those that belong to no organization")
	list.MarkFlagsMutuallyExclusive("organization", "unaffiliated")
	token := &cobra.Command{Use: "token", Short: "Tokens of users"}
	token.AddCommand(a.userTokenCreateCommand(), a.userTokenListCommand(), a.userTokenRevokeCommand())
	cmd.AddCommand(list, a.userCreateCommand(), a.userUpdateCommand(), a.userRemoveCommand(),
		a.userAbleCommand("disable", "Let a user's tokens open nothing; its work goes on unless --cancel-work is given", true),
		a.userAbleCommand("enable", "Let a user's tokens count again", false), token)
	return cmd
}

func (a *app) listUsers(cmd *cobra.Command, req *apiv1.ListUsersRequest) error {
	r := &apiv1.ListUsersResponse{}
	var err error
	r.Users, err = pages(func(token string) ([]*apiv1.User, string, error) {
		req.PageSize, req.PageToken = pageSize, token
		p, err := get(cmd.Context(), a, "listing the users", (*connection).listUsers, req)
		return p.GetUsers(), p.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	return a.showUsers(r, r.GetUsers()...)
}

func (a *app) userCreateCommand() *cobra.Command {
	req := &apiv1.CreateUserRequest{}
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a user", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			u, err := get(cmd.Context(), a, "creating the user", (*connection).createUser, req)
			if err != nil {
				return err
			}
			return a.showUsers(u, u)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Email, "email", "", "mail address, which policies may read (cluster administrators only)")
	f.StringVar(&req.Organization, "organization", "", "name or id (default: your own)")
	f.StringSliceVar(&req.Groups, "group", nil, "group the user belongs to; the first is the default (repeatable)")
	f.StringVar(&req.UnixUser, "unix-user", "", "account on the nodes that the user's jobs run as (cluster administrators only)")
	f.StringVar(&req.Role, "role", "", "in the organization: member (default) or owner")
	f.BoolVar(&req.Admin, "admin", false, "make the user a cluster administrator")
	return cmd
}

func (a *app) userUpdateCommand() *cobra.Command {
	var priority int32
	var unixUser string
	var admin bool
	req := &apiv1.UpdateUserRequest{}
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Change a user's priority, account or administration of the cluster", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			if cmd.Flags().Changed("priority") {
				req.Priority = &priority
			}
			if cmd.Flags().Changed("unix-user") {
				req.UnixUser = &unixUser
			}
			if cmd.Flags().Changed("admin") {
				req.Admin = &admin
			}
			if req.Priority == nil && req.UnixUser == nil && req.Admin == nil {
				return usagef("user update needs --priority, --unix-user or --admin")
			}
			u, err := get(cmd.Context(), a, "changing the user", (*connection).updateUser, req)
			if err != nil {
				return ofAnother(req.GetOrganization(), err)
			}
			return a.showUsers(u, u)
		},
	}
	cmd.Flags().Int32Var(&priority, "priority", 0, "scheduling priority")
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	cmd.Flags().StringVar(&unixUser, "unix-user", "", "account on the nodes that the user's jobs run as; empty for none")
	cmd.Flags().BoolVar(&req.Force, "force", false, forceHelp)
	cmd.Flags().BoolVar(&admin, "admin", false, "let the user administer the cluster; --admin=false for no longer")
	return cmd
}

func (a *app) userAbleCommand(verb, short string, disable bool) *cobra.Command {
	req := &apiv1.UpdateUserRequest{Disabled: &disable}
	cmd := &cobra.Command{
		Use: verb + " NAME|ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			u, err := get(cmd.Context(), a, "changing the user", (*connection).updateUser, req)
			if err != nil {
				return ofAnother(req.GetOrganization(), err)
			}
			return a.showUsers(u, u)
		},
	}
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	if disable {
		cmd.Flags().BoolVar(&req.CancelWork, "cancel-work", false, "cancel what it has waiting and running, too")
	}
	return cmd
}

func (a *app) userRemoveCommand() *cobra.Command {
	req := &apiv1.DeleteUserRequest{}
	cmd := &cobra.Command{
		Use: "remove NAME|ID", Short: "Remove a user and its tokens; its work goes on unless --cancel-work is given", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			_, err := get(cmd.Context(), a, "removing the user", (*connection).deleteUser, req)
			return ofAnother(req.GetOrganization(), err)
		},
	}
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	cmd.Flags().BoolVar(&req.CancelWork, "cancel-work", false, "cancel what it has waiting and running, too")
	return cmd
}

func (a *app) userTokenCreateCommand() *cobra.Command {
	var ttl time.Duration
	req := &apiv1.CreateUserTokenRequest{}
	cmd := &cobra.Command{
		Use: "create [USER]", Short: "Make a token for a user (default: yourself); it is shown once", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ttl < 0 || ttl%time.Second != 0 {
				return usagef("--ttl %s is not a number of whole seconds", ttl)
			}
			req.TtlSeconds = uint64(ttl / time.Second)
			if len(args) > 0 {
				req.User = args[0]
			}
			r, err := get(cmd.Context(), a, "making a token", (*connection).createUserToken, req)
			if err != nil {
				return ofAnother(req.GetOrganization(), err)
			}
			if a.output == "json" || a.output == "yaml" {
				return a.show(r, table{})
			}
			fmt.Fprintln(a.out, r.GetToken())
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	cmd.Flags().StringVar(&req.Name, "name", "", "what to call it, say where it is used")
	cmd.Flags().Var(durationFlag(&ttl, 0), "ttl", "how long it is valid (default: until it is revoked)")
	return cmd
}

func (a *app) userTokenListCommand() *cobra.Command {
	req := &apiv1.ListUserTokensRequest{}
	cmd := &cobra.Command{
		Use: "list [USER]", Short: "List the tokens of a user (default: your own); secrets are never shown", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				req.User = args[0]
			}
			r, err := get(cmd.Context(), a, "listing the tokens", (*connection).listUserTokens, req)
			if err != nil {
				return ofAnother(req.GetOrganization(), err)
			}
			t := table{head: []string{"ID", "NAME", "USER", "CREATED", "EXPIRES", "LAST USED"}, empty: "there is no token"}
			for _, k := range r.GetTokens() {
				expires := when(k.GetExpires())
				if k.GetExpired() {
					expires += " (expired)"
				}
				t.add(k.GetId(), k.GetId(), k.GetName(), k.GetUser(), when(k.GetCreated()), expires, when(k.GetLastUsed()))
			}
			return a.show(r, t)
		},
	}
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	return cmd
}

func (a *app) userTokenRevokeCommand() *cobra.Command {
	req := &apiv1.RevokeUserTokenRequest{}
	cmd := &cobra.Command{
		Use: "revoke TOKEN", Short: "End a token, by its id or name", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Token = args[0]
			_, err := get(cmd.Context(), a, "revoking the token", (*connection).revokeUserToken, req)
			return ofAnotherUser(req, err)
		},
	}
	cmd.Flags().StringVar(&req.User, "user", "", "whose it is (default: yours)")
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id of the user's (default: your own)")
	return cmd
}
