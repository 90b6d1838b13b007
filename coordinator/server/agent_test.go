package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/agentv1"
)

// fakeAgents is the engine as the agents' port sees it.
type fakeAgents struct {
	joinFunc  func(context.Context, engine.JoinRequest) ([]byte, []byte, error)
	renewFunc func(context.Context, coordinator.NodeID, engine.NodeCertificate, []byte) ([]byte, []byte, error)
	mu        sync.Mutex
	nodes     []coordinator.NodeID
	hellos    []engine.Hello
	session   *fakeSession
	err       error
}

func (f *fakeAgents) Join(ctx context.Context, in engine.JoinRequest) ([]byte, []byte, error) {
	return f.joinFunc(ctx, in)
}

func (f *fakeAgents) RenewCertificate(ctx context.Context, node coordinator.NodeID, cert engine.NodeCertificate, csr []byte) ([]byte, []byte, error) {
	return f.renewFunc(ctx, node, cert, csr)
}

func (f *fakeAgents) Connect(_ context.Context, n coordinator.NodeID, h engine.Hello) (*fakeSession, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes, f.hellos = append(f.nodes, n), append(f.hellos, h)
	return f.session, f.err
}

// fakeSession records reports and gives what is put into orders.
type fakeSession struct {
	orders    chan []engine.ToNode
	offsets   []engine.LogOffset
	look      *engine.Look
	closed    chan struct{}
	logFunc   func(coordinator.RunID, string, uint64, []byte, bool) (uint64, error)
	reportErr error

	mu      sync.Mutex
	reports []any
	batches []int
	hold    chan struct{} // RunStatus waits for it
}

var _ Session = (*fakeSession)(nil)

func newSession() *fakeSession {
	return &fakeSession{
		orders: make(chan []engine.ToNode, 8), closed: make(chan struct{}),
		logFunc: func(_ coordinator.RunID, _ string, offset uint64, data []byte, _ bool) (uint64, error) {
			return offset + uint64(len(data)), nil
		},
	}
}

func (s *fakeSession) add(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, v)
	return s.reportErr
}

