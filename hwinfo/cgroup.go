package hwinfo

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// cgroup is one line of /proc/self/cgroup; version 2 has hierarchy 0 and no controllers.
type cgroup struct {
	hierarchy   int
	controllers []string
	path        string // absolute, cleaned
}

const (
	cgroupFile = "proc/self/cgroup"
	cgroupDir  = "sys/fs/cgroup"
	statusFile = "proc/self/status"
	maxDepth   = 64
)

// parseCgroups reads lines "4:cpu,cpuacct:/a/b".
func parseCgroups(r io.Reader) ([]cgroup, error) {
	data, err := readLimited(r, 1<<20)
	if err != nil {
		return nil, err
	}
	var out []cgroup
	for line := range lines(data) {
		if line == "" {
			continue
		}
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			return nil, fmt.Errorf("cannot parse line %q", short(line))
		}
		n, err := strconv.ParseUint(f[0], 10, 31)
		if err != nil || len(out) >= 64 {
			return nil, fmt.Errorf("cannot parse line %q", short(line))
		}
		g := cgroup{hierarchy: int(n), path: path.Join("/", f[2])}
		if f[1] != "" {
			g.controllers = strings.Split(f[1], ",")
		}
		out = append(out, g)
	}
	return out, nil
}

// cgroupDirs returns the directories that may hold a controller's files, and the group in it. Version 1 mounts
// carry all controllers' names or one of them.
func cgroupDirs(groups []cgroup, controller string) (dirs []string, group string, v2 bool) {
	for _, g := range groups {
		if slices.Contains(g.controllers, controller) {
			joined := cgroupDir + "/" + strings.Join(g.controllers, ",")
			return []string{joined, cgroupDir + "/" + controller}, g.path, false
		}
	}
	for _, g := range groups {
		if g.hierarchy == 0 && len(g.controllers) == 0 {
			return []string{cgroupDir, cgroupDir + "/unified"}, g.path, true
		}
	}
	return nil, "", false
}

// readLimits takes the smallest limit of the own group and its parents. A limit that does not bind — as large as
// the machine, or version 1's page-rounded maximum — is none.
func (r *reader) readLimits(total *uint64, online []int) Limits {
	data, err := r.t.readRaw(cgroupFile, 1<<20)
	if err != nil && !absent(err) {
		r.warn(cgroupFile, err)
	}
	groups, err := parseCgroups(bytes.NewReader(data))
	if err != nil {
		r.warn(cgroupFile, err)
		groups = nil
	}
	r.recordCgroups(groups)
	l := Limits{
		Memory: r.memoryLimit(groups, total),
		CPUs:   r.quota(groups, len(online)),
		CPUSet: r.cpuset(groups, online),
	}
	return r.withAffinity(l, online).withCPUSet()
}

// withAffinity narrows the set to the CPUs that this process may run on. Where none of them is online they are counted in
// another numbering, the host's, and only their count is of use.
func (r *reader) withAffinity(l Limits, online []int) Limits {
	data, err := r.t.read(statusFile, maxAttr)
	if err != nil {
		if !absent(err) {
			r.warn(statusFile, err)
		}
		return l
	}
	allowed, err := parseAffinity(data)
	if err != nil {
		r.warn(statusFile, err)
	}
	if len(allowed) == 0 || len(online) == 0 {
		return l
	}
	set := l.CPUSet
	if set == nil {
		set = online
	}
	both := intersect(set, allowed)
	switch {
	case len(both) == 0 && len(allowed) < len(set):
		if n := float64(len(allowed)); l.CPUs == nil || *l.CPUs > n {
			l.CPUs = &n
		}
	case len(both) > 0 && len(both) < len(online):
		l.CPUSet = both
	}
	return l
}

// parseAffinity reads the list of /proc/self/status.
func parseAffinity(data []byte) ([]int, error) {
	for line := range lines(data) {
		if key, value, ok := keyValue(line); ok && key == "Cpus_allowed_list" {
			return parseList(value, maxCPUs)
		}
	}
	return nil, nil
}

// withCPUSet bounds the CPU limit by the number of CPUs allowed.
func (l Limits) withCPUSet() Limits {
	if n := float64(len(l.CPUSet)); n > 0 && (l.CPUs == nil || *l.CPUs > n) {
		l.CPUs = &n
	}
	return l
}

// recordCgroups puts groups into a snapshot under names that tell nothing of users, sessions or containers.
func (r *reader) recordCgroups(groups []cgroup) {
	if r.t.rec == nil || len(groups) == 0 {
		return
	}
	var b bytes.Buffer
	for _, g := range groups {
		if len(g.controllers) > 0 && strings.HasPrefix(g.controllers[0], "name=") {
			continue // a hierarchy without a controller limits nothing
		}
		fmt.Fprintf(&b, "%d:%s:%s\n", g.hierarchy, strings.Join(g.controllers, ","), neutral(g.path))
	}
	r.t.rec.files[cgroupFile] = b.Bytes()
}

// neutral replaces a group's name by its depth: only one group of a depth is ever read.
func neutral(group string) string {
	if group == "/" {
		return group
	}
	var b strings.Builder
	for i := range strings.Count(group, "/") {
		fmt.Fprintf(&b, "/level%d", i+1)
	}
	return b.String()
}

