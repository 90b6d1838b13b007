// Package workflow turns the YAML file that a user submits into a checked workflow, or says
// at which line it is wrong. It knows no cluster: whether a job fits anywhere is not its question.
package workflow

import (
	"fmt"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/strictyaml"
)

// Limits of one file.
const (
	MaxBytes = 16 << 20
	MaxJobs  = 10_000    // jobs and services together
	MaxTasks = 1_000_000 // of all task arrays together
)

// Codes of findings beyond those of strictyaml.
const (
	codeVersion    = "version"
	codeName       = "bad-name"
	codeTooMany    = "too-many"
	codeDependency = "dependency"
	codeCycle      = "dependency-cycle"
	codeTwoLimits  = "two-time-limits"
	codeNoEffect   = "no-effect"
)

// Parse checks a workflow file. Jobs come first, then services, each in file order. A job's
// Walltime of 0 means that the file gives none: the caller fills in the longest walltime of
// the job's class. The result is valid only when Err of the diagnostics is nil.
func Parse(file string, data []byte) (coordinator.WorkflowSpec, strictyaml.Diagnostics) {
	doc, ds := strictyaml.Parse(file, data, strictyaml.Limits{MaxBytes: MaxBytes, MaxNodes: 2_000_000, MaxExpansion: 500_000})
	if doc == nil {
		return coordinator.WorkflowSpec{}, ds
	}
	p := &parser{}
	p.root(doc.Root())
	if doc.Failed() {
		return coordinator.WorkflowSpec{}, doc.Diagnostics()
	}
	return p.spec, doc.Diagnostics()
}

// parser holds what one run of Parse knows.
type parser struct {
	spec     coordinator.WorkflowSpec
	defaults strictyaml.Value // defaults.job
	jobs     []*job
	tasks    uint64
}

// job is one entry of jobs or services with the places of what is checked later.
type job struct {
	spec  coordinator.JobSpec
	key   strictyaml.Value
	needs []need
	given bool // there is a command, script or image, good or bad
	// defaults marks the pseudo job that checks defaults.job; it may hold what only services take.
	defaults bool
}

type need struct {
	place strictyaml.Value
	coordinator.Dependency
}

func (p *parser) root(v strictyaml.Value) {
	o := v.ObjectFold()
	if version := o.Take("version"); version.Valid() {
		if s, ok := version.Text(); ok && s != "v1" {
			version.Report(strictyaml.SeverityError, codeVersion, fmt.Sprintf("unknown version %q", s), "write v1")
		}
	} else if v.IsMap() {
		v.Report(strictyaml.SeverityError, strictyaml.CodeMissing, "the key version is missing", "write version: v1")
	}
	p.spec.Name, _ = strictyaml.Required(o, "name", name)
	p.spec.Preemptible = strictyaml.Default(o, "preemptible", false, strictyaml.Value.Bool)
	p.spec.Priority = strictyaml.Default(o, "priority", 0, priority)
	p.spec.Annotations = strictyaml.Default(o, "annotations", nil, annotations)
	if d := o.Take("defaults"); d.Valid() {
		do := d.ObjectFold()
		p.defaults = do.Take("job")
		do.Close()
	}
	jobs, services := o.Take("jobs"), o.Take("services")
	o.Close()
	if p.defaults.Valid() {
		p.checkDefaults()
	}
	if !p.read(jobs, coordinator.KindJob) || !p.read(services, coordinator.KindService) {
		return
	}
	if len(p.jobs) == 0 && v.IsMap() && !jobs.Valid() && !services.Valid() {
		v.Report(strictyaml.SeverityError, strictyaml.CodeMissing, "the workflow has neither jobs nor services", "")
	}
	p.uniqueNames()
	p.dependencies()
	for _, j := range p.jobs {
		p.spec.Jobs = append(p.spec.Jobs, j.spec)
	}
}

// read decodes the entries of jobs or services; false when there are too many.
func (p *parser) read(v strictyaml.Value, kind coordinator.Kind) bool {
	if !v.Valid() {
		return true
	}
	entries, ok := v.Entries()
	if len(p.jobs)+len(entries) > MaxJobs {
		v.Errorf(codeTooMany, "a workflow may have %d jobs and services, this one has %d", MaxJobs, len(p.jobs)+len(entries))
		return false
	}
	if len(entries) == 0 && ok {
		v.Report(strictyaml.SeverityError, strictyaml.CodeValue, "there is no "+kind.String()+" here", "remove the key")
	}
	for _, e := range entries {
		if why := badName(e.Name); why != "" {
			e.Key.Report(strictyaml.SeverityError, codeName, fmt.Sprintf("%q is not a job's name: %s", e.Name, why), nameHint)
		}
		p.jobs = append(p.jobs, p.job(e, kind))
	}
	return true
}

const nameHint = "a name begins with a letter, has letters, digits and -, ends with a letter or digit, and is at most 63 long"

