package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "substrate"

// source is one Go file of the repository.
type source struct {
	path    string // slash separated, from the root
	pkg     string // directory
	test    bool
	file    *ast.File
	fset    *token.FileSet
	lines   int
	imports []string
}

// sources parses every hand-written Go file.
func sources(t *testing.T) []source {
	t.Helper()
	root := filepath.Join("..", "..")
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist" || rel == "proto/tools") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || generated(rel) {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, rel, data, parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"), file: f, fset: fset,
			lines: strings.Count(string(data), "\n")}
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, p)
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("found only %d Go files: the walk is broken", len(out))
	}
	return out
}

func generated(path string) bool {
	return strings.HasSuffix(path, ".pb.go") || strings.HasSuffix(path, ".pb.gw.go")
}

// within reports whether a package is one of the trees ("a" covers "a" and "a/b").
func within(pkg string, trees ...string) bool {
	for _, tree := range trees {
		if pkg == tree || strings.HasPrefix(pkg, tree+"/") {
			return true
		}
	}
	return false
}

// rule refuses imports. deny matches the imported path, ours without the module's name.
type rule struct {
	name   string
	reason string
	from   func(pkg string) bool
	deny   func(imported string, own bool) bool
}

func rules() []rule {
	own := func(paths ...string) func(string, bool) bool {
		return func(im string, isOwn bool) bool { return isOwn && within(im, paths...) }
	}
	notIn := func(trees ...string) func(string) bool {
		return func(pkg string) bool { return !within(pkg, trees...) }
	}
	in := func(trees ...string) func(string) bool {
		return func(pkg string) bool { return within(pkg, trees...) }
	}
	external := func(prefixes ...string) func(string, bool) bool {
		return func(im string, isOwn bool) bool { return !isOwn && within(im, prefixes...) }
	}
	var vendors []rule
	for place, sdk := range sdks() {
		vendors = append(vendors,
			rule{"one place for a vendor's SDK", "its answers become faults and instances there, and nothing else has to be compiled with it", notIn(place), external(sdk)},
			rule{"the program opens clouds", "whoever works on the engine compiles no vendor's SDK", notIn("cmd/substrate-coordinator", place), own(place)})
	}
	return append(vendors, []rule{
		{"hwinfo stands alone", "facts are judged elsewhere, and a snapshot must be readable by any program",
			in("hwinfo"), func(im string, isOwn bool) bool { return isOwn && !within(im, "hwinfo") }},
		{"one program holds the C of NVIDIA's library", "the agent is one static program that runs on any node",
			func(pkg string) bool { return !within(pkg, "cmd/substrate-probe") }, func(im string, _ bool) bool { return strings.HasPrefix(im, "github.com/NVIDIA/") }},
		{"strictyaml stands alone", "it knows no schema",
			in("strictyaml"), func(_ string, isOwn bool) bool { return isOwn }},
		{"expr knows facts only", "rules are written about what a node is, not about how the coordinator keeps it",
			in("expr"), func(im string, isOwn bool) bool { return isOwn && !within(im, "hwinfo", "expr") }},
		{"the wire knows facts only", "coordinator nouns are converted in coordinator/server",
			in("proto"), func(im string, isOwn bool) bool { return isOwn && !within(im, "hwinfo", "proto") }},
		{"agents and coordinator meet on the wire", "a node must not need the coordinator's code, nor the other way round",
			in("agent"), own("coordinator")},
		{"coordinator does not know the agent", "they meet on the wire",
			in("coordinator"), own("agent")},
		{"wire types stay at the edge", "the engine and its nouns outlive a wire format",
			func(pkg string) bool { return within(pkg, "coordinator") && !within(pkg, "coordinator/server") }, own("proto")},
		{"nouns need nothing", "every package under coordinator may use them",
			func(pkg string) bool { return pkg == "coordinator" }, func(_ string, isOwn bool) bool { return isOwn }},
		{"the core is pure", "a decision must be replayable from a saved snapshot",
			in("coordinator/sched"), func(im string, isOwn bool) bool {
				if isOwn {
					return im != "coordinator" && !within(im, "coordinator/sched")
				}
				return !slices.Contains(pureLibrary(), im)
			}},
		{"one expression language", "its guards are in one place",
			notIn("expr"), external("github.com/expr-lang/expr")},
		{"one store", "etcd's limits and failures are handled in one place",
			notIn("coordinator/store"), external("go.etcd.io")},
		{"plots are drawn in one place", "a plotting library is no part of a daemon",
			notIn("coordinator/simulate/report"), external("gonum.org/v1/plot")},
		{"processes are started in few places", "what a daemon may run is part of its hardening",
			notIn("agent/runtime", "hwinfo/probe", "coordinator/dispatch/transport", "cmd", "tests"), external("os/exec")},
		{"libraries do not know programs", "main packages wire, nothing else",
			notIn("cmd", "tests"), own("cmd", "tests")},
	}...)
}

