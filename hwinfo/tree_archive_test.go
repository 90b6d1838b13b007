package hwinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"
)

const archiveEnd = "-- uname --\nmachine: x86_64\n"

func TestArchiveRefused(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", "there is no file uname in it: it is no snapshot, or not a whole one"},
		{"something else", "definitions: []\n", "there is no file uname in it"},
		{"cut short", "-- proc/cpuinfo --\nprocessor: 0\n", "there is no file uname in it"},
		{"uname is a directory", "-- uname/ --\n", "there is no file uname in it"},
		{"out of it", "-- ../x --\n", `entry 1 "../x": its name leads out of the archive`},
		{"out of it from within", "-- a --\n-- sys/../../x --\n", `entry 2 "sys/../../x": its name leads out of the archive`},
		{"absolute", "-- /etc/passwd --\n", `entry 1 "/etc/passwd": its name is not relative`},
		{"absolute directory", "-- / --\n", `entry 1 "/": it has no name`},
		{"a dot", "-- ./a --\n", `entry 1 "./a": its name has a part that is empty or a dot`},
		{"two slashes", "-- a//b --\n", `entry 1 "a//b": its name has a part that is empty or a dot`},
		{"a zero byte", "-- \"a\\x00\" --\n", `entry 1 "\"a\\x00\"": there is a zero byte in its name`},
		{"a long part", "-- " + strings.Repeat("a", 256) + " --\n", "its name has a part that is longer than 255 bytes"},
		{"a long name", "-- " + strings.Repeat("aaaa/", 205) + "a --\n", "its name is longer than 1024 bytes"},
		{"a deep name", "-- " + strings.Repeat("a/", 32) + "a --\n", "its name has more than 32 parts"},
		{"a file twice", "-- a --\n-- b --\n-- a --\n", `entry 3 "a": it is there twice`},
		{"a file twice, once in quotes", "-- a --\n-- \"\\x61\" --\n", `entry 2 "\"\\x61\"": it is there twice`},
		{"a link and a file", "-- a -> b --\n-- a --\n", `entry 2 "a": it is there twice`},
		{"a directory and a file", "-- a/b --\n-- a --\n", `entry 2 "a": it is there twice`},
		{"a directory twice", "-- a/ --\n-- a/ --\n", `entry 2 "a/": it is there twice`},
		{"below a file", "-- a --\n-- a/b --\n", `entry 2 "a/b": it is below "a", which is no directory`},
		{"below a link", "-- a -> / --\n-- a/b/c --\n", `entry 2 "a/b/c": it is below "a", which is no directory`},
		{"not hexadecimal", "-- a | hex --\n00\nxy\n", `entry 1 "a | hex": it is not hexadecimal: `},
		{"half a byte", "-- a | hex --\n000\n", `entry 1 "a | hex": it is not hexadecimal: `},
		{"content in a link", "-- a -> b --\ntext\n", `entry 1 "a -> b": a link or directory has no content`},
		{"content in a directory", "-- a/ --\ntext\n", `entry 1 "a/": a link or directory has no content`},
		{"no target", "-- a -> \"\" --\n", `entry 1 "a -> \"\"": the link's target is no path`},
		{"open quotes", "-- \"a --\n", `entry 1 "\"a": the quotes are wrong`},
		{"behind quotes", "-- \"a\" b --\n", `entry 1 "\"a\" b": the quotes are wrong`},
		{"no name", "0\n-- --\n--  --\n", "there is no file uname in it"},
		{"many entries", strings.Repeat("\n-- a --", maxArchived+1), "more than 262144 entries"},
		{"many directories", manyDirectories(), "more than 262144 files, links and directories"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "node.txtar")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := ReadSnapshot(file)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot open archive: ") || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %s", err, tt.want)
			}
			if Check(file) == nil || Askable(file) {
				t.Error("it can be opened")
			}
			f, warnings := Read(file)
			if len(warnings) != 1 || warnings[0].Source != "." || f.Digest() != (Facts{}).Digest() {
				t.Errorf("got %+v, %v", f, warnings)
			}
			if err := Snapshot(file, t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "cannot take snapshot: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// manyDirectories holds few entries that make many directories.
func manyDirectories() string {
	var b strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&b, "-- %d/%sx/ --\n", i, strings.Repeat("a/", 30))
	}
	return b.String()
}

func TestArchiveTooLong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.txtar")
	if err := os.WriteFile(file, []byte(archiveEnd), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Check(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, maxArchive+1); err != nil { // sparse
		t.Fatal(err)
	}
	if err := Check(file); err == nil || !strings.Contains(err.Error(), "longer than 67108864 bytes") {
		t.Errorf("got %v", err)
	}
}

