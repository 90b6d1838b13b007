package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/hwinfo"
)

func admits(t *testing.T, r *RequestEnv, src string, want bool) {
	t.Helper()
	p, err := CompilePolicy(src)
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	got, err := p.Admit(r)
	if got != want || err != nil {
		t.Errorf("%s = %v, %v, want %v", src, got, err, want)
	}
	if (len(p.Explain(r)) == 0) != want {
		t.Errorf("%s: Explain = %+v", src, p.Explain(r))
	}
}

// refused is a source that must not compile, part of the message, and its place (column 0: any).
type refused struct {
	name, src, want string
	line, column    int
}

func long(n int, part, join string) string {
	return strings.TrimSuffix(strings.Repeat(part+join, n), join)
}

func TestRefusedForSize(t *testing.T) {
	checkRefused(t, []refused{
		{"empty", "", "empty", 1, 1},
		{"space", " \n\t", "empty", 1, 1},
		{"comment only", "// true", "empty", 1, 1},
		{"block comment only", "/* true */", "empty", 1, 1},
		{"unclosed comment", "true /* x", "unclosed comment", 1, 10},
		{"invalid UTF-8", "true &&\n \xff", "UTF-8", 2, 2},
		{"too long", `hostname() == "` + strings.Repeat("x", maxSource) + `"`, "bytes", 1, 1},
		{"brackets of all kinds", strings.Repeat("([{", 40) + "1", "nested", 1, 101},
		{"closing brackets do not hide depth", strings.Repeat(")(", 100) + strings.Repeat("(", 101), "nested", 1, 300},
		{"prefix operators", strings.Repeat("!", 5000) + "true", "nested", 1, 101},
		{"not not", strings.Repeat("not ", 3000) + "true", "nested", 1, 403},
		{"minus minus", strings.Repeat("- ", 3000) + "1 == 1", "nested", 1, 201},
		{"brackets in a text are text", `hostname() == "` + strings.Repeat("(", 200), "literal not terminated", 1, 216},
		{"too many parts", long(600, "true", " and "), "parts", 1, 0},
		{"chained comparisons double", strings.Repeat("1 < (", 40) + "1" + strings.Repeat(" < 2 ? 1 : 2) < 3", 40), "parts", 1, 0},
		{"let doubles", "let a0 = hostname() + hostname(); " + doubling(40) + " a40 == \"x\"", "parts", 1, 0},
	})
}

func TestRefusedBecauseNotInTheLanguage(t *testing.T) {
	checkRefused(t, []refused{
		{"range", `1..1e9 == [1]`, "ranges", 1, 2},
		{"range in", `cpuinfo.cpu_cores in 1..1000000000`, "ranges", 1, 23},
		{"now", `now() > now()`, "now is not part", 1, 1},
		{"date", `date("2026-01-01") > date("2025-01-01")`, "date is not part", 1, 1},
		{"repeat", `repeat("x", 1000000) == ""`, "repeat is not part", 1, 1},
		{"replace", `replace(hostname(), "a", "b") == ""`, "replace is not part", 1, 1},
		{"join", `join(cpuinfo.flags, "x") == ""`, "join is not part", 1, 1},
		{"pipe into replace", `hostname() | replace("a", "b") == ""`, "replace is not part", 1, 14},
		{"toJSON", `toJSON(cpuinfo.flags) == ""`, "toJSON is not part", 1, 1},
		{"groupBy", `len(groupBy(cpuinfo.flags, #)) > 1`, "groupBy is not part", 1, 5},
		{"text plus text", `hostname() + hostname() == "xx"`, "cannot be joined", 1, 12},
		{"text plus constant", `"a" + hostname() == "ax"`, "cannot be joined", 1, 5},
		{"text plus in a closure", `any(cpuinfo.flags, # + # == "")`, "cannot be joined", 1, 22},
		{"any plus any", `first(map(cpuinfo.flags, #)) + "x" == ""`, "cannot be joined", 1, 0},
		{"nested closures", `any(cpuinfo.flags, any(osrelease.id_like, # == "x"))`, "nested", 1, 20},
		{"modalias in a closure", `any(cpuinfo.flags, modalias.match("x"))`, "closure", 1, 0},
		{"pattern of modalias", `modalias.match(hostname())`, "must be constant", 1, 0},
		{"long glob", `modalias.match("` + strings.Repeat("*a", 300) + `")`, "512 bytes", 1, 16},
		{"large regular expression", `hostname() matches "a{1000}b{1000}c{1000}d{1000}e{1000}f"`, "too large", 1, 20},
		{"many regular expressions", long(20, `hostname() matches "a{999}"`, " or "), "too large", 1, 0},
		{"let in a closure", `any(cpuinfo.flags, {let y = #; y == "x"})`, "closure", 1, 0},
		{"unused let", `let x = 3; true`, "never used", 1, 5},
		{"let over a group", `let cpuinfo = 3; cpuinfo == 3`, "already taken", 1, 5},
		{"sequence", `true; true`, "only one expression", 1, 1},
		{"map", `{"a": 1}.a == 1`, "maps", 1, 1},
		{"bytes", `b"a" == b"a"`, "byte texts", 1, 1},
		{"env", `$env["cpuinfo"] == nil`, "$env", 1, 1},
		{"coalesce", `(osrelease.variant_id ?? "x") == "x"`, "??", 1, 0},
	})
}

