package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"substrate/agent"
)

// The network between agents and the coordinator: one stream is a link of two pipes. Messages are marshalled as grpc
// frames, keep their order, and take a time that is drawn from the seed. What a link loses, it loses with everything
// after it, as a connection does.

const (
	frameHeader   = 5
	connectWithin = 20 * time.Second // the agent gives up a dial after as long
	silenceMin    = 12 * time.Second // of a peer that is gone, until keepalive notices
	silenceMax    = 25 * time.Second
)

var (
	errBroken  = errors.New("the connection broke")
	errStalled = status.Error(codes.Unavailable, "keepalive ping failed to receive ACK within timeout")
	errRefused = status.Error(codes.Unavailable, "connection refused")
	errTimeout = status.Error(codes.Unavailable, "i/o timeout")
	errReset   = status.Error(codes.Unavailable, "connection reset by peer")
)

// pipe is one direction of a link.
type pipe struct {
	mu    sync.Mutex
	rng   *rand.Rand
	delay func(*rand.Rand) time.Duration
	queue []packet
	last  time.Time // nothing arrives before what was sent before it
	hold  time.Time // nothing arrives before
	black bool      // what is put in vanishes
	shut  bool      // nothing can be put in
	wake  chan struct{}
}

type packet struct {
	at   time.Time
	data []byte
	end  error // the last packet
}

func newPipe(rng *rand.Rand, delay func(*rand.Rand) time.Duration) *pipe {
	return &pipe{rng: rng, delay: delay, wake: make(chan struct{}, 1)}
}

func (p *pipe) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe) arrival() time.Time {
	at := time.Now().Add(p.delay(p.rng))
	if at.Before(p.hold) {
		at = p.hold.Add(time.Duration(p.rng.IntN(1000)) * time.Microsecond)
	}
	if !at.After(p.last) { // each message has a moment of its own, or chance would decide what is read together
		at = p.last.Add(time.Microsecond)
	}
	p.last = at
	return at
}

// push sends a frame; it fails when the sender knows that the connection is over.
func (p *pipe) push(data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.black: // nobody has noticed yet
		return nil
	case p.shut:
		return errBroken
	}
	p.queue = append(p.queue, packet{at: p.arrival(), data: data})
	p.poke()
	return nil
}

// finish ends the pipe behind what is under way.
func (p *pipe) finish(end error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return
	}
	p.shut = true
	if !p.black {
		p.queue = append(p.queue, packet{at: p.arrival(), end: end})
		p.poke()
	}
}

// cut ends the pipe after a time; what has not arrived before is lost.
func (p *pipe) cut(after time.Duration, end error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now().Add(after)
	kept := p.queue[:0]
	for _, q := range p.queue {
		if q.end == nil && q.at.Before(at) && !p.black {
			kept = append(kept, q)
		}
	}
	p.queue = append(kept, packet{at: at, end: end})
	p.shut, p.last = true, at
	p.poke()
}

// silence lets everything vanish from now on, and what is under way with it.
func (p *pipe) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.black, p.queue = true, nil
}

// stall keeps everything back for a while.
func (p *pipe) stall(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = time.Now().Add(d)
	for i := range p.queue {
		if late := p.hold.Add(time.Duration(i+1) * time.Microsecond); p.queue[i].at.Before(late) {
			p.queue[i].at, p.last = late, late
		}
	}
	p.poke()
}

// pop waits for the next frame.
func (p *pipe) pop(done <-chan struct{}) ([]byte, error) {
	for {
		var timer *time.Timer
		var due <-chan time.Time
		p.mu.Lock()
		if len(p.queue) > 0 {
			head := p.queue[0]
			wait := time.Until(head.at)
			if wait <= 0 {
				if head.end == nil {
					p.queue = p.queue[1:]
				}
				p.mu.Unlock()
				return head.data, head.end
			}
			timer = time.NewTimer(wait)
			due = timer.C
		}
		p.mu.Unlock()
		select {
		case <-due:
		case <-p.wake:
		case <-done:
			if timer != nil {
				timer.Stop()
			}
			return nil, errBroken
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// link is one stream between a node's agent and a life of the coordinator.
type link struct {
	node *vnode
	life *life
	up   *pipe
	down *pipe
}

// dialer is a node's way to the coordinator.
type dialer struct{ node *vnode }

var _ agent.Channel = (*channel)(nil)

// channel carries one stream.
type channel struct {
	node *vnode
	mu   sync.Mutex
	link *link
}

func (d dialer) dial() (agent.Channel, error) { return &channel{node: d.node}, nil }

// Close ends the stream from the agent's side.
func (c *channel) Close() error {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.up.finish(errBroken)
		l.down.cut(0, errBroken)
	}
	return nil
}

func (c *channel) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Unimplemented, "the simulation has streams only")
}

// NewStream dials: at once refused, timed out in a partition, or joined with the living coordinator.
func (c *channel) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	w := c.node.world
	l, err := w.connect(ctx, c.node, method)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.link = l
	c.mu.Unlock()
	return &clientStream{ctx: ctx, link: l}, nil
}

