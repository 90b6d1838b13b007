package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"

	"substrate/coordinator/sched/scenario"
)

// errDisagrees has been said already, by the difference.
var errDisagrees = errors.New("the decisions are not those that the scenario names")

const maxScenario = 1 << 20

// played is one scenario and what came of it.
type played struct {
	Scenario string `json:"scenario"`
	Plan     string `json:"plan"`
	Agrees   *bool  `json:"agrees,omitempty"` // nil: the scenario names no plan
	Diff     string `json:"diff,omitempty"`
}

// scenarios plays files of one story each.
func (a *app) scenarios(files []string) error {
	var all []played
	for _, file := range files {
		if !isScenario(file) {
			return &usageError{fmt.Sprintf("%s is no scenario: scenarios end in .txtar and are not mixed with traces", file)}
		}
		p, err := play(file)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	if a.output == "json" {
		e := json.NewEncoder(a.out)
		e.SetIndent("", "  ")
		if err := e.Encode(all); err != nil {
			return fmt.Errorf("cannot write the answer: %w", err)
		}
	}
	wrong := false
	for _, p := range all {
		wrong = wrong || p.Agrees != nil && !*p.Agrees
		if a.output == "json" {
			continue
		}
		switch {
		case p.Agrees == nil:
			fmt.Fprint(a.out, p.Plan)
		case *p.Agrees:
			fmt.Fprintf(a.out, "%s%s agrees with its plan\n", p.Plan, p.Scenario)
		default:
			fmt.Fprintf(a.out, "%s%s disagrees with its plan:\n%s", p.Plan, p.Scenario, p.Diff)
		}
	}
	if wrong {
		return errDisagrees
	}
	return nil
}

// play tells the story of one file. A plan in the file is what is expected.
func play(file string) (played, error) {
	p := played{Scenario: file}
	data, err := readFile(file, maxScenario)
	if err != nil {
		return p, err
	}
	archive := txtar.Parse(data)
	var story, plan *txtar.File
	for i := range archive.Files {
		switch f := &archive.Files[i]; f.Name {
		case "story":
			story = f
		case "plan":
			plan = f
		default:
			return p, fmt.Errorf("cannot play %s: it has a part %q, a scenario has story and, if something is expected, plan", file, f.Name)
		}
	}
	if story == nil {
		return p, fmt.Errorf("cannot play %s: it has no part `-- story --`", file)
	}
	if p.Plan, err = scenario.Play(string(story.Data), nil); err != nil {
		var at *scenario.Error
		if errors.As(err, &at) {
			return p, fmt.Errorf("%s:%d: %w", file, storyLine(data, story)+at.Line, at.Err)
		}
		return p, err
	}
	if plan != nil {
		agrees := p.Plan == string(plan.Data)
		p.Agrees = &agrees
		p.Diff = string(diff.Diff("expected", plan.Data, "decided", []byte(p.Plan)))
	}
	return p, nil
}

// storyLine is the line of the file that the story's first line follows.
func storyLine(data []byte, story *txtar.File) int {
	lines := 0
	for at := range data {
		if len(data)-at >= len(story.Data) && string(data[at:at+len(story.Data)]) == string(story.Data) && at > 0 && data[at-1] == '\n' {
			return lines
		}
		if data[at] == '\n' {
			lines++
		}
	}
	return 0
}

func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, errors.Unwrap(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1)) // a device tells no size
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, errors.Unwrap(err))
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("cannot read %s: it is larger than %d bytes", name, most)
	}
	return data, nil
}
