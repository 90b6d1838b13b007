package slurm

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed testdata/recorded
var recordings embed.FS

// Recording is what Slurm's commands said of one state, word for word but for the cluster's directory, which reads
// RecordedDir. testdata/recorded/README.md lists them.
type Recording struct {
	Version string // 22.05
	Name    string // pending-begin-time
	State   string // as squeue writes it; "" where no job is shown
	Reason  string // likewise
	About   string
	Answers []Answer
}

// RecordedDir stands in recordings for the directory of the cluster.
const RecordedDir = "/tmp/slurm"

// Answer of one command.
type Answer struct {
	Name   string // squeue.fields; the same for the same arguments, ids aside
	Args   []string
	Stdout string
	Stderr string
	Exit   int
}

// Answer is the one of that name.
func (r Recording) Answer(name string) (Answer, bool) {
	i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.Name == name })
	if i < 0 {
		return Answer{}, false
	}
	return r.Answers[i], true
}

// Recordings are all of one version of Slurm, by name.
func Recordings(version string) ([]Recording, error) {
	dir := path.Join("testdata/recorded", version)
	entries, err := recordings.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read recordings: %w", err)
	}
	var out []Recording
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".txtar")
		if !ok {
			continue
		}
		data, err := recordings.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("cannot read recordings: %w", err)
		}
		r, err := parseRecording(data)
		if err != nil {
			return nil, fmt.Errorf("cannot read recording %s: %w", name, err)
		}
		r.Version, r.Name = version, name
		out = append(out, r)
	}
	return out, nil
}

// parseRecording reads "Key: value" lines, of which each command is one, and their outputs as files.
func parseRecording(data []byte) (Recording, error) {
	var r Recording
	archive := txtar.Parse(data)
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case !ok:
			continue // nothing to tell
		case key == "State":
			r.State = value
		case key == "Reason":
			r.Reason = value
		case key == "About":
			r.About = value
		default:
			a, err := parseCommand(key, value)
			if err != nil {
				return r, err
			}
			r.Answers = append(r.Answers, a)
		}
	}
	for _, f := range archive.Files {
		name, stderr := strings.CutSuffix(f.Name, ".stderr")
		i := slices.IndexFunc(r.Answers, func(a Answer) bool { return a.Name == name })
		if i < 0 {
			return r, fmt.Errorf("no command says %s", f.Name)
		}
		if stderr {
			r.Answers[i].Stderr = string(f.Data)
		} else {
			r.Answers[i].Stdout = string(f.Data)
		}
	}
	return r, nil
}

// parseCommand reads `exit 1, "squeue" "-h"`.
func parseCommand(name, text string) (Answer, error) {
	a := Answer{Name: name}
	exit, rest, ok := strings.Cut(strings.TrimPrefix(text, "exit "), ", ")
	code, err := strconv.Atoi(exit)
	if !ok || err != nil {
		return a, fmt.Errorf("%q is no command", text)
	}
	a.Exit = code
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return a, fmt.Errorf("%q is no command: %w", text, err)
		}
		arg, err := strconv.Unquote(quoted)
		if err != nil {
			return a, fmt.Errorf("%q is no command: %w", text, err)
		}
		a.Args = append(a.Args, arg)
		rest = rest[len(quoted):]
	}
	return a, nil
}

// format is the inverse of parseRecording.
func (r Recording) format() []byte {
	var a txtar.Archive
	head := fmt.Sprintf("About: %s\nState: %s\nReason: %s\n", r.About, r.State, r.Reason)
	for _, ans := range r.Answers {
		head += fmt.Sprintf("%s: exit %d,", ans.Name, ans.Exit)
		for _, arg := range ans.Args {
			head += " " + strconv.Quote(arg)
		}
		head += "\n"
		if ans.Stdout != "" {
			a.Files = append(a.Files, txtar.File{Name: ans.Name, Data: []byte(ans.Stdout)})
		}
		if ans.Stderr != "" {
			a.Files = append(a.Files, txtar.File{Name: ans.Name + ".stderr", Data: []byte(ans.Stderr)})
		}
	}
	a.Comment = []byte(head)
	return txtar.Format(&a)
}
