package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/config"
	"substrate/expr"
)

// Trial is what a configuration would answer to the jobs of a file on the given nodes.
type Trial struct {
	Jobs []JobTrial `json:"jobs"`
	// Unassigned says for nodes without a definition what kept each condition from being true.
	Unassigned []Unassigned      `json:"unassigned,omitempty"`
	LeftOut    map[string]uint32 `json:"left_out,omitempty"`
}

// JobTrial is one job before every definition, cheapest first.
type JobTrial struct {
	Job         string          `json:"job"`
	Nodes       uint32          `json:"nodes"` // that could hold it, of all definitions that admit it
	Wanted      uint32          `json:"wanted"`
	Definitions []DefinitionTry `json:"definitions"`
}

// DefinitionTry is one definition's answer.
type DefinitionTry struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Eligible   bool                     `json:"eligible"`
	RefusedBy  string                   `json:"refused_by,omitempty"`
	Reason     string                   `json:"reason,omitempty"`
	Group                               // nodes that could hold the job
}

// Unassigned is a group of nodes on which a condition is not true for one reason.
type Unassigned struct {
	Definition coordinator.DefinitionID `json:"definition"`
	Value      expr.Truth               `json:"value"`
	Reason     string                   `json:"reason"`
	Group
}

// Try holds jobs against a judged fleet. Grants are not known here and never refuse.
func (j *Judgement) Try(owner coordinator.Owner, workflow *coordinator.WorkflowSpec) *Trial {
	t := &Trial{LeftOut: map[string]uint32{}}
	members := j.members()
	defs := make([]*coordinator.Definition, len(j.Config.Config.Definitions))
	for i := range defs {
		defs[i] = &j.Config.Config.Definitions[i]
	}
	slices.SortStableFunc(defs, func(a, b *coordinator.Definition) int { return comparePrices(a.CostPerHour, b.CostPerHour) })
	for i := range workflow.Jobs {
		job := workflow.Jobs[i]
		if job.Walltime == 0 && job.Kind != coordinator.KindService {
			job.Walltime = j.Config.Config.Scheduler.MaxWalltime[job.Class]
		}
		x := JobTrial{Job: job.Name, Wanted: max(job.Nodes, 1)}
		env := config.RequestEnv(owner, "", workflow.Annotations, &job)
		for _, d := range defs {
			a := j.try(&job, env, d, members[d.ID])
			x.Nodes += a.Count
			x.Definitions = append(x.Definitions, a)
		}
		if n := len(x.Definitions) - maxGroups; n > 0 {
			t.LeftOut["definitions of "+job.Name] = uint32(n)
			slices.SortStableFunc(x.Definitions, func(a, b DefinitionTry) int { return -compareBools(a.Eligible, b.Eligible) })
			x.Definitions = x.Definitions[:maxGroups]
		}
		t.Jobs = append(t.Jobs, x)
	}
	t.Unassigned = j.unassigned(t.LeftOut)
	return t
}

