package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
)

const (
	// sessions that run at once on one connection; sshd takes ten unless it is told otherwise.
	sessions = 6
	// openTries, openPause: sshd counts a session that has ended until it has noticed.
	openTries = 50
	openPause = 100 * time.Millisecond
	// remoteGrace is how much later than our deadline the login node kills on its own: usually we did before.
	remoteGrace = time.Second
	// cancelWait is how long the end of a command is waited for whose caller gave up before its time.
	cancelWait = time.Second
	// sshSlack covers remoteGrace and the rounding of clocks.
	sshSlack = 3 * time.Second
	// tooLate is the status of a command that reached the login node after its time.
	tooLate     = 251
	tooLateText = "substrate: this command came too late and was not started"
)

// SSHOptions say where a login node is and how it and we are known.
type SSHOptions struct {
	Host       string
	Port       uint16 // 0: 22
	User       string // "" is this process's
	KeyFile    string // "": the keys of the agent
	KnownHosts string // "": those of this process's user and the system
	Agent      string // path of the agent's socket, as SSH_AUTH_SOCK has it
	// Clock measures how far the login node's clock is from ours when a connection is made: commands carry the time at which they must
	// be dead, so that one that is delivered late is not started.
	Clock dispatch.Clock
}

// SSH runs commands on a login node. One connection is kept, and made anew when it breaks.
type SSH struct {
	opt     SSHOptions
	slots   chan struct{}
	dialing chan struct{} // holds one token: who has it may change conn
	conn    *connection   // nil: none yet
	mu      sync.Mutex    // guards conn and closed
	closed  bool
	running sync.WaitGroup
}

// NewSSH connects with the first command, not before.
func NewSSH(o SSHOptions) (*SSH, error) {
	if o.Host == "" || o.Clock == nil {
		return nil, errors.New("cannot use ssh: host and clock must be given")
	}
	if o.Port == 0 {
		o.Port = 22
	}
	s := &SSH{opt: o, slots: make(chan struct{}, sessions), dialing: make(chan struct{}, 1)}
	return s, nil
}

// Slack is how late the login node's own clock may end what we could not.
func (s *SSH) Slack() time.Duration { return sshSlack }

// Close ends the connection and what runs on it, and waits for the latter.
func (s *SSH) Close() error {
	s.mu.Lock()
	s.closed = true
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.abort()
	}
	s.running.Wait()
	return nil
}

// Run runs a command under a POSIX shell of the login node, whatever the account's own shell is.
func (s *SSH) Run(ctx context.Context, c Command) (Result, error) {
	r := Result{Exit: -1, Dead: true}
	if err := c.check(); err != nil {
		return r, err
	}
	if !s.enter() {
		return r, errClosed
	}
	defer s.running.Done()
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return r, fmt.Errorf("cannot run %s: %w before one of %d commands had ended", c.Argv[0], ctx.Err(), sessions)
	}
	for attempt := 0; ; attempt++ {
		conn, err := s.connect(ctx)
		if err != nil {
			return r, err
		}
		r, err = s.runOn(ctx, conn, c)
		// What has certainly not begun may be tried again, on a new connection: the old one had died unnoticed, or the clock was set.
		if err == nil || r.Started || attempt > 0 || ctx.Err() != nil {
			return r, err
		}
		var full *ssh.OpenChannelError
		if errors.As(err, &full) {
			return r, err
		}
		conn.abort()
	}
}

// enter counts a command, unless the transport is closed.
func (s *SSH) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

var errClosed = errors.New("cannot run a command: the transport is closed")

// errTooLate is that the login node would not start what is not late for us.
var errTooLate = errors.New("the clock of the login node was set")

func (s *SSH) runOn(ctx context.Context, conn *connection, c Command) (Result, error) {
	r := Result{Exit: -1, Dead: true}
	fail := func(err error) (Result, error) {
		return r, fmt.Errorf("cannot run %s on %s: %w", c.Argv[0], s.opt.Host, err)
	}
	session, err := s.open(ctx, conn)
	if err != nil {
		return fail(err)
	}
	defer session.Close()
	deadline, _ := ctx.Deadline()
	line, err := remoteLine(c, conn.remote(deadline.Add(remoteGrace)))
	if err != nil {
		return fail(err)
	}
	stdout, stderr := c.buffers()
	session.Stdout, session.Stderr = stdout, stderr
	stdin, err := session.StdinPipe()
	if err != nil {
		return fail(err)
	}
	r.Started, r.Dead = true, false
	ended := make(chan error, 1)
	s.running.Go(func() {
		if err := session.Start(line); err != nil {
			ended <- err
			return
		}
		s.running.Go(func() { // a command need not read it: an error says nothing
			_, _ = stdin.Write(c.Stdin)
			_ = stdin.Close()
		})
		ended <- session.Wait()
	})
	var late error
	select {
	case err = <-ended:
	case <-ctx.Done():
		late = context.Cause(ctx)
		err, late = s.kill(conn, session, ended, late)
	}
	r.Stdout, r.Truncated = stdout.snapshot()
	r.Stderr, _ = stderr.snapshot()
	if errors.Is(late, errAlive) {
		return fail(late)
	}
	r.Exit, r.Dead = remoteStatus(err)
	switch {
	case r.Exit == tooLate && strings.TrimSpace(string(r.Stderr)) == tooLateText:
		r.Started = false
		return fail(errors.Join(errTooLate, late))
	case !r.Dead:
		conn.abort()
		return fail(fmt.Errorf("the connection broke: %w", errors.Join(err, late)))
	case late != nil && r.Exit == 128+9:
		r.Exit = -1
		return fail(fmt.Errorf("%w: it was killed", late))
	}
	return r, nil
}

