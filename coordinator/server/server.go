// Package server speaks the coordinator's wire: requests in, views out, for users (gRPC and
// REST on one port) and for agents. What runs where is the engine's to decide; on a Federate, route.go carries a submission from one cluster of
// the engine's choice to the next until one takes it.
package server

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"substrate/proto/apiv1"
)

// Sizes of messages. A configuration may be 64 MiB, everything else is small.
const (
	maxMessage       = 4 << 20
	maxConfigMessage = 65 << 20
	maxConfigBody    = maxConfigMessage/3*4 + 1<<20 // base64 in JSON
)

// APIOptions is what NewAPI needs besides the engine.
type APIOptions struct {
	Version string
	Now     func() time.Time
	Log     *slog.Logger
	Pages   http.Handler // everything that is not the API, nil: 404
	// Federate serves workflows by routing them; nil: this cluster runs them.
	Federate *Federate
	// FederationPort tells that a Federate can register this cluster.
	FederationPort bool
	// Proxies are the peers whose X-Forwarded-For is believed; nil: nobody's.
	Proxies []netip.Prefix
	OpenID  *OpenID   // nil: users have tokens only
	Rand    io.Reader // for the ids of requests; nil: the system's
}

// API serves gRPC, REST and the OpenAPI document to users.
type API struct {
	grpc    *grpc.Server
	pipe    *pipeListener
	client  *grpc.ClientConn
	gate    *gate
	rest    http.Handler
	pages   http.Handler
	stopped chan struct{} // the in-process server has ended
}

var _ http.Handler = (*API)(nil)

// NewAPI makes the handler of the users' port. Close it after the http.Server.
func NewAPI(e Engine, o APIOptions) (*API, error) {
	if o.Now == nil || o.Log == nil {
		return nil, errors.New("cannot make the API: clock or log missing")
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	g := &gate{auth: e, permissions: permissions(), now: o.Now, log: o.Log, proxies: o.Proxies, rand: o.Rand}
	a := &API{
		grpc: grpc.NewServer(
			grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream),
			grpc.MaxRecvMsgSize(maxConfigMessage), grpc.MaxSendMsgSize(maxConfigMessage),
			grpc.WaitForHandlers(true),
		),
		pipe: newPipe(), gate: g, pages: o.Pages, stopped: make(chan struct{}),
	}
	apiv1.RegisterConfigServer(a.grpc, configService{engine: e, plans: e})
	nodes := nodeService{engine: e, tokens: e, definitions: e, hardware: e, catalogues: e}
	apiv1.RegisterBackendsServer(a.grpc, backendService{engine: e})
	local := workflowService{engine: e, queue: e, streams: e, scores: e}
	identity := identityService{organizations: e, groups: e, users: e, members: e, tokens: e, grants: e, queue: e, version: o.Version}
	if o.Federate != nil {
		apiv1.RegisterWorkflowsServer(a.grpc, routedService{federate: o.Federate, local: local})
		apiv1.RegisterIdentityServer(a.grpc, pushedService{identity, o.Federate})
		apiv1.RegisterNodesServer(a.grpc, nodelessService{nodeService: nodes})
	} else {
		apiv1.RegisterWorkflowsServer(a.grpc, local)
		apiv1.RegisterIdentityServer(a.grpc, identity)
		apiv1.RegisterNodesServer(a.grpc, nodes)
	}
	apiv1.RegisterReservationsServer(a.grpc, reservationService{engine: e})
	apiv1.RegisterMaintenanceServer(a.grpc, maintenanceService{engine: e})
	apiv1.RegisterClustersServer(a.grpc, clusterService{federate: o.Federate, engine: e, port: o.FederationPort})
	apiv1.RegisterLoginServer(a.grpc, loginService{engine: e, openID: o.OpenID, gate: g})
	apiv1.RegisterAuditServer(a.grpc, auditService{engine: e})
	if err := checkListed(g.permissions, a.grpc.GetServiceInfo()); err != nil {
		return nil, err
	}

	client, err := grpc.NewClient("passthrough:///in-process", append(strictQuery(),
		grpc.WithContextDialer(a.pipe.dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxConfigMessage)))...)
	if err != nil {
		return nil, fmt.Errorf("cannot connect the REST gateway: %w", err)
	}
	a.client = client
	if a.rest, err = newGateway(client); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	go func() {
		defer close(a.stopped)
		if err := a.grpc.Serve(a.pipe); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			o.Log.Error("the REST gateway's server ended", "err", err)
		}
	}()
	return a, nil
}

// Close ends running calls and waits for them.
func (a *API) Close() error {
	err := a.client.Close()
	a.grpc.Stop()
	<-a.stopped
	return err
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case isGRPC(r):
		if largeMethod(r.URL.Path) {
			a.limit(w, r, maxConfigMessage)
		} else {
			a.limit(w, r, maxMessage)
		}
		a.grpc.ServeHTTP(w, r)
	case r.URL.Path == "/v1/openapi.json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(apiv1.OpenAPI())) // the reader is gone if this fails
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		a.serveREST(w, r)
	case a.pages != nil:
		a.pages.ServeHTTP(w, r)
	default:
		writeError(w, http.StatusNotFound, errorBody{Code: "not-found", Message: "no such page", Hint: "the API is at /v1/, its description at /v1/openapi.json"})
	}
}

func isGRPC(r *http.Request) bool {
	if r.ProtoMajor < 2 {
		return false
	}
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && (t == "application/grpc" || strings.HasPrefix(t, "application/grpc+"))
}

// limit bounds the body. Only who may send a large one makes the coordinator read it.
func (a *API) limit(w http.ResponseWriter, r *http.Request, most int64) {
	if most > maxMessage {
		if !a.gate.mayBeLarge(r.Context(), bearerOf(r.Header.Get("Authorization"))) {
			most = maxMessage
		}
	}
	r.Body = http.MaxBytesReader(w, r.Body, most+4096) // framing
}

// HTTPServer is the server of the users' port: HTTP/1.1 and HTTP/2, the latter in clear text
// without a TLS configuration (loopback development only).
func HTTPServer(h http.Handler, t *tls.Config, log *slog.Logger) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(t != nil)
	p.SetUnencryptedHTTP2(t == nil)
	return &http.Server{
		Handler: h, TLSConfig: t, Protocols: &p,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		HTTP2:    &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
