package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (c *connection) scoreWorkflow() rpc[*apiv1.StartWorkflowRequest, *apiv1.ScoreWorkflowResponse] {
	return c.workflows.ScoreWorkflow
}

func (c *connection) createFederationToken() rpc[*apiv1.CreateFederationTokenRequest, *apiv1.CreateFederationTokenResponse] {
	return c.clusters.CreateFederationToken
}

func (c *connection) getFederate() rpc[*apiv1.GetFederateRequest, *apiv1.Federate] {
	return c.clusters.GetFederate
}

func (c *connection) forgetFederate() rpc[*apiv1.ForgetFederateRequest, *apiv1.ForgetFederateResponse] {
	return c.clusters.ForgetFederate
}

func (c *connection) registerCluster() rpc[*apiv1.RegisterClusterRequest, *apiv1.Cluster] {
	return c.clusters.RegisterCluster
}

func (c *connection) listClusters() rpc[*apiv1.ListClustersRequest, *apiv1.ListClustersResponse] {
	return c.clusters.ListClusters
}

func (c *connection) getCluster() rpc[*apiv1.GetClusterRequest, *apiv1.Cluster] {
	return c.clusters.GetCluster
}

func (c *connection) setClusterDrained() rpc[*apiv1.SetClusterDrainedRequest, *apiv1.Cluster] {
	return c.clusters.SetClusterDrained
}

func (c *connection) deregisterCluster() rpc[*apiv1.DeregisterClusterRequest, *apiv1.DeregisterClusterResponse] {
	return c.clusters.DeregisterCluster
}

// federateCommands are those of a Federate, about its clusters.
func (a *app) federateCommands() []*cobra.Command {
	list := &cobra.Command{Use: "list", Short: "List the clusters that a Federate routes to", Args: cobra.NoArgs}
	drain := func(use, short string, drained bool) *cobra.Command {
		return &cobra.Command{Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
			c, err := get(cmd.Context(), a, "changing the cluster", (*connection).setClusterDrained, &apiv1.SetClusterDrainedRequest{Name: args[0], Drained: drained})
			if err != nil {
				return err
			}
			return a.showClusters(&apiv1.ListClustersResponse{Clusters: []*apiv1.Cluster{c}})
		}}
	}
	return []*cobra.Command{
		a.watchable(list, func(ctx context.Context) error {
			r, err := get(ctx, a, "listing the clusters", (*connection).listClusters, &apiv1.ListClustersRequest{})
			if err != nil {
				return err
			}
			return a.showClusters(r)
		}),
		a.registerCommand(), a.deregisterCommand(),
		drain("drain", "Route no new work to a cluster; what is there goes on", true),
		drain("undrain", "Route new work to a drained cluster again", false),
		a.federationCommand(),
	}
}

func (a *app) showClusters(r *apiv1.ListClustersResponse) error {
	t := table{head: []string{"NAME", "STATE", "NODES", "WAITING", "RUNNING", "LAST CONTACT", "VERSION", "PRIORITY", "ATTRIBUTES", "ADDRESS", "OPEN", "CLUSTER", "NOTE"},
		wide: 9, empty: "no cluster is registered"}
	for _, c := range r.GetClusters() {
		expression := c.GetPrioritySha256()
		expression = expression[:min(len(expression), 8)]
		if c.GetPriorityDiffers() {
			expression += " differs"
		}
		t.add(c.GetName(), c.GetName(), c.GetState(), fmt.Sprintf("%d/%d", c.GetNodesReady(), c.GetNodesTotal()), number(c.GetWaiting()), number(c.GetRunning()),
			when(c.GetLastContact()), c.GetVersion(), expression, c.GetAttributes(), c.GetAddress(), number(c.GetOpenWorkflows()), c.GetClusterId(), c.GetError())
	}
	return a.show(r, t)
}

