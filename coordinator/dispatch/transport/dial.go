package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"substrate/coordinator"
)

// connection is one to the login node, with the distance of its clock.
type connection struct {
	client *ssh.Client
	raw    net.Conn
	once   sync.Once
	broken chan struct{} // closed when it can be used no more

	seen   time.Time // when the login node's clock was read, at the latest
	millis int64     // and what it said
}

// remote is a time of ours by the login node's clock, a little early rather than late.
func (c *connection) remote(t time.Time) int64 { return c.millis + t.Sub(c.seen).Milliseconds() }

// abort closes the connection and throws away what was not sent, so that nothing of it arrives later.
func (c *connection) abort() {
	c.once.Do(func() {
		if tcp, ok := c.raw.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.raw.Close()
	})
}

// connect returns the connection, a new one if there is none that works.
func (s *SSH) connect(ctx context.Context) (*connection, error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "connect to "+s.opt.Host, "%w while another command was connecting", ctx.Err())
	}
	s.mu.Lock()
	conn, closed := s.conn, s.closed
	s.mu.Unlock()
	if closed {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "connect to "+s.opt.Host, "the transport is closed")
	}
	if conn != nil {
		select {
		case <-conn.broken:
			conn.abort()
		default:
			return conn, nil
		}
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.abort()
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, "connect to "+s.opt.Host, "the transport is closed")
	}
	s.conn = conn
	return conn, nil
}

func (s *SSH) dial(ctx context.Context) (*connection, error) {
	op := "connect to " + s.opt.Host
	auth, release, err := s.auth()
	if err != nil {
		return nil, err
	}
	defer release()
	known, err := s.knownHosts()
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(s.opt.Host, strconv.Itoa(int(s.opt.Port)))
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	raw, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "%w", err)
	}
	var hostErr error
	check := known.HostKeyCallback()
	config := &ssh.ClientConfig{User: s.user(), Auth: []ssh.AuthMethod{auth}, HostKeyAlgorithms: known.HostKeyAlgorithms(address),
		HostKeyCallback: func(host string, remote net.Addr, key ssh.PublicKey) error {
			if hostErr = check(host, remote, key); hostErr != nil {
				return s.hostError(hostErr, key)
			}
			return nil
		}}
	// The handshake knows no context: closing the connection ends it.
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	client, channels, requests, err := ssh.NewClientConn(raw, address, config)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		return nil, s.dialError(ctx, op, err, hostErr)
	}
	conn := &connection{client: ssh.NewClient(client, channels, requests), raw: raw, broken: make(chan struct{})}
	s.running.Go(func() {
		_ = conn.client.Wait()
		close(conn.broken)
	})
	if err := s.readClock(ctx, conn); err != nil {
		conn.abort()
		return nil, err
	}
	return conn, nil
}

// dialError tells what was wrong in words that somebody can act upon.
func (s *SSH) dialError(ctx context.Context, op string, err, hostErr error) error {
	var told *coordinator.Error
	switch {
	case hostErr != nil && errors.As(err, &told):
		return told
	case ctx.Err() != nil:
		return coordinator.Errorf(coordinator.ErrUnavailable, op, "%w before the login node had let us in", ctx.Err())
	}
	var denied *ssh.ServerAuthError
	if errors.As(err, &denied) || isAuth(err) {
		from := "a key of the agent"
		if s.opt.KeyFile != "" {
			from = "the key of " + s.opt.KeyFile
		}
		return coordinator.Errorf(coordinator.ErrDenied, op, "the login node does not let %s in: %w", s.user(), err).
			WithHint("put the public half of %s into ~%s/.ssh/authorized_keys there", from, s.user())
	}
	return coordinator.Errorf(coordinator.ErrUnavailable, op, "%w", err)
}

