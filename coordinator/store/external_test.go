package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// freeAddress finds a port that is free now.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// OpenExternalForTest lets the conformance suite, which cannot be imported here, use openServer.
func OpenExternalForTest(t testing.TB) Store {
	t.Helper()
	_, address := openServer(t)
	s, err := OpenExternal(t.Context(), ExternalOptions{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPrefixesAreSeparate(t *testing.T) {
	_, address := openServer(t)
	open := func(prefix string) *External {
		s, err := OpenExternal(t.Context(), ExternalOptions{Endpoints: []string{address}, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	a, b, again := open("site/a"), open("site/b/"), open("site/a/")
	commit(t, a, Op{Key: "k", Value: []byte("a")})
	if _, err := b.Get(t.Context(), "k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the other prefix: %v", err)
	}
	if e, err := again.Get(t.Context(), "k"); err != nil || string(e.Value) != "a" {
		t.Errorf("the same prefix: %q, %v", e.Value, err)
	}
	// Large values of one process, replaced by another, leave nothing behind after two sweeps.
	commit(t, a, Op{Key: "large", Value: make([]byte, 3*PieceSize)})
	commit(t, again, Op{Key: "large", Value: []byte("small")})
	for range 2 {
		if _, err := again.sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := again.count(t, pieceDir); n != 0 {
		t.Errorf("%d pieces left", n)
	}
}

func TestExternalUnreachable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	address := freeAddress(t)
	_, err := OpenExternal(ctx, ExternalOptions{Endpoints: []string{address}})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot open store at "+address+": ") {
		t.Fatalf("got %v", err)
	}
	if _, err := OpenExternal(t.Context(), ExternalOptions{}); err == nil {
		t.Fatal("opened without endpoints")
	}
}

func TestExternalServerStops(t *testing.T) {
	server, address := openServer(t)
	s, err := OpenExternal(t.Context(), ExternalOptions{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit(t, s, Op{Key: "k", Value: []byte("v")})
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := s.Commit(ctx, []Group{{Ops: []Op{{Key: "k", Value: []byte("w")}}}}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("write without a server: %v", err)
	}
	if _, err := s.Get(ctx, "k"); err == nil || errors.Is(err, ErrNotFound) {
		t.Fatalf("read without a server: %v", err)
	}
}