// TestArchiveTree: what an archive holds is found as in a directory, links included.
func TestArchiveTree(t *testing.T) {
	const text = "for people\n-- etc/os-release -> ../usr/lib/os-release --\n-- usr/lib/os-release --\nID=a\n" +
		"-- sys/abs -> /sys/real --\n-- sys/real/x --\n1\n-- sys/out -> ../../../../etc --\n-- sys/loop -> loop --\n-- sys/nowhere -> gone --\n" +
		"-- sys/empty/ --\n-- a name --\nb\n-- bytes | hex --\n00 ff\n-- \"\\\"q\\\" -> \\n\" -> \"b\\xff\" --\n-- odd -> a | hex --\n" + archiveEnd
	archive, err := parseArchive([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, e := range archive.entries {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		switch e.kind {
		case archivedDir:
			err = os.MkdirAll(p, 0o755)
		case archivedLink:
			err = os.Symlink(e.to, p)
		default:
			err = os.WriteFile(p, e.data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	folder, err := openRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.close()
	names := []string{
		".", "etc", "etc/os-release", "etc/os-release/x", "usr/lib/os-release", "sys/abs", "sys/abs/x", "sys/abs/../abs/x", "sys/out/os-release",
		"sys/loop", "sys/loop/x", "sys/nowhere", "sys/empty", "sys/empty/", "../../etc", "a name", "bytes", "\"q\" -> \n", "odd",
		"gone", "gone/x", "sys//real/x", "./uname",
	}
	for _, name := range names {
		same(t, "read "+name, func(o opener) (any, error) {
			b, err := o.read(name, 64)
			return string(b), err
		}, archive, folder)
		same(t, "read a little of "+name, func(o opener) (any, error) {
			b, err := o.read(name, 1)
			return string(b), err
		}, archive, folder)
		same(t, "head of "+name, func(o opener) (any, error) {
			b, err := o.(header).head(name, 1)
			return string(b), err
		}, archive, folder)
		same(t, "list "+name, func(o opener) (any, error) { return (&tree{root: o}).list(name) }, archive, folder)
		same(t, "link "+name, func(o opener) (any, error) { return o.readlink(name) }, archive, folder)
	}
}

func same(t *testing.T, what string, ask func(opener) (any, error), a, b opener) {
	t.Helper()
	got, gotErr := ask(a)
	want, wantErr := ask(b)
	if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		t.Errorf("%q: %q, %v in the archive, %q, %v in the directory", what, got, gotErr, want, wantErr)
	}
}

// TestArchiveKeepsAnything: whatever is recorded comes back, whichever bytes it is made of.
func TestArchiveKeepsAnything(t *testing.T) {
	part := rapid.OneOf(rapid.StringMatching(`[a-z0-9:.]{0,3}[a-z]`), rapid.StringOfN(rapid.RuneFrom([]rune("\"\\ ->|hex\n\t\r-é\x01")), 1, 8, 40),
		rapid.Map(rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 6), func(b []byte) string { return string(b) }))
	content := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.Map(
		rapid.SliceOf(rapid.SampledFrom([]string{"-- a --", "-- ", "\n", "\r\n", "text", "\xff", " --"})), func(p []string) []byte { return []byte(strings.Join(p, "")) }))
	rapid.Check(t, func(t *rapid.T) {
		rec := newRecorder()
		rec.files[unameFile] = []byte("machine: x86_64\n")
		for i := range rapid.IntRange(0, 6).Draw(t, "entries") {
			name := strings.ReplaceAll(part.Draw(t, "name"), "/", "_")
			switch name = fmt.Sprintf("d%d/%s", i, name); rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				rec.files[name] = content.Draw(t, "content")
			case 1:
				rec.links[name] = part.Draw(t, "target")
			default:
				rec.dirs[strings.TrimRight(name, ".")+"_"] = true
			}
		}
		for name := range rec.files {
			if base := filepath.Base(name); base == "." || base == ".." {
				t.Skip("no name of a file")
			}
		}
		for name := range rec.links {
			if base := filepath.Base(name); base == "." || base == ".." {
				t.Skip("no name of a link")
			}
		}
		text := txtar.Format(rec.archive())
		a, err := parseArchive(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for name, data := range rec.files {
			if e := a.entries[name]; e == nil || e.kind != archivedFile || !bytes.Equal(e.data, data) {
				t.Fatalf("%q: %+v, want %q\n%s", name, e, data, text)
			}
		}
		for name, to := range rec.links {
			if e := a.entries[name]; e == nil || e.kind != archivedLink || e.to != to {
				t.Fatalf("%q: %+v, want a link to %q\n%s", name, e, to, text)
			}
		}
		for name := range rec.dirs {
			if e := a.entries[name]; e == nil || e.kind != archivedDir {
				t.Fatalf("%q: %+v, want a directory\n%s", name, e, text)
			}
		}
	})
}

// checkArchive: an archive of a root, of its snapshot and of an archive are the same text, and give the snapshot's facts
// and warnings.
func checkArchive(t *testing.T, root, snapshot string) {
	t.Helper()
	facts, warnings := Read(snapshot)
	file := filepath.Join(t.TempDir(), "node.txtar")
	var first []byte
	for _, from := range []string{root, snapshot, file} {
		var text bytes.Buffer
		if err := WriteArchive(&text, from, nil); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = text.Bytes()
		} else if !bytes.Equal(text.Bytes(), first) {
			t.Fatalf("the archive of %s is another one:\n%s", from, text.Bytes())
		}
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		f, w, err := ReadSnapshot(file)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(f, facts) || fmt.Sprint(w) != fmt.Sprint(warnings) {
			t.Errorf("an archive gives other facts than a directory:\n%s\n%v\nwant\n%s\n%v", asJSON(t, f), w, asJSON(t, facts), warnings)
		}
	}
	back := filepath.Join(t.TempDir(), "back")
	if err := Snapshot(file, back); err != nil {
		t.Fatal(err)
	}
	if f, w := Read(back); !reflect.DeepEqual(f, facts) || fmt.Sprint(w) != fmt.Sprint(warnings) {
		t.Errorf("a directory made of an archive gives other facts: %s, %v", asJSON(t, f), w)
	}
}

// TestArchiveWithoutParts: a folder and an archive of it give the same facts and warnings, whatever is broken in them.
func TestArchiveWithoutParts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := Snapshot(sharedServer(t), dir); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := WriteArchive(&text, dir, nil); err != nil {
		t.Fatal(err)
	}
	whole, err := parseArchive(text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	folder, err := openRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.close()
	rapid.Check(t, func(t *rapid.T) {
		seed, every := rapid.Uint64().Draw(t, "seed"), rapid.Uint64Range(1, 50).Draw(t, "every")
		fails := func(name string) error {
			h := seed
			for _, c := range []byte(name) {
				h = (h ^ uint64(c)) * 1099511628211
			}
			if h>>20%every == 0 {
				return os.ErrPermission
			}
			return nil
		}
		read := func(o opener) string {
			r := &reader{t: &tree{root: brokenTree{o, fails}}}
			f := r.facts()
			return fmt.Sprintf("%s %v", f.Digest(), r.sortedWarnings())
		}
		if a, b := read(whole), read(folder); a != b {
			t.Fatalf("the archive gives\n%s\nthe directory\n%s", a, b)
		}
	})
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte(archiveEnd))
	f.Add([]byte("-- a/ --\n-- b -> ../a --\n-- c | hex --\n00ff\n-- \"d\\n\" -> \"\\xff\" --\n" + archiveEnd))
	f.Add([]byte("-- proc/cpuinfo --\r\nprocessor: 0\r\n-- etc/os-release -> /usr/lib/os-release --\n-- usr/lib/os-release --\nID=a\n" + archiveEnd))
	f.Add([]byte("0\n-- --"))
	f.Add([]byte("-- a -> b --\n\n-- uname --"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseArchive(data)
		if err != nil {
			return
		}
		rec := newRecorder()
		for name, e := range a.entries {
			if name == "." {
				continue
			}
			if a.entries[filepath.Dir(name)] == nil || checkPath(name) != nil {
				t.Fatalf("%q is below nothing", name)
			}
			switch e.kind {
			case archivedFile:
				rec.files[name] = e.data
			case archivedLink:
				rec.links[name] = e.to
			default:
				rec.dirs[name] = true
			}
		}
		// What was read can be written, and is the same then.
		again, err := parseArchive(txtar.Format(rec.archive()))
		if err != nil {
			t.Fatal(err)
		}
		if len(again.entries) != len(a.entries) {
			t.Fatalf("%d entries, before %d", len(again.entries), len(a.entries))
		}
		for name, e := range a.entries {
			if x := again.entries[name]; x == nil || x.kind != e.kind || x.to != e.to || !bytes.Equal(x.data, e.data) {
				t.Fatalf("%q: %+v, before %+v", name, x, e)
			}
		}
		r := &reader{t: &tree{root: a}}
		checkText(t, r.facts())
	})
}

func BenchmarkReadArchive(b *testing.B) {
	for _, machine := range []string{"dual-epyc", "dgx-h100"} {
		b.Run(machine, func(b *testing.B) {
			start := cpuTime(b)
			for b.Loop() {
				if f, _, err := ReadSnapshot("../tests/fixtures/" + machine + ".txtar"); err != nil || f.CPU.Cores == nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime(b)-start).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}
