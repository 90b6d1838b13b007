package store

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	// MaxKey is the longest key in bytes.
	MaxKey = 1024
	// MinGroup is the number of operations, and of guards, that a group may have on every Store.
	MinGroup = 100
	// PieceSize is the size up to which a value is kept whole.
	PieceSize = 1 << 20

	// The embedded server is ours alone, so its limits are raised: the larger a transaction, the
	// fewer waits for the disk. Above these sizes the gain is gone and one slow write holds up all.
	embeddedTxnOps   = 2048
	embeddedTxnBytes = 4 << 20
	// embeddedRequestBytes leaves room for the encoding around what we count.
	embeddedRequestBytes = embeddedTxnBytes + 1<<20

	// An external server has what etcd ships with: 128 operations and 1.5 MiB.
	externalTxnOps   = 128
	externalTxnBytes = 1<<20 + 384<<10

	opOverhead = 40 // encoding of one operation or guard, rounded up
)

// ErrKey: a key is empty, too long or not UTF-8.
var ErrKey = errors.New("bad key")

// CommitError tells how far a Commit came: Applied groups are durable, and Err is why the next
// one is not, or why that is unknown.
type CommitError struct {
	Applied, Groups int
	Err             error
}

func (e *CommitError) Error() string {
	return fmt.Sprintf("cannot commit group %d of %d: %v", e.Applied+1, e.Groups, e.Err)
}

func (e *CommitError) Unwrap() error { return e.Err }

// limits is what one transaction may hold.
type limits struct {
	ops, bytes, piece int
}

func embeddedLimits() limits {
	return limits{ops: embeddedTxnOps, bytes: embeddedTxnBytes, piece: PieceSize}
}

func externalLimits() limits {
	return limits{ops: externalTxnOps, bytes: externalTxnBytes, piece: PieceSize}
}

func checkKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty", ErrKey)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrKey, len(key), MaxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not UTF-8", ErrKey, key)
	}
	return nil
}

// check refuses a group that no transaction could hold, before anything is written. Values do not
// count: those that do not fit move out into pieces, at the price of a manifest each and one guard.
func (l limits) check(g Group, prefix int) error {
	bytes := 2 * (prefix + opOverhead + MaxKey)
	for _, guard := range g.Guards {
		if err := checkKey(guard.Key); err != nil {
			return err
		}
		bytes += guardCost(prefix + len(guard.Key))
	}
	for _, op := range g.Ops {
		if err := checkKey(op.Key); err != nil {
			return err
		}
		if len(op.Value) > MaxValue && !op.Delete {
			return fmt.Errorf("%w: value of %q has %d bytes, at most %d", ErrTooLarge, op.Key, len(op.Value), MaxValue)
		}
		bytes += prefix + len(op.Key) + opOverhead + manifestCost
	}
	if n := max(len(g.Ops), len(g.Guards)+1); n > l.ops {
		return fmt.Errorf("%w: group of %d operations and %d guards, at most %d", ErrTooLarge, len(g.Ops), len(g.Guards), l.ops)
	}
	if bytes > l.bytes {
		return fmt.Errorf("%w: keys of a group take %d bytes, at most %d", ErrTooLarge, bytes, l.bytes)
	}
	return nil
}

// guardCost counts a key twice: once to compare, once to ask which guard failed.
func guardCost(key int) int { return 2 * (key + opOverhead) }

func checkGroups(l limits, groups []Group, prefix int) error {
	for i, g := range groups {
		if err := l.check(g, prefix); err != nil {
			return &CommitError{Applied: 0, Groups: len(groups), Err: fmt.Errorf("group %d: %w", i+1, err)}
		}
	}
	return nil
}
