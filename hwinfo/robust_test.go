package hwinfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"io/fs"

	"pgregory.net/rapid"
)

// fakeTree is an opener over texts by name.
type fakeTree map[string]string

func (f fakeTree) read(name string, _ int64) ([]byte, error) {
	if s, ok := f[name]; ok {
		return []byte(s), nil
	}
	return nil, fs.ErrNotExist
}
func (f fakeTree) opendir(string) (directory, error) { return nil, fs.ErrNotExist }
func (f fakeTree) readlink(string) (string, error)   { return "", fs.ErrNotExist }
func (f fakeTree) close() error                      { return nil }

// brokenTree is an opener of which some opens fail.
type brokenTree struct {
	opener
	fails func(name string) error
}

func (b brokenTree) read(name string, limit int64) ([]byte, error) {
	if err := b.fails(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/secret/" + name, Err: err}
	}
	return b.opener.read(name, limit)
}

func (b brokenTree) opendir(name string) (directory, error) {
	if err := b.fails(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/secret/" + name, Err: err}
	}
	return b.opener.opendir(name)
}

func (b brokenTree) readlink(name string) (string, error) {
	if err := b.fails(name); err != nil {
		return "", &fs.PathError{Op: "readlink", Path: "/secret/" + name, Err: err}
	}
	return b.opener.readlink(name)
}

func readBroken(tb testing.TB, root string, fails func(string) error) (Facts, []Warning) {
	o, err := openRoot(root)
	if err != nil {
		tb.Fatal(err)
	}
	defer o.close()
	r := &reader{t: &tree{root: brokenTree{o, fails}}}
	return r.facts(), r.sortedWarnings()
}

// TestAnyFileMayFail: whichever opens fail, with whichever error, the rest of the report stands, warnings are bounded and
// none of them tells a path outside of the root.
func TestAnyFileMayFail(t *testing.T) {
	root := sharedServer(t)
	whole, _ := Read(root)
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		every := rapid.Uint64Range(1, 50).Draw(rt, "every")
		cause := rapid.SampledFrom([]error{syscall.EIO, syscall.EACCES, syscall.EINVAL, syscall.ENODATA, syscall.ELOOP, syscall.EMFILE}).Draw(rt, "cause")
		f, warnings := readBroken(t, root, func(name string) error {
			h := seed
			for _, c := range []byte(name) {
				h = (h ^ uint64(c)) * 1099511628211
			}
			if h>>20%every == 0 {
				return cause
			}
			return nil
		})
		if len(warnings) > maxWarnings+1 {
			rt.Fatalf("%d warnings", len(warnings))
		}
		for _, w := range warnings {
			if strings.Contains(w.Message, "secret") || strings.Contains(w.Source, "secret") {
				rt.Fatalf("a warning tells a path: %v", w)
			}
		}
		if n := f.CPU.Cores; n != nil && (*n < 1 || *n > *whole.CPU.LogicalCPUs) {
			rt.Fatalf("%d cores", *n)
		}
		if len(f.PCI) > len(whole.PCI) || len(f.GPUs) > len(whole.GPUs) {
			rt.Fatalf("%d functions, %d GPUs", len(f.PCI), len(f.GPUs))
		}
		checkText(t, f)
	})
}

