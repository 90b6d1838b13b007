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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultCgroupRoot = "/sys/fs/cgroup"
	noCgroups         = "none"
	groupPrefix       = "substrate-" // of the runs' parent, below the keeper's own group
	cpuPeriod         = 100_000      // µs, the kernel's default
)

// hierarchy is one mounted tree. v2 has one for everything, v1 one for each controller.
type hierarchy struct {
	controller string // "" for v2
	base       string // where the runs' groups are made
	own        string // the keeper's group
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
			c.v1 = append(c.v1, hierarchy{controller, base, filepath.Join(root, controller, path)})
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
	for _, pid := range append(readPIDs(filepath.Join(from, "cgroup.procs")), os.Getpid()) {
		_ = writeFile(filepath.Join(to, "cgroup.procs"), strconv.Itoa(pid))
	}
}

// group is one run's control group. A nil group is a run without.
type group struct {
	name string
	v2   string   // directory, "" under v1
	v1   []string // directories
	home []string // v1: the keeper's groups, in the same order
	has  map[string]string
	fd   *os.File // v2: the child is born in the group
	born bool     // v1: so it is, see enter
}

// create makes the run's group and sets its limits. What fails leaves the run without that limit
// only, and is told; what this node cannot do at all the warnings have already said.
func (c *cgroups) create(name string, memory Bytes, cpus float64, attr *syscall.SysProcAttr) (*group, error) {
	if c == nil || c.v2 == nil && len(c.v1) == 0 {
		return nil, nil
	}
	g := c.reopen(name)
	for _, dir := range g.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			g.remove()
			return nil, err
		}
	}
	if g.v2 != "" {
		err := g.limitV2(memory, cpus, c.has)
		if f, openErr := os.Open(g.v2); openErr == nil {
			g.fd, attr.UseCgroupFD, attr.CgroupFD = f, true, int(f.Fd())
		}
		return g, err
	}
	var memoryErr, cpuErr error
	if dir := g.has["memory"]; dir != "" && memory > 0 {
		memoryErr = writeFile(filepath.Join(dir, "memory.limit_in_bytes"), strconv.FormatUint(uint64(memory), 10))
	}
	if dir := g.has["cpu"]; dir != "" && cpus > 0 {
		cpuErr = writeFile(filepath.Join(dir, "cpu.cfs_quota_us"), strconv.FormatInt(int64(cpus*cpuPeriod), 10))
	}
	return g, errors.Join(memoryErr, cpuErr)
}

func (g *group) limitV2(memory Bytes, cpus float64, has map[string]bool) error {
	var memoryErr, cpuErr error
	if memory > 0 && has["memory"] {
		memoryErr = writeFile(filepath.Join(g.v2, "memory.max"), strconv.FormatUint(uint64(memory), 10))
		_ = writeFile(filepath.Join(g.v2, "memory.oom.group"), "1") // since Linux 4.19
	}
	if cpus > 0 && has["cpu"] {
		cpuErr = writeFile(filepath.Join(g.v2, "cpu.max"), fmt.Sprintf("%d %d", int64(cpus*cpuPeriod), cpuPeriod))
	}
	return errors.Join(memoryErr, cpuErr)
}

// reopen names the group of a run that an earlier keeper started.
func (c *cgroups) reopen(name string) *group {
	if c == nil || name == "" || c.v2 == nil && len(c.v1) == 0 {
		return nil
	}
	g := &group{name: name, has: map[string]string{}}
	if c.v2 != nil {
		g.v2 = filepath.Join(c.v2.base, name)
	}
	for _, h := range c.v1 {
		dir := filepath.Join(h.base, name)
		g.v1, g.home, g.has[h.controller] = append(g.v1, dir), append(g.home, h.own), dir
	}
	return g
}

func (g *group) id() string {
	if g == nil {
		return ""
	}
	return g.name
}

func (g *group) dirs() []string {
	if g.v2 != "" {
		return []string{g.v2}
	}
	return g.v1
}

// enter takes the calling thread into the v1 groups, so that a child forked by it is born there and
// none of its own children can be missed. The thread must be locked until leave has been called.
func (g *group) enter() (leave func()) {
	if g == nil || g.v2 != "" {
		return func() {}
	}
	tid := strconv.Itoa(unix.Gettid())
	g.born = true
	for _, dir := range g.v1 {
		g.born = writeFile(filepath.Join(dir, "tasks"), tid) == nil && g.born
	}
	return func() {
		for _, dir := range g.home {
			_ = writeFile(filepath.Join(dir, "tasks"), tid)
		}
	}
}

// attach puts a fresh child in that was not born there.
func (g *group) attach(pid int) {
	if g == nil {
		return
	}
	if g.fd != nil {
		g.fd.Close()
		g.fd = nil
		return
	}
	for _, dir := range g.dirs() {
		if g.born {
			return
		}
		_ = writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
	}
}

// tracker is a directory whose cgroup.procs holds the run's processes.
func (g *group) tracker() string {
	switch {
	case g == nil:
		return ""
	case g.v2 != "":
		return g.v2
	case g.has["freezer"] != "":
		return g.has["freezer"]
	case len(g.v1) > 0:
		return g.v1[0]
	}
	return ""
}

// busy reports processes in the group; zombies do not count, for the kernel has let them go.
func (g *group) busy() bool {
	dir := g.tracker()
	if dir == "" {
		return false
	}
	for _, pid := range readPIDs(filepath.Join(dir, "cgroup.procs")) {
		if s, err := readStat(pid); err == nil && s.State != 'Z' && s.State != 'X' {
			return true
		}
	}
	return false
}

// kill ends every process of the group at once; false when the group cannot do it.
func (g *group) kill() bool {
	dir := g.tracker()
	if dir == "" {
		return false
	}
	if g.v2 != "" && writeFile(filepath.Join(dir, "cgroup.kill"), "1") == nil {
		return true
	}
	freezer := g.has["freezer"]
	if freezer != "" {
		// Frozen processes cannot fork away from the signals.
		_ = writeFile(filepath.Join(freezer, "freezer.state"), "FROZEN")
		defer func() { _ = writeFile(filepath.Join(freezer, "freezer.state"), "THAWED") }()
	}
	pids := readPIDs(filepath.Join(dir, "cgroup.procs"))
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids) > 0
}

// oomKilled reads memory.events (v2) or memory.oom_control (v1, since Linux 4.13).
func (g *group) oomKilled() bool {
	if g == nil {
		return false
	}
	path := filepath.Join(g.v2, "memory.events")
	if g.v2 == "" {
		if g.has["memory"] == "" {
			return false
		}
		path = filepath.Join(g.has["memory"], "memory.oom_control")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	return keyedCount(text, "oom_kill") > 0
}

// keyedCount reads "name number" lines.
func keyedCount(text []byte, name string) uint64 {
	for _, line := range strings.Split(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// remove deletes the group.
func (g *group) remove() {
	if g == nil {
		return
	}
	if g.fd != nil {
		g.fd.Close()
		g.fd = nil
	}
	for _, dir := range g.dirs() {
		rmdir(dir)
	}
}

// writeFile is one write to a kernel file, which must exist.
func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func readPIDs(path string) []int {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != os.Getpid() { // never ourselves: these are killed
			pids = append(pids, pid)
		}
	}
	return pids
}
