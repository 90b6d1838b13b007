package slurm_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
)

func duration(d time.Duration) *time.Duration { return &d }

// declared opens the fake with some settings, and then changes all of them: what changes afterwards is not looked at.
func declared(t *testing.T, o func(*slurm.Options), settings ...string) dispatch.Declarations {
	t.Helper()
	f := newFake()
	for i := 0; i < len(settings); i += 2 {
		f.config[settings[i]] = settings[i+1]
	}
	opt := f.options()
	if o != nil {
		o(&opt)
	}
	b := f.new(t, opt)
	for name := range f.config {
		f.config[name] = "1 sec"
	}
	return b.Declarations()
}

const (
	// measured: the fake's clocks are alike, and show a whole second at 0.4 s of it.
	measured = 600 * time.Millisecond
	rest     = 10*time.Second + time.Second
)

// TestDeclarations: each declaration follows from the cluster's settings as they were when the backend was opened.
func TestDeclarations(t *testing.T) {
	t.Run("NodeLossWindow", func(t *testing.T) {
		for silent, want := range map[string]time.Duration{"300 sec": 660 * time.Second, "30 sec": 2 * time.Minute, "0 sec": time.Minute} {
			if got := declared(t, nil, "SlurmdTimeout", silent).NodeLossWindow; got != want {
				t.Errorf("SlurmdTimeout %s: got %v, want %v", silent, got, want)
			}
		}
	})
	t.Run("CallBound", callBounds)
	t.Run("PolledLoss[state], [cause], [exit-code]", func(t *testing.T) {
		for age, want := range map[string]dispatch.Window{"300 sec": dispatch.Window(5 * time.Minute), "60 sec": dispatch.Window(time.Minute), "0 sec": dispatch.Unbounded} {
			d := declared(t, nil, "MinJobAge", age)
			for _, e := range []dispatch.Evidence{dispatch.EvidenceState, dispatch.EvidenceCause, dispatch.EvidenceExitCode} {
				if d.PolledLoss[e] != want {
					t.Errorf("MinJobAge %s: %s is %s, want %s", age, e, d.PolledLoss[e], want)
				}
			}
		}
	})
	t.Run("PolledLoss[execution]", func(t *testing.T) {
		if got := declared(t, nil).PolledLoss[dispatch.EvidenceExecution]; got != dispatch.Unbounded {
			t.Errorf("with accounting it is %s", got)
		}
		f := newFake()
		f.answer = on("sacct", exit(1, "", "Slurm accounting storage is disabled"), nil)
		if got := f.new(t, f.options()).Declarations().PolledLoss[dispatch.EvidenceExecution]; got != 0 {
			t.Errorf("without accounting it is %s", got)
		}
	})
	t.Run("read-only without a cached probe", func(t *testing.T) {
		d := declared(t, func(o *slurm.Options) { o.ReadOnly = true })
		if d.PolledLoss[dispatch.EvidenceExecution] != 0 || d.CallBound != 300*time.Second+rest {
			t.Errorf("got %+v", d)
		}
	})
}

