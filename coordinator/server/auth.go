package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

// gate lets a request through: who calls, may they, is the request small enough.
type gate struct {
	auth        authAPI
	permissions auth.Table
	failures    failures
	refusals    failures // of users, as written to the audit log
	now         func() time.Time
	log         *slog.Logger
	proxies     []netip.Prefix
	rand        io.Reader
	recheck     time.Duration // of streams; 0: recheckEvery
}

type callerKey struct{}

// callerOf is the caller that the gate put into the context.
func callerOf(ctx context.Context) engine.Caller {
	c, _ := ctx.Value(callerKey{}).(engine.Caller)
	return c
}

func (g *gate) admit(ctx context.Context, method string) (context.Context, error) {
	permission, err := g.permissions.Permission(method)
	if err != nil {
		return ctx, toStatus(err)
	}
	var caller engine.Caller
	from := remoteAddress(ctx, g.proxies)
	if permission != auth.PermissionPublic {
		if caller, err = g.authenticate(ctx, bearer(ctx), from); err != nil {
			return ctx, toStatus(err)
		}
	}
	caller.From = from
	if ctx, err = withRequest(ctx, g.rand, method, caller); err != nil {
		return ctx, toStatus(err)
	}
	if permission.NeedsTarget() {
		permission = auth.PermissionUser // and the rest once the engine knows the target
	}
	if err := auth.Authorize(caller.Principal, permission, deed(method), auth.Target{}); err != nil {
		return ctx, g.refused(ctx, method, caller, err)
	}
	return context.WithValue(ctx, callerKey{}, caller), nil
}

// requestIDMetadata names the id of a request in its answer, which also stands in the audit log.
const requestIDMetadata = "x-request-id"

// withRequest has all that is done for the request audited as its caller's.
func withRequest(ctx context.Context, rand io.Reader, method string, caller engine.Caller) (context.Context, error) {
	id, err := newRequestID(rand)
	if err != nil {
		return ctx, err
	}
	// A failure to set it only costs the reader an id.
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDMetadata, id))
	from := caller.From
	if caller.Federate != "" {
		from += " for Federate " + caller.Federate
	}
	return engine.WithRequest(ctx, engine.Request{
		ID: id, Method: shortMethod(method), From: from, Caller: caller.Principal, Token: caller.Token, TokenName: caller.TokenName}), nil
}

func newRequestID(rand io.Reader) (string, error) {
	raw := make([]byte, 12)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return "", fmt.Errorf("cannot make a request id: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

// refused writes down that a user may not do what it tried, unless it has tried too often. A thing that is not there
// counts where something was to be changed: it may be one that must not be seen.
func (g *gate) refused(ctx context.Context, method string, caller engine.Caller, err error) error {
	answer := toStatus(err)
	kind := coordinator.ErrorKindOf(err)
	if caller.User == "" || kind != coordinator.ErrDenied && (kind != coordinator.ErrNotFound || reads(method)) {
		return answer
	}
	now, who := g.now(), string(caller.User)
	if g.refusals.blocked(who, now) {
		return answer
	}
	g.refusals.add(who, now)
	if noted := g.auth.NoteRefused(ctx, err); noted != nil {
		g.log.Warn("a refused request is not in the audit log", "user", caller.Name, "method", method, "err", noted)
	}
	return answer
}

// reads reports whether an RPC changes nothing. The names of the methods say so, and a test holds them to it.
func reads(method string) bool {
	name := method[strings.LastIndex(method, "/")+1:]
	for _, verb := range []string{"Get", "List", "Show", "Read", "Watch", "Explain", "Validate", "Plan", "Suggest", "WhoAmI"} {
		if strings.HasPrefix(name, verb) {
			return true
		}
	}
	return false
}

// authenticate finds the user of a token. A good one always passes, whatever others behind the same
// address have tried; wrong ones are counted, and beyond the limit all of them get the same answer.
func (g *gate) authenticate(ctx context.Context, token, from string) (engine.Caller, error) {
	if token == "" {
		// No secret was tried: not counted, or one tokenless client could use up a shared address.
		return engine.Caller{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "no token in the request").
			WithHint("run `substrate login` or set SUBSTRATE_TOKEN; over HTTP send `Authorization: Bearer TOKEN`")
	}
	caller, err := g.auth.Authenticate(ctx, token)
	if err == nil && caller.User == "" {
		err = coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token names no user")
	}
	if err != nil {
		return engine.Caller{}, g.failures.judge("authenticate", from, g.now(), err)
	}
	return caller, nil
}

// mayBeLarge reports whether the request may carry a whole configuration.
func (g *gate) mayBeLarge(ctx context.Context, token string) bool {
	caller, err := g.auth.Authenticate(ctx, token)
	return err == nil && auth.Allowed(caller.Principal, auth.PermissionAdminCluster, auth.Target{})
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = g.recovered(info.FullMethod, recover(), err) }()
	if ctx, err = g.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if m, ok := req.(proto.Message); ok && !largeMethod(info.FullMethod) && proto.Size(m) > maxMessage {
		return nil, status.Errorf(codes.ResourceExhausted, "cannot call %s: the request is larger than %d bytes", shortMethod(info.FullMethod), maxMessage)
	}
	list, err := openPage(info.FullMethod, req)
	if err != nil {
		return nil, toStatus(err)
	}
	if resp, err = next(ctx, req); err == nil {
		sealPage(list, resp)
	}
	return resp, g.refused(ctx, info.FullMethod, callerOf(ctx), err)
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() { err = g.recovered(info.FullMethod, recover(), err) }()
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	stop := func() error { return nil }
	s := callerStream{ServerStream: ss, ctx: ctx}
	if callerOf(ctx).User != "" {
		s.still = g.sameCaller
		stop = s.watch(cmp.Or(g.recheck, recheckEvery))
	}
	err = next(srv, s)
	if ended := stop(); ended != nil {
		return toStatus(ended)
	}
	return g.refused(ctx, info.FullMethod, callerOf(ctx), err)
}

// recheckEvery is how long a stream on which nothing happens may outlive its token.
const recheckEvery = 10 * time.Second

// callerStream is a stream whose context holds the caller. It ends with the caller's token, and with the rights that
// it began with.
type callerStream struct {
	grpc.ServerStream
	ctx   context.Context
	still func(context.Context) error // whether it may go on; nil where no token is shown
}

// check asks whether the stream may go on.
func (s callerStream) check() error {
	if s.still == nil {
		return nil
	}
	return s.still(s.ctx)
}

// sameCaller tells whether a token still stands for the caller that a stream began with.
func (g *gate) sameCaller(ctx context.Context) error {
	now, err := g.auth.Authenticate(ctx, bearer(ctx))
	if err != nil {
		return err
	}
	if was := callerOf(ctx); now.User != was.User || now.Organization != was.Organization || now.Owner != was.Owner || now.Admin != was.Admin {
		return coordinator.Errorf(coordinator.ErrUnavailable, "go on with the stream", "the role of user %s changed", was.Name)
	}
	return nil
}

// watch ends the stream's context when the check fails, though there is nothing to send. The function it returns ends
// the watch and gives the reason why the stream ended, nil if it was another.
func (s *callerStream) watch(every time.Duration) (stop func() error) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.ctx = ctx
	ended := make(chan error, 1)
	began := *s
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := began.check(); err != nil {
					ended <- err
					cancel()
					return
				}
			}
		}
	}()
	return func() error { cancel(); return <-ended }
}

