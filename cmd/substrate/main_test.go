package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/proto"

	"substrate/hwinfo"
	"substrate/proto/apiv1"
)

var update = flag.Bool("update", false, "rewrite the stories")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"substrate": main})
}

// TestStories runs the program against a fixed cluster. Besides testscript's commands there are
// `exits CODE ARG…` (run substrate, want the code) and `asked PATTERN` (the coordinator got such a request).
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata", UpdateScripts: *update, RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			w, server := startWorld(env.T().(testing.TB))
			env.Values["world"] = w
			env.Setenv("SUBSTRATE_SERVER", server)
			env.Setenv("WORLD", server)
			env.Setenv("ELSEWHERE", strings.Replace(server, "127.0.0.1", "localhost", 1)) // the same port by another name
			env.Setenv("SUBSTRATE_TOKEN", goodToken)
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				want, err := strconv.Atoi(args[0])
				if neg || err != nil {
					ts.Fatalf("usage: exits CODE ARG…")
				}
				err = ts.Exec("substrate", args[1:]...)
				got := 0
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					got = exit.ExitCode()
				} else if err != nil {
					ts.Fatalf("%v", err)
				}
				if got != want {
					ts.Fatalf("exit code %d instead of %d", got, want)
				}
			},
			"asked": func(ts *testscript.TestScript, neg bool, args []string) {
				w := ts.Value("world").(*world)
				w.mu.Lock()
				defer w.mu.Unlock()
				all := strings.Join(w.asked, "\n")
				if regexp.MustCompile(`(?m)`+args[0]).MatchString(all) == neg {
					ts.Fatalf("requests:\n%s", all)
				}
				w.asked = nil
			},
		},
	})
}

func TestAddress(t *testing.T) {
	for _, c := range []struct {
		in, target string
		secure, ok bool
	}{
		{"http://127.0.0.1:7440", "127.0.0.1:7440", false, true},
		{"http://127.0.0.1", "127.0.0.1:7440", false, true},
		{"http://localhost:1/", "localhost:1", false, true},
		{"http://[::1]:7440", "[::1]:7440", false, true},
		{"http://example.org:7440", "", false, false}, // a token in clear text
		{"http://127.0.0.1.example.org", "", false, false},
		{"https://example.org", "example.org:7440", true, true},
		{"https://example.org:443", "example.org:443", true, true},
		{"example.org:7440", "example.org:7440", true, true},
		{"example.org", "example.org:7440", true, true},
		{"127.0.0.1:7440", "127.0.0.1:7440", true, true},
		{"ftp://example.org", "", false, false},
		{"https://user:secret@example.org", "", false, false},
		{"https://example.org/path", "", false, false},
		{"", "", false, false},
	} {
		target, secure, err := address(c.in)
		if (err == nil) != c.ok || target != c.target || secure != c.secure {
			t.Errorf("address(%q) = %q, %v, %v", c.in, target, secure, err)
		}
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:7440", "https://[::1", "host:port:port", "http://localhost%00", "://"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, secure, err := address(s)
		if err == nil && !secure {
			host := target[:strings.LastIndex(target, ":")]
			if !loopback(strings.Trim(host, "[]")) {
				t.Errorf("address(%q) = %q in clear text", s, target)
			}
		}
	})
}

func TestMachineConfig(t *testing.T) {
	cores := 12
	facts := hwinfo.Facts{
		CPU:       hwinfo.CPU{VendorID: `Odd"Vendor\`, Arch: "arm64", Cores: &cores},
		OSRelease: hwinfo.OSRelease{ID: "debian"},
		PCI:       []hwinfo.PCI{{Modalias: "pci:broken"}, {Modalias: "pci:v00008086d00000D57sv00001AF4sd00001100bc06sc00i00"}},
	}
	got := string(machineConfig(facts))
	for _, want := range []string{
		`cpuinfo.vendor_id == "Odd\"Vendor\\" &&`, `cpuinfo.arch == "arm64" &&`, "cpuinfo.cpu_cores == 12 &&", `osrelease.id == "debian" &&`,
		`modalias.match("pci:v00008086d00000D57*")`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if got := string(machineConfig(hwinfo.Facts{})); strings.Contains(got, "cpu_cores") || !strings.Contains(got, "condition: |-\n") {
		t.Errorf("without facts:\n%s", got)
	}
}

func TestTexts(t *testing.T) {
	for n, want := range map[uint64]string{0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 256 << 30: "256GiB", 1 << 62: "4096PiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
	for in, want := range map[string]string{"a-b.c": "a-b.c", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "t3-${spec.x}": "'t3-${spec.x}'"} {
		if got := shellWord(in); got != want {
			t.Errorf("shellWord(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"Node_7.Example": "node-7.example", "---": "this-machine", "a": "a"} {
		if got := nodeName(in); got != want {
			t.Errorf("nodeName(%q) = %s, want %s", in, got, want)
		}
	}
	if got := printable("a\x1b[31mb\nc\u009bd"); got != "a [31mb c d" {
		t.Errorf("printable: %q", got)
	}
}

// TestJSONKeepsFieldNames holds -o json to the names of the REST API, zero values included.
func TestJSONKeepsFieldNames(t *testing.T) {
	data, err := messageJSON(&apiv1.Job{WorkflowId: "w", ExitCode: proto.Int32(0)})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"workflow_id":"w"`, `"exit_code":0`, `"preempted_count":0`, `"nodes":[]`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s is not in %s", want, data)
		}
	}
	if data, _ = messageJSON(&apiv1.Job{}); strings.Contains(string(data), "exit_code") {
		t.Errorf("an absent exit code shows: %s", data)
	}
}

func TestColourOnlyOnTerminals(t *testing.T) {
	a := &app{env: func(string) string { return "" }, output: "table"}
	tab := table{head: []string{"A", "STATUS"}, rows: [][]string{{"x", "running"}}}
	if got := strings.Join(a.lines(tab), "\n"); strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
	a.terminal = true
	if got := strings.Join(a.lines(tab), "\n"); !strings.Contains(got, "\x1b[32mrunning\x1b[0m") {
		t.Errorf("%q", got)
	}
	a.env = func(k string) string { return map[string]string{"NO_COLOR": "1"}[k] }
	if got := strings.Join(a.lines(tab), "\n"); strings.Contains(got, "\x1b") {
		t.Errorf("NO_COLOR: %q", got)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	name := t.TempDir() + "/f"
	if err := os.WriteFile(name, make([]byte, 11), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{ctx: t.Context(), in: strings.NewReader("0123456789X")}
	if _, err := a.readFile(name, 10); err == nil {
		t.Error("a file above the limit was read")
	}
	if data, err := a.readFile(name, 11); err != nil || len(data) != 11 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := a.readFile("-", 10); err == nil {
		t.Error("standard input above the limit was read")
	}
}

// TestAPipeWithoutAWriter: the program can be interrupted while it waits for one.
func TestAPipeWithoutAWriter(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&app{ctx: ctx}).readFile(pipe, 10); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0) // lets the reader go
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
