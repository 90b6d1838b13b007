package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/logs"
	"substrate/coordinator/provision/native"
)

// dispatcherOfRuns is a provisioner that carries out runs itself, as jobs of its batch system: those of definitions of mode native.
type dispatcherOfRuns interface {
	Serve(ctx context.Context, h native.Host, wake <-chan struct{}) error
}

// seen is how a run was last seen in its batch system. Only memory knows.
type seen struct {
	text  string
	state dispatch.State
	odd   bool // running, with something worth saying
}

// slots are the runs of one backend, as its driver sees them.
type slots struct {
	engine  *Engine
	backend backendID
}

// Orders lists the runs on this backend's slots that have not ended, and names those on others'.
func (h slots) Orders(ctx context.Context) (out []native.Order, elsewhere []coordinator.RunID, err error) {
	err = h.engine.view(ctx, func(s *state) {
		for _, id := range slices.Sorted(maps.Keys(s.launches)) {
			l := s.launches[id]
			if !l.isSlot() {
				continue
			}
			for _, node := range l.record.Joined {
				switch n := s.nodes[node]; {
				case n == nil:
				case l.record.Backend == h.backend:
					out = append(out, s.slotOrders(l, n)...)
				default:
					for _, a := range n.active {
						elsewhere = append(elsewhere, a.run())
					}
				}
			}
		}
	})
	slices.SortFunc(out, func(a, b native.Order) int { return cmp.Compare(a.Run, b.Run) })
	return out, elsewhere, err
}

func (s *state) slotOrders(l *launch, n *node) (out []native.Order) {
	for _, a := range sortedAllocations(n.active) {
		r := a.rank(n.id)
		if r == nil || r.State == RunEnded {
			continue
		}
		o := native.Order{Run: a.run(), Attempt: a.record.Attempt, Name: a.job.workflow.record.Spec.Name + "/" + a.name(), Job: a.job.spec,
			Stop: a.record.Stop != "", Running: r.State == RunRunning}
		if r.Book != nil {
			o.Book = *r.Book
		}
		if a.seen != nil {
			o.Shown = a.seen.text
		}
		if o.Book.Object == "" { // it may have to be submitted
			o.Env = s.startRun(a, n.id).Env
			if s.stands(l) {
				own := *s.definition(l.record.Definition)
				o.Definition = &own
			}
		}
		out = append(out, o)
	}
	return out
}

// slotRun finds a run that a driver speaks of, nil when it is not to be any more.
func (s *state) slotRun(run coordinator.RunID, backend backendID) (*allocation, *rankRecord, *node) {
	a, current := s.runOwner(run)
	if a == nil || !current || !a.record.Status.Holds() || len(a.record.Ranks) != 1 {
		return nil, nil, nil
	}
	r := &a.record.Ranks[0]
	n := s.nodes[r.Node]
	if n == nil || !n.isSlot() || r.State == RunEnded {
		return nil, nil, nil
	}
	if l := s.launchOf(n); l == nil || l.record.Backend != backend {
		return nil, nil, nil
	}
	return a, r, n
}

// Write stores a book with the run that it is of.
func (h slots) Write(ctx context.Context, run coordinator.RunID, b dispatch.Book) error {
	return h.engine.doReport(ctx, func(t *tx) error {
		a, r, _ := t.state.slotRun(run, h.backend)
		if a == nil {
			return native.ErrGone
		}
		if fresh := r.Book == nil || r.Book.Object != b.Object; fresh && b.Object != "" {
			t.event(Event{Kind: "dispatched", Workflow: a.job.workflow.id, Job: a.name(), Subject: string(b.Object),
				Message:  fmt.Sprintf("is job %s of %s", b.Object, h.backend.system()),
				Metadata: map[string]string{"run": string(run), "backend": h.backend.String(), "definition": string(a.record.Definition)}})
		}
		book := b
		r.Book = &book
		t.touch(a)
		return nil
	})
}

// Report takes in a start or an end, by the rules of every node's reports.
func (h slots) Report(ctx context.Context, run coordinator.RunID, rep native.Report) error {
	st := RunStatus{Run: run, State: RunRunning, Started: rep.Started}
	if rep.Over {
		st = RunStatus{Run: run, State: RunEnded, Cause: Cause(rep.Cause), ExitCode: rep.ExitCode, Signal: rep.Signal, Message: rep.Message, Started: rep.Started,
			Ended: rep.Ended, StdoutBytes: rep.Stdout, StderrBytes: rep.Stderr, Doubt: rep.Doubt}
	}
	return h.engine.doReport(ctx, func(t *tx) error {
		if a, _, n := t.state.slotRun(run, h.backend); a != nil {
			t.report(n, st)
		}
		return nil
	})
}

// Show notes how runs are in their batch system, for those who ask.
func (h slots) Show(ctx context.Context, list map[coordinator.RunID]dispatch.Observation) error {
	return h.engine.doBare(ctx, func(t *tx) error {
		for run, o := range list {
			if a, _, _ := t.state.slotRun(run, h.backend); a != nil {
				odd := o.State != dispatch.StateRunning && o.State != dispatch.StatePending || o.State == dispatch.StateRunning && o.Cause != dispatch.CauseNone
				a.seen = &seen{text: native.Text(o), state: o.State, odd: odd}
			}
		}
		return nil
	})
}

// Output stores a piece of a run's output.
func (h slots) Output(run coordinator.RunID, of dispatch.Stream, offset uint64, data []byte) (uint64, error) {
	name := "stdout"
	if of == dispatch.Stderr {
		name = "stderr"
	}
	next, err := h.engine.opt.Logs.Append(run, logs.Stream(name, 0), offset, data)
	if err != nil {
		return next, coordinator.Errorf(logErrorKind(err), "store output of "+string(run), "%w", err)
	}
	return next, nil
}

// slotView shows a slot by the jobs on it.
func (s *state) slotView(l *launch, v LaunchView) LaunchView {
	var jobs, details []string
	v.For, v.State = nil, "open"
	for _, id := range l.record.Joined {
		n := s.nodes[id]
		if n == nil {
			continue
		}
		for _, a := range sortedAllocations(n.active) {
			r := a.rank(id)
			if r == nil || r.State == RunEnded {
				continue
			}
			v.For = append(v.For, a.id)
			if r.Book == nil || r.Book.Object == "" {
				v.State, details = "submitting", append(details, "is being handed over")
				if a.seen != nil {
					details = append(details, a.seen.text)
				}
				continue
			}
			jobs = append(jobs, string(r.Book.Object))
			if a.seen != nil {
				v.State, details = a.seen.state.String(), append(details, a.seen.text)
			}
		}
	}
	v.Instance = strings.Join(jobs, ",")
	v.Detail = cmp.Or(strings.Join(details, "; "), l.record.Release)
	if l.record.Release != "" {
		v.State = "releasing"
	}
	return v
}
