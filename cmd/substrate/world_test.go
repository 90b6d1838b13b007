package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/proto/apiv1"
)

// world is a coordinator with a fixed cluster. It writes down what it is asked.
type world struct {
	apiv1.UnimplementedConfigServer
	apiv1.UnimplementedNodesServer
	apiv1.UnimplementedWorkflowsServer
	apiv1.UnimplementedIdentityServer
	apiv1.UnimplementedReservationsServer
	apiv1.UnimplementedMaintenanceServer

	mu    sync.Mutex
	asked []string       // "Config.SetConfig {…}"
	polls map[string]int // GetWorkflow calls by id
}

const (
	goodToken  = "sesame"
	adminToken = "open" // of an administrator
)

func startWorld(t testing.TB) (*world, string) {
	t.Helper()
	w := &world{polls: map[string]int{}}
	s := grpc.NewServer(grpc.UnaryInterceptor(w.unary), grpc.StreamInterceptor(w.stream))
	apiv1.RegisterConfigServer(s, w)
	apiv1.RegisterNodesServer(s, w)
	apiv1.RegisterWorkflowsServer(s, w)
	apiv1.RegisterIdentityServer(s, w)
	apiv1.RegisterReservationsServer(s, w)
	apiv1.RegisterMaintenanceServer(s, w)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return w, "http://" + l.Addr().String()
}

func authorized(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get("authorization"); len(v) == 1 && (v[0] == "Bearer "+goodToken || v[0] == "Bearer "+adminToken) {
		return nil
	}
	return refuse(codes.Unauthenticated, "cannot authenticate: unknown token", "run `substrate login`")
}

func (w *world) note(method string, req any) {
	text := ""
	if m, ok := req.(proto.Message); ok {
		data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err == nil {
			var v map[string]any
			_ = json.Unmarshal(data, &v)
			for _, k := range []string{"yaml", "from", "until"} {
				if v[k] != nil {
					v[k] = "…"
				}
			}
			if k, _ := v["idempotency_key"].(string); len(k) == 36 {
				v["idempotency_key"] = "…"
			}
			data, _ = json.Marshal(v) // sorted, without protojson's varying spaces
			text = string(data)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	parts := strings.Split(method[strings.LastIndex(method, ".")+1:], "/")
	w.asked = append(w.asked, strings.Join(parts, ".")+" "+text)
}

func (w *world) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := authorized(ctx); err != nil {
		return nil, err
	}
	w.note(info.FullMethod, req)
	return next(ctx, req)
}

func (w *world) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := authorized(ss.Context()); err != nil {
		return err
	}
	return next(srv, ss)
}

func refuse(code codes.Code, message, hint string, ds ...*apiv1.Diagnostic) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: "substrate", Metadata: map[string]string{"hint": hint}}}
	for _, d := range ds {
		details = append(details, d)
	}
	st, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// refused gives the errors that any object of these names has.
func refused(op, name string) error {
	switch name {
	case "missing":
		return refuse(codes.NotFound, fmt.Sprintf("cannot %s: there is no %q", op, name), "")
	case "secret":
		return refuse(codes.PermissionDenied, fmt.Sprintf("cannot %s: it is not yours", op), "ask its owner")
	case "defect":
		return refuse(codes.Internal, fmt.Sprintf("cannot %s: disk broke", op), "")
	}
	return nil
}

func at(minute int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 3, 4, 5, minute, 0, 0, time.UTC))
}

func (w *world) SetConfig(_ context.Context, r *apiv1.SetConfigRequest) (*apiv1.SetConfigResponse, error) {
	rev := &apiv1.ConfigRevision{Revision: 8, SetAt: at(8), SetBy: "ada", Sha256: "feedface", Bytes: uint64(len(r.GetYaml()))}
	text := string(r.GetYaml())
	switch {
	case r.IfRevision != nil && r.GetIfRevision() != 7:
		return nil, refuse(codes.Aborted, "cannot set the configuration: revision 7 is running", "read it again")
	case strings.Contains(text, "broken"):
		d := &apiv1.Diagnostic{Severity: "error", File: r.GetFile(), Line: 2, Column: 5, Path: "definitions[0].id", Message: "expected text", Hint: "quote it"}
		return nil, refuse(codes.InvalidArgument, "cannot set the configuration: "+r.GetFile()+":2:5: expected text", "", d)
	case strings.Contains(text, "same"):
		return &apiv1.SetConfigResponse{Revision: rev, Unchanged: true}, nil
	}
	res := &apiv1.SetConfigResponse{Revision: rev, Diagnostics: []*apiv1.Diagnostic{{Severity: "warning", File: r.GetFile(), Line: 3, Column: 1, Message: "ttl is short", Hint: "make it longer"}}}
	if !r.GetAppendGrants() {
		res.Ungranted = []*apiv1.UngrantedDefinition{
			{Definition: "gpu", Organizations: []string{"beta", "acme"}}, {Definition: "t3-${spec.instanceType}", Organizations: []string{"acme", "beta"}},
			{Definition: "big", Organizations: []string{"beta"}}, {Definition: "all"},
			{Definition: "new", Organizations: []string{"a", "b", "c", "d", "e", "f"}, AllOrganizations: true},
		}
	}
	return res, nil
}