// TestOneFileFails: each source that is lost costs its own facts and leaves a warning that names it.
func TestOneFileFails(t *testing.T) {
	root := sharedServer(t)
	tests := []struct {
		source string
		lost   func(f Facts) bool
		kept   func(f Facts) bool
	}{
		{"proc/cpuinfo", func(f Facts) bool { return f.CPU.ModelName == "" }, func(f Facts) bool { return deref(f.CPU.Cores) == 64 && len(f.GPUs) == 8 }},
		{"proc/meminfo", func(f Facts) bool { return f.Memory.Total == nil }, func(f Facts) bool { return f.Memory.Host != nil }},
		{"etc/os-release", func(f Facts) bool { return f.OSRelease.ID == "" }, func(f Facts) bool { return f.CPU.ModelName != "" }},
		{"sys/devices/system/node/node1/cpulist", func(f Facts) bool { return len(f.NUMA) == 2 && f.NUMA[1].CPUs == nil }, func(f Facts) bool { return len(f.NUMA[0].CPUs) == 64 }},
		{"sys/devices/system/node/node1/meminfo", func(f Facts) bool { return f.NUMA[1].Memory == nil }, func(f Facts) bool { return len(f.NUMA[1].CPUs) == 64 }},
		{"sys/devices/system/memory/block_size_bytes", func(f Facts) bool { return f.Memory.Blocks == nil }, func(f Facts) bool { return f.Memory.Total != nil }},
		{"proc/self/cgroup", func(f Facts) bool { return f.Limits.Memory == nil }, func(f Facts) bool { return f.Memory.Total != nil }},
		{"sys/devices/system/cpu/online", func(f Facts) bool { return true }, func(f Facts) bool { return deref(f.CPU.LogicalCPUs) == 128 && deref(f.CPU.Cores) == 64 }},
		{"sys/devices/system/node", func(f Facts) bool { return len(f.NUMA) == 1 && f.NUMA[0].Implied }, func(f Facts) bool { return deref(f.CPU.Cores) == 64 }},
	}
	for _, tt := range tests {
		t.Run(tt.source, func(t *testing.T) {
			f, warnings := readBroken(t, root, func(name string) error {
				if name == tt.source {
					return syscall.EIO
				}
				return nil
			})
			if !tt.lost(f) || !tt.kept(f) {
				t.Errorf("got %s", asJSON(t, f))
			}
			named := false
			for _, w := range warnings {
				named = named || w.Source == tt.source && strings.Contains(w.Message, "input/output error")
			}
			if !named {
				t.Errorf("no warning names it: %v", warnings)
			}
		})
	}
}

// TestNoPermission: what only root may read is not worth a warning on a node where the agent is not root.
func TestNoPermission(t *testing.T) {
	f, warnings := readBroken(t, sharedServer(t), func(name string) error {
		if strings.HasPrefix(name, "sys/firmware") || strings.HasPrefix(name, dmiDir) {
			return syscall.EACCES
		}
		return nil
	})
	if len(warnings) > 0 || f.Memory.Modules != nil {
		t.Errorf("%v, %v", f.Memory.Modules, warnings)
	}
}

// TestFlagsLine: a line of flags longer than the buffers of usual readers loses neither its own end nor the CPUs after it.
func TestFlagsLine(t *testing.T) {
	root := t.TempDir()
	var flags strings.Builder
	for n := 0; flags.Len() < 70<<10; n++ {
		fmt.Fprintf(&flags, "flag_number_%06d ", n)
	}
	var b bytes.Buffer
	for n := range 2 {
		fmt.Fprintf(&b, "processor\t: %d\nvendor_id\t: GenuineIntel\nflags\t\t: %s\nphysical id\t: 0\ncore id\t\t: %d\n\n", n, flags.String(), n)
	}
	put(t, root, "proc/cpuinfo", b.Bytes())
	f, w := Read(root)
	if deref(f.CPU.LogicalCPUs) != 2 || deref(f.CPU.Cores) != 2 || len(f.CPU.Flags) < 3000 || f.CPU.Flags[0] != "flag_number_000000" {
		t.Errorf("%d CPUs, %d flags, %v", deref(f.CPU.LogicalCPUs), len(f.CPU.Flags), w)
	}
	checkText(t, f)
	checkSnapshot(t, root, f)
}

