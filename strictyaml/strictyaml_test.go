package strictyaml_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"substrate/strictyaml"
)

var update = flag.Bool("update", false, "rewrite the expected part of testdata")

type shape struct {
	name  string
	count int64
	ratio float64
	spot  *bool
	size  uint64
	ttl   time.Duration
	wait  time.Duration
	tags  map[string]string
	list  []string
	inner int64
}

// decodeShape is the schema of the tests: one key of each type.
func decodeShape(v strictyaml.Value) shape {
	var s shape
	o := v.Object()
	s.name, _ = strictyaml.Required(o, "name", strictyaml.Value.Text)
	s.count = strictyaml.Default(o, "count", 7, strictyaml.Ints[int64](0, 100))
	s.ratio = strictyaml.Default(o, "ratio", 0.5, strictyaml.Floats(0, 10))
	s.spot = strictyaml.Optional(o, "spot", strictyaml.Value.Bool)
	s.size = strictyaml.Default(o, "memory", 0, strictyaml.Value.Size, "mem")
	s.ttl = strictyaml.Default(o, "ttl", 0, strictyaml.Value.Seconds)
	s.wait = strictyaml.Default(o, "wait", 0, strictyaml.Value.Duration)
	s.tags = strictyaml.Default(o, "tags", nil, strictyaml.Value.TextMap)
	s.list = strictyaml.Default(o, "list", nil, strictyaml.Value.Texts)
	if in := o.Take("inner"); in.Valid() {
		io := in.Object()
		s.inner = strictyaml.Default(io, "depth", 0, strictyaml.Ints[int64](math.MinInt64, math.MaxInt64))
		io.Close()
	}
	o.Close()
	return s
}

