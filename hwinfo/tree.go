package hwinfo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Limits on what is taken from a root: files of a hostile or broken root must not fill memory.
const (
	maxFile     = 64 << 20 // a cpuinfo of 8192 CPUs is about 12 MiB
	maxSmall    = 1 << 20  // meminfo, os-release
	maxZones    = 16 << 20 // zoneinfo has some lines for each CPU and zone
	maxHosts    = 16 << 20 // sites list their whole network
	maxAttr     = 64 << 10 // sysfs attributes are one page
	maxEntries  = 1 << 16  // names of one directory
	maxCPUs     = 8192
	maxPCI      = 1 << 14
	maxNodes    = 1024     // MAX_NUMNODES of the kernel
	maxText     = 4 << 10  // one text of the report
	maxFlags    = 4096     // words of one list
	maxWords    = 64 << 10 // bytes of one list of words
	maxWarnings = 256
)

var errNotRegular = errors.New("not a regular file")

// tree reads files below one root; a symbolic link, absolute ones too, never leads out of it.
// It remembers what it read when rec is set, so that a snapshot holds the same files.
type tree struct {
	root opener
	rec  *recorder
}

// opener is the part that depends on the operating system. Names are relative and use "/".
type opener interface {
	// read returns a regular file's content and never waits on a pipe or device.
	read(name string, limit int64) ([]byte, error)
	// opendir opens a directory.
	opendir(name string) (directory, error)
	// readlink does not follow the last component.
	readlink(name string) (string, error)
	close() error
}

// directory is one that is open, an *os.File or a part of an archive.
type directory interface {
	Readdirnames(n int) ([]string, error)
	Close() error
}

// recorder holds files and links by their path in a snapshot.
type recorder struct {
	files map[string][]byte
	links map[string]string
	dirs  map[string]bool
}

func newRecorder() *recorder {
	return &recorder{files: map[string][]byte{}, links: map[string]string{}, dirs: map[string]bool{}}
}

func openTree(root string, rec *recorder) (*tree, error) {
	what, open := "root", openRoot
	if st, err := os.Stat(root); err == nil && st.Mode().IsRegular() {
		what, open = "archive", openArchive
	}
	o, err := open(root)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", what, cause(err))
	}
	return &tree{root: o, rec: rec}, nil
}

func (t *tree) close() error { return t.root.close() }

// read returns up to limit bytes of a regular file; more than that is an error.
func (t *tree) read(name string, limit int64) ([]byte, error) {
	return t.readAs(name, name, limit)
}

// readAs is read with another path in the snapshot.
func (t *tree) readAs(name, alias string, limit int64) ([]byte, error) {
	data, err := t.readRaw(name, limit)
	if err == nil && t.rec != nil {
		t.rec.files[alias] = scrub(alias, data)
	}
	return data, err
}

func (t *tree) readRaw(name string, limit int64) ([]byte, error) {
	data, err := t.root.read(name, limit)
	if err != nil {
		return nil, cause(err)
	}
	return data, nil
}

// readLimited reads all of r, or fails when it is longer than limit.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if known, ok := r.(interface{ Len() int }); ok { // a large text is not copied as it grows
		buf.Grow(int(min(int64(known.Len()), limit)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, cause(err)
	}
	if n > limit {
		return nil, tooLong(limit)
	}
	return buf.Bytes(), nil
}

func tooLong(limit int64) error { return fmt.Errorf("longer than %d bytes", limit) }

// attr returns a one-line sysfs attribute without the blanks around it.
func (t *tree) attr(name string) (string, error) {
	b, err := t.read(name, maxAttr)
	return strings.TrimSpace(string(b)), err
}

// list returns the names in a directory, sorted.
func (t *tree) list(name string) ([]string, error) {
	f, err := t.root.opendir(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, cause(err)
	}
	slices.Sort(names)
	t.recordDir(name)
	return names, nil
}

// recordDir puts a directory into the snapshot, whose being there is a fact.
func (t *tree) recordDir(name string) {
	if t.rec != nil {
		t.rec.dirs[name] = true
	}
}

// linkBase returns the last component of a link's target.
func (t *tree) linkBase(name string) (string, error) {
	target, err := t.root.readlink(name)
	if err != nil {
		return "", cause(err)
	}
	base := path.Base(target)
	if t.rec != nil {
		// Only the last component is a fact; the directories above it name where the device is plugged in.
		t.rec.links[name] = "../" + base
	}
	return base, nil
}

// exists tells whether a directory is there, behind a link too.
func (t *tree) exists(name string) bool {
	f, err := t.root.opendir(name)
	if err != nil {
		return false
	}
	f.Close()
	t.recordDir(name)
	return true
}

// live tells whether the root shows the running kernel: "/" itself, or the host's root seen from a container.
func (t *tree) live() bool {
	f, err := t.root.opendir("proc")
	if err != nil {
		return false
	}
	defer f.Close()
	file, ok := f.(*os.File)
	return ok && isProcfs(file)
}

// cause strips paths from an error: a warning names its source itself, relative to the root.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	var s *os.SyscallError
	if errors.As(err, &s) {
		err = s.Err
	}
	return err
}

// absent tells a file that is not there from one that cannot be read.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENODEV)
}