func (s *fakeSession) Reclaim(_ context.Context, at time.Time, text string) error {
	return s.add(fmt.Sprintf("taken at %s: %s", at.Format(time.RFC3339), text))
}
func (s *fakeSession) Hardware(_ context.Context, r engine.HardwareReport) error { return s.add(r) }
func (s *fakeSession) Conditions(_ context.Context, r engine.ConditionReport) error {
	return s.add(r)
}
func (s *fakeSession) RunStatus(_ context.Context, rs []engine.RunStatus) error {
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	s.batches = append(s.batches, len(rs))
	s.mu.Unlock()
	for _, r := range rs {
		_ = s.add(r)
	}
	return s.reportErr
}
func (s *fakeSession) AppendLog(run coordinator.RunID, stream string, offset uint64, data []byte, last bool) (uint64, error) {
	return s.logFunc(run, stream, offset, data, last)
}
func (s *fakeSession) Next(ctx context.Context) ([]engine.ToNode, error) {
	select {
	case o, ok := <-s.orders:
		if !ok {
			return nil, coordinator.Errorf(coordinator.ErrConflict, "serve the node", "another stream of the node took over")
		}
		return o, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
func (s *fakeSession) Offsets() []engine.LogOffset { return s.offsets }
func (s *fakeSession) Look() *engine.Look          { return s.look }
func (s *fakeSession) Close()                      { close(s.closed) }

// testAgents is the agents' server on a real mTLS port.
type testAgents struct {
	t       *testing.T
	ca      *authority
	address string
	log     *bytes.Buffer
}

func startAgents(t *testing.T, f *fakeAgents) *testAgents {
	t.Helper()
	a := &testAgents{t: t, ca: newAuthority(t), log: &bytes.Buffer{}}
	conf := &tls.Config{
		Certificates: []tls.Certificate{a.ca.leaf("coordinator", x509.ExtKeyUsageServerAuth)},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: a.ca.pool,
	}
	g, err := NewAgentServer(conf, AgentsOf[*fakeSession](f), AgentOptions{
		Version: "v-test", ClusterID: "c-1", Now: time.Now, SendTimeout: 300 * time.Millisecond, Log: slog.New(slog.NewTextHandler(a.log, nil)),
		Node: func(c *x509.Certificate) (coordinator.NodeID, error) {
			if c.Subject.CommonName == "nobody" {
				return "", errors.New("no node in the certificate")
			}
			return coordinator.NodeID(c.Subject.CommonName), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.address = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return a
}

// as connects with a certificate of the name from the authority; "" without one.
func (a *testAgents) as(name string, from *authority) *grpc.ClientConn {
	a.t.Helper()
	conf := &tls.Config{RootCAs: a.ca.pool}
	if name != "" {
		conf.Certificates = []tls.Certificate{from.leaf(name, x509.ExtKeyUsageClientAuth)}
	}
	c, err := grpc.NewClient("passthrough:///"+a.address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	return c
}

type agentStream = grpc.BidiStreamingClient[agentv1.FromAgent, agentv1.ToAgent]

func (a *testAgents) connect(name string, hello *agentv1.Hello) agentStream {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
	a.t.Cleanup(cancel)
	s, err := agentv1.NewAgentClient(a.as(name, a.ca)).Connect(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_Hello{Hello: hello}}); err != nil {
		a.t.Fatal(err)
	}
	return s
}

func receive(t *testing.T, s agentStream) *agentv1.ToAgent {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s did not happen", what)
}

func TestNodeIsTheOneOfTheCertificate(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.offsets = []engine.LogOffset{{Run: "w/j#1", Stream: "stdout", Offset: 42}}
	a := startAgents(t, f)
	// Everything in a hello that could name a node is somebody else's.
	s := a.connect("node-7", &agentv1.Hello{
		Version: "v1", BootId: "node-8", ConfigurationRevision: 3, RunsAsCaller: true, Runtimes: []string{"process"},
		Runs: []*agentv1.RunStatus{{RunId: "w/j#1", State: "ended", Cause: "exited", ExitCode: 3, Ended: timestamppb.New(at(3))}},
	})
	w := receive(t, s).GetWelcome()
	if w.GetClusterId() != "c-1" || w.GetCoordinatorVersion() != "v-test" || len(w.GetOffsets()) != 1 || w.GetOffsets()[0].GetOffset() != 42 {
		t.Errorf("welcome %v", w)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.nodes, []coordinator.NodeID{"node-7"}) {
		t.Errorf("nodes %v", f.nodes)
	}
	h := f.hellos[0]
	if h.Version != "v1" || h.BootID != "node-8" || h.Revision != 3 || !h.RunsAsCaller || !slices.Equal(h.Runtimes, []string{"process"}) ||
		len(h.Runs) != 1 || h.Runs[0] != (engine.RunStatus{Run: "w/j#1", State: engine.RunEnded, Cause: engine.CauseExited, ExitCode: 3, Ended: at(3)}) {
		t.Errorf("hello %+v", h)
	}
}

// TestNoMessageNamesANode keeps the protocol such that an agent cannot speak for another node.
func TestNoMessageNamesANode(t *testing.T) {
	fields := agentv1.File_agentv1_agent_proto.Messages().ByName("FromAgent").Fields()
	for i := range fields.Len() {
		m := fields.Get(i).Message()
		for j := range m.Fields().Len() {
			if name := string(m.Fields().Get(j).Name()); strings.Contains(name, "node") || name == "hostname" {
				t.Errorf("%s.%s names a node", m.Name(), name)
			}
		}
	}
}

func TestStrangersAreRefused(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	a := startAgents(t, f)
	stranger := newAuthority(t)
	for _, c := range []struct {
		name string
		conn *grpc.ClientConn
		want codes.Code
	}{
		{"no certificate", a.as("", nil), codes.Unauthenticated},
		{"certificate without a node", a.as("nobody", a.ca), codes.Unauthenticated},
		{"certificate of another authority", a.as("node-7", stranger), codes.Unavailable}, // the handshake fails
	} {
		s, err := agentv1.NewAgentClient(c.conn).Connect(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if len(f.nodes) != 0 {
		t.Errorf("the engine saw %v", f.nodes)
	}
}

func TestServerNeedsClientVerification(t *testing.T) {
	ok := AgentOptions{Now: time.Now, Log: slog.Default(), Node: func(*x509.Certificate) (coordinator.NodeID, error) { return "n", nil }}
	pool := x509.NewCertPool()
	for name, c := range map[string]*tls.Config{
		"none": nil, "no pool": {ClientAuth: tls.VerifyClientCertIfGiven}, "not verified": {ClientCAs: pool, ClientAuth: tls.RequestClientCert},
	} {
		if _, err := NewAgentServer(c, nil, ok); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestJoinNeedsNoCertificate(t *testing.T) {
	f := &fakeAgents{joinFunc: func(_ context.Context, in engine.JoinRequest) ([]byte, []byte, error) {
		token, node, csr := in.Token, in.Node, in.CSR
		if token != "id.secret" {
			return nil, nil, coordinator.Errorf(coordinator.ErrUnauthenticated, "let a node join", "unknown token")
		}
		return []byte("cert of " + node + string(csr)), []byte("ca"), nil
	}}
	a := startAgents(t, f)
	c := agentv1.NewEnrolmentClient(a.as("", nil))
	r, err := c.Join(t.Context(), &agentv1.JoinRequest{Token: "id.secret", Node: "n1", Csr: []byte("-csr")})
	if err != nil || string(r.GetCertificate()) != "cert of n1-csr" || string(r.GetCa()) != "ca" || r.GetNode() != "n1" {
		t.Errorf("%v %v", r, err)
	}
	if _, err := c.Join(t.Context(), &agentv1.JoinRequest{Token: "id.secret", Csr: make([]byte, maxCSR+1)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a huge request: %v", err)
	}
	for range failuresAllowed {
		if _, err := c.Join(t.Context(), &agentv1.JoinRequest{Token: "guess"}); status.Code(err) != codes.Unauthenticated {
			t.Fatalf("a guess: %v", err)
		}
	}
	if _, err := c.Join(t.Context(), &agentv1.JoinRequest{Token: "guess"}); status.Code(err) != codes.ResourceExhausted || strings.Contains(err.Error(), "unknown token") {
		t.Errorf("after many guesses: %v", err)
	}
	if _, err := c.Join(t.Context(), &agentv1.JoinRequest{Token: "id.secret"}); err != nil {
		t.Errorf("a good token from a source that guesses: %v", err)
	}
}

func TestFirstMessageIsHello(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	a := startAgents(t, f)
	s, err := agentv1.NewAgentClient(a.as("n1", a.ca)).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_RunStatus{RunStatus: &agentv1.RunStatus{}}})
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("%v", err)
	}
}

func TestReportsReachTheSession(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	s := startAgents(t, f).connect("n1", &agentv1.Hello{})
	receive(t, s)
	for _, m := range []*agentv1.FromAgent{
		{Message: &agentv1.FromAgent_Hardware{Hardware: &agentv1.HardwareReport{Digest: []byte{1}, FactsJson: []byte("{}"), Warnings: []*agentv1.Warning{{Source: "s", Message: "m"}}}}},
		{Message: &agentv1.FromAgent_Conditions{Conditions: &agentv1.ConditionResults{Revision: 4, Results: []*agentv1.ConditionResult{
			{Definition: "d", Value: "unknown", Error: "e", Parts: []*agentv1.ConditionPart{{Source: "x", Value: "unknown", Seen: map[string]string{"a": "(absent)"}}}},
		}}}},
		{}, // of a newer agent
		{Message: &agentv1.FromAgent_RunStatus{RunStatus: &agentv1.RunStatus{RunId: "w/j#2", State: "running", Started: timestamppb.New(at(5))}}},
	} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three reports", func() bool {
		f.session.mu.Lock()
		defer f.session.mu.Unlock()
		return len(f.session.reports) == 3
	})
	want := fmt.Sprintf("%+v", []any{
		engine.HardwareReport{Digest: []byte{1}, Facts: []byte("{}"), Warnings: []engine.NodeWarning{{Source: "s", Message: "m"}}},
		engine.ConditionReport{Revision: 4, Results: []engine.ConditionView{{Definition: "d", Value: "unknown", Error: "e", Parts: []engine.ConditionPart{{Source: "x", Value: "unknown", Seen: map[string]string{"a": "(absent)"}}}}}},
		engine.RunStatus{Run: "w/j#2", State: engine.RunRunning, Started: at(5)},
	})
	if got := fmt.Sprintf("%+v", f.session.reports); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); err == nil || err.Error() != "EOF" {
		t.Errorf("end: %v", err)
	}
	<-f.session.closed
}

func TestOrdersReachTheAgent(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	job := &coordinator.JobSpec{
		Command: []string{"true"}, Image: "docker://x", Mounts: []coordinator.Mount{{Source: "/a", Target: "/b"}},
		Resources: coordinator.Resources{Cores: 4, Threads: true, Memory: 1 << 30, ByCore: true, Devices: map[string]uint32{"nvidia.com/gpu": 2}},
	}
	f.session.orders <- []engine.ToNode{
		{Configuration: &engine.NodeConfiguration{Revision: 3, Definitions: []engine.NodeDefinition{{ID: "d", Condition: "true"}}}},
		{}, // an empty order is not sent
		{Start: &engine.StartRun{Run: "w/j#1", Fence: 9, Job: job, Env: []string{"A=b"}, UnixUser: "mia", Walltime: time.Hour, KillAfter: 10 * time.Second, Rank: 1, Nodes: []coordinator.NodeID{"n1", "n2"}}},
	}
	f.session.orders <- []engine.ToNode{{Stop: &engine.StopRun{Run: "w/j#1", Grace: 5 * time.Second, Reason: "cancelled"}}, {Ended: []coordinator.RunID{"w/j#1"}}}
	s := startAgents(t, f).connect("n1", &agentv1.Hello{})
	receive(t, s)
	for _, want := range []string{
		`{"configuration":{"revision":"3","definitions":[{"id":"d","condition":"true"}]}}`,
		`{"start":{"runId":"w/j#1","fence":"9","command":["true"],"image":"docker://x","env":["A=b"],"unixUser":"mia","cores":4,"threads":true,"memoryBytes":"4294967296","devices":{"nvidia.com/gpu":2},"walltime":"3600s","killAfter":"10s","mounts":[{"source":"/a","target":"/b"}],"rank":1,"nodes":["n1","n2"]}}`,
		`{"stop":{"runId":"w/j#1","grace":"5s","reason":"cancelled"}}`,
		`{"ack":{"endedRuns":["w/j#1"]}}`,
	} {
		var w agentv1.ToAgent
		if err := protojson.Unmarshal([]byte(want), &w); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, s); !proto.Equal(got, &w) {
			t.Errorf("\n got %v\nwant %v", got, &w)
		}
	}
}

// TestADiskThatTakesNoOutput: the stream lives on, nothing is acknowledged that is not stored, and one
// line tells the administrator.
func TestADiskThatTakesNoOutput(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.logFunc = func(run coordinator.RunID, _ string, offset uint64, data []byte, _ bool) (uint64, error) {
		if run == "full#1" {
			return 0, coordinator.Errorf(coordinator.ErrInternal, "store output", "log disk is full")
		}
		return offset + uint64(len(data)), nil
	}
	a := startAgents(t, f)
	s := a.connect("n1", &agentv1.Hello{})
	receive(t, s)
	for i, run := range []string{"full#1", "full#1", "good#1", "full#1", "good#1"} {
		chunk := &agentv1.LogChunk{RunId: run, Stream: "stdout", Offset: uint64(i), Data: []byte("x")}
		if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{LogChunk: chunk}}); err != nil {
			t.Fatal(err)
		}
	}
	for stored := uint64(0); stored < 5; {
		for _, o := range receive(t, s).GetAck().GetLogs() {
			if o.GetRunId() != "good#1" {
				t.Fatalf("acknowledged %v", o)
			}
			stored = o.GetOffset()
		}
	}
	_ = s.CloseSend()
	<-f.session.closed
	if n := strings.Count(a.log.String(), "output of jobs is not stored"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, a.log)
	}
}

