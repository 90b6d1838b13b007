package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

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
	usage  kernelFile        // bytes charged to it, "" for none
	born   bool              // v1: the child is born in the group, see enter
	memory Bytes             // limits as set
	cpus   float64
	ooms   uint64 // out-of-memory kills of earlier runs
}

const (
	maxFreeGroups = 64
	maxCharged    = 8 << 20 // bytes that the next run would have to do without at worst
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
		g := c.reopen(runGroup + strconv.Itoa(c.next))
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

// reserve keeps the name of a group that an earlier keeper made from being given again.
func (c *cgroups) reserve(name string) {
	if c == nil {
		return
	}
	if n, err := strconv.Atoi(strings.TrimPrefix(name, runGroup)); err == nil && n < math.MaxInt32 {
		c.next = max(c.next, n)
	}
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
	for _, f := range []*kernelFile{&g.procs, &g.oom, &g.usage} {
		*f = keepOpen(f.path, syscall.O_RDONLY)
	}
}

// release gives back the group of a run that has ended. One that still has a process, or is still charged with
// much memory (files that the run left in memory), is not used again.
func (c *cgroups) release(g *group) {
	if g == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.procs.fd < 0 || len(c.free) >= maxFreeGroups || g.busy() || g.charged() > maxCharged { // not made here, or not to be kept
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
	g := &group{name: name, c: c, has: map[string]string{}, dir: closed, procs: closed, oom: closed, usage: closed}
	for _, h := range c.v1 {
		dir := filepath.Join(h.base, name)
		g.v1, g.has[h.controller] = append(g.v1, dir), dir
	}
	if c.v2 != nil {
		g.v2 = filepath.Join(c.v2.base, name)
		g.procs.path, g.oom.path = filepath.Join(g.v2, "cgroup.procs"), filepath.Join(g.v2, "memory.events")
		g.usage.path = filepath.Join(g.v2, "memory.current")
		return g
	}
	g.procs.path = filepath.Join(g.v1[0], "cgroup.procs")
	if dir := g.has["freezer"]; dir != "" { // the one where others have no business
		g.procs.path = filepath.Join(dir, "cgroup.procs")
	}
	if dir := g.has["memory"]; dir != "" {
		g.oom.path, g.usage.path = filepath.Join(dir, "memory.oom_control"), filepath.Join(dir, "memory.usage_in_bytes")
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

// charged is how much memory the kernel counts as the group's, 0 where that is not known.
func (g *group) charged() uint64 {
	if g.usage.path == "" {
		return 0
	}
	text, err := g.usage.read()
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
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
		defer g.thaw()
	}
	pids := g.procs.pids()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return len(pids) > 0
}

// thaw lets the processes go on that a keeper froze which was killed before it had killed them.
func (g *group) thaw() {
	if freezer := g.has["freezer"]; freezer != "" {
		_ = writeFile(filepath.Join(freezer, "freezer.state"), "THAWED")
	}
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
	for _, f := range []*kernelFile{&g.dir, &g.procs, &g.oom, &g.usage} {
		f.close()
	}
	for _, dir := range g.dirs() {
		rmdir(dir)
	}
}
