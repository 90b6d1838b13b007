package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

// federatePath is the name of a Federate inside a certificate: substrate://<cluster>/federate/<its cluster id>.
const federatePath = "/federate/"

// SignFederate issues the certificate with which a Federate calls this cluster, as PEM, leaf only. The request gives
// nothing but its key.
func (ca *CA) SignFederate(csr []byte, federate string, now time.Time, lifetime time.Duration, rand io.Reader) ([]byte, error) {
	request, err := ParseRequest(csr)
	if err != nil {
		return nil, err
	}
	if err := checkFederate(federate); err != nil {
		return nil, invalid("issue certificate of a Federate", err)
	}
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("cannot issue certificate of Federate %s: %w", federate, err)
	}
	template, err := ca.leaf(now, lifetime, rand)
	if err != nil {
		return fail(err)
	}
	template.URIs = []*url.URL{{Scheme: uriScheme, Host: ca.cluster, Path: federatePath + federate}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand, template, ca.cert, request.csr.PublicKey, ca.key)
	if err != nil {
		return fail(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), nil
}

func checkFederate(id string) error {
	if u, err := uuid.Parse(id); err != nil || u.String() != id {
		return fmt.Errorf("%.80q is not the id of a cluster", id)
	}
	return nil
}

// FederateFromTLS is the Federate at the other end of a connection accepted with FederationTLS, and its key. Whether
// it is the one this cluster belongs to is for the caller to say.
func (ca *CA) FederateFromTLS(state tls.ConnectionState) (federate string, key KeyID, err error) {
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return "", "", unidentified(errors.New("the connection has no verified client certificate"))
	}
	cert := state.VerifiedChains[0][0]
	federate, err = ca.federateOf(cert)
	if err != nil {
		return "", "", unidentified(err)
	}
	return federate, KeyOf(cert), nil
}

func unidentified(err error) error {
	return fmt.Errorf("cannot identify the Federate: %w", err)
}

func (ca *CA) federateOf(cert *x509.Certificate) (string, error) {
	switch {
	case cert.IsCA:
		return "", errors.New("it is a CA's certificate")
	case len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || len(cert.UnknownExtKeyUsage) > 0:
		return "", errors.New("its certificate is not for clients alone")
	case len(cert.URIs) != 1 || len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses) > 0:
		return "", errors.New("its certificate names more or less than one Federate")
	}
	u := cert.URIs[0]
	name, ok := strings.CutPrefix(u.Path, federatePath)
	if !ok || u.String() != uriScheme+"://"+ca.cluster+federatePath+name {
		return "", fmt.Errorf("%q is not a Federate's name here", u)
	}
	return name, checkFederate(name)
}

// FederationTLS serves the federation port: TLS 1.3; a client certificate is not demanded, so that a Federate can
// enrol, but a given one must be a Federate's, issued here.
func (ca *CA) FederationTLS(cert tls.Certificate) *tls.Config {
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
			_, _, err := ca.FederateFromTLS(state)
			return err
		},
	}
}

// FederateKey is the private key with which a Federate calls one cluster: ECDSA P-256.
type FederateKey struct{ private *ecdsa.PrivateKey }

// NewFederateKey makes one.
func NewFederateKey(rand io.Reader) (FederateKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return FederateKey{}, fmt.Errorf("cannot generate key: %w", err)
	}
	return FederateKey{private}, nil
}

// String and GoString keep the secret out of logs.
func (k FederateKey) String() string   { return "key of a Federate" }
func (k FederateKey) GoString() string { return k.String() }

// CSR is a certificate request in DER.
func (k FederateKey) CSR(rand io.Reader) ([]byte, error) {
	if k.private == nil {
		return nil, errors.New("cannot create certificate request: no key")
	}
	der, err := x509.CreateCertificateRequest(rand, &x509.CertificateRequest{}, k.private)
	if err != nil {
		return nil, fmt.Errorf("cannot create certificate request: %w", err)
	}
	return der, nil
}

