package slurm_test

import (
	"context"
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

// as runs commands as a cluster's user, whoever runs the test.
type as struct {
	*transport.Local
	user peer.Account
}

func (a as) Run(ctx context.Context, c transport.Command) (transport.Result, error) {
	id := func(name string, n uint32) string { return fmt.Sprintf("--%s=%d", name, n) }
	c.Argv = append([]string{"setpriv", id("reuid", a.user.UID), id("regid", a.user.GID), "--clear-groups", "--"}, c.Argv...)
	return a.Local.Run(ctx, c)
}

// realOptions are those of a client of a cluster. The probe is done once for each cluster.
func realOptions(c *peer.Cluster) slurm.Options {
	return slurm.Options{Runner: as{transport.NewLocal(c.Env()), c.User}, Clock: wall{}, CacheDir: filepath.Join(c.Dir, "probes")}
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

// TestConformance is the contract on a real cluster. In short form it leaves out what takes minutes.
func TestConformance(t *testing.T) {
	timings := dispatchtest.Timings{Poll: 300 * time.Millisecond, Wait: time.Minute, Quiet: 3 * time.Second, Long: 5 * time.Minute, Call: 2 * time.Second}
	if full() {
		timings.Walltime, timings.NodeLoss, timings.Requeue, timings.Purge = time.Minute, 3*time.Minute, 3*time.Minute, 2*time.Minute
	}
	c := clusters.Start(t, clusterOptions())
	dispatchtest.Backend(t, dispatchtest.Harness{Timings: timings, Parallel: true, Prefix: "conformance/", Open: func(t *testing.T) dispatchtest.System {
		return system(t, c)
	}})
}

func system(t *testing.T, c *peer.Cluster) dispatchtest.System {
	o := realOptions(c)
	s := dispatchtest.System{Backend: open(t, o), Clock: wall{}, UnknownID: "60000000", Workdir: "/usr", Launcher: "srun",
		Again: func(t *testing.T) dispatch.Backend { return open(t, o) },
		ReadOnly: func(t *testing.T) dispatch.Backend {
			ro := o
			ro.ReadOnly = true
			return open(t, ro)
		}}
	s.Faults = faults(c)
	return s
}

func faults(c *peer.Cluster) dispatchtest.Faults {
	return dispatchtest.Faults{
		OperatorHold: func(t *testing.T, id dispatch.ObjectID, on bool) {
			verb := "release"
			if on {
				verb = "hold"
			}
			c.Admin("scontrol", verb, string(id))
		},
		Unavailable: func(t *testing.T, on bool) {
			if on {
				c.KillController()
			} else {
				c.StartController()
			}
		},
	}
}
