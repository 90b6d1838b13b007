package expr

import (
	"errors"
	"fmt"
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

// FuzzExplain asks why a condition is not true, on nodes with some of their facts: there is an
// answer exactly when it is not true, and each part names what it saw.
func FuzzExplain(f *testing.F) {
	for _, src := range []string{
		benchCondition, `cpuinfo.sockets == 2 ? cpuinfo.cpu_cores >= 64 : osrelease.id == "debian"`, `not (hostname() == "compute-017" or cpuinfo.model == 1)`,
		`cpuinfo.sockets == 4 && osrelease.id == "x" || not (cpuinfo.sockets == 4) && osrelease.id == "y"`, `int(hostname()) > 1 or true`,
		`true and false or not true`, `let a = cpuinfo.cpu_cores; a > 1 ? a < 3 : a in [7]`, `modalias.count("pci:v0000*") > 100 and modalias.match("*")`,
		`any(cpuinfo.flags, # == "x") != all(osrelease.id_like, # == "x")`, `1 / cpuinfo.sockets == 1 ? false : cpuinfo.flags[9] == ""`,
	} {
		f.Add(src, uint64(0))
		f.Add(src, ^uint64(0))
	}
	f.Fuzz(func(t *testing.T, src string, absent uint64) {
		c, err := CompileCondition(src)
		if err != nil {
			return
		}
		env := NewNodeEnv(gpuNode())
		env.absent |= absent
		out := c.Eval(env)
		if (out.Value == True) != (len(out.Parts) == 0) || (out.Value == Failed) != (out.Err != "") {
			t.Fatalf("%q: %+v", src, out)
		}
		for _, p := range out.Parts {
			if p.Source == "" || p.Value == Unknown && !strings.Contains(fmt.Sprint(p.Seen), absentText) {
				t.Errorf("%q: %+v", src, p)
			}
		}
		r := c.language.evaluation(c.formula, env, env.absent)
		defer r.end()
		if out.Value != True {
			x := newExplainer(&r)
			if way := x.way(); way != nil && len(way) <= maxExact && !x.changing(way, flips{}) {
				t.Errorf("%q: changing %v does not make it true", src, way)
			}
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
