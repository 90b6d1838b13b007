package simulate

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"substrate/coordinator/engine"
)

// Ends of jobs.
const (
	Finished = "finished"
	Walltime = "walltime"
)

// Result is what a simulation measured. Lengths of time are in seconds.
type Result struct {
	Configuration string         `json:"configuration"`
	Trace         string         `json:"trace"`
	Skipped       map[string]int `json:"skipped,omitempty"` // records of the trace that were not replayed, by reason
	Refused       map[string]int `json:"refused,omitempty"` // jobs that the coordinator did not take, by reason
	Nodes         int            `json:"nodes"`
	Cores         int            `json:"cores"`
	GPUs          int            `json:"gpus"`
	Span          Seconds        `json:"span"`     // from the first submission to the last end
	Finished      int            `json:"finished"` // ended by themselves
	Walled        int            `json:"walled"`   // ended by their walltime
	Unfinished    int            `json:"unfinished"`
	All           Group          `json:"all"`
	Classes       []Group        `json:"classes"`
	Groups        []Group        `json:"groups"`
	Users         []Group        `json:"users"`
	// Jain's index of the users' mean bounded slowdowns: 1 is the same for all, 1/n everything for one.
	Fairness      float64        `json:"fairness"`
	Preemptions   map[string]int `json:"preemptions"` // by the right that was used
	Estimates     Estimates      `json:"estimates"`
	Utilisation   Use            `json:"utilisation"`
	Fragmentation *Fragmentation `json:"fragmentation,omitempty"` // nil: no GPUs
	Series        Series         `json:"series"`
	Waits         []float64      `json:"-"` // of all that started, ascending
	Jobs          []JobResult    `json:"-"`
}

// Seconds is a length of time.
type Seconds = float64

// Group sums up some of the jobs.
type Group struct {
	Name        string  `json:"name"`
	Jobs        int     `json:"jobs"`    // that were accepted
	Started     int     `json:"started"` // waits are of these
	MeanWait    Seconds `json:"mean_wait"`
	MedianWait  Seconds `json:"median_wait"`
	P95Wait     Seconds `json:"p95_wait"`
	P99Wait     Seconds `json:"p99_wait"`
	MaxWait     Seconds `json:"max_wait"`
	Slowdown    float64 `json:"mean_bounded_slowdown"` // of those that ended
	MedianSlow  float64 `json:"median_bounded_slowdown"`
	CoreHours   float64 `json:"core_hours"`
	GPUHours    float64 `json:"gpu_hours"`
	Preemptions int     `json:"preemptions"` // that these jobs suffered
	WastedCores float64 `json:"wasted_core_hours"`
	WastedGPUs  float64 `json:"wasted_gpu_hours"`
	Recorded    float64 `json:"recorded_mean_wait"` // where the trace was made; -1 where it does not tell of all
}

// Estimates compares what jobs that had to wait were told at submission with what came.
type Estimates struct {
	Waited  int     `json:"waited"` // jobs that did not start at once
	Told    int     `json:"told"`   // of them, had an estimate and started
	Median  Seconds `json:"median_absolute_error"`
	P90     Seconds `json:"p90_absolute_error"`
	Signed  Seconds `json:"mean_signed_error"` // positive: started earlier than it was told
	Later   float64 `json:"started_later"`     // share of those that started later than they were told
	Slipped int     `json:"slipped"`           // jobs whose estimate moved later while they waited
	Slips   int     `json:"slips"`
	Slip    Seconds `json:"mean_slip"`
}

// Use is the share of all devices that was busy, over the whole time.
type Use struct {
	Cores float64 `json:"cores"`
	GPUs  float64 `json:"gpus"`
}

// Fragmentation is about GPUs that are free and cannot be used; all numbers are averages over time.
type Fragmentation struct {
	Free     float64        `json:"free"`
	Expected float64        `json:"expected"` // free GPUs that a job of the trace's mix could not use
	Rate     float64        `json:"rate"`     // of the free ones
	BySize   []SizeFragment `json:"by_size"`
	Wanted   float64        `json:"idle_while_wanted"` // GPU-hours that were free while a job waited that wanted no more than was free
}

// SizeFragment is Fragmentation for one size of jobs.
type SizeFragment struct {
	GPUs      int     `json:"gpus"`
	Fragments float64 `json:"fragments"`
}

