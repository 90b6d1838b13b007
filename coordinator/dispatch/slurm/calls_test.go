package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
)

func work() dispatch.Spec {
	return dispatch.Spec{Ref: dispatch.Ref{Job: "org/job", Submission: 1, Attempt: 1}, Script: "#!/bin/sh\nexit 0\n", Nodes: 1}
}

// TestSubmitArguments: what each part of a spec becomes, and what is always said.
func TestSubmitArguments(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	var sent transport.Command
	f.answer = func(line string, c transport.Command) (transport.Result, error, bool) {
		if c.Argv[0] == "sbatch" {
			sent = c
		}
		return transport.Result{}, nil, false
	}
	always := []string{"sbatch", "--parsable", "--hold", "--no-requeue", "--export=ALL", "--output=/dev/null"}
	for name, c := range map[string]struct {
		change func(*dispatch.Spec)
		want   []string
	}{
		"nothing":   {func(*dispatch.Spec) {}, []string{"--job-name=org/job", "--comment=dispatch/1 job=org/job sub=1 att=1", "--chdir=/home/alice", "--nodes=1", "--ntasks-per-node=1"}},
		"a name":    {func(s *dispatch.Spec) { s.Name = "train, fast" }, []string{"--job-name=train, fast", "--comment=dispatch/1 job=org/job sub=1 att=1"}},
		"odd names": {func(s *dispatch.Spec) { s.Name = "Größe \"1\"\n" }, []string{"--job-name=Gr__e _1__", "--comment=dispatch/1 job=org/job sub=1 att=1 note=~Gr%C3%B6%C3%9Fe%20\"1\"%0A "}},
		"a note":    {func(s *dispatch.Spec) { s.Note = "100% ~ é" }, []string{"--comment=dispatch/1 job=org/job sub=1 att=1 note=100%25 %7E %C3%A9"}},
		"sizes": {func(s *dispatch.Spec) {
			s.Nodes, s.ProcsPerNode, s.Cores, s.Memory, s.GPUs, s.Exclusive = 3, 4, 10, 1<<30+1, 2, true
		}, []string{"--nodes=3", "--ntasks-per-node=4", "--cpus-per-task=3", "--mem=1025M", "--gres=gpu:2", "--exclusive"}},
		"walltime": {func(s *dispatch.Spec) { s.Walltime = 26*time.Hour + 3*time.Minute + 500*time.Millisecond }, []string{"--time=26:03:01"}},
		"places": {func(s *dispatch.Spec) { s.Queue, s.Account, s.QoS, s.Constraint = "gpu", "acc", "high", "a100&ib" },
			[]string{"--partition=gpu", "--account=acc", "--qos=high", "--constraint=a100&ib"}},
		"directory": {func(s *dispatch.Spec) { s.Workdir = "/scratch/a b" }, []string{"--chdir=/scratch/a b"}},
		"extra":     {func(s *dispatch.Spec) { s.Extra = []string{"--signal=B:TERM@30", "-Lmatlab:1", "--licenses=x"} }, []string{"--signal=B:TERM@30", "-Lmatlab:1", "--licenses=x"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := work()
			c.change(&spec)
			if _, err := b.Submit(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			for _, want := range slices.Concat(always, c.want) {
				if !slices.Contains(sent.Argv, want) {
					t.Errorf("%q is not among %q", want, sent.Argv)
				}
			}
			if len(sent.Env) > 0 || !slices.Contains(sent.Keep, "SLURM_CONF") || !strings.Contains(string(sent.Stdin), "\nexit 0\n") {
				t.Errorf("sent with %v, %v, %q", sent.Env, sent.Keep, sent.Stdin)
			}
		})
	}
}

// TestSubmitRefuses: before anything is sent.
func TestSubmitRefuses(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	f.calls = nil
	extra := func(args ...string) func(*dispatch.Spec) { return func(s *dispatch.Spec) { s.Extra = args } }
	for name, c := range map[string]struct {
		change func(*dispatch.Spec)
		says   string
	}{
		"an image":                 {func(s *dispatch.Spec) { s.Image = &dispatch.Image{Reference: "r/x:1"} }, "images are not mapped"},
		"a comment too long":       {func(s *dispatch.Spec) { s.Note = strings.Repeat("ü", 400) }, "Slurm takes 1024"},
		"arguments too long":       {extra("--constraint=" + strings.Repeat("x", 30_000)), "its arguments need"},
		"a script's name":          {extra("job.sh"), "is no option"},
		"an option and its value":  {extra("--constraint", "fast"), `"fast" is no option`},
		"requeue":                  {extra("--requeue"), "not for a spec"},
		"an abbreviation":          {extra("--requ"), "not for a spec"},
		"an array":                 {extra("--array=1-9"), "not for a spec"},
		"an array, short":          {extra("-a1-9"), "is no option"},
		"an array behind a flag":   {extra("-sa1-9"), "is no option"},
		"several jobs":             {extra(":"), "is no option"},
		"another cluster":          {extra("--clusters=b"), "not for a spec"},
		"waiting":                  {extra("--wait"), "not for a spec"},
		"another comment":          {extra("--comment=x"), "not for a spec"},
		"another output":           {extra("--output=x"), "not for a spec"},
		"an end of options":        {extra("--"), "is no option"},
		"a line's end":             {extra("--constraint=a\nb"), "line's end"},
		"nothing":                  {extra(""), "is no option"},
		"a script and much to set": {func(s *dispatch.Spec) { s.Env = manyVariables() }, "script and variables have"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := work()
			c.change(&spec)
			if _, err := b.Submit(t.Context(), spec); !errors.Is(err, dispatch.ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	if len(f.calls) > 0 {
		t.Errorf("it sent %q", f.calls)
	}
}

func manyVariables() map[string]string {
	env := map[string]string{}
	for i := range 100 {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("v", 60_000)
	}
	return env
}

// TestSubmitOutcomes: what its caller learns from each way in which sbatch can end.
func TestSubmitOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		r    transport.Result
		err  error
		want error
	}{
		"a number":                   {exit(0, "7\n", ""), nil, nil},
		"a number and a cluster":     {exit(0, "7;fir\n", "sbatch: info: hello"), nil, nil},
		"no number":                  {exit(0, "Submitted\n", ""), nil, dispatch.ErrOutcomeUnknown},
		"nothing":                    {exit(0, "", ""), nil, dispatch.ErrOutcomeUnknown},
		"refused":                    {exit(1, "", "sbatch: error: Batch job submission failed: Invalid feature specification"), nil, dispatch.ErrRefused},
		"a socket that timed out":    {exit(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"), nil, dispatch.ErrOutcomeUnknown},
		"nobody listens":             {exit(1, "", "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"), nil, dispatch.ErrUnavailable},
		"killed":                     {exit(137, "", ""), nil, dispatch.ErrOutcomeUnknown},
		"killed at its deadline":     {transport.Result{Exit: -1, Started: true, Dead: true}, context.DeadlineExceeded, dispatch.ErrOutcomeUnknown},
		"not started":                {transport.Result{Exit: -1, Dead: true}, errors.New("no route to host"), dispatch.ErrUnavailable},
		"the login node's door shut": {transport.Result{Exit: -1, Dead: true}, coordinator.Errorf(coordinator.ErrDenied, "connect", "no"), dispatch.ErrDenied},
		"no sbatch":                  {exit(127, "", "env: 'sbatch': No such file or directory"), nil, dispatch.ErrUnavailable},
		"an answer without end":      {transport.Result{Stdout: []byte("7"), Truncated: true, Started: true, Dead: true}, nil, dispatch.ErrOutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			b := f.new(t, f.options())
			f.answer = on("sbatch", c.r, c.err)
			id, err := b.Submit(t.Context(), work())
			if !errors.Is(err, c.want) || c.want == nil && id != "7" {
				t.Errorf("got %q, %v, want %v", id, err, c.want)
			}
		})
	}
}

// TestHoldAndRelease: a hold's life as the controller sees it.
func TestHoldAndRelease(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	id, err := b.Submit(t.Context(), work())
	if err != nil {
		t.Fatal(err)
	}
	j := f.jobs[string(id)]
	steps := []struct {
		name string
		do   func() error
		want error
		at   int64 // of eligibility after it, from the submission
		sent string
	}{
		{"place 5", func() error { return b.Hold(t.Context(), id, 5) }, nil, 315_576_005, fmt.Sprintf("scontrol update JobId=%s StartTime=uts%d", id, j.submit+315_576_005)},
		{"place it again", func() error { return b.Hold(t.Context(), id, 5) }, nil, 315_576_005, ""},
		{"place an earlier one", func() error { return b.Hold(t.Context(), id, 4) }, dispatch.ErrStale, 315_576_005, ""},
		{"place a later one", func() error { return b.Hold(t.Context(), id, 999_999) }, nil, 316_575_999, fmt.Sprintf("scontrol update JobId=%s StartTime=uts%d", id, j.submit+316_575_999)},
		{"release another", func() error { return b.Release(t.Context(), id, 5) }, dispatch.ErrStale, 316_575_999, ""},
		{"release it", func() error { return b.Release(t.Context(), id, 999_999) }, nil, 0, fmt.Sprintf("scontrol update JobId=%s StartTime=now ResetAccrueTime", id)},
		{"release it again", func() error { return b.Release(t.Context(), id, 999_999) }, dispatch.ErrStale, 0, ""},
		{"no instance", func() error { return b.Hold(t.Context(), id, 0) }, dispatch.ErrRefused, 0, ""},
		{"beyond the bound", func() error { return b.Hold(t.Context(), id, dispatch.EpochBound) }, dispatch.ErrRefused, 0, ""},
		{"an unknown job", func() error { return b.Hold(t.Context(), "4711", 1) }, dispatch.ErrNotFound, 0, ""},
	}
	for _, s := range steps {
		f.calls = nil
		if err := s.do(); !errors.Is(err, s.want) {
			t.Errorf("%s: got %v, want %v", s.name, err, s.want)
		}
		if j.eligible-j.submit != s.at {
			t.Errorf("%s: eligible %d s after the submission, want %d", s.name, j.eligible-j.submit, s.at)
		}
		if last := f.calls; s.sent != "" && (len(last) == 0 || last[len(last)-1] != s.sent) || s.sent == "" && slices.ContainsFunc(last, func(l string) bool { return strings.HasPrefix(l, "scontrol") }) {
			t.Errorf("%s: sent %q, want %q", s.name, last, s.sent)
		}
	}
	f.start(id, "n1")
	if err := b.Hold(t.Context(), id, 1); !errors.Is(err, dispatch.ErrNotPending) {
		t.Errorf("a running one: %v", err)
	}
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context(), id, 1); !errors.Is(err, dispatch.ErrEnded) {
		t.Errorf("one that is over: %v", err)
	}
}

// TestRequeueBreaksOff: after each step, what the caller hears and whether Slurm could restart the job by itself.
func TestRequeueBreaksOff(t *testing.T) {
	lost := transport.Result{Exit: -1, Started: true, Dead: true}
	for name, c := range map[string]struct {
		line    string // whose answer is lost
		r       transport.Result
		err     error
		want    error
		allowed bool // to requeue, afterwards
	}{
		"nowhere":                          {"none", lost, nil, nil, false},
		"step 1, lost":                     {"Requeue=1", lost, context.DeadlineExceeded, dispatch.ErrOutcomeUnknown, false},
		"step 1, refused":                  {"Requeue=1", exit(1, "", "Access/permission denied for job 102"), nil, dispatch.ErrDenied, false},
		"step 2, lost":                     {"scontrol requeue", lost, context.DeadlineExceeded, dispatch.ErrOutcomeUnknown, true},
		"step 2, refused":                  {"scontrol requeue", exit(1, "", "Requested operation is presently disabled for job 102"), nil, dispatch.ErrRefused, false},
		"step 2, nobody listens":           {"scontrol requeue", exit(1, "", "Unable to contact slurm controller (connect failure)"), nil, dispatch.ErrUnavailable, false},
		"step 3, lost":                     {"Requeue=0", lost, context.DeadlineExceeded, dispatch.ErrOutcomeUnknown, true},
		"step 3, nobody listens any more":  {"Requeue=0", exit(1, "", "Unable to contact slurm controller (connect failure)"), nil, dispatch.ErrOutcomeUnknown, true},
		"step 3, the job is over by then":  {"Requeue=0", exit(1, "", "Job has already finished for job 102"), nil, nil, true},
		"step 3, refused for other causes": {"Requeue=0", exit(1, "", "Access/permission denied for job 102"), nil, dispatch.ErrOutcomeUnknown, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			b := f.new(t, f.options())
			id, err := b.Submit(t.Context(), work())
			if err != nil {
				t.Fatal(err)
			}
			f.start(id, "n1")
			f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
				return c.r, c.err, strings.Contains(line, c.line)
			}
			if err := b.Requeue(t.Context(), id); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			f.answer = nil
			if j := f.jobs[string(id)]; j.requeue != c.allowed {
				t.Errorf("requeueing is allowed: %v", j.requeue)
			}
			if err := b.RestoreRequeueBit(t.Context(), id); err != nil || f.jobs[string(id)].requeue {
				t.Errorf("the bit stays: %v", err)
			}
		})
	}
}

