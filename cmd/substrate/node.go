package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) nodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Machines and the definitions they belong to"}
	var definition string
	list := &cobra.Command{Use: "list", Short: "List the nodes", Args: cobra.NoArgs}
	list.Flags().StringVar(&definition, "definition", "", "only nodes of this definition")
	provisioner := &cobra.Command{Use: "provisioner", Short: "Configured definitions"}
	provisioner.AddCommand(a.watchable(&cobra.Command{
		Use: "list", Short: "List the configured definitions", Args: cobra.NoArgs,
	}, a.listDefinitions), &cobra.Command{
		Use: "describe ID", Short: "Show one definition", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.describeDefinition(cmd.Context(), args[0]) },
	}, a.discoverCommand(), a.catalogueCommand(), a.typesCommand(), a.resetResourceCommand(), a.resumeDefinitionCommand(), a.watchable(&cobra.Command{
		Use: "instances", Short: "List the nodes that are launched: coming, up, and on their way out", Args: cobra.NoArgs,
	}, a.listLaunches))
	tokens := &cobra.Command{Use: "join-token", Short: "Tokens that let machines join"}
	tokens.AddCommand(a.joinTokenCommand(), a.joinTokenListCommand(), a.joinTokenRevokeCommand())
	cmd.AddCommand(
		a.watchable(list, func(ctx context.Context) error { return a.listNodes(ctx, definition) }),
		&cobra.Command{Use: "describe NODE", Short: "Show one node", Args: cobra.ExactArgs(1), RunE: a.describeNode},
		&cobra.Command{Use: "explain NODE", Short: "Say why the node belongs to its definition and to no other", Args: cobra.ExactArgs(1), RunE: a.explainNode},
		a.schedulingCommand("cordon", "Let no new work onto a node"),
		a.schedulingCommand("uncordon", "Let work onto a node again"),
		a.schedulingCommand("drain", "Let no new work onto a node; batch work leaves on notice, the rest ends by itself"),
		a.nodeRevokeCommand(), a.nodeRemoveCommand(), provisioner, tokens,
	)
	return cmd
}

