package expr

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
	"substrate/hwinfo"
)

// testdata/fnmatch.json holds [pattern, text, matched] as the C library's fnmatch(3) with flags 0
// answered them.
func TestGlobIsFnmatch(t *testing.T) {
	var rows [][3]any
	readJSON(t, "testdata/fnmatch.json", &rows)
	if len(rows) < 300 {
		t.Fatalf("only %d rows", len(rows))
	}
	for _, r := range rows {
		pattern, text, want := r[0].(string), r[1].(string), r[2].(bool)
		if got := parseGlob(pattern).match(text); got != want {
			t.Errorf("%q on %q = %v, want %v", pattern, text, got, want)
		}
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

// Every modalias of the recorded nodes against the patterns people write, through the language.
func TestModaliasCases(t *testing.T) {
	var cases []struct {
		ID    string          `json:"id"`
		Raw   string          `json:"raw"`
		Match map[string]bool `json:"match"`
	}
	readJSON(t, "testdata/modalias.json", &cases)
	for _, c := range cases {
		t.Run(c.ID, func(t *testing.T) {
			f := hwinfo.Facts{PCI: []hwinfo.PCI{}}
			for line := range strings.Lines(c.Raw) {
				f.PCI = append(f.PCI, hwinfo.PCI{Modalias: line}) // with its newline
			}
			env := NewNodeEnv(f)
			for pattern, want := range c.Match {
				src := "modalias.match(" + quote(pattern) + ")"
				if got := mustCondition(t, src).Match(env); got != truthOf(want) {
					t.Errorf("%s = %v, want %v", src, got, want)
				}
				if got := env.Modalias.Match(pattern); got != want {
					t.Errorf("Match(%q) = %v, want %v", pattern, got, want)
				}
			}
		})
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func TestModaliasCountsAndLists(t *testing.T) {
	env := NewNodeEnv(gpuNode())
	for src, want := range map[string]any{
		`modalias.count("pci:v000010DEd*bc03*")`:                          4,
		`modalias.count("pci:v00008086d*")`:                               36,
		`modalias.count("*")`:                                             40,
		`modalias.count("nothing*")`:                                      0,
		`len(modalias.list())`:                                            40,
		`len(filter(modalias.list(), # startsWith "pci:v000010DE")) == 4`: true,
	} {
		if got, err := EvalAny(src, env); err != nil || got != want {
			t.Errorf("%s = %v, %v, want %v", src, got, err, want)
		}
	}
	list, err := EvalAny(`modalias.list()`, env)
	if err != nil || list.([]string)[0] != "pci:v000010DEd000020B2sv000010DEsd00001463bc03sc02i00" {
		t.Errorf("the list is not in the order of addresses: %v, %v", list, err)
	}
}

// No list is "nobody could look", an empty list is "no devices".
func TestModaliasAbsentIsNotEmpty(t *testing.T) {
	for _, tt := range []struct {
		name string
		pci  []hwinfo.PCI
		want Truth
	}{{"absent", nil, Unknown}, {"empty", []hwinfo.PCI{}, True}} {
		env := NewNodeEnv(hwinfo.Facts{PCI: tt.pci})
		if got := mustCondition(t, `not modalias.match("pci:v000010DE*")`).Match(env); got != tt.want {
			t.Errorf("%s list: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestGlobIsNeverExponential(t *testing.T) {
	g := parseGlob(strings.Repeat("*a", 200) + "*b")
	text := strings.Repeat("a", 1000)
	start := time.Now()
	if g.match(text) {
		t.Error("matched")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
}

// slowGlob is the textbook definition, exponential and obviously right for literals, * and ?.
func slowGlob(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case p[0] == '*':
		return slowGlob(p[1:], s) || s != "" && slowGlob(p, s[1:])
	case s == "":
		return false
	}
	return (p[0] == '?' || p[0] == s[0]) && slowGlob(p[1:], s[1:])
}

func TestGlobEqualsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.StringOfN(rapid.SampledFrom([]rune("ab*?/")), 0, 8, -1).Draw(t, "pattern")
		s := rapid.StringOfN(rapid.SampledFrom([]rune("ab/")), 0, 8, -1).Draw(t, "text")
		if got, want := parseGlob(p).match(s), slowGlob(p, s); got != want {
			t.Fatalf("%q on %q = %v, want %v", p, s, got, want)
		}
	})
}

// Equal modaliases are matched once and the list is searched by prefix; the answer is the naive one.
func TestDeviceCountEqualsNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.SampledFrom([]rune("abc")), 1, 4, -1)
		aliases := rapid.SliceOfN(word, 0, 20).Draw(t, "aliases")
		pattern := rapid.StringOfN(rapid.SampledFrom([]rune("abc*?")), 0, 5, -1).Draw(t, "pattern")
		var pci []hwinfo.PCI
		want := 0
		for _, a := range aliases {
			pci = append(pci, hwinfo.PCI{Modalias: a})
			if slowGlob(pattern, a) {
				want++
			}
		}
		if got := newDevices(pci).count(parseGlob(pattern)); got != want {
			t.Fatalf("count(%q) over %q = %d, want %d", pattern, aliases, got, want)
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("pci:v000010DEd*sv*sd*bc03sc*i*", "pci:v000010DEd00001DB4sv000010DEsd00001214bc03sc02i00")
	f.Add("[!a-z][[:digit:]]\\", "A7")
	f.Add("[[:nope:]]", "[")
	f.Add("*[", "x[")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > maxGlob || len(text) > maxText {
			return
		}
		g := parseGlob(pattern)
		g.match(text)
		if !strings.ContainsAny(pattern, `[\`) && len(pattern) < 8 && len(text) < 8 && g.match(text) != slowGlob(pattern, text) {
			t.Errorf("%q on %q", pattern, text)
		}
	})
}

func mustCondition(t rapid.TB, src string) *Condition {
	t.Helper()
	c, err := CompileCondition(src)
	if err != nil {
		t.Fatalf("%.200s: %v", src, err)
	}
	return c
}