func (w *world) GetConfig(_ context.Context, r *apiv1.GetConfigRequest) (*apiv1.GetConfigResponse, error) {
	if r.Revision != nil && r.GetRevision() > 7 {
		return nil, refuse(codes.NotFound, "cannot read the configuration: there is no revision 9", "")
	}
	n := uint64(7)
	if r.Revision != nil {
		n = r.GetRevision()
	}
	return &apiv1.GetConfigResponse{Revision: &apiv1.ConfigRevision{Revision: n}, Yaml: fmt.Appendf(nil, "# revision %d\ndefinitions: []\n", n)}, nil
}

func (w *world) ListConfigRevisions(_ context.Context, r *apiv1.ListConfigRevisionsRequest) (*apiv1.ListConfigRevisionsResponse, error) {
	if r.GetPageToken() == "" { // two pages
		return &apiv1.ListConfigRevisionsResponse{Revisions: []*apiv1.ConfigRevision{{Revision: 7, SetAt: at(7), SetBy: "ada", Sha256: "0123456789abcdef", Bytes: 900}}, NextPageToken: "6"}, nil
	}
	return &apiv1.ListConfigRevisionsResponse{Revisions: []*apiv1.ConfigRevision{{Revision: 6, SetAt: at(6), SetBy: "bob", Sha256: "fedcba9876543210", Bytes: 800}}}, nil
}

func gpuNode() *apiv1.Node {
	return &apiv1.Node{
		Id: "n1", Status: "ready", Definition: "gpu", Conflicts: []string{"large"}, ConfigurationRevision: 7,
		Capacity: &apiv1.Capacity{Cores: 64, Threads: 128, MemoryBytes: 256 << 30, Devices: map[string]uint32{"nvidia.com/gpu": 4}},
		Used:     &apiv1.Capacity{Cores: 3, MemoryBytes: 1536 << 20, Devices: map[string]uint32{"nvidia.com/gpu": 1}},
		LastSeen: at(9), AgentVersion: "v1", Arch: "amd64", Os: "Some Linux", CpuModel: "Model 9", Annotations: map[string]string{"site": "a"},
		Runs: []string{"w/j#1"}, Warnings: []*apiv1.NodeWarning{{Source: "/sys/x", Message: "not readable\x1b[31m"}},
	}
}

func (w *world) ListNodes(_ context.Context, r *apiv1.ListNodesRequest) (*apiv1.ListNodesResponse, error) {
	if r.GetDefinition() == "missing" { // a coordinator that knows it itself
		return nil, refused("list the nodes of definition", r.GetDefinition())
	}
	if d := r.GetDefinition(); d != "" && d != "gpu" {
		return &apiv1.ListNodesResponse{}, nil
	}
	return &apiv1.ListNodesResponse{Nodes: []*apiv1.Node{gpuNode(), {Id: "n2", Status: "offline", Reason: "no report yet"}}}, nil
}

func (w *world) GetNode(_ context.Context, r *apiv1.GetNodeRequest) (*apiv1.Node, error) {
	n := gpuNode()
	if strings.HasPrefix(r.GetNode(), "leaving") { // its run ends after the first look
		w.mu.Lock()
		defer w.mu.Unlock()
		n.Id, n.Status, n.Conflicts, n.Reason = r.GetNode(), "draining", nil, ""
		n.Work = []*apiv1.NodeWork{{Run: "w/j#1", Class: "on-demand", Status: "running", Started: at(1), EndsBy: at(31)}, {Run: "w/k#2", Class: "batch", Status: "preempting", Started: at(2), NoticeEndsAt: at(3)}}
		if w.polls[r.GetNode()]++; w.polls[r.GetNode()] > 1 {
			n.Runs, n.Work = nil, nil
		}
	}
	return n, refused("show node "+r.GetNode(), r.GetNode())
}

