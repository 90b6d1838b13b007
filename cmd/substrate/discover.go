package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) discoverCommand() *cobra.Command {
	return &cobra.Command{
		Use: "discover [ID...]", Short: "Find out what instance types really have, by one instance of each",
		Long: "Find out what instance types really have: one instance of each is launched, reports its hardware, and is released again.\n" +
			"Without IDs every definition is looked at whose type no node has reported yet, but for coreweave, which is to be named.\n" +
			"The command returns at once; see `substrate node provisioner instances` for what is under way. Instances cost money: the\n" +
			"configuration's discovery.budgetPerDay and discovery.concurrency hold.",
		Example: "  substrate node provisioner discover\n  substrate node provisioner discover gpu-l4 gpu-a100",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := invoke(cmd.Context(), a, "starting the discovery", longCallTimeout, (*connection).discoverHardware, &apiv1.DiscoverHardwareRequest{Definitions: args})
			if err != nil {
				return err
			}
			t := table{head: []string{"DEFINITION", "TYPE", "OUTCOME", "AT MOST", "WHAT"}, empty: "no definition is configured yet"}
			started, most, unknown := 0, 0.0, 0
			for _, d := range r.GetDiscoveries() {
				if d.GetOutcome() == "started" {
					started++
					most += d.GetAtMost()
					if d.AtMost == nil {
						unknown++
					}
				}
				t.add(d.GetDefinition(), d.GetDefinition(), d.GetInstance(), d.GetOutcome(), usd(d.AtMost), d.GetText())
			}
			if err := a.show(r, t); err != nil {
				return err
			}
			switch {
			case started > 0 && unknown > 0:
				a.warn("%s started, at most %.2f USD and what %s of unknown price costs", counted(started, "discovery"), most, counted(unknown, "type"))
			case started > 0:
				a.warn("%s started, at most %.2f USD", counted(started, "type"), most)
			}
			return nil
		},
	}
}

func usd(v *float64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%.2f USD", *v)
}

func (a *app) resetResourceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reset-resource ID", Short: "Forget what nodes of a definition's type have reported", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := invoke(cmd.Context(), a, "forgetting the hardware", callTimeout, (*connection).resetHardware, &apiv1.ResetHardwareRequest{Definition: args[0]})
			if err == nil {
				a.warn("forgotten; `substrate node provisioner discover %s` finds out anew", args[0])
			}
			return err
		},
	}
}

func (a *app) resumeDefinitionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume ID", Short: "Have nodes of a definition launched again whose launches failed", Args: cobra.ExactArgs(1),
		Long: "Have nodes of a definition launched again whose launches failed: at once, where it would rest for some time, and at all, where\n" +
			"three in a row ran at the provider and never joined, so that it is protected. `substrate node provisioner list` shows which are.",
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := invoke(cmd.Context(), a, "resuming the definition", callTimeout, (*connection).resumeDefinition, &apiv1.ResumeDefinitionRequest{Definition: args[0]})
			if err == nil {
				a.warn("nodes of %s are launched again when work waits for them", args[0])
			}
			return err
		},
	}
}

// knownBy says who says what a node of a definition has, and how old that is.
func knownBy(d *apiv1.Definition) string {
	source := d.GetHardwareSource()
	switch {
	case source == "report" || source == "" && !d.GetEstimated():
		text := "reported"
		if d.GetReported() != nil {
			text += fmt.Sprintf(" by %s of the type, last %s ago", counted(int(d.GetReports()), "node"), time.Since(d.GetReported().AsTime()).Round(time.Minute))
		}
		return text
	case source == "estimate" || source == "":
		return "estimated from the catalogue; no node of the type has reported"
	}
	text := "as the " + source + " says"
	if d.GetSourceAt() != nil {
		text += fmt.Sprintf(", asked %s ago", time.Since(d.GetSourceAt().AsTime()).Round(time.Minute))
	}
	return text + "; no node of the type has reported"
}
