package runtime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEnds(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		spec    Spec
		cause   Cause
		code    int32
		signal  int32
		message string
		stdout  string
	}{
		{name: "exit 0", spec: Spec{Command: []string{"true"}}, cause: CauseExited},
		{name: "exit 3", spec: Spec{Command: []string{"/bin/sh", "-c", "echo hello; exit 3"}}, cause: CauseExited, code: 3, stdout: "hello\n"},
		{name: "exit 255", spec: Spec{Script: "exit 255"}, cause: CauseExited, code: 255},
		{name: "own signal", spec: Spec{Script: "kill -USR1 $$"}, cause: CauseSignalled, signal: int32(syscall.SIGUSR1)},
		{name: "a code that looks like a signal", spec: Spec{Script: "exit 137"}, cause: CauseExited, code: 137},
		{name: "script with interpreter", spec: Spec{Script: "#!/bin/cat\nhi\n"}, cause: CauseExited, stdout: "#!/bin/cat\nhi\n"},
		// Signals 1 to 31: a shell in the background hands down an ignored 32, which is the C library's own.
		{name: "signals are not ignored", spec: Spec{Script: `while read -r key value; do
	case $key in SigBlk:|SigIgn:) echo $key $((0x$value & 0x7fffffff)) ;; esac
done </proc/self/status`}, cause: CauseExited, stdout: "SigBlk: 0\nSigIgn: 0\n"},
		{name: "umask", spec: Spec{Script: "umask"}, cause: CauseExited, stdout: "0077\n"},
		{name: "no open files but three", spec: Spec{Script: "exec /bin/ls /proc/self/fd"}, cause: CauseExited, stdout: "0\n1\n2\n3\n"},
		{name: "own session", spec: Spec{Script: `read -r a b c d e sid rest </proc/$$/stat; [ $sid = $$ ]`}, cause: CauseExited},
		{name: "job environment wins", spec: Spec{Env: []string{"LANG=xx", "SUBSTRATE_RUN_ID=forged"}, Script: `echo $LANG $SUBSTRATE_RUN_ID`},
			cause: CauseExited, stdout: "xx job environment wins\n"},
		{name: "not found", spec: Spec{Command: []string{"no-such-command"}}, cause: CauseStartFailed, message: `cannot start command "no-such-command": not found in PATH`},
		{name: "no file", spec: Spec{Command: []string{"/no/such/file"}}, cause: CauseStartFailed, message: `"/no/such/file": no such file|`},
		{name: "not executable", spec: Spec{Command: []string{plain}}, cause: CauseStartFailed, message: "it is not executable"},
		{name: "directory", spec: Spec{Command: []string{"/tmp"}}, cause: CauseStartFailed, message: "it is a directory"},
		{name: "no interpreter", spec: Spec{Script: "#!/no/such/interpreter\n"}, cause: CauseStartFailed, message: "its interpreter does not exist"},
		{name: "image", spec: Spec{Image: "docker://x", Command: []string{"true"}}, cause: CauseStartFailed, message: "this version runs no containers"},
		{name: "mount source", spec: Spec{Command: []string{"true"}, Mounts: []Mount{{"/no/such", "/no/such"}}}, cause: CauseStartFailed, message: "cannot mount /no/such"},
		{name: "mount target", spec: Spec{Command: []string{"true"}, Mounts: []Mount{{"/tmp", "/data"}}}, cause: CauseStartFailed, message: "cannot mount /tmp at /data"},
		{name: "mount in place", spec: Spec{Command: []string{"true"}, Mounts: []Mount{{"/tmp", "/tmp"}}}, cause: CauseExited},
		{name: "nothing to do", spec: Spec{}, cause: CauseStartFailed, message: "exactly one of command and script"},
		{name: "two things to do", spec: Spec{Command: []string{"true"}, Script: "true"}, cause: CauseStartFailed, message: "exactly one of command and script"},
		{name: "NUL", spec: Spec{Command: []string{"true", "a\x00b"}}, cause: CauseStartFailed, message: "NUL byte"},
		{name: "too long", spec: Spec{Command: []string{"true", strings.Repeat("x", 1<<20)}}, cause: CauseStartFailed, message: "too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h.t = t
			tt.spec.ID = RunID(tt.name)
			s := h.run(tt.spec)
			if s.Cause != tt.cause || s.ExitCode != tt.code || s.Signal != tt.signal || !strings.Contains(s.Message+"|", tt.message) {
				t.Fatalf("ended %+v", s)
			}
			if tt.message == "" && s.Message != "" {
				t.Errorf("message %q", s.Message)
			}
			if s.Cause == CauseStartFailed {
				if s.Stdout != 0 || s.Stderr != 0 {
					t.Errorf("a run that did not start wrote %d and %d bytes", s.Stdout, s.Stderr)
				}
			} else if out := h.output(tt.spec.ID, Stdout); out != tt.stdout || int(s.Stdout) != len(out) {
				t.Errorf("stdout %q, %d bytes told; %q expected", out, s.Stdout, tt.stdout)
			}
			if s.Ended.IsZero() || s.Cause == CauseExited && (s.Started.IsZero() || s.Ended.Before(s.Started)) {
				t.Errorf("times %v – %v", s.Started, s.Ended)
			}
		})
	}
	h.t = t
}

