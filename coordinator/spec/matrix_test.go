package spec

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"substrate/strictyaml"
)

// form is what a key holds.
type form uint8

const (
	formText form = iota
	formType
	formCount // whole number from 1 or 0
	formAmount
	formSize
	formBool
	formTexts
	formTextMap
	formMode
	formCondition
	formAccelerator
	formArch
)

// wrong are values that a key of the form must refuse.
func (f form) wrong() []string {
	switch f {
	case formText:
		return []string{"5", "true", "2026-01-01", "[a]", "{a: b}", `""`, `"a\nb"`, `" a"`, "null", `"\u0007"`}
	case formType:
		return []string{"5", "[a]", `""`, `"a b"`, `"-x"`, "null", `"é"`}
	case formCount:
		return []string{`"4"`, "-1", "1.5", "99999999999999999999", "[1]", "yes", "null", "0x"}
	case formAmount:
		return []string{`"1"`, "-0.5", ".nan", ".inf", "[1]", "true", "null", "1e400"}
	case formSize:
		return []string{`"12 parsecs"`, `"-1GiB"`, "0", "true", "[1]", "1.5", `"99999999999TiB"`, "null", `""`}
	case formBool:
		return []string{"yes", "1", `"true"`, "[true]", "null"}
	case formTexts:
		return []string{"a", "[1]", "[[a]]", "{a: b}", `[""]`, "null"}
	case formTextMap:
		return []string{"a", "[a]", "{a: 1}", "{a: [b]}", "null"}
	case formMode:
		return []string{"pilots", "1", "[pilot]", `""`, "null"}
	case formArch:
		return []string{"x86_64", "1", "[arm64]", `""`, "null"}
	case formCondition:
		return []string{"true", "5", `""`, `" "`, "[a]", "null"}
	case formAccelerator:
		return []string{"a", "[a]", "{count: 1}", "{type: a, count: 0}", "{type: a, size: 1}", "{type: 5}", "null"}
	}
	return nil
}

type key struct {
	name     string
	form     form
	good     string
	required bool
}

// matrix has every key of every kind, as docs/configuration.md lists them.
func matrix() map[string][]key {
	text := func(names ...string) (out []key) {
		for _, n := range names {
			out = append(out, key{n, formText, "some", false})
		}
		return out
	}
	cost := key{"costPerHour", formAmount, "0.5", false}
	spot, arch := key{"spot", formBool, "true", false}, key{"architecture", formArch, "arm64", false}
	batch := func(more ...string) []key {
		return append([]key{{"cpu", formCount, "4", true}, {"memory", formSize, "8GiB", true}, {"gpus", formCount, "1", false},
			{"nodes", formCount, "2", false}, {"mode", formMode, "native", false}, {"extraDirectives", formTexts, "[--x]", false}, cost}, text(more...)...)
	}
	return map[string][]key{
		KindStatic: {{"condition", formCondition, "hostname() == 'a'", true}, cost},
		KindAWS: append([]key{{"instanceType", formType, "t3.*", true}, spot, {"securityGroupIds", formTexts, "[sg-1]", false},
			{"tags", formTextMap, "{a: b}", false}, arch, cost}, text("region", "zone", "imageId", "subnetId", "instanceProfile")...),
		KindGCP: append([]key{{"machineType", formType, "n2-standard-4", true}, spot, {"accelerator", formAccelerator, "{type: a, count: 2}", false}, arch, cost},
			text("zone", "image", "network")...),
		KindAzure: append([]key{{"vmSize", formType, "Standard_D4", true}, spot, arch, cost}, text("location", "image", "subnet")...),
		KindOCI: append([]key{{"shape", formType, "VM.X.Flex", true}, {"ocpus", formAmount, "2", true}, {"memory", formSize, "16GiB", true},
			{"preemptible", formBool, "true", false}, arch, cost}, text("compartment", "availabilityDomain", "image", "subnet")...),
		KindCoreWeave: {{"instanceType", formType, "gd-8x", true}, cost},
		KindSlurm:     batch("partition", "account", "qos", "constraint"),
		KindPBS:       batch("queue", "project"),
	}
}

