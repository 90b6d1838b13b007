package logs

import (
	"path/filepath"
	"strings"
	"testing"

	"substrate/coordinator"
)

func FuzzNames(f *testing.F) {
	for _, seed := range []string{"", "..", "a/b#1", "../../etc/passwd#1", "w/Job_1/7#3", "w/\x00#1", "w/" + strings.Repeat("Ä", 200) + "#9", "_h", "w/_2f#1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name := encodeName(text)
		if strings.ContainsAny(name, "/.\x00\\") {
			t.Fatalf("%q became %q", text, name)
		}
		if back, err := decodeName(name); err != nil || back != text {
			t.Fatalf("%q came back as %q, %v", text, back, err)
		}
		if short := fileName(text); len(short) > longName || strings.ContainsAny(short, "/.\x00") {
			t.Fatalf("%q became %q", text, short)
		}
		if plain, err := decodeName(text); err == nil && encodeName(plain) != text {
			t.Fatalf("%q decoded to %q", text, plain)
		}
		_, path, err := runPath(coordinator.RunID(text))
		if err != nil {
			return
		}
		if !filepath.IsLocal(path) || strings.Count(path, "/") != 2 || filepath.Clean(path) != path {
			t.Fatalf("run %q became path %q", text, path)
		}
	})
}
