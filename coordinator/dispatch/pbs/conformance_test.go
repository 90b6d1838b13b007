package pbs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/dispatchtest"
	"substrate/coordinator/dispatch/pbs"
	"substrate/coordinator/dispatch/transport"
	peer "substrate/tests/pbs"
)

func TestMain(m *testing.M) { os.Exit(peer.Main(m)) }

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

// runner makes calls fail as a test wants it.
type runner struct {
	pbs.Runner
	mu      sync.Mutex
	lose    *dispatchtest.Landing
	crash   int // of a requeue, after this step; 0: none
	step    int
	calls   map[string]int
	errLost error
	// operator: the account may do what the complex lets only its operators do.
	operator bool
}

// unreachable is the status of a command for a job whose node the server does not reach.
const unreachable = 222

func newRunner(r pbs.Runner) *runner {
	return &runner{Runner: r, calls: map[string]int{}, errLost: errors.New("the reply is lost")}
}

func (r *runner) Run(ctx context.Context, c transport.Command) (transport.Result, error) {
	program := c.Argv[0]
	r.mu.Lock()
	r.calls[program]++
	lose, crashed := r.lose, false
	changes := slices.Contains([]string{"qsub", "qrls", "qdel", "qalter", "qrerun"}, program)
	if changes {
		r.lose = nil
	}
	if r.crash > 0 && changes {
		r.step++
		crashed = r.step > r.crash
		if crashed {
			r.crash = 0
		}
	}
	r.mu.Unlock()
	if r.operator && program == "qrerun" {
		c.Env = append(slices.Clone(c.Env), "PBSPEER_USER=root")
	}
	lost := transport.Result{Exit: -1, Started: true, Dead: true}
	switch {
	case crashed:
		return lost, r.errLost
	case !changes || lose == nil:
		result, err := r.Runner.Run(ctx, c)
		// An owner tries again to stop what is on a lost node, until the server has given that up.
		for try := 0; program == "qdel" && result.Exit == unreachable && try < 200; try++ {
			time.Sleep(100 * time.Millisecond)
			result, err = r.Runner.Run(ctx, c)
		}
		if err == nil && r.crashes(3) && program == "qalter" {
			return lost, r.errLost
		}
		return result, err
	case *lose == dispatchtest.Lands:
		if _, err := r.Runner.Run(context.WithoutCancel(ctx), c); err != nil {
			return lost, err
		}
	}
	return lost, r.errLost
}

// crashes reports whether this is the last of a requeue's steps, whose reply is to be lost.
func (r *runner) crashes(step int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crash == step && r.step == step {
		r.crash = 0
		return true
	}
	return false
}

func (r *runner) loseNext(l dispatchtest.Landing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose = &l
}

func (r *runner) crashAfter(step int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crash, r.step = step, 0
}

func (r *runner) count(program string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[program]
}

func open(t *testing.T, o pbs.Options) dispatch.Backend {
	t.Helper()
	b, err := dispatch.Open(t.Context(), func(ctx context.Context) (dispatch.Backend, error) { return pbs.New(ctx, o) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// shape is a kind of complex that the suite is run on.
type shape struct {
	options peer.Options
	change  func(*pbs.Options)
	rights  bool // to requeue
	must    []string
}

// full is whether tests take the time that all kinds of complexes need.
func full() bool { return os.Getenv("SUBSTRATE_PEERS") == "full" }

// shapes: an operator's account can do all that an owner's can, so that the short form is content with it.
func shapes() map[string]shape {
	ttl := 3 * time.Second
	both := []string{"gate/keeps", "find/many", "end/exit 3", "end/signal", "stop/running", "hold/placed, replaced, released", "hold/beside an operator's",
		"spec/about itself", "spec/processes", "output/followed", "output/retained", "lost/submit that landed", "fault/unavailable", "fault/forgotten",
		"fault/node lost", "fault/node back", "fault/ceased", "end/walltime", "answers/read-only"}
	all := map[string]shape{"operator": {peer.Options{History: true}, func(o *pbs.Options) { o.CredentialTTL = &ttl }, true,
		append([]string{"requeue/another execution", "requeue/runs again", "requeue/crash after step 2", "requeue/output of each"}, both...)}}
	if full() {
		all["owner, later client"] = shape{peer.Options{History: true, LaterClient: true, Manage: []string{"set server job_history_duration = 00:01:00"}},
			func(*pbs.Options) {}, false, append([]string{"fault/kept for its window"}, both...)}
	}
	return all
}

func TestConformance(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dispatchtest.Backend(t, dispatchtest.Harness{
				MustRun: s.must, Prefix: "suite/", Parallel: true,
				Timings: dispatchtest.Timings{Poll: 100 * time.Millisecond, Wait: 30 * time.Second, Quiet: 1500 * time.Millisecond, Long: 4 * time.Minute,
					Call: 2 * time.Second, Walltime: 2 * time.Second, NodeLoss: 20 * time.Second, Requeue: 20 * time.Second, Purge: 2 * time.Minute},
				Open: func(t *testing.T) dispatchtest.System { return system(t, s) },
			})
		})
	}
}

// launcher starts a process for each line of the node file, as MPI's launchers do on the nodes.
const launcher = `each() { while read -r host; do "$@"; done <"$PBS_NODEFILE"; }; each`

func system(t *testing.T, s shape) dispatchtest.System {
	t.Helper()
	p := peer.Start(t, s.options)
	r := newRunner(transport.NewLocal(p.Env()))
	r.operator = s.rights
	o := pbs.Options{Runner: r, Clock: wall{}, User: "alice", OutputDir: t.TempDir(), CacheDir: filepath.Join(t.TempDir(), "probes"),
		FollowEvery: 100 * time.Millisecond, CessationCommand: cessation(t, p)}
	s.change(&o)
	client := func(t *testing.T) dispatch.Backend { return open(t, o) }
	return dispatchtest.System{
		Backend: client(t), Clock: wall{}, Again: client,
		ReadOnly: func(t *testing.T) dispatch.Backend {
			ro := o
			ro.ReadOnly = true
			return open(t, ro)
		},
		UnknownID: "99999.vm", Workdir: "/usr", Launcher: launcher,
		Faults: dispatchtest.Faults{
			LoseReply: func(t *testing.T, l dispatchtest.Landing) {
				if l == dispatchtest.LandsLate || l == dispatchtest.LandsTooLate {
					t.Skip("how late a call lands here is its administrator's word")
				}
				r.loseNext(l)
			},
			CrashRequeue: func(_ *testing.T, step int) { r.crashAfter(step) },
			Unavailable: func(_ *testing.T, on bool) {
				if on {
					p.StopServer()
				} else {
					p.StartServer()
				}
			},
			OperatorHold: func(t *testing.T, id dispatch.ObjectID, on bool) {
				verb := "qrls"
				if on {
					verb = "qhold"
				}
				if out := p.Run("root", verb, "-h", "o", string(id)); out.Code != 0 {
					t.Fatalf("%s: %s", verb, out.Stderr)
				}
			},
			NodeDown: func(_ *testing.T, node string) { p.NodeDown(node) },
			NodeUp:   func(_ *testing.T, node string) { p.NodeUp(node, true) },
			Kill:     func(*testing.T, string) { killSessions(p) },
			Purge:    func(_ *testing.T, _ dispatch.ObjectID) { p.Purge() },
		},
	}
}
