package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/grant"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
	"substrate/expr"
)

// refusal says what kept a definition from a request (rule 6); the words are those of the API.
type refusal string

const (
	refusedByBackend    refusal = "backend"
	refusedByGrant      refusal = "grant"
	refusedByPolicy     refusal = "policy"
	refusedByAnnotation refusal = "annotation"
	refusedByResources  refusal = "resources"
	refusedByClass      refusal = "class"
)

// admission is which definitions a job may use, as of one version of configuration, grants and hardware.
type admission struct {
	version      uint64
	outcomes     []DefinitionOutcome // cheapest first, as they are tried
	admissible   []coordinator.DefinitionID
	exclude      []coordinator.NodeID // nodes of admissible definitions whose hardware keys differ
	unrestricted bool                 // internal and system work that every policy refused
}

// admit returns the job's admission, worked out anew when something it depends on has changed.
func (s *state) admit(j *job) *admission {
	if j.admission != nil && j.admission.version == s.admission {
		return j.admission
	}
	a := &admission{version: s.admission}
	env := s.requestEnv(j)
	var doc grant.Document
	var grantErr error
	if o := s.orgs[j.workflow.record.Owner.Organization]; o != nil {
		doc, grantErr = s.grantDocument(o)
	} else {
		grantErr = errors.New("the organisation does not exist any more")
	}
	policyRefusals := 0
	for _, d := range s.config.byCost {
		out := DefinitionOutcome{Definition: d.ID, CostPerHour: d.CostPerHour}
		by, why := s.refusalOf(j, d, env, doc, grantErr)
		if by == "" {
			out.Admissible = true
			a.admissible = append(a.admissible, d.ID)
			a.exclude = append(a.exclude, s.mismatched(j, d)...)
		} else {
			out.RefusedBy, out.Reason = string(by), why
			if by == refusedByPolicy {
				policyRefusals++
			}
		}
		a.outcomes = append(a.outcomes, out)
	}
	if k := j.spec.Kind; len(a.admissible) == 0 && policyRefusals > 0 &&
		policyRefusals == len(a.outcomes) && (k == coordinator.KindInternal || k == coordinator.KindSystem) {
		a.unrestricted = true
	}
	slices.Sort(a.exclude)
	j.admission = a
	return a
}

// refusalOf asks backend, grant, policy, annotations and resources, in this order: the first that
// refuses gives the reason.
func (s *state) refusalOf(j *job, d *coordinator.Definition, env *expr.RequestEnv, doc grant.Document, grantErr error) (refusal, string) {
	if d.Kind != spec.KindStatic {
		return refusedByBackend, fmt.Sprintf("provisioner %s: backend not in this build", d.Kind)
	}
	if j.spec.Class == coordinator.ClassReserved {
		return refusedByClass, "reserved work runs in a reservation only, and this version has none"
	}
	if grantErr != nil {
		return refusedByGrant, grantErr.Error()
	}
	if !doc.Names(d.Configured, d.Fingerprint) {
		return refusedByGrant, fmt.Sprintf("the grant of organisation %s (serial %d) does not name %s",
			j.workflow.record.Owner.OrganizationSlug, doc.Serial, d.Configured)
	}
	if p := s.config.policies[d.ID]; p != nil {
		env.Definition.ID, env.Definition.Annotations = string(d.ID), s.config.annotations[d.ID]
		ok, err := p.Admit(env)
		if err != nil {
			return refusedByPolicy, "the policy could not be evaluated: " + err.Error()
		}
		if !ok {
			return refusedByPolicy, "the policy is false" + explainPolicy(p, env)
		}
	}
	if why := s.annotationRefusal(j, d); why != "" {
		return refusedByAnnotation, why
	}
	if why := s.resourceRefusal(j, d); why != "" {
		return refusedByResources, why
	}
	return "", ""
}

