package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A state directory holds keeper.sock, keeper.lock, keeper.log and, for each run that is not
// forgotten, runs/<encoded id>/ with these files. spec.json is the first to appear and the first to go,
// so that a directory without it is a beginning or an end cut short, and is swept.
const (
	runsDir    = "runs"
	socketFile = "keeper.sock"
	lockFile   = "keeper.lock"
	keeperLog  = "keeper.log"

	specFile   = "spec.json"
	statusFile = "status.json"
	scriptFile = "script"
	noticeFile = "notice" // until when the run may tidy up, RFC 3339
	workDir    = "work"
)

// maxSpecFile bounds what is read back of a directory that somebody else may have written.
const maxSpecFile = maxFrame

// storedSpec is spec.json.
type storedSpec struct {
	Spec    Spec    `json:"spec"`
	Account account `json:"account"`
}

// record is status.json: the status and what finds the process again.
type record struct {
	Status Status `json:"status"`
	PID    int    `json:"pid,omitempty"`
	Start  uint64 `json:"start_ticks,omitempty"`
	BootID string `json:"boot_id,omitempty"`
	Group  string `json:"group,omitempty"` // control group name, "" for none
}

func runPath(state string, id RunID) string {
	return filepath.Join(state, runsDir, EncodeRunID(id))
}

// makeRunDir creates the directory, its spec and outputs. It returns the outputs opened for append.
func makeRunDir(dir string, s storedSpec) (out, errOut *os.File, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := writeJSON(filepath.Join(dir, specFile), s); err != nil {
		return nil, nil, err
	}
	if !s.Account.Caller {
		// The account passes through to its working directory and cannot list or add here.
		if err := os.Chmod(dir, 0o711); err != nil {
			return nil, nil, err
		}
	}
	if out, err = createOwned(filepath.Join(dir, string(Stdout)), s.Account); err != nil {
		return nil, nil, err
	}
	if errOut, err = createOwned(filepath.Join(dir, string(Stderr)), s.Account); err != nil {
		out.Close()
		return nil, nil, err
	}
	return out, errOut, nil
}

func createOwned(path string, acc account) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if !acc.Caller {
		if err := f.Chown(int(acc.UID), int(acc.GID)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

func makeWorkDir(dir string, acc account) error {
	path := filepath.Join(dir, workDir)
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	if acc.Caller {
		return nil
	}
	return os.Chown(path, int(acc.UID), int(acc.GID))
}

// writeScript holds ForkLock: a child forked meanwhile would inherit the open file until it
// executes, and the script's own start would fail with ETXTBSY.
func writeScript(path, text string, acc account) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o500); err != nil {
		return err
	}
	if acc.Caller {
		return nil
	}
	return os.Chown(path, int(acc.UID), int(acc.GID))
}

func writeJSON(path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o600)
}

// writeRecord replaces status.json in one step, so that a reader sees the old or the new one. It
// does not sync: losing power is losing the node.
func writeRecord(dir string, r record) error {
	tmp := filepath.Join(dir, statusFile+".tmp")
	if err := writeJSON(tmp, r); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, statusFile))
}

func readJSON(path string, v any) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSpecFile {
		return fmt.Errorf("cannot read %s: not a regular file of at most %d bytes", path, maxSpecFile)
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// removeRunDir removes spec.json first; see above.
func removeRunDir(dir string) error {
	if err := os.Remove(filepath.Join(dir, specFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeTree(dir)
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

func outputSize(dir string, s Stream) Bytes {
	info, err := os.Lstat(filepath.Join(dir, string(s)))
	if err != nil {
		return 0
	}
	return Bytes(info.Size())
}