func (w *world) ExplainNode(_ context.Context, r *apiv1.GetNodeRequest) (*apiv1.ExplainNodeResponse, error) {
	return &apiv1.ExplainNodeResponse{Node: r.GetNode(), Revision: 7, Conditions: []*apiv1.ConditionExplanation{
		{Definition: "gpu", Value: "false", Parts: []*apiv1.ConditionPart{
			{Source: "cpuinfo.cpu_cores >= 32", Value: "false", Seen: map[string]string{"cpuinfo.cpu_cores": "2"}},
			{Source: `osrelease.id == "x"`, Value: "unknown", Seen: map[string]string{"osrelease.id": "(absent)"}},
		}},
		{Definition: "odd", Value: "error", Error: "index out of range"}, {Definition: "any", Value: "true"},
	}}, nil
}

func (w *world) SetNodeScheduling(_ context.Context, r *apiv1.SetNodeSchedulingRequest) (*apiv1.Node, error) {
	state := map[string]string{"cordon": "cordoned", "drain": "draining", "uncordon": "ready"}[r.GetAction()]
	return &apiv1.Node{Id: r.GetNode(), Status: state, Reason: r.GetReason()}, refused(r.GetAction()+" node", r.GetNode())
}

func (w *world) ListDefinitions(context.Context, *apiv1.ListDefinitionsRequest) (*apiv1.ListDefinitionsResponse, error) {
	free, price := 0.0, 2.5
	return &apiv1.ListDefinitionsResponse{Revision: 7, Definitions: []*apiv1.Definition{
		{Id: "gpu", Configured: "gpu", Provisioner: "static", CostPerHour: &price, Nodes: 2, Ready: 1, State: "active", Condition: "true", Policy: "p", Capacity: &apiv1.Capacity{Cores: 64, MemoryBytes: 256 << 30}},
		{Id: "free", Configured: "free", Provisioner: "static", CostPerHour: &free, State: "active"},
		{Id: "t3.micro", Configured: "${spec.instanceType}", Provisioner: "aws", Instance: "t3.micro", State: "backend not in this build", Capacity: &apiv1.Capacity{Cores: 1}, Estimated: true},
	}}, nil
}

func (w *world) CreateJoinToken(context.Context, *apiv1.CreateJoinTokenRequest) (*apiv1.CreateJoinTokenResponse, error) {
	return &apiv1.CreateJoinTokenResponse{Token: "id.secret.pin", Expires: at(30)}, nil
}

func (w *world) StartWorkflow(_ context.Context, r *apiv1.StartWorkflowRequest) (*apiv1.StartWorkflowResponse, error) {
	text := string(r.GetYaml())
	for _, k := range []string{"missing", "secret", "defect"} {
		if strings.Contains(text, k) {
			return nil, refused("start the workflow", k)
		}
	}
	id := "w-good"
	if strings.Contains(text, "failing") {
		id = "w-bad"
	}
	return &apiv1.StartWorkflowResponse{Workflow: &apiv1.Workflow{Id: id, Name: "train", Status: "queued"}, Warnings: []string{"w.yaml:3:1: two limits"}}, nil
}

// GetWorkflow moves w-good and w-bad one step at each look.
func (w *world) GetWorkflow(_ context.Context, r *apiv1.GetWorkflowRequest) (*apiv1.Workflow, error) {
	if err := refused("show workflow", r.GetId()); err != nil {
		return nil, err
	}
	w.mu.Lock()
	step := w.polls[r.GetId()]
	w.polls[r.GetId()]++
	w.mu.Unlock()
	zero, three := int32(0), int32(3)
	prepare := &apiv1.Job{Id: "w/prepare", Name: "prepare", Kind: "job", Class: "batch", Status: "queued", Attempt: 1, Submitted: at(1), Position: 2,
		Reason: &apiv1.Reason{Code: "insufficient-resources", Rule: 4, Text: "1 core short on n1", Blocking: []string{"v/x"}, NearestNode: "n1"}, EstimatedStart: at(9)}
	train := &apiv1.Job{Id: "w/train/1", Name: "train/1", Kind: "job", Class: "batch", Status: "pending", DependsOn: []string{"prepare"}, Submitted: at(1)}
	wf := &apiv1.Workflow{Id: r.GetId(), Name: "train", Status: "queued", User: "mia", Group: "research", Organization: "acme", Submitted: at(1), Jobs: []*apiv1.Job{prepare, train}}
	run := func(j *apiv1.Job, state string, exit *int32) {
		j.Status, j.Nodes, j.Started, j.Reason, j.Position, j.EstimatedStart, j.Attempt = state, []string{"n1"}, at(2), nil, 0, nil, max(j.GetAttempt(), 1)
		if exit != nil {
			j.Ended, j.ExitCode = at(4), exit
		}
	}
	if step >= 1 || r.GetId() == "w-done" {
		run(prepare, "running", nil)
		wf.Status, wf.Started = "running", at(2)
	}
	if step >= 2 || r.GetId() == "w-done" {
		wf.Ended = at(4)
		if r.GetId() == "w-bad" {
			run(prepare, "failed", &three)
			train.Status, train.Message = "cancelled", "prepare did not finish"
			wf.Status, wf.Counts = "failed", map[string]uint32{"failed": 1, "cancelled": 1}
		} else {
			run(prepare, "finished", &zero)
			run(train, "finished", &zero)
			wf.Status, wf.Counts = "finished", map[string]uint32{"finished": 2}
		}
	}
	return wf, nil
}