// Series are values over time.
type Series struct {
	Cores     []Point `json:"cores"` // share
	GPUs      []Point `json:"gpus,omitempty"`
	Waiting   []Point `json:"waiting"`
	Fragments []Point `json:"fragments,omitempty"`
}

// JobResult is what became of one job.
type JobResult struct {
	Line                   int
	ID, User, Group, Class string
	Submitted, Wait, Ran   Seconds // since the beginning; Wait < 0: never started
	Preempted              int
	Outcome                string
}

func (w *world) result(ctx context.Context) (*Result, error) {
	r := &Result{Configuration: w.opt.Name, Trace: w.opt.Trace.Name, Skipped: w.opt.Trace.Skipped, Nodes: len(w.hosts), Cores: w.total.cores,
		GPUs: w.total.gpus, Refused: map[string]int{}, Preemptions: map[string]int{}}
	last := epoch()
	classes, groups, users := map[string][]*work{}, map[string][]*work{}, map[string][]*work{}
	var all []*work
	for i := range w.jobs {
		j := &w.jobs[i]
		if j.refused != "" {
			r.Refused[j.refused]++
			continue
		}
		all = append(all, j)
		classes[j.Class.String()] = append(classes[j.Class.String()], j)
		groups[j.Group] = append(groups[j.Group], j)
		users[j.User] = append(users[j.User], j)
		switch {
		case j.outcome == Finished:
			r.Finished++
		case j.outcome == Walltime:
			r.Walled++
		default:
			r.Unfinished++
		}
		if j.end.After(last) {
			last = j.end
		}
		r.Jobs = append(r.Jobs, j.result())
		if !j.first.IsZero() {
			r.Waits = append(r.Waits, j.first.Sub(j.submitted).Seconds())
		}
	}
	slices.Sort(r.Waits)
	r.Span = last.Sub(epoch()).Seconds()
	r.All = groupOf("all", all)
	r.Classes, r.Groups, r.Users = groupsOf(classes), groupsOf(groups), groupsOf(users)
	r.Fairness = jain(r.Users)
	r.Estimates = estimates(all)
	w.measure(r, last)
	return r, w.rights(ctx, r)
}

func (w *work) result() JobResult {
	out := JobResult{Line: w.Line, ID: w.ID, User: w.User, Group: w.Group, Class: w.Class.String(), Preempted: len(w.attempts), Outcome: w.outcome,
		Submitted: w.submitted.Sub(epoch()).Seconds(), Wait: -1}
	if !w.first.IsZero() {
		out.Wait = w.first.Sub(w.submitted).Seconds()
	}
	if !w.end.IsZero() {
		out.Ran = w.end.Sub(w.last).Seconds()
	}
	return out
}

// measure takes the averages over time.
func (w *world) measure(r *Result, last time.Time) {
	average := func(v func(*sample) float64) (float64, []Point) { return mean(w.series, epoch(), last, v) }
	share := func(part, of int) float64 {
		if of == 0 {
			return 0
		}
		return float64(part) / float64(of)
	}
	r.Utilisation.Cores, r.Series.Cores = average(func(s *sample) float64 { return share(s.busy.cores, w.total.cores) })
	_, r.Series.Waiting = average(func(s *sample) float64 { return float64(s.waiting) })
	if w.total.gpus == 0 {
		return
	}
	r.Utilisation.GPUs, r.Series.GPUs = average(func(s *sample) float64 { return share(s.busy.gpus, w.total.gpus) })
	f := &Fragmentation{}
	free := func(s *sample) float64 { return float64(w.total.gpus - s.busy.gpus) }
	f.Free, _ = average(free)
	f.Expected, r.Series.Fragments = average(func(s *sample) float64 { return s.expected })
	if f.Free > 0 {
		f.Rate = f.Expected / f.Free
	}
	for i, k := range w.fragments.sizes {
		v, _ := average(func(s *sample) float64 {
			if len(s.fragments) == 0 {
				return 0
			}
			return s.fragments[i]
		})
		f.BySize = append(f.BySize, SizeFragment{k, v})
	}
	wanted, _ := average(func(s *sample) float64 {
		if !s.wanted {
			return 0
		}
		return free(s)
	})
	f.Wanted = wanted * r.Span / 3600
	r.Fragmentation = f
}

