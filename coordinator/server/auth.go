package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
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
	now         func() time.Time
	log         *slog.Logger
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
		return nil, toStatus(err)
	}
	var caller engine.Caller
	from := remoteAddress(ctx)
	if permission != auth.PermissionPublic {
		if caller, err = g.authenticate(ctx, bearer(ctx), from); err != nil {
			return nil, toStatus(err)
		}
	}
	caller.From = from
	if permission.NeedsTarget() {
		permission = auth.PermissionUser // and the rest once the engine knows the target
	}
	if err := auth.Authorize(caller.Principal, permission, deed(method), auth.Target{}); err != nil {
		return nil, toStatus(err)
	}
	return context.WithValue(ctx, callerKey{}, caller), nil
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
	resp, err = next(ctx, req)
	return resp, toStatus(err)
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() { err = g.recovered(info.FullMethod, recover(), err) }()
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return toStatus(next(srv, callerStream{ss, ctx}))
}

// callerStream is a stream whose context holds the caller.
type callerStream struct {
	grpc.ServerStream
	ctx context.Context
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

// remoteAddress is the client's host. What the gateway appended to X-Forwarded-For is believed
// only on the in-process connection, and only its last element.
func remoteAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "unknown"
	}
	if _, ours := p.Addr.(pipeAddr); ours {
		md, _ := metadata.FromIncomingContext(ctx)
		if v := md.Get("x-forwarded-for"); len(v) > 0 {
			last := v[len(v)-1]
			return strings.TrimSpace(last[strings.LastIndex(last, ",")+1:])
		}
		return "unknown"
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
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
