package sched

import (
	"slices"
	"time"

	"substrate/coordinator"
)

// PlacementOf is the placement that a start becomes.
func PlacementOf(r Request, st Start, now time.Time) Placement {
	return Placement{ID: r.ID, Workflow: r.Workflow, Class: r.Class, Priority: r.Priority, Started: now,
		Organization: r.Organization, Group: r.Group, Reservation: st.Reservation, Submitted: r.Submitted, Preemptible: r.Preemptible, PreemptionsLeft: r.PreemptionsLeft,
		Walltime: r.Walltime, Nodes: st.Nodes, Shares: st.Shares, Resources: r.Resources, Array: r.Array}
}

// Apply carries a plan out on the snapshot that it was made from, as if nothing came in between.
func Apply(s Snapshot, p Plan) Snapshot {
	placed := map[coordinator.AllocationID]bool{} // whoever starts now is nobody's victim
	for _, p := range s.Placements {
		placed[p.ID] = true
	}
	s.Placements = slices.Clone(s.Placements)
	started := map[coordinator.AllocationID]bool{}
	requests := map[coordinator.AllocationID]Request{}
	for _, r := range s.Requests {
		requests[r.ID] = r
	}
	for _, st := range p.Starts {
		started[st.ID] = true
		s.Placements = append(s.Placements, PlacementOf(requests[st.ID], st, s.Now))
	}
	s.Requests = slices.DeleteFunc(slices.Clone(s.Requests), func(r Request) bool { return started[r.ID] })
	for _, d := range p.Drops {
		started[d.For] = true
	}
	s.Holds = slices.DeleteFunc(slices.Clone(s.Holds), func(h Hold) bool { return started[h.For] })
	for i := range s.Holds {
		s.Holds[i].Victims = slices.DeleteFunc(slices.Clone(s.Holds[i].Victims), func(id coordinator.AllocationID) bool { return !placed[id] })
	}
	if len(p.Reserves) > 0 {
		s.Reservations = slices.Clone(s.Reservations)
		for _, chosen := range p.Reserves {
			i := slices.IndexFunc(s.Reservations, func(r Reservation) bool { return r.ID == chosen.ID })
			s.Reservations[i].Shares = chosen.Shares
		}
	}
	s.Placements = slices.Clone(s.Placements)
	s.Launching = slices.Concat(s.Launching, p.Launches)
	for _, r := range p.Releases {
		s.Nodes = slices.Clone(s.Nodes)
		i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.ID == r.Node })
		s.Nodes[i].Schedulable, s.Nodes[i].Why = false, "released"
	}
	for _, st := range p.Stops {
		i := slices.IndexFunc(s.Placements, func(p Placement) bool { return p.ID == st.ID })
		s.Placements[i].Ending, s.Placements[i].KillAt = true, st.KillAt
	}
	for _, plan := range p.Preempts {
		s.Holds = append(s.Holds, plan.Hold)
		for _, v := range plan.Victims {
			i := slices.IndexFunc(s.Placements, func(p Placement) bool { return p.ID == v.ID })
			s.Placements[i].Ending, s.Placements[i].KillAt = true, v.KillAt
		}
	}
	return s
}
