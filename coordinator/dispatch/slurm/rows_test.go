package slurm

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator/dispatch"
	peer "substrate/tests/slurm"
)

// recorded makes of a recording's columns of fixed width the answer that squeue gives to our own format.
func recorded(t *testing.T, r peer.Recording, nonce string) string {
	t.Helper()
	a, ok := r.Answer("squeue.columns")
	if !ok {
		return ""
	}
	format := a.Args[len(a.Args)-1]
	type column struct {
		name  string
		width int
	}
	var columns []column
	for _, c := range strings.Split(format, ",") {
		name, width, _ := strings.Cut(c, ":")
		n, err := strconv.Atoi(width)
		if err != nil {
			t.Fatalf("%s: column %q", r.Name, c)
		}
		columns = append(columns, column{name, n})
	}
	var out strings.Builder
	rest := a.Stdout
	for strings.TrimSpace(rest) != "" {
		fields := map[string]string{}
		for _, c := range columns {
			if len(rest) < c.width {
				t.Fatalf("%s: the row ends in %s", r.Name, c.name)
			}
			fields[c.name] = strings.TrimRight(rest[:c.width], " ")
			rest = rest[c.width:]
		}
		rest = strings.TrimPrefix(rest, "\n")
		var row []string
		for _, name := range queueFields() {
			row = append(row, fields[name])
		}
		out.WriteString(strings.Join(row, separator(nonce)) + rowEnd(nonce) + "\n")
	}
	return out.String()
}

// recordedHistory makes the same of sacct's newest row, whose name and comment come last.
func recordedHistory(t *testing.T, r peer.Recording, nonce string) string {
	t.Helper()
	a, ok := r.Answer("sacct.newest")
	if !ok {
		return ""
	}
	names := strings.Split(a.Args[len(a.Args)-1], ",")
	fields := strings.SplitN(strings.TrimSuffix(a.Stdout, "\n"), "|", len(names))
	if len(fields) != len(names) {
		return ""
	}
	var out strings.Builder
	for _, name := range historyFields() {
		out.WriteString(fields[slices.Index(names, name)] + separator(nonce))
	}
	return out.String() + "\n"
}

func recordings(t *testing.T) map[string]peer.Recording {
	t.Helper()
	list, err := peer.Recordings("22.05")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]peer.Recording{}
	for _, r := range list {
		byName[r.Name] = r
	}
	return byName
}

// seen is what is made of a state; code -1 and sig 0 are none.
type seen struct {
	state dispatch.State
	cause dispatch.Cause
	code  int
	sig   int
}

func (want seen) check(t *testing.T, from string, o dispatch.Observation) {
	t.Helper()
	got := seen{o.State, o.Cause, -1, 0}
	if o.ExitCode != nil {
		got.code = *o.ExitCode
	}
	if o.Signal != nil {
		got.sig = *o.Signal
	}
	if got != want {
		t.Errorf("%s: it is %+v, want %+v (%s)", from, got, want, o.Raw)
	}
}