// TestEmptyFiles: directories and files that are there and hold nothing.
func TestEmptyFiles(t *testing.T) {
	root := serverTree(t)
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			err = os.Truncate(p, 0)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, warnings := Read(root)
	if f.CPU.ModelName != "" || f.Memory.Total != nil || len(f.PCI) != 240 || len(f.GPUs) != 0 || len(warnings) == 0 || len(warnings) > maxWarnings+1 {
		t.Errorf("%d warnings, %s", len(warnings), asJSON(t, f)[:400])
	}
	empty := t.TempDir()
	for _, dir := range []string{"proc", "sys", "etc", "run", "usr/lib"} {
		if err := os.MkdirAll(filepath.Join(empty, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if f, w := Read(empty); f.Digest() != (Facts{}).Digest() || len(w) == 0 {
		t.Errorf("an empty proc gives %s, %v", asJSON(t, f), w)
	}
}

// TestNoise: bytes that are not UTF-8, control characters and nonsense in every file give a report that is clean.
func TestNoise(t *testing.T) {
	root := serverTree(t)
	n := 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		n++
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for i := n % 7; i < len(data); i += 7 {
			data[i] = byte(0x80 + n%0x80)
		}
		return os.WriteFile(p, append(data, "\xff\xfe\x00\x1b[31m"...), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	f, warnings := Read(root)
	checkText(t, f)
	if len(warnings) > maxWarnings+1 {
		t.Errorf("%d warnings", len(warnings))
	}
	for _, w := range warnings {
		if w != (Warning{clean(w.Source), clean(w.Message)}) {
			t.Errorf("warning %q", w)
		}
	}
}

// TestLoops: links that lead in circles, to themselves and up again, in every directory that is walked.
func TestLoops(t *testing.T) {
	root := serverTree(t)
	for _, link := range [][2]string{
		{"sys/devices/system/node/node2", "node2"}, {"sys/devices/system/node/node3", "."}, {"sys/devices/system/node/node4", ".."},
		{"sys/devices/system/cpu/cpu128", "cpu128"}, {"sys/devices/system/memory/memory9999", "../memory/memory9999"},
		{"sys/bus/pci/devices/0000:f1:00.0", "0000:f1:00.0"}, {"sys/bus/pci/devices/0000:f2:00.0", "../devices"},
		{"sys/bus/pci/devices/0000:f3:00.0", "/sys/bus/pci/devices/0000:01:00.0"}, {"sys/class/net/a", "../net"}, {"sys/class/net/b", "b"},
		{"sys/class/dmi", "../class"}, {"proc/driver/nvidia/gpus/0000:f1:00.0", "../gpus"}, {"sys/block", "block"}, {"run", "/run"},
	} {
		putLink(t, root, link[0], link[1])
	}
	done := make(chan Facts, 1)
	go func() {
		f, _ := Read(root)
		done <- f
	}()
	select {
	case f := <-done:
		if deref(f.CPU.Cores) != 64 || len(f.GPUs) != 9 { // an absolute link to a function is one
			t.Errorf("%d cores, %d GPUs", deref(f.CPU.Cores), len(f.GPUs))
		}
		checkWalk(t, root, f)
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}

// TestHugeFiles: a file without end costs a bounded amount of memory and its own facts.
func TestHugeFiles(t *testing.T) {
	root := serverTree(t)
	for _, name := range []string{"proc/meminfo", "etc/os-release", cpuDir + "online", "sys/devices/system/node/node0/cpulist", "etc/hosts", statusFile} {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, 1<<40); err != nil { // a hole
			t.Fatal(err)
		}
	}
	f, warnings := Read(root)
	if deref(f.CPU.LogicalCPUs) != 128 || f.Memory.Total != nil || len(f.PCI) != 240 {
		t.Errorf("%d CPUs, %v", deref(f.CPU.LogicalCPUs), warnings)
	}
	tooLarge := 0
	for _, w := range warnings {
		if strings.HasPrefix(w.Message, "longer than") {
			tooLarge++
		}
	}
	if tooLarge < 5 {
		t.Errorf("warnings %v", warnings)
	}
}

// TestSnapshotThroughLinks: on a live system a card of RDMA leads to its function by a link, and its vendor is read through it.
func TestSnapshotThroughLinks(t *testing.T) {
	root := t.TempDir()
	device := "sys/devices/pci0000:16/0000:17:00.0"
	put(t, root, device+"/vendor", []byte("0x15b3\n"))
	put(t, root, device+"/modalias", []byte("pci:v000015B3d0000101Bsv000015B3sd00000000bc02sc07i00\n"))
	port := device + "/infiniband/mlx5_0/ports/1/"
	put(t, root, port+"rate", []byte("200 Gb/sec (4X HDR)\n"))
	put(t, root, port+"link_layer", []byte("InfiniBand\n"))
	putLink(t, root, device+"/infiniband/mlx5_0/device", "../../../0000:17:00.0")
	putLink(t, root, "sys/class/infiniband/mlx5_0", "../../devices/pci0000:16/0000:17:00.0/infiniband/mlx5_0")
	putLink(t, root, "sys/bus/pci/devices/0000:17:00.0", "../../../devices/pci0000:16/0000:17:00.0")
	f, w := Read(root)
	if len(f.RDMA) != 1 || f.RDMA[0].Fabric != "infiniband" || f.RDMA[0].Address != "0000:17:00.0" {
		t.Fatalf("got %s, %v", asJSON(t, f), w)
	}
	checkSnapshot(t, root, f)
	checkWalk(t, root, f)
}
