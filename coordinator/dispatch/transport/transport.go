package transport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultTimeout is a command's when it names none.
	DefaultTimeout = time.Minute
	// DefaultLimit is how much of a command's standard output is kept.
	DefaultLimit = 16 << 20
	// StderrLimit is how much is kept of its standard error.
	StderrLimit = 64 << 10
	// ArgsLimit is how long all arguments and variables of a command may be together; the kernel takes a little more as one argument,
	// into which SSH packs them.
	ArgsLimit = 24 << 10
)

// Transport is a place where commands are run. It is safe for concurrent use.
type Transport interface {
	// Run runs one command and waits for its end, or until its time is over. The error is nil when the command ended by itself,
	// whatever its exit status; otherwise the Result says whether it has started and whether it is dead.
	Run(ctx context.Context, c Command) (Result, error)
	// Slack is how long after the end of its Timeout, or of the context's deadline if that is sooner, a command that is not known dead may
	// still live. One whose context was cancelled before may live until then.
	Slack() time.Duration
	// Close ends connections; commands that run fail.
	Close() error
}

// Command is a program with its arguments. Its environment is that of a clean session (PATH, HOME, USER, LOGNAME, SHELL) with Keep and
// Env, so that what somebody exported for another purpose does not change it.
type Command struct {
	Argv    []string
	Env     []string // NAME=value
	Keep    []string // names of further variables that are passed on when they are set there
	Stdin   []byte
	Timeout time.Duration // 0: DefaultTimeout; it counts beside the context's
	Limit   int           // of bytes of standard output that are kept; 0: DefaultLimit
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr []byte
	Truncated      bool // it wrote more to standard output than is kept
	// Exit is its status: 128 and the signal's number when one ended it, as shells count; -1 when nobody knows.
	Exit int
	// Started is true unless it certainly has not begun.
	Started bool
	// Dead is true when certainly no process of the command lives, apart from what has left its process group.
	Dead bool
}

// cleanNames are the variables of a session that every command sees.
func cleanNames() []string { return []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL"} }

func (c Command) check() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return fmt.Errorf("cannot run a command without a name")
	}
	size := 0
	for _, text := range append(append([]string{}, c.Argv...), c.Env...) {
		if strings.ContainsRune(text, 0) {
			return fmt.Errorf("cannot run %s: an argument or variable holds a NUL", c.Argv[0])
		}
		size += len(text) + 1
	}
	if size > ArgsLimit {
		return fmt.Errorf("cannot run %s: its arguments and variables have %d bytes, more than %d", c.Argv[0], size, ArgsLimit)
	}
	for _, text := range c.Env {
		if name, _, ok := strings.Cut(text, "="); !ok || !isName(name) {
			return fmt.Errorf("cannot run %s: %q sets no variable", c.Argv[0], text)
		}
	}
	for _, name := range c.Keep {
		if !isName(name) {
			return fmt.Errorf("cannot run %s: %q is no name of a variable", c.Argv[0], name)
		}
	}
	return nil
}

func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func (c Command) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return DefaultTimeout
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	mu    sync.Mutex
	kept  []byte
	limit int
	over  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.limit - len(b.kept)
	if len(p) > room {
		b.over = true
	}
	b.kept = append(b.kept, p[:min(len(p), room)]...)
	return len(p), nil
}

// snapshot is what was kept until now.
func (b *bounded) snapshot() (kept []byte, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.kept), b.over
}

func (c Command) buffers() (stdout, stderr *bounded) {
	limit := c.Limit
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &bounded{limit: limit}, &bounded{limit: StderrLimit}
}
