package runtime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRemoveTreeOfAnyDepth: a job may nest more directories than a process may hold files.
func TestRemoveTreeOfAnyDepth(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 256
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	parent := t.TempDir()
	top := filepath.Join(parent, "run")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	here, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := here.WriteFile("f", []byte("x"), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := here.Mkdir("d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := here.OpenRoot("d")
		here.Close()
		if err != nil {
			t.Fatal(err)
		}
		here = next
	}
	here.Close()
	if err := removeTree(top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is still there: %v", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}
