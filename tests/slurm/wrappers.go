package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// wrapped are the commands whose calls are counted and may fail.
func wrapped() []string {
	return []string{"sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel", "srun", "salloc", "sacctmgr", "sprio"}
}

// wrapperScript stands before one command. The command itself takes the wrapper's place wherever possible, so that
// who kills the wrapper kills the command. %[1]s is the cluster's directory, %[2]s the command's path, %[3]s its name,
// %[4]d and %[5]d are the ids of User, %[6]s is User's home, %[7]s the name.
const wrapperScript = `#!/bin/sh
real=%[2]s
SLURM_CONF=%[1]s/slurm.conf; export SLURM_CONF
become=
if [ "$(id -u)" = 0 ]; then
  become="setpriv --reuid=%[4]d --regid=%[5]d --clear-groups --"
  HOME=%[6]s USER=%[7]s LOGNAME=%[7]s; export HOME USER LOGNAME
  cd . 2>/dev/null || cd "$HOME"
fi
[ -w %[1]s/calls ] || exec $become "$real" "$@"
call=$(mktemp %[1]s/calls/%[3]s.XXXXXXXXXX) && printf '%%s\0' "$@" >"$call"
fault=
for f in %[1]s/faults/%[3]s/*; do
  [ -e "$f" ] || break
  mv "$f" %[1]s/faults/taken/%[3]s.$$ 2>/dev/null || continue
  read -r fault <%[1]s/faults/taken/%[3]s.$$
  rm -f %[1]s/faults/taken/%[3]s.$$
  break
done
arg=${fault#* }
case $fault in
'')      exec $become "$real" "$@" ;;
lose*)   $become "$real" "$@" >/dev/null 2>&1; kill -KILL $$ ;;
hang*)   $become "$real" "$@" >/dev/null 2>&1; exec sleep 86400 ;;
never*)  kill -KILL $$ ;;
before*) sleep "$arg"; exec $become "$real" "$@" ;;
after*)  out=$(mktemp %[1]s/faults/taken/out.XXXXXXXXXX); $become "$real" "$@" >"$out" 2>"$out.err"; rc=$?
         sleep "$arg"; cat "$out"; cat "$out.err" >&2; rm -f "$out" "$out.err"; exit $rc ;;
deny*)   $become "$real" "$@" >/dev/null 2>&1; echo "${arg#* }" >&2; exit "${arg%%%% *}" ;;
refuse*) echo "${arg#* }" >&2; exit "${arg%%%% *}" ;;
*)       echo "cannot understand fault $fault" >&2; exit 99 ;;
esac
`

func (c *Cluster) writeWrappers() error {
	for _, dir := range []string{"bin", "calls", "faults", "faults/taken"} {
		as := c.User
		if dir == "bin" {
			as = root()
		}
		if err := as.own(c.path(dir), 0o755); err != nil {
			return fmt.Errorf("cannot write wrappers: %w", err)
		}
	}
	for _, name := range wrapped() {
		real, err := exec.LookPath("/usr/bin/" + name)
		if err != nil {
			if real, err = exec.LookPath(name); err != nil {
				return fmt.Errorf("cannot write wrappers: %w", err)
			}
		}
		script := fmt.Sprintf(wrapperScript, c.Dir, real, name, c.User.UID, c.User.GID, c.Home(c.User), c.User.Name)
		if err := os.WriteFile(c.path("bin", name), []byte(script), 0o755); err != nil {
			return fmt.Errorf("cannot write wrappers: %w", err)
		}
		if err := c.User.own(c.path("faults", name), 0o755); err != nil {
			return fmt.Errorf("cannot write wrappers: %w", err)
		}
	}
	return nil
}

// LoseReply makes the next n calls of a command do their work and then die of SIGKILL without a word.
func (c *Cluster) LoseReply(command string, n int) { c.fault(command, n, "lose") }

// HangReply makes the next n calls do their work and then neither speak nor end.
func (c *Cluster) HangReply(command string, n int) { c.fault(command, n, "hang") }