func (a *app) listNodes(ctx context.Context, definition string) error {
	all := &apiv1.ListNodesResponse{}
	var err error
	all.Nodes, err = pages(func(token string) ([]*apiv1.Node, string, error) {
		r, err := get(ctx, a, "listing the nodes", (*connection).listNodes,
			&apiv1.ListNodesRequest{PageSize: 1000, PageToken: token, Definition: definition})
		return r.GetNodes(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	empty := "no node has joined yet"
	if definition != "" && len(all.GetNodes()) == 0 {
		if err := a.configured(ctx, definition); err != nil {
			return err
		}
		empty = "no node belongs to " + definition
	}
	t := table{
		head: []string{"NODE", "STATUS", "DEFINITION", "CORES", "MEMORY", "DEVICES", "REASON", "ARCH", "OS", "CPU", "AGENT", "LAST SEEN"},
		wide: 7, empty: empty,
	}
	for _, n := range all.GetNodes() {
		t.add(n.GetId(), n.GetId(), n.GetStatus(), n.GetDefinition(),
			of(n.GetUsed().GetCores(), n.GetCapacity().GetCores()), sizeOf(n.GetUsed().GetMemoryBytes(), n.GetCapacity().GetMemoryBytes()),
			devices(n.GetCapacity()), n.GetReason(), n.GetArch(), n.GetOs(), n.GetCpuModel(), n.GetAgentVersion(), when(n.GetLastSeen()))
	}
	return a.show(all, t)
}

// of is "used/total"; an unknown total is absent.
func of(used, total uint32) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", used, total)
}

func sizeOf(used, total uint64) string {
	if total == 0 {
		return ""
	}
	return size(used) + "/" + size(total)
}

func (a *app) describeNode(cmd *cobra.Command, args []string) error {
	n, err := get(cmd.Context(), a, "reading the node", (*connection).getNode, &apiv1.GetNodeRequest{Node: args[0]})
	if err != nil {
		return err
	}
	fs := []field{
		{"Node", n.GetId()}, {"Status", n.GetStatus()}, {"Reason", n.GetReason()}, {"Definition", n.GetDefinition()},
		{"Also true", strings.Join(n.GetConflicts(), ", ")},
		{"Evaluated revision", nonzero(n.GetConfigurationRevision())},
		{"Cores", of(n.GetUsed().GetCores(), n.GetCapacity().GetCores())},
		{"Hardware threads", nonzero(n.GetCapacity().GetThreads())},
		{"Memory", sizeOf(n.GetUsed().GetMemoryBytes(), n.GetCapacity().GetMemoryBytes())},
		{"Devices", devices(n.GetCapacity())}, {"Devices in use", devices(n.GetUsed())},
		{"Architecture", n.GetArch()}, {"System", n.GetOs()}, {"Processor", n.GetCpuModel()},
		{"Agent", n.GetAgentVersion()}, {"Certificate until", when(n.GetCertificateExpires())},
		{"Joined for", n.GetBoundTo()}, {"Launch", n.GetLaunch()}, {"Last seen", when(n.GetLastSeen())},
		{"Annotations", pairs(n.GetAnnotations())}, {"Runs", strings.Join(n.GetRuns(), ", ")},
	}
	work := staying(n)
	warnings := table{head: []string{"SOURCE", "WARNING"}}
	for _, w := range n.GetWarnings() {
		warnings.add("", w.GetSource(), w.GetMessage())
	}
	return a.describe(n, n.GetId(), fs, work, warnings)
}

func (a *app) explainNode(cmd *cobra.Command, args []string) error {
	e, err := get(cmd.Context(), a, "explaining the node", (*connection).explainNode, &apiv1.GetNodeRequest{Node: args[0]})
	if err != nil {
		return err
	}
	definition := e.GetDefinition()
	if definition == "" {
		definition = "none: no condition is true"
	}
	fs := []field{{"Node", e.GetNode()}, {"Definition", definition}, {"Evaluated revision", nonzero(e.GetRevision())}}
	t := table{head: []string{"DEFINITION", "VALUE", "BECAUSE"}}
	for _, c := range e.GetConditions() {
		if c.GetError() != "" {
			t.add("", c.GetDefinition(), c.GetValue(), c.GetError())
			continue
		}
		if len(c.GetParts()) == 0 {
			t.add("", c.GetDefinition(), c.GetValue(), "")
		}
		for i, p := range c.GetParts() {
			name, value := c.GetDefinition(), c.GetValue()
			if i > 0 {
				name, value = " ", " "
			}
			because := p.GetSource() + " is " + p.GetValue()
			if seen := seenText(p.GetSeen()); seen != "" {
				because += "; here " + seen
			}
			t.add("", name, value, because)
		}
	}
	return a.describe(e, e.GetDefinition(), fs, t)
}

func seenText(seen map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(seen)) {
		parts = append(parts, k+" = "+seen[k])
	}
	return strings.Join(parts, ", ")
}

func (a *app) schedulingCommand(action, short string) *cobra.Command {
	req := &apiv1.SetNodeSchedulingRequest{Action: action}
	var until, watch bool
	cmd := &cobra.Command{
		Use: action + " NODE", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if until && watch {
				return usagef("--wait and --watch wait for the same; give one of them")
			}
			req.Node = args[0]
			n, err := get(cmd.Context(), a, "changing the node", (*connection).setNodeScheduling, req)
			switch {
			case err != nil:
				return err
			case watch:
				return a.watchDrain(cmd.Context(), n.GetId())
			case until:
				if n, err = a.drained(cmd.Context(), n); err != nil {
					return err
				}
			}
			return a.showScheduling(n, action)
		},
	}
	if action != "uncordon" {
		cmd.Flags().StringVar(&req.Reason, "reason", "", "shown to everybody who asks about the node")
	}
	if action == "drain" {
		cmd.Flags().BoolVarP(&until, "wait", "w", false, "wait until nothing runs there any more")
		cmd.Flags().BoolVar(&watch, "watch", false, "keep showing what stays, until nothing does")
		cmd.Flags().BoolVar(&req.Active, "active", false, "stop work that may be restarted elsewhere, too")
	}
	return cmd
}

// showScheduling shows what a node is now; of one that is drained, what stays there and until when.
func (a *app) showScheduling(n *apiv1.Node, action string) error {
	t := table{head: []string{"NODE", "STATUS", "REASON"}}
	t.add(n.GetId(), n.GetId(), n.GetStatus(), n.GetReason())
	if err := a.show(n, t); err != nil || action != "drain" || a.output != "table" && a.output != "wide" || a.quiet || len(n.GetWork()) == 0 {
		return err
	}
	fmt.Fprintln(a.out)
	return a.showTable(staying(n))
}

// staying is what runs on a node, and how long it may.
func staying(n *apiv1.Node) table {
	t := table{head: []string{"RUN", "CLASS", "STATUS", "STARTED", "ENDS BY", "NOTICE ENDS"}}
	for _, w := range n.GetWork() {
		ends := when(w.GetEndsBy())
		if w.GetEndsBy() == nil {
			ends = "no limit"
		}
		t.add(w.GetRun(), w.GetRun(), w.GetClass(), w.GetStatus(), when(w.GetStarted()), ends, when(w.GetNoticeEndsAt()))
	}
	return t
}

