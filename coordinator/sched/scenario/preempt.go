package scenario

import (
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

func (st *story) writePreempts(plan sched.Plan) {
	for _, d := range plan.Drops {
		fmt.Fprintf(&st.out, "  drop  what is held for %s: %s\n", d.For, d.Why)
	}
	for _, r := range plan.Reserves {
		fmt.Fprintf(&st.out, "  reserve for %s:", r.ID)
		for _, s := range r.Shares {
			fmt.Fprintf(&st.out, " %s%s", s.Node, held(s))
		}
		fmt.Fprintln(&st.out)
	}
	for _, s := range plan.Stops {
		fmt.Fprintf(&st.out, "  stop  %s on %s by %s, rule %d\n", s.ID, s.Node, clock(s.KillAt), s.Rule)
	}
	for i := range plan.Preempts {
		p := &plan.Preempts[i]
		fmt.Fprintf(&st.out, "  hold  for %s, priority %g, on", p.For, p.Priority)
		for _, s := range p.Hold.Shares {
			fmt.Fprintf(&st.out, " %s%s", s.Node, held(s))
		}
		fmt.Fprintf(&st.out, " after %s\n", joined(p.Hold.Victims))
		for _, v := range p.Victims {
			fmt.Fprintf(&st.out, "    kill %s by %s, %s %s, priority %g, gap %g, lost %g\n",
				v.ID, clock(v.KillAt), v.Class, v.Why, v.Priority, v.Gap, v.Lost)
		}
	}
}

// maintenance announces a window.
func (st *story) maintenance(id string, words []string) error {
	w := sched.Window{ID: id}
	err := fields(words, func(key, value string) error {
		if key == "nodes" {
			for _, n := range strings.Split(value, ",") {
				w.Nodes = append(w.Nodes, coordinator.NodeID(n))
			}
			return nil
		}
		d, err := time.ParseDuration(value)
		switch key {
		case "from":
			w.From = st.s.Now.Add(d)
		case "until":
			w.Until = st.s.Now.Add(d)
		default:
			err = fmt.Errorf("unknown key")
		}
		return err
	})
	st.s.Windows = append(st.s.Windows, w)
	return err
}

func held(s sched.Share) string {
	if len(s.Devices) == 0 {
		return ""
	}
	return fmt.Sprint(s.Devices)
}

// reserve makes a reservation.
func (st *story) reserve(id string, words []string) error {
	r := sched.Reservation{ID: sched.ReservationID(id), Device: "gpu", Created: st.s.Now}
	if len(st.s.Definitions) > 0 {
		r.Definition = st.s.Definitions[0].ID
	}
	err := fields(words, func(key, value string) (err error) {
		var d time.Duration
		switch key {
		case "org":
			r.Organization = coordinator.OrganizationID(value)
		case "group":
			r.Group = coordinator.GroupID(value)
		case "def":
			r.Definition = coordinator.DefinitionID(value)
		case "gpus", "nodes":
			n, err := size(value)
			if r.GPUs = uint32(n); key == "nodes" {
				r.GPUs, r.Nodes = 0, uint32(n)
			}
			return err
		case "from":
			d, err = time.ParseDuration(value)
			r.From = st.s.Now.Add(d)
		case "until":
			d, err = time.ParseDuration(value)
			r.Until = st.s.Now.Add(d)
		case "created":
			d, err = time.ParseDuration(value)
			r.Created = st.s.Now.Add(-d)
		default:
			err = fmt.Errorf("unknown key")
		}
		return err
	})
	st.s.Reservations = append(st.s.Reservations, r)
	return err
}
