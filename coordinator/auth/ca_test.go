package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

func TestCASurvivesStoring(t *testing.T) {
	ca := newCA(t, cluster)
	raw, err := ca.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseCA(raw)
	if err != nil {
		t.Fatal(err)
	}
	if back.Cluster() != cluster || Pin(back) != Pin(ca) || !back.key.Equal(ca.key) || !bytes.Equal(back.cert.Raw, ca.cert.Raw) {
		t.Errorf("came back as %v", back)
	}
	if bytes.Contains(ca.CertificatePEM(), []byte("PRIVATE")) {
		t.Error("the public part holds the key")
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(verb, ca); text != "CA of cluster "+cluster {
			t.Errorf("%s shows %s", verb, text)
		}
	}
}

func TestParseCARefuses(t *testing.T) {
	ca, other := newCA(t, cluster), newCA(t, "other")
	raw, _ := ca.Marshal()
	certificate := ca.CertificatePEM()
	key := raw[len(certificate):]
	leaf := nodeCert(t, ca, node, start()).Leaf
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaDER, _ := x509.MarshalPKCS8PrivateKey(rsaKey)
	tests := map[string][]byte{
		"empty":             nil,
		"certificate only":  certificate,
		"key first":         slices.Concat(key, certificate),
		"key of another CA": slices.Concat(other.CertificatePEM(), key),
		"a node's":          slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), key),
		"RSA key":           slices.Concat(certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rsaDER})),
		"more after it":     slices.Concat(raw, []byte("x")),
		"broken DER":        slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), key),
	}
	for name, data := range tests {
		if got, err := ParseCA(data); err == nil || !strings.HasPrefix(err.Error(), "cannot parse CA: ") {
			t.Errorf("%s: parsed as %v, %v", name, got, err)
		}
	}
}

func TestSignNodeTakesNothingButTheKey(t *testing.T) {
	ca := newCA(t, cluster)
	csr, key := newCSR(t, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "coordinator", Organization: []string{"admins"}},
		DNSNames: []string{"coordinator.example"},
		URIs:     []*url.URL{{Scheme: uriScheme, Host: cluster, Path: coordinatorPath}},
	})
	raw, err := ca.SignNode(csr, node, start(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := parsePEM(t, raw)
	if got, err := NodeFromCertificate(cert); err != nil || got != node {
		t.Errorf("node is %q, %v", got, err)
	}
	if cert.Subject.String() != "" || len(cert.DNSNames) != 0 || len(cert.URIs) != 1 || cert.IsCA ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || !key.PublicKey.Equal(cert.PublicKey) {
		t.Errorf("subject %q, DNS %v, URIs %v, use %v", cert.Subject, cert.DNSNames, cert.URIs, cert.ExtKeyUsage)
	}
	if !cert.NotBefore.Equal(start().Add(-clockSkew)) || !cert.NotAfter.Equal(start().Add(time.Hour)) {
		t.Errorf("valid %s to %s", cert.NotBefore, cert.NotAfter)
	}
	if bits := cert.SerialNumber.BitLen(); bits != 127 {
		t.Errorf("serial number has %d bits", bits)
	}
	late := ca.cert.NotAfter.Add(-time.Minute)
	raw, err = ca.SignNode(csr, node, late, time.Hour, rand.Reader)
	if err != nil || !parsePEM(t, raw).NotAfter.Equal(ca.cert.NotAfter) {
		t.Errorf("a certificate outlives its CA, %v", err)
	}
}

func TestSignNodeRefuses(t *testing.T) {
	ca := newCA(t, cluster)
	good, _ := newCSR(t, &x509.CertificateRequest{})
	broken := slices.Clone(good)
	broken[len(broken)-1] ^= 1
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, small)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		csr      []byte
		node     coordinator.NodeID
		now      time.Time
		lifetime time.Duration
		kind     coordinator.ErrorKind
	}{
		{"empty request", nil, node, start(), time.Hour, coordinator.ErrInvalid},
		{"signature of another key", broken, node, start(), time.Hour, coordinator.ErrInvalid},
		{"weak key", weak, node, start(), time.Hour, coordinator.ErrInvalid},
		{"huge request", make([]byte, maxCSR+1), node, start(), time.Hour, coordinator.ErrInvalid},
		{"bad name", good, "a/../coordinator", start(), time.Hour, coordinator.ErrInvalid},
		{"no lifetime", good, node, start(), 0, coordinator.ErrInternal},
		{"expired CA", good, node, ca.cert.NotAfter.Add(time.Hour), time.Hour, coordinator.ErrInternal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw, err := ca.SignNode(tt.csr, tt.node, tt.now, tt.lifetime, rand.Reader)
			if err == nil || coordinator.ErrorKindOf(err) != tt.kind || !strings.HasPrefix(err.Error(), "cannot ") {
				t.Errorf("got %d bytes, %v", len(raw), err)
			}
		})
	}
}