// kill ends a command whose time is over or whose caller gave up: at once by a signal if the login node's sshd passes it on, which it does
// not for root and before OpenSSH 7.9, otherwise when its time is over there.
func (s *SSH) kill(conn *connection, session *ssh.Session, ended <-chan error, cause error) (err, late error) {
	s.running.Go(func() { _ = session.Signal(ssh.SIGKILL) }) // may hang as long as the connection does
	wait := cancelWait
	if errors.Is(cause, context.DeadlineExceeded) {
		wait = reapWait
	}
	select {
	case err = <-ended:
		return err, cause
	case <-time.After(wait):
		if wait == reapWait { // the login node does not answer: what was sent and has not arrived is thrown away with the connection
			conn.abort()
		}
		return nil, fmt.Errorf("%w: %w", cause, errAlive)
	}
}

// open makes a session, as soon as sshd has room for one.
func (s *SSH) open(ctx context.Context, conn *connection) (*ssh.Session, error) {
	for try := 1; ; try++ {
		session, err := s.openOnce(ctx, conn)
		var full *ssh.OpenChannelError
		switch {
		case !errors.As(err, &full):
			return session, err
		case try == openTries:
			return nil, fmt.Errorf("%w; does sshd there allow MaxSessions %d?", err, sessions+1)
		}
		select {
		case <-time.After(openPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// openOnce makes a session. When the connection does not even do that within the command's time it is given up.
func (s *SSH) openOnce(ctx context.Context, conn *connection) (*ssh.Session, error) {
	type opened struct {
		session *ssh.Session
		err     error
	}
	done := make(chan opened, 1)
	s.running.Go(func() {
		session, err := conn.client.NewSession()
		done <- opened{session, err}
	})
	select {
	case o := <-done:
		return o.session, o.err
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		conn.abort()
	}
	s.running.Go(func() {
		if o := <-done; o.err == nil {
			o.session.Close()
		}
	})
	return nil, ctx.Err()
}

// remoteStatus is how a session's command ended; dead is false when the end was not reported.
func remoteStatus(err error) (exit int, dead bool) {
	var end *ssh.ExitError
	switch {
	case err == nil:
		return 0, true
	case !errors.As(err, &end):
		return -1, false
	case end.Signal() != "":
		return 128 + signalNumber(end.Signal()), true
	}
	return end.ExitStatus(), true
}

func signalNumber(name string) int {
	for i, n := range [...]string{1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM"} {
		if n == name {
			return i
		}
	}
	return 127 - 1 // one that has no name here: 254
}

// remoteLine is a command as one line for the account's shell, whichever that is: between single quotes stand only characters that every shell
// takes as they are. deadline is in milliseconds of the login node's clock.
func remoteLine(c Command, deadline int64) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, `l=$((%d-$(date +%%s%%3N))); [ "$l" -gt 0 ] || { echo %s >&2; exit %d; }; `, deadline, coordinator.ShellWord(tooLateText), tooLate)
	b.WriteString("exec env -i")
	for _, name := range append(cleanNames(), c.Keep...) {
		fmt.Fprintf(&b, ` ${%[1]s+"%[1]s=$%[1]s"}`, name)
	}
	for _, e := range c.Env {
		b.WriteString(" " + coordinator.ShellWord(e))
	}
	b.WriteString(` timeout -s KILL "$((l/1000)).$(printf %03d $((l%1000)))"`)
	for _, a := range c.Argv {
		b.WriteString(" " + coordinator.ShellWord(a))
	}
	line := `exec /bin/sh -c 'eval "$(printf %b "` + octal(b.String()) + `")"'`
	if len(line) > 120<<10 {
		return "", io.ErrShortBuffer // ArgsLimit keeps it below
	}
	return line, nil
}

// octal writes all but harmless characters as printf's %b reads them.
func octal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(" ./=:,@+_-", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, `\0%03o`, c)
	}
	return b.String()
}

func parseMillis(out []byte) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("cannot read the login node's clock from %.60q", out)
	}
	return n, nil
}