func (s callerStream) SendMsg(m any) error {
	if err := s.check(); err != nil {
		return toStatus(err)
	}
	return s.ServerStream.SendMsg(m)
}

func (s callerStream) Context() context.Context { return s.ctx }

// recovered turns a panic into Internal: one request's defect must not end the coordinator.
func (g *gate) recovered(method string, panicked any, err error) error {
	return recovered(g.log, method, panicked, err)
}

func recovered(log *slog.Logger, method string, panicked any, err error) error {
	if panicked == nil {
		return err
	}
	// The stack stays here; the caller gets a sentence.
	log.Error("panic in a request", "method", method, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "cannot call %s: internal defect, see the coordinator's log", shortMethod(method))
}

func bearer(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		return bearerOf(v)
	}
	return ""
}

func bearerOf(header string) string {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// remoteAddress is the client's host. What the gateway appended to X-Forwarded-For is believed on the in-process
// connection; before that, as far as each address is a proxy's that is trusted, what that proxy said.
func remoteAddress(ctx context.Context, proxies []netip.Prefix) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "unknown"
	}
	md, _ := metadata.FromIncomingContext(ctx)
	var hops []string
	for _, v := range md.Get("x-forwarded-for") {
		for hop := range strings.SplitSeq(v, ",") {
			hops = append(hops, strings.TrimSpace(hop))
		}
	}
	host := p.Addr.String()
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if _, ours := p.Addr.(pipeAddr); ours {
		if len(hops) == 0 {
			return "unknown"
		}
		host, hops = hops[len(hops)-1], hops[:len(hops)-1]
	}
	return behind(host, hops, proxies)
}

// maxHops bounds how many proxies in a row are looked behind.
const maxHops = 8

// behind goes back from a peer through the proxies that are trusted.
func behind(host string, hops []string, proxies []netip.Prefix) string {
	for range maxHops {
		addr, err := netip.ParseAddr(host)
		if err != nil || len(hops) == 0 || !slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(addr.Unmap().WithZone("")) }) {
			break
		}
		next := hops[len(hops)-1]
		if _, err := netip.ParseAddr(next); err != nil {
			break // not an address: nothing that could be believed
		}
		host, hops = next, hops[:len(hops)-1]
	}
	return host
}

// largeMethod names the RPCs that carry a whole configuration.
func largeMethod(method string) bool {
	return method == apiv1.Config_SetConfig_FullMethodName || method == apiv1.Config_ValidateConfig_FullMethodName ||
		method == apiv1.Config_PlanConfig_FullMethodName
}

// shortMethod is "Config.SetConfig" for "/substrate.v1.Config/SetConfig".
func shortMethod(full string) string {
	s := strings.TrimPrefix(full, "/")
	if i := strings.LastIndex(s, "."); i >= 0 {
		s = s[i+1:]
	}
	return strings.ReplaceAll(s, "/", ".")
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "") }