func states() map[string]seen {
	return map[string]seen{
		"cancelled-by-root":            {dispatch.StateCancelled, dispatch.CauseNone, -1, 0},
		"cancelled-pending":            {dispatch.StateCancelled, dispatch.CauseNeverRan, -1, 0},
		"cancelled-running":            {dispatch.StateCancelled, dispatch.CauseNone, -1, 0},
		"completed":                    {dispatch.StateSucceeded, dispatch.CauseNone, 0, 0},
		"completing":                   {dispatch.StateEnding, dispatch.CauseNone, -1, 0},
		"deadline":                     {dispatch.StateFailed, dispatch.CauseDeadline, -1, 0},
		"failed-exit":                  {dispatch.StateFailed, dispatch.CauseExitCode, 3, 0},
		"failed-output":                {dispatch.StateFailed, dispatch.CauseLaunch, -1, 0},
		"failed-signal":                {dispatch.StateFailed, dispatch.CauseSignalled, -1, 9},
		"over-memory":                  {dispatch.StateFailed, dispatch.CauseSignalled, -1, 9},
		"node-fail":                    {dispatch.StateFailed, dispatch.CauseNodeLost, -1, 0},
		"preempted":                    {dispatch.StateFailed, dispatch.CausePreempted, -1, 0},
		"timeout":                      {dispatch.StateFailed, dispatch.CauseTimeout, -1, 0},
		"running":                      {dispatch.StateRunning, dispatch.CauseNone, -1, 0},
		"running-gpus":                 {dispatch.StateRunning, dispatch.CauseNone, -1, 0},
		"prolog":                       {dispatch.StateRunning, dispatch.CauseNone, -1, 0},
		"running-node-silent":          {dispatch.StateRunning, dispatch.CauseNodeLost, -1, 0},
		"suspended":                    {dispatch.StateSuspended, dispatch.CauseNone, -1, 0},
		"pending-begin-time":           {dispatch.StatePending, dispatch.CauseDelayed, -1, 0},
		"pending-dependency":           {dispatch.StatePending, dispatch.CauseDependency, -1, 0},
		"pending-dependency-never":     {dispatch.StatePending, dispatch.CauseUnsatisfiable, -1, 0},
		"pending-far-future":           {dispatch.StatePending, dispatch.CauseHeld, -1, 0},
		"pending-far-future-gated":     {dispatch.StatePending, dispatch.CauseGated, -1, 0},
		"pending-held-admin":           {dispatch.StatePending, dispatch.CauseOperatorHeld, -1, 0},
		"pending-held-user":            {dispatch.StatePending, dispatch.CauseGated, -1, 0},
		"pending-licenses":             {dispatch.StatePending, dispatch.CauseCapacity, -1, 0},
		"pending-node-not-available":   {dispatch.StatePending, dispatch.CauseNodeUnavailable, -1, 0},
		"pending-partition-down":       {dispatch.StatePending, dispatch.CauseNodeUnavailable, -1, 0},
		"pending-partition-node-limit": {dispatch.StatePending, dispatch.CauseUnsatisfiable, -1, 0},
		"pending-partition-time-limit": {dispatch.StatePending, dispatch.CauseUnsatisfiable, -1, 0},
		"pending-priority":             {dispatch.StatePending, dispatch.CauseCapacity, -1, 0},
		"pending-reservation":          {dispatch.StatePending, dispatch.CauseCapacity, -1, 0},
		"pending-resources":            {dispatch.StatePending, dispatch.CauseCapacity, -1, 0},
		"requeue-hold":                 {dispatch.StatePending, dispatch.CauseOperatorHeld, -1, 0},
		"special-exit":                 {dispatch.StatePending, dispatch.CauseOperatorHeld, -1, 0},
		"requeued":                     {dispatch.StatePending, dispatch.CauseDelayed, -1, 0},
	}
}

