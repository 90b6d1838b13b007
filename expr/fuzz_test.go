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

// fullNode is a node of which every fact is known.
func fullNode(tb testing.TB) *NodeEnv {
	f := gpuNode()
	f.CPU.Microcode, f.CPU.NUMANodes, f.CPU.MHzMax = "0x2006b06", ptr(2), ptr(3700.0)
	f.OSRelease = hwinfo.OSRelease{ID: "ubuntu", IDLike: []string{"debian"}, VersionID: "22.04", Version: "22.04 LTS", VersionCodename: "jammy",
		Name: "Ubuntu", PrettyName: "Ubuntu 22.04", VariantID: "server", PlatformID: "platform:u22", BuildID: "7"}
	f.Uname.Version = "#1 SMP"
	env := NewNodeEnv(f)
	if env.absent != 0 {
		tb.Fatalf("facts %b are absent", env.absent)
	}
	return env
}

// FuzzAgainstMachine compares split formulas with the library's value of the whole expression as
// one program: on a node of which all is known, and on a request, the two are the same.
func FuzzAgainstMachine(f *testing.F) {
	for _, src := range []string{
		benchCondition, benchPolicy, `cpuinfo.sockets == 2 ? cpuinfo.cpu_cores >= 64 : osrelease.id == "debian"`, `3.0 >= cpuinfo.cpu_mhz_max or not ("x" in cpuinfo.flags)`,
		`let a = cpuinfo.cpu_cores; a > 1 ? a < 3 : a in [7]`, `request.owner.group_id != "lasers" or request.owner.organization_id in ["x", "research"]`,
		`request.job_ttl >= -1.5 and request.job_resource.mem.bytes > 18446744073709551615.0`, `hostname() matches "^compute-017$" && fqdn() matches "(?i)ORG$"`,
		`int(hostname()) > 1 or true`, `true || int(hostname()) > 1`, `1 / (cpuinfo.sockets - 2) > 0 and false`, `request.preemptible ? request.nodes == 4 : definition.id startsWith ""`,
		`"22" < osrelease.version_id != ("a" <= osrelease.id)`, `modalias.count("pci:*") - 40 == 0 and 40 == modalias.count("*")`,
	} {
		f.Add(src)
	}
	node, r := fullNode(f), request()
	f.Fuzz(func(t *testing.T, src string) {
		l := newLanguage()
		if c, err := l.condition(src); err == nil {
			want, failed := onMachine(t, l.dialect(NodeEnv{}), src, node)
			if got := c.Match(node); failed != (got == Failed) || !failed && got != truthOf(want.(bool)) {
				t.Errorf("condition %q = %v, the machine says %v, %v", src, got, want, failed)
			}
		}
		if p, err := l.policy(src); err == nil {
			want, failed := onMachine(t, l.dialect(RequestEnv{}), src, r)
			if got, err := p.Admit(r); failed != (err != nil) || !failed && got != want.(bool) {
				t.Errorf("policy %q = %v, %v, the machine says %v, %v", src, got, err, want, failed)
			}
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
