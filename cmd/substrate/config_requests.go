package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/inventory"
	"substrate/coordinator/workflow"
)

func (a *app) configTestCommand() *cobra.Command {
	var dir, request string
	var who coordinator.Owner
	cmd := &cobra.Command{
		Use: "test FILE", Short: "Say which nodes and definitions the jobs of a workflow file would get, without a coordinator", Args: cobra.ExactArgs(1),
		Long: "Say which nodes and definitions of configuration FILE the jobs of a workflow file would get, and why not the others.\n" +
			"No coordinator is asked, so grants are not known and refuse nothing here. Without --request it tells where the\n" +
			"nodes belong. Exit code 1: some job fits nowhere.",
		Example: "  substrate cluster config test cluster.yaml --nodes fleet --request job.yaml --organization physics",
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return usagef("--nodes is missing: a directory with a snapshot or a file of facts for each node")
			}
			return a.testConfig(cmd.Context(), args[0], dir, request, who)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "nodes", "", "directory of nodes (required)")
	f.StringVar(&request, "request", "", "workflow file whose jobs are tried")
	f.StringVar(&who.OrganizationSlug, "organization", "", "organization of the submitter, as policies see it")
	f.StringVar(&who.GroupSlug, "group", "", "group of the submitter")
	f.StringVar(&who.UserName, "user", "", "submitter")
	f.StringVar(&who.Email, "email", "", "email of the submitter")
	return cmd
}

// tested is the answer of `cluster config test`.
type tested struct {
	Nodes      []testedNode                     `json:"nodes"`
	Jobs       []fleet.JobTrial                 `json:"jobs"`
	Unassigned []fleet.Unassigned               `json:"unassigned"`
	Unchecked  []string                         `json:"unchecked"` // what only a coordinator knows
	LeftOut    map[string]uint32                `json:"left_out,omitempty"`
	members    map[coordinator.DefinitionID]int // nodes of each definition
	judged     *fleet.Judgement
}

type testedNode struct {
	Node       coordinator.NodeID         `json:"node"`
	Definition coordinator.DefinitionID   `json:"definition"`
	Conflicts  []coordinator.DefinitionID `json:"conflicts,omitempty"`
}

func (a *app) testConfig(ctx context.Context, file, dir, request string, who coordinator.Owner) error {
	known, err := catalogue.Embedded()
	if err != nil {
		return err
	}
	data, err := a.readFile(file, maxConfigBytes)
	if err != nil {
		return err
	}
	checked, _, err := a.parseConfig(file, data, known)
	if err != nil {
		return err
	}
	jobs := &coordinator.WorkflowSpec{}
	if request != "" {
		if jobs, err = a.parseRequest(request); err != nil {
			return err
		}
	}
	nodes, err := a.fleetFrom(dir)
	if err != nil {
		return err
	}
	t, err := tryOn(ctx, checked, nodes, withIDs(who), jobs)
	if err != nil {
		return err
	}
	return a.showTested(t, file)
}

func (a *app) parseRequest(file string) (*coordinator.WorkflowSpec, error) {
	data, err := a.readFile(file, maxWorkflowBytes)
	if err != nil {
		return nil, err
	}
	jobs, ds := workflow.Parse(file, data)
	printDiagnostics(a.errOut, diagnosticsOf(ds))
	if ds.Err() != nil {
		return nil, failf(exitFailed, "", "cannot use workflow %s: %s", file, counted(len(ds.Errors()), "error"))
	}
	return &jobs, nil
}

// withIDs takes names for ids too: policies may compare with either.
func withIDs(o coordinator.Owner) coordinator.Owner {
	o.Organization, o.Group, o.User = coordinator.OrganizationID(o.OrganizationSlug), coordinator.GroupID(o.GroupSlug), coordinator.UserID(o.UserName)
	return o
}

func tryOn(ctx context.Context, checked *config.Checked, nodes []fleet.Node, owner coordinator.Owner, jobs *coordinator.WorkflowSpec) (*tested, error) {
	for i := range nodes {
		if hw, ok := inventory.Capacity(nodes[i].Facts); ok {
			nodes[i].Capacity = &hw
		}
		nodes[i].Keys = inventory.Annotations(nodes[i].Facts)
	}
	j, err := fleet.Judge(ctx, checked, nodes)
	if err != nil {
		return nil, err
	}
	trial := j.Try(owner, jobs)
	t := &tested{Jobs: trial.Jobs, Unassigned: trial.Unassigned, LeftOut: trial.LeftOut, judged: j,
		Unchecked: []string{"grants"}, members: map[coordinator.DefinitionID]int{}}
	for i, n := range j.Nodes {
		t.Nodes = append(t.Nodes, testedNode{n.ID, j.Assigned(i), j.Conflicts(i)})
		t.members[j.Assigned(i)]++
	}
	return t, nil
}

func (a *app) showTested(t *tested, file string) error {
	unfit := 0
	for _, j := range t.Jobs {
		if j.Nodes < j.Wanted {
			unfit++
		}
	}
	if a.output == "json" || a.output == "yaml" {
		if err := a.showValue(t, table{}); err != nil {
			return err
		}
	} else {
		a.printTested(t)
	}
	if unfit > 0 {
		return failf(exitFailed, "", "cannot place %s of the request by %s", counted(unfit, "job"), file)
	}
	return nil
}

func (a *app) printTested(t *tested) {
	places := table{empty: "Nodes", head: []string{"NODES", "DEFINITION"}}
	for _, id := range slices.Sorted(maps.Keys(t.members)) {
		places.add("", number(t.members[id]), string(id))
	}
	sections := []table{places}
	if a.output == "wide" {
		each := table{empty: "Each node", head: []string{"NODE", "DEFINITION", "ALSO TRUE"}}
		for _, n := range t.Nodes {
			each.add("", string(n.Node), string(n.Definition), fmt.Sprint(n.Conflicts))
		}
		sections = append(sections, each)
	}
	without := table{empty: "Nodes without a definition: what was not true", head: []string{"NODES", "DEFINITION", "VALUE", "WHICH", "WHY"}}
	for _, u := range t.Unassigned {
		without.add("", number(u.Count), string(u.Definition), u.Value.String(), u.Listed(), u.Reason)
	}
	sections = append(sections, without)
	for _, j := range t.Jobs {
		s := table{empty: fmt.Sprintf("Job %s: %s could hold it", j.Job, counted(int(j.Nodes), "node")), head: []string{"DEFINITION", "NODES", "REFUSED BY", "WHY"}}
		for _, d := range j.Definitions {
			s.add("", string(d.Definition), number(d.Count), d.RefusedBy, d.Reason)
		}
		sections = append(sections, s)
	}
	for _, s := range sections {
		if len(s.rows) == 0 {
			continue
		}
		a.say("%s", s.empty)
		for _, line := range a.lines(s) {
			a.say("  %s", line)
		}
		a.say("")
	}
	for _, what := range slices.Sorted(maps.Keys(t.LeftOut)) {
		a.say("%d more %s are not listed", t.LeftOut[what], what)
	}
	if len(t.Jobs) > 0 {
		a.say("Not checked: grants, which only a coordinator knows.")
	}
}
