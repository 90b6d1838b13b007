package server

import (
	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
)

func workflowToProto(w engine.WorkflowView) *apiv1.Workflow {
	out := &apiv1.Workflow{
		Id: string(w.ID), Name: w.Name, Status: enumText(w.Status),
		Organization: w.Owner.OrganizationSlug, Group: w.Owner.GroupSlug, User: w.Owner.UserName,
		Submitted: stamp(w.Submitted), Started: stamp(w.Started), Ended: stamp(w.Ended),
		Jobs: each(w.Jobs, jobToProto),
	}
	if len(w.Counts) > 0 {
		out.Counts = make(map[string]uint32, len(w.Counts))
		for s, n := range w.Counts {
			out.Counts[s.String()] = count(n)
		}
	}
	return out
}

// enum is a coordinator enum whose zero value means "not set".
type enum interface {
	~uint8
	String() string
}

func enumText[E enum](e E) string {
	if e == 0 {
		return ""
	}
	return e.String()
}

func jobToProto(j engine.JobView) *apiv1.Job {
	return &apiv1.Job{
		Id: string(j.ID), WorkflowId: string(j.Workflow), Name: j.Name,
		Kind: enumText(j.Kind), Class: enumText(j.Class), Status: enumText(j.Status),
		Attempt: j.Attempt, Nodes: texts(j.Nodes), Definition: string(j.Definition),
		Submitted: stamp(j.Submitted), Started: stamp(j.Started), Ended: stamp(j.Ended),
		ExitCode: j.ExitCode, Signal: j.Signal, Message: j.Message, Reason: reasonToProto(j.Reason),
		Position: count(j.Position), Ahead: count(j.Ahead), EstimatedStart: stamp(j.EstimatedStart),
		PreemptedCount: j.Preempted, FailureCount: j.Failures, NoticeEndsAt: stamp(j.NoticeEnds), DependsOn: j.DependsOn,
		WorkflowName: j.WorkflowName, User: j.User, Reservation: j.Reservation,
	}
}

func reasonToProto(r *engine.Reason) *apiv1.Reason {
	if r == nil {
		return nil
	}
	return &apiv1.Reason{
		Code: r.Code, Rule: count(r.Rule), Text: r.Text, Blocking: texts(r.Blocking), NearestNode: string(r.Nearest),
	}
}

func jobExplanationToProto(e engine.JobExplanation) *apiv1.JobExplanation {
	return &apiv1.JobExplanation{
		Job: jobToProto(e.Job),
		Definitions: each(e.Definitions, func(d engine.DefinitionOutcome) *apiv1.DefinitionOutcome {
			return &apiv1.DefinitionOutcome{
				Definition: string(d.Definition), Admissible: d.Admissible, RefusedBy: d.RefusedBy,
				Reason: d.Reason, CostPerHour: d.CostPerHour, ReadyNodes: count(d.Ready),
			}
		}),
	}
}

func eventToProto(e engine.Event) *apiv1.Event {
	return &apiv1.Event{
		Sequence: e.Sequence, Time: stamp(e.Time), Kind: e.Kind, Workflow: string(e.Workflow),
		Job: e.Job, Subject: e.Subject, Message: e.Message, Metadata: e.Metadata,
	}
}

func capacityViewToProto(c engine.CapacityView) *apiv1.GetCapacityResponse {
	return &apiv1.GetCapacityResponse{
		GeneratedAt: stamp(c.GeneratedAt),
		Definitions: each(c.Definitions, func(d engine.DefinitionCapacity) *apiv1.DefinitionCapacity {
			return &apiv1.DefinitionCapacity{
				Definition: string(d.Definition), Nodes: count(d.Nodes), Ready: count(d.Ready),
				Total: capacityToProto(d.Total), Free: capacityToProto(d.Free),
			}
		}),
		Classes: each(c.Classes, func(k engine.ClassCapacity) *apiv1.ClassCapacity {
			return &apiv1.ClassCapacity{
				Class: enumText(k.Class), FreeCores: uint32(k.FreeCores), FreeGpus: k.FreeGPUs,
				Waiting: count(k.Waiting), EstimatedWaitMinutes: k.WaitMinutes,
			}
		}),
	}
}

func classOf(text string) (coordinator.Class, error) {
	var c coordinator.Class
	if text == "" {
		return c, nil
	}
	if err := c.UnmarshalText([]byte(text)); err != nil {
		return 0, coordinator.Errorf(coordinator.ErrInvalid, "read the request", "%w", err)
	}
	return c, nil
}