func callBounds(t *testing.T) {
	for name, c := range map[string]struct {
		settings []string
		options  func(*slurm.Options)
		want     time.Duration
	}{
		"munge without ttl":                              {nil, nil, 300*time.Second + measured + rest},
		"munge with ttl":                                 {[]string{"AuthInfo", "socket=/run/munge,ttl=15"}, nil, 15*time.Second + measured + rest},
		"auth/slurm without ttl":                         {[]string{"AuthType", "auth/slurm"}, nil, 60*time.Second + measured + rest},
		"a long MessageTimeout":                          {[]string{"MessageTimeout", "100 sec"}, nil, 300*time.Second + measured + 101*time.Second},
		"credentialTTL":                                  {nil, func(o *slurm.Options) { o.CredentialTTL = duration(time.Minute) }, time.Minute + measured + rest},
		"skew above what was found":                      {nil, func(o *slurm.Options) { o.Skew = duration(20 * time.Second) }, 320*time.Second + rest},
		"skew below what was found":                      {nil, func(o *slurm.Options) { o.Skew = duration(0) }, 300*time.Second + measured + rest},
		"credentialTTL of an AuthType that is not known": {[]string{"AuthType", "auth/jwt"}, func(o *slurm.Options) { o.CredentialTTL = duration(time.Minute) }, 0},
		"0s with another AuthType":                       {[]string{"AuthType", "auth/none"}, func(o *slurm.Options) { o.Skew = duration(time.Minute) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := declared(t, c.options, c.settings...).CallBound; got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestSkew: the distance of the clocks is what they may differ by at most, whichever way.
func TestSkew(t *testing.T) {
	for ahead, want := range map[time.Duration]time.Duration{0: 600 * time.Millisecond, 5 * time.Second: 5600 * time.Millisecond, -5 * time.Second: 5400 * time.Millisecond} {
		f := newFake()
		f.ahead = ahead
		if got := f.new(t, f.options()).Declarations().CallBound; got != 300*time.Second+11*time.Second+want {
			t.Errorf("the controller's clock is ahead by %v: CallBound is %v", ahead, got)
		}
	}
}

func TestNumbersThatAreNone(t *testing.T) {
	for _, name := range []string{"SlurmdTimeout", "MinJobAge", "MessageTimeout"} {
		f := newFake()
		f.config[name] = "unlimited"
		if _, err := slurm.New(t.Context(), f.options()); err == nil || !strings.Contains(err.Error(), name+` is "unlimited"`) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestCapabilities: the answer, source and reason of each, the same for every spec.
func TestCapabilities(t *testing.T) {
	f := newFake()
	b := f.new(t, f.options())
	want := dispatch.Capabilities{
		dispatch.ContainerImage:       {Answer: dispatch.No, Source: dispatch.Declared, Reason: "container images are not mapped in v1"},
		dispatch.NativeRequeue:        {Answer: dispatch.No, Source: dispatch.Declared, Reason: "jobs are submitted with --no-requeue, so Slurm never restarts one on its own"},
		dispatch.NativeRestart:        {Answer: dispatch.No, Source: dispatch.Declared, Reason: "jobs are submitted with --no-requeue, so Slurm never restarts one on its own"},
		dispatch.Hold:                 {Answer: dispatch.Yes, Source: dispatch.Probed},
		dispatch.PreTerminationSignal: {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "SIGTERM, then SIGKILL after KillWait 30 sec"},
		dispatch.AccountingHistory:    {Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "comments are kept; AccountingStoreFlags=job_comment"},
		dispatch.AttemptInjection:     {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "the batch script exports the DISPATCH_* variables"},
		dispatch.ReadmissionGate:      {Answer: dispatch.No, Source: dispatch.Declared, Reason: "under --no-requeue Slurm never starts an execution on its own authority"},
		dispatch.WorkingDirectory:     {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "--chdir"},
		dispatch.ProcsPerNode:         {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "--ntasks-per-node"},
		dispatch.OutputPath:           {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "the dispatch.Output extension"},
		dispatch.OutputRead:           {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "stdout and stderr, each execution's file in turn"},
		dispatch.OutputFollow:         {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "polled every two seconds"},
		dispatch.OutputRetained:       {Answer: dispatch.Yes, Source: dispatch.Declared, Reason: "the files stay in output.dir on the cluster"},
	}
	if len(want) != len(dispatch.AllCapabilities()) {
		t.Fatalf("%d of %d capabilities are wanted", len(want), len(dispatch.AllCapabilities()))
	}
	for _, c := range dispatch.AllCapabilities() {
		t.Run(c.String(), func(t *testing.T) {
			for _, spec := range []dispatch.Spec{{}, {Image: &dispatch.Image{Reference: "a"}, Nodes: 9}} {
				got, err := b.Capabilities(t.Context(), spec)
				if err != nil || got[c] != want[c] {
					t.Errorf("got  %+v, %v\nwant %+v", got[c], err, want[c])
				}
			}
		})
	}
}

// holdCase is something that the probe can find out about holds, and in which words it is said.
type holdCase struct {
	set    func(f *fakeSlurm, o *slurm.Options)
	answer dispatch.Answer
	reason string
	probes bool // holds
}

const unknownAuth = `AuthType "auth/jwt" has no known landing bound`

func holdCases() map[string]holdCase {
	update := func(f *fakeSlurm, r transport.Result) { f.answer = on("scontrol update", r, nil) }
	return map[string]holdCase{
		"holds work": {func(*fakeSlurm, *slurm.Options) {}, dispatch.Yes, "", true},
		"AuthType has no known landing bound": {func(f *fakeSlurm, _ *slurm.Options) { f.config["AuthType"] = "auth/jwt" },
			dispatch.No, unknownAuth, false},
		"placing hold 1 on the probe": {func(f *fakeSlurm, _ *slurm.Options) { update(f, exit(1, "", "Access/permission denied for job 101")) },
			dispatch.No, "placing hold 1 on the probe: cannot place hold 1 on the probe: permission denied: Access/permission denied for job 101", true},
		"hold 1 did not decode from the probe's start time": {func(f *fakeSlurm, _ *slurm.Options) { update(f, exit(0, "", "")) },
			dispatch.No, "hold 1 did not decode from the probe's start time: SubmitTime is 1796000000 and EligibleTime none, which is no hold", true},
		"opening the held probe": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = on("scontrol release", exit(1, "", "Requested operation is presently disabled for job 101"), nil)
		}, dispatch.No, "opening the held probe: cannot open the gate of job 101: refused: Requested operation is presently disabled for job 101", true},
		"the hold did not survive the gate's release": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
				if strings.HasPrefix(line, "scontrol release") {
					f.jobs["101"].eligible = f.now()
				}
				return transport.Result{}, nil, false
			}
		}, dispatch.No, "the hold did not survive the gate's release: SubmitTime is 1796000000 and EligibleTime 1796000000, which is no hold", true},
		"the probe started": {func(f *fakeSlurm, _ *slurm.Options) {
			f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
				if strings.HasPrefix(line, "scontrol release") {
					j := f.jobs["101"]
					j.state, j.reason, j.start, j.nodes = "RUNNING", "None", f.now(), "n1"
					return exit(0, "", ""), nil, true
				}
				return transport.Result{}, nil, false
			}
		}, dispatch.No, "the hold did not survive the gate's release: cannot read the probe's hold: no longer pending: it is RUNNING None", true},
	}
}