// sdks are the vendors' by the package that each is for.
func sdks() map[string]string {
	return map[string]string{
		"coordinator/provision/aws":       "github.com/aws",
		"coordinator/provision/azure":     "github.com/Azure",
		"coordinator/provision/coreweave": "k8s.io",
		"coordinator/provision/gcp":       "google.golang.org/api",
		"coordinator/provision/oci":       "github.com/oracle",
	}
}

// links are packages that a program must not carry, not even through others.
func links() []rule {
	own := func(trees ...string) func(string, bool) bool {
		return func(im string, isOwn bool) bool { return isOwn && within(im, trees...) }
	}
	is := func(program string) func(string) bool { return func(pkg string) bool { return pkg == program } }
	return []rule{
		{"the CLI stays small", "it must not link the store, the engine or the server",
			is("cmd/substrate"), own("coordinator/engine", "coordinator/server", "coordinator/store", "agent")},
		{"the CLI launches nothing", "it must not link the SDKs of clouds",
			is("cmd/substrate"), own("coordinator/provision")},
		{"simulations launch nothing real", "they must not link the SDKs of clouds",
			is("cmd/substrate-simulate"), own(slices.Collect(maps.Keys(sdks()))...)},
		{"the coordinator does not simulate", "what tries configurations is a program of its own",
			is("cmd/substrate-coordinator"), own("coordinator/simulate")},
		{"the agent's program stays small", "a node must not carry the coordinator",
			is("cmd/substrated"), own("coordinator")},
	}
}

// TestLinks follows imports of imports.
func TestLinks(t *testing.T) {
	imports := map[string][]string{}
	for _, s := range sources(t) {
		if !s.test {
			imports[s.pkg] = append(imports[s.pkg], s.imports...)
		}
	}
	for _, r := range links() {
		checked := 0
		for pkg := range imports {
			if !r.from(pkg) {
				continue
			}
			checked++
			seen, queue := map[string]bool{}, []string{pkg}
			for len(queue) > 0 {
				next := queue[0]
				queue = queue[1:]
				for _, im := range imports[next] {
					path, isOwn := strings.CutPrefix(im, module+"/")
					if !isOwn || seen[path] {
						continue
					}
					seen[path] = true
					queue = append(queue, path)
					if r.deny(path, isOwn) {
						t.Errorf("%s links %s, through %s: %s (%s)", pkg, path, next, r.name, r.reason)
					}
				}
			}
		}
		if checked == 0 {
			t.Errorf("%s: there is no such program", r.name)
		}
	}
}

