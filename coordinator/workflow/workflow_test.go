package workflow

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"substrate/coordinator"
	"substrate/strictyaml"
)

var update = flag.Bool("update", false, "rewrite the expected part of testdata")

// TestStories parses each `in` of testdata: `want` has the findings and, when the file is
// accepted, the result.
func TestStories(t *testing.T) {
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
				spec, ds := Parse("w.yaml", in.Data)
				got := findings(ds)
				if ds.Err() == nil {
					text, err := json.MarshalIndent(spec, "", " ")
					if err != nil {
						t.Fatal(err)
					}
					got += string(text) + "\n"
				}
				if *update {
					want.Data = []byte(got)
				} else if got != string(want.Data) {
					t.Errorf("got\n%swant\n%s", got, want.Data)
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

func findings(ds strictyaml.Diagnostics) string {
	var b strings.Builder
	for _, d := range ds {
		fmt.Fprintf(&b, "%s %s %s\n", d.Severity, d.Code, d)
	}
	return b.String()
}

const head = "version: v1\nname: w\n"

// TestBadInput: what must be refused, and where.
func TestBadInput(t *testing.T) {
	job := "jobs:\n  a: {command: [x]}\n"
	tests := map[string]struct {
		in   string
		code string
		line int
	}{
		"unknown key":           {head + "joobs: {}\n" + job, strictyaml.CodeUnknownKey, 3},
		"two documents":         {head + job + "---\n" + head, strictyaml.CodeDocuments, 5},
		"tab":                   {head + "jobs:\n\ta: {command: [x]}\n", strictyaml.CodeTab, 4},
		"duplicate job":         {head + job + "  a: {command: [y]}\n", strictyaml.CodeDuplicate, 5},
		"name in another case":  {head + job + "  A: {command: [y]}\n", strictyaml.CodeDuplicate, 5},
		"job and service":       {head + job + "services:\n  a: {command: [y]}\n", strictyaml.CodeDuplicate, 6},
		"100 MB":                {strings.Repeat("#", 100_000_000), strictyaml.CodeTooLarge, 0},
		"name of 64 characters": {head + "jobs:\n  " + strings.Repeat("a", 64) + ": {command: [x]}\n", codeName, 4},
		"not UTF-8":             {head + "jobs:\n  a: {command: [\"\xff\"]}\n", strictyaml.CodeEncoding, 4},
		"empty":                 {"", strictyaml.CodeEmpty, 0},
		"itself":                {head + "jobs:\n  a: {command: [x], depends-on: [a]}\n", codeCycle, 4},
		"dangling":              {head + "jobs:\n  a: {command: [x], depends-on: [b]}\n", codeDependency, 4},
		"too many jobs":         {head + "jobs: {" + manyJobs(MaxJobs+1) + "}\n", codeTooMany, 3},
		"too many tasks":        {head + "jobs:\n  a: {command: [x], task-array: {start: 1, end: 600000}}\n  b: {command: [x], task-array: {start: 1, end: 600000}}\n", codeTooMany, 5},
		"kind from a file":      {head + "jobs:\n  a: {command: [x], kind: internal}\n", strictyaml.CodeUnknownKey, 4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec, ds := Parse("w.yaml", []byte(tt.in))
			errs := ds.Errors()
			if len(errs) != 1 || errs[0].Code != tt.code || errs[0].Line != tt.line {
				t.Errorf("got %s, want %s on line %d", findings(ds), tt.code, tt.line)
			}
			if spec.Name != "" || spec.Jobs != nil {
				t.Error("a refused file gave a workflow")
			}
		})
	}
}

func manyJobs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "j%d: {command: [x]}, ", i)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

func TestNames(t *testing.T) {
	good := []string{"a", "A9", "a-b", strings.Repeat("a", 63), "x--y"}
	bad := []string{"", "9a", "-a", "a-", "a_b", "a.b", "é", "a b", strings.Repeat("a", 64), "a\n"}
	for _, s := range good {
		if why := badName(s); why != "" {
			t.Errorf("%q: %s", s, why)
		}
	}
	for _, s := range bad {
		if badName(s) == "" {
			t.Errorf("%q was taken for a name", s)
		}
	}
}

