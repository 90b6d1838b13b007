package pbs

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// transcriptsEnv names an archive of recorded commands of a real complex (a directory or a .tar.gz of it: a folder
// for each command with cmd, stdin, stdout, stderr, rc and user). Without it the recordings in testdata are used,
// which are those of the sections named there.
const transcriptsEnv = "SUBSTRATE_PBS_TRANSCRIPTS"

var update = flag.Bool("update", false, "write testdata/recorded.txt from the archive named by "+transcriptsEnv)

// recorded is one command of a real complex.
type recorded struct {
	name, user, cmd, stdin, stdout, stderr string
	code                                   int
}

func (r *recorded) set(part, text string) error {
	var err error
	switch part {
	case "cmd":
		r.cmd = strings.TrimSuffix(text, "\n")
	case "stdin":
		r.stdin = text
	case "stdout":
		r.stdout = text
	case "stderr":
		r.stderr = text
	case "user":
		r.user = strings.TrimSpace(text)
	case "rc":
		r.code, err = strconv.Atoi(strings.TrimSpace(text))
	}
	return err
}

// archive reads all recordings of an archive.
func archive(t *testing.T, name string) map[string]*recorded {
	t.Helper()
	out := map[string]*recorded{}
	add := func(file string, data []byte) {
		folder, part := path.Split(filepath.ToSlash(file))
		key := path.Base(folder)
		if strings.HasSuffix(part, ".md") {
			return
		}
		if out[key] == nil {
			out[key] = &recorded{name: key}
		}
		if err := out[key].set(part, string(data)); err != nil {
			t.Fatalf("cannot read %s: %v", file, err)
		}
	}
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		files, _ := filepath.Glob(filepath.Join(name, "*", "*"))
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			add(f, data)
		}
		return out
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		add(h.Name, data)
	}
}

const fixtures = "testdata/recorded.txt"

