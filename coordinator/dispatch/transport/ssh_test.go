package transport_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch/transport"
	"substrate/tests/sshd"
)

// TestSSHRefuses: what keeps us out is told with what to do about it.
func TestSSHRefuses(t *testing.T) {
	server := sshd.Start(t)
	nothing := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(nothing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*transport.SSHOptions)
		kind   coordinator.ErrorKind
		says   string
		hint   string
	}{
		"wrong key":        {func(o *transport.SSHOptions) { o.KeyFile = server.OtherKey }, coordinator.ErrDenied, "does not let", "authorized_keys"},
		"wrong user":       {func(o *transport.SSHOptions) { o.User = "nobody-at-all" }, coordinator.ErrDenied, "does not let nobody-at-all in", "authorized_keys"},
		"a passphrase":     {func(o *transport.SSHOptions) { o.KeyFile = server.LockedKey }, coordinator.ErrInvalid, "has a passphrase", "without one"},
		"no key file":      {func(o *transport.SSHOptions) { o.KeyFile = nothing + ".missing" }, coordinator.ErrInvalid, "no such file", ""},
		"neither":          {func(o *transport.SSHOptions) { o.KeyFile = "" }, coordinator.ErrInvalid, "neither a key file nor an agent", "keyFile"},
		"unknown host":     {func(o *transport.SSHOptions) { o.KnownHosts = nothing }, coordinator.ErrDenied, "the host is unknown; it shows ssh-ed25519 SHA256:", "ssh-keyscan"},
		"another host key": {func(o *transport.SSHOptions) { o.KnownHosts = server.OtherHosts }, coordinator.ErrDenied, "the host key mismatches", "in between"},
		"no known hosts":   {func(o *transport.SSHOptions) { o.KnownHosts = nothing + ".missing" }, coordinator.ErrInvalid, "cannot read known hosts", ""},
		"nobody listens":   {func(o *transport.SSHOptions) { o.Port = 1 }, coordinator.ErrUnavailable, "connection refused", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(server)
			c.change(&o)
			r, err := dial(t, o).Run(t.Context(), transport.Command{Argv: []string{"true"}, Timeout: 20 * time.Second})
			var told *coordinator.Error
			if !errors.As(err, &told) || told.Kind != c.kind || !strings.Contains(err.Error(), c.says) || !strings.Contains(told.Hint, c.hint) {
				t.Fatalf("got %v", err)
			}
			if r.Started || !r.Dead {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestSSHAgent: the agent's key opens too.
func TestSSHAgent(t *testing.T) {
	server := sshd.Start(t)
	o := options(server)
	o.KeyFile, o.Agent = "", server.Agent(t)
	run(t, dial(t, o), transport.Command{Argv: []string{"true"}})
}

// TestSSHReconnects: a connection that broke is made anew by the next command.
func TestSSHReconnects(t *testing.T) {
	server := sshd.Start(t)
	tr := dial(t, options(server))
	run(t, tr, transport.Command{Argv: []string{"true"}})

	ended := make(chan error, 1)
	file := filepath.Join(t.TempDir(), "pids")
	go func() {
		r, err := tr.Run(context.Background(), transport.Command{Argv: sh(`echo $$ >"$1"; exec sleep 4`, file), Timeout: 20 * time.Second})
		if r.Dead || !r.Started || r.Exit != -1 {
			t.Errorf("a command whose connection broke: %+v", r)
		}
		ended <- err
	}()
	pids(t, file, 1)
	server.Kill()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "connection broke") {
		t.Errorf("got %v", err)
	}
	if r, err := tr.Run(t.Context(), transport.Command{Argv: []string{"true"}}); err == nil || r.Started || !r.Dead {
		t.Errorf("without a server: %+v, %v", r, err)
	}
	server.Run(t)
	run(t, tr, transport.Command{Argv: []string{"true"}})
}

// TestSSHFrozen: a login node that stops answering costs a command its time and no more; what it may have taken on is dead by the deadline
// there, and the next command has a connection of its own.
func TestSSHFrozen(t *testing.T) {
	server := sshd.Start(t)
	tr := dial(t, options(server))
	run(t, tr, transport.Command{Argv: []string{"true"}})
	server.Freeze()
	mark := filepath.Join(t.TempDir(), "mark")
	r, err := tr.Run(t.Context(), transport.Command{Argv: []string{"touch", mark}, Timeout: time.Second})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, %v", r, err)
	}
	server.Thaw()
	if r := run(t, tr, transport.Command{Argv: []string{"true"}}); r.Exit != 0 {
		t.Errorf("afterwards: %+v", r)
	}
	if _, err := os.Stat(mark); err == nil && (r.Dead || !r.Started) {
		t.Errorf("a command that was said not to live ran after its deadline: %+v", r)
	}
}

// TestSSHLate: a command that reaches the login node after its time is not started.
func TestSSHLate(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	line, err := transport.RemoteLine(transport.Command{Argv: []string{"touch", mark}}, time.Now().Add(-time.Second).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err == nil || err.Error() != "exit status 251" || !strings.Contains(string(out), "too late") {
		t.Errorf("got %s, %v", out, err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran")
	}
}

// TestLinesForEveryShell: the line reads the same for each login shell that is installed here.
func TestLinesForEveryShell(t *testing.T) {
	text := "a'b\"c\\d$e`f\n!g*~\t%h é"
	line, err := transport.RemoteLine(transport.Command{Argv: []string{"printf", "%s", text}}, time.Now().Add(time.Minute).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, shell := range []string{"sh", "dash", "bash", "zsh", "ksh", "mksh", "busybox", "csh", "tcsh", "fish"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		args := []string{"-c", line}
		if shell == "busybox" {
			args = append([]string{"sh"}, args...)
		}
		out, err := exec.Command(path, args...).CombinedOutput()
		if err != nil || string(out) != text {
			t.Errorf("%s: got %q, %v", shell, out, err)
		}
		tried++
	}
	if tried < 2 {
		t.Errorf("only %d shells are here", tried)
	}
}
