package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"substrate/agent/runtime"
	"substrate/proto/agentv1"
)

// coordinator is the other side: it keeps what agents say and says what the test wants.
type coordinator struct {
	agentv1.UnimplementedAgentServer
	t       *testing.T
	address string
	server  *grpc.Server
	offsets func(*agentv1.Hello) []*agentv1.LogOffset
	cluster string
	look    *agentv1.Look

	mu      sync.Mutex
	streams chan *stream
}

type stream struct {
	hello *agentv1.Hello
	in    chan *agentv1.FromAgent
	out   chan *agentv1.ToAgent
	end   chan error // what the handler returns
}

func (c *coordinator) Connect(s grpc.BidiStreamingServer[agentv1.FromAgent, agentv1.ToAgent]) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	st := &stream{hello: m.GetHello(), in: make(chan *agentv1.FromAgent, 10000), out: make(chan *agentv1.ToAgent, 10000), end: make(chan error, 1)}
	w := &agentv1.Welcome{CoordinatorVersion: "test", ClusterId: c.cluster, Look: c.look}
	c.mu.Lock()
	if c.offsets != nil {
		w.Offsets = c.offsets(st.hello)
	}
	c.mu.Unlock()
	if err := s.Send(&agentv1.ToAgent{Message: &agentv1.ToAgent_Welcome{Welcome: w}}); err != nil {
		return err
	}
	go func() {
		for {
			m, err := s.Recv()
			if err != nil {
				close(st.in)
				return
			}
			st.in <- m
		}
	}()
	c.streams <- st
	for {
		select {
		case m := <-st.out:
			if err := s.Send(m); err != nil {
				return err
			}
		case err := <-st.end:
			return err
		case <-s.Context().Done():
			return nil
		}
	}
}

func (c *coordinator) stream() *stream {
	c.t.Helper()
	select {
	case s := <-c.streams:
		return s
	case <-time.After(10 * time.Second):
		c.t.Fatal("no agent connected")
		return nil
	}
}

// next waits for a message that pick accepts; others are passed over.
func next[T any](t *testing.T, s *stream, pick func(*agentv1.FromAgent) (T, bool)) T {
	t.Helper()
	var passed []string
	timeout := time.After(10 * time.Second)
	for {
		select {
		case m, ok := <-s.in:
			if !ok {
				t.Fatalf("the stream ended; passed over: %s", strings.Join(passed, "\n"))
			}
			if v, ok := pick(m); ok {
				return v
			}
			passed = append(passed, fmt.Sprintf("%.200s", m))
		case <-timeout:
			t.Fatalf("no such message; passed over: %s", strings.Join(passed, "\n"))
		}
	}
}

func ended(id string) func(*agentv1.FromAgent) (*agentv1.RunStatus, bool) {
	return inState(id, "ended")
}

func inState(id, state string) func(*agentv1.FromAgent) (*agentv1.RunStatus, bool) {
	return func(m *agentv1.FromAgent) (*agentv1.RunStatus, bool) {
		s := m.GetRunStatus()
		return s, s != nil && s.RunId == id && s.State == state
	}
}

func hardware(m *agentv1.FromAgent) (*agentv1.HardwareReport, bool) {
	return m.GetHardware(), m.GetHardware() != nil
}

func conditions(m *agentv1.FromAgent) (*agentv1.ConditionResults, bool) {
	return m.GetConditions(), m.GetConditions() != nil
}

func start(id string, fence uint64, script string) *agentv1.ToAgent {
	return &agentv1.ToAgent{Message: &agentv1.ToAgent_Start{Start: &agentv1.StartRun{RunId: id, Fence: fence, Script: script}}}
}

func ackMessage(ended []string, logs ...*agentv1.LogOffset) *agentv1.ToAgent {
	return &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{EndedRuns: ended, Logs: logs}}}
}

// serve listens on loopback with mutual TLS.
func serve(t *testing.T) (*coordinator, *tls.Config) {
	t.Helper()
	ca, key := certificate(t, nil, nil)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	leaf := func() tls.Certificate {
		cert, k := certificate(t, ca, key)
		return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: k}
	}
	c := &coordinator{t: t, streams: make(chan *stream, 100), cluster: "c1"}
	creds := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{leaf()}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = listener.Addr().String()
	c.server = grpc.NewServer(grpc.Creds(creds))
	agentv1.RegisterAgentServer(c.server, c)
	go c.server.Serve(listener)
	t.Cleanup(c.server.Stop)
	return c, &tls.Config{Certificates: []tls.Certificate{leaf()}, RootCAs: pool, MinVersion: tls.VersionTLS13, ServerName: "localhost"}
}

