// Package logs keeps the output of runs as plain files on the coordinator's disk, one file for
// each stream that wrote anything. It does not know who may read them.
package logs

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"substrate/coordinator"
)

const (
	// DefaultRunCap is how many bytes of output one run may store.
	DefaultRunCap = 1 << 30
	// DefaultMaxOpen is how many runs are kept open for writing, with up to two files each.
	DefaultMaxOpen = 256
)

// Options says what Open may not choose itself; zero values are the defaults.
type Options struct {
	RunCap  uint64
	MaxOpen int
	// SyncOnFinish waits at Finish until the stream is on the disk.
	SyncOnFinish bool
}

var (
	// ErrNotFound: nothing was stored for this stream.
	ErrNotFound = errors.New("no output stored")
	// ErrFull: the disk is full. What Append stored before that counts.
	ErrFull = errors.New("log disk is full")
	// ErrClosed: the logs were closed.
	ErrClosed = errors.New("logs are closed")
)

// GapError: data does not follow what is stored; send again from Size.
type GapError struct {
	Size, Offset uint64
}

func (e *GapError) Error() string {
	return fmt.Sprintf("data starts at %d, but only %d bytes are stored", e.Offset, e.Size)
}

// Logs is a directory of output. All methods are safe for concurrent use by one process.
type Logs struct {
	dir  string
	opts Options

	mu     sync.Mutex
	closed bool
	runs   map[string]*runFiles // by path
	recent *list.List           // of *runFiles, the latest used first
}

// Open prepares the directory with default options.
func Open(dir string) (*Logs, error) { return OpenWith(dir, Options{}) }

// OpenWith prepares the directory.
func OpenWith(dir string, o Options) (*Logs, error) {
	if o.RunCap == 0 {
		o.RunCap = DefaultRunCap
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = DefaultMaxOpen
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot open logs %s: %w", dir, err)
	}
	return &Logs{dir: dir, opts: o, runs: map[string]*runFiles{}, recent: list.New()}, nil
}

// streams are the outputs of a run.
func streams() [2]string { return [2]string{"stdout", "stderr"} }

func streamIndex(stream string) (int, error) {
	all := streams()
	i := slices.Index(all[:], stream)
	if i < 0 {
		return 0, fmt.Errorf("%w: stream %.40q is not stdout or stderr", ErrName, stream)
	}
	return i, nil
}

// Append stores data that starts at offset of the stream, and returns the offset of what may come
// next. Sending again is harmless: what is stored already is skipped. Data after a gap is refused
// with a *GapError. Beyond the cap of the run, output is dropped after one line that says so, and
// Append goes on to accept it.
func (l *Logs) Append(run coordinator.RunID, stream string, offset uint64, data []byte) (next uint64, err error) {
	i, err := streamIndex(stream)
	if err != nil {
		return 0, fmt.Errorf("cannot store output of %.80q: %w", run, err)
	}
	r, err := l.acquire(run)
	if err != nil {
		return 0, fmt.Errorf("cannot store output of %.80q: %w", run, err)
	}
	defer l.release(r)
	next, err = r.append(i, offset, data, l.opts.RunCap)
	if err != nil {
		return next, fmt.Errorf("cannot store %s of %s: %w", stream, run, err)
	}
	return next, nil
}

// Finish closes the stream: no more is expected, though more would be taken.
func (l *Logs) Finish(run coordinator.RunID, stream string) error {
	i, err := streamIndex(stream)
	if err != nil {
		return fmt.Errorf("cannot finish output of %.80q: %w", run, err)
	}
	r, err := l.acquire(run)
	if err != nil {
		return fmt.Errorf("cannot finish output of %.80q: %w", run, err)
	}
	defer l.release(r)
	if err := r.finish(i, l.opts.SyncOnFinish); err != nil {
		return fmt.Errorf("cannot finish %s of %s: %w", stream, run, err)
	}
	return nil
}

// Size is how many bytes ReadAt can give; ErrNotFound if none were ever stored.
func (l *Logs) Size(run coordinator.RunID, stream string) (uint64, error) {
	path, err := l.path(run, stream)
	if err != nil {
		return 0, fmt.Errorf("cannot read output of %.80q: %w", run, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read %s of %s: %w", stream, run, absent(err))
	}
	return uint64(info.Size()), nil
}

// ReadAt reads what is stored from offset on; it may be called while Append writes. At the present
// end it returns io.EOF, which is not final before the run has ended.
func (l *Logs) ReadAt(run coordinator.RunID, stream string, offset uint64, buf []byte) (int, error) {
	path, err := l.path(run, stream)
	if err != nil {
		return 0, fmt.Errorf("cannot read output of %.80q: %w", run, err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot read %s of %s: %w", stream, run, absent(err))
	}
	defer f.Close()
	if offset > 1<<62 {
		return 0, io.EOF
	}
	n, err := f.ReadAt(buf, int64(offset))
	if err != nil && err != io.EOF {
		return n, fmt.Errorf("cannot read %s of %s: %w", stream, run, err)
	}
	if n > 0 {
		return n, nil
	}
	return 0, err
}

func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}

func (l *Logs) path(run coordinator.RunID, stream string) (string, error) {
	if _, err := streamIndex(stream); err != nil {
		return "", err
	}
	_, path, err := runPath(run)
	if err != nil {
		return "", err
	}
	return filepath.Join(l.dir, path) + "." + stream, nil
}

// acquire returns the run's files, locked and counted as in use.
func (l *Logs) acquire(run coordinator.RunID) (*runFiles, error) {
	workflow, path, err := runPath(run)
	if err != nil {
		return nil, err
	}
	for {
		r, idle, err := l.lookup(workflow, path)
		if err != nil {
			return nil, err
		}
		for _, old := range idle {
			old.close()
		}
		r.mu.Lock()
		if !r.gone {
			return r, nil
		}
		l.release(r) // removed while we waited; a new one starts empty
	}
}

// lookup finds or makes the run's entry and takes those out that have been idle the longest.
func (l *Logs) lookup(workflow coordinator.WorkflowID, path string) (r *runFiles, idle []*runFiles, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	r = l.runs[path]
	if r == nil {
		r = &runFiles{workflow: workflow, path: path, full: filepath.Join(l.dir, path)}
		r.place = l.recent.PushFront(r)
		l.runs[path] = r
	}
	r.users++
	l.recent.MoveToFront(r.place)
	for e := l.recent.Back(); e != nil && l.recent.Len() > l.opts.MaxOpen; {
		old := e.Value.(*runFiles)
		e = e.Prev()
		if old.users == 0 {
			l.forget(old)
			idle = append(idle, old)
		}
	}
	return r, idle, nil
}

// forget takes the entry out; l.mu is held.
func (l *Logs) forget(r *runFiles) {
	l.recent.Remove(r.place)
	delete(l.runs, r.path)
}

func (l *Logs) release(r *runFiles) {
	r.mu.Unlock()
	l.mu.Lock()
	r.users--
	l.mu.Unlock()
}

// Close closes all files. Later calls of Append and Finish fail; reading goes on.
func (l *Logs) Close() error {
	l.mu.Lock()
	l.closed = true
	var all []*runFiles
	for _, r := range l.runs {
		all = append(all, r)
	}
	for _, r := range all {
		l.forget(r)
	}
	l.mu.Unlock()
	var first error
	for _, r := range all {
		r.mu.Lock()
		r.gone = true
		if err := r.close(); err != nil && first == nil {
			first = fmt.Errorf("cannot close logs: %w", err)
		}
		r.mu.Unlock()
	}
	return first
}