func TestEnvironment(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	id := RunID("0190-wf/train/7#2")
	s := h.run(Spec{ID: id, Command: []string{"env"}, Cores: 4, Rank: 1, Nodes: []string{"a", "b"}, Env: []string{"FOO=bar baz"}})
	if s.Cause != CauseExited {
		t.Fatalf("%+v", s)
	}
	got := map[string]string{}
	for _, kv := range strings.Split(strings.TrimSpace(h.output(id, Stdout)), "\n") {
		k, v, _ := strings.Cut(kv, "=")
		got[k] = v
	}
	want := map[string]string{
		"PATH": defaultPath, "LANG": "C.UTF-8", "SHELL": "/bin/sh", "FOO": "bar baz",
		"SUBSTRATE_RUN_ID": string(id), "SUBSTRATE_CORES": "4",
		"SUBSTRATE_RANK": "1", "SUBSTRATE_NODES": "a,b",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s=%q, want %q", k, got[k], v)
		}
	}
	for _, k := range []string{"HOME", "USER", "LOGNAME", "SUBSTRATE_NOTICE_FILE"} {
		if got[k] == "" {
			t.Errorf("%s is missing", k)
		}
		delete(got, k)
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s leaked into the run", k)
		}
	}
}

func TestOtherAccount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may become another account")
	}
	h := newHarness(t, stateDir(t), false)
	s := h.run(Spec{ID: "nobody", Account: "nobody", Script: `id -un; id -G; stat -c '%U %a' .; touch f && stat -c %a f; echo $USER; cat "$0" >/dev/null && ls ../.. 2>/dev/null | wc -l`})
	out := h.output("nobody", Stdout)
	if s.Cause != CauseExited || out != "nobody\n65534\nnobody 700\n600\nnobody\n0\n" {
		t.Errorf("%+v: %s%s", s, out, h.output("nobody", Stderr))
	}
	s = h.run(Spec{ID: "interpreter", Account: "daemon", Script: "#!/bin/sh\nid -un"})
	if out := h.output("interpreter", Stdout); s.Cause != CauseExited || out != "daemon\n" {
		t.Errorf("%+v: %s", s, out)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, account, want string }{
		{"uid 0", "root", "uid 0"},
		{"unmapped", "", "not mapped to a unix account"},
		{"unknown", "no-such-account", "does not exist on this node"},
		{"option", "-h", "not a unix account name"},
		{"forbidden command", "nobody", "permission denied"},
	} {
		s := h.run(Spec{ID: RunID(tt.name), Account: tt.account, Command: []string{secret}})
		if s.Cause != CauseStartFailed || !strings.Contains(s.Message, tt.want) {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}

func TestSignal(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.start(Spec{ID: "s", Script: `trap 'cat "$SUBSTRATE_NOTICE_FILE"; exit 7' TERM; echo ready; while :; do sleep 0.02; done`})
	h.wait("s", StateRunning)
	eventually(t, "ready", func() bool { return h.output("s", Stdout) == "ready\n" })
	ends := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := h.rt.Signal(context.Background(), "s", syscall.SIGTERM, Notice{Ends: ends}); err != nil {
		t.Fatal(err)
	}
	if s := h.wait("s", StateEnded); s.Cause != CauseExited || s.ExitCode != 7 {
		t.Errorf("%+v", s)
	}
	if out := h.output("s", Stdout); out != "ready\n2030-01-02T03:04:05Z\n" {
		t.Errorf("output %q", out)
	}
	if err := h.rt.Signal(context.Background(), "unknown", syscall.SIGTERM, Notice{}); err != nil {
		t.Fatal(err)
	}
	if s := h.wait("unknown", StateEnded); s.Cause != CauseLostStatus {
		t.Errorf("%+v", s)
	}
}

// A preempted run reads until when it may tidy up; one that is stopped for another reason has no notice.
func TestNotice(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	for _, tt := range []struct {
		id     RunID
		reason string
		notice bool
	}{{"preempted", "preempted", true}, {"cancelled", "cancelled", false}} {
		h.start(Spec{ID: tt.id, Script: `trap 'cat "$SUBSTRATE_NOTICE_FILE" || echo none; exit 0' TERM; echo ready; while :; do sleep 0.02; done`})
		h.wait(tt.id, StateRunning)
		eventually(t, "ready", func() bool { return h.output(tt.id, Stdout) == "ready\n" })
		asked := time.Now()
		if err := h.rt.Stop(t.Context(), tt.id, 5*time.Minute, tt.reason); err != nil {
			t.Fatal(err)
		}
		h.wait(tt.id, StateEnded)
		_, said, _ := strings.Cut(strings.TrimSpace(h.output(tt.id, Stdout)), "\n")
		if !tt.notice {
			if said != "none" {
				t.Errorf("%s: %q", tt.id, said)
			}
			continue
		}
		ends, err := time.Parse(time.RFC3339, said)
		if left := ends.Sub(asked); err != nil || left < 299*time.Second || left > 330*time.Second {
			t.Errorf("notice %q", said)
		}
	}
}

func TestStop(t *testing.T) {
	tests := []struct {
		name, script, message string
		grace                 time.Duration
		atLeast               time.Duration
	}{
		{"goes at once", `echo ready; exec sleep 600`, "cancelled; signal 15", time.Minute, 0},
		{"tidies up", `trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done`, "cancelled; exit code 0", time.Minute, 0},
		{"ignores TERM", `trap '' TERM; echo ready; while :; do sleep 0.02; done`, "cancelled; signal 9", 200 * time.Millisecond, 200 * time.Millisecond},
		{"no grace", `trap '' TERM; echo ready; while :; do sleep 0.02; done`, "cancelled; signal 9", 0, 0},
	}
	h := newHarness(t, stateDir(t), true)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h.t = t
			id := RunID(tt.name)
			h.start(Spec{ID: id, Script: tt.script})
			h.wait(id, StateRunning)
			eventually(t, "ready", func() bool { return h.output(id, Stdout) == "ready\n" })
			began := time.Now()
			if err := h.rt.Stop(context.Background(), id, tt.grace, "cancelled"); err != nil {
				t.Fatal(err)
			}
			s := h.wait(id, StateEnded)
			took := time.Since(began)
			if s.Cause != CauseStopped || !strings.HasPrefix(s.Message, tt.message) || took < tt.atLeast || took > 20*time.Second {
				t.Errorf("after %v: %+v", took, s)
			}
		})
	}
	h.t = t
}

