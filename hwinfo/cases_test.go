package hwinfo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestCases reads every archive under testdata/cases as a node's root and holds the facts to its "want" file:
// lines "path value", where the value is JSON or the word absent, and # is a list's length. Paths lead into the
// JSON of the facts, into "warnings" by source, into "fabrics", into "effective" and into "vars", the
// assignments of etc/os-release.
// A name "a -> b" in an archive is a symbolic link. Each case also survives a snapshot and the portable opener.
func TestCases(t *testing.T) {
	archives, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(archives) < 50 {
		t.Fatalf("found %d cases, %v", len(archives), err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			root, want := buildTree(t, name)
			facts, warnings := Read(root)
			doc := document(t, root, facts, warnings)
			for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
				path, value, _ := strings.Cut(line, " ")
				check(t, doc, path, value)
			}
			checkSnapshot(t, root, facts)
			checkWalk(t, root, facts)
		})
	}
}

// buildTree unpacks an archive into a new directory.
func buildTree(t testing.TB, name string) (root, want string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	for _, f := range txtar.Parse(data).Files {
		if f.Name == "want" {
			want = string(f.Data)
			continue
		}
		file, target, link := strings.Cut(f.Name, " -> ")
		if link {
			putLink(t, root, file, target)
		} else {
			put(t, root, file, f.Data)
		}
	}
	if want == "" {
		t.Fatal("the archive wants nothing")
	}
	return root, want
}

func put(t testing.TB, root, name string, data []byte) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func putLink(t testing.TB, root, name, target string) {
	t.Helper()
	p := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, p); err != nil {
		t.Fatal(err)
	}
}

func document(t *testing.T, root string, facts Facts, warnings []Warning) map[string]any {
	t.Helper()
	data, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	bySource := map[string]any{}
	for _, w := range warnings {
		bySource[w.Source] = w.Message
	}
	doc["warnings"] = bySource
	var fabrics []any
	for _, group := range facts.Fabrics() {
		var addresses []any
		for _, a := range group {
			addresses = append(addresses, a)
		}
		fabrics = append(fabrics, addresses)
	}
	doc["fabrics"] = fabrics
	e := facts.Effective()
	effective := map[string]any{}
	if e.CPUs != nil {
		effective["cpus"] = *e.CPUs
	}
	if e.Memory != nil {
		effective["memory_bytes"] = float64(*e.Memory)
	}
	doc["effective"] = effective
	vars := map[string]any{}
	if data, err := os.ReadFile(filepath.Join(root, "etc/os-release")); err == nil {
		parsed, _, err := parseOSRelease(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range parsed {
			vars[k] = v
		}
	}
	doc["vars"] = vars
	return doc
}

func check(t *testing.T, doc map[string]any, path, want string) {
	t.Helper()
	got, found := walk(doc, path)
	if want == "absent" {
		if found {
			t.Errorf("%s is %v, want it absent", path, got)
		}
		return
	}
	var value any
	if err := json.Unmarshal([]byte(want), &value); err != nil {
		t.Fatalf("want of %s: %v", path, err)
	}
	if !found || !reflect.DeepEqual(got, value) {
		t.Errorf("%s is %v (found: %v), want %v", path, got, found, value)
	}
}

// walk follows a dotted path; a key may hold dots itself.
func walk(v any, path string) (any, bool) {
	if path == "" {
		return v, true
	}
	switch v := v.(type) {
	case map[string]any:
		if x, ok := v[path]; ok {
			return x, true
		}
		key, rest, _ := strings.Cut(path, ".")
		x, ok := v[key]
		if !ok {
			return nil, false
		}
		return walk(x, rest)
	case []any:
		key, rest, _ := strings.Cut(path, ".")
		if key == "#" {
			return float64(len(v)), true
		}
		i, err := strconv.Atoi(key)
		if err != nil || i >= len(v) {
			return nil, false
		}
		return walk(v[i], rest)
	}
	return nil, false
}

// checkSnapshot: a snapshot gives the same facts and says nothing personal.
func checkSnapshot(t *testing.T, root string, facts Facts) {
	t.Helper()
	if err := facts.Check(); err != nil {
		t.Errorf("facts of files do not pass: %v", err)
	}
	tidied := facts
	if tidied.Tidy(); tidied.Digest() != facts.Digest() {
		t.Error("facts of files hold text that is not fit to show")
	}
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := Snapshot(root, dir); err != nil {
		t.Fatal(err)
	}
	again, _ := Read(dir)
	if again.Digest() != facts.Digest() {
		t.Errorf("the snapshot gives other facts:\n%s\nwant\n%s", asJSON(t, again), asJSON(t, facts))
	}
	checkArchive(t, root, dir)
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if bytes.Contains(data, []byte("Serial")) || bytes.Contains(data, []byte("00:00:5e")) {
			t.Errorf("%s holds what is personal", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkWalk: the opener of kernels without openat2 gives the same facts.
func checkWalk(t *testing.T, root string, facts Facts) {
	t.Helper()
	o, err := openWalkRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	r := &reader{t: &tree{root: o}}
	if other := r.facts(); other.Digest() != facts.Digest() {
		t.Errorf("the portable opener gives other facts:\n%s\nwant\n%s", asJSON(t, other), asJSON(t, facts))
	}
}

func asJSON(t testing.TB, f Facts) string {
	t.Helper()
	data, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
