//go:build unix

package probe

import (
	"os/exec"
	"syscall"
)

// group makes a program the head of a group, which is killed with it.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
