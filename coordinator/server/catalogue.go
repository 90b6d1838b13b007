package server

import (
	"context"

	"substrate/coordinator/catalogue"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

func (s nodeService) ListCatalogues(ctx context.Context, _ *apiv1.ListCataloguesRequest) (*apiv1.ListCataloguesResponse, error) {
	list, err := s.catalogues.Catalogues(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListCataloguesResponse{Catalogues: each(list, catalogueToProto)}, nil
}

func (s nodeService) RefreshCatalogues(ctx context.Context, r *apiv1.RefreshCataloguesRequest) (*apiv1.RefreshCataloguesResponse, error) {
	list, err := s.catalogues.RefreshCatalogues(ctx, callerOf(ctx), r.GetBackends())
	if err != nil {
		return nil, err
	}
	return &apiv1.RefreshCataloguesResponse{Catalogues: each(list, catalogueToProto)}, nil
}

func catalogueToProto(v engine.CatalogueView) *apiv1.Catalogue {
	return &apiv1.Catalogue{Backend: v.Backend, Kind: v.Kind, Source: v.Source, Version: v.Version, Types: count(v.Types), Missing: count(v.Missing),
		Asked: stamp(v.Asked), Changed: stamp(v.Changed), Trouble: v.Trouble, TroubleSince: stamp(v.Since), Text: v.Text}
}

func (s nodeService) ListInstanceTypes(ctx context.Context, r *apiv1.ListInstanceTypesRequest) (*apiv1.ListInstanceTypesResponse, error) {
	list, next, err := s.catalogues.InstanceTypes(ctx, callerOf(ctx), engine.ListTypes{Backend: r.GetBackend(), Pattern: r.GetPattern()}, pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListInstanceTypesResponse{Types: each(list, typeToProto), NextPageToken: next}, nil
}

func typeToProto(v engine.TypeView) *apiv1.InstanceType {
	out := &apiv1.InstanceType{Kind: v.Kind, Backend: v.Backend, Name: v.Name, Arch: v.Arch, Image: v.Image, Source: string(v.Source), At: stamp(v.At),
		CostPerHour: v.CostPerHour, Flags: v.Flags, Zones: v.Zones, Reports: v.Reports}
	if v.Hardware != nil {
		out.Capacity = capacityToProto(*v.Hardware)
	}
	if v.Source == catalogue.SourceReport {
		out.CostPerHour = nil // of a place, which a report is not
	}
	return out
}
