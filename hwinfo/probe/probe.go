// Package probe asks programs what no file tells about a node's GPUs, within limits of time and size. What the
// answers mean is hwinfo's to say.
package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"substrate/hwinfo"
)

const (
	// ExitNoLibrary is what substrate-probe ends with where NVIDIA's library is not, or cannot be asked.
	ExitNoLibrary = 3

	// DefaultLimit bounds each program: without the persistence daemon the driver wakes GPUs one by one, for seconds.
	DefaultLimit = 20 * time.Second

	maxOutput = 1 << 20
	maxWords  = 512 // bytes of what a failed program says
	// stopWithin is how long a killed program may take to go. One that waits for a broken driver cannot be killed at
	// all; it is left behind, and none is started beside it.
	stopWithin = 2 * time.Second
)

// Asker asks. Its zero value looks for substrate-probe beside the running program and for both programs in PATH.
// One Asker should serve a process: it starts no second program beside one that hangs.
type Asker struct {
	Probe string        // substrate-probe; "" looks for it
	SMI   string        // nvidia-smi; "" looks for it
	Limit time.Duration // of each program; 0 is DefaultLimit

	busy sync.Mutex // held while a program runs
}

var (
	errStuck  = errors.New("an earlier program has not ended")
	errAbsent = errors.New("the program is not on this node")
	errTooBig = fmt.Errorf("it wrote more than %d bytes", maxOutput)
)

// Ask returns what programs of this machine tell about the GPUs below root. Nothing is asked, and nothing is wrong, where root
// does not show the running kernel with NVIDIA's driver in it. A program that fails costs its answer and is a warning.
func (a *Asker) Ask(ctx context.Context, root string) (hwinfo.Answers, []hwinfo.Warning) {
	if !hwinfo.Askable(root) {
		return nil, nil
	}
	return a.ask(ctx)
}

func (a *Asker) ask(ctx context.Context) (hwinfo.Answers, []hwinfo.Warning) {
	var warnings []hwinfo.Warning
	warn := func(program string, err error) {
		warnings = append(warnings, hwinfo.Warning{Source: program, Message: text(err.Error())})
	}
	data, err := a.run(ctx, a.find("substrate-probe", a.Probe))
	var exit *exec.ExitError
	switch {
	case err == nil:
		return hwinfo.Answers{hwinfo.AnswerNVML: data}, nil
	case errors.Is(err, errAbsent), errors.As(err, &exit) && exit.ExitCode() == ExitNoLibrary:
		// nvidia-smi is there to be asked
	default:
		warn("substrate-probe", err)
	}
	smi := a.find("nvidia-smi", a.SMI)
	answers := hwinfo.Answers{}
	for _, q := range []struct {
		name string
		args []string
	}{
		{hwinfo.AnswerGPUs, []string{"--format=csv,noheader,nounits", "--query-gpu=" + hwinfo.GPUQuery}},
		{hwinfo.AnswerList, []string{"-L"}},
		{hwinfo.AnswerTopo, []string{"topo", "-m"}},
		{hwinfo.AnswerRemote, []string{"nvlink", "-R"}},
	} {
		if q.name == hwinfo.AnswerRemote && answers[hwinfo.AnswerTopo] != nil {
			continue
		}
		data, err := a.run(ctx, smi, q.args...)
		if err == nil {
			answers[q.name] = data
			continue
		}
		warn("nvidia-smi "+q.args[0], err)
		if errors.Is(err, errAbsent) || errors.Is(err, errStuck) || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break // the next one would fare no better
		}
	}
	if len(answers) == 0 {
		return nil, warnings
	}
	return answers, warnings
}

// find is the path of a program, "" when there is none.
func (a *Asker) find(name, told string) string {
	if told != "" {
		return told
	}
	if self, err := os.Executable(); err == nil && name == "substrate-probe" {
		beside := filepath.Join(filepath.Dir(self), name)
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() {
			return beside
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// run runs one program and returns what it wrote.
func (a *Asker) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	if program == "" {
		return nil, errAbsent
	}
	if !a.busy.TryLock() {
		return nil, errStuck
	}
	limit := a.Limit
	if limit == 0 {
		limit = DefaultLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	cmd := exec.CommandContext(ctx, program, args...)
	out, words := &bounded{limit: maxOutput, full: cancel}, &bounded{limit: maxWords}
	cmd.Stdout, cmd.Stderr = out, words
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")}
	cmd.WaitDelay = stopWithin / 2 // pipes that a grandchild holds
	group(cmd)
	done := make(chan error, 1)
	go func() { // ends with the program
		err := cmd.Run()
		cancel()
		a.busy.Unlock()
		done <- err
	}()
	select {
	case err := <-done:
		return out.bytes(), reason(ctx, err, out, words)
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return out.bytes(), reason(ctx, err, out, words)
	case <-time.After(stopWithin):
		return nil, fmt.Errorf("it cannot be stopped: %w", context.DeadlineExceeded)
	}
}

// reason says in a few words why a program gave no answer.
func reason(ctx context.Context, err error, out, words *bounded) error {
	said := strings.TrimSpace(string(words.bytes()))
	if said == "" { // nvidia-smi complains on its output
		said = strings.TrimSpace(string(out.bytes()[:min(len(out.bytes()), maxWords)]))
	}
	switch {
	case out.over():
		return errTooBig
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return errAbsent
	case said != "":
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// text makes a program's words fit for a report: one line of printable characters, without the UUID of a board.
func text(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	words := strings.Fields(s)
	for i, w := range words {
		if strings.Contains(w, "GPU-") || strings.Contains(w, "MIG-") {
			words[i] = "…"
		}
	}
	return strings.Join(words, " ")
}

// bounded keeps the first bytes that are written; more are dropped, and full is called once.
type bounded struct {
	limit int
	full  func()

	mu      sync.Mutex
	buf     bytes.Buffer
	dropped bool
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.limit - b.buf.Len()
	b.buf.Write(p[:min(len(p), room)])
	if len(p) > room && !b.dropped {
		b.dropped = true
		if b.full != nil {
			b.full()
		}
	}
	return len(p), nil
}

func (b *bounded) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}

func (b *bounded) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dropped
}
