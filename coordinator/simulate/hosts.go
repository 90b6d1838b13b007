package simulate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/expr"
)

// host is a simulated node: it does what an agent does, as far as the coordinator can tell.
type host struct {
	node    *Node
	session *engine.Session
	env     *expr.NodeEnv
	at      map[string]int // GPU by address
	fabric  []int          // of each GPU
	busy    []bool         // each GPU
	cores   int            // free ones
}

// run is one attempt of a job on its nodes.
type run struct {
	id      coordinator.RunID
	job     *work
	spec    *coordinator.JobSpec
	ranks   []rank
	began   bool
	started time.Time
	ends    time.Time
	cause   engine.Cause
	told    string // why the coordinator asked for the end
	place   int    // in the heap, -1 when it is not there
}

type rank struct {
	host *host
	gpus []int
}

// ends is a heap of runs by the time of their end, then by id.
type ends []*run

func (e ends) Len() int { return len(e) }
func (e ends) Less(i, j int) bool {
	return cmp.Or(e[i].ends.Compare(e[j].ends), cmp.Compare(e[i].job.number, e[j].job.number), cmp.Compare(e[i].id, e[j].id)) < 0
}
func (e ends) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i, j
}
func (e *ends) Push(x any) {
	r := x.(*run)
	r.place = len(*e)
	*e = append(*e, r)
}
func (e *ends) Pop() any {
	r := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	r.place = -1
	return r
}

// join connects a node with its report.
func (w *world) join(ctx context.Context, n *Node) error {
	s, err := w.engine.Connect(ctx, n.ID, engine.Hello{Version: "simulated", BootID: string(n.ID)})
	if err != nil {
		return err
	}
	raw, err := n.report()
	if err != nil {
		return err
	}
	h := &host{node: n, session: s, env: expr.NewNodeEnv(n.Facts), at: map[string]int{}, cores: *n.Facts.CPU.Cores}
	for i := range n.Facts.GPUs {
		if g := &n.Facts.GPUs[i]; g.Driver && g.Whole() && g.Resource != "" {
			h.at[g.Address] = len(h.at)
		}
	}
	h.busy = make([]bool, len(h.at))
	h.fabric = make([]int, len(h.at))
	for i := range h.fabric {
		h.fabric[i] = i
	}
	for _, l := range n.Facts.GPULinks { // joined sets take the smallest number of theirs
		a, okA := h.at[l.A]
		b, okB := h.at[l.B]
		if !okA || !okB || !l.Fabric() {
			continue
		}
		from, to := max(h.fabric[a], h.fabric[b]), min(h.fabric[a], h.fabric[b])
		for i := range h.fabric {
			if h.fabric[i] == from {
				h.fabric[i] = to
			}
		}
	}
	w.hosts = append(w.hosts, h)
	w.byNode[n.ID] = h
	w.total.cores += h.cores
	w.total.gpus += len(h.busy)
	return s.Hardware(ctx, engine.HardwareReport{Facts: raw})
}

// pump has the nodes do what they were told, and reports whether there was anything.
func (w *world) pump(ctx context.Context) (told bool, err error) {
	err = w.engine.Together(ctx, func() error {
		told, err = w.obey(ctx)
		return err
	})
	return told, err
}

func (w *world) obey(ctx context.Context) (told bool, err error) {
	for _, h := range w.hosts {
		messages := h.session.Take()
		if len(messages) == 0 {
			continue
		}
		told = true
		var reports []engine.RunStatus
		for _, m := range messages {
			switch {
			case m.Configuration != nil:
				if err := h.session.Conditions(ctx, w.evaluate(h, m.Configuration)); err != nil {
					return told, err
				}
			case m.Start != nil:
				report, err := w.begin(h, m.Start)
				if err != nil {
					return told, err
				}
				reports = append(reports, report)
			case m.Stop != nil:
				w.stop(m.Stop)
			}
		}
		if len(reports) > 0 {
			if err := h.session.RunStatus(ctx, reports); err != nil {
				return told, err
			}
		}
	}
	return told, nil
}

