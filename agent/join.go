package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"substrate/agent/identity"
	"substrate/proto/agentv1"
)

const joinTimeout = 30 * time.Second

// ErrNoToken: the node has no valid identity and no token to get one with.
var ErrNoToken = errors.New("no join token")

// Join is how a node comes by its identity.
type Join struct {
	Coordinator string // host:port
	Dir         string // identity directory
	Node        string // the name to ask for
	Launch      string // what started this machine calls it so; "" for none
	// Token is read only when it is needed; it returns "" when there is none.
	Token func() (string, error)
	Log   *slog.Logger
	Dial  func(context.Context, string) (net.Conn, error) // replaces the network in tests
}

// Check fails if there is neither an identity nor a token to get one with. It writes nothing.
func (j Join) Check() error {
	_, _, err := j.begin()
	return err
}

// Identity returns the stored identity, or joins. A coordinator that cannot be reached is tried again
// until ctx ends; a refusal is final.
func (j Join) Identity(ctx context.Context) (*identity.Identity, error) {
	id, token, err := j.begin()
	if id != nil || err != nil {
		return id, err
	}
	key, err := identity.PendingKey(j.Dir, rand.Reader)
	if err != nil {
		return nil, err
	}
	answer, err := j.insist(ctx, token, key)
	if err != nil {
		return nil, err
	}
	if id, err = identity.New(key, answer.GetCertificate(), answer.GetCa(), token.Pin, time.Now()); err != nil {
		return nil, err
	}
	return id, id.Save(j.Dir)
}

// begin finds the stored identity or, without a valid one, reads the token.
func (j Join) begin() (*identity.Identity, identity.Token, error) {
	id, err := identity.Load(j.Dir)
	if err == nil {
		if err = id.Valid(time.Now()); err == nil {
			return id, identity.Token{}, nil
		}
	} else if !errors.Is(err, identity.ErrNone) {
		return nil, identity.Token{}, err
	}
	text, tokenErr := j.Token()
	switch {
	case tokenErr != nil:
		return nil, identity.Token{}, tokenErr
	case text == "":
		return nil, identity.Token{}, fmt.Errorf("cannot join cluster: %w (%w)", ErrNoToken, err)
	}
	token, err := identity.ParseToken(text)
	return nil, token, err
}

func (j Join) insist(ctx context.Context, token identity.Token, key identity.Key) (*agentv1.JoinResponse, error) {
	csr, err := key.CSR(rand.Reader)
	if err != nil {
		return nil, err
	}
	req := &agentv1.JoinRequest{Token: token.Proof, Node: j.Node, Csr: csr, Launch: j.Launch}
	for limit := backoffMin; ; limit = min(2*limit, DefaultReconnectMax) {
		answer, err := j.ask(ctx, token.Pin, req)
		if err == nil {
			return answer, nil
		}
		// An untrusted coordinator is Unavailable to grpc too, but time does not heal it.
		temporary := status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.ResourceExhausted
		if !temporary || strings.Contains(err.Error(), "cannot trust coordinator") || ctx.Err() != nil {
			return nil, fmt.Errorf("cannot join cluster at %s: %w", j.Coordinator, plain(err))
		}
		wait := mathrand.N(limit)
		j.Log.Warn("cannot join yet", "coordinator", j.Coordinator, "error", plain(err), "retry", wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (j Join) ask(ctx context.Context, pin identity.Pin, req *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	tls, err := identity.ClientTLSByPin(pin, time.Now)
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(tls)), grpc.WithDisableServiceConfig()}
	if j.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(j.Dial))
	}
	conn, err := grpc.NewClient("passthrough:///"+j.Coordinator, opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot reach coordinator: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	return agentv1.NewEnrolmentClient(conn).Join(ctx, req)
}
