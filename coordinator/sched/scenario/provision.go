package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/sched"
)

// offer says that nodes of a definition can be launched, or changes how.
func (st *story) offer(id string, words []string) error {
	def := coordinator.DefinitionID(id)
	i := slices.IndexFunc(st.s.Offers, func(o sched.Offer) bool { return o.Definition == def })
	if i < 0 {
		i = len(st.s.Offers)
		st.s.Offers = append(st.s.Offers, sched.Offer{Definition: def, Node: sched.Node{Definition: def, Devices: map[string]uint32{}}})
	}
	o := &st.s.Offers[i]
	return fields(words, func(key, value string) (err error) {
		switch key {
		case "max":
			o.MaxNodes, err = strconv.Atoi(value)
		case "idle":
			o.IdleTimeout, err = time.ParseDuration(value)
		case "ttl":
			o.TTL, err = time.ParseDuration(value)
		case "buffer":
			o.TTLBuffer, err = time.ParseDuration(value)
		case "launch":
			o.Launch, err = time.ParseDuration(value)
		case "unavailable":
			var d time.Duration
			d, err = time.ParseDuration(value)
			o.UnavailableUntil = st.s.Now.Add(d)
		case "why":
			o.Why = value
		default:
			err = capacity(&o.Node, key, value)
		}
		return err
	})
}

// arrive makes a node that was coming ready, as a node of that name; with more than was expected of it, or less.
func (st *story) arrive(key string, words []string) error {
	i := slices.IndexFunc(st.s.Launching, func(l sched.Launch) bool { return l.Key == key })
	if i < 0 || len(words) == 0 {
		return fmt.Errorf("%s is not coming", key)
	}
	l := st.s.Launching[i]
	o := slices.IndexFunc(st.s.Offers, func(o sched.Offer) bool { return o.Definition == l.Definition })
	n := st.s.Offers[o].Node
	n.ID, n.Schedulable, n.IdleSince = coordinator.NodeID(words[0]), true, st.s.Now
	if ttl := st.s.Offers[o].TTL; ttl > 0 {
		n.Expires = l.Since.Add(ttl - st.s.Offers[o].TTLBuffer)
	}
	st.s.Nodes = append(st.s.Nodes, n)
	return st.gone(key)
}

// gone says that a node is not coming any more.
func (st *story) gone(key string) error {
	before := len(st.s.Launching)
	st.s.Launching = slices.DeleteFunc(slices.Clone(st.s.Launching), func(l sched.Launch) bool { return l.Key == key })
	if len(st.s.Launching) == before {
		return fmt.Errorf("%s is not coming", key)
	}
	return nil
}

// idle tells since when nodes that were launched have nothing to do.
func (st *story) idle() {
	st.s.Nodes = slices.Clone(st.s.Nodes)
	for i := range st.s.Nodes {
		n := &st.s.Nodes[i]
		busy := slices.ContainsFunc(st.s.Placements, func(p sched.Placement) bool { return slices.Contains(p.Nodes, n.ID) })
		switch {
		case busy:
			n.IdleSince = time.Time{}
		case n.IdleSince.IsZero():
			n.IdleSince = st.s.Now
		}
	}
}
