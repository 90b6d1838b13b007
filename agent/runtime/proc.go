package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// procStat is what /proc/PID/stat says that this package needs; proc(5) numbers the fields.
type procStat struct {
	PID     int
	State   byte   // 3
	PPID    int    // 4
	Group   int    // 5
	Session int    // 6
	Start   uint64 // 22, clock ticks after boot: with the pid it names a process for good
}

// parseStat reads a stat line. The command name may hold spaces and parentheses, so fields count
// from the last ')'.
func parseStat(line []byte) (procStat, error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return procStat{}, errors.New("cannot parse process stat: no command name")
	}
	var s procStat
	var err error
	if s.PID, err = strconv.Atoi(strings.TrimSpace(string(line[:open]))); err != nil {
		return procStat{}, fmt.Errorf("cannot parse process stat: %w", err)
	}
	f := strings.Fields(string(line[end+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, fmt.Errorf("cannot parse process stat: %d fields after the name, at least 20 expected", len(f))
	}
	s.State = f[0][0]
	for i, dst := range []*int{&s.PPID, &s.Group, &s.Session} {
		if *dst, err = strconv.Atoi(f[1+i]); err != nil {
			return procStat{}, fmt.Errorf("cannot parse process stat: %w", err)
		}
	}
	if s.Start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return procStat{}, fmt.Errorf("cannot parse process stat: %w", err)
	}
	return s, nil
}

func readStat(pid int) (procStat, error) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(line)
}

// alive reports whether the very process still runs: same pid, same start, not a zombie.
func alive(pid int, start uint64) bool {
	s, err := readStat(pid)
	return err == nil && s.Start == start && s.State != 'Z' && s.State != 'X'
}

// processes lists every process; those that vanish meanwhile are left out.
func processes() []procStat {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []procStat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// taggedRun is the SUBSTRATE_RUN_ID in a process's environment, "" when there is none to see.
// It finds processes that left their run's session.
func taggedRun(pid int) RunID {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for _, kv := range bytes.Split(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte("SUBSTRATE_RUN_ID=")); ok {
			return RunID(id)
		}
	}
	return ""
}

// threadChildren lists the children of one thread of this process.
func threadChildren(tid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", tid))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