// Processes in the group, in another group of the session, and in a session of their own.
const family3 = `sleep 601 & echo $! >group
setsid sleep 602 & 
(setsid sh -c 'echo $$ >session; exec sleep 603') &
sh -c 'set -m; sleep 604 & echo $! >jobcontrol; wait' &
while ! [ -s session ] || ! [ -s jobcontrol ]; do sleep 0.01; done
`

func TestNothingIsLeftOver(t *testing.T) {
	for _, tt := range []struct {
		name, tail string
		stop       bool
	}{
		{"own end", "echo ready; exit 0", false},
		{"stopped", "echo ready; wait; sleep 600", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t, stateDir(t), true)
			h.start(Spec{ID: "f", Script: family3 + tt.tail})
			h.wait("f", StateRunning)
			work := filesOf(h.dir, "f").work()
			var pids []int
			for _, name := range []string{"group", "session", "jobcontrol"} {
				pids = append(pids, readPID(t, filepath.Join(work, name)))
			}
			if tt.stop {
				eventually(t, "ready", func() bool { return h.output("f", Stdout) == "ready\n" })
				for _, pid := range pids {
					if !exists(pid) {
						t.Fatalf("process %d did not run", pid)
					}
				}
				_ = h.rt.Stop(context.Background(), "f", 5*time.Second, "")
			}
			h.wait("f", StateEnded)
			for _, pid := range pids {
				if !gone(pid)() {
					t.Errorf("process %d is left over", pid)
				}
			}
		})
	}
}