// TestDiagnostics runs each file in testdata/*.txtar: `in.yaml` is read, `want` holds the
// findings, one a line.
func TestDiagnostics(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, f := range files {
		ar, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(ar.Files); i += 2 {
			in, want := ar.Files[i], &ar.Files[i+1]
			t.Run(in.Name, func(t *testing.T) {
				doc, ds := strictyaml.Parse("in.yaml", in.Data, strictyaml.Limits{MaxDepth: 8, MaxExpansion: 1000})
				if doc != nil {
					decodeShape(doc.Root())
					ds = doc.Diagnostics()
				}
				var got strings.Builder
				for _, d := range ds {
					fmt.Fprintf(&got, "%s %s %s\n", d.Severity, d.Code, d)
				}
				if *update {
					want.Data = []byte(got.String())
				} else if got.String() != string(want.Data) {
					t.Errorf("got\n%swant\n%s", got.String(), want.Data)
				}
			})
		}
		if *update {
			if err := os.WriteFile(f, txtar.Format(ar), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func parse(t *testing.T, text string) *strictyaml.Document {
	t.Helper()
	doc, ds := strictyaml.Parse("in.yaml", []byte(text), strictyaml.Limits{})
	if doc == nil {
		t.Fatalf("cannot parse: %v", ds)
	}
	return doc
}

func TestDecodeAccepts(t *testing.T) {
	yes := true
	tests := map[string]struct {
		in   string
		want shape
	}{
		"absent keys keep their default": {"name: a", shape{name: "a", count: 7, ratio: 0.5}},
		"zero is not absent":             {"{name: a, count: 0, ratio: 0, spot: true}", shape{name: "a", spot: &yes}},
		"no is a text":                   {"name: no", shape{name: "no", count: 7, ratio: 0.5}},
		"quoted numbers are texts":       {"name: '22.10'", shape{name: "22.10", count: 7, ratio: 0.5}},
		"seconds":                        {"{name: a, ttl: 24000, wait: 1h30m}", shape{name: "a", count: 7, ratio: 0.5, ttl: 24000 * time.Second, wait: 90 * time.Minute}},
		"days":                           {"{name: a, ttl: 30d, wait: 0}", shape{name: "a", count: 7, ratio: 0.5, ttl: 720 * time.Hour}},
		"sizes":                          {"{name: a, memory: 256GiB}", shape{name: "a", count: 7, ratio: 0.5, size: 256 << 30}},
		"bare bytes":                     {"{name: a, memory: 4096}", shape{name: "a", count: 7, ratio: 0.5, size: 4096}},
		"byte order mark":                {"\ufeffname: a", shape{name: "a", count: 7, ratio: 0.5}},
		"windows line ends":              {"name: a\r\ncount: 1\r\n", shape{name: "a", count: 1, ratio: 0.5}},
		"document end mark":              {"---\nname: a\n...\n", shape{name: "a", count: 7, ratio: 0.5}},
		"tab in a block text":            {"name: |-\n  a\tb\n  \tc\n", shape{name: "a\tb\n\tc", count: 7, ratio: 0.5}},
		"tab in a comment":               {"name: a # x\ty\n", shape{name: "a", count: 7, ratio: 0.5}},
		"exponent":                       {"{name: a, ratio: 1e-1}", shape{name: "a", count: 7, ratio: 0.1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc := parse(t, tt.in)
			got := decodeShape(doc.Root())
			if ds := doc.Diagnostics(); len(ds) > 0 {
				t.Fatalf("findings: %v", ds)
			}
			if fmt.Sprintf("%+v", deref(got)) != fmt.Sprintf("%+v", deref(tt.want)) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func deref(s shape) any {
	spot := "absent"
	if s.spot != nil {
		spot = fmt.Sprint(*s.spot)
	}
	s.spot = nil
	return struct {
		shape
		spot string
	}{s, spot}
}

func TestAliasIsBoundedByWeight(t *testing.T) {
	ok := "name: &n x\ntags: {a: *n, b: *n}\n"
	doc := parse(t, ok)
	if s := decodeShape(doc.Root()); s.tags["a"] != "x" || s.tags["b"] != "x" || doc.Failed() {
		t.Fatalf("aliases: %+v %v", s, doc.Diagnostics())
	}
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	begin := time.Now()
	doc, ds := strictyaml.Parse("bomb.yaml", []byte(b.String()), strictyaml.Limits{})
	if doc != nil || len(ds) != 1 || ds[0].Code != strictyaml.CodeAlias {
		t.Fatalf("bomb: %v", ds)
	}
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("the bomb took %v", d)
	}
	long := "a: &a " + strings.Repeat("y", 100_000) + "\nl: [" + strings.Repeat("*a,", 1000) + "]\n"
	if doc, ds := strictyaml.Parse("long.yaml", []byte(long), strictyaml.Limits{}); doc != nil || ds[0].Code != strictyaml.CodeAlias {
		t.Errorf("long text repeated: %v", ds)
	}
	cycle := "a: &a [1, *a]\n"
	if doc, ds := strictyaml.Parse("cycle.yaml", []byte(cycle), strictyaml.Limits{}); doc != nil || ds[0].Line != 1 || ds[0].Column != 11 {
		t.Errorf("cycle: %v", ds)
	}
}

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		in    string
		limit strictyaml.Limits
		code  string
	}{
		"bytes":        {"name: " + strings.Repeat("x", 100), strictyaml.Limits{MaxBytes: 100}, strictyaml.CodeTooLarge},
		"values":       {strings.Repeat("- a\n", 1000), strictyaml.Limits{MaxNodes: 1000}, strictyaml.CodeTooLarge},
		"flow nesting": {strings.Repeat("[", 200_000), strictyaml.Limits{}, strictyaml.CodeNesting},
		"nesting":      {strings.Repeat("[", 33) + strings.Repeat("]", 33), strictyaml.Limits{}, strictyaml.CodeNesting},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc, ds := strictyaml.Parse("in.yaml", []byte(tt.in), tt.limit)
			if doc != nil || len(ds) == 0 || ds[0].Code != tt.code {
				t.Errorf("got %v, want %s", ds, tt.code)
			}
		})
	}
	if doc, ds := strictyaml.Parse("in.yaml", []byte(strings.Repeat("[", 32)+strings.Repeat("]", 32)), strictyaml.Limits{}); doc == nil {
		t.Errorf("32 deep refused: %v", ds)
	}
}

func TestManyFindingsAreCounted(t *testing.T) {
	var b strings.Builder
	b.WriteString("name: a\nmem: 1\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	doc := parse(t, b.String())
	decodeShape(doc.Root())
	ds := doc.Diagnostics()
	if len(ds) != 101 || len(ds.Errors()) != 100 || !strings.HasPrefix(ds[100].Message, "4901 more") {
		t.Errorf("%d findings, %d errors, last %v", len(ds), len(ds.Errors()), ds[len(ds)-1])
	}
	if ds.Err() == nil || (strictyaml.Diagnostics{{Severity: strictyaml.SeverityWarning}}).Err() != nil {
		t.Error("Err must be nil exactly when there is no error")
	}
}

func TestParseSize(t *testing.T) {
	good := map[string]uint64{
		"0": 0, "1": 1, "12B": 12, "1KB": 1000, "1kB": 1000, "64GB": 64e9, "64GiB": 64 << 30, "1.5TiB": 3 << 39,
		"2 PiB": 2 << 50, "8191PiB": 8191 << 50, "0.5KiB": 512,
	}
	for in, want := range good {
		if got, err := strictyaml.ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "GiB", "-1GiB", "1.0001KB!", "64Gb", "64gib", "0.3B", "8192PiB", "1e3", "1..5GB", ".5GB", "5.GB", "64 G iB", strings.Repeat("9", 40)} {
		if got, err := strictyaml.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	good := map[string]time.Duration{"60s": time.Minute, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "0": 0}
	for in, want := range good {
		if got, err := strictyaml.ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "60", "d", "1d-2h", "+5s", "99999d", "1w", "1h 30m", "999999999h"} {
		if got, err := strictyaml.ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"instanceType", "imageId", "spot", "t3.micro", "t3.small", "max-minutes"}
	for in, want := range map[string]string{"instancetype": "instanceType", "instance_type": "instanceType", "sopt": "spot", "t3.mirco": "t3.micro", "max_minute": "max-minutes", "zzz": ""} {
		got := strings.Join(strictyaml.Nearest(in, known, 1), "")
		if got != want {
			t.Errorf("Nearest(%q) = %q, want %q", in, got, want)
		}
	}
}