// badName says why s is not an RFC 1034 label; "" when it is.
func badName(s string) string {
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	switch {
	case s == "":
		return "it is empty"
	case len(s) > 63:
		return fmt.Sprintf("it has %d characters", len([]rune(s)))
	case !letter(s[0]):
		return "it does not begin with a letter"
	case !letter(s[len(s)-1]) && !digit(s[len(s)-1]):
		return "it does not end with a letter or digit"
	}
	for i := range len(s) {
		if !letter(s[i]) && !digit(s[i]) && s[i] != '-' {
			return fmt.Sprintf("it holds %q", []rune(s[i:])[0])
		}
	}
	return ""
}

func name(v strictyaml.Value) (string, bool) {
	s, ok := v.Text()
	if !ok {
		return "", false
	}
	if why := badName(s); why != "" {
		v.Report(strictyaml.SeverityError, codeName, fmt.Sprintf("%q is not a name: %s", s, why), nameHint)
		return "", false
	}
	return s, true
}

// priority is the submitter's own wish, which can only lower the rank.
func priority(v strictyaml.Value) (int32, bool) {
	n, ok := v.Int(-1<<31, 1<<31-1)
	if ok && n > 0 {
		v.Report(strictyaml.SeverityError, strictyaml.CodeValue, "a workflow may lower its priority, not raise it", "write 0 or less")
		return 0, false
	}
	return int32(n), ok
}

// uniqueNames: labels do not differ by case alone, and jobs and services share the names.
func (p *parser) uniqueNames() {
	seen := make(map[string]*job, len(p.jobs))
	for _, j := range p.jobs {
		lower := strings.ToLower(j.spec.Name)
		if first := seen[lower]; first != nil {
			line, _ := first.key.Position()
			j.key.Errorf(strictyaml.CodeDuplicate, "the name %s is taken by %s on line %d", j.spec.Name, first.spec.Name, line)
			continue
		}
		seen[lower] = j
	}
}

// dependencies refuses what can never start: unknown names, itself, circles.
func (p *parser) dependencies() {
	index := make(map[string]int, len(p.jobs))
	names := make([]string, len(p.jobs))
	for i, j := range p.jobs {
		index[j.spec.Name], names[i] = i, j.spec.Name
	}
	edges := make([][]int, len(p.jobs))
	for i, j := range p.jobs {
		for n, d := range j.needs {
			to, ok := index[d.Name]
			switch {
			case !ok:
				hint := ""
				if near := strictyaml.Nearest(d.Name, names, 1); len(near) > 0 {
					hint = "did you mean " + near[0] + "?"
				}
				d.place.Report(strictyaml.SeverityError, codeDependency, fmt.Sprintf("there is no job or service %q", d.Name), hint)
				continue
			case to == i:
				d.place.Errorf(codeCycle, "%s depends on itself", j.spec.Name)
				continue
			case slices.ContainsFunc(j.needs[:n], func(o need) bool { return o.Name == d.Name }):
				d.place.Errorf(codeDependency, "%s is named twice", d.Name)
				continue
			}
			p.reachable(d, p.jobs[to])
			edges[i] = append(edges[i], to)
			j.spec.DependsOn = append(j.spec.DependsOn, d.Dependency)
		}
	}
	if cycle := findCycle(edges); cycle != nil {
		var path []string
		for _, i := range cycle {
			path = append(path, names[i])
		}
		path = append(path, path[0])
		if len(path) > 20 {
			path = append(append(path[:10:10], fmt.Sprintf("… %d more …", len(path)-19)), path[len(path)-9:]...)
		}
		p.jobs[cycle[0]].key.Errorf(codeCycle, "jobs depend on each other in a circle: %s", strings.Join(path, " -> "))
	}
}

// reachable warns about a status that the other side does not come to by itself.
func (p *parser) reachable(d need, on *job) {
	if on.spec.Kind == coordinator.KindService && d.Status == coordinator.DependsFinished {
		d.place.Report(strictyaml.SeverityWarning, codeDependency,
			fmt.Sprintf("the service %s runs until it is stopped, so waiting for FINISHED may never end", d.Name), "write status: RUNNING")
	}
}

// findCycle gives one circle, beginning with its earliest job in file order; nil without.
// It walks with its own stack, so that a chain of all jobs is no deeper than a short one.
func findCycle(edges [][]int) []int {
	const (
		unseen = iota
		open
		done
	)
	state := make([]uint8, len(edges))
	next := make([]int, len(edges))
	for start := range edges {
		if state[start] != unseen {
			continue
		}
		path := []int{start}
		state[start] = open
		for len(path) > 0 {
			at := path[len(path)-1]
			if next[at] == len(edges[at]) {
				state[at] = done
				path = path[:len(path)-1]
				continue
			}
			to := edges[at][next[at]]
			next[at]++
			switch state[to] {
			case unseen:
				state[to] = open
				path = append(path, to)
			case open:
				return rotate(path[slices.Index(path, to):])
			}
		}
	}
	return nil
}

func rotate(cycle []int) []int {
	first := slices.Index(cycle, slices.Min(cycle))
	return append(slices.Clone(cycle[first:]), cycle[:first]...)
}
