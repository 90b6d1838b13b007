package sched

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"substrate/coordinator"
)

// The size that the figures of docs/performance.md are about.
const (
	fleetNodes  = 10_000 // of 8 GPUs
	fleetWaits  = 100_000
	fleetShapes = 200
	fleetGroups = 500
	tickChanges = 1_000 // arrivals, and ends, of a steady tick
)

var bothModes = []coordinator.Backfill{coordinator.BackfillNone, coordinator.BackfillEasy}

func fleetNode(i int) Node {
	return Node{
		ID: coordinator.NodeID(fmt.Sprintf("n%05d", i)), Definition: "gpu", Cores: 128, Threads: 256,
		Memory: 1 << 40, Devices: map[string]uint32{"nvidia.com/gpu": 8}, Schedulable: true,
	}
}

// linked is the node with how its GPUs are joined, all with all, and two NUMA domains.
func linked(n Node) Node {
	for i := range 8 {
		n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(i), Kind: "nvidia.com/gpu", Domain: i / 4})
		for j := range i {
			n.Links = append(n.Links, Link{A: j, B: i, Count: 18, Switched: true})
		}
	}
	n.LinksKnown = true
	n.Domains = []Domain{{ID: 0, Socket: 0, Cores: 64, Memory: 1 << 39}, {ID: 1, Socket: 1, Cores: 64, Memory: 1 << 39}}
	return n
}

var (
	fleetAdmitted = []coordinator.DefinitionID{"gpu"}
	oneGPU        = map[string]uint32{"nvidia.com/gpu": 1}
	twoGPUs       = map[string]uint32{"nvidia.com/gpu": 2}
)

// fleetRequest is the i-th request: 200 shapes, one in ten with two GPUs; 500 groups with priorities.
func fleetRequest(i int) Request {
	shape := i % fleetShapes
	gpus := oneGPU
	if shape%10 == 9 {
		gpus = twoGPUs
	}
	return Request{
		ID: coordinator.AllocationID(fmt.Sprintf("w%07d/job", i)), Workflow: coordinator.WorkflowID(fmt.Sprintf("w%07d", i)),
		Class: coordinator.ClassOnDemand, Priority: float64(i * 7 % fleetGroups), Submitted: epoch.Add(time.Duration(i-fleetWaits) * time.Second),
		Nodes: 1, Walltime: time.Duration(30+shape) * time.Minute, Admissible: fleetAdmitted,
		Resources: coordinator.Resources{Cores: coordinator.Cores(1 + shape%7), Memory: coordinator.Bytes(1+shape%50) << 30, Devices: gpus},
	}
}

func fleetConfig(mode coordinator.Backfill) Config {
	return Config{Backfill: mode, PreemptionNotice: time.Minute, AgeRate: 0.01}
}

// newFleet has nodes and nothing on them.
func newFleet(nodes int, mode coordinator.Backfill) *Scheduler {
	s := New()
	s.Configure(fleetConfig(mode), []Definition{{ID: "gpu", CostPerHour: 3.2}}, nil)
	for i := range nodes {
		s.SetNode(fleetNode(i))
	}
	return s
}

// steady is a full fleet with some waiting; running is what may end, oldest first.
type steady struct {
	s       *Scheduler
	running []coordinator.AllocationID
	next    int
	now     time.Time
}

func newSteady(nodes, waiting int, mode coordinator.Backfill) *steady {
	f := &steady{s: newFleet(nodes, mode), now: epoch}
	for len(f.running) < nodes*7 {
		f.submit(nodes)
		if f.decide() == 0 {
			break
		}
	}
	f.submit(waiting - len(f.s.entries))
	f.decide()
	return f
}

func (f *steady) submit(n int) {
	for range n {
		f.s.Submit(fleetRequest(f.next))
		f.next++
	}
}

func (f *steady) decide() int {
	plan := f.s.Decide(f.now)
	for _, st := range plan.Starts {
		f.running = append(f.running, st.ID)
	}
	return len(plan.Starts)
}

// tick is arrivals, as many ends, and a decision.
func (f *steady) tick(changes int) (started int) {
	f.now = f.now.Add(time.Second)
	for _, id := range f.running[:changes] {
		f.s.End(id)
	}
	f.running = f.running[changes:]
	f.submit(changes)
	return f.decide()
}

