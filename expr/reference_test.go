package expr

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/expr-lang/expr/builtin"
	"substrate/hwinfo"
)

const referencePage = "../docs/expression-reference.md"

// The page is made of the environment structs, the limits and the tables here. -update writes it.
func TestReferencePage(t *testing.T) {
	want := reference()
	if *update {
		if err := os.WriteFile(referencePage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the code says; write it anew with: go test ./expr -run TestReferencePage -update", referencePage)
	}
}

func reference() string {
	var b strings.Builder
	b.WriteString(`# Expression reference

Made from the code by ` + "`go test ./expr -run TestReferencePage -update`" + `; do not edit. How to write and test an expression is in [expressions.md](expressions.md).

## Conditions

` + "`definitions[].provisionerSpec.condition`" + `: what a condition sees of a node. Every one of these can be *absent*; what reads an absent one is unknown.

`)
	namesTable(&b, NodeEnv{})
	b.WriteString("\n## Policies\n\n`definitions[].policy`: what a policy sees of one request. Nothing here is absent.\n\n")
	namesTable(&b, RequestEnv{})
	b.WriteString("\n## Priorities\n\n`scheduler.priority`: what a priority sees of one allocation. Nothing here is absent.\n\n")
	namesTable(&b, PriorityEnv{})
	b.WriteString("\n## Functions\n\n| function | gives |\n|---|---|\n")
	for _, f := range functionDocs() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", f[0], f[1])
	}
	b.WriteString("\nWith `#` for the element of the list. One such function cannot stand inside the brackets of another.\n")
	b.WriteString("\n## Limits\n\n| of one expression | at most |\n|---|---|\n")
	for _, l := range []struct {
		of    string
		limit string
	}{
		{"source", fmt.Sprintf("%d KiB of UTF-8", maxSource>>10)},
		{"brackets inside brackets, prefix operators in a row", fmt.Sprint(maxNesting)},
		{"parts, with every `let` written out", fmt.Sprint(maxNodes)},
		{"states of its regular expressions, each repeat written out", fmt.Sprintf("%d; %d times as dear inside the brackets of a list function", maxPattern, perClosure)},
		{"one modalias pattern", fmt.Sprintf("%d bytes", maxGlob)},
		{"elements that one run makes", fmt.Sprint(maxMemory)},
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", l.of, l.limit)
	}
	fmt.Fprintf(&b, "\nFacts beyond these count as absent: a text of %d bytes, a list of %d KiB, %d PCI devices. A modalias of more than %d bytes is left out.\n",
		maxText, maxListText>>10, maxDevices, maxAlias)
	b.WriteString("\n## Warnings\n\nWhat compiles and hardly means what was meant. `lints.silence` takes the codes.\n\n| code | what | write instead |\n|---|---|---|\n")
	for _, r := range LintRules() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Code, cell(r.Meaning), cell(r.Fix))
	}
	b.WriteString("\n## Device patterns\n\nFor `modalias.match` and `modalias.count`. A node that is to have both may ask for each; `substrated eval 'modalias.list()'` shows what it has.\n\n| device | pattern |\n|---|---|\n")
	for _, p := range devicePatterns() {
		fmt.Fprintf(&b, "| %s | `%s` |\n", p.device, p.pattern)
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// namesTable lists the fields of an environment in the order of the struct.
func namesTable(b *strings.Builder, env any) {
	b.WriteString("| name | type | meaning |\n|---|---|---|\n")
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			name := prefix + f.Tag.Get("expr")
			if f.Type.Kind() == reflect.Pointer {
				walk(f.Type.Elem(), name+".")
				continue
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", written(name, f.Type), typeDoc(f.Type), coded(f.Tag.Get("doc")))
		}
	}
	walk(reflect.TypeOf(env), "")
}

// written is how a field is written in an expression.
func written(name string, t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Map:
		return name + `["key"]`
	case t.Kind() == reflect.Func && t.NumIn() == 1:
		return name + `("pattern")`
	case t.Kind() == reflect.Func:
		return name + "()"
	}
	return name
}