// TestNeedsNoSDK asks the toolchain what packages need, others' code included: to build and test the core, the engine or the programs of nodes and users no
// vendor's SDK is compiled.
func TestNeedsNoSDK(t *testing.T) {
	sdks := slices.Collect(maps.Values(sdks()))
	needs := func(pkg string) []string {
		t.Helper()
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"/"+pkg).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		return strings.Fields(string(out))
	}
	for _, pkg := range []string{"coordinator/sched", "coordinator/engine", "coordinator/server", "coordinator/config", "cmd/substrate", "cmd/substrated", "cmd/substrate-simulate"} {
		list := needs(pkg)
		if !slices.Contains(list, module+"/"+pkg) {
			t.Errorf("%s is not among what it needs: %v", pkg, list)
		}
		for _, dep := range list {
			if within(dep, sdks...) {
				t.Errorf("%s needs %s", pkg, dep)
			}
			if pkg == "coordinator/sched" && !strings.HasPrefix(dep, module+"/") {
				t.Errorf("the core needs %s, which is others' code", dep)
			}
		}
	}
	if all := needs("cmd/substrate-coordinator"); !slices.ContainsFunc(all, func(dep string) bool { return within(dep, sdks...) }) {
		t.Error("not even the coordinator's program needs an SDK: the check is blind")
	}
}

// pureLibrary is all that the core may use of the standard library.
func pureLibrary() []string {
	return []string{"cmp", "container/heap", "errors", "fmt", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time"}
}

func TestImportLaw(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue // tests may look further: twins, fakes, real peers
		}
		for _, im := range s.imports {
			path, isOwn := strings.CutPrefix(im, module+"/")
			for _, r := range rules() {
				if r.from(s.pkg) && r.deny(path, isOwn) {
					t.Errorf("%s imports %s: %s (%s)", s.path, im, r.name, r.reason)
				}
			}
		}
	}
}

// TestSiblings: packages under coordinator do not import one another; engine and server may, and what simulates them.
func TestSiblings(t *testing.T) {
	allowed := map[string][]string{
		"coordinator/config":             {"coordinator/spec", "coordinator/catalogue"},
		"coordinator/dispatch/slurm":     {"coordinator/dispatch"},
		"coordinator/dispatch/pbs":       {"coordinator/dispatch"},
		"coordinator/dispatch/transport": {"coordinator/dispatch"},
	}
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.pkg, "coordinator/") || within(s.pkg, "coordinator/engine", "coordinator/server", "coordinator/simulate") {
			continue
		}
		for _, im := range s.imports {
			path, isOwn := strings.CutPrefix(im, module+"/")
			if !isOwn || !strings.HasPrefix(path, "coordinator/") || within(path, top(s.pkg)) {
				continue
			}
			if within(s.pkg, "coordinator/provision") && within(path, "coordinator/spec", "coordinator/catalogue", "coordinator/provision", "coordinator/dispatch") {
				continue
			}
			if !slices.ContainsFunc(allowed[s.pkg], func(tree string) bool { return within(path, tree) }) {
				t.Errorf("%s imports its sibling %s", s.path, im)
			}
		}
	}
}

// top is the second level of a package path: coordinator/store for coordinator/store/storetest.
func top(pkg string) string {
	parts := strings.SplitN(pkg, "/", 3)
	return strings.Join(parts[:2], "/")
}

func TestTopLevelIsTheDiagram(t *testing.T) {
	want := []string{"agent", "cmd", "coordinator", "docs", "expr", "hwinfo", "packaging", "proto", "strictyaml", "systemd", "tests"}
	entries, err := os.ReadDir(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" && e.Name() != "dist" && !slices.Contains(want, e.Name()) {
			t.Errorf("directory %s is not in the diagram of ARCHITECTURE.md", e.Name())
		}
	}
}

func TestPackageNames(t *testing.T) {
	bad := []string{"util", "utils", "common", "types", "models", "helpers", "manager", "service", "core", "pkg", "misc", "base"}
	for _, s := range sources(t) {
		if name := s.file.Name.Name; slices.Contains(bad, strings.TrimSuffix(name, "_test")) {
			t.Errorf("%s: package name %q says nothing", s.path, name)
		}
	}
}

