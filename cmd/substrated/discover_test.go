package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDiscoverCommand(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"discover more than once", []string{"discover", "--coordinator", "x:1"}, exitUsage, "it is reported once\nhint: give --once"},
		{"discover nowhere", []string{"discover", "--once"}, exitUsage, "cannot discover hardware: no coordinator is named"},
		{"discover without a token", []string{"discover", "--once", "--coordinator", "127.0.0.1:1", "--state-dir", filepath.Join(t.TempDir(), "s")}, exitFailed, "no join token"},
		{"discover runs nothing", []string{"discover", "--once", "--run-as-caller"}, exitUsage, "unknown flag: --run-as-caller"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if code, out, errOut := invoke(tt.args...); code != tt.code || out != "" || !strings.Contains(errOut, tt.err) {
				t.Errorf("exit %d\n%s\n%s", code, out, errOut)
			}
		})
	}
}
