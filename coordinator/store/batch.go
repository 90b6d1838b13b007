package store

import (
	"fmt"
	"sort"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// batch is one or more groups on their way into one transaction.
type batch struct {
	c      *client
	guards []batchGuard
	writes []batchWrite
	at     map[string]int // data key → index in writes
	// record, when set, must still exist: the sweep has not taken the group's pieces.
	record string
	groups int
	bytes  int
}

type batchGuard struct {
	group int
	Guard
}

type batchWrite struct {
	key    string // without prefix
	stored []byte // nil deletes
	gen    string // generation that stored names, if any
}

func (c *client) newBatch() *batch {
	b := &batch{c: c, at: map[string]int{}}
	b.bytes = guardCost(len(c.record("")) + MaxKey) // room for the guard on the record
	return b
}

// lastWrites drops the operations of a group that a later one on the same key undoes.
func lastWrites(ops []Op) []Op {
	last := make(map[string]int, len(ops))
	for i, op := range ops {
		last[op.Key] = i
	}
	if len(last) == len(ops) {
		return ops
	}
	kept := make([]Op, 0, len(last))
	for i, op := range ops {
		if last[op.Key] == i {
			kept = append(kept, op)
		}
	}
	return kept
}

// add takes the group unless it does not fit or must see the effect of a group already in the
// batch: guards of a transaction are all checked before its first write.
func (b *batch) add(g Group) bool {
	bytes, ops := b.bytes, len(b.writes)
	for _, guard := range g.Guards {
		if _, written := b.at[guard.Key]; written {
			return false
		}
		bytes += guardCost(len(b.c.data(guard.Key)))
	}
	for _, op := range g.Ops {
		bytes += len(b.c.data(op.Key)) + opOverhead
		if !op.Delete {
			if len(op.Value) > b.c.limits.piece {
				return false
			}
			bytes += len(op.Value) + 1
		}
		if _, again := b.at[op.Key]; !again {
			ops++
		}
	}
	if bytes > b.c.limits.bytes || ops > b.c.limits.ops || len(b.guards)+len(g.Guards)+1 > b.c.limits.ops {
		return false
	}
	for _, guard := range g.Guards {
		b.guards = append(b.guards, batchGuard{group: b.groups, Guard: guard})
	}
	for _, op := range g.Ops {
		w := batchWrite{key: op.Key}
		if !op.Delete {
			w.stored = encodeInline(op.Value)
		}
		b.write(w)
	}
	b.bytes = bytes
	b.groups++
	return true
}

// write puts the last word on a key in place: one transaction writes a key once.
func (b *batch) write(w batchWrite) {
	if i, again := b.at[w.key]; again {
		b.writes[i] = w
		return
	}
	b.at[w.key] = len(b.writes)
	b.writes = append(b.writes, w)
}

// spill picks the operations whose values must move out into pieces: all that are too large, and
// then the largest until the rest fits into one transaction.
func (c *client) spill(g Group) []int {
	type candidate struct{ index, size int }
	var candidates []candidate
	bytes := c.newBatch().bytes
	for _, guard := range g.Guards {
		bytes += guardCost(len(c.data(guard.Key)))
	}
	for i, op := range g.Ops {
		bytes += len(c.data(op.Key)) + opOverhead
		if !op.Delete {
			bytes += len(op.Value) + 1
			candidates = append(candidates, candidate{i, len(op.Value)})
		}
	}
	sort.SliceStable(candidates, func(i, j int) bool { return candidates[i].size > candidates[j].size })
	var out []int
	for _, x := range candidates {
		if x.size <= c.limits.piece && bytes <= c.limits.bytes {
			break
		}
		if x.size <= manifestCost {
			break
		}
		bytes += manifestCost - x.size
		out = append(out, x.index)
	}
	return out
}

// addSpilled takes a group of which some values are in pieces already.
func (b *batch) addSpilled(g Group, manifests map[int]manifest, record string) {
	b.record = record
	for _, guard := range g.Guards {
		b.guards = append(b.guards, batchGuard{group: b.groups, Guard: guard})
	}
	for i, op := range g.Ops {
		w := batchWrite{key: op.Key}
		m, spilled := manifests[i]
		switch {
		case op.Delete:
		case spilled:
			w.stored, w.gen = encodeManifest(m), m.Generation
		default:
			w.stored = encodeInline(op.Value)
		}
		b.write(w)
	}
	b.groups++
}

// size is what the writes take in the store, 0 if they only delete.
func (b *batch) size() int {
	n := 0
	for _, w := range b.writes {
		if w.stored != nil {
			n += len(w.key) + len(w.stored) + opOverhead
		}
	}
	return n
}

func (b *batch) compares() (cmps []clientv3.Cmp, otherwise []clientv3.Op) {
	cmps = make([]clientv3.Cmp, 0, len(b.guards)+1)
	otherwise = make([]clientv3.Op, 0, len(b.guards))
	for _, g := range b.guards {
		key := b.c.data(g.Key)
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(key), "=", g.Revision))
		otherwise = append(otherwise, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	if b.record != "" {
		cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(b.record), ">", 0))
	}
	return cmps, otherwise
}

func (b *batch) operations() []clientv3.Op {
	ops := make([]clientv3.Op, 0, len(b.writes))
	for _, w := range b.writes {
		if w.stored == nil {
			ops = append(ops, clientv3.OpDelete(b.c.data(w.key)))
		} else {
			ops = append(ops, clientv3.OpPut(b.c.data(w.key), string(w.stored)))
		}
	}
	return ops
}

// failed finds the first group with a guard that did not hold in the answer to otherwise.
func (b *batch) failed(resp *clientv3.TxnResponse) (group int, err error) {
	for i, g := range b.guards {
		var revision int64
		if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
			revision = kvs[0].ModRevision
		}
		if revision != g.Revision {
			return g.group, conflict(g.Guard, revision)
		}
	}
	return 0, errSwept
}

func conflict(g Guard, found int64) error {
	return fmt.Errorf("%w: %q is at revision %d, not %d", ErrConflict, g.Key, found, g.Revision)
}
