package main

import (
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

const pageSize = 1000

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
			return a.describe(r, r.GetUser().GetName(), []field{
				{"User", r.GetUser().GetName()}, {"Id", r.GetUser().GetId()}, {"Email", r.GetUser().GetEmail()},
				{"Organization", r.GetOrganization().GetName()}, {"Groups", strings.Join(groupsWithRoles(r.GetUser()), ", ")},
				{"Default group", defaultGroup(r.GetUser())}, {"Role", roleOf(r.GetUser())}, {"Unix user", r.GetUser().GetUnixUser()},
			})
		},
	}
}

const forceHelp = "change a Federate's replica here, until the next refresh from there"

func (a *app) organizationCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "organization", Short: "Organizations, their priority and members"}
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
			r := &apiv1.ListOrganizationsResponse{}
			var err error
			r.Organizations, err = pages(func(token string) ([]*apiv1.Organization, string, error) {
				p, err := get(cmd.Context(), a, "listing the organizations", (*connection).listOrganizations,
					&apiv1.ListOrganizationsRequest{PageSize: pageSize, PageToken: token})
				return p.GetOrganizations(), p.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return a.showOrganizations(r, r.GetOrganizations()...)
		},
	}, a.organizationMemberCommand())
	return cmd
}

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Groups, their priority, members and whom they may preempt"}
	var organization string
	list := &cobra.Command{
		Use: "list", Short: "List the groups of an organization", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := &apiv1.ListGroupsResponse{}
			var err error
			r.Groups, err = pages(func(token string) ([]*apiv1.Group, string, error) {
				p, err := get(cmd.Context(), a, "listing the groups", (*connection).listGroups,
					&apiv1.ListGroupsRequest{Organization: organization, PageSize: pageSize, PageToken: token})
				return p.GetGroups(), p.GetNextPageToken(), err
			})
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
	cmd.AddCommand(list, createCmd, a.groupUpdateCommand(), a.groupDeleteCommand(), a.groupUseCommand(), a.groupMemberCommand())
	return cmd
}

func (a *app) groupDeleteCommand() *cobra.Command {
	req := &apiv1.DeleteGroupRequest{}
	cmd := &cobra.Command{
		Use: "delete NAME|ID", Short: "Delete a group that has no open work; its members stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Group = args[0]
			_, err := get(cmd.Context(), a, "deleting the group", (*connection).deleteGroup, req)
			return err
		},
	}
	cmd.Flags().StringVar(&req.Organization, "organization", "", "name or id (default: your own)")
	return cmd
}

func (a *app) groupUseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME|ID", Short: "Choose the group that your work belongs to unless you name another", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := get(cmd.Context(), a, "choosing the group", (*connection).useGroup, &apiv1.UseGroupRequest{Group: args[0]})
			if err != nil {
				return err
			}
			return a.showUsers(u, u)
		},
	}
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
