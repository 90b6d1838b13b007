package batch_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/memory"
	"substrate/coordinator/provision"
	"substrate/coordinator/provision/batch"
	"substrate/coordinator/spec"
)

// site is a batch system in memory, whose pilots do what a script says that it understands.
type site struct {
	t      *testing.T
	clock  *memory.Clock
	system *memory.Cluster
	calls  map[string]int
	script string
	p      *batch.Provisioner
}

// counted counts calls, and gives pilots a script that the system in memory can read.
type counted struct {
	dispatch.Backend
	dispatch.MultiFinder
	dispatch.OutputReader
	s *site
}

func (c counted) Submit(ctx context.Context, spec dispatch.Spec) (dispatch.ObjectID, error) {
	c.s.calls["submit"]++
	spec.Script = "#!/bin/sh\n" + c.s.script
	return c.Backend.Submit(ctx, spec)
}

func (c counted) Find(ctx context.Context, r dispatch.Ref) ([]dispatch.Observation, error) {
	c.s.calls["find"]++
	return c.Backend.Find(ctx, r)
}

func (c counted) Inspect(ctx context.Context, id dispatch.ObjectID) (dispatch.Observation, error) {
	c.s.calls["inspect"]++
	return c.Backend.Inspect(ctx, id)
}

func (c counted) FindMany(ctx context.Context, ids []dispatch.ObjectID) (map[dispatch.ObjectID]dispatch.Observation, error) {
	c.s.calls["many"]++
	return c.MultiFinder.FindMany(ctx, ids)
}

func newSite(t *testing.T) *site {
	clock := memory.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	s := &site{t: t, clock: clock, system: memory.New(clock, memory.Slurm()), calls: map[string]int{}, script: "sleep 86400\n"}
	s.restart()
	return s
}

// restart is a coordinator that has lost its memory.
func (s *site) restart() {
	s.t.Helper()
	b, err := dispatch.Open(s.t.Context(), s.system.Client(false))
	if err != nil {
		s.t.Fatal(err)
	}
	s.p, err = batch.New(batch.Options{Backend: counted{b, b.(dispatch.MultiFinder), b.(dispatch.OutputReader), s}, Kind: spec.KindSlurm, Cluster: "c1", Clock: s.clock})
	if err != nil {
		s.t.Fatal(err)
	}
}

func request(id string) provision.Request {
	return provision.Request{
		ID: provision.LaunchID(id), Nodes: 1, Lifetime: 10 * time.Hour, Boot: provision.Boot{Coordinator: "c:1", Token: "t", Node: "pilot-" + id},
		Definition: coordinator.Definition{ID: "pilot", Kind: spec.KindSlurm, Spec: spec.Slurm{CPU: 4, Memory: 1 << 30, Mode: spec.ModePilot}},
	}
}

func (s *site) launch(id string) (provision.Instance, error) {
	return s.p.Launch(s.t.Context(), request(id))
}

func (s *site) list() map[provision.LaunchID]provision.Instance {
	s.t.Helper()
	list, err := s.p.List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[provision.LaunchID]provision.Instance{}
	for _, i := range list {
		if _, twice := out[i.ID]; twice {
			s.t.Errorf("launch %s is listed twice", i.ID)
		}
		out[i.ID] = i
	}
	return out
}

func (s *site) pass(d time.Duration) { _ = s.clock.Sleep(s.t.Context(), d) }

// TestLaunchIsIdempotent: however often it is called, and by whom, a launch is one pilot.
func TestLaunchIsIdempotent(t *testing.T) {
	s := newSite(t)
	first, err := s.launch("l1")
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.launch("l1")
	if err != nil || again.Handle != first.Handle {
		t.Errorf("launched again it is %+v, %v, want %s", again, err, first.Handle)
	}
	s.restart()
	if again, err = s.launch("l1"); err != nil || again.Handle != first.Handle {
		t.Errorf("after a restart it is %+v, %v, want %s", again, err, first.Handle)
	}
	if s.calls["submit"] != 1 {
		t.Errorf("%d submissions, want 1", s.calls["submit"])
	}
	s.pass(time.Minute)
	if i := s.list()["l1"]; i.State != provision.StateRunning || i.Running.IsZero() || i.Ends.IsZero() {
		t.Errorf("it is %+v, want running with its times", i)
	}
}

