package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "What policies and grants let owners do"}
	req := &apiv1.AuditPoliciesRequest{}
	all := false
	audit := &cobra.Command{
		Use:   "audit",
		Short: "List who reaches which definitions, and what looks like a hole",
		Long: `For every organisation and group: which definitions its work may use whatever it asks for (always) or depending on what
it asks for (depends), at which cost, and what of that looks like a mistake. The answer holds for every request, since it is
worked out from the policies themselves; what fits on a node is another question.`,
		Example: "  substrate policy audit\n  substrate policy audit --flagged\n  substrate policy audit --organization physics --all",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.Reachable = !all && !req.GetFlagged()
			return a.auditPolicies(cmd.Context(), req)
		},
	}
	f := audit.Flags()
	f.StringVar(&req.Organization, "organization", "", "only this organisation, name or id")
	f.StringVar(&req.Group, "group", "", "only this group of it, name or id")
	f.StringVar(&req.Definition, "definition", "", "only this definition, as configured or expanded")
	f.BoolVar(&req.Flagged, "flagged", false, "only what looks like a mistake")
	f.BoolVar(&all, "all", false, "definitions that are out of reach too")
	cmd.AddCommand(audit)
	return cmd
}

func (a *app) auditPolicies(ctx context.Context, req *apiv1.AuditPoliciesRequest) error {
	all := &apiv1.AuditPoliciesResponse{}
	var err error
	all.Rows, err = pages(func(token string) ([]*apiv1.PolicyReach, string, error) {
		r, err := get(ctx, a, "reading policies and grants", (*connection).auditPolicies, &apiv1.AuditPoliciesRequest{
			Organization: req.GetOrganization(), Group: req.GetGroup(), Definition: req.GetDefinition(), Reachable: req.GetReachable(),
			Flagged: req.GetFlagged(), PageSize: 1000, PageToken: token})
		return r.GetRows(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{head: []string{"ORGANIZATION", "GROUP", "DEFINITION", "COST/H", "REACH", "BECAUSE", "FINDINGS", "WHAT TO DO"}, wide: 7, empty: "nobody reaches anything"}
	if req.GetFlagged() {
		t.empty = "nothing looks like a mistake"
	}
	for _, r := range joined(all.GetRows()) {
		var found, todo []string
		for _, f := range r.row.GetFindings() {
			found, todo = append(found, f.GetCode()), append(todo, f.GetMessage()+": "+f.GetFix())
		}
		t.add(r.row.GetOrganization()+"/"+r.row.GetDefinition(), r.row.GetOrganization(), r.group, r.row.GetDefinition(), cost(r.row.CostPerHour),
			r.row.GetReach(), because(r.row), strings.Join(found, ", "), strings.Join(todo, " | "))
	}
	return a.show(all, t)
}

// because says what decides.
func because(r *apiv1.PolicyReach) string {
	switch {
	case r.GetGrantRefusal() != "":
		return r.GetGrantRefusal()
	case r.GetPolicy() == "none":
		return "no policy"
	case len(r.GetDependsOn()) > 0:
		return "policy: " + strings.Join(r.GetDependsOn(), ", ")
	}
	return "policy: " + r.GetPolicy()
}

// joinedReach is what holds alike for some groups of an organisation.
type joinedReach struct {
	row   *apiv1.PolicyReach
	group string
}

// joined makes one row of those of an organisation that say the same of a definition, in the order of each first.
func joined(rows []*apiv1.PolicyReach) []joinedReach {
	together := map[string][]*apiv1.PolicyReach{}
	var order []string
	for _, r := range rows {
		said := []string{r.GetOrganizationId(), r.GetDefinition(), r.GetReach(), because(r)}
		for _, f := range r.GetFindings() {
			said = append(said, f.GetCode())
		}
		key := strings.Join(said, "\x00")
		if together[key] == nil {
			order = append(order, key)
		}
		together[key] = append(together[key], r)
	}
	var out []joinedReach
	for _, key := range order {
		var names []string
		for _, r := range together[key] {
			names = append(names, r.GetGroup())
		}
		if more := len(names) - 4; more > 1 {
			names = append(names[:4], fmt.Sprintf("%d more", more))
		}
		out = append(out, joinedReach{together[key][0], strings.Join(names, ", ")})
	}
	return out
}
