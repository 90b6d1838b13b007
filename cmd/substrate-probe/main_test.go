package main

import (
	"bytes"
	"strings"
	"testing"

	"substrate/hwinfo/probe"
)

func TestRun(t *testing.T) {
	tests := []struct {
		name, args  string
		code        int
		out, errOut string
	}{
		{"version", "version", 0, "dev", ""},
		{"argument", "--all", 2, "", "it takes no arguments"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run([]string{tt.args}, &out, &errOut)
			if code != tt.code || !strings.Contains(out.String(), tt.out) || !strings.Contains(errOut.String(), tt.errOut) {
				t.Errorf("%d, %q, %q", code, out.String(), errOut.String())
			}
		})
	}
}

// TestWithoutLibrary: where the library is not, the agent is told to ask elsewhere; where it is, it answers.
func TestWithoutLibrary(t *testing.T) {
	var out, errOut bytes.Buffer
	switch code := run(nil, &out, &errOut); code {
	case probe.ExitNoLibrary:
		if out.Len() > 0 || !strings.Contains(errOut.String(), "NVIDIA's library is not there") {
			t.Errorf("%q, %q", out.String(), errOut.String())
		}
	case 0:
		if !strings.HasPrefix(out.String(), `{"version":1,`) {
			t.Errorf("%q", out.String())
		}
	default:
		t.Errorf("%d, %q", code, errOut.String())
	}
}
