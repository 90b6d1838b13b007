package sim

import (
	"slices"
	"strings"
	"time"

	"substrate/agent/runtime"
	"substrate/coordinator"
)

// What really runs on the nodes, and what is asked of it. The judge believes no record here.

func runOf(r *vrun) coordinator.RunID { return coordinator.RunID(r.spec.ID) }

// allocationOf cuts the attempt off a run's id.
func allocationOf(run coordinator.RunID) coordinator.AllocationID {
	id, _, _ := strings.Cut(string(run), "#")
	return coordinator.AllocationID(id)
}

// ordered: an order has reached a keeper. What it carries out must be durable.
func (j *judge) ordered(r *vrun) {
	a := j.find(allocationOf(runOf(r)))
	if a == nil || a.record.Attempt == 0 {
		j.w.fail("%s is ordered to start %s, which is not durable", r.node.id, r.spec.ID)
		return
	}
	j.w.count("orders")
}

func (j *judge) processBegan(r *vrun) {
	n, run := r.node, runOf(r)
	a := j.find(allocationOf(run))
	j.w.step("%s: process of %s begins, GPUs %v", n.id, run, r.gpus)
	j.w.count("starts")
	if j.procs[run] == nil {
		j.procs[run] = map[string]*process{}
	}
	if p := j.procs[run][n.id]; p != nil {
		j.w.fail("%s begins %s for the second time, before %+v", n.id, run, p)
	}
	j.procs[run][n.id] = &process{run: run, node: n.id, began: time.Now()}
	if j.live[n.id] == nil {
		j.live[n.id] = map[coordinator.RunID]*vrun{}
	}
	if a == nil {
		return
	}
	if nodes := r.spec.Nodes; len(nodes) != int(max(a.spec.Nodes, 1)) || !slices.Contains(nodes, n.id) {
		j.w.fail("%s begins %s with nodes %v", n.id, run, nodes)
	}
	if want := int(a.spec.Resources.Devices["nvidia.com/gpu"]); len(r.gpus) != want {
		j.w.fail("%s on %s has GPUs %v, it asked for %d", run, n.id, r.gpus, want)
	}
	j.live[n.id][run] = r
	j.crowded(n, r)
	j.copies(a, r)
	j.licences(r)
	j.foreign(a, r)
}

// crowded: no GPU, core or byte twice.
func (j *judge) crowded(n *vnode, r *vrun) {
	cores, memory := 0, uint64(0)
	for _, other := range j.live[n.id] {
		cores += int(other.spec.Cores)
		memory += uint64(other.spec.Memory)
		if other == r {
			continue
		}
		for _, g := range r.gpus {
			if slices.Contains(other.gpus, g) {
				j.w.fail("GPU %s of %s is given to %s while %s runs on it", g, n.id, r.spec.ID, other.spec.ID)
			}
		}
		if e := j.exclusive(r, other); e != "" {
			j.w.fail("%s on %s runs beside %s, though %s", r.spec.ID, n.id, other.spec.ID, e)
		}
	}
	if cores > n.machine.cores {
		j.w.fail("%d of %d cores of %s are used, with %s: %s", cores, n.machine.cores, n.id, r.spec.ID, j.list(n))
	}
	if memory > n.machine.memory {
		j.w.fail("%d of %d bytes of %s are used, with %s: %s", memory, n.machine.memory, n.id, r.spec.ID, j.list(n))
	}
	fabric := -1
	for _, g := range r.gpus {
		f := n.machine.fabricOf(g)
		if f < 0 || fabric >= 0 && f != fabric {
			j.w.fail("%s on %s has GPUs of several fabrics, or none: %v", r.spec.ID, n.id, r.gpus)
			break
		}
		fabric = f
	}
}

func (j *judge) exclusive(r, other *vrun) string {
	for _, x := range []*vrun{r, other} {
		if a := j.find(allocationOf(runOf(x))); a != nil && a.spec.Resources.Exclusive != coordinator.ExclusiveNone {
			return string(a.id) + " is exclusive"
		}
	}
	return ""
}

func (j *judge) list(n *vnode) string {
	var out []string
	for run, r := range j.live[n.id] {
		state := ""
		if r.wasLost {
			state = " (was given up)"
		}
		out = append(out, string(run)+state)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// copies: no second copy while the first may live, except where the node was given up with it.
func (j *judge) copies(a *allocation, r *vrun) {
	for _, n := range j.w.nodes {
		for run, other := range j.live[n.id] {
			if run != runOf(r) && allocationOf(run) == a.id && !other.wasLost {
				j.w.fail("%s begins on %s while %s still runs on %s", r.spec.ID, r.node.id, run, n.id)
			}
		}
	}
}

// licences: no token twice. What runs on a node that was given up is beyond reach.
func (j *judge) licences(r *vrun) {
	used := map[coordinator.AllocationID]uint32{}
	for _, n := range j.w.nodes {
		for run, other := range j.live[n.id] {
			if a := j.find(allocationOf(run)); a != nil && !other.wasLost {
				used[a.id] = a.spec.Resources.Tokens["licence"]
			}
		}
	}
	sum := uint32(0)
	for _, n := range used {
		sum += n
	}
	if most := j.mostLicences(); sum > most && used[allocationOf(runOf(r))] > 0 {
		j.w.fail("%d licences of %d are used, with %s", sum, most, r.spec.ID)
	}
}

// mostLicences is how many any configuration had so far: fewer than are in use takes none away.
func (j *judge) mostLicences() uint32 {
	most := 0
	for _, s := range j.known {
		most = max(most, s.licences)
	}
	return uint32(most)
}

// asked: a stop has reached a keeper's process. Of a preemption, the whole plan must be durable by now.
func (j *judge) asked(r *vrun, reason string, grace time.Duration) {
	if r.termAt.IsZero() {
		j.w.step("%s: %s is asked to end, %s, %s", r.node.id, r.spec.ID, reason, grace)
	}
	if reason != "preempted" {
		return
	}
	run := runOf(r)
	a := j.find(allocationOf(run))
	if a == nil || a.run() == run && a.record.Stop != "preempted" {
		j.w.fail("%s gets a notice that is not durable", run)
	}
	if r.noticeAt.IsZero() {
		r.noticeAt = time.Now()
		j.w.count("notices")
	}
}

// killed: SIGKILL. Who was given notice has had all of it, unless something else ended it before.
func (j *judge) killed(r *vrun) {
	j.w.step("%s: %s is killed, %s", r.node.id, r.spec.ID, r.killFor)
	j.w.count("kills")
	if r.killFor == "preempted" {
		if had := time.Since(r.noticeAt); had < j.loose {
			j.w.fail("%s on %s had %s of its notice, the shortest that is promised is %s", r.spec.ID, r.node.id, had, j.loose)
		}
	}
}

func (j *judge) processEnded(r *vrun, how string) {
	run := runOf(r)
	j.w.step("%s: process of %s ends, %s", r.node.id, run, how)
	delete(j.live[r.node.id], run)
	p := j.procs[run][r.node.id]
	if p == nil {
		return
	}
	p.ended, p.how = time.Now(), how
	if how == "exited" {
		p.code = r.status.ExitCode
	}
}

// recorded: the end is in the node's journal.
func (j *judge) recorded(r *vrun) {
	p := j.procs[runOf(r)][r.node.id]
	if p == nil {
		return
	}
	p.recorded, p.cause = true, string(r.status.Cause)
	if p.how == "exited" {
		p.code = r.status.ExitCode
	}
	if r.status.Cause == runtime.CauseExited {
		p.how = "exited"
	}
}