func (w *world) ListWorkflows(_ context.Context, r *apiv1.ListWorkflowsRequest) (*apiv1.ListWorkflowsResponse, error) {
	if r.GetStatus() == "lost" {
		return &apiv1.ListWorkflowsResponse{}, nil
	}
	return &apiv1.ListWorkflowsResponse{Workflows: []*apiv1.Workflow{
		{Id: "w-2", Name: "train", Status: "running", User: "mia", Group: "research", Organization: "acme", Submitted: at(2), Started: at(3), Counts: map[string]uint32{"finished": 2, "running": 1}},
		{Id: "w-1", Name: "old", Status: "finished", User: "mia", Submitted: at(1), Started: at(1), Ended: at(2), Counts: map[string]uint32{"finished": 3}},
	}}, nil
}

func (w *world) CancelWorkflow(_ context.Context, r *apiv1.CancelWorkflowRequest) (*apiv1.Workflow, error) {
	return &apiv1.Workflow{Id: r.GetId(), Name: "train", Status: "cancelled", Counts: map[string]uint32{"cancelled": 2}}, refused("cancel workflow", r.GetId())
}

func (w *world) ExplainWorkflow(_ context.Context, r *apiv1.ExplainWorkflowRequest) (*apiv1.ExplainWorkflowResponse, error) {
	price := 2.5
	return &apiv1.ExplainWorkflowResponse{Jobs: []*apiv1.JobExplanation{{
		Job: &apiv1.Job{Name: "train", Status: "queued", Class: "batch", Position: 1, Reason: &apiv1.Reason{Code: "insufficient-resources", Rule: 4, Text: "2 GPUs short", Blocking: []string{"w-0/a"}, NearestNode: "n1"}},
		Definitions: []*apiv1.DefinitionOutcome{
			{Definition: "gpu", Admissible: true, ReadyNodes: 1, CostPerHour: &price}, {Definition: "large", RefusedBy: "policy", Reason: "request.job_ttl <= 60.0 is false"},
		},
	}}}, refused("explain workflow", r.GetId())
}

func (w *world) WatchEvents(r *apiv1.WatchEventsRequest, out grpc.ServerStreamingServer[apiv1.Event]) error {
	if err := refused("read events", r.GetWorkflow()); err != nil {
		return err
	}
	for _, e := range []*apiv1.Event{
		{Sequence: 11, Time: at(1), Kind: "submitted", Workflow: "w", Message: "by mia"},
		{Sequence: 12, Time: at(2), Kind: "preempted", Workflow: "w", Job: "train", Message: "for w-9 on cluster c", Metadata: map[string]string{"by": "w-9"}},
	} {
		if e.GetSequence() > r.GetAfter() {
			if err := out.Send(e); err != nil {
				return err
			}
			if w.stops(r.GetWorkflow(), r.GetFollow()) {
				return refuse(codes.Unavailable, "cannot follow events: the coordinator is stopping", "")
			}
		}
	}
	if r.GetWorkflow() == "w-endless" {
		<-out.Context().Done()
	}
	return nil
}

// stops reports, once for each kind of stream, that w-stopping loses its coordinator.
func (w *world) stops(workflow string, follow bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if workflow != "w-stopping" || !follow || w.polls["stopped"] > 0 {
		return false
	}
	w.polls["stopped"]++
	return true
}

