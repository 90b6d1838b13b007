package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"substrate/hwinfo"
)

// within runs f and gives up after a time far above what it needs, so that a stall is a failure
// here and not a build that hangs.
func within(t *testing.T, f func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("it does not end")
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
		{"huge regular expression over a list", `any(modalias.list(), # matches "(a{100}|b{200})*c")`, "too large", 1, 32},
		{"repeats of repeats", `hostname() matches "((a{30}){30}){30}"`, "invalid repeat count", 1, 20},
		{"pattern from a choice", `hostname() matches (cpuinfo.sockets > 1 ? "a" : "b")`, "must be constant", 1, 0},
		{"many regular expressions", long(20, `hostname() matches "a{999}"`, " or "), "too large", 1, 0},
		{"let in a closure", `any(cpuinfo.flags, {let y = #; y == "x"})`, "closure", 1, 0},
		{"unused let", `let x = 3; true`, "never used", 1, 5},
		{"let over a group", `let cpuinfo = 3; cpuinfo == 3`, "already taken", 1, 5},
		{"sequence", `true; true`, "only one expression", 1, 1},
		{"map", `{"a": 1}.a == 1`, "maps", 1, 1},
		{"bytes", `b"a" == b"a"`, "byte texts", 1, 1},
		{"env", `$env["cpuinfo"] == nil`, "$env", 1, 1},
		{"168 MB by repeat", `len(repeat("aaaaaaaaaa", 16777216)) > 1`, "repeat is not part", 1, 5},
		{"168 MB by doubling", "let a = hostname() + hostname();\nlet b = a + a; len(b) > 1", "cannot be joined", 1, 20},
		{"doubling by concat", `len(concat(cpuinfo.flags, cpuinfo.flags)) > 1`, "concat is not part", 1, 5},
		{"map in filter", `len(filter(cpuinfo.flags, len(map(osrelease.id_like, #)) > 1)) > 1`, "nested", 1, 31},
		{"filter in map in count", "count(cpuinfo.flags,\n  len(map(cpuinfo.flags,\n    len(filter(cpuinfo.flags, true)))) > 1) > 1", "nested", 2, 7},
		{"sort", `first(sort(cpuinfo.flags)) == ""`, "sort is not part", 1, 7},
		{"sum", `sum([1, 2]) > 1`, "sum is not part", 1, 1},
		{"flatten", `len(flatten([[1]])) > 1`, "flatten is not part", 1, 5},
		{"fromJSON", `fromJSON("[]") == nil`, "fromJSON is not part", 1, 1},
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
			var err error
			within(t, func() { _, err = CompileCondition(tt.src) })
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

// The guards stand before every way into the language.
func TestGuardsStandEverywhere(t *testing.T) {
	for name, src := range map[string]string{
		"a million brackets": strings.Repeat("(", 1_000_000), "a million of all kinds": strings.Repeat("([{", 333_333),
		"a million nots": strings.Repeat("not ", 250_000) + "true", "deep": strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"no UTF-8": "true or \xff\xfe", "range": "1..1e9", "range over all": "len(1..1000000000) > 1", "repeat": `len(repeat("aaaaaaaaaa", 16777216)) > 1`,
		"reduce": `len(reduce(1..24, #acc + #acc, "aaaaaaaaaa")) > 1`,
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func() {
				for way, try := range map[string]func() error{
					"condition": func() error { _, err := CompileCondition(src); return err },
					"policy":    func() error { _, err := CompilePolicy(src); return err },
					"priority":  func() error { _, err := CompilePriority(src); return err },
					"value":     func() error { _, err := EvalAny(src, NewNodeEnv(gpuNode())); return err },
				} {
					var e *Error
					if err := try(); !errors.As(err, &e) || e.Line < 1 || e.Column < 1 || strings.Contains(e.Message, "\n") {
						t.Errorf("%s: %v", way, err)
					}
				}
				if len(LintCondition(src))+len(LintPolicy(src)) > 0 {
					t.Error("something that does not compile has findings")
				}
			})
		})
	}
}

// largestNode is a node as large as the bounds on facts allow.
func largestNode() *NodeEnv {
	f := gpuNode()
	f.CPU.ModelName = strings.Repeat("a", maxText)
	f.CPU.Flags = strings.Split(strings.Repeat("a", maxListText), "")
	for i := range maxDevices {
		f.PCI = append(f.PCI[:i], hwinfo.PCI{Modalias: fmt.Sprintf("%s%04d", strings.Repeat("a", maxAlias-4), i)})
	}
	return NewNodeEnv(f)
}

// What compiles ends, on the largest node and with the dearest patterns that are let through.
func TestWhatCompilesEnds(t *testing.T) {
	env := largestNode()
	for name, src := range map[string]string{
		"pattern on a text":        `cpuinfo.model_name matches "(a*)*(a|aa)*a{900}(a{900}|aa)b"`,
		"pattern on a list":        `any(cpuinfo.flags, # matches "(a*)*(a{20})*b")`,
		"pattern on all devices":   `any(modalias.list(), # matches "(a*)*(a|aa)*(a{30})*b")`,
		"shell pattern":            `modalias.count("` + strings.Repeat("*a", 200) + `*b") > 0`,
		"shell pattern, one star":  `modalias.count("*` + strings.Repeat("a", 60) + `b*") > 0`,
		"shell patterns, many":     long(12, `modalias.count("*`+strings.Repeat("a", 60)+`b*") > 0`, " or "),
		"a long body":              "any(cpuinfo.flags, " + long(90, `# startsWith "b"`, " or ") + ")",
		"lists one after another":  long(60, `any(cpuinfo.flags, # == "b")`, " or "),
		"pieces of pieces":         `any(split(upper(cpuinfo.model_name), ""), # == "b")`,
		"comparison of long lists": `map(cpuinfo.flags[0:9000], upper(#)) == map(cpuinfo.flags[0:9000], lower(#))`,
	} {
		t.Run(name, func(t *testing.T) {
			within(t, func() {
				if out := mustCondition(t, src).Eval(env); out.Value != False || len(out.Parts) == 0 {
					t.Errorf("%+.300v", out)
				}
			})
		})
	}
}

// One run makes no more elements than its budget: then it fails, and does not match.
func TestMemoryBudget(t *testing.T) {
	env := largestNode()
	for _, src := range []string{
		`len(map(cpuinfo.flags, [#, #, #])) > 0`,
		`len(map(cpuinfo.flags, #)) > 0 and len([map(cpuinfo.flags, #), map(cpuinfo.flags, #)]) > 0`,
		`len(map(modalias.list(), split(#, "a"))) + len(map(cpuinfo.flags, [#])) > 0`,
	} {
		within(t, func() {
			out := mustCondition(t, src).Eval(env)
			if out.Value != Failed || !strings.Contains(out.Err, "memory budget") {
				t.Errorf("%s: %+.300v", src, out)
			}
		})
	}
	if got := mustCondition(t, `len(map(cpuinfo.flags, #)) == 16384`).Match(env); got != True {
		t.Errorf("one copy of a list is %v", got)
	}
}

// A size in the manner of a workflow file is refused with the number to write.
func TestSizesAreNumbers(t *testing.T) {
	for literal, want := range map[string]string{
		"128GiB": "128 * 1024 * 1024 * 1024", "2 TB": "2 * 1000 * 1000 * 1000 * 1000", "64KiB": "64 * 1024", "32": "without quotes", "GiB": "without quotes", "": "without quotes",
	} {
		_, err := CompilePolicy(`request.job_resource.mem.bytes <= "` + literal + `"`)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", literal, err, want)
		}
	}
}
