package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

// feed is who uses the cluster: people of groups that submit and cancel, and administrators that change things.
type feed struct {
	world  *world
	rng    *rand.Rand
	ops    *rand.Rand
	people []*person
	admin  string // token
	sets   []settings
	set    int // configurations set so far
	flows  []*flow
	until  time.Time // arrivals end
}

// person submits for one group.
type person struct {
	name, group string
	token       string
	caller      engine.Caller
}

// flow is a workflow that was, or is to be, submitted.
type flow struct {
	number   int
	owner    *person
	yaml     string
	id       coordinator.WorkflowID
	answered bool
	refused  string
	hopeless bool // no node could ever hold it
	either   bool // it may be refused, or not
}

// group names with their first priority and preemption list.
type groupSpec struct {
	slug     string
	priority int32
	preempts []string
}

func groupSpecs() []groupSpec {
	return []groupSpec{{"prod", 45, []string{"dev", "lab"}}, {"dev", 20, []string{"lab"}}, {"lab", 0, nil}}
}

// settings is what the simulation knows about a configuration that it sets.
type settings struct {
	yaml     string
	enabled  bool
	gap      float64
	least    float64
	notice   time.Duration
	minRun   time.Duration
	licences int
	backfill string
	priority priorityForm
}

// priorityForm is scheduler.priority, and the same worked out here.
type priorityForm struct {
	source string
	eval   func(in map[string]float64) float64
}

func priorityForms() []priorityForm {
	base := func(in map[string]float64) float64 {
		return in["group_priority"] + in["user_priority"] + in["workflow_priority"]
	}
	return []priorityForm{
		{"group_priority + user_priority + workflow_priority", base},
		{"group_priority + user_priority + workflow_priority + age_seconds / 3600.0",
			func(in map[string]float64) float64 { return base(in) + in["age_seconds"]/3600 }},
		{"group_priority + user_priority + workflow_priority + gpus * 2.0 + age_seconds / 600.0",
			func(in map[string]float64) float64 { return base(in) + in["gpus"]*2 + in["age_seconds"]/600 }},
	}
}

const definitionsYAML = `
definitions:
  - id: islands
    provisioner: static
    provisionerSpec: {condition: cpuinfo.arch == "ppc64le", costPerHour: 3}
  - id: pairs
    provisioner: static
    provisionerSpec: {condition: cpuinfo.cpu_cores == 32, costPerHour: 2}
  - id: desks
    provisioner: static
    provisionerSpec: {condition: cpuinfo.cpu_cores < 32 && cpuinfo.arch == "amd64", costPerHour: 0.5}
`

// nextSettings draws a configuration. The definitions stay; the first one is granted to all.
func (f *feed) nextSettings() settings {
	rng := f.ops
	pick := func(list ...time.Duration) time.Duration { return list[rng.IntN(len(list))] }
	s := settings{
		enabled: rng.IntN(4) > 0, gap: float64(rng.IntN(4) * 5), least: float64(rng.IntN(3) * 10),
		notice: pick(15*time.Second, time.Minute, time.Minute, 2*time.Minute), minRun: pick(0, 0, time.Minute, 10*time.Minute),
		licences: 2 + rng.IntN(3), priority: priorityForms()[rng.IntN(len(priorityForms()))],
	}
	s.backfill = []string{"none", "easy", "conservative"}[rng.IntN(3)]
	f.set++
	s.yaml = fmt.Sprintf(`# number %d
softwareTokens: {licence: %d}
scheduler:
  priority: %s
  preemptionEnabled: %v
  preemptionGap: %v
  preemptionThreshold: %v
  preemptionNotice: %s
  minPreemptionRuntime: %s
  backfill: %s
`, f.set, s.licences, s.priority.source, s.enabled, s.gap, s.least, s.notice, s.minRun, s.backfill) + definitionsYAML
	return s
}

// caller is whom a token stands for in the life that is now; false while there is none.
func (w *world) caller(token string) (*engine.Engine, engine.Caller, bool) {
	w.mu.Lock()
	l := w.life
	ok := l != nil && l.alive
	w.mu.Unlock()
	if !ok {
		return nil, engine.Caller{}, false
	}
	c, err := l.engine.Authenticate(context.Background(), token)
	return l.engine, c, err == nil
}

