package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// shepherd runs a job once and writes down how it ended. It is a process of its own, so that neither the job nor
// the knowledge of its end is lost with the daemon.
func shepherd(dir string) error {
	var t task
	if err := readGob(filepath.Join(dir, "spec"), &t); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "shepherd"), []byte(strconv.Itoa(os.Getpid()))); err != nil {
		return err
	}
	status := t.Failing
	if status == 0 {
		status = t.run(dir)
	}
	return writeFile(filepath.Join(dir, "exit"), []byte(strconv.Itoa(status)))
}

// notExecuted is the status of a program or shell that cannot be executed.
const notExecuted = 254

func (t task) run(dir string) int {
	syscall.Umask(t.Umask)
	out, errs, err := t.spool(dir)
	if err != nil {
		return -2
	}
	defer out.Close()
	defer errs.Close()
	cmd := t.command(dir)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = t.Env, t.Dir, out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return -2
	}
	if err := cmd.Start(); err != nil {
		_, _ = io.WriteString(errs, err.Error()+"\n") // what the real one says is not known to scripts either
		return notExecuted
	}
	if err := writeFile(filepath.Join(dir, "session"), []byte(strconv.Itoa(cmd.Process.Pid))); err != nil {
		return -2
	}
	if t.CPU > 0 {
		limit := unix.Rlimit{Cur: uint64(t.CPU), Max: uint64(t.CPU)}
		_ = unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CPU, &limit, nil) // a job that ended already needs none
	}
	if len(t.Argv) == 0 {
		_, _ = io.WriteString(stdin, filepath.Join(dir, "SC")+"\n") // a shell that died at once does not read
	}
	stdin.Close()
	err = cmd.Wait()
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err := writeFile(filepath.Join(dir, "cput"), []byte(strconv.Itoa(int(cpu.Seconds())))); err != nil {
		return -2
	}
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM {
		outlive(cmd.Process.Pid)
	}
	signalSession(cmd.Process.Pid, syscall.SIGKILL) // what the job left behind in its session
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return -2
	}
	if ok && ws.Signaled() {
		return 256 + int(ws.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// outlive waits for processes that ignore the TERM that their shell died of: they have until the KILL.
func outlive(session int) {
	for len(sessionPIDs(session)) > 0 {
		time.Sleep(20 * time.Millisecond)
	}
}

// command is the program itself, or a login shell that is told to run the script, which is how a mom does it: a
// signal to the session reaches both.
func (t task) command(dir string) *exec.Cmd {
	if len(t.Argv) > 0 {
		cmd := &exec.Cmd{Path: t.Argv[0], Args: t.Argv}
		if !strings.Contains(t.Argv[0], "/") {
			cmd = exec.Command(t.Argv[0], t.Argv[1:]...)
		}
		return cmd
	}
	return &exec.Cmd{Path: t.Shell, Args: []string{"-" + filepath.Base(t.Shell)}}
}

// spool opens the files that output goes to while the job runs.
func (t task) spool(dir string) (out, errs *os.File, err error) {
	const flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if out, err = os.OpenFile(filepath.Join(dir, "OU"), flags, 0o600); err != nil {
		return nil, nil, err
	}
	if errs, err = os.OpenFile(filepath.Join(dir, "ER"), flags, 0o600); err != nil {
		out.Close()
		return nil, nil, err
	}
	switch t.Join {
	case "oe":
		errs.Close()
		if errs, err = os.OpenFile(filepath.Join(dir, "OU"), flags, 0o600); err != nil {
			out.Close()
		}
	case "eo":
		out.Close()
		if out, err = os.OpenFile(filepath.Join(dir, "ER"), flags, 0o600); err != nil {
			errs.Close()
		}
	}
	return out, errs, err
}

// signalSession signals every process of a session.
func signalSession(session int, sig syscall.Signal) {
	for _, pid := range sessionPIDs(session) {
		_ = syscall.Kill(pid, sig) // it may be gone by now
	}
}

// sessionPIDs are the processes of a session that are not dead.
func sessionPIDs(session int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		if sessionOf(string(data)) == session {
			out = append(out, pid)
		}
	}
	return out
}

// sessionOf reads the session of a line of /proc/PID/stat; the name in it may hold anything. A zombie has none.
func sessionOf(stat string) int {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return 0
	}
	f := strings.Fields(stat[i+1:])
	if len(f) < 4 || f[0] == "Z" {
		return 0
	}
	n, _ := strconv.Atoi(f[3])
	return n
}
