package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/config/fleet"
	"substrate/coordinator/spec"
	"substrate/proto/apiv1"
)

func (a *app) configPlanCommand() *cobra.Command {
	var dir, running string
	var members uint32
	var all bool
	cmd := &cobra.Command{
		Use: "plan FILE", Short: "Say what a configuration would do to nodes and work, and set nothing", Args: cobra.ExactArgs(1),
		Long: "Say what a configuration would do to nodes and work, and set nothing.\n" +
			"It lists what each wildcard stands for, with what is odd about its members: bare metal, a part of a GPU, another architecture, not sold as\n" +
			"spot, a price that nobody knows. --all lists every member.\n" +
			"With --nodes DIR no coordinator is asked: DIR holds one snapshot or one file of facts for each node.\n" +
			"Exit code 0: nothing would change, 6: something would.",
		Example: "  substrate cluster config plan cluster.yaml\n  substrate cluster config plan new.yaml --nodes fleet --running old.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if running != "" && dir == "" {
				return usagef("--running goes with --nodes: a coordinator knows what runs")
			}
			data, err := a.readFile(args[0], maxConfigBytes)
			if err != nil {
				return err
			}
			against := ""
			var p *apiv1.PlanConfigResponse
			if dir == "" {
				p, err = invoke(cmd.Context(), a, "planning the configuration", longCallTimeout, (*connection).planConfig,
					&apiv1.PlanConfigRequest{Yaml: data, File: fileName(args[0]), Members: members, AllMembers: all})
			} else {
				against = running
				shown := int(members)
				if all {
					shown = -1
				}
				p, err = a.planOffline(cmd.Context(), args[0], data, offlinePlan{dir, running, shown})
			}
			if err != nil {
				return err
			}
			return a.showPlan(p, against)
		},
	}
	cmd.Flags().StringVar(&dir, "nodes", "", "plan for the nodes in this directory instead of a coordinator's")
	cmd.Flags().Uint32Var(&members, "members", 20, "members of each wildcard that are listed")
	cmd.Flags().BoolVar(&all, "all", false, "list all members of wildcards")
	cmd.Flags().StringVar(&running, "running", "", "with --nodes: the configuration that FILE would replace")
	return cmd
}

// parseConfig reads a configuration file and prints what is wrong with it. warnings says whether to print those too.
func (a *app) parseConfig(file string, data []byte, known *catalogue.Set) (*config.Checked, []*apiv1.Diagnostic, error) {
	checked, ds := config.Parse(file, data, config.Options{Catalogues: known, Unknown: unknownOffline})
	if checked == nil {
		printDiagnostics(a.errOut, diagnosticsOf(ds))
		return nil, nil, failf(exitFailed, "", "cannot use configuration %s: %s", file, counted(len(ds.Errors()), "error"))
	}
	return checked, diagnosticsOf(ds), nil
}

// unknownOffline says why a wildcard cannot be expanded without a coordinator.
func unknownOffline(b spec.Backend) (why, hint string) {
	if b.Kind == spec.KindAWS { // those are built in
		return "", ""
	}
	return "only the cloud itself tells which there are", "ask a coordinator, which asks the cloud: `substrate cluster config plan FILE`; or name one exact type for each definition"
}

// offlinePlan is what a plan without a coordinator is made of.
type offlinePlan struct {
	dir     string // of nodes
	running string // file; "" is none
	members int    // of each wildcard, a negative number is all
}

func (a *app) planOffline(ctx context.Context, file string, data []byte, in offlinePlan) (*apiv1.PlanConfigResponse, error) {
	known, err := catalogue.Embedded()
	if err != nil {
		return nil, err
	}
	checked, ds, err := a.parseConfig(file, data, known)
	if err != nil {
		return nil, err
	}
	nodes, err := a.fleetFrom(in.dir)
	if err != nil {
		return nil, err
	}
	var running *config.Checked
	if in.running != "" {
		old, err := a.readFile(in.running, maxConfigBytes)
		if err != nil {
			return nil, err
		}
		if running, _, err = a.parseConfig(in.running, old, known); err != nil {
			return nil, err
		}
		if nodes, err = placed(ctx, running, nodes); err != nil {
			return nil, err
		}
	}
	j, err := fleet.Judge(ctx, checked, nodes)
	if err != nil {
		return nil, err
	}
	plan := fleet.Compare(running, j)
	plan.Wildcards = checked.Wildcards(in.members)
	p, err := sameFields(plan, &apiv1.PlanConfigResponse{})
	if err == nil {
		p.Diagnostics = append(ds, diagnosticsOf(j.Lints(file))...)
	}
	return p, err
}