// TestLostReply: a submission whose answer is lost is found if it arrived, waited for while it may, and made again only afterwards.
func TestLostReply(t *testing.T) {
	for name, c := range map[string]struct {
		loss        memory.Loss
		submissions int
	}{
		"arrived":      {memory.Loss{}, 1},
		"arrives late": {memory.Loss{After: 15 * time.Second}, 1},
		"never":        {memory.Loss{Never: true}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.system.LoseReply(c.loss)
			var got provision.Instance
			for range 60 {
				var err error
				if got, err = s.launch("l1"); err == nil {
					break
				}
				if !provision.FaultOf(err).Again() {
					t.Fatalf("it failed for good: %v", err)
				}
				s.pass(2 * time.Second)
			}
			if got.Handle == "" || s.calls["submit"] != c.submissions {
				t.Errorf("%q after %d submissions, want %d", got.Handle, s.calls["submit"], c.submissions)
			}
			if n := len(s.list()); n != 1 {
				t.Errorf("%d pilots are listed, want 1", n)
			}
		})
	}
}

// TestAfterACrash: a call of an earlier life may still arrive, so nothing is submitted before that is over.
func TestAfterACrash(t *testing.T) {
	s := newSite(t)
	s.restart()
	r := request("l1")
	r.Again, r.Asked = true, s.clock.Now().Add(-time.Second)
	_, err := s.p.Launch(t.Context(), r)
	var e *provision.Error
	if !errors.As(err, &e) || e.Fault != provision.FaultTransient || e.After <= 0 || s.calls["submit"] != 0 {
		t.Fatalf("right after a crash: %v, %d submissions", err, s.calls["submit"])
	}
	s.pass(e.After)
	if _, err := s.p.Launch(t.Context(), r); err != nil || s.calls["submit"] != 1 {
		t.Errorf("once it cannot arrive any more: %v, %d submissions", err, s.calls["submit"])
	}
}

// TestOnePollIsOneQuestion: pilots that are known cost one request together.
func TestOnePollIsOneQuestion(t *testing.T) {
	s := newSite(t)
	for _, id := range []string{"l1", "l2", "l3", "l4"} {
		if _, err := s.launch(id); err != nil {
			t.Fatal(err)
		}
	}
	s.list()
	clear(s.calls)
	for range 10 {
		s.list()
	}
	if s.calls["many"] != 10 || s.calls["find"]+s.calls["inspect"] != 0 {
		t.Errorf("ten polls cost %v", s.calls)
	}
}

// TestPilotsOfAnEarlierLife are found by their mark; those of another cluster are not ours.
func TestPilotsOfAnEarlierLife(t *testing.T) {
	s := newSite(t)
	if _, err := s.launch("l1"); err != nil {
		t.Fatal(err)
	}
	s.restart()
	if got := s.list(); len(got) != 1 || got["l1"].Handle == "" {
		t.Errorf("listed: %v", got)
	}
	b, err := dispatch.Open(t.Context(), s.system.Client(false))
	if err != nil {
		t.Fatal(err)
	}
	other, err := batch.New(batch.Options{Backend: b, Kind: spec.KindSlurm, Cluster: "c2", Clock: s.clock})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := other.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("another cluster lists %v, %v", list, err)
	}
}

// TestLastWordsOfPilots: why an agent could not be started stands in its pilot's output, and is told with the failure.
func TestLastWordsOfPilots(t *testing.T) {
	s := newSite(t)
	for id, c := range map[string]struct{ script, words string }{
		"silent": {"exit 75\n", ""},
		"loud":   {"echo first\necho 'substrated: not found'\nexit 127\n", "; its output ends with: substrated: not found"},
		"long":   {"echo " + strings.Repeat("ü", 400) + "\nexit 1\n", "; its output ends with: " + strings.Repeat("ü", 150)},
		"even":   {"echo starts\nexit 0\n", ""},
	} {
		s.script = c.script
		if _, err := s.launch(id); err != nil {
			t.Fatal(err)
		}
		s.pass(time.Minute)
		got := s.list()[provision.LaunchID(id)]
		bare, words, _ := strings.Cut(got.Detail, ";")
		if words != "" {
			words = ";" + words
		}
		if got.State != provision.StateGone || bare == "" || words != c.words {
			t.Errorf("%s: %s, %q, want the words %q", id, got.State, got.Detail, c.words)
		}
		if again := s.list()[provision.LaunchID(id)]; again.Detail != got.Detail {
			t.Errorf("%s: later %q, before %q", id, again.Detail, got.Detail)
		}
	}
}