// watchDrain shows what stays on a node whenever that changes, until nothing does.
func (a *app) watchDrain(ctx context.Context, id string) error {
	before := ""
	return a.resume(ctx, false, func() (moved bool, err error) {
		for {
			n, err := get(ctx, a, "reading the node", (*connection).getNode, &apiv1.GetNodeRequest{Node: id})
			if err != nil {
				return moved, err
			}
			moved = true
			n.FactsJson, n.LastSeen = nil, nil // as in a list, or every line would be news
			if now := n.GetStatus() + n.GetReason() + strings.Join(a.lines(staying(n)), "\n"); now != before {
				if err := a.showScheduling(n, "drain"); err != nil {
					return moved, err
				}
				a.flush()
				before = now
			}
			if len(n.GetWork()) == 0 {
				return moved, nil
			}
			if n.GetStatus() == "ready" {
				return moved, failf(exitFailed, "", "cannot wait for node %s any longer: somebody lets work onto it again", id)
			}
			if err := wait(ctx, a.every); err != nil {
				return moved, err
			}
		}
	})
}

// drained waits until nothing runs on the node.
func (a *app) drained(ctx context.Context, n *apiv1.Node) (*apiv1.Node, error) {
	id, before := n.GetId(), -1
	err := a.resume(ctx, false, func() (moved bool, err error) {
		for {
			if n, err = get(ctx, a, "reading the node", (*connection).getNode, &apiv1.GetNodeRequest{Node: id}); err != nil {
				return moved, err
			}
			moved = true
			runs := len(n.GetRuns())
			switch {
			case runs == 0:
				return moved, nil
			case n.GetStatus() == "ready":
				return moved, failf(exitFailed, "", "cannot wait for node %s any longer: somebody lets work onto it again", id)
			case runs != before:
				a.warn("still there: %s", counted(runs, "run"))
				before = runs
			}
			if err := wait(ctx, a.every); err != nil {
				return moved, err
			}
		}
	})
	return n, err
}

func (a *app) definitions(ctx context.Context) (*apiv1.ListDefinitionsResponse, error) {
	return get(ctx, a, "listing the definitions", (*connection).listDefinitions, &apiv1.ListDefinitionsRequest{})
}

func (a *app) listDefinitions(ctx context.Context) error {
	all, err := a.definitions(ctx)
	if err != nil {
		return err
	}
	t := table{
		head: []string{"DEFINITION", "PROVISIONER", "NODES", "READY", "COST/H", "STATE", "CORES", "MEMORY", "DEVICES", "KNOWN BY", "INSTANCE", "CONDITION", "POLICY"},
		wide: 6, empty: "no definition is configured yet",
	}
	for _, d := range all.GetDefinitions() {
		t.add(d.GetId(), d.GetId(), d.GetProvisioner(), number(d.GetNodes()), number(d.GetReady()), cost(d.CostPerHour), d.GetState(),
			nonzero(d.GetCapacity().GetCores()), knownSize(d.GetCapacity()), devices(d.GetCapacity()), d.GetHardwareSource(), d.GetInstance(), d.GetCondition(), d.GetPolicy())
	}
	return a.show(all, t)
}

func knownSize(c *apiv1.Capacity) string {
	if c.GetMemoryBytes() == 0 {
		return ""
	}
	return size(c.GetMemoryBytes())
}

// configured fails when there is no definition of this id.
func (a *app) configured(ctx context.Context, id string) error {
	all, err := a.definitions(ctx)
	if err != nil || slices.ContainsFunc(all.GetDefinitions(), func(d *apiv1.Definition) bool { return d.GetId() == id || d.GetConfigured() == id }) {
		return err
	}
	return noDefinition("list nodes of", id, all.GetRevision())
}

func noDefinition(verb, id string, revision uint64) error {
	return failf(exitNotFound, "see `substrate node provisioner list`", "cannot %s definition %q: revision %d has none of this id", verb, id, revision)
}

func (a *app) describeDefinition(ctx context.Context, id string) error {
	all, err := a.definitions(ctx)
	if err != nil {
		return err
	}
	for _, d := range all.GetDefinitions() {
		if d.GetId() != id {
			continue
		}
		known := ""
		if d.Capacity != nil {
			known = knownBy(d)
		}
		return a.describe(d, id, []field{
			{"Definition", d.GetId()}, {"Configured as", d.GetConfigured()}, {"Provisioner", d.GetProvisioner()}, {"Instance", d.GetInstance()},
			{"State", d.GetState()}, {"Nodes", fmt.Sprintf("%d of %d ready", d.GetReady(), d.GetNodes())}, {"Cost per hour", cost(d.CostPerHour)},
			{"Condition", d.GetCondition()}, {"Policy", d.GetPolicy()}, {"Annotations", pairs(d.GetAnnotations())},
			{"Hardware", known}, {"Attributes", pairs(d.GetAttributes())}, {"Note", strings.Join(d.GetFlags(), "; ")}, {"Cores", nonzero(d.GetCapacity().GetCores())}, {"Memory", knownSize(d.GetCapacity())}, {"Devices", devices(d.GetCapacity())},
		})
	}
	return noDefinition("describe", id, all.GetRevision())
}
