// Package archive appends records that have expired to files of JSON lines. It never reads them back.
package archive

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Writer takes the lines of one append.
type Writer struct{ out *bufio.Writer }

// Line writes v as one line.
func (w *Writer) Line(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cannot encode record: %w", err)
	}
	if _, err := w.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("cannot write record: %w", err)
	}
	return nil
}

// Append adds lines to the file of a kind and month, <dir>/<kind>-2006-01.jsonl, which only the owner reads. When it
// returns nil they are on the disk. After an error, or a crash, the file may end in some of the lines and in
// half a one; the next append begins on a line of its own.
func Append(dir, kind string, month time.Time, write func(*Writer) error) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make archive directory: %w", err)
	}
	path := filepath.Join(dir, kind+"-"+month.UTC().Format("2006-01")+".jsonl")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open archive: %w", err)
	}
	defer func() {
		if closeErr := f.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("cannot close archive: %w", closeErr)
		}
	}()
	w := &Writer{out: bufio.NewWriterSize(f, 64<<10)}
	if err := w.onOwnLine(f); err != nil {
		return fmt.Errorf("cannot continue archive: %w", err)
	}
	if err := write(w); err != nil {
		return errors.Join(err, w.out.Flush())
	}
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("cannot write archive: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("cannot sync archive: %w", err)
	}
	return syncDir(dir)
}

// onOwnLine ends a line that was cut off.
func (w *Writer) onOwnLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last[0] != '\n' {
		return w.out.WriteByte('\n')
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot sync archive directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("cannot sync archive directory: %w", err)
	}
	return nil
}
