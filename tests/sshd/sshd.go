// Package sshd runs a real OpenSSH server on loopback for tests that need a login node, with keys and a port of its own. It sets up no
// accounts: who runs the test may log in.
package sshd

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is one sshd. It ends with the test, sessions too.
type Server struct {
	Host       string
	Port       uint16
	User       string
	KeyFile    string // of a key that is let in
	OtherKey   string // of one that is not
	LockedKey  string // of one with a passphrase
	KnownHosts string // has the server's key
	OtherHosts string // has another for it
	dir        string
	program    string
	cmd        *exec.Cmd
}

// Start starts a server. lines are added to its configuration.
func Start(t *testing.T, lines ...string) *Server {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		t.Fatal("sshd is missing; make deps installs openssh-server")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Host: "127.0.0.1", User: me.Username, dir: t.TempDir(), program: program}
	if me.Uid == "0" {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where it locks itself in before somebody has logged in
			t.Fatal(err)
		}
	}
	s.keys(t)
	port := freePort(t)
	s.Port = uint16(port)
	conf := append([]string{
		"Port " + strconv.Itoa(port), "ListenAddress 127.0.0.1", "HostKey " + s.path("host"), "PidFile none", "UsePAM no", "StrictModes no",
		"AuthorizedKeysFile " + s.path("authorized_keys"), "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"PermitRootLogin prohibit-password", "PrintMotd no", "LogLevel INFO", "SetEnv HOME=" + s.dir, // no start file of whoever tests
	}, lines...)
	s.write(t, "sshd_config", strings.Join(conf, "\n")+"\n")
	s.write(t, "known_hosts", fmt.Sprintf("[127.0.0.1]:%d %s", port, s.read(t, "host.pub")))
	s.write(t, "other_hosts", fmt.Sprintf("[127.0.0.1]:%d %s", port, s.read(t, "other_host.pub")))
	s.write(t, "authorized_keys", s.read(t, "key.pub"))
	s.KeyFile, s.OtherKey, s.LockedKey = s.path("key"), s.path("other"), s.path("locked")
	s.KnownHosts, s.OtherHosts = s.path("known_hosts"), s.path("other_hosts")
	t.Cleanup(s.Kill)
	s.Run(t)
	return s
}

// Run starts the server again after Kill.
func (s *Server) Run(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.program, "-D", "-E", s.path("log"), "-f", s.path("sshd_config"))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port))), time.Second)
		if err == nil {
			conn.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.Kill()
	t.Fatalf("sshd does not listen: %s", s.read(t, "log"))
}

// Kill ends the server and its connections at once. Commands that run there live on.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	for _, pid := range connections(s.cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Freeze stops the server and its connections: what is sent is neither read nor refused. Thaw is its end.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	for _, pid := range append(connections(s.cmd.Process.Pid), s.cmd.Process.Pid) {
		_ = syscall.Kill(pid, sig)
	}
}

// connections are the processes of sshd below one, the children of children too, but not the commands that they run.
func connections(parent int) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	children := map[int][]int{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		name, rest, ok := bytes.Cut(data, []byte(") "))
		fields := strings.Fields(string(rest))
		if !ok || len(fields) < 2 || !bytes.Contains(name, []byte("(sshd")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		ppid, _ := strconv.Atoi(fields[1])
		children[ppid] = append(children[ppid], pid)
	}
	for queue := children[parent]; len(queue) > 0; queue = queue[1:] {
		pids = append(pids, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return pids
}

// Agent starts an ssh-agent that holds the server's key and returns its socket's path.
func (s *Server) Agent(t *testing.T) string {
	t.Helper()
	socket := s.path("agent")
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "ssh-agent", "-D", "-a", socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	add := exec.Command("ssh-add", "-q", s.KeyFile)
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("ssh-add: %v: %s", err, out)
	}
	return socket
}

func (s *Server) keys(t *testing.T) {
	t.Helper()
	for name, pass := range map[string]string{"host": "", "other_host": "", "key": "", "other": "", "locked": "locked"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", pass, "-C", name, "-f", s.path(name)).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(s.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(s.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
