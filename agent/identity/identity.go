// Package identity holds what proves a node's name to the coordinator: its key, its certificate and
// the cluster's CA. It opens no connection and decides nothing about joining.
package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Names inside certificates: substrate://<cluster>/node/<name> and substrate://<cluster>/coordinator.
const (
	uriScheme       = "substrate"
	nodePath        = "/node/"
	coordinatorPath = "/coordinator"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Key is a node's private key: ECDSA P-256.
type Key struct{ private *ecdsa.PrivateKey }

// NewKey makes a key from rand.
func NewKey(rand io.Reader) (Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return Key{}, fmt.Errorf("cannot generate node key: %w", err)
	}
	return Key{private}, nil
}

// String and GoString keep the secret out of logs.
func (k Key) String() string   { return "node key" }
func (k Key) GoString() string { return k.String() }

// CSR is a certificate request in DER that proves possession of the key. The coordinator reads
// nothing else of it; the node's name travels beside it.
func (k Key) CSR(rand io.Reader) ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("cannot create certificate request: no key")
	}
	der, err := x509.CreateCertificateRequest(rand, &x509.CertificateRequest{}, k.private)
	if err != nil {
		return nil, fmt.Errorf("cannot create certificate request: %w", err)
	}
	return der, nil
}

func (k Key) marshal() ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("no key")
	}
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func parseKey(der []byte) (Key, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return Key{}, err
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return Key{}, fmt.Errorf("a key of type %T is not a node's", parsed)
	}
	return Key{private}, nil
}

// Identity is a node's name as the cluster's CA certified it.
type Identity struct {
	Node    string
	Cluster string
	key     Key
	leaf    *x509.Certificate
	ca      *x509.Certificate
}

// New checks the answer to a join or a renewal: the CA has the pin ("" when it is trusted already),
// signed the certificate for this key as a node's, and the certificate is valid now.
func New(key Key, certificatePEM, caPEM []byte, pin Pin, now time.Time) (*Identity, error) {
	id, err := build(key, certificatePEM, caPEM)
	if err != nil {
		return nil, fmt.Errorf("cannot use node certificate: %w", err)
	}
	if pin != "" && PinOf(id.ca) != pin {
		return nil, errors.New("cannot use node certificate: its CA is not the one the join token names")
	}
	if err := id.Valid(now); err != nil {
		return nil, err
	}
	return id, nil
}

// build checks everything but the time, so that an expired identity can still be read and named.
func build(key Key, certificatePEM, caPEM []byte) (*Identity, error) {
	if key.private == nil {
		return nil, errors.New("no key")
	}
	leaf, err := oneCertificate(certificatePEM)
	if err != nil {
		return nil, err
	}
	ca, err := oneCertificate(caPEM)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	if !ca.IsCA {
		return nil, errors.New("CA: the certificate is not a CA's")
	}
	if !key.private.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("it is for another key")
	}
	node, cluster, err := nodeOf(leaf)
	if err != nil {
		return nil, err
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return nil, err
	}
	return &Identity{Node: node, Cluster: cluster, key: key, leaf: leaf, ca: ca}, nil
}

func oneCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemCertificate || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("expected one certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func nodeOf(leaf *x509.Certificate) (node, cluster string, err error) {
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != uriScheme || leaf.URIs[0].Host == "" {
		return "", "", errors.New("it names no node")
	}
	node, ok := strings.CutPrefix(leaf.URIs[0].Path, nodePath)
	if !ok || node == "" || strings.Contains(node, "/") {
		return "", "", fmt.Errorf("it names %s, which is no node", leaf.URIs[0])
	}
	return node, leaf.URIs[0].Host, nil
}

// Valid tells whether the certificate holds now.
func (id *Identity) Valid(now time.Time) error {
	_, err := id.leaf.Verify(x509.VerifyOptions{
		Roots: id.pool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("cannot use certificate of node %s: %w", id.Node, err)
	}
	return nil
}

// Expires is the end of the certificate.
func (id *Identity) Expires() time.Time { return id.leaf.NotAfter }

// clockSkew is how long before its issue the coordinator lets a certificate begin, for nodes whose clocks are behind.
const clockSkew = 5 * time.Minute

// renewAt is when to renew: after half of the certificate's life and up to a tenth more, by chance from 0 to 1, so
// that nodes that joined together do not renew together. What is left of its life is for trying again.
func (id *Identity) renewAt(chance float64) time.Time {
	issued := id.leaf.NotBefore.Add(clockSkew)
	if !issued.Before(id.leaf.NotAfter) {
		issued = id.leaf.NotBefore
	}
	life := id.leaf.NotAfter.Sub(issued)
	return issued.Add(life/2 + time.Duration(chance*float64(life)/10))
}

func (id *Identity) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(id.ca)
	return pool
}

func (id *Identity) certificate() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{id.leaf.Raw}, PrivateKey: id.key.private, Leaf: id.leaf}
}
