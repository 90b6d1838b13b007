package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/agent/identity"
	"substrate/proto/agentv1"
)

// Renewable is the identity that the agent keeps valid.
type Renewable interface {
	RenewAt() time.Time
	Expires() time.Time
	Valid() error
	Renew(ctx context.Context, chance io.Reader, ask func(ctx context.Context, csr []byte) (certificate, ca []byte, err error)) error
	// Rejoin is asked once the certificate is no longer valid. An error may tell what to do with Hint.
	Rejoin(ctx context.Context) error
}

const (
	renewTimeout  = 30 * time.Second
	renewRetryMin = 5 * time.Second
	renewRetryMax = 10 * time.Minute
)

// renew asks for the next certificate when it is time, over the connection of the stream, and again with more and more
// patience where that fails. It ends with the stream.
func (a *Agent) renew(ctx context.Context, client agentv1.AgentClient) error {
	limit := renewRetryMin
	wait := max(time.Until(a.opts.Identity.RenewAt()), 0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		err := a.opts.Identity.Renew(ctx, rand.Reader, func(ctx context.Context, csr []byte) (certificate, ca []byte, err error) {
			ctx, cancel := context.WithTimeout(ctx, renewTimeout)
			defer cancel()
			answer, err := client.Renew(ctx, &agentv1.RenewRequest{Csr: csr})
			return answer.GetCertificate(), answer.GetCa(), err
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			a.opts.Log.Info("renewed the certificate", "until", a.opts.Identity.Expires().UTC().Format(time.RFC3339))
			limit, wait = renewRetryMin, max(time.Until(a.opts.Identity.RenewAt()), renewRetryMin)
			continue
		case status.Code(err) == codes.Unimplemented:
			return nil // a coordinator of before; the next stream asks again
		}
		wait = limit/2 + mathrand.N(limit/2)
		limit = min(2*limit, renewRetryMax)
		a.opts.Log.Warn("cannot renew the certificate", "error", plain(err), "until", a.opts.Identity.Expires().UTC().Format(time.RFC3339), "retry", wait.Round(time.Second))
	}
}

// ensure sees to it that there is a valid certificate before the coordinator is asked for a stream.
func (a *Agent) ensure(ctx context.Context) error {
	if a.opts.Identity == nil {
		return nil
	}
	err := a.opts.Identity.Valid()
	if err == nil {
		return nil
	}
	a.opts.Log.Warn("the certificate does not count any more, the node has to join again", "error", err)
	return a.opts.Identity.Rejoin(ctx)
}

// Renewal is the identity of a node that came by it with a Join, and would again.
type Renewal struct {
	*identity.Current
	Join Join
}

// Rejoin gets a new identity with the join token, where there is one.
func (r Renewal) Rejoin(ctx context.Context) error {
	next, err := r.Join.Identity(ctx)
	if err != nil {
		if errors.Is(err, ErrNoToken) {
			return &expired{fmt.Errorf("cannot connect node %s: %w", r.Node(), err)}
		}
		return err
	}
	if next.Node != r.Node() {
		return fmt.Errorf("cannot connect node %s: it joined as %s", r.Node(), next.Node)
	}
	return r.Replace(next)
}

// expired is a certificate that does not count any more, without a token to get another.
type expired struct{ error }

func (e *expired) Unwrap() error { return e.error }

// Hint says what helps.
func (e *expired) Hint() string {
	return "ask an administrator for a join token (`substrate node join-token create`), then start the agent with it"
}
