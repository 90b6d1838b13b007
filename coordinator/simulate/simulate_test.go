package simulate

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
)

// small replays a few lines of CSV.
func small(t *testing.T, text string, opt Options) (*Result, error) {
	t.Helper()
	trace, err := ReadCSV("t.csv", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	opt.Trace = trace
	return Run(t.Context(), opt)
}

func waits(r *Result) (out []float64) {
	for _, j := range r.Jobs {
		out = append(out, j.Wait)
	}
	return out
}

func equal(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-9 {
			return false
		}
	}
	return true
}

func TestWork(t *testing.T) {
	preempting := []byte("scheduler: {backfill: easy, preemptionNotice: 60s, minPreemptionRuntime: 0s}\n" + strings.SplitAfterN(DefaultConfig, "batch: 3650d}\n", 2)[1])
	for name, c := range map[string]struct {
		csv   string
		nodes string
		opt   Options
		want  []float64 // waits
		check func(*testing.T, *Result)
	}{
		"one after the other": {"submit,run,cores\n0,100,2\n10,100,2\n20,50,2\n", "1x2c", Options{}, []float64{0, 90, 180}, func(t *testing.T, r *Result) {
			if r.Span != 250 || r.All.MeanWait != 90 || r.All.MedianWait != 90 || r.All.MaxWait != 180 || r.Utilisation.Cores != 1 || r.Finished != 3 {
				t.Errorf("%+v %+v", r.All, r.Utilisation)
			}
			if want := (1 + 1.9 + 4.6) / 3; math.Abs(r.All.Slowdown-want) > 1e-9 {
				t.Errorf("slowdown %g instead of %g", r.All.Slowdown, want)
			}
		}},
		"a short job counts ten seconds": {"submit,run\n0,20\n0,1\n", "1x1c", Options{}, []float64{0, 20}, func(t *testing.T, r *Result) {
			if want := (1 + 2.1) / 2; math.Abs(r.All.Slowdown-want) > 1e-9 {
				t.Errorf("slowdown %g instead of %g", r.All.Slowdown, want)
			}
		}},
		"a walltime ends": {"submit,run,walltime\n0,100,60\n0,10,60\n", "1x1c", Options{}, []float64{0, 60}, func(t *testing.T, r *Result) {
			if r.Walled != 1 || r.Finished != 1 || r.Jobs[0].Outcome != Walltime || r.Jobs[0].Ran != 60 {
				t.Errorf("%+v", r.Jobs)
			}
			if e := r.Estimates; e.Waited != 1 || e.Told != 1 || e.Median != 60 || e.Signed != 60 || e.Later != 0 { // the notice is expected too
				t.Errorf("%+v", e)
			}
		}},
		"processors are spread": {"submit,run,procs\n0,100,6\n0,100,2\n", "4x2c", Options{}, []float64{0, 0}, nil},
		"batch gives way at once": {"submit,run,class\n0,1000,batch\n100,50,on-demand\n", "1x1c", Options{Config: preempting}, []float64{0, 0}, func(t *testing.T, r *Result) {
			if r.Classes[0].Preemptions != 1 || math.Abs(r.All.WastedCores-100.0/3600) > 1e-9 || r.Preemptions["class"] != 1 || r.Jobs[0].Preempted != 1 || r.Jobs[0].Ran != 1000 {
				t.Errorf("%+v %v", r.Classes, r.Preemptions)
			}
		}},
		"batch uses its notice": {"submit,run,class\n0,1000,batch\n100,50,on-demand\n", "1x1c", Options{Config: preempting, TermDelay: 40 * time.Second}, []float64{0, 40}, nil},
		"batch is killed":       {"submit,run,class\n0,1000,batch\n100,50,on-demand\n", "1x1c", Options{Config: preempting, TermDelay: time.Hour}, []float64{0, 60}, nil},
		"batch ends before":     {"submit,run,class\n0,110,batch\n100,50,on-demand\n", "1x1c", Options{Config: preempting, TermDelay: time.Hour}, []float64{0, 10}, nil},
		"a queue has a class": {"submit,run,queue\n0,1000,night\n100,50,day\n", "1x1c",
			Options{Config: preempting, Classes: map[string]coordinator.Class{"night": coordinator.ClassBatch}}, []float64{0, 0}, nil},
		"a group has priority": {"submit,run,group\n0,100,a\n1,10,a\n2,10,b\n", "1x1c", Options{Priorities: map[string]int32{"b": 5}}, []float64{0, 109, 98}, nil},
		"reserved is waited for by others": {"submit,run,class,gpus,group\n0,100,on-demand,1,a\n0,100,on-demand,1,a\n50,10,reserved,1,b\n", "1x2gpu",
			Options{Reserve: []Reserve{{Group: "b"}}}, []float64{0, 100, 0}, nil},
		"what is too large is refused": {"submit,run,cores\n0,10,3\n0,10,1\n", "1x2c", Options{}, []float64{0}, func(t *testing.T, r *Result) {
			if len(r.Refused) != 1 || r.All.Jobs != 1 {
				t.Errorf("%v", r.Refused)
			}
		}},
		"a job of no time": {"submit,run\n0,0\n0,0\n", "1x1c", Options{}, []float64{0, 0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.opt.Nodes = nodesOf(t, c.nodes)
			r, err := small(t, c.csv, c.opt)
			if err != nil {
				t.Fatal(err)
			}
			if got := waits(r); !equal(got, c.want) {
				t.Errorf("waits %v instead of %v", got, c.want)
			}
			if c.check != nil {
				c.check(t, r)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		opt  Options
		want string
	}{
		"configuration": {Options{Config: []byte("definitions: [{id: x}]\n"), Name: "c.yaml"}, "c.yaml:1:"},
		"priority":      {Options{Priorities: map[string]int32{"nobody": 1}}, `no job of the trace is of group "nobody", there are a, b`},
		"preempts":      {Options{Preempts: map[string][]string{"a": {"c"}}}, `no job of the trace is of group "c"`},
		"reservation":   {Options{Reserve: []Reserve{{Group: "a"}}}, "cannot reserve for group a: it has no reserved work in the trace"},
	} {
		t.Run(name, func(t *testing.T) {
			c.opt.Nodes = nodesOf(t, "1x1c")
			_, err := small(t, "submit,run,group\n0,1,a\n0,1,b\n", c.opt)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, wanted %s", err, c.want)
			}
		})
	}
	if _, err := small(t, "submit,run\n", Options{Nodes: nodesOf(t, "1x1c")}); err == nil || !strings.Contains(err.Error(), "no jobs") {
		t.Errorf("an empty trace: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	trace := &Trace{Jobs: []Job{{Run: time.Hour, Class: coordinator.ClassOnDemand}}}
	if _, err := Run(ctx, Options{Trace: trace, Nodes: nodesOf(t, "1x1c")}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted simulation: %v", err)
	}
}

// TestSameTwice: nothing of a simulation depends on chance.
func TestSameTwice(t *testing.T) {
	text := somePods(200, 3)
	run := func() *Result {
		r, err := small(t, text, Options{Nodes: nodesOf(t, "2x8gpu"), Classes: map[string]coordinator.Class{"Burstable": coordinator.ClassBatch, "Guaranteed": coordinator.ClassOnDemand}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := run(), run()
	if !equal(waits(a), waits(b)) || a.All != b.All || a.Estimates != b.Estimates {
		t.Errorf("%+v and %+v", a.All, b.All)
	}
}

func TestFragments(t *testing.T) {
	w := &world{}
	for range 2 { // eight GPUs in two fabrics of four, 16 cores
		w.hosts = append(w.hosts, &host{fabric: []int{0, 0, 0, 0, 4, 4, 4, 4}, busy: make([]bool, 8), cores: 16})
	}
	f := fragments{sizes: []int{1, 2, 4, 8}, cores: []int{1, 2, 4, 8}, shares: []float64{0.7, 0.1, 0.1, 0.1}}
	w.hosts[0].busy = []bool{true, true, true, false, true, true, false, false}
	w.hosts[1].cores = 3 // enough for one or two GPUs only
	each, expected := f.of(w.hosts)
	want := []float64{0, 1, 3 + 8, 3 + 8}
	if !equal(each, want) || math.Abs(expected-(0.1+1.1+1.1)) > 1e-9 {
		t.Errorf("got %v and %g, wanted %v", each, expected, want)
	}
}

func TestMean(t *testing.T) {
	at := func(s int) time.Time { return epoch().Add(time.Duration(s) * time.Second) }
	series := []sample{{at: at(0), waiting: 1}, {at: at(120), waiting: 3}, {at: at(240), waiting: 0}}
	all, points := mean(series, at(0), at(480), func(s *sample) float64 { return float64(s.waiting) })
	if all != 1 || len(points) != seriesPoints || points[0].Value != 1 || points[seriesPoints/4].Value != 3 || points[seriesPoints-1].Value != 0 {
		t.Errorf("mean %g, %v", all, points[:3])
	}
	if all, points := mean(nil, at(0), at(10), nil); all != 0 || points != nil {
		t.Errorf("of nothing: %g, %v", all, points)
	}
}

func TestQuantileAndJain(t *testing.T) {
	list := []float64{1, 2, 3, 4}
	for q, want := range map[float64]float64{0: 1, 0.25: 1, 0.5: 2, 0.51: 3, 0.95: 4, 1: 4} {
		if got := Quantile(list, q); got != want {
			t.Errorf("%g: %g instead of %g", q, got, want)
		}
	}
	if Quantile(nil, 0.5) != 0 {
		t.Error("of nothing")
	}
	if got := jain([]Group{{Slowdown: 1}, {Slowdown: 1}}); got != 1 {
		t.Errorf("of equals: %g", got)
	}
	if got := jain([]Group{{Slowdown: 1}, {Slowdown: 3}}); got != 0.8 {
		t.Errorf("of others: %g", got)
	}
}
