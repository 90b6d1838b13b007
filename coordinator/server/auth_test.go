package server

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

// addressOf is a peer's address.
type addressOf string

func (a addressOf) Network() string { return "tcp" }
func (a addressOf) String() string  { return string(a) }

// TestRemoteAddress: who a request is from, of which limits and the audit log speak. Only what a trusted proxy added is
// believed, from the last backwards; what a client writes in front of it changes nothing.
func TestRemoteAddress(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("127.0.0.1/32")}
	pipe := pipeAddr{}
	for _, tt := range []struct {
		name    string
		peer    net.Addr
		headers []string
		proxies []netip.Prefix
		want    string
	}{
		{"a client that connects itself", addressOf("192.0.2.7:4711"), nil, proxies, "192.0.2.7"},
		{"one that claims to be another", addressOf("192.0.2.7:4711"), []string{"198.51.100.1"}, proxies, "192.0.2.7"},
		{"one that claims to be behind a proxy", addressOf("192.0.2.7:4711"), []string{"198.51.100.1, 10.0.0.1"}, proxies, "192.0.2.7"},
		{"a proxy when none is trusted", addressOf("10.0.0.1:80"), []string{"198.51.100.1"}, nil, "10.0.0.1"},
		{"a proxy that says nothing", addressOf("10.0.0.1:80"), nil, proxies, "10.0.0.1"},
		{"a proxy", addressOf("10.0.0.1:80"), []string{"198.51.100.1"}, proxies, "198.51.100.1"},
		{"a client behind a proxy that spoofs", addressOf("10.0.0.1:80"), []string{"203.0.113.9, 198.51.100.1"}, proxies, "198.51.100.1"},
		{"one that spoofs a trusted proxy", addressOf("10.0.0.1:80"), []string{"203.0.113.9, 10.9.9.9, 198.51.100.1"}, proxies, "198.51.100.1"},
		{"one that sends a header of its own", addressOf("10.0.0.1:80"), []string{"203.0.113.9", "198.51.100.1"}, proxies, "198.51.100.1"},
		{"two proxies", addressOf("10.0.0.1:80"), []string{"198.51.100.1, 10.0.0.2"}, proxies, "198.51.100.1"},
		{"two proxies and spoofing", addressOf("10.0.0.1:80"), []string{"1.1.1.1,198.51.100.1,10.0.0.2"}, proxies, "198.51.100.1"},
		{"a proxy behind one that is not trusted", addressOf("10.0.0.1:80"), []string{"203.0.113.9, 192.0.2.99"}, proxies, "192.0.2.99"},
		{"only proxies", addressOf("10.0.0.1:80"), []string{"10.0.0.3, 10.0.0.2"}, proxies, "10.0.0.3"},
		{"more proxies than are looked behind", addressOf("10.0.0.1:80"), []string{"198.51.100.1" + strings.Repeat(", 10.0.0.2", 50)}, proxies, "10.0.0.2"},
		{"words", addressOf("10.0.0.1:80"), []string{"unknown"}, proxies, "10.0.0.1"},
		{"words after an address", addressOf("10.0.0.1:80"), []string{"198.51.100.1, x"}, proxies, "10.0.0.1"},
		{"an empty one", addressOf("10.0.0.1:80"), []string{""}, proxies, "10.0.0.1"},
		{"one that ends in a comma", addressOf("10.0.0.1:80"), []string{"198.51.100.1,"}, proxies, "10.0.0.1"},
		{"a line break", addressOf("10.0.0.1:80"), []string{"198.51.100.1\nforged"}, proxies, "10.0.0.1"},
		{"IPv6", addressOf("[2001:db8:1::5]:80"), []string{"2001:db8:ffff::1"}, proxies, "2001:db8:ffff::1"},
		{"IPv6 that is not trusted", addressOf("[2001:db8:2::5]:80"), []string{"2001:db8:ffff::1"}, proxies, "2001:db8:2::5"},
		{"IPv4 in IPv6", addressOf("[::ffff:10.0.0.1]:80"), []string{"198.51.100.1"}, proxies, "198.51.100.1"},
		{"IPv4 in IPv6 that is not trusted", addressOf("[::ffff:11.0.0.1]:80"), []string{"198.51.100.1"}, proxies, "::ffff:11.0.0.1"},
		// Over REST the gateway appends whom it heard, and the peer is the pipe to it.
		{"REST", pipe, []string{"192.0.2.7"}, proxies, "192.0.2.7"},
		{"REST, spoofed", pipe, []string{"198.51.100.1, 192.0.2.7"}, proxies, "192.0.2.7"},
		{"REST behind a proxy", pipe, []string{"198.51.100.1, 10.0.0.1"}, proxies, "198.51.100.1"},
		{"REST behind a proxy, spoofed", pipe, []string{"203.0.113.9, 198.51.100.1, 10.0.0.1"}, proxies, "198.51.100.1"},
		{"REST on loopback, spoofed, none trusted", pipe, []string{"10.0.0.1, 127.0.0.1"}, nil, "127.0.0.1"},
		{"REST that nobody forwarded", pipe, nil, proxies, "unknown"},
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: tt.peer})
		md := metadata.MD{}
		md.Append("x-forwarded-for", tt.headers...)
		if got := remoteAddress(metadata.NewIncomingContext(ctx, md), tt.proxies); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := remoteAddress(t.Context(), proxies); got != "unknown" {
		t.Errorf("no peer: %q", got)
	}
}

