// Package storetest holds every store.Store to one contract. It does not test what only one of
// them has, such as surviving a kill.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator/store"
)

// Run tests the stores that open returns: each empty, and closed by the test that got it.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	tests := []struct {
		name string
		run  func(t *testing.T, s store.Store)
	}{
		{"put get delete", testPutGetDelete},
		{"values of all sizes", testSizes},
		{"list pages in key order", testList},
		{"guards", testGuards},
		{"conflict stops later groups", testConflictPrefix},
		{"groups see earlier groups", testDependentGroups},
		{"last write of a key in a group wins", testDuplicateKeys},
		{"many groups at once", testManyGroups},
		{"group of large values", testLargeGroup},
		{"large values are replaced whole", testReplaceLarge},
		{"limits", testLimits},
		{"bad keys", testBadKeys},
		{"concurrent counters", testCounters},
		{"cancelled context writes nothing", testCancelled},
		{"model", testModel},
		{"closed", testClosed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test.run(t, s)
		})
	}
}

func put(key, value string) store.Op { return store.Op{Key: key, Value: []byte(value)} }
func del(key string) store.Op        { return store.Op{Key: key, Delete: true} }

func mustCommit(t *testing.T, s store.Store, groups ...store.Group) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), groups)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return rev
}

func ops(o ...store.Op) store.Group { return store.Group{Ops: o} }

func mustGet(t *testing.T, s store.Store, key string) store.Entry {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return e
}

func wantValue(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	if got := mustGet(t, s, key); string(got.Value) != value || got.Key != key {
		t.Fatalf("get %s: got %s = %.40q, want %.40q", key, got.Key, got.Value, value)
	}
}

func wantAbsent(t *testing.T, s store.Store, key string) {
	t.Helper()
	if e, err := s.Get(t.Context(), key); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("get %s: got %.40q, %v, want ErrNotFound", key, e.Value, err)
	}
}

func testPutGetDelete(t *testing.T, s store.Store) {
	wantAbsent(t, s, "a")
	rev := mustCommit(t, s, ops(put("a", "1"), put("empty", "")))
	e := mustGet(t, s, "a")
	if e.Revision != rev || rev <= 0 {
		t.Fatalf("entry has revision %d, commit said %d", e.Revision, rev)
	}
	wantValue(t, s, "empty", "")
	if next := mustCommit(t, s, ops(put("a", "2"))); next <= rev {
		t.Fatalf("revision went from %d to %d", rev, next)
	}
	wantValue(t, s, "a", "2")
	mustCommit(t, s, ops(del("a"), del("never was")))
	wantAbsent(t, s, "a")
	wantValue(t, s, "empty", "")
}

func blob(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, 7))
	for i := 0; i+8 <= size; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

func testSizes(t *testing.T, s store.Store) {
	sizes := []int{0, 1, store.PieceSize - 1, store.PieceSize, store.PieceSize + 1, 3 * store.PieceSize, 5*store.PieceSize + 17}
	for i, size := range sizes {
		key := fmt.Sprintf("size/%d", i)
		value := blob(uint64(i), size)
		rev := mustCommit(t, s, store.Group{Ops: []store.Op{{Key: key, Value: value}}})
		e := mustGet(t, s, key)
		if !bytes.Equal(e.Value, value) || e.Revision != rev {
			t.Fatalf("%d bytes: got %d bytes at revision %d, want revision %d", size, len(e.Value), e.Revision, rev)
		}
	}
	entries, err := s.List(t.Context(), "", "", 100)
	if err != nil || len(entries) != len(sizes) {
		t.Fatalf("list: %d entries, %v, want %d", len(entries), err, len(sizes))
	}
	for i, e := range entries {
		if len(e.Value) != sizes[i] {
			t.Errorf("list: %s has %d bytes, want %d", e.Key, len(e.Value), sizes[i])
		}
	}
}

