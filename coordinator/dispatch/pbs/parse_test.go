package pbs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
)

// update rewrites the golden file; look at the difference.
var update = flag.Bool("update", false, "rewrite golden files")

func everything(*record) bool { return true }

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// parseAny reads a listing by its name's end; dsv files have the delimiter | or what their names say.
func parseAny(name string, data []byte) ([]record, error) {
	switch {
	case strings.HasSuffix(name, ".json"):
		return parseJSON(data, everything)
	case strings.Contains(name, "format-dsv-D"):
		return parseDSV(data, ";;", everything)
	}
	return parseDSV(data, "|", everything)
}

// TestListings is how what OpenPBS 23.06 and its later client print is understood, one line for each job.
func TestListings(t *testing.T) {
	files, err := filepath.Glob("testdata/listings/*")
	if err != nil || len(files) < 70 {
		t.Fatalf("%d listings, %v", len(files), err)
	}
	var got strings.Builder
	for _, f := range files {
		fmt.Fprintf(&got, "%s\n", filepath.Base(f))
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		list, err := parseAny(f, data)
		if err != nil {
			fmt.Fprintf(&got, "\t%v\n", err)
		}
		for i := range list {
			fmt.Fprintf(&got, "\t%s\n", describe(&list[i]))
		}
	}
	const golden = "testdata/listings.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the listings are understood otherwise than in %s; with -update the difference shows:\n%s", golden, firstDifference(got.String(), string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return "one is longer"
}

func describe(r *record) string {
	o := observe(r, "alice", nobody)
	text := fmt.Sprintf("%s %s/%s execution %d", o.Object, o.State, o.Cause, o.Execution)
	if o.ExitCode != nil {
		text += fmt.Sprintf(" code %d", *o.ExitCode)
	}
	if o.Signal != nil {
		text += fmt.Sprintf(" signal %d", *o.Signal)
	}
	for _, at := range []struct {
		noun string
		t    time.Time
	}{{"submitted", o.Submitted}, {"started", o.Started}, {"ends", o.Ends}, {"ended", o.Ended}} {
		if !at.t.IsZero() {
			text += " " + at.noun + " " + at.t.Format("15:04:05")
		}
	}
	return fmt.Sprintf("%s on %v (%s)", text, o.Nodes, strings.ReplaceAll(o.Raw, "\n", "⏎"))
}

// TestOutcomes names the rules that are easily got wrong; the golden file has the rest.
func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		file, id string
		state    dispatch.State
		cause    dispatch.Cause
		number   dispatch.Execution
	}{
		"success":                          {"227-qstat-exit0.json", "49.vm", dispatch.StateSucceeded, dispatch.CauseNone, 0},
		"an exit code":                     {"228-qstat-exit3.json", "50.vm", dispatch.StateFailed, dispatch.CauseExitCode, 0},
		"a signal":                         {"230-qstat-selfkill.json", "52.vm", dispatch.StateFailed, dispatch.CauseSignalled, 0},
		"a signal, by a shell":             {"233-qstat-childkill.json", "55.vm", dispatch.StateFailed, dispatch.CauseSignalled, 0},
		"92 without a status never ran":    {"803-qstat-afterok.json", "2316.vm", dispatch.StateCancelled, dispatch.CauseNeverRan, 0},
		"91 without a status never ran":    {"246-qstat-delheld.json", "68.vm", dispatch.StateCancelled, dispatch.CauseNeverRan, 0},
		"91 with status 0 is no success":   {"769c-qstat-trap-exec.json", "2312.vm", dispatch.StateCancelled, dispatch.CauseNone, 0},
		"deleted in its epilogue":          {"276-qstat-exited-json.json", "72.vm", dispatch.StateCancelled, dispatch.CauseNone, 0},
		"being deleted":                    {"225-qstat-just-after-qdel.json", "66.vm", dispatch.StateEnding, dispatch.CauseNone, 0},
		"walltime":                         {"237-qstat-walltime.json", "59.vm", dispatch.StateFailed, dispatch.CauseTimeout, 0},
		"walltime, though it ended with 0": {"769e-qstat-walltrap-exec.json", "2313.vm", dispatch.StateFailed, dispatch.CauseTimeout, 0},
		"memory":                           {"772-qstat-overmem.json", "2000.vm", dispatch.StateFailed, dispatch.CauseOutOfMemory, 0},
		"preempted":                        {"646b-qstat-preempt-deleted.json", "149.vm", dispatch.StateFailed, dispatch.CausePreempted, 0},
		"no home":                          {"247-qstat-nohome.json", "69.vm", dispatch.StateFailed, dispatch.CauseLaunch, 0},
		"its node was lost":                {"309-qstat-node-down-10s.json", "78.vm", dispatch.StateFailed, dispatch.CauseNodeLost, 0},
		"requeued, with a stale status":    {"309-qstat-node-down-10s.json", "77.vm", dispatch.StatePending, dispatch.CauseNodeUnavailable, 1},
		"runs again, with a stale status":  {"603-qstat-after-qrerun-5s.json", "115.vm", dispatch.StateRunning, dispatch.CauseNone, 1},
		"R and not begun":                  {"602-qstat-after-qrerun.json", "115.vm", dispatch.StatePending, dispatch.CauseStarting, 1},
		"too many failed starts":           {"282-prologue-exit-2-qstat-later.json", "74.vm", dispatch.StatePending, dispatch.CauseUnsatisfiable, 21},
		"stage-in that failed":             {"241-qstat-badstagein.json", "63.vm", dispatch.StatePending, dispatch.CauseUnsatisfiable, 0},
		"can never run":                    {"066-qstat-never-runnable.json", "24.vm", dispatch.StatePending, dispatch.CauseUnsatisfiable, 0},
		"a dependency":                     {"802-qstat-dep-pending.json", "2316.vm", dispatch.StatePending, dispatch.CauseDependency, 0},
		"a user's hold":                    {"117-qstat-held-json.json", "47.vm", dispatch.StatePending, dispatch.CauseGated, 0},
		"a hold on what runs":              {"146-qstat-held-running.json", "44.vm", dispatch.StateRunning, dispatch.CauseNone, 0},
		"suspended":                        {"162-qstat-resumed-json.json", "43.vm", dispatch.StateSuspended, dispatch.CauseNone, 0},
	} {
		list, err := parseAny(c.file, read(t, "listings/"+c.file))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		found := false
		for i := range list {
			if list[i].id != c.id {
				continue
			}
			found = true
			if o := observe(&list[i], "alice", nobody); o.State != c.state || o.Cause != c.cause || o.Execution != c.number {
				t.Errorf("%s: got %s", name, describe(&list[i]))
			}
		}
		if !found {
			t.Errorf("%s: %s has no %s", name, c.file, c.id)
		}
	}
}

