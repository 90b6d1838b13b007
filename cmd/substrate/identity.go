package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

// version is set by the linker.
var version = "dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print this program's version, and the coordinator's where one is reachable", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := table{head: []string{"PROGRAM", "VERSION"}}
			t.add(version, "substrate", version)
			v := map[string]string{"substrate": version}
			// Without a server, or with one that is down, the own version is still an answer.
			if _, err := a.connect(); err == nil {
				if s, err := get(cmd.Context(), a, "asking the coordinator", (*connection).getStatus, &apiv1.GetStatusRequest{}); err == nil {
					t.rows = append(t.rows, []string{"coordinator", s.GetVersion()})
					v["coordinator"] = s.GetVersion()
				}
			}
			return a.showValue(v, t)
		},
	}
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Print whose token is in use", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := get(cmd.Context(), a, "asking who you are", (*connection).whoAmI, &apiv1.WhoAmIRequest{})
			if err != nil {
				return err
			}
			role := ""
			if r.GetUser().GetAdmin() {
				role = "cluster-admin"
			}
			return a.describe(r, r.GetUser().GetName(), []field{
				{"User", r.GetUser().GetName()}, {"Id", r.GetUser().GetId()}, {"Email", r.GetUser().GetEmail()},
				{"Organization", r.GetOrganization().GetName()}, {"Groups", strings.Join(r.GetUser().GetGroups(), ", ")},
				{"Role", role}, {"Unix user", r.GetUser().GetUnixUser()},
			})
		},
	}
}

const forceHelp = "change a Federate's replica here, until the next refresh from there"

func (a *app) organizationCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "organization", Short: "Organizations and their priority"}
	create := &apiv1.CreateOrganizationRequest{}
	createCmd := &cobra.Command{
		Use: "create NAME", Short: "Create an organization", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			create.Name = args[0]
			o, err := get(cmd.Context(), a, "creating the organization", (*connection).createOrganization, create)
			if err != nil {
				return err
			}
			return a.showOrganizations(o, o)
		},
	}
	createCmd.Flags().Int32Var(&create.Priority, "priority", 0, "scheduling priority")
	var priority int32
	var force bool
	update := &cobra.Command{
		Use: "update NAME|ID", Short: "Change an organization", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("priority") {
				return usagef("organization update needs --priority")
			}
			o, err := get(cmd.Context(), a, "changing the organization", (*connection).updateOrganization,
				&apiv1.UpdateOrganizationRequest{Id: args[0], Priority: &priority, Force: force})
			if err != nil {
				return err
			}
			return a.showOrganizations(o, o)
		},
	}
	update.Flags().Int32Var(&priority, "priority", 0, "scheduling priority")
	update.Flags().BoolVar(&force, "force", false, forceHelp)
	cmd.AddCommand(createCmd, update, &cobra.Command{
		Use: "list", Short: "List the organizations", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := get(cmd.Context(), a, "listing the organizations", (*connection).listOrganizations, &apiv1.ListOrganizationsRequest{})
			if err != nil {
				return err
			}
			return a.showOrganizations(r, r.GetOrganizations()...)
		},
	})
	return cmd
}

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Groups, their priority and whom they may preempt"}
	var organization string
	list := &cobra.Command{
		Use: "list", Short: "List the groups of an organization", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := get(cmd.Context(), a, "listing the groups", (*connection).listGroups, &apiv1.ListGroupsRequest{Organization: organization})
			if err != nil {
				return err
			}
			err = a.showGroups(r, r.GetGroups()...)
			a.ownOrganization(cmd.Context(), "groups", organization)
			return err
		},
	}
	list.Flags().StringVar(&organization, "organization", "", "name or id (default: your own)")
	create := &apiv1.CreateGroupRequest{}
	createCmd := &cobra.Command{
		Use: "create NAME", Short: "Create a group", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			create.Name = args[0]
			g, err := get(cmd.Context(), a, "creating the group", (*connection).createGroup, create)
			if err != nil {
				return err
			}
			return a.showGroups(g, g)
		},
	}
	createCmd.Flags().StringVar(&create.Organization, "organization", "", "name or id (default: your own)")
	createCmd.Flags().Int32Var(&create.Priority, "priority", 0, "scheduling priority")
	cmd.AddCommand(list, createCmd, a.groupUpdateCommand())
	return cmd
}

