package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
)

// hands is a clock that only Sleep moves.
type hands struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hands) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hands) Sleep(ctx context.Context, d time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	return ctx.Err()
}

// fakeJob is a job as the fake's controller keeps it.
type fakeJob struct {
	id, name, comment         string
	state, reason             string
	submit, eligible, ends    int64
	start                     int64
	status, restarts          int
	nodes                     string
	gate, requeue, noComments bool
}

// fakeSlurm answers the commands that the adapter sends, in the words of 22.05. What a test wants otherwise it puts into answer, which is asked
// first: ok is false for what it leaves alone.
type fakeSlurm struct {
	mu     sync.Mutex
	clock  *hands
	ahead  time.Duration // of the controller's clock
	config map[string]string
	user   string
	jobs   map[string]*fakeJob
	past   []*fakeJob // known to accounting only
	dead   []string   // nodes
	next   int
	calls  []string
	answer func(line string, c transport.Command) (r transport.Result, err error, ok bool)
}

func newFake() *fakeSlurm {
	return &fakeSlurm{clock: &hands{now: time.Unix(1_796_000_000, 400_000_000)}, user: "alice", jobs: map[string]*fakeJob{}, next: 100, config: map[string]string{
		"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStoreFlags": "job_comment", "AuthInfo": "(null)", "AuthType": "auth/munge",
		"ClusterName": "fir", "KillWait": "30 sec", "MessageTimeout": "10 sec", "MinJobAge": "300 sec", "SLURM_VERSION": "22.05.8", "SlurmctldHost[0]": "ctl",
		"SlurmdTimeout": "300 sec",
	}}
}

func (f *fakeSlurm) Slack() time.Duration { return 0 }

func exit(code int, out, said string) transport.Result {
	return transport.Result{Stdout: []byte(out), Stderr: []byte(said), Exit: code, Started: true, Dead: true}
}

func (f *fakeSlurm) Run(ctx context.Context, c transport.Command) (transport.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return transport.Result{Exit: -1, Dead: true}, err
	}
	line := strings.Join(c.Argv, " ")
	f.calls = append(f.calls, line)
	if f.answer != nil {
		if r, err, ok := f.answer(line, c); ok {
			return r, err
		}
	}
	switch c.Argv[0] {
	case "sh":
		return f.shell(line), nil
	case "sbatch":
		return f.sbatch(c), nil
	case "squeue":
		return f.squeue(c.Argv), nil
	case "sacct":
		return f.sacct(c.Argv), nil
	case "scontrol":
		return f.scontrol(c.Argv), nil
	case "scancel":
		if j := f.jobs[c.Argv[1]]; j != nil && j.ends == 0 {
			j.state, j.ends = "CANCELLED", f.now()
			if j.start > 0 {
				j.status = 15
			}
		}
		return exit(0, "", ""), nil
	case "sinfo":
		return exit(0, strings.Join(f.dead, "\n")+"\n", ""), nil
	}
	return exit(127, "", c.Argv[0]+": command not found"), nil
}

func (f *fakeSlurm) now() int64 { return f.clock.Now().Add(f.ahead).Unix() }

func (f *fakeSlurm) shell(line string) transport.Result {
	switch {
	case strings.Contains(line, "scontrol show config"):
		var b strings.Builder
		at := f.clock.Now()
		stamp := fmt.Sprintf("%d.%09d\n", at.Unix(), at.Nanosecond())
		fmt.Fprintf(&b, "%sConfiguration data as of %d\n", stamp, f.now())
		for _, k := range slices.Sorted(maps.Keys(f.config)) {
			fmt.Fprintf(&b, "%-23s = %s\n", k, f.config[k])
		}
		b.WriteString("\nSlurmctld(primary) at ctl is UP\n" + stamp)
		return exit(0, b.String(), "")
	case strings.Contains(line, "id -un"):
		return exit(0, f.user+"\n/home/"+f.user+"\n", "")
	case strings.Contains(line, `cd -- "$1"`):
		return exit(44, "", "")
	}
	return exit(2, "", "sh: what?")
}

func (f *fakeSlurm) sbatch(c transport.Command) transport.Result {
	f.next++
	j := &fakeJob{id: strconv.Itoa(f.next), submit: f.now(), state: "PENDING", reason: "JobHeldUser", gate: true}
	for _, a := range c.Argv {
		if v, ok := strings.CutPrefix(a, "--comment="); ok {
			j.comment = v
		}
		if v, ok := strings.CutPrefix(a, "--job-name="); ok {
			j.name = v
		}
	}
	f.jobs[j.id] = j
	return exit(0, j.id+"\n", "")
}

func stamp(n int64) string {
	if n == 0 {
		return "N/A"
	}
	return strconv.FormatInt(n, 10)
}

func after(argv []string, option string) string {
	for i, a := range argv {
		if a == option && i+1 < len(argv) {
			return argv[i+1]
		}
	}
	return ""
}

func (f *fakeSlurm) squeue(argv []string) transport.Result {
	format := after(argv, "-O")
	sep := format[len("JobID:0"):strings.Index(format, ",")]
	end := strings.ReplaceAll(sep, "@", "#")
	var rows strings.Builder
	ids := slices.Sorted(maps.Keys(f.jobs))
	if list := after(argv, "-j"); list != "" {
		ids = strings.Split(list, ",")
		if len(ids) == 1 && f.jobs[ids[0]] == nil {
			return exit(1, "", "slurm_load_jobs error: Invalid job id specified")
		}
	}
	for _, id := range ids {
		if j := f.jobs[id]; j != nil {
			rows.WriteString(j.row(sep, end))
		}
	}
	return exit(0, rows.String(), "")
}

