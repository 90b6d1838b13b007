package auth

import (
	"crypto/tls"
	"io"
	"sync"
	"time"
)

// Serving is a coordinator's certificate that is issued anew before it expires, so that a coordinator may run for years.
type Serving struct {
	ca       *CA
	hosts    []string
	lifetime time.Duration
	now      func() time.Time
	rand     io.Reader

	mu   sync.Mutex
	cert tls.Certificate
}

// NewServing issues the first one.
func (ca *CA) NewServing(hosts []string, lifetime time.Duration, now func() time.Time, rand io.Reader) (*Serving, error) {
	s := &Serving{ca: ca, hosts: hosts, lifetime: lifetime, now: now, rand: rand}
	var err error
	s.cert, err = ca.ServerCertificate(hosts, now(), lifetime, rand)
	return s, err
}

// Certificate is the present one, or the next once half of its life is over.
func (s *Serving) Certificate() (tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now().Before(s.cert.Leaf.NotAfter.Add(-s.lifetime / 2)) {
		return s.cert, nil
	}
	next, err := s.ca.ServerCertificate(s.hosts, s.now(), s.lifetime, s.rand)
	if err == nil {
		s.cert = next
	}
	return s.cert, err
}

// Keep has a configuration of a listener show the present certificate to each connection.
func (s *Serving) Keep(c *tls.Config) *tls.Config {
	c.Certificates = nil
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := s.Certificate()
		return &cert, err
	}
	return c
}
