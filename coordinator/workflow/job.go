package workflow

import (
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// layers are the same map given in several places, strongest first: the job's own, then the
// defaults. A key of a stronger layer hides the weaker ones.
type layers []*strictyaml.Object

func newLayers(values ...strictyaml.Value) layers {
	var l layers
	for _, v := range values {
		if v.Valid() {
			l = append(l, v.ObjectFold())
		}
	}
	return l
}

func (l layers) take(key string) strictyaml.Value {
	var got strictyaml.Value
	for _, o := range l {
		if v := o.Take(key); v.Valid() && !got.Valid() {
			got = v
		}
	}
	return got
}

// sub opens a nested map in every layer, so that defaults apply key by key.
func (l layers) sub(key string) layers {
	var out layers
	for _, o := range l {
		if v := o.Take(key); v.Valid() {
			out = append(out, v.ObjectFold())
		}
	}
	return out
}

// subOf is sub for a map that people like to write as one value; bare reports it if it can tell what is meant.
func (l layers) subOf(key string, bare func(strictyaml.Value) bool) layers {
	var out layers
	for _, o := range l {
		if v := o.Take(key); v.Valid() && !bare(v) {
			out = append(out, v.ObjectFold())
		}
	}
	return out
}

// refuse says what to write instead of a key that people guess.
func (l layers) refuse(key, hint string) {
	for _, o := range l {
		o.Refuse(key, fmt.Sprintf("unknown key %q", key), hint)
	}
}

func (l layers) close() {
	for _, o := range l {
		o.Close()
	}
}

// get reads a key of the strongest layer that has it.
func get[T any](l layers, key string, absent T, read strictyaml.Reader[T]) T {
	if v := l.take(key); v.Valid() {
		if out, ok := read(v); ok {
			return out
		}
	}
	return absent
}

// checkDefaults reports what is wrong in the defaults once, and once only: jobs take the
// defaults over from a copy whose findings went nowhere.
func (p *parser) checkDefaults() {
	d := &job{key: p.defaults, defaults: true}
	l := newLayers(p.defaults)
	for _, key := range []string{"depends-on", "task-array"} {
		if v := l.take(key); v.Valid() {
			v.Errorf(strictyaml.CodeValue, "%s belongs to one job, not to the defaults", key)
		}
	}
	d.reservation(l.take("reservation"))
	d.fill(l, coordinator.KindJob)
	l.close()
}

func (p *parser) job(e strictyaml.Entry, kind coordinator.Kind) *job {
	j := &job{key: e.Key}
	l := newLayers(e.Value)
	if !e.Value.IsMap() {
		j.spec = coordinator.JobSpec{Name: e.Name, Kind: kind}
		return j
	}
	if p.defaults.Valid() && p.defaults.IsMap() {
		l = append(l, p.defaults.Quiet().ObjectFold())
	}
	j.spec.Name, j.spec.Kind = e.Name, kind
	j.spec.Preemptible = p.spec.Preemptible
	array := l.take("task-array")
	needs := l.take("depends-on")
	reservation := l.take("reservation")
	j.fill(l, kind)
	j.work(e.Value)
	j.array(array, kind)
	j.dependsOn(needs)
	j.preemptible()
	j.reservation(reservation)
	l.close()
	if a := j.spec.Array; a != nil {
		p.count(array, uint64(a.Len()))
	}
	return j
}

func (p *parser) count(v strictyaml.Value, tasks uint64) {
	before := p.tasks
	p.tasks += tasks
	if before <= MaxTasks && p.tasks > MaxTasks {
		v.Errorf(codeTooMany, "the task arrays up to this one have %d tasks, more than the limit of %d", p.tasks, MaxTasks)
	}
}

// fill reads every key that jobs, services and defaults share.
func (j *job) fill(l layers, kind coordinator.Kind) {
	s := &j.spec
	var command, script strictyaml.Value
	for _, o := range l { // the strongest layer that has either decides
		c, sc := o.Take("command"), o.Take("script")
		if !command.Valid() && !script.Valid() {
			command, script = c, sc
		}
	}
	j.what(command, script, l.take("image"))
	s.Env = get(l, "env", nil, environment)
	j.resources(l.sub("resource"))
	s.Class = get(l, "class", coordinator.ClassOnDemand, strictyaml.Enum[coordinator.Class])
	j.limits(l, kind)
	s.RetryOnPreempt = get(l, "retry-on-preempt", false, strictyaml.Value.Bool)
	if v := l.take("preemptions-max"); v.Valid() {
		if n, ok := v.Int(0, math.MaxUint32); ok {
			most := uint32(n)
			s.PreemptionsMax = &most
		}
	}
	if v := l.take("preemptible"); v.Valid() {
		if own, ok := v.Bool(); ok {
			s.Preemptible, s.PreemptibleSet = own, true
		}
	}
	s.Annotations = get(l, "annotations", nil, annotations)
	s.Mounts = get(l, "mounts", nil, strictyaml.ListOf(mount))
	s.Nodes = 1
	if m := l.sub("multinode"); len(m) > 0 {
		s.Nodes = get(m, "nodes", 1, strictyaml.Ints[uint32](1, 1<<16))
		s.ProcsPerNode = get(m, "procs-per-node", 0, strictyaml.Ints[uint32](1, 1<<16))
		m.close()
	}
}

// what reads command, script and image.
func (j *job) what(command, script, image strictyaml.Value) {
	s := &j.spec
	j.given = command.Valid() || script.Valid() || image.Valid()
	if command.Valid() && command.IsText() {
		command.Report(strictyaml.SeverityError, strictyaml.CodeType, "expected a list of a program and its arguments, found a text",
			"write [program, argument], or give a line of shell as script")
	} else if command.Valid() {
		s.Command, _ = strictyaml.ListOf(argument)(command)
		if len(s.Command) == 0 && command.IsList() {
			command.Errorf(strictyaml.CodeValue, "the command is empty")
		} else if list, _ := command.List(); len(list) > 0 && list[0].IsText() && s.Command[0] == "" {
			list[0].Errorf(strictyaml.CodeValue, "the command's program is empty")
		}
	}
	if script.Valid() {
		s.Script, _ = script.FilledText()
		noNUL(script, s.Script)
	}
	if image.Valid() {
		s.Image, _ = strictyaml.Matching(imageName, "the name of an image")(image)
	}
}

func imageName(s string) bool {
	return s != "" && len(s) <= 1024 && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

func argument(v strictyaml.Value) (string, bool) {
	s, ok := v.Text()
	return s, ok && noNUL(v, s)
}

func noNUL(v strictyaml.Value, s string) bool {
	if strings.ContainsRune(s, 0) {
		v.Errorf(strictyaml.CodeValue, "the text holds a NUL, which no program can be given")
		return false
	}
	return true
}

// work holds every job to exactly one of command and script, or to an image's own command.
func (j *job) work(own strictyaml.Value) {
	s := &j.spec
	switch {
	case len(s.Command) > 0 && s.Script != "":
		own.Report(strictyaml.SeverityError, strictyaml.CodeValue, "a job has a command or a script, not both", "")
	case !j.given: // what is there and wrong has its own finding
		own.Report(strictyaml.SeverityError, strictyaml.CodeMissing, "the job has no command, no script and no image", "")
	}
}

// environment reads KEY=VALUE texts. A name is letters, digits and _, not beginning with a
// digit, as POSIX shells take it.
func environment(v strictyaml.Value) ([]string, bool) {
	if v.IsMap() {
		v.Report(strictyaml.SeverityError, strictyaml.CodeType, "expected a list of texts NAME=VALUE, found a map", asList(v.Quiet()))
		return nil, false
	}
	list, ok := v.List()
	out := make([]string, 0, len(list))
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		s, good := argument(e)
		if !good {
			ok = false
			continue
		}
		key, _, found := strings.Cut(s, "=")
		switch {
		case !found:
			e.Report(strictyaml.SeverityError, strictyaml.CodeValue, fmt.Sprintf("%q has no =", s), "write "+key+"=value")
			ok = false
		case !envName(key):
			e.Errorf(strictyaml.CodeValue, "%q is not the name of an environment variable", key)
			ok = false
		case seen[key]:
			e.Errorf(strictyaml.CodeDuplicate, "the variable %s is set twice", key)
			ok = false
		}
		seen[key] = true
		out = append(out, s)
	}
	return out, ok
}

// asList shows how the first variable of a map is written in a list.
func asList(v strictyaml.Value) string {
	text := "NAME=VALUE"
	if entries, _ := v.Entries(); len(entries) > 0 {
		value, ok := entries[0].Value.Text()
		if !ok || strings.ContainsAny(value, "\n,[]{}:#'\"&*!|>%@`") || len(value) > 40 {
			value = "VALUE"
		}
		text = entries[0].Name + "=" + value
	}
	return "write [" + text + "]"
}

func envName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func annotations(v strictyaml.Value) (map[string]string, bool) {
	entries, ok := v.Entries()
	out := make(map[string]string, len(entries))
	for _, e := range entries {
		s, good := e.Value.Text()
		if good && (len(e.Name) > 256 || len(s) > 4096) {
			e.Key.Errorf(strictyaml.CodeValue, "an annotation may have a key of 256 bytes and a value of 4096")
			good = false
		}
		ok = ok && good
		out[e.Name] = s
	}
	return out, ok
}

func mount(v strictyaml.Value) (coordinator.Mount, bool) {
	o := v.ObjectFold()
	defer o.Close()
	source, ok1 := strictyaml.Required(o, "source", hostPath)
	target, ok2 := strictyaml.Required(o, "target", hostPath)
	return coordinator.Mount{Source: source, Target: target}, ok1 && ok2
}

func hostPath(v strictyaml.Value) (string, bool) {
	s, ok := argument(v)
	if ok && (!strings.HasPrefix(s, "/") || path.Clean(s) != s || strings.ContainsAny(s, ":,\n")) {
		v.Report(strictyaml.SeverityError, strictyaml.CodeValue, fmt.Sprintf("%q is not an absolute path", s),
			"write it from / on, without . and .., : and ,")
		return "", false
	}
	return s, ok
}

// resources: left out means 1 core, 1 GiB, no devices.
func (j *job) resources(l layers) {
	r := &j.spec.Resources
	l.refuse("mem", "write memory: {size: 4GiB}")
	l.refuse("cpus", "write cpu: {cores: 4}")
	l.refuse("cores", "write cpu: {cores: 4}")
	cpu, memory := l.subOf("cpu", bareCores), l.subOf("memory", bareSize)
	r.Cores = get(cpu, "cores", 1, func(v strictyaml.Value) (coordinator.Cores, bool) {
		n, ok := v.Int(1, 1<<20)
		return coordinator.Cores(n), ok
	})
	r.Threads = get(cpu, "threads", false, strictyaml.Value.Bool)
	r.Sockets = get(cpu, "sockets", 0, strictyaml.Ints[uint32](0, 1024))
	r.Affinity = get(cpu, "affinity", coordinator.AffinityNone, strictyaml.Enum[coordinator.Affinity])
	cpu.close()
	r.Memory = get(memory, "size", 1<<30, func(v strictyaml.Value) (coordinator.Bytes, bool) {
		n, ok := v.Size()
		if ok && n == 0 {
			v.Errorf(strictyaml.CodeValue, "the size is zero")
			return 0, false
		}
		return coordinator.Bytes(n), ok
	})
	r.ByCore = get(memory, "by-core", false, strictyaml.Value.Bool)
	memory.close()
	counts := strictyaml.MapOf(strictyaml.Ints[uint32](0, math.MaxInt32))
	r.Devices = get(l, "devices", nil, counts)
	r.Tokens = get(l, "tokens", nil, counts)
	r.Exclusive = get(l, "exclusive", coordinator.ExclusiveNone, exclusive)
	j.spec.LooseGPUs = get(l, "gpu-topology", false, gpuTopology)
	j.spec.Match = get(l, "annotations", nil, annotations)
	l.close()
}

func bareCores(v strictyaml.Value) bool {
	if v.IsMap() || v.IsList() {
		return false
	}
	n, ok := v.Quiet().Int(1, 1<<20)
	if ok {
		v.Report(strictyaml.SeverityError, strictyaml.CodeType, fmt.Sprintf("expected a map, found the number %d", n), fmt.Sprintf("write {cores: %d}", n))
	}
	return ok
}

func bareSize(v strictyaml.Value) bool {
	if !v.IsText() {
		return false
	}
	if _, ok := v.Quiet().Size(); !ok {
		return false
	}
	text, ok := v.Quiet().Text()
	if ok {
		v.Report(strictyaml.SeverityError, strictyaml.CodeType, fmt.Sprintf("expected a map, found the text %q", text), "write {size: "+text+"}")
	}
	return ok
}

// gpuTopology says how the GPUs of a job are to be joined: linked, as they are when nothing is said, or any.
func gpuTopology(v strictyaml.Value) (loose, ok bool) {
	word, ok := v.Text()
	if ok && word != "linked" && word != "any" {
		v.Report(strictyaml.SeverityError, strictyaml.CodeValue, fmt.Sprintf("unknown GPU topology %q, expected one of linked, any", word), "")
		return false, false
	}
	return word == "any", ok
}

// exclusive is a truth value, or says how far: job or workflow.
func exclusive(v strictyaml.Value) (coordinator.Exclusive, bool) {
	if v.IsText() {
		return strictyaml.Enum[coordinator.Exclusive](v)
	}
	on, ok := v.Bool()
	if on {
		return coordinator.ExclusiveJob, ok
	}
	return coordinator.ExclusiveNone, ok
}

// limits reads the walltime and the restart policy.
func (j *job) limits(l layers, kind coordinator.Kind) {
	s := &j.spec
	policy := l.sub("policy")
	timeout := policy.sub("timeout")
	execute := timeout.take("execute")
	timeout.close()
	minutes := l.take("max-minutes")
	if execute.Valid() && minutes.Valid() && execute.IsQuiet() != minutes.IsQuiet() {
		// The job's own limit replaces the defaults', whichever way each is written.
		if execute.IsQuiet() {
			execute = strictyaml.Value{}
		} else {
			minutes = strictyaml.Value{}
		}
	}
	var byTimeout, byMinutes time.Duration
	if execute.Valid() {
		byTimeout = limit(execute, strictyaml.Value.Duration)
	}
	if minutes.Valid() {
		byMinutes = limit(minutes, func(v strictyaml.Value) (time.Duration, bool) {
			n, ok := v.Int(1, 100*365*24*60)
			return time.Duration(n) * time.Minute, ok
		})
	}
	s.Walltime = max(byTimeout, byMinutes)
	if byTimeout > 0 && byMinutes > 0 {
		s.Walltime = min(byTimeout, byMinutes)
		if byTimeout != byMinutes { // of the defaults' two, the defaults tell
			minutes.Report(strictyaml.SeverityWarning, codeTwoLimits,
				fmt.Sprintf("max-minutes (%s) and policy.timeout.execute (%s) are both given, the shorter holds", brief(byMinutes), brief(byTimeout)), "keep one")
		}
	}
	restart := policy.take("restart")
	policy.close()
	s.Restart = coordinator.RestartNever
	if kind == coordinator.KindService {
		s.Restart = coordinator.RestartOnNodeFault
	}
	if restart.Valid() {
		s.Restart, _ = strictyaml.Enum[coordinator.RestartPolicy](restart)
	}
	j.fitting(kind, restart, execute, minutes)
}

// brief writes a duration as people do: 9m, not 9m0s.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// fitting refuses limits on services and endless jobs. A limit in the defaults is meant for
// the jobs, so services pass it by.
func (j *job) fitting(kind coordinator.Kind, restart strictyaml.Value, limits ...strictyaml.Value) {
	s := &j.spec
	if kind == coordinator.KindService {
		s.Walltime = 0
		for _, v := range limits {
			if v.Valid() {
				v.Report(strictyaml.SeverityError, strictyaml.CodeValue, "a service has no time limit", "make it a job, or remove the limit")
			}
		}
		return
	}
	if restart.Valid() && s.Restart == coordinator.RestartAlways && !j.defaults {
		j.own(restart).Report(strictyaml.SeverityError, strictyaml.CodeValue, "restart: always is for services", "write on-node-fault, or make it a service")
	}
}

// own is where to report about a value: there, or at the job when it stands in the defaults.
func (j *job) own(v strictyaml.Value) strictyaml.Value {
	if v.IsQuiet() {
		return j.key
	}
	return v
}

func limit(v strictyaml.Value, read strictyaml.Reader[time.Duration]) time.Duration {
	d, ok := read(v)
	if ok && d < time.Second {
		v.Errorf(strictyaml.CodeValue, "the limit is shorter than a second")
		return 0
	}
	return d
}

// preemptible: what is reserved is never taken back, so the mark would be a false promise.
func (j *job) preemptible() {
	s := &j.spec
	if s.Class != coordinator.ClassReserved {
		return
	}
	if s.Preemptible && s.PreemptibleSet {
		j.key.Report(strictyaml.SeverityError, strictyaml.CodeValue, "reserved work is never preempted, so it cannot be marked preemptible",
			"remove preemptible, or choose the class on-demand or batch")
	}
	if s.Preemptible && !s.PreemptibleSet {
		j.key.Report(strictyaml.SeverityWarning, codeNoEffect,
			"the workflow's preemptible has no effect here: reserved work is never preempted", "write preemptible: false at this job")
		s.Preemptible, s.PreemptibleSet = false, true
	}
	if s.RetryOnPreempt {
		j.key.Report(strictyaml.SeverityWarning, codeNoEffect, "retry-on-preempt has no effect: reserved work is never preempted", "")
	}
}

// reservation is the one that a reserved job wants to run in. In the defaults it is meant for the jobs that are reserved.
func (j *job) reservation(v strictyaml.Value) {
	if !v.Valid() {
		return
	}
	ref, ok := strictyaml.Matching(reservationRef, "the name or id of a reservation")(v)
	switch {
	case !ok:
	case j.defaults || j.spec.Class == coordinator.ClassReserved:
		j.spec.Reservation = ref
	case !v.IsQuiet():
		v.Report(strictyaml.SeverityError, strictyaml.CodeValue, fmt.Sprintf("work of class %s does not run in a reservation", j.spec.Class), "write class: reserved, or remove reservation")
	}
}

// reservationRef tells names of reservations; ids have the same letters.
func reservationRef(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && (i == 0 || !strings.ContainsRune("-_.", r)) {
			return false
		}
	}
	return true
}