func testList(t *testing.T, s store.Store) {
	var all []string
	var group store.Group
	for i := range 57 {
		key := fmt.Sprintf("dir/%03d", i)
		all = append(all, key)
		group.Ops = append(group.Ops, put(key, key))
	}
	group.Ops = append(group.Ops, put("di", "x"), put("dir", "x"), put("dir0", "x"), put("dir/\u00e9", "é"), put("e", "x"))
	all = append(all, "dir/\u00e9")
	mustCommit(t, s, group)
	for _, limit := range []int{1, 7, 58, 59, 1000} {
		var got []string
		after := ""
		for {
			page, err := s.List(t.Context(), "dir/", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				got = append(got, e.Key)
				after = e.Key
			}
			if len(page) < limit {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(all, " ") {
			t.Fatalf("limit %d: got %v", limit, got)
		}
	}
	for _, test := range []struct {
		prefix, after string
		limit, want   int
	}{
		{"dir/", "dir/056", 10, 1}, {"dir/", "zzz", 10, 0}, {"dir/", "a", 10, 10},
		{"none/", "", 10, 0}, {"dir/", "", 0, 0}, {"dir", "", 100, 60}, {"dir/000", "", 5, 1},
		{"dir/000", "dir/000", 5, 0},
	} {
		got, err := s.List(t.Context(), test.prefix, test.after, test.limit)
		if err != nil || len(got) != test.want {
			t.Errorf("list %+v: %d entries, %v", test, len(got), err)
		}
	}
}

func guarded(key string, rev int64, o ...store.Op) store.Group {
	return store.Group{Guards: []store.Guard{{Key: key, Revision: rev}}, Ops: o}
}

func wantError(t *testing.T, err, want error, applied int) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
	var ce *store.CommitError
	if !errors.As(err, &ce) || ce.Applied != applied {
		t.Fatalf("error %v does not say that %d groups were applied", err, applied)
	}
}

func testGuards(t *testing.T, s store.Store) {
	rev := mustCommit(t, s, guarded("k", 0, put("k", "1")))
	_, err := s.Commit(t.Context(), []store.Group{guarded("k", 0, put("k", "2"))})
	wantError(t, err, store.ErrConflict, 0)
	_, err = s.Commit(t.Context(), []store.Group{guarded("k", rev+1, put("k", "2"), put("other", "x"))})
	wantError(t, err, store.ErrConflict, 0)
	wantValue(t, s, "k", "1")
	wantAbsent(t, s, "other")
	rev2 := mustCommit(t, s, guarded("k", rev, put("other", "x")))
	mustCommit(t, s, guarded("k", rev, del("k")))
	mustCommit(t, s, guarded("k", 0)) // guards alone
	_, err = s.Commit(t.Context(), []store.Group{guarded("other", rev)})
	wantError(t, err, store.ErrConflict, 0)
	mustCommit(t, s, guarded("other", rev2, put("k", "3")))
}

func testConflictPrefix(t *testing.T, s store.Store) {
	mustCommit(t, s, ops(put("taken", "x")))
	for bad := range 6 {
		var groups []store.Group
		for i := range 6 {
			key := fmt.Sprintf("%d/%d", bad, i)
			g := guarded(key, 0, put(key, "v"))
			if i >= bad { // the first counts, later ones never get their turn
				g.Guards = append(g.Guards, store.Guard{Key: "taken", Revision: 0})
			}
			groups = append(groups, g)
		}
		_, err := s.Commit(t.Context(), groups)
		wantError(t, err, store.ErrConflict, bad)
		for i := range 6 {
			key := fmt.Sprintf("%d/%d", bad, i)
			if i < bad {
				wantValue(t, s, key, "v")
			} else {
				wantAbsent(t, s, key)
			}
		}
	}
}

func testDependentGroups(t *testing.T, s store.Store) {
	rev := mustCommit(t, s, ops(put("k", "0")))
	// The second guard speaks of the state after the first group.
	_, err := s.Commit(t.Context(), []store.Group{guarded("k", rev, put("k", "1")), guarded("k", rev, put("k", "2"))})
	wantError(t, err, store.ErrConflict, 1)
	wantValue(t, s, "k", "1")
	mustCommit(t, s, ops(del("k")), guarded("k", 0, put("k", "3")), ops(put("k", "4")), ops(put("k", "5"), put("l", "1")), ops(del("l")))
	wantValue(t, s, "k", "5")
	wantAbsent(t, s, "l")
}

func testDuplicateKeys(t *testing.T, s store.Store) {
	large := string(blob(1, store.PieceSize+10))
	mustCommit(t, s, ops(put("a", "1"), del("a"), put("a", "2"), put("b", "1"), del("b")))
	wantValue(t, s, "a", "2")
	wantAbsent(t, s, "b")
	mustCommit(t, s, ops(put("a", large), put("a", "3"), put("b", "1"), put("b", large)))
	wantValue(t, s, "a", "3")
	wantValue(t, s, "b", large)
}

func testManyGroups(t *testing.T, s store.Store) {
	var groups []store.Group
	for i := range 1500 {
		key := fmt.Sprintf("many/%05d", i)
		groups = append(groups, guarded(key, 0, put(key, "value of "+key), put(key+"/b", "b")))
	}
	mustCommit(t, s, groups...)
	entries, err := s.List(t.Context(), "many/", "", 5000)
	if err != nil || len(entries) != 3000 {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
	if !sort.SliceIsSorted(entries, func(i, j int) bool { return entries[i].Key < entries[j].Key }) {
		t.Fatal("not in key order")
	}
	// A conflict deep inside leaves exactly the groups before it.
	for i := range groups {
		key := fmt.Sprintf("again/%05d", i)
		groups[i] = guarded(key, 0, put(key, "v"))
	}
	groups[1111].Guards = append(groups[1111].Guards, store.Guard{Key: "many/00000", Revision: 0})
	_, err = s.Commit(t.Context(), groups)
	wantError(t, err, store.ErrConflict, 1111)
	entries, err = s.List(t.Context(), "again/", "", 5000)
	if err != nil || len(entries) != 1111 {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
}

func testLargeGroup(t *testing.T, s store.Store) {
	var g store.Group
	for i := range 12 { // none over the piece size, together over any transaction
		g.Ops = append(g.Ops, store.Op{Key: fmt.Sprintf("part/%02d", i), Value: blob(uint64(i), store.PieceSize-i)})
	}
	g.Guards = append(g.Guards, store.Guard{Key: "part/00", Revision: 0})
	rev := mustCommit(t, s, ops(put("before", "x")), g, ops(put("after", "x")))
	entries, err := s.List(t.Context(), "part/", "", 100)
	if err != nil || len(entries) != len(g.Ops) {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if !bytes.Equal(e.Value, g.Ops[i].Value) || e.Revision != entries[0].Revision || e.Revision > rev {
			t.Fatalf("%s: %d bytes at revision %d", e.Key, len(e.Value), e.Revision)
		}
	}
	_, err = s.Commit(t.Context(), []store.Group{ops(put("one", "1")), g, ops(put("two", "2"))})
	wantError(t, err, store.ErrConflict, 1)
	wantValue(t, s, "one", "1")
	wantAbsent(t, s, "two")
}

func testReplaceLarge(t *testing.T, s store.Store) {
	values := []string{string(blob(1, 2*store.PieceSize+1)), "small", string(blob(2, 3*store.PieceSize)), string(blob(3, store.PieceSize+1))}
	mustCommit(t, s, ops(put("k", values[0])))
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				e, err := s.Get(t.Context(), "k")
				if err != nil {
					t.Errorf("read while replaced: %v", err)
					return
				}
				known := false
				for _, v := range values {
					known = known || string(e.Value) == v
				}
				if !known {
					t.Errorf("read a value of %d bytes that nobody wrote", len(e.Value))
					return
				}
			}
		})
	}
	for i := range 12 {
		mustCommit(t, s, ops(put("k", values[(i+1)%len(values)])))
	}
	cancel()
	readers.Wait()
	mustCommit(t, s, ops(del("k")))
	wantAbsent(t, s, "k")
}

