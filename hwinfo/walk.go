package hwinfo

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

const maxLinks = 40 // as the kernel's MAXSYMLINKS

// walkRoot resolves links itself, one component at a time: os.Root refuses absolute links, which
// distributions use for /etc/os-release and which mean the root's own file here.
type walkRoot struct{ r *os.Root }

var (
	_ opener = (*walkRoot)(nil)
	_ header = (*walkRoot)(nil)
)

func openWalkRoot(root string) (opener, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	return &walkRoot{r: r}, nil
}

func (w *walkRoot) read(name string, limit int64) ([]byte, error) {
	f, err := w.open(name, func(m fs.FileMode) error {
		if !m.IsRegular() { // opening a pipe would wait for its writer
			return errNotRegular
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f, limit)
}

func (w *walkRoot) head(name string, n int) ([]byte, error) {
	f, err := w.open(name, func(m fs.FileMode) error {
		if !m.IsRegular() {
			return errNotRegular
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buf := make([]byte, n)
	got, err := f.Read(buf)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buf[:got], err
}

func (w *walkRoot) opendir(name string) (directory, error) {
	f, err := w.open(name, func(m fs.FileMode) error {
		if !m.IsDir() {
			return syscall.ENOTDIR
		}
		return nil
	})
	if err != nil { // not a nil file in an interface
		return nil, err
	}
	return f, nil
}

func (w *walkRoot) open(name string, check func(fs.FileMode) error) (*os.File, error) {
	resolved, err := w.resolve(name, true)
	if err != nil {
		return nil, err
	}
	st, err := w.r.Stat(resolved)
	if err != nil {
		return nil, err
	}
	if err := check(st.Mode()); err != nil {
		return nil, err
	}
	return w.r.Open(resolved)
}

func (w *walkRoot) readlink(name string) (string, error) {
	resolved, err := w.resolve(name, false)
	if err != nil {
		return "", err
	}
	return w.r.Readlink(resolved)
}

func (w *walkRoot) close() error { return w.r.Close() }

func (w *walkRoot) resolve(name string, last bool) (string, error) {
	return resolve(name, last, func(name string) (string, bool, error) {
		st, err := w.r.Lstat(name)
		if err != nil || st.Mode()&fs.ModeSymlink == 0 {
			return "", false, err
		}
		target, err := w.r.Readlink(name)
		return target, true, err
	})
}

// resolve returns a path without links; ".." at the root stays there. look tells where a link leads whose directory has
// none in its path; last says whether the last component is followed too.
func resolve(name string, last bool, look func(name string) (target string, link bool, err error)) (string, error) {
	rest := strings.Split(name, "/")
	done := "."
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			done = path.Join("/", done, "..")[1:]
			if done == "" {
				done = "."
			}
			continue
		}
		next := path.Join(done, part)
		target, link, err := look(next)
		if err != nil {
			return "", err
		}
		if !link || (!last && len(rest) == 0) {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		if path.IsAbs(target) {
			done = "."
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}