// TestStates: what is made of each state that a real Slurm was seen in, by squeue and, where the job is over, by accounting.
func TestStates(t *testing.T) {
	all := recordings(t)
	dead := func(node string) bool { return node == "n5" } // the one whose slurmd was killed
	for name, want := range states() {
		t.Run(name, func(t *testing.T) {
			r, ok := all[name]
			if !ok {
				t.Fatal("there is no such recording")
			}
			rows, err := parseQueue(recorded(t, r, "q"), "q")
			if err != nil || len(rows) != 1 {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
			o := observe(rows[0], dead)
			want.check(t, "squeue", o)
			if o.Raw == "" || o.Submitted.IsZero() || o.State == dispatch.StateRunning && (o.Started.IsZero() || len(o.Nodes) == 0 || o.Ends.IsZero()) {
				t.Errorf("it lacks facts: %+v", o)
			}
			if o.State == dispatch.StatePending && (len(o.Nodes) > 0 || !o.Started.IsZero()) {
				t.Errorf("it waits, and has %v and %v", o.Nodes, o.Started)
			}
			if !o.State.Ended() {
				return
			}
			past, err := parseHistory(recordedHistory(t, r, "q"), "q")
			if err != nil || len(past) != 1 {
				t.Fatalf("accounting: %d rows, %v", len(past), err)
			}
			h := observe(past[0], nobody)
			want.check(t, "accounting", h)
			if h.Name == "allocation" { // accounting had heard of the job's step only
				return
			}
			if !h.Ended.Equal(o.Ended) || !h.Started.Equal(o.Started) || !reflect.DeepEqual(h.Nodes, o.Nodes) {
				t.Errorf("squeue and accounting differ: %+v, %+v", o, h)
			}
		})
	}
}

// TestHoldsInRecordings: the hold that somebody placed by hand, ten years and seven seconds after the submission.
func TestHoldsInRecordings(t *testing.T) {
	all := recordings(t)
	for name, want := range map[string]dispatch.Instance{"pending-far-future": 7, "pending-far-future-gated": 7, "pending-begin-time": 0, "pending-held-user": 0, "requeued": 0} {
		rows, err := parseQueue(recorded(t, all[name], "q"), "q")
		if err != nil || len(rows) != 1 {
			t.Fatalf("%s: %d rows, %v", name, len(rows), err)
		}
		if got := rows[0].hold(); got != want {
			t.Errorf("%s: hold %d, want %d", name, got, want)
		}
	}
}

// TestWordsOfOtherReleases: states and reasons that 22.05 does not have, and what nobody knows.
func TestWordsOfOtherReleases(t *testing.T) {
	node := []string{"n1"}
	for name, c := range map[string]struct {
		r     row
		state dispatch.State
		cause dispatch.Cause
	}{
		"its nodes are drained": {row{state: "PENDING", reason: "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"}, dispatch.StatePending,
			dispatch.CauseNodeUnavailable},
		"25.11 expedited requeue":       {row{state: "EXPEDITING", reason: "BeginTime"}, dispatch.StatePending, dispatch.CauseDelayed},
		"24.05 powering up":             {row{state: "POWER_UP_NODE", nodes: node}, dispatch.StatePending, dispatch.CauseStarting},
		"configuring":                   {row{state: "CONFIGURING", nodes: node}, dispatch.StatePending, dispatch.CauseStarting},
		"out of memory":                 {row{state: "OUT_OF_MEMORY", nodes: node, status: waitStatus{signal: 125}}, dispatch.StateFailed, dispatch.CauseOutOfMemory},
		"boot failure":                  {row{state: "BOOT_FAIL", nodes: node}, dispatch.StateFailed, dispatch.CauseLaunch},
		"signaling":                     {row{state: "SIGNALING", nodes: node}, dispatch.StateEnding, dispatch.CauseNone},
		"stage out":                     {row{state: "STAGE_OUT", nodes: node}, dispatch.StateEnding, dispatch.CauseNone},
		"resizing":                      {row{state: "RESIZING", nodes: node}, dispatch.StateRunning, dispatch.CauseNone},
		"stopped":                       {row{state: "STOPPED", nodes: node}, dispatch.StateSuspended, dispatch.CauseNone},
		"launch failed, held":           {row{state: "PENDING", reason: "launch failed requeued held"}, dispatch.StatePending, dispatch.CauseOperatorHeld},
		"reservation deleted":           {row{state: "RESV_DEL_HOLD", reason: "ReservationDeleted"}, dispatch.StatePending, dispatch.CauseOperatorHeld},
		"a limit of all jobs together":  {row{state: "PENDING", reason: "QOSGrpCpuLimit"}, dispatch.StatePending, dispatch.CauseCapacity},
		"a limit of the account's jobs": {row{state: "PENDING", reason: "AssocMaxJobsLimit"}, dispatch.StatePending, dispatch.CauseCapacity},
		"a limit of one job":            {row{state: "PENDING", reason: "QOSMaxCpuPerJobLimit"}, dispatch.StatePending, dispatch.CauseUnsatisfiable},
		"a limit of wall time":          {row{state: "PENDING", reason: "AssocMaxWallDurationPerJobLimit"}, dispatch.StatePending, dispatch.CauseUnsatisfiable},
		"a reason that nobody knows":    {row{state: "PENDING", reason: "MoonPhase"}, dispatch.StatePending, dispatch.CauseNone},
		"not looked at yet":             {row{state: "PENDING", reason: "None"}, dispatch.StatePending, dispatch.CauseNone},
		"rejected":                      {row{state: "FAILED", reason: "BadConstraints"}, dispatch.StateFailed, dispatch.CauseRejected},
		"a launch failure with no code": {row{state: "FAILED", reason: "JobLaunchFailure", nodes: node}, dispatch.StateFailed, dispatch.CauseLaunch},
		"failed, and nothing says why":  {row{state: "FAILED", reason: "None", nodes: node}, dispatch.StateFailed, dispatch.CauseNone},
		"revoked by a federation":       {row{state: "REVOKED"}, dispatch.StateUnknown, dispatch.CauseNone},
		"a state that nobody knows":     {row{state: "QUANTUM", nodes: node}, dispatch.StateUnknown, dispatch.CauseNone},
		"no state":                      {row{}, dispatch.StateUnknown, dispatch.CauseNone},
		"accounting says it runs":       {row{state: "RUNNING", nodes: node, history: true}, dispatch.StateUnknown, dispatch.CauseNone},
		"accounting says it waits":      {row{state: "PENDING", history: true}, dispatch.StateUnknown, dispatch.CauseNone},
		"accounting has a requeue last": {row{state: "REQUEUED", nodes: node, history: true}, dispatch.StateUnknown, dispatch.CauseNone},
	} {
		t.Run(name, func(t *testing.T) {
			if state, cause := judge(c.r, nobody); state != c.state || cause != c.cause {
				t.Errorf("got %s/%s, want %s/%s", state, cause, c.state, c.cause)
			}
		})
	}
}

// TestRefusalsInRecordings: how each command's failure is told, by what real commands said.
func TestRefusalsInRecordings(t *testing.T) {
	all := recordings(t)
	for name, c := range map[string]struct {
		changes bool
		want    error
	}{
		"errors-jobs/scontrol.release.ended":     {true, dispatch.ErrEnded},
		"errors-jobs/scontrol.begin.ended":       {true, dispatch.ErrEnded},
		"errors-jobs/scontrol.bit.ended":         {true, dispatch.ErrEnded},
		"errors-jobs/scontrol.requeue.ended":     {true, dispatch.ErrRefused},
		"errors-jobs/scontrol.begin.running":     {true, dispatch.ErrNotPending},
		"errors-jobs/scontrol.release.unknown":   {true, dispatch.ErrNotFound},
		"errors-jobs/scontrol.begin.unknown":     {true, dispatch.ErrNotFound},
		"errors-jobs/scontrol.begin.past":        {true, dispatch.ErrRefused},
		"errors-jobs/squeue.unknown":             {false, dispatch.ErrNotFound},
		"errors-jobs/sacct.field":                {false, dispatch.ErrUnavailable},
		"errors-jobs/scancel.others":             {true, dispatch.ErrDenied},
		"errors-jobs/scontrol.begin.others":      {true, dispatch.ErrDenied},
		"errors-jobs/scontrol.requeue.others":    {true, dispatch.ErrDenied},
		"errors-jobs/scontrol.release.admin":     {true, dispatch.ErrDenied},
		"errors-sbatch/sbatch.partition":         {true, dispatch.ErrRefused},
		"errors-sbatch/sbatch.memory":            {true, dispatch.ErrRefused},
		"errors-sbatch/sbatch.option":            {true, dispatch.ErrRefused},
		"errors-sbatch/sbatch.comment":           {true, dispatch.ErrRefused},
		"away-controller/squeue":                 {false, dispatch.ErrUnavailable},
		"away-controller/sinfo":                  {false, dispatch.ErrUnavailable},
		"away-controller/sbatch":                 {true, dispatch.ErrUnavailable},
		"away-controller/scancel":                {true, dispatch.ErrUnavailable},
		"away-controller/scontrol.update":        {true, dispatch.ErrOutcomeUnknown},
		"away-controller/scontrol.release":       {true, dispatch.ErrOutcomeUnknown},
		"away-controller-frozen/squeue":          {false, dispatch.ErrUnavailable},
		"away-controller-frozen/scontrol.update": {true, dispatch.ErrOutcomeUnknown},
		"away-controller-frozen/scancel":         {true, dispatch.ErrOutcomeUnknown},
		"away-accounting/sacct":                  {false, dispatch.ErrUnavailable},
		"away-munge/squeue":                      {false, dispatch.ErrUnavailable},
		"away-late-credential/scontrol.update":   {true, dispatch.ErrOutcomeUnknown},
		"away-conf/squeue":                       {false, dispatch.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			recording, answer, _ := strings.Cut(name, "/")
			a, ok := all[recording].Answer(answer)
			if !ok || a.Exit == 0 {
				t.Fatalf("there is no such failure: %+v", a)
			}
			if got := classify(strings.TrimSpace(a.Stderr), a.Exit, c.changes); got != c.want {
				t.Errorf("got %v, want %v for %q", got, c.want, a.Stderr)
			}
		})
	}
}