// request tries until somebody answers for good; what is asked must bear being asked twice.
func (w *world) request(token, what string, ask func(context.Context, *engine.Engine, engine.Caller) error) error {
	rng := w.rng("request", what)
	for range maxTries {
		w.mu.Lock()
		closed := w.closed
		w.mu.Unlock()
		if closed {
			break
		}
		err := coordinator.Errorf(coordinator.ErrUnavailable, "reach the coordinator", "nobody answers")
		if e, c, ok := w.caller(token); ok {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			err2 := ask(ctx, e, c)
			cancel()
			if err2 == nil {
				return nil
			}
			if kind := coordinator.ErrorKindOf(err2); kind != coordinator.ErrUnavailable && kind != coordinator.ErrExhausted &&
				!errors.Is(err2, context.DeadlineExceeded) {
				return err2
			}
			err = nil
		}
		_ = err
		time.Sleep(time.Second + time.Duration(rng.Int64N(int64(10*time.Second))))
	}
	return fmt.Errorf("nobody answered %s", what)
}

const maxTries = 2000

// found sets the cluster up: configuration, groups, people.
func (f *feed) found(ctx context.Context) error {
	w := f.world
	e := w.life.engine
	var err error
	if f.admin, err = e.AdminToken(ctx); err != nil {
		return err
	}
	_, admin, _ := w.caller(f.admin)
	first := f.nextSettings()
	w.mu.Lock()
	w.judge.knows(first)
	w.mu.Unlock()
	if _, err := e.SetConfig(ctx, admin, engine.SetConfig{YAML: []byte(first.yaml), File: "cluster.yaml"}); err != nil {
		return err
	}
	for _, g := range groupSpecs() {
		if _, err := e.CreateGroup(ctx, admin, g.slug, "default", g.priority); err != nil {
			return err
		}
	}
	for _, g := range groupSpecs() {
		if _, err := e.UpdateGroup(ctx, admin, engine.UpdateGroup{Group: g.slug, Organization: "default", Preempt: g.preempts}); err != nil {
			return err
		}
		p := &person{name: "who-" + g.slug, group: g.slug}
		if _, err := e.CreateUser(ctx, admin, engine.NewUser{Name: p.name, Organization: "default", Groups: []string{g.slug}}); err != nil {
			return err
		}
		if p.token, _, err = e.CreateUserToken(ctx, admin, engine.NewToken{User: p.name}); err != nil {
			return err
		}
		f.people = append(f.people, p)
	}
	return nil
}

// arrive submits something now, and again after a while until arrivals end.
func (f *feed) arrive() {
	w := f.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Now().After(f.until) {
		return
	}
	burst := 1
	if f.rng.IntN(12) == 0 {
		burst += f.rng.IntN(6)
	}
	for range burst {
		fl := f.compose()
		w.after(time.Duration(1+f.rng.Int64N(int64(time.Second))), func() { w.ask(func() { f.submit(fl) }) })
	}
	w.after(exponential(f.rng, meanArrival), f.arrive)
}

const meanArrival = 6 * time.Minute

// exponential draws a wait.
func exponential(rng *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(rng.ExpFloat64()*float64(mean)) + time.Duration(1+rng.IntN(1000))
}

// submit hands a workflow in, with a key that makes a second try harmless.
func (f *feed) submit(fl *flow) {
	w := f.world
	w.mu.Lock()
	w.step("%s submits flow %d", fl.owner.name, fl.number)
	w.mu.Unlock()
	err := w.request(fl.owner.token, fmt.Sprint("submit ", fl.number), func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
		res, err := e.StartWorkflow(ctx, c, engine.StartWorkflow{
			YAML: []byte(fl.yaml), File: "w.yaml", Group: fl.owner.group, IdempotencyKey: fmt.Sprint("flow-", fl.number)})
		if err == nil {
			fl.id = res.Workflow.ID
		}
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		fl.answered = true
		w.count("workflows")
		w.step("flow %d is %s", fl.number, fl.id)
		w.judge.answered(fl)
	default:
		fl.refused = err.Error()
		w.count("refusals")
		w.step("flow %d is refused: %v", fl.number, err)
	}
	if fl.hopeless == fl.answered && !fl.either {
		w.fail("flow %d, hopeless %v, is answered with %v\n%s", fl.number, fl.hopeless, err, fl.yaml)
	}
}