// quietStream is a stream on which nothing is sent.
type quietStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s quietStream) Context() context.Context { return s.ctx }

// TestQuietStreamsEndWithTheToken: though there is nothing to send, a stream does not outlive the token, the account or
// the rights that it began with.
func TestQuietStreamsEndWithTheToken(t *testing.T) {
	gone := coordinator.Errorf(coordinator.ErrUnauthenticated, "authenticate", "the token expired")
	was := admin()
	for _, tt := range []struct {
		name string
		now  func(*engine.Caller) error
		want codes.Code
	}{
		{"the token is gone", func(*engine.Caller) error { return gone }, codes.Unauthenticated},
		{"no administrator any more", func(c *engine.Caller) error { c.Admin = false; return nil }, codes.Unavailable},
		{"of another organisation", func(c *engine.Caller) error { c.Organization = "o-2"; return nil }, codes.Unavailable},
		{"no owner any more", func(c *engine.Caller) error { c.Owner = !c.Owner; return nil }, codes.Unavailable},
		{"all is as it was", func(*engine.Caller) error { return nil }, codes.OK},
		{"in another group", func(c *engine.Caller) error { c.Groups = []coordinator.GroupID{"g"}; return nil }, codes.OK},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := make(chan int, 1)
			asked <- 0
			f := &fakeEngine{authenticateFunc: func(context.Context, string) (engine.Caller, error) {
				n := <-asked
				asked <- n + 1
				c := was
				if n == 0 {
					return c, nil
				}
				err := tt.now(&c)
				return c, err
			}}
			g := &gate{auth: f, permissions: permissions(), now: time.Now, rand: strings.NewReader(strings.Repeat("x", 12)), recheck: time.Millisecond}
			ss := quietStream{ctx: withIncoming(t.Context(), "authorization", "Bearer x")}
			err := g.stream(nil, ss, &grpc.StreamServerInfo{FullMethod: "/substrate.v1.Workflows/WatchEvents"}, func(_ any, s grpc.ServerStream) error {
				enough := time.After(10 * time.Second)
				if tt.want == codes.OK {
					enough = time.After(20 * time.Millisecond)
				}
				select {
				case <-s.Context().Done():
					return s.Context().Err()
				case <-enough:
					return nil
				}
			})
			if status.Code(err) != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}