// KillCall makes the next n calls die of SIGKILL before they do anything: to the caller it is as LoseReply.
func (c *Cluster) KillCall(command string, n int) { c.fault(command, n, "never") }

// DelayCall makes the next n calls begin late.
func (c *Cluster) DelayCall(command string, n int, by time.Duration) {
	c.fault(command, n, fmt.Sprintf("before %.3f", by.Seconds()))
}

// DelayReply makes the next n calls answer late, their work done at once.
func (c *Cluster) DelayReply(command string, n int, by time.Duration) {
	c.fault(command, n, fmt.Sprintf("after %.3f", by.Seconds()))
}

// DenyReply makes the next n calls do their work and then claim to have failed, with one line on standard error.
func (c *Cluster) DenyReply(command string, n, exitCode int, line string) {
	c.fault(command, n, fmt.Sprintf("deny %d %s", exitCode, line))
}

// RefuseCall makes the next n calls fail with one line on standard error, nothing done.
func (c *Cluster) RefuseCall(command string, n, exitCode int, line string) {
	c.fault(command, n, fmt.Sprintf("refuse %d %s", exitCode, line))
}

// fault appends to what waits for a command: each call takes the first.
func (c *Cluster) fault(command string, n int, what string) {
	c.t.Helper()
	dir := c.path("faults", command)
	if !exists(dir) {
		c.t.Fatalf("cannot make %s fail: it has no wrapper; %v have", command, wrapped())
	}
	for range n {
		// The name sorts by time; it appears with its content.
		name := fmt.Sprintf("%020d", time.Now().UnixNano())
		tmp := c.path("faults", "taken", name)
		err := os.WriteFile(tmp, []byte(what+"\n"), 0o644)
		if err == nil {
			err = os.Chown(tmp, int(c.User.UID), int(c.User.GID))
		}
		if err == nil {
			err = os.Rename(tmp, filepath.Join(dir, name))
		}
		if err != nil {
			c.t.Fatalf("cannot make %s fail: %v", command, err)
		}
	}
}

// ClearFaults forgets faults that no call has taken, and says how many of a command there were.
func (c *Cluster) ClearFaults() map[string]int {
	c.t.Helper()
	left := map[string]int{}
	for _, name := range wrapped() {
		files, _ := filepath.Glob(c.path("faults", name, "*")) // the pattern is well formed
		for _, f := range files {
			if os.Remove(f) == nil {
				left[name]++
			}
		}
	}
	return left
}

// Calls is how often a command was called through its wrapper since the start or ForgetCalls.
func (c *Cluster) Calls(command string) int { return len(c.CallArgs(command)) }

// CallArgs are the arguments of these calls, in order.
func (c *Cluster) CallArgs(command string) [][]string {
	c.t.Helper()
	files, err := filepath.Glob(c.path("calls", command+".*"))
	if err != nil {
		c.t.Fatalf("cannot count calls: %v", err)
	}
	type call struct {
		args []string
		at   time.Time
		name string
	}
	var calls []call
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			c.t.Fatalf("cannot count calls: %v", err)
		}
		info, err := os.Stat(f)
		if err != nil {
			c.t.Fatalf("cannot count calls: %v", err)
		}
		args := strings.Split(string(data), "\x00")
		calls = append(calls, call{args[:len(args)-1], info.ModTime(), f})
	}
	sort.Slice(calls, func(i, j int) bool {
		if !calls[i].at.Equal(calls[j].at) {
			return calls[i].at.Before(calls[j].at)
		}
		return calls[i].name < calls[j].name
	})
	out := make([][]string, 0, len(calls))
	for _, call := range calls {
		out = append(out, call.args)
	}
	return out
}

// ForgetCalls sets all counters to zero.
func (c *Cluster) ForgetCalls() {
	c.t.Helper()
	files, _ := filepath.Glob(c.path("calls", "*")) // the pattern is well formed
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			c.t.Fatalf("cannot forget calls: %v", err)
		}
	}
}
