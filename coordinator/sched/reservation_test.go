package sched

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// checkReserved is what reservations mean for starts; "" if it is so.
func checkReserved(s Snapshot, p Plan, requests map[coordinator.AllocationID]Request) string {
	after := Apply(s, p)
	if broken := checkCounted(s, p, after); broken != "" {
		return broken
	}
	for _, st := range p.Starts {
		r := requests[st.ID]
		if r.Class == coordinator.ClassReserved && s.Reservations != nil && st.Reservation == "" {
			return fmt.Sprintf("%s starts without a reservation", st.ID)
		}
		for i := range after.Reservations {
			res := &after.Reservations[i]
			active := !s.Now.Before(res.From) && s.Now.Before(res.Until)
			if !active || res.Shares == nil {
				continue
			}
			switch {
			case st.Reservation == res.ID:
				if res.Organization != r.Organization || res.Group != "" && res.Group != r.Group {
					return fmt.Sprintf("%s starts in %s, which is not its owner's", st.ID, res.ID)
				}
				if over := outside(st, res); over != "" {
					return over
				}
			case r.Class != coordinator.ClassBatch && st.Rule != 20: // what was promised before stays so
				if over := inside(st, res); over != "" {
					return over
				}
			}
		}
	}
	for i := range p.Preempts {
		if h := &p.Preempts[i].Hold; requests[h.For].Class == coordinator.ClassOnDemand {
			st := Start{ID: h.For, Shares: h.Shares}
			for _, sh := range h.Shares {
				st.Nodes = append(st.Nodes, sh.Node)
			}
			for j := range after.Reservations {
				res := &after.Reservations[j]
				if over := inside(st, res); over != "" && !s.Now.Before(res.From) && s.Now.Before(res.Until) {
					return over
				}
			}
		}
	}
	return ""
}

func shareOn(list []Share, node coordinator.NodeID) (Share, bool) {
	i := slices.IndexFunc(list, func(s Share) bool { return s.Node == node })
	if i < 0 {
		return Share{}, false
	}
	return list[i], true
}

// outside names a node or GPU of a start that is not of the reservation.
func outside(st Start, res *Reservation) string {
	for _, node := range st.Nodes {
		own, ok := shareOn(res.Shares, node)
		if !ok {
			return fmt.Sprintf("%s starts on %s, which is not of %s", st.ID, node, res.ID)
		}
		mine, _ := shareOn(st.Shares, node)
		for _, d := range mine.Devices {
			if len(own.Devices) > 0 && !slices.Contains(own.Devices, d) {
				return fmt.Sprintf("%s starts on GPU %d of %s, which is not of %s", st.ID, d, node, res.ID)
			}
		}
	}
	return ""
}

// inside names a node or GPU of a start that is of the reservation.
func inside(st Start, res *Reservation) string {
	for _, node := range st.Nodes {
		own, ok := shareOn(res.Shares, node)
		if ok && len(own.Devices) == 0 {
			return fmt.Sprintf("%s starts on %s, which is of %s", st.ID, node, res.ID)
		}
		mine, _ := shareOn(st.Shares, node)
		for _, d := range mine.Devices {
			if ok && slices.Contains(own.Devices, d) {
				return fmt.Sprintf("%s starts on GPU %d of %s, which is of %s", st.ID, d, node, res.ID)
			}
		}
	}
	return ""
}

func drawReservation(t *rapid.T, i int, now time.Time) Reservation {
	r := Reservation{
		ID: ReservationID(fmt.Sprint("r", i)), Organization: "o", Group: one(t, "owner", []coordinator.GroupID{"", "x", "y"}),
		Definition: "a", Device: "gpu", GPUs: uint32(one(t, "reserved", []int{0, 1, 2, 4})), Nodes: 1,
		From:    now.Add(time.Duration(one(t, "from", []int{0, 0, 0, 5})) * time.Minute),
		Created: now.Add(time.Duration(i) * time.Second),
	}
	r.Until = r.From.Add(time.Duration(one(t, "lasts", []int{2, 20, 60})) * time.Minute)
	return r
}

func (h *history) setReservations() {
	h.facts.Reservations = append([]Reservation{}, h.facts.Reservations...)
	for i := range between(h.t, "reservations", 0, 2) {
		h.facts.Reservations = append(h.facts.Reservations, drawReservation(h.t, h.next+i, h.facts.Now))
	}
	h.next += 2
	h.s.SetReservations(h.facts.Reservations)
}

// TestReservationsAreKept: whatever else happens, reserved GPUs carry only their owner's work and batch, a fresh scheduler
// says the same, and owners take back what batch sits on.
func TestReservationsAreKept(t *testing.T) {
	reserves, starts, taken := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := &history{t: t, s: New(), facts: drawArena(t), next: 100, known: map[coordinator.AllocationID]Request{}}
		h.feed()
		h.setReservations()
		for range between(t, "rounds", 1, 12) {
			for range between(t, "events", 0, 3) {
				if between(t, "owner", 0, 2) > 0 {
					h.event()
					continue
				}
				r := drawPreemptor(t, h.next)
				h.next++
				r.Submitted, r.Class, r.Organization, r.Nodes = h.facts.Now, coordinator.ClassReserved, "o", 1
				r.Resources.Devices = map[string]uint32{"gpu": uint32(between(t, "gpus", 0, 2))}
				h.facts.Requests = append(slices.Clone(h.facts.Requests), r)
				h.s.Submit(r)
			}
			if between(t, "more", 0, 5) == 0 {
				h.setReservations()
			}
			for _, r := range h.facts.Requests {
				h.known[r.ID] = r
			}
			plan := Decide(h.facts)
			h.decide()
			h.s.SetReservations(h.facts.Reservations) // as they are stored
			reserves += len(plan.Reserves)
			for _, st := range plan.Starts {
				starts += oneIf(st.Reservation != "")
			}
			for _, p := range plan.Preempts {
				taken += oneIf(p.Why == PreemptReservation)
			}
		}
	})
	if reserves == 0 || starts == 0 || taken == 0 {
		t.Errorf("%d reservations began, %d jobs started in one, %d took back what batch had", reserves, starts, taken)
	}
}