func TestSeldom(t *testing.T) {
	var s seldom
	for i, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {1, 0}, {seldomEvery - 1, 0}, {seldomEvery, 3}, {seldomEvery + 1, 0}, {3 * seldomEvery, 2}} {
		if got := s.note(at(0).Add(tt.after)); got != tt.want {
			t.Errorf("step %d: %d, want %d", i, got, tt.want)
		}
	}
}

func TestLogsAreAcknowledgedWithTheStoredOffset(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.logFunc = func(run coordinator.RunID, _ string, offset uint64, data []byte, _ bool) (uint64, error) {
		switch run {
		case "gone#1":
			return 0, coordinator.Errorf(coordinator.ErrNotFound, "store output", "no such run")
		case "ahead#1":
			return 5, nil // the coordinator has less than the agent thinks
		}
		return offset + uint64(len(data)), nil
	}
	s := startAgents(t, f).connect("n1", &agentv1.Hello{})
	receive(t, s)
	send := func(run, stream string, offset uint64, data string) {
		if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{LogChunk: &agentv1.LogChunk{RunId: run, Stream: stream, Offset: offset, Data: []byte(data)}}}); err != nil {
			t.Fatal(err)
		}
	}
	send("w/j#1", "stdout", 0, "hello")
	send("w/j#1", "stdout", 5, "world")
	send("w/j#1", "stderr", 0, "!")
	send("gone#1", "stdout", 7, "abc")
	send("ahead#1", "stdout", 100, "abc")
	got := map[string]uint64{}
	for len(got) < 4 || got["w/j#1 stdout"] < 10 {
		for _, o := range receive(t, s).GetAck().GetLogs() {
			got[o.GetRunId()+" "+o.GetStream()] = o.GetOffset()
		}
	}
	want := map[string]uint64{"w/j#1 stdout": 10, "w/j#1 stderr": 1, "gone#1 stdout": 10, "ahead#1 stdout": 5}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	send("w/j#1", "video", 0, "x")
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown stream: %v", err)
	}
}

