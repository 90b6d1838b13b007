package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"substrate/proto/apiv1"
)

const (
	defaultPort     = "7440"
	callTimeout     = 30 * time.Second
	longCallTimeout = 5 * time.Minute // sets that touch every organisation's grant
	maxConfigBytes  = 64 << 20
	maxAnswer       = 66 << 20
	maxToken        = 4096
)

// connection is the coordinator's API.
type connection struct {
	*grpc.ClientConn
	server       string // as a person writes it
	config       apiv1.ConfigClient
	nodes        apiv1.NodesClient
	backends     apiv1.BackendsClient
	workflows    apiv1.WorkflowsClient
	identity     apiv1.IdentityClient
	reservations apiv1.ReservationsClient
	maintenance  apiv1.MaintenanceClient
	clusters     apiv1.ClustersClient
	audit        apiv1.AuditClient
	login        apiv1.LoginClient
}

// endpoint says where a coordinator is and how it proves itself.
type endpoint struct {
	server string
	token  string
	ca     string // PEM
}

// connect resolves flags, environment and context, once.
func (a *app) connect() (*connection, error) {
	if a.conn != nil {
		return a.conn, nil
	}
	e, err := a.endpoint()
	if err != nil {
		return nil, err
	}
	c, err := dial(e)
	if err != nil {
		return nil, err
	}
	a.conn = c
	return c, nil
}

// endpoint: flags win over environment, environment over the context. A context's token and authority go
// to the context's server only, however that is written.
func (a *app) endpoint() (endpoint, error) {
	token, err := a.givenToken()
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{server: a.server}
	if e.server == "" && a.context == "" {
		e.server = a.env("SUBSTRATE_SERVER")
	}
	c, err := a.contextFor(e.server)
	if err != nil && (e.server == "" || a.context != "" || token == "") {
		return endpoint{}, err // with server and token given, a context is not needed
	}
	e.token, e.ca = c.Token, c.CA
	if e.server == "" {
		e.server = c.Server
	}
	if token != "" {
		e.token = token
	}
	ca, err := a.givenCA()
	if ca != "" {
		e.ca = ca
	}
	return e, err
}

// sameServer reports whether two spellings name one port of one host, reached in the same way.
func sameServer(x, y string) bool {
	target, secure, err := address(strings.ToLower(x))
	other, otherSecure, otherErr := address(strings.ToLower(y))
	return err == nil && otherErr == nil && target == other && secure == otherSecure
}

// givenToken is the token of --token-file or SUBSTRATE_TOKEN.
func (a *app) givenToken() (string, error) {
	if a.tokenFile != "" {
		data, err := a.readFile(a.tokenFile, maxToken)
		return strings.TrimSpace(string(data)), err
	}
	return strings.TrimSpace(a.env("SUBSTRATE_TOKEN")), nil
}

// givenCA is the certificate in --ca or SUBSTRATE_CA.
func (a *app) givenCA() (string, error) {
	file := a.ca
	if file == "" {
		file = a.env("SUBSTRATE_CA")
	}
	if file == "" {
		return "", nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot read the authority's certificate: %w", err)
	}
	return string(pem), nil
}

// address splits what a person writes into host:port and whether it is TLS.
func address(server string) (target string, secure bool, err error) {
	scheme, rest, found := strings.Cut(server, "://")
	if !found {
		scheme, rest = "https", server
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil || u.Hostname() == "" || (scheme != "http" && scheme != "https") || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return "", false, failf(exitUsage, "write http://127.0.0.1:7440, https://HOST[:PORT] or HOST:PORT", "cannot use %q as a server", server)
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if scheme == "http" && !loopback(u.Hostname()) {
		return "", false, failf(exitUsage, "use https://; clear text is for this machine only", "cannot use %q: a token would travel unprotected", server)
	}
	return net.JoinHostPort(u.Hostname(), port), scheme == "https", nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func dial(e endpoint) (*connection, error) {
	target, secure, err := address(e.server)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if secure {
		t := &tls.Config{MinVersion: tls.VersionTLS12}
		if e.ca != "" {
			t.RootCAs = x509.NewCertPool()
			if !t.RootCAs.AppendCertsFromPEM([]byte(e.ca)) {
				return nil, failf(exitFailed, "give a PEM file", "cannot read the authority's certificate: no certificate in it")
			}
		}
		creds = credentials.NewTLS(t)
	}
	cc, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(creds),
		grpc.WithPerRPCCredentials(bearerToken(e.token)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 15 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", e.server, err)
	}
	return &connection{
		ClientConn: cc, server: e.server, config: apiv1.NewConfigClient(cc), nodes: apiv1.NewNodesClient(cc), backends: apiv1.NewBackendsClient(cc),
		workflows: apiv1.NewWorkflowsClient(cc), identity: apiv1.NewIdentityClient(cc),
		reservations: apiv1.NewReservationsClient(cc), maintenance: apiv1.NewMaintenanceClient(cc),
		clusters: apiv1.NewClustersClient(cc),
		audit:    apiv1.NewAuditClient(cc),
		login:    apiv1.NewLoginClient(cc),
	}, nil
}

// bearerToken is sent with every call; address allows clear text on loopback only.
type bearerToken string

func (t bearerToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (bearerToken) RequireTransportSecurity() bool { return false }

// invoke makes one call: time limit, progress, error in our words. doing is "setting the configuration".
func invoke[Q, R any](ctx context.Context, a *app, doing string, limit time.Duration,
	method func(*connection) rpc[Q, R], request Q) (R, error) {
	var none R
	c, err := a.connect()
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer a.progress(doing)()
	r, err := method(c)(ctx, request)
	if err != nil {
		return none, fromRPC(c.server, err)
	}
	a.reached.Store(true)
	return r, nil
}

// get is invoke for calls that answer at once.
func get[Q, R any](ctx context.Context, a *app, doing string,
	method func(*connection) rpc[Q, R], request Q) (R, error) {
	return invoke(ctx, a, doing, callTimeout, method, request)
}

// pages collects a list whose answers come in pages, at most limit pages.
func pages[T any](fetch func(token string) ([]T, string, error)) ([]T, error) {
	const limit = 1000 // of 1000 items
	var all []T
	token := ""
	for range limit {
		part, next, err := fetch(token)
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
		if next == "" {
			return all, nil
		}
		token = next
	}
	return nil, failf(exitFailed, "use a filter", "cannot read the list: it has more than %d pages", limit)
}
