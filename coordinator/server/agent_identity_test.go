package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
	"substrate/proto/agentv1"
)

// realAgents is the agents' port as the daemon makes it, over a real engine on the memory store.
type realAgents struct {
	t       *testing.T
	engine  *engine.Engine
	store   *store.Memory
	admin   engine.Caller
	address string
	ahead   atomic.Int64 // how far the coordinator's clock is before the real one
}

func (r *realAgents) now() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }

func startRealAgents(t *testing.T) *realAgents {
	t.Helper()
	r := &realAgents{t: t, store: store.NewMemory()}
	log := slog.New(slog.DiscardHandler)
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if r.engine, err = engine.New(t.Context(), engine.Options{Store: r.store, Logs: out, Log: log, Now: r.now, Rand: rand.Reader}); err != nil {
		t.Fatal(err)
	}
	ca := r.engine.ServerIdentity()
	cert, err := ca.ServerCertificate([]string{"127.0.0.1"}, time.Now(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewAgentServer(ca.AgentTLS(cert), AgentsOf(r.engine), AgentOptions{Version: "v", ClusterID: ca.Cluster(), Node: auth.NodeFromCertificate, Now: r.now, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- r.engine.Run(ctx) }()
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); cancel(); <-done; <-done; _ = out.Close() })
	token, err := r.engine.AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.admin, err = r.engine.Authenticate(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	return r
}

func newRequest(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

func pairOf(t *testing.T, certificate []byte, key *ecdsa.PrivateKey) *tls.Certificate {
	t.Helper()
	block, _ := pem.Decode(certificate)
	if block == nil {
		t.Fatalf("no certificate: %q", certificate)
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

// signed is a node's certificate that an authority issued at a time, without the node having joined.
func signed(t *testing.T, ca *auth.CA, node coordinator.NodeID, at time.Time, life time.Duration) *tls.Certificate {
	t.Helper()
	key, csr := newRequest(t)
	cert, err := ca.SignNode(csr, node, at, life, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return pairOf(t, cert, key)
}

// joined is a node that joined with a token.
func (r *realAgents) joined(node string) *tls.Certificate {
	r.t.Helper()
	token, _, err := r.engine.CreateJoinToken(r.t.Context(), r.admin, engine.NewJoinToken{})
	if err != nil {
		r.t.Fatal(err)
	}
	key, csr := newRequest(r.t)
	cert, _, err := r.engine.Join(r.t.Context(), engine.JoinRequest{Token: token, Node: node, CSR: csr})
	if err != nil {
		r.t.Fatal(err)
	}
	return pairOf(r.t, cert, key)
}

func (r *realAgents) dial(cert *tls.Certificate) *grpc.ClientConn {
	r.t.Helper()
	conf := &tls.Config{RootCAs: r.engine.ServerIdentity().Pool(), MinVersion: tls.VersionTLS13}
	if cert != nil {
		// Unasked, as an attacker would: the ordinary way shows none that the server's authority did not sign.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	c, err := grpc.NewClient("passthrough:///"+r.address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// stored is every record there is.
func stored(t *testing.T, st store.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := st.List(t.Context(), "", "", 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out[e.Key] = string(e.Value)
	}
	return out
}

// fill puts a word into every field of a message that takes one, so that what is added to the protocol is tried too.
func fill(m protoreflect.Message, words map[string]string, word string, data []byte, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		text := word
		if w, ok := words[string(f.Name())]; ok {
			text = w
		}
		one := func() (protoreflect.Value, bool) {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(text), true
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes(data), true
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(0), true
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true), true
			}
			return protoreflect.Value{}, false
		}
		switch {
		case f.IsMap() || f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		case f.Message() != nil && depth > 0 && f.IsList():
			fill(m.Mutable(f).List().AppendMutable().Message(), words, word, data, depth-1)
		case f.Message() != nil && depth > 0 && !strings.HasPrefix(string(f.Message().FullName()), "google."):
			fill(m.Mutable(f).Message(), words, word, data, depth-1)
		case f.Message() != nil:
		default:
			if v, ok := one(); ok && f.IsList() {
				m.Mutable(f).List().Append(v)
			} else if ok {
				m.Set(f, v)
			}
		}
	}
}

// agentCalls are all RPCs of the agents' port with what is sent: for a stream, every message that an agent can send,
// as the first and after a hello.
func agentCalls(word string, words map[string]string, data []byte) map[string][]proto.Message {
	out := map[string][]proto.Message{}
	services := agentv1.File_agentv1_agent_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			name := fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name())
			if !m.IsStreamingClient() {
				in := dynamicpb.NewMessage(m.Input())
				fill(in, words, word, data, 3)
				out[name] = []proto.Message{in}
				continue
			}
			hello := dynamicpb.NewMessage(m.Input())
			fill(hello.Mutable(m.Input().Fields().ByName("hello")).Message(), words, word, data, 3)
			for k := range m.Input().Fields().Len() {
				in := dynamicpb.NewMessage(m.Input())
				f := m.Input().Fields().Get(k)
				fill(in.Mutable(f).Message(), words, word, data, 3)
				out[name+" "+string(f.Name())] = []proto.Message{in}
				out[name+" hello, "+string(f.Name())] = []proto.Message{hello, in}
			}
		}
	}
	return out
}

// marker is a run that nobody knows; its output is acknowledged once all before it was taken in.
const marker = "none/none#1"

// send makes one of the calls and returns how many answers came, and the end; nil where all was taken in.
func send(ctx context.Context, conn *grpc.ClientConn, name string, messages []proto.Message) (answers int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	method, _, streams := strings.Cut(name, " ")
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: streams, ServerStreams: true}, method)
	if err != nil {
		return 0, err
	}
	if streams {
		messages = append(messages[:len(messages):len(messages)], &agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{
			LogChunk: &agentv1.LogChunk{RunId: marker, Stream: "stdout", Data: []byte("x")}}})
	}
	for _, m := range messages {
		if s.SendMsg(m) != nil {
			break // the end tells why
		}
	}
	if !streams {
		_ = s.CloseSend()
	}
	for {
		var m agentv1.ToAgent
		if err := s.RecvMsg(&m); err != nil {
			return answers, err
		}
		answers++
		if slices.ContainsFunc(m.GetAck().GetLogs(), func(o *agentv1.LogOffset) bool { return o.GetRunId() == marker }) {
			return answers, nil
		}
	}
}