func typeDoc(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Func:
		return typeDoc(t.Out(0))
	case reflect.Map:
		return typeDoc(t.Elem())
	case reflect.Slice:
		return "list of text"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float64:
		return "number"
	}
	return "whole number"
}

// coded turns 'x' into code; a tag cannot hold backticks.
func coded(doc string) string {
	return regexp.MustCompile(`(^|[\s;,(:])'([^']+)'`).ReplaceAllString(doc, "$1`$2`")
}

// Every name says what it means, in a few words.
func TestEveryNameIsExplained(t *testing.T) {
	var walk func(rt reflect.Type, prefix string)
	walk = func(rt reflect.Type, prefix string) {
		for i := range rt.NumField() {
			f := rt.Field(i)
			if !f.IsExported() {
				continue
			}
			name, doc := prefix+f.Tag.Get("expr"), f.Tag.Get("doc")
			if f.Type.Kind() == reflect.Pointer {
				walk(f.Type.Elem(), name+".")
			} else if len(doc) < 4 || len(doc) > 120 || strings.Contains(doc, "|") {
				t.Errorf("%s: doc %q", name, doc)
			}
		}
	}
	for _, env := range []any{NodeEnv{}, RequestEnv{}, PriorityEnv{}} {
		if n := reflect.TypeOf(env).NumMethod() + reflect.PointerTo(reflect.TypeOf(env)).NumMethod(); n > 0 {
			t.Errorf("%T has %d methods: they would be part of the language", env, n)
		}
		walk(reflect.TypeOf(env), "")
	}
}

// Every fact of a node has a bit that can make it unknown, and every bit has a fact.
func TestEveryFactCanBeAbsent(t *testing.T) {
	l := newLanguage()
	d := l.dialect(NodeEnv{})
	facts := nodeFacts()
	used := map[uint64]bool{}
	empty := NewNodeEnv(hwinfo.Facts{})
	var walk func(fields map[string]*field)
	walk = func(fields map[string]*field) {
		for _, f := range fields {
			if f.group() {
				walk(f.below)
				continue
			}
			if f.name.reads == 0 {
				t.Errorf("%s can never be unknown", f.name.text)
			}
			if f.name.reads&empty.absent == 0 {
				t.Errorf("%s is not unknown on a node without facts", f.name.text)
			}
			used[f.name.reads] = true
		}
	}
	walk(d.fields)
	if len(used) != len(facts) || len(facts) > 64 {
		t.Errorf("%d bits are used, of %d facts", len(used), len(facts))
	}
}

// functionDocs are the functions of the language.
func functionDocs() [][2]string {
	return [][2]string{
		{`all(list, # > 1)`, "the rule holds for every element"},
		{`any(list, # > 1)`, "for at least one"},
		{`none(list, # > 1)`, "for none"},
		{`one(list, # > 1)`, "for exactly one"},
		{`count(list, # > 1)`, "for how many"},
		{`filter(list, # > 1)`, "the elements for which it holds"},
		{`find(list, # > 1)`, "the first of them"},
		{`map(list, # + 1)`, "the list of the results"},
		{`len(x)`, "elements of a list, characters of a text, keys of a map"},
		{`first(list)`, "the first element"},
		{`last(list)`, "the last element"},
		{`abs(x)`, "without the sign"},
		{`ceil(x)`, "the next whole number above"},
		{`floor(x)`, "the next whole number below"},
		{`round(x)`, "the nearest whole number"},
		{`min(x, y)`, "the smallest; also of a list"},
		{`max(x, y)`, "the largest; also of a list"},
		{`int(x)`, "a whole number out of a number or text; fails where there is none"},
		{`float(x)`, "a number out of a number or text; fails where there is none"},
		{`string(x)`, "a text"},
		{`trim(text)`, "without blanks at both ends; a second text names other characters"},
		{`trimPrefix(text, "a")`, "without that beginning"},
		{`trimSuffix(text, "a")`, "without that end"},
		{`upper(text)`, "in upper case"},
		{`lower(text)`, "in lower case"},
		{`split(text, ",")`, "the list of its pieces"},
		{`hasPrefix(text, "a")`, "as `startsWith`"},
		{`hasSuffix(text, "a")`, "as `endsWith`"},
		{`indexOf(text, "a")`, "where the second begins in the first; -1 for nowhere"},
		{`lastIndexOf(text, "a")`, "the same from the end"},
	}
}

