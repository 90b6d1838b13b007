package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSnapshotForms: a folder, a file and the standard output hold the same node.
func TestSnapshotForms(t *testing.T) {
	root, dir := box(t), t.TempDir()
	folder, file, piped := filepath.Join(dir, "folder"), filepath.Join(dir, "node.txtar"), filepath.Join(dir, "piped")
	for _, to := range []string{folder, file} {
		if code, out, errOut := invoke("snapshot", "--root", root, to); code != exitOK || out != "" {
			t.Fatalf("%d: %s%s", code, out, errOut)
		}
	}
	code, text, errOut := invoke("snapshot", "--root", folder, "-")
	if code != exitOK || !strings.Contains(text, "\n-- etc/os-release --\nID=\"rocky\"\n") || strings.Contains(text, "secret") {
		t.Fatalf("%d: %s%s", code, text, errOut)
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != text {
		t.Errorf("%v: the file holds\n%s\nthe output is\n%s", err, written, text)
	}
	if err := os.WriteFile(piped, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, want, _ := invoke("inspect", "--root", folder, "-o", "json")
	for _, from := range []string{file, piped} {
		if code, out, errOut := invoke("inspect", "--root", from, "-o", "json"); code != exitOK || out != want {
			t.Errorf("%d: %s%s", code, out, errOut)
		}
		if code, out, errOut := invoke("eval", "--root", from, "osrelease.id"); code != exitOK || out != "rocky\n" {
			t.Errorf("%d: %s%s", code, out, errOut)
		}
	}
}

func TestSnapshotRefuses(t *testing.T) {
	root, dir := box(t), t.TempDir()
	there, bad, left := filepath.Join(dir, "there.txtar"), filepath.Join(dir, "bad.txtar"), filepath.Join(dir, "left.txtar")
	for name, text := range map[string]string{there: "x", bad: "-- sys/../../etc/passwd --\n-- uname --\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := "cannot read node files: " + bad + `: cannot open archive: entry 1 "sys/../../etc/passwd": its name leads out of the archive` + "\nhint: check --root\n"
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"a file that is there", []string{"snapshot", "--root", root, there}, "cannot write snapshot: there is " + there + " already\nhint: "},
		{"a place that is not there", []string{"snapshot", "--root", root, filepath.Join(dir, "no", "n.txtar")}, "cannot write snapshot: "},
		{"from a bad archive", []string{"snapshot", "--root", bad, left}, refused},
		{"inspect a bad archive", []string{"inspect", "--root", bad}, refused},
		{"eval on a bad archive", []string{"eval", "--root", bad, "1"}, refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, out, errOut := invoke(tt.args...); code != exitFailed || out != "" || !strings.HasPrefix(errOut, "substrated: "+tt.want) {
				t.Errorf("%d, %q, %q", code, out, errOut)
			}
		})
	}
	if data, err := os.ReadFile(there); string(data) != "x" {
		t.Errorf("what was there is gone: %q, %v", data, err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("half of a snapshot is left over")
	}
}