// TestEndsOfPilots: how a pilot ended says what is to be thought of its launch.
func TestEndsOfPilots(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		cause  dispatch.Cause
		want   provision.Fault
	}{
		"its agent ended":      {script: "exit 75\n", want: provision.FaultUnreachable},
		"it was preempted":     {cause: dispatch.CausePreempted, want: provision.FaultInterrupted},
		"its time was over":    {cause: dispatch.CauseTimeout, want: provision.FaultNone},
		"it ran out of memory": {cause: dispatch.CauseOutOfMemory, want: provision.FaultUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if c.script != "" {
				s.script = c.script
			}
			i, err := s.launch("l1")
			if err != nil {
				t.Fatal(err)
			}
			s.pass(time.Second)
			s.list()
			if c.cause != dispatch.CauseNone {
				if err := s.system.End(dispatch.ObjectID(i.Handle), c.cause); err != nil {
					t.Fatal(err)
				}
			}
			s.pass(time.Second)
			if got := s.list()["l1"]; got.State != provision.StateGone || got.Failed != c.want || got.Detail == "" {
				t.Errorf("it is %+v, want gone, %s", got, c.want)
			}
		})
	}
}

func TestRelease(t *testing.T) {
	s := newSite(t)
	i, err := s.launch("l1")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.p.Release(t.Context(), i.Handle); err != nil {
			t.Errorf("release: %v", err)
		}
		s.pass(time.Minute)
	}
	if got := s.list()["l1"]; got.State != provision.StateGone {
		t.Errorf("it is %+v, want gone", got)
	}
	if err := s.p.Release(t.Context(), "424242"); provision.FaultOf(err) != provision.FaultNotFound {
		t.Errorf("release of what is not there: %v", err)
	}
}

// TestSystemIsDown: nothing is concluded from a system that does not answer.
func TestSystemIsDown(t *testing.T) {
	s := newSite(t)
	if _, err := s.launch("l1"); err != nil {
		t.Fatal(err)
	}
	s.system.Unavailable(true)
	if _, err := s.p.List(t.Context()); !provision.FaultOf(err).Again() {
		t.Errorf("list: %v", err)
	}
	if _, err := s.launch("l2"); !provision.FaultOf(err).Again() {
		t.Errorf("launch: %v", err)
	}
	s.system.Unavailable(false)
	if got := s.list(); len(got) != 1 {
		t.Errorf("listed: %v", got)
	}
}

func TestPaceIsShortEnough(t *testing.T) {
	s := newSite(t)
	b, err := dispatch.Open(t.Context(), s.system.Client(false))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := batch.New(batch.Options{Backend: b, Clock: s.clock, Pace: time.Hour}); err == nil || !strings.Contains(err.Error(), "poll at least every") {
		t.Errorf("a pace at which ends are missed: %v", err)
	}
}

