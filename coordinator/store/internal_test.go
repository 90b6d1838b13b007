package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func openTest(t testing.TB, o EmbeddedOptions) *Embedded {
	t.Helper()
	s, err := OpenEmbedded(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openServer starts a stock etcd with a client listener and returns its address.
func openServer(t testing.TB) (*Embedded, string) {
	t.Helper()
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir(), listen: []url.URL{{Scheme: "http", Host: freeAddress(t)}}})
	return s, s.server.Clients[0].Addr().String()
}

func (c *client) count(t testing.TB, dir string) int {
	t.Helper()
	resp, err := c.etcd.Get(t.Context(), c.prefix+dir, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return int(resp.Count)
}

func commit(t testing.TB, s Store, ops ...Op) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), []Group{{Ops: ops}})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestInUse(t *testing.T) {
	dir := t.TempDir()
	openTest(t, EmbeddedOptions{Dir: dir})
	_, err := OpenEmbedded(t.Context(), EmbeddedOptions{Dir: dir})
	want := "cannot open store " + dir + ": in use by another process"
	if err == nil || err.Error() != want {
		t.Fatalf("got %v, want %s", err, want)
	}
}

func TestNothingListens(t *testing.T) {
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir()})
	if len(s.server.Clients) != 0 || len(s.server.Peers) != 0 {
		t.Fatalf("client listeners %v, peer listeners %v", s.server.Clients, s.server.Peers)
	}
}

func TestSchema(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, EmbeddedOptions{Dir: dir})
	commit(t, s, Op{Key: "old", Value: []byte("1")})
	var ran []int
	step := func(from int, err error) migration {
		return migration{From: from, Run: func(ctx context.Context, c *client) error {
			ran = append(ran, from)
			if err != nil {
				return err
			}
			_, err := c.Commit(ctx, []Group{{Ops: []Op{{Key: fmt.Sprintf("by %d", from), Value: nil}}}})
			return err
		}}
	}
	broken := errors.New("broken")
	if err := s.checkSchema(t.Context(), 4, []migration{step(1, nil), step(2, broken)}); !errors.Is(err, broken) {
		t.Fatalf("broken step: %v", err)
	}
	if err := s.checkSchema(t.Context(), 4, []migration{step(1, nil), step(2, nil)}); err == nil {
		t.Fatal("a missing step went unnoticed")
	}
	if err := s.checkSchema(t.Context(), 4, []migration{step(3, nil)}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(ran) != "[1 2 2 3]" {
		t.Fatalf("steps ran: %v", ran)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := OpenEmbedded(t.Context(), EmbeddedOptions{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "its schema version 4 is newer than this program's 1") {
		t.Fatalf("newer schema: %v", err)
	}
}

func TestPiecesGoWithTheirValue(t *testing.T) {
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir()})
	large := func(n int) Op { return Op{Key: "k", Value: make([]byte, n*PieceSize+1)} }
	want := func(when string, pieces, records int) {
		t.Helper()
		if p, r := s.count(t, pieceDir), s.count(t, recordDir); p != pieces || r != records {
			t.Fatalf("%s: %d pieces and %d records, want %d and %d", when, p, r, pieces, records)
		}
	}
	commit(t, s, large(2))
	want("written", 3, 1)
	commit(t, s, large(4))
	want("replaced by a large one", 5, 1)
	commit(t, s, Op{Key: "k", Value: []byte("small")})
	want("replaced by a small one", 0, 0)
	commit(t, s, large(2), Op{Key: "l", Value: make([]byte, 2*PieceSize)})
	want("two in one group", 5, 2)
	commit(t, s, Op{Key: "k", Delete: true})
	want("one deleted", 2, 1)
	_, err := s.Commit(t.Context(), []Group{{Guards: []Guard{{Key: "l", Revision: 0}}, Ops: []Op{large(2)}}})
	if !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	want("conflict", 2, 1)
}

