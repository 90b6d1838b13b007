package config

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator/catalogue"
)

// placeOf is the line and column, in characters, of the one place where the text stands.
func placeOf(t interface{ Fatalf(string, ...any) }, file, text string) (line, column int) {
	if strings.Count(file, text) != 1 {
		t.Fatalf("%q stands %d times in\n%s", text, strings.Count(file, text), file)
	}
	before := file[:strings.Index(file, text)]
	return 1 + strings.Count(before, "\n"), 1 + len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
}

// TestPlacesInTexts: an error in an expression is reported where it stands in the file, however the text is
// written.
func TestPlacesInTexts(t *testing.T) {
	const head = "definitions:\n  - id: a\n    provisioner: static\n    provisionerSpec:\n"
	tests := map[string]string{
		"plain":                  "      condition: cpuinfo.cpu_cores > 1 && bogus\n",
		"plain, two lines":       "      condition: cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"plain, empty line":      "      condition: cpuinfo.cpu_cores > 1 &&\n\n         bogus\n",
		"plain, comment behind":  "      condition: bogus # why\n",
		"single quotes":          "      condition: 'osrelease.id == \"it''s\" && bogus'\n",
		"double quotes":          "      condition: \"osrelease.id == \\\"\\u00e9\\\" && bogus\"\n",
		"double quotes, lines":   "      condition: \"osrelease.id == 'x' &&\\\n        \\ bogus\"\n",
		"characters":             "      condition: osrelease.id == \"größer\" && bogus\n",
		"literal":                "      condition: |-\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"literal, clip":          "      condition: |\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"literal, keep":          "      condition: |+\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n\n\n",
		"literal, indicator":     "      condition: |2-\n          cpuinfo.cpu_cores > 1 &&\n            bogus\n",
		"literal, strip first":   "      condition: |-4\n            cpuinfo.cpu_cores > 1 &&\n          bogus\n",
		"literal, comment":       "      condition: |-   # the rule\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"literal, expr comment":  "      condition: |-\n        cpuinfo.cpu_cores > 1 && // two\n        bogus\n",
		"literal, empty lines":   "      condition: |-\n\n        cpuinfo.cpu_cores > 1 &&\n\n\n        bogus\n",
		"literal, deeper":        "      condition: |-\n        cpuinfo.cpu_cores > 1 &&\n              bogus\n",
		"literal, tab":           "      condition: |-\n        cpuinfo.cpu_cores > 1 &&\n        \tbogus\n",
		"literal, comment after": "      condition: |-\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n      # not of the text\n",
		"folded":                 "      condition: >-\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"folded, clip":           "      condition: >\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"folded, keep":           "      condition: >+\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n\n",
		"folded, indicator":      "      condition: >2-\n          cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"folded, empty line":     "      condition: >-\n        cpuinfo.cpu_cores > 1 &&\n\n        bogus\n",
		"folded, deeper":         "      condition: >-\n        cpuinfo.cpu_cores > 1 &&\n          osrelease.id == \"x\" &&\n        bogus\n",
		"folded, deeper last":    "      condition: >-\n        cpuinfo.cpu_cores > 1 &&\n           bogus\n",
		"folded, tab":            "      condition: >-\n        cpuinfo.cpu_cores > 1 &&\n        osrelease.id == \"x\" \t&& bogus\n",
		"folded, first empty":    "      condition: >-\n\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
		"flow":                   "      {condition: 'cpuinfo.cpu_cores > 1 && bogus'}\n",
		"anchor":                 "      condition: &c |-\n        cpuinfo.cpu_cores > 1 &&\n        bogus\n",
	}
	for name, text := range tests {
		for _, ends := range []string{"\n", "\r\n"} {
			file := strings.ReplaceAll(head+text, "\n", ends)
			c, ds := Parse("c.yaml", []byte(file), Options{Catalogues: &catalogue.Set{}})
			line, column := placeOf(t, file, "bogus")
			if c != nil || len(ds) != 1 || ds[0].Code != "expression" || ds[0].Line != line || ds[0].Column != column {
				t.Errorf("%s, ends %q: %v, want %d:%d", name, ends, ds, line, column)
			}
		}
	}
}

// TestPlacesInAnyBlock: whatever lines a block text has, a bad word is found where it stands.
func TestPlacesInAnyBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		style := rapid.SampledFrom([]string{"|", "|-", "|+", ">", ">-", ">+", ">- # rule", "|2", ">2-"}).Draw(t, "style")
		indent := 8 // as the indicator says, two more than the key
		if !strings.Contains(style, "2") {
			indent = rapid.IntRange(7, 12).Draw(t, "indent")
		}
		lines := rapid.IntRange(1, 6).Draw(t, "lines")
		bad := rapid.IntRange(0, lines-1).Draw(t, "bad")
		var b strings.Builder
		b.WriteString("definitions:\n  - id: a\n    provisioner: static\n    provisionerSpec:\n      condition: " + style + "\n")
		for i := range lines {
			for range rapid.IntRange(0, 2).Draw(t, "empty") {
				b.WriteString("\n")
			}
			extra := rapid.IntRange(0, 3).Draw(t, "deeper")
			if i == 0 && !strings.Contains(style, "2") {
				extra = 0 // the first line says how deep the text stands
			}
			b.WriteString(strings.Repeat(" ", indent+extra))
			part := rapid.SampledFrom([]string{"cpuinfo.cpu_cores > 1", `osrelease.id == "\u00fc"`, `osrelease.id in ["ü", "日本"]`, "/* c */ true"}).Draw(t, "part")
			if i == bad {
				part += " && bogus"
			}
			b.WriteString(part)
			if i < lines-1 {
				b.WriteString(" &&")
			}
			b.WriteString("\n")
		}
		file := b.String()
		_, ds := Parse("c.yaml", []byte(file), Options{Catalogues: &catalogue.Set{}})
		line, column := placeOf(t, file, "bogus")
		if errs := ds.Errors(); len(errs) != 1 || errs[0].Line != line || errs[0].Column != column {
			t.Fatalf("%v, want %d:%d in\n%s", ds, line, column, file)
		}
	})
}

// TestEveryLintIsShownAndDocumented: each code has an input that gives it, with place and advice, and a row on
// the page; the page names no other.
func TestEveryLintIsShownAndDocumented(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(data)
	}
	elsewhere := []string{LintNeverTrue, LintAlwaysTrue, LintOverlap, LintMixed, LintUngranted} // need nodes: package fleet, engine
	for _, code := range LintCodes() {
		want := regexp.MustCompile(`(?m)^warning ` + regexp.QuoteMeta(code) + ` c\.yaml:\d+:\d+: .* \(.+\)$`)
		if !slices.Contains(elsewhere, code) && !want.MatchString(shown.String()) {
			t.Errorf("no input of testdata gives %s with a place and a hint", code)
		}
	}
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## lints\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		rows = append(rows, m[1])
	}
	slices.Sort(rows)
	if !slices.Equal(rows, LintCodes()) {
		t.Errorf("the page lists %v\nthe program knows %v", rows, LintCodes())
	}
}

// TestEveryErrorCodeIsDocumented: what testdata shows of errors stands on the page.
func TestEveryErrorCodeIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:error|notice) ([a-z-]+) `).FindAllStringSubmatch(string(data), -1) {
			if !strings.Contains(string(page), "`"+m[1]+"`") {
				t.Errorf("%s: the page does not know %s", f, m[1])
			}
		}
	}
}
