package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"substrate/proto/apiv1"
)

func (a *app) catalogueCommand() *cobra.Command {
	var refresh bool
	cmd := &cobra.Command{
		Use: "catalogue [BACKEND...]", Short: "Say what is known of the types of each cloud, and since when",
		Long: "Say what is known of the instance types of each cloud, and since when.\n" +
			"Clouds are asked at the coordinator's start and once a day; --refresh asks them now. An answer that differs makes other definitions\n" +
			"of what the running revision's wildcards stand for; an event says which.",
		Example: "  substrate node provisioner catalogue\n  substrate node provisioner catalogue --refresh gcp",
		RunE: func(cmd *cobra.Command, args []string) error {
			if refresh {
				r, err := invoke(cmd.Context(), a, "asking clouds for their types", longCallTimeout, (*connection).refreshCatalogues, &apiv1.RefreshCataloguesRequest{Backends: args})
				if err != nil {
					return err
				}
				return a.show(r, catalogueTable(r.GetCatalogues()))
			}
			return a.listCatalogues(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&refresh, "refresh", false, "ask the clouds now")
	return cmd
}

func (a *app) listCatalogues(ctx context.Context, names []string) error {
	r, err := get(ctx, a, "listing the catalogues", (*connection).listCatalogues, &apiv1.ListCataloguesRequest{})
	if err != nil {
		return err
	}
	if len(names) > 0 {
		var some []*apiv1.Catalogue
		for _, name := range names {
			found := false
			for _, c := range r.GetCatalogues() {
				if c.GetBackend() == name {
					some, found = append(some, c), true
				}
			}
			if !found {
				return failf(exitNotFound, "see `substrate node provisioner catalogue`", "cannot show the catalogue of %q: no cloud of the configuration has this name", name)
			}
		}
		r.Catalogues = some
	}
	return a.show(r, catalogueTable(r.GetCatalogues()))
}

func catalogueTable(list []*apiv1.Catalogue) table {
	t := table{head: []string{"BACKEND", "KIND", "SOURCE", "VERSION", "TYPES", "MISSING", "ASKED", "CHANGED", "WHAT"}, empty: "no definition is about a cloud"}
	for _, c := range list {
		source := c.GetSource()
		if source == "catalogue" {
			source = "built in"
		}
		what := c.GetText()
		if c.GetTrouble() != "" {
			what = fmt.Sprintf("not to be had since %s: %s", when(c.GetTroubleSince()), c.GetTrouble())
		}
		t.add(c.GetBackend(), c.GetBackend(), c.GetKind(), source, nonzero(uint32(c.GetVersion())), nonzero(c.GetTypes()), nonzero(c.GetMissing()), when(c.GetAsked()), when(c.GetChanged()), what)
	}
	return t
}

func (a *app) typesCommand() *cobra.Command {
	var backend string
	cmd := &cobra.Command{
		Use: "types [PATTERN]", Short: "List the types that clouds have, and who says what of them", Args: cobra.MaximumNArgs(1),
		Long: "List the instance types that clouds have, and who says what of them: what nodes have reported, what the provider tells, or what is built in.\n" +
			"PATTERN is of names, with * and ?. What nobody knows is left empty.",
		Example: "  substrate node provisioner types 't3.*'\n  substrate node provisioner types 'n2-*' --backend gcp -o json",
	}
	cmd.Flags().StringVar(&backend, "backend", "", "only types of this backend")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.listTypes(cmd.Context(), backend, strings.Join(args, ""))
	}
	return cmd
}

func (a *app) listTypes(ctx context.Context, backend, pattern string) error {
	all := &apiv1.ListInstanceTypesResponse{}
	var err error
	all.Types, err = pages(func(token string) ([]*apiv1.InstanceType, string, error) {
		r, err := get(ctx, a, "listing the types", (*connection).listInstanceTypes,
			&apiv1.ListInstanceTypesRequest{PageSize: 1000, PageToken: token, Backend: backend, Pattern: pattern})
		return r.GetTypes(), r.GetNextPageToken(), err
	})
	if err != nil {
		return err
	}
	t := table{head: []string{"TYPE", "BACKEND", "ARCH", "CORES", "THREADS", "MEMORY", "DEVICES", "COST/H", "SOURCE", "NOTE", "ZONES", "IMAGE", "AT"}, wide: 10, empty: "no type is known"}
	for _, r := range all.GetTypes() {
		t.add(r.GetName(), r.GetName(), r.GetBackend(), r.GetArch(), nonzero(r.GetCapacity().GetCores()), nonzero(r.GetCapacity().GetThreads()), knownSize(r.GetCapacity()),
			devices(r.GetCapacity()), cost(r.CostPerHour), r.GetSource(), strings.Join(r.GetFlags(), "; "), strings.Join(r.GetZones(), ","), r.GetImage(), when(r.GetAt()))
	}
	return a.show(all, t)
}