// TestRequeued: the next execution is seen from the moment of the requeue, the one before as long as accounting tells.
func TestRequeued(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	id, _ := b.Submit(t.Context(), work())
	f.start(id, "n[1-2]")
	f.clock.Sleep(t.Context(), time.Minute)
	if err := b.Requeue(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	o, err := b.Inspect(t.Context(), id)
	if err != nil || o.State != dispatch.StatePending || o.Cause != dispatch.CauseDelayed || o.Execution != 1 || len(o.Nodes) > 0 || !o.Started.IsZero() || len(o.Earlier) != 1 {
		t.Fatalf("got %+v, %v", o, err)
	}
	if p := o.Earlier[0]; p.Execution != 0 || p.Cause != dispatch.CauseReplaced || !p.State.Ended() || !slices.Equal(p.Nodes, []string{"n1", "n2"}) || p.Ended.Sub(p.Started) != time.Minute {
		t.Errorf("the first execution is %+v", p)
	}
	found, err := b.Find(t.Context(), dispatch.Ref{Job: "org/"})
	if err != nil || len(found) != 1 || len(found[0].Earlier) != 1 || found[0].Execution != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := b.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := b.Requeue(t.Context(), id); !errors.Is(err, dispatch.ErrEnded) || f.jobs[string(id)].requeue {
		t.Errorf("what is over is requeued: %v", err)
	}
	f.past, f.jobs = append(f.past, f.jobs[string(id)]), map[string]*fakeJob{}
	if o, err := b.Inspect(t.Context(), id); err != nil || o.State != dispatch.StateCancelled || o.Execution != 1 || len(o.Earlier) != 1 {
		t.Errorf("from accounting alone: %+v, %v", o, err)
	}
}

// TestFindReadsBoth: squeue for what it knows, accounting for the rest, each once.
func TestFindReadsBoth(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	add := func(id, state string, sub uint32, ends int64, past bool) {
		j := &fakeJob{id: id, state: state, submit: f.now() - 100 + int64(sub), ends: ends, comment: dispatch.Ref{Job: "a", Submission: sub, Attempt: 1}.Mark("")}
		if past {
			f.past = append(f.past, j)
		} else {
			f.jobs[id] = j
		}
	}
	add("30", "PENDING", 3, 0, false)
	add("20", "CANCELLED", 2, f.now(), false) // in both
	add("10", "CANCELLED", 1, f.now(), true)
	f.past = append(f.past, &fakeJob{id: "30", state: "FAILED", submit: f.now() - 9_000_000, start: 1, ends: 1, nodes: "n1", comment: dispatch.Ref{Job: "b", Submission: 1, Attempt: 1}.Mark("")})
	got, err := b.Find(t.Context(), dispatch.Ref{Job: "a"})
	var ids []string
	for _, o := range got {
		ids = append(ids, string(o.Object)+"/"+o.State.String())
	}
	if err != nil || !slices.Equal(ids, []string{"10/cancelled", "20/cancelled", "30/pending"}) {
		t.Errorf("found %v, %v", ids, err)
	}
	// The number 30 was another job's once.
	if got, err := b.Find(t.Context(), dispatch.Ref{Job: "b"}); err != nil || len(got) != 1 || got[0].State != dispatch.StateFailed {
		t.Errorf("found %+v, %v", got, err)
	}
	f.answer = on("sacct", exit(1, "", "sacct: error: Problem talking to the database: Connection refused"), nil)
	if got, err := b.Find(t.Context(), dispatch.Ref{Job: "a"}); !errors.Is(err, dispatch.ErrUnavailable) || len(got) > 0 {
		t.Errorf("with half of the answer: %v, %v", got, err)
	}
}

// TestFindManyAsksOnce: one squeue for any number, and sinfo only for what runs.
func TestFindManyAsksOnce(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	var ids []dispatch.ObjectID
	for i := range 2000 {
		id := fmt.Sprint(1000 + i)
		f.jobs[id] = &fakeJob{id: id, state: "PENDING", reason: "Priority", submit: f.now()}
		ids = append(ids, dispatch.ObjectID(id), "nonsense", "999999")
	}
	for n, want := range map[int]int{3: 1, 300: 100, len(ids): 2000} {
		f.calls = nil
		got, err := b.FindMany(t.Context(), ids[:n])
		if err != nil || len(got) != want || len(f.calls) != 1 {
			t.Errorf("%d ids: %d found, %v, with %d calls", n, len(got), err, len(f.calls))
		}
	}
	f.calls = nil
	f.jobs["1000"].state, f.jobs["1000"].nodes = "RUNNING", "n[1-2]"
	f.dead = []string{"n2"}
	got, err := b.FindMany(t.Context(), []dispatch.ObjectID{"1000"})
	if o := got["1000"]; err != nil || o.State != dispatch.StateRunning || o.Cause != dispatch.CauseNodeLost || len(f.calls) != 2 {
		t.Errorf("got %+v, %v with %q", got, err, f.calls)
	}
	if got, err := b.FindMany(t.Context(), []dispatch.ObjectID{"999999"}); err != nil || len(got) != 0 {
		t.Errorf("an unknown id alone: %v, %v", got, err)
	}
	f.answer = on("squeue", exit(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"), nil)
	if _, err := b.FindMany(t.Context(), ids); !errors.Is(err, dispatch.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestCeased: the command's answer, and nothing else, is the answer.
func TestCeased(t *testing.T) {
	f := newFake()
	o := f.options()
	o.CessationCommand = []string{"/usr/sbin/fence", "--ask"}
	b := f.new(t, o)
	id, _ := b.Submit(t.Context(), work())
	if got, err := b.Ceased(t.Context(), id, 0); got != dispatch.Unknown || !errors.Is(err, dispatch.ErrNotFound) {
		t.Errorf("what never ran: %v, %v", got, err)
	}
	f.start(id, "n[1-2]")
	for name, c := range map[string]struct {
		r    transport.Result
		err  error
		want dispatch.Answer
	}{
		"exit 0":        {exit(0, "", ""), nil, dispatch.Yes},
		"exit 3":        {exit(3, "", ""), nil, dispatch.No},
		"exit 1":        {exit(1, "", ""), nil, dispatch.Unknown},
		"exit 2":        {exit(2, "", ""), nil, dispatch.Unknown},
		"not there":     {exit(127, "", ""), nil, dispatch.Unknown},
		"killed":        {exit(137, "", ""), nil, dispatch.Unknown},
		"not reachable": {transport.Result{Exit: -1}, errors.New("no"), dispatch.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			f.answer = on("/usr/sbin/fence --ask "+string(id)+" 0 n1,n2", c.r, c.err)
			if got, err := b.Ceased(t.Context(), id, 0); got != c.want || (err != nil) != (c.err != nil) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
	if got, err := b.Ceased(t.Context(), id, 1); got != dispatch.Unknown || err == nil {
		t.Errorf("an execution that is not: %v, %v", got, err)
	}
	f.answer = nil
	if got, err := b.Ceased(t.Context(), "4711", 0); got != dispatch.Unknown || !errors.Is(err, dispatch.ErrNotFound) {
		t.Errorf("an unknown job: %v, %v", got, err)
	}
	without := f.new(t, f.options())
	if _, err := without.Ceased(t.Context(), id, 0); !errors.Is(err, dispatch.ErrUnsupported) {
		t.Errorf("without a command: %v", err)
	}
}

// TestNewFails: what keeps a cluster from being opened, in words.
func TestNewFails(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(f *fakeSlurm, o *slurm.Options)
		says string
		kind error
	}{
		"no runner":                          {func(_ *fakeSlurm, o *slurm.Options) { o.Runner = nil }, "runner and clock", nil},
		"a relative directory":               {func(_ *fakeSlurm, o *slurm.Options) { o.OutputDir = "out" }, "not an absolute, clean path", nil},
		"a relative command":                 {func(_ *fakeSlurm, o *slurm.Options) { o.CessationCommand = []string{"fence"} }, "cessation command", nil},
		"arguments that a probe cannot have": {func(_ *fakeSlurm, o *slurm.Options) { o.ProbeArgs = []string{"--requeue"} }, "not for a spec", nil},
		"too old":                            {func(f *fakeSlurm, _ *slurm.Options) { f.config["SLURM_VERSION"] = "20.11.9" }, "the oldest release that has what is needed is 21.08", dispatch.ErrUnsupported},
		"no version":                         {func(f *fakeSlurm, _ *slurm.Options) { f.config["SLURM_VERSION"] = "new" }, `the version "new" is none`, nil},
		"no AuthType":                        {func(f *fakeSlurm, _ *slurm.Options) { delete(f.config, "AuthType") }, "does not show AuthType", dispatch.ErrUnavailable},
		"no controller": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = on("sh -c date", exit(1, "1.000000000\n1.000000000\n", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"), nil)
		}, "connect failure", dispatch.ErrUnavailable},
		"half of a configuration": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = on("sh -c date", exit(0, "1.000000000\nClusterName = x\n", ""), nil)
		}, "cannot open the Slurm cluster", dispatch.ErrUnavailable},
		"a command is missing": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = on("sh -c id", exit(1, "alice\n/home/alice\n", "sacct is missing"), nil)
		}, "sacct is missing", dispatch.ErrUnavailable},
		"no home": {func(f *fakeSlurm, _ *slurm.Options) { f.answer = on("sh -c id", exit(0, "alice\n\n", ""), nil) }, "name and home", dispatch.ErrUnavailable},
		"the probe is refused": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = on("sbatch", exit(1, "", "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"), nil)
		}, "no probe can be submitted", dispatch.ErrDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			o := f.options()
			c.set(f, &o)
			_, err := slurm.New(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.says) || c.kind != nil && !errors.Is(err, c.kind) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestNewerThanTried: a release after those that were tried is used, and the report says so.
func TestNewerThanTried(t *testing.T) {
	f := newFake()
	f.config["SLURM_VERSION"] = "27.11.0"
	r := f.new(t, f.options()).Preflight()
	if i := slices.IndexFunc(r.Steps, func(s dispatch.Step) bool { return s.Name == "version" }); i < 0 || r.Steps[i].Detail != "newer than any that was tried" || r.Steps[i].Outcome != dispatch.StepPassed {
		t.Errorf("the steps are %+v", r.Steps)
	}
}

// TestOldProbesAreStopped: those of preflights that died, and no others.
func TestOldProbesAreStopped(t *testing.T) {
	f := newFake()
	probe := dispatch.Ref{Job: "substrate-probe", Submission: 1, Attempt: 1}.Mark("")
	f.jobs["1"] = &fakeJob{id: "1", state: "PENDING", reason: "JobHeldUser", submit: f.now() - 7200, comment: probe}
	f.jobs["2"] = &fakeJob{id: "2", state: "PENDING", reason: "JobHeldUser", submit: f.now() - 60, comment: probe}
	f.jobs["3"] = &fakeJob{id: "3", state: "PENDING", reason: "JobHeldUser", submit: f.now() - 7200, comment: dispatch.Ref{Job: "a", Submission: 1, Attempt: 1}.Mark("")}
	o := f.options()
	o.CacheDir = t.TempDir()
	f.new(t, o)
	if f.jobs["1"].ends == 0 || f.jobs["2"].ends != 0 || f.jobs["3"].ends != 0 {
		t.Errorf("stopped: %v, %v, %v", f.jobs["1"].ends, f.jobs["2"].ends, f.jobs["3"].ends)
	}
	// A controller that died has it again; the answers are cached by now, and no probe is needed.
	*f.jobs["1"] = fakeJob{id: "1", state: "PENDING", reason: "JobHeldUser", submit: f.now() - 7200, comment: probe}
	before := len(f.jobs)
	if f.new(t, o); f.jobs["1"].ends == 0 || len(f.jobs) != before {
		t.Errorf("with cached answers it is left: %+v", f.jobs["1"])
	}
	*f.jobs["1"] = fakeJob{id: "1", state: "PENDING", reason: "JobHeldUser", submit: f.now() - 7200, comment: probe}
	o.ReadOnly = true
	if f.new(t, o); f.jobs["1"].ends != 0 {
		t.Error("a read-only backend stops it")
	}
}
