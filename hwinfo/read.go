package hwinfo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Read reads the facts of the node whose files lie below root: "/" on the node itself, the mount point of the
// host's root in a container, or what Snapshot or WriteArchive wrote. What cannot be read is left out of the facts and named in a
// warning; the rest stands. Warnings are sorted by source.
func Read(root string) (Facts, []Warning) {
	return read(root, nil)
}

func read(root string, answers Answers) (Facts, []Warning) {
	t, err := openTree(root, nil)
	if err != nil {
		return Facts{}, []Warning{{Source: ".", Message: clean(err.Error())}}
	}
	return t.facts(answers)
}

// facts reads all there is and closes the tree.
func (t *tree) facts(answers Answers) (Facts, []Warning) {
	r := &reader{t: t, live: t.live(), answers: answers}
	f := r.facts()
	if err := t.close(); err != nil {
		r.warn(".", err)
	}
	return f, r.sortedWarnings()
}

// reader gathers the facts of one root.
type reader struct {
	t        *tree
	live     bool
	answers  Answers
	slots    map[string]slot // of a snapshot
	cutPCI   bool            // the list of functions is not whole
	warnings []Warning
	dropped  int
}

func (r *reader) facts() Facts {
	var f Facts
	f.Uname, f.Hostname = r.readUname()
	f.FQDN = r.readFQDN(f.Hostname)
	var online []int
	var form cpuForm
	f.CPU, form, online = r.readCPU(f.Uname)
	f.Machine = r.readMachine(f.CPU, form, f.Uname)
	f.NUMA = r.readNUMA(online)
	f.Memory = r.readMemory(f.NUMA)
	f.NUMA = r.impliedNode(f.NUMA, online, f.Memory)
	if n := nodesWithCPUs(f.NUMA); n > 0 {
		f.CPU.NUMANodes = &n
	}
	f.OSRelease = r.readOSRelease()
	f.PCI = r.readPCI()
	f.GPUs = r.readGPUs(f.PCI)
	f.GPULinks = r.readLinks(f.GPUs, f.guest())
	f.RDMA = r.readRDMA(f.PCI)
	f.NICs = r.readNICs(f.PCI, f.RDMA)
	f.Disks = r.readDisks(f.PCI)
	if r.cutPCI { // a part of the list would be a wrong answer to how many
		f.PCI = nil
	}
	f.Limits = r.readLimits(f.Memory.Total, online)
	return f
}

// warn notes what could not be read from a source; the text of err carries no path of its own.
func (r *reader) warn(source string, err error) {
	if len(r.warnings) >= maxWarnings {
		r.dropped++
		return
	}
	r.warnings = append(r.warnings, Warning{Source: clean(source), Message: clean(err.Error())})
}

func (r *reader) sortedWarnings() []Warning {
	slices.SortFunc(r.warnings, func(a, b Warning) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Message, b.Message))
	})
	if r.dropped > 0 {
		r.warnings = append(r.warnings, Warning{Source: ".", Message: fmt.Sprintf("%d more warnings", r.dropped)})
	}
	return r.warnings
}

// numbered lists the numbers n of the entries prefix+n in a directory, ascending; no directory is none.
func (r *reader) numbered(dir, prefix string, limit int) []int {
	dir = path.Clean(dir)
	names, err := r.t.list(dir)
	if err != nil {
		if !absent(err) {
			r.warn(dir, err)
		}
		return nil
	}
	var out []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 31)
		if err != nil || strconv.FormatUint(n, 10) != digits {
			continue
		}
		out = append(out, int(n))
		r.t.recordDir(dir + "/" + name)
	}
	slices.Sort(out)
	if len(out) > limit {
		r.warn(dir, fmt.Errorf("more than %d entries, the rest is left out", limit))
		out = out[:limit]
	}
	return out
}

// errAbsent stands for the operating system's words about a file that is not there.
var errAbsent = errors.New("absent")

const unameFile = "uname"

// readUname asks the running kernel where root shows it, else reads what a snapshot holds.
func (r *reader) readUname() (Uname, string) {
	var u Uname
	node := ""
	if r.live {
		var err error
		if u, node, err = liveUname(); err != nil {
			r.warn(unameFile, err)
		}
	} else if data, err := r.t.read(unameFile, maxAttr); err == nil {
		if u, node, err = parseUname(bytes.NewReader(data)); err != nil {
			r.warn(unameFile, err)
		}
	}
	for _, f := range []struct {
		name string
		dst  *string
	}{
		{"ostype", &u.Sysname}, {"osrelease", &u.Release}, {"version", &u.Version}, {"hostname", &node},
	} {
		if *f.dst == "" {
			*f.dst, _ = r.t.attr("proc/sys/kernel/" + f.name)
		}
		*f.dst = clean(*f.dst)
	}
	u.Machine = clean(u.Machine)
	return u, node
}
