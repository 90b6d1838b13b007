package simulate

import (
	"slices"
	"time"
)

// plainJob is a job as the plain simulator below knows it.
type plainJob struct {
	submit, run, asked int64 // seconds
	procs              int
	start              int64 // -1: not yet
}

// plainEASY is a simulator of its own, as plain as it can be: processors are only counted, the queue is in order of
// arrival, a walltime ends what overruns it. With backfill, later jobs start when they fit and either end, by what they asked
// for, before the first of the queue is expected to start, or leave enough processors for it then. It shares nothing
// with the coordinator.
func plainEASY(procs int, jobs []plainJob, backfill bool) {
	const never = int64(1) << 60
	var queue, running []int
	end := func(j int) int64 { return jobs[j].start + min(jobs[j].run, jobs[j].asked) }
	free, next := procs, 0
	for i := range jobs {
		jobs[i].start = -1
	}
	for next < len(jobs) || len(queue)+len(running) > 0 {
		now := never
		if next < len(jobs) {
			now = jobs[next].submit
		}
		for _, j := range running {
			now = min(now, end(j))
		}
		running = slices.DeleteFunc(running, func(j int) bool {
			if end(j) > now {
				return false
			}
			free += jobs[j].procs
			return true
		})
		for ; next < len(jobs) && jobs[next].submit == now; next++ {
			queue = append(queue, next)
		}
		begin := func(j int) {
			jobs[j].start = now
			free -= jobs[j].procs
			running = append(running, j)
		}
		for len(queue) > 0 && jobs[queue[0]].procs <= free {
			begin(queue[0])
			queue = queue[1:]
		}
		if len(queue) == 0 || !backfill {
			continue
		}
		expected := slices.Clone(running)
		slices.SortFunc(expected, func(a, b int) int { return int(jobs[a].start + jobs[a].asked - jobs[b].start - jobs[b].asked) })
		shadow, spare := never, free
		for _, j := range expected { // all that end at one time count
			if at := jobs[j].start + jobs[j].asked; spare >= jobs[queue[0]].procs && at > shadow {
				break
			} else {
				shadow = at
			}
			spare += jobs[j].procs
		}
		spare -= jobs[queue[0]].procs
		var rest []int
		for _, j := range queue[1:] {
			late := now+jobs[j].asked > shadow
			if jobs[j].procs > free || late && jobs[j].procs > spare {
				rest = append(rest, j)
				continue
			}
			if late {
				spare -= jobs[j].procs
			}
			begin(j)
		}
		queue = append(queue[:1], rest...)
	}
}

// plainJobs are a trace's jobs for the plain simulator.
func plainJobs(t *Trace) []plainJob {
	out := make([]plainJob, len(t.Jobs))
	for i, j := range t.Jobs {
		out[i] = plainJob{submit: int64(j.Submit / time.Second), run: int64(j.Run / time.Second), asked: int64(j.Walled / time.Second), procs: j.Procs}
	}
	return out
}

// judge is the mean wait and the mean bounded slowdown.
func judge(jobs []plainJob) (wait, slowdown float64) {
	for _, j := range jobs {
		w, r := float64(j.start-j.submit), float64(min(j.run, j.asked))
		wait += w
		slowdown += max((w+r)/max(r, 10), 1)
	}
	return wait / float64(len(jobs)), slowdown / float64(len(jobs))
}
