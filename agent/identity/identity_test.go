package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// authority is a cluster's CA as the coordinator makes it.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func issue(t testing.TB, template, parent *x509.Certificate, public any, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{IsCA: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: start().Add(-time.Hour), NotAfter: start().AddDate(20, 0, 0)}
	return authority{issue(t, template, template, &key.PublicKey, key), key}
}

func leafTemplate(path string, usage x509.ExtKeyUsage) *x509.Certificate {
	return &x509.Certificate{
		NotBefore: start(), NotAfter: start().Add(30 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		URIs: []*url.URL{{Scheme: uriScheme, Host: "cluster-1", Path: path}}}
}

func (a authority) pem() []byte { return asPEM(a.cert) }

func asPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw})
}

// node signs a request as the coordinator does.
func (a authority) node(t testing.TB, key Key, path string) []byte {
	t.Helper()
	der, err := key.CSR(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil || csr.CheckSignature() != nil {
		t.Fatalf("bad request: %v", err)
	}
	return asPEM(issue(t, leafTemplate(path, x509.ExtKeyUsageClientAuth), a.cert, csr.PublicKey, a.key))
}

func (a authority) server(t testing.TB, path string, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := issue(t, leafTemplate(path, usage), a.cert, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, a.cert.Raw}, PrivateKey: key}
}

