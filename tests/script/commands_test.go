package script

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"substrate/tests/cluster"
)

// story is what a running story has besides its files.
type story struct {
	tb      testing.TB
	cluster *cluster.Cluster
}

type storyKey struct{}

// commands are what stories can say beyond testscript's own words:
//
//	cluster CONFIG [NODES [CORES]]   start a coordinator with this configuration, and agents node-1, node-2, …
//	                                 (on machines of 64 GiB and CORES cores, else on what this machine is); sets
//	                                 SUBSTRATE_SERVER, SUBSTRATE_TOKEN, JOIN_TOKEN_FILE and AGENT_ADDRESS
//	agent NAME [ROOT]                join one more node, with the machine that is written in directory ROOT
//	machine ROOT CORES               write a machine of 64 GiB into ROOT; files that are there stay
//	exits CODE PROGRAM ARG…          run a program and want this exit code
//	until SECONDS PATTERN PROGRAM…   run a program again and again until its output matches; ! until it does not
//	set NAME [PATTERN]               set a variable to the last output, or to PATTERN's first group in it
//	as-hinted PATTERN                run the command that the last error output hints at, as it is printed
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){
		"cluster": startCluster, "agent": startAgent, "machine": writeMachine, "exits": exits, "until": until,
		"set": setVariable, "as-hinted": asHinted,
	}
}

// storyTB ends the story, with its log, where a test would end.
type storyTB struct {
	testing.TB
	ts *testscript.TestScript
}

func (s storyTB) Fatalf(format string, args ...any) { s.ts.Fatalf(format, args...) }

func repository() (string, error) { return filepath.Abs(filepath.Join("..", "..")) }

func programs() string { return filepath.Dir(cluster.Program("substrate")) }

func startCluster(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(storyKey{}).(*story)
	if neg || len(args) < 1 || len(args) > 3 {
		ts.Fatalf("usage: cluster CONFIG [NODES [CORES]]")
	}
	opt := cluster.Options{Config: ts.ReadFile(args[0])}
	if len(args) > 1 {
		opt.Nodes = number(ts, args[1])
	}
	if len(args) > 2 {
		opt.Machine = cluster.Machine{Cores: number(ts, args[2]), MemoryMiB: 64 << 10}
	}
	s.cluster = cluster.Start(storyTB{s.tb, ts}, opt)
	ts.Setenv("SUBSTRATE_SERVER", s.cluster.Coordinator.API)
	ts.Setenv("SUBSTRATE_TOKEN", s.cluster.Coordinator.Token)
	ts.Setenv("JOIN_TOKEN_FILE", filepath.Join(s.cluster.Coordinator.Dir, "join.token"))
	ts.Setenv("AGENT_ADDRESS", s.cluster.Coordinator.Agents)
	ts.Setenv("CLUSTER", s.cluster.Dir)
}

func number(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}

func startAgent(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value(storyKey{}).(*story)
	switch {
	case neg || s.cluster == nil:
		ts.Fatalf("usage: cluster … before agent NAME [ROOT]")
	case len(args) == 1:
		s.cluster.AddNode(args[0])
	case len(args) == 2:
		s.cluster.AddNode(args[0], "--root", ts.MkAbs(args[1]))
	default:
		ts.Fatalf("usage: agent NAME [ROOT]")
	}
}

func writeMachine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: machine ROOT CORES")
	}
	ts.Check(cluster.Machine{Cores: number(ts, args[1]), MemoryMiB: 64 << 10}.Write(ts.MkAbs(args[0])))
}

// execute runs a program as `exec` does and returns its exit code.
func execute(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	if got, want := execute(ts, args[1:]), number(ts, args[0]); got != want {
		ts.Fatalf("exit code %d instead of %d", got, want)
	}
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 3 {
		ts.Fatalf("usage: [!] until SECONDS PATTERN PROGRAM ARG…")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	s := ts.Value(storyKey{}).(*story)
	began := time.Now()
	for within := time.Duration(number(ts, args[0])) * time.Second; ; time.Sleep(50 * time.Millisecond) {
		// Not ts.Exec: its log would hold every try.
		cmd := exec.Command(lookup(ts, args[2]), args[3:]...)
		cmd.Dir, cmd.Env = ts.MkAbs("."), environ(ts)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		out := slices.Concat(stdout.Bytes(), stderr.Bytes())
		if pattern.Match(out) != neg {
			_, _ = ts.Stdout().Write(stdout.Bytes()) // builders never fail
			_, _ = ts.Stderr().Write(stderr.Bytes())
			s.tb.Logf("%s: %s after %s", s.tb.Name(), args[1], time.Since(began).Round(10*time.Millisecond))
			return
		}
		if time.Since(began) > within {
			ts.Fatalf("not within %s: %s\n%s%v", within, args[1], out, err)
		}
	}
}

// lookup finds programs under test; others are looked up by exec.
func lookup(ts *testscript.TestScript, program string) string {
	if path := filepath.Join(programs(), program); filepath.Base(program) == program {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return program
}

// environ is what a program of the story sees.
func environ(ts *testscript.TestScript) []string {
	env := []string{"PATH=" + ts.Getenv("PATH")}
	for _, name := range []string{"SUBSTRATE_SERVER", "SUBSTRATE_TOKEN", "HOME", "XDG_CONFIG_HOME", "LC_ALL", "WORK"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	return env
}

func setVariable(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: set NAME [PATTERN]")
	}
	value := strings.TrimSpace(ts.ReadFile("stdout"))
	if len(args) == 2 {
		pattern, err := regexp.Compile("(?m)" + args[1])
		ts.Check(err)
		m := pattern.FindStringSubmatch(value)
		if len(m) < 2 {
			ts.Fatalf("%q with a group is not in\n%s", args[1], value)
		}
		value = m[1]
	}
	ts.Setenv(args[0], value)
}

func asHinted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: as-hinted PATTERN")
	}
	pattern, err := regexp.Compile(args[0])
	ts.Check(err)
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "hint: ")
		if ok && pattern.MatchString(command) {
			if code := execute(ts, []string{"sh", "-c", command}); code != 0 {
				ts.Fatalf("%s: exit code %d", command, code)
			}
			return
		}
	}
	ts.Fatalf("%s", fmt.Sprintf("no hint matches %s", args[0]))
}
