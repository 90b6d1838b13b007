package identity

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// Current is the identity that a running agent has now: it is replaced by renewal, and what asks gets the newest.
type Current struct {
	dir string
	now func() time.Time

	mu sync.Mutex
	id *Identity
	at time.Time // to renew, not before
}

// NewCurrent begins with a stored identity of the directory.
func NewCurrent(dir string, id *Identity, now func() time.Time) *Current {
	c := &Current{dir: dir, now: now}
	c.set(id)
	return c
}

func (c *Current) set(id *Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id, c.at = id, id.renewAt(rand.Float64())
}

// Identity is the newest one.
func (c *Current) Identity() *Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Node is the name that all of them are of.
func (c *Current) Node() string { return c.Identity().Node }

// RenewAt is when to ask for the next certificate.
func (c *Current) RenewAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Valid tells whether the certificate holds now.
func (c *Current) Valid() error { return c.Identity().Valid(c.now()) }

// Expires is the end of the certificate.
func (c *Current) Expires() time.Time { return c.Identity().Expires() }

// ClientTLS is for the agent's stream: each new connection shows the newest certificate.
func (c *Current) ClientTLS() *tls.Config {
	config := c.Identity().ClientTLS(c.now)
	config.Certificates = nil
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert := c.Identity().certificate()
		return &cert, nil
	}
	return config
}

// Renew asks for a certificate of a new key and puts both in the place of the present ones, on the disk first and in
// one step. Cut short at any point, the present identity stays, and the next try asks with the same key again.
func (c *Current) Renew(ctx context.Context, chance io.Reader, ask func(ctx context.Context, csr []byte) (certificate, ca []byte, err error)) error {
	before := c.Identity()
	key, err := PendingKey(c.dir, chance)
	if err == nil && key.private.Equal(before.key.private) {
		// Killed between the identity and the end of its pending key: the key is no new one.
		if err = forgetPending(c.dir); err == nil {
			key, err = PendingKey(c.dir, chance)
		}
	}
	if err != nil {
		return err
	}
	csr, err := key.CSR(chance)
	if err != nil {
		return err
	}
	certificate, ca, err := ask(ctx, csr)
	if err != nil {
		return err
	}
	next, err := New(key, certificate, ca, PinOf(before.ca), c.now())
	if err != nil {
		return err
	}
	if next.Node != before.Node || next.Cluster != before.Cluster {
		return fmt.Errorf("cannot renew certificate of node %s: the answer is for %s", before.Node, next.Node)
	}
	return c.Replace(next)
}

// Replace takes over an identity that was come by otherwise.
func (c *Current) Replace(next *Identity) error {
	if err := next.Save(c.dir); err != nil {
		return err
	}
	c.set(next)
	return nil
}
