package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/proto/agentv1"
)

// Bounds of the agents' port.
const (
	helloTimeout  = 10 * time.Second
	inboxMessages = 64  // read ahead of the engine, per node
	batchMessages = 256 // handled before acknowledgements go out
	maxCSR        = 16 << 10
	maxJoinText   = 512
)

// AgentOptions is what NewAgentServer needs besides the engine.
type AgentOptions struct {
	Version   string
	ClusterID string
	// Node is the node a verified client certificate speaks for (auth.NodeFromCertificate).
	Node func(*x509.Certificate) (coordinator.NodeID, error)
	Now  func() time.Time
	Log  *slog.Logger
	Rand io.Reader // for the ids of requests; nil: the system's
	// SendTimeout ends the stream of an agent that answers pings but reads nothing; default 60 s.
	SendTimeout time.Duration
}

// NewAgentServer serves Enrolment without and Agent with a client certificate. t must verify
// client certificates when given (tls.VerifyClientCertIfGiven) against the cluster's CA.
func NewAgentServer(t *tls.Config, agents Agents, o AgentOptions) (*grpc.Server, error) {
	switch {
	case t == nil || t.ClientCAs == nil || t.ClientAuth < tls.VerifyClientCertIfGiven:
		return nil, errors.New("cannot make the agents' server: its TLS configuration verifies no client certificate")
	case o.Node == nil || o.Now == nil || o.Log == nil:
		return nil, errors.New("cannot make the agents' server: node reader, clock or log missing")
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.SendTimeout <= 0 {
		o.SendTimeout = time.Minute
	}
	s := &agentService{agents: agents, opts: o}
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(t)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxConfigMessage),
		grpc.MaxConcurrentStreams(8), // of one connection: one node
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
		grpc.WaitForHandlers(true),
	)
	agentv1.RegisterEnrolmentServer(g, s)
	agentv1.RegisterAgentServer(g, s)
	return g, nil
}

type agentService struct {
	agentv1.UnimplementedEnrolmentServer
	agentv1.UnimplementedAgentServer
	agents   Agents
	opts     AgentOptions
	failures failures
	unstored seldom
}

func (s *agentService) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = recovered(s.opts.Log, info.FullMethod, recover(), err) }()
	resp, err = next(ctx, req)
	return resp, toStatus(err)
}

func (s *agentService) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() { err = recovered(s.opts.Log, info.FullMethod, recover(), err) }()
	return toStatus(next(srv, ss))
}

// Join trades a join token for a certificate; guesses are counted per source address.
func (s *agentService) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	op := "let a node join"
	if len(r.GetCsr()) > maxCSR || len(r.GetNode()) > maxJoinText || len(r.GetToken()) > maxJoinText || len(r.GetLaunch()) > maxJoinText {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, op, "a field of the request is too long")
	}
	from := remoteAddress(ctx, nil)
	id, err := newRequestID(s.opts.Rand)
	if err != nil {
		return nil, err
	}
	ctx = engine.WithRequest(ctx, engine.Request{ID: id, Method: "Enrolment.Join", From: from, Node: coordinator.NodeID(toValidUTF8(r.GetNode()))})
	certificate, ca, err := s.agents.Join(ctx, engine.JoinRequest{Token: r.GetToken(), Node: r.GetNode(), Launch: r.GetLaunch(), CSR: r.GetCsr()})
	if err != nil {
		return nil, s.failures.judge(op, from, s.opts.Now(), err)
	}
	return &agentv1.JoinResponse{Node: r.GetNode(), Certificate: certificate, Ca: ca}, nil
}

// Renew gives the node of the connection its next certificate. Whose it is stands in the present one alone.
func (s *agentService) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	node, cert, err := s.node(ctx)
	if err != nil {
		return nil, err
	}
	if len(r.GetCsr()) > maxCSR {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "renew certificate of node "+string(node), "the request is too long")
	}
	certificate, ca, err := s.agents.RenewCertificate(ctx, node, cert, r.GetCsr())
	if err != nil {
		return nil, err
	}
	return &agentv1.RenewResponse{Certificate: certificate, Ca: ca}, nil
}