// TestForged: what a user can write into a listing as JSON changes nothing of what is believed: it is refused as a whole, and read as lines.
func TestForged(t *testing.T) {
	for _, name := range []string{"871-inject-json.json", "873-inject-json-all.json"} {
		if list, err := parseAny(name, read(t, "listings/"+name)); err == nil {
			t.Errorf("%s is believed: %d jobs", name, len(list))
		}
	}
	for name, text := range map[string]string{
		"an attribute twice": `{"Jobs":{"1.vm":{"job_state":"H","Variable_List":{"A":"x"},"job_state":"F"}}}`,
		"a job twice":        `{"Jobs":{"1.vm":{"job_state":"H"},"2.vm":{"Variable_List":{"A":"x"}},"1.vm":{"job_state":"F"}}}`,
		"the jobs twice":     `{"Jobs":{"1.vm":{"job_state":"H"}},"Jobs":{"1.vm":{"job_state":"F"}}}`,
		"something after":    `{"Jobs":{"1.vm":{"job_state":"H"}}}}`,
		"a listing cut off":  `{"Jobs":{"1.vm":{"job_state":"H"}`,
		"nested too deep":    `{"Jobs":{"1.vm":{"a":` + strings.Repeat("[", 100_000) + `}}}`,
		"nothing":            ``,
	} {
		if list, err := parseJSON([]byte(text), everything); err == nil {
			t.Errorf("%s is believed: %+v", name, list)
		}
	}
	if _, err := parseDSV([]byte(`Job Id: 1.vm|job_state=H|A=x\nJob Id: 2.vm|job_state=F`), "|", everything); err == nil {
		t.Error("a line with two states is believed")
	}
	list, err := parseAny("", read(t, "listings/878-inject-key-dsv.dsv"))
	if err != nil || len(list) < 2 {
		t.Fatalf("as lines: %d jobs, %v", len(list), err)
	}
	for i := range list {
		if list[i].state != "H" {
			t.Errorf("as lines: %s", describe(&list[i]))
		}
	}
	r := record{id: "1.vm", owner: "mallory@vm", mark: mark(dispatch.Ref{Job: "a", Submission: 1, Attempt: 1}, "", "", false)}
	if o := observe(&r, "alice", nobody); o.Ref != (dispatch.Ref{}) || o.Name != "" {
		t.Errorf("another account's mark is believed: %+v", o)
	}
}

