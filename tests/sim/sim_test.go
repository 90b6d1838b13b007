package sim

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

var (
	seedFlag   = flag.Uint64("seed", 0, "simulate this seed alone")
	seedsFlag  = flag.String("seeds", "", "simulate these seeds: a number of them, or first-last")
	hoursFlag  = flag.Int("hours", 22, "simulated hours in which work comes and things break")
	resultFlag = flag.String("result", "", "write what became of -seed to this file")
	traceFlag  = flag.String("trace", "", "write every step of -seed to this file")
)

// result is what became of one seed.
type result struct {
	Seed     uint64
	Digest   uint64
	Steps    int
	Counts   map[string]int
	Failures []string
	Last     string
	Ended    time.Duration
	Took     time.Duration
}

func machines() map[string]*machine {
	return map[string]*machine{
		"islands": {fixture: "power9-v100", definition: "islands", cores: 40, memory: 270122090496, fabrics: [][]string{
			{"0004:04:00.0", "0004:05:00.0", "0004:06:00.0"}, {"0035:03:00.0", "0035:04:00.0", "0035:05:00.0"}}},
		"pairs": {fixture: "pcie-pairs", definition: "pairs", cores: 32, memory: 540559360000, fabrics: [][]string{
			{"0000:01:00.0", "0000:25:00.0"}, {"0000:81:00.0", "0000:c1:00.0"}}},
		"desk": {fixture: "hybrid-desktop", definition: "desks", cores: 14, memory: 33292288000},
		"box":  {fixture: "container", definition: "desks", cores: 2, memory: 8589934592},
	}
}

// newWorld makes the machines; nothing runs yet.
func newWorld(t testing.TB, seed uint64, roots map[string]string) *world {
	w := &world{t: t, seed: seed, disk: store.NewMemory(), kick: make(chan struct{}, 1), counts: map[string]int{}}
	w.judge = newJudge(w)
	w.chaos, w.store = w.rng("chaos"), w.rng("store")
	w.feed = &feed{world: w, rng: w.rng("feed"), ops: w.rng("settings")}
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.logs = out
	kinds := machines()
	shape := w.rng("machines")
	for i, kind := range []string{"islands", "islands", "pairs", "desk", "desk", "desk", "box"} {
		n := &vnode{world: w, id: fmt.Sprintf("n%d-%s", i+1, kind), machine: kinds[kind], root: roots[kind], dir: t.TempDir(),
			runs: nil, latency: time.Duration(1+shape.IntN(20)) * time.Millisecond}
		if shape.IntN(2) == 0 {
			n.skew = time.Duration(shape.Int64N(int64(20*time.Minute))) - 10*time.Minute
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

func (w *world) node(id string) *vnode {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// simulate runs one seed in a bubble of its own time.
func simulate(t *testing.T, seed uint64, roots map[string]string, hours int, out *os.File) (r result) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, roots)
		w.trace.out = out
		w.began = time.Now()
		r = w.play(time.Duration(hours) * time.Hour)
	})
	r.Took = time.Since(began)
	return r
}

// play is the story of every seed: a cluster is founded, works and breaks for some hours, and is left in peace until
// all has ended.
func (w *world) play(busy time.Duration) result {
	w.startCoordinator()
	w.mu.Lock()
	for _, n := range w.nodes {
		w.after(time.Duration(1+w.chaos.Int64N(int64(10*time.Second))), func() { n.boot(true) })
	}
	w.mu.Unlock()
	if err := w.feed.found(context.Background()); err != nil {
		w.mu.Lock()
		w.fail("the cluster cannot be founded: %v", err)
		w.mu.Unlock()
	}
	w.feed.until = time.Now().Add(busy)
	w.run(time.Now().Add(time.Minute), nil)
	w.feed.arrive()
	w.unleash()
	w.repeat(20*time.Minute, w.audit)
	w.sweep()
	w.run(w.feed.until, nil)
	w.heal()
	w.pulse()
	w.run(time.Now().Add(patience), w.rests)
	w.mu.Lock()
	w.ends()
	w.mu.Unlock()
	w.run(time.Now().Add(time.Minute), nil)
	ended := time.Since(w.began)
	w.finish()
	w.mu.Lock()
	defer w.mu.Unlock()
	return result{Seed: w.seed, Digest: w.trace.fold(), Steps: w.trace.steps, Counts: w.counts, Failures: w.failures,
		Last: w.trace.String(), Ended: ended}
}

// pulse gives the simulation a moment every minute to see that all is over.
func (w *world) pulse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after(time.Minute, w.pulse)
}

// sweep lets the collector run at times that are the same in each run: what is used again need not be asked of the system.
func (w *world) sweep() {
	runtime.GC()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after(sweepEvery, w.sweep)
}

const sweepEvery = time.Hour

// Once nothing breaks any more, all that waits may take patience together, and somebody begins or ends within quiet: the longest
// process lasts four hours, and an array may run one after the other.
const (
	patience = 72 * time.Hour
	quiet    = 6 * time.Hour
)

// rests reports that all work has ended, or that nothing happens any more. w.mu is held.
func (w *world) rests() bool { return w.settled() || time.Since(w.judge.moved) > quiet }

// settled reports that all work has ended. w.mu is held.
func (w *world) settled() bool {
	for id := range w.judge.workflows {
		if !w.judge.over(id) {
			return false
		}
	}
	return w.feed.handed()
}

