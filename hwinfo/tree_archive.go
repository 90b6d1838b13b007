package hwinfo

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/tools/txtar"
)

// Limits on an archive. A node of 8192 CPUs and 16384 PCI functions stays below both.
const (
	maxArchive  = maxFile
	maxArchived = 1 << 18 // files, links and directories
	maxTarget   = 4096    // PATH_MAX
	maxPath     = 1024    // sysfs stays far below
	maxLevels   = 32
	maxName     = 255 // NAME_MAX
)

// Marks behind a name in an archive.
const (
	hexMark  = " | hex" // bytes that are no plain text
	linkMark = " -> "   // a symbolic link and its target
)

// archiveRoot is a tree in memory. Paths in it are clean and lead through no links.
type archiveRoot struct {
	entries map[string]*archived
}

// archived is a file, a link or a directory.
type archived struct {
	data  []byte
	to    string   // where a link leads
	names []string // in a directory
	kind  archivedKind
	told  bool // a directory that has an entry of its own
}

type archivedKind uint8

const (
	archivedFile archivedKind = iota
	archivedLink
	archivedDir
)

var (
	_ opener = (*archiveRoot)(nil)
	_ header = (*archiveRoot)(nil)
)

func openArchive(name string) (opener, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	buf.Grow(int(min(max(st.Size(), 0), maxArchive)) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(f, maxArchive+1))
	if err != nil {
		return nil, err
	}
	if n > maxArchive {
		return nil, tooLong(maxArchive)
	}
	return parseArchive(buf.Bytes())
}

// parseArchive reads a txtar archive. "name/" is a directory that nothing need be in, "name -> target" a link,
// "name | hex" a file in hexadecimal; names and targets that are not plain stand in quotes as in Go. What is above the
// first entry is for people.
func parseArchive(data []byte) (*archiveRoot, error) {
	n := bytes.Count(data, []byte("\n-- "))
	if n > maxArchived {
		return nil, fmt.Errorf("more than %d entries", maxArchived)
	}
	a := &archiveRoot{entries: make(map[string]*archived, n+n/2)}
	a.entries["."] = &archived{kind: archivedDir}
	files := txtar.Parse(data).Files
	for i := range files {
		if err := a.add(&files[i]); err != nil {
			return nil, fmt.Errorf("entry %d %.200q: %w", i+1, files[i].Name, err)
		}
	}
	// Written last, so that it is missing from what was cut short.
	if e := a.entries[unameFile]; e == nil || e.kind != archivedFile {
		return nil, errors.New("there is no file uname in it: it is no snapshot, or not a whole one")
	}
	return a, nil
}

var (
	errTwice   = errors.New("it is there twice")
	errQuoting = errors.New("the quotes are wrong")
)

func (a *archiveRoot) add(f *txtar.File) error {
	name, rest, err := unquoteName(f.Name)
	if err != nil {
		return err
	}
	e := &archived{data: f.Data[:len(f.Data):len(f.Data)]}
	switch to, link := strings.CutPrefix(rest, linkMark); {
	case link:
		e.kind = archivedLink
		if e.to, rest, err = unquoteName(to); err != nil {
			return err
		}
		if rest != "" {
			e.to += rest // marks mean nothing in a target
		}
		if len(e.to) == 0 || len(e.to) >= maxTarget || strings.IndexByte(e.to, 0) >= 0 {
			return errors.New("the link's target is no path")
		}
	case rest == hexMark:
		if e.data, err = decodeHex(f.Data); err != nil {
			return err
		}
	case rest != "":
		return errQuoting
	case strings.HasSuffix(name, "/"):
		name, e.kind, e.told = strings.TrimSuffix(name, "/"), archivedDir, true
	}
	if e.kind != archivedFile {
		if len(bytes.TrimSpace(e.data)) > 0 {
			return errors.New("a link or directory has no content")
		}
		e.data = nil
	}
	if err := checkPath(name); err != nil {
		return err
	}
	if old := a.entries[name]; old != nil {
		if old.kind != archivedDir || e.kind != archivedDir || old.told {
			return errTwice
		}
		old.told = true
		return nil
	}
	return a.put(name, e)
}