// kept reads the recordings in testdata: a line each, of quoted fields.
func kept(t *testing.T) map[string]*recorded {
	t.Helper()
	f, err := os.Open(fixtures)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]*recorded{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		r := &recorded{}
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 7 {
			t.Fatalf("%s: a line of %d fields", fixtures, len(fields))
		}
		r.name = fields[0]
		for i, part := range parts() {
			text, err := strconv.Unquote(fields[i+1])
			if err == nil {
				err = r.set(part, text)
			}
			if err != nil {
				t.Fatalf("%s: %s: %v", fixtures, r.name, err)
			}
		}
		out[r.name] = r
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func parts() []string { return []string{"user", "rc", "cmd", "stdin", "stdout", "stderr"} }

func (r *recorded) line() string {
	out := r.name
	for _, v := range []string{r.user, strconv.Itoa(r.code), r.cmd, r.stdin, r.stdout, r.stderr} {
		out += "\t" + strconv.Quote(v)
	}
	return out + "\n"
}

// volatile is all that a replay may not compare: when, which process, and what it used.
type volatile struct {
	pattern *regexp.Regexp
	instead string
}

func volatiles() []volatile {
	v := func(pattern, instead string) volatile { return volatile{regexp.MustCompile(pattern), instead} }
	return []volatile{
		v(`("timestamp":\t?)(\d+|"")`, `${1}WHEN`),
		v(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun) (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]\d (at )?\d\d:\d\d(:\d\d 20\d\d)?`, `WHEN`),
		v(`("?(last_state_change_time|last_used_time|history_timestamp)"?(:\t?| = |=))\d+`, `${1}WHEN`),
		v(`("?session_id"?(:\t?| = |=))\d+`, `${1}SESSION`),
		v(`("cpupercent":\t?)\d+`, `${1}USED`),
		v(`("(mem|vmem)":\t?)"\d+kb"(,\n\s+"(ncpus|walltime)")`, `${1}USED${3}`),
		v(`("(cput|walltime)":\t?)"00:0\d:\d\d"(,\n\s+"mem"|\n\s+},\n\s+"job_state")`, `${1}USED${3}`),
		v(`(?m)^(\d+\S*\.vm +\S+ +\S+ +\S+) +\d{3,}( +\d+ +\d+ +\S+ +\S+ )`, `${1} SESSION${2}`),
		v(`(resources_used\.(cput|mem|vmem|walltime) = ).*`, `${1}USED`),
	}
}

func normal(text string) string {
	for _, v := range volatiles() {
		text = v.pattern.ReplaceAllString(text, v.instead)
	}
	return text
}

// stage is a replay at work: a complex and what became of the recordings.
type stage struct {
	t        *testing.T
	all      map[string]*recorded
	full     bool
	peer     *Peer
	root     string
	exact    []string
	differs  map[string]string // name to reason; "" is a failure
	section  string
	sections map[string][]string
	skip     bool // recordings of this section are not at hand
}

// TestReplay plays recorded sessions of a real complex again. testdata/sessions.txt says in what order and what
// must be the case for it:
//
//	section NAME [kept]     begins a part; kept: its recordings are in testdata too
//	complex [history] [vnodes] [later] [second=D]   a fresh complex
//	manage LINE             root's qmgr
//	id N                    the number of the next job
//	do USER COMMAND         a command that was not recorded
//	wait ID ATTRIBUTE VALUE until a job is so; "-" as VALUE: until the attribute is gone
//	slot HOST/N ...         where the next jobs of one chunk start
//	node down|cut|up|keep HOST, server stop|kill|start|hang|wake, scheduler on|off
//	file NAME TEXT          a file in alice's directory, with Go's escapes
//	= NAME ...              recordings that must come out exactly as they were
//	~ NAME REASON           a recording that is played for its effect, with what differs
//	- NAME REASON           one that is not played; NAME may be a pattern
//
// A recording is stateless if it stands in the section "stateless": its answer depends on no job and on nothing
// that was done to the complex after its installation. All of those must be exact.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := &stage{t: t, differs: map[string]string{}, sections: map[string][]string{}}
	if name := os.Getenv(transcriptsEnv); name != "" {
		s.all, s.full = archive(t, name), true
	} else {
		s.all = kept(t)
		t.Logf("NOT ALL IS REPLAYED: %s names no archive; only the recordings of %s are", transcriptsEnv, fixtures)
	}
	script, err := os.ReadFile("testdata/sessions.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(script)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		if err := s.do(verb, strings.TrimSpace(rest)); err != nil {
			t.Fatalf("sessions.txt:%d: %s: %v", n, line, err)
		}
	}
	s.report()
	if *update && s.full {
		s.write()
	}
}

func (s *stage) report() {
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(s.all)), func(n string) bool {
		_, differs := s.differs[n]
		return differs || slices.Contains(s.exact, n)
	})
	count := map[string]int{}
	for _, r := range s.differs {
		count[r]++
	}
	s.t.Logf("%d of %d recordings replayed exactly, %d of them stateless", len(s.exact), len(s.all), len(s.sections["stateless kept"]))
	for _, r := range slices.Sorted(maps.Keys(count)) {
		s.t.Logf("%4d not: %s", count[r], r)
	}
	if len(missing) > 0 {
		s.t.Errorf("%d recordings are in no session: %s", len(missing), strings.Join(missing, " "))
	}
}

func (s *stage) write() {
	var out strings.Builder
	for _, n := range slices.Sorted(maps.Keys(s.all)) {
		for section, names := range s.sections {
			if strings.HasSuffix(section, " kept") && slices.Contains(names, n) {
				out.WriteString(s.all[n].line())
			}
		}
	}
	if err := os.WriteFile(fixtures, []byte(out.String()), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) do(verb, rest string) error {
	words := strings.Fields(rest)
	if verb == "section" {
		s.section = rest
		s.skip = !s.full && words[len(words)-1] != "kept"
		return nil
	}
	if verb == "-" {
		name, reason, _ := strings.Cut(rest, " ")
		for n := range s.all {
			if ok, _ := path.Match(name, n); ok {
				s.differs[n] = reason
			}
		}
		return nil
	}
	if s.skip {
		return nil
	}
	switch verb {
	case "complex":
		s.complex(words)
	case "manage":
		s.peer.Manage(rest)
	case "id":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		s.peer.NextID(n)
	case "do":
		user, cmd, _ := strings.Cut(rest, " ")
		got := s.run(&recorded{user: user, cmd: cmd})
		if got.code != 0 {
			return fmt.Errorf("%d: %s", got.code, got.stderr)
		}
	case "wait":
		return s.wait(words[0], words[1], strings.Join(words[2:], " "))
	case "sleep":
		d, err := time.ParseDuration(rest)
		time.Sleep(d) // for what a recording caught in the middle
		return err
	case "file":
		name, text, _ := strings.Cut(rest, " ")
		text, err := strconv.Unquote(text)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(s.root, "home/alice/w", name), []byte(text), 0o755)
	case "slot":
		for _, w := range words {
			s.peer.Slot(w)
		}
	case "node", "server", "scheduler", "epilogue", "prologue", "reject", "advance":
		return s.fault(verb, words, rest)
	case "=":
		for _, n := range words {
			s.replay(n, "")
		}
	case "~":
		name, reason, _ := strings.Cut(rest, " ")
		s.replay(name, reason)
	default:
		return errors.New("no such verb")
	}
	return nil
}

func (s *stage) complex(words []string) {
	s.root = s.t.TempDir()
	for _, u := range []string{"alice", "bob"} {
		if err := os.MkdirAll(filepath.Join(s.root, "home", u, "w"), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, n := range []string{"s.sh"} {
		if err := os.WriteFile(filepath.Join(s.root, "home/alice/w", n), []byte("#!/bin/sh\nsleep ${NAP:-1}\n"), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	o := Options{Virtual: "/home", Real: filepath.Join(s.root, "home"), Home: "/home/%u"}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "history":
			o.History = true
		case "vnodes":
			for i := range 4 {
				o.Nodes = append(o.Nodes, Node{Name: "n" + strconv.Itoa(i+1), CPUs: 4})
			}
			o.Nodes = append(o.Nodes, Node{Name: "vm", Memory: "0b"}, Node{Name: "vm[0]", Host: "vm", CPUs: 2, Memory: "4gb", Sharing: "default_excl"},
				Node{Name: "vm[1]", Host: "vm", CPUs: 2, Memory: "4gb"})
		case "later":
			o.LaterClient = true
		case "second":
			d, err := time.ParseDuration(value)
			if err != nil {
				s.t.Fatal(err)
			}
			o.Second = d
		case "walltime":
			d, err := time.ParseDuration(value)
			if err != nil {
				s.t.Fatal(err)
			}
			o.WalltimeSecond = d
		}
	}
	s.peer = Start(s.t, o)
}

func (s *stage) fault(verb string, words []string, rest string) error {
	switch strings.Join([]string{verb, words[0]}, " ") {
	case "node down":
		s.peer.NodeDown(words[1])
	case "node cut":
		s.peer.NodeCut(words[1])
	case "node up":
		s.peer.NodeUp(words[1], false)
	case "node keep":
		s.peer.NodeUp(words[1], true)
	case "server stop":
		s.peer.StopServer()
	case "server kill":
		s.peer.KillServer()
	case "server start":
		s.peer.StartServer()
	case "server hang":
		s.peer.HangServer()
	case "server wake":
		s.peer.WakeServer()
	case "scheduler on":
		s.peer.Scheduler(true)
	case "scheduler off":
		s.peer.Scheduler(false)
	default:
		switch verb {
		case "reject":
			text, err := strconv.Unquote(rest)
			s.peer.Reject(text)
			return err
		case "advance":
			d, err := time.ParseDuration(rest)
			s.peer.Advance(d)
			return err
		}
		n, err := strconv.Atoi(words[0])
		if verb == "epilogue" {
			s.peer.Epilogue(n)
		} else {
			s.peer.Prologue(n)
		}
		return err
	}
	return nil
}

func (s *stage) wait(id, attribute, value string) error {
	last := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		out := s.peer.Run("root", "qstat", "-x", "-f", "-w", id)
		last = ""
		for l := range strings.Lines(out.Stdout) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(l), attribute+" = "); ok {
				last = v
			}
		}
		if last == value || (value == "-" && last == "") {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("it is %q", last)
}

// run plays a command as it was recorded: by bash, in the directory of the user.
func (s *stage) run(r *recorded) recorded {
	bin := s.peer.Bin()
	cmd := exec.Command("bash", "-c", strings.NewReplacer("/opt/pbs/bin/", bin+"/", "/tmp/inj", "inj").Replace(r.cmd))
	home := filepath.Join(s.root, "home", r.user)
	if r.user == "carol" {
		home += "-missing" // as the recorded one had it
	}
	cmd.Dir = filepath.Join(home, "w")
	if _, err := os.Stat(cmd.Dir); err != nil {
		cmd.Dir = "/tmp"
	}
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + home, "LOGNAME=" + r.user, "USER=" + r.user, "SHELL=/bin/bash",
		"LANG=C.UTF-8", "TZ=UTC", "PBSPEER_USER=" + r.user, "PWD=" + cmd.Dir}
	if strings.HasSuffix(r.name, "-head") {
		cmd.Env = append(cmd.Env, "PBSPEER_CLIENT=master")
	}
	cmd.Stdin = strings.NewReader(r.stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("cannot run %q: %v", r.cmd, err)
	}
	return recorded{stdout: out.String(), stderr: errs.String(), code: cmd.ProcessState.ExitCode()}
}

// replay plays one recording and compares it.
func (s *stage) replay(name, reason string) {
	r := s.all[name]
	if r == nil {
		s.t.Errorf("%s was not recorded", name)
		return
	}
	s.sections[s.section] = append(s.sections[s.section], name)
	got := s.run(r)
	var diff []string
	for _, part := range []struct{ what, want, got string }{
		{"code", strconv.Itoa(r.code), strconv.Itoa(got.code)},
		{"stdout", normal(r.stdout), normal(got.stdout)},
		{"stderr", normal(r.stderr), normal(got.stderr)},
	} {
		if part.want != part.got {
			diff = append(diff, part.what+"\n"+differences(part.want, part.got))
		}
	}
	switch {
	case len(diff) == 0:
		s.exact = append(s.exact, name)
		delete(s.differs, name)
	case reason != "":
		s.differs[name] = reason
	default:
		s.differs[name] = "FAILED"
		s.t.Errorf("%s: %s\n%s", name, r.cmd, strings.Join(diff, ""))
	}
}

// differences are the lines that one text has and the other has not, at their places.
func differences(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	for len(a) > 0 || len(b) > 0 {
		if len(a) > 0 && len(b) > 0 && a[0] == b[0] {
			a, b = a[1:], b[1:]
			continue
		}
		i, k := len(a), len(b)
		for d := 0; d < len(a)+len(b) && i+k == len(a)+len(b); d++ {
			for x := 0; x <= d; x++ {
				if x < len(a) && d-x < len(b) && a[x] == b[d-x] {
					i, k = x, d-x
					break
				}
			}
		}
		if i == 1 && k == 1 && len(a[0]) > 300 && len(b[0]) > 300 { // only where long lines part
			n := 0
			for n < min(len(a[0]), len(b[0])) && a[0][n] == b[0][n] {
				n++
			}
			a[0], b[0] = "..."+a[0][max(n-80, 0):], "..."+b[0][max(n-80, 0):]
		}
		for _, l := range a[:i] {
			fmt.Fprintf(&out, "  - %.300q\n", l)
		}
		for _, l := range b[:k] {
			fmt.Fprintf(&out, "  + %.300q\n", l)
		}
		a, b = a[i:], b[k:]
	}
	return out.String()
}
