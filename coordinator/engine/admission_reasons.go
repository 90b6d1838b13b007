package engine

import (
	"fmt"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/spec"
	"substrate/expr"
)

func (q *question) outcomes() []DefinitionOutcome {
	out := make([]DefinitionOutcome, 0, len(q.config.byCost))
	for _, d := range q.config.byCost {
		out = append(out, q.outcome(d))
	}
	return out
}

func (q *question) outcome(d *coordinator.Definition) DefinitionOutcome {
	out := DefinitionOutcome{Definition: d.ID, CostPerHour: q.price(d)}
	by, why := q.refusal(d)
	if by == "" && q.job.spec.Class == coordinator.ClassReserved {
		by, why = q.unreserved(d)
	}
	if out.Admissible = by == ""; !out.Admissible {
		out.RefusedBy, out.Reason = string(by), why()
	}
	return out
}

func (q *question) policyReason(n *named) string {
	env := q.about(n.Definition)
	if _, err := n.policy.Admit(env); err != nil {
		return "the policy could not be evaluated: " + err.Error()
	}
	return "the policy is false" + explainPolicy(n.policy, env)
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
func (q *question) annotationRefusal(d *coordinator.Definition) (unknown bool, why string) {
	var open []string
	for _, key := range q.keys {
		want := q.job.spec.Match[key]
		if have, ok := q.config.annotations[d.ID][key]; ok {
			if have != want {
				return false, fmt.Sprintf("annotation %s is %q, wanted %q", key, have, want)
			}
			continue
		}
		found, reported := false, false
		for _, n := range q.config.nodesOf[d.ID] {
			if n.known {
				reported = true
				found = found || n.hardwareKeys[key] == want
			}
		}
		report := q.reportOf(d)
		if report != nil {
			reported, found = true, found || report.Attributes[key] == want
		}
		if reported && !found {
			return false, fmt.Sprintf("neither the definition nor the hardware of its nodes has annotation %s: %q", key, want)
		}
		if !reported && !hardwareKey(key) {
			return false, fmt.Sprintf("the definition has no annotation %s", key)
		}
		if !reported && d.Kind != spec.KindStatic {
			open = append(open, key)
		}
	}
	if len(open) > 0 {
		return true, fmt.Sprintf("the hardware's %s is not known until a node of the type has reported; %s", strings.Join(open, ", "), discoverHint(d))
	}
	return false, ""
}

// refuseImpossible refuses a job that no definition admits, with the reason of each (rule 6).
func (s *state) refuseImpossible(op string, j *job) error {
	if j.spec.Class == coordinator.ClassReserved {
		return s.refuseUnreserved(op, j)
	}
	a := s.admit(j)
	if len(a.admissible) > 0 || a.unrestricted || a.awaits {
		return nil
	}
	reasons := outcomesText(s.ask(j))
	err := coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: %s", j.spec.Name, reasons)
	if len(s.config.byCost) == 0 {
		err = coordinator.Errorf(coordinator.ErrDenied, op, "job %s fits no definition: none is configured", j.spec.Name)
		return err.WithHint("set a configuration with `substrate cluster config set`")
	}
	if j.spec.Kind != coordinator.KindService && j.spec.Walltime == s.config.Scheduler.MaxWalltime[j.spec.Class] && strings.Contains(reasons, "request.job_ttl") {
		return err.WithHint("the job gives no time limit, so the longest of its class counts: set policy.timeout.execute or max-minutes")
	}
	return err.WithHint("change the job's resources or annotations, or ask an administrator for access")
}

// unmet says why what no definition admits waits, though it was accepted: something has turned out since, or will.
func (s *state) unmet(j *job, code, text string) (string, string) {
	if a := s.admit(j); a.unrestricted {
		return code, text
	} else if !a.awaits {
		return code, text + ": " + outcomesText(s.ask(j))
	}
	q := s.ask(j)
	for _, d := range s.config.byCost {
		if by, why := q.refusal(d); by == awaitsReport {
			return string(awaitsReport), fmt.Sprintf("definition %s: %s", d.ID, why())
		}
	}
	return code, text
}

// outcomesText lists at most ten refusals.
func outcomesText(q *question) string {
	const most = 10
	var b strings.Builder
	for i, d := range q.config.byCost {
		if i == most {
			fmt.Fprintf(&b, "; and %d more", len(q.config.byCost)-most)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		o := q.outcome(d)
		fmt.Fprintf(&b, "%s refused by %s: %s", o.Definition, o.RefusedBy, o.Reason)
	}
	return b.String()
}
