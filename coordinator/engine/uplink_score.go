package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/federation"
	"substrate/coordinator/workflow"
	"substrate/expr"
)

// scorePrefix begins the ids of allocations that are only asked about; no workflow's id begins so.
const scorePrefix = "~score"

// ScoreView is how a workflow would fare here.
type ScoreView struct {
	federation.Score
	Usable, Free coordinator.Hardware
	CostNote     string // why the cost is not known
}

// ScoreWorkflow tells how a workflow would fare here, without starting it. What cannot be started is an answer, with
// the reason; only a request that makes no sense, or that the caller may not make, is an error.
func (e *Engine) ScoreWorkflow(ctx context.Context, c Caller, in StartWorkflow) (v ScoreView, err error) {
	op := "score workflow " + cmp.Or(in.Name, in.File)
	if err := c.authorize(auth.PermissionUser, op, auth.Target{}); err != nil {
		return v, err
	}
	spec, diags := workflow.Parse(in.File, in.YAML)
	if err := diags.Err(); err != nil {
		return v, &coordinator.Error{Kind: coordinator.ErrInvalid, Op: op, Err: err}
	}
	if err := overlay(&spec, in, op); err != nil {
		return v, err
	}
	verr := e.view(ctx, func(s *state) {
		var owner coordinator.Owner
		var prio priorities
		if owner, prio, err = s.owner(c, in.Group, op); err != nil {
			return
		}
		t := &tx{engine: e, state: s, now: e.opt.Now().UTC()}
		v = t.score(op, workflowRecord{Spec: spec, Owner: owner, Priorities: prio, Submitted: t.now,
			Preempts: s.groups[owner.Group].Preempts}, e.opt.MaxAllocations, e.opt.MaxOpenAllocations)
	})
	return v, cmp.Or(verr, err)
}

// score gathers the answer. The job that stands worst counts: it is the one that the workflow waits for.
func (t *tx) score(op string, rec workflowRecord, most, open int) ScoreView {
	s := t.state
	v := ScoreView{Score: federation.Score{PrioritySHA256: s.prioritySum()}}
	v.Ready, v.Running = uint32(len(s.queued)), uint32(len(s.active))
	if n := allocations(rec.Spec); n > most || s.open+n > open {
		v.Reason = fmt.Sprintf("%d jobs and tasks are more than the cluster takes now", n)
		return v
	}
	if err := s.fillWalltimes(op, &rec.Spec); err != nil {
		v.Reason = reasonOf(err)
		return v
	}
	w := newWorkflow(scorePrefix, rec)
	for _, j := range w.jobs {
		if err := s.refuseImpossible(op, j); err != nil {
			v.Reason = reasonOf(err)
			return v
		}
	}
	env := &expr.PriorityEnv{}
	v.Score.Score = math.Inf(1)
	v.UsableNodes = math.MaxUint32
	could := map[coordinator.NodeID]bool{}
	for _, j := range w.jobs {
		v.Score.Score = min(v.Score.Score, t.effective(j.allocations[0], env))
		nodes := s.couldHold(j)
		v.UsableNodes = min(v.UsableNodes, uint32(len(nodes)))
		for _, n := range nodes {
			if !could[n.id] {
				could[n.id] = true
				v.add(s, n)
			}
		}
	}
	v.ahead(t, env)
	v.Cost, v.CostNote = s.costOfAll(w)
	v.Startable = t.startable(w, env)
	return v
}

// reasonOf is an error without what was tried.
func reasonOf(err error) string {
	text := err.Error()
	if i := strings.Index(text, ": "); strings.HasPrefix(text, "cannot ") && i > 0 {
		text = text[i+2:]
	}
	return text
}