func testLimits(t *testing.T, s store.Store) {
	var g store.Group
	for i := range store.MinGroup {
		key := fmt.Sprintf("limit/%03d", i)
		g.Guards = append(g.Guards, store.Guard{Key: key})
		g.Ops = append(g.Ops, put(key, "v"))
	}
	mustCommit(t, s, g)
	huge := store.Group{Ops: []store.Op{{Key: "huge", Value: make([]byte, store.MaxValue+1)}}}
	_, err := s.Commit(t.Context(), []store.Group{ops(put("first", "1")), huge})
	if !errors.Is(err, store.ErrTooLarge) {
		t.Fatalf("value over MaxValue: %v", err)
	}
	wantAbsent(t, s, "first") // refused before anything is written
	var wide store.Group
	for i := range 100_000 {
		wide.Ops = append(wide.Ops, put(fmt.Sprintf("wide/%d", i), "v"))
	}
	if _, err := s.Commit(t.Context(), []store.Group{wide}); !errors.Is(err, store.ErrTooLarge) {
		t.Fatalf("group of %d operations: %v", len(wide.Ops), err)
	}
	if rev, err := s.Commit(t.Context(), nil); err != nil || rev < 0 {
		t.Fatalf("no groups: %d, %v", rev, err)
	}
}

func testBadKeys(t *testing.T, s store.Store) {
	for _, key := range []string{"", strings.Repeat("k", store.MaxKey+1), "bad\xff"} {
		if _, err := s.Commit(t.Context(), []store.Group{ops(put("good", "1"), put(key, "v"))}); !errors.Is(err, store.ErrKey) {
			t.Errorf("put %.10q: %v", key, err)
		}
		if _, err := s.Commit(t.Context(), []store.Group{guarded(key, 0)}); !errors.Is(err, store.ErrKey) {
			t.Errorf("guard %.10q: %v", key, err)
		}
		if _, err := s.Get(t.Context(), key); !errors.Is(err, store.ErrKey) {
			t.Errorf("get %.10q: %v", key, err)
		}
	}
	wantAbsent(t, s, "good")
	longest := strings.Repeat("k", store.MaxKey)
	mustCommit(t, s, ops(put(longest, "v"), put("a\x00b", "zero"), put("../../x", "dots")))
	wantValue(t, s, longest, "v")
	wantValue(t, s, "a\x00b", "zero")
	wantAbsent(t, s, "a")
}