// comparePrices puts unknown ones last.
func comparePrices(a, b *float64) int {
	switch {
	case a == nil || b == nil:
		return compareBools(a == nil, b == nil)
	default:
		return cmp.Compare(*a, *b)
	}
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (j *Judgement) try(job *coordinator.JobSpec, env *expr.RequestEnv, d *coordinator.Definition, members []int) DefinitionTry {
	out := DefinitionTry{Definition: d.ID}
	carried := maps.Clone(j.Config.Config.NodeAnnotations)
	if carried == nil {
		carried = map[string]string{}
	}
	maps.Copy(carried, d.Annotations)
	if out.RefusedBy, out.Reason = j.policy(env, d, carried); out.RefusedBy != "" {
		return out
	}
	if out.RefusedBy, out.Reason = j.tokens(job); out.RefusedBy != "" {
		return out
	}
	if len(members) == 0 {
		out.RefusedBy, out.Reason = "nodes", j.emptiness(d.ID)
		if d.Condition == "" {
			out.Reason = "its nodes are launched when they are needed; there are none here"
		}
		return out
	}
	why := map[[2]string]int{}
	for _, i := range members {
		by, reason := j.refusal(job, carried, j.Nodes[i])
		if by == "" {
			out.add(j.Nodes[i].ID)
		} else {
			why[[2]string{by, reason}]++
		}
	}
	if out.Eligible = out.Count > 0; !out.Eligible {
		reasons := slices.SortedFunc(maps.Keys(why), func(a, b [2]string) int {
			return cmp.Or(cmp.Compare(why[b], why[a]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
		})
		out.RefusedBy, out.Reason = reasons[0][0], reasons[0][1]
	}
	return out
}

// emptiness says why no node belongs to a static definition: its condition is true nowhere, or earlier
// definitions get all nodes on which it is.
func (j *Judgement) emptiness(id coordinator.DefinitionID) string {
	at := int32(slices.Index(j.order, id))
	taken, winners := 0, map[int32]bool{}
	for _, v := range j.verdicts {
		if _, found := slices.BinarySearch(v.matched, at); found {
			taken++
			winners[v.matched[0]] = true
		}
	}
	if taken == 0 {
		return "the condition is true on no node here"
	}
	first := j.order[slices.Min(slices.Collect(maps.Keys(winners)))]
	where, who := fmt.Sprintf("%d nodes", taken), fmt.Sprintf("%s and %d other definitions get", first, len(winners)-1)
	if taken == 1 {
		where = "1 node"
	}
	switch len(winners) {
	case 1:
		who = string(first) + " gets"
	case 2:
		who = string(first) + " and another definition get"
	}
	return fmt.Sprintf("the condition is true on %s, which %s: the first in the file wins", where, who)
}

func (j *Judgement) policy(env *expr.RequestEnv, d *coordinator.Definition, carried map[string]string) (by, why string) {
	p := j.Config.Policies[d.ID]
	if p == nil {
		return "", ""
	}
	env.Definition.ID, env.Definition.Annotations = string(d.ID), carried
	switch ok, err := p.Admit(env); {
	case err != nil:
		return "policy", "the policy could not be evaluated: " + err.Error()
	case !ok:
		return "policy", "the policy is false: " + partsText(p.Explain(env))
	}
	return "", ""
}

func (j *Judgement) tokens(job *coordinator.JobSpec) (by, why string) {
	for _, name := range slices.Sorted(maps.Keys(job.Resources.Tokens)) {
		if want, have := job.Resources.Tokens[name], j.Config.Config.SoftwareTokens[name]; want > have {
			return "resources", fmt.Sprintf("wants %d tokens %s, the configuration has %d", want, name, have)
		}
	}
	return "", ""
}

// refusal says what keeps a job from one node of a definition.
func (j *Judgement) refusal(job *coordinator.JobSpec, carried map[string]string, n Node) (by, why string) {
	for _, key := range slices.Sorted(maps.Keys(job.Match)) {
		if slices.Contains(j.Config.Config.Scheduler.IgnoredAnnotations, key) {
			continue
		}
		have, ok := carried[key]
		if !ok {
			have, ok = n.Keys[key], n.Keys[key] != ""
		}
		if !ok {
			return "annotation", fmt.Sprintf("neither the definition nor the hardware has annotation %s", key)
		} else if have != job.Match[key] {
			return "annotation", fmt.Sprintf("annotation %s is %q, wanted %q", key, have, job.Match[key])
		}
	}
	if n.Capacity == nil {
		return "resources", "its report does not tell cores and memory"
	}
	if why := lacks(job.Resources, n.Capacity); why != "" {
		return "resources", why
	}
	return "", ""
}

// lacks says what a node has too little of to ever hold a request. Cores are given out whole.
func lacks(r coordinator.Resources, has *coordinator.Hardware) string {
	want := uint64(r.Cores)
	if r.Threads && has.Cores > 0 {
		each := max(uint64(has.Threads)/uint64(has.Cores), 1)
		want = (want + each - 1) / each
	}
	switch memory := r.TotalMemory(); {
	case want > uint64(has.Cores):
		return fmt.Sprintf("wants %d cores, there are %d", want, has.Cores)
	case memory > has.Memory:
		return fmt.Sprintf("wants %s of memory, there are %s", memory, has.Memory)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Devices)) {
		if r.Devices[name] > has.Devices[name] {
			return fmt.Sprintf("wants %d × %s, there are %d", r.Devices[name], name, has.Devices[name])
		}
	}
	return ""
}

// maxExplained bounds the conditions that are explained.
const maxExplained = 100_000

// unassigned explains nodes that get no definition; what names decide is shown with the first node's.
func (j *Judgement) unassigned(leftOut map[string]uint32) []Unassigned {
	groups := map[[3]string]*Unassigned{}
	more := map[[3]string]bool{}
	spent := 0
	for i, n := range j.Nodes {
		if j.Assigned(i) != "" {
			continue
		}
		if spent += len(j.order); spent > maxExplained {
			leftOut["unassigned nodes"]++
			continue
		}
		env := expr.NewNodeEnv(n.Facts)
		for at, id := range j.order {
			o := j.conditions[at].Eval(env)
			sources := ""
			for _, p := range o.Parts {
				sources += p.Source + "\x00"
			}
			key := [3]string{string(id), o.Value.String(), sources + o.Err}
			if groups[key] == nil && len(groups) >= maxGroups {
				more[key] = len(more) < 100*maxGroups
				continue
			}
			if groups[key] == nil {
				groups[key] = &Unassigned{Definition: id, Value: o.Value, Reason: cmp.Or(o.Err, partsText(o.Parts))}
			}
			groups[key].add(n.ID)
		}
	}
	if len(more) > 0 {
		leftOut["unassigned"] = uint32(len(more))
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b [3]string) int {
		return cmp.Or(cmp.Compare(groups[b].Count, groups[a].Count), slices.Compare(a[:], b[:]))
	})
	out := make([]Unassigned, len(keys))
	for i, k := range keys {
		out[i] = *groups[k]
	}
	return out
}

// partsText names what kept an expression from being true, with the values it saw.
func partsText(parts []expr.Part) string {
	var out []string
	for _, p := range parts {
		var seen []string
		for _, name := range slices.Sorted(maps.Keys(p.Seen)) {
			seen = append(seen, name+" is "+p.Seen[name])
		}
		text := p.Source
		if len(seen) > 0 {
			text += " (" + strings.Join(seen, ", ") + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}
