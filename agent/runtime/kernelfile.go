package runtime

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// kernelFile is a file of a control group. It may be kept open, and is then read and written without opening
// it each time; os.File would moreover ask the poller about each.
type kernelFile struct {
	path string
	fd   int // -1: not open
}

const maxKernelFile = 1 << 16 // of what is read of one that is kept open

// keepOpen opens the file; one that cannot be opened is tried by its path at each use.
func keepOpen(path string, flags int) kernelFile {
	fd, err := syscall.Open(path, flags|syscall.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	return kernelFile{path, fd}
}

func (f *kernelFile) close() {
	if f.fd >= 0 {
		syscall.Close(f.fd)
		f.fd = -1
	}
}

func (f kernelFile) write(text string) error {
	if f.fd < 0 {
		return writeFile(f.path, text)
	}
	if _, err := syscall.Write(f.fd, []byte(text)); err != nil {
		return &fs.PathError{Op: "write", Path: f.path, Err: err}
	}
	return nil
}

func (f kernelFile) read() ([]byte, error) {
	if f.fd < 0 {
		return os.ReadFile(f.path)
	}
	buf := make([]byte, 256)
	for {
		n, err := syscall.Pread(f.fd, buf, 0)
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: f.path, Err: err}
		}
		if n < len(buf) {
			return buf[:n], nil
		}
		if len(buf) >= maxKernelFile {
			return os.ReadFile(f.path)
		}
		buf = make([]byte, 16*len(buf))
	}
}

// pids reads a list of processes, without this one: those of a list are killed.
func (f kernelFile) pids() []int {
	text, err := f.read()
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// writeFile is one write to a kernel file, which must exist.
func writeFile(path, text string) error {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := kernelFile{path, fd}
	defer f.close()
	return f.write(text)
}
