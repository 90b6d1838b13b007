package memory

import (
	"slices"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// within reports whether a piece of evidence can still be read so long after an end.
func within(w dispatch.Window, age time.Duration) bool {
	return w == dispatch.Unbounded || age < time.Duration(w)
}

// listed reports whether the system itself still knows an object.
func (c *Cluster) listed(o *object) bool {
	return !o.forgotten && (!o.over() || within(c.options.Keeps[dispatch.EvidenceState], c.now.Sub(o.ended)))
}

// look is an object as a client sees it: in the system's memory, or else in its history.
func (c *Cluster) look(o *object) (dispatch.Observation, bool) {
	if c.listed(o) {
		v := c.view(o)
		if age := c.now.Sub(o.ended); o.over() {
			if !within(c.options.Keeps[dispatch.EvidenceCause], age) {
				v.Cause = dispatch.CauseNone
			}
			if !within(c.options.Keeps[dispatch.EvidenceExitCode], age) {
				v.ExitCode, v.Signal = nil, nil
			}
		}
		return v, true
	}
	if c.options.History == HistoryNone {
		return dispatch.Observation{}, false
	}
	v := c.view(o)
	v.Raw += " of history"
	if c.options.History == HistoryWithoutComments {
		v.Ref, v.Note = dispatch.Ref{}, ""
	}
	return v, true
}

// view is all there is to say of an object now.
func (c *Cluster) view(o *object) dispatch.Observation {
	v := dispatch.Observation{Object: o.id, Ref: o.spec.Ref, Name: o.spec.Name, Note: o.spec.Note, Submitted: o.submitted, Execution: o.execution}
	if v.Name == "" {
		v.Name = string(o.spec.Ref.Job)
	}
	e := o.newest()
	switch {
	case o.over() && e == nil:
		v.State, v.Ended = o.state, o.ended
	case o.over():
		v.State, v.Cause, v.ExitCode, v.Signal, v.Ended = e.state, e.cause, e.code, e.signal, e.ended
	case e == nil:
		v.State, v.Cause, v.Hold = dispatch.StatePending, c.waits(o), c.held(o)
		if v.Cause == dispatch.CauseNone {
			v.Cause = c.why(o)
		}
	default:
		v.State = dispatch.StateRunning
		if !o.stopped.IsZero() {
			v.State = dispatch.StateEnding
		}
		if e.silent() && !c.now.Before(e.silentSince().Add(c.options.Notice)) {
			v.Cause = dispatch.CauseNodeLost
		}
		v.Ends = e.limit
	}
	if e != nil {
		v.Started, v.Nodes = e.started, names(e.nodes)
	}
	v.Raw = strings.ToUpper(v.State.String()) + " " + v.Cause.String()
	v.Earlier = c.earlier(o)
	return v
}

// newest is the run of the newest execution, nil when it has not started.
func (o *object) newest() *execution {
	if n := len(o.runs); n > 0 && o.runs[n-1].n == o.execution {
		return o.runs[n-1]
	}
	return nil
}

func (c *Cluster) earlier(o *object) (list []dispatch.Past) {
	for _, e := range o.runs {
		if e.n < o.execution && within(c.options.Keeps[dispatch.EvidenceExecution], c.now.Sub(e.ended)) {
			list = append(list, dispatch.Past{Execution: e.n, State: e.state, Cause: e.cause, ExitCode: e.code, Signal: e.signal, Started: e.started,
				Ended: e.ended, Nodes: names(e.nodes)})
		}
	}
	return list
}

func names(on []*node) []string {
	list := make([]string, len(on))
	for i, n := range on {
		list[i] = n.Name
	}
	return list
}

// written is what an execution has written to a stream by now.
func (c *Cluster) written(e *execution, s dispatch.Stream) string {
	until := c.now.Sub(e.started)
	if !e.gone.IsZero() {
		until = e.gone.Sub(e.started)
	}
	var b strings.Builder
	for _, p := range e.plan.pieces {
		to := p.stream
		if e.of.spec.Output.Merge {
			to = dispatch.Stdout
		}
		if p.at <= until && to == s {
			b.WriteString(p.data)
		}
	}
	return b.String()
}

// Truth is what really is, whatever clients are told.
type Truth struct {
	Doubles   []string            // starts of a job while another of its executions lived; of all jobs
	Open      []dispatch.ObjectID // objects with an open gate that may still run
	Left      []dispatch.ObjectID // objects that are not over
	Waiting   []dispatch.ObjectID // of these, those behind their gates
	Same      []dispatch.ObjectID // objects with the Ref of an earlier one
	Alive     int                 // executions whose processes live
	Succeeded int                 // executions that ended by themselves with 0
	Armed     bool                // the system may run one again by itself, or will when a call lands that is on its way
}

// Truth tells of one job.
func (c *Cluster) Truth(job dispatch.JobID) Truth {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	refs := map[dispatch.Ref]bool{}
	t := Truth{Doubles: slices.Clone(c.doubles), Armed: len(c.landings) > 0}
	for _, o := range c.objects {
		t.Armed = t.Armed || o.bit && !o.over()
		if o.spec.Ref.Job != job {
			continue
		}
		if refs[o.spec.Ref] {
			t.Same = append(t.Same, o.id)
		}
		refs[o.spec.Ref] = true
		if !o.over() {
			t.Left = append(t.Left, o.id)
			if !o.gate {
				t.Waiting = append(t.Waiting, o.id)
			}
			if o.gate && o.stopped.IsZero() {
				t.Open = append(t.Open, o.id)
			}
		}
		for _, e := range o.runs {
			if e.gone.IsZero() {
				t.Alive++
			}
			if e.natural && e.plan.code == 0 && e.plan.signal == 0 {
				t.Succeeded++
			}
		}
	}
	return t
}
