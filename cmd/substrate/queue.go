package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) queueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "What waits, in which order and why"}
	req := &apiv1.ShowQueueRequest{}
	show := &cobra.Command{Use: "show", Short: "Show the queue", Args: cobra.NoArgs}
	show.Flags().BoolVar(&req.Mine, "mine", false, "only your own work")
	show.Flags().StringVar(&req.Class, "class", "", "only this class: reserved, on-demand or batch")
	cmd.AddCommand(a.watchable(show, func(ctx context.Context) error {
		if err := knownWord("class", req.GetClass(), classes()); err != nil {
			return err
		}
		return a.showQueue(ctx, req)
	}))
	return cmd
}

func classes() []string { return []string{"reserved", "on-demand", "batch"} }

func (a *app) showQueue(ctx context.Context, req *apiv1.ShowQueueRequest) error {
	all := &apiv1.ShowQueueResponse{}
	var err error
	all.Jobs, err = pages(func(token string) ([]*apiv1.Job, string, error) {
		r, err := get(ctx, a, "reading the queue", (*connection).showQueue,
			&apiv1.ShowQueueRequest{Mine: req.GetMine(), Class: req.GetClass(), PageSize: 1000, PageToken: token})
		all.Total = r.GetTotal()
		return r.GetJobs(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{head: []string{"POSITION", "CLASS", "WORKFLOW", "JOB", "USER", "WAITS", "START", "REASON", "RULE", "STATUS", "ID", "RESERVATION", "NEAREST NODE"}, wide: 8, empty: "nothing waits"}
	for _, j := range all.GetJobs() {
		reason := j.GetReason().GetCode()
		if text := j.GetReason().GetText(); text != "" {
			reason += ": " + text
		}
		t.add(j.GetId(), nonzero(j.GetPosition()), j.GetClass(), j.GetWorkflowName(), j.GetName(), j.GetUser(), a.since(j.GetSubmitted()), when(j.GetEstimatedStart()),
			reason, nonzero(j.GetReason().GetRule()), j.GetStatus(), j.GetWorkflowId(), j.GetReservation(), j.GetReason().GetNearestNode())
	}
	return a.show(all, t)
}

func (a *app) capacityCommand() *cobra.Command {
	return a.watchable(&cobra.Command{Use: "capacity", Short: "Show what is free now and how long new work would wait", Args: cobra.NoArgs}, a.capacity)
}

// minutes are an estimate in the largest unit of which there are two.
func minutes(m float64) string {
	value, unit := m, "min"
	switch {
	case m >= 2*24*60:
		value, unit = m/(24*60), "d"
	case m >= 2*60:
		value, unit = m/60, "h"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
}

func (a *app) capacity(ctx context.Context) error {
	c, err := get(ctx, a, "reading the capacity", (*connection).getCapacity, &apiv1.GetCapacityRequest{})
	if err != nil {
		return err
	}
	if a.output == "json" || a.output == "yaml" {
		return a.show(c, table{})
	}
	classes := table{head: []string{"CLASS", "FREE CORES", "FREE GPUS", "WAITING", "WAIT"}}
	for _, k := range c.GetClasses() {
		estimate := "unknown"
		if k.EstimatedWaitMinutes != nil {
			estimate = minutes(k.GetEstimatedWaitMinutes())
		}
		classes.add(k.GetClass(), k.GetClass(), number(k.GetFreeCores()), number(k.GetFreeGpus()), number(k.GetWaiting()), estimate)
	}
	definitions := table{head: []string{"DEFINITION", "NODES", "READY", "FREE CORES", "FREE MEMORY", "FREE DEVICES"}}
	for _, d := range c.GetDefinitions() {
		definitions.add(d.GetDefinition(), d.GetDefinition(), number(d.GetNodes()), number(d.GetReady()),
			of(d.GetFree().GetCores(), d.GetTotal().GetCores()), sizeOf(d.GetFree().GetMemoryBytes(), d.GetTotal().GetMemoryBytes()), devices(d.GetFree()))
	}
	if a.output == "name" || a.quiet {
		return a.showTable(definitions)
	}
	if err := a.showTable(classes); err != nil {
		return err
	}
	if len(definitions.rows) > 0 {
		fmt.Fprintln(a.out)
		return a.showTable(definitions)
	}
	return nil
}