// handed reports that everybody has been answered.
func (f *feed) handed() bool {
	for _, fl := range f.flows {
		if !fl.answered && fl.refused == "" {
			return false
		}
	}
	return true
}

// over reports whether all allocations of a workflow have ended.
func (j *judge) over(id coordinator.WorkflowID) bool {
	wf := j.workflows[id]
	for i := range wf.Spec.Jobs {
		job := &wf.Spec.Jobs[i]
		base := string(id) + "/" + job.Name
		if job.Array == nil {
			if a := j.find(coordinator.AllocationID(base)); !a.record.Status.Ended() {
				return false
			}
			continue
		}
		for task := job.Array.Start; task <= job.Array.End; task++ {
			if a := j.find(coordinator.AllocationID(fmt.Sprintf("%s/%d", base, task))); !a.record.Status.Ended() {
				return false
			}
		}
	}
	return true
}

// ends judges how the world is left: everything feasible has ended, nothing runs, nothing is held. w.mu is held.
func (w *world) ends() {
	if len(w.failures) > 0 {
		return
	}
	j := w.judge
	open := 0
	for id := range j.workflows {
		if !j.over(id) {
			open++
		}
	}
	if open > 0 {
		for _, a := range j.allocs {
			if !a.record.Status.Ended() && open < 20 {
				w.step("still open: %s #%d %s %v %s", a.id, a.record.Attempt, a.record.Status, a.record.Ranks, a.record.Message)
			}
		}
		w.fail("%d workflows have not ended; nothing has begun or ended since %s", open, stamp(j.moved.Sub(w.began)))
		return
	}
	for _, fl := range w.feed.flows {
		if !fl.answered && fl.refused == "" {
			w.fail("flow %d was never answered", fl.number)
		}
	}
	for id := range j.holds {
		w.fail("room is still held for %s", id)
	}
	for _, n := range w.nodes {
		if len(j.live[n.id]) > 0 {
			w.fail("on %s still runs %s", n.id, j.list(n))
		}
	}
}

// finish ends everything in the bubble.
func (w *world) finish() {
	w.mu.Lock()
	w.calm = true
	l := w.life
	if l != nil && l.alive {
		w.chaos = rand.New(rand.NewPCG(1, 1))
		l.crash("the simulation is over")
	}
	w.mu.Unlock()
	for _, n := range w.nodes {
		w.mu.Lock()
		n.on = false
		for _, r := range n.runs {
			r.disarm()
		}
		w.mu.Unlock()
		n.killAgent(true)
	}
	if l != nil {
		l.bury()
	}
	w.mu.Lock()
	w.life = nil
	for _, fl := range w.feed.flows {
		_ = fl
	}
	w.closed = true
	w.mu.Unlock()
	w.asks.Wait()
	_ = w.logs.Close()
}

// audit asks what users ask, and holds the answers against each other.
func (w *world) audit() {
	w.ask(func() {
		e, c, ok := w.caller(w.feed.admin)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, class := range []coordinator.Class{coordinator.ClassOnDemand, coordinator.ClassBatch} {
			jobs, total, _, err := e.Queue(ctx, c, false, class, engine.Page{Size: 500})
			if err != nil {
				return
			}
			w.mu.Lock()
			w.counts["queued at audits"] += total
			for i, job := range jobs {
				if job.Position != 0 && job.Position != i+1 {
					w.fail("%s is %d. in the queue of %s and told to be %d.", job.ID, i+1, class, job.Position)
				}
				if job.Reason == nil {
					w.fail("%s waits without a reason", job.ID)
				}
			}
			w.mu.Unlock()
		}
	})
}

func roots(t *testing.T) map[string]string {
	out := map[string]string{}
	for kind, m := range machines() {
		out[kind] = unpack(t, m.fixture)
	}
	return out
}

func (r result) report(t *testing.T) {
	t.Helper()
	if len(r.Failures) == 0 {
		return
	}
	t.Errorf("seed %d breaks a rule:\n  %s\n\nthe last steps:\n%s\n\nagain with: make sim SEED=%d", r.Seed, strings.Join(r.Failures, "\n  "), r.Last, r.Seed)
}

func (r result) summary() string {
	return fmt.Sprintf("seed %d: digest %016x, %d steps, ended after %s, took %s: %s", r.Seed, r.Digest, r.Steps, stamp(r.Ended), r.Took.Round(time.Millisecond), listed(r.Counts))
}

// listed writes counts by name.
func listed(counts map[string]int) string {
	parts := make([]string, 0, len(counts))
	for k, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// TestSeed simulates one seed, the one of -seed.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("simulates what -seed says; TestSeeds simulates many")
	}
	// One thread, and no collector at times of its own (see sweep): the same seed takes the same way.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	var out *os.File
	if *traceFlag != "" {
		var err error
		if out, err = os.Create(*traceFlag); err != nil {
			t.Fatal(err)
		}
		defer out.Close()
	}
	r := simulate(t, *seedFlag, roots(t), *hoursFlag, out)
	t.Log(r.summary())
	if *resultFlag != "" {
		data, err := json.Marshal(r)
		if err == nil {
			err = os.WriteFile(*resultFlag, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.report(t)
}

// memoryLimit is when the collector runs all the same.
const memoryLimit = 900 << 20
