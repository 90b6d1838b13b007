// Command peer answers as the commands and the server of one OpenPBS complex do, so that a backend for PBS can
// be tried without one. It is called by the names of the commands (qsub, qstat, qdel ...); `peer serve` is
// the daemon behind them, which holds the jobs and runs them as processes. It does not speak the wire protocol of
// PBS, keeps nobody from anything, and is not for work that matters.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// dirEnv names the directory that holds a complex. Without it the directory above the one of the called
// command is taken, as a caller may hand its children a bare environment.
const dirEnv = "PBSPEER_DIR"

// userEnv names who calls. A test is one process owner and needs several users.
const userEnv = "PBSPEER_USER"

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// clientEnv overrides which client the commands are ("master").
const clientEnv = "PBSPEER_CLIENT"

// call is one run of one command.
type call struct {
	at       int64 // now
	name     string
	args     []string
	in       io.Reader
	out, err io.Writer
	cfg      config
	user     string
	zone     zone
}

func (c *call) printf(format string, a ...any)  { fmt.Fprintf(c.out, format, a...) }
func (c *call) eprintf(format string, a ...any) { fmt.Fprintf(c.err, format, a...) }

// command is the table of names. Every entry gets its arguments without the name.
func command(name string) func(*call) int {
	switch name {
	case "qsub":
		return (*call).qsub
	case "qstat":
		return (*call).qstat
	case "qdel":
		return (*call).qdel
	case "qhold", "qrls", "qsig", "qrerun", "qmove", "qmsg", "qorder", "qrun", "qalter":
		return (*call).jobCommand
	case "qselect":
		return (*call).qselect
	case "pbsnodes":
		return (*call).pbsnodes
	case "qmgr":
		return (*call).qmgr
	case "pbsdsh":
		return (*call).pbsdsh
	}
	return nil
}

// names are the commands that are installed.
func names() []string {
	return []string{"qsub", "qstat", "qdel", "qhold", "qrls", "qsig", "qrerun", "qmove", "qmsg", "qorder", "qrun",
		"qalter", "qselect", "pbsnodes", "qmgr", "pbsdsh"}
}

func run(argv []string, in io.Reader, out, errs io.Writer) int {
	name, args := filepath.Base(argv[0]), argv[1:]
	if name == "hostname" {
		return hostname(out)
	}
	do := command(name)
	if do == nil {
		return runOwn(args, errs)
	}
	dir, err := home(argv[0])
	if err != nil {
		fmt.Fprintln(errs, err)
		return 255
	}
	cfg, err := readConfig(dir)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 255
	}
	cfg.Client = or(os.Getenv(clientEnv), cfg.Client)
	c := &call{at: now(), name: name, args: args, in: in, out: out, err: errs, cfg: cfg, user: os.Getenv(userEnv), zone: zoneOf(os.Getenv("TZ"))}
	if c.user == "" {
		c.user = cfg.User
	}
	if len(args) == 1 && args[0] == "--version" {
		c.printf("pbs_version = %s\n", version)
		return 0
	}
	if code := c.confFile(); code != 0 {
		return code
	}
	return do(c)
}

// confFile answers for PBS_CONF_FILE, the only setting of the commands that is a file.
func (c *call) confFile() int {
	path := os.Getenv("PBS_CONF_FILE")
	if path == "" {
		return 0
	}
	if _, err := os.Stat(path); err == nil {
		return 0
	}
	c.eprintf("pbsconf error: pbs conf variables not found: PBS_HOME PBS_EXEC PBS_SERVER\n")
	c.eprintf("No such file or directory\n%s: cannot connect to server  (errno=0)\n", c.name)
	if c.name == "qstat" || c.name == "qsub" {
		return 255
	}
	return 1
}

// runOwn are the peer's own verbs.
func runOwn(args []string, errs io.Writer) int {
	var err error
	switch {
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 2 && args[0] == "shepherd":
		err = shepherd(args[1])
	case len(args) == 2 && args[0] == "install":
		err = install(args[1])
	default:
		err = fmt.Errorf("usage: peer serve|shepherd|install DIR, or one of %s", strings.Join(names(), " "))
	}
	if err != nil {
		fmt.Fprintln(errs, "peer:", err)
		return 1
	}
	return 0
}

// install links every command's name to this program.
func install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, n := range names() {
		if err := os.Symlink(self, filepath.Join(dir, n)); err != nil {
			return err
		}
	}
	// Jobs find a hostname of their own first: every node is this machine, and says that it is another.
	inside := filepath.Join(dir, "job")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		return err
	}
	return os.Symlink(self, filepath.Join(inside, "hostname"))
}

// chunksFile lies beside the file of nodes and has one line for each chunk.
func chunksFile() string { return filepath.Join(filepath.Dir(os.Getenv("PBS_NODEFILE")), "chunks") }

// hostname names the node that a job, or a chunk of it, runs on.
func hostname(out io.Writer) int {
	name := os.Getenv("PBSPEER_CHUNK")
	if name == "" {
		data, err := os.ReadFile(chunksFile())
		if err != nil {
			return 1
		}
		name, _, _ = strings.Cut(string(data), "\n")
	}
	fmt.Fprintln(out, name)
	return 0
}

// home finds the complex: from the environment, else from where the called command lies.
func home(argv0 string) (string, error) {
	if dir := os.Getenv(dirEnv); dir != "" {
		return dir, nil
	}
	path := argv0
	if !strings.Contains(path, "/") {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("cannot find %s: %w", argv0, err)
		}
		path = found
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.Dir(filepath.Dir(abs)), nil
}
