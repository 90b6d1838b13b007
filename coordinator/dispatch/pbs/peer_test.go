package pbs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/dispatchtest"
	"substrate/coordinator/dispatch/pbs"
	"substrate/coordinator/dispatch/transport"
	peer "substrate/tests/pbs"
)

// complex starts one with a client that counts its commands.
func complex(t *testing.T, o peer.Options) (*peer.Peer, *runner, pbs.Options) {
	t.Helper()
	p := peer.Start(t, o)
	r := newRunner(transport.NewLocal(p.Env()))
	return p, r, pbs.Options{Runner: r, Clock: wall{}, User: "alice", OutputDir: t.TempDir(), CacheDir: filepath.Join(t.TempDir(), "probes")}
}

func job(n int) dispatch.Spec {
	return dispatch.Spec{Ref: dispatch.Ref{Job: dispatch.JobID(fmt.Sprintf("job-%d", n)), Submission: 1, Attempt: 1}, Script: "#!/bin/sh\nsleep 300\n", Nodes: 1}
}

// TestPoll: however many jobs are followed, a look is one qstat, and one pbsnodes when any of them runs. What others write changes nothing of it but
// how often is asked.
func TestPoll(t *testing.T) {
	t.Parallel()
	p, r, o := complex(t, peer.Options{History: true})
	b := open(t, o)
	var ids []dispatch.ObjectID
	for n := range 5 {
		id, err := b.Submit(t.Context(), job(n))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	look := func(qstat, pbsnodes int) {
		t.Helper()
		q, n := r.count("qstat"), r.count("pbsnodes")
		got, err := b.(dispatch.MultiFinder).FindMany(t.Context(), ids)
		if err != nil || len(got) != len(ids) {
			t.Fatalf("found %d of %d, %v", len(got), len(ids), err)
		}
		if q, n = r.count("qstat")-q, r.count("pbsnodes")-n; q != qstat || n != pbsnodes {
			t.Errorf("a look is %d qstat and %d pbsnodes, want %d and %d", q, n, qstat, pbsnodes)
		}
	}
	look(1, 0)
	if err := b.OpenGate(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(20 * time.Second); ; {
		v, err := b.Inspect(t.Context(), ids[0])
		if err != nil || time.Now().After(until) {
			t.Fatalf("%s/%s, %v", v.State, v.Cause, err)
		}
		if v.State == dispatch.StateRunning {
			break
		}
	}
	look(1, 1)
	for _, args := range [][]string{{"-N", "nan"}, {"-N", "00"}, {"-v", "A=\xe2\x82\xac"}, {"-v", "DISPATCH_MARK=v1_x"}} {
		if out := p.Run("bob", "qsub", append([]string{"-h"}, append(args, "--", "/bin/true")...)...); out.Code != 0 {
			t.Fatalf("bob's submission: %s", out.Stderr)
		}
	}
	if out := p.Run("bob", "qsub", "-h", "--", "/bin/echo", `x\\","job_state":"F","Exit_status":0,"y":"`); out.Code != 0 {
		t.Fatalf("bob's submission: %s", out.Stderr)
	}
	look(2, 1)
	found, err := b.Find(t.Context(), dispatch.Ref{Job: "job-3"})
	if err != nil || len(found) != 1 || found[0].Object != ids[3] || found[0].Cause != dispatch.CauseGated {
		t.Errorf("found %+v, %v", found, err)
	}
	for _, id := range ids {
		if err := b.Stop(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// TestPreflight is what can be said of a complex without a probe, from a cached one, and not at all.
func TestPreflight(t *testing.T) {
	t.Parallel()
	_, r, o := complex(t, peer.Options{History: true, Manage: []string{"set server job_history_duration = 01:30:00", "set server node_fail_requeue = 20"}})
	readOnly := o
	readOnly.ReadOnly = true
	b, err := pbs.New(t.Context(), readOnly)
	if err != nil {
		t.Fatal(err)
	}
	can, _ := b.Capabilities(t.Context(), dispatch.Spec{})
	if h := can[dispatch.Hold]; h.Answer != dispatch.Unknown || h.Reason != "read-only, and no cached probe" || r.count("qsub") != 0 {
		t.Errorf("a read-only client answers %+v after %d submissions", h, r.count("qsub"))
	}
	if got := dispatch.InterfacesOf(open(t, readOnly)); slices.Contains(got, dispatch.InterfaceHolder) || slices.Contains(got, dispatch.InterfaceRequeuer) {
		t.Errorf("a read-only client offers %v", got)
	}
	if _, err := pbs.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	probes := r.count("qsub")
	again, err := pbs.New(t.Context(), readOnly)
	if err != nil {
		t.Fatal(err)
	}
	can, _ = again.Capabilities(t.Context(), dispatch.Spec{})
	report := again.Preflight()
	if h := can[dispatch.Hold]; h.Answer != dispatch.Yes || h.Source != dispatch.Probed || !report.Cached || probes != 1 || r.count("qsub") != 1 {
		t.Errorf("from the cache it answers %+v, report %+v", h, report)
	}
	d := again.Declarations()
	if d.PolledLoss[dispatch.EvidenceState] != dispatch.Window(90*time.Minute) || d.NodeLossWindow != 80*time.Second || d.CallBound != 0 {
		t.Errorf("it declares %+v", d)
	}
	if report.Cluster != "vm" || report.Account != "alice" || report.Settings["job_history_enable"] != "True" {
		t.Errorf("the report is %+v", report)
	}
	if err := dispatch.CheckInterval(2*time.Hour, d); err == nil {
		t.Error("a poll that misses ends is allowed")
	}
}

// TestNoHistory: where what has finished is forgotten at once nobody could tell success from failure.
func TestNoHistory(t *testing.T) {
	t.Parallel()
	_, r, o := complex(t, peer.Options{})
	if _, err := pbs.New(t.Context(), o); !errors.Is(err, dispatch.ErrUnsupported) || !strings.Contains(err.Error(), "job_history_enable") {
		t.Errorf("it is opened: %v", err)
	}
	if r.count("qsub") != 0 {
		t.Error("it was given a job")
	}
}

// cessation is a command that looks for the processes of an execution where the complex keeps their leaders' numbers.
func cessation(t *testing.T, p *peer.Peer) []string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ceased")
	script := "#!/bin/sh\nf=$1/mom/${2%%.*}.$(($3 + 1))/session\n[ -s \"$f\" ] || exit 1\nkill -0 \"$(cat \"$f\")\" 2>/dev/null && exit 3\nexit 0\n"
	if err := os.WriteFile(name, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{name, p.Dir()}
}

func killSessions(p *peer.Peer) {
	for _, pid := range p.Sessions() {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // it may be gone by now
	}
}

// TestReal is the contract on a site's own complex: SUBSTRATE_PBS is 1 where its commands are on the PATH, or the directory of its commands.
func TestReal(t *testing.T) {
	where := os.Getenv("SUBSTRATE_PBS")
	if where == "" {
		t.Skip("SUBSTRATE_PBS names no complex")
	}
	env := os.Environ()
	if where != "1" {
		env = append(env, "PATH="+where+":"+os.Getenv("PATH"))
	}
	o := pbs.Options{Runner: transport.NewLocal(env), Clock: wall{}, CacheDir: t.TempDir(), OutputDir: os.Getenv("SUBSTRATE_PBS_OUTPUT")}
	dispatchtest.Backend(t, dispatchtest.Harness{
		Prefix: fmt.Sprintf("conformance/%d/", time.Now().Unix()), Parallel: true,
		Timings: dispatchtest.Timings{Poll: time.Second, Wait: 5 * time.Minute, Quiet: 15 * time.Second, Long: 20 * time.Minute, Walltime: time.Minute},
		Open: func(t *testing.T) dispatchtest.System {
			return dispatchtest.System{Backend: open(t, o), Clock: wall{}, Again: func(t *testing.T) dispatch.Backend { return open(t, o) },
				ReadOnly: func(t *testing.T) dispatch.Backend {
					ro := o
					ro.ReadOnly = true
					return open(t, ro)
				}, Workdir: "/tmp", Launcher: launcher}
		},
	})
}
