package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

const (
	cleanupTimeout = 5 * time.Second
	// busyRetries × busyWait is how long a write waits for a server that has too much to apply.
	busyRetries = 200
	busyWait    = 10 * time.Millisecond
)

var errSwept = errors.New("pieces were removed before the group was written; write it again")

// Commit implements Store.
func (c *client) Commit(ctx context.Context, groups []Group) (int64, error) {
	if err := checkGroups(c.limits, groups, len(c.data(""))); err != nil {
		return 0, err
	}
	if err := c.enter(); err != nil {
		return 0, &CommitError{Groups: len(groups), Err: err}
	}
	defer c.leave()
	groups = slices.Clone(groups)
	for i, g := range groups {
		groups[i].Ops = lastWrites(g.Ops)
	}
	var revision int64
	for done := 0; done < len(groups); {
		n, rev, err := c.commitSome(ctx, groups[done:])
		done += n
		revision = max(revision, rev)
		if err != nil {
			return revision, &CommitError{Applied: done, Groups: len(groups), Err: err}
		}
	}
	return revision, nil
}

// commitSome writes as many of the groups as fit into one transaction, at least one.
func (c *client) commitSome(ctx context.Context, groups []Group) (applied int, revision int64, err error) {
	b := c.newBatch()
	n := 0
	for n < len(groups) && b.add(groups[n]) {
		n++
	}
	if n == 0 {
		return c.commitLarge(ctx, groups[0])
	}
	revision, failed, err := c.send(ctx, b)
	switch {
	case err == nil:
		return n, revision, nil
	case !errors.Is(err, ErrConflict) || failed == 0:
		return 0, 0, err
	}
	// The transaction failed as a whole; the groups before the failed one go again without it.
	// They may fail in turn, but there are fewer of them each time.
	for done := 0; done < failed; {
		m, rev, err := c.commitSome(ctx, groups[done:failed])
		done += m
		revision = max(revision, rev)
		if err != nil {
			return done, revision, err
		}
	}
	return failed, revision, err
}

// commitLarge writes one group whose values do not fit: pieces first, then the group with
// manifests in their place.
func (c *client) commitLarge(ctx context.Context, g Group) (applied int, revision int64, err error) {
	spilled := c.spill(g)
	if len(spilled) == 0 {
		return 0, 0, ErrTooLarge
	}
	gens := newGenerations(len(spilled))
	for _, gen := range gens {
		c.pieces.setWriting(gen, true)
		defer c.pieces.setWriting(gen, false)
	}
	manifests := make(map[int]manifest, len(spilled))
	for i, index := range spilled {
		m, err := c.writePieces(ctx, g.Ops[index].Key, gens[i], g.Ops[index].Value)
		if err != nil {
			c.dropAll(ctx, gens)
			return 0, 0, withoutDoubt(ctx, err)
		}
		manifests[index] = m
	}
	b := c.newBatch()
	b.addSpilled(g, manifests, c.record(gens[0]))
	revision, _, err = c.send(ctx, b)
	if err != nil {
		if !errors.Is(err, ErrUnknown) { // else the sweep finds out
			c.dropAll(ctx, gens)
		}
		return 0, 0, err
	}
	return 1, revision, nil
}

// withoutDoubt is the error of a write of pieces: whether they arrived or not, the group did not.
func withoutDoubt(ctx context.Context, err error) error {
	switch {
	case !errors.Is(err, ErrUnknown):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("pieces not written: %w", ctx.Err())
	case errors.Is(err, ErrFull):
		return fmt.Errorf("pieces not written: %w", ErrFull)
	}
	return fmt.Errorf("pieces not written: %v", err)
}

// send commits the batch in one transaction. With ErrConflict, failed is the group it is about.
func (c *client) send(ctx context.Context, b *batch) (revision int64, failed int, err error) {
	cmps, otherwise := b.compares()
	resp, err := c.txnResult(ctx, cmps, b.operations(), otherwise, b.size())
	if err != nil {
		return 0, 0, err
	}
	if !resp.Succeeded {
		failed, err = b.failed(resp)
		return 0, failed, err
	}
	var left []string
	for _, w := range b.writes {
		if old := c.pieces.replace(w.key, w.gen); old != "" {
			left = append(left, old)
		}
	}
	c.dropAll(ctx, left)
	return resp.Header.Revision, 0, nil
}

// dropAll removes generations that are of no use any more. What it fails to remove the sweep will.
func (c *client) dropAll(ctx context.Context, gens []string) {
	if len(gens) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, gen := range gens {
		if c.drop(ctx, gen) != nil {
			return
		}
	}
}

func (c *client) txn(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op, bytes int) (int64, error) {
	resp, err := c.txnResult(ctx, cmps, then, otherwise, bytes)
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// txnResult runs one transaction that adds so many bytes.
func (c *client) txnResult(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op, bytes int) (*clientv3.TxnResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // not sent, so no doubt
	}
	if bytes > 0 && c.admit != nil {
		if err := c.admit(bytes); err != nil {
			return nil, err
		}
	}
	for attempt := 0; ; attempt++ {
		resp, err := c.etcd.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
		if err == nil {
			if c.wrote != nil && resp.Succeeded {
				c.wrote(bytes)
			}
			return resp, nil
		}
		if !errors.Is(err, rpctypes.ErrTooManyRequests) || attempt == busyRetries {
			return nil, c.writeError(err)
		}
		// Refused before it entered the log: safe to send again.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyWait):
		}
	}
}

// writeError maps what etcd says about a write. Whatever is not a clear refusal leaves doubt.
func (c *client) writeError(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %v", ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return fmt.Errorf("store is overloaded: %w", err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		// The write that first crosses the quota is applied and refused at the same time.
		c.doubts.Add(1)
		return fmt.Errorf("%w (%w)", ErrFull, ErrUnknown)
	}
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		switch e.Code() {
		case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
			return err
		}
	}
	c.doubts.Add(1)
	return fmt.Errorf("%w: %v", ErrUnknown, err)
}
