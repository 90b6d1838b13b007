package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"substrate/coordinator/store"
	"substrate/coordinator/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return store.NewMemory() })
}

func openEmbedded(t testing.TB, dir string) *store.Embedded {
	t.Helper()
	s, err := store.OpenEmbedded(context.Background(), store.EmbeddedOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEmbedded(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return openEmbedded(t, t.TempDir()) })
}

func put(key, value string) store.Group {
	return store.Group{Ops: []store.Op{{Key: key, Value: []byte(value)}}}
}

func mustCommit(t testing.TB, s store.Store, groups ...store.Group) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), groups)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestEmbeddedKeepsDataAndRevisions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "store")
	s := openEmbedded(t, dir)
	rev := mustCommit(t, s, put("k", "v"), put("big", string(make([]byte, 3*store.PieceSize))))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("directory has mode %v, %v", info.Mode(), err)
	}
	s = openEmbedded(t, dir)
	defer s.Close()
	e, err := s.Get(t.Context(), "k")
	if err != nil || string(e.Value) != "v" {
		t.Fatalf("after reopening: %q, %v", e.Value, err)
	}
	big, err := s.Get(t.Context(), "big")
	if err != nil || len(big.Value) != 3*store.PieceSize || big.Revision != rev {
		t.Fatalf("after reopening: %d bytes at %d, %v", len(big.Value), big.Revision, err)
	}
	if next := mustCommit(t, s, put("k", "w")); next <= rev {
		t.Fatalf("revision went back from %d to %d", rev, next)
	}
}

func TestMemoryFaults(t *testing.T) {
	tests := []struct {
		name    string
		fault   store.Fault
		err     error
		applied int      // as told
		keys    []string // as found
	}{
		{"unknown, not applied", store.Fault{}, store.ErrUnknown, 0, nil},
		{"unknown, applied", store.Fault{Apply: -1}, store.ErrUnknown, 0, []string{"a", "b", "c"}},
		{"unknown, half applied", store.Fault{Apply: 2}, store.ErrUnknown, 0, []string{"a", "b"}},
		{"full after one", store.Fault{Apply: 1, Err: store.ErrFull}, store.ErrFull, 1, []string{"a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := store.NewMemory()
			m.FailCommit(2, test.fault)
			mustCommit(t, m, put("0", ""))
			_, err := m.Commit(t.Context(), []store.Group{put("a", ""), put("b", ""), put("c", "")})
			var ce *store.CommitError
			if !errors.Is(err, test.err) || !errors.As(err, &ce) || ce.Applied != test.applied {
				t.Fatalf("got %v", err)
			}
			entries, err := m.List(t.Context(), "", "0", 10)
			if err != nil || len(entries) != len(test.keys) {
				t.Fatalf("found %v, %v", entries, err)
			}
			for i, e := range entries {
				if e.Key != test.keys[i] {
					t.Errorf("found %s, want %s", e.Key, test.keys[i])
				}
			}
			mustCommit(t, m, put("later", "")) // a fault happens once
		})
	}
}

func TestMemoryClones(t *testing.T) {
	m := store.NewMemory()
	mustCommit(t, m, put("a", "1"))
	m.Record()
	mustCommit(t, m, put("b", "1"), put("c", "1"))
	mustCommit(t, m, put("a", "2"))
	clone := m.Clone()
	mustCommit(t, m, put("d", "1"))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := clone.Get(t.Context(), "d"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the clone saw a later write: %v", err)
	}
	mustCommit(t, clone, put("e", "1"))
	var counts []int
	for _, c := range m.Clones() {
		entries, err := c.List(t.Context(), "", "", 10)
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, len(entries))
	}
	want := []int{1, 2, 3, 3, 4}
	if len(counts) != len(want) {
		t.Fatalf("clones hold %v entries, want %v", counts, want)
	}
	for i := range want {
		if counts[i] != want[i] {
			t.Fatalf("clones hold %v entries, want %v", counts, want)
		}
	}
}
