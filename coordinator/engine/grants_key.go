package engine

import (
	"context"
	"errors"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/grant"
	"substrate/coordinator/store"
)

// maxGrantKeys bounds how many keys a cluster's grants are verified with.
const maxGrantKeys = 1000

// GrantKey is a key that signs grants, or once did. What it signed stays verifiable.
type GrantKey struct {
	ID       grant.KeyID
	Previous grant.KeyID
}

// RotateGrantKey has grants signed with a new key from now on. The private half of the one before is forgotten in the same write that keeps the new
// one; its public half stays, for the grants that it has signed.
func (e *Engine) RotateGrantKey(ctx context.Context, c Caller) (out GrantKey, err error) {
	const op = "rotate the key of grants"
	if err := c.authorize(auth.PermissionAdminCluster, op, auth.Target{}); err != nil {
		return out, err
	}
	err = e.do(ctx, func(t *tx) error {
		s := t.state
		if len(s.ring.IDs()) >= maxGrantKeys {
			return coordinator.Errorf(coordinator.ErrConflict, op, "%d keys verify grants of this cluster already", maxGrantKeys)
		}
		next, err := grant.Generate(e.opt.Rand)
		if err != nil {
			return err
		}
		private, err := next.Marshal()
		if err != nil {
			return err
		}
		ring := s.ring.With(next.Public())
		public, err := ring.Marshal()
		if err != nil {
			return err
		}
		out = GrantKey{ID: next.ID(), Previous: s.signer.ID()}
		t.putBytes(keyGrantRing, public)
		t.putBytes(prefixGrantKey+string(next.ID()), private)
		t.delete(prefixGrantKey + string(s.signer.ID()))
		t.group()
		s.signer, s.ring = next, ring
		t.event(Event{Kind: "grant-key-rotated", Subject: string(next.ID()), Message: "by " + c.Name + ", after " + string(out.Previous)})
		return nil
	})
	return out, err
}

// loadGrantKeys reads the key that signs, and those that grants are verified with.
func (e *Engine) loadGrantKeys(ctx context.Context, s *state) error {
	entry, err := e.opt.Store.Get(ctx, keyGrantRing)
	switch {
	case errors.Is(err, store.ErrNotFound): // never rotated
	case err != nil:
		return err
	default:
		if s.ring, err = grant.ParseRing(entry.Value); err != nil {
			return err
		}
	}
	return e.scan(ctx, prefixGrantKey, func(entry store.Entry) error {
		key, err := grant.ParseKey(entry.Value)
		if err != nil {
			return err
		}
		s.signer, s.ring = key, s.ring.With(key.Public())
		return nil
	})
}