func TestRefusedWithHint(t *testing.T) {
	checkRefused(t, []refused{
		{"group", `cpuinfo == cpuinfo`, "is a group", 1, 1},
		{"field in a group", `"model" in cpuinfo`, "is a group", 1, 12},
		{"function as a value", `hostname == "x"`, "is a function", 1, 1},
		{"method as a value", `modalias.match == nil`, "is a function", 1, 10},
		{"number", `cpuinfo.cpu_cores`, "must be true or false, this is a number", 1, 0},
		{"text", `true and hostname()`, "must be true or false, this is text", 1, 10},
		{"list", `cpuinfo.flags`, "a list", 1, 0},
		{"mixed", `(true ? 1 : "x") == 1 ? first([1, "x"]) : true`, "depends on the input", 1, 0},
		{"constants that wrap", `cpuinfo.cpu_cores > 9223372036854775807 + 1`, "too large", 1, 41},
		{"constant product that wraps", `cpuinfo.cpu_cores > 4294967296 * 4294967296`, "too large", 1, 32},
		{"division by constant zero", `cpuinfo.cpu_cores % 0 == 1 % 0`, "divide by zero", 1, 0},
		{"second line", "true &&\n  cpuinfo.cpu_core > 3", "did you mean cpuinfo.cpu_cores?", 2, 11},
		{"unknown group", `cpuinf.model > 3`, "did you mean cpuinfo?", 1, 1},
		{"unknown field", `osrelease.nothing == ""`, "known here: id, id_like", 1, 11},
		{"memory is not in the language", `meminfo.total > 3`, "known here: hostname()", 1, 1},
		{"Go names do not show", `cpuinfo.VendorID == "x"`, "did you mean cpuinfo.vendor_id?", 1, 9},
		{"unexported fields do not show", `absent == 3`, "unknown name absent", 1, 1},
		{"one equals sign", `cpuinfo.cpu_cores = 3`, "== compares", 1, 19},
		{"one ampersand", `true & true`, "&&", 1, 6},
		{"upper case", `true AND true`, "lower case", 1, 6},
		{"escape", `hostname() matches "node\d+"`, "backslash twice", 1, 0},
		{"unclosed", `(true`, "ends too early", 1, 5},
	})
}

func checkRefused(t *testing.T, cases []refused) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			_, err := CompileCondition(tt.src)
			if d := time.Since(start); d > 3*time.Second {
				t.Errorf("took %v", d)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want *Error", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want one with %q", err, tt.want)
			}
			if e.Line != tt.line || tt.column != 0 && e.Column != tt.column {
				t.Errorf("at %d:%d, want %d:%d: %v", e.Line, e.Column, tt.line, tt.column, err)
			}
			for _, leak := range []string{"goroutine", ".go:", "expr.", "interface {}", "runtime", "reflect"} {
				if strings.Contains(e.Message, leak) {
					t.Errorf("message %q shows %q", e.Message, leak)
				}
			}
		})
	}
}

func doubling(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "let a%d = [a%d, a%d]; ", i, i-1, i-1)
	}
	return b.String()
}