// write is a spec with every key, one of which is replaced; "" leaves it out.
func write(kind string, keys []key, name, value string) (text string, line int) {
	var b strings.Builder
	b.WriteString(kind + ":\n")
	n := 1
	for _, k := range keys {
		v := k.good
		if k.name == name {
			v = value
		}
		if v == "" && k.name == name {
			line = 1
			continue
		}
		n++
		if k.name == name {
			line = n
		}
		fmt.Fprintf(&b, "  %s: %s\n", k.name, v)
	}
	return b.String(), line
}

// TestBadInputMatrix: every key of every kind refuses every value that is not of its form, and says file, line,
// path and what is expected.
func TestBadInputMatrix(t *testing.T) {
	expects := regexp.MustCompile(`expected|the text is empty|is not a size|is too large|must |may |needs |is missing|more than|is zero|outside the range|is not finite|is not the name of|known keys|units are`)
	tried := 0
	for _, kind := range Kinds() {
		keys := matrix()[kind]
		if len(keys) == 0 {
			t.Errorf("no keys of %s", kind)
		}
		if text, _ := write(kind, keys, "", ""); true {
			if d, _, ds := read(t, text); d == nil || len(ds) > 0 {
				t.Errorf("%s: the good one is refused: %v", kind, ds)
			}
		}
		for _, k := range keys {
			for _, value := range k.form.wrong() {
				tried++
				text, line := write(kind, keys, k.name, value)
				_, _, ds := read(t, text)
				errs := ds.Errors()
				if len(errs) != 1 {
					t.Errorf("%s.%s: %s: %d errors: %v", kind, k.name, value, len(errs), errs)
					continue
				}
				e := errs[0]
				if e.File != "in.yaml" || e.Line != line || e.Column == 0 || !strings.HasPrefix(e.Path, kind+"."+k.name) || !expects.MatchString(e.Message+" "+e.Hint) {
					t.Errorf("%s.%s: %s: line %d wanted: %v", kind, k.name, value, line, e)
				}
			}
			text, line := write(kind, keys, k.name, "")
			_, _, ds := read(t, text)
			if errs := ds.Errors(); k.required != (len(errs) == 1 && errs[0].Code == strictyaml.CodeMissing && errs[0].Line >= line && strings.Contains(errs[0].Message, k.name)) {
				t.Errorf("%s without %s: %v", kind, k.name, ds)
			}
			misspelt := strings.Replace(mustWrite(kind, keys), "  "+k.name+":", "  "+k.name+"x:", 1)
			_, _, ds = read(t, misspelt)
			found := false
			for _, e := range ds.Errors() {
				found = found || e.Code == strictyaml.CodeUnknownKey && e.Line > 1 && strings.Contains(e.Message+e.Hint, k.name)
			}
			if !found {
				t.Errorf("%s: the key %sx: %v", kind, k.name, ds)
			}
			_, _, ds = read(t, mustWrite(kind, keys)+"  "+k.name+": "+k.good+"\n")
			if errs := ds.Errors(); len(errs) != 1 || errs[0].Code != strictyaml.CodeDuplicate || errs[0].Line != len(keys)+2 {
				t.Errorf("%s: %s twice: %v", kind, k.name, ds)
			}
		}
		// A spec of another form altogether.
		for _, body := range []string{"5", "[a]", `"text"`, "null"} {
			if _, _, ds := read(t, kind+": "+body+"\n"); ds.Err() == nil {
				t.Errorf("%s: %s is accepted", kind, body)
			}
		}
	}
	if tried < 400 {
		t.Errorf("only %d values were tried", tried)
	}
}

func mustWrite(kind string, keys []key) string {
	text, _ := write(kind, keys, "", "")
	return text
}
