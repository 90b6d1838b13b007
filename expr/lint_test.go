package expr

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"substrate/hwinfo"
)

func codes(found []Finding) []string {
	out := []string{}
	for _, f := range found {
		out = append(out, f.Code)
	}
	return out
}

func TestLintCondition(t *testing.T) {
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"range of numbers in a class", `hostname() matches "^compute-[01-20]$"`, []string{LintNumericRange}},
		{"range at the end", `hostname() matches "^gpu-[1-10]$"`, []string{LintNumericRange}},
		{"single digits are fine", `hostname() matches "^gpu-[0-9]{2}$"`, []string{}},
		{"both slips", `hostname() matches "compute-[21-40]"`, []string{LintNumericRange, LintUnanchoredHost}},
		{"open end", `hostname() matches "^compute-[0-9]{3}"`, []string{LintUnanchoredHost}},
		{"open start", `fqdn() matches "compute-[0-9]+$"`, []string{LintUnanchoredHost}},
		{"anchored in each alternative", `hostname() matches "^a1$|^b1$"`, []string{}},
		{"anchored in one alternative", `hostname() matches "^a1$|b1$"`, []string{LintUnanchoredHost}},
		{"anchors around a group", `hostname() matches "^(a|b)[0-9]+$"`, []string{}},
		{"other texts need no anchor", `cpuinfo.model_name matches "Xeon"`, []string{}},
		{"under not", `not (hostname() matches "login")`, []string{LintUnanchoredHost}},
		{"empty pattern", `hostname() matches ""`, []string{LintMatchesAll}},
		{"through let", `let h = hostname(); h matches "x" or h matches "y"`, []string{LintUnanchoredHost, LintUnanchoredHost}},
		{"version order", `osrelease.version_id >= "9"`, []string{LintVersionAsText}},
		{"version order, turned", `"5.15" < uname.release`, []string{LintVersionAsText}},
		{"version as a number", `float(osrelease.version_id) >= 22`, []string{}},
		{"version equality", `osrelease.version_id == "22.04"`, []string{}},
		{"nil", `cpuinfo.model_name != nil`, []string{LintNeverNil}},
		{"seed pattern", `modalias.match("pci:v000010DEd*sv*sd*bc03sc*i*")`, []string{}},
		{"seed pattern with device", `modalias.match("pci:v000010DEd00001DB4sv*sd*bc03sc*i*")`, []string{}},
		{"family in brackets", `modalias.count("pci:v00001D0Fd0000EFA[0-9]sv*") > 0`, []string{}},
		{"lower-case vendor", `modalias.match("pci:v000010ded*sv*sd*bc03sc*i*")`, []string{LintLowercaseModalias}},
		{"lower-case device", `modalias.match("pci:v000010DEd000020f1sv*")`, []string{LintLowercaseModalias}},
		{"lower-case class", `modalias.match("pci:v*d*sv*sd*bc0csc*i*")`, []string{LintLowercaseModalias}},
		{"lower-case interface", `modalias.match("pci:v00008086d00002921sv*sd*bc01sc01i8f")`, []string{LintOpenModalias, LintLowercaseModalias}},
		{"unpadded id", `modalias.match("pci:v10DEd*")`, []string{LintShortModaliasID}},
		{"no bus", `modalias.match("*10DE*")`, []string{LintModaliasBus}},
		{"everything", `modalias.match("*")`, []string{LintAnyModalias}},
		{"no star at the end", `modalias.match("pci:v000010DE")`, []string{LintOpenModalias}},
		{"swallowed line", `cpuinfo.cpu_cores > 3 // only Intel && cpuinfo.vendor_id == "GenuineIntel"`, []string{LintSwallowedRest}},
		{"plain remark", `cpuinfo.cpu_cores > 3 // big nodes`, []string{}},
		{"remark on a line of its own", "// hostname() == \"x\"\ncpuinfo.cpu_cores > 3", []string{}},
		{"slashes in a text", `hostname() == "http://x && y"`, []string{}},
		{"shell pattern that is an expression", `cpuinfo.model_name matches "Xeon*"`, []string{LintShellPattern}},
		{"shell pattern on a host name", `hostname() matches "node-*"`, []string{LintShellPattern, LintUnanchoredHost}},
		{"star behind a dot", `cpuinfo.model_name matches "Xeon.*Gold"`, []string{}},
		{"star behind a class", `cpuinfo.model_name matches "Xeon [0-9]*"`, []string{}},
		{"two names", `hostname() == "a" and cpuinfo.sockets == 2 and hostname() == "b"`, []string{LintContradiction}},
		{"two names by alternative", `hostname() == "a" or hostname() == "b"`, []string{}},
		{"one name twice", `hostname() == "a" and (hostname() == "a" or cpuinfo.sockets == 2)`, []string{}},
		{"no number left", `cpuinfo.cpu_cores > 32 and cpuinfo.cpu_cores < 16`, []string{LintContradiction}},
		{"no number left, turned", `64 <= cpuinfo.cpu_cores <= 16`, []string{LintContradiction}},
		{"two numbers", `cpuinfo.cpu_cores == 16 and cpuinfo.cpu_cores == 32`, []string{LintContradiction}},
		{"a range", `16 <= cpuinfo.cpu_cores <= 64 and cpuinfo.cpu_cores != 48`, []string{}},
		{"a range of one", `cpuinfo.cpu_cores >= 16 and cpuinfo.cpu_cores <= 16`, []string{}},
		{"under an or", `cpuinfo.sockets == 2 or (cpuinfo.cpu_cores > 4 and cpuinfo.cpu_cores < 4)`, []string{LintContradiction}},
		{"different inputs", `cpuinfo.cpu_cores == 16 and cpuinfo.sockets == 2`, []string{}},
		{"does not compile", `hostname() matches "*x"`, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := codes(LintCondition(tt.src))
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("LintCondition(%q) = %v, want %v", tt.src, got, tt.want)
			}
		})
	}
}

