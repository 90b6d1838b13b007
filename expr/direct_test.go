package expr

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"substrate/hwinfo"
)

// onMachine evaluates a source by the library alone, as one program.
func onMachine(t rapid.TB, d *dialect, src string, env any) (value any, failed bool) {
	t.Helper()
	n, e := d.read(src)
	if e != nil {
		t.Fatalf("%s: %v", src, e)
	}
	p, _, e := d.compile(src, n)
	if e != nil {
		t.Fatalf("%s: %v", src, e)
	}
	l := newLanguage()
	out, err := run(l.machine(), p, env)
	return out, err != nil
}

// A leaf that is tested directly has the value that the library gives it.
func TestTestsAgreeWithTheMachine(t *testing.T) {
	l := newLanguage()
	text := rapid.SampledFrom([]string{"", "a", "ab", "b", "A", "a\nb", "\u00e9", "22.04", "9", "research", orgUUID})
	whole := rapid.SampledFrom([]string{"0", "1", "-1", "2", "16", "4294967295", "9223372036854775807", "-9223372036854775807", "2 * 8", "1 - 3"})
	number := rapid.OneOf(whole, rapid.SampledFrom([]string{"0.5", "1.0", "-1.5", "9223372036854775807.0", "1e300", "16.0"}))
	patterns := rapid.SampledFrom([]string{"a", "^a", "a$", "^ab$", "^$", "", "^", "a|b", "(?i)A", "[ab]", "a.b", "(?s)a.b", "(?m)^b$", "\\x{fffd}", "\u00e9", "^(a)$"})
	texts := rapid.SampledFrom([]string{"request.owner.organization_id", "request.owner.group_id", "request.owner.email", "request.job_class",
		`request.job_annotations["k"]`, `definition.annotations["none"]`, "definition.id", "request.job_resource.cpu.affinity"})
	numbers := rapid.SampledFrom([]string{"request.nodes", "request.job_ttl", "request.job_resource.mem.bytes", "request.job_resource.cpu.cores",
		`request.job_resource.devices["d"]`, `request.job_resource.tokens["none"]`})
	rapid.Check(t, func(t *rapid.T) {
		q := strings.NewReplacer("\n", "\\n")
		quoted := func() string { return `"` + q.Replace(text.Draw(t, "text")) + `"` }
		var src string
		switch rapid.IntRange(0, 5).Draw(t, "shape") {
		case 0:
			op := rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">=", "contains", "startsWith", "endsWith"}).Draw(t, "op")
			src = fmt.Sprintf("%s %s %s", texts.Draw(t, "name"), op, quoted())
		case 1:
			op := rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">="}).Draw(t, "op")
			src = fmt.Sprintf("%s %s %s", quoted(), op, texts.Draw(t, "name"))
		case 2:
			src = fmt.Sprintf("%s matches %s", texts.Draw(t, "name"), "`"+patterns.Draw(t, "pattern")+"`")
		case 3:
			src = fmt.Sprintf("%s in [%s, %s]", texts.Draw(t, "name"), quoted(), quoted())
		case 4:
			src = fmt.Sprintf("%s %s %s", numbers.Draw(t, "name"), rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">="}).Draw(t, "op"), number.Draw(t, "number"))
		case 5:
			src = fmt.Sprintf("%s %s %s", number.Draw(t, "number"), rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">="}).Draw(t, "op"), numbers.Draw(t, "name"))
		}
		r := request()
		o := r.Request.Owner
		for _, at := range []*string{&o.OrganizationID, &o.OrganizationName, &o.GroupID, &o.GroupName, &o.Email, &r.Request.JobClass, &r.Definition.ID, &r.Request.JobResource.CPU.Affinity} {
			*at = text.Draw(t, "value")
		}
		r.Request.JobAnnotations["k"] = text.Draw(t, "annotation")
		r.Request.Nodes = rapid.SampledFrom([]uint32{0, 1, 2, 16, math.MaxUint32}).Draw(t, "nodes")
		r.Request.JobResource.CPU.Cores = r.Request.Nodes
		r.Request.JobResource.Devices["d"] = r.Request.Nodes
		r.Request.JobResource.Mem.Bytes = rapid.SampledFrom([]uint64{0, 1, 16, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64}).Draw(t, "bytes")
		r.Request.JobTTL = rapid.SampledFrom([]float64{0, 1, 0.5, -1.5, math.Inf(1), math.NaN(), 1e300}).Draw(t, "ttl")
		p, err := CompilePolicy(src)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		ordered := strings.Contains(src, "<") || strings.Contains(src, ">")
		if p.formula.leaves[0].test == nil && !(ordered && strings.Contains(src, "_id")) {
			t.Fatalf("%s is not tested directly", src)
		}
		got, err := p.Admit(r)
		want, failed := onMachine(t, l.dialect(RequestEnv{}), src, r)
		if failed || err != nil || got != want {
			t.Fatalf("%s = %v, %v; the machine says %v, %v", src, got, err, want, failed)
		}
	})
}

