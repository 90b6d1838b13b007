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

// group is one run's control group; it is used again when it is empty, for making one costs more than a
// run of a moment. A nil group is a run without.
type group struct {
	name   string
	v2     string   // directory, "" under v1
	v1     []string // directories
	c      *cgroups
	has    map[string]string // v1: controller → directory
	dir    kernelFile        // v2: kept open, the child is born in it
	tasks  []kernelFile      // v1: kept open, in the order of the directories
	procs  kernelFile        // its list of processes
	oom    kernelFile        // its count of out-of-memory kills, "" for none
	born   bool              // v1: the child is born in the group, see enter
	memory Bytes             // limits as set
	cpus   float64
	ooms   uint64 // out-of-memory kills of earlier runs
}

const (
	maxFreeGroups = 64
	maxGroupTries = 1000
)

// create takes or makes a group and sets its limits. What fails leaves the run without that limit
// only, and is told; what this node cannot do at all the warnings have already said.
func (c *cgroups) create(memory Bytes, cpus float64, attr *syscall.SysProcAttr) (*group, error) {
	if c == nil || c.v2 == nil && len(c.v1) == 0 {
		return nil, nil
	}
	g, err := c.take()
	if err != nil {
		return nil, err
	}
	if g.dir.fd >= 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, g.dir.fd
	}
	return g, g.limit(memory, cpus)
}

func (c *cgroups) take() (*group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.free); n > 0 {
		g := c.free[n-1]
		c.free = c.free[:n-1]
		return g, nil
	}
	for range maxGroupTries {
		c.next++
		g := c.reopen("run-" + strconv.Itoa(c.next))
		err := g.make()
		if err == nil {
			return g, nil
		}
		if !errors.Is(err, fs.ErrExist) { // a run of an earlier keeper is still in that one
			return nil, err
		}
	}
	return nil, errors.New("cannot make a control group: too many are in use")
}

// make creates the directories and keeps open what each run needs. None of them may be there before.
func (g *group) make() error {
	for i, dir := range g.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			for _, made := range g.dirs()[:i] {
				rmdir(made)
			}
			return err
		}
	}
	g.keepOpen()
	return nil
}

func (g *group) keepOpen() {
	if g.v2 != "" {
		g.dir = keepOpen(g.v2, syscall.O_RDONLY|syscall.O_DIRECTORY)
	}
	for _, dir := range g.v1 {
		g.tasks = append(g.tasks, keepOpen(filepath.Join(dir, "tasks"), syscall.O_WRONLY))
	}
	g.procs, g.oom = keepOpen(g.procs.path, syscall.O_RDONLY), keepOpen(g.oom.path, syscall.O_RDONLY)
}

// release gives back the group of a run that has ended. One that still has a process, or whose memory ran
// out, is not used again.
func (c *cgroups) release(g *group) {
	if g == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.procs.fd < 0 || len(c.free) >= maxFreeGroups || g.busy() { // not made here, or not to be kept
		g.remove()
		return
	}
	c.free = append(c.free, g)
}

// limit sets what differs from what is set. 0 is no limit.
func (g *group) limit(memory Bytes, cpus float64) error {
	var memoryErr, cpuErr error
	if g.memory != memory && g.c.has["memory"] {
		if memoryErr = g.limitMemory(memory); memoryErr == nil {
			g.memory = memory
		}
	}
	if g.cpus != cpus && g.c.has["cpu"] {
		if cpuErr = g.limitCPU(cpus); cpuErr == nil {
			g.cpus = cpus
		}
	}
	return errors.Join(memoryErr, cpuErr)
}

func (g *group) limitMemory(memory Bytes) error {
	text := strconv.FormatUint(uint64(memory), 10)
	if g.v2 == "" {
		if memory == 0 {
			text = "-1"
		}
		return writeFile(filepath.Join(g.has["memory"], "memory.limit_in_bytes"), text)
	}
	if memory == 0 {
		text = "max"
	}
	_ = writeFile(filepath.Join(g.v2, "memory.oom.group"), "1") // since Linux 4.19
	return writeFile(filepath.Join(g.v2, "memory.max"), text)
}