// connect opens a link to the coordinator that lives now.
func (w *world) connect(ctx context.Context, n *vnode, method string) (*link, error) {
	w.mu.Lock()
	n.dials++
	rng := w.rng("net", n.id, n.dials)
	took := n.delay(rng)
	cutOff := n.partitioned
	w.mu.Unlock()
	if cutOff {
		took = connectWithin
	}
	if !sleep(ctx, took) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case cutOff || n.partitioned:
		return nil, errTimeout
	case w.life == nil || !w.life.alive || w.life.server == nil:
		return nil, errRefused
	}
	l := &link{node: n, life: w.life,
		up:   newPipe(w.rng("up", n.id, n.dials), n.delay),
		down: newPipe(w.rng("down", n.id, n.dials), n.delay)}
	n.link = l
	w.count("streams")
	w.life.links[l] = true
	w.life.handlers.Add(1)
	go l.serve(method)
	return l, nil
}

// serve runs the coordinator's real handler over the link.
func (l *link) serve(method string) {
	defer l.life.handlers.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req := &http.Request{
		Method: http.MethodPost, ProtoMajor: 2, URL: &url.URL{Path: method}, RemoteAddr: "192.0.2.1:1",
		Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}},
		TLS:    &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{l.node.certificate()}}},
		Body:   &requestBody{pipe: l.up, gone: cancel, done: make(chan struct{})},
	}
	out := &responseWriter{pipe: l.down, header: http.Header{}}
	l.life.server.ServeHTTP(out, req.WithContext(ctx))
	l.up.cut(0, errBroken)
	l.down.finish(out.status())
	l.node.world.mu.Lock()
	delete(l.life.links, l)
	l.node.world.mu.Unlock()
}

// requestBody gives the server what arrives. A broken connection ends the handler, too.
type requestBody struct {
	pipe *pipe
	rest []byte
	gone context.CancelFunc
	once sync.Once
	done chan struct{}
}

func (b *requestBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		data, err := b.pipe.pop(b.done)
		if err != nil {
			b.gone()
			return 0, err
		}
		b.rest = data
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *requestBody) Close() error {
	b.once.Do(func() { close(b.done) })
	return nil
}

// responseWriter takes the server's frames, one flush each.
type responseWriter struct {
	pipe   *pipe
	header http.Header
	buf    []byte
}

func (r *responseWriter) Header() http.Header { return r.header }
func (r *responseWriter) WriteHeader(int)     {}
func (r *responseWriter) Write(p []byte) (int, error) {
	r.buf = append(r.buf, p...)
	return len(p), nil
}

func (r *responseWriter) Flush() {
	for len(r.buf) >= frameHeader {
		n := frameHeader + int(binary.BigEndian.Uint32(r.buf[1:frameHeader]))
		if len(r.buf) < n {
			break
		}
		_ = r.pipe.push(append([]byte(nil), r.buf[:n]...)) // a sender learns of a broken connection by its context
		r.buf = r.buf[n:]
	}
}

// status is the error that the trailers tell the agent, io.EOF for none.
func (r *responseWriter) status() error {
	code, err := strconv.Atoi(r.header.Get("Grpc-Status"))
	switch {
	case err != nil:
		return errReset
	case codes.Code(code) == codes.OK:
		return io.EOF
	}
	return status.Error(codes.Code(code), r.header.Get("Grpc-Message"))
}

// clientStream is the agent's end of a link.
type clientStream struct {
	ctx  context.Context
	link *link
}

func (s *clientStream) Header() (metadata.MD, error) { return nil, nil }
func (s *clientStream) Trailer() metadata.MD         { return nil }
func (s *clientStream) Context() context.Context     { return s.ctx }
func (s *clientStream) CloseSend() error             { return nil }

func (s *clientStream) SendMsg(m any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	body, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	frame := make([]byte, frameHeader, frameHeader+len(body))
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	if s.link.up.push(append(frame, body...)) != nil {
		return io.EOF // Recv tells why
	}
	return nil
}

func (s *clientStream) RecvMsg(m any) error {
	frame, err := s.link.down.pop(s.ctx.Done())
	switch {
	case s.ctx.Err() != nil:
		return status.FromContextError(s.ctx.Err()).Err()
	case err != nil:
		return err
	}
	if err := proto.Unmarshal(frame[frameHeader:], m.(proto.Message)); err != nil {
		return status.Error(codes.Internal, fmt.Sprintf("cannot read a message: %v", err))
	}
	return nil
}

// sleep waits and reports whether ctx lasted as long.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reset breaks a link at once: what is under way is lost, both ends know soon. w.mu is held.
func (l *link) reset(rng *rand.Rand) {
	l.up.cut(l.node.delay(rng), errBroken)
	l.down.cut(l.node.delay(rng), errReset)
}

// vanish breaks a link without a word: each end notices by itself. w.mu is held.
func (l *link) vanish(rng *rand.Rand) {
	quiet := func() time.Duration { return silenceMin + time.Duration(rng.Int64N(int64(silenceMax-silenceMin))) }
	l.up.silence()
	l.down.silence()
	l.up.cut(quiet(), errBroken)
	l.down.cut(quiet(), errStalled)
}

// certificate is what the node shows; it outlasts the simulation.
func (n *vnode) certificate() *x509.Certificate {
	began := n.world.began
	return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: n.id}, NotBefore: began, NotAfter: began.AddDate(1, 0, 0)}
}