// Whole conditions too: split at and, or, not and ?:, with leaves of both sorts, some of which fail.
func TestFormulasAgreeWithTheMachine(t *testing.T) {
	leaves := rapid.SampledFrom([]string{
		`hostname() == "compute-017"`, `hostname() matches "^comp.*7$"`, `hostname() matches "^gpu"`, `cpuinfo.cpu_cores >= 16`, `cpuinfo.cpu_cores < 3.5`,
		`16 <= cpuinfo.cpu_cores <= 31`, `cpuinfo.sockets in [1, 2]`, `"avx" in cpuinfo.flags`, `"amx" in cpuinfo.flags`, `any(cpuinfo.flags, # startsWith "avx")`,
		`osrelease.id in ["debian", "ubuntu"]`, `osrelease.version_id >= "9"`, `float(osrelease.version_id) >= 22`, `int(osrelease.version_id) == 22`,
		`modalias.match("pci:v000010DEd*")`, `modalias.count("pci:v00001002d*") == 0`, `modalias.count("pci:*") > modalias.count("usb:*")`, `true`, `false`,
		`1 / (cpuinfo.sockets - 2) > 0`, `cpuinfo.flags[99] == "x"`, `cpuinfo.cpu_cores / cpuinfo.sockets == cpuinfo.cores_per_socket`, `len(osrelease.id_like) == 1`,
		`(hostname() contains "7") == ("avx" in cpuinfo.flags)`, `let c = cpuinfo.cpu_cores; c * 2 == cpuinfo.logical_cpus and c > 1`,
	})
	var draw func(t *rapid.T, depth int) string
	draw = func(t *rapid.T, depth int) string {
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		if depth == 0 {
			kind = 0
		}
		switch kind {
		case 1:
			return "not (" + draw(t, depth-1) + ")"
		case 2:
			return "(" + draw(t, depth-1) + ") and (" + draw(t, depth-1) + ")"
		case 3:
			return "(" + draw(t, depth-1) + ") || (" + draw(t, depth-1) + ")"
		case 4:
			return "((" + draw(t, depth-1) + ") ? (" + draw(t, depth-1) + ") : (" + draw(t, depth-1) + "))"
		}
		return leaves.Draw(t, "leaf")
	}
	l, env := newLanguage(), fullNode(t)
	rapid.Check(t, func(t *rapid.T) {
		src := draw(t, 4)
		c, err := l.condition(src)
		if err != nil {
			t.Skip(err) // a let inside of an expression
		}
		want, failed := onMachine(t, l.dialect(NodeEnv{}), src, env)
		got := c.Match(env)
		if failed != (got == Failed) || !failed && got != truthOf(want.(bool)) {
			t.Fatalf("%s = %v, the machine says %v, %v", src, got, want, failed)
		}
	})
}

// What conditions ask most is tested directly.
func TestUsualLeavesNeedNoMachine(t *testing.T) {
	l := newLanguage()
	env := NewNodeEnv(gpuNode())
	for _, src := range []string{
		`hostname() == "compute-017"`, `hostname() matches "^compute-[0-9]{3}$"`, `fqdn() endsWith ".org"`, `cpuinfo.vendor_id != "x"`,
		`cpuinfo.cpu_cores >= 16`, `16 <= cpuinfo.cpu_cores`, `cpuinfo.cpu_cores >= 16.5`, `cpuinfo.cpu_cores == 2 * 16`, `"avx" in cpuinfo.flags`,
		`osrelease.id in ["ubuntu", "debian"]`, `osrelease.version_id >= "9"`, `modalias.match("pci:v000010DEd*")`, `modalias.count("pci:v000010DEd*") >= 4`,
		`3 < modalias.count("pci:*")`, `true`, `false`, `cpuinfo.model_name matches "Xeon" + " .*"`, `"x" == uname.machine`,
	} {
		c := mustCondition(t, src)
		if len(c.formula.leaves) != 1 || c.formula.leaves[0].test == nil {
			t.Errorf("%s is not tested directly", src)
			continue
		}
		want, failed := onMachine(t, l.dialect(NodeEnv{}), src, env)
		if got := c.Match(env); failed || got != truthOf(want.(bool)) {
			t.Errorf("%s = %v, the machine says %v", src, got, want)
		}
	}
	p, err := CompilePolicy(`request.preemptible`)
	if ok, _ := p.Admit(request()); err != nil || !ok || p.formula.leaves[0].test == nil {
		t.Errorf("a field that is true by itself: %v", err)
	}
}

