package hwinfo

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const procSuperMagic = 0x9fa0 // include/uapi/linux/magic.h

// openat2Root lets the kernel resolve links inside the root (RESOLVE_IN_ROOT, Linux 5.6).
type openat2Root struct {
	fd   int
	page [4097]byte // one more than a page, which is as long as an attribute can be
}

var (
	_ opener = (*openat2Root)(nil)
	_ header = (*openat2Root)(nil)
)

func openRoot(root string) (opener, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	o := &openat2Root{fd: fd}
	probe, err := o.openat2(".", unix.O_PATH)
	if err == nil {
		return o, unix.Close(probe)
	}
	// Old kernels and some container filters refuse the call.
	if err := unix.Close(fd); err != nil {
		return nil, err
	}
	return openWalkRoot(root)
}

func (o *openat2Root) openat2(name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 16 {
		fd, err := unix.Openat2(o.fd, name, &how)
		// EAGAIN: a rename elsewhere raced with the walk (openat2(2)).
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// read uses system calls directly: an os.File on a non-blocking descriptor costs twice as many, and a node has
// thousands of attributes. For the same reason what was opened is looked at only where its content is not plainly
// that of an attribute.
func (o *openat2Root) read(name string, limit int64) ([]byte, error) {
	fd, err := o.openat2(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := readSome(fd, o.page[:])
	if err != nil || n == 0 || n == len(o.page) {
		var st unix.Stat_t
		if serr := unix.Fstat(fd, &st); serr != nil {
			return nil, serr
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG { // a pipe without a writer, a device, a directory
			return nil, errNotRegular
		}
		if err != nil {
			return nil, err
		}
		if st.Size > limit { // told at once, not by reading up to there; procfs says 0 and sysfs a page
			return nil, tooLong(limit)
		}
	}
	if int64(n) > limit {
		return nil, tooLong(limit)
	}
	// Only procfs gives short pieces before the end.
	if n == 0 || n < len(o.page) && !strings.HasPrefix(name, "proc/") {
		return slices.Clone(o.page[:n]), nil
	}
	return readRest(fd, append(make([]byte, 0, 4*len(o.page)), o.page[:n]...), limit)
}

func readRest(fd int, buf []byte, limit int64) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, len(buf))
		}
		n, err := readSome(fd, buf[len(buf):cap(buf)])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; int64(len(buf)) > limit {
			return nil, tooLong(limit)
		}
	}
}

func readSome(fd int, buf []byte) (int, error) {
	for range 16 {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
	return 0, unix.EINTR
}

func (o *openat2Root) head(name string, n int) ([]byte, error) {
	fd, err := o.openat2(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotRegular
	}
	buf := make([]byte, n)
	for {
		got, err := unix.Read(fd, buf) // attributes give what they have in one piece
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return buf[:max(got, 0)], err
	}
}

func (o *openat2Root) opendir(name string) (directory, error) {
	fd, err := o.openat2(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (o *openat2Root) readlink(name string) (string, error) {
	fd, err := o.openat2(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Readlinkat(fd, "", buf[:])
	if err != nil {
		if errors.Is(err, unix.ENOENT) { // an empty path on something that is no link
			err = unix.EINVAL
		}
		return "", err
	}
	return string(buf[:n]), nil
}

func (o *openat2Root) close() error { return unix.Close(o.fd) }

// isProcfs tells whether an open directory is a procfs, which shows the running kernel.
func isProcfs(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && int64(st.Type) == procSuperMagic
}

// liveUname asks the running kernel.
func liveUname() (u Uname, node string, err error) {
	var raw unix.Utsname
	if err := unix.Uname(&raw); err != nil {
		return Uname{}, "", err
	}
	u = Uname{
		Sysname: unix.ByteSliceToString(raw.Sysname[:]),
		Release: unix.ByteSliceToString(raw.Release[:]),
		Version: unix.ByteSliceToString(raw.Version[:]),
		Machine: unix.ByteSliceToString(raw.Machine[:]),
	}
	return u, unix.ByteSliceToString(raw.Nodename[:]), nil
}
