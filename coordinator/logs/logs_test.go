package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"substrate/coordinator"
)

const flow = coordinator.WorkflowID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")

func run(job string, attempt int) coordinator.RunID {
	return coordinator.RunID(fmt.Sprintf("%s/%s#%d", flow, job, attempt))
}

func open(t testing.TB, dir string, o Options) *Logs {
	t.Helper()
	l, err := OpenWith(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func mustAppend(t testing.TB, l *Logs, r coordinator.RunID, stream string, offset uint64, data string) uint64 {
	t.Helper()
	next, err := l.Append(r, stream, offset, []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func content(t testing.TB, l *Logs, r coordinator.RunID, stream string) string {
	t.Helper()
	var all []byte
	buf := make([]byte, 7)
	for {
		n, err := l.ReadAt(r, stream, uint64(len(all)), buf)
		all = append(all, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	size, err := l.Size(r, stream)
	if err != nil || size != uint64(len(all)) {
		t.Fatalf("size %d, %v, but %d bytes read", size, err, len(all))
	}
	return string(all)
}

func TestAppend(t *testing.T) {
	type step struct {
		offset uint64
		data   string
		next   uint64
		gap    bool
	}
	tests := []struct {
		name  string
		steps []step
		want  string
	}{
		{"in order", []step{{0, "one ", 4, false}, {4, "two", 7, false}}, "one two"},
		{"sent again", []step{{0, "one", 3, false}, {0, "one", 3, false}}, "one"},
		{"overlap is trimmed", []step{{0, "abcd", 4, false}, {2, "cdef", 6, false}}, "abcdef"},
		{"what is stored stays", []step{{0, "abcd", 4, false}, {0, "ABCDef", 6, false}}, "abcdef"},
		{"gap", []step{{0, "ab", 2, false}, {3, "d", 2, true}, {2, "cd", 4, false}}, "abcd"},
		{"inside", []step{{0, "abcdef", 6, false}, {1, "bc", 6, false}}, "abcdef"},
		{"nothing", []step{{0, "ab", 2, false}, {2, "", 2, false}, {9, "", 2, true}}, "ab"},
		{"offset overflows", []step{{0, "ab", 2, false}}, "ab"},
	}
	for _, reopen := range []bool{false, true} {
		for _, test := range tests {
			t.Run(fmt.Sprintf("%s reopen=%v", test.name, reopen), func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, dir, Options{})
				r := run("train", 1)
				for i, s := range test.steps {
					if reopen {
						l = open(t, dir, Options{})
					}
					next, err := l.Append(r, "stdout", s.offset, []byte(s.data))
					var gap *GapError
					if errors.As(err, &gap) != s.gap || next != s.next {
						t.Fatalf("step %d: next %d, %v", i, next, err)
					}
					if s.gap && (gap.Size != s.next || gap.Offset != s.offset) {
						t.Fatalf("step %d: %v", i, err)
					}
				}
				if _, err := l.Append(r, "stdout", 1<<64-1, []byte("xy")); !errors.Is(err, ErrName) {
					t.Fatalf("offset out of range: %v", err)
				}
				if got := content(t, l, r, "stdout"); got != test.want {
					t.Fatalf("stored %q, want %q", got, test.want)
				}
				if _, err := l.Size(r, "stderr"); !errors.Is(err, ErrNotFound) {
					t.Fatalf("the other stream: %v", err)
				}
			})
		}
	}
}

func TestRunsAreSeparate(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	runs := []coordinator.RunID{run("a", 1), run("a", 2), run("a", 12), run("a/1", 2), run("A", 1), run("a_", 1), run("a.stdout", 1),
		run(strings.Repeat("Ü", 300), 1), run(strings.Repeat("Ü", 300)+"x", 1), "other/a#1"}
	for i, r := range runs {
		for _, stream := range streams() {
			mustAppend(t, l, r, stream, 0, fmt.Sprintf("%d %s", i, stream))
		}
	}
	for i, r := range runs {
		for _, stream := range streams() {
			if got, want := content(t, l, r, stream), fmt.Sprintf("%d %s", i, stream); got != want {
				t.Errorf("%.40s: %q, want %q", r, got, want)
			}
		}
	}
}

func TestCap(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{RunCap: 10})
	r := run("noisy", 1)
	mustAppend(t, l, r, "stdout", 0, "1234567")
	mustAppend(t, l, r, "stderr", 0, "ab")
	if next := mustAppend(t, l, r, "stdout", 5, "67890"); next != 10 {
		t.Fatalf("next %d, want 10", next)
	}
	const marker = "\n[output truncated: this run reached its limit of 10 bytes]\n"
	want := "12345678" + marker // the cap is of both streams
	if got := content(t, l, r, "stdout"); got != want[:1]+"234567"+"8"+marker {
		t.Fatalf("stored %q", got)
	}
	for range 2 { // the same process, then the next one
		if next := mustAppend(t, l, r, "stdout", 500, "more"); next != 504 {
			t.Fatalf("next %d: output after the cap must be taken and dropped", next)
		}
		if got := content(t, l, r, "stdout"); got != want {
			t.Fatalf("stored %q", got)
		}
		l = open(t, dir, Options{RunCap: 10})
	}
	mustAppend(t, l, r, "stderr", 2, "c")
	if got := content(t, l, r, "stderr"); got != "ab"+marker {
		t.Fatalf("the other stream stored %q", got)
	}
	mustAppend(t, l, run("quiet", 1), "stdout", 0, "1234567890")
	if got := content(t, l, run("quiet", 1), "stdout"); got != "1234567890" {
		t.Fatalf("exactly the cap stored %q", got)
	}
}

func TestBadNames(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	for _, r := range []coordinator.RunID{"", "a", "a/b", "a/b#", "a/b#x", "/b#1", "a/#1", "../b#", coordinator.RunID("w/" + strings.Repeat("j", 5000) + "#1"),
		coordinator.RunID(strings.Repeat("w", 300) + "/j#1")} {
		if _, err := l.Append(r, "stdout", 0, []byte("x")); !errors.Is(err, ErrName) {
			t.Errorf("append to %.40q: %v", r, err)
		}
		if _, err := l.Size(r, "stdout"); !errors.Is(err, ErrName) {
			t.Errorf("size of %.40q: %v", r, err)
		}
	}
	for _, stream := range []string{"", "std", "../stdout", "STDOUT", "stdout.", "stdout.0", "stdout.01", "stdout.+1", "stdout.1.1", "stdout.-1", "stdout.65536", "stdout.4294967297"} {
		if _, err := l.Append(run("a", 1), stream, 0, []byte("x")); !errors.Is(err, ErrName) {
			t.Errorf("stream %q: %v", stream, err)
		}
		if err := l.Finish(run("a", 1), stream); !errors.Is(err, ErrName) {
			t.Errorf("stream %q: %v", stream, err)
		}
	}
	if err := l.Remove(""); !errors.Is(err, ErrName) {
		t.Errorf("remove: %v", err)
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("bad names left %v, %v", entries, err)
	}
}

func TestSymlinkIsNotFollowed(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	outside := filepath.Join(t.TempDir(), "outside")
	_, path, err := l.path(run("a", 1), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, path); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(run("a", 1), "stdout", 0, []byte("x")); err == nil {
		t.Error("wrote through a link")
	}
	if _, err := os.Stat(outside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file behind the link: %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	r := run("a", 1)
	start := strings.Repeat("x", packLimit)
	at := mustAppend(t, l, r, "stdout", 0, start+"ab")
	files, err := l.acquire(r, "")
	if err != nil {
		t.Fatal(err)
	}
	good := files.streams[0].f
	files.streams[0].f, err = os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.release(files)
	next, err := l.Append(r, "stdout", at, []byte("cd"))
	if !errors.Is(err, ErrFull) || !errors.Is(err, unix.ENOSPC) || next != at {
		t.Fatalf("next %d, %v", next, err)
	}
	files, err = l.acquire(r, "")
	if err != nil {
		t.Fatal(err)
	}
	files.streams[0].f.Close()
	files.streams[0].f = good
	l.release(files)
	mustAppend(t, l, r, "stdout", at, "cd")
	if got := content(t, l, r, "stdout"); got != start+"abcd" {
		t.Fatalf("stored %q", got[packLimit:])
	}
	fullPack(t, l)
}

// fullPack is the same for short output.
func fullPack(t *testing.T, l *Logs) {
	r := run("short", 1)
	mustAppend(t, l, r, "stdout", 0, "ab")
	var good *os.File
	swap := func(f *os.File) {
		err := l.withPack(flow, true, func(p *pack) error {
			good, p.f = p.f, f
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	bad, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	swap(bad)
	if next, err := l.Append(r, "stdout", 2, []byte("cd")); !errors.Is(err, ErrFull) || next != 2 {
		t.Fatalf("next %d, %v", next, err)
	}
	swap(good)
	mustAppend(t, l, r, "stdout", 2, "cd")
	if got := content(t, l, r, "stdout"); got != "abcd" {
		t.Fatalf("stored %q", got)
	}
}

func TestOpenFilesAreBounded(t *testing.T) {
	l := open(t, t.TempDir(), Options{MaxOpen: 4})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 40 {
				r := run(fmt.Sprintf("job%d", (w+i)%20), 1) // several writers on each run
				if _, err := l.Append(r, "stdout", 0, []byte("0123456789")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	l.mu.Lock()
	n := len(l.runs)
	l.mu.Unlock()
	if n > 4+8 {
		t.Errorf("%d runs are open", n)
	}
	for i := range 20 {
		if got := content(t, l, run(fmt.Sprintf("job%d", i), 1), "stdout"); got != "0123456789" {
			t.Errorf("job%d stored %q", i, got)
		}
	}
}

func TestReadersFollowWriter(t *testing.T) {
	l := open(t, t.TempDir(), Options{SyncOnFinish: true})
	r := run("a", 1)
	want := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	mustAppend(t, l, r, "stdout", 0, string(want[:1]))
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var got []byte
			buf := make([]byte, 1000)
			for len(got) < len(want) {
				n, err := l.ReadAt(r, "stdout", uint64(len(got)), buf)
				if err != nil && err != io.EOF {
					t.Error(err)
					return
				}
				got = append(got, buf[:n]...)
			}
			if !bytes.Equal(got, want) {
				t.Error("a reader saw something else")
			}
		})
	}
	for at := uint64(1); at < uint64(len(want)); {
		at = mustAppend(t, l, r, "stdout", at, string(want[at:min(at+333, uint64(len(want)))]))
	}
	if err := l.Finish(r, "stdout"); err != nil {
		t.Fatal(err)
	}
	readers.Wait()
	mustAppend(t, l, r, "stdout", uint64(len(want)), "late")
}

func TestRemoveAndExpire(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	flows := []coordinator.WorkflowID{"old", "kept", "new", "mixed"}
	for _, w := range flows {
		mustAppend(t, l, coordinator.RunID(w+"/a#1"), "stdout", 0, "x")
		mustAppend(t, l, coordinator.RunID(w+"/b#1"), "stderr", 0, "x")
	}
	foreign := filepath.Join(dir, "zz", "Not Ours")
	if err := os.MkdirAll(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	past, limit := time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour)
	age := func(w coordinator.WorkflowID, jobs ...string) {
		d, err := workflowDir(w)
		if err != nil {
			t.Fatal(err)
		}
		for _, job := range jobs {
			matches, err := filepath.Glob(filepath.Join(dir, d, job))
			if err != nil || len(matches) == 0 {
				t.Fatalf("nothing to age for %s, %v", w, err)
			}
			for _, m := range matches {
				if err := os.Chtimes(m, past, past); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := os.Chtimes(filepath.Join(dir, d), past, past); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, l, "mixed/long#1", "stdout", 0, strings.Repeat("x", packLimit+1))
	age("old", "*")
	age("kept", "*")
	age("mixed", packName)
	n, err := l.Expire(limit, func(w coordinator.WorkflowID) bool { return w == "kept" })
	if err != nil || n != 1 {
		t.Fatalf("expired %d, %v", n, err)
	}
	for _, w := range flows {
		_, err := l.Size(coordinator.RunID(w+"/a#1"), "stdout")
		if errors.Is(err, ErrNotFound) != (w == "old") {
			t.Errorf("%s: %v", w, err)
		}
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a foreign directory went: %v", err)
	}
	for range 2 {
		if err := l.Remove("new"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.ReadAt("new/a#1", "stdout", 0, make([]byte, 1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("after remove: %v", err)
	}
	mustAppend(t, l, "new/a#1", "stdout", 0, "again")
	if got := content(t, l, "new/a#1", "stdout"); got != "again" {
		t.Errorf("after remove stored %q", got)
	}
}

func TestRemoveWhileWriting(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			r := run(fmt.Sprintf("job%d", w), 1)
			var at uint64
			for {
				select {
				case <-stop:
					return
				default:
				}
				chunk := []byte("x")
				if at%5 == 0 { // sometimes long enough to leave the pack
					chunk = make([]byte, packLimit)
				}
				next, err := l.Append(r, "stdout", at, chunk)
				var gap *GapError
				switch {
				case err == nil:
					at = next
				case errors.As(err, &gap):
					at = gap.Size
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range 50 {
		if err := l.Remove(flow); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	writers.Wait()
}

func TestClosed(t *testing.T) {
	l := open(t, t.TempDir(), Options{})
	mustAppend(t, l, run("a", 1), "stdout", 0, "x")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(run("a", 1), "stdout", 1, []byte("y")); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
	if _, err := l.Size(run("a", 1), "stdout"); !errors.Is(err, ErrClosed) {
		t.Errorf("size: %v", err)
	}
}

// TestAnyOrderOfChunks sends a text in chunks that repeat and overlap, as after lost
// acknowledgements and restarts, and expects the text.
func TestAnyOrderOfChunks(t *testing.T) {
	dir := t.TempDir()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		l, err := Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		r := run(fmt.Sprintf("round%d", round), 1)
		text := rapid.StringN(1, 200, -1).Draw(rt, "text")
		for have := uint64(0); have < uint64(len(text)); {
			from := rapid.Uint64Range(0, uint64(len(text))).Draw(rt, "from")
			to := rapid.Uint64Range(from, uint64(len(text))).Draw(rt, "to")
			next, err := l.Append(r, "stderr", from, []byte(text[from:to]))
			var gap *GapError
			switch {
			case from > have:
				if !errors.As(err, &gap) || gap.Size != have {
					rt.Fatalf("gap from %d to %d: %v", have, from, err)
				}
			case err != nil:
				rt.Fatal(err)
			default:
				if have = max(have, to); next != have {
					rt.Fatalf("next %d, want %d", next, have)
				}
			}
			if have == 0 || from > have {
				if _, err := l.Append(r, "stderr", have, []byte(text[have:have+1])); err != nil {
					rt.Fatal(err)
				}
				have++
			}
			if rapid.IntRange(0, 9).Draw(rt, "restart") == 0 {
				if err := l.Close(); err != nil {
					rt.Fatal(err)
				}
				if l, err = Open(dir); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if got := content(t, l, r, "stderr"); got != text {
			rt.Fatalf("stored %q, want %q", got, text)
		}
		if err := l.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// BenchmarkTinyRun is one job with a few lines of output, from first byte to finish.
func BenchmarkTinyRun(b *testing.B) {
	for _, both := range []bool{false, true} {
		b.Run(fmt.Sprintf("both=%v", both), func(b *testing.B) {
			l := open(b, b.TempDir(), Options{})
			line := bytes.Repeat([]byte("step done\n"), 20)
			n := 0
			for b.Loop() {
				n++
				r := coordinator.RunID(fmt.Sprintf("flow%d/job%d#1", n/1000, n))
				for _, stream := range streams() {
					if stream == "stderr" && !both {
						continue
					}
					if _, err := l.Append(r, stream, 0, line); err != nil {
						b.Fatal(err)
					}
					if err := l.Finish(r, stream); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkAppend64K(b *testing.B) {
	l := open(b, b.TempDir(), Options{RunCap: 64 << 20})
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	b.SetBytes(int64(len(chunk)))
	var at uint64
	n := 0
	for b.Loop() {
		if at >= 32<<20 {
			at = 0
			n++
		}
		at = mustAppend(b, l, run("big", n), "stdout", at, string(chunk))
	}
}

func BenchmarkTinyRunParallel(b *testing.B) {
	l := open(b, b.TempDir(), Options{})
	line := bytes.Repeat([]byte("step done\n"), 20)
	var n atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			r := coordinator.RunID(fmt.Sprintf("flow%d/job%d#1", i/1000, i))
			if _, err := l.Append(r, "stdout", 0, line); err != nil {
				b.Error(err)
			}
			if err := l.Finish(r, "stdout"); err != nil {
				b.Error(err)
			}
		}
	})
}
