package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A state directory holds keeper.sock, keeper.lock, keeper.log, the journal and, for each run that is not
// forgotten, these in runs/: its working directory ID.work, its outputs ID.stdout and ID.stderr, and
// where there is one its ID.script and ID.notice. ID is the encoded run id. Whatever belongs to no run of
// the journal is a beginning or an end cut short, and is swept. They lie side by side because every file and
// directory made costs a job time.
const (
	runsDir     = "runs"
	socketFile  = "keeper.sock"
	lockFile    = "keeper.lock"
	keeperLog   = "keeper.log"
	journalFile = "journal"
)

// runFiles is the common beginning of the paths of a run's files.
type runFiles string

func filesOf(state string, id RunID) runFiles {
	return runFiles(filepath.Join(state, runsDir, EncodeRunID(id)))
}

func (f runFiles) output(s Stream) string { return string(f) + "." + string(s) }
func (f runFiles) work() string           { return string(f) + ".work" }
func (f runFiles) script() string         { return string(f) + ".script" }

// notice tells until when the run may tidy up, RFC 3339.
func (f runFiles) notice() string    { return string(f) + ".notice" }
func (f runFiles) newNotice() string { return string(f) + ".notice.tmp" }

// plain are all but the working directory.
func (f runFiles) plain() []string {
	return []string{f.output(Stdout), f.output(Stderr), f.script(), f.notice(), f.newNotice()}
}

// remove takes away all that a run left.
func (f runFiles) remove() error {
	var errs []error
	for _, path := range f.plain() {
		errs = append(errs, removeFile(path))
	}
	if err := syscall.Rmdir(f.work()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, removeTree(f.work()))
	}
	return errors.Join(errs...)
}

func (f runFiles) outputSize(s Stream) Bytes {
	var info syscall.Stat_t
	if err := syscall.Lstat(f.output(s), &info); err != nil {
		return 0
	}
	return Bytes(info.Size)
}

// createOutput opens an output for append. The caller closes it.
func (f runFiles) createOutput(s Stream, acc account) (fd int, err error) {
	path := f.output(s)
	fd, err = syscall.Open(path, syscall.O_CREAT|syscall.O_EXCL|syscall.O_APPEND|syscall.O_WRONLY|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	if !acc.Caller {
		if err := syscall.Fchown(fd, int(acc.UID), int(acc.GID)); err != nil {
			syscall.Close(fd)
			return -1, &fs.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	return fd, nil
}

func (f runFiles) makeWork(acc account) error {
	if err := os.Mkdir(f.work(), 0o700); err != nil {
		return err
	}
	if acc.Caller {
		return nil
	}
	return os.Chown(f.work(), int(acc.UID), int(acc.GID))
}

// writeScript holds ForkLock: a child forked meanwhile would inherit the open file until it
// executes, and the script's own start would fail with ETXTBSY.
func (f runFiles) writeScript(text string, acc account) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(f.script(), []byte(text), 0o500); err != nil {
		return err
	}
	if acc.Caller {
		return nil
	}
	return os.Chown(f.script(), int(acc.UID), int(acc.GID))
}

// removeTree removes a directory of any depth. os.RemoveAll holds a file for each level, and a job may nest
// more levels than there are files; then the tree is flattened first, one level at a time.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENAMETOOLONG) {
		return err
	}
	flat, err := os.MkdirTemp(filepath.Dir(dir), ".removing-*") // swept at the next start if this is cut short
	if err != nil {
		return err
	}
	next := 0
	lift := func(from string) error {
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			path := filepath.Join(from, entry.Name())
			if !entry.IsDir() {
				err = os.Remove(path)
			} else {
				next++
				if err = os.Chmod(path, 0o700); err == nil { // moving a directory rewrites its ".."
					err = os.Rename(path, filepath.Join(flat, strconv.Itoa(next)))
				}
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return os.Remove(from)
	}
	if err := lift(dir); err != nil {
		return err
	}
	for done := 1; done <= next; done++ { // next grows while levels are lifted; every directory is lifted once
		if err := lift(filepath.Join(flat, strconv.Itoa(done))); err != nil {
			return err
		}
	}
	return os.Remove(flat)
}

// sweepRuns removes what belongs to none of the runs.
func sweepRuns(state string, runs map[RunID]*kept) error {
	root := filepath.Join(state, runsDir)
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("cannot list run directory: %w", err)
	}
	belongs := map[string]bool{}
	for id := range runs {
		f := filesOf(state, id)
		for _, path := range append(f.plain(), f.work()) {
			belongs[filepath.Base(path)] = true
		}
	}
	var errs []error
	for _, e := range entries {
		if !belongs[e.Name()] {
			errs = append(errs, removeTree(filepath.Join(root, e.Name())))
		}
	}
	return errors.Join(errs...)
}