func moreHoldCases() map[string]holdCase {
	return map[string]holdCase{
		"a stale release changed the hold": {func(f *fakeSlurm, _ *slurm.Options) {
			asked := 0
			f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
				if strings.HasPrefix(line, "squeue") && strings.Contains(line, "-j 101") {
					if asked++; asked == 5 { // before placing, after, after the gate, before the release, after it
						f.jobs["101"].eligible += 4
					}
				}
				return transport.Result{}, nil, false
			}
		}, dispatch.No, "a stale release changed the hold: SubmitTime is 1796000000 and EligibleTime 2111576005, which is hold 5", true},
		"a release naming instance 2 was not refused": {func(f *fakeSlurm, _ *slurm.Options) {
			asked := 0
			f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
				if strings.HasPrefix(line, "squeue") && strings.Contains(line, "-j 101") {
					if asked++; asked == 4 {
						f.jobs["101"].eligible++
					}
				}
				return transport.Result{}, nil, false
			}
		}, dispatch.No, "slurm: the preflight probe failed: a release naming instance 2 was not refused", true},
		"read-only, and no cached probe": {func(_ *fakeSlurm, o *slurm.Options) { o.ReadOnly = true },
			dispatch.Unknown, "read-only, and no cached probe", false},
		"read-only with an AuthType that is not known": {func(f *fakeSlurm, o *slurm.Options) { o.ReadOnly, f.config["AuthType"] = true, "auth/jwt" },
			dispatch.No, unknownAuth, false},
	}
}

func TestHoldReasons(t *testing.T) {
	cases := holdCases()
	maps.Copy(cases, moreHoldCases())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			o := f.options()
			c.set(f, &o)
			b := f.new(t, o)
			got, _ := b.Capabilities(t.Context(), dispatch.Spec{})
			if want := (dispatch.Support{Answer: c.answer, Source: dispatch.Probed, Reason: c.reason}); got[dispatch.Hold] != want {
				t.Errorf("got  %+v\nwant %+v", got[dispatch.Hold], want)
			}
			if tried := slices.ContainsFunc(f.calls, func(l string) bool { return strings.HasPrefix(l, "scontrol update") }); tried != c.probes {
				t.Errorf("a hold was tried: %v", tried)
			}
			for id, j := range f.jobs {
				if j.ends == 0 {
					t.Errorf("the probe %s is left behind", id)
				}
			}
			refusals(t, b, got[dispatch.Hold])
		})
	}
}

