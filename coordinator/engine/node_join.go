package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/provision"
)

// ServerIdentity is the cluster's authority, for the daemon's listeners.
func (e *Engine) ServerIdentity() *auth.CA { return e.ca }

// maxJoinTokens bounds the join tokens that count at one time.
const maxJoinTokens = 10_000

// NewJoinToken asks for a token with which nodes join, for a time (0: an hour) and a number of uses (0: one). It may
// be bound to a definition, whose nodes they then are or of none, and to the launch that starts them.
type NewJoinToken struct {
	TTL  time.Duration
	Uses uint32
	auth.Binding
}

// JoinTokenView is a join token without its secret.
type JoinTokenView struct {
	ID             string
	Uses, UsesLeft uint32 // Uses is 0 where it is not known any more
	Created        time.Time
	Expires        time.Time
	By             string
	auth.Binding
}

func joinTokenView(t auth.JoinToken) JoinTokenView {
	return JoinTokenView{ID: t.ID, Uses: t.Uses, UsesLeft: t.UsesLeft, Created: t.Created, Expires: t.Expires, By: t.By, Binding: t.Binding}
}

// CreateJoinToken makes a token with which nodes join.
func (e *Engine) CreateJoinToken(ctx context.Context, c Caller, in NewJoinToken) (text string, out JoinTokenView, err error) {
	const op = "create join token"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return "", out, err
	}
	if in.TTL == 0 {
		in.TTL = time.Hour
	}
	if _, err := auth.ParseLaunch(in.Launch); err != nil {
		return "", out, err
	}
	err = e.do(ctx, func(t *tx) error {
		known := func(d coordinator.Definition) bool { return d.ID == in.Definition }
		if in.Definition != "" && !slices.ContainsFunc(t.state.config.Definitions, known) {
			return noSuch(op, "definition", string(in.Definition))
		}
		for _, old := range t.state.joinTokens {
			if len(t.state.joinTokens) >= maxJoinTokens && old.Done(t.now) {
				t.dropJoinToken(old)
				t.group()
			}
		}
		if len(t.state.joinTokens) >= maxJoinTokens {
			return coordinator.Errorf(coordinator.ErrExhausted, op, "there are %d", maxJoinTokens).WithHint("revoke some, or use one for several nodes")
		}
		var rec auth.JoinToken
		text, rec, err = auth.NewJoinToken(auth.Pin(t.state.ca), max(in.Uses, 1), t.now, in.TTL, e.opt.Rand)
		if err != nil {
			return err
		}
		rec.By, rec.Binding = c.Name, in.Binding
		t.state.joinTokens[rec.ID] = rec
		t.put(prefixJoin+rec.ID, rec)
		t.group()
		t.then(func(int64) { e.credentials.issueJoin(rec) })
		t.event(Event{Kind: "join-token-created", Subject: rec.ID, Message: fmt.Sprintf("by %s, %d uses", c.Name, rec.UsesLeft)})
		out = joinTokenView(rec)
		return nil
	})
	return text, out, err
}

// JoinTokens lists the join tokens that still count, oldest first.
func (e *Engine) JoinTokens(ctx context.Context, c Caller, p Page) (out []JoinTokenView, next string, err error) {
	if err := c.authorize(auth.PermissionAdminCluster, "list join tokens", auth.Target{}); err != nil {
		return nil, "", err
	}
	key := func(v JoinTokenView) string { return v.Created.Format(time.RFC3339Nano) + "/" + v.ID }
	err = e.view(ctx, func(s *state) {
		var all []JoinTokenView
		for _, t := range s.joinTokens {
			if t.UsesLeft > 0 && e.opt.Now().Before(t.Expires) {
				all = append(all, joinTokenView(t))
			}
		}
		slices.SortFunc(all, func(a, b JoinTokenView) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
		out, next = page(all, p, key, func(v JoinTokenView, token string) bool {
			at, id := splitToken(token)
			last, err := time.Parse(time.RFC3339Nano, at)
			return err != nil || cmp.Or(v.Created.Compare(last), cmp.Compare(v.ID, id)) <= 0
		})
	})
	return out, next, err
}

// RevokeJoinToken ends a join token. Nodes that have joined with it stay.
func (e *Engine) RevokeJoinToken(ctx context.Context, c Caller, id string) error {
	op := "revoke join token " + id
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		rec, ok := t.state.joinTokens[id]
		if !ok {
			return noSuch(op, "join token", id)
		}
		t.dropJoinToken(rec)
		t.group()
		t.event(Event{Kind: "join-token-revoked", Subject: id, Message: "by " + c.Name})
		return nil
	})
}