// node is the node that the connection's verified certificate names. Messages are not asked. A connection may have
// outlived the certificate it began with.
func (s *agentService) node(ctx context.Context) (coordinator.NodeID, engine.NodeCertificate, error) {
	fail := func(format string, args ...any) (coordinator.NodeID, engine.NodeCertificate, error) {
		return "", engine.NodeCertificate{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "connect the node", format, args...).
			WithHint("join the cluster first")
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return fail("no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return fail("no verified client certificate")
	}
	leaf := info.State.VerifiedChains[0][0]
	node, err := s.opts.Node(leaf)
	switch {
	case err != nil:
		return fail("%w", err)
	case node == "":
		return fail("the certificate names no node")
	case !s.opts.Now().Before(leaf.NotAfter):
		return fail("the certificate of node %s expired at %s", node, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return node, engine.NodeCertificate{Issued: auth.IssuedAt(leaf), Expires: leaf.NotAfter.UTC(), Serial: leaf.SerialNumber.Text(16)}, nil
}

// Connect is one node's stream: a reader, an order pump and a writer around this goroutine,
// which alone calls the session's reports, in the order they arrived.
func (s *agentService) Connect(stream grpc.BidiStreamingServer[agentv1.FromAgent, agentv1.ToAgent]) error {
	node, cert, err := s.node(stream.Context())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(stream.Context())
	defer stop(nil)
	// A stream ends with the certificate that it began with; a node that has renewed comes back at once.
	over := time.AfterFunc(cert.Expires.Sub(s.opts.Now()), func() {
		stop(coordinator.Errorf(coordinator.ErrUnavailable, "go on with the stream", "the certificate that it began with expired"))
	})
	defer over.Stop()

	inbox := make(chan *agentv1.FromAgent, inboxMessages)
	// The reader is not awaited: Recv ends when this handler returns.
	s.background(node, stop, func() error { return read(ctx, stream, inbox) })
	hello, err := firstMessage(ctx, inbox)
	if err != nil {
		return err
	}
	said := helloFromProto(hello)
	said.Certificate = cert
	session, err := s.agents.Connect(ctx, node, said)
	if err != nil {
		return err
	}
	defer session.Close()

	a := newAcks()
	orders := make(chan []*agentv1.ToAgent)
	welcome := &agentv1.Welcome{CoordinatorVersion: s.opts.Version, ClusterId: s.opts.ClusterID}
	for _, o := range session.Offsets() {
		welcome.Offsets = append(welcome.Offsets, offsetToProto(o))
	}
	welcome.Look = lookToProto(session.Look())
	var pump sync.WaitGroup
	pump.Add(1)
	s.background(node, stop, func() error { defer pump.Done(); return s.pump(ctx, session, orders) })
	// Nor is the writer: a Send that waits for a stuck agent ends with the stream.
	s.background(node, stop, func() error { return s.write(ctx, stream, stop, welcome, orders, a) })

	err = s.consume(ctx, session, inbox, a)
	stop(err)
	pump.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// background runs f; its end, error or panic ends the stream.
func (s *agentService) background(node coordinator.NodeID, stop context.CancelCauseFunc, f func() error) {
	go func() {
		var err error
		defer func() {
			err = recovered(s.opts.Log.With("node", string(node)), agentv1.Agent_Connect_FullMethodName, recover(), err)
			stop(err)
		}()
		err = f()
	}()
}

func read(ctx context.Context, stream grpc.BidiStreamingServer[agentv1.FromAgent, agentv1.ToAgent], inbox chan<- *agentv1.FromAgent) error {
	defer close(inbox)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case inbox <- m: // a full inbox holds the agent back through flow control
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func firstMessage(ctx context.Context, inbox <-chan *agentv1.FromAgent) (*agentv1.Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	select {
	case m, ok := <-inbox:
		if ok && m.GetHello() != nil {
			return m.GetHello(), nil
		}
		if !ok {
			return nil, status.Error(codes.Canceled, "cannot connect the node: the stream ended before hello")
		}
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "connect the node", "the first message is not hello")
	case <-ctx.Done():
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "connect the node", "no hello within %s", helloTimeout)
	}
}

// consume hands reports to the session until the stream ends.
func (s *agentService) consume(ctx context.Context, session sessionReports, inbox <-chan *agentv1.FromAgent, a *acks) error {
	for {
		var batch []*agentv1.FromAgent
		select {
		case m, ok := <-inbox:
			if !ok {
				return io.EOF
			}
			batch = drain(inbox, append(batch, m))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.report(ctx, session, batch, a); err != nil {
			return err
		}
	}
}

// drain adds what has already arrived.
func drain(inbox <-chan *agentv1.FromAgent, batch []*agentv1.FromAgent) []*agentv1.FromAgent {
	for len(batch) < batchMessages {
		select {
		case m, ok := <-inbox:
			if !ok {
				return batch // the next receive sees the end
			}
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

// pump takes orders from the engine; it holds at most one batch, so that the engine sees a slow agent.
func (s *agentService) pump(ctx context.Context, session sessionOrders, orders chan<- []*agentv1.ToAgent) error {
	for {
		batch, err := session.Next(ctx)
		if err != nil {
			return err
		}
		out := make([]*agentv1.ToAgent, 0, len(batch))
		for _, m := range batch {
			if p := orderToProto(m); p != nil {
				out = append(out, p)
			}
		}
		select {
		case orders <- out:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// write is the only sender of the stream.
func (s *agentService) write(ctx context.Context, stream grpc.BidiStreamingServer[agentv1.FromAgent, agentv1.ToAgent],
	stop context.CancelCauseFunc, welcome *agentv1.Welcome, orders <-chan []*agentv1.ToAgent, a *acks) error {
	send := func(m *agentv1.ToAgent) error {
		timer := time.AfterFunc(s.opts.SendTimeout, func() {
			stop(status.Errorf(codes.DeadlineExceeded, "cannot send to the node: it read nothing for %s", s.opts.SendTimeout))
		})
		defer timer.Stop()
		return stream.Send(m)
	}
	if err := send(&agentv1.ToAgent{Message: &agentv1.ToAgent_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	for {
		select {
		case batch := <-orders:
			for _, m := range batch {
				if err := send(m); err != nil {
					return err
				}
			}
		case <-a.pending:
			for _, m := range a.take() {
				if err := send(m); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// report hands one batch to the session: neighbouring run statuses go together.
func (s *agentService) report(ctx context.Context, session sessionReports, batch []*agentv1.FromAgent, a *acks) error {
	for len(batch) > 0 {
		n := 1
		var err error
		switch m := batch[0].GetMessage().(type) {
		case *agentv1.FromAgent_RunStatus:
			for n < len(batch) && batch[n].GetRunStatus() != nil {
				n++
			}
			statuses := each(batch[:n], func(f *agentv1.FromAgent) *agentv1.RunStatus { return f.GetRunStatus() })
			err = session.RunStatus(ctx, runStatuses(statuses))
		case *agentv1.FromAgent_LogChunk:
			err = s.appendLog(session, m.LogChunk, a)
		case *agentv1.FromAgent_Hardware:
			err = session.Hardware(ctx, hardwareFromProto(m.Hardware))
		case *agentv1.FromAgent_Conditions:
			err = session.Conditions(ctx, conditionsFromProto(m.Conditions))
		case *agentv1.FromAgent_Reclaim:
			var at time.Time
			if m.Reclaim.GetAt() != nil {
				at = m.Reclaim.GetAt().AsTime()
			}
			err = session.Reclaim(ctx, at, m.Reclaim.GetText())
		case *agentv1.FromAgent_Hello:
			err = coordinator.Errorf(coordinator.ErrInvalid, "read the node's message", "a second hello")
		default: // a newer agent's message
		}
		if err != nil {
			return fmt.Errorf("cannot take a report: %w", err)
		}
		batch = batch[n:]
	}
	return nil
}
