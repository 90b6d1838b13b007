package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestParseCgroup(t *testing.T) {
	got := parseCgroup([]byte("12:cpu,cpuacct:/a\n4:memory:/b/c\n3:name=systemd:/\n0::/user.slice\nbad\n9:pids:relative\n"))
	want := map[string]string{"cpu": "/a", "cpuacct": "/a", "memory": "/b/c", "name=systemd": "/", "": "/user.slice"}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%q: %q, want %q", k, got[k], v)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add([]byte("12:cpu,cpuacct:/a\n0::/\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, path := range parseCgroup(text) {
			if !strings.HasPrefix(path, "/") {
				t.Fatalf("path %q", path)
			}
		}
	})
}

// tree makes an empty hierarchy with the files of one group.
func tree(t *testing.T, dir string, files ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// offer has a group of a made-up tree used: the kernel is not there to fill a new one with files.
func offer(c *cgroups, name string) {
	g := c.reopen(name)
	g.keepOpen()
	c.free = append(c.free, g)
}

func TestLimitsV2(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "cgroup.controllers", "cgroup.subtree_control")
	tree(t, filepath.Join(root, "substrate"), "cgroup.subtree_control")
	run := filepath.Join(root, "substrate", "r")
	tree(t, run, "memory.max", "memory.oom.group", "cpu.max", "memory.events", "cgroup.procs")
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"": "/"})
	if len(c.warnings) != 0 || !c.has["memory"] || !c.has["cpu"] {
		t.Fatalf("%+v", c)
	}
	var attr syscall.SysProcAttr
	offer(c, "r")
	g, err := c.create(1<<30, 1.5, &attr)
	if err != nil {
		t.Fatal(err)
	}
	if !attr.UseCgroupFD || g.id() != "r" {
		t.Errorf("%+v %+v", attr, g)
	}
	g.attach(1)
	for file, want := range map[string]string{"memory.max": "1073741824", "memory.oom.group": "1", "cpu.max": "150000 100000", "cgroup.procs": ""} {
		if got := content(t, filepath.Join(run, file)); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if g.oomKilled() {
		t.Error("killed for memory?")
	}
	if err := os.WriteFile(filepath.Join(run, "memory.events"), []byte("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !g.oomKilled() {
		t.Error("the kill for memory was not seen")
	}
}

func TestLimitsV1(t *testing.T) {
	root := t.TempDir()
	for _, controller := range []string{"memory", "cpu"} {
		run := filepath.Join(root, controller, "substrate", "r")
		tree(t, run, "memory.limit_in_bytes", "memory.oom_control", "cpu.cfs_quota_us", "cgroup.procs")
	}
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"memory": "/", "cpu": "/"})
	offer(c, "r")
	g, err := c.create(1<<20, 2, &syscall.SysProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	g.attach(77)
	for file, want := range map[string]string{
		"memory/substrate/r/memory.limit_in_bytes": "1048576", "cpu/substrate/r/cpu.cfs_quota_us": "200000",
		"memory/substrate/r/cgroup.procs": "77", "cpu/substrate/r/cgroup.procs": "77",
	} {
		if got := content(t, filepath.Join(root, file)); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "memory/substrate/r/memory.oom_control"), []byte("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !g.oomKilled() {
		t.Error("the kill for memory was not seen")
	}
}

// What a run leaves in memory is charged to nobody else, and the name of a group that an earlier keeper's run is
// in is given to no other.
func TestGroupsNotUsedAgain(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "cgroup.controllers", "cgroup.subtree_control")
	run := filepath.Join(root, "substrate", "r")
	tree(t, run, "memory.max", "memory.current", "memory.events", "cgroup.procs")
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"": "/"})
	for charged, free := range map[string]int{"40960\n": 1, "1073741824\n": 0, "": 1} {
		c.free = nil
		offer(c, "r")
		g, err := c.take()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(run, "memory.current"), []byte(charged), 0o644); err != nil {
			t.Fatal(err)
		}
		if c.release(g); len(c.free) != free {
			t.Errorf("charged %q: %d free groups, want %d", charged, len(c.free), free)
		}
	}
	c.free = nil
	for _, name := range []string{"run-7", "run-x", "run-99999999999999999999", ""} {
		c.reserve(name)
	}
	if g, err := c.take(); err != nil || g.id() != "run-8" {
		t.Errorf("%v, %v", g.id(), err)
	}
}