func TestFleetIsFilled(t *testing.T) {
	s := newFleet(100, coordinator.BackfillNone)
	for i := range 1000 {
		s.Submit(fleetRequest(i))
	}
	s.Decide(epoch)
	used := uint64(0)
	for _, h := range s.c.claims {
		used += h.need.devices[0].n
	}
	if used < 799 {
		t.Fatalf("%d of 800 GPUs are used", used)
	}
}

// cpu is the processor time of the process: other work on the machine does not count.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perRun reports wall and processor time of one run.
func perRun(b *testing.B, unit string, spent, used time.Duration) {
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "ms/"+unit)
	b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/"+unit)
}

// BenchmarkFill is the first full fill of the fleet: the decision alone, and with telling the scheduler of everything.
func BenchmarkFill(b *testing.B) {
	for _, mode := range []string{"none", "easy", "none-linked"} {
		b.Run(mode, func(b *testing.B) {
			requests := make([]Request, fleetWaits)
			for i := range requests {
				requests[i] = fleetRequest(i)
			}
			placed, decided, used, start := 0, time.Duration(0), time.Duration(0), cpu()
			for b.Loop() {
				s := newFleet(0, map[string]coordinator.Backfill{"easy": coordinator.BackfillEasy}[mode])
				for i := range fleetNodes {
					n := fleetNode(i)
					if mode == "none-linked" {
						n = linked(n)
					}
					s.SetNode(n)
				}
				for i := range requests {
					s.Submit(requests[i])
				}
				now, was := time.Now(), cpu()
				placed += len(s.Decide(epoch).Starts)
				decided += time.Since(now)
				used += cpu() - was
			}
			b.ReportMetric(float64(placed)/decided.Seconds(), "placements/s")
			b.ReportMetric(float64(placed)/used.Seconds(), "placements/cpu-s")
			b.ReportMetric(float64(placed)/(cpu()-start).Seconds(), "with-feed/cpu-s")
		})
	}
}

// BenchmarkTick is the steady tick of the full fleet beside different numbers of waiting allocations.
func BenchmarkTick(b *testing.B) {
	for _, mode := range bothModes {
		for _, waiting := range []int{10_000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/waiting=%d", mode, waiting), func(b *testing.B) {
				f := newSteady(fleetNodes, waiting, mode)
				started, used := 0, cpu()
				for b.Loop() {
					started += f.tick(tickChanges)
				}
				perRun(b, "tick", b.Elapsed(), cpu()-used)
				b.ReportMetric(float64(started)/float64(b.N), "starts/tick")
			})
		}
	}
}

// BenchmarkThroughput starts as much as ends, with a short and a long queue.
func BenchmarkThroughput(b *testing.B) {
	for _, waiting := range []int{2_000, 64_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			f := newSteady(1_000, waiting, coordinator.BackfillNone)
			for range 300 { // the maps have found their size
				f.tick(200)
			}
			started, used := 0, cpu()
			for b.Loop() {
				started += f.tick(200)
			}
			b.ReportMetric(float64(started)/b.Elapsed().Seconds(), "starts/s")
			b.ReportMetric(float64(started)/(cpu()-used).Seconds(), "starts/cpu-s")
		})
	}
}

// BenchmarkIdleTick decides when nothing has changed.
func BenchmarkIdleTick(b *testing.B) {
	f := newSteady(fleetNodes, fleetWaits, coordinator.BackfillEasy)
	used := cpu()
	for b.Loop() {
		f.now = f.now.Add(time.Millisecond)
		f.decide()
	}
	perRun(b, "tick", b.Elapsed(), cpu()-used)
}