// placed gives nodes the definitions of a configuration.
func placed(ctx context.Context, c *config.Checked, nodes []fleet.Node) ([]fleet.Node, error) {
	j, err := fleet.Judge(ctx, c, nodes)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(j.Nodes)
	for i := range out {
		out[i].Definition = j.Assigned(i)
	}
	return out, nil
}

// sameFields fills a message from a value whose JSON has the message's field names.
func sameFields[M proto.Message](v any, m M) (M, error) {
	text, err := json.Marshal(v)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		return m, fmt.Errorf("cannot convert the answer: %w", err)
	}
	return m, nil
}

// errChanges is the exit code of a question that was answered with yes; there is nothing to say.
func errChanges() error { return &failure{code: exitChanges} }

func (a *app) showPlan(p *apiv1.PlanConfigResponse, against string) error {
	if a.output == "json" || a.output == "yaml" {
		if err := a.show(p, table{}); err != nil {
			return err
		}
	} else {
		printDiagnostics(a.errOut, p.GetDiagnostics())
		a.printPlan(p, against)
	}
	if p.GetChanged() {
		return errChanges()
	}
	return nil
}

func (a *app) printPlan(p *apiv1.PlanConfigResponse, against string) {
	if a.output == "name" || a.quiet {
		for _, d := range p.GetDefinitions() {
			fmt.Fprintln(a.out, d.GetDefinition())
		}
		return
	}
	for _, s := range planSections(p) {
		if len(s.rows) == 0 {
			continue
		}
		fmt.Fprintln(a.out, s.empty)
		for _, line := range a.lines(s) {
			fmt.Fprintln(a.out, "  "+line)
		}
		fmt.Fprintln(a.out)
	}
	for _, w := range p.GetWildcards() {
		a.printWildcard(w)
	}
	for _, section := range slices.Sorted(maps.Keys(p.GetLeftOut())) {
		a.say("%d more in %s are not listed", p.GetLeftOut()[section], section)
	}
	if s := p.GetSettings(); len(s) > 0 {
		a.say("Other keys that change: %s", strings.Join(s, ", "))
	}
	before, after := p.GetCostBefore(), p.GetCostAfter()
	if text := costText(after); text != "" {
		a.say("Cost: %s", text)
	}
	if b := before.GetPerHour(); before != nil && before.PerHour != nil {
		a.say("Before: %.2f USD per hour", b)
	}
	if r := p.GetRevision(); r > 0 {
		against = fmt.Sprintf("revision %d", r)
	}
	a.say("%s, %d would change definition, %d would have none; compared with %s", counted(int(p.GetNodes()), "node"),
		p.GetNodesMoved(), p.GetNodesUnassigned(), cmp.Or(against, "no configuration"))
	if n := p.GetNodesUnreported(); n > 0 {
		a.say("%d of them have not reported: nothing is known of them", n)
	}
	if !p.GetChanged() {
		a.say("Nothing would change.")
	}
}

// printWildcard lists what a pattern stands for, and what is to be said of how many.
func (a *app) printWildcard(w *apiv1.Wildcard) {
	said := "by what is built in"
	if w.GetSource() == "provider" {
		said = fmt.Sprintf("as backend %s told at %s", w.GetBackend(), w.GetTold())
	}
	fmt.Fprintf(a.out, "%s stands for %s, %s\n", w.GetPattern(), counted(int(w.GetCount()), "type"), said)
	members := table{head: []string{"TYPE", "DEFINITION", "ARCH", "COST/H", "NOTE"}}
	for _, m := range w.GetMembers() {
		members.add("", m.GetType(), m.GetDefinition(), m.GetArch(), cost(m.CostPerHour), strings.Join(m.GetFlags(), "; "))
	}
	if len(members.rows) > 0 {
		for _, line := range a.lines(members) {
			fmt.Fprintln(a.out, "  "+line)
		}
	}
	if more := int(w.GetCount()) - len(w.GetMembers()); more > 0 {
		fmt.Fprintf(a.out, "  and %d more; --all lists them\n", more)
	}
	for _, f := range w.GetFlags() {
		fmt.Fprintf(a.out, "  %d: %s (%s)\n", f.GetCount(), f.GetFlag(), some(f.GetTypes(), f.GetCount()))
	}
	for _, f := range w.GetWithout() {
		fmt.Fprintf(a.out, "  %d left out, %s (%s)\n", f.GetCount(), f.GetFlag(), some(f.GetTypes(), f.GetCount()))
	}
	fmt.Fprintln(a.out)
}

