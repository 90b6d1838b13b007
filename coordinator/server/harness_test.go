package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/engine"
)

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key, nil).Leaf
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey, parent *x509.Certificate) *tls.Certificate {
	a.t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) leaf(name string, use x509.ExtKeyUsage) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return *a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{use}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, key, a.cert)
}

const (
	adminToken  = "token-of-admin"
	memberToken = "token-of-member"
)

func admin() engine.Caller {
	return engine.Caller{Principal: auth.Principal{User: "u-admin", Name: "ada", Organization: "o-1", Admin: true}}
}
func member() engine.Caller {
	return engine.Caller{Principal: auth.Principal{User: "u-member", Name: "mia", Organization: "o-1"}}
}

// fakeTokens knows the two callers.
func fakeTokens(_ context.Context, token string) (engine.Caller, error) {
	switch token {
	case adminToken:
		return admin(), nil
	case memberToken:
		return member(), nil
	}
	return engine.Caller{}, coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "unknown token")
}

// testAPI is the API on a real TLS port.
type testAPI struct {
	t       *testing.T
	address string
	http    *http.Client
	conn    *grpc.ClientConn
	log     *bytes.Buffer
}

func startAPI(t *testing.T, f *fakeEngine, secure bool) *testAPI {
	t.Helper()
	if f.authenticateFunc == nil {
		f.authenticateFunc = fakeTokens
	}
	a := &testAPI{t: t, log: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(a.log, nil))
	api, err := NewAPI(f, APIOptions{Version: "v-test", Now: time.Now, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.address = l.Addr().String()
	ca := newAuthority(t)
	var conf *tls.Config
	if secure {
		conf = &tls.Config{Certificates: []tls.Certificate{ca.leaf("api", x509.ExtKeyUsageServerAuth)}}
	}
	srv := HTTPServer(api, conf, log)
	done := make(chan error, 1)
	go func() {
		if secure {
			done <- srv.ServeTLS(l, "", "")
		} else {
			done <- srv.Serve(l)
		}
	}()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool}, ForceAttemptHTTP2: true}
	a.http = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	creds := credentials.NewTLS(&tls.Config{RootCAs: ca.pool})
	if !secure {
		creds = insecureCredentials()
	}
	if a.conn, err = grpc.NewClient("passthrough:///"+a.address, grpc.WithTransportCredentials(creds)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.conn.Close()
		transport.CloseIdleConnections()
		_ = srv.Close()
		if err := api.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return a
}

// do makes one REST request; headers are "Name: value".
func (a *testAPI) do(method, path, body string, headers ...string) (*http.Response, string) {
	a.t.Helper()
	scheme := "https"
	if a.http.Transport.(*http.Transport).TLSClientConfig == nil {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, scheme+"://"+a.address+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	res, err := a.http.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return res, string(data)
}

const asAdmin = "Authorization: Bearer " + adminToken
const asMember = "Authorization: Bearer " + memberToken
