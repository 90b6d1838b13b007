package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCommentsNamePagesThatExist: a page that a comment points to is there, from the root or from the
// file's own folder.
func TestCommentsNamePagesThatExist(t *testing.T) {
	page := regexp.MustCompile(`[A-Za-z0-9_./-]+\.md\b`)
	for _, s := range sources(t) {
		for _, group := range s.file.Comments {
			for _, name := range page.FindAllString(group.Text(), -1) {
				found := false
				for _, dir := range []string{"", s.pkg} {
					_, err := os.Stat(filepath.Join("..", "..", dir, name))
					found = found || err == nil
				}
				if !found {
					t.Errorf("%s names %s, which is not in the repository", s.fset.Position(group.Pos()), name)
				}
			}
		}
	}
}

// TestEachPackageIsOnTheMap: the table of ARCHITECTURE.md has a row for each package of hwinfo, expr, agent and coordinator.
func TestEachPackageIsOnTheMap(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || seen[s.pkg] || !within(s.pkg, "hwinfo", "expr", "strictyaml", "agent", "coordinator") {
			continue
		}
		seen[s.pkg] = true
		if !strings.Contains(string(page), "| `"+s.pkg+"/` |") {
			t.Errorf("ARCHITECTURE.md has no row for %s", s.pkg)
		}
	}
}

// TestFlagsOfDaemonsAreExplained: each flag of the daemons stands on a page for administrators.
func TestFlagsOfDaemonsAreExplained(t *testing.T) {
	pages := ""
	for _, name := range []string{"operations", "security", "federation", "hardware"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "docs", name+".md"))
		if err != nil {
			t.Fatal(err)
		}
		pages += string(data)
	}
	flags := 0
	flag := regexp.MustCompile(`\bf\.(?:String|Bool|Duration|Int|StringSlice)Var\(&[\w.]+, "([a-z-]+)"`)
	for _, pkg := range []string{"substrate-coordinator", "substrated"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "cmd", pkg, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range flag.FindAllStringSubmatch(string(text), -1) {
				flags++
				if !strings.Contains(pages, "`--"+m[1]) {
					t.Errorf("%s has the flag --%s, which no page explains", file, m[1])
				}
			}
		}
	}
	if flags < 15 {
		t.Errorf("found only %d flags: the pattern is broken", flags)
	}
}
