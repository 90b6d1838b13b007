package logs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"substrate/coordinator"
)

const (
	readDirAtOnce = 512
	trashDir      = ".trash"
)

// Remove deletes all output of the workflow. Removing nothing is no error.
func (l *Logs) Remove(workflow coordinator.WorkflowID) error {
	dir, err := workflowDir(workflow)
	if err != nil {
		return fmt.Errorf("cannot remove output: %w", err)
	}
	trash, err := l.moveAway(workflow, dir)
	if err == nil && trash != "" {
		err = os.RemoveAll(trash)
	}
	if err != nil {
		return fmt.Errorf("cannot remove output of %s: %w", workflow, err)
	}
	return nil
}

// moveAway closes the workflow's files and renames its directory, so that whoever writes meanwhile
// waits for a rename only and then starts afresh.
func (l *Logs) moveAway(workflow coordinator.WorkflowID, dir string) (trash string, err error) {
	done := make(chan struct{})
	for {
		l.mu.Lock()
		other, busy := l.removing[workflow]
		if !busy {
			l.removing[workflow] = done
		}
		l.mu.Unlock()
		if !busy {
			break
		}
		<-other
	}
	defer func() {
		l.mu.Lock()
		delete(l.removing, workflow)
		l.mu.Unlock()
		close(done)
	}()
	// A failed close does not matter for files that go.
	_ = l.detach(func(w coordinator.WorkflowID) bool { return w == workflow })
	from := filepath.Join(l.dir, dir)
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err := os.MkdirAll(filepath.Join(l.dir, trashDir), 0o700); err != nil {
		return "", err
	}
	trash, err = os.MkdirTemp(filepath.Join(l.dir, trashDir), "")
	if err != nil {
		return "", err
	}
	return trash, os.Rename(from, filepath.Join(trash, "gone"))
}

// Expire removes the output of every workflow that wrote nothing since before, unless keep (which
// may be nil) says that it is still wanted. It returns how many went; one that cannot be removed
// does not save the others.
func (l *Logs) Expire(before time.Time, keep func(coordinator.WorkflowID) bool) (removed int, err error) {
	shards, err := os.ReadDir(l.dir)
	if err != nil {
		return 0, fmt.Errorf("cannot expire logs: %w", err)
	}
	var failed []error
	for _, shard := range shards {
		if !shard.IsDir() || shard.Name() == trashDir {
			continue
		}
		workflows, err := os.ReadDir(filepath.Join(l.dir, shard.Name()))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, w := range workflows {
			gone, err := l.expireOne(filepath.Join(shard.Name(), w.Name()), before, keep)
			if err != nil {
				failed = append(failed, err)
			}
			if gone {
				removed++
			}
		}
	}
	if len(failed) > 0 {
		return removed, fmt.Errorf("cannot expire logs: %w", errors.Join(failed...))
	}
	return removed, nil
}

func (l *Logs) expireOne(dir string, before time.Time, keep func(coordinator.WorkflowID) bool) (bool, error) {
	name, err := decodeName(filepath.Base(dir))
	if err != nil {
		return false, nil // not ours
	}
	workflow := coordinator.WorkflowID(name)
	if want, err := workflowDir(workflow); err != nil || want != dir {
		return false, nil
	}
	old, err := olderThan(filepath.Join(l.dir, dir), before)
	if err != nil || !old || (keep != nil && keep(workflow)) {
		return false, err
	}
	return true, l.Remove(workflow)
}

// olderThan looks until it finds one file that is not.
func olderThan(dir string, before time.Time) (bool, error) {
	d, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer d.Close()
	// A directory without files yet was made for a run that just starts.
	if info, err := d.Stat(); err != nil || !info.ModTime().Before(before) {
		return false, err
	}
	for {
		entries, err := d.ReadDir(readDirAtOnce)
		for _, e := range entries {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return false, err
			}
			if !info.ModTime().Before(before) {
				return false, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}
