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

// runFiles is one rank of a run being written.
type runFiles struct {
	workflow coordinator.WorkflowID
	key      string // path below the top directory, and rank
	full     string // path without the stream's suffix
	rank     string // ".N", or "" for rank 0
	// users and place belong to Logs.mu.
	users int
	place *list.Element

	mu      sync.Mutex
	gone    bool // taken out of Logs: do not write
	known   bool // sizes were read
	streams [2]streamFile
}

type streamFile struct {
	f         *os.File // open for writing
	own       bool     // in a file of its own, not in the pack
	size      uint64
	truncated bool
}

func (r *runFiles) name(i int) string { return r.full + "." + streams()[i] + r.rank }

// learn finds what earlier processes or evicted entries left.
func (l *Logs) learn(r *runFiles) error {
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
		r.streams[i].own = true
		r.streams[i].size = uint64(info.Size())
		r.streams[i].truncated = info.Mode().Perm() == truncatedMode
	}
	err := l.withPack(r.workflow, false, func(p *pack) error {
		for i := range r.streams {
			if e := p.index[filepath.Base(r.name(i))]; e != nil && !r.streams[i].own {
				r.streams[i].size = e.size
			}
		}
		return nil
	})
	r.known = err == nil
	return err
}

func (l *Logs) append(r *runFiles, i int, offset uint64, data []byte) (next uint64, err error) {
	if err := l.learn(r); err != nil {
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
	if used := r.streams[0].size + r.streams[1].size; used < l.opts.RunCap {
		left = l.opts.RunCap - used
	}
	if uint64(len(data)) <= left {
		err := l.store(r, i, data)
		return s.size, err
	}
	if err := l.openOwn(r, i); err != nil {
		return s.size, err
	}
	if err := s.write(data[:left]); err != nil {
		return s.size, err
	}
	if err := s.truncate(l.opts.RunCap); err != nil {
		return s.size, err
	}
	return end, nil
}

// store adds to the pack while the stream is short, then to a file of its own.
func (l *Logs) store(r *runFiles, i int, data []byte) error {
	s := &r.streams[i]
	if !s.own {
		stored := false
		err := l.withPack(r.workflow, false, func(p *pack) error {
			name := filepath.Base(r.name(i))
			if stored = p.fits(name, len(data)); !stored {
				return nil
			}
			return p.add(name, data)
		})
		if err != nil {
			return err
		}
		if stored {
			s.size += uint64(len(data))
			return nil
		}
	}
	if err := l.openOwn(r, i); err != nil {
		return err
	}
	return s.write(data)
}

// openOwn opens the stream's own file, moving it out of the pack first.
func (l *Logs) openOwn(r *runFiles, i int) (err error) {
	s := &r.streams[i]
	switch {
	case s.f != nil:
		return nil
	case s.own:
		s.f, err = createIn(filepath.Dir(r.full), r.name(i))
		return err
	}
	err = l.withPack(r.workflow, false, func(p *pack) error {
		s.f, err = p.spill(filepath.Base(r.name(i)), r.name(i))
		return err
	})
	s.own = err == nil
	return err
}

// finish closes the stream's file; what is packed needs no closing.
func (l *Logs) finish(r *runFiles, i int) error {
	if l.opts.SyncOnFinish && !r.streams[i].own {
		err := l.withPack(r.workflow, false, func(p *pack) error {
			if p.f == nil {
				return nil
			}
			return full(p.f.Sync())
		})
		if err != nil {
			return err
		}
	}
	return r.finish(i, l.opts.SyncOnFinish)
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