// evaluate answers for every definition, as an agent does.
func (w *world) evaluate(h *host, c *engine.NodeConfiguration) engine.ConditionReport {
	out := engine.ConditionReport{Revision: c.Revision}
	for _, d := range c.Definitions {
		v := engine.ConditionView{Definition: d.ID}
		condition, err := w.conditions.Condition(d.Condition)
		if err != nil {
			v.Value, v.Error = expr.Failed.String(), err.Error()
		} else {
			v.Value = condition.Match(h.env).String()
		}
		out.Results = append(out.Results, v)
	}
	return out
}

// begin takes a node's share of a run. The run lasts from when all of its nodes have theirs.
func (w *world) begin(h *host, m *engine.StartRun) (engine.RunStatus, error) {
	r := w.runs[m.Run]
	if r == nil {
		id, _, _ := strings.Cut(string(m.Run), "/")
		job := w.byWorkflow[coordinator.WorkflowID(id)]
		if job == nil {
			return engine.RunStatus{}, fmt.Errorf("cannot simulate run %s: nobody submitted it", m.Run)
		}
		r = &run{id: m.Run, job: job, spec: m.Job, place: -1, started: w.now}
		w.runs[m.Run] = r
	}
	mine := rank{host: h}
	for _, e := range m.Env {
		list, ok := strings.CutPrefix(e, "SUBSTRATE_GPUS=")
		if !ok {
			continue
		}
		for _, address := range strings.Split(list, ",") {
			g, known := h.at[address]
			if !known || h.busy[g] {
				return engine.RunStatus{}, fmt.Errorf("cannot simulate run %s: GPU %s of node %s is not free", m.Run, address, h.node.ID)
			}
			h.busy[g] = true
			mine.gpus = append(mine.gpus, g)
		}
	}
	cores := int(m.Job.Resources.Cores)
	if h.cores -= cores; h.cores < 0 {
		return engine.RunStatus{}, fmt.Errorf("cannot simulate run %s: node %s lacks %d cores", m.Run, h.node.ID, -h.cores)
	}
	w.busy.cores += cores
	w.busy.gpus += len(mine.gpus)
	r.ranks = append(r.ranks, mine)
	if len(r.ranks) == len(m.Nodes) {
		r.began, r.cause = true, engine.CauseExited
		lasts := r.job.Run
		if m.Walltime > 0 && lasts > m.Walltime {
			lasts, r.cause = m.Walltime, engine.CauseWalltime
		}
		r.ends = w.now.Add(lasts)
		heap.Push(&w.ends, r)
		w.started(r)
	}
	return engine.RunStatus{Run: m.Run, State: engine.RunRunning, Started: w.now}, nil
}

// stop is SIGTERM: the work ends by itself after a while, or is killed when its grace is over.
func (w *world) stop(m *engine.StopRun) {
	r := w.runs[m.Run]
	if r == nil || r.told != "" {
		return
	}
	r.told = m.Reason
	at := w.now.Add(min(m.Grace, w.opt.TermDelay))
	if r.place >= 0 && !at.Before(r.ends) {
		return // it is over before
	}
	r.ends, r.cause = at, engine.CauseStopped
	if r.place >= 0 {
		heap.Fix(&w.ends, r.place)
	} else {
		heap.Push(&w.ends, r)
	}
}

// endRuns ends what is over now.
func (w *world) endRuns(ctx context.Context) error {
	return w.engine.Together(ctx, func() error { return w.tellEnds(ctx) })
}

func (w *world) tellEnds(ctx context.Context) error {
	for len(w.ends) > 0 && !w.ends[0].ends.After(w.now) {
		r := heap.Pop(&w.ends).(*run)
		delete(w.runs, r.id)
		st := engine.RunStatus{Run: r.id, State: engine.RunEnded, Cause: r.cause, Started: r.started, Ended: w.now}
		if r.cause != engine.CauseExited {
			st.Signal = 15
		}
		for _, k := range r.ranks {
			for _, g := range k.gpus {
				k.host.busy[g] = false
			}
			cores := int(r.spec.Resources.Cores)
			k.host.cores += cores
			w.busy.cores -= cores
			w.busy.gpus -= len(k.gpus)
		}
		w.ended(r)
		for _, k := range r.ranks {
			if err := k.host.session.RunStatus(ctx, []engine.RunStatus{st}); err != nil {
				return err
			}
		}
	}
	return nil
}
