package engine

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
)

// ServerIdentity is the cluster's authority, for the daemon's listeners.
func (e *Engine) ServerIdentity() *auth.CA { return e.ca }

// CreateJoinToken makes a token with which nodes join, for a time and a number of uses.
func (e *Engine) CreateJoinToken(ctx context.Context, c Caller, ttl time.Duration, uses uint32) (text string, expires time.Time, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "create join token", auth.Target{}); err != nil {
		return "", expires, err
	}
	if ttl == 0 {
		ttl = time.Hour
	}
	err = e.do(ctx, func(t *tx) error {
		var rec auth.JoinToken
		text, rec, err = auth.NewJoinToken(auth.Pin(t.state.ca), max(uses, 1), t.now, ttl, e.opt.Rand)
		if err != nil {
			return err
		}
		expires = rec.Expires
		t.state.joinTokens[rec.ID] = rec
		t.put(prefixJoin+rec.ID, rec)
		t.group()
		t.then(func(int64) { e.credentials.issueJoin(rec) })
		t.event(Event{Kind: "join-token-created", Subject: rec.ID, Message: fmt.Sprintf("by %s, %d uses", c.Name, rec.UsesLeft)})
		return nil
	})
	return text, expires, err
}

// Join trades a join token and a certificate request for a node's certificate. The use is durable
// before the certificate leaves.
func (e *Engine) Join(ctx context.Context, token, name string, csr []byte) (certificate, ca []byte, err error) {
	op := "join node " + name
	denied := coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the join token is not valid here").
		WithHint("make a new one with `substrate node join-token create`")
	shown, err := auth.ParseJoinToken(token)
	if err != nil || !e.credentials.issued(shown) { // before anything that costs more
		return nil, nil, denied
	}
	id, err := auth.ParseNodeName(name)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	req, err := auth.ParseRequest(csr)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	err = e.do(ctx, func(t *tx) error {
		rec, ok := t.state.joinTokens[shown.ID]
		if !ok {
			return denied
		}
		if n := t.state.nodes[id]; n != nil && n.session != nil {
			return coordinator.Errorf(coordinator.ErrConflict, op, "a node of this name is connected").
				WithHint("stop its agent first, or give this node another name with --node")
		}
		next, again, err := rec.Redeem(shown.Secret, id, req.Key, t.now)
		if err != nil {
			return err
		}
		certificate, err = t.state.ca.SignNode(csr, id, t.now, e.opt.CertificateLifetime, e.opt.Rand)
		if err != nil {
			return err
		}
		ca = t.state.ca.CertificatePEM()
		if again {
			return nil
		}
		t.state.joinTokens[shown.ID] = next
		t.put(prefixJoin+shown.ID, next)
		if t.state.nodes[id] == nil {
			n := newNode(id)
			n.record.Created = t.now
			n.lastSeen = t.now
			t.state.nodes[id] = n
			t.put(prefixNode+string(id), n.record)
		}
		t.group()
		t.event(Event{Kind: "node-joined", Subject: name, Message: "with join token " + shown.ID})
		return nil
	})
	return certificate, ca, err
}