// The page names the functions that the language has, each compiles as it is shown, and no other
// function of the library does.
func TestFunctionsAreThoseOfThePage(t *testing.T) {
	var named []string
	for _, f := range functionDocs() {
		name, _, _ := strings.Cut(f[0], "(")
		named = append(named, name)
		src := f[0]
		for word, value := range map[string]string{"list": "[1, 2]", "text": "hostname()", "x": `"17"`, "y": "2"} {
			if word == "x" && name != "float" && name != "int" && name != "len" {
				value = "2.5"
			}
			src = regexp.MustCompile(`\b`+word+`\b`).ReplaceAllString(src, value)
		}
		env := NewNodeEnv(gpuNode())
		if _, err := EvalAny(src, env); err != nil {
			t.Errorf("%s: %v", src, err)
		}
	}
	for _, f := range builtin.Builtins {
		if allowedBuiltin(f.Name) != slices.Contains(named, f.Name) && f.Name != "int" {
			t.Errorf("%s: in the language %v, on the page %v", f.Name, allowedBuiltin(f.Name), slices.Contains(named, f.Name))
		}
	}
}

// What the page says of functions is so.
func TestFunctionsGiveWhatThePageSays(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	for src, want := range map[string]any{
		`all([2, 3], # > 1)`: true, `any([1, 2], # > 1)`: true, `none([1, 2], # > 1)`: false, `one([1, 2], # > 1)`: true, `count([1, 2, 3], # > 1)`: 2,
		`first(filter([1, 2, 3], # > 1))`: 2, `find([1, 2, 3], # > 1)`: 2, `last(map([1, 2], # + 1))`: 3, `len("é")`: 1, `len([1, 2])`: 2, `abs(-2.5)`: 2.5,
		`ceil(2.5)`: 3.0, `floor(2.5)`: 2.0, `round(2.6)`: 3.0, `min(2, 1)`: 1, `max([1, 2])`: 2, `int("17")`: 17, `int(2.9)`: 2, `float("2.5")`: 2.5, `string(3)`: "3",
		`trim("  a ")`: "a", `trim("xax", "x")`: "a", `trimPrefix("ab", "a")`: "b", `trimSuffix("ab", "b")`: "a", `upper("a")`: "A", `lower("A")`: "a",
		`split("a,b", ",")[1]`: "b", `hasPrefix("ab", "a")`: true, `hasSuffix("ab", "b")`: true, `indexOf("ab", "b")`: 1, `indexOf("ab", "c")`: -1, `lastIndexOf("abb", "b")`: 2,
	} {
		if got, err := EvalAny(src, env); err != nil || got != want {
			t.Errorf("%s = %v (%T), %v, want %v", src, got, got, err, want)
		}
	}
}

// devicePattern is a pattern that people ask for, with devices it finds.
type devicePattern struct {
	device, pattern string
	class           string // of the functions it is to find: base class and sub-class
	finds           map[string]string
	recent          bool // younger than many a copy of pci.ids
}