// What people may write and did at other sites.
func TestAccepted(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	for _, src := range []string{
		`hostname() matches "compute-[0-9]{3}" && cpuinfo.vendor_id == "GenuineIntel" && cpuinfo.cpu_cores >= 16 && osrelease.id == "ubuntu"`,
		"hostname() matches `^compute-\\d{3}$`",
		`not (cpuinfo.vendor_id == "AuthenticAMD") and !(osrelease.id in ["rhel", "rocky"])`,
		`osrelease.id not in ["rhel", "rocky"]`,
		`16 <= cpuinfo.cpu_cores <= 64`,
		`"avx512f" in cpuinfo.flags`,
		`all(["avx", "avx2"], # in cpuinfo.flags)`,
		`any(cpuinfo.flags, {# startsWith "avx512"})`,
		`cpuinfo.flags | any(# == "avx")`,
		`count(cpuinfo.flags, # startsWith "avx") == 3`,
		`let c = cpuinfo.cpu_cores; let t = c * 2; t == cpuinfo.logical_cpus and c > 1`,
		`cpuinfo.cpu_cores > 16 ? modalias.count("pci:v000010DEd*") == 4 : false`,
		`if cpuinfo.cpu_cores > 16 { true } else { false }`,
		`float(osrelease.version_id) >= 22`,
		`int(split(osrelease.version_id, ".")[0]) >= 22`,
		`cpuinfo["cpu_cores"] == 32 && cpuinfo?.cpu_cores == 32`,
		`lower(cpuinfo.vendor_id) contains "intel"`,
		`fqdn() endsWith ".example.org" && uname.machine == "x86_64" && cpuinfo.arch == "amd64"`,
		`cpuinfo.cpu_cores / cpuinfo.sockets == cpuinfo.cores_per_socket`,
		`cpuinfo.cpu_cores in [16, 32, 64] and hostname()[0:7] == "compute"`,
		`true || cpuinfo.microcode == "x"`, `cpuinfo.microcode == "x" || true`,
		strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100),
		`cpuinfo.vendor_id matches "Intel" + "$"`,
		`max(cpuinfo.cpu_cores, 3) + abs(-3) == 35`,
	} {
		if got := mustCondition(t, src).Eval(env); got.Value != True || got.Parts != nil || got.Err != "" {
			t.Errorf("%s: %+v, want true", src, got)
		}
	}
}