func costText(c *apiv1.CostRange) string {
	var parts []string
	if c.GetLowest() == c.GetHighest() && c.Lowest != nil {
		parts = append(parts, fmt.Sprintf("%.2f USD per hour and node", c.GetLowest()))
	} else if c.Lowest != nil {
		parts = append(parts, fmt.Sprintf("%.2f to %.2f USD per hour and node", c.GetLowest(), c.GetHighest()))
	}
	if c.PerHour != nil {
		parts = append(parts, fmt.Sprintf("%.2f USD per hour for the known nodes", c.GetPerHour()))
	}
	if n := c.GetUnpriced(); n > 0 {
		parts = append(parts, counted(int(n), "node")+" without a price")
	}
	return strings.Join(parts, ", ")
}

// planSections are the tables of a plan; their titles stand where a list says that it is empty.
func planSections(p *apiv1.PlanConfigResponse) []table {
	definitions := table{empty: "Definitions", head: []string{"DEFINITION", "CHANGE", "KEYS"}}
	for _, d := range p.GetDefinitions() {
		definitions.add("", d.GetDefinition(), d.GetChange(), strings.Join(d.GetKeys(), ", "))
	}
	moves := table{empty: "Nodes that change definition", head: []string{"NODES", "FROM", "TO", "WHICH"}}
	for _, m := range p.GetMoves() {
		moves.add("", number(m.GetCount()), m.GetFrom(), m.GetTo(), some(m.GetNodes(), m.GetCount()))
	}
	overlaps := table{empty: "Nodes that several definitions match: the first in the file wins", head: []string{"NODES", "WINS", "LINE", "ALSO TRUE", "WHICH"}}
	for _, o := range p.GetOverlaps() {
		var others []string
		for i, id := range o.GetOthers() {
			others = append(others, fmt.Sprintf("%s (line %d)", id, o.GetOtherLines()[i]))
		}
		overlaps.add("", number(o.GetCount()), o.GetDefinition(), number(o.GetLine()), strings.Join(others, ", "), some(o.GetNodes(), o.GetCount()))
	}
	drifts := table{empty: "Nodes that are not like the others of their definition", head: []string{"NODES", "DEFINITION", "COMPARED WITH", "WHICH", "DIFFERENCE"}}
	for _, d := range p.GetDrifts() {
		drifts.add("", number(d.GetCount()), d.GetDefinition(), d.GetModel(), some(d.GetNodes(), d.GetCount()), d.GetDifference())
	}
	uncertain := table{empty: "Conditions without a value", head: []string{"NODES", "DEFINITION", "WHICH", "WHY"}}
	for _, u := range p.GetUncertain() {
		why := u.GetError()
		if len(u.GetFacts()) > 0 {
			why = "absent: " + strings.Join(u.GetFacts(), ", ")
		}
		uncertain.add("", number(u.GetCount()), u.GetDefinition(), some(u.GetNodes(), u.GetCount()), why)
	}
	orphans := table{empty: "Work that loses its place; what runs goes on", head: []string{"COUNT", "STATUS", "DEFINITION", "JOBS", "WHY"}}
	for _, o := range p.GetOrphans() {
		orphans.add("", number(o.GetCount()), o.GetStatus(), o.GetDefinition(), some(o.GetJobs(), o.GetCount()), o.GetReason())
	}
	return []table{definitions, moves, overlaps, drifts, uncertain, orphans}
}

// some lists a few names and counts the rest.
func some(names []string, count uint32) string {
	const most = 4
	shown := names[:min(len(names), most)]
	text := strings.Join(shown, ", ")
	if rest := int(count) - len(shown); rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}