func devicePatterns() []devicePattern {
	return []devicePattern{
		{"NVIDIA GPU of a data centre", "pci:v000010DEd*bc03sc02*", "0302", map[string]string{"10de:1db1": "V100 SXM2", "10de:2330": "H100"}, false},
		{"NVIDIA GPU with a display", "pci:v000010DEd*bc03sc00*", "0300", map[string]string{"10de:1eb8": "T4"}, false},
		{"V100, all forms", "pci:v000010DEd00001DB[1-8]*bc03*", "0302", map[string]string{"10de:1db1": "V100", "10de:1db4": "V100 PCIe 16GB", "10de:1db5": "V100", "10de:1db6": "V100", "10de:1db8": "V100"}, false},
		{"V100 PCIe of 16 GB alone", "pci:v000010DEd00001DB4*", "0302", map[string]string{"10de:1db4": "V100 PCIe 16GB"}, false},
		{"T4", "pci:v000010DEd00001EB8*", "0302", map[string]string{"10de:1eb8": "T4"}, false},
		{"A100 SXM4", "pci:v000010DEd000020B[02]*", "0302", map[string]string{"10de:20b0": "A100 SXM4", "10de:20b2": "A100 SXM4"}, false},
		{"A100 PCIe of 40 GB", "pci:v000010DEd000020F1*", "0302", map[string]string{"10de:20f1": "A100 PCIe 40GB"}, false},
		{"A100 PCIe of 80 GB", "pci:v000010DEd000020B5*", "0302", map[string]string{"10de:20b5": "A100 PCIe 80GB"}, false},
		{"A30", "pci:v000010DEd000020B7*", "0302", map[string]string{"10de:20b7": "A30"}, false},
		{"A40", "pci:v000010DEd00002235*", "0302", map[string]string{"10de:2235": "A40"}, false},
		{"A10, A10G", "pci:v000010DEd0000223[67]*", "0302", map[string]string{"10de:2236": "A10", "10de:2237": "A10G"}, false},
		{"H100 SXM5", "pci:v000010DEd00002330*", "0302", map[string]string{"10de:2330": "H100 SXM5"}, false},
		{"H100 PCIe", "pci:v000010DEd00002331*", "0302", map[string]string{"10de:2331": "H100 PCIe"}, false},
		{"H200", "pci:v000010DEd00002335*", "0302", map[string]string{"10de:2335": "H200"}, true},
		{"L40", "pci:v000010DEd000026B5*", "0302", map[string]string{"10de:26b5": "L40"}, false},
		{"L4", "pci:v000010DEd000027B8*", "0302", map[string]string{"10de:27b8": "L4"}, false},
		{"NVSwitch of an A100 board (not a GPU)", "pci:v000010DEd00001AF1*", "0680", map[string]string{"10de:1af1": "NVSwitch"}, false},
		{"AMD Instinct MI100", "pci:v00001002d0000738C*", "0380", map[string]string{"1002:738c": "MI100"}, false},
		{"AMD Instinct MI210", "pci:v00001002d0000740F*", "0380", map[string]string{"1002:740f": "MI210"}, false},
		{"AMD Instinct MI250, MI250X", "pci:v00001002d0000740[8C]*", "0380", map[string]string{"1002:7408": "MI250X", "1002:740c": "MI250"}, false},
		{"AMD Instinct MI300X (an accelerator, not a display)", "pci:v00001002d000074A1*bc12sc00*", "1200", map[string]string{"1002:74a1": "MI300X"}, true},
		{"any AMD GPU that is a display controller", "pci:v00001002d*bc03*", "0380", map[string]string{"1002:740f": "MI210", "1002:66a1": "MI50"}, false},
		{"any AMD accelerator", "pci:v00001002d*bc12*", "1200", map[string]string{"1002:74a5": "MI325X"}, true},
		{"Intel Data Center GPU Max", "pci:v00008086d00000BD[5-9AB]*", "0380", map[string]string{"8086:0bd5": "GPU Max", "8086:0bdb": "GPU Max"}, false},
		{"Habana Gaudi", "pci:v00001DA3d00001000*", "1200", map[string]string{"1da3:1000": "Gaudi"}, false},
		{"Habana Gaudi2", "pci:v00001DA3d00001020*", "1200", map[string]string{"1da3:1020": "Gaudi2"}, false},
		{"ConnectX-6", "pci:v000015B3d0000101B*", "0207", map[string]string{"15b3:101b": "ConnectX-6"}, false},
		{"ConnectX-7", "pci:v000015B3d00001021*", "0207", map[string]string{"15b3:1021": "ConnectX-7"}, false},
		{"any Mellanox port in InfiniBand mode", "pci:v000015B3d*bc02sc07*", "0207", map[string]string{"15b3:1017": "ConnectX-5", "15b3:1013": "ConnectX-4"}, false},
		{"any Mellanox port in Ethernet mode", "pci:v000015B3d*bc02sc00*", "0200", map[string]string{"15b3:101d": "ConnectX-6 Dx"}, false},
		{"BlueField-2, BlueField-3", "pci:v000015B3d0000A2D[6C]*", "0200", map[string]string{"15b3:a2d6": "BlueField-2", "15b3:a2dc": "BlueField-3"}, false},
		{"Intel E810", "pci:v00008086d0000159[23B]*", "0200", map[string]string{"8086:1592": "E810", "8086:1593": "E810", "8086:159b": "E810"}, false},
		{"Omni-Path", "pci:v00008086d000024F[01]*", "0208", map[string]string{"8086:24f0": "Omni-Path"}, false},
		{"any NVMe drive", "pci:*bc01sc08i02*", "0108", map[string]string{"144d:a80a": "NVMe"}, false},
		{"Amazon EFA", "pci:v00001D0Fd0000EFA*", "0200", map[string]string{"1d0f:efa0": "EFA", "1d0f:efa2": "EFA"}, false},
		{"Amazon Trainium", "pci:v00001D0Fd00007164*", "1200", map[string]string{"1d0f:7164": "Trainium"}, false},
		{"virtio network card", "pci:v00001AF4d00001041*", "0200", map[string]string{"1af4:1041": "network"}, false},
	}
}