func TestNodes(t *testing.T) {
	for file, want := range map[string]string{
		"023-pbsnodes-av-json.json": "", "026-pbsnodes-unknown.json": "", "304-pbsnodes-down.json": "n1 n2 n4", "731-pbsnodes-server-back.json": "",
		"733-pbsnodes-server-back-later.json": "", "790-pbsnodes-vnodes.json": "", "800-pbsnodes-numeric-string.json": "", "800-pbsnodes-numeric-string-head.json": "",
	} {
		list, err := parseNodesJSON(read(t, "nodes/"+file))
		var lost []string
		for _, n := range list {
			if n.silent() {
				lost = append(lost, n.name)
			}
		}
		if err != nil || len(list) == 0 || strings.Join(lost, " ") != want {
			t.Errorf("%s: of %d nodes %v are lost, %v; want %s", file, len(list), lost, err, want)
		}
	}
	list, err := parseNodesDSV([]byte("Name=n1@x@Mom=n1.example.org@x@state=job-busy,down@x@resources_available.host=n1@x@\nName=n2@x@state=free\n"), "@x@")
	if err != nil || len(list) != 2 || !list[0].silent() || list[1].silent() || list[0].host != "n1" {
		t.Errorf("as lines the nodes are %+v, %v", list, err)
	}
}

func TestServer(t *testing.T) {
	name, values, err := parseServer("Server vm\n    job_history_enable = True\n    job_history_duration = 00:00:05\n    managers = a@x,\n\tb@y\n\n")
	if err != nil || name != "vm" || values["job_history_enable"] != "True" || values["job_history_duration"] != "00:00:05" {
		t.Errorf("%q, %v, %v", name, values, err)
	}
	for _, odd := range []string{"", "qmgr obj=", "Server \n", "    a = b\n    a = c\nServer x\n"} {
		if name, _, err := parseServer(odd); err == nil {
			t.Errorf("%q names the server %q", odd, name)
		}
	}
}

// TestStatuses pairs what commands said with what their caller must do.
func TestStatuses(t *testing.T) {
	for said, c := range map[string]struct {
		exit int
		want error
	}{
		"qstat: Unknown Job Id 99999.vm":                                           {153, dispatch.ErrNotFound},
		"qstat: illegally formed job identifier: 5.otherhost":                      {1, dispatch.ErrNotFound},
		"qrls: Job has finished":                                                   {35, dispatch.ErrEnded},
		"qalter: Unauthorized Request  47.vm":                                      {159, dispatch.ErrDenied},
		"qsub: Bad UID for job execution":                                          {175, dispatch.ErrDenied},
		"Connection refused\nqsub: cannot connect to server vm (errno=15010)":      {162, dispatch.ErrUnavailable},
		"Connection refused\nqstat: cannot connect to server vm (errno=15010)":     {255, dispatch.ErrUnavailable},
		"Connection refused\nCouldn't connect to cluster: vm":                      {162, dispatch.ErrUnavailable},
		"qdel: Server could not connect to MOM 77.vm":                              {222, dispatch.ErrUnavailable},
		"qsub: Unknown queue":                                                      {170, dispatch.ErrRefused},
		"qsub: Job violates queue and/or server resource limits":                   {188, dispatch.ErrRefused},
		"qsub: would exceed queue generic's per-user limit":                        {38, dispatch.ErrRefused},
		"qsig: Request invalid for state of job 47.vm":                             {168, dispatch.ErrRefused},
		"qalter: Cannot modify attribute while job running  Resource_List.x 43.vm": {167, dispatch.ErrNotPending},
		"qsub: Unknown resource: ngpus":                                            {187, dispatch.ErrRefused},
		"something else":                                                           {77, nil},
	} {
		if got := classify(c.exit, said); got != c.want {
			t.Errorf("%q with %d is %v, want %v", said, c.exit, got, c.want)
		}
	}
}

func TestIdentifiers(t *testing.T) {
	for _, id := range []dispatch.ObjectID{"0.vm", "12.pbs-1.example.org", "999999999999.x"} {
		if _, ok := sequence(id); !ok {
			t.Errorf("%s is refused", id)
		}
	}
	for _, id := range []dispatch.ObjectID{"", "12", "12.", ".vm", "12[].vm", "12[3].vm", "-1.vm", "+1.vm", "01.vm", "1 .vm", "1.vm x", "1.-vm", "1.v\nm", "1234567890123.vm", "1e5.vm"} {
		if _, ok := sequence(id); ok {
			t.Errorf("%q is taken", id)
		}
	}
	if _, err := parseSubmitted("12.vm\n"); err != nil {
		t.Error(err)
	}
	for _, odd := range []string{"", "\n", "12.vm\n13.vm\n", "12[].vm\n", "qsub: waiting"} {
		if id, err := parseSubmitted(odd); err == nil {
			t.Errorf("%q is the job %s", odd, id)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{"00:05:00": 5 * time.Minute, "336:00:00": 336 * time.Hour, "90": 90 * time.Second, "1:30": 90 * time.Second} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "1d", "-5", "1:2:3:4", "99999999999:00:00", "2147483647:00:00"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	if got := formatDuration(100*time.Hour + 1500*time.Millisecond); got != "100:00:02" {
		t.Errorf("it is written %s", got)
	}
}