// MarshalText is the key in PEM, to be stored where only the coordinator reads.
func (k FederateKey) MarshalText() ([]byte, error) {
	if k.private == nil {
		return nil, nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(k.private)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// UnmarshalText reads what MarshalText wrote.
func (k *FederateKey) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		k.private = nil
		return nil
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemKey {
		return errors.New("cannot read key: expected a private key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("cannot read key: %w", err)
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("cannot read key: it is a %T", parsed)
	}
	k.private = private
	return nil
}

// ClusterCredentials is what a Federate holds of a cluster that took it in.
type ClusterCredentials struct {
	Cluster     string      `json:"cluster,omitempty"` // id
	Key         FederateKey `json:"key"`
	Certificate []byte      `json:"certificate,omitempty"` // PEM, leaf only
	CA          []byte      `json:"ca,omitempty"`          // PEM
}

// TLS is how the Federate calls the cluster: by its certificate, and only a coordinator that the cluster's CA named.
// The CA is pinned and names its cluster, so the address may be any.
func (m *ClusterCredentials) TLS(now func() time.Time) (*tls.Config, time.Time, error) {
	fail := func(err error) (*tls.Config, time.Time, error) {
		return nil, time.Time{}, fmt.Errorf("cannot use the certificate of cluster %s: %w", m.Cluster, err)
	}
	leaf, err := oneCertificate(m.Certificate)
	if err != nil {
		return fail(err)
	}
	ca, err := oneCertificate(m.CA)
	if err != nil {
		return fail(err)
	}
	if m.Key.private == nil || !m.Key.private.PublicKey.Equal(leaf.PublicKey) {
		return fail(errors.New("it is for another key"))
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return fail(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: m.Key.private, Leaf: leaf}
	conf := toCoordinator(func([]*x509.Certificate) (*x509.Certificate, error) { return ca, nil }, m.Cluster, now)
	conf.Certificates = []tls.Certificate{cert}
	return conf, leaf.NotAfter, nil
}

// CheckCA reports whether a CA's certificate is that of the cluster and has the pin.
func CheckCA(caPEM []byte, cluster, pin string) error {
	ca, err := oneCertificate(caPEM)
	if err != nil {
		return err
	}
	if keyPin(ca.RawSubjectPublicKeyInfo) != pin {
		return errors.New("the CA is not the one the token names")
	}
	if len(ca.URIs) != 1 || ca.URIs[0].Host != cluster {
		return fmt.Errorf("the CA is not that of cluster %q", cluster)
	}
	return nil
}

// PinnedTLS calls a coordinator of which only the pin of its CA is known.
func PinnedTLS(pin string, now func() time.Time) *tls.Config {
	return toCoordinator(func(chain []*x509.Certificate) (*x509.Certificate, error) {
		for _, c := range chain[1:] {
			if c.IsCA && keyPin(c.RawSubjectPublicKeyInfo) == pin {
				return c, nil
			}
		}
		return nil, errors.New("its CA is not the one the token names")
	}, "", now)
}

// toCoordinator accepts a coordinator's certificate that the CA signed, whatever the address it was reached at.
func toCoordinator(authority func([]*x509.Certificate) (*x509.Certificate, error), cluster string, now func() time.Time) *tls.Config {
	return &tls.Config{
		Time:               now,
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		InsecureSkipVerify: true, // by name; VerifyConnection does the rest
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("cannot trust the cluster: it shows no certificate")
			}
			ca, err := authority(state.PeerCertificates)
			if err != nil {
				return fmt.Errorf("cannot trust the cluster: %w", err)
			}
			roots := x509.NewCertPool()
			roots.AddCert(ca)
			leaf := state.PeerCertificates[0]
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
				return fmt.Errorf("cannot trust the cluster: %w", err)
			}
			if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != uriScheme || leaf.URIs[0].Path != coordinatorPath || cluster != "" && leaf.URIs[0].Host != cluster {
				return errors.New("cannot trust the cluster: its certificate is not that of its coordinator")
			}
			return nil
		},
	}
}

func oneCertificate(data []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemCertificate || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("expected one certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
