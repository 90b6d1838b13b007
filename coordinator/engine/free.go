package engine

import (
	"slices"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

// room is what is free for somebody: cores, and GPUs of any kind.
type room struct{ cores, gpus uint32 }

func (r *room) add(o room) { r.cores, r.gpus = r.cores+o.cores, r.gpus+o.gpus }

// freeRoom is what jobs of each class could take now: batch work whatever is idle, on-demand work what is not reserved,
// reserved work what of the caller's reservations is idle (rules 10 to 12).
type freeRoom struct{ reserved, onDemand, batch room }

func (f *freeRoom) of(class coordinator.Class) room {
	switch class {
	case coordinator.ClassReserved:
		return f.reserved
	case coordinator.ClassOnDemand:
		return f.onDemand
	}
	return f.batch
}

// freeLook adds up what is free, a node at a time.
type freeLook struct {
	s      *state
	caller Caller
	held   map[coordinator.NodeID]room
	booked map[coordinator.NodeID][]*reservation // those that last now
	freeRoom
}

func (s *state) freeLook(c Caller, now time.Time) *freeLook {
	f := &freeLook{s: s, caller: c, held: s.heldRoom(), booked: map[coordinator.NodeID][]*reservation{}}
	for _, r := range s.openReservations {
		if !r.begun(now) || !now.Before(r.record.Until) {
			continue
		}
		for i := range r.record.Shares {
			id := r.record.Shares[i].Node
			f.booked[id] = append(f.booked[id], r)
		}
	}
	return f
}

// closed reports whether a node is in maintenance.
func (s *state) closed(n *node, now time.Time) bool {
	_, active := s.maintenanceOf(n, now)
	return active
}

// add adds what is free on a node that takes work.
func (f *freeLook) add(n *node, used coordinator.Hardware) {
	held := f.held[n.id]
	all := room{cores: uint32(n.capacity.Cores - min(used.Cores, n.capacity.Cores))}
	for name, k := range n.capacity.Devices {
		if isGPU(name) {
			all.gpus += k - min(used.Devices[name], k)
		}
	}
	all.cores, all.gpus = all.cores-min(held.cores, all.cores), all.gpus-min(held.gpus, all.gpus)
	f.batch.add(all)
	others, mine := all, room{}
	for _, r := range f.booked[n.id] {
		part := all // of a whole node
		if count, whole := f.s.idleOf(r, n); !whole {
			part.gpus = min(count, all.gpus)
			others.gpus -= min(part.gpus, others.gpus)
		} else {
			others = room{}
		}
		if r.record.Organization == f.caller.Organization && (r.record.Group == "" || slices.Contains(f.caller.Groups, r.record.Group)) {
			mine.gpus += part.gpus
			if part.gpus > 0 || r.record.GPUs == 0 {
				mine.cores = part.cores
			}
		}
	}
	f.onDemand.add(others)
	f.reserved.add(mine)
}

// idleOf is how many devices of a reservation nobody has on a node, or that it is the whole node.
func (s *state) idleOf(r *reservation, n *node) (idle uint32, whole bool) {
	i := slices.IndexFunc(r.record.Shares, func(sh reservedRecord) bool { return sh.Node == n.id })
	if i < 0 {
		return 0, false
	}
	share := &r.record.Shares[i]
	if share.Count == 0 {
		return 0, true
	}
	if !isGPU(r.record.Device) {
		return 0, false
	}
	busy := map[string]bool{}
	own := uint32(0)
	for _, a := range n.active {
		rank := a.rank(n.id)
		if rank == nil {
			continue
		}
		for _, address := range rank.Devices {
			busy[address] = true
		}
		if a.record.Reservation == r.id {
			own += a.job.spec.Resources.Devices[r.record.Device]
		}
	}
	if len(share.Devices) == 0 {
		return share.Count - min(own, share.Count), false
	}
	for _, address := range share.Devices {
		if !busy[address] && slices.ContainsFunc(n.detail.gpus, func(g sched.GPU) bool { return g.ID == address }) {
			idle++
		}
	}
	return idle, false
}

// heldRoom is what is kept free for those that others make room for (rule 20), by node.
func (s *state) heldRoom() map[coordinator.NodeID]room {
	out := map[coordinator.NodeID]room{}
	for id, h := range s.holds {
		holder := s.queued[id]
		if holder == nil {
			continue
		}
		for i := range h.Shares {
			node := h.Shares[i].Node
			want := roomOf(holder)
			for _, a := range s.leaving(h) { // their room is not free yet
				if a.rank(node) != nil {
					gives := roomOf(a)
					want.cores, want.gpus = want.cores-min(gives.cores, want.cores), want.gpus-min(gives.gpus, want.gpus)
				}
			}
			sum := out[node]
			sum.add(want)
			out[node] = sum
		}
	}
	return out
}

// roomOf is what an allocation asks of a node.
func roomOf(a *allocation) room {
	r := room{cores: uint32(a.job.spec.Resources.Cores)}
	for name, k := range a.job.spec.Resources.Devices {
		if isGPU(name) {
			r.gpus += k
		}
	}
	return r
}

// probeReserved asks when a one-GPU job of the caller's would start in a reservation of its own, nil without one that
// could hold it.
func (s *state) probeReserved(c Caller, gpu string, now time.Time) *float64 {
	var best *float64
	for _, group := range c.Groups {
		owner := &coordinator.Owner{Organization: c.Organization, Group: group}
		own := false
		for _, r := range s.openReservations {
			own = own || r.serves(owner)
		}
		if !own {
			continue
		}
		if wait := s.probe(coordinator.ClassReserved, gpu, now, c, group); wait != nil && (best == nil || *wait < *best) {
			best = wait
		}
	}
	return best
}