func TestStatusesThatPiledUpGoTogether(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.hold = make(chan struct{})
	s := startAgents(t, f).connect("n1", &agentv1.Hello{})
	receive(t, s)
	const n = 40
	for i := range n {
		if err := s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_RunStatus{RunStatus: &agentv1.RunStatus{RunId: fmt.Sprintf("w/j/%d#1", i), State: "running"}}}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // all are in the inbox or on their way
	close(f.session.hold)
	eventually(t, "all statuses", func() bool {
		f.session.mu.Lock()
		defer f.session.mu.Unlock()
		return len(f.session.reports) == n
	})
	if len(f.session.batches) >= n/2 {
		t.Errorf("%d calls for %d statuses", len(f.session.batches), n)
	}
	for i, r := range f.session.reports {
		if got := r.(engine.RunStatus).Run; got != coordinator.RunID(fmt.Sprintf("w/j/%d#1", i)) {
			t.Fatalf("report %d is of %s", i, got)
		}
	}
}

// TestSlowConsumer: an agent that writes logs and reads nothing loses its stream, and while it
// lasts neither its reports nor the engine wait for it without bound.
func TestSlowConsumer(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	s := startAgents(t, f).connect("slow", &agentv1.Hello{})
	big := engine.ToNode{Start: &engine.StartRun{Run: "w/j#1", Job: &coordinator.JobSpec{Script: strings.Repeat("x", 1<<20)}}}
	sent := 0
	for {
		select {
		case f.session.orders <- []engine.ToNode{big}:
			sent++
			continue
		case <-f.session.closed:
		case <-time.After(10 * time.Second):
			t.Fatal("the stream of a stuck agent did not end")
		}
		break
	}
	if sent > 30 {
		t.Errorf("%d MiB were taken from the engine for an agent that reads nothing", sent)
	}
	var err error
	for err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}

