package strictyaml_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/strictyaml"
)

func TestPositionIn(t *testing.T) {
	tests := map[string]struct {
		in           string
		line, column int // inside the value
		wantL, wantC int
	}{
		"plain":                          {"k: hello world", 1, 7, 1, 10},
		"plain after an anchor":          {"k: &a hello", 1, 2, 1, 8},
		"double quotes":                  {`k: "hello"`, 1, 1, 1, 5},
		"after an escape":                {`k: "a\u00e9b"`, 1, 3, 1, 12},
		"after an escaped quote":         {`k: "a == \"x\" && b"`, 1, 13, 1, 19},
		"single quotes":                  {`k: 'it''s x'`, 1, 6, 1, 11},
		"plain over two lines":           {"k: a b\n  c d", 1, 7, 2, 5},
		"quotes over two lines":          {"k: \"a b\n\n  c d\"", 2, 3, 3, 5},
		"literal":                        {"k: |-\n  one\n  two", 2, 2, 3, 4},
		"literal, indented by four":      {"a:\n  k: |-\n      one\n        two", 2, 3, 4, 9},
		"literal with explicit indent":   {"k: |2-\n    one\n  two", 1, 3, 2, 5},
		"literal after blank lines":      {"k: |\n\n\n  one\n", 3, 1, 4, 3},
		"literal behind an anchor":       {"k: &x |-\n  one\n  two", 2, 1, 3, 3},
		"literal behind a comment":       {"k: |- # why\n  one\n  two", 2, 1, 3, 3},
		"literal, wide characters":       {"k: |-\n  é € x", 1, 5, 2, 7},
		"folded":                         {"k: >-\n  one\n  two three", 1, 9, 3, 7},
		"folded with a paragraph":        {"k: >-\n  one\n\n  two", 2, 1, 4, 3},
		"folded, a line indented more":   {"k: >-\n  one\n    two\n  three", 3, 1, 4, 3},
		"folded with explicit indent":    {"k: >1-\n   one\n two", 2, 1, 3, 2},
		"windows line ends":              {"k: |-\r\n  one\r\n  two\r\n", 2, 3, 3, 5},
		"clamped behind the last column": {"k: |-\n  one\n  two", 2, 99, 3, 6},
		"clamped behind the last line":   {"k: |-\n  one\n  two", 9, 1, 3, 3},
		"on the end of a kept block":     {"k: |+\n  one\n\n", 1, 4, 2, 6},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc := parse(t, tt.in)
			v := find(doc.Root())
			l, c := v.PositionIn(tt.line, tt.column)
			if l != tt.wantL || c != tt.wantC {
				t.Errorf("got %d:%d, want %d:%d", l, c, tt.wantL, tt.wantC)
			}
		})
	}
}

// find is the value of the key k, at the top or one level below.
func find(root strictyaml.Value) strictyaml.Value {
	entries, _ := root.Entries()
	for _, e := range entries {
		if e.Name == "k" {
			return e.Value
		}
		if e.Value.IsMap() {
			return find(e.Value)
		}
	}
	panic("no key k")
}

// TestPositionProperty: whatever the style, the character at the mapped place in the file
// is the character of the value.
func TestPositionProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		header := rapid.SampledFrom([]string{"|", "|-", "|+", ">", ">-", ">+"}).Draw(t, "header")
		indent := rapid.IntRange(1, 6).Draw(t, "indent")
		lines := rapid.SliceOfN(rapid.StringMatching(`( {0,3}[a-zé&|"'#:]{1,4}( [a-z<>=]{1,3}){0,3})?`), 1, 8).Draw(t, "lines")
		if strings.HasPrefix(lines[0], " ") || lines[0] == "" {
			lines[0] = "x" + lines[0]
		}
		var b strings.Builder
		b.WriteString("k: " + header + "\n")
		for _, l := range lines {
			if l != "" {
				l = strings.Repeat(" ", indent) + l
			}
			b.WriteString(l + "\n")
		}
		b.WriteString("after: 1\n")
		doc, ds := strictyaml.Parse("in.yaml", []byte(b.String()), strictyaml.Limits{})
		if doc == nil {
			t.Fatalf("%q: %v", b.String(), ds)
		}
		v := find(doc.Root())
		value, _ := v.Text()
		samePlaces(t.Fatalf, b.String(), value, v)
	})
}