func TestOnePackageComment(t *testing.T) {
	comments := map[string][]string{}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		seen[s.pkg] = true
		if s.file.Doc != nil {
			comments[s.pkg] = append(comments[s.pkg], s.path)
			text := s.file.Doc.Text()
			name := s.file.Name.Name
			if name == "main" {
				name = filepath.Base(s.pkg)
				if !strings.HasPrefix(text, "Command "+name) {
					t.Errorf("%s: the comment must begin with %q", s.path, "Command "+name)
				}
			} else if !strings.HasPrefix(text, "Package "+name+" ") {
				t.Errorf("%s: the comment must begin with %q", s.path, "Package "+name)
			}
		}
	}
	for pkg := range seen {
		if n := len(comments[pkg]); n != 1 && !within(pkg, "proto/agentv1", "proto/apiv1") {
			t.Errorf("package %s has %d package comments, wanted 1: %v", pkg, n, comments[pkg])
		}
	}
}

func TestSizes(t *testing.T) {
	const maxFile, maxFunction = 600, 70
	for _, s := range sources(t) {
		if s.lines > maxFile {
			t.Errorf("%s has %d lines, at most %d", s.path, s.lines, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			first, last := s.fset.Position(f.Pos()).Line, s.fset.Position(f.End()).Line
			if n := last - first + 1; n > maxFunction {
				t.Errorf("%s:%d: %s has %d lines, at most %d", s.path, first, f.Name.Name, n, maxFunction)
			}
		}
	}
}

// clockAllowed are the packages that may ask for the time: programs, the engine's daemons and adapters.
func clockAllowed(pkg string) bool {
	return within(pkg, "cmd", "tests", "agent", "coordinator/engine", "coordinator/store", "coordinator/server", "coordinator/provision/provisiontest")
}

func TestNoHiddenState(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s: init() hides work and order", s.path)
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					checkVars(t, s, d)
				}
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := x.Name + "." + sel.Sel.Name
			if (name == "time.Now" || name == "time.Since" || name == "time.Until") && !clockAllowed(s.pkg) {
				t.Errorf("%s: %s; take the time as an argument", s.fset.Position(n.Pos()), name)
			}
			if (name == "slog.Default" || name == "slog.SetDefault") && s.pkg != "tests" {
				t.Errorf("%s: %s; take the logger as an argument", s.fset.Position(n.Pos()), name)
			}
			return true
		})
	}
}

// checkVars allows package variables that nothing changes: sentinel errors, interface checks, embedded
// files, compiled patterns and tables in arrays.
func checkVars(t *testing.T, s source, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, name := range v.Names {
			if name.Name == "_" || strings.HasPrefix(name.Name, "Err") || strings.HasPrefix(name.Name, "err") {
				continue
			}
			if d.Doc != nil && strings.Contains(commentText(d.Doc), "//go:embed") {
				continue
			}
			if s.file.Name.Name == "main" && (name.Name == "version" || name.Name == "commit") {
				continue // set by the linker
			}
			if i < len(v.Values) && constantTable(v.Values[i]) {
				continue
			}
			t.Errorf("%s: package variable %s could change; pass it or make it a function", s.fset.Position(name.Pos()), name.Name)
		}
	}
}

func commentText(g *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// constantTable reports whether an expression is an array literal. Its elements could be assigned; nothing here
// looks for that.
func constantTable(e ast.Expr) bool {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	arr, ok := lit.Type.(*ast.ArrayType)
	return ok && arr.Len != nil
}

// TestNoForeignWords keeps the project's text about the project.
func TestNoForeignWords(t *testing.T) {
	root := filepath.Join("..", "..")
	words := []string{"/wor" + "k/", "/far" + "m/", ".libr" + "ary", "proxy.gol" + "ang.org", "registry.np" + "mjs.org", "deb.deb" + "ian.org"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == ".git" || n == "bin" || n == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".sum") || d.Name() == ".git" { // a file in a work tree
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, w := range words {
			if strings.Contains(string(data), w) {
				t.Errorf("%s holds %q", path, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(fmt.Errorf("cannot walk the tree: %w", err))
	}
}