func (g *group) limitCPU(cpus float64) error {
	quota := strconv.FormatInt(int64(cpus*cpuPeriod), 10)
	if g.v2 == "" {
		if cpus == 0 {
			quota = "-1"
		}
		return writeFile(filepath.Join(g.has["cpu"], "cpu.cfs_quota_us"), quota)
	}
	if cpus == 0 {
		quota = "max"
	}
	return writeFile(filepath.Join(g.v2, "cpu.max"), fmt.Sprintf("%s %d", quota, cpuPeriod))
}

// reopen names the group of a run that an earlier keeper started.
func (c *cgroups) reopen(name string) *group {
	if c == nil || name == "" || c.v2 == nil && len(c.v1) == 0 {
		return nil
	}
	closed := kernelFile{fd: -1}
	g := &group{name: name, c: c, has: map[string]string{}, dir: closed, procs: closed, oom: closed}
	for _, h := range c.v1 {
		dir := filepath.Join(h.base, name)
		g.v1, g.has[h.controller] = append(g.v1, dir), dir
	}
	if c.v2 != nil {
		g.v2 = filepath.Join(c.v2.base, name)
		g.procs.path, g.oom.path = filepath.Join(g.v2, "cgroup.procs"), filepath.Join(g.v2, "memory.events")
		return g
	}
	g.procs.path = filepath.Join(g.v1[0], "cgroup.procs")
	if dir := g.has["freezer"]; dir != "" { // the one where others have no business
		g.procs.path = filepath.Join(dir, "cgroup.procs")
	}
	if dir := g.has["memory"]; dir != "" {
		g.oom.path = filepath.Join(dir, "memory.oom_control")
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
// none of its own children can be missed. The thread must be locked until cgroups.leave has been called.
func (g *group) enter() {
	if g == nil || g.v2 != "" {
		return
	}
	g.c.away = true
	g.born = true
	for _, tasks := range g.tasks {
		g.born = tasks.write("0") == nil && g.born // 0 is the writing thread
	}
}

// leave takes the calling thread back home.
func (c *cgroups) leave() {
	if c == nil || !c.away {
		return
	}
	c.away = false
	for _, h := range c.v1 {
		_ = h.home.write("0")
	}
}

// attach puts a fresh child in that was not born there.
func (g *group) attach(pid int) {
	if g == nil || g.born || g.dir.fd >= 0 {
		return
	}
	for _, dir := range g.dirs() {
		_ = writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
	}
}

// busy reports processes in the group; zombies do not count, for the kernel has let them go.
func (g *group) busy() bool {
	if g == nil {
		return false
	}
	for _, pid := range g.procs.pids() {
		if s, err := readStat(pid); err == nil && s.State != 'Z' && s.State != 'X' {
			return true
		}
	}
	return false
}

// kill ends every process of the group at once; false when the group cannot do it.
func (g *group) kill() bool {
	if g == nil {
		return false
	}
	if g.v2 != "" && writeFile(filepath.Join(g.v2, "cgroup.kill"), "1") == nil {
		return true
	}
	freezer := g.has["freezer"]
	if freezer != "" {
		// Frozen processes cannot fork away from the signals.
		_ = writeFile(filepath.Join(freezer, "freezer.state"), "FROZEN")
		defer func() { _ = writeFile(filepath.Join(freezer, "freezer.state"), "THAWED") }()
	}
	pids := g.procs.pids()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids) > 0
}

// oomKilled reports an out-of-memory kill since the group was last asked.
func (g *group) oomKilled() bool {
	if g == nil {
		return false
	}
	before := g.ooms
	g.ooms = g.oomKills()
	return g.ooms > before
}

// oomKills reads memory.events (v2) or memory.oom_control (v1, since Linux 4.13).
func (g *group) oomKills() uint64 {
	if g.oom.path == "" {
		return 0
	}
	text, err := g.oom.read()
	if err != nil {
		return 0
	}
	return keyedCount(text, "oom_kill")
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
	for i := range g.tasks {
		g.tasks[i].close()
	}
	for _, f := range []*kernelFile{&g.dir, &g.procs, &g.oom} {
		f.close()
	}
	for _, dir := range g.dirs() {
		rmdir(dir)
	}
}