func samePlaces(fatalf func(string, ...any), file, value string, v strictyaml.Value) {
	src := strings.Split(file, "\n")
	for i, line := range strings.Split(value, "\n") {
		for j, r := range []rune(line) {
			if r == ' ' {
				continue // may stand for a line break
			}
			l, c := v.PositionIn(i+1, j+1)
			at := []rune(src[l-1])
			if c > len(at) || at[c-1] != r {
				fatalf("%q of %q at %d:%d maps to %d:%d of %q", r, value, i+1, j+1, l, c, file)
			}
		}
	}
}

func TestSource(t *testing.T) {
	doc := parse(t, "k: >-\n    one // two\n\n      three\nz: 1\n")
	lines, first := find(doc.Root()).Source()
	if got := fmt.Sprint(len(lines), lines, first); got != "3 [one // two    three] 2" {
		t.Error(got)
	}
}

// TestHostileInputs: what is slow for the YAML library must stay bounded.
func TestHostileInputs(t *testing.T) {
	tests := map[string]string{
		"comments":       strings.Repeat("#\n", 500_000) + "a: 1\n",
		"open brackets":  strings.Repeat("[", 1_000_000),
		"closed, nested": strings.Repeat("- "+strings.Repeat("[", 30)+strings.Repeat("]", 30)+"\n", 10_000),
		"long line":      "a: " + strings.Repeat("x ", 500_000),
		"dashes":         strings.Repeat("- ", 200_000),
		"keys":           strings.Repeat("a: ", 200_000),
		"questions":      strings.Repeat("? ", 200_000),
		"quotes":         `a: "` + strings.Repeat("\n", 500_000) + `"`,
		"block of tabs":  "a: |\n" + strings.Repeat("  \tx\n", 200_000),
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			strictyaml.Parse("in.yaml", []byte(in), strictyaml.Limits{MaxBytes: 4 << 20, MaxNodes: 4_000_000})
			if d := time.Since(begin); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"name: a\ncount: 010\n", "k: >-\n  a\n\n   b\n", "a: &a [*a]\n", "---\n---\n", "k: \"\\x41\\\n  b\"\n",
		"k: 'it''s'\n", "k: |+\n\n\n", "{a: [b, {c: d}]}", "? [a]\n: b\n", "a:\t1\n", "k: &x\n  |\n  y\n", "\xef\xbb\xbfk: 1",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, ds := strictyaml.Parse("f.yaml", data, strictyaml.Limits{MaxBytes: 1 << 16, MaxDepth: 16, MaxExpansion: 1000})
		if doc == nil {
			if len(ds.Errors()) == 0 {
				t.Fatal("refused without a reason")
			}
			return
		}
		lines := strings.Split(strings.TrimPrefix(string(data), "\ufeff"), "\n")
		walk(t, doc.Root(), lines)
		decodeShape(doc.Root())
		for _, d := range doc.Diagnostics() {
			if d.Line < 1 || d.Line > len(lines) || d.Column < 1 {
				t.Fatalf("place outside the file: %v", d)
			}
		}
	})
}

// walk visits every value and checks that all places inside texts are in the file.
func walk(t *testing.T, v strictyaml.Value, lines []string) {
	switch {
	case v.IsMap():
		entries, _ := v.Entries()
		for _, e := range entries {
			walk(t, e.Value, lines)
		}
	case v.IsList():
		list, _ := v.List()
		for _, e := range list {
			walk(t, e, lines)
		}
	case v.IsText():
		text, _ := v.Text()
		for i, line := range strings.Split(text, "\n") {
			l, c := v.PositionIn(i+1, len([]rune(line)))
			if l < 1 || l > len(lines) || c < 1 || c > len([]rune(lines[l-1]))+1 {
				t.Fatalf("%q line %d maps to %d:%d", text, i+1, l, c)
			}
		}
		v.Source()
	}
}
