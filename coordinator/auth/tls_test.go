package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

const (
	cluster = "0191b7a0-0000-7000-8000-0000000000c1"
	node    = coordinator.NodeID("gpu-07.rack3.example")
)

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func newCA(t testing.TB, cluster string) *CA {
	t.Helper()
	ca, err := NewCA(cluster, start(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newCSR(t testing.TB, template *x509.CertificateRequest) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func parsePEM(t testing.TB, data []byte) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode(data)
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one PEM block: %q", data)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// nodeCert is a joined node's certificate, ready for a handshake.
func nodeCert(t testing.TB, ca *CA, name coordinator.NodeID, now time.Time) tls.Certificate {
	t.Helper()
	csr, key := newCSR(t, &x509.CertificateRequest{})
	raw, err := ca.SignNode(csr, name, now, 24*time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := parsePEM(t, raw)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

func serverCert(t testing.TB, ca *CA, now time.Time) tls.Certificate {
	t.Helper()
	cert, err := ca.ServerCertificate([]string{"localhost", "127.0.0.1", "::1"}, now, 24*time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func at(config *tls.Config, now time.Time) *tls.Config {
	config.Time = func() time.Time { return now }
	return config
}

// handshake runs both sides over loopback and lets each send a byte, since TLS 1.3 clients learn of
// a refused certificate only when they read.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
		conn := tls.Server(raw, server)
		if err := conn.Handshake(); err != nil {
			done <- err
			return
		}
		state = conn.ConnectionState()
		_, err = conn.Write([]byte("x"))
		done <- err
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := tls.Client(raw, client)
	if clientErr = conn.Handshake(); clientErr == nil {
		_, clientErr = io.ReadFull(conn, make([]byte, 1))
	}
	raw.Close()
	return state, <-done, clientErr
}

func TestHandshakeWithNodeCertificate(t *testing.T) {
	ca := newCA(t, cluster)
	now := start().Add(time.Hour)
	client := at(&tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{nodeCert(t, ca, node, now)}}, now)
	state, serverErr, clientErr := handshake(t, at(ca.AgentTLS(serverCert(t, ca, now)), now), client)
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v, client: %v", serverErr, clientErr)
	}
	got, cert, err := ca.NodeFromTLS(state)
	if err != nil || got != node || KeyOf(cert) == "" {
		t.Errorf("node is %q, %v", got, err)
	}
	if _, _, err := newCA(t, "another").NodeFromTLS(state); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("another cluster took the node: %v", err)
	}
}

func TestJoinNeedsNoCertificateButHasNoNode(t *testing.T) {
	ca := newCA(t, cluster)
	now := start()
	state, serverErr, clientErr := handshake(t, at(ca.AgentTLS(serverCert(t, ca, now)), now),
		at(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}, now))
	if serverErr != nil || clientErr != nil {
		t.Fatalf("server: %v, client: %v", serverErr, clientErr)
	}
	if got, _, err := ca.NodeFromTLS(state); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
		t.Errorf("node %q without a certificate, %v", got, err)
	}
}

func TestAgentPortRefuses(t *testing.T) {
	ca, foreign := newCA(t, cluster), newCA(t, cluster)
	now := start()
	plain := func(ca *CA, change func(*x509.Certificate)) tls.Certificate { return forge(t, ca, now, change) }
	tests := []struct {
		name   string
		client tls.Certificate
		when   time.Time
	}{
		{"certificate of another CA for the same cluster id", nodeCert(t, foreign, node, now), now},
		{"expired certificate", nodeCert(t, ca, node, now), now.Add(25 * time.Hour)},
		{"certificate of the future", nodeCert(t, ca, node, now.Add(48*time.Hour)), now},
		{"a coordinator's certificate as a client", serverCert(t, ca, now), now},
		{"client certificate of no node", plain(ca, func(c *x509.Certificate) { c.URIs = nil }), now},
		{"client and server at once", plain(ca, func(c *x509.Certificate) { c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) }), now},
		{"node of another cluster under this CA", plain(ca, func(c *x509.Certificate) { c.URIs[0].Host = "other" }), now},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := at(ca.AgentTLS(longServerCert(t, ca)), tt.when)
			cert := tt.client
			client := at(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost",
				// Show it even where its issuer is not one the server asks for.
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}, tt.when)
			_, serverErr, clientErr := handshake(t, server, client)
			if serverErr == nil || clientErr == nil {
				t.Errorf("accepted; server: %v, client: %v", serverErr, clientErr)
			}
		})
	}
}

func longServerCert(t *testing.T, ca *CA) tls.Certificate {
	cert, err := ca.ServerCertificate([]string{"localhost"}, start(), 1000*time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// forge issues what SignNode would not.
func forge(t *testing.T, ca *CA, now time.Time, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: uriScheme, Host: ca.cluster, Path: nodePath + string(node)}},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestServerCertificateIsRefusedWhereItShouldBe(t *testing.T) {
	ca := newCA(t, cluster)
	now := start()
	tests := []struct {
		name   string
		server tls.Certificate
		client *tls.Config
		when   time.Time
		says   string
	}{
		{"wrong CA", serverCert(t, ca, now), &tls.Config{RootCAs: newCA(t, cluster).Pool(), ServerName: "localhost"}, now, "unknown authority"},
		{"other host", serverCert(t, ca, now), &tls.Config{RootCAs: ca.Pool(), ServerName: "evil.example"}, now, "evil.example"},
		{"expired", serverCert(t, ca, now), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}, now.Add(25 * time.Hour), "expired"},
		{"node as a server", nodeCert(t, ca, "localhost", now), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}, now, ""},
		{"TLS 1.2", serverCert(t, ca, now), &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MaxVersion: tls.VersionTLS12}, now, "version"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for port, config := range map[string]*tls.Config{"agent": ca.AgentTLS(tt.server), "api": ca.APITLS(tt.server)} {
				_, _, err := handshake(t, at(config, tt.when), at(tt.client.Clone(), tt.when))
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s port: client error %v, want %q", port, err, tt.says)
				}
			}
		})
	}
	// Even a client that skips the name must see that a node's certificate is no server's.
	leaf := nodeCert(t, ca, "localhost", now).Leaf
	_, err := leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	var why x509.CertificateInvalidError
	if !errors.As(err, &why) || why.Reason != x509.IncompatibleUsage {
		t.Errorf("a node's certificate as a server's: %v", err)
	}
}

func TestAPIPortAsksForNoClientCertificate(t *testing.T) {
	ca := newCA(t, cluster)
	now := start()
	asked := false
	client := at(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		}}, now)
	if _, serverErr, clientErr := handshake(t, at(ca.APITLS(serverCert(t, ca, now)), now), client); serverErr != nil || clientErr != nil || asked {
		t.Errorf("server: %v, client: %v, asked %v", serverErr, clientErr, asked)
	}
}