func (t *tx) dropJoinToken(rec auth.JoinToken) {
	delete(t.state.joinTokens, rec.ID)
	t.delete(prefixJoin + rec.ID)
	t.then(func(int64) { t.engine.credentials.revokeJoin(rec.ID) })
}

// JoinRequest is what a machine shows to become a node.
type JoinRequest struct {
	Token, Node string
	Launch      string // what started the machine calls it so; "" for none
	CSR         []byte
}

// Join trades a join token and a certificate request for a node's certificate. The use is durable
// before the certificate leaves.
func (e *Engine) Join(ctx context.Context, in JoinRequest) (certificate, ca []byte, err error) {
	op := "join node " + in.Node
	denied := coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the join token is not valid here").
		WithHint("make a new one with `substrate node join-token create`")
	shown, err := auth.ParseJoinToken(in.Token)
	if err != nil || !e.credentials.issued(shown) { // before anything that costs more
		return nil, nil, denied
	}
	id, err := auth.ParseNodeName(in.Node)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	req, err := auth.ParseRequest(in.CSR)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	err = e.do(ctx, func(t *tx) error {
		rec, ok := t.state.joinTokens[shown.ID]
		if !ok {
			return denied
		}
		if err := rec.Accepts(in.Launch); err != nil {
			return err
		}
		if l := t.state.launches[provision.LaunchID(rec.Launch)]; l != nil && l.record.Release != "" {
			return coordinator.Errorf(coordinator.ErrDenied, op, "its launch %s is given up: %s", rec.Launch, l.record.Release)
		}
		n := t.state.nodes[id]
		if n != nil && n.session != nil {
			return coordinator.Errorf(coordinator.ErrConflict, op, "a node of this name is connected").
				WithHint("stop its agent first, or give this node another name with --node")
		}
		next, again, err := rec.Redeem(shown.Secret, id, req.Key, t.now)
		if err != nil {
			return err
		}
		var revoked auth.Revocation
		if n != nil && !again { // whoever had the name before has it no longer
			revoked = auth.Revoke(id, t.now, t.state.longest)
			revoked.Reason = "the node joined again"
		}
		issue := t.state.revoked[id].After(revoked.After(t.now))
		if certificate, err = t.state.ca.SignNode(in.CSR, id, issue, e.opt.CertificateLifetime, e.opt.Rand); err != nil {
			return err
		}
		ca = t.state.ca.CertificatePEM()
		if !again {
			t.joined(id, next, revoked)
		}
		return nil
	})
	return certificate, ca, err
}

// joined writes down that a node joined with a token.
func (t *tx) joined(id coordinator.NodeID, token auth.JoinToken, revoked auth.Revocation) {
	t.state.joinTokens[token.ID] = token
	t.put(prefixJoin+token.ID, token)
	if revoked.Node != "" {
		t.revoke(revoked)
	}
	n := t.state.nodes[id]
	if n == nil {
		n = newNode(id)
		n.record.Created = t.now
		n.lastSeen = t.now
		t.state.nodes[id] = n
	}
	n.record.Bound, n.record.Launch = token.Definition, token.Launch
	t.put(prefixNode+string(id), n.record)
	if l := t.state.launchOf(n); l != nil {
		n.looked = l.record.Discovery
	}
	if l := t.state.launchOf(n); l != nil && !slices.Contains(l.record.Joined, id) {
		l.record.Joined = append(l.record.Joined, id)
		t.put(launchKey(l.record.ID), l.record)
	}
	t.group()
	t.event(Event{Kind: "node-joined", Subject: string(id), Message: "with join token " + token.ID})
}

// forgetJoinTokens drops the tokens that nothing redeems any more.
func (e *Engine) forgetJoinTokens(ctx context.Context) error {
	return e.do(ctx, func(t *tx) error {
		n := 0
		for _, rec := range t.state.joinTokens {
			if rec.Done(t.now) {
				t.dropJoinToken(rec)
				if n++; n%recordsAtOnce == 0 {
					t.group()
				}
			}
		}
		return nil
	})
}