// TestScript runs what a pilot runs, with a program in the agent's place: it has the token in its environment and nowhere else, its directory
// goes, and its exit code is the pilot's.
func TestScript(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	agent := filepath.Join(dir, "it's an agent")
	write(t, agent, "#!/bin/bash\necho \"$SUBSTRATED_JOIN_TOKEN\" >"+dir+"/token\necho \"$@\" >"+dir+"/args\nexit 7\n", 0o755)
	b, err := dispatch.Open(t.Context(), s.system.Client(false))
	if err != nil {
		t.Fatal(err)
	}
	var script string
	p, err := batch.New(batch.Options{Backend: taking{b, &script}, Kind: spec.KindSlurm, Cluster: "c1", Clock: s.clock, Pilot: batch.Pilot{Agent: agent}})
	if err != nil {
		t.Fatal(err)
	}
	r := request("l1")
	r.Boot.Token = "secret'; touch " + dir + "/injected; '"
	if _, err := p.Launch(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-s")
	cmd.Stdin, cmd.Env = strings.NewReader(script), append(os.Environ(), "TMPDIR="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("it ended with %v, want exit code 7\n%s\n%s", err, out, script)
	}
	if got := strings.TrimSpace(read(t, dir+"/token")); got != r.Boot.Token {
		t.Errorf("the token is %q, want %q", got, r.Boot.Token)
	}
	args := read(t, dir+"/args")
	if strings.Contains(args, "secret") || !strings.Contains(args, "--node pilot-l1 --launch l1") {
		t.Errorf("arguments: %s", args)
	}
	left, err := filepath.Glob(dir + "/*")
	if err != nil || len(left) != 3 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// taking hands out the script of what is submitted.
type taking struct {
	dispatch.Backend
	script *string
}

func (b taking) Submit(ctx context.Context, spec dispatch.Spec) (dispatch.ObjectID, error) {
	*b.script = spec.Script
	return b.Backend.Submit(ctx, spec)
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestPilotBehindItsGate: a pilot whose gate nobody has opened is listed as incomplete until its launch is called again.
func TestPilotBehindItsGate(t *testing.T) {
	s := newSite(t)
	b, err := dispatch.Open(t.Context(), s.system.Client(false))
	if err != nil {
		t.Fatal(err)
	}
	left := dispatch.Spec{Ref: dispatch.Ref{Job: "substrate/c1/l1", Submission: 1, Attempt: 1}, Nodes: 1, Cores: 1, Script: "#!/bin/sh\nsleep 100\n"}
	if _, err := b.Submit(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if i := s.list()["l1"]; !i.Incomplete || i.State != provision.StateRequested {
		t.Errorf("behind its gate it is %+v", i)
	}
	if _, err := s.launch("l1"); err != nil || s.calls["submit"] != 0 {
		t.Errorf("launched again: %v, %d submissions", err, s.calls["submit"])
	}
	if i := s.list()["l1"]; i.Incomplete || i.State != provision.StateRunning {
		t.Errorf("opened it is %+v", i)
	}
}

// TestReadOnlyOffersNothing: neither a pilot nor a slot is to be had where nothing may be submitted.
func TestReadOnlyOffersNothing(t *testing.T) {
	s := newSite(t)
	for _, readOnly := range []bool{false, true} {
		b, err := dispatch.Open(t.Context(), s.system.Client(readOnly))
		if err != nil {
			t.Fatal(err)
		}
		p, err := batch.New(batch.Options{Backend: b, Kind: spec.KindSlurm, Cluster: "c1", Clock: s.clock})
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range []spec.Mode{spec.ModePilot, spec.ModeNative} {
			d := coordinator.Definition{ID: "d", Kind: spec.KindSlurm, Spec: spec.Slurm{CPU: 4, Memory: 1 << 30, Mode: mode}}
			offers, err := p.Offers(t.Context(), []coordinator.Definition{d})
			if err != nil || len(offers) != 1 || offers[0].Available == readOnly || readOnly != (offers[0].Why != "") {
				t.Errorf("read-only %v, %s: %+v, %v", readOnly, mode, offers, err)
			}
		}
	}
}

// TestNumbersAreGivenAgain: a pilot with the number of one that the system has forgotten is not taken for that.
func TestNumbersAreGivenAgain(t *testing.T) {
	s := newSite(t)
	bare := memory.Slurm()
	bare.History = memory.HistoryNone
	s.system = memory.New(s.clock, bare)
	s.restart()
	first, err := s.launch("l1")
	if err != nil {
		t.Fatal(err)
	}
	s.list()
	s.system.Forget(time.Minute)
	if i := s.list()["l1"]; i.State != provision.StateGone {
		t.Fatalf("forgotten it is %+v", i)
	}
	second, err := s.launch("l2")
	if err != nil || second.Handle != first.Handle || second.ID != "l2" || second.State == provision.StateGone || second.Failed != provision.FaultNone {
		t.Errorf("launched again: %+v, %v", second, err)
	}
	if i := s.list()["l2"]; i.State != provision.StateRunning || i.Failed != provision.FaultNone {
		t.Errorf("listed it is %+v", i)
	}
}