// TestConfigInRecordings: the settings of a real cluster, and of newer ones as their sources print them.
func TestConfigInRecordings(t *testing.T) {
	all := recordings(t)
	a, _ := all["list-config"].Answer("scontrol.config")
	c, err := parseConfig(a.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	ttl, ok := c.authTTL()
	if v, err := c.version(); v != 2205 || err != nil || !ok || ttl != 15*time.Second || c.asOf.IsZero() {
		t.Errorf("version %d, %v, ttl %v, %v, as of %v", v, err, ttl, ok, c.asOf)
	}
	for name, want := range map[string]time.Duration{"SlurmdTimeout": 10 * time.Second, "MessageTimeout": 10 * time.Second} {
		if got, err := c.seconds(name); err != nil || got != want {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
}

func TestConfigsOfOtherReleases(t *testing.T) {
	const common = "ClusterName = fir\nSlurmdTimeout = 300 sec\nMinJobAge = 300 sec\nMessageTimeout = 10 sec\n"
	for name, c := range map[string]struct {
		text    string
		version int
		ttl     time.Duration
		ok      bool
	}{
		"25.11 with auth/slurm":         {"AuthType = auth/slurm\nAuthInfo = use_client_ids\nSLURM_VERSION = 25.11.8\nCertgenType = (null)\n", 2511, time.Minute, true},
		"26.05 with auth/slurm and ttl": {"AuthType = auth/slurm\nAuthInfo = use_client_ids,ttl=20,cred_expire=90\nSLURM_VERSION = 26.05.4\n", 2605, 20 * time.Second, true},
		"23.02 with munge":              {"AuthType = auth/munge\nAuthInfo = (null)\nSLURM_VERSION = 23.02.0-0rc1\n", 2302, 300 * time.Second, true},
		"a development version":         {"AuthType = auth/munge\nAuthInfo = ttl=0\nSLURM_VERSION = 26.11.0-0pre1\n", 2611, 300 * time.Second, true},
		"jwt alone":                     {"AuthType = auth/jwt\nAuthInfo = ttl=20\nSLURM_VERSION = 25.05.1\n", 2505, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := parseConfig("Configuration data as of 1796066080\n" + common + c.text + "\nCgroup Support Configuration:\nConstrainCores          = no\nClusterName = other\n\nSlurmctld(primary) at a is UP\n")
			if err != nil {
				t.Fatal(err)
			}
			v, err := conf.version()
			ttl, ok := conf.authTTL()
			if v != c.version || err != nil || ttl != c.ttl || ok != c.ok || conf.values["ClusterName"] != "fir" {
				t.Errorf("version %d, %v, ttl %v, %v", v, err, ttl, ok)
			}
		})
	}
	for _, text := range []string{"", common, "Configuration data as of 1796066080\n" + common, "Configuration data as of yesterday\n" + common + "AuthType = a\nSLURM_VERSION = 1\n"} {
		if c, err := parseConfig(text); err == nil {
			t.Errorf("%q is read as %+v", text, c)
		}
	}
}

func TestExpandNodes(t *testing.T) {
	for list, want := range map[string][]string{
		"":                         nil,
		"n1":                       {"n1"},
		"n1,n2":                    {"n1", "n2"},
		"n[1-3]":                   {"n1", "n2", "n3"},
		"n[08-11],gpu1":            {"n08", "n09", "n10", "n11", "gpu1"},
		"n[1,3-4,07]":              {"n1", "n3", "n4", "n07"},
		"r[1-2]n[1-2]":             {"r1n1", "r1n2", "r2n1", "r2n2"},
		"r[1-2]n[1-2]-ib,x[3]tail": {"r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib", "x3tail"},
	} {
		if got, err := expandNodes(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"n[", "n]", "n[1", "n[]", "n[a-b]", "n[3-1]", "n[1-70000]", "n[1-300]r[1-300]", "n[1-9999999999]", ",", "n[1-2],", "n[-1]", "n[1--2]", "n[[1]]"} {
		if got, err := expandNodes(list); err == nil {
			t.Errorf("%q is read as %d names", list, len(got))
		}
	}
}

// TestMarksComeBack: job, name and note are read back exactly from what Slurm and its databases keep.
func TestMarksComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ref := dispatch.Ref{Job: dispatch.JobID(rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._/:-]{0,30}`).Draw(t, "job")), Submission: 1, Attempt: 2}
		if ref.Check() != nil {
			t.Skip("no job's id")
		}
		name := rapid.StringN(1, 40, 120).Draw(t, "name")
		note := rapid.StringN(0, 40, 120).Draw(t, "note")
		comment, shown, err := mark(ref, name, note)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{comment, shown} {
			for _, c := range []byte(text) {
				if c < ' ' || c > '~' {
					t.Fatalf("%q holds a byte that a database may change", text)
				}
			}
		}
		if strings.ContainsAny(shown, `"'`) || len(shown) > nameLimit || len(comment) > commentLimit {
			t.Fatalf("the name %q or the comment %q is not kept", shown, comment)
		}
		got, gotName, gotNote := unmark(comment, shown)
		if got != ref || gotName != name || gotNote != note {
			t.Fatalf("%v, %q, %q come back as %v, %q, %q", ref, name, note, got, gotName, gotNote)
		}
	})
}

