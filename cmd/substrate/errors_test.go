package main

import (
	"crypto/tls"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"substrate/proto/apiv1"
)

// TestTransportHints calls servers that speak otherwise than the address says.
func TestTransportHints(t *testing.T) {
	_, clear := startWorld(t)
	h := httptest.NewTLSServer(nil) // for its certificate, which no system trusts
	defer h.Close()
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: h.TLS.Certificates, MinVersion: tls.VersionTLS12})))
	apiv1.RegisterIdentityServer(s, &world{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Stop(); <-done }()
	secure := l.Addr().String()
	for _, c := range []struct{ name, server, want string }{
		{"unknown authority", "https://" + secure, "--ca FILE: the coordinator wrote ca.pem"},
		{"TLS to clear text", strings.Replace(clear, "http:", "https:", 1), "write http://"},
		{"clear text to TLS", "http://" + secure, "write https://"},
		{"nobody", "http://127.0.0.1:1", "is it running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := dial(endpoint{server: c.server, token: goodToken})
			if err != nil {
				t.Fatal(err)
			}
			a := &app{conn: conn}
			defer a.close()
			_, err = get(t.Context(), a, "asking", (*connection).whoAmI, &apiv1.WhoAmIRequest{})
			f, ok := err.(*failure)
			if !ok || f.code != exitUnavailable || !strings.Contains(f.hint, c.want) {
				t.Errorf("%v, %+v", err, f)
			}
		})
	}
}
