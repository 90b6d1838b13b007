package expr

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what tests compare with anew")

// fnmatchC answers lines of two hexadecimal texts, pattern and text, with 1 or 0.
const fnmatchC = `
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
static void unhex(const char *in, char *out) {
	unsigned c;
	for (; in[0] && in[1]; in += 2) { sscanf(in, "%2x", &c); *out++ = (char)c; }
	*out = 0;
}
int main(void) {
	char line[4096], pattern[2048], text[2048];
	while (fgets(line, sizeof line, stdin)) {
		char *sep = strchr(line, ' ');
		*sep++ = 0;
		sep[strcspn(sep, "\n")] = 0;
		unhex(line, pattern);
		unhex(sep, text);
		puts(fnmatch(pattern, text, 0) == 0 ? "1" : "0");
	}
	return 0;
}
`

// testdata/fnmatch-drawn.json holds drawn patterns and texts with the answers of the C library's
// fnmatch(3), flags 0, C locale; -update asks it anew.
func TestGlobIsFnmatchOnDrawnPatterns(t *testing.T) {
	const path = "testdata/fnmatch-drawn.json"
	if *update {
		writeDrawn(t, path)
	}
	var rows [][3]any
	readJSON(t, path, &rows)
	if len(rows) < 3000 {
		t.Fatalf("only %d rows", len(rows))
	}
	matched := 0
	for _, r := range rows {
		pattern, text, want := r[0].(string), r[1].(string), r[2].(bool)
		if got := parseGlob(pattern).match(text); got != want {
			t.Errorf("%q on %q = %v, want %v", pattern, text, got, want)
		}
		if want {
			matched++
		}
	}
	if matched < len(rows)/5 {
		t.Errorf("only %d of %d match: the drawing is broken", matched, len(rows))
	}
}

func writeDrawn(t *testing.T, path string) {
	dir := t.TempDir()
	source, program := filepath.Join(dir, "f.c"), filepath.Join(dir, "f")
	if err := os.WriteFile(source, []byte(fnmatchC), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("cannot compile: %v: %s", err, out)
	}
	pairs := drawnPairs(3600)
	var in bytes.Buffer
	for _, p := range pairs {
		in.WriteString(hex.EncodeToString([]byte(p[0])) + " " + hex.EncodeToString([]byte(p[1])) + "\n")
	}
	c := exec.Command(program)
	c.Stdin = &in
	c.Env = []string{"LC_ALL=C"}
	out, err := c.Output()
	answers := strings.Fields(string(out))
	if err != nil || len(answers) != len(pairs) {
		t.Fatalf("%d answers to %d questions: %v", len(answers), len(pairs), err)
	}
	var file bytes.Buffer
	for i, p := range pairs {
		row, err := json.Marshal([]any{p[0], p[1], answers[i] == "1"})
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0])
		file.Write(row)
	}
	file.WriteString("\n]\n")
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// drawnPairs are patterns with texts near to what they could match: half are made from the
// pattern, so that many match.
func drawnPairs(n int) [][2]string {
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "c", "A", "0", "7", "-", "]", "[", "!", "^", "*", "?", "/", ".", ":", "=", "\\", "\\*", "\\]", "\\[", " ",
		"[ab]", "[!ab]", "[^ab]", "[a-c]", "[c-a]", "[]a]", "[!]a]", "[a-]", "[-a]", "[[:digit:]]", "[![:alpha:]]", "[[:upper:]0]", "[[:nope:]]",
		"[[.a.]]", "[[=a=]b]", "[a\\-c]", "[\\]]", "[[]", "[*]", "[?]", "[/]", "[a", "[!", "[[:digit:]", "**", "*a*", "bc03", "v0000"}
	letters := []string{"a", "b", "c", "A", "0", "7", "-", "]", "[", "!", "^", "*", "/", ".", ":", "=", "\\", " ", "d", "z"}
	likely := map[string][]string{"*": {"", "a", "ab/c"}, "**": {"", "b"}, "?": {"a", "/", "]"}, "[ab]": {"a", "b"}, "[!ab]": {"c", "!"}, "[^ab]": {"c", "^"},
		"[a-c]": {"b", "c"}, "[]a]": {"]", "a"}, "[!]a]": {"b"}, "[a-]": {"-", "a"}, "[-a]": {"-"}, "[[:digit:]]": {"7"}, "[![:alpha:]]": {"0", "]"},
		"[[:upper:]0]": {"A", "0"}, "[[.a.]]": {"a"}, "[[=a=]b]": {"a", "b"}, "[a\\-c]": {"-", "a", "b"}, "[\\]]": {"]"}, "[[]": {"["}, "[*]": {"*"}, "[?]": {"?"},
		"[/]": {"/"}, "\\*": {"*"}, "\\]": {"]"}, "\\[": {"["}, "*a*": {"a", "bab"}}
	out := make([][2]string, 0, n)
	for range n {
		pattern, text := "", ""
		for range r.IntN(6) {
			p := pieces[r.IntN(len(pieces))]
			pattern += p
			if like := likely[p]; like != nil && r.IntN(8) > 0 {
				p = like[r.IntN(len(like))]
			}
			text += p
		}
		if r.IntN(3) == 0 {
			text = ""
			for range r.IntN(5) {
				text += letters[r.IntN(len(letters))]
			}
		}
		out = append(out, [2]string{pattern, text})
	}
	return out
}
