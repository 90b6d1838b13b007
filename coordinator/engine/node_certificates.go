package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/provision"
)

// NodeCertificate is what the certificate of a node's connection says of itself; the server reads it from TLS.
type NodeCertificate struct {
	Issued, Expires time.Time
	Serial          string
}

// legacyLifetime is how long certificates may live that were issued before lifetimes were written down.
const legacyLifetime = 366 * 24 * time.Hour

// checkCertificate refuses what was revoked.
func (s *state) checkCertificate(op string, id coordinator.NodeID, cert NodeCertificate) error {
	r, ok := s.revoked[id]
	if !ok || !r.Ends(cert.Issued) {
		return nil
	}
	why := ""
	if r.Reason != "" {
		why = ": " + r.Reason
	}
	return coordinator.Errorf(coordinator.ErrUnauthenticated, op, "the certificate of node %s was revoked%s", id, why).
		WithHint("an administrator makes a token for it to join again: `substrate node join-token create`; then empty the identity directory of the node")
}

// RenewCertificate issues a node's next certificate for the connection's own node. It writes nothing, so that
// ten thousand nodes renew for free.
func (e *Engine) RenewCertificate(ctx context.Context, id coordinator.NodeID, cert NodeCertificate, csr []byte) (certificate, ca []byte, err error) {
	op := "renew certificate of node " + string(id)
	if _, err := auth.ParseRequest(csr); err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	err = e.doBare(ctx, func(t *tx) error {
		if err := t.state.checkCertificate(op, id, cert); err != nil {
			return err
		}
		if t.state.nodes[id] == nil {
			return noSuch(op, "node", string(id))
		}
		issue := t.state.revoked[id].After(t.now)
		certificate, err = t.state.ca.SignNode(csr, id, issue, e.opt.CertificateLifetime, e.opt.Rand)
		ca = t.state.ca.CertificatePEM()
		return err
	})
	return certificate, ca, err
}

// revoke writes a revocation. It is kept until the last certificate that it ends has expired.
func (t *tx) revoke(r auth.Revocation) {
	t.state.revoked[r.Node] = r
	t.put(prefixRevoked+string(r.Node), r)
	if n := t.state.nodes[r.Node]; n != nil && n.session != nil {
		session := n.session
		t.then(func(int64) { session.shut() })
	}
}

// RevokeNode ends the certificates of a node: its stream is closed, and it comes back with a new join token only.
// Its work is given up after the node loss window, as of any node that stays away.
func (e *Engine) RevokeNode(ctx context.Context, c Caller, id coordinator.NodeID, reason string) (view NodeView, err error) {
	op := "revoke node " + string(id)
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return view, err
	}
	err = e.doView(ctx, func(t *tx) error {
		n := t.state.nodes[id]
		if n == nil {
			return noSuch(op, "node", string(id))
		}
		if n.isSlot() {
			return coordinator.Errorf(coordinator.ErrConflict, op, "it is a slot of definition %s, which has no certificate", n.record.Definition)
		}
		r := auth.Revoke(id, t.now, t.state.longest)
		r.By, r.Reason = c.Name, reason
		t.revoke(r)
		t.group()
		t.event(Event{Kind: "node-revoked", Subject: string(id), Message: fmt.Sprintf("by %s %s", c.Name, reason)})
		return nil
	}, func(s *state) { view = s.nodeView(c, s.nodes[id], false, e.opt.Now().UTC()) })
	return view, err
}

// RemoveNode revokes a node and forgets it. Work on it is in the way unless it is to be given up.
func (e *Engine) RemoveNode(ctx context.Context, c Caller, id coordinator.NodeID, reason string, force bool) error {
	op := "remove node " + string(id)
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return err
	}
	return e.do(ctx, func(t *tx) error {
		s := t.state
		n := s.nodes[id]
		if n == nil {
			return noSuch(op, "node", string(id))
		}
		if len(n.active) > 0 && n.isSlot() {
			return coordinator.Errorf(coordinator.ErrConflict, op, "%d jobs of its batch system are on it", len(n.active)).
				WithHint("cancel their workflows, or wait until they are over")
		}
		if len(n.active) > 0 && !force {
			return coordinator.Errorf(coordinator.ErrConflict, op, "%d runs are on it", len(n.active)).
				WithHint("drain it first: `substrate node drain %s --wait`, or give its work up with --force", id)
		}
		r := auth.Revoke(id, t.now, s.longest)
		r.By, r.Reason = c.Name, reason
		l := s.launchOf(n)
		if why := "node " + string(id) + " was removed"; n.isSlot() {
			t.forgetSlot(n, why)
		} else {
			t.forget(n, r, why)
		}
		t.event(Event{Kind: "node-removed", Subject: string(id), Message: fmt.Sprintf("by %s %s", c.Name, reason)})
		if l != nil && !slices.ContainsFunc(l.record.Joined, func(id coordinator.NodeID) bool { return s.nodes[id] != nil }) {
			t.giveUp(l, "its nodes were removed", provision.FaultNone)
		}
		return nil
	})
}

// forget ends what there is of a node: its certificates, its records and the runs on it.
func (t *tx) forget(n *node, r auth.Revocation, why string) {
	t.revoke(r)
	t.delete(prefixNode + string(n.id))
	t.delete(prefixFacts + string(n.id))
	t.group()
	t.drop(n, why)
}

// drop gives up what is on a node and takes it out of the books.
func (t *tx) drop(n *node, why string) {
	s := t.state
	for _, a := range sortedAllocations(n.active) {
		t.nodeFault(a, n.id, why)
	}
	was := n.record.Definition
	n.record.Definition = ""
	s.config.move(n, was)
	delete(s.nodes, n.id)
	delete(s.absent, n.id)
	delete(s.overdue, n.id)
	t.checkSiblings(was)
	s.admission++
	s.changedNode(n)
}

// forgetRevocations drops the revocations of certificates that have all expired.
func (e *Engine) forgetRevocations(ctx context.Context) error {
	return e.do(ctx, func(t *tx) error {
		n := 0
		for id, r := range t.state.revoked {
			if t.now.After(r.Until) {
				delete(t.state.revoked, id)
				t.delete(prefixRevoked + string(id))
				if n++; n%recordsAtOnce == 0 {
					t.group()
				}
			}
		}
		return nil
	})
}

// noteLifetime writes down that certificates may live longer from now on, before any does.
func (e *Engine) noteLifetime(ctx context.Context) error {
	if e.opt.CertificateLifetime <= e.state.longest {
		return nil
	}
	t := &tx{engine: e, state: e.state, now: e.opt.Now().UTC()}
	t.state.longest = e.opt.CertificateLifetime
	t.put(keyLifetime, longestLifetime{int64(t.state.longest / time.Second)})
	return t.commit(ctx)
}
