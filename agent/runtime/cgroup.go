package runtime

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultCgroupRoot = "/sys/fs/cgroup"
	noCgroups         = "none"
	groupPrefix       = "substrate-" // of the runs' parent, below the keeper's own group
	runGroup          = "run-"       // of a run's group, before its number
	cpuPeriod         = 100_000      // µs, the kernel's default
)

// hierarchy is one mounted tree. v2 has one for everything, v1 one for each controller.
type hierarchy struct {
	controller string     // "" for v2
	base       string     // where the runs' groups are made
	own        string     // the keeper's group
	home       kernelFile // v1: its tasks
}

// cgroups makes one control group for each run, as far as this node permits; warnings say what it
// does not. The zero and the nil value make none.
type cgroups struct {
	parent   string // directory name of the runs' parent: one for each state directory
	probe    bool   // look only
	v2       *hierarchy
	v1       []hierarchy
	has      map[string]bool // controllers that limits can use
	warnings []string

	mu   sync.Mutex
	next int      // number of the next group
	free []*group // empty groups, for the next runs
	away bool     // the thread that forks is in a run's v1 group
}

// openCgroups finds the keeper's own groups and makes a parent for runs below them. A group that
// some other manager set up may be divided only where it is delegated (systemd's rule: the xattr
// user.delegate or trusted.delegate is 1); a hierarchy's root has no manager in between.
func openCgroups(root, state string) *cgroups { return findCgroups(root, state, false) }

// probeCgroups says what openCgroups would find. It makes no group and moves no process.
func probeCgroups(root, state string) *cgroups { return findCgroups(root, state, true) }

func findCgroups(root, state string, probe bool) *cgroups {
	sum := sha256.Sum256([]byte(state))
	c := &cgroups{parent: groupPrefix + hex.EncodeToString(sum[:6]), probe: probe, has: map[string]bool{}}
	if root == noCgroups {
		return c
	}
	if root == "" {
		root = defaultCgroupRoot
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		c.warn("cannot read own control groups: %v", err)
		return c
	}
	c.open(root, parseCgroup(text))
	return c
}

func (c *cgroups) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// parseCgroup reads /proc/PID/cgroup (cgroups(7)): controller → path; "" is v2.
func parseCgroup(text []byte) map[string]string {
	own := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			continue
		}
		for _, controller := range strings.Split(f[1], ",") {
			own[controller] = f[2]
		}
	}
	return own
}

func (c *cgroups) open(root string, own map[string]string) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		c.openV2(root, own[""])
	} else {
		for _, controller := range []string{"memory", "cpu", "freezer"} {
			path, ok := own[controller]
			if !ok {
				continue
			}
			base, err := c.openBase(filepath.Join(root, controller), path)
			if err != nil {
				c.warn("cannot use control group %s: %v", controller, err)
				continue
			}
			own := filepath.Join(root, controller, path)
			h := hierarchy{controller: controller, base: base, own: own, home: kernelFile{fd: -1}}
			if !c.probe {
				h.home = keepOpen(filepath.Join(own, "tasks"), syscall.O_WRONLY)
			}
			c.v1 = append(c.v1, h)
			c.has[controller] = true
		}
	}
	for _, controller := range []string{"memory", "cpu"} {
		if !c.has[controller] {
			c.warn("runs are not limited in %s: no such control group is permitted here", controller)
		}
	}
}

// openBase makes the runs' parent in the nearest delegated group, or in the root.
func (c *cgroups) openBase(mount, own string) (string, error) {
	at := filepath.Join(mount, own)
	if own != "/" {
		switch {
		case delegated(at):
		case delegated(filepath.Dir(at)): // systemd's DelegateSubgroup=
			at = filepath.Dir(at)
		default:
			return "", fmt.Errorf("group %s belongs to another manager and is not delegated", own)
		}
	}
	base := filepath.Join(at, c.parent)
	if c.probe {
		if err := unix.Access(at, unix.W_OK); err != nil {
			return "", fmt.Errorf("cannot make a group in %s: %w", at, err)
		}
		return base, nil
	}
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return base, nil
}

func delegated(dir string) bool {
	var value [8]byte
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		if n, err := unix.Getxattr(dir, name, value[:]); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

func (c *cgroups) openV2(root, own string) {
	base, err := c.openBase(root, own)
	if err != nil {
		c.warn("cannot use control groups: %v", err)
		return
	}
	c.v2 = &hierarchy{base: base}
	at := filepath.Dir(base)
	if c.probe {
		c.probeV2(at)
		return
	}
	// A group with processes cannot give controllers to its children, so they move to a leaf. A
	// delegated group holds nothing but the agent and this keeper.
	if own != "/" {
		moveProcesses(at, filepath.Join(at, "agent"))
	}
	for _, controller := range []string{"memory", "cpu", "pids"} {
		err := writeFile(filepath.Join(at, "cgroup.subtree_control"), "+"+controller)
		if err == nil {
			err = writeFile(filepath.Join(base, "cgroup.subtree_control"), "+"+controller)
		}
		c.has[controller] = err == nil
	}
}

func (c *cgroups) probeV2(at string) {
	offered, err := os.ReadFile(filepath.Join(at, "cgroup.controllers"))
	if err != nil || unix.Access(filepath.Join(at, "cgroup.subtree_control"), unix.W_OK) != nil {
		return
	}
	for _, controller := range strings.Fields(string(offered)) {
		c.has[controller] = true
	}
}

// close removes the parents, and what is left of runs below them. The kernel keeps every group that
// has a process, so this is safe while runs go on: their groups and the parents stay.
func (c *cgroups) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.free {
		g.remove()
	}
	c.free = nil
	for i := range c.v1 {
		c.v1[i].home.close()
	}
	for _, base := range c.bases() {
		sweep(base)
		rmdir(base)
	}
}

// sweep removes the empty groups that a killed keeper left.
func (c *cgroups) sweep() {
	for _, base := range c.bases() {
		sweep(base)
	}
}

func (c *cgroups) bases() []string {
	var bases []string
	if c.v2 != nil {
		bases = append(bases, c.v2.base)
	}
	for _, h := range c.v1 {
		bases = append(bases, h.base)
	}
	return bases
}

func sweep(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			_ = syscall.Rmdir(filepath.Join(base, e.Name()))
		}
	}
}

// rmdir removes a group; the last process may take a moment to leave it.
func rmdir(dir string) {
	for range 20 {
		if err := syscall.Rmdir(dir); !errors.Is(err, syscall.EBUSY) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func moveProcesses(from, to string) {
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return
	}
	procs := kernelFile{filepath.Join(from, "cgroup.procs"), -1}
	for _, pid := range append(procs.pids(), os.Getpid()) {
		_ = writeFile(filepath.Join(to, "cgroup.procs"), strconv.Itoa(pid))
	}
}
