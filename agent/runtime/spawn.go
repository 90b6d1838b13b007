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
	path string
	argv []string
	attr syscall.ProcAttr
}

// prepare checks a run and makes what its process needs. Every error is for the submitter to read.
func prepare(s storedSpec, dir string) (launch, error) {
	spec, acc := s.Spec, s.Account
	if spec.Image != "" {
		return launch{}, fmt.Errorf("cannot use image %q: this version runs no containers", spec.Image)
	}
	if err := checkMounts(spec.Mounts); err != nil {
		return launch{}, err
	}
	if (len(spec.Command) > 0) == (spec.Script != "") {
		return launch{}, errors.New("cannot start run: exactly one of command and script is needed")
	}
	for _, text := range append(append([]string{}, spec.Command...), spec.Env...) {
		if strings.ContainsRune(text, 0) {
			return launch{}, fmt.Errorf("cannot start run: %.40q contains a NUL byte", text)
		}
	}
	if err := makeWorkDir(dir, acc); err != nil {
		return launch{}, fmt.Errorf("cannot make working directory: %w", err)
	}
	l := launch{attr: syscall.ProcAttr{Dir: filepath.Join(dir, workDir), Env: environment(s, dir)}}
	l.attr.Sys = &syscall.SysProcAttr{Setsid: true}
	if !acc.Caller {
		l.attr.Sys.Credential = &syscall.Credential{Uid: acc.UID, Gid: acc.GID, Groups: acc.Groups}
	}
	var err error
	if spec.Script != "" {
		l.path, l.argv, err = script(spec.Script, dir, acc)
	} else {
		l.argv = spec.Command
		l.path, err = findCommand(spec.Command[0], l.attr.Env, l.attr.Dir)
	}
	return l, err
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

func script(text, dir string, acc account) (string, []string, error) {
	path := filepath.Join(dir, scriptFile)
	if err := writeScript(path, text, acc); err != nil {
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
func environment(s storedSpec, dir string) []string {
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
		"SUBSTRATE_NOTICE_FILE=" + filepath.Join(dir, noticeFile),
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
func explainFork(l launch, acc account, err error) error {
	name := l.argv[0]
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
