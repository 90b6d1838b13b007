package engine

import (
	"maps"
	"math"

	"substrate/coordinator"
	"substrate/expr"
)

// requestEnv is what policies see of a job (docs/expressions.md). One env serves all definitions of one
// admission; only its definition part changes.
func (s *state) requestEnv(j *job) *expr.RequestEnv {
	w, spec := j.workflow, j.spec
	o, r := w.record.Owner, spec.Resources
	env := expr.NewRequestEnv()
	q := env.Request
	*q.Owner = expr.RequestOwner{
		OrganizationID: string(o.Organization), OrganizationName: o.OrganizationSlug,
		GroupID: string(o.Group), GroupName: o.GroupSlug, AccountID: string(o.Group),
		UserID: string(o.User), Email: o.Email,
	}
	*q.JobResource.CPU = expr.RequestCPU{Cores: uint32(r.Cores), Sockets: r.Sockets, Threads: r.Threads, Affinity: r.Affinity.String()}
	*q.JobResource.Mem = expr.RequestMem{Bytes: uint64(r.Memory), ByCore: r.ByCore}
	maps.Copy(q.JobResource.Devices, r.Devices)
	maps.Copy(q.JobResource.Tokens, r.Tokens)
	q.JobResource.Exclusive = r.Exclusive != coordinator.ExclusiveNone
	maps.Copy(q.WorkflowAnnotations, w.record.Spec.Annotations)
	maps.Copy(q.JobAnnotations, w.record.Spec.Annotations)
	maps.Copy(q.JobAnnotations, spec.Annotations)
	q.JobTTL = spec.Walltime.Seconds()
	if spec.Kind == coordinator.KindService {
		q.JobTTL = math.Inf(1)
	}
	q.JobKind, q.JobName, q.JobClass = spec.Kind.String(), spec.Name, spec.Class.String()
	q.WorkflowID = string(w.id)
	q.Preemptible = spec.Preemptible
	q.Nodes = max(spec.Nodes, 1)
	q.MultinodeJob = spec.Nodes > 1
	q.TaskArrayJob = spec.Array != nil
	return env
}
