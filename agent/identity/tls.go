package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Pin is the sha256 of the CA's public key info (SPKI) in base64url, 43 characters.
type Pin string

// PinOf is the pin of a CA's certificate.
func PinOf(ca *x509.Certificate) Pin {
	sum := sha256.Sum256(ca.RawSubjectPublicKeyInfo)
	return Pin(base64.RawURLEncoding.EncodeToString(sum[:]))
}

func (p Pin) valid() bool { return is256(string(p)) }

// Token is a join token as an administrator handed it out.
type Token struct {
	Proof string // "<id>.<secret>", what the coordinator is shown
	Pin   Pin    // of the CA, kept here
}

// String and GoString keep the secret out of logs.
func (t Token) String() string   { id, _, _ := strings.Cut(t.Proof, "."); return "join token " + id }
func (t Token) GoString() string { return t.String() }

// ParseToken reads "<id>.<secret>.<pin>". Errors never repeat the text.
func ParseToken(text string) (Token, error) {
	text = strings.TrimSpace(text) // a token file ends in a newline
	parts := strings.Split(text, ".")
	if len(parts) != 3 || !isID(parts[0]) || !is256(parts[1]) || !is256(parts[2]) {
		return Token{}, errors.New("cannot read join token: expected <id>.<secret>.<pin>")
	}
	return Token{Proof: parts[0] + "." + parts[1], Pin: Pin(parts[2])}, nil
}

const idBytes = 8

func isID(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == idBytes && hex.EncodeToString(raw) == s
}

// is256 takes the one spelling of 256 bits in base64url.
func is256(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(raw) == sha256.Size && len(s) == base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// ClientTLSByPin is for joining: the server must be a coordinator whose CA has the pin. No client
// certificate is shown.
func ClientTLSByPin(pin Pin, now func() time.Time) (*tls.Config, error) {
	if !pin.valid() {
		return nil, errors.New("cannot prepare join: the pin is not a sha256 in base64url")
	}
	return clientTLS(now, func(chain []*x509.Certificate) (*x509.Certificate, error) {
		for _, c := range chain[1:] {
			if c.IsCA && subtle.ConstantTimeCompare([]byte(PinOf(c)), []byte(pin)) == 1 {
				return c, nil
			}
		}
		return nil, errors.New("no CA in its chain has the pin of the join token")
	}), nil
}

// ClientTLS is for the agent's stream: mutual TLS 1.3 with the coordinator of the identity's cluster.
func (id *Identity) ClientTLS(now func() time.Time) *tls.Config {
	config := clientTLS(now, func([]*x509.Certificate) (*x509.Certificate, error) { return id.ca, nil })
	config.Certificates = []tls.Certificate{id.certificate()}
	return config
}

// clientTLS replaces the check of the host name by one of the role. The CA serves one cluster and
// gives the coordinator's name to coordinators only, while an agent may reach one by any address
// (NAT, tunnel, a new name) that its certificate cannot know.
func clientTLS(now func() time.Time, root func(chain []*x509.Certificate) (*x509.Certificate, error)) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		Time:               now,
		InsecureSkipVerify: true, // VerifyConnection below verifies chain, time, use and role
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := verifyCoordinator(state.PeerCertificates, now(), root); err != nil {
				return fmt.Errorf("cannot trust coordinator: %w", err)
			}
			return nil
		},
	}
}

func verifyCoordinator(chain []*x509.Certificate, now time.Time, root func([]*x509.Certificate) (*x509.Certificate, error)) error {
	if len(chain) == 0 {
		return errors.New("it shows no certificate")
	}
	ca, err := root(chain)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	leaf := chain[0]
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return err
	}
	if leaf.IsCA || len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != uriScheme || leaf.URIs[0].Path != coordinatorPath {
		return errors.New("its certificate is not a coordinator's")
	}
	return nil
}
