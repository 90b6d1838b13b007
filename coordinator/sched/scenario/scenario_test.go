package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

func TestPlay(t *testing.T) {
	for name, c := range map[string]struct {
		story, want string
		line        int // of the error
	}{
		"starts":            {"definition d\nnode n def=d cores=1\nask a\ntick\n", "start a on n of d", 0},
		"comment and blank": {"# nothing\n\n", "", 0},
		"verb":              {"definition d\nfly away\n", `unknown verb "fly"`, 2},
		"field":             {"config colour=red\n", "colour=red: unknown key", 1},
		"duration":          {"\n\nadvance soon\n", `invalid duration "soon"`, 3},
		"nobody":            {"end a\n", `nothing to end is called "a"`, 1},
		"no such GPU":       {"node n gpu=1\ngpus n gpu domain=0 dead=1\n", "there is no GPU 1", 2},
		"links beyond":      {"node n gpu=1\ngpus n gpu domain=0 switched=0-900000\n", "the node has 1 GPUs", 2},
		"devices first":     {"run a devices=0\n", "devices=0: it stands after on=", 1},
		"too long":          {strings.Repeat("\n", maxLines+1), "at most 10000 lines", maxLines + 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Play(c.story, nil)
			var at *Error
			if errors.As(err, &at) {
				got += err.Error()
			}
			if at == nil && (err != nil || c.line != 0) || at != nil && at.Line != c.line || !strings.Contains(got, c.want) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// FuzzPlay: whatever a story says, it is told or refused.
func FuzzPlay(f *testing.F) {
	files, err := filepath.Glob("../testdata/scenarios/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatal("no scenarios", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(txtar.Parse(data).Files[0].Data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 || strings.Count(text, "tick") > 4 {
			return
		}
		_, _ = Play(text, nil)
	})
}
