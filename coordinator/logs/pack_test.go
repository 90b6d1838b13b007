package logs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func packPath(t testing.TB, dir string) string {
	t.Helper()
	d, err := workflowDir(flow)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, d, packName)
}

func TestShortRunsShareOneFile(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{MaxOpen: 8})
	for i := range 300 {
		for _, stream := range streams() {
			mustAppend(t, l, run(fmt.Sprint("job", i), 1), stream, 0, fmt.Sprintf("%s of %d", stream, i))
		}
	}
	entries, err := os.ReadDir(filepath.Dir(packPath(t, dir)))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for range 2 { // the same process, then the next
		for i := range 300 {
			for _, stream := range streams() {
				if got, want := content(t, l, run(fmt.Sprint("job", i), 1), stream), fmt.Sprintf("%s of %d", stream, i); got != want {
					t.Fatalf("%q, want %q", got, want)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open(t, dir, Options{})
	}
}

func TestOutgrowsThePack(t *testing.T) {
	tests := []struct {
		name  string
		chunk int
		times int
		own   bool
	}{
		{"stays", packLimit / 4, 4, false},
		{"one byte over", packLimit/4 + 1, 4, true},
		{"too many parts", 1, packParts + 1, true},
		{"just enough parts", 1, packParts, false},
		{"large at once", packLimit + 1, 1, true},
	}
	for _, test := range tests {
		for _, reopen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s reopen=%v", test.name, reopen), func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, dir, Options{})
				var want strings.Builder
				for i := range test.times {
					chunk := strings.Repeat(string(rune('a'+i%26)), test.chunk)
					mustAppend(t, l, run("job", 1), "stdout", uint64(want.Len()), chunk)
					want.WriteString(chunk)
					if reopen {
						l = open(t, dir, Options{})
					}
				}
				if content(t, l, run("job", 1), "stdout") != want.String() {
					t.Fatal("content differs")
				}
				_, path, err := l.path(run("job", 1), "stdout")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(path); (err == nil) != test.own {
					t.Fatalf("a file of its own: %v, want %v", err, test.own)
				}
			})
		}
	}
}

// TestTornPack cuts the pack at every length and damages every byte: what remains must be a prefix
// of what was written, and it must take more.
func TestTornPack(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, Options{})
	texts := []string{"first", "second", "third"}
	for i, text := range texts {
		mustAppend(t, l, run(fmt.Sprint("job", i), 1), "stdout", 0, text)
	}
	whole, err := os.ReadFile(packPath(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	check := func(damaged []byte, what string) {
		t.Helper()
		if err := os.WriteFile(packPath(t, dir), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		lost := false
		for i, text := range texts {
			r := run(fmt.Sprint("job", i), 1)
			size, err := l.Size(r, "stdout")
			if err != nil {
				lost = true
			} else if lost || content(t, l, r, "stdout") != text {
				t.Fatalf("%s: job%d has %d bytes", what, i, size)
			}
			mustAppend(t, l, r, "stdout", 0, text) // the sender has it still
			if content(t, l, r, "stdout") != text {
				t.Fatalf("%s: job%d is not whole again", what, i)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(packPath(t, dir))
		if err != nil || !bytes.Equal(again, whole) {
			t.Fatalf("%s: the pack did not become what it was: %v", what, err)
		}
	}
	for n := range whole {
		check(whole[:n], fmt.Sprintf("cut at %d", n))
		damaged := bytes.Clone(whole)
		damaged[n] ^= 0x40
		check(damaged, fmt.Sprintf("byte %d", n))
	}
}

func FuzzScanPack(f *testing.F) {
	dir := f.TempDir()
	l := open(f, dir, Options{})
	mustAppend(f, l, run("a", 1), "stdout", 0, "hello")
	mustAppend(f, l, run("b", 1), "stderr", 0, "")
	mustAppend(f, l, run("a", 1), "stdout", 5, " world")
	whole, err := os.ReadFile(packPath(f, dir))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:20])
	f.Add([]byte("slp1"))
	f.Add(append(bytes.Clone(whole), 0xff, 0, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		last := int64(0)
		end, err := scanPack(bytes.NewReader(data), func(name string, at int64, n int) {
			if at < last || at+int64(n) > int64(len(data)) || n > packLimit || len(name) > maxPacked {
				t.Fatalf("record %q at %d of %d bytes", name, at, n)
			}
			last = at + int64(n)
		})
		if err != nil || end < last || end > int64(len(data)) {
			t.Fatalf("ends at %d of %d, %v", end, len(data), err)
		}
	})
}
