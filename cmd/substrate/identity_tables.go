package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"substrate/proto/apiv1"
)

func (a *app) showOrganizations(m proto.Message, list ...*apiv1.Organization) error {
	t := table{head: []string{"ID", "NAME", "PRIORITY", "CREATED"}, empty: "there is no organization"}
	for _, o := range list {
		t.add(o.GetId(), o.GetId(), o.GetName(), number(o.GetPriority()), when(o.GetCreated()))
	}
	return a.show(m, t)
}

func (a *app) showGroups(m proto.Message, list ...*apiv1.Group) error {
	t := table{head: []string{"NAME", "ORGANIZATION", "PRIORITY", "PREEMPTS", "ID", "CREATED"}, wide: 5, empty: "there is no group"}
	for _, g := range list {
		t.add(g.GetName(), g.GetName(), g.GetOrganization(), number(g.GetPriority()), strings.Join(g.GetPreempts(), ","), g.GetId(), when(g.GetCreated()))
	}
	return a.show(m, t)
}

func (a *app) showUsers(m proto.Message, list ...*apiv1.User) error {
	t := table{
		head: []string{"ID", "NAME", "ORGANIZATION", "GROUPS", "PRIORITY", "UNIX USER", "ROLE", "EMAIL", "CREATED"}, wide: 7,
		empty: "there is no user",
	}
	for _, u := range list {
		t.add(u.GetId(), u.GetId(), u.GetName(), u.GetOrganization(), strings.Join(groupsWithRoles(u), ","), number(u.GetPriority()),
			u.GetUnixUser(), roleOf(u), u.GetEmail(), when(u.GetCreated()))
	}
	return a.show(m, t)
}

// showPush tells what became of a change of grants on each of a Federate's clusters.
func (a *app) showPush(r *apiv1.AppendProvisionerDefinitionsResponse) error {
	t := table{head: []string{"CLUSTER", "STATE", "GRANTED", "HAD IT", "ERROR"}}
	for _, c := range r.GetClusters() {
		granted, had := 0, 0
		for _, x := range r.GetResults() {
			switch {
			case x.GetCluster() != c.GetCluster():
			case x.GetAlreadyExisted():
				had++
			default:
				granted++
			}
		}
		t.add(c.GetCluster(), c.GetCluster(), c.GetState(), number(granted), number(had), c.GetError())
	}
	if err := a.show(r, t); err != nil {
		return err
	}
	for _, c := range r.GetClusters() {
		if c.GetState() == "pending" {
			a.warn("note: cluster %s is called again until it answers", c.GetCluster())
		}
	}
	return nil
}

// roleOf is what a user may do in its organization and the cluster.
func roleOf(u *apiv1.User) string {
	role := u.GetRole()
	if u.GetOrganization() == "" {
		role = "none"
	}
	if u.GetAdmin() {
		role = "cluster-admin"
	}
	if u.GetDisabled() {
		role += " (disabled)"
	}
	return role
}

// groupsWithRoles marks the groups that a user is an owner of.
// defaultGroup is the one that work without --group belongs to: `group use` puts it first.
func defaultGroup(u *apiv1.User) string {
	if len(u.GetGroups()) == 0 {
		return ""
	}
	return u.GetGroups()[0]
}

func groupsWithRoles(u *apiv1.User) []string {
	out := slices.Clone(u.GetGroups())
	for i, g := range out {
		if slices.Contains(u.GetOwnedGroups(), g) {
			out[i] = g + " (owner)"
		}
	}
	return out
}

func (a *app) grantCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Signed grants: which definitions an organization may use"}
	var organizations []string
	appendCmd := &cobra.Command{
		Use: "append DEFINITION…", Short: "Let organizations use definitions (all organizations unless some are named)", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := invoke(cmd.Context(), a, "appending to grants", longCallTimeout, (*connection).appendProvisionerDefinitions,
				&apiv1.AppendProvisionerDefinitionsRequest{
					Definitions: args, Organizations: organizations, AllOrganizations: len(organizations) == 0,
				})
			if err != nil {
				return err
			}
			t := table{head: []string{"DEFINITION", "ORGANIZATION", "RESULT"}, empty: "nothing to do"}
			for _, x := range r.GetResults() {
				result := "granted"
				if x.GetAlreadyExisted() {
					result = "was granted already"
				}
				t.add(x.GetOrganization()+"/"+x.GetDefinition(), x.GetDefinition(), x.GetOrganization(), result)
			}
			if len(r.GetClusters()) == 0 {
				return a.show(r, t)
			}
			return a.showPush(r)
		},
	}
	appendCmd.Flags().StringSliceVar(&organizations, "organization", nil, "name or id (repeatable; default: all)")
	cmd.AddCommand(&cobra.Command{
		Use: "show ORGANIZATION", Short: "Show an organization's grant", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := get(cmd.Context(), a, "reading the grant", (*connection).getGrant, &apiv1.GetGrantRequest{Organization: args[0]})
			if err != nil {
				return err
			}
			return a.showGrant(g)
		},
	}, a.grantSetCommand(), appendCmd, a.grantHistoryCommand(), a.grantVerifyCommand(), a.grantRotateCommand())
	return cmd
}

func (a *app) grantSetCommand() *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use: "set ORGANIZATION DEFINITION…", Short: "Replace an organization's grant (--none revokes everything)", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if none == (len(args) > 1) {
				return usagef("grant set needs definitions, or --none to revoke everything")
			}
			g, err := invoke(cmd.Context(), a, "setting the grant", longCallTimeout, (*connection).setGrant,
				&apiv1.SetGrantRequest{Organization: args[0], Definitions: args[1:]})
			if err != nil {
				return err
			}
			return a.showGrant(g)
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "grant nothing")
	return cmd
}

func (a *app) showGrant(g *apiv1.Grant) error {
	t := table{head: []string{"DEFINITION", "STATE"}}
	for _, d := range g.GetDefinitions() {
		state := "granted"
		if slices.Contains(g.GetOrphans(), d) {
			state = "granted, not configured"
		}
		t.add(d, d, state)
	}
	fs := []field{
		{"Organization", g.GetOrganization()}, {"State", g.GetState()}, {"Serial", nonzero(g.GetSerial())}, {"Issued", when(g.GetIssuedAt())},
		{"Definitions", fmt.Sprint(len(g.GetDefinitions()))},
	}
	return a.describe(g, g.GetOrganization(), fs, t)
}
