package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/btree"
)

// Memory is the Store's twin without a disk, for tests: the same contract and limits, plus clones
// as a crash would leave them and commits that fail on demand. The zero value is not usable.
type Memory struct {
	mu       sync.Mutex
	tree     *btree.BTreeG[Entry]
	revision int64
	commits  int
	faults   map[int]Fault
	closed   bool
	// past holds the state before the first and after every applied group, once Record is on.
	past   []memoryState
	record bool
}

type memoryState struct {
	tree     *btree.BTreeG[Entry]
	revision int64
}

// Fault is how a Commit goes wrong.
type Fault struct {
	// Apply is how many groups are applied nonetheless; -1 is all.
	Apply int
	// Err is what the caller sees, ErrUnknown if nil. ErrUnknown hides the applied groups; with
	// any other error CommitError.Applied counts them, and Apply must be less than all.
	Err error
}

var _ Store = (*Memory)(nil)

const memoryDegree = 32

// NewMemory returns an empty store.
func NewMemory() *Memory {
	tree := btree.NewG(memoryDegree, func(a, b Entry) bool { return a.Key < b.Key })
	return &Memory{tree: tree, revision: 1, faults: map[int]Fault{}}
}

// FailCommit makes the nth Commit from now (1 is the next) go wrong.
func (m *Memory) FailCommit(n int, f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.Err == nil {
		f.Err = ErrUnknown
	}
	m.faults[m.commits+n] = f
}

// Commits counts calls of Commit, failed ones included.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Clone returns an independent, open store with the present content and no faults: what a new
// process would find after a crash now.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state(memoryState{m.tree, m.revision})
}

// Record starts to keep the state after each group, for Clones.
func (m *Memory) Record() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record = true
	m.past = []memoryState{{m.tree.Clone(), m.revision}}
}

// Clones returns a store for every state since Record, the oldest first: all that a crash at any
// time could have left.
func (m *Memory) Clones() []*Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*Memory, 0, len(m.past))
	for _, s := range m.past {
		out = append(out, m.state(s))
	}
	return out
}

func (m *Memory) state(s memoryState) *Memory {
	return &Memory{tree: s.tree.Clone(), revision: s.revision, faults: map[int]Fault{}}
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, fmt.Errorf("cannot read key: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return Entry{}, fmt.Errorf("cannot read %q: %w", key, err)
	}
	e, ok := m.tree.Get(Entry{Key: key})
	if !ok {
		return Entry{}, fmt.Errorf("cannot read %q: %w", key, ErrNotFound)
	}
	e.Value = bytes.Clone(e.Value)
	return e, nil
}

// List implements Store.
func (m *Memory) List(ctx context.Context, prefix, after string, limit int) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return nil, fmt.Errorf("cannot list %q: %w", prefix, err)
	}
	var entries []Entry
	m.tree.AscendGreaterOrEqual(Entry{Key: max(prefix, after)}, func(e Entry) bool {
		if len(entries) >= limit || (e.Key > prefix && !strings.HasPrefix(e.Key, prefix)) {
			return false
		}
		if e.Key > after {
			e.Value = bytes.Clone(e.Value)
			entries = append(entries, e)
		}
		return true
	})
	return entries, nil
}

// Commit implements Store.
func (m *Memory) Commit(ctx context.Context, groups []Group) (int64, error) {
	if err := checkGroups(embeddedLimits(), groups, len(embeddedPrefix)+len(dataDir)); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return 0, &CommitError{Groups: len(groups), Err: err}
	}
	if len(groups) == 0 {
		return 0, nil
	}
	m.commits++
	fault, faulty := m.faults[m.commits]
	delete(m.faults, m.commits)
	todo := len(groups)
	if faulty && fault.Apply >= 0 {
		todo = min(todo, fault.Apply)
	}
	var revision int64
	for i, g := range groups[:todo] {
		if err := m.apply(g); err != nil {
			return revision, &CommitError{Applied: i, Groups: len(groups), Err: err}
		}
		revision = m.revision
	}
	switch {
	case !faulty:
		return revision, nil
	case errors.Is(fault.Err, ErrUnknown):
		return 0, &CommitError{Groups: len(groups), Err: fault.Err} // and does not tell what it did
	}
	return revision, &CommitError{Applied: todo, Groups: len(groups), Err: fault.Err}
}

func (m *Memory) apply(g Group) error {
	for _, guard := range g.Guards {
		e, _ := m.tree.Get(Entry{Key: guard.Key})
		if e.Revision != guard.Revision {
			return conflict(guard, e.Revision)
		}
	}
	if len(g.Ops) == 0 {
		return nil
	}
	m.revision++
	for _, op := range g.Ops {
		if op.Delete {
			m.tree.Delete(Entry{Key: op.Key})
			continue
		}
		value := append(make([]byte, 0, len(op.Value)), op.Value...) // never nil, like etcd's
		m.tree.ReplaceOrInsert(Entry{Key: op.Key, Value: value, Revision: m.revision})
	}
	if m.record {
		m.past = append(m.past, memoryState{m.tree.Clone(), m.revision})
	}
	return nil
}

func (m *Memory) usable(ctx context.Context) error {
	if m.closed {
		return ErrClosed
	}
	return ctx.Err()
}

// Close implements Store. The content stays, for Clone.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
