package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// plot is a node or three with room to be made: each victim frees some of the GPUs of one fabric, and some cores.
type plot struct {
	list   []prey
	gpus   [][3]int // by victim and node
	cores  []int
	free   [3]int
	want   int // GPUs on one node
	wantC  int
	called int
}

func drawPlot(t *rapid.T, most int) *plot {
	p := &plot{want: between(t, "want", 1, 8), wantC: between(t, "want cores", 0, 6)}
	for i := range p.free {
		p.free[i] = between(t, "free", 0, 2)
	}
	for i := range between(t, "victims", 0, most) {
		v := prey{
			id: coordinator.AllocationID(fmt.Sprintf("v%02d", i)), gpu: uint64(between(t, "gpu", 0, 3)),
			core: uint64(between(t, "core", 0, 2)), started: time.Duration(between(t, "started", 0, 2)),
		}
		var gpus [3]int
		gpus[between(t, "node", 0, 2)] = between(t, "frees", 0, 4)
		if between(t, "gang", 0, 3) == 0 {
			gpus = [3]int{1, 1, 1}
		}
		cores := between(t, "frees cores", 0, 3)
		v.help = float64(gpus[0] + gpus[1] + gpus[2])
		p.list, p.gpus, p.cores = append(p.list, v), append(p.gpus, gpus), append(p.cores, cores)
	}
	return p
}

// fitsFor is over a list in any order.
func (p *plot) fitsFor(list []prey) func(gone []bool) bool {
	return func(gone []bool) bool {
		p.called++
		free, cores := p.free, 0
		for i := range list {
			if gone[i] {
				v := slices.IndexFunc(p.list, func(o prey) bool { return o.id == list[i].id })
				for n := range free {
					free[n] += p.gpus[v][n]
				}
				cores += p.cores[v]
			}
		}
		return slices.Max(free[:]) >= p.want && cores >= p.wantC
	}
}

// bruteForce tries every set.
func (p *plot) bruteForce() (best toll, found bool) {
	best = noToll()
	fits := p.fitsFor(p.list)
	gone := make([]bool, len(p.list))
	for set := range 1 << len(p.list) {
		for i := range gone {
			gone[i] = set>>i&1 == 1
		}
		if !fits(gone) {
			continue
		}
		if t := tollOf(p.list, gone); t.compare(&best) < 0 {
			best, found = t, true
		}
	}
	return best, found
}

func TestCheapestEqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlot(t, 10)
		want, found := p.bruteForce()
		list := shuffle(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), p.list)
		got, cost := cheapest(list, 0, noToll(), p.fitsFor(list))
		if (got != nil) != found {
			t.Fatalf("found %v, %v by trying all", got, found)
		}
		if !found {
			return
		}
		if cost.compare(&want) != 0 || len(got) != len(want.ids) {
			t.Fatalf("got %+v of %v, want %+v", cost, got, want)
		}
		if again, _ := cheapest(list, 0, want, p.fitsFor(list)); again != nil {
			t.Fatalf("%v is not cheaper than what was there", again)
		}
	})
}

// TestManyCandidatesLoseNobodyInVain: past what is weighed one by one, the set is still sufficient, and no smaller part
// of it is.
func TestManyCandidatesLoseNobodyInVain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlot(t, 60)
		p.want = between(t, "want much", 1, 40)
		list := slices.Clone(p.list)
		got, cost := cheapest(list, 0, noToll(), p.fitsFor(list))
		all := make([]bool, len(list))
		for i := range all {
			all[i] = true
		}
		if fits := p.fitsFor(list)(all); fits != (got != nil) {
			t.Fatalf("all of them make room: %v, found %v", fits, got)
		}
		if p.called > exactTries+4*len(list)+8 && len(list) > exactPrey {
			t.Fatalf("tried %d sets of %d", p.called, len(list))
		}
		if got == nil {
			return
		}
		gone := make([]bool, len(got))
		for i := range gone {
			gone[i] = true
		}
		if !p.fitsFor(got)(gone) || len(cost.ids) != len(got) {
			t.Fatalf("%v are not enough", got)
		}
		for i := range gone {
			gone[i] = false
			if p.fitsFor(got)(gone) {
				t.Fatalf("%s of %v goes in vain", got[i].id, got)
			}
			gone[i] = true
		}
		again := slices.Clone(p.list)
		slices.Reverse(again)
		if _, other := cheapest(again, 0, noToll(), p.fitsFor(again)); other.compare(&cost) != 0 {
			t.Fatalf("%+v, and %+v in another order", cost, other)
		}
	})
}

