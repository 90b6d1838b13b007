package server

import (
	"context"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

type backendService struct {
	apiv1.UnimplementedBackendsServer
	engine backendAPI
}

func (s backendService) ListBackends(ctx context.Context, _ *apiv1.ListBackendsRequest) (*apiv1.ListBackendsResponse, error) {
	list, err := s.engine.Backends(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListBackendsResponse{Backends: each(list, backendToProto)}, nil
}

func (s backendService) GetBackend(ctx context.Context, r *apiv1.GetBackendRequest) (*apiv1.Backend, error) {
	list, err := s.engine.Backends(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	var ofKind []engine.BackendView
	for _, b := range list {
		if b.Name == r.GetName() {
			return backendToProto(b), nil
		}
		if b.Kind == r.GetName() {
			ofKind = append(ofKind, b)
		}
	}
	if len(ofKind) == 1 {
		return backendToProto(ofKind[0]), nil
	}
	return nil, coordinator.Errorf(coordinator.ErrNotFound, "show backend "+r.GetName(), "the running configuration uses none of this name").
		WithHint("see `substrate backend list`")
}

func (s backendService) ReopenBackend(ctx context.Context, r *apiv1.GetBackendRequest) (*apiv1.Backend, error) {
	b, err := s.GetBackend(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := s.engine.ReopenBackend(ctx, callerOf(ctx), b.GetName()); err != nil {
		return nil, err
	}
	return &apiv1.Backend{Name: b.GetName(), Kind: b.GetKind(), State: "opening", Definitions: b.GetDefinitions(), Launches: b.GetLaunches()}, nil
}

func (s backendService) WriteOffLaunch(ctx context.Context, r *apiv1.WriteOffLaunchRequest) (*apiv1.WriteOffLaunchResponse, error) {
	return &apiv1.WriteOffLaunchResponse{}, s.engine.WriteOffLaunch(ctx, callerOf(ctx), r.GetLaunch())
}

func (s backendService) ListLaunches(ctx context.Context, r *apiv1.ListLaunchesRequest) (*apiv1.ListLaunchesResponse, error) {
	list, next, err := s.engine.Launches(ctx, callerOf(ctx), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListLaunchesResponse{Launches: each(list, launchToProto), NextPageToken: next}, nil
}

func launchToProto(l engine.LaunchView) *apiv1.Launch {
	return &apiv1.Launch{
		Id: l.ID, Definition: string(l.Definition), Backend: l.Backend, State: l.State, Detail: l.Detail, Instance: l.Instance, Wanted: l.Wanted,
		Nodes: texts(l.Nodes), For: texts(l.For), Since: stamp(l.Since), Ends: stamp(l.Ends),
	}
}

func backendToProto(b engine.BackendView) *apiv1.Backend {
	out := &apiv1.Backend{Name: b.Name, Kind: b.Kind, State: b.State, Trouble: b.Trouble, Definitions: texts(b.Definitions), Launches: uint32(b.Launches)}
	if b.Batch != nil {
		out.Batch = batchToProto(b.Batch)
	}
	return out
}

func batchToProto(b *engine.BatchView) *apiv1.BatchSystem {
	out := &apiv1.BatchSystem{
		Cluster: b.Report.Cluster, Version: b.Report.Version, Account: b.Report.Account, ReadOnly: b.Report.ReadOnly, Cached: b.Report.Cached,
		At: stamp(b.Report.At), Settings: b.Report.Settings,
		Interfaces: each(b.Interfaces, dispatch.Interface.String),
		Steps: each(b.Report.Steps, func(s dispatch.Step) *apiv1.PreflightStep {
			return &apiv1.PreflightStep{Name: s.Name, Outcome: s.Outcome.String(), Detail: s.Detail, TookMs: uint64(s.Took.Milliseconds())}
		}),
		Rules: each(b.Rules, func(r dispatch.RuleSupport) *apiv1.CapabilitySupport {
			return supportToProto(r.Rule.Action.String(), r.Support)
		}),
		Declarations: []*apiv1.Declaration{
			{Name: "NodeLossWindow", Value: b.Declarations.NodeLossWindow.String()}, {Name: "CallBound", Value: b.Declarations.CallBound.String()},
		},
	}
	for _, c := range dispatch.AllCapabilities() {
		out.Capabilities = append(out.Capabilities, supportToProto(c.String(), b.Capabilities[c]))
	}
	for _, e := range dispatch.AllEvidence() {
		out.Declarations = append(out.Declarations, &apiv1.Declaration{Name: "PolledLoss[" + e.String() + "]", Value: b.Declarations.PolledLoss[e].String()})
	}
	return out
}

func supportToProto(name string, s dispatch.Support) *apiv1.CapabilitySupport {
	return &apiv1.CapabilitySupport{Name: name, Answer: s.Answer.String(), Source: s.Source.String(), Reason: s.Reason}
}