func TestEvalNamesWhatWasFalse(t *testing.T) {
	f := gpuNode()
	f.CPU.Model = nil
	env := NewNodeEnv(f)
	for _, tt := range []struct{ name, src, want string }{
		{"one of three", `osrelease.id == "ubuntu" && cpuinfo.cpu_cores >= 64 && cpuinfo.sockets == 2`,
			`false: cpuinfo.cpu_cores >= 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"both alternatives", `cpuinfo.vendor_id == "AuthenticAMD" || cpuinfo.cpu_cores == 64`,
			`false: cpuinfo.vendor_id == "AuthenticAMD"=false {"cpuinfo.vendor_id":"GenuineIntel"}; cpuinfo.cpu_cores == 64=false {"cpuinfo.cpu_cores":"32"}`},
		{"absent", `cpuinfo.model == 85`, `unknown: cpuinfo.model == 85=unknown {"cpuinfo.model":"(absent)"}`},
		{"absent beside false", `cpuinfo.model == 85 && cpuinfo.cpu_cores == 1`,
			`false: cpuinfo.model == 85=unknown {"cpuinfo.model":"(absent)"}; cpuinfo.cpu_cores == 1=false {"cpuinfo.cpu_cores":"32"}`},
		{"under not", `not (osrelease.id == "ubuntu" && cpuinfo.sockets == 2 || cpuinfo.model == 1)`,
			`false: osrelease.id == "ubuntu"=true {"osrelease.id":"ubuntu"}; cpuinfo.sockets == 2=true {"cpuinfo.sockets":"2"}; cpuinfo.model == 1=unknown {"cpuinfo.model":"(absent)"}`},
		{"not equal", `cpuinfo.model != 3`, `unknown: cpuinfo.model != 3=unknown {"cpuinfo.model":"(absent)"}`},
		{"devices", `modalias.match("pci:v00001002*") && modalias.count("pci:v000010DEd*") >= 8`,
			`false: modalias.match("pci:v00001002*")=false {"modalias.match(\"pci:v00001002*\")":"0 of 40 devices"}; modalias.count("pci:v000010DEd*") >= 8=false {"modalias.count(\"pci:v000010DEd*\")":"4 of 40 devices"}`},
		{"host", `hostname() == "x"`, `false: hostname() == "x"=false {"hostname()":"compute-017"}`},
		{"list", `"avx10" in cpuinfo.flags`, `false: "avx10" in cpuinfo.flags=false {"cpuinfo.flags":"fpu avx avx2 avx512f"}`},
		{"error", `int(osrelease.version_id) > 3`,
			`error ("22.04" is not a whole number): int(osrelease.version_id) > 3=error {"osrelease.version_id":"22.04"}`},
		{"chained comparison", `40 <= cpuinfo.cpu_cores <= 64`, `false: 40 <= cpuinfo.cpu_cores=false {"cpuinfo.cpu_cores":"32"}`},
		{"constant", `true and false`, `false: false=false null`},
		{"same part twice", `cpuinfo.sockets == 4 && osrelease.id == "x" || not (cpuinfo.sockets == 4) && osrelease.id == "y"`,
			`false: cpuinfo.sockets == 4=false {"cpuinfo.sockets":"2"}; osrelease.id == "x"=false {"osrelease.id":"ubuntu"}; osrelease.id == "y"=false {"osrelease.id":"ubuntu"}`},
		{"same part twice, where changing all would not help", `cpuinfo.sockets == 2 && osrelease.id == "x" || not (cpuinfo.sockets == 2) && not (osrelease.id == "x")`,
			`false: osrelease.id == "x"=false {"osrelease.id":"ubuntu"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := mustCondition(t, tt.src).Eval(env)
			got := out.Value.String()
			if out.Err != "" {
				got += " (" + out.Err + ")"
			}
			for i, p := range out.Parts {
				seen, _ := json.Marshal(p.Seen)
				sep := "; "
				if i == 0 {
					sep = ": "
				}
				got += fmt.Sprintf("%s%s=%v %s", sep, p.Source, p.Value, seen)
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// A run-time error that is reached decides; one that is not reached does not exist.
func TestErrorsNeverMatch(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	const bad = `int(hostname()) == 1`
	for src, want := range map[string]Truth{
		bad:                                  Failed,
		bad + ` or true`:                     Failed,
		`true or ` + bad:                     True,
		`not (` + bad + `)`:                  Failed,
		`false and ` + bad:                   False,
		bad + ` and false`:                   Failed,
		`cpuinfo.microcode == "x" or ` + bad: Failed,
		`cpuinfo.flags[99] == "x" or true`:   Failed,
		`1 / (cpuinfo.sockets - 2) > 0`:      Failed,
		`cpuinfo.sockets % (cpuinfo.sockets - 2) == 0`: Failed,
		`cpuinfo.cpu_cores * 9223372036854775807 != 0`: Failed,
		`float(hostname()) > 0`:                        Failed,
	} {
		c := mustCondition(t, src)
		out := c.Eval(env)
		if out.Value != want || c.Match(env) != want || (out.Err != "") != (want == Failed) {
			t.Errorf("%s: %+v, want %v", src, out, want)
		}
		if strings.Contains(out.Err, "\n") || strings.Contains(out.Err, "interface") {
			t.Errorf("%s: error shows insides: %q", src, out.Err)
		}
	}
}

func TestTruthText(t *testing.T) {
	for _, v := range []Truth{Unknown, False, True, Failed} {
		b, err := v.MarshalText()
		var back Truth
		if err != nil || back.UnmarshalText(b) != nil || back != v {
			t.Errorf("%v does not survive its text %q", v, b)
		}
	}
	var v Truth
	if err := v.UnmarshalText([]byte("maybe")); err == nil || v == True {
		t.Errorf("maybe was read as %v", v)
	}
	b, _ := json.Marshal(Outcome{Value: Failed, Err: "x"})
	if string(b) != `{"value":"error","error":"x"}` {
		t.Errorf("outcome is %s", b)
	}
}

func TestEvalAny(t *testing.T) {
	f := gpuNode()
	f.CPU.Model = nil
	env := NewNodeEnv(f)
	for src, want := range map[string]string{
		`hostname()`:                       `"compute-017"`,
		`cpuinfo.cpu_cores`:                `32`,
		`cpuinfo.model`:                    `null`,
		`cpuinfo.model == 3`:               `null`,
		`cpuinfo.model == 3 or true`:       `true`,
		`cpuinfo.model + 3`:                `null`,
		`cpuinfo.microcode`:                `null`,
		`osrelease`:                        `{"id":"ubuntu","id_like":["debian"],"version_id":"22.04"}`,
		` uname `:                          `{"machine":"x86_64","release":"6.1.0-18-amd64","sysname":"Linux"}`,
		`cpuinfo.sockets == 2`:             `true`,
		`modalias.match("pci:v00001002*")`: `false`,
		`map(osrelease.id_like, upper(#))`: `["DEBIAN"]`,
		`[1, "a"]`:                         `[1,"a"]`,
		`nil`:                              `null`,
	} {
		got, err := EvalAny(src, env)
		b, _ := json.Marshal(got)
		if err != nil || string(b) != want {
			t.Errorf("%s = %s, %v, want %s", src, b, err, want)
		}
	}
	if v, err := EvalAny(`modalias.list()`, NewNodeEnv(hwinfo.Facts{})); v != nil || err != nil {
		t.Errorf("absent list: %v, %v", v, err)
	}
	if v, err := EvalAny(`cpuinfo.flags`, nil); v != nil || err != nil {
		t.Errorf("no node: %v, %v", v, err)
	}
	for _, src := range []string{`int(hostname())`, `int(hostname()) == 1`, `1..1e9`, `hostname`, ``} {
		if v, err := EvalAny(src, env); err == nil {
			t.Errorf("%s = %v, want an error", src, v)
		}
	}
}

// Facts of absurd size do not enter; the others stay.
func TestOversizedFactsAreAbsent(t *testing.T) {
	f := gpuNode()
	f.CPU.ModelName = strings.Repeat("x", maxText+1)
	f.CPU.Flags = []string{strings.Repeat("f", maxListText+1)}
	env := NewNodeEnv(f)
	for src, want := range map[string]Truth{
		`cpuinfo.model_name contains "x"`: Unknown, `len(cpuinfo.flags) > 0`: Unknown, `cpuinfo.cpu_cores == 32`: True,
	} {
		if got := mustCondition(t, src).Match(env); got != want {
			t.Errorf("%s = %v, want %v", src, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(mustCondition(t, `cpuinfo.flags[0] == "x" and hostname() == "y" and (let c = cpuinfo.cpu_cores; c > 3 and c < 9)`).Names())
	if got != `[cpuinfo.cpu_cores cpuinfo.flags hostname()]` {
		t.Errorf("names %s", got)
	}
	p, err := CompilePolicy(`request.job_annotations["gpu.type"] == "h100" and request.owner.group_id == "x" and request.job_ttl < 3`)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(p.Names()); got != `[request.job_annotations["gpu.type"] request.job_ttl request.owner.group_id]` {
		t.Errorf("names %s", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	cache := NewCache(nil)
	c, err := cache.Condition(benchCondition)
	if err != nil {
		t.Fatal(err)
	}
	p, err := cache.Policy(benchPolicy)
	if err != nil {
		t.Fatal(err)
	}
	env, r := NewNodeEnv(gpuNode()), benchRequest()
	refused := benchRequest()
	refused.Request.JobTTL = 1
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if c.Match(env) != True {
					t.Error("condition")
				}
				if ok, err := p.Admit(r); !ok || err != nil {
					t.Error("policy", err)
				}
				if parts := p.Explain(refused); len(parts) != 1 {
					t.Error("explain", parts)
				}
			}
		})
	}
	wg.Wait()
}

func TestCache(t *testing.T) {
	first := NewCache(nil)
	a, _ := first.Policy(`request.nodes > 1`)
	b, _ := first.Policy(`request.nodes > 1`)
	gone, _ := first.Policy(`request.nodes > 2`)
	if a == nil || a != b {
		t.Error("equal sources are not shared")
	}
	second := NewCache(first)
	if c, _ := second.Policy(`request.nodes > 1`); c != a {
		t.Error("the next revision compiled again")
	}
	second.Settle()
	if c, _ := second.Policy(`request.nodes > 2`); c == gone || c == nil {
		t.Error("the settled cache still looks at the previous one")
	}
	if _, err := second.Policy(`request.nodes >`); err == nil {
		t.Error("a broken policy was accepted")
	}
	if c, err := second.Condition(`true`); c == nil || err != nil {
		t.Error(err)
	}
	if c, err := second.Priority(DefaultPriority); c == nil || err != nil {
		t.Error(err)
	}
}
