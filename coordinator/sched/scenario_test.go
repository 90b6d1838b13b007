package sched_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"substrate/coordinator/sched"
	"substrate/coordinator/sched/scenario"
)

var update = flag.Bool("update", false, "rewrite the expected plans of the scenarios")

var scenarioName = regexp.MustCompile(`^rule-(\d\d)-[a-z0-9]+(-[a-z0-9]+)*\.txtar$`)

func TestScenarios(t *testing.T) {
	for _, path := range scenarioFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(strings.TrimSpace(string(archive.Comment))) == 0 {
				t.Error("the scenario does not say what it shows")
			}
			if len(archive.Files) != 2 || archive.Files[0].Name != "story" || archive.Files[1].Name != "plan" {
				t.Fatal("a scenario has two parts, story and plan")
			}
			got, err := scenario.Play(string(archive.Files[0].Data), sched.CheckPlan)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				archive.Files[1].Data = []byte(got)
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(archive.Files[1].Data); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestEachRuleHasScenario compares the rules of the package comment with the scenario files.
func TestEachRuleHasScenario(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rules := map[int]int{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(\d+)\s+\S`).FindAllStringSubmatch(string(doc), -1) {
		n, _ := strconv.Atoi(m[1])
		rules[n] = 0
	}
	if len(rules) < 10 {
		t.Fatalf("the package comment lists %d rules", len(rules))
	}
	for _, path := range scenarioFiles(t) {
		m := scenarioName.FindStringSubmatch(filepath.Base(path))
		if m == nil {
			t.Errorf("%s is not named rule-NN-what.txtar", path)
			continue
		}
		n, _ := strconv.Atoi(m[1])
		if _, ok := rules[n]; !ok {
			t.Errorf("%s names rule %d, which the package comment does not list", path, n)
		}
		rules[n]++
	}
	for n, files := range rules {
		if files == 0 {
			t.Errorf("rule %d has no scenario", n)
		}
	}
}

func scenarioFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/scenarios/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	return files
}

// TestEachRuleIsOnThePage: users find each number that a verdict may carry.
func TestEachRuleIsOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/scheduler-rules.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(\d+)\s+\S`).FindAllStringSubmatch(string(doc), -1) {
		if n := len(regexp.MustCompile(`(^|[^\d])\*\*`+m[1]+`\.`).FindAll(page, -1)); n != 1 {
			t.Errorf("rule %s stands %d times on the page of rules", m[1], n)
		}
	}
}

// TestEachSituationIsShown compares the table of situations with the numbers there are and with the scenario files.
func TestEachSituationIsShown(t *testing.T) {
	table, err := os.ReadFile("testdata/scenarios/SITUATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[int]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| .+ \| ([a-z0-9, -]+) \|$`).FindAllStringSubmatch(string(table), -1) {
		n, _ := strconv.Atoi(m[1])
		shown[n] = true
		for _, name := range strings.Split(m[2], ", ") {
			if _, err := os.Stat("testdata/scenarios/" + name + ".txtar"); err != nil {
				t.Errorf("situation %d: there is no scenario %s", n, name)
			}
		}
	}
	for _, n := range []int{2, 4, 6, 8, 10, 12, 13, 14, 16, 18, 20, 22, 23, 24, 26, 28, 29, 30, 32, 34, 36, 38, 39, 40, 42, 44, 45, 46, 48, 50, 52, 54, 56, 58, 60, 61} {
		if !shown[n] {
			t.Errorf("situation %d is not shown", n)
		}
	}
}