func TestWalltime(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.start(Spec{ID: "w", Script: `trap 'echo term' TERM; while :; do sleep 0.02; done`, Walltime: 300 * time.Millisecond, KillAfter: 200 * time.Millisecond})
	h.wait("w", StateRunning)
	// The walltime holds without an agent.
	h.leave()
	time.Sleep(700 * time.Millisecond)
	h = newHarness(t, h.dir, true)
	s := h.wait("w", StateEnded)
	if took := s.Ended.Sub(s.Started); s.Cause != CauseWalltime || took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("after %v: %+v", took, s)
	}
	if out := h.output("w", Stdout); !strings.Contains(out, "term") {
		t.Errorf("output %q", out)
	}
}

func TestOutputWithoutLoss(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	s := h.run(Spec{ID: "big", Script: `yes 0123456789abcde | head -c 10485760; head -c 1048576 /dev/zero >&2`})
	if s.Cause != CauseExited || s.Stdout != 10<<20 || s.Stderr != 1<<20 {
		t.Fatalf("%+v", s)
	}
	if out := h.output("big", Stdout); out != strings.Repeat("0123456789abcde\n", 10<<20/16) {
		t.Error("stdout differs")
	}
}

func TestIdempotentStart(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	counter := filepath.Join(t.TempDir(), "n")
	spec := Spec{ID: "w/j#1", Script: "echo >>" + counter + "; exit 4"}
	for range 20 {
		h.start(spec)
	}
	h.wait(spec.ID, StateEnded)
	h.start(spec)
	delete(h.seen, spec.ID)
	if s := h.wait(spec.ID, StateEnded); s.ExitCode != 4 {
		t.Errorf("%+v", s)
	}
	h.leave()
	h = newHarness(t, h.dir, true)
	h.start(spec)
	h.wait(spec.ID, StateEnded)
	if text, _ := os.ReadFile(counter); len(text) != 1 {
		t.Errorf("started %d times", len(text))
	}
}

