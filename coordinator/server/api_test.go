package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

func insecureCredentials() credentials.TransportCredentials { return insecure.NewCredentials() }

// apiMethods are all RPCs of the API by full name.
func apiMethods() map[string]protoreflect.MethodDescriptor {
	out := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("substrate.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			if s.Name() == "Federation" {
				continue // of another port, with its own gate
			}
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out[fmt.Sprintf("/%s/%s", s.FullName(), m.Name())] = m
			}
		}
		return true
	})
	return out
}

// call makes an empty request to any RPC.
func call(ctx context.Context, conn *grpc.ClientConn, name string, m protoreflect.MethodDescriptor) error {
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, name, &emptypb.Empty{}, &emptypb.Empty{})
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, name)
	if err != nil {
		return err
	}
	if err := s.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = s.CloseSend()
	return s.RecvMsg(&emptypb.Empty{})
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func TestErrorsOnTheWire(t *testing.T) {
	diagnostics := strictyaml.Diagnostics{
		{Severity: strictyaml.SeverityError, Code: "wrong-type", File: "c.yaml", Line: 3, Column: 7, Path: "definitions[0].id", Message: "expected text", Hint: "quote it"},
		{Severity: strictyaml.SeverityWarning, File: "c.yaml", Line: 9, Message: "ttl is short"},
	}
	cases := []struct {
		name   string
		err    error
		code   codes.Code
		http   int
		reason string
		hint   string
		n      int
	}{
		{"defect", errors.New("disk broke"), codes.Internal, 500, "internal", "", 0},
		{"invalid", &coordinator.Error{Kind: coordinator.ErrInvalid, Op: "set the configuration", Err: diagnostics, Hint: "fix it"}, codes.InvalidArgument, 400, "invalid", "fix it", 2},
		{"bare diagnostics", fmt.Errorf("no: %w", diagnostics), codes.InvalidArgument, 400, "invalid", "", 2},
		{"not found", coordinator.Errorf(coordinator.ErrNotFound, "x", "gone"), codes.NotFound, 404, "not-found", "", 0},
		{"exists", coordinator.Errorf(coordinator.ErrExists, "x", "there"), codes.AlreadyExists, 409, "exists", "", 0},
		{"conflict", coordinator.Errorf(coordinator.ErrConflict, "x", "changed").WithHint("read again"), codes.Aborted, 409, "conflict", "read again", 0},
		{"denied", coordinator.Errorf(coordinator.ErrDenied, "x", "no"), codes.PermissionDenied, 403, "denied", "", 0},
		{"unauthenticated", coordinator.Errorf(coordinator.ErrUnauthenticated, "x", "who"), codes.Unauthenticated, 401, "unauthenticated", "", 0},
		{"unavailable", coordinator.Errorf(coordinator.ErrUnavailable, "x", "later"), codes.Unavailable, 503, "unavailable", "", 0},
		{"exhausted", coordinator.Errorf(coordinator.ErrExhausted, "x", "full"), codes.ResourceExhausted, 429, "exhausted", "", 0},
		{"unsupported", coordinator.Errorf(coordinator.ErrUnsupported, "x", "not here"), codes.Unimplemented, 501, "unsupported", "", 0},
		{"wrapped", fmt.Errorf("outer: %w", coordinator.Errorf(coordinator.ErrNotFound, "x", "gone")), codes.NotFound, 404, "not-found", "", 0},
	}
	var current error
	f := &fakeEngine{nodeFunc: func(context.Context, engine.Caller, coordinator.NodeID) (engine.NodeView, error) {
		return engine.NodeView{}, current
	}}
	a := startAPI(t, f, true)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			current = c.err
			_, err := apiv1.NewNodesClient(a.conn).GetNode(withToken(t.Context(), adminToken), &apiv1.GetNodeRequest{Node: "n"})
			st := status.Convert(err)
			if st.Code() != c.code || !strings.Contains(st.Message(), c.err.Error()) {
				t.Errorf("gRPC: %v %q", st.Code(), st.Message())
			}
			hint, n, reason := "", 0, ""
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					hint, reason = d.GetMetadata()["hint"], d.GetReason()
				case *apiv1.Diagnostic:
					n++
				}
			}
			if hint != c.hint || n != c.n || reason != c.reason {
				t.Errorf("details: hint %q, %d diagnostics, reason %q", hint, n, reason)
			}
			res, body := a.do("GET", "/v1/nodes/n", "", asAdmin)
			var got struct {
				Code, Message, Hint string
				Diagnostics         []map[string]any
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			if res.StatusCode != c.http || got.Code != c.reason || got.Hint != c.hint || len(got.Diagnostics) != c.n {
				t.Errorf("REST: %d %s", res.StatusCode, body)
			}
			if c.n > 0 && (got.Diagnostics[0]["file"] != "c.yaml" || got.Diagnostics[0]["line"] != 3.0 || got.Diagnostics[0]["hint"] != "quote it" || got.Diagnostics[0]["severity"] != "error") {
				t.Errorf("diagnostic: %v", got.Diagnostics[0])
			}
		})
	}
}

