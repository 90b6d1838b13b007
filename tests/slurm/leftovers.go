package slurm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"substrate/tests/cluster"
)

// dirPrefix begins the name of every cluster's directory.
const dirPrefix = "substrate-slurm-"

// ownerFile names the process whose cluster a directory is.
const ownerFile = "owner"

// remove ends every process of a cluster and takes its directory away.
func remove(dir string) error {
	if err := cluster.KillAll(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot remove a cluster: %w", err)
	}
	return nil
}

func writeOwner(dir string) error {
	born, err := bornAt(os.Getpid())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), fmt.Appendf(nil, "%d %s\n", os.Getpid(), born), 0o644); err != nil {
		return fmt.Errorf("cannot own a directory: %w", err)
	}
	return nil
}

// bornAt is field 22 of proc_pid_stat(5): with it a process id says for ever who is meant.
func bornAt(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("cannot read process %d: %w", pid, err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("cannot read process %d: %d fields", pid, len(fields))
	}
	return fields[19], nil
}

// abandoned reports whether nobody lives who would take a directory away.
func abandoned(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil { // it is being made, or its maker died at once
		info, err := os.Stat(dir)
		return err == nil && time.Since(info.ModTime()) > time.Minute
	}
	pid, born, ok := strings.Cut(strings.TrimSpace(string(data)), " ")
	if n, err := strconv.Atoi(pid); ok && err == nil {
		now, err := bornAt(n)
		return err != nil || now != born
	}
	return true
}

// sweep takes away clusters whose tests and whose watchdogs were killed. Only root's own are looked at.
func sweep(t cluster.TB) {
	t.Helper()
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is well formed
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !abandoned(dir) {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != uint32(os.Geteuid()) {
			continue
		}
		t.Logf("taking away %s, whose test is gone", dir)
		if err := remove(dir); err != nil {
			t.Logf("%v", err)
		}
	}
}

// watchdog is a process that outlives a killed test and cleans up after it: the kernel closes the pipe that the
// test holds. Daemons die with the test by themselves; what they started does not.
type watchdog struct {
	cmd  *exec.Cmd
	hold io.WriteCloser
}

// watchdogScript looks several times: who is killed may have just started another.
const watchdogScript = `
trap '' HUP INT TERM QUIT
read -r dir || exit 1
read -r line && exit 0
i=0
while [ $i -lt 50 ]; do
  i=$((i+1)); found=
  for f in $(printf '%s' "$dir" | grep -lsFf - /proc/[0-9]*/cmdline /proc/[0-9]*/environ); do
    pid=${f#/proc/}; kill -9 "${pid%/*}" 2>/dev/null && found=1
  done
  [ -z "$found" ] && break
  sleep 0.1
done
rm -rf -- "$dir"
`

func watch(dir string) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start a watchdog: %w", err)
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", watchdogScript)
	cmd.Stdin, cmd.Dir, cmd.Env = r, "/", []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("cannot start a watchdog: %w", err)
	}
	if _, err := fmt.Fprintln(w, dir); err != nil { // not as an argument: the watchdog is none of the cluster's processes
		return nil, fmt.Errorf("cannot start a watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, hold: w}, nil
}

// dismiss sends the watchdog home.
func (w *watchdog) dismiss() {
	if w == nil {
		return
	}
	_, _ = io.WriteString(w.hold, "done\n")
	_ = w.hold.Close()
	_ = w.cmd.Wait()
}
