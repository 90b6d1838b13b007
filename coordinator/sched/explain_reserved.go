package sched

import (
	"fmt"

	"substrate/coordinator"
)

// leftOf says how much of a reservation no work of it has.
func (c *cluster) leftOf(b *booking) string {
	kind, idle, taken := c.kinds.number(b.Device), 0, uint64(0)
	for i := range b.shares {
		n := c.nodes[b.shares[i].Node]
		if n == nil {
			continue
		}
		free := n.schedulable
		for _, h := range n.claims {
			if h.reservation == b.ID {
				free = false
				taken = plus(taken, h.need.device(kind))
			}
		}
		if free {
			idle++
		}
	}
	if b.GPUs == 0 {
		return fmt.Sprintf("reservation %s has %d idle of %s", b.called(), idle, plural(int(b.Nodes), "node", "nodes"))
	}
	return fmt.Sprintf("reservation %s has %d idle of %d %s", b.called(), left(uint64(b.GPUs), taken), b.GPUs, b.Device)
}

// reservedVerdict is for work that would have room if it were not reserved, nil if nothing reserved is in the way.
func (x *explainer) reservedVerdict(sh *shape) *Verdict {
	if len(x.s.c.bookings) == 0 || sh.q.class != coordinator.ClassOnDemand {
		return nil
	}
	for _, def := range sh.defs {
		look := search{c: x.s.c, shape: sh, party: &party{class: coordinator.ClassBatch}, want: sh.count, found: x.s.found[:0]}
		complete := look.walk(def.root)
		x.s.found = look.found
		if !complete {
			continue
		}
		for _, n := range look.found {
			for i := range n.booked {
				b := n.booked[i].of
				return &Verdict{Reason: ReasonReservation, Rule: 11, Nearest: n.id, Text: fmt.Sprintf(
					"there is room on %s, but it is reserved from %s to %s", n.id,
					b.From.UTC().Format(momentLayout), b.Until.UTC().Format(momentLayout))}
			}
		}
	}
	return nil
}