// A pattern without a choice is a comparison of texts, whatever the text.
func TestPlainPatterns(t *testing.T) {
	for pattern, want := range map[string]string{
		"^abc$": "==", "^abc": "startsWith", "abc$": "endsWith", "abc": "contains", `^a\.b$`: "==", `\Aab\z`: "==",
		"a.c": "", "(?i)abc": "", "^a|b$": "", "a*": "", "(abc)": "", "": "", "^$": "", "^": "", "(?m)^a$": "", "\ufffd": "", "[a]": "contains",
	} {
		re, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		if op, _, _ := plainly(re); op != want {
			t.Errorf("%q is %q, want %q", pattern, op, want)
		}
	}
	piece := rapid.SampledFrom([]string{"a", "b", ".", "^", "$", `\.`, "(a)", "é", "a?", "\ufffd", "(?i)a"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 5).Draw(t, "pattern"), "")
		re, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Skip(err)
		}
		op, want, ok := plainly(re)
		if !ok {
			return
		}
		value := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", ".", "é", "\n", "\xff", "A"}), 0, 5).Draw(t, "value"), "")
		test := textTest{op: op, want: want}
		if got, want := test.compare(value), regexp.MustCompile(text).MatchString(value); got != want {
			t.Fatalf("%q on %q = %v, want %v", text, value, got, want)
		}
	})
}

// A group that the caller left out fails; it is never read as zero.
func TestMissingGroupsFail(t *testing.T) {
	for _, src := range []string{
		`request.nodes == 0`, `request.owner.email == ""`, `request.job_resource.mem.by_core or true`, `request.owner.group_id in ["x", ""]`,
		`request.job_annotations["x"] == ""`, `request.job_resource.devices["x"] == 0`, `request.owner.group_id != "x"`,
	} {
		p, err := CompilePolicy(src)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := p.Admit(&RequestEnv{}); ok || err == nil {
			t.Errorf("%s: %v, %v", src, ok, err)
		}
	}
	for _, src := range []string{`hostname() == ""`, `cpuinfo.cpu_cores == 0`, `"x" in cpuinfo.flags or true`, `not modalias.match("*")`, `modalias.count("*") == 0`} {
		if got := mustCondition(t, src).Match(&NodeEnv{}); got != Failed {
			t.Errorf("%s = %v, want an error", src, got)
		}
	}
}

// Ten thousand leaves that differ in nothing share one test; two that differ in anything do not.
func TestEqualLeavesAreShared(t *testing.T) {
	cache := NewCache(nil)
	seen := map[*leaf]string{}
	for _, src := range []string{
		`cpuinfo.cpu_cores == 3`, `cpuinfo.cpu_cores == 3.0`, `cpuinfo.cpu_cores == 4`, `cpuinfo.cpu_cores != 3`, `3 == cpuinfo.cpu_cores`,
		`hostname() == "3"`, `hostname() in ["3"]`, `hostname() in ["3", "4"]`, `hostname() in ["3\", \"4"]`, `hostname() contains "3"`, `fqdn() == "3"`,
		`modalias.match("3")`, `modalias.count("3") > 0`, `cpuinfo.cpu_cores in [3]`, `cpuinfo.cpu_cores in [3.0]`, `-cpuinfo.cpu_cores == 3`,
	} {
		a, err := cache.Condition(src)
		if err != nil {
			t.Fatal(err)
		}
		b, err := cache.Condition(" " + src + " and true")
		if err != nil {
			t.Fatal(err)
		}
		if a.formula.leaves[0] != b.formula.leaves[0] {
			t.Errorf("%s is compiled twice", src)
		}
		if other := seen[a.formula.leaves[0]]; other != "" {
			t.Errorf("%s is taken for %s", src, other)
		}
		seen[a.formula.leaves[0]] = src
	}
}

