package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator/dispatch/transport"
	"substrate/tests/sshd"
)

// wall is the real clock.
type wall struct{}

func (wall) Now() time.Time { return time.Now() }

func (wall) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func dial(t *testing.T, o transport.SSHOptions) *transport.SSH {
	t.Helper()
	o.Clock = wall{}
	s, err := transport.NewSSH(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func options(s *sshd.Server) transport.SSHOptions {
	return transport.SSHOptions{Host: s.Host, Port: s.Port, User: s.User, KeyFile: s.KeyFile, KnownHosts: s.KnownHosts}
}

// both runs a test with each transport.
func both(t *testing.T, test func(t *testing.T, tr transport.Transport)) {
	t.Run("local", func(t *testing.T) { test(t, transport.NewLocal(os.Environ())) })
	t.Run("ssh", func(t *testing.T) { test(t, dial(t, options(sshd.Start(t)))) })
}

func run(t *testing.T, tr transport.Transport, c transport.Command) transport.Result {
	t.Helper()
	r, err := tr.Run(t.Context(), c)
	if err != nil {
		t.Fatalf("%v: %v (%s)", c.Argv, err, r.Stderr)
	}
	if !r.Started || !r.Dead {
		t.Errorf("%v: started %v, dead %v", c.Argv, r.Started, r.Dead)
	}
	return r
}

func sh(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

func TestConformance(t *testing.T) {
	both(t, func(t *testing.T, tr transport.Transport) {
		t.Run("what it writes and its status", func(t *testing.T) {
			r := run(t, tr, transport.Command{Argv: sh("echo out; echo err >&2; exit 3")})
			if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.Exit != 3 || r.Truncated {
				t.Errorf("got %q, %q, %d, %v", r.Stdout, r.Stderr, r.Exit, r.Truncated)
			}
		})
		t.Run("success", func(t *testing.T) {
			if r := run(t, tr, transport.Command{Argv: []string{"true"}}); r.Exit != 0 {
				t.Errorf("got %d", r.Exit)
			}
		})
		t.Run("ended by a signal", func(t *testing.T) {
			if r := run(t, tr, transport.Command{Argv: sh("kill -KILL $$")}); r.Exit != 137 {
				t.Errorf("got %d", r.Exit)
			}
		})
		t.Run("standard input is binary", func(t *testing.T) {
			in := make([]byte, 1<<16)
			for i := range in {
				in[i] = byte(i * 7)
			}
			if r := run(t, tr, transport.Command{Argv: []string{"cat"}, Stdin: in}); !bytes.Equal(r.Stdout, in) {
				t.Errorf("%d bytes came back of %d", len(r.Stdout), len(in))
			}
		})
		t.Run("standard input that nobody reads", func(t *testing.T) {
			run(t, tr, transport.Command{Argv: []string{"true"}, Stdin: make([]byte, 4<<20)})
		})
		t.Run("outputs are bounded", func(t *testing.T) {
			r := run(t, tr, transport.Command{Argv: sh("head -c 5000000 /dev/zero; head -c 200000 /dev/zero >&2; exit 4"), Limit: 1000})
			if len(r.Stdout) != 1000 || !r.Truncated || len(r.Stderr) != transport.StderrLimit || r.Exit != 4 {
				t.Errorf("kept %d, %v, and %d, status %d", len(r.Stdout), r.Truncated, len(r.Stderr), r.Exit)
			}
			if r := run(t, tr, transport.Command{Argv: sh("head -c 1000 /dev/zero"), Limit: 1000}); r.Truncated || len(r.Stdout) != 1000 {
				t.Errorf("kept %d, %v", len(r.Stdout), r.Truncated)
			}
		})
		t.Run("a clean environment", func(t *testing.T) {
			t.Setenv("SBATCH_PARTITION", "elsewhere")
			r := run(t, tr, transport.Command{Argv: sh(`printf '%s|' "${SBATCH_PARTITION-none}" "$A" "$TZ" "${HOME:+home}"`), Env: []string{"A=x y\n'\"$(id)", "TZ=UTC"}})
			if want := "none|x y\n'\"$(id)|UTC|home|"; string(r.Stdout) != want {
				t.Errorf("got %q, want %q", r.Stdout, want)
			}
		})
		t.Run("many at once", func(t *testing.T) { many(t, tr) })
	})
}

func many(t *testing.T, tr transport.Transport) {
	var all sync.WaitGroup
	for i := range 25 {
		all.Go(func() {
			r, err := tr.Run(t.Context(), transport.Command{Argv: sh("cat; echo $1", strconv.Itoa(i)), Stdin: []byte("in ")})
			if want := fmt.Sprintf("in %d\n", i); err != nil || string(r.Stdout) != want {
				t.Errorf("got %q, status %d, %v, want %q (%s)", r.Stdout, r.Exit, err, want, r.Stderr)
			}
		})
	}
	all.Wait()
}

// TestArgumentsArriveAsTheyAre: no shell on the way reads any of them.
func TestArgumentsArriveAsTheyAre(t *testing.T) {
	every := make([]byte, 0, 255)
	for c := 1; c < 256; c++ {
		every = append(every, byte(c))
	}
	args := []string{"", " ", "'", "''", `"`, `\`, `\\n`, "a b", "$HOME", "${IFS}", "`id`", "$(touch /tmp/x)", "a\nb", "\n", "a;b", "a&&b", "|", "<x", ">x", "*", "~", "!!", "#c", "-n", "--",
		"%s%n", "\\0101", "日本", string(every), "end\n\n"}
	both(t, func(t *testing.T, tr transport.Transport) {
		r := run(t, tr, transport.Command{Argv: append([]string{"printf", `%s\0`}, args...)})
		if want := strings.Join(args, "\x00") + "\x00"; string(r.Stdout) != want {
			t.Errorf("got  %q\nwant %q", r.Stdout, want)
		}
	})
}

func TestRefusedBeforeItStarts(t *testing.T) {
	both(t, func(t *testing.T, tr transport.Transport) {
		for name, c := range map[string]transport.Command{
			"no command":              {},
			"a NUL":                   {Argv: []string{"echo", "a\x00b"}},
			"a variable without name": {Argv: []string{"true"}, Env: []string{"=x"}},
			"a name with a command":   {Argv: []string{"true"}, Env: []string{"A$(id)=x"}},
			"a kept name":             {Argv: []string{"true"}, Keep: []string{"A}"}},
			"too much":                {Argv: []string{"true", strings.Repeat("x", transport.ArgsLimit)}},
		} {
			t.Run(name, func(t *testing.T) {
				if r, err := tr.Run(t.Context(), c); err == nil || r.Started || !r.Dead {
					t.Errorf("got %+v, %v", r, err)
				}
			})
		}
		t.Run("its time is over", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if r, err := tr.Run(ctx, transport.Command{Argv: []string{"true"}}); !errors.Is(err, context.Canceled) || r.Started || !r.Dead {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	})
}

func TestMissingProgram(t *testing.T) {
	both(t, func(t *testing.T, tr transport.Transport) {
		r, err := tr.Run(t.Context(), transport.Command{Argv: []string{"no-such-program"}})
		if err == nil && r.Exit != 127 || err != nil && r.Started {
			t.Errorf("got %+v, %v", r, err)
		}
		if !r.Dead {
			t.Error("it may live")
		}
	})
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(data, []byte(") "))
	return !bytes.HasPrefix(rest, []byte("Z")) && syscall.Kill(pid, 0) == nil
}

// dies fails when a process goes on; the kernel may need a moment for one that was killed.
func dies(t *testing.T, pid int) {
	t.Helper()
	for range 80 {
		if !alive(pid) {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Errorf("process %d is alive", pid)
}

// pids waits until a command has written the ids of its processes.
func pids(t *testing.T, file string, n int) (list []int) {
	t.Helper()
	for range 400 {
		data, _ := os.ReadFile(file)
		if words := strings.Fields(string(data)); len(words) >= n {
			for _, w := range words {
				pid, err := strconv.Atoi(w)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, pid)
			}
			return list
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("%s does not name %d processes", file, n)
	return nil
}

// TestDeadlineKills: when a command's time is over all of it is dead, its children too, whatever signals they ignore.
func TestDeadlineKills(t *testing.T) {
	both(t, func(t *testing.T, tr transport.Transport) {
		for name, cancelled := range map[string]bool{"its own": false, "its caller gives up": true} {
			t.Run(name, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "pids")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := transport.Command{Argv: sh(`trap '' TERM HUP INT; echo early; sleep 100 & echo $$ $! >"$1"; wait`, file), Timeout: 3 * time.Second}
				if cancelled {
					c.Timeout = 6 * time.Second
					go func() { pids(t, file, 2); cancel() }()
				}
				r, err := tr.Run(ctx, c)
				want := context.DeadlineExceeded
				if cancelled {
					want = context.Canceled
				}
				if !errors.Is(err, want) || !r.Started || r.Exit != -1 {
					t.Errorf("got %+v, %v", r, err)
				}
				if !r.Dead { // only for root's commands elsewhere, whose sshd passes no signals on
					if !cancelled || tr.Slack() == 0 {
						t.Error("it may live")
					}
					time.Sleep(c.Timeout + tr.Slack())
				}
				if string(r.Stdout) != "early\n" {
					t.Errorf("what it wrote before is %q", r.Stdout)
				}
				for _, pid := range pids(t, file, 2) {
					dies(t, pid)
				}
			})
		}
	})
}

// TestLeftBehind: a child that holds the outputs is no reason to wait, and dies with its command.
func TestLeftBehind(t *testing.T) {
	tr := transport.NewLocal(os.Environ())
	file := filepath.Join(t.TempDir(), "pids")
	run(t, tr, transport.Command{Argv: sh(`sleep 100 & echo $! >"$1"; exit 0`, file)})
	dies(t, pids(t, file, 1)[0])
}

func FuzzLocalArguments(f *testing.F) {
	f.Add("'", "$(id)\n")
	tr := transport.NewLocal(os.Environ())
	f.Fuzz(func(t *testing.T, a, b string) {
		r, err := tr.Run(t.Context(), transport.Command{Argv: []string{"printf", `%s\0%s`, a, b}})
		if strings.ContainsRune(a+b, 0) {
			if err == nil {
				t.Error("a NUL was passed on")
			}
			return
		}
		if len(a)+len(b) < transport.ArgsLimit-100 && (err != nil || string(r.Stdout) != a+"\x00"+b) {
			t.Errorf("got %q, %v", r.Stdout, err)
		}
	})
}
