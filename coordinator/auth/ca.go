// Package auth says who is who: the cluster's certificates, join tokens, users' tokens and what a
// caller may do. It reads no clock, stores nothing and opens no connection.
package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"substrate/coordinator"
)

// Names inside certificates: substrate://<cluster>/node/<name> and substrate://<cluster>/coordinator.
const (
	uriScheme       = "substrate"
	nodePath        = "/node/"
	coordinatorPath = "/coordinator"
)

const (
	caLifetime = 20 * 365 * 24 * time.Hour
	// clockSkew is how far a node's clock may be behind when it first reads its certificate.
	clockSkew = 5 * time.Minute
	maxHosts  = 256
)

// CA is the cluster's certificate authority: ECDSA P-256, one level, for nodes and coordinators only.
type CA struct {
	cluster string
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
}

// NewCA makes the authority of a new cluster. The cluster id must be usable as a URI host (a UUID is).
func NewCA(clusterID string, now time.Time, rand io.Reader) (*CA, error) {
	if err := checkNodeName(clusterID); err != nil {
		return nil, fmt.Errorf("cannot create CA of cluster %q: %w", clusterID, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return nil, fmt.Errorf("cannot create CA of cluster %s: %w", clusterID, err)
	}
	template, err := newTemplate(now, now.Add(caLifetime), rand)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "substrate cluster CA", Organization: []string{clusterID}}
	template.URIs = []*url.URL{{Scheme: uriScheme, Host: clusterID}}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("cannot create CA of cluster %s: %w", clusterID, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot create CA of cluster %s: %w", clusterID, err)
	}
	return &CA{cluster: clusterID, cert: cert, key: key}, nil
}

func newTemplate(now, until time.Time, rand io.Reader) (*x509.Certificate, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(rand, raw); err != nil {
		return nil, fmt.Errorf("cannot draw serial number: %w", err)
	}
	raw[0] = raw[0]&0x7f | 0x40 // positive and always 16 bytes
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(raw),
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     until,
	}, nil
}

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Marshal returns certificate and private key as PEM, to be stored where only the coordinator reads.
func (ca *CA) Marshal() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal CA: %w", err)
	}
	return append(ca.CertificatePEM(), pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})...), nil
}

// ParseCA reads what Marshal wrote.
func ParseCA(data []byte) (*CA, error) {
	ca, err := parseCA(data)
	if err != nil {
		return nil, fmt.Errorf("cannot parse CA: %w", err)
	}
	return ca, nil
}

func parseCA(data []byte) (*CA, error) {
	first, rest := pem.Decode(data)
	if first == nil || first.Type != pemCertificate {
		return nil, errors.New("no certificate")
	}
	second, rest := pem.Decode(rest)
	if second == nil || second.Type != pemKey || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("expected one certificate and its private key")
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != uriScheme || cert.URIs[0].Host == "" {
		return nil, errors.New("the certificate is not a cluster CA")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(second.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	return &CA{cluster: cert.URIs[0].Host, cert: cert, key: key}, nil
}

// Cluster is the id the authority was made for.
func (ca *CA) Cluster() string { return ca.cluster }

// String keeps the key out of logs.
func (ca *CA) String() string { return "CA of cluster " + ca.cluster }

// GoString keeps the key out of logs.
func (ca *CA) GoString() string { return ca.String() }

// Certificate is the CA's own certificate.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// CertificatePEM is the CA's own certificate as PEM, without the key.
func (ca *CA) CertificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: ca.cert.Raw})
}

// Pin is the sha256 of the CA's public key info (SPKI) in base64url: 43 characters. It stays when
// the certificate is issued anew for the same key.
func Pin(ca *CA) string { return keyPin(ca.cert.RawSubjectPublicKeyInfo) }

func keyPin(spki []byte) string {
	sum := sha256.Sum256(spki)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// ServerCertificate makes a coordinator's certificate for the given DNS names and IP addresses, with
// a new key. It carries the CA's certificate too, which a joining agent needs to compare the pin.
func (ca *CA) ServerCertificate(hosts []string, now time.Time, lifetime time.Duration, rand io.Reader) (tls.Certificate, error) {
	fail := func(err error) (tls.Certificate, error) {
		return tls.Certificate{}, fmt.Errorf("cannot issue server certificate: %w", err)
	}
	if len(hosts) > maxHosts {
		return fail(fmt.Errorf("%d hosts are more than %d", len(hosts), maxHosts))
	}
	template, err := ca.leaf(now, lifetime, rand)
	if err != nil {
		return fail(err)
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.URIs = []*url.URL{{Scheme: uriScheme, Host: ca.cluster, Path: coordinatorPath}}
	for _, host := range hosts {
		host = strings.ToLower(host)
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			template.IPAddresses = append(template.IPAddresses, ip.WithZone("").Unmap().AsSlice())
			continue
		}
		if err := checkNodeName(host); err != nil {
			return fail(fmt.Errorf("host %q: %w", host, err))
		}
		template.DNSNames = append(template.DNSNames, host)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return fail(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// leaf is the common part of what the CA issues. Nothing outlives the CA.
func (ca *CA) leaf(now time.Time, lifetime time.Duration, rand io.Reader) (*x509.Certificate, error) {
	if lifetime <= 0 {
		return nil, fmt.Errorf("a lifetime of %s is none", lifetime)
	}
	until := now.Add(lifetime)
	if until.After(ca.cert.NotAfter) {
		until = ca.cert.NotAfter
	}
	if !until.After(now) {
		return nil, fmt.Errorf("the CA expired on %s", ca.cert.NotAfter.Format(time.DateOnly))
	}
	template, err := newTemplate(now, until, rand)
	if err != nil {
		return nil, err
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	return template, nil
}

// KeyID names a public key: the sha256 of its SPKI in base64url, as in a Pin.
type KeyID string

// KeyOf names the key of a certificate.
func KeyOf(cert *x509.Certificate) KeyID { return KeyID(keyPin(cert.RawSubjectPublicKeyInfo)) }

func invalid(op string, err error) error {
	return coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
}