// hostError is about the login node's key.
func (s *SSH) hostError(err error, key ssh.PublicKey) error {
	op := "connect to " + s.opt.Host
	print := key.Type() + " " + ssh.FingerprintSHA256(key)
	switch {
	case knownhosts.IsHostKeyChanged(err):
		return coordinator.Errorf(coordinator.ErrDenied, op, "the host key mismatches: it shows %s, and known hosts has another", print).
			WithHint("somebody may be in between; ask the site, and only then replace the host's lines in %s", s.knownHostsName())
	case knownhosts.IsHostUnknown(err):
		return coordinator.Errorf(coordinator.ErrDenied, op, "the host is unknown; it shows %s", print).
			WithHint("compare that with what the site says, then: ssh-keyscan -p %d %s >> %s", s.opt.Port, s.opt.Host, s.knownHostsName())
	}
	return coordinator.Errorf(coordinator.ErrDenied, op, "its host key is refused: %w", err)
}

func (s *SSH) user() string {
	if s.opt.User != "" {
		return s.opt.User
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// auth reads the key anew for each connection, so that it can be changed. release ends what the method needs.
func (s *SSH) auth() (method ssh.AuthMethod, release func(), err error) {
	op := "read the key for " + s.opt.Host
	if s.opt.KeyFile == "" {
		if s.opt.Agent == "" {
			return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "there is neither a key file nor an agent").
				WithHint("set keyFile of the transport, or SSH_AUTH_SOCK")
		}
		conn, err := net.Dial("unix", s.opt.Agent)
		if err != nil {
			return nil, nil, coordinator.Errorf(coordinator.ErrUnavailable, op, "the agent does not answer: %w", err)
		}
		return ssh.PublicKeysCallback(agent.NewClient(conn).Signers), func() { _ = conn.Close() }, nil
	}
	data, err := os.ReadFile(s.opt.KeyFile)
	if err != nil {
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%s has a passphrase", s.opt.KeyFile).
			WithHint("give the coordinator a key of its own without one, or an agent")
	case err != nil:
		return nil, nil, coordinator.Errorf(coordinator.ErrInvalid, op, "%s: %w", s.opt.KeyFile, err)
	}
	return ssh.PublicKeys(signer), func() {}, nil
}

func (s *SSH) knownHosts() (*knownhosts.HostKeyDB, error) {
	var files []string
	if s.opt.KnownHosts != "" {
		files = []string{s.opt.KnownHosts}
	} else {
		if home, err := os.UserHomeDir(); err == nil {
			files = append(files, filepath.Join(home, ".ssh", "known_hosts"))
		}
		files = append(files, "/etc/ssh/ssh_known_hosts")
		files = existing(files)
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, coordinator.Errorf(coordinator.ErrInvalid, "read known hosts", "%w", err)
	}
	return db, nil
}

func (s *SSH) knownHostsName() string {
	if s.opt.KnownHosts != "" {
		return s.opt.KnownHosts
	}
	return "~/.ssh/known_hosts"
}

func existing(files []string) (found []string) {
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			found = append(found, f)
		}
	}
	return found
}

// readClock also shows that the programs which end our commands are there.
func (s *SSH) readClock(ctx context.Context, conn *connection) error {
	session, err := s.open(ctx, conn)
	if err != nil {
		return coordinator.Errorf(coordinator.ErrUnavailable, "connect to "+s.opt.Host, "%w", err)
	}
	defer session.Close()
	type said struct {
		out []byte
		err error
	}
	answer := make(chan said, 1)
	s.running.Go(func() {
		out, err := session.Output("/bin/sh -c 'timeout -s KILL 20 date +%s%3N'")
		answer <- said{out, err}
	})
	var a said
	select {
	case a = <-answer:
	case <-ctx.Done():
		return coordinator.Errorf(coordinator.ErrUnavailable, "connect to "+s.opt.Host, "%w before it had told its time", ctx.Err())
	}
	conn.seen = s.opt.Clock.Now()
	if a.err == nil {
		conn.millis, a.err = parseMillis(a.out)
	}
	if a.err != nil {
		return coordinator.Errorf(coordinator.ErrUnsupported, "use "+s.opt.Host, "date and timeout do not answer there: %w", a.err).
			WithHint("the login node needs GNU coreutils, and an account whose shell runs commands")
	}
	return nil
}

// isAuth: the client's own failure to authenticate has no type.
func isAuth(err error) bool { return strings.Contains(err.Error(), "unable to authenticate") }