// TestRowsCannotBeForged: whatever stands in names and comments, rows stay what they are.
func TestRowsCannotBeForged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"@x@", "@q", "q@", "#", "#x#\n", "\n", "1@q", "\n7@x@RUNNING@x@", "|"}))
		type job struct{ name, comment string }
		jobs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) job { return job{text.Draw(t, "name"), text.Draw(t, "comment")} }), 0, 4).Draw(t, "jobs")
		var out, past strings.Builder
		sep := separator("nonce")
		for i, j := range jobs {
			fmt.Fprint(&out, strings.Join([]string{strconv.Itoa(i + 1), "PENDING", "None", "1796066080", "N/A", "N/A", "N/A", "0", "0", "", j.name, j.comment}, sep)+rowEnd("nonce")+"\n")
			fmt.Fprint(&past, strings.Join([]string{strconv.Itoa(i + 1), "CANCELLED by 7", "0:0", "1796066080", "Unknown", "None", "1796066081", "None assigned", j.name, j.comment}, sep)+sep+"\n")
		}
		rows, err := parseQueue(out.String(), "nonce")
		old, err2 := parseHistory(past.String(), "nonce")
		if err != nil || err2 != nil || len(rows) != len(jobs) || len(old) != len(jobs) {
			t.Fatalf("%d and %d rows of %d, %v, %v", len(rows), len(old), len(jobs), err, err2)
		}
		for i, j := range jobs {
			if rows[i].id != strconv.Itoa(i+1) || rows[i].name != j.name || rows[i].comment != known(j.comment) || old[i].id != rows[i].id || old[i].comment != j.comment {
				t.Fatalf("row %d is %+v, %+v", i, rows[i], old[i])
			}
		}
	})
}