// oneCluster shows all that a Federate knows of one of its clusters.
func (a *app) oneCluster(ctx context.Context, name string) error {
	c, err := get(ctx, a, "asking the cluster", (*connection).getCluster, &apiv1.GetClusterRequest{Name: name})
	if err != nil {
		return err
	}
	differs := ""
	if c.GetPriorityDiffers() {
		differs = "the priority expression is not that of the other clusters: the same work scores differently there"
	}
	preemption := "off"
	if c.GetPreemptionEnabled() {
		preemption = "on"
	}
	return a.describe(c, c.GetName(), []field{
		{"Cluster", c.GetName()}, {"Id", c.GetClusterId()}, {"Address", c.GetAddress()}, {"State", c.GetState()}, {"Error", c.GetError()},
		{"Last contact", when(c.GetLastContact())}, {"Registered", when(c.GetRegistered())}, {"Certificate until", when(c.GetCertificateExpires())},
		{"Version", c.GetVersion()}, {"Attributes", c.GetAttributes()}, {"Priority", c.GetPriority()}, {"Sha256", c.GetPrioritySha256()}, {"Warning", differs},
		{"Preemption", preemption}, {"Nodes", fmt.Sprintf("%d of %d ready", c.GetNodesReady(), c.GetNodesTotal())},
		{"Running", number(c.GetRunning())}, {"Waiting", number(c.GetWaiting())}, {"Routed, open", number(c.GetOpenWorkflows())},
		{"Definitions", strings.Join(c.GetDefinitions(), ", ")},
	})
}

func (a *app) registerCommand() *cobra.Command {
	req := &apiv1.RegisterClusterRequest{}
	var file string
	cmd := &cobra.Command{
		Use: "register NAME", Short: "Have a Federate route work to a cluster", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if file != "" {
				data, err := a.readFile(file, maxToken)
				if err != nil {
					return err
				}
				req.Token = strings.TrimSpace(string(data))
			}
			if req.GetAddress() == "" || req.GetToken() == "" {
				return usagef("cluster register needs --address HOST:PORT and --token (or --federation-token-file)")
			}
			c, err := get(cmd.Context(), a, "registering the cluster", (*connection).registerCluster, req)
			if err != nil {
				return err
			}
			return a.showClusters(&apiv1.ListClustersResponse{Clusters: []*apiv1.Cluster{c}})
		},
	}
	cmd.Flags().StringVar(&req.Address, "address", "", "HOST:PORT of the cluster's federation port")
	cmd.Flags().StringVar(&req.Token, "token", "", "what `substrate cluster federation token create` printed there")
	cmd.Flags().StringVar(&file, "federation-token-file", "", "the same from a file (- is standard input)")
	return cmd
}

func (a *app) deregisterCommand() *cobra.Command {
	req := &apiv1.DeregisterClusterRequest{}
	cmd := &cobra.Command{
		Use: "deregister NAME", Short: "Route no work to a cluster any more and forget it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			r, err := get(cmd.Context(), a, "deregistering the cluster", (*connection).deregisterCluster, req)
			if err != nil {
				return err
			}
			if r.GetWarning() != "" {
				a.warn("warning: %s", r.GetWarning())
			}
			a.say("cluster %s is deregistered", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&req.Force, "force", false, "though workflows are open there: they run on, and are not shown here any more")
	return cmd
}

// federationCommand is about the Federate that a cluster belongs to.
func (a *app) federationCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "federation", Short: "The Federate that this cluster belongs to"}
	var ttl time.Duration
	token := &cobra.Command{Use: "token", Short: "Tokens for registering this cluster with a Federate"}
	create := &cobra.Command{
		Use: "create", Short: "Make a token with which a Federate registers this cluster once; it is shown once", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < time.Second || ttl > 365*24*time.Hour {
				return usagef("--ttl %s is not between a second and a year", ttl)
			}
			r, err := get(cmd.Context(), a, "making a token", (*connection).createFederationToken, &apiv1.CreateFederationTokenRequest{TtlSeconds: uint32(ttl / time.Second)})
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
	create.Flags().Var(durationFlag(&ttl, time.Hour), "ttl", "how long it is valid")
	token.AddCommand(create)
	cmd.AddCommand(token, &cobra.Command{
		Use: "show", Short: "Show the Federate", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := get(cmd.Context(), a, "asking for the Federate", (*connection).getFederate, &apiv1.GetFederateRequest{})
			if err != nil {
				return err
			}
			attributes := fmt.Sprintf("schema %d", f.GetAttributesSchema())
			if f.GetAttributesSchema() == 0 {
				attributes = "none yet, or an older Federate: replicas keep what they have"
			}
			return a.describe(f, f.GetId(), []field{
				{"Federate", f.GetUrl()}, {"Id", f.GetId()}, {"Known there as", f.GetName()}, {"Registered", when(f.GetRegistered())},
				{"Last request", when(f.GetLastRequest())}, {"Attributes", attributes},
			})
		},
	}, &cobra.Command{
		Use: "forget", Short: "Let this cluster belong to no Federate any more; replicas stay, and can be changed here", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := get(cmd.Context(), a, "forgetting the Federate", (*connection).forgetFederate, &apiv1.ForgetFederateRequest{}); err != nil {
				return err
			}
			a.say("this cluster belongs to no Federate")
			return nil
		},
	})
	return cmd
}