func TestEndOfTheSessionEndsTheStream(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	s := startAgents(t, f).connect("n1", &agentv1.Hello{})
	receive(t, s)
	close(f.session.orders) // another stream of the node took over
	if _, err := s.Recv(); status.Code(err) != codes.Aborted || !strings.Contains(status.Convert(err).Message(), "took over") {
		t.Errorf("%v", err)
	}
	<-f.session.closed
}

func TestPanicInAReportEndsOneStreamOnly(t *testing.T) {
	f := &fakeAgents{session: newSession()}
	f.session.logFunc = func(coordinator.RunID, string, uint64, []byte, bool) (uint64, error) { panic("defect") }
	a := startAgents(t, f)
	s := a.connect("n1", &agentv1.Hello{})
	receive(t, s)
	_ = s.Send(&agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{LogChunk: &agentv1.LogChunk{RunId: "r", Stream: "stdout"}}})
	if _, err := s.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	f.mu.Lock()
	f.session = newSession()
	f.mu.Unlock()
	if w := receive(t, a.connect("n2", &agentv1.Hello{})).GetWelcome(); w == nil {
		t.Error("the server does not go on")
	}
}

func FuzzIfMatch(f *testing.F) {
	for _, s := range []string{`"7"`, `7`, `*`, `W/"7"`, `"7", "8"`, `"-1"`, `"18446744073709551616"`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		rev, err := ifMatch(withIncoming(t.Context(), "grpcgateway-if-match", header))
		if err == nil && rev != nil && strings.Trim(header, `"`) == "" {
			t.Errorf("%q is revision %d", header, *rev)
		}
	})
}