func (w *world) ReadLog(r *apiv1.ReadLogRequest, out grpc.ServerStreamingServer[apiv1.LogData]) error {
	if err := refused("read the log", r.GetWorkflow()); err != nil {
		return err
	}
	parts := []*apiv1.LogData{{Stream: "stdout", Data: []byte("one\ntw")}, {Stream: "stderr", Data: []byte("careful\n")}, {Stream: "stdout", Data: []byte("o\nend")}}
	if r.GetJob() == "mesh" {
		parts = []*apiv1.LogData{
			{Stream: "stdout", Ranks: 2, Data: []byte("from ze")}, {Stream: "stdout", Ranks: 2, Rank: 1, Data: []byte("from one\n")},
			{Stream: "stdout", Ranks: 2, Data: []byte("ro\n")}, {Stream: "stderr", Ranks: 2, Rank: 1, Data: []byte("careful")},
		}
	}
	for _, d := range parts {
		if r.GetStream() == "" || r.GetStream() == d.GetStream() {
			if err := out.Send(d); err != nil {
				return err
			}
			if d.GetStream() == "stderr" && w.stops(r.GetWorkflow(), r.GetFollow()) {
				return status.Error(codes.Unavailable, "error reading from server: EOF") // as the transport says it
			}
		}
	}
	if r.GetWorkflow() == "w-endless" {
		<-out.Context().Done()
	}
	return nil
}

func (w *world) ShowQueue(_ context.Context, r *apiv1.ShowQueueRequest) (*apiv1.ShowQueueResponse, error) {
	if r.GetMine() {
		return &apiv1.ShowQueueResponse{}, nil
	}
	return &apiv1.ShowQueueResponse{Total: 1, Jobs: []*apiv1.Job{{Id: "w-1/train", WorkflowId: "w-1", WorkflowName: "night", User: "mia", Name: "train", Class: "batch", Status: "queued", Position: 1, Submitted: at(1), EstimatedStart: at(9),
		Reason: &apiv1.Reason{Code: "insufficient-resources", Rule: 4, Text: "2 GPUs short"}}}}, nil
}

func (w *world) GetCapacity(context.Context, *apiv1.GetCapacityRequest) (*apiv1.GetCapacityResponse, error) {
	none := 0.0
	return &apiv1.GetCapacityResponse{GeneratedAt: at(1),
		Classes:     []*apiv1.ClassCapacity{{Class: "on-demand", FreeCores: 5, FreeGpus: 1, EstimatedWaitMinutes: &none}, {Class: "batch", Waiting: 3}},
		Definitions: []*apiv1.DefinitionCapacity{{Definition: "gpu", Nodes: 2, Ready: 1, Total: gpuNode().GetCapacity(), Free: &apiv1.Capacity{Cores: 5, MemoryBytes: 1 << 30}}}}, nil
}

func (w *world) ValidateWorkflow(_ context.Context, r *apiv1.ValidateWorkflowRequest) (*apiv1.ValidateWorkflowResponse, error) {
	return &apiv1.ValidateWorkflowResponse{Diagnostics: []*apiv1.ValidationMessage{
		{Severity: "error", File: r.GetFile(), Line: 4, Column: 3, Path: "jobs.a", Message: "no definition admits it", Hint: "ask for less"},
	}}, nil
}

func organization() *apiv1.Organization {
	return &apiv1.Organization{Id: "992e", Name: "acme", Priority: 5, Created: at(0)}
}
func group() *apiv1.Group {
	return &apiv1.Group{Id: "g-1", Name: "research", Organization: "acme", Priority: 10, Preempts: []string{"batch"}, Created: at(0)}
}
func user() *apiv1.User {
	return &apiv1.User{Role: "member", Id: "5b72", Name: "mia", Email: "m@x", Organization: "acme", Groups: []string{"research", "ml"}, Priority: 2, UnixUser: "mia1", Created: at(0)}
}