// unquoteName splits an entry's name from the mark behind it.
func unquoteName(s string) (name, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		if i := strings.Index(s, linkMark); i >= 0 {
			return s[:i], s[i:], nil
		}
		name, isHex := strings.CutSuffix(s, hexMark)
		if isHex {
			rest = hexMark
		}
		return name, rest, nil
	}
	quoted, err := strconv.QuotedPrefix(s)
	if err == nil {
		name, err = strconv.Unquote(quoted)
	}
	if err != nil {
		return "", "", errQuoting
	}
	return name, s[len(quoted):], nil
}

func decodeHex(text []byte) ([]byte, error) {
	data, err := hex.AppendDecode(nil, bytes.Join(bytes.Fields(text), nil))
	if err != nil {
		return nil, fmt.Errorf("it is not hexadecimal: %w", err)
	}
	return data, nil
}

// checkPath refuses what could not be a path below a root.
func checkPath(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) > maxPath:
		return fmt.Errorf("its name is longer than %d bytes", maxPath)
	case strings.Count(name, "/") >= maxLevels:
		return fmt.Errorf("its name has more than %d parts", maxLevels)
	case name[0] == '/':
		return errors.New("its name is not relative")
	case strings.IndexByte(name, 0) >= 0:
		return errors.New("there is a zero byte in its name")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return errors.New("its name leads out of the archive")
		case part == "" || part == ".":
			return errors.New("its name has a part that is empty or a dot")
		case len(part) > maxName:
			return fmt.Errorf("its name has a part that is longer than %d bytes", maxName)
		}
	}
	return nil
}

// put adds an entry and the directories above it that are not there yet.
func (a *archiveRoot) put(name string, e *archived) error {
	for {
		if len(a.entries) > maxArchived {
			return fmt.Errorf("more than %d files, links and directories", maxArchived)
		}
		a.entries[name] = e
		dir := path.Dir(name)
		above, there := a.entries[dir]
		if !there {
			above = &archived{kind: archivedDir}
		} else if above.kind != archivedDir {
			return fmt.Errorf("it is below %q, which is no directory", dir)
		}
		above.names = append(above.names, path.Base(name))
		if there {
			return nil
		}
		name, e = dir, above
	}
}

// find returns what is at a path, through links if last is set.
func (a *archiveRoot) find(name string, last bool) (*archived, error) {
	if e := a.entries[name]; e != nil && (e.kind != archivedLink || !last) {
		return e, nil
	}
	real, err := resolve(name, last, func(name string) (string, bool, error) {
		e := a.entries[name]
		if e == nil {
			if above := a.entries[path.Dir(name)]; above != nil && above.kind != archivedDir {
				return "", false, syscall.ENOTDIR
			}
			return "", false, syscall.ENOENT
		}
		return e.to, e.kind == archivedLink, nil
	})
	if err != nil {
		return nil, err
	}
	return a.entries[real], nil
}

func (a *archiveRoot) read(name string, limit int64) ([]byte, error) {
	e, err := a.find(name, true)
	switch {
	case err != nil:
		return nil, err
	case e.kind != archivedFile:
		return nil, errNotRegular
	case int64(len(e.data)) > limit:
		return nil, tooLong(limit)
	}
	return e.data, nil
}

func (a *archiveRoot) head(name string, n int) ([]byte, error) {
	e, err := a.find(name, true)
	switch {
	case err != nil:
		return nil, err
	case e.kind != archivedFile:
		return nil, errNotRegular
	}
	n = min(n, len(e.data))
	return e.data[:n:n], nil
}

func (a *archiveRoot) opendir(name string) (directory, error) {
	e, err := a.find(name, true)
	switch {
	case err != nil:
		return nil, err
	case e.kind != archivedDir:
		return nil, syscall.ENOTDIR
	}
	return archivedNames(e.names), nil
}

func (a *archiveRoot) readlink(name string) (string, error) {
	e, err := a.find(name, false)
	switch {
	case err != nil:
		return "", err
	case e.kind != archivedLink:
		return "", syscall.EINVAL
	}
	return e.to, nil
}

func (a *archiveRoot) close() error { return nil }

// archivedNames are the names in a directory.
type archivedNames []string

func (d archivedNames) Readdirnames(n int) ([]string, error) {
	return append([]string{}, d[:min(n, len(d))]...), nil
}

func (d archivedNames) Close() error { return nil }
