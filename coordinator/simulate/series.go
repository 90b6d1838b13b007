package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// sample is the cluster from a moment on, until the next sample.
type sample struct {
	at        time.Time
	busy      amount
	waiting   int
	fragments []float64 // free GPUs that a job of each size could not use
	expected  float64   // the same for the mix of the trace
	wanted    bool      // a job waits that wants no more GPUs than are free
}

// sample notes the cluster as it is now.
func (w *world) sample() {
	s := sample{at: w.now, busy: w.busy, waiting: w.waiting.jobs}
	if free := w.total.gpus - w.busy.gpus; free > 0 {
		s.fragments, s.expected = w.fragments.of(w.hosts)
		for k := range w.waiting.byGPUs {
			s.wanted = s.wanted || k <= free
		}
	}
	if n := len(w.series); n > 0 {
		last := &w.series[n-1]
		if last.busy == s.busy && last.waiting == s.waiting && last.expected == s.expected && last.wanted == s.wanted && slices.Equal(last.fragments, s.fragments) {
			return
		}
		if last.at.Equal(s.at) {
			*last = s
			return
		}
	}
	w.series = append(w.series, s)
}

// fragments measures how much of what is free cannot be used. A free GPU is a fragment for jobs that want k on a node
// when its fabric has fewer than k free, or its node lacks their cores: rule 7 gives all GPUs of one fabric. Over the mix
// of sizes in the trace this is the fragmentation of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
// Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023), for whole GPUs.
type fragments struct {
	sizes  []int // GPUs of a node, ascending
	cores  []int // that jobs of the size want, the median
	shares []float64
}

const maxSizes = 16

// learn takes the mix of sizes from the jobs that want GPUs.
func (f *fragments) learn(jobs []work) {
	cores := map[int][]int{}
	all := 0
	for i := range jobs {
		if k := jobs[i].GPUs; k > 0 {
			cores[k] = append(cores[k], jobs[i].cores)
			all++
		}
	}
	f.sizes = slices.SortedFunc(maps.Keys(cores), func(a, b int) int { // the most frequent ones
		return cmp.Or(cmp.Compare(len(cores[b]), len(cores[a])), cmp.Compare(a, b))
	})
	f.sizes = f.sizes[:min(len(f.sizes), maxSizes)]
	slices.Sort(f.sizes)
	for _, k := range f.sizes {
		slices.Sort(cores[k])
		f.cores = append(f.cores, cores[k][len(cores[k])/2])
		f.shares = append(f.shares, float64(len(cores[k]))/float64(all))
	}
}

// of counts the fragments of the nodes for each size, and the mean over the mix.
func (f *fragments) of(hosts []*host) (each []float64, expected float64) {
	each = make([]float64, len(f.sizes))
	free := make([]int, 0, maxNodeGPUs)
	for _, h := range hosts {
		free = append(free[:0], make([]int, len(h.busy))...)
		for g, busy := range h.busy {
			if !busy {
				free[h.fabric[g]]++
			}
		}
		for i, k := range f.sizes {
			for _, n := range free {
				if n < k || h.cores < f.cores[i] {
					each[i] += float64(n)
				}
			}
		}
	}
	for i := range each {
		expected += each[i] * f.shares[i]
	}
	return each, expected
}

// Point is a value over a part of the time.
type Point struct {
	At    Seconds `json:"at"` // the middle of the part, since the beginning
	Value float64 `json:"value"`
}

const seriesPoints = 480

// mean is the average of a value over time, and over the parts of it.
func mean(series []sample, from, until time.Time, value func(*sample) float64) (all float64, points []Point) {
	span := until.Sub(from)
	if span <= 0 || len(series) == 0 {
		return 0, nil
	}
	sums := make([]float64, seriesPoints)
	width := span.Seconds() / seriesPoints
	for i := range series {
		end := until
		if i+1 < len(series) {
			end = series[i+1].at
		}
		a, b := series[i].at.Sub(from).Seconds(), min(end.Sub(from).Seconds(), span.Seconds())
		v := value(&series[i])
		if v == 0 || b <= a {
			continue
		}
		all += v * (b - a)
		for k := max(int(a/width), 0); k < seriesPoints && float64(k)*width < b; k++ {
			sums[k] += v * (min(b, float64(k+1)*width) - max(a, float64(k)*width))
		}
	}
	for k := range sums {
		points = append(points, Point{(float64(k) + 0.5) * width, sums[k] / width})
	}
	return all / span.Seconds(), points
}