func (a *app) workflowScoreCommand() *cobra.Command {
	req := &apiv1.StartWorkflowRequest{}
	var preemptible bool
	cmd := &cobra.Command{
		Use: "score FILE", Short: "Say how a workflow would fare, without starting it; on a Federate, on each cluster", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("preemptible") {
				req.Preemptible = &preemptible
			}
			var err error
			if req.Yaml, err = a.readFile(args[0], maxWorkflowBytes); err != nil {
				return err
			}
			req.File = fileName(args[0])
			r, err := get(cmd.Context(), a, "scoring the workflow", (*connection).scoreWorkflow, req)
			if err != nil {
				return err
			}
			if len(r.GetCandidates()) > 0 {
				return a.show(r, candidateTable(r.GetCandidates()))
			}
			return a.describe(r, number(r.GetAhead()), scoreFields(r))
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the workflow (default: the file's)")
	f.BoolVar(&preemptible, "preemptible", false, "as with start")
	f.Int32Var(&req.Priority, "priority", 0, "as with start")
	f.StringVar(&req.Group, "group", "", "group it would count for (default: your first)")
	return cmd
}

func scoreFields(s *apiv1.ScoreWorkflowResponse) []field {
	startable := "no"
	if s.GetStartable() {
		startable = "yes"
	}
	return []field{
		{"Score", fmt.Sprintf("%g", s.GetScore())}, {"Ahead", number(s.GetAhead())}, {"Waiting", number(s.GetReady())}, {"Running", number(s.GetRunning())},
		{"Usable nodes", number(s.GetUsableNodes())}, {"Usable cores", of(s.GetFree().GetCores(), s.GetUsable().GetCores())},
		{"Usable devices", devices(s.GetUsable())}, {"Cost", scoreCost(s)}, {"Startable now", startable}, {"Cannot", s.GetReason()},
	}
}

func scoreCost(s *apiv1.ScoreWorkflowResponse) string {
	if s.Cost == nil {
		if s.GetCostNote() != "" {
			return "unknown: " + s.GetCostNote()
		}
		return ""
	}
	return fmt.Sprintf("%.2f", s.GetCost())
}

// candidateTable shows clusters in the order in which a Federate tries them.
func candidateTable(list []*apiv1.Candidate) table {
	t := table{head: []string{"CLUSTER", "AHEAD", "NODES", "AHEAD/NODE", "STARTABLE", "COST", "SCORE", "WAITING", "FREE CORES", "NOTE"}, empty: "no cluster is registered"}
	for _, c := range list {
		s := c.GetScore()
		if s == nil || s.GetReason() != "" {
			note := c.GetSkipped()
			if s.GetReason() != "" {
				note = s.GetReason()
			}
			t.add(c.GetCluster(), c.GetCluster(), "-", "-", "-", "-", "-", "-", "-", "-", note)
			continue
		}
		load, startable := "-", "no"
		if s.GetUsableNodes() > 0 {
			load = fmt.Sprintf("%.3g", float64(s.GetAhead())/float64(s.GetUsableNodes()))
		}
		if s.GetStartable() {
			startable = "yes"
		}
		t.add(c.GetCluster(), c.GetCluster(), number(s.GetAhead()), number(s.GetUsableNodes()), load, startable, scoreCost(s),
			fmt.Sprintf("%g", s.GetScore()), number(s.GetReady()), of(s.GetFree().GetCores(), s.GetUsable().GetCores()), c.GetSkipped())
	}
	return t
}

// routingFields and the table of candidates say how a Federate routed a workflow; nothing on another cluster.
func (a *app) routing(r *apiv1.Routing, note string) ([]field, table) {
	if r == nil {
		return nil, table{}
	}
	by := r.GetBy()
	switch by {
	case "priority":
		by = "priority: fewest waiting ahead for each node that could hold it"
	case "availability":
		by = "availability: startable now, then cost, then name"
	}
	return []field{{"Cluster", r.GetCluster()}, {"Routed by", by}, {"Route", r.GetState()}, {"Route note", r.GetMessage()}, {"Note", note}}, candidateTable(r.GetCandidates())
}