// A keeper that was killed while it killed a run leaves it frozen.
func TestThaw(t *testing.T) {
	root := t.TempDir()
	tree(t, filepath.Join(root, "freezer", "substrate", "r"), "freezer.state", "cgroup.procs")
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"freezer": "/"})
	c.reopen("r").thaw()
	if got := content(t, filepath.Join(root, "freezer", "substrate", "r", "freezer.state")); got != "THAWED" {
		t.Errorf("the group is %q", got)
	}
}

// A limit that the kernel does not take is not lost in silence, and costs no other limit.
func TestFailedLimit(t *testing.T) {
	root := t.TempDir()
	tree(t, filepath.Join(root, "memory", "substrate", "r"))
	tree(t, filepath.Join(root, "cpu", "substrate", "r"), "cpu.cfs_quota_us")
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"memory": "/", "cpu": "/"})
	offer(c, "r")
	g, err := c.create(1<<20, 2, &syscall.SysProcAttr{})
	if g == nil || err == nil || !strings.Contains(err.Error(), "memory.limit_in_bytes") {
		t.Errorf("%v, %v", g, err)
	}
	if got := content(t, filepath.Join(root, "cpu", "substrate", "r", "cpu.cfs_quota_us")); got != "200000" {
		t.Errorf("quota %q", got)
	}
}

// A group of somebody else's is left alone, and the lack of limits is told.
func TestOthersGroupsAreLeftAlone(t *testing.T) {
	root := t.TempDir()
	tree(t, filepath.Join(root, "memory", "theirs"))
	tree(t, filepath.Join(root, "cpu"))
	c := &cgroups{parent: "substrate", has: map[string]bool{}}
	c.open(root, map[string]string{"memory": "/theirs", "cpu": "/"})
	if c.has["memory"] || !c.has["cpu"] {
		t.Errorf("%+v", c.has)
	}
	if all := strings.Join(c.warnings, "\n"); !strings.Contains(all, "belongs to another manager") || !strings.Contains(all, "not limited in memory") {
		t.Errorf("warnings %q", all)
	}
	if entries, _ := os.ReadDir(filepath.Join(root, "memory", "theirs")); len(entries) != 0 {
		t.Error("made a group there")
	}
}

// What the agent sees without making anything is what the keeper will find.
func TestProbe(t *testing.T) {
	root := t.TempDir()
	tree(t, filepath.Join(root, "memory", "theirs"))
	tree(t, filepath.Join(root, "cpu"))
	c := &cgroups{parent: "substrate", probe: true, has: map[string]bool{}}
	c.open(root, map[string]string{"memory": "/theirs", "cpu": "/"})
	if all := strings.Join(c.warnings, "\n"); !strings.Contains(all, "not limited in memory") || strings.Contains(all, "not limited in cpu") {
		t.Errorf("warnings %q", all)
	}
	if entries, _ := os.ReadDir(filepath.Join(root, "cpu")); len(entries) != 0 {
		t.Error("made a group")
	}
	root = t.TempDir()
	tree(t, root, "cgroup.subtree_control")
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c = &cgroups{parent: "substrate", probe: true, has: map[string]bool{}}
	c.open(root, map[string]string{"": "/"})
	if len(c.warnings) != 1 || !strings.Contains(c.warnings[0], "not limited in memory") || content(t, filepath.Join(root, "cgroup.subtree_control")) != "" {
		t.Errorf("warnings %q", c.warnings)
	}
}

