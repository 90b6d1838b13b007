package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	listPage = 1000 // keys of one range request

	// The key space below the prefix. Only dataDir is seen through Store.
	dataDir   = "d/"
	pieceDir  = "p/" // p/<generation>/<number>: part of a large value
	recordDir = "r/" // r/<generation>: which data key the pieces are for
	metaDir   = "m/"
)

// client is a Store over an etcd client, in-process or remote.
type client struct {
	etcd   *clientv3.Client
	prefix string // ends in "/"
	limits limits
	// local: the server is in this process, so its own state is never behind what it acknowledged.
	local bool
	// admit refuses writes of that many bytes when the store is full; nil admits all.
	admit func(bytes int) error
	// wrote is told after each write; nil is fine.
	wrote func(bytes int)

	life   sync.RWMutex // held for reading by every call, for writing by close
	closed bool

	pieces pieceIndex
	// doubts counts writes whose outcome is unknown, settled those that a later write has overtaken.
	doubts, settled atomic.Int64
}

func newClient(etcd *clientv3.Client, prefix string, l limits) *client {
	return &client{etcd: etcd, prefix: prefix, limits: l, pieces: newPieceIndex()}
}

func (c *client) data(key string) string   { return c.prefix + dataDir + key }
func (c *client) meta(name string) string  { return c.prefix + metaDir + name }
func (c *client) record(gen string) string { return c.prefix + recordDir + gen }
func (c *client) piecesOf(gen string) string {
	return c.prefix + pieceDir + gen + "/"
}

// enter keeps close away until leave.
func (c *client) enter() error {
	c.life.RLock()
	if c.closed {
		c.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (c *client) leave() { c.life.RUnlock() }

// markClosed waits for calls under way and turns away all later ones; false if that was done before.
func (c *client) markClosed() bool {
	c.life.Lock()
	defer c.life.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	return true
}

// Get implements Store.
func (c *client) Get(ctx context.Context, key string) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, fmt.Errorf("cannot read key: %w", err)
	}
	if err := c.enter(); err != nil {
		return Entry{}, fmt.Errorf("cannot read %q: %w", key, err)
	}
	defer c.leave()
	e, err := c.get(ctx, key)
	if err != nil {
		return Entry{}, fmt.Errorf("cannot read %q: %w", key, err)
	}
	return e, nil
}

func (c *client) get(ctx context.Context, key string) (Entry, error) {
	if err := c.settle(ctx); err != nil {
		return Entry{}, err
	}
	resp, err := c.etcd.Get(ctx, c.data(key), c.readOpts()...)
	if err != nil {
		return Entry{}, readError(err)
	}
	if len(resp.Kvs) == 0 {
		return Entry{}, ErrNotFound
	}
	return c.entry(ctx, resp.Kvs[0])
}

// List implements Store.
func (c *client) List(ctx context.Context, prefix, after string, limit int) ([]Entry, error) {
	if err := c.enter(); err != nil {
		return nil, fmt.Errorf("cannot list %q: %w", prefix, err)
	}
	defer c.leave()
	entries, err := c.list(ctx, prefix, after, limit)
	if err != nil {
		return nil, fmt.Errorf("cannot list %q: %w", prefix, err)
	}
	return entries, nil
}

func (c *client) list(ctx context.Context, prefix, after string, limit int) ([]Entry, error) {
	if err := c.settle(ctx); err != nil {
		return nil, err
	}
	start, end := c.data(prefix), clientv3.GetPrefixRangeEnd(c.data(prefix))
	if after != "" && c.data(after) >= start {
		start = c.data(after) + "\x00"
	}
	var entries []Entry
	for len(entries) < limit && start < end {
		n := min(limit-len(entries), listPage)
		opts := append(c.readOpts(), clientv3.WithRange(end), clientv3.WithLimit(int64(n)))
		resp, err := c.etcd.Get(ctx, start, opts...)
		if err != nil {
			return nil, readError(err)
		}
		for _, kv := range resp.Kvs {
			e, err := c.entry(ctx, kv)
			if errors.Is(err, ErrNotFound) {
				continue // a large value, deleted between the two reads
			}
			if err != nil {
				return nil, fmt.Errorf("value of %q: %w", kv.Key, err)
			}
			entries = append(entries, e)
		}
		if len(resp.Kvs) < n {
			break
		}
		start = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
	return entries, nil
}

// entry turns a stored pair into what was put, fetching pieces where needed.
func (c *client) entry(ctx context.Context, kv *mvccpb.KeyValue) (Entry, error) {
	key := strings.TrimPrefix(string(kv.Key), c.prefix+dataDir)
	for range maxReread {
		value, m, err := decodeValue(kv.Value)
		if err != nil {
			return Entry{}, err
		}
		if m == nil {
			return Entry{Key: key, Value: value, Revision: kv.ModRevision}, nil
		}
		value, err = c.readPieces(ctx, *m)
		if err == nil {
			return Entry{Key: key, Value: value, Revision: kv.ModRevision}, nil
		}
		if !errors.Is(err, errPieces) {
			return Entry{}, err
		}
		// The value may have been replaced, and its pieces with it, since we saw the manifest.
		resp, gerr := c.etcd.Get(ctx, string(kv.Key), c.readOpts()...)
		if gerr != nil {
			return Entry{}, readError(gerr)
		}
		if len(resp.Kvs) == 0 {
			return Entry{}, ErrNotFound
		}
		if resp.Kvs[0].ModRevision == kv.ModRevision {
			return Entry{}, err
		}
		kv = resp.Kvs[0]
	}
	return Entry{}, fmt.Errorf("value is replaced faster than it can be read")
}

func (c *client) readOpts() []clientv3.OpOption {
	if c.local {
		return []clientv3.OpOption{clientv3.WithSerializable()}
	}
	return nil
}

// settle makes ErrUnknown something a caller can act on: a write without effect goes through the
// same log behind the doubtful one, so that after it the doubtful one either is visible or never
// will be. It deletes, because a full store takes nothing else.
func (c *client) settle(ctx context.Context) error {
	doubts := c.doubts.Load()
	if doubts == c.settled.Load() {
		return nil
	}
	if _, err := c.etcd.Delete(ctx, c.meta("barrier")); err != nil {
		return readError(err)
	}
	c.settled.Store(doubts)
	return nil
}

// readError maps what etcd says about a read.
func readError(err error) error {
	if isStopped(err) {
		return ErrClosed
	}
	return err
}

func isStopped(err error) bool {
	return errors.Is(err, rpctypes.ErrStopped) || errors.Is(err, clientv3.ErrNoAvailableEndpoints)
}