func TestOrphansAreSwept(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, EmbeddedOptions{Dir: dir})
	commit(t, s, Op{Key: "live", Value: make([]byte, 2*PieceSize)})
	orphan := func() {
		if _, err := s.writePieces(t.Context(), "live", newGenerations(1)[0], make([]byte, 3*PieceSize)); err != nil {
			t.Fatal(err)
		}
	}
	orphan()
	for i, want := range []int{0, 1} { // the first sweep only takes note
		if n, err := s.sweep(t.Context(), false); err != nil || n != want {
			t.Fatalf("sweep %d removed %d, %v", i, n, err)
		}
	}
	orphan()
	if s.count(t, pieceDir) != 5 {
		t.Fatalf("%d pieces before the crash", s.count(t, pieceDir))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, EmbeddedOptions{Dir: dir})
	if p, r := s.count(t, pieceDir), s.count(t, recordDir); p != 2 || r != 1 {
		t.Fatalf("after reopening: %d pieces and %d records", p, r)
	}
	// The index is there again: replacing removes at once.
	commit(t, s, Op{Key: "live", Value: []byte("small")})
	if p := s.count(t, pieceDir); p != 0 {
		t.Fatalf("%d pieces left", p)
	}
}

// TestSweptWhileWriting: when another process takes the pieces for orphans, the group must fail.
func TestSweptWhileWriting(t *testing.T) {
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir()})
	gen := newGenerations(1)[0]
	value := make([]byte, 2*PieceSize)
	m, err := s.writePieces(t.Context(), "k", gen, value)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.drop(t.Context(), gen); err != nil {
		t.Fatal(err)
	}
	b := s.newBatch()
	b.addSpilled(Group{Ops: []Op{{Key: "k", Value: value}}}, map[int]manifest{0: m}, s.record(gen))
	if _, _, err := s.send(t.Context(), b); !errors.Is(err, errSwept) {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("a value without pieces: %v", err)
	}
}

func TestFull(t *testing.T) {
	var log bytes.Buffer
	const quota = 24 << 20
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir(), Quota: quota, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = s.Commit(t.Context(), []Group{{Ops: []Op{{Key: fmt.Sprint("k", n), Value: make([]byte, PieceSize-100)}}}})
	}
	if !errors.Is(err, ErrFull) || errors.Is(err, ErrUnknown) {
		t.Fatalf("after %d values: %v", n, err)
	}
	if n < 15 || n > 25 {
		t.Errorf("full after %d MiB, the quota is %d", n, quota>>20)
	}
	if _, err := s.Commit(t.Context(), []Group{{Ops: []Op{{Key: "large", Value: make([]byte, 5*PieceSize)}}}}); !errors.Is(err, ErrFull) {
		t.Errorf("a large value: %v", err)
	}
	if _, err := s.Get(t.Context(), "k0"); err != nil {
		t.Errorf("read while full: %v", err)
	}
	var deletes []Op
	for i := range n {
		deletes = append(deletes, Op{Key: fmt.Sprint("k", i), Delete: true})
	}
	commit(t, s, deletes...)
	// It takes writes again by itself, once history is compacted.
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err = s.Commit(t.Context(), []Group{{Ops: []Op{{Key: "again", Value: make([]byte, 100)}}}})
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFull) || time.Now().After(deadline) {
			t.Fatalf("still refused: %v; usage %+v", err, s.Usage())
		}
		time.Sleep(50 * time.Millisecond)
	}
	for u := s.Usage(); u.Used <= 0 || u.Used > quota || u.File < u.Used; u = s.Usage() { // pages are free some time after it takes writes
		if time.Now().After(deadline) {
			t.Fatalf("usage %+v", u)
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.lowDisk.Store(true)
	if _, err := s.Commit(t.Context(), []Group{{Ops: []Op{{Key: "x", Value: nil}}}}); !errors.Is(err, ErrFull) {
		t.Errorf("full disk: %v", err)
	}
	commit(t, s, Op{Key: "again", Delete: true})
}

// TestUnknownIsSettled: once a read has answered after ErrUnknown, the doubtful write can no longer
// come true behind the reader's back.
func TestUnknownIsSettled(t *testing.T) {
	s := openTest(t, EmbeddedOptions{Dir: t.TempDir()})
	unknown := 0
	for i := range 60 {
		key := fmt.Sprint("k", i)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(1500))*time.Microsecond)
		_, err := s.Commit(ctx, []Group{{Ops: []Op{{Key: key, Value: []byte("v")}}}})
		cancel()
		_, gerr := s.Get(t.Context(), key)
		if gerr != nil && !errors.Is(gerr, ErrNotFound) {
			t.Fatal(gerr)
		}
		found := gerr == nil
		switch {
		case errors.Is(err, ErrUnknown):
			unknown++
			time.Sleep(3 * time.Millisecond)
			if _, again := s.Get(t.Context(), key); errors.Is(again, ErrNotFound) == found {
				t.Fatalf("first found %v, then %v", found, again)
			}
		case err == nil && !found, err != nil && found:
			t.Fatalf("commit said %v, found %v", err, found)
		}
	}
	t.Logf("%d of 60 writes were in doubt", unknown)
}

