package config

import (
	"maps"
	"math"

	"substrate/coordinator"
	"substrate/expr"
)

// RequestEnv is what policies see of a job (docs/expressions.md); annotations are the workflow's. One
// environment serves all definitions; only its definition part changes.
func RequestEnv(o coordinator.Owner, workflow coordinator.WorkflowID, annotations map[string]string, job *coordinator.JobSpec) *expr.RequestEnv {
	r := job.Resources
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
	maps.Copy(q.WorkflowAnnotations, annotations)
	maps.Copy(q.JobAnnotations, annotations)
	maps.Copy(q.JobAnnotations, job.Annotations)
	q.JobTTL = job.Walltime.Seconds()
	if job.Kind == coordinator.KindService {
		q.JobTTL = math.Inf(1)
	}
	q.JobKind, q.JobName, q.JobClass = job.Kind.String(), job.Name, job.Class.String()
	q.WorkflowID = string(workflow)
	q.Preemptible = job.Preemptible
	q.Nodes = max(job.Nodes, 1)
	q.MultinodeJob = job.Nodes > 1
	q.TaskArrayJob = job.Array != nil
	return env
}
