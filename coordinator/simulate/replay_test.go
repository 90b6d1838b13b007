package simulate

import (
	"compress/gzip"
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// hpc2n is the log without its first week, in which a backlog from before the log's beginning drains.
func hpc2n(t testing.TB) *Trace {
	t.Helper()
	f, err := os.Open("testdata/hpc2n.swf.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ReadSWF("hpc2n.swf", z)
	if err != nil {
		t.Fatal(err)
	}
	trace.Between(7*24*time.Hour, 0)
	if len(trace.Jobs) != 3013 || trace.Cores != 240 {
		t.Fatalf("the trace has %d jobs on %d cores", len(trace.Jobs), trace.Cores)
	}
	return trace
}

func nodesOf(t testing.TB, spec string) []Node {
	t.Helper()
	nodes, err := ParseNodes(spec, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// arrival is a configuration in which work of one class goes by arrival, and ends are expected by walltimes alone.
func arrival(backfill string) []byte {
	return []byte("scheduler:\n  backfill: " + backfill + `
  priority: "0"
  preemptionNotice: 0s
  maxWalltime: {reserved: 3650d, on-demand: 3650d, batch: 3650d}
definitions:
  - id: node
    provisioner: static
    provisionerSpec: {condition: cpuinfo.cpu_cores >= 1, costPerHour: 1}
`)
}

func run1(t testing.TB, opt Options) *Result {
	t.Helper()
	r, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReplayIsPlainEASY holds the coordinator against a simulator that shares nothing with it. On one node of 240 cores
// nothing but order, backfill and walltimes is left to decide: each job starts at the very same second.
func TestReplayIsPlainEASY(t *testing.T) {
	trace := hpc2n(t)
	for backfill, easy := range map[string]bool{"easy": true, "none": false} {
		t.Run(backfill, func(t *testing.T) {
			plain := plainJobs(trace)
			plainEASY(240, plain, easy)
			r := run1(t, Options{Trace: trace, Nodes: nodesOf(t, "1x240c"), Config: arrival(backfill)})
			differ := 0
			for i, j := range plain {
				if got := int64(r.Jobs[i].Wait); got != j.start-j.submit {
					if differ++; differ < 5 {
						t.Errorf("job %s of line %d waited %d s, in the plain simulator %d s", r.Jobs[i].ID, r.Jobs[i].Line, got, j.start-j.submit)
					}
				}
			}
			wait, slowdown := judge(plain)
			if differ > 0 || math.Abs(r.All.MeanWait-wait) > 1e-6*wait || math.Abs(r.All.Slowdown-slowdown) > 1e-6*slowdown {
				t.Errorf("%d jobs differ; mean wait %.1f s and %.1f s, bounded slowdown %.2f and %.2f", differ, r.All.MeanWait, wait, r.All.Slowdown, slowdown)
			}
			if e := r.Estimates; e.Waited < 1000 || e.Told != e.Waited || e.Median <= 0 || !easy && (e.Later > 0 || e.Slips > 0) {
				t.Errorf("estimates: %+v", e)
			}
			t.Logf("%s: mean wait %.0f s, bounded slowdown %.2f, estimates %+v", backfill, r.All.MeanWait, r.All.Slowdown, r.Estimates)
		})
	}
}

// TestReplayOnManyNodes is the same on nodes of one core, where also which nodes a plan takes is decided.
func TestReplayOnManyNodes(t *testing.T) {
	trace := hpc2n(t)
	plain := plainJobs(trace)
	plainEASY(240, plain, true)
	wait, slowdown := judge(plain)
	strict := plainJobs(trace)
	plainEASY(240, strict, false)
	strictWait, strictSlowdown := judge(strict)
	r := run1(t, Options{Trace: trace, Nodes: nodesOf(t, "240x1c"), Config: arrival("easy")})
	t.Logf("mean wait %.0f s, plain %.0f s, in order %.0f s; bounded slowdown %.2f, plain %.2f, in order %.2f; estimates %+v",
		r.All.MeanWait, wait, strictWait, r.All.Slowdown, slowdown, strictSlowdown, r.Estimates)
	differ := 0
	for i, j := range plain {
		if int64(r.Jobs[i].Wait) != j.start-j.submit {
			differ++
		}
	}
	if differ > 0 {
		t.Errorf("%d jobs do not start when they do in the plain simulator", differ)
	}
	if math.Abs(r.All.MeanWait-wait) > 0.02*wait || math.Abs(r.All.Slowdown-slowdown) > 0.02*slowdown {
		t.Errorf("mean wait %.0f s and %.0f s, bounded slowdown %.2f and %.2f", r.All.MeanWait, wait, r.All.Slowdown, slowdown)
	}
	if r.All.MeanWait > 0.7*strictWait || r.All.Slowdown > 0.5*strictSlowdown {
		t.Errorf("backfill does not help: mean wait %.0f s in order %.0f s", r.All.MeanWait, strictWait)
	}
}

// pods replays a trace of pods and checks at each start what classes promise.
func pods(t *testing.T, trace *Trace, nodes string) *Result {
	t.Helper()
	w, err := found(t.Context(), withDefaults(Options{Trace: trace, Nodes: nodesOf(t, nodes), Reserve: []Reserve{{Group: "burstable"}, {Group: "guaranteed"}},
		Config: []byte(`scheduler: {backfill: easy, maxWalltime: {reserved: 365d, on-demand: 365d, batch: 7d}}
definitions:
  - {id: gpu, provisioner: static, provisionerSpec: {condition: cpuinfo.cpu_cores >= 1, costPerHour: 3}}
`)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	reserved := reservedGPUs(t, w)
	onReserved, outside := 0, 0
	w.begun = func(r *run) {
		for _, k := range r.ranks {
			for _, g := range k.gpus {
				switch owner := reserved[string(k.host.node.ID)+" "+address(g)]; {
				case owner == "":
					if outside++; r.job.Class.String() == "reserved" {
						t.Errorf("reserved job %s has a GPU that is not of its group's reservation", r.job.ID)
					}
				case r.job.Class.String() == "batch":
					onReserved++
				case r.job.Class.String() != "reserved" || r.job.Group != owner:
					t.Errorf("%s job %s of group %s has a GPU that is reserved for %s", r.job.Class, r.job.ID, r.job.Group, owner)
				}
			}
		}
	}
	if err := w.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	result, err := w.result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if onReserved == 0 || outside == 0 {
		t.Errorf("%d starts of batch work on reserved GPUs, %d starts elsewhere", onReserved, outside)
	}
	promised(t, result)
	t.Logf("%d jobs: waits %+v; use %+v; preemptions %v, wasted GPU-hours %.1f; fragmentation %+v; batch on reserved GPUs %d times",
		result.All.Jobs, result.Classes, result.Utilisation, result.Preemptions, result.All.WastedGPUs, *result.Fragmentation, onReserved)
	return result
}

// promised checks what a result says of classes: nobody but batch work gave way, all started, figures agree.
func promised(t *testing.T, result *Result) {
	t.Helper()
	for _, c := range result.Classes {
		if c.Name != "batch" && c.Preemptions > 0 {
			t.Errorf("%d preemptions of %s work", c.Preemptions, c.Name)
		}
		if c.Started != c.Jobs || c.Jobs == 0 {
			t.Errorf("%d of %d %s jobs started", c.Started, c.Jobs, c.Name)
		}
	}
	if len(result.Refused) > 0 || result.Unfinished > 0 {
		t.Errorf("%v refused, %d unfinished", result.Refused, result.Unfinished)
	}
	all := 0
	for right, n := range result.Preemptions {
		if all += n; right != "class" && right != "reservation" {
			t.Errorf("%d preemptions by %q", n, right)
		}
	}
	if all != result.All.Preemptions {
		t.Errorf("events tell of %d preemptions, nodes of %d", all, result.All.Preemptions)
	}
	f := result.Fragmentation
	if f == nil || f.Free <= 0 || f.Rate < 0 || f.Rate > 1 {
		t.Fatalf("fragmentation: %+v", f)
	}
	for i := 1; i < len(f.BySize); i++ {
		if f.BySize[i].Fragments < f.BySize[i-1].Fragments-1e-9 {
			t.Errorf("fewer fragments for larger jobs: %+v", f.BySize)
		}
	}
}

// reservedGPUs lists whose the reserved GPUs are: the group by node and address.
func reservedGPUs(t *testing.T, w *world) map[string]string {
	t.Helper()
	out := map[string]string{}
	list, _, err := w.engine.Reservations(context.Background(), w.admin, "", true, enginePage)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d reservations, %v", len(list), err)
	}
	for _, r := range list {
		n := 0
		for _, p := range r.Parts {
			for _, d := range p.Devices {
				out[string(p.Node)+" "+d] = r.Group
				n++
			}
		}
		if n == 0 || n != int(r.GPUs) {
			t.Errorf("reservation %s of %d GPUs has %d: %+v", r.Name, r.GPUs, n, r)
		}
	}
	return out
}

// TestOpenb replays Alibaba's trace of 2023 where somebody has it: see testdata/README.md.
func TestOpenb(t *testing.T) {
	dir := os.Getenv("SUBSTRATE_TRACES")
	if dir == "" {
		t.Skip("SUBSTRATE_TRACES does not name a directory with openb_pods.csv; TestPods shows the same of pods that are made here")
	}
	f, err := os.Open(filepath.Join(dir, "openb_pods.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := ReadCSV("openb_pods.csv", f)
	if err != nil {
		t.Fatal(err)
	}
	pods(t, trace, "9x8gpu,128c,1TiB,2numa")
}
