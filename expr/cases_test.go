package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"substrate/hwinfo"
)

// exprCase is one expression that users write, and what must come of it.
type exprCase struct {
	ID, Source, Kind string // kind: condition where empty, policy
	Repeat           string // stands Times before the source
	Times            int
	Facts            struct {
		Hostname  string
		ModelName string `json:"model_name"`
		VersionID string `json:"version_id"`
		CPUCores  *int   `json:"cpu_cores"`
		Bytes     uint64 // of the request
	}
	Want         string // true, false, unknown
	Refused      string // or part of the refusal, at Line and Column
	Line, Column int
	Lints        []string
}

// testdata/cases.json holds them; each number stands for one slip or misunderstanding.
func TestCases(t *testing.T) {
	var cases []exprCase
	readJSON(t, "testdata/cases.json", &cases)
	have := map[string]bool{}
	for _, c := range cases {
		number, _, _ := strings.Cut(c.ID, " ")
		have[number] = true
		t.Run(c.ID, func(t *testing.T) { within(t, func() { c.check(t) }) })
	}
	for i := 1; i <= 18; i++ {
		if number := fmt.Sprintf("e%02d", i); !have[number] {
			t.Errorf("case %s is left out", number)
		}
	}
}

func (c *exprCase) check(t *testing.T) {
	src := strings.Repeat(c.Repeat, c.Times) + c.Source
	got, found, err := c.run(src)
	if c.Refused != "" {
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.Refused) || e.Line != c.Line || c.Column != 0 && e.Column != c.Column {
			t.Errorf("error %v, want one with %q at %d:%d", err, c.Refused, c.Line, c.Column)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != c.Want {
		t.Errorf("%s, want %s", got, c.Want)
	}
	lints, want := codes(found), slices.Clone(c.Lints)
	slices.Sort(lints)
	slices.Sort(want)
	if !slices.Equal(lints, want) {
		t.Errorf("lints %v, want %v", lints, want)
	}
}

func (c *exprCase) run(src string) (Truth, []Finding, error) {
	cache := NewCache(nil)
	if c.Kind == "policy" {
		p, found, err := cache.LintPolicy(src)
		if err != nil {
			return Failed, nil, err
		}
		r := NewRequestEnv()
		r.Request.JobResource.Mem.Bytes = c.Facts.Bytes
		ok, err := p.Admit(r)
		return truthOf(ok), found, err
	}
	p, found, err := cache.LintCondition(src)
	if err != nil {
		return Failed, nil, err
	}
	env := NewNodeEnv(hwinfo.Facts{Hostname: c.Facts.Hostname,
		CPU:       hwinfo.CPU{ModelName: c.Facts.ModelName, Cores: c.Facts.CPUCores},
		OSRelease: hwinfo.OSRelease{VersionID: c.Facts.VersionID}})
	if out := p.Eval(env); out.Value != p.Match(env) || (out.Value == True) != (len(out.Parts) == 0) {
		return Failed, nil, fmt.Errorf("two values: %+v", out)
	}
	return p.Match(env), found, nil
}