func TestLastObject(t *testing.T) {
	at := func(n int64, state string) row {
		return row{id: "7", state: state, submit: time.Unix(n, 0), start: time.Unix(n, 0), end: time.Unix(n+1, 0), nodes: []string{"n1"}}
	}
	for name, c := range map[string]struct {
		rows     []row
		submit   int64
		restarts uint32
	}{
		"one":                          {[]row{at(1, "COMPLETED")}, 1, 0},
		"requeued twice":               {[]row{at(1, "REQUEUED"), at(2, "REQUEUED"), at(3, "FAILED")}, 3, 2},
		"another had the id before":    {[]row{at(1, "COMPLETED"), at(2, "FAILED")}, 2, 0},
		"another, and then a requeue":  {[]row{at(1, "REQUEUED"), at(2, "COMPLETED"), at(3, "REQUEUED"), at(4, "CANCELLED")}, 4, 1},
		"the requeue's next is unseen": {[]row{at(1, "COMPLETED"), at(2, "REQUEUED")}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, pasts := lastObject(c.rows)
			if r.submit.Unix() != c.submit || r.restarts != c.restarts || len(pasts) != int(c.restarts) {
				t.Errorf("got %+v, %+v", r, pasts)
			}
			for i, p := range pasts {
				if p.Execution != dispatch.Execution(i) || p.Cause != dispatch.CauseReplaced || !p.State.Ended() {
					t.Errorf("execution %d is %+v", i, p)
				}
			}
		})
	}
}

func FuzzParseQueue(f *testing.F) {
	f.Add("1@q@PENDING@q@None@q@1796066080@q@N/A@q@N/A@q@N/A@q@0@q@0@q@n[1-3]@q@name@q@dispatch/1 job=a sub=1 att=1#q#\n")
	f.Add("1@q@FAILED@q@x@q@1@q@1@q@1@q@1@q@4021@q@3@q@@q@@q@(null)#q#\n")
	f.Fuzz(func(t *testing.T, out string) {
		rows, err := parseQueue(out, "q")
		if err != nil && !strings.HasPrefix(err.Error(), "cannot read squeue's answer") {
			t.Error(err)
		}
		for _, r := range rows {
			if err == nil && !isNumber(r.id) {
				t.Errorf("%+v", r)
			}
			if o := observe(r, nobody); o.Hold >= dispatch.EpochBound || o.State.Ended() && o.Hold != 0 {
				t.Errorf("%+v", o)
			}
		}
	})
}