func TestDamagedFiles(t *testing.T) {
	damage := map[string]func(t *testing.T, dir string){ // the name ends in what the error must say
		"header: its database is damaged": func(t *testing.T, dir string) {
			overwrite(t, filepath.Join(dir, "etcd/member/snap/db"), 0, 16384)
		},
		"end: its database is damaged": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "etcd/member/snap/db"), 9000); err != nil {
				t.Fatal(err)
			}
		},
		"log: crc mismatch": func(t *testing.T, dir string) {
			overwrite(t, firstLog(t, dir), 200, 400)
		},
	}
	for name, break_ := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openTest(t, EmbeddedOptions{Dir: dir})
			for i := range 50 {
				commit(t, s, Op{Key: fmt.Sprint("k", i), Value: make([]byte, 1000)})
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			break_(t, dir)
			s, err := OpenEmbedded(t.Context(), EmbeddedOptions{Dir: dir})
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			_, want, _ := strings.Cut(name, ": ")
			if !strings.HasPrefix(err.Error(), "cannot open store "+dir+": ") || !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v", err)
			}
			if lock, err := lockDir(dir); err != nil {
				t.Fatalf("the lock was not released: %v", err)
			} else {
				lock.Close()
			}
		})
	}
}

// TestTornLog: the last record of the log was only half written when the power went.
func TestTornLog(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, EmbeddedOptions{Dir: dir})
	commit(t, s, Op{Key: "acknowledged", Value: []byte("v")})
	commit(t, s, Op{Key: "last", Value: bytes.Repeat([]byte("x"), 5000)})
	log := firstLog(t, dir)
	data, err := os.ReadFile(log) // while open: as if killed now
	if err != nil {
		t.Fatal(err)
	}
	crashed := t.TempDir()
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	end := len(bytes.TrimRight(data, "\x00"))
	torn := filepath.Join(crashed, strings.TrimPrefix(log, dir))
	if err := os.Truncate(torn, int64(end-2000)); err != nil {
		t.Fatal(err)
	}
	// What the database committed of it must not help.
	s2 := openTest(t, EmbeddedOptions{Dir: crashed})
	if e, err := s2.Get(t.Context(), "acknowledged"); err != nil || string(e.Value) != "v" {
		t.Fatalf("got %q, %v", e.Value, err)
	}
	commit(t, s2, Op{Key: "after", Value: []byte("v")})
}

func firstLog(t *testing.T, dir string) string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "etcd/member/wal/*-*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log files, %v", err)
	}
	return logs[0]
}

func overwrite(t *testing.T, path string, from, to int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(to-from)), from); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecodeValue(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeInline([]byte("v")))
	f.Add(encodeManifest(manifest{Generation: "g.000000", Size: 3, Pieces: 1, CRC32C: 9}))
	f.Add([]byte("\x01{\"generation\":\"g\",\"size\":-1}"))
	f.Add([]byte{7, 1})
	f.Fuzz(func(t *testing.T, stored []byte) {
		value, m, err := decodeValue(stored)
		switch {
		case err != nil && (value != nil || m != nil):
			t.Fatal("a result beside an error")
		case err == nil && m != nil && (m.Size < 0 || m.Size > MaxValue || m.Pieces < 0 || m.Generation == ""):
			t.Fatalf("manifest %+v", m)
		case err == nil && m == nil && !bytes.Equal(encodeInline(value), stored):
			t.Fatal("not what was encoded")
		}
	})
}
