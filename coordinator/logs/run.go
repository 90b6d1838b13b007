package logs

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"substrate/coordinator"
)

const (
	openMode = 0o600
	// truncatedMode marks a stream that met the cap, so that a restart knows too.
	truncatedMode = 0o400
)

// runFiles is one run being written.
type runFiles struct {
	workflow coordinator.WorkflowID
	path     string // below the top directory; the key
	full     string // without the stream's suffix
	// users and place belong to Logs.mu.
	users int
	place *list.Element

	mu      sync.Mutex
	gone    bool // taken out of Logs: do not write
	known   bool // sizes were read
	streams [2]streamFile
}

type streamFile struct {
	f         *os.File // nil until needed
	size      uint64
	truncated bool
}

func (r *runFiles) name(i int) string { return r.full + "." + streams()[i] }

// learn reads what earlier processes or evicted entries left.
func (r *runFiles) learn() error {
	if r.known {
		return nil
	}
	for i := range r.streams {
		info, err := os.Lstat(r.name(i))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a regular file", r.name(i))
		}
		r.streams[i].size = uint64(info.Size())
		r.streams[i].truncated = info.Mode().Perm() == truncatedMode
	}
	r.known = true
	return nil
}

// open makes the file when the first byte arrives: most runs write to one stream at most.
func (r *runFiles) open(i int) error {
	s := &r.streams[i]
	if s.f != nil {
		return nil
	}
	const flags = os.O_RDWR | os.O_CREATE | unix.O_NOFOLLOW
	f, err := os.OpenFile(r.name(i), flags, openMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(r.full), 0o700); err != nil {
			return full(err)
		}
		f, err = os.OpenFile(r.name(i), flags, openMode)
	}
	if err != nil {
		return full(err)
	}
	s.f = f
	return nil
}

func (r *runFiles) append(i int, offset uint64, data []byte, limit uint64) (next uint64, err error) {
	if err := r.learn(); err != nil {
		return 0, err
	}
	s := &r.streams[i]
	end := offset + uint64(len(data))
	switch {
	case end < offset:
		return s.size, fmt.Errorf("%w: offset %d is out of range", ErrName, offset)
	case s.truncated:
		return end, nil
	case offset > s.size:
		return s.size, &GapError{Size: s.size, Offset: offset}
	case end <= s.size:
		return s.size, nil
	}
	data = data[s.size-offset:]
	left := uint64(0)
	if used := r.streams[0].size + r.streams[1].size; used < limit {
		left = limit - used
	}
	if err := r.open(i); err != nil {
		return s.size, err
	}
	if uint64(len(data)) <= left {
		err := s.write(data)
		return s.size, err
	}
	if err := s.write(data[:left]); err != nil {
		return s.size, err
	}
	if err := s.truncate(limit); err != nil {
		return s.size, err
	}
	return end, nil
}

// write counts what arrived even when not all did.
func (s *streamFile) write(data []byte) error {
	n, err := s.f.WriteAt(data, int64(s.size))
	s.size += uint64(max(n, 0))
	return full(err)
}

func (s *streamFile) truncate(limit uint64) error {
	marker := fmt.Sprintf("\n[output truncated: this run reached its limit of %d bytes]\n", limit)
	if err := s.write([]byte(marker)); err != nil {
		return err
	}
	if err := s.f.Chmod(truncatedMode); err != nil {
		return err
	}
	s.truncated = true
	return nil
}

func (r *runFiles) finish(i int, syncIt bool) error {
	s := &r.streams[i]
	if s.f == nil {
		return nil
	}
	var err error
	if syncIt {
		err = full(s.f.Sync())
	}
	if cerr := s.f.Close(); err == nil {
		err = full(cerr)
	}
	s.f = nil
	return err
}

func (r *runFiles) close() error {
	var first error
	for i := range r.streams {
		if err := r.finish(i, false); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// full gives a full disk its name.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