// Without a living keeper the agent removes what a killed one left, and warns before there is one.
func TestStaleGroupsGo(t *testing.T) {
	state := stateDir(t)
	made := openCgroups("", state)
	defer made.close()
	for _, base := range made.bases() {
		if err := os.Mkdir(filepath.Join(base, "stale"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(state, 0o711); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(state)
	if err != nil {
		t.Fatal(err)
	}
	opts := ProcessOptions{Dir: state, Keeper: []string{"/no/keeper"}}
	p, err := NewProcess(opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.Warnings(), "\n"); got != strings.Join(made.warnings, "\n") {
		t.Errorf("warnings %q, want %q", got, made.warnings)
	}
	for _, base := range made.bases() {
		if _, err := os.Stat(base); err != nil {
			t.Errorf("a keeper's group was removed: %v", err)
		}
	}
	lock.Close()
	if _, err = NewProcess(opts); err != nil {
		t.Fatal(err)
	}
	for _, base := range made.bases() {
		if _, err := os.Stat(base); err == nil {
			t.Errorf("group %s is left over", base)
		}
	}
}

func TestNoGroups(t *testing.T) {
	var c *cgroups
	g, err := c.create(1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.attach(1)
	g.remove()
	if g != nil || g.busy() || g.kill() || g.oomKilled() || c.reopen("x") != nil || g.id() != "" {
		t.Error("a run without group is not one")
	}
}

// On a machine that permits groups, a process that left the session and cleared its environment is
// still the run's, and the group goes with the run.
func TestRealGroup(t *testing.T) {
	probe := openCgroups("", t.TempDir())
	defer probe.close()
	if probe.v2 == nil && len(probe.v1) == 0 {
		t.Skip("this machine permits no control groups: ", probe.warnings)
	}
	t.Setenv("SUBSTRATE_TEST_CGROUPS", defaultCgroupRoot)
	h := newHarness(t, stateDir(t), true)
	s := h.run(Spec{ID: "g", CPUs: 0.5, Script: `env -i setsid sh -c 'echo $$ >escaped; exec sleep 605' &
cat /proc/self/cgroup; while ! [ -s escaped ]; do sleep 0.01; done`})
	if s.Cause != CauseExited || s.ExitCode != 0 {
		t.Fatalf("%+v", s)
	}
	out := h.output("g", Stdout)
	if !strings.Contains(out, groupPrefix) {
		t.Errorf("the run is in no group: %s", out)
	}
	if pid := readPID(t, filepath.Join(filesOf(h.dir, "g").work(), "escaped")); !gone(pid)() {
		t.Errorf("process %d escaped", pid)
	}
	own := probeCgroups("", h.dir)
	// An empty group serves the next run, without the last one's limit.
	quota := "cat /sys/fs/cgroup/cpu$(sed -n 's/^[0-9]*:cpu://p' /proc/self/cgroup)/cpu.cfs_quota_us"
	if own.v2 != nil {
		quota = "cut -d' ' -f1 /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/cpu.max"
	}
	h.run(Spec{ID: "again", Script: "cat /proc/self/cgroup\n" + quota})
	again := h.output("again", Stdout)
	if !strings.HasPrefix(again, out) {
		t.Errorf("the group was not used again: %s, before %s", again, out)
	}
	if left := strings.TrimPrefix(again, out); own.has["cpu"] && left != "-1\n" && left != "max\n" {
		t.Errorf("the next run is limited to %s", left)
	}
	_ = h.rt.Stop(t.Context(), "g", 0, "")
	h.start(Spec{ID: "h", Script: `trap '' TERM; echo ready; while :; do sleep 0.02; done`})
	h.wait("h", StateRunning)
	_ = h.rt.Stop(t.Context(), "h", 0, "cancelled")
	if s := h.wait("h", StateEnded); s.Cause != CauseStopped {
		t.Errorf("%+v", s)
	}
	if w := h.rt.Warnings(); len(probe.warnings) != len(w) {
		t.Errorf("warnings %q, %q expected", w, probe.warnings)
	}
	pid := h.keeperPID()
	h.close()
	eventually(t, "keeper gone", gone(pid))
	for _, base := range own.bases() {
		if _, err := os.Stat(base); err == nil {
			t.Errorf("group %s is left over", base)
		}
	}
}