// Choices in choices cost no more than they are long, in evaluation and in explanation.
func TestNestedChoicesAreLinear(t *testing.T) {
	const n = 60
	for _, src := range []string{
		strings.Repeat("(", n) + `hostname() == "x"` + strings.Repeat(` ? hostname() == "y" : hostname() == "z")`, n),
		strings.Repeat(`(hostname() == "x" ? `, n) + `hostname() == "y"` + strings.Repeat(` : hostname() == "z")`, n),
		strings.Repeat("(", n) + `cpuinfo.microcode == "x"` + strings.Repeat(` ? cpuinfo.microcode == "y" : hostname() == "z")`, n),
		strings.Repeat("not (", n) + `cpuinfo.sockets == 9` + strings.Repeat(` ? cpuinfo.sockets == 8 : cpuinfo.sockets == 7)`, n),
	} {
		within(t, func() {
			c := mustCondition(t, src)
			for _, f := range []hwinfo.Facts{gpuNode(), {}} {
				env := NewNodeEnv(f)
				if out := c.Eval(env); out.Value != c.Match(env) || out.Value != True && len(out.Parts) == 0 {
					t.Errorf("%.40s: %+v", src, out)
				}
			}
		})
	}
}

// Large formulas of repeated leaves do not stall the search for reasons.
func TestLargeFormulasAreExplained(t *testing.T) {
	var clauses []string
	for i := range 75 {
		clauses = append(clauses, fmt.Sprintf(`(cpuinfo.cpu_cores == %d or not (cpuinfo.sockets == %d))`, 100+i%60, 2+i%3))
	}
	for _, src := range []string{strings.Join(clauses, " and "), strings.Join(clauses, " or "), "not (" + strings.Join(clauses, " and ") + ")"} {
		within(t, func() {
			out := mustCondition(t, src).Eval(NewNodeEnv(gpuNode()))
			if out.Value != True && len(out.Parts) == 0 {
				t.Errorf("%.60s: %+v", src, out)
			}
		})
	}
}

func TestLintComesWithTheCompilation(t *testing.T) {
	cache := NewCache(nil)
	const src = `hostname() matches "node-[01-20]" and cpuinfo.cpu_cores > 3`
	for range 2 { // the second comes from the cache
		c, found, err := cache.LintCondition(src)
		if err != nil || c == nil || !slices.Equal(codes(found), []string{LintNumericRange, LintUnanchoredHost}) {
			t.Fatalf("%v, %v, %v", c, found, err)
		}
	}
	again, found, err := cache.LintCondition("\n" + src) // the same leaves at another place
	if err != nil || again == nil || len(found) != 2 || found[0].Line != 2 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, found, err := cache.LintPolicy(`request.owner.email endsWith definition.annotations["d"]`); err != nil || !slices.Equal(codes(found), []string{LintEmptyNeedle}) {
		t.Errorf("%v, %v", found, err)
	}
	if c, found, err := cache.LintPolicy(`request.nodes`); c != nil || found != nil || err == nil {
		t.Errorf("%v, %v, %v", c, found, err)
	}
}

// What runs for every node and request leaves nothing to the collector.
func TestNothingIsAllocated(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := mustCondition(t, benchCondition+` && "avx" in cpuinfo.flags && modalias.count("pci:v000010DEd*") == 4 && fqdn() in ["a", "compute-017.example.org"]`)
	env := NewNodeEnv(gpuNode())
	if n := testing.AllocsPerRun(100, func() {
		if c.Match(env) != True {
			t.Fatal("no match")
		}
	}); n > 0 {
		t.Errorf("a condition allocates %v times", n)
	}
	p, err := CompilePolicy(benchPolicy + ` && request.job_resource.devices["nvidia.com/gpu"] == 0 && !request.preemptible`)
	if err != nil {
		t.Fatal(err)
	}
	r := benchRequest()
	if n := testing.AllocsPerRun(100, func() {
		if ok, err := p.Admit(r); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}); n > 0 {
		t.Errorf("a policy allocates %v times", n)
	}
}