func (w *world) WhoAmI(ctx context.Context, _ *apiv1.WhoAmIRequest) (*apiv1.WhoAmIResponse, error) {
	u := user()
	md, _ := metadata.FromIncomingContext(ctx)
	u.Admin = md.Get("authorization")[0] == "Bearer "+adminToken
	return &apiv1.WhoAmIResponse{User: u, Organization: organization()}, nil
}
func (w *world) ListOrganizations(context.Context, *apiv1.ListOrganizationsRequest) (*apiv1.ListOrganizationsResponse, error) {
	return &apiv1.ListOrganizationsResponse{Organizations: []*apiv1.Organization{organization()}}, nil
}
func (w *world) CreateOrganization(context.Context, *apiv1.CreateOrganizationRequest) (*apiv1.Organization, error) {
	return organization(), nil
}
func (w *world) UpdateOrganization(_ context.Context, r *apiv1.UpdateOrganizationRequest) (*apiv1.Organization, error) {
	return organization(), refused("change the organization", r.GetId())
}
func (w *world) ListGroups(context.Context, *apiv1.ListGroupsRequest) (*apiv1.ListGroupsResponse, error) {
	return &apiv1.ListGroupsResponse{Groups: []*apiv1.Group{group()}}, nil
}
func (w *world) CreateGroup(context.Context, *apiv1.CreateGroupRequest) (*apiv1.Group, error) {
	return group(), nil
}
func (w *world) UpdateGroup(context.Context, *apiv1.UpdateGroupRequest) (*apiv1.Group, error) {
	return group(), nil
}
func (w *world) ListUsers(context.Context, *apiv1.ListUsersRequest) (*apiv1.ListUsersResponse, error) {
	return &apiv1.ListUsersResponse{Users: []*apiv1.User{user()}}, nil
}
func (w *world) CreateUser(context.Context, *apiv1.CreateUserRequest) (*apiv1.User, error) {
	return user(), nil
}
func (w *world) UpdateUser(context.Context, *apiv1.UpdateUserRequest) (*apiv1.User, error) {
	return user(), nil
}
func (w *world) CreateUserToken(_ context.Context, r *apiv1.CreateUserTokenRequest) (*apiv1.CreateUserTokenResponse, error) {
	return &apiv1.CreateUserTokenResponse{Token: "new.token"}, refused("create token", r.GetUser())
}
func (w *world) GetGrant(_ context.Context, r *apiv1.GetGrantRequest) (*apiv1.Grant, error) {
	return &apiv1.Grant{Organization: "acme", Serial: 3, IssuedAt: at(3), Definitions: []string{"gpu", "old"}, Orphans: []string{"old"}, State: "valid", Jws: "a.b.c"}, refused("show the grant", r.GetOrganization())
}
func (w *world) ListGrantHistory(context.Context, *apiv1.ListGrantHistoryRequest) (*apiv1.ListGrantHistoryResponse, error) {
	many := []*apiv1.GrantEntry{{Id: "a"}, {Id: "b"}, {Id: "b"}, {Id: "c"}, {Id: "d"}, {Id: "e"}, {Id: "f"}, {Id: "g"}}
	return &apiv1.ListGrantHistoryResponse{ClusterId: "c-1", OrganizationId: "o-1", Newest: "a.b.c", Keys: `{"keys":[]}`, Steps: []*apiv1.GrantStep{
		{Serial: 1, IssuedAt: at(1), Digest: "d1", Header: "eyJraWQiOiJrLTEifQ", Added: many},
		{Serial: 2, IssuedAt: at(2), Digest: "d2", Header: "x", Removed: many[:2]}}}, nil
}
func (w *world) RotateGrantKey(context.Context, *apiv1.RotateGrantKeyRequest) (*apiv1.RotateGrantKeyResponse, error) {
	return &apiv1.RotateGrantKeyResponse{Key: "k-2", Previous: "k-1"}, nil
}
func (w *world) SetGrant(_ context.Context, r *apiv1.SetGrantRequest) (*apiv1.Grant, error) {
	return &apiv1.Grant{Organization: "acme", Serial: 4, IssuedAt: at(4), Definitions: r.GetDefinitions(), State: "valid"}, nil
}
func (w *world) AppendProvisionerDefinitions(_ context.Context, r *apiv1.AppendProvisionerDefinitionsRequest) (*apiv1.AppendProvisionerDefinitionsResponse, error) {
	res := &apiv1.AppendProvisionerDefinitionsResponse{}
	for i, d := range r.GetDefinitions() {
		res.Results = append(res.Results, &apiv1.AppendProvisionerDefinitionsResponse_Result{Definition: d, Organization: "acme", AlreadyExisted: i > 0})
	}
	return res, nil
}
func (w *world) GetStatus(context.Context, *apiv1.GetStatusRequest) (*apiv1.GetStatusResponse, error) {
	return &apiv1.GetStatusResponse{Version: "v9", ClusterId: "c-1", ConfigurationRevision: 7, NodesReady: 1, NodesTotal: 2, Waiting: 3, Running: 4, Warnings: []string{"one node is offline"}}, nil
}