func FuzzParseHistory(f *testing.F) {
	f.Add("1@q@CANCELLED by 7@q@0:0@q@1796066080@q@Unknown@q@None@q@1796066081@q@None assigned@q@n@q@c\nd@q@\n")
	f.Add("1@q@REQUEUED@q@0:0@q@1@q@1@q@1@q@2@q@n1@q@n@q@@q@\n1@q@FAILED@q@3:0@q@1@q@1@q@1@q@2@q@n1@q@n@q@@q@\n")
	f.Fuzz(func(t *testing.T, out string) {
		rows, err := parseHistory(out, "q")
		if err == nil && len(rows) > 0 {
			if r, pasts := lastObject(rows); int(r.restarts) != len(pasts) {
				t.Errorf("%+v, %+v", r, pasts)
			}
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	f.Add("Configuration data as of 1796066080\nClusterName = a\nSLURM_VERSION = 22.05.8\nAuthType = auth/munge\nAuthInfo = ttl=5\nSlurmdTimeout = 1 sec\nMinJobAge = 1 sec\nMessageTimeout = 1 sec\n")
	f.Fuzz(func(t *testing.T, out string) {
		c, err := parseConfig(out)
		if err != nil {
			return
		}
		if d, ok := c.authTTL(); ok && d <= 0 {
			t.Errorf("ttl %v", d)
		}
		_, _ = c.version()
		_, _ = declare(c, dispatch.Yes, time.Second, true, 0, 0)
	})
}

func FuzzSplitClocks(f *testing.F) {
	f.Add("1796066080.123456789\nx\n1796066081.000000000\n")
	f.Fuzz(func(t *testing.T, out string) {
		before, after, text, err := splitClocks(out)
		if err == nil && (before.Unix() < 0 || after.Unix() < 0 || len(text) > len(out)) {
			t.Errorf("%v, %v, %q", before, after, text)
		}
	})
}

func FuzzParseSubmitted(f *testing.F) {
	for _, s := range []string{"12\n", "12;fir\n", "", "sbatch: hello\n12\n", "0\n", "12;a;b\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, out string) {
		id, err := parseSubmitted(out)
		if _, ok := numberOf(id); err == nil && !ok {
			t.Errorf("%q is read as %q", out, id)
		}
	})
}

func FuzzParseListing(f *testing.F) {
	f.Add("12 7-0.out\n0 7-1.out\n3 7-0.err\n")
	f.Fuzz(func(t *testing.T, out string) {
		files, there, err := parseListing(out, dispatch.OutputRequest{Object: "7"})
		if err == nil && len(files) > 0 && !there {
			t.Error("files of nothing")
		}
		for _, file := range files {
			if strings.ContainsAny(file.name, "/ ") || file.size < 0 {
				t.Errorf("%+v", file)
			}
		}
	})
}

func FuzzExpandNodes(f *testing.F) {
	f.Add("r[1-2]n[1-9],x")
	f.Fuzz(func(t *testing.T, list string) {
		if names, err := expandNodes(list); err == nil && len(names) > nodesLimit {
			t.Errorf("%d names", len(names))
		}
	})
}

func FuzzUnmark(f *testing.F) {
	f.Add("dispatch/1 job=a sub=1 att=1 note=~Gr%C3%B6 x%", "name")
	f.Fuzz(func(t *testing.T, comment, shown string) {
		if ref, _, _ := unmark(comment, shown); ref != (dispatch.Ref{}) && ref.Check() != nil {
			t.Errorf("%v", ref)
		}
	})
}

func FuzzParseProbed(f *testing.F) {
	f.Add([]byte(`{"format":1,"identity":{},"at":"2026-01-01T00:00:00Z","skewNs":1,"hold":{"answer":"yes","source":"probed"},"accountingHistory":{"answer":"no","source":"probed"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := parseProbed(data); err == nil && (p.Hold.Source != dispatch.Probed || p.Skew < 0) {
			t.Errorf("%+v", p)
		}
	})
}