func (j *job) array(v strictyaml.Value, kind coordinator.Kind) {
	if !v.Valid() {
		return
	}
	o := v.ObjectFold()
	defer o.Close()
	start, ok1 := strictyaml.Required(o, "start", strictyaml.Ints[uint32](0, math.MaxInt32))
	end, ok2 := strictyaml.Required(o, "end", strictyaml.Ints[uint32](0, math.MaxInt32))
	concurrency := strictyaml.Default(o, "concurrency", 0, strictyaml.Ints[uint32](0, MaxTasks))
	if !ok1 || !ok2 {
		return
	}
	switch {
	case kind == coordinator.KindService:
		v.Errorf(strictyaml.CodeValue, "a service cannot be a task array")
	case end < start:
		v.Errorf(strictyaml.CodeValue, "the task array ends (%d) before it starts (%d)", end, start)
	case end-start >= MaxTasks:
		v.Errorf(codeTooMany, "the task array has %d tasks, more than the limit of %d", int64(end)-int64(start)+1, MaxTasks)
	default:
		j.spec.Array = &coordinator.TaskArray{Start: start, End: end, Concurrency: concurrency}
	}
}

// dependsOn reads a list of names or of {name, status}; status is FINISHED when left out.
func (j *job) dependsOn(v strictyaml.Value) {
	if !v.Valid() {
		return
	}
	list, _ := v.List()
	for _, e := range list {
		n := need{place: e, Dependency: coordinator.Dependency{Status: coordinator.DependsFinished}}
		if e.IsText() {
			n.Name, _ = e.Text()
			j.needs = append(j.needs, n)
			continue
		}
		if !e.IsMap() {
			e.Report(strictyaml.SeverityError, strictyaml.CodeType, "expected a name or a map of name and status", "")
			continue
		}
		o := e.ObjectFold()
		var ok bool
		n.Name, ok = strictyaml.Required(o, "name", strictyaml.Value.Text)
		n.Status = strictyaml.Default(o, "status", coordinator.DependsFinished, strictyaml.Enum[coordinator.DependencyStatus])
		o.Close()
		if ok {
			j.needs = append(j.needs, n)
		}
	}
}