// cancel takes back a workflow or a part of it.
func (f *feed) cancel(fl *flow, job string) {
	w := f.world
	err := w.request(fl.owner.token, fmt.Sprint("cancel ", fl.number, job), func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
		_, err := e.CancelWorkflow(ctx, c, string(fl.id), job)
		return err
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count("cancels")
	w.step("%s cancels flow %d %s: %v", fl.owner.name, fl.number, job, err)
	if err != nil {
		w.fail("flow %d cannot be cancelled: %v", fl.number, err)
	}
}

// compose writes a workflow. w.mu is held.
func (f *feed) compose() *flow {
	rng := f.rng
	fl := &flow{number: len(f.flows) + 1, owner: f.people[rng.IntN(len(f.people))]}
	f.flows = append(f.flows, fl)
	var b strings.Builder
	fmt.Fprintf(&b, "version: v1\nname: flow-%d\n", fl.number)
	if p := rng.IntN(4); p == 0 {
		fmt.Fprintf(&b, "priority: %d\n", -rng.IntN(10))
	}
	switch k := rng.IntN(100); {
	case k < 4:
		fl.hopeless = true
		b.WriteString("jobs:\n" + f.job("far", []string{"devices: {nvidia.com/gpu: 7}", "cpu: {cores: 60}", "tokens: {licence: 50}"}[rng.IntN(3)], ""))
	case k < 8:
		b.WriteString("services:\n" + f.service("web"))
		f.endLater(fl)
	case k < 20:
		n := 2 + rng.IntN(2)
		b.WriteString("jobs:\n" + f.job("a", f.small(), ""))
		for i := 1; i < n; i++ {
			status := []string{"FINISHED", "FINISHED", "ANY", "FAILED", "RUNNING"}[rng.IntN(5)]
			b.WriteString(f.job(string(rune('a'+i)), f.small(), fmt.Sprintf("    depends-on: [{name: %c, status: %s}]\n", 'a'+i-1, status)))
		}
	case k < 32:
		n := 3 + rng.IntN(8)
		b.WriteString("jobs:\n" + f.job("array", f.small(), fmt.Sprintf("    task-array: {start: 1, end: %d, concurrency: %d}\n", n, rng.IntN(5))))
	case k < 47:
		b.WriteString("jobs:\n" + f.gang())
	case k < 55:
		b.WriteString("jobs:\n" + f.job("licensed", fmt.Sprintf("cpu: {cores: %d}, tokens: {licence: %d}", 1+rng.IntN(4), 1+rng.IntN(2)), ""))
	case k < 80:
		b.WriteString("jobs:\n" + f.job("gpu", f.devices(), ""))
	default:
		b.WriteString("jobs:\n" + f.job("cpu", f.small(), ""))
	}
	fl.yaml = b.String()
	if rng.IntN(12) == 0 {
		f.endLater(fl)
	}
	return fl
}

// reserved writes a workflow for a reservation, which may be over when it comes. w.mu is held.
func (f *feed) reserved(owner *person, name string, most int) *flow {
	fl := &flow{number: len(f.flows) + 1, owner: owner, either: true}
	f.flows = append(f.flows, fl)
	lasts := 60 + f.rng.IntN(3600)
	fl.yaml = fmt.Sprintf("version: v1\nname: flow-%d\njobs:\n  mine:\n    command: [work, \"%d\", \"0\"]\n    class: reserved\n    reservation: %s\n"+
		"    max-minutes: %d\n    resource: {cpu: {cores: %d}, devices: {nvidia.com/gpu: %d}}\n", fl.number, lasts, name, lasts/60+1, 1+f.rng.IntN(4), 1+f.rng.IntN(most))
	return fl
}

// endLater has the owner cancel a workflow some time after. w.mu is held.
func (f *feed) endLater(fl *flow) {
	w := f.world
	after := time.Minute + time.Duration(f.rng.Int64N(int64(4*time.Hour)))
	w.after(after, func() {
		if fl.answered {
			w.ask(func() { f.cancel(fl, "") })
		}
	})
}

func (f *feed) small() string {
	rng := f.rng
	r := fmt.Sprintf("cpu: {cores: %d}, memory: {size: %dGiB}", 1+rng.IntN(8), 1+rng.IntN(6))
	switch rng.IntN(20) {
	case 0:
		r += ", exclusive: true"
	case 1:
		r = fmt.Sprintf("cpu: {cores: %d, affinity: NUMA}, memory: {size: 2GiB}", 1+rng.IntN(12))
	case 2:
		r = fmt.Sprintf("cpu: {cores: %d}, memory: {size: 20GiB}", 1+rng.IntN(12))
	}
	return r
}

func (f *feed) devices() string {
	return fmt.Sprintf("cpu: {cores: %d}, devices: {nvidia.com/gpu: %d}", 1+f.rng.IntN(8), []int{1, 1, 1, 2, 2, 3}[f.rng.IntN(6)])
}

func (f *feed) gang() string {
	rng := f.rng
	licence := ""
	if rng.IntN(3) == 0 {
		licence = ", tokens: {licence: 1}" // for all of its nodes together
	}
	if rng.IntN(2) == 0 {
		return f.job("gang", fmt.Sprintf("cpu: {cores: %d}, devices: {nvidia.com/gpu: %d}%s", 1+rng.IntN(10), 1+rng.IntN(3), licence), "    multinode: {nodes: 2}\n")
	}
	return f.job("gang", fmt.Sprintf("cpu: {cores: %d}%s", 1+rng.IntN(12), licence), fmt.Sprintf("    multinode: {nodes: %d}\n", 2+rng.IntN(2)))
}

// job writes one job: what it asks for, what its process does, and the policies around it.
func (f *feed) job(name, resource, more string) string {
	rng := f.rng
	lasts := 20 + int(rng.ExpFloat64()*1800)
	lasts = min(lasts, 4*3600)
	code := 0
	if rng.IntN(10) == 0 {
		code = 1 + rng.IntN(3)
	}
	term := []string{"", "", "", "", "", "", "deaf", "deaf", "deaf", "stuck"}[rng.IntN(10)]
	if rng.IntN(60) == 0 {
		term = "absent"
	}
	class := []string{"batch", "on-demand"}[rng.IntN(2)]
	var b strings.Builder
	fmt.Fprintf(&b, "  %s:\n    command: [work, \"%d\", \"%d\", \"%s\"]\n    class: %s\n    resource: {%s}\n%s", name, lasts, code, term, class, resource, more)
	if rng.IntN(3) > 0 {
		fmt.Fprintf(&b, "    max-minutes: %d\n", 1+int(float64(lasts)/60*(0.8+rng.Float64())))
	}
	if rng.IntN(3) > 0 {
		b.WriteString("    retry-on-preempt: true\n")
		if rng.IntN(4) == 0 {
			fmt.Fprintf(&b, "    preemptions-max: %d\n", rng.IntN(3))
		}
	}
	if rng.IntN(2) == 0 {
		b.WriteString("    preemptible: true\n")
	}
	if rng.IntN(3) > 0 {
		b.WriteString("    policy: {restart: on-node-fault}\n")
	}
	return b.String()
}

func (f *feed) service(name string) string {
	rng := f.rng
	restart := []string{"always", "on-node-fault"}[rng.IntN(2)]
	return fmt.Sprintf("  %s:\n    command: [work, \"%d\", \"%d\"]\n    class: %s\n    preemptible: %v\n    retry-on-preempt: true\n    resource: {%s}\n    policy: {restart: %s}\n",
		name, 600+rng.IntN(7200), rng.IntN(2), []string{"batch", "on-demand"}[rng.IntN(2)], rng.IntN(2) == 0, f.small(), restart)
}
