// Package private writes files that only their owner may read. It makes no directory.
package private

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write puts a file of mode 0600 in the place of path in one step: after a crash there is the old one
// or the new one, whole.
func Write(path string, data []byte) error {
	if err := write(path, data); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func write(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close()) // or a power cut could undo the rename
}