func TestForget(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.run(Spec{ID: "a", Command: []string{"true"}})
	h.start(Spec{ID: "b", Command: []string{"sleep", "600"}})
	h.wait("b", StateRunning)
	if err := h.rt.Forget(context.Background(), "a", "b", "never"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a forgotten", func() bool { _, err := os.Stat(filesOf(h.dir, "a").work()); return os.IsNotExist(err) })
	if _, err := os.Stat(filesOf(h.dir, "b").work()); err != nil {
		t.Error("a running run was forgotten")
	}
	delete(h.seen, "a")
	h.leave()
	h = newHarness(t, h.dir, true)
	if len(h.first) != 1 || h.first[0].ID != "b" {
		t.Errorf("first update %+v", h.first)
	}
}

// An agent is killed; its run goes on, and the next agent hears the exit code.
func TestAgentKilled(t *testing.T) {
	dir := stateDir(t)
	agent := exec.Command(os.Args[0], "agent", "--dir", dir)
	agent.Stdin = strings.NewReader("echo one; sleep 0.5; echo two; exit 42")
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 8)
	if n, _ := out.Read(line); string(line[:n]) != "running\n" {
		t.Fatalf("agent said %q", line[:n])
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	h := newHarness(t, dir, true)
	if len(h.first) != 1 || h.first[0].State != StateRunning {
		t.Fatalf("first update %+v", h.first)
	}
	if s := h.wait("w/j#1", StateEnded); s.Cause != CauseExited || s.ExitCode != 42 {
		t.Errorf("%+v", s)
	}
	if out := h.output("w/j#1", Stdout); out != "one\ntwo\n" {
		t.Errorf("output %q", out)
	}
}

func TestKeeperKilled(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.run(Spec{ID: "before", Script: "exit 5"})
	h.start(Spec{ID: "during", Script: "echo a; sleep 1; echo b; exit 6"})
	h.start(Spec{ID: "walled", Script: "exec sleep 600", Walltime: 2 * time.Second, KillAfter: time.Second})
	h.start(Spec{ID: "stopped", Script: "exec sleep 600"})
	for _, id := range []RunID{"during", "walled", "stopped"} {
		h.wait(id, StateRunning)
	}
	old := h.keeperPID()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Stop(context.Background(), "stopped", time.Second, "cancelled"); err != nil {
		t.Fatal(err)
	}
	h.start(Spec{ID: "after", Script: "exit 7"})
	if s := h.wait("after", StateEnded); s.Cause != CauseExited || s.ExitCode != 7 {
		t.Errorf("after: %+v", s)
	}
	if s := h.seen["before"]; s.Cause != CauseExited || s.ExitCode != 5 {
		t.Errorf("before: %+v", s)
	}
	if s := h.wait("stopped", StateEnded); s.Cause != CauseStopped {
		t.Errorf("stopped: %+v", s)
	}
	s := h.wait("during", StateEnded)
	if s.Cause != CauseLostStatus || s.ExitCode != 0 || s.Signal != 0 {
		t.Errorf("during: %+v", s)
	}
	if out := h.output("during", Stdout); out != "a\nb\n" {
		t.Errorf("the run was cut short: %q", out)
	}
	if s := h.wait("walled", StateEnded); s.Cause != CauseWalltime {
		t.Errorf("walled: %+v", s)
	}
	if now := h.keeperPID(); now == old {
		t.Error("the keeper was not killed")
	}
}

// A run whose first process ended while there was no keeper is over once the rest of it is.
func TestRestOfARunEndsWithIt(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		h := newHarness(t, stateDir(t), true)
		h.start(Spec{ID: "r", Script: "sleep 606 & echo $! >child; exec sleep 607"})
		h.wait("r", StateRunning)
		child := filepath.Join(filesOf(h.dir, "r").work(), "child")
		eventually(t, "child", func() bool { text, _ := os.ReadFile(child); return strings.HasSuffix(string(text), "\n") })
		pid := readPID(t, child)
		first := firstOf(taggedProcesses()["r"])
		for _, p := range taggedProcesses()["r"] {
			if p.PID != pid {
				first = p
			}
		}
		keeper := h.keeperPID()
		if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil { // it must not see the end
			t.Fatal(err)
		}
		h.leave()
		if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "first process gone", gone(first.PID))
		if !recorded {
			cutLastEntry(t, filepath.Join(h.dir, journalFile))
		}
		h = newHarness(t, h.dir, true)
		s := h.wait("r", StateEnded)
		if !gone(pid)() {
			t.Errorf("recorded %v: process %d outlives its run: %+v", recorded, pid, s)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if recorded && s.Cause != CauseLostStatus {
			t.Errorf("%+v", s)
		}
		h.close()
	}
}

