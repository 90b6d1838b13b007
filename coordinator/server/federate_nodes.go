package server

import (
	"context"

	"substrate/coordinator"
	"substrate/proto/apiv1"
)

// nodelessService is Nodes on a Federate: it has definitions, which it does not use, and none of the rest.
type nodelessService struct {
	apiv1.UnimplementedNodesServer
	nodeService nodeService
}

// ofItsClusters says where nodes are.
func ofItsClusters(op string) error {
	return coordinator.Errorf(coordinator.ErrUnsupported, op, "a Federate has no nodes of its own, its clusters have").
		WithHint("`substrate cluster list` shows how many each has; ask that cluster itself: --server or `substrate context use`")
}

func (s nodelessService) ListDefinitions(ctx context.Context, r *apiv1.ListDefinitionsRequest) (*apiv1.ListDefinitionsResponse, error) {
	return s.nodeService.ListDefinitions(ctx, r)
}

func (nodelessService) ListNodes(context.Context, *apiv1.ListNodesRequest) (*apiv1.ListNodesResponse, error) {
	return nil, ofItsClusters("list nodes")
}

func (nodelessService) GetNode(context.Context, *apiv1.GetNodeRequest) (*apiv1.Node, error) {
	return nil, ofItsClusters("show node")
}

func (nodelessService) ExplainNode(context.Context, *apiv1.GetNodeRequest) (*apiv1.ExplainNodeResponse, error) {
	return nil, ofItsClusters("explain node")
}

func (nodelessService) SetNodeScheduling(context.Context, *apiv1.SetNodeSchedulingRequest) (*apiv1.Node, error) {
	return nil, ofItsClusters("set node scheduling")
}

func (nodelessService) CreateJoinToken(context.Context, *apiv1.CreateJoinTokenRequest) (*apiv1.CreateJoinTokenResponse, error) {
	return nil, ofItsClusters("create join token")
}

func (nodelessService) ListJoinTokens(context.Context, *apiv1.ListJoinTokensRequest) (*apiv1.ListJoinTokensResponse, error) {
	return nil, ofItsClusters("list join tokens")
}

func (nodelessService) RevokeJoinToken(context.Context, *apiv1.RevokeJoinTokenRequest) (*apiv1.RevokeJoinTokenResponse, error) {
	return nil, ofItsClusters("revoke join token")
}

func (nodelessService) RevokeNode(context.Context, *apiv1.RevokeNodeRequest) (*apiv1.Node, error) {
	return nil, ofItsClusters("revoke node")
}

func (nodelessService) RemoveNode(context.Context, *apiv1.RemoveNodeRequest) (*apiv1.RemoveNodeResponse, error) {
	return nil, ofItsClusters("remove node")
}

func (nodelessService) DiscoverHardware(context.Context, *apiv1.DiscoverHardwareRequest) (*apiv1.DiscoverHardwareResponse, error) {
	return nil, ofItsClusters("discover hardware")
}

func (nodelessService) ListCatalogues(context.Context, *apiv1.ListCataloguesRequest) (*apiv1.ListCataloguesResponse, error) {
	return nil, ofItsClusters("list catalogues")
}

func (nodelessService) RefreshCatalogues(context.Context, *apiv1.RefreshCataloguesRequest) (*apiv1.RefreshCataloguesResponse, error) {
	return nil, ofItsClusters("refresh catalogues")
}

func (nodelessService) ListInstanceTypes(context.Context, *apiv1.ListInstanceTypesRequest) (*apiv1.ListInstanceTypesResponse, error) {
	return nil, ofItsClusters("list instance types")
}

func (nodelessService) ResumeDefinition(context.Context, *apiv1.ResumeDefinitionRequest) (*apiv1.ResumeDefinitionResponse, error) {
	return nil, ofItsClusters("resume definition")
}

func (nodelessService) ResetHardware(context.Context, *apiv1.ResetHardwareRequest) (*apiv1.ResetHardwareResponse, error) {
	return nil, ofItsClusters("reset hardware")
}
