package server

import (
	"google.golang.org/protobuf/proto"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/federation"
	"substrate/proto/apiv1"
)

func entityToProto(e federation.Entity) *apiv1.FederatedEntity {
	return &apiv1.FederatedEntity{Id: e.ID, Name: e.Name}
}

func entityFromProto(e *apiv1.FederatedEntity) federation.Entity {
	return federation.Entity{ID: e.GetId(), Name: e.GetName()}
}

func identityToProto(id federation.Identity) *apiv1.OnBehalf {
	return &apiv1.OnBehalf{
		Organization: entityToProto(id.Organization), Group: entityToProto(id.Group), Actor: id.Actor,
		User: &apiv1.FederatedUser{Id: id.User.ID, Name: id.User.Name, Email: id.Email, UnixUser: id.UnixUser, Groups: each(id.Groups, entityToProto)},
	}
}

func identityFromProto(b *apiv1.OnBehalf) *federation.Identity {
	u := b.GetUser()
	return &federation.Identity{
		Organization: entityFromProto(b.GetOrganization()), Group: entityFromProto(b.GetGroup()), Actor: b.GetActor(),
		User:  federation.Entity{ID: u.GetId(), Name: u.GetName()},
		Email: u.GetEmail(), UnixUser: u.GetUnixUser(), Groups: each(u.GetGroups(), entityFromProto),
	}
}

func attributesToProto(a federation.Attributes) *apiv1.SchedulingAttributes {
	value := func(v federation.Value) *apiv1.SchedulingValue {
		return &apiv1.SchedulingValue{Priority: v.Priority, Revision: v.Revision}
	}
	return &apiv1.SchedulingAttributes{Schema: a.Schema, Organization: value(a.Organization), Group: value(a.Group), User: value(a.User),
		Preempts: each(a.Preempts, entityToProto)}
}

func attributesFromProto(a *apiv1.SchedulingAttributes) *federation.Attributes {
	value := func(v *apiv1.SchedulingValue) federation.Value {
		return federation.Value{Priority: v.GetPriority(), Revision: v.GetRevision()}
	}
	return &federation.Attributes{Schema: a.GetSchema(), Organization: value(a.GetOrganization()), Group: value(a.GetGroup()), User: value(a.GetUser()),
		Preempts: each(a.GetPreempts(), entityFromProto)}
}

func replicaToProto(r *coordinator.Replica) *apiv1.Replica {
	if r == nil {
		return nil
	}
	return &apiv1.Replica{Federate: r.Federate, Revision: r.Revision, Synced: stamp(r.Synced), Forced: r.Forced}
}

func scoreToProto(s engine.ScoreView) *apiv1.ScoreWorkflowResponse {
	return &apiv1.ScoreWorkflowResponse{
		Score: s.Score.Score, Ready: s.Ready, Running: s.Running, Ahead: s.Ahead, UsableNodes: s.UsableNodes,
		Usable: capacityToProto(s.Usable), Free: capacityToProto(s.Free), Cost: s.Cost, Startable: s.Startable, Reason: s.Reason,
		PrioritySha256: s.PrioritySHA256, CostNote: toValidUTF8(s.CostNote),
	}
}

// storedScore is a cluster's answer in the form in which it is kept.
func storedScore(s *apiv1.ScoreWorkflowResponse) *federation.Score {
	return &federation.Score{
		Score: s.GetScore(), Ready: s.GetReady(), Running: s.GetRunning(), Ahead: s.GetAhead(), UsableNodes: s.GetUsableNodes(),
		UsableCores: s.GetUsable().GetCores(), UsableGPUs: gpusOf(s.GetUsable()), FreeCores: s.GetFree().GetCores(), FreeGPUs: gpusOf(s.GetFree()),
		Cost: s.Cost, Startable: s.GetStartable(), Reason: cut(s.GetReason()), PrioritySHA256: s.GetPrioritySha256(),
	}
}

func candidateToProto(c federation.Candidate) *apiv1.Candidate {
	out := &apiv1.Candidate{Cluster: c.Cluster, Skipped: c.Skipped}
	if s := c.Score; s != nil {
		capacity := func(cores, gpus uint32) *apiv1.Capacity {
			v := &apiv1.Capacity{Cores: cores}
			if gpus > 0 {
				v.Devices = map[string]uint32{"gpu": gpus}
			}
			return v
		}
		out.Score = &apiv1.ScoreWorkflowResponse{
			Score: s.Score, Ready: s.Ready, Running: s.Running, Ahead: s.Ahead, UsableNodes: s.UsableNodes,
			Usable: capacity(s.UsableCores, s.UsableGPUs), Free: capacity(s.FreeCores, s.FreeGPUs), Cost: s.Cost, Startable: s.Startable,
			Reason: s.Reason, PrioritySha256: s.PrioritySHA256,
		}
	}
	return out
}

// gpusOf counts the devices that are GPUs by their names' ends.
func gpusOf(c *apiv1.Capacity) uint32 {
	var n uint32
	for name, k := range c.GetDevices() {
		if engine.IsGPU(name) {
			n += k
		}
	}
	return n
}

func routingToProto(r engine.Route) *apiv1.Routing {
	return &apiv1.Routing{Cluster: r.Cluster, State: string(r.State), By: string(r.By), Chosen: stamp(r.Submitted),
		Candidates: each(r.Candidates, candidateToProto), Message: r.Message}
}

// routeToProto is a workflow as the Federate knows it by itself.
func routeToProto(r engine.Route) *apiv1.Workflow {
	out := &apiv1.Workflow{
		Id: string(r.ID), Name: r.Name, Status: enumText(r.Shown()), Organization: r.Owner.OrganizationSlug, Group: r.Owner.GroupSlug,
		User: r.Owner.UserName, Submitted: stamp(r.Submitted), Ended: stamp(r.Ended), Cluster: &r.Cluster, Routing: routingToProto(r),
	}
	if len(r.Counts) > 0 {
		out.Counts = map[string]uint32{}
		for s, n := range r.Counts {
			out.Counts[s.String()] = count(n)
		}
	}
	switch {
	case r.State == engine.RouteIntended && r.Cancel != "":
		out.Note = proto.String("it is withdrawn from cluster " + r.Cluster + " as soon as that answers")
	case r.State == engine.RouteIntended:
		out.Note = proto.String("whether it arrived at cluster " + r.Cluster + " is not known yet; the same submission is sent again")
	case r.State == engine.RouteRefused || r.State == engine.RouteCancelled:
		out.Note = proto.String(r.Message)
	}
	return out
}
