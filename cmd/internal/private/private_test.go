package private

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secret")
	if err := os.WriteFile(path, []byte("old and much longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	info, serr := os.Stat(path)
	if err != nil || serr != nil || string(data) != "new" || info.Mode().Perm() != 0o600 {
		t.Errorf("holds %q, %v %v %v", data, info.Mode(), err, serr)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{filepath.Join(dir, "taken"), filepath.Join(dir, "none", "secret")} {
		if err := Write(bad, []byte("x")); err == nil || !strings.HasPrefix(err.Error(), "cannot write "+bad+": ") {
			t.Errorf("%s gave %v", bad, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left %v, %v", entries, err)
	}
}
