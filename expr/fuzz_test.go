package expr

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"substrate/hwinfo"
)

// FuzzExpression compiles any text in each environment and runs what compiles: nothing panics,
// stalls, shows the library's insides or admits with an error.
func FuzzExpression(f *testing.F) {
	for _, src := range []string{
		benchCondition, benchPolicy, DefaultPriority, "# x\ntrue", "let a = 1; a < 2 < 3 ? true : false",
		`any(cpuinfo.flags, {# startsWith "a"}) | string() matches "(a*)*b"`, "((((((((((", "1..1e9", "\xff", "`a``b`", `'\u{1F600}' == "x"`,
		`modalias.count("[[:alpha:]*") > 1 or not modalias.match("\\")`, `request.owner.group_id in [request.owner.group_id]`,
		`request.job_resource.mem.bytes * -9223372036854775807 % 3 == 1`, `if true {1} else {2}`, `cpuinfo?.flags?.[0] == nil`,
		`/*`, `//`, `- - - 1`, `not not not true`, `age_seconds / (cores - cores)`, `hostname()[1:][:2] == cpuinfo.flags[-1]`, `float("nan") != 0`,
		`filter(map(modalias.list(), [#, #]), len(#) > 1)[0][1] == "x"`, `::len("x") > 1`, `0x7fffffffffffffff * 2 > 0b1`,
	} {
		f.Add(src)
	}
	node, empty := NewNodeEnv(gpuNode()), NewNodeEnv(hwinfo.Facts{})
	r := request()
	rank := &PriorityEnv{Cores: 3, AgeSeconds: 100, Class: "batch"}
	f.Fuzz(func(t *testing.T, src string) {
		start := time.Now()
		c, err := CompileCondition(src)
		refusal(t, src, err)
		if err == nil {
			for _, env := range []*NodeEnv{node, empty} {
				out := c.Eval(env)
				if out.Value != c.Match(env) || (out.Value == True) != (len(out.Parts) == 0) || strings.Contains(out.Err, "\n") {
					t.Errorf("%q: %+v", src, out)
				}
			}
		}
		p, err := CompilePolicy(src)
		refusal(t, src, err)
		if err == nil {
			ok, err := p.Admit(r)
			if ok && err != nil || ok != (len(p.Explain(r)) == 0) {
				t.Errorf("%q: %v, %v, %+v", src, ok, err, p.Explain(r))
			}
		}
		q, err := CompilePriority(src)
		refusal(t, src, err)
		if err == nil {
			q.Eval(rank)
		}
		EvalAny(src, node)
		LintCondition(src)
		LintPolicy(src)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%q took %v", src, d)
		}
	})
}

func refusal(t *testing.T, src string, err error) {
	if err == nil {
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%q: %T is not *Error", src, err)
	}
	lines := strings.Split(src, "\n")
	if e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Message == "" || strings.Contains(e.Message, "\n") {
		t.Errorf("%q: %+v", src, e)
	} else if e.Column > utf8.RuneCountInString(lines[e.Line-1])+1 {
		t.Errorf("%q: column %d is behind the line: %v", src, e.Column, e)
	}
}