func TestNodeFromCertificateRefusesOtherProfiles(t *testing.T) {
	ca := newCA(t, cluster)
	tests := map[string]func(*x509.Certificate){
		"no URI":             func(c *x509.Certificate) { c.URIs = nil },
		"two URIs":           func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) },
		"DNS name too":       func(c *x509.Certificate) { c.DNSNames = []string{"x"} },
		"other scheme":       func(c *x509.Certificate) { c.URIs[0].Scheme = "spiffe" },
		"coordinator":        func(c *x509.Certificate) { c.URIs[0].Path = coordinatorPath },
		"no name":            func(c *x509.Certificate) { c.URIs[0].Path = nodePath },
		"deeper path":        func(c *x509.Certificate) { c.URIs[0].Path += "/x" },
		"query":              func(c *x509.Certificate) { c.URIs[0].RawQuery = "a=b" },
		"user info":          func(c *x509.Certificate) { c.URIs[0].User = url.User("x") },
		"upper case":         func(c *x509.Certificate) { c.URIs[0].Path = nodePath + "GPU" },
		"server":             func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
		"any use":            func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} },
		"no use":             func(c *x509.Certificate) { c.ExtKeyUsage = nil },
		"a CA":               func(c *x509.Certificate) { c.IsCA = true },
		"without a cluster":  func(c *x509.Certificate) { c.URIs[0].Host = "" },
		"escaped separators": func(c *x509.Certificate) { c.URIs[0].RawPath = "/node%2Fx"; c.URIs[0].Path = "/node/x" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := NodeFromCertificate(forge(t, ca, start(), change).Leaf); coordinator.ErrorKindOf(err) != coordinator.ErrUnauthenticated {
				t.Errorf("node %q, %v", got, err)
			}
		})
	}
	if got, err := NodeFromCertificate(ca.Certificate()); err == nil {
		t.Errorf("the CA is node %q", got)
	}
}

func TestServerCertificateHosts(t *testing.T) {
	ca := newCA(t, cluster)
	cert, err := ca.ServerCertificate([]string{"Coord.Example", "10.1.2.3", "[fe80::1%eth0]", "::ffff:10.0.0.1"}, start(), time.Hour, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, ip := range cert.Leaf.IPAddresses {
		ips = append(ips, ip.String())
	}
	if !slices.Equal(cert.Leaf.DNSNames, []string{"coord.example"}) || strings.Join(ips, " ") != "10.1.2.3 fe80::1 10.0.0.1" {
		t.Errorf("names %v, addresses %v", cert.Leaf.DNSNames, ips)
	}
	if len(cert.Certificate) != 2 || !bytes.Equal(cert.Certificate[1], ca.cert.Raw) {
		t.Error("the chain does not end with the CA, which agents pin")
	}
	for _, hosts := range [][]string{{""}, {"a b"}, {"*.example"}, make([]string, maxHosts+1)} {
		if _, err := ca.ServerCertificate(hosts, start(), time.Hour, rand.Reader); err == nil {
			t.Errorf("issued for %.3q", hosts)
		}
	}
}

func TestNodeNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := []struct {
		name string
		ok   bool
	}{
		{"a", true}, {"gpu-01", true}, {"0gpu", true}, {"gpu-01.rack.example", true}, {long, true},
		{strings.Join([]string{long, long, long, long[:61]}, "."), true},
		{"", false}, {"GPU", false}, {"a_b", false}, {"-a", false}, {"a-", false}, {"a..b", false}, {".a", false}, {"a.", false},
		{"a/b", false}, {"a b", false}, {"ä", false}, {"a\n", false}, {long + "a", false},
		{strings.Join([]string{long, long, long, long[:62]}, "."), false}, {"10.0.0.1", false}, {"10.0.0", true},
	}
	for _, tt := range tests {
		if got, err := ParseNodeName(tt.name); (err == nil) != tt.ok || tt.ok && string(got) != tt.name {
			t.Errorf("%q: %q, %v", tt.name, got, err)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	good, _ := newCSR(f, &x509.CertificateRequest{})
	f.Add(good)
	f.Add([]byte{})
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		r, err := ParseRequest(der)
		if err == nil && (len(r.Key) != 43 || r.csr.CheckSignature() != nil) {
			t.Fatalf("accepted %x with key %q", der, r.Key)
		}
	})
}