// A keeper that dies between fork and record finds the process by its environment, and sweeps
// what never came to be a run.
func TestKeeperFindsUnrecordedRun(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.start(Spec{ID: "u", Script: "exec sleep 600"})
	h.wait("u", StateRunning)
	if err := syscall.Kill(h.keeperPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cutLastEntry(t, filepath.Join(h.dir, journalFile))
	if err := os.Mkdir(filepath.Join(h.dir, runsDir, "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	delete(h.seen, "u")
	if s := h.wait("u", StateRunning); s.ID != "u" {
		t.Errorf("%+v", s)
	}
	eventually(t, "swept", func() bool { _, err := os.Stat(filepath.Join(h.dir, runsDir, "half")); return err != nil })
}

func TestKeeperGoesWhenIdle(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.run(Spec{ID: "a", Command: []string{"true"}})
	pid := h.keeperPID()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		_ = syscall.Kill(pid, sig)
	}
	time.Sleep(500 * time.Millisecond)
	if gone(pid)() {
		t.Fatal("the keeper went with an agent connected")
	}
	h.leave()
	eventually(t, "keeper gone", gone(pid))
	// Nobody has taken note of the end, so the next keeper tells it.
	h = newHarness(t, h.dir, true)
	if len(h.first) != 1 || h.first[0].Cause != CauseExited {
		t.Errorf("first update %+v", h.first)
	}
}

// SIGTERM ends a keeper that holds no run, and no other.
func TestKeeperGoesWhenTold(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	h.start(Spec{ID: "a", Script: `trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done`})
	h.wait("a", StateRunning)
	pid := h.keeperPID()
	_ = syscall.Kill(pid, syscall.SIGTERM)
	eventually(t, "the refusal in the log", func() bool { return strings.Contains(h.keeperLog(), "told to end, and stays") })
	eventually(t, "ready", func() bool { return h.output("a", Stdout) != "" })
	if err := h.rt.Signal(t.Context(), "a", syscall.SIGUSR1, Notice{}); err != nil {
		t.Fatal(err)
	}
	if s := h.wait("a", StateEnded); s.ExitCode != 3 {
		t.Errorf("%+v", s)
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	eventually(t, "keeper gone", gone(pid))
	if s := h.run(Spec{ID: "b", Script: "exit 4"}); s.ExitCode != 4 { // the next keeper's
		t.Errorf("%+v", s)
	}
}

// A process that nothing ties to its run any more must not keep the keeper, nor its lock.
func TestKeeperGoesDespiteStrays(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	stray := filepath.Join(t.TempDir(), "stray")
	h.run(Spec{ID: "a", Script: "env -i setsid /bin/sh -c 'echo $$ >" + stray + "; exec /bin/sleep 606' & while ! [ -s " + stray + " ]; do sleep 0.01; done"})
	pid := readPID(t, stray)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	if gone(pid)() {
		t.Fatal("the stray is gone: this tests nothing")
	}
	keeper := h.keeperPID()
	h.close()
	eventually(t, "keeper gone", gone(keeper))
}

func TestThousandRuns(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	const n = 1000
	for i := range n {
		h.start(Spec{ID: RunID("w/j/" + strconv.Itoa(i) + "#1"), Command: []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", i%100)}})
	}
	for i := range n {
		s := h.wait(RunID("w/j/"+strconv.Itoa(i)+"#1"), StateEnded)
		if s.Cause != CauseExited || int(s.ExitCode) != i%100 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestNoKeeperWithoutRuns(t *testing.T) {
	h := newHarness(t, stateDir(t), true)
	if len(h.first) != 0 {
		t.Errorf("first update %+v", h.first)
	}
	if _, err := os.Stat(filepath.Join(h.dir, socketFile)); err == nil {
		t.Error("a keeper was started")
	}
}
