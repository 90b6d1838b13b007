package hwinfo

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// Snapshot writes into dir, which must be empty or missing, the files below root that Read reads, so that Read(dir)
// gives the same facts on any machine. Serial numbers, hardware addresses, GPU UUIDs, names of control groups and
// unrelated lines of etc/hosts are not written. One file is made: "uname", with lines "machine: x86_64" for each
// field of uname(2), since no file under proc holds the machine name.
func Snapshot(root, dir string) error {
	return SnapshotWith(root, dir, nil)
}

// SnapshotWith is Snapshot of what ReadWith reads: the answers become files.
func SnapshotWith(root, dir string, answers Answers) error {
	rec, err := record(root, answers)
	if err != nil {
		return err
	}
	if err := rec.write(dir); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

var errNotEmpty = errors.New("directory is not empty")

func (rec *recorder) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return errNotEmpty
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	made := map[string]bool{}
	mkdir := func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		return root.MkdirAll(name, 0o755)
	}
	for _, name := range slices.Sorted(maps.Keys(rec.dirs)) {
		if _, link := rec.links[name]; link { // a link to a directory stands for it
			continue
		}
		if err := mkdir(rec.place(name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rec.files)) {
		p := rec.place(name)
		if err := mkdir(path.Dir(p)); err != nil {
			return err
		}
		if err := root.WriteFile(p, rec.files[name], 0o644); err != nil {
			return err
		}
	}
	return rec.writeLinks(root, mkdir)
}

// place is where a file lies that was read through a link which the snapshot holds too.
func (rec *recorder) place(name string) string {
	name = path.Clean(name)
	for range maxLinks {
		dir := path.Dir(name)
		for dir != "." && dir != "/" && rec.links[dir] == "" {
			dir = path.Dir(dir)
		}
		target := rec.links[dir]
		if target == "" {
			return name
		}
		if !path.IsAbs(target) {
			target = path.Join("/", path.Dir(dir), target)
		}
		name = path.Join(target, strings.TrimPrefix(name, dir))[1:]
	}
	return name
}

func (rec *recorder) writeLinks(root *os.Root, mkdir func(string) error) error {
	for _, name := range slices.Sorted(maps.Keys(rec.links)) {
		p := rec.place(name)
		if err := mkdir(path.Dir(p)); err != nil {
			return err
		}
		if err := root.Symlink(rec.links[name], p); err != nil {
			return err
		}
	}
	return nil
}

// scrub takes out of a file what tells this machine from another of its kind.
func scrub(name string, data []byte) []byte {
	switch {
	case name == "proc/cpuinfo":
		return scrubCPUInfo(data)
	case strings.HasPrefix(name, nvidiaDir) && path.Base(name) == "information":
		return slices.Concat(keepLines(data, "Model"), keepLines(data, "Minor"))
	case path.Base(name) == "uevent":
		return []byte("DRIVER=" + ueventDriver(data) + "\n")
	case path.Base(name) == "meminfo":
		return slices.Concat(keepLines(data, "MemTotal"), keepLines(data, "HugePages_Total"), keepLines(data, "Hugepagesize"))
	case name == zoneFile:
		present, managed := parseZones(data)
		return fmt.Appendf(nil, "present %d\nmanaged %d\n", present, managed)
	case name == dmiTable:
		return scrubDMI(data)
	case name == sysinfoFile:
		return slices.Concat(keepLines(data, "Manufacturer"), keepLines(data, "Type"), keepLines(data, "Program"))
	case name == statusFile:
		return keepLines(data, "Cpus_allowed_list")
	}
	return scrubAnswer(name, scrubKFD(name, data))
}

// scrubCPUInfo drops serial numbers: a line of their own on Arm boards, "identification" on s390x.
func scrubCPUInfo(data []byte) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(string(data)) {
		key, _, _ := keyValue(line)
		if strings.Contains(strings.ToLower(key), "serial") {
			continue
		}
		if i := strings.Index(line, "identification = "); i >= 0 {
			head, tail := line[:i+len("identification = ")], line[i+len("identification = "):]
			if j := strings.IndexByte(tail, ','); j >= 0 {
				line = head + strings.Repeat("0", j) + tail[j:]
			}
		}
		b.WriteString(line)
	}
	return b.Bytes()
}

// keepLines keeps the lines whose key ends in the word given.
func keepLines(data []byte, word string) []byte {
	var b bytes.Buffer
	for line := range lines(data) {
		key, _, ok := keyValue(line)
		if f := strings.Fields(key); ok && len(f) > 0 && f[len(f)-1] == word {
			b.WriteString(line + "\n")
		}
	}
	return b.Bytes()
}
