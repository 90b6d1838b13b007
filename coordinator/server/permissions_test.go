package server

import (
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/coordinator/auth"
	"substrate/proto/apiv1"
)

func TestEveryRPCDeclaresItsPermission(t *testing.T) {
	table, methods := permissions(), apiMethods()
	if len(methods) < 30 {
		t.Fatalf("only %d RPCs found", len(methods))
	}
	if unlisted := table.Unlisted(slices.Collect(maps.Keys(methods))); len(unlisted) > 0 {
		t.Errorf("no permission is declared for %v", unlisted)
	}
	for name, permission := range table {
		if methods[name] == nil {
			t.Errorf("%s has a permission but does not exist", name)
		}
		if permission > auth.PermissionCurbUser {
			t.Errorf("%s has the unknown permission %s", name, permission)
		}
	}
}

// TestUndeclaredRPCsAreNotServed: the check that NewAPI makes, with one row of the table gone.
func TestUndeclaredRPCsAreNotServed(t *testing.T) {
	s := grpc.NewServer()
	defer s.Stop()
	apiv1.RegisterNodesServer(s, nodeService{})
	apiv1.RegisterConfigServer(s, configService{})
	if err := checkListed(permissions(), s.GetServiceInfo()); err != nil {
		t.Error(err)
	}
	for _, gone := range []string{apiv1.Nodes_GetNode_FullMethodName, apiv1.Config_SetConfig_FullMethodName} {
		table := permissions()
		delete(table, gone)
		err := checkListed(table, s.GetServiceInfo())
		if want := "cannot serve the API: no permission is declared for " + gone; err == nil || err.Error() != want {
			t.Errorf("without %s: %v", gone, err)
		}
		table[gone] = auth.PermissionNone
		if checkListed(table, s.GetServiceInfo()) == nil {
			t.Errorf("%s is listed with no permission and served", gone)
		}
	}
}

// TestGate: without a token nothing; with one, the gate refuses what needs no target and lets the engine,
// here a fake that refuses nothing, decide the rest.
func TestGate(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for name, m := range apiMethods() {
		public := permissions()[name] == auth.PermissionPublic
		if got := status.Code(call(t.Context(), a.conn, name, m)); (got != codes.Unauthenticated) != public {
			t.Errorf("%s without a token: %v", name, got)
		}
		got := status.Code(call(withToken(t.Context(), memberToken), a.conn, name, m))
		if (got == codes.PermissionDenied) != (permissions()[name] == auth.PermissionAdminCluster) {
			t.Errorf("%s as a member: %v", name, got)
		}
		if got := status.Code(call(withToken(t.Context(), adminToken), a.conn, name, m)); got == codes.PermissionDenied || got == codes.Unauthenticated {
			t.Errorf("%s as an administrator: %v", name, got)
		}
	}
}

func TestDeed(t *testing.T) {
	for method, want := range map[string]string{
		apiv1.Identity_AppendProvisionerDefinitions_FullMethodName: "append provisioner definitions",
		apiv1.Config_GetConfig_FullMethodName:                      "get config",
		"":                                                         "",
	} {
		if got := deed(method); got != want {
			t.Errorf("deed(%q) = %q, want %q", method, got, want)
		}
	}
}

// TestGateOfOneRPC: what the gate makes of each permission, token or not.
func TestGateOfOneRPC(t *testing.T) {
	words := map[auth.Permission]string{ // nobody, member, admin
		auth.PermissionPublic: "+++", auth.PermissionUser: "u++", auth.PermissionAdminCluster: "ud+",
		auth.PermissionReadOrg: "u++", auth.PermissionManageOrg: "u++", auth.PermissionSubmit: "u++", auth.PermissionReadWork: "u++",
		auth.PermissionManageWork: "u++", auth.PermissionReadOutput: "u++", auth.PermissionManageUser: "u++",
		auth.PermissionManageGroup: "u++", auth.PermissionCurbUser: "u++",
		auth.PermissionNone: "ddd", auth.PermissionCurbUser + 1: "udd",
	}
	for permission, want := range words {
		g := &gate{auth: &fakeEngine{authenticateFunc: fakeTokens}, permissions: auth.Table{"/x/Do": permission}, now: time.Now, rand: rand.Reader, log: slog.New(slog.DiscardHandler)}
		for i, token := range []string{"", memberToken, adminToken} {
			ctx := t.Context()
			if token != "" {
				ctx = withIncoming(ctx, "authorization", "Bearer "+token)
			}
			ctx, err := g.admit(ctx, "/x/Do")
			got := map[codes.Code]byte{codes.OK: '+', codes.Unauthenticated: 'u', codes.PermissionDenied: 'd'}[status.Code(err)]
			if got != want[i] {
				t.Errorf("%s with token %q: %v", permission, token, err)
			}
			if err == nil && token != "" && permission != auth.PermissionPublic && callerOf(ctx).User == "" {
				t.Errorf("%s with token %q: the handler does not learn who calls", permission, token)
			}
		}
		if _, err := g.admit(t.Context(), "/x/Other"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("an RPC that is not listed: %v", err)
		}
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer t": "t", "bearer t": "t", "BEARER  t ": "t", "": "", "Bearer": "", "Bearer ": "", "Basic t": "", "t": "",
	} {
		if got := bearerOf(header); got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
	}
}