// Each pattern of the page finds the devices it names, by their names in pci.ids, and has no lint.
func TestDevicePatterns(t *testing.T) {
	names := pciNames(t)
	for _, p := range devicePatterns() {
		if found := LintCondition("modalias.match(" + quote(p.pattern) + ")"); len(found) != 0 {
			t.Errorf("%s: %+v", p.pattern, found)
		}
		for id, word := range p.finds {
			known, ok := names[id]
			if !ok && p.recent {
				t.Logf("%s is younger than this copy of pci.ids", id)
			} else if !strings.Contains(known, word) {
				t.Errorf("%s: %s is %q, not %q", p.device, id, known, word)
			}
			vendor, device, _ := strings.Cut(strings.ToUpper(id), ":")
			env := NewNodeEnv(hwinfo.Facts{PCI: []hwinfo.PCI{
				{Modalias: fmt.Sprintf("pci:v0000%sd0000%ssv00001000sd00002000bc%ssc%si02", vendor, device, p.class[:2], p.class[2:])},
				{Modalias: "pci:v00008086d00002021sv00008086sd00000000bc08sc80i00"},
				{Modalias: fmt.Sprintf("pci:v0000FFFFd0000%ssv0000%ssd00002000bc04sc03i00", device, vendor)},
			}})
			if n := env.Modalias.Count(p.pattern); n != 1 {
				t.Errorf("%s finds %d devices, want %s alone", p.pattern, n, id)
			}
		}
	}
}

// pciNames are the device names of pci.ids by vendor:device.
func pciNames(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("/usr/share/misc/pci.ids")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("install the package pci.ids: %v", err)
		}
		t.Skipf("NOT CHECKED: install the package pci.ids (make deps): %v", err)
	}
	defer file.Close()
	out := map[string]string{}
	vendor := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		switch {
		case line == "" || line[0] == '#' || strings.HasPrefix(line, "\t\t"):
		case strings.HasPrefix(line, "C "):
			return out
		case line[0] == '\t':
			out[vendor+":"+line[1:5]] = strings.TrimSpace(line[5:])
		default:
			vendor = line[:4]
		}
	}
	return out
}

// The rules that the guide shows compile, without a warning.
func TestGuideExamples(t *testing.T) {
	page, err := os.ReadFile("../docs/expressions.md")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	cache := NewCache(nil)
	for _, m := range regexp.MustCompile("(?s)```(condition|policy|priority)\n(.*?)\n```").FindAllStringSubmatch(string(page), -1) {
		for src := range strings.SplitSeq(m[2], "\n\n") {
			count[m[1]]++
			var found []Finding
			var err error
			switch m[1] {
			case "condition":
				_, found, err = cache.LintCondition(src)
			case "policy":
				_, found, err = cache.LintPolicy(src)
			case "priority":
				_, err = cache.Priority(src)
			}
			if err != nil || len(found) > 0 {
				t.Errorf("%s: %v, %+v", src, err, found)
			}
		}
	}
	if count["condition"] < 8 || count["policy"] < 5 || count["priority"] < 1 {
		t.Errorf("found only %v examples", count)
	}
}
