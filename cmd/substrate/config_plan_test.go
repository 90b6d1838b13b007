package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/hwinfo"
)

const fixtures = "../../tests/fixtures/"

// fleetForm is how nodes are recorded.
type fleetForm string

const (
	asFacts    fleetForm = "facts"
	asArchives fleetForm = "archives"
	asFolders  fleetForm = "folders"
)

// recordedFleet writes n nodes into a directory that are like the one that root is of.
func recordedFleet(tb testing.TB, root string, n int, form fleetForm) string {
	tb.Helper()
	dir := tb.TempDir()
	facts, _ := hwinfo.Read(root)
	var archive bytes.Buffer
	if err := hwinfo.WriteArchive(&archive, root, nil); err != nil {
		tb.Fatal(err)
	}
	host := []byte("\nnodename: " + facts.Hostname + "\n")
	for i := range n {
		name := fmt.Sprintf("node%04d", i)
		path := filepath.Join(dir, name)
		renamed := bytes.ReplaceAll(archive.Bytes(), host, []byte("\nnodename: "+name+"\n"))
		var err error
		switch form {
		case asFacts:
			facts.Hostname = name
			var text []byte
			if text, err = json.Marshal(map[string]any{"facts": facts}); err == nil {
				err = os.WriteFile(path+".json", text, 0o600)
			}
		case asArchives:
			err = os.WriteFile(path+".txtar", renamed, 0o600)
		case asFolders:
			one := filepath.Join(tb.TempDir(), "one.txtar")
			if err = os.WriteFile(one, renamed, 0o600); err == nil {
				err = hwinfo.Snapshot(one, path)
			}
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// planned runs the command.
func planned(tb testing.TB, file, dir string) (out, errOut string) {
	tb.Helper()
	var o, e bytes.Buffer
	if code := run([]string{"cluster", "config", "plan", file, "--nodes", dir}, nil, &o, &e, os.Getenv); code != exitChanges {
		tb.Fatalf("exit code %d: %s", code, e.String())
	}
	return o.String(), e.String()
}

// namedDefinitions is a configuration of n definitions, each for ten nodes of a recorded fleet.
func namedDefinitions(tb testing.TB, n int) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "c.yaml")
	var text strings.Builder
	text.WriteString("definitions:\n")
	for i := range n {
		fmt.Fprintf(&text, "  - {id: d%d, provisioner: static, provisionerSpec: {condition: 'hostname() matches \"^node0*%d[0-9]$\" && cpuinfo.cpu_cores > 0', costPerHour: 1}}\n", i, i)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// TestPlanOfAnyForm: a plan is the same whichever way the nodes are recorded, and one bad file costs its node only.
func TestPlanOfAnyForm(t *testing.T) {
	const box = fixtures + "raspberry-pi4.txtar"
	file := namedDefinitions(t, 2)
	facts := recordedFleet(t, box, 12, asFacts)
	want, errOut := planned(t, file, facts)
	if !strings.Contains(want, "12 nodes") || errOut != "" {
		t.Fatalf("%s%s", want, errOut)
	}
	mixed := recordedFleet(t, box, 12, asArchives)
	for _, form := range []fleetForm{asArchives, asFolders} {
		if got, errOut := planned(t, file, recordedFleet(t, box, 12, form)); got != want || errOut != "" {
			t.Errorf("%s give\n%s%s\nfacts give\n%s", form, got, errOut, want)
		}
	}
	for i, name := range []string{"node0001", "node0002"} {
		if err := os.Remove(filepath.Join(mixed, name+".txtar")); err != nil {
			t.Fatal(err)
		}
		from, end := facts, ".json"
		if i == 1 {
			from, end = recordedFleet(t, box, 3, asFolders), ""
		}
		if err := os.Rename(filepath.Join(from, name+end), filepath.Join(mixed, name+end)); err != nil {
			t.Fatal(err)
		}
	}
	bad := filepath.Join(mixed, "bad.txtar")
	if err := os.WriteFile(bad, []byte("-- uname --\n-- /etc/shadow --\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(mixed, "dir.txtar"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, errOut := planned(t, file, mixed)
	if got != want {
		t.Errorf("a mixed directory gives\n%s\nwant\n%s", got, want)
	}
	for _, line := range []string{
		"warning: " + bad + ` is left out: cannot open archive: entry 2 "/etc/shadow": its name is not relative` + "\n",
		"dir.txtar is left out: it is not a snapshot: neither proc nor uname is in it\n",
	} {
		if !strings.Contains(errOut, line) {
			t.Errorf("got %q, want %q", errOut, line)
		}
	}
	if _, err := (&app{}).fleetFrom(bad); err == nil || !strings.Contains(err.Error(), "it is the snapshot of one node") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkPlanOffline is the whole command: read the nodes, judge them, write the answer.
func BenchmarkPlanOffline(b *testing.B) {
	file := namedDefinitions(b, 50)
	for _, c := range []struct {
		machine string
		form    fleetForm
		nodes   int
	}{
		{"dual-epyc", asFacts, 2000}, {"dual-epyc", asArchives, 2000}, {"dual-epyc", asFolders, 100},
		{"dgx-h100", asArchives, 2000},
	} {
		b.Run(fmt.Sprintf("%s/%s/%d", c.machine, c.form, c.nodes), func(b *testing.B) {
			dir := recordedFleet(b, fixtures+c.machine+".txtar", c.nodes, c.form)
			before := processorTime(b)
			for b.Loop() {
				planned(b, file, dir)
			}
			used := processorTime(b) - before
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/op")
			b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/op")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N*c.nodes), "ms/node")
		})
	}
}

// processorTime is what the process has used so far.
func processorTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