// TestTenThousandJobs: the largest file, a chain that goes through all of it.
func TestTenThousandJobs(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "jobs:\n")
	for i := range MaxJobs {
		fmt.Fprintf(&b, "  j%d:\n    command: [x]\n", i)
		if i > 0 {
			fmt.Fprintf(&b, "    depends-on: [j%d]\n", i-1)
		}
	}
	begin := time.Now()
	spec, ds := Parse("w.yaml", []byte(b.String()))
	if ds.Err() != nil || len(spec.Jobs) != MaxJobs || spec.Jobs[9999].DependsOn[0].Name != "j9998" {
		t.Fatalf("%v", ds)
	}
	t.Logf("%d jobs in %v", MaxJobs, time.Since(begin))
	circle := strings.Replace(b.String(), "  j0:\n    command: [x]\n", "  j0:\n    command: [x]\n    depends-on: [j9999]\n", 1)
	_, ds = Parse("w.yaml", []byte(circle))
	if len(ds.Errors()) != 1 || ds[0].Code != codeCycle || !strings.Contains(ds[0].Message, "j0 -> j9999 -> j9998") || len(ds[0].Message) > 500 {
		t.Fatalf("%v", ds)
	}
}

// TestCycleProperty: a circle is found exactly when one can be reached by brute force, and
// what is printed is one.
func TestCycleProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "jobs")
		edges := make([][]int, n)
		for i := range edges {
			edges[i] = rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, 3, rapid.ID[int]).Draw(t, "edges")
		}
		reach := make([][]bool, n)
		for i := range reach {
			reach[i] = make([]bool, n)
			for _, to := range edges[i] {
				reach[i][to] = true
			}
		}
		for k := range n {
			for i := range n {
				for j := range n {
					reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
				}
			}
		}
		want := false
		for i := range n {
			want = want || reach[i][i]
		}
		got := findCycle(edges)
		if (got != nil) != want {
			t.Fatalf("edges %v: circle %v", edges, got)
		}
		for i, from := range got {
			to, found := got[(i+1)%len(got)], false
			for _, e := range edges[from] {
				found = found || e == to
			}
			if !found {
				t.Fatalf("edges %v: %v is no circle", edges, got)
			}
		}
	})
}

func TestDefaultsAreNotShared(t *testing.T) {
	spec, ds := Parse("w.yaml", []byte(head+"defaults: {job: {resource: {devices: {nvidia.com/gpu: 1}}}}\njobs: {a: {command: [x]}, b: {command: [x]}}\n"))
	if ds.Err() != nil {
		t.Fatal(ds)
	}
	spec.Jobs[0].Resources.Devices["nvidia.com/gpu"] = 9
	if spec.Jobs[1].Resources.Devices["nvidia.com/gpu"] != 1 {
		t.Error("two jobs share a map")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "jobs:\n  a:\n    script: |\n      echo hi\n    depends-on: [{name: b, status: any}]\n  b: {image: x, task_array: {start: 1, end: 3}}\n"))
	f.Add([]byte(head + "defaults: {job: {max_minutes: 5}}\nservices: {s: {command: [x], class: reserved}}\n"))
	f.Add([]byte(head + "jobs: {a: {command: [x], depends-on: [b]}, b: {command: [x], depends-on: [a]}}\n"))
	f.Add([]byte(head + "jobs: {a: {command: [x], env: [A=b, A=c], mounts: [{source: /a, target: /b}]}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, ds := Parse("f.yaml", data)
		if ds.Err() != nil {
			return
		}
		again, _ := Parse("f.yaml", data)
		a, _ := json.Marshal(spec)
		b, _ := json.Marshal(again)
		if string(a) != string(b) {
			t.Fatal("two readings differ")
		}
		names := map[string]bool{}
		for _, j := range spec.Jobs {
			if badName(j.Name) != "" || names[j.Name] || j.Nodes < 1 || j.Resources.Cores < 1 || j.Resources.Memory < 1 {
				t.Fatalf("accepted %+v", j)
			}
			names[j.Name] = true
			if j.Kind != coordinator.KindJob && j.Kind != coordinator.KindService || j.Kind == coordinator.KindService && j.Walltime != 0 {
				t.Fatalf("accepted %+v", j)
			}
			if (len(j.Command) > 0) == (j.Script != "") && j.Image == "" {
				t.Fatalf("accepted %+v", j)
			}
			if j.Class == coordinator.ClassReserved && j.Preemptible {
				t.Fatalf("accepted %+v", j)
			}
		}
		for _, j := range spec.Jobs {
			for _, d := range j.DependsOn {
				if !names[d.Name] {
					t.Fatalf("dangling %+v", d)
				}
			}
		}
	})
}