func TestJudge(t *testing.T) {
	rules := preemptRules{enabled: true, threshold: 5, gap: 10, minRuntime: time.Minute}
	now := time.Hour
	victim := occupant{class: coordinator.ClassBatch, preemptible: true, left: -1, group: 2, priority: 1, submitted: noAge, started: 0}
	blocked := contender{class: coordinator.ClassBatch, preempts: []int32{2}, priority: 11}
	tests := []struct {
		name   string
		change func(*preemptRules, *contender, *occupant)
		owner  bool
		kind   PreemptKind
		why    refusal
	}{
		{"the gap exactly", func(r *preemptRules, b *contender, o *occupant) {}, false, PreemptGroup, mayPreempt},
		{"less than the gap", func(r *preemptRules, b *contender, o *occupant) { o.priority = 1.5 }, false, PreemptGroup, refusedGap},
		{"no gap wanted, equal rank", func(r *preemptRules, b *contender, o *occupant) { r.gap, o.priority = 0, 11 }, false, PreemptGroup, refusedRank},
		{"a gap below zero, equal rank", func(r *preemptRules, b *contender, o *occupant) { r.gap, o.priority = -5, 11 }, false, PreemptGroup, refusedRank},
		{"threshold exactly", func(r *preemptRules, b *contender, o *occupant) { r.threshold = 11 }, false, PreemptGroup, mayPreempt},
		{"below the threshold", func(r *preemptRules, b *contender, o *occupant) { r.threshold = 12 }, false, PreemptGroup, refusedThreshold},
		{"switched off", func(r *preemptRules, b *contender, o *occupant) { r.enabled = false }, false, PreemptGroup, refusedDisabled},
		{"another group", func(r *preemptRules, b *contender, o *occupant) { o.group = 3 }, false, PreemptGroup, refusedGroup},
		{"not marked", func(r *preemptRules, b *contender, o *occupant) { o.preemptible = false }, false, PreemptGroup, refusedUnmarked},
		{"on-demand work that is marked", func(r *preemptRules, b *contender, o *occupant) {
			b.class, o.class = coordinator.ClassOnDemand, coordinator.ClassOnDemand
		}, false, PreemptGroup, mayPreempt},
		{"reserved work", func(r *preemptRules, b *contender, o *occupant) { o.class = coordinator.ClassReserved }, false, PreemptGroup, refusedClass},
		{"batch never takes from on-demand", func(r *preemptRules, b *contender, o *occupant) { o.class = coordinator.ClassOnDemand }, false, PreemptGroup, refusedClass},
		{"runtime exactly", func(r *preemptRules, b *contender, o *occupant) { o.started = now - time.Minute }, false, PreemptGroup, mayPreempt},
		{"runtime short", func(r *preemptRules, b *contender, o *occupant) { o.started = now - time.Minute + 1 }, false, PreemptGroup, refusedMinRuntime},
		{"preempted often enough", func(r *preemptRules, b *contender, o *occupant) { o.left = 0 }, false, PreemptGroup, refusedSpent},
		{"class needs no mark, list or gap", func(r *preemptRules, b *contender, o *occupant) {
			*r = preemptRules{gap: 10}
			b.class, b.preempts, b.priority = coordinator.ClassOnDemand, nil, -100
			o.preemptible = false
		}, false, PreemptClass, mayPreempt},
		{"class keeps the runtime", func(r *preemptRules, b *contender, o *occupant) {
			b.class, o.started = coordinator.ClassOnDemand, now-time.Second
		}, false, PreemptClass, refusedMinRuntime},
		{"class keeps preemptions-max", func(r *preemptRules, b *contender, o *occupant) {
			b.class, o.left = coordinator.ClassOnDemand, 0
		}, false, PreemptClass, refusedSpent},
		{"nobody at the moment it starts", func(r *preemptRules, b *contender, o *occupant) {
			r.minRuntime, o.started = 0, now
		}, false, PreemptGroup, refusedMinRuntime},
		{"the owner always", func(r *preemptRules, b *contender, o *occupant) {
			*r = preemptRules{minRuntime: time.Hour}
			b.class, o.left, o.started, o.preemptible = coordinator.ClassReserved, 0, now-1, false
		}, true, PreemptReservation, mayPreempt},
		{"on-demand work yields to no owner", func(r *preemptRules, b *contender, o *occupant) {
			r.enabled = false
			b.class, o.class = coordinator.ClassReserved, coordinator.ClassOnDemand
		}, true, PreemptGroup, refusedDisabled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, b, o := rules, blocked, victim
			test.change(&r, &b, &o)
			kind, why := r.judge(&b, &o, test.owner, now)
			if kind != test.kind || why != test.why {
				t.Errorf("got %v, %d, want %v, %d", kind, why, test.kind, test.why)
			}
		})
	}
}

func TestAgeCountsOnBothSides(t *testing.T) {
	r := preemptRules{ageRate: 0.5}
	if got := r.aged(3, 10*time.Second, 20*time.Second); got != 8 {
		t.Errorf("got %v", got)
	}
	if got := r.aged(3, noAge, 20*time.Second); got != 3 {
		t.Errorf("without a submission it is %v", got)
	}
}