func certificate(t *testing.T, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// fakeRuntime does what it is told at once: a script is the text a run writes, with "wait" in it
// the run does not end by itself.
type fakeRuntime struct {
	dir string

	mu      sync.Mutex
	runs    map[runtime.RunID]*runtime.Status
	dirty   map[runtime.RunID]bool
	started map[runtime.RunID]int
	forgot  []runtime.RunID
	stopped []string
	signals []syscall.Signal
	first   bool
	wake    chan struct{}
}

var _ runtime.Runtime = (*fakeRuntime)(nil)

func newFakeRuntime(t *testing.T) *fakeRuntime {
	return &fakeRuntime{dir: t.TempDir(), runs: map[runtime.RunID]*runtime.Status{}, dirty: map[runtime.RunID]bool{},
		started: map[runtime.RunID]int{}, wake: make(chan struct{}, 1)}
}

func (f *fakeRuntime) path(id runtime.RunID, s runtime.Stream) string {
	return f.dir + "/" + runtime.EncodeRunID(id) + "." + string(s)
}

func (f *fakeRuntime) Output(id runtime.RunID, s runtime.Stream) (*os.File, error) {
	return os.Open(f.path(id, s))
}

func (f *fakeRuntime) Start(_ context.Context, spec runtime.Spec) error {
	f.mu.Lock()
	f.started[spec.ID]++
	f.runs[spec.ID] = &runtime.Status{ID: spec.ID, State: runtime.StateRunning, Started: time.Now()}
	f.mu.Unlock()
	f.write(spec.ID, spec.Script)
	if !strings.Contains(spec.Script, "wait") {
		f.end(spec.ID, 0)
	}
	return nil
}

func (f *fakeRuntime) write(id runtime.RunID, text string) {
	for _, s := range []runtime.Stream{runtime.Stdout, runtime.Stderr} {
		file, err := os.OpenFile(f.path(id, s), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		if s == runtime.Stdout {
			_, _ = io.WriteString(file, text)
		}
		file.Close()
	}
	f.touch(id)
}

func (f *fakeRuntime) touch(id runtime.RunID) {
	f.mu.Lock()
	f.dirty[id] = true
	f.mu.Unlock()
	poke(f.wake)
}

func (f *fakeRuntime) end(id runtime.RunID, code int32) {
	info, err := os.Stat(f.path(id, runtime.Stdout))
	if err != nil {
		panic(err)
	}
	f.mu.Lock()
	s := f.runs[id]
	s.State, s.Cause, s.ExitCode, s.Ended = runtime.StateEnded, runtime.CauseExited, code, time.Now()
	s.Stdout = runtime.Bytes(info.Size())
	f.mu.Unlock()
	f.touch(id)
}

func (f *fakeRuntime) Signal(_ context.Context, _ runtime.RunID, s syscall.Signal, _ runtime.Notice) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = append(f.signals, s)
	return nil
}

func (f *fakeRuntime) Stop(_ context.Context, id runtime.RunID, grace time.Duration, reason string) error {
	f.mu.Lock()
	f.stopped = append(f.stopped, fmt.Sprint(id, " ", grace, " ", reason))
	f.mu.Unlock()
	return nil
}

func (f *fakeRuntime) Forget(_ context.Context, ids ...runtime.RunID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.forgot = append(f.forgot, id)
		delete(f.runs, id)
	}
	return nil
}

func (f *fakeRuntime) Updates(ctx context.Context) ([]runtime.Status, error) {
	for {
		f.mu.Lock()
		var out []runtime.Status
		for id := range f.dirty {
			if s := f.runs[id]; s != nil {
				out = append(out, *s)
			}
		}
		clear(f.dirty)
		first := !f.first
		f.first = true
		f.mu.Unlock()
		if first || len(out) > 0 {
			return out, nil
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *fakeRuntime) get(read func() bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

// launch runs an agent until the test, or the returned function, ends it.
func launch(t *testing.T, c *coordinator, creds *tls.Config, rt runtime.Runtime, change func(*Options)) func() {
	t.Helper()
	opts := Options{Coordinator: c.address, TLS: creds, Dir: t.TempDir(), Version: "1.2.3", Runtime: rt, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&opts)
	}
	a, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("agent: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the agent does not stop")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}