// rights counts preemptions by the right that was used, as the coordinator's events tell.
func (w *world) rights(ctx context.Context, r *Result) error {
	return w.engine.Events(ctx, w.admin, "", 0, false, func(events []engine.Event) error {
		for _, ev := range events {
			victim := w.byWorkflow[ev.Workflow]
			if ev.Kind == "preempt-initiated" && victim != nil && ev.Metadata["victim"] != "" && hasPrefix(ev.Metadata["victim"], string(victim.workflow)) {
				r.Preemptions[ev.Metadata["right"]]++
			}
		}
		return nil
	})
}

func hasPrefix(run, workflow string) bool {
	return len(run) > len(workflow) && run[:len(workflow)] == workflow
}

func groupsOf(m map[string][]*work) []Group {
	var out []Group
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, groupOf(name, m[name]))
	}
	return out
}

// slowdownBound keeps short jobs from counting for more than they are: the usual 10 seconds.
const slowdownBound = 10 * time.Second

func groupOf(name string, jobs []*work) Group {
	g := Group{Name: name, Jobs: len(jobs), Recorded: -1}
	var waits, slow []float64
	recorded, known := 0.0, 0
	for _, j := range jobs {
		if j.Waited != nil {
			recorded += j.Waited.Seconds()
			known++
		}
		cores, gpus := float64(j.cores*j.nodes), float64(j.gpus())
		for _, a := range j.attempts {
			lost := a.ended.Sub(a.started).Hours()
			g.Preemptions++
			g.WastedCores += lost * cores
			g.WastedGPUs += lost * gpus
		}
		if j.first.IsZero() {
			continue
		}
		waits = append(waits, j.first.Sub(j.submitted).Seconds())
		if j.end.IsZero() {
			continue
		}
		ran := j.end.Sub(j.last)
		g.CoreHours += ran.Hours() * cores
		g.GPUHours += ran.Hours() * gpus
		slow = append(slow, max(j.end.Sub(j.submitted).Seconds()/max(ran, slowdownBound).Seconds(), 1))
	}
	slices.Sort(waits)
	slices.Sort(slow)
	g.Started = len(waits)
	g.MeanWait, g.MedianWait, g.P95Wait, g.P99Wait = average(waits), Quantile(waits, 0.5), Quantile(waits, 0.95), Quantile(waits, 0.99)
	g.MaxWait = Quantile(waits, 1)
	g.Slowdown, g.MedianSlow = average(slow), Quantile(slow, 0.5)
	if known > 0 && known == len(jobs) {
		g.Recorded = recorded / float64(known)
	}
	return g
}

func estimates(jobs []*work) Estimates {
	var out Estimates
	var errs []float64
	later, slid := 0, time.Duration(0)
	for _, j := range jobs {
		e := &j.estimate
		if !e.asked {
			continue
		}
		out.Waited++
		if e.slips > 0 {
			out.Slipped++
			out.Slips += e.slips
			slid += e.slid
		}
		if e.told.IsZero() || e.actual.IsZero() {
			continue
		}
		out.Told++
		d := e.told.Sub(e.actual).Seconds()
		errs = append(errs, math.Abs(d))
		out.Signed += d
		if d < -slipsBy.Seconds() {
			later++
		}
	}
	slices.Sort(errs)
	out.Median, out.P90 = Quantile(errs, 0.5), Quantile(errs, 0.9)
	if out.Told > 0 {
		out.Signed /= float64(out.Told)
		out.Later = float64(later) / float64(out.Told)
	}
	if out.Slips > 0 {
		out.Slip = slid.Seconds() / float64(out.Slips)
	}
	return out
}

// jain is Jain's fairness index of the groups' mean bounded slowdowns.
func jain(groups []Group) float64 {
	sum, squares, n := 0.0, 0.0, 0
	for _, g := range groups {
		if g.Slowdown > 0 {
			sum += g.Slowdown
			squares += g.Slowdown * g.Slowdown
			n++
		}
	}
	if n == 0 {
		return 1
	}
	return sum * sum / (float64(n) * squares)
}

func average(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range list {
		sum += v
	}
	return sum / float64(len(list))
}

// Quantile is the smallest value of an ascending list that at least the share q of it does not exceed; 0 of none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Largest are the first n groups by GPU- and core-hours, then by name.
func Largest(groups []Group, n int) []Group {
	out := slices.Clone(groups)
	slices.SortFunc(out, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.GPUHours, a.GPUHours), cmp.Compare(b.CoreHours, a.CoreHours), cmp.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), n)]
}
