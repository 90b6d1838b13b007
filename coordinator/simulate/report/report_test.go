package report

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/simulate"
)

// results simulates a few jobs under two configurations, the second of which does not backfill.
func results(t *testing.T, nodes string, gpus int) []*simulate.Result {
	t.Helper()
	list, err := simulate.ParseNodes(nodes, func(string) ([]byte, error) { return nil, errors.New("no files") })
	if err != nil {
		t.Fatal(err)
	}
	trace := &simulate.Trace{Name: "<past>.swf", Skipped: map[string]int{"it never ran": 2}}
	for i := range 40 {
		trace.Jobs = append(trace.Jobs, simulate.Job{ID: "j", Line: i, Submit: time.Duration(i) * time.Minute, Run: time.Duration(1+i%7) * time.Hour,
			Walled: 8 * time.Hour, Cores: 1 + i%4, GPUs: gpus * (1 + i%2), Class: coordinator.ClassOnDemand + coordinator.Class(i%2), User: "ann", Group: "default"})
	}
	var out []*simulate.Result
	for _, c := range []struct{ name, config string }{{"easy.yaml", ""}, {"none.yaml", strings.Replace(simulate.DefaultConfig, "easy", "none", 1)}} {
		r, err := simulate.Run(t.Context(), simulate.Options{Name: c.name, Config: []byte(c.config), Trace: trace, Nodes: list})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func page1(t *testing.T, inputs ...Input) string {
	t.Helper()
	var b strings.Builder
	if err := HTML(&b, inputs); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPageNeedsNothing: a report is one file, on any machine.
func TestPageNeedsNothing(t *testing.T) {
	r := results(t, "2x4gpu,8c", 1)
	text := page1(t, Input{r[0], "a: <b>"}, Input{r[1], ""})
	bare := strings.ReplaceAll(strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, ""), `xmlns:xlink="http://www.w3.org/1999/xlink"`, "")
	for _, word := range []string{"http:", "https:", "<script", "<link", "src=", "@import", "url(", "<past>", "a: <b>"} {
		if strings.Contains(bare, word) {
			t.Errorf("the page holds %q", word)
		}
	}
	for _, word := range []string{"&lt;past&gt;.swf", "a: &lt;b&gt;", "easy.yaml", "none.yaml", "prefers-color-scheme: dark", "var(--s1)", "var(--s2)", "Fragmented GPUs", "2 not replayed: it never ran", " worse"} {
		if !strings.Contains(text, word) {
			t.Errorf("the page lacks %q", word)
		}
	}
	if strings.Contains(text, "#010203") || strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("a colour or a number was not written as it should")
	}
	pictures := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1)
	if len(pictures) != 5 {
		t.Errorf("%d pictures", len(pictures))
	}
	for _, p := range pictures {
		d := xml.NewDecoder(strings.NewReader(p))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a picture is not well formed: %v", err)
			}
		}
	}
}

func TestPageWithoutGPUs(t *testing.T) {
	r := results(t, "2x8c", 0)
	text := page1(t, Input{r[0], ""})
	for _, word := range []string{"GPU", "change"} {
		if strings.Contains(strings.ReplaceAll(text, "unchanged", ""), word) {
			t.Errorf("the page of one configuration without GPUs holds %q", word)
		}
	}
	if !strings.Contains(text, "mean bounded slowdown") {
		t.Error("the page lacks its tiles")
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	Text(&b, results(t, "2x4gpu,8c", 1))
	for _, line := range []string{`<past>.swf: 40 jobs in .* on 2 nodes with 16 cores and 8 GPUs`, `  2 not replayed: it never ran`, ` +easy.yaml +none.yaml +CHANGE`,
		`  mean  .*`, `  free GPUs that are fragments .*`, `CLASS +JOBS +MEAN WAIT .*GPU-H.*`, `batch +20 .*`} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(b.String()) {
			t.Errorf("no line is like %q:\n%s", line, b.String())
		}
	}
}

func TestDuration(t *testing.T) {
	for s, want := range map[float64]string{0: "0 s", 0.25: "0.2 s", 59: "59 s", 61: "1 min 01 s", -3600: "-1 h 00 min", 47 * 3600: "47 h 00 min", 49 * 3600: "2.0 d"} {
		if got := Duration(s); got != want {
			t.Errorf("%g: %q instead of %q", s, got, want)
		}
	}
}

func TestChange(t *testing.T) {
	f := figure{text: number, less: 1}
	for _, c := range []struct {
		a, b   float64
		less   int
		text   string
		better int
	}{
		{10, 5, 1, "-50.0 %", 1}, {10, 15, 1, "+50.0 %", -1}, {10, 15, -1, "+50.0 %", 1}, {0, 5, 1, "", -1}, {0, 5, 0, "more", 0},
		{5, 0, 0, "-100.0 %", 0}, {5, 5.0001, 1, "=", 0}, {-10, -5, 0, "+50.0 %", 0},
	} {
		f.less = c.less
		if text, better := change(f, c.a, c.b); text != c.text || better != c.better {
			t.Errorf("from %g to %g: %q %d", c.a, c.b, text, better)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, c := range [][2]float64{{0, 100}, {0, 1}, {0.3, 0.31}, {-5, 1e9}, {3, 3}} {
		ticks := steps{}.Ticks(c[0], c[1])
		if c[0] < c[1] && (len(ticks) < 3 || len(ticks) > 9) {
			t.Errorf("%d marks from %g to %g: %v", len(ticks), c[0], c[1], ticks)
		}
	}
}
