package memory_test

import (
	"testing"
	"time"

	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/dispatchtest"
	"substrate/coordinator/dispatch/memory"
)

// shapes are the kinds of cluster that the suite is run on, each with the checks that it must not leave out.
func shapes() map[string]struct {
	options memory.Options
	must    []string
} {
	noComments, noAccounting, native, untried, patient := memory.Slurm(), memory.Slurm(), memory.PBS(), memory.Slurm(), memory.Slurm()
	patient.GiveUp = 0
	noComments.History = memory.HistoryWithoutComments
	noAccounting.History, noAccounting.Keeps[dispatch.EvidenceExecution] = memory.HistoryNone, 0
	native.NativeRequeue = true
	untried.Holds, untried.CallBound = memory.HoldsUntried, 0
	all := []string{"*"}
	return map[string]struct {
		options memory.Options
		must    []string
	}{
		"slurm":                       {memory.Slurm(), all},
		"slurm without comments":      {noComments, all},
		"slurm without accounting":    {noAccounting, all},
		"pbs":                         {memory.PBS(), all},
		"pbs that requeues":           {native, all},
		"slurm of unknown bounds":     {untried, []string{"find/many", "end/walltime", "fault/node lost", "fault/ceased", "output/followed", "lost/submit that landed"}},
		"slurm that gives nothing up": {patient, all},
		"bare":                        {memory.Bare(), []string{"gate/keeps", "end/walltime", "fault/node lost", "fault/unavailable", "fault/forgotten", "fault/kept for its window"}},
	}
}

func TestSuite(t *testing.T) {
	for name, shape := range shapes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dispatchtest.Backend(t, harness(shape.options, shape.must))
		})
	}
}

// harness gives each check a cluster and a clock of its own, which its waiting turns on.
func harness(o memory.Options, must []string) dispatchtest.Harness {
	return dispatchtest.Harness{
		MustRun: must, Prefix: "suite/",
		Timings: dispatchtest.Timings{Poll: 2 * time.Second, Wait: 30 * time.Second, Quiet: 20 * time.Second, Long: 10 * time.Minute,
			Walltime: time.Minute, NodeLoss: 6 * time.Minute, Requeue: 3 * time.Minute, Purge: 2 * time.Hour},
		Open: func(t *testing.T) dispatchtest.System {
			clock := memory.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
			return system(t, memory.New(clock, o), clock, o)
		},
	}
}

func system(t *testing.T, c *memory.Cluster, clock *memory.Clock, o memory.Options) dispatchtest.System {
	open := func(readOnly bool) func(*testing.T) dispatch.Backend {
		return func(t *testing.T) dispatch.Backend {
			t.Helper()
			b, err := dispatch.Open(t.Context(), c.Client(readOnly))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	return dispatchtest.System{
		Backend: open(false)(t), Clock: clock, Again: open(false), ReadOnly: open(true),
		UnknownID: dispatch.ObjectID("99999" + o.Tail), Workdir: "/scratch/a", Launcher: "each",
		Faults: dispatchtest.Faults{
			LoseReply: func(_ *testing.T, l dispatchtest.Landing) {
				c.LoseReply(map[dispatchtest.Landing]memory.Loss{dispatchtest.Lands: {}, dispatchtest.LandsNever: {Never: true},
					dispatchtest.LandsLate: {After: o.CallBound * 3 / 4}, dispatchtest.LandsTooLate: {After: o.CallBound + time.Second}}[l])
			},
			Unavailable:  func(_ *testing.T, on bool) { c.Unavailable(on) },
			CrashRequeue: func(_ *testing.T, step int) { c.CrashRequeue(step) },
			NodeDown:     func(t *testing.T, node string) { must(t, c.Down(node)) },
			NodeUp:       func(t *testing.T, node string) { must(t, c.Up(node)) },
			Kill:         func(t *testing.T, node string) { must(t, c.Kill(node)) },
			End:          func(t *testing.T, id dispatch.ObjectID, cause dispatch.Cause) { must(t, c.End(id, cause)) },
			OperatorHold: func(t *testing.T, id dispatch.ObjectID, on bool) { must(t, c.OperatorHold(id, on)) },
			Purge:        func(t *testing.T, id dispatch.ObjectID) { must(t, c.Purge(id)) },
		},
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