func newKey(t testing.TB) Key {
	t.Helper()
	key, err := NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newIdentity(t testing.TB, a authority) *Identity {
	t.Helper()
	key := newKey(t)
	id, err := New(key, a.node(t, key, "/node/gpu-07"), a.pem(), PinOf(a.cert), start())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNewChecksTheAnswer(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	key, other := newKey(t), newKey(t)
	good := a.node(t, key, "/node/gpu-07")
	tests := []struct {
		name     string
		key      Key
		cert, ca []byte
		pin      Pin
		now      time.Time
		says     string
	}{
		{"good", key, good, a.pem(), PinOf(a.cert), start(), ""},
		{"renewal under a known CA", key, good, a.pem(), "", start(), ""},
		{"another CA with its own certificate", key, foreign.node(t, key, "/node/gpu-07"), foreign.pem(), PinOf(a.cert), start(), "join token"},
		{"pinned CA, certificate of another", key, foreign.node(t, key, "/node/gpu-07"), a.pem(), PinOf(a.cert), start(), ""},
		{"another key", other, good, a.pem(), PinOf(a.cert), start(), "another key"},
		{"no key", Key{}, good, a.pem(), PinOf(a.cert), start(), "no key"},
		{"expired", key, good, a.pem(), PinOf(a.cert), start().Add(31 * time.Hour), "expired"},
		{"coordinator's name", key, a.node(t, key, coordinatorPath), a.pem(), PinOf(a.cert), start(), "no node"},
		{"no name", key, a.node(t, key, "/node/"), a.pem(), PinOf(a.cert), start(), "no node"},
		{"leaf as the CA", key, good, good, "", start(), "CA"},
		{"two certificates", key, append(bytes.Clone(good), good...), a.pem(), PinOf(a.cert), start(), "one certificate"},
		{"nothing", key, nil, nil, "", start(), "one certificate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, err := New(tt.key, tt.cert, tt.ca, tt.pin, tt.now)
			if strings.HasPrefix(tt.name, "pinned CA") {
				if err == nil {
					t.Fatal("accepted")
				}
				return
			}
			if tt.says == "" {
				if err != nil || id.Node != "gpu-07" || id.Cluster != "cluster-1" {
					t.Fatalf("%+v, %v", id, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.HasPrefix(err.Error(), "cannot ") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestRenewAtAboutHalf(t *testing.T) {
	id := newIdentity(t, newAuthority(t))
	if !id.Expires().Equal(start().Add(30 * time.Hour)) {
		t.Errorf("expires %s", id.Expires())
	}
	for _, life := range []time.Duration{12 * time.Second, time.Minute, time.Hour, 24 * time.Hour, 90 * 24 * time.Hour} {
		leaf := x509.Certificate{NotBefore: start().Add(-clockSkew), NotAfter: start().Add(life)}
		id := &Identity{leaf: &leaf}
		if early, late := id.renewAt(0), id.renewAt(1); !early.Equal(start().Add(life/2)) || !late.Equal(start().Add(life*6/10)) {
			t.Errorf("with a life of %s: from %s to %s", life, early, late)
		}
	}
	// One that is shorter than the allowance is of another coordinator: all of it is its life.
	short := &Identity{leaf: &x509.Certificate{NotBefore: start(), NotAfter: start().Add(2 * time.Minute)}}
	if at := short.renewAt(0); !at.Equal(start().Add(time.Minute)) {
		t.Errorf("a short one: %s", at)
	}
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	if _, err := Load(dir); !errors.Is(err, ErrNone) {
		t.Fatalf("an empty directory: %v", err)
	}
	key, err := PendingKey(dir, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	again, err := PendingKey(dir, rand.Reader)
	if err != nil || !again.private.Equal(key.private) {
		t.Fatalf("the pending key changed: %v", err)
	}
	a := newAuthority(t)
	id, err := New(key, a.node(t, key, "/node/gpu-07"), a.pem(), PinOf(a.cert), start())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time replaces
		if err := id.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != identityFile {
		t.Fatalf("directory holds %v, %v", entries, err)
	}
	path := filepath.Join(dir, identityFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory mode %v, %v", info.Mode(), err)
	}
	back, err := Load(dir)
	if err != nil || back.Node != "gpu-07" || !back.leaf.Equal(id.leaf) || !back.ca.Equal(a.cert) || !back.key.private.Equal(key.private) {
		t.Fatalf("came back as %+v, %v", back, err)
	}
	if next, err := PendingKey(dir, rand.Reader); err != nil || next.private.Equal(key.private) {
		t.Errorf("a renewal reuses the key, %v", err)
	}
	if err := back.Valid(start().Add(31 * time.Hour)); err == nil {
		t.Error("an expired identity is valid")
	}
}

func TestFilesRefuse(t *testing.T) {
	good := t.TempDir()
	a := newAuthority(t)
	if err := newIdentity(t, a).Save(good); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(good, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	otherKey, _ := newKey(t).marshal()
	end := bytes.Index(data, []byte("-----BEGIN CERTIFICATE"))
	leafEnd := bytes.LastIndex(data, []byte("-----BEGIN CERTIFICATE"))
	tests := []struct {
		name string
		data []byte
		mode os.FileMode
		says string
	}{
		{"readable by the group", data, 0o640, "0600"},
		{"readable by all", data, 0o604, "0600"},
		{"cut short", data[:len(data)-40], 0o600, "expected"},
		{"empty", nil, 0o600, "expected"},
		{"key of another", append(bytes.Clone(otherKey), data[end:]...), 0o600, "another key"},
		{"CA of another cluster", append(bytes.Clone(data[:leafEnd]), newAuthority(t).pem()...), 0o600, "verification"},
		{"something behind it", append(bytes.Clone(data), "x"...), 0o600, "expected"},
		{"huge", make([]byte, maxFile+1), 0o600, "more than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, identityFile)
			if err := os.WriteFile(path, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			_, err := Load(dir)
			if err == nil || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("damaged pending key is not replaced", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, pendingFile), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := PendingKey(dir, rand.Reader); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("a failed write leaves the former file", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, identityFile)
		if err := os.Mkdir(path, 0o700); err != nil { // a rename onto it fails, for root too
			t.Fatal(err)
		}
		if err := newIdentity(t, a).Save(dir); err == nil {
			t.Error("saved onto a directory")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("left %v behind, %v", entries, err)
		}
	})
}

// dial runs a handshake over loopback and tells the client's outcome and what the server saw.
func dial(t *testing.T, server, client *tls.Config) (seen []*x509.Certificate, err error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
		conn := tls.Server(raw, server)
		if conn.Handshake() == nil {
			seen = conn.ConnectionState().PeerCertificates
			_, _ = conn.Write([]byte("x"))
		}
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	conn := tls.Client(raw, client)
	if err = conn.Handshake(); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	raw.Close()
	<-done
	return seen, err
}

func TestClientTLS(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	id := newIdentity(t, a)
	smuggled := foreign.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth)
	smuggled.Certificate = append(smuggled.Certificate, a.cert.Raw) // shows the pinned CA, is not signed by it
	bare := a.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth)
	bare.Certificate = bare.Certificate[:1]
	self := tls.Certificate{Certificate: [][]byte{a.cert.Raw}, PrivateKey: a.key}
	tests := []struct {
		name          string
		server        tls.Certificate
		after         time.Duration
		byPin, mutual string // what the client says; "" accepts
	}{
		{"the coordinator", a.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth), time.Hour, "", ""},
		{"other CA", foreign.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth), time.Hour, "pin", "unknown authority"},
		{"other CA, ours shown beside it", smuggled, time.Hour, "unknown authority", "unknown authority"},
		{"chain without the CA", bare, time.Hour, "pin", ""},
		{"expired", a.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth), 31 * time.Hour, "expired", "expired"},
		{"a node as the coordinator", a.server(t, "/node/evil", x509.ExtKeyUsageClientAuth), time.Hour, "usage", "usage"},
		{"a node's name for servers", a.server(t, "/node/evil", x509.ExtKeyUsageServerAuth), time.Hour, "not a coordinator", "not a coordinator"},
		{"the CA itself", self, time.Hour, "pin", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := func() time.Time { return start().Add(tt.after) }
			pool := x509.NewCertPool()
			pool.AddCert(a.cert)
			server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{tt.server}, NextProtos: []string{"h2"},
				ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, Time: func() time.Time { return start().Add(time.Hour) }}
			byPin, err := ClientTLSByPin(PinOf(a.cert), now)
			if err != nil {
				t.Fatal(err)
			}
			seen, err := dial(t, server, byPin)
			expect(t, "by pin", err, tt.byPin)
			if len(seen) > 0 {
				t.Error("a joining node showed a certificate")
			}
			seen, err = dial(t, server, id.ClientTLS(now))
			if tt.name == "the CA itself" {
				if err == nil {
					t.Error("accepted the CA as the coordinator")
				}
				return
			}
			expect(t, "mutual", err, tt.mutual)
			if err == nil && (len(seen) != 1 || !seen[0].Equal(id.leaf)) {
				t.Error("the server did not see the node's certificate")
			}
		})
	}
	t.Run("TLS 1.2", func(t *testing.T) {
		server := &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{a.server(t, coordinatorPath, x509.ExtKeyUsageServerAuth)}}
		if _, err := dial(t, server, id.ClientTLS(start)); err == nil {
			t.Error("accepted")
		}
	})
	if _, err := ClientTLSByPin("", start); err == nil {
		t.Error("joins without a pin")
	}
}

func expect(t *testing.T, what string, err error, says string) {
	t.Helper()
	if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%s: error %v, want %q", what, err, says)
	}
}

func TestSecretsStayOutOfLogs(t *testing.T) {
	key := newKey(t)
	d, err := key.private.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	token := Token{Proof: strings.Repeat("0a", idBytes) + "." + strings.Repeat("S", 43)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, key); text != "node key" {
			t.Errorf("%s shows a key of %d bytes as %s", verb, len(d), text)
		}
		if text := fmt.Sprintf(verb, token); strings.Contains(text, "SSS") {
			t.Errorf("%s shows %s", verb, text)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	id, secret := strings.Repeat("0a", idBytes), strings.Repeat("A", 43)
	f.Add(id + "." + secret + "." + secret)
	f.Add(id + "." + secret + "." + secret + "\n")
	f.Add(id + "." + secret)
	f.Add(id + "." + secret + "." + secret[:42] + "B")
	f.Add("..")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseToken(text)
		if err == nil && (got.Proof+"."+string(got.Pin) != strings.TrimSpace(text) || !got.Pin.valid()) {
			t.Fatalf("%q was read as %q and %q", text, got.Proof, got.Pin)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	dir := f.TempDir()
	if err := newIdentity(f, newAuthority(f)).Save(dir); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if id, err := parse(data); err == nil && (id.Node == "" || id.leaf.CheckSignatureFrom(id.ca) != nil) {
			t.Fatalf("accepted %q", data)
		}
	})
}