// effective is an allocation's priority now.
func (t *tx) effective(a *allocation, env *expr.PriorityEnv) float64 {
	t.state.fillPriority(t.now, a, env)
	v, err := t.state.config.priority.Eval(env)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// ahead counts what waits and scores strictly higher.
func (v *ScoreView) ahead(t *tx, env *expr.PriorityEnv) {
	for _, a := range t.state.queued {
		if t.effective(a, env) > v.Score.Score {
			v.Ahead++
		}
	}
}

// couldHold lists the ready nodes that could hold the job if they were empty.
func (s *state) couldHold(j *job) []*node {
	adm, q := s.admit(j), s.ask(j)
	var out []*node
	for _, d := range adm.admissible {
		for _, n := range s.config.nodesOf[d] {
			excluded := false
			for _, x := range adm.exclude {
				excluded = excluded || x == n.id
			}
			if !excluded && n.known && n.status() == NodeReady && (holds(&n.capacity, &j.spec.Resources) || len(q.missing(n)) == 0) {
				out = append(out, n)
			}
		}
	}
	return out
}

func (v *ScoreView) add(s *state, n *node) {
	sum := func(to *coordinator.Hardware, c coordinator.Cores, threads uint32, m coordinator.Bytes) {
		to.Cores, to.Threads, to.Memory = to.Cores+c, to.Threads+threads, to.Memory+m
		if to.Devices == nil {
			to.Devices = map[string]uint32{}
		}
	}
	used := s.used(n)
	sum(&v.Usable, n.capacity.Cores, n.capacity.Threads, n.capacity.Memory)
	sum(&v.Free, n.capacity.Cores-min(used.Cores, n.capacity.Cores), n.capacity.Threads-min(used.Threads, n.capacity.Threads),
		n.capacity.Memory-min(used.Memory, n.capacity.Memory))
	v.UsableCores, v.FreeCores = uint32(v.Usable.Cores), uint32(v.Free.Cores)
	for name, k := range n.capacity.Devices {
		free := k - min(used.Devices[name], k)
		v.Usable.Devices[name] += k
		v.Free.Devices[name] += free
		if isGPU(name) {
			v.UsableGPUs += k
			v.FreeGPUs += free
		}
	}
}

// costOfAll is what the longest run of all jobs costs where it is cheapest among the definitions that have a node for
// it; nil, and why, when there is none, or one has no price or no end.
func (s *state) costOfAll(w *submission) (*float64, string) {
	sum := 0.0
	for _, j := range w.jobs {
		if j.spec.Walltime == 0 {
			return nil, "job " + j.spec.Name + " has no walltime"
		}
		nodes := s.couldHold(j)
		i := slices.IndexFunc(s.config.byCost, func(d *coordinator.Definition) bool { // the cheapest comes first
			return slices.ContainsFunc(nodes, func(n *node) bool { return n.record.Definition == d.ID })
		})
		if i < 0 {
			var admit []string
			for _, d := range s.admit(j).admissible {
				admit = append(admit, string(d))
			}
			return nil, fmt.Sprintf("no ready node could hold job %s; definitions that would admit it: %s", j.spec.Name, joined(admit))
		}
		price := orInfinite(s.price(s.config.byCost[i]))
		if math.IsInf(price, 0) {
			return nil, fmt.Sprintf("definition %s has no costPerHour", s.config.byCost[i].ID)
		}
		sum += price * j.spec.Walltime.Hours() * float64(max(j.spec.Nodes, 1)) * float64(len(j.allocations))
	}
	return &sum, ""
}

// startable asks the core whether each job that waits for no other would start now if it were alone; of an array, its
// first task.
func (t *tx) startable(w *submission, env *expr.PriorityEnv) bool {
	s := t.state
	if s.core.scheduler == nil {
		return false
	}
	warned := s.config.priorityWarned
	s.config.priorityWarned = true // a question warns of nothing
	defer func() { s.config.priorityWarned = warned }()
	for _, j := range w.jobs {
		if len(j.spec.DependsOn) > 0 {
			continue
		}
		p, ok := s.core.scheduler.WhatIf(s.request(t, j.allocations[0], env), t.now)
		if !ok || p.Start == nil {
			return false
		}
	}
	return true
}

// IsGPU tells names of GPU devices from those of others.
func IsGPU(device string) bool { return isGPU(device) }
