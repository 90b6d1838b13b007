package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/config"
	"substrate/coordinator/workflow"
	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

func (a *app) configValidateCommand() *cobra.Command {
	var federate bool
	cmd := &cobra.Command{
		Use: "validate FILE", Short: "Check a configuration without a coordinator", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := a.readFile(args[0], maxConfigBytes)
			if err != nil {
				return err
			}
			known, err := catalogue.Embedded()
			if err != nil {
				return err
			}
			file := fileName(args[0])
			_, ds := config.Parse(file, data, config.Options{Catalogues: known, Federate: federate, Unknown: unknownOffline})
			return a.verdict("use configuration "+file, file, diagnosticsOf(ds))
		},
	}
	cmd.Flags().BoolVar(&federate, "federate", false, "check it for a Federate, which ignores definitions")
	return cmd
}

func diagnosticsOf(ds strictyaml.Diagnostics) []*apiv1.Diagnostic {
	out := make([]*apiv1.Diagnostic, len(ds))
	for i, d := range ds {
		out[i] = &apiv1.Diagnostic{
			Severity: d.Severity.String(), Code: d.Code, File: d.File, Line: uint32(max(d.Line, 0)), Column: uint32(max(d.Column, 0)),
			Path: d.Path, Message: d.Message, Hint: d.Hint,
		}
	}
	return out
}

func (a *app) workflowValidateCommand() *cobra.Command {
	var offline bool
	cmd := &cobra.Command{
		Use: "validate FILE", Short: "Check a workflow file, and where a coordinator is reachable whether the jobs could run there",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := a.readFile(args[0], maxWorkflowBytes)
			if err != nil {
				return err
			}
			file := fileName(args[0])
			_, ds := workflow.Parse(file, data)
			found := diagnosticsOf(ds)
			if ds.Err() == nil && !offline {
				if found, err = a.admission(cmd.Context(), file, data, found); err != nil {
					return err
				}
			}
			return a.verdict("use workflow "+file, file, found)
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask a coordinator")
	return cmd
}

// admission asks the coordinator too. Its findings hold the offline ones; without a coordinator
// those stay, and a notice says what was not checked.
func (a *app) admission(ctx context.Context, file string, data []byte, offline []*apiv1.Diagnostic) ([]*apiv1.Diagnostic, error) {
	_, err := a.connect()
	if err == nil {
		var r *apiv1.ValidateWorkflowResponse
		r, err = get(ctx, a, "asking the coordinator", (*connection).validateWorkflow, &apiv1.ValidateWorkflowRequest{Yaml: data, File: file})
		if err == nil {
			out := make([]*apiv1.Diagnostic, len(r.GetDiagnostics()))
			for i, d := range r.GetDiagnostics() {
				out[i] = &apiv1.Diagnostic{
					Severity: d.GetSeverity(), File: d.GetFile(), Line: d.GetLine(), Column: d.GetColumn(),
					Path: d.GetPath(), Message: d.GetMessage(), Hint: d.GetHint(),
				}
			}
			return out, nil
		}
	}
	if code := exitCode(err); code != exitUnavailable && code != exitUsage {
		return nil, err
	}
	return append(offline, &apiv1.Diagnostic{
		Severity: "notice", File: file, Message: "whether a cluster could run the jobs was not checked: no coordinator is reachable",
	}), nil
}

// verdict prints findings; errors among them make the command fail.
func (a *app) verdict(op, file string, ds []*apiv1.Diagnostic) error {
	errorCount, warnings := 0, 0
	for _, d := range ds {
		switch d.GetSeverity() {
		case "error":
			errorCount++
		case "warning":
			warnings++
		}
	}
	if a.output == "json" || a.output == "yaml" {
		if err := a.show(&apiv1.ValidateConfigResponse{Diagnostics: ds}, table{}); err != nil {
			return err
		}
	} else {
		printDiagnostics(a.errOut, ds)
	}
	if errorCount > 0 {
		return failf(exitFailed, "", "cannot %s: %s", op, counted(errorCount, "error"))
	}
	if a.output == "table" || a.output == "wide" {
		if warnings > 0 {
			a.say("%s is valid, with %s", file, counted(warnings, "warning"))
		} else {
			a.say("%s is valid", file)
		}
	}
	return nil
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
