package slurm_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/dispatchtest"
	"substrate/coordinator/dispatch/slurm"
	"substrate/coordinator/dispatch/transport"
	peer "substrate/tests/slurm"
)

// clusters are lent to one test after the other.
var clusters peer.Pool

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil { // tests on a cluster wait more than they work
		panic(err)
	}
	code := m.Run()
	clusters.Close()
	os.Exit(code)
}

// full is whether tests take the time that real clusters need for what is slow: walltimes, lost nodes, requeues, purges.
func full() bool { return os.Getenv("SUBSTRATE_PEERS") == "full" }

// wall is the real clock.
type wall struct{}

func (wall) Now() time.Time { return time.Now() }

func (wall) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// realOptions are those of a client of a cluster. The probe is done once for each cluster.
func realOptions(r slurm.Runner, c *peer.Cluster) slurm.Options {
	return slurm.Options{Runner: r, Clock: wall{}, CacheDir: filepath.Join(c.Dir, "probes")}
}

func open(t *testing.T, o slurm.Options) dispatch.Backend {
	t.Helper()
	b, err := dispatch.Open(t.Context(), func(ctx context.Context) (dispatch.Backend, error) { return slurm.New(ctx, o) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func clusterOptions() peer.Options {
	return peer.Options{Accounting: true, MinJobAge: 20 * time.Second, CredentialTTL: 8 * time.Second}
}

// TestConformance is the contract on a real cluster, as an ordinary account. In short form it leaves out what takes minutes.
func TestConformance(t *testing.T) {
	timings := dispatchtest.Timings{Poll: 300 * time.Millisecond, Wait: time.Minute, Quiet: 3 * time.Second, Long: 5 * time.Minute, Call: 2 * time.Second}
	if full() {
		timings.Walltime, timings.NodeLoss, timings.Requeue, timings.Purge = time.Minute, 3*time.Minute, 3*time.Minute, 2*time.Minute
	}
	c := clusters.Start(t, clusterOptions())
	dispatchtest.Backend(t, dispatchtest.Harness{Timings: timings, Parallel: !full(), Prefix: "conformance/", Open: func(t *testing.T) dispatchtest.System {
		return system(t, c)
	}})
}

func system(t *testing.T, c *peer.Cluster) dispatchtest.System {
	r := &asUser{Local: transport.NewLocal(c.Env()), c: c}
	o := realOptions(r, c)
	s := dispatchtest.System{Clock: wall{}, UnknownID: "60000000", Workdir: "/usr", Launcher: "srun", Faults: faults(c, r)}
	if full() {
		o.CessationCommand = []string{cessation(t, c)}
	}
	s.Backend = open(t, o)
	s.Again = func(t *testing.T) dispatch.Backend { return open(t, o) }
	s.ReadOnly = func(t *testing.T) dispatch.Backend {
		ro := o
		ro.ReadOnly = true
		return open(t, ro)
	}
	return s
}

// TestSubmissionsAreNeitherLostNorDoubled: whatever becomes of sbatch and the controller, an owner that goes by the contract ends up with
// one object.
func TestSubmissionsAreNeitherLostNorDoubled(t *testing.T) {
	c := clusters.Start(t, clusterOptions())
	o := realOptions(&asUser{Local: transport.NewLocal(c.Env()), c: c}, c)
	o.Deadline = 4 * time.Second
	b := open(t, o)
	for name, s := range map[string]struct {
		fault func()
		slow  bool
	}{
		"killed after its work": {func() { c.LoseReply("sbatch", 1) }, false},
		"claims to have failed": {func() {
			c.DenyReply("sbatch", 1, 1, "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
		}, false},
		"hangs after its work":           {func() { c.HangReply("sbatch", 1) }, false},
		"killed before its work":         {func() { c.KillCall("sbatch", 1) }, true},
		"late and killed at its time":    {func() { c.DelayCall("sbatch", 1, time.Minute) }, true},
		"the controller dies":            {func() { c.KillController(); go func() { time.Sleep(2 * time.Second); c.StartController() }() }, true},
		"the controller stops for a bit": {func() { c.StopController(); go func() { time.Sleep(6 * time.Second); c.ContinueController() }() }, true},
		"the controller stops for long":  {func() { c.StopController(); go func() { time.Sleep(16 * time.Second); c.ContinueController() }() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			if s.slow && !full() {
				t.Skip("takes as long as a call may be late; make test-peers runs it")
			}
			spec := dispatch.Spec{Ref: dispatch.Ref{Job: dispatch.JobID("double/" + filepath.Base(t.Name())), Submission: 1, Attempt: 1},
				Script: "#!/bin/sh\nexec sleep 300\n", Nodes: 1, Output: &dispatch.Output{}}
			s.fault()
			id := owner(t, b, spec)
			if err := b.OpenGate(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			c.AwaitJob(string(id), "RUNNING")
			list, err := b.Find(t.Context(), dispatch.Ref{Job: spec.Ref.Job})
			if err != nil || len(list) != 1 || list[0].Object != id {
				t.Errorf("in the end there are %+v, %v", list, err)
			}
			if err := b.Stop(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
}

// owner submits until one object is known: after an unknown outcome it looks until no call can land any more, then submits anew.
func owner(t *testing.T, b dispatch.Backend, spec dispatch.Spec) dispatch.ObjectID {
	t.Helper()
	for try := 0; try < 20; try++ {
		id, err := b.Submit(t.Context(), spec)
		switch {
		case err == nil:
			return id
		case errors.Is(err, dispatch.ErrUnavailable):
			time.Sleep(2 * time.Second)
			continue
		case !errors.Is(err, dispatch.ErrOutcomeUnknown):
			t.Fatalf("submit: %v", err)
		}
		t.Logf("try %d: %v", try, err)
		for until := time.Now().Add(b.Declarations().CallBound); ; time.Sleep(time.Second) {
			over := time.Now().After(until) // before the look that counts
			list, err := b.Find(t.Context(), spec.Ref)
			if err == nil && len(list) > 0 {
				return list[0].Object
			}
			if err == nil && over {
				break
			}
		}
		spec.Ref.Submission++
	}
	t.Fatal("it never gets through")
	return ""
}

// TestAccountingAway: with the database dead, jobs in squeue are seen, others are not said to be unknown, and nothing is lost afterwards.
func TestAccountingAway(t *testing.T) {
	if !full() {
		t.Skip("takes minutes; make test-peers runs it")
	}
	c := clusters.Start(t, clusterOptions())
	b := open(t, realOptions(&asUser{Local: transport.NewLocal(c.Env()), c: c}, c))
	spec := dispatch.Spec{Ref: dispatch.Ref{Job: "accounting/away", Submission: 1, Attempt: 1}, Script: "#!/bin/sh\nexit 3\n", Nodes: 1}
	c.KillAccounting()
	id, err := b.Submit(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.OpenGate(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c.AwaitJob(string(id), "FAILED")
	if o, err := b.Inspect(t.Context(), id); err != nil || o.Cause != dispatch.CauseExitCode {
		t.Errorf("in squeue: %+v, %v", o, err)
	}
	if _, err := b.Inspect(t.Context(), "60000000"); !errors.Is(err, dispatch.ErrUnavailable) {
		t.Errorf("of a job that only accounting could know: %v", err)
	}
	c.StartAccounting()
	for range 180 {
		many, err := b.(dispatch.MultiFinder).FindMany(t.Context(), []dispatch.ObjectID{id})
		if err == nil && len(many) == 0 {
			o, err := b.Inspect(t.Context(), id)
			if err == nil && o.Cause == dispatch.CauseExitCode && *o.ExitCode == 3 && o.Ref == spec.Ref {
				return
			}
			t.Logf("from accounting: %+v, %v", o, err)
		}
		time.Sleep(time.Second)
	}
	t.Error(fmt.Errorf("job %s is not found in accounting", id))
}
