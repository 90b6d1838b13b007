package server

import (
	"context"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

const maxJoinTTL = 365 * 24 * time.Hour

type nodeService struct {
	apiv1.UnimplementedNodesServer
	engine      nodeAPI
	tokens      joinTokenAPI
	definitions configAPI
	hardware    hardwareAPI
	catalogues  catalogueAPI
}

func (s nodeService) DiscoverHardware(ctx context.Context, r *apiv1.DiscoverHardwareRequest) (*apiv1.DiscoverHardwareResponse, error) {
	ids := make([]coordinator.DefinitionID, len(r.GetDefinitions()))
	for i, id := range r.GetDefinitions() {
		ids[i] = coordinator.DefinitionID(id)
	}
	list, err := s.hardware.Discover(ctx, callerOf(ctx), ids)
	if err != nil {
		return nil, err
	}
	return &apiv1.DiscoverHardwareResponse{Discoveries: each(list, func(v engine.DiscoveryView) *apiv1.Discovery {
		return &apiv1.Discovery{Definition: string(v.Definition), Instance: v.Type, Image: v.Image, Outcome: v.Outcome, Text: v.Text,
			CostPerHour: v.CostPerHour, AtMost: v.AtMost}
	})}, nil
}

func (s nodeService) ResetHardware(ctx context.Context, r *apiv1.ResetHardwareRequest) (*apiv1.ResetHardwareResponse, error) {
	return &apiv1.ResetHardwareResponse{}, s.hardware.ResetHardware(ctx, callerOf(ctx), coordinator.DefinitionID(r.GetDefinition()))
}

func (s nodeService) ResumeDefinition(ctx context.Context, r *apiv1.ResumeDefinitionRequest) (*apiv1.ResumeDefinitionResponse, error) {
	return &apiv1.ResumeDefinitionResponse{}, s.hardware.ResumeDefinition(ctx, callerOf(ctx), coordinator.DefinitionID(r.GetDefinition()))
}

func (s nodeService) ListNodes(ctx context.Context, r *apiv1.ListNodesRequest) (*apiv1.ListNodesResponse, error) {
	nodes, next, err := s.engine.Nodes(ctx, callerOf(ctx), coordinator.DefinitionID(r.GetDefinition()), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	short := func(n engine.NodeView) *apiv1.Node {
		n.Facts = nil // a page of facts would be megabytes
		return nodeToProto(n)
	}
	return &apiv1.ListNodesResponse{Nodes: each(nodes, short), NextPageToken: next}, nil
}

func (s nodeService) GetNode(ctx context.Context, r *apiv1.GetNodeRequest) (*apiv1.Node, error) {
	n, err := s.engine.Node(ctx, callerOf(ctx), coordinator.NodeID(r.GetNode()))
	if err != nil {
		return nil, err
	}
	return nodeToProto(n), nil
}

func (s nodeService) ExplainNode(ctx context.Context, r *apiv1.GetNodeRequest) (*apiv1.ExplainNodeResponse, error) {
	e, err := s.engine.ExplainNode(ctx, coordinator.NodeID(r.GetNode()))
	if err != nil {
		return nil, err
	}
	return explanationToProto(e), nil
}

func (s nodeService) SetNodeScheduling(ctx context.Context, r *apiv1.SetNodeSchedulingRequest) (*apiv1.Node, error) {
	switch r.GetAction() {
	case "cordon", "uncordon", "drain":
	default:
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "change the scheduling of node "+r.GetNode(),
			"unknown action %q, expected cordon, uncordon or drain", r.GetAction())
	}
	n, err := s.engine.SetScheduling(ctx, callerOf(ctx), coordinator.NodeID(r.GetNode()), r.GetAction(), r.GetReason(), r.GetActive())
	if err != nil {
		return nil, err
	}
	return nodeToProto(n), nil
}

func (s nodeService) ListDefinitions(ctx context.Context, _ *apiv1.ListDefinitionsRequest) (*apiv1.ListDefinitionsResponse, error) {
	rev, ds, err := s.definitions.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	return &apiv1.ListDefinitionsResponse{Revision: uint64(rev), Definitions: each(ds, definitionToProto)}, nil
}

func (s nodeService) CreateJoinToken(ctx context.Context, r *apiv1.CreateJoinTokenRequest) (*apiv1.CreateJoinTokenResponse, error) {
	ttl, err := lifetime("create a join token", r.GetTtlSeconds(), maxJoinTTL)
	if err != nil {
		return nil, err
	}
	in := engine.NewJoinToken{TTL: ttl, Uses: r.GetUses()}
	in.Definition, in.Launch = coordinator.DefinitionID(r.GetDefinition()), r.GetLaunch()
	text, rec, err := s.tokens.CreateJoinToken(ctx, callerOf(ctx), in)
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateJoinTokenResponse{Token: text, Expires: stamp(rec.Expires), Id: rec.ID}, nil
}

func (s nodeService) ListJoinTokens(ctx context.Context, r *apiv1.ListJoinTokensRequest) (*apiv1.ListJoinTokensResponse, error) {
	list, next, err := s.tokens.JoinTokens(ctx, callerOf(ctx), pageOf(r.GetPageSize(), r.GetPageToken()))
	if err != nil {
		return nil, err
	}
	return &apiv1.ListJoinTokensResponse{Tokens: each(list, joinTokenToProto), NextPageToken: next}, nil
}

func (s nodeService) RevokeJoinToken(ctx context.Context, r *apiv1.RevokeJoinTokenRequest) (*apiv1.RevokeJoinTokenResponse, error) {
	return &apiv1.RevokeJoinTokenResponse{}, s.tokens.RevokeJoinToken(ctx, callerOf(ctx), r.GetId())
}

func (s nodeService) RevokeNode(ctx context.Context, r *apiv1.RevokeNodeRequest) (*apiv1.Node, error) {
	return one(nodeToProto)(s.tokens.RevokeNode(ctx, callerOf(ctx), coordinator.NodeID(r.GetNode()), r.GetReason()))
}

func (s nodeService) RemoveNode(ctx context.Context, r *apiv1.RemoveNodeRequest) (*apiv1.RemoveNodeResponse, error) {
	return &apiv1.RemoveNodeResponse{}, s.tokens.RemoveNode(ctx, callerOf(ctx), coordinator.NodeID(r.GetNode()), r.GetReason(), r.GetForce())
}
