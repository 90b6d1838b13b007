package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	defaultPath  = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	runOOMAdjust = 100 // before the daemons, after nobody else
)

// launch is a run made ready to fork.
type launch struct {
	run   *run
	spec  Spec
	acct  account
	group *group
	path  string
	argv  []string
	attr  syscall.ProcAttr
}

// close lets go of the outputs: once forked they are the child's.
func (l *launch) close() {
	for _, fd := range l.attr.Files[1:] {
		syscall.Close(int(fd))
	}
}

// prepare checks a run and makes what its process needs. Every error is for the submitter to read.
func prepare(s storedSpec, r *run, null *os.File) (*launch, error) {
	spec, acc := s.Spec, s.Account
	if spec.Image != "" {
		return nil, fmt.Errorf("cannot use image %q: this version runs no containers", spec.Image)
	}
	if err := checkMounts(spec.Mounts); err != nil {
		return nil, err
	}
	if (len(spec.Command) > 0) == (spec.Script != "") {
		return nil, errors.New("cannot start run: exactly one of command and script is needed")
	}
	for _, text := range append(append([]string{}, spec.Command...), spec.Env...) {
		if strings.ContainsRune(text, 0) {
			return nil, fmt.Errorf("cannot start run: %.40q contains a NUL byte", text)
		}
	}
	if err := r.files.makeWork(acc); err != nil {
		return nil, fmt.Errorf("cannot make working directory: %w", err)
	}
	l := &launch{run: r, spec: spec, acct: acc, attr: syscall.ProcAttr{Dir: r.files.work(), Env: environment(s, r.files)}}
	l.attr.Sys = &syscall.SysProcAttr{Setsid: true}
	if !acc.Caller {
		l.attr.Sys.Credential = &syscall.Credential{Uid: acc.UID, Gid: acc.GID, Groups: acc.Groups}
	}
	var err error
	if spec.Script != "" {
		l.path, l.argv, err = script(spec.Script, r.files, acc)
	} else {
		l.argv = spec.Command
		l.path, err = findCommand(spec.Command[0], l.attr.Env, l.attr.Dir)
	}
	if err == nil {
		err = l.openFiles(null)
	}
	return l, err
}

// openFiles makes the outputs; standard input is empty.
func (l *launch) openFiles(null *os.File) error {
	out, err := l.run.files.createOutput(Stdout, l.acct)
	if err != nil {
		return fmt.Errorf("cannot make output: %w", err)
	}
	errOut, err := l.run.files.createOutput(Stderr, l.acct)
	if err != nil {
		syscall.Close(out)
		return fmt.Errorf("cannot make output: %w", err)
	}
	l.attr.Files = []uintptr{null.Fd(), uintptr(out), uintptr(errOut)}
	return nil
}

func checkMounts(mounts []Mount) error {
	for _, m := range mounts {
		if _, err := os.Stat(m.Source); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.Source, err)
		}
		if m.Target != m.Source {
			return fmt.Errorf("cannot mount %s at %s: a run without image sees host paths where they are", m.Source, m.Target)
		}
	}
	return nil
}

func script(text string, files runFiles, acc account) (string, []string, error) {
	path := files.script()
	if err := files.writeScript(text, acc); err != nil {
		return "", nil, fmt.Errorf("cannot write script: %w", err)
	}
	if strings.HasPrefix(text, "#!") {
		return path, []string{path}, nil
	}
	return "/bin/sh", []string{"/bin/sh", path}, nil
}

// findCommand looks a bare name up in the run's PATH; a name with a slash is taken from the
// working directory, as execve does.
func findCommand(name string, env []string, dir string) (string, error) {
	if name == "" {
		return "", errors.New("cannot start command: its name is empty")
	}
	if strings.ContainsRune(name, '/') {
		full := name
		if !filepath.IsAbs(full) {
			full = filepath.Join(dir, name)
		}
		return name, executable(full)
	}
	path := getenv(env, "PATH")
	var denied error
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue
		}
		full := filepath.Join(d, name)
		err := executable(full)
		if err == nil {
			return full, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("cannot start command %q: not found in PATH %s", name, path)
}

// noFile is os.ErrNotExist in our words.
type noFile struct{}

func (noFile) Error() string        { return "no such file" }
func (noFile) Is(target error) bool { return target == os.ErrNotExist }

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("cannot start command %q: %w", path, noFile{})
	case err != nil:
		return fmt.Errorf("cannot start command %q: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("cannot start command %q: it is a directory", path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("cannot start command %q: it is not executable", path)
	}
	return nil
}

// environment is all a run sees: nothing of the agent's own. Later entries win; the run id always
// does, because left-over processes are found by it.
func environment(s storedSpec, files runFiles) []string {
	acc := s.Account
	shell := acc.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	env := []string{
		"PATH=" + defaultPath, "HOME=" + acc.Home, "USER=" + acc.Name, "LOGNAME=" + acc.Name,
		"SHELL=" + shell, "LANG=C.UTF-8",
		"SUBSTRATE_CORES=" + strconv.FormatUint(uint64(s.Spec.Cores), 10),
		"SUBSTRATE_RANK=" + strconv.FormatUint(uint64(s.Spec.Rank), 10),
		"SUBSTRATE_NODES=" + strings.Join(s.Spec.Nodes, ","),
		"SUBSTRATE_NOTICE_FILE=" + files.notice(),
	}
	env = append(env, s.Spec.Env...)
	return lastWins(append(env, "SUBSTRATE_RUN_ID="+string(s.Spec.ID)))
}

func lastWins(env []string) []string {
	at := make(map[string]int, len(env))
	out := env[:0:0]
	for _, kv := range env {
		key, _, ok := strings.Cut(kv, "=")
		if !ok || key == "" {
			continue
		}
		if i, seen := at[key]; seen {
			out[i] = kv
			continue
		}
		at[key] = len(out)
		out = append(out, kv)
	}
	return out
}

func getenv(env []string, key string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v
		}
	}
	return ""
}

// explainFork says what an errno of fork and exec means to the submitter.
func explainFork(l *launch, err error) error {
	name, acc := l.argv[0], l.acct
	switch {
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("cannot start command %q: permission denied for account %q, for it or for the working directory %s: %w",
			name, acc.Name, l.attr.Dir, err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("cannot start command %q: it or its interpreter does not exist: %w", name, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("cannot start command %q: not a program for this machine, and no #! line: %w", name, err)
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("cannot start command %q: arguments and environment are too long: %w", name, err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("cannot start command %q as account %q: %w", name, acc.Name, err)
	}
	return fmt.Errorf("cannot start command %q: %w", name, err)
}