func (a *app) groupUpdateCommand() *cobra.Command {
	req := &apiv1.UpdateGroupRequest{}
	var priority int32
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Change a group's priority or preemption list", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Group = args[0]
			if cmd.Flags().Changed("priority") {
				req.Priority = &priority
			}
			if req.Priority == nil && len(req.Preempt) == 0 && len(req.NoPreempt) == 0 {
				return usagef("group update needs --priority, --preempt or --no-preempt")
			}
			g, err := get(cmd.Context(), a, "changing the group", (*connection).updateGroup, req)
			if err != nil {
				return err
			}
			return a.showGroups(g, g)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Organization, "organization", "", "name or id (default: your own)")
	f.Int32Var(&priority, "priority", 0, "scheduling priority")
	f.BoolVar(&req.Force, "force", false, forceHelp)
	f.StringSliceVar(&req.Preempt, "preempt", nil, "let the group preempt preemptible work of this group (repeatable)")
	f.StringSliceVar(&req.NoPreempt, "no-preempt", nil, "take that permission back (repeatable)")
	return cmd
}

func (a *app) userCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Users, their priority, account and tokens"}
	var organization string
	list := &cobra.Command{
		Use: "list", Short: "List the users of an organization", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := get(cmd.Context(), a, "listing the users", (*connection).listUsers, &apiv1.ListUsersRequest{Organization: organization})
			if err != nil {
				return err
			}
			err = a.showUsers(r, r.GetUsers()...)
			a.ownOrganization(cmd.Context(), "users", organization)
			return err
		},
	}
	list.Flags().StringVar(&organization, "organization", "", "name or id (default: your own)")
	token := &cobra.Command{Use: "token", Short: "Tokens of users"}
	token.AddCommand(a.userTokenCreateCommand())
	cmd.AddCommand(list, a.userCreateCommand(), a.userUpdateCommand(), token)
	return cmd
}

func (a *app) userTokenCreateCommand() *cobra.Command {
	var organization string
	cmd := &cobra.Command{
		Use: "create USER", Short: "Make a token for a user; it is shown once", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.userID(cmd.Context(), organization, args[0])
			if err != nil {
				return err
			}
			r, err := get(cmd.Context(), a, "making a token", (*connection).createUserToken, &apiv1.CreateUserTokenRequest{User: id})
			if err != nil {
				return ofAnother(organization, err)
			}
			if a.output == "json" || a.output == "yaml" {
				return a.show(r, table{})
			}
			fmt.Fprintln(a.out, r.GetToken())
			return nil
		},
	}
	cmd.Flags().StringVar(&organization, "organization", "", "name or id of the user's (default: your own)")
	return cmd
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
	f.StringVar(&req.Email, "email", "", "mail address")
	f.StringVar(&req.Organization, "organization", "", "name or id (default: your own)")
	f.StringSliceVar(&req.Groups, "group", nil, "group the user belongs to; the first is the default (repeatable)")
	f.StringVar(&req.UnixUser, "unix-user", "", "account on the nodes that the user's jobs run as")
	f.BoolVar(&req.Admin, "admin", false, "make the user a cluster administrator")
	return cmd
}

func (a *app) userUpdateCommand() *cobra.Command {
	var priority int32
	var unixUser, organization string
	var force bool
	cmd := &cobra.Command{
		Use: "update NAME|ID", Short: "Change a user's priority or account", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &apiv1.UpdateUserRequest{Id: args[0], Force: force}
			if cmd.Flags().Changed("priority") {
				req.Priority = &priority
			}
			if cmd.Flags().Changed("unix-user") {
				req.UnixUser = &unixUser
			}
			if req.Priority == nil && req.UnixUser == nil {
				return usagef("user update needs --priority or --unix-user")
			}
			var err error
			if req.Id, err = a.userID(cmd.Context(), organization, args[0]); err != nil {
				return err
			}
			u, err := get(cmd.Context(), a, "changing the user", (*connection).updateUser, req)
			if err != nil {
				return ofAnother(organization, err)
			}
			return a.showUsers(u, u)
		},
	}
	cmd.Flags().Int32Var(&priority, "priority", 0, "scheduling priority")
	cmd.Flags().StringVar(&organization, "organization", "", "name or id of the user's (default: your own)")
	cmd.Flags().StringVar(&unixUser, "unix-user", "", "account on the nodes that the user's jobs run as; empty for none")
	cmd.Flags().BoolVar(&force, "force", false, forceHelp)
	return cmd
}