func TestManyDiagnosticsAreCut(t *testing.T) {
	var ds strictyaml.Diagnostics
	for range 5000 {
		ds = append(ds, strictyaml.Diagnostic{File: "c.yaml", Message: strings.Repeat("é", 5000)})
	}
	a := startAPI(t, &fakeEngine{nodeFunc: func(context.Context, engine.Caller, coordinator.NodeID) (engine.NodeView, error) {
		return engine.NodeView{}, ds
	}}, true)
	_, err := apiv1.NewNodesClient(a.conn).GetNode(withToken(t.Context(), adminToken), &apiv1.GetNodeRequest{Node: "n"})
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || len(st.Details()) != maxErrorDiagnostics+1 {
		t.Errorf("%v with %d details: %.100s", st.Code(), len(st.Details()), st.Message())
	}
}

func TestPanicIsInternalAndNothingElseEnds(t *testing.T) {
	f := &fakeEngine{
		nodeFunc: func(context.Context, engine.Caller, coordinator.NodeID) (engine.NodeView, error) {
			panic("secret detail")
		},
		eventsFunc: func(context.Context, engine.Caller, string, uint64, bool, func([]engine.Event) error) error {
			panic("stream")
		},
		statusFunc: func(context.Context) (engine.StatusView, error) { return engine.StatusView{ClusterID: "c"}, nil },
	}
	a := startAPI(t, f, true)
	res, body := a.do("GET", "/v1/nodes/n", "", asAdmin)
	if res.StatusCode != 500 || strings.Contains(body, "secret detail") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if err := call(withToken(t.Context(), adminToken), a.conn, apiv1.Workflows_WatchEvents_FullMethodName, apiMethods()[apiv1.Workflows_WatchEvents_FullMethodName]); status.Code(err) != codes.Internal {
		t.Errorf("stream: %v", err)
	}
	if res, body := a.do("GET", "/v1/status", "", asAdmin); res.StatusCode != 200 || !strings.Contains(body, `"v-test"`) {
		t.Errorf("afterwards: %d %s", res.StatusCode, body)
	}
}

func TestFailedLogInsAreLimitedBySource(t *testing.T) {
	f := &fakeEngine{statusFunc: func(context.Context) (engine.StatusView, error) { return engine.StatusView{}, nil }}
	a := startAPI(t, f, true)
	get := func(headers ...string) (int, string) {
		res, body := a.do("GET", "/v1/status", "", headers...)
		return res.StatusCode, body
	}
	for i := range failuresAllowed {
		// A header that claims another source must not help, and log-ins that succeed do not forgive.
		if code, _ := get("Authorization: Bearer guess", fmt.Sprintf("X-Forwarded-For: 10.0.0.%d", i)); code != http.StatusUnauthorized {
			t.Fatalf("attempt %d: %d", i, code)
		}
		if code, _ := get(asMember); code != http.StatusOK {
			t.Fatalf("a good token after %d bad ones: %d", i+1, code)
		}
	}
	if code, body := get("Authorization: Bearer guess"); code != http.StatusTooManyRequests || strings.Contains(body, "unknown token") {
		t.Errorf("REST: %d %s", code, body)
	}
	identity := apiv1.NewIdentityClient(a.conn)
	if _, err := identity.GetStatus(withToken(t.Context(), "guess"), &apiv1.GetStatusRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("gRPC: %v", err)
	}
	// Everybody else behind the same address goes on.
	if code, body := get(asMember); code != http.StatusOK {
		t.Errorf("a good token from a source that guesses: %d %s", code, body)
	}
	if _, err := identity.GetStatus(withToken(t.Context(), adminToken), &apiv1.GetStatusRequest{}); err != nil {
		t.Errorf("gRPC with a good token: %v", err)
	}
	if code, _ := get(); code != http.StatusUnauthorized {
		t.Errorf("no token at all: %d", code)
	}
}

// TestLargeRequestsCountOnce: a wrong token with a configuration is one failure, not two.
func TestLargeRequestsCountOnce(t *testing.T) {
	a := startAPI(t, &fakeEngine{}, true)
	for i := range failuresAllowed {
		if res, _ := a.do("POST", "/v1/config:validate", "{}", "Authorization: Bearer guess"); res.StatusCode != http.StatusUnauthorized {
			t.Fatalf("attempt %d: %d", i, res.StatusCode)
		}
	}
	if res, _ := a.do("POST", "/v1/config:validate", "{}", "Authorization: Bearer guess"); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more: %d", res.StatusCode)
	}
}

func TestCallerAndSourceReachTheEngine(t *testing.T) {
	var got []engine.Caller
	f := &fakeEngine{jobFunc: func(_ context.Context, c engine.Caller, id coordinator.AllocationID) (engine.JobView, error) {
		got = append(got, c)
		return engine.JobView{ID: id}, nil
	}}
	for _, secure := range []bool{true, false} {
		a := startAPI(t, f, secure)
		if _, err := apiv1.NewWorkflowsClient(a.conn).GetJob(withToken(t.Context(), memberToken), &apiv1.GetJobRequest{Id: "w/j"}); err != nil {
			t.Fatal(err)
		}
	}
	a := startAPI(t, f, true)
	if _, body := a.do("GET", "/v1/jobs/w/j/3", "", asMember, "X-Forwarded-For: 10.9.9.9"); !strings.Contains(body, `"w/j/3"`) {
		t.Error(body)
	}
	want := member()
	want.From = "127.0.0.1"
	if !reflect.DeepEqual(got, []engine.Caller{want, want, want}) {
		t.Errorf("%+v", got)
	}
}

func withIncoming(ctx context.Context, key, value string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs(key, value))
}
