package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

const organization = "trace"

// prepare sets the configuration, lets the nodes join and makes the owners of the work.
func (w *world) prepare(ctx context.Context) error {
	token, err := w.engine.AdminToken(ctx)
	if err != nil {
		return err
	}
	if w.admin, err = w.engine.Authenticate(ctx, token); err != nil {
		return err
	}
	if _, err := w.engine.SetConfig(ctx, w.admin, engine.SetConfig{YAML: w.opt.Config, File: cmp.Or(w.opt.Name, "configuration")}); err != nil {
		return err
	}
	for i := range w.opt.Nodes {
		if err := w.join(ctx, &w.opt.Nodes[i]); err != nil {
			return err
		}
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	w.take()
	if err := w.owners(ctx); err != nil {
		return err
	}
	for _, r := range w.opt.Reserve {
		if err := w.reserve(ctx, r); err != nil {
			return err
		}
	}
	return w.settle(ctx)
}

// take makes the jobs of the trace into work for these nodes.
func (w *world) take() {
	largest := 1
	for _, h := range w.hosts {
		largest = max(largest, h.cores)
	}
	w.jobs = make([]work, len(w.opt.Trace.Jobs))
	for i := range w.jobs {
		j := w.opt.Trace.Jobs[i]
		if class, ok := w.opt.Classes[j.Queue]; ok {
			j.Class = class
		}
		j.Group = cmp.Or(j.Group, "default")
		j.User = cmp.Or(j.User, "nobody")
		w.jobs[i] = work{Job: &j, number: i, nodes: max(j.Nodes, 1), cores: max(j.Cores, 1)}
		if j.Procs > 0 {
			w.jobs[i].spread(j, largest, len(w.hosts))
		}
	}
	w.fragments.learn(w.jobs)
}

// spread divides processors over nodes: as few nodes as hold them, a few more where that divides them evenly.
func (w *work) spread(j Job, largest, hosts int) {
	w.nodes = max(j.Nodes, (j.Procs+largest-1)/largest)
	for n := w.nodes; n <= min(2*w.nodes, hosts) && j.Nodes == 0; n++ {
		if j.Procs%n == 0 {
			w.nodes = n
			break
		}
	}
	w.cores = (j.Procs + w.nodes - 1) / w.nodes
	w.Memory *= coordinator.Bytes(w.cores) // of each processor, until here
}

// owners makes the organisation, its groups and users, and gives the callers their tokens.
func (w *world) owners(ctx context.Context) error {
	if _, err := w.engine.CreateOrganization(ctx, w.admin, organization, 0); err != nil {
		return err
	}
	owners := map[string]map[string]bool{} // groups by user
	groups := map[string]bool{}
	for i := range w.jobs {
		j := &w.jobs[i]
		if owners[j.User] == nil {
			owners[j.User] = map[string]bool{}
		}
		owners[j.User][j.Group] = true
		groups[j.Group] = true
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		if g == "default" {
			continue
		}
		if _, err := w.engine.CreateGroup(ctx, w.admin, g, organization, 0); err != nil {
			return err
		}
	}
	if err := w.rank(ctx, groups); err != nil {
		return err
	}
	for _, u := range slices.Sorted(maps.Keys(owners)) {
		view, err := w.engine.CreateUser(ctx, w.admin, engine.NewUser{Name: u, Organization: organization, Groups: slices.Sorted(maps.Keys(owners[u]))})
		if err != nil {
			return err
		}
		token, _, err := w.engine.CreateUserToken(ctx, w.admin, engine.NewToken{User: string(view.ID)})
		if err != nil {
			return err
		}
		if w.callers[u], err = w.engine.Authenticate(ctx, token); err != nil {
			return err
		}
	}
	return nil
}

// rank gives groups their priorities and the lists of whom they may preempt.
func (w *world) rank(ctx context.Context, groups map[string]bool) error {
	known := func(g string) error {
		if !groups[g] {
			return unknownGroup(g, groups)
		}
		return nil
	}
	for _, g := range slices.Sorted(maps.Keys(w.opt.Priorities)) {
		if err := known(g); err != nil {
			return err
		}
		p := w.opt.Priorities[g]
		if _, err := w.engine.UpdateGroup(ctx, w.admin, engine.UpdateGroup{Group: g, Organization: organization, Priority: &p}); err != nil {
			return err
		}
	}
	for _, g := range slices.Sorted(maps.Keys(w.opt.Preempts)) {
		for _, name := range append([]string{g}, w.opt.Preempts[g]...) {
			if err := known(name); err != nil {
				return err
			}
		}
		if _, err := w.engine.UpdateGroup(ctx, w.admin, engine.UpdateGroup{Group: g, Organization: organization, Preempt: w.opt.Preempts[g]}); err != nil {
			return err
		}
	}
	return nil
}

func unknownGroup(g string, groups map[string]bool) error {
	return fmt.Errorf("cannot simulate: no job of the trace is of group %q, there are %s", g, strings.Join(slices.Sorted(maps.Keys(groups)), ", "))
}

// reservedFor is how long a reservation lasts, the longest that there is.
const reservedFor = 10*365*24*time.Hour - time.Hour

// reserve makes a reservation that lasts for the whole simulation.
func (w *world) reserve(ctx context.Context, r Reserve) error {
	if r.Definition == "" {
		_, list, err := w.engine.Definitions(ctx)
		if err != nil {
			return err
		}
		var with []string
		for _, d := range list {
			if d.Nodes > 0 {
				with = append(with, string(d.ID))
			}
		}
		if len(with) != 1 {
			return fmt.Errorf("cannot reserve for group %s: %d definitions have nodes, name one of %s", r.Group, len(with), strings.Join(with, ", "))
		}
		r.Definition = with[0]
	}
	in := engine.NewReservation{Name: slug("r-", "for-"+r.Group), Organization: organization, Group: r.Group, Definition: coordinator.DefinitionID(r.Definition),
		From: w.now, Until: w.now.Add(reservedFor)}
	if r.Size == 0 {
		if r.Size = w.peak(r.Group); r.Size == 0 {
			return fmt.Errorf("cannot reserve for group %s: it has no reserved work in the trace, so the size must be said", r.Group)
		}
	}
	if in.GPUs = uint32(r.Size); w.total.gpus == 0 {
		in.GPUs, in.Nodes = 0, uint32(r.Size)
	}
	_, _, err := w.engine.CreateReservation(ctx, w.admin, in)
	return err
}

// peak is how many GPUs, or nodes where there are none, the reserved work of a group has at one time when nothing waits.
func (w *world) peak(group string) int {
	type change struct {
		at time.Duration
		n  int
	}
	var changes []change
	for i := range w.jobs {
		j := &w.jobs[i]
		if j.Group != group || j.Class != coordinator.ClassReserved {
			continue
		}
		n := j.gpus()
		if w.total.gpus == 0 {
			n = j.nodes
		}
		changes = append(changes, change{j.Submit, n}, change{j.Submit + j.Run, -n})
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	now, most := 0, 0
	for _, c := range changes {
		now += c.n
		most = max(most, now)
	}
	return most
}

// submitDue submits what comes now.
func (w *world) submitDue(ctx context.Context) error {
	w.fresh = w.fresh[:0]
	for ; w.next < len(w.jobs); w.next++ {
		j := &w.jobs[w.next]
		if epoch().Add(j.Submit).After(w.now) {
			return nil
		}
		j.submitted = w.now
		res, err := w.engine.StartWorkflow(ctx, w.callers[j.User], engine.StartWorkflow{YAML: j.file(), File: "job " + j.ID, Group: j.Group})
		if w.opt.Progress != nil {
			w.opt.Progress(w.next+1, len(w.jobs))
		}
		var refused *coordinator.Error
		switch {
		case errors.As(err, &refused) && refused.Kind != coordinator.ErrUnavailable:
			j.refused = refused.Err.Error()
			continue
		case err != nil:
			return err
		}
		j.workflow, j.waiting = res.Workflow.ID, true
		w.byWorkflow[j.workflow] = j
		w.waiting.add(j, 1)
		w.fresh = append(w.fresh, j)
	}
	return nil
}

// minMemory is asked for by work of which the trace does not tell: it never decides.
const minMemory = 1 << 20

// file is the job as a user would write it.
func (w *work) file() []byte {
	var b strings.Builder
	kind := "jobs"
	if w.Service {
		kind = "services"
	}
	fmt.Fprintf(&b, "version: v1\nname: job-%d\npriority: %d\n%s:\n  job:\n    command: [simulated]\n    class: %s\n    retry-on-preempt: true\n",
		w.number+1, w.Priority, kind, w.Class)
	if w.Preemptible && w.Class != coordinator.ClassReserved {
		b.WriteString("    preemptible: true\n")
	}
	if w.Walled > 0 {
		fmt.Fprintf(&b, "    policy: {timeout: {execute: %ds}}\n", int64((w.Walled+time.Second-1)/time.Second))
	}
	if w.nodes > 1 {
		fmt.Fprintf(&b, "    multinode: {nodes: %d}\n", w.nodes)
	}
	devices := ""
	if w.GPUs > 0 {
		devices = fmt.Sprintf(", devices: {%s: %d}", gpuDevice, w.GPUs)
	}
	fmt.Fprintf(&b, "    resource: {cpu: {cores: %d}, memory: {size: %d}%s}\n", w.cores, max(w.Memory, minMemory), devices)
	return []byte(b.String())
}

// started notes that a run has begun on all its nodes.
func (w *world) started(r *run) {
	j := r.job
	if j.first.IsZero() {
		j.first = w.now
		j.estimate.met(w.now)
	}
	j.last = w.now
	if w.begun != nil {
		w.begun(r)
	}
	if j.waiting {
		j.waiting = false
		w.waiting.add(j, -1)
	}
}

// ended notes the end of a run. Work that was told to leave waits again, all of it being retried.
func (w *world) ended(r *run) {
	j := r.job
	if r.told == "preempted" {
		if r.began {
			j.attempts = append(j.attempts, attempt{r.started, w.now})
		}
		j.waiting = true
		w.waiting.add(j, 1)
		return
	}
	j.end = w.now
	switch r.cause {
	case "exited":
		j.outcome = Finished
	case "walltime":
		j.outcome = Walltime
	default:
		j.outcome = string(r.cause)
	}
}

// waiting counts what waits, also by how many GPUs it wants.
type waiting struct {
	jobs, cores, gpus int
	byGPUs            map[int]int
}

func (c *waiting) add(j *work, n int) {
	if c.byGPUs == nil {
		c.byGPUs = map[int]int{}
	}
	c.jobs += n
	c.cores += n * j.cores * j.nodes
	c.gpus += n * j.gpus()
	if k := j.gpus(); k > 0 {
		if c.byGPUs[k] += n; c.byGPUs[k] == 0 {
			delete(c.byGPUs, k)
		}
	}
}
