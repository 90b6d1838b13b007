// Package logs keeps the output of runs on the coordinator's disk: short ones together in one file
// of their workflow, each longer one in a plain file. It does not know who may read them.
package logs

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"substrate/coordinator"
)

const (
	// DefaultRunCap is how many bytes of output one run, or each rank of a gang, may store.
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
	runs   map[string]*runFiles // by key
	recent *list.List           // of *runFiles, the latest used first
	packs  map[coordinator.WorkflowID]*pack
	// recentPacks is of *pack, the latest used first.
	recentPacks *list.List
	// removing holds workflows whose directory is about to go; the channel closes when it has.
	removing map[coordinator.WorkflowID]chan struct{}
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
	// What a removal left when the process ended.
	if err := os.RemoveAll(filepath.Join(dir, trashDir)); err != nil {
		return nil, fmt.Errorf("cannot open logs %s: %w", dir, err)
	}
	return &Logs{
		dir: dir, opts: o,
		runs: map[string]*runFiles{}, recent: list.New(),
		packs: map[coordinator.WorkflowID]*pack{}, recentPacks: list.New(),
		removing: map[coordinator.WorkflowID]chan struct{}{},
	}, nil
}

// maxRank bounds the ranks of a gang: a multinode job has at most 65,536 nodes.
const maxRank = 1<<16 - 1

// streams are the outputs of a run, or of each rank of a gang.
func streams() [2]string { return [2]string{"stdout", "stderr"} }

// Stream names the stream of one rank of a run: "stdout", "stderr.3". Rank 0 has no number, as a
// run on one node.
func Stream(stream string, rank uint32) string {
	if rank == 0 {
		return stream
	}
	return stream + "." + strconv.FormatUint(uint64(rank), 10)
}

// parseStream takes a stream's name apart; rank is "" or ".N" as it stands in file names.
func parseStream(stream string) (i int, rank string, err error) {
	name, number, ranked := strings.Cut(stream, ".")
	all := streams()
	i = slices.Index(all[:], name)
	if i < 0 {
		return 0, "", fmt.Errorf("%w: stream %.40q is not stdout or stderr", ErrName, stream)
	}
	if !ranked {
		return i, "", nil
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n > maxRank || Stream(name, uint32(n)) != stream {
		return 0, "", fmt.Errorf("%w: stream %.40q has no rank from 1 to %d", ErrName, stream, maxRank)
	}
	return i, "." + number, nil
}

// Append stores data that starts at offset of the stream (see Stream), and returns the offset of what may come
// next. Sending again is harmless: what is stored already is skipped. Data after a gap is refused
// with a *GapError. Beyond the cap of the run's rank, output is dropped after one line that says so, and
// Append goes on to accept it.
func (l *Logs) Append(run coordinator.RunID, stream string, offset uint64, data []byte) (next uint64, err error) {
	i, rank, err := parseStream(stream)
	if err != nil {
		return 0, fmt.Errorf("cannot store output of %.80q: %w", run, err)
	}
	r, err := l.acquire(run, rank)
	if err != nil {
		return 0, fmt.Errorf("cannot store output of %.80q: %w", run, err)
	}
	defer l.release(r)
	next, err = l.append(r, i, offset, data)
	if err != nil {
		return next, fmt.Errorf("cannot store %s of %s: %w", stream, run, err)
	}
	return next, nil
}

// Finish closes the stream: no more is expected, though more would be taken.
func (l *Logs) Finish(run coordinator.RunID, stream string) error {
	i, rank, err := parseStream(stream)
	if err != nil {
		return fmt.Errorf("cannot finish output of %.80q: %w", run, err)
	}
	r, err := l.acquire(run, rank)
	if err != nil {
		return fmt.Errorf("cannot finish output of %.80q: %w", run, err)
	}
	defer l.release(r)
	if err := l.finish(r, i); err != nil {
		return fmt.Errorf("cannot finish %s of %s: %w", stream, run, err)
	}
	return nil
}

// Size is how many bytes ReadAt can give; ErrNotFound if none were ever stored.
func (l *Logs) Size(run coordinator.RunID, stream string) (uint64, error) {
	size, err := l.size(run, stream)
	if err != nil {
		return 0, fmt.Errorf("cannot read %.20s of %.80q: %w", stream, run, err)
	}
	return size, nil
}

func (l *Logs) size(run coordinator.RunID, stream string) (size uint64, err error) {
	workflow, path, err := l.path(run, stream)
	if err != nil {
		return 0, err
	}
	info, err := os.Lstat(path)
	if err == nil {
		return uint64(info.Size()), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	err = l.withPack(workflow, true, func(p *pack) error {
		e := p.index[filepath.Base(path)]
		if e == nil {
			return ErrNotFound
		}
		size = e.size
		return nil
	})
	return size, err
}

// ReadAt reads what is stored from offset on; it may be called while Append writes. At the present
// end it returns io.EOF, which is not final before the run has ended.
func (l *Logs) ReadAt(run coordinator.RunID, stream string, offset uint64, buf []byte) (int, error) {
	n, err := l.readAt(run, stream, offset, buf)
	if n > 0 && err == io.EOF {
		err = nil
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("cannot read %.20s of %.80q: %w", stream, run, err)
	}
	return n, err
}

func (l *Logs) readAt(run coordinator.RunID, stream string, offset uint64, buf []byte) (n int, err error) {
	workflow, path, err := l.path(run, stream)
	if err != nil {
		return 0, err
	}
	if offset > math.MaxInt64 {
		return 0, io.EOF
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err == nil {
		defer f.Close()
		return f.ReadAt(buf, int64(offset))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	err = l.withPack(workflow, true, func(p *pack) error {
		n, err = p.read(filepath.Base(path), offset, buf)
		return err
	})
	return n, err
}

// path is the stream's own file, which is there once it outgrew the pack.
func (l *Logs) path(run coordinator.RunID, stream string) (coordinator.WorkflowID, string, error) {
	if _, _, err := parseStream(stream); err != nil {
		return "", "", err
	}
	workflow, path, err := runPath(run)
	if err != nil {
		return "", "", err
	}
	return workflow, filepath.Join(l.dir, path) + "." + stream, nil
}