// refusals: without the capability both calls are unsupported, with the reason.
func refusals(t *testing.T, b *slurm.Backend, hold dispatch.Support) {
	t.Helper()
	for name, err := range map[string]error{"Hold": b.Hold(t.Context(), "101", 1), "Release": b.Release(t.Context(), "101", 1)} {
		if hold.Answer == dispatch.Yes {
			if errors.Is(err, dispatch.ErrUnsupported) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !errors.Is(err, dispatch.ErrUnsupported) || !strings.HasSuffix(err.Error(), ": "+hold.Reason) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestAccountingReasons: what sacct answers for the probe, and what is said of that.
func TestAccountingReasons(t *testing.T) {
	say := func(r transport.Result, err error) func(f *fakeSlurm, o *slurm.Options) {
		return func(f *fakeSlurm, _ *slurm.Options) { f.answer = on("sacct", r, err) }
	}
	const flags = "; AccountingStoreFlags=job_comment"
	for name, c := range map[string]struct {
		set    func(f *fakeSlurm, o *slurm.Options)
		answer dispatch.Answer
		reason string
	}{
		"comments are kept": {func(*fakeSlurm, *slurm.Options) {}, dispatch.Yes, "comments are kept" + flags},
		"comments are kept beside other things": {func(f *fakeSlurm, _ *slurm.Options) { f.config["AccountingStoreFlags"] = "job_comment,job_env" },
			dispatch.Yes, "comments are kept; AccountingStoreFlags=job_comment,job_env"},
		"comments are not kept": {func(f *fakeSlurm, _ *slurm.Options) { f.config["AccountingStoreFlags"] = "(null)" },
			dispatch.Yes, "comments are not kept: AccountingStoreFlags lacks job_comment; AccountingStoreFlags=(null)"},
		"Slurm accounting storage is disabled": {say(exit(1, "", "Slurm accounting storage is disabled\n"), nil),
			dispatch.No, "Slurm accounting storage is disabled" + flags},
		"Problem talking to the database": {say(exit(1, "", "sacct: error: slurmdb_jobs_get: x\nsacct: Problem talking to the database: Connection refused\n"), nil),
			dispatch.No, "sacct: error: slurmdb_jobs_get: x\nsacct: Problem talking to the database: Connection refused" + flags},
		"disabled, and it claims success": {say(exit(0, "", "Slurm accounting storage is disabled"), nil), dispatch.No, "Slurm accounting storage is disabled" + flags},
		"sacct: an error":                 {say(transport.Result{Exit: -1, Dead: true}, errors.New("the connection broke")), dispatch.Unknown, "sacct: the connection broke" + flags},
		"sacct exited":                    {say(exit(2, "", "sacct: fatal: no such option\n"), nil), dispatch.Unknown, "sacct exited 2: sacct: fatal: no such option" + flags},
		"no sacct row for the probe":      {say(exit(0, "", ""), nil), dispatch.Unknown, "no sacct row for probe job 101 within MinJobAge" + flags},
		"read-only, and no cached probe":  {func(_ *fakeSlurm, o *slurm.Options) { o.ReadOnly = true }, dispatch.Unknown, "read-only, and no cached probe"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			o := f.options()
			c.set(f, &o)
			b := f.new(t, o)
			got, _ := b.Capabilities(t.Context(), dispatch.Spec{})
			if want := (dispatch.Support{Answer: c.answer, Source: dispatch.Probed, Reason: c.reason}); got[dispatch.AccountingHistory] != want {
				t.Errorf("got  %+v\nwant %+v", got[dispatch.AccountingHistory], want)
			}
			f.answer = nil
			f.past = []*fakeJob{{id: "77", state: "FAILED", submit: f.now(), start: f.now(), ends: f.now(), status: 3 << 8, nodes: "n1", comment: "dispatch/1 job=a sub=1 att=1"}}
			o2, err := b.Inspect(t.Context(), "77")
			if told := err == nil && o2.State == dispatch.StateFailed && *o2.ExitCode == 3; told != (c.answer == dispatch.Yes) {
				t.Errorf("of a job that only accounting knows: %+v, %v", o2, err)
			}
			if c.answer != dispatch.Yes && !errors.Is(err, dispatch.ErrNotFound) {
				t.Errorf("of a job that only accounting knows: %v", err)
			}
		})
	}
}

// TestAccountingIsPolled: sacct is asked every two seconds until it shows the probe's end, for MinJobAge at most.
func TestAccountingIsPolled(t *testing.T) {
	f := newFake()
	begun := f.clock.Now()
	asked := 0
	f.answer = func(line string, _ transport.Command) (transport.Result, error, bool) {
		if !strings.HasPrefix(line, "sacct") {
			return transport.Result{}, nil, false
		}
		if asked++; asked < 4 {
			return exit(0, "", ""), nil, true
		}
		return transport.Result{}, nil, false
	}
	f.new(t, f.options())
	if took := f.clock.Now().Sub(begun); asked != 4 || took != 6*time.Second {
		t.Errorf("asked %d times in %v", asked, took)
	}
	f = newFake()
	f.answer = on("sacct", exit(0, "", ""), nil)
	begun = f.clock.Now()
	f.new(t, f.options())
	if took := f.clock.Now().Sub(begun); took != 300*time.Second {
		t.Errorf("without a row it asked for %v", took)
	}
}

// TestRules: what a recovery policy can have done here.
func TestRules(t *testing.T) {
	f := newFake()
	f.config["AuthType"] = "auth/jwt"
	without := f.new(t, f.options())
	f = newFake()
	with := f.new(t, f.options())
	const ended = "a job that has ended cannot be restarted or requeued under --no-requeue"
	for name, c := range map[string]struct {
		b      *slurm.Backend
		action dispatch.Action
		want   dispatch.Support
	}{
		"Resubmit":     {with, dispatch.ActionResubmit, dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Declared}},
		"Escalate":     {with, dispatch.ActionEscalate, dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Declared}},
		"Restart":      {with, dispatch.ActionRestart, dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: ended}},
		"Requeue":      {with, dispatch.ActionRequeue, dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: ended}},
		"Hold, yes":    {with, dispatch.ActionHold, dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed}},
		"Hold, no":     {without, dispatch.ActionHold, dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: `AuthType "auth/jwt" has no known landing bound`}},
		"any other":    {with, dispatch.ActionNone, dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Declared, Reason: "action none"}},
		"without name": {with, 77, dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Declared, Reason: "action 77"}},
	} {
		t.Run(name, func(t *testing.T) {
			rule := dispatch.Rule{Cause: dispatch.CausePreempted, Action: c.action, Limit: 3}
			got := c.b.Rules(dispatch.Policy{Rules: []dispatch.Rule{rule}})
			if len(got) != 1 || got[0] != (dispatch.RuleSupport{Rule: rule, Support: c.want}) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestInterfaces: what Open leaves of them.
func TestInterfaces(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(f *fakeSlurm, o *slurm.Options)
		want []dispatch.Interface
	}{
		"all but CessationSignal": {func(*fakeSlurm, *slurm.Options) {},
			[]dispatch.Interface{dispatch.InterfaceHolder, dispatch.InterfaceRequeuer, dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder}},
		"CessationSignal with a command": {func(_ *fakeSlurm, o *slurm.Options) { o.CessationCommand = []string{"/usr/sbin/fence"} },
			[]dispatch.Interface{dispatch.InterfaceHolder, dispatch.InterfaceRequeuer, dispatch.InterfaceCessationSignal, dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder}},
		"neither Holder nor Requeuer with an unknown landing bound": {func(f *fakeSlurm, _ *slurm.Options) { f.config["AuthType"] = "auth/jwt" },
			[]dispatch.Interface{dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder}},
		"no Holder when Hold is no": {func(f *fakeSlurm, _ *slurm.Options) { f.answer = on("scontrol update", exit(1, "", "no"), nil) },
			[]dispatch.Interface{dispatch.InterfaceRequeuer, dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder}},
		"CessationSignal on a read-only backend": {func(_ *fakeSlurm, o *slurm.Options) {
			o.ReadOnly, o.CessationCommand = true, []string{"/usr/sbin/fence"}
		}, []dispatch.Interface{dispatch.InterfaceRequeuer, dispatch.InterfaceCessationSignal, dispatch.InterfaceOutputReader, dispatch.InterfaceMultiFinder}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			o := f.options()
			c.set(f, &o)
			if got := dispatch.InterfacesOf(open(t, o)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	t.Run("Requeue and RestoreRequeueBit without a landing bound", func(t *testing.T) {
		f := newFake()
		f.config["AuthType"] = "auth/jwt"
		b := f.new(t, f.options())
		for _, err := range []error{b.Requeue(t.Context(), "1"), b.RestoreRequeueBit(t.Context(), "1")} {
			if !errors.Is(err, dispatch.ErrUnsupported) || !strings.Contains(err.Error(), `AuthType "auth/jwt" has no known landing bound`) {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("neither Watcher nor NativePolicyCompiler", func(t *testing.T) {
		f := newFake()
		b := f.new(t, f.options())
		if _, ok := any(b).(interface{ Watch() }); ok {
			t.Error("it watches")
		}
		if len(dispatch.AllInterfaces()) != 5 {
			t.Errorf("the contract has other interfaces than those of this test: %v", dispatch.AllInterfaces())
		}
	})
}

// TestReadOnly: nothing that changes anything is sent, and what is answered comes from the cache or is unknown.
func TestReadOnly(t *testing.T) {
	f := newFake()
	dir := filepath.Join(t.TempDir(), "probes")
	o := f.options()
	o.CacheDir, o.ReadOnly = dir, true
	b := f.new(t, o)
	id := dispatch.ObjectID("5")
	f.jobs["5"] = &fakeJob{id: "5", state: "RUNNING", reason: "None", submit: f.now(), start: f.now(), nodes: "n1"}
	_, err := b.Submit(t.Context(), dispatch.Spec{})
	for name, err := range map[string]error{"Submit": err, "OpenGate": b.OpenGate(t.Context(), id), "Stop": b.Stop(t.Context(), id),
		"Requeue": b.Requeue(t.Context(), id), "RestoreRequeueBit": b.RestoreRequeueBit(t.Context(), id)} {
		if !errors.Is(err, dispatch.ErrReadOnly) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got, err := b.Inspect(t.Context(), id); err != nil || got.State != dispatch.StateRunning {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, l := range f.calls {
		if word, _, _ := strings.Cut(l, " "); word == "sbatch" || word == "scancel" || strings.HasPrefix(l, "scontrol update") || strings.HasPrefix(l, "scontrol re") {
			t.Errorf("it sent %s", l)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it wrote a cache")
	}

	// Another backend probes, the controller's clock being 7 s ahead; then the read-only one has its answers, and its skew.
	f.ahead = 7 * time.Second
	probing := o
	probing.ReadOnly = false
	want, _ := f.new(t, probing).Capabilities(t.Context(), dispatch.Spec{})
	f.ahead = 0
	b = f.new(t, o)
	got, _ := b.Capabilities(t.Context(), dispatch.Spec{})
	if got[dispatch.Hold] != want[dispatch.Hold] || got[dispatch.AccountingHistory] != want[dispatch.AccountingHistory] || got[dispatch.Hold].Source != dispatch.Probed {
		t.Errorf("from the cache: %+v, %+v", got[dispatch.Hold], got[dispatch.AccountingHistory])
	}
	if d := b.Declarations(); d.CallBound != 300*time.Second+11*time.Second+7600*time.Millisecond || d.PolledLoss[dispatch.EvidenceExecution] != dispatch.Unbounded {
		t.Errorf("with the cached skew: %+v", d)
	}
	if r := b.Preflight(); !r.Cached || !r.ReadOnly || r.Kind != "slurm" || r.Cluster != "fir" || r.Version != "22.05.8" || r.Account != "alice" {
		t.Errorf("the report is %+v", r)
	}
}
