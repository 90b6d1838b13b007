package slurm

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "make the list of recordings again")

const tableFile = "testdata/recorded/README.md"

// table is the README's part that is made: a line for each recording of each version.
func table(t *testing.T) string {
	t.Helper()
	versions, err := filepath.Glob("testdata/recorded/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	if len(versions) == 0 {
		t.Fatal("there are no recordings")
	}
	var b strings.Builder
	for _, dir := range versions {
		version := filepath.Base(dir)
		files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "\n## Slurm %s\n\n| file | state | reason | about | commands |\n|---|---|---|---|---|\n", version)
		for _, name := range files {
			data, err := os.ReadFile(name) // not what was embedded: it may have been made just now
			if err != nil {
				t.Fatal(err)
			}
			r, err := parseRecording(data)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var commands []string
			for _, a := range r.Answers {
				if !slices.Contains(commands, a.Args[0]) {
					commands = append(commands, a.Args[0])
				}
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", filepath.Base(name), r.State, strings.ReplaceAll(r.Reason, "|", `\|`), r.About, strings.Join(commands, ", "))
		}
	}
	return b.String()
}

// tableHead is the README's part that is written.
const tableHead = `# What Slurm says

Each file holds what real commands of one Slurm said of one state: standard output, standard error where there is any (` + "`NAME.stderr`" + `), and
the exit code. Its first lines tell the state and, for each answer, the exact arguments. ` + "`SLURM_TIME_FORMAT=%s`" + ` was set, so times are seconds since
1970. The cluster's directory reads ` + "`/tmp/slurm`" + `; nothing else was changed. ` + "`slurm.Recordings`" + ` reads them.

	go test ./tests/slurm -run '^TestRecord$' -record -timeout 30m

makes all of them again, with this page, for the Slurm that is installed (as root, about ten minutes). ` + "`make test-peers`" + ` goes through the same
states and compares states, reasons and exit codes.

Answers with the same name have the same arguments in all files, ids aside. ` + "`squeue.line`" + ` has what may hold any text last; a text with lines
of its own still makes more lines of it. ` + "`squeue.columns`" + ` has the fields that ` + "`-o`" + ` lacks (EligibleTime, exit code, restarts) at fixed widths, counted
in bytes. A row of ` + "`sacct`" + ` with user root, name allocation and no comment is what accounting makes of a step that it heard of before its job: seconds
later, the job's own words are there.
`

func writeTable(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(tableFile, []byte(tableHead+table(t)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRecordings: all are readable, the page lists them, and the states that a parser must know are there.
func TestRecordings(t *testing.T) {
	if *update {
		writeTable(t)
	}
	page, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	if want := tableHead + table(t); string(page) != want {
		t.Errorf("%s is not about the files that are there; -update makes it", tableFile)
	}
	all, err := Recordings("22.05")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range all {
		seen[r.State] = true
		if r.Version != "22.05" || r.About == "" || len(r.Answers) == 0 {
			t.Errorf("%s says nothing: %+v", r.Name, r)
		}
		for _, a := range r.Answers {
			if a.Stdout == "" && a.Stderr == "" && a.Exit != 0 {
				t.Errorf("%s: %s failed without a word", r.Name, a.Name)
			}
		}
		if line, ok := r.Answer("squeue.line"); ok && r.State != "" && !strings.Contains(line.Stdout, "|"+r.State+"|") {
			t.Errorf("%s is about %s, squeue says %q", r.Name, r.State, line.Stdout)
		}
	}
	for _, state := range []string{"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "NODE_FAIL", "SPECIAL_EXIT"} {
		if !seen[state] {
			t.Errorf("no recording shows %s", state)
		}
	}
}

// TestRecordingRoundTrip: what is written is read as it was, whatever a command says.
func TestRecordingRoundTrip(t *testing.T) {
	text := rapid.StringMatching(`([a-z|"=' é\\]{0,9}\n)*`)
	word := rapid.StringMatching(`[a-z][a-z.]{0,8}[a-z]`)
	rapid.Check(t, func(t *rapid.T) {
		r := Recording{State: word.Draw(t, "state"), Reason: word.Draw(t, "reason"), About: word.Draw(t, "about")}
		for i := range rapid.IntRange(0, 4).Draw(t, "answers") {
			r.Answers = append(r.Answers, Answer{Name: fmt.Sprintf("%s.%d", word.Draw(t, "name"), i), Exit: rapid.IntRange(0, 255).Draw(t, "exit"),
				Args: rapid.SliceOfN(rapid.String(), 1, 4).Draw(t, "args"), Stdout: text.Draw(t, "stdout"), Stderr: text.Draw(t, "stderr")})
		}
		got, err := parseRecording(r.format())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, r) {
			t.Fatalf("read %+v, written %+v", got, r)
		}
	})
}
