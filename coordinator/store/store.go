// Package store keeps the coordinator's truth in etcd, embedded or external, under one prefix.
// It knows keys and bytes, not what they mean.
package store

import (
	"context"
	"errors"
)

// Store is one ordered, durable key space. Keys are UTF-8 paths without the prefix ("workflow/…").
// Values of any size up to MaxValue are accepted; those over the chunk size are kept in pieces,
// which readers never see. All methods are safe for concurrent use.
type Store interface {
	// Get returns the entry, or ErrNotFound.
	Get(ctx context.Context, key string) (Entry, error)
	// List returns at most limit entries with the prefix and a key > after, in key order.
	// A result shorter than limit is the last one. All pages of a walk may differ in revision.
	List(ctx context.Context, prefix, after string, limit int) ([]Entry, error)
	// Commit applies groups in order. Each group is atomic and durable when Commit returns nil;
	// several groups share one write where limits allow. On an error a prefix of the groups is applied;
	// CommitError tells how many for certain. Within a group the last operation on a key counts; a
	// guard sees what earlier groups wrote. A group of MinGroup operations and guards always fits.
	Commit(ctx context.Context, groups []Group) (revision int64, err error)
	// Close releases everything; committed data stays.
	Close() error
}

// Entry is one key with its value and the store revision that wrote it last.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64
}

// Group is a set of writes that happen together, or not at all when a guard fails.
type Group struct {
	Guards []Guard
	Ops    []Op
}

// Guard holds when the key was last written at Revision; 0 means "must not exist".
type Guard struct {
	Key      string
	Revision int64
}

// Op puts Value, or deletes the key when Delete is set.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
}

// MaxValue is the largest value a Store takes.
const MaxValue = 256 << 20

var (
	ErrNotFound = errors.New("not found")
	// ErrConflict: a guard did not hold; nothing of that group was applied.
	ErrConflict = errors.New("changed by somebody else")
	// ErrUnknown: the outcome of the write is not known (timeout, lost connection). The caller must
	// read again before it goes on; what that read shows stays so. Guards make a repeat safe.
	ErrUnknown = errors.New("outcome unknown")
	// ErrFull: the store is over its quota. Reads and deletes still work.
	ErrFull = errors.New("store is full")
	// ErrTooLarge: a value or group is over the limit; nothing was written.
	ErrTooLarge = errors.New("too large")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
)
