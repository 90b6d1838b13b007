package archive

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAppend(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "archive")
	month := time.Date(2026, 3, 31, 23, 0, 0, 0, time.FixedZone("east", -2*3600)) // April in UTC
	path := filepath.Join(dir, "workflows-2026-04.jsonl")
	line := func(v any) func(*Writer) error { return func(w *Writer) error { return w.Line(v) } }
	if err := Append(dir, "workflows", month, line(map[string]int{"a": 1})); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"half`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	broken := errors.New("broken")
	if err := Append(dir, "workflows", month, func(w *Writer) error {
		return errors.Join(w.Line(2), broken)
	}); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if err := Append(dir, "workflows", month, line(3)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if want := "{\"a\":1}\n{\"half\n2\n3\n"; err != nil || string(text) != want {
		t.Errorf("%q, want %q (%v)", text, want, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestAppendSaysWhatItCannot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Append(filepath.Join(file, "archive"), "x", time.Time{}, func(*Writer) error { return nil }); err == nil {
		t.Error("a directory was made below a file")
	}
	if err := Append(t.TempDir(), "x", time.Time{}, func(w *Writer) error { return w.Line(make(chan int)) }); err == nil {
		t.Error("a channel is no record")
	}
}