// explainPolicy names the parts of a policy that were false, with what they saw.
func explainPolicy(p *expr.Policy, env *expr.RequestEnv) string {
	var parts []string
	for _, part := range p.Explain(env) {
		var seen []string
		for fact, value := range part.Seen {
			seen = append(seen, fact+" is "+value)
		}
		slices.Sort(seen)
		text := part.Source
		if len(seen) > 0 {
			text += " (" + strings.Join(seen, ", ") + ")"
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, "; ")
}

// annotationRefusal compares resource.annotations with the definition's. A key that only hardware
// can give refuses when nodes have reported and none has the value; before that it is unknown.
func (s *state) annotationRefusal(j *job, d *coordinator.Definition) string {
	for _, key := range sortedKeys(j.spec.Match) {
		want := j.spec.Match[key]
		if slices.Contains(s.config.Scheduler.IgnoredAnnotations, key) {
			continue
		}
		if have, ok := s.config.annotations[d.ID][key]; ok {
			if have != want {
				return fmt.Sprintf("annotation %s is %q, wanted %q", key, have, want)
			}
			continue
		}
		found, reported := false, false
		for _, n := range s.config.members[d.ID] {
			if n.known {
				reported = true
				found = found || n.hardwareKeys[key] == want
			}
		}
		if reported && !found {
			return fmt.Sprintf("neither the definition nor the hardware of its nodes has annotation %s: %q", key, want)
		}
		if !reported && !hardwareKey(key) {
			return fmt.Sprintf("the definition has no annotation %s", key)
		}
	}
	return ""
}

// hardwareKey reports whether a node's report could give this annotation: "vendor.com/device.attribute".
func hardwareKey(key string) bool {
	_, attribute, ok := strings.Cut(key, "/")
	return ok && strings.Contains(attribute, ".")
}

// mismatched lists the definition's nodes whose hardware keys do not match the job's.
func (s *state) mismatched(j *job, d *coordinator.Definition) []coordinator.NodeID {
	var out []coordinator.NodeID
	for key, want := range j.spec.Match {
		if _, ok := s.config.annotations[d.ID][key]; ok || slices.Contains(s.config.Scheduler.IgnoredAnnotations, key) {
			continue
		}
		for _, n := range s.config.members[d.ID] {
			if n.hardwareKeys[key] != want && !slices.Contains(out, n.id) {
				out = append(out, n.id)
			}
		}
	}
	return out
}

// resourceRefusal says why no node of the definition could ever hold the request. Hardware that is
// not known yet never refuses.
func (s *state) resourceRefusal(j *job, d *coordinator.Definition) string {
	for name, want := range j.spec.Resources.Tokens {
		if have := s.config.SoftwareTokens[name]; want > have {
			return fmt.Sprintf("wants %d tokens %s, the cluster has %d", want, name, have)
		}
	}
	if d.Kind != spec.KindStatic && d.MaxNodes > 0 && int(j.spec.Nodes) > d.MaxNodes { // static nodes are neither launched nor released
		return fmt.Sprintf("wants %d nodes, maxNodes is %d", j.spec.Nodes, d.MaxNodes)
	}
	nearest, gap := "", math.Inf(1)
	known := 0
	for _, n := range s.config.members[d.ID] {
		if !n.known {
			continue
		}
		known++
		lacks := sched.Missing(n.schedNode(), j.spec.Resources)
		if len(lacks) == 0 {
			return ""
		}
		if why, missing := shortage(j.spec.Resources, lacks); missing < gap {
			nearest, gap = fmt.Sprintf("%s, its largest node %s has less", why, n.id), missing
		}
	}
	if known == 0 {
		return ""
	}
	return nearest
}

// shortage puts the first thing that a node lacks into words, and adds up how much is missing.
func shortage(r coordinator.Resources, lacks []sched.Lack) (why string, missing float64) {
	for _, l := range lacks {
		missing += l.Share()
	}
	switch l := lacks[0]; {
	case l.What == "memory":
		why = fmt.Sprintf("wants %s of memory of at most %s", coordinator.Bytes(l.Wants), coordinator.Bytes(l.Has))
	case l.What == "cores" && r.Threads:
		why = fmt.Sprintf("wants %d hardware threads, which are %d cores, of at most %d", r.Cores, l.Wants, l.Has)
	case l.What == "cores":
		why = fmt.Sprintf("wants %d cores of at most %d", l.Wants, l.Has)
	default:
		why = fmt.Sprintf("wants %d × %s of at most %d", l.Wants, l.What, l.Has)
	}
	return why, missing
}

// refuseImpossible refuses a job that no definition admits, with the reason of each (rule 6).
func (s *state) refuseImpossible(op string, j *job) error {
	a := s.admit(j)
	if len(a.admissible) > 0 || a.unrestricted {
		return nil
	}
	err := coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: %s", j.spec.Name, outcomesText(a.outcomes))
	if len(a.outcomes) == 0 {
		err = coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: none is configured", j.spec.Name)
		return err.WithHint("set a configuration with `substrate cluster config set`")
	}
	if j.spec.Kind != coordinator.KindService && j.spec.Walltime == s.config.Scheduler.MaxWalltime[j.spec.Class] && strings.Contains(outcomesText(a.outcomes), "request.job_ttl") {
		return err.WithHint("the job gives no time limit, so the longest of its class counts: set policy.timeout.execute or max-minutes")
	}
	return err.WithHint("change the job's resources or annotations, or ask an administrator for access")
}

// outcomesText lists at most ten refusals.
func outcomesText(outcomes []DefinitionOutcome) string {
	const most = 10
	var b strings.Builder
	for i, o := range outcomes {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(outcomes)-most)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s refused by %s: %s", o.Definition, o.RefusedBy, o.Reason)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