func TestLintPolicy(t *testing.T) {
	got := LintPolicy("request.job_kind == \"job\" &&\n  request.owner.email endsWith request.job_annotations[\"domain\"]")
	if len(got) != 1 || got[0].Code != LintEmptyNeedle || got[0].Line != 2 || got[0].Column != 23 {
		t.Errorf("got %+v", got)
	}
	if got := LintPolicy(`request.owner.email endsWith "@example.org" && request.nodes <= 4`); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestFindingsHavePlaces(t *testing.T) {
	got := LintCondition("cpuinfo.cpu_cores > 3 &&\n  hostname() matches \"x-[01-20]\"")
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	for _, f := range got {
		if f.Line != 2 || f.Column != 22 || f.Message == "" || f.Hint == "" {
			t.Errorf("finding %+v, want line 2, column 22", f)
		}
	}
}

func TestUnanchoredHostnameSaysWhatToWrite(t *testing.T) {
	for src, want := range map[string]string{
		`hostname() matches "rack-[0-9]{3}"`: `anchor both ends: "^rack-[0-9]{3}$"`,
		`hostname() matches "^rack\\d"`:      `anchor both ends: "^rack\\d$"`,
		`hostname() matches "a|b"`:           `anchor both ends: "^(a|b)$"`,
		`hostname() matches "^a$|b$"`:        `anchor both ends: "^(^a$|b$)"`,
	} {
		found := LintCondition(src)
		if len(found) != 1 || found[0].Code != LintUnanchoredHost || found[0].Hint != want {
			t.Errorf("%s: %+v, want the hint %s", src, found, want)
			continue
		}
		fixed := strings.TrimPrefix(found[0].Hint, "anchor both ends: ")
		if again := LintCondition("hostname() matches " + fixed); len(again) != 0 {
			t.Errorf("%s: the hint has findings: %+v", fixed, again)
		}
	}
}

// An id has a name beside it, so two comparisons of it may both be true.
func TestIDsDoNotContradict(t *testing.T) {
	if got := LintPolicy(`request.owner.organization_id == "research" and request.owner.organization_id == "` + orgUUID + `"`); len(got) != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestEveryCodeHasARule(t *testing.T) {
	rules := LintRules()
	seen := map[string]bool{}
	for _, r := range rules {
		if r.Code == "" || r.Meaning == "" || r.Fix == "" || seen[r.Code] {
			t.Errorf("rule %+v", r)
		}
		seen[r.Code] = true
	}
	for _, src := range []string{`hostname() matches "x[01-20]"`, `cpuinfo.vendor_id matches ""`, `cpuinfo.vendor_id matches "x*"`,
		`modalias.match("pci:v000010ded*")`, `modalias.match("pci:v10DE*")`, `modalias.match("pci:v000010DE")`, `modalias.match("x*")`, `modalias.match("*")`,
		`osrelease.version_id > "9"`, `cpuinfo.vendor_id == nil`, `cpuinfo.sockets == 1 and cpuinfo.sockets == 2`, `true // hostname() == "x"`} {
		for _, f := range LintCondition(src) {
			if !seen[f.Code] || f.Message == "" || f.Hint == "" || f.Line != 1 || f.Column < 1 {
				t.Errorf("%s: %+v", src, f)
			}
			delete(seen, f.Code)
		}
	}
	for _, f := range LintPolicy(`request.job_name contains definition.annotations["x"]`) {
		delete(seen, f.Code)
	}
	if len(seen) > 0 {
		t.Errorf("never found: %v", seen)
	}
}

func TestNumericRange(t *testing.T) {
	for pattern, want := range map[string]string{
		"[01-20]": "[01-20]", "x[1-10]y": "[1-10]", "[^00-9]": "[^00-9]", "[a][21-40]": "[21-40]", "[[01-20]": "[01-20]",
		"[0-9]": "", "[01-20": "", "[01-]": "", "[-20]": "", "[01]": "", "[a1-20]": "", "[01-20a]": "", "": "", "[": "", "[^": "", "[0": "", "[00": "", "[00-": "", "01-20": "",
	} {
		if got := numericRange(pattern); got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// What is called a contradiction is true for no value.
func TestContradictionsAreSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []string
		for range rapid.IntRange(2, 4).Draw(t, "parts") {
			op := rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">="}).Draw(t, "op")
			n := rapid.SampledFrom([]string{"0", "1", "2", "1.5", "-1"}).Draw(t, "number")
			part := "cpuinfo.cpu_cores " + op + " " + n
			if rapid.Bool().Draw(t, "turned") {
				part = n + " " + op + " cpuinfo.cpu_cores"
			}
			parts = append(parts, part)
		}
		src := strings.Join(parts, " and ")
		if len(LintCondition(src)) == 0 {
			return
		}
		c := mustCondition(t, src)
		for cores := -3; cores <= 4; cores++ {
			if c.Match(NewNodeEnv(hwinfo.Facts{CPU: hwinfo.CPU{Cores: &cores}})) == True {
				t.Fatalf("%s is true for %d", src, cores)
			}
		}
	})
}