// BenchmarkExplain asks after each decision, so that estimates are made anew: for the first, the middle and the last that waits
// in each of two classes, for one in the middle of those that are estimated, and for one that room is held for.
func BenchmarkExplain(b *testing.B) {
	for _, mode := range []coordinator.Backfill{coordinator.BackfillNone, coordinator.BackfillEasy, coordinator.BackfillConservative} {
		f := newMixed(mode)
		samples := map[string]coordinator.AllocationID{}
		for _, q := range f.s.queues {
			i := 0
			q.each(nil, func(e *entry) bool {
				for name, at := range map[string]int{"first": 1, "500th": 500, "middle": q.count / 2, "last": q.count} {
					if i == at-1 {
						samples[fmt.Sprintf("%s/%s", q.class, name)] = e.id
					}
				}
				if e.hold != nil {
					samples[q.class.String()+"/held"] = e.id
				}
				i++
				return true
			})
		}
		for _, name := range slices.Sorted(maps.Keys(samples)) {
			b.Run(fmt.Sprintf("%s/%s", mode, name), func(b *testing.B) {
				spent, used := time.Duration(0), time.Duration(0)
				for b.Loop() {
					f.now = f.now.Add(time.Millisecond)
					f.s.Decide(f.now)
					start, was := time.Now(), cpu()
					w, ok := f.s.Explain(samples[name], f.now)
					spent += time.Since(start)
					used += cpu() - was
					if !ok || w.Verdict.Reason == 0 {
						b.Fatalf("explained as %+v", w)
					}
				}
				perRun(b, "explain", spent, used)
			})
		}
	}
}

// newMixed is a full fleet on which half of what waits is batch, and the first on-demand work has just had room made for it.
func newMixed(mode coordinator.Backfill) *steady {
	f := &steady{s: newFleet(fleetNodes, mode), now: epoch}
	config := fleetConfig(mode)
	config.MinPreemptionRuntime = 20 * time.Minute
	f.s.Configure(config, []Definition{{ID: "gpu", CostPerHour: 3.2}}, nil)
	ask := func(i int) Request {
		r := fleetRequest(i)
		if i%2 == 1 {
			r.Class, r.PreemptionsLeft = coordinator.ClassBatch, -1
		}
		return r
	}
	for len(f.running) < fleetNodes*7 {
		for range fleetNodes {
			f.s.Submit(ask(f.next))
			f.next++
		}
		if f.decide() == 0 {
			break
		}
	}
	for len(f.s.entries) < fleetWaits {
		f.s.Submit(ask(f.next))
		f.next++
	}
	f.now = f.now.Add(10 * time.Second)
	f.decide()
	f.held()
	return f
}

// held lets one batch job lose its protection, so that the head of the queue gets a hold.
func (f *steady) held() {
	for _, id := range f.running {
		if h := f.s.c.claims[id]; h.class == coordinator.ClassBatch && h.need.devices[0].n == 2 {
			h.started -= time.Hour
			h.recount(f.s.c)
			break
		}
	}
	f.now = f.now.Add(time.Second)
	f.decide()
}

// BenchmarkMemory is what the scheduler keeps for an allocation, waiting or placed, ids included.
func BenchmarkMemory(b *testing.B) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var bytes float64
	for b.Loop() {
		s := newFleet(fleetNodes, coordinator.BackfillNone)
		before := heap()
		for i := range fleetWaits * 2 {
			s.Submit(fleetRequest(i))
		}
		s.Decide(epoch)
		bytes = float64(heap()-before) / (fleetWaits * 2)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(bytes, "bytes/allocation")
}

// BenchmarkLaunches is a decision of the full fleet whose nodes are launched: with room for more of them, and with none.
func BenchmarkLaunches(b *testing.B) {
	for name, most := range map[string]int{"launching": 0, "at most": fleetNodes} {
		b.Run(name, func(b *testing.B) {
			f := newSteady(fleetNodes, fleetWaits, coordinator.BackfillEasy)
			f.s.SetOffer(Offer{Definition: "gpu", Node: fleetNode(0), MaxNodes: most, IdleTimeout: time.Hour, Launch: time.Minute})
			launched, used := 0, cpu()
			for b.Loop() {
				f.now = f.now.Add(time.Millisecond)
				plan := f.s.Decide(f.now)
				launched += len(plan.Launches)
				for _, l := range plan.Launches {
					f.s.DropLaunching(l.Key)
				}
			}
			perRun(b, "decision", b.Elapsed(), cpu()-used)
			b.ReportMetric(float64(launched)/float64(b.N), "launches/decision")
		})
	}
}
