package server

import (
	"errors"
	"strings"
	"testing"

	"substrate/proto/apiv1"
)

// TestAFederateSaysWhereNodesAre: every RPC about nodes names the clusters instead of an empty list, and the status is their sum.
func TestAFederateSaysWhereNodesAre(t *testing.T) {
	fed, east, _ := federated(t)
	conn := fed.dial(fed.token)
	for name, m := range apiMethods() {
		if !strings.Contains(name, ".Nodes/") || name == apiv1.Nodes_ListDefinitions_FullMethodName {
			continue
		}
		if err := call(t.Context(), conn, name, m); statusKind(err) != "unsupported" || !strings.Contains(err.Error(), "a Federate has no nodes of its own") {
			t.Errorf("%s: %v", name, err)
		}
	}
	east.gate.set(true)
	fed.eventually("the east to be gone", func() error {
		c, err := fed.admin().GetCluster(t.Context(), &apiv1.GetClusterRequest{Name: "east"})
		if err == nil && c.GetState() != "unreachable" {
			err = errors.New(c.GetState())
		}
		return err
	})
	s, err := fed.admin().GetStatus(t.Context(), &apiv1.GetStatusRequest{})
	if err != nil || s.GetRole() != "federate" || s.GetClustersReady() != 1 || s.GetClustersTotal() != 2 || s.GetNodesTotal() != 2 || len(s.GetWarnings()) == 0 ||
		!strings.Contains(s.GetWarnings()[len(s.GetWarnings())-1], "cluster east is unreachable: ") {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := east.admin().GetStatus(t.Context(), &apiv1.GetStatusRequest{}); err != nil || s.GetRole() != "orchestrate" || s.GetNodesTotal() != 1 {
		t.Errorf("%v, %v", s, err)
	}
}