// testCounters increments shared counters from several writers by guard and retry.
func testCounters(t *testing.T, s store.Store) {
	const writers, each = 4, 25
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := 0; i < each; {
				key := fmt.Sprintf("counter/%d", (w+i)%2)
				var n int
				e, err := s.Get(t.Context(), key)
				if err == nil {
					fmt.Sscan(string(e.Value), &n)
				} else if !errors.Is(err, store.ErrNotFound) {
					t.Errorf("get: %v", err)
					return
				}
				_, err = s.Commit(t.Context(), []store.Group{guarded(key, e.Revision, put(key, fmt.Sprint(n+1)))})
				if err == nil {
					i++
				} else if !errors.Is(err, store.ErrConflict) {
					t.Errorf("commit: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for i := range 2 {
		var n int
		fmt.Sscan(string(mustGet(t, s, fmt.Sprintf("counter/%d", i)).Value), &n)
		sum += n
	}
	if sum != writers*each {
		t.Fatalf("counters sum to %d, want %d", sum, writers*each)
	}
}

func testCancelled(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Commit(ctx, []store.Group{ops(put("k", "v"))})
	if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnknown) {
		t.Fatalf("commit with a cancelled context: %v", err)
	}
	wantAbsent(t, s, "k")
}

func testClosed(t *testing.T, s store.Store) {
	mustCommit(t, s, ops(put("k", "v")))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("get: %v", err)
	}
	if _, err := s.List(t.Context(), "", "", 1); !errors.Is(err, store.ErrClosed) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Commit(t.Context(), []store.Group{ops(put("k", "v"))}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("commit: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// testModel runs random commits against the store and against the in-memory twin. Revisions
// differ, so guards name a key's last writer by its number in the twin.
func testModel(t *testing.T, s store.Store) {
	round := 0
	rapid.Check(t, func(r *rapid.T) {
		round++
		dir := fmt.Sprintf("model/%d/", round)
		twin := store.NewMemory()
		for step := range rapid.IntRange(1, 12).Draw(r, "steps") {
			mine, theirs := drawGroups(r, t, dir, s, twin)
			_, err1 := s.Commit(t.Context(), mine)
			_, err2 := twin.Commit(t.Context(), theirs)
			if (err1 == nil) != (err2 == nil) || errors.Is(err1, store.ErrConflict) != errors.Is(err2, store.ErrConflict) {
				r.Fatalf("step %d: store says %v, twin %v", step, err1, err2)
			}
			var c1, c2 *store.CommitError
			if errors.As(err1, &c1) && errors.As(err2, &c2) && c1.Applied != c2.Applied {
				r.Fatalf("step %d: store applied %d groups, twin %d", step, c1.Applied, c2.Applied)
			}
			compare(r, t, dir, s, twin)
		}
	})
}

func drawGroups(r *rapid.T, t *testing.T, dir string, s, twin store.Store) (mine, theirs []store.Group) {
	keys := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	for range rapid.IntRange(1, 5).Draw(r, "groups") {
		var m, th store.Group
		for range rapid.IntRange(0, 2).Draw(r, "guards") {
			key := dir + keys.Draw(r, "guard")
			var a, b int64
			if rapid.IntRange(0, 3).Draw(r, "right") > 0 {
				a, b = revisionOf(t, s, key), revisionOf(t, twin, key)
			}
			m.Guards = append(m.Guards, store.Guard{Key: key, Revision: a})
			th.Guards = append(th.Guards, store.Guard{Key: key, Revision: b})
		}
		for range rapid.IntRange(0, 4).Draw(r, "ops") {
			op := store.Op{Key: dir + keys.Draw(r, "key"), Delete: rapid.IntRange(0, 3).Draw(r, "delete") == 0}
			if !op.Delete {
				op.Value = []byte(rapid.StringN(0, 8, -1).Draw(r, "value"))
				if rapid.IntRange(0, 60).Draw(r, "large") == 0 {
					op.Value = append(op.Value, make([]byte, store.PieceSize)...)
				}
			}
			m.Ops, th.Ops = append(m.Ops, op), append(th.Ops, op)
		}
		mine, theirs = append(mine, m), append(theirs, th)
	}
	return mine, theirs
}

func revisionOf(t *testing.T, s store.Store, key string) int64 {
	e, err := s.Get(t.Context(), key)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	return e.Revision
}

func compare(r *rapid.T, t *testing.T, dir string, s, twin store.Store) {
	a, err1 := s.List(t.Context(), dir, "", 100)
	b, err2 := twin.List(t.Context(), dir, "", 100)
	if err1 != nil || err2 != nil || len(a) != len(b) {
		r.Fatalf("store lists %d (%v), twin %d (%v)", len(a), err1, len(b), err2)
	}
	for i := range a {
		if a[i].Key != b[i].Key || !bytes.Equal(a[i].Value, b[i].Value) {
			r.Fatalf("store has %s = %.20q, twin %s = %.20q", a[i].Key, a[i].Value, b[i].Key, b[i].Value)
		}
	}
}
