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
	definitions configAPI
}

func (s nodeService) ListNodes(ctx context.Context, r *apiv1.ListNodesRequest) (*apiv1.ListNodesResponse, error) {
	nodes, next, err := s.engine.Nodes(ctx, coordinator.DefinitionID(r.GetDefinition()), pageOf(r.GetPageSize(), r.GetPageToken()))
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
	n, err := s.engine.Node(ctx, coordinator.NodeID(r.GetNode()))
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
	ttl, uses := time.Hour, max(r.GetUses(), 1)
	if n := r.GetTtlSeconds(); n > uint64(maxJoinTTL/time.Second) {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "create a join token", "it would live longer than %s", maxJoinTTL)
	} else if n > 0 {
		ttl = time.Duration(n) * time.Second
	}
	text, expires, err := s.engine.CreateJoinToken(ctx, callerOf(ctx), ttl, uses)
	if err != nil {
		return nil, err
	}
	return &apiv1.CreateJoinTokenResponse{Token: text, Expires: stamp(expires)}, nil
}