func (j *fakeJob) row(sep, end string) string {
	comment := j.comment
	if comment == "" {
		comment = "(null)"
	}
	return strings.Join([]string{j.id, j.state, j.reason, stamp(j.submit), stamp(j.eligible), stamp(j.start), stamp(j.ends), strconv.Itoa(j.status),
		strconv.Itoa(j.restarts), j.nodes, j.name, comment}, sep) + end + "\n"
}

func (f *fakeSlurm) sacct(argv []string) transport.Result {
	var sep string
	for _, a := range argv {
		if v, ok := strings.CutPrefix(a, "--delimiter="); ok {
			sep = v
		}
	}
	var rows strings.Builder
	all := slices.Clone(f.past)
	for _, id := range slices.Sorted(maps.Keys(f.jobs)) {
		if f.jobs[id].ends > 0 {
			all = append(all, f.jobs[id])
		}
	}
	for _, j := range all {
		if id := after(argv, "-j"); id != "" && id != j.id {
			continue
		}
		nodes, comment := j.nodes, j.comment
		if nodes == "" {
			nodes = "None assigned"
		}
		if !strings.Contains(f.config["AccountingStoreFlags"], "job_comment") {
			comment = ""
		}
		rows.WriteString(strings.Join([]string{j.id, j.state, fmt.Sprintf("%d:%d", j.status>>8, j.status&0x7f), stamp(j.submit), stamp(j.eligible), stamp(j.start),
			stamp(j.ends), nodes, j.name, comment}, sep) + sep + "\n")
	}
	return exit(0, rows.String(), "")
}

func (f *fakeSlurm) scontrol(argv []string) transport.Result {
	switch argv[1] {
	case "show":
		var b strings.Builder
		fmt.Fprintf(&b, "Configuration data as of %d\n", f.now())
		for _, k := range slices.Sorted(maps.Keys(f.config)) {
			fmt.Fprintf(&b, "%-23s = %s\n", k, f.config[k])
		}
		return exit(0, b.String(), "")
	case "ping":
		return exit(0, "Slurmctld(primary) at ctl is UP\n", "")
	case "update":
		return f.update(argv)
	}
	j := f.jobs[argv[2]]
	switch {
	case j == nil:
		return exit(1, "", "Invalid job id specified for job "+argv[2])
	case j.ends > 0:
		return exit(1, "", "Job has already finished for job "+argv[2])
	case argv[1] == "release":
		j.gate, j.reason = false, "None"
	case argv[1] == "requeue" && !j.requeue:
		return exit(1, "", "Requested operation is presently disabled for job "+argv[2])
	case argv[1] == "requeue" && j.state == "PENDING":
		return exit(1, "", "Job is pending execution for job "+argv[2])
	case argv[1] == "requeue":
		old := *j
		old.state, old.ends = "REQUEUED", f.now()
		f.past = append(f.past, &old)
		j.state, j.reason, j.restarts, j.submit, j.eligible, j.start, j.nodes = "PENDING", "BeginTime", j.restarts+1, f.now(), f.now()+121, 0, ""
	}
	return exit(0, "", "")
}

func (f *fakeSlurm) update(argv []string) transport.Result {
	id := strings.TrimPrefix(argv[2], "JobId=")
	j := f.jobs[id]
	switch {
	case j == nil:
		return exit(1, "", "slurm_suspend error: Invalid job id specified")
	case j.ends > 0:
		return exit(1, "", "Job has already finished for job "+id)
	}
	for _, a := range argv[3:] {
		at, is := strings.CutPrefix(a, "StartTime=")
		switch {
		case is && j.state != "PENDING":
			return exit(1, "", "Job is no longer pending execution for job "+id)
		case at == "now" && is:
			j.eligible = f.now()
		case is:
			n, err := strconv.ParseInt(strings.TrimPrefix(at, "uts"), 10, 64)
			if err != nil {
				return exit(1, "", "Invalid time specification")
			}
			j.eligible = n
		case a == "Requeue=1" || a == "Requeue=0":
			j.requeue = a == "Requeue=1"
		}
	}
	return exit(0, "", "")
}

// start has a job run.
func (f *fakeSlurm) start(id dispatch.ObjectID, nodes string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[string(id)]
	j.state, j.reason, j.start, j.eligible, j.nodes, j.gate = "RUNNING", "None", f.now(), f.now(), nodes, false
}

func (f *fakeSlurm) options() slurm.Options { return slurm.Options{Runner: f, Clock: f.clock} }

// new opens the fake.
func (f *fakeSlurm) new(t *testing.T, o slurm.Options) *slurm.Backend {
	t.Helper()
	b, err := slurm.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// on answers lines that begin so.
func on(prefix string, r transport.Result, err error) func(string, transport.Command) (transport.Result, error, bool) {
	return func(line string, _ transport.Command) (transport.Result, error, bool) {
		return r, err, strings.HasPrefix(line, prefix)
	}
}

func hasKind(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(k error) bool { return errors.Is(err, k) })
}