// heldInReservation names what of a hold for reserved work is not of a reservation of its owner; "" if nothing.
func heldInReservation(s Snapshot, r Request, h Hold) string {
	if r.Class != coordinator.ClassReserved || s.Reservations == nil {
		return ""
	}
	st := Start{ID: h.For, Shares: h.Shares}
	for _, sh := range h.Shares {
		st.Nodes = append(st.Nodes, sh.Node)
	}
	for i := range s.Reservations {
		res := &s.Reservations[i]
		if res.Organization == r.Organization && (res.Group == "" || res.Group == r.Group) && res.Shares != nil && outside(st, res) == "" {
			return ""
		}
	}
	return fmt.Sprintf("what is held for %s is of no reservation of its owner", h.For)
}

// crossed names the window of a node that work would run into; "" if none.
func crossed(s Snapshot, r Request, node coordinator.NodeID) string {
	for _, w := range s.Windows {
		touches := w.Nodes == nil || slices.Contains(w.Nodes, node)
		if touches && s.Now.Before(w.Until) && w.From.Before(w.Until) && (r.Walltime <= 0 || s.Now.Add(r.Walltime).After(w.From)) {
			return w.ID
		}
	}
	return ""
}

// checkCounted is checkReserved for nodes that only count their devices: those who are not the owner and not batch leave
// as many as are reserved, and the owner takes no more.
func checkCounted(s Snapshot, p Plan, after Snapshot) string {
	for _, node := range s.Nodes {
		if len(node.GPUs) > 0 {
			continue
		}
		reserved, others := uint32(0), uint32(0)
		mine := map[ReservationID]uint32{}
		for _, o := range after.Placements {
			if slices.Contains(o.Nodes, node.ID) {
				mine[o.Reservation] += o.Resources.Devices["gpu"]
				if o.Class == coordinator.ClassOnDemand {
					others += o.Resources.Devices["gpu"]
				}
			}
		}
		for i := range after.Reservations {
			res := &after.Reservations[i]
			share, ok := shareOn(res.Shares, node.ID)
			if !ok || s.Now.Before(res.From) || !s.Now.Before(res.Until) || len(share.Devices) == 0 {
				continue
			}
			reserved += uint32(len(share.Devices))
			if mine[res.ID] > uint32(len(share.Devices)) {
				return fmt.Sprintf("%s has %d of %s in use, %d are its own", res.ID, mine[res.ID], node.ID, len(share.Devices))
			}
		}
		for _, st := range p.Starts {
			i := slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == st.ID })
			r := &s.Requests[i]
			if r.Class == coordinator.ClassOnDemand && st.Rule != 20 && slices.Contains(st.Nodes, node.ID) &&
				r.Resources.Devices["gpu"] > 0 && others+reserved > node.Devices["gpu"] {
				return fmt.Sprintf("%s starts on %s, where %d are reserved and %d taken of %d", st.ID, node.ID, reserved, others, node.Devices["gpu"])
			}
		}
	}
	return ""
}

// TestAnotherReservationBegins: that a job had no room in one reservation says nothing about the next that it may run in.
func TestAnotherReservationBegins(t *testing.T) {
	gpu := Node{Definition: "a", Cores: 16, Threads: 16, Memory: 64, Devices: map[string]uint32{"gpu": 4}, Schedulable: true}
	near, far := gpu, gpu
	near.ID, far.ID = "n1", "n2"
	reserved := func(id ReservationID, gpus uint32, from time.Duration) Reservation {
		return Reservation{ID: id, Organization: "o", Definition: "a", Device: "gpu", GPUs: gpus, From: epoch.Add(from), Until: epoch.Add(time.Hour)}
	}
	s := load(&Snapshot{
		Now: epoch, Definitions: []Definition{{ID: "a"}}, Nodes: []Node{near, far},
		Reservations: []Reservation{reserved("r1", 2, 10*time.Minute), reserved("r2", 4, 0)},
		Placements: []Placement{{ID: "other", Class: coordinator.ClassOnDemand, Started: epoch.Add(-time.Hour), Nodes: []coordinator.NodeID{"n1"},
			Resources: coordinator.Resources{Cores: 12}}},
		Requests: []Request{{ID: "j", Class: coordinator.ClassReserved, Organization: "o", Nodes: 1, Submitted: epoch,
			Resources: coordinator.Resources{Cores: 8}, Admissible: []coordinator.DefinitionID{"a"}}},
	})
	if plan := s.Decide(epoch); len(plan.Starts) != 0 {
		t.Fatalf("it starts beside 12 of 16 cores: %+v", plan.Starts)
	}
	at := epoch.Add(10 * time.Minute)
	if next := s.Next(); !next.Equal(at) {
		t.Errorf("the next decision is at %v", next)
	}
	if plan := s.Decide(at); len(plan.Starts) != 1 || plan.Starts[0].Reservation != "r1" {
		t.Errorf("it does not start in the reservation that begins: %+v", plan.Starts)
	}
}
