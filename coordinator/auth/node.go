package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"substrate/coordinator"
)

const (
	maxCSR     = 64 << 10
	minRSABits = 2048
	maxRSABits = 8192 // more only costs the verifier time
)

// Request is a certificate request whose signature was checked: the sender holds the key.
type Request struct {
	Key KeyID
	csr *x509.CertificateRequest
}

// ParseRequest checks a PKCS #10 request in DER. What it says about its subject is not read.
func ParseRequest(der []byte) (Request, error) {
	fail := func(err error) (Request, error) { return Request{}, invalid("read certificate request", err) }
	if len(der) > maxCSR {
		return fail(fmt.Errorf("%d bytes are more than %d", len(der), maxCSR))
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return fail(err)
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return fail(err)
	}
	if err := csr.CheckSignature(); err != nil {
		return fail(err)
	}
	return Request{Key: KeyID(keyPin(csr.RawSubjectPublicKeyInfo)), csr: csr}, nil
}

func checkKey(public any) error {
	switch key := public.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if size := key.Curve.Params().BitSize; size < 256 {
			return fmt.Errorf("an ECDSA key of %d bits is too weak", size)
		}
		return nil
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits || bits > maxRSABits {
			return fmt.Errorf("an RSA key of %d bits, expected %d to %d", bits, minRSABits, maxRSABits)
		}
		return nil
	}
	return fmt.Errorf("keys of type %T are not used here", public)
}

// SignNode issues a node's certificate as PEM, leaf only. The request gives nothing but its key; the
// name is the caller's decision. The certificate serves as a client's, never as a server's.
func (ca *CA) SignNode(csr []byte, node coordinator.NodeID, now time.Time, lifetime time.Duration, rand io.Reader) ([]byte, error) {
	request, err := ParseRequest(csr)
	if err != nil {
		return nil, err
	}
	if _, err := ParseNodeName(string(node)); err != nil {
		return nil, err
	}
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("cannot issue certificate of node %s: %w", node, err)
	}
	template, err := ca.leaf(now, lifetime, rand)
	if err != nil {
		return fail(err)
	}
	// The subject stays empty: its common name ends at 64 bytes, a node's name at 253.
	template.URIs = []*url.URL{{Scheme: uriScheme, Host: ca.cluster, Path: nodePath + string(node)}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand, template, ca.cert, request.csr.PublicKey, ca.key)
	if err != nil {
		return fail(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), nil
}

// NodeFromCertificate reads the node's name out of a certificate that SignNode made. It checks the
// profile, not the signature: the TLS handshake did that (see NodeFromTLS).
func NodeFromCertificate(cert *x509.Certificate) (coordinator.NodeID, error) {
	node, _, err := nodeOf(cert)
	if err != nil {
		return "", coordinator.Errorf(coordinator.ErrUnauthenticated, "read node certificate", "%w", err)
	}
	return node, nil
}

func nodeOf(cert *x509.Certificate) (node coordinator.NodeID, cluster string, err error) {
	switch {
	case cert.IsCA:
		return "", "", errors.New("it is a CA's")
	case len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || len(cert.UnknownExtKeyUsage) > 0:
		return "", "", errors.New("it is not for clients alone")
	case len(cert.URIs) != 1 || len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses) > 0:
		return "", "", errors.New("it names more or less than one node")
	}
	u := cert.URIs[0]
	name, ok := strings.CutPrefix(u.Path, nodePath)
	if !ok || u.Scheme != uriScheme || u.Host == "" || u.String() != uriScheme+"://"+u.Host+nodePath+name {
		return "", "", fmt.Errorf("%q is not a node's name", u)
	}
	if err := checkNodeName(name); err != nil {
		return "", "", err
	}
	return coordinator.NodeID(name), u.Host, nil
}

// NodeFromTLS is the node at the other end of a connection accepted with AgentTLS. Without a
// verified client certificate of this cluster there is none.
func (ca *CA) NodeFromTLS(state tls.ConnectionState) (coordinator.NodeID, *x509.Certificate, error) {
	fail := func(format string, args ...any) (coordinator.NodeID, *x509.Certificate, error) {
		return "", nil, coordinator.Errorf(coordinator.ErrUnauthenticated, "identify node", format, args...)
	}
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return fail("the connection has no verified client certificate")
	}
	cert := state.VerifiedChains[0][0]
	node, cluster, err := nodeOf(cert)
	if err != nil {
		return fail("%w", err)
	}
	if cluster != ca.cluster {
		return fail("the certificate is of cluster %q", cluster)
	}
	return node, cert, nil
}

// Pool holds the CA alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// AgentTLS serves the port of the agents: TLS 1.3; a client certificate is not demanded, so that a
// node can join, but a given one must be a node's of this cluster. NodeFromTLS demands one.
func (ca *CA) AgentTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    ca.Pool(),
		NextProtos:   []string{"h2"},
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			_, _, err := ca.NodeFromTLS(state)
			return err
		},
	}
}

// APITLS serves the port of people and programs: TLS 1.3, callers show a token instead of a certificate.
func (ca *CA) APITLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{"h2", "http/1.1"},
	}
}

// IssuedAt is when SignNode made a certificate, to the second.
func IssuedAt(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(clockSkew) }

// Revocation ends the certificates of one node that were issued before a time.
type Revocation struct {
	Node   coordinator.NodeID `json:"node"`
	Before time.Time          `json:"before"` // a whole second, as certificates have no finer time
	Until  time.Time          `json:"until"`  // when the last of them has expired
	By     string             `json:"by,omitempty"`
	Reason string             `json:"reason,omitempty"`
}

// Revoke ends every certificate of a node up to now, none of which lives longer than lifetime.
func Revoke(node coordinator.NodeID, now time.Time, lifetime time.Duration) Revocation {
	before := now.UTC().Truncate(time.Second).Add(time.Second)
	return Revocation{Node: node, Before: before, Until: before.Add(lifetime + clockSkew)}
}

// Ends reports whether the revocation ends a certificate that was issued at a time.
func (r Revocation) Ends(issued time.Time) bool { return issued.Before(r.Before) }

// After is the earliest time from now at which a certificate can be issued that the revocation does not end.
func (r Revocation) After(now time.Time) time.Time {
	if now.Before(r.Before) {
		return r.Before
	}
	return now
}
