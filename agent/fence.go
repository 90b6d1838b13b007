package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const fenceFile = "fence"

// fence remembers the highest store revision that ever ordered a start, so that a deposed coordinator
// cannot start anything. Revisions are one cluster's: another cluster begins anew. It is written with
// one write and without sync: after a power cut there are no runs that it could have protected.
type fence struct {
	file    *os.File
	id      string
	highest uint64
}

// fenceFormat has one length for one cluster, so that a rewrite in place is whole or did not happen.
const fenceFormat = "%020d %s\n"

func openFence(dir string) (*fence, error) {
	path := filepath.Join(dir, fenceFile)
	f := &fence{}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read fence: %w", err)
	}
	if len(text) > 0 {
		if f.highest, f.id, err = parseFence(string(text)); err != nil {
			return nil, fmt.Errorf("cannot read fence %s: %w", path, err)
		}
	}
	if f.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("cannot open fence: %w", err)
	}
	return f, nil
}

func parseFence(text string) (uint64, string, error) {
	number, id, ok := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	if !ok {
		return 0, "", errors.New("expected a number and a cluster id")
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("expected a number: %w", err)
	}
	return n, id, nil
}

func (f *fence) close() { f.file.Close() }

// cluster begins anew when the coordinator is another cluster's.
func (f *fence) cluster(id string) error {
	id = strings.Map(func(r rune) rune {
		if r <= ' ' {
			return '_'
		}
		return r
	}, id)
	if id == f.id {
		return nil
	}
	f.id, f.highest = id, 0
	if err := f.file.Truncate(0); err != nil {
		return fmt.Errorf("cannot write fence: %w", err)
	}
	return f.write()
}

// pass reports whether an order of this revision may still be carried out.
func (f *fence) pass(revision uint64) (bool, error) {
	if revision < f.highest {
		return false, nil
	}
	if revision == f.highest {
		return true, nil
	}
	f.highest = revision
	return true, f.write()
}

func (f *fence) write() error {
	if _, err := f.file.WriteAt(fmt.Appendf(nil, fenceFormat, f.highest, f.id), 0); err != nil {
		return fmt.Errorf("cannot write fence: %w", err)
	}
	return nil
}
