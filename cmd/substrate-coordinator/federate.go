package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"

	"substrate/coordinator/engine"
	"substrate/coordinator/server"
)

// Roles of a coordinator.
const (
	roleOrchestrate = "orchestrate"
	roleFederate    = "federate"
)

// newFederate is the Federate's side of federation, nil in the other role.
func newFederate(s settings, eng *engine.Engine, log *slog.Logger) (*server.Federate, error) {
	if s.role != roleFederate {
		return nil, nil
	}
	return server.NewFederate(eng, server.FederateOptions{Version: version, URL: s.url(), Now: time.Now, Log: log, Rand: rand.Reader})
}

// url is where users reach the API, as far as can be told from the flags.
func (s settings) url() string {
	if s.publicURL != "" {
		return s.publicURL
	}
	_, port, err := net.SplitHostPort(s.apiListen)
	if err != nil {
		port = "7440"
	}
	host := "localhost"
	if len(s.hosts) > 0 {
		host = s.hosts[0]
	} else if name, err := os.Hostname(); err == nil {
		host = name
	}
	return "https://" + net.JoinHostPort(host, port)
}

// serveFederate serves the Federate that this cluster belongs to.
func serveFederate(ctx context.Context, s settings, l net.Listener, eng *engine.Engine, log *slog.Logger) error {
	ca := eng.ServerIdentity()
	issuer, cert, err := s.serving(ca)
	if err != nil {
		return err
	}
	srv, err := server.NewFederationServer(issuer.Keep(ca.FederationTLS(cert)), eng, server.FederationOptions{
		Version: version, Peer: ca.FederateFromTLS, Now: time.Now, Log: log})
	if err != nil {
		return err
	}
	stopped := context.AfterFunc(ctx, srv.Stop)
	defer stopped()
	if err := srv.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