// startsWithHello tells whether the call is one of which the coordinator reads so much that it asks whose it is.
func startsWithHello(call string) bool {
	return !strings.Contains(call, " ") || strings.Contains(call, " hello")
}

// stranger is somebody who is no node of the cluster, and the code that it gets.
type stranger struct {
	conn  *grpc.ClientConn
	as    metadata.MD
	want  codes.Code
	ended bool // has a good certificate that the coordinator ended
}

func (r *realAgents) strangers() map[string]stranger {
	t, ca := r.t, r.engine.ServerIdentity()
	other, err := auth.NewCA("11111111-2222-4333-8444-555555555555", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	twin, err := auth.NewCA(ca.Cluster(), time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := r.engine.CreateUserToken(t.Context(), r.admin, engine.NewToken{})
	if err != nil {
		t.Fatal(err)
	}
	revoked, removed, replaced := r.joined("n-revoked"), r.joined("n-removed"), r.joined("n1")
	r.joined("n1")
	if _, err := r.engine.RevokeNode(t.Context(), r.admin, "n-revoked", "stolen"); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.RemoveNode(t.Context(), r.admin, "n-removed", "sold", true); err != nil {
		t.Fatal(err)
	}
	server, err := ca.ServerCertificate([]string{"n1"}, time.Now(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, csr := newRequest(t)
	federate, err := ca.SignFederate(csr, ca.Cluster(), time.Now(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	late, hour := time.Now().Add(-3*time.Hour), time.Hour
	bearer := metadata.Pairs("authorization", "Bearer "+token)
	// Unavailable: the handshake fails, and no request is read.
	return map[string]stranger{
		"nobody":                               {r.dial(nil), nil, codes.Unauthenticated, false},
		"an administrator's token":             {r.dial(nil), bearer, codes.Unauthenticated, false},
		"another cluster's node":               {r.dial(signed(t, other, "n1", time.Now(), hour)), nil, codes.Unavailable, false},
		"a node of a CA that calls itself so":  {r.dial(signed(t, twin, "n1", time.Now(), hour)), bearer, codes.Unavailable, false},
		"an expired certificate":               {r.dial(signed(t, ca, "n1", late, hour)), nil, codes.Unavailable, false},
		"a certificate of tomorrow":            {r.dial(signed(t, ca, "n1", time.Now().Add(24*hour), hour)), nil, codes.Unavailable, false},
		"a coordinator's certificate":          {r.dial(&server), nil, codes.Unavailable, false},
		"a Federate's certificate":             {r.dial(pairOf(t, federate, key)), nil, codes.Unavailable, false},
		"a revoked certificate":                {r.dial(revoked), nil, codes.Unauthenticated, true},
		"a revoked one and an administrator's": {r.dial(revoked), bearer, codes.Unauthenticated, true},
		"a removed node":                       {r.dial(removed), nil, codes.Unauthenticated, true},
		"a node whose name joined again":       {r.dial(replaced), nil, codes.Unauthenticated, true},
	}
}