// climb reads a file of the group and of each parent, innermost first, until visit returns false.
func (r *reader) climb(dirs []string, group string, files []string, visit func(source, text string) bool) {
	for _, dir := range dirs {
		found := false
		for depth, g := 0, group; depth < maxDepth; depth, g = depth+1, path.Dir(g) {
			for _, file := range files {
				source := path.Join(dir, g, file)
				data, err := r.t.readAs(source, path.Join(dir, neutral(g), file), maxAttr)
				if err != nil {
					if !absent(err) {
						r.warn(source, err)
					}
					continue
				}
				found = true
				if !visit(source, strings.TrimSpace(string(data))) {
					return
				}
				break
			}
			if g == "/" {
				break
			}
		}
		if found {
			return
		}
	}
}

func (r *reader) memoryLimit(groups []cgroup, total *uint64) *uint64 {
	dirs, group, v2 := cgroupDirs(groups, "memory")
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	var limit *uint64
	r.climb(dirs, group, []string{file}, func(source, text string) bool {
		n, err := parseLimit(text)
		if err != nil {
			r.warn(source, err)
		} else if n != nil && (limit == nil || *n < *limit) {
			limit = n
		}
		return true
	})
	if limit != nil && total != nil && *limit >= *total {
		return nil
	}
	return limit
}

// parseLimit reads bytes; nil is unlimited. Version 1 says it with the largest number rounded to a page.
func parseLimit(s string) (*uint64, error) {
	if s == "max" || s == "-1" {
		return nil, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%q is not a limit", short(s))
	}
	if n >= 1<<62 {
		return nil, nil
	}
	return &n, nil
}

// quota is CPU time per time, in CPUs.
func (r *reader) quota(groups []cgroup, online int) *float64 {
	dirs, group, v2 := cgroupDirs(groups, "cpu")
	var limit *float64
	lower := func(source, text string) {
		n, err := parseQuota(text)
		if err != nil {
			r.warn(source, err)
		} else if n != nil && (limit == nil || *n < *limit) {
			limit = n
		}
	}
	if v2 {
		r.climb(dirs, group, []string{"cpu.max"}, func(source, text string) bool {
			lower(source, text)
			return true
		})
	} else {
		r.climb(dirs, group, []string{"cpu.cfs_quota_us"}, func(source, text string) bool {
			period := strings.TrimSuffix(source, "cpu.cfs_quota_us") + "cpu.cfs_period_us"
			p, err := r.readPeriod(dirs, period)
			if err == nil {
				lower(source, text+" "+p)
			}
			return true
		})
	}
	if limit != nil && online > 0 && *limit >= float64(online) {
		return nil
	}
	return limit
}

// readPeriod reads the file beside a quota, under the neutral name of its group.
func (r *reader) readPeriod(dirs []string, source string) (string, error) {
	alias := source
	for _, dir := range dirs {
		if rest, ok := strings.CutPrefix(source, dir+"/"); ok {
			alias = path.Join(dir, neutral(path.Dir("/"+rest)), path.Base(rest))
			break
		}
	}
	data, err := r.t.readAs(source, alias, maxAttr)
	return strings.TrimSpace(string(data)), err
}

// parseQuota reads "quota period" in microseconds; "max" and -1 are unlimited, which is nil.
func parseQuota(s string) (*float64, error) {
	f := strings.Fields(s)
	if len(f) != 2 {
		return nil, fmt.Errorf("%q is not a quota", short(s))
	}
	if f[0] == "max" || f[0] == "-1" {
		return nil, nil
	}
	q, err1 := strconv.ParseUint(f[0], 10, 62)
	p, err2 := strconv.ParseUint(f[1], 10, 62)
	if err1 != nil || err2 != nil || p == 0 || q == 0 {
		return nil, fmt.Errorf("%q is not a quota", short(s))
	}
	return ptr(float64(q) / float64(p)), nil
}

// cpuset is the innermost group's effective set where it is smaller than the machine. cpuset.cpus itself is
// empty when unset.
func (r *reader) cpuset(groups []cgroup, online []int) []int {
	dirs, group, v2 := cgroupDirs(groups, "cpuset")
	file := "cpuset.effective_cpus"
	if v2 {
		file = "cpuset.cpus.effective"
	}
	var set []int
	r.climb(dirs, group, []string{file}, func(source, text string) bool {
		list, err := parseList(text, maxCPUs)
		if err != nil {
			r.warn(source, err)
		}
		set = list
		return len(list) == 0
	})
	if len(online) > 0 {
		set = intersect(set, online)
		if len(set) == len(online) {
			return nil
		}
	}
	return set
}

// Effective is what the reader's own process could use: the host's totals where no limit is tighter.
type Effective struct {
	CPUs   *float64
	Memory *uint64
}

// Effective applies the limits to the totals.
func (f *Facts) Effective() Effective {
	var e Effective
	if n := f.CPU.LogicalCPUs; n != nil {
		e.CPUs = ptr(float64(*n))
	}
	if l := f.Limits.CPUs; l != nil && (e.CPUs == nil || *l < *e.CPUs) {
		e.CPUs = l
	}
	e.Memory = f.Memory.Total
	if l := f.Limits.Memory; l != nil && (e.Memory == nil || *l < *e.Memory) {
		e.Memory = l
	}
	return e
}
