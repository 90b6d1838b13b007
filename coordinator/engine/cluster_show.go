package engine

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/catalogue"
)

// DefinitionView is one configured definition with what the inventory knows of it.
type DefinitionView struct {
	coordinator.Definition
	Nodes, Ready int
	State        string // "active" or why not
	Capacity     *coordinator.Hardware
	Source       catalogue.Source  // of Capacity; "" where nodes are there
	SourceAt     time.Time         // when the source said so; zero: it is built in, or the configuration's
	Unavailable  string            // why nothing is launched of it whatever its backend offers
	Report       *catalogue.Report // of its type, nil before the first
	Flags        []string          // what is odd about it
}

// StatusView is the cluster at a glance.
type StatusView struct {
	ClusterID              string
	Revision               coordinator.Revision
	NodesReady, NodesTotal int
	Waiting, Running       int
	Warnings               []string
}

func (s *state) readyNodes(id coordinator.DefinitionID) int {
	n := 0
	for _, m := range s.config.nodesOf[id] {
		if m.status() == NodeReady {
			n++
		}
	}
	return n
}

// Definitions lists the running configuration's definitions in file order.
func (e *Engine) Definitions(ctx context.Context) (rev coordinator.Revision, list []DefinitionView, err error) {
	err = e.view(ctx, func(s *state) {
		rev = s.config.Revision
		of := s.places()
		for _, d := range s.config.Definitions {
			v := DefinitionView{Definition: d, Nodes: len(s.config.nodesOf[d.ID]), Ready: s.readyNodes(d.ID), State: "active", Capacity: d.Hardware}
			v.CostPerHour = s.price(&d)
			if h, source := s.expected(&d); h != nil {
				v.Capacity, v.Source = h, source
				v.SourceAt = s.sourceAt(&d, source, of)
			}
			v.Flags, v.Unavailable = s.flags(&d), s.unavailable(&d)
			if r := s.reportOf(&d); r != nil {
				report := *r
				v.Report = &report
			}
			if !s.provides(d.Kind) {
				v.State = "backend not in this build"
			} else if why := s.offerTrouble(e, &d); why != "" {
				v.State = why
			}
			for _, n := range s.config.nodesOf[d.ID] {
				if n.known {
					hw := n.capacity
					v.Capacity = &hw
					break
				}
			}
			list = append(list, v)
		}
	})
	return rev, list, err
}

// Status is the cluster at a glance.
func (e *Engine) Status(ctx context.Context) (v StatusView, err error) {
	err = e.view(ctx, func(s *state) {
		v = StatusView{ClusterID: s.cluster.ID, Revision: s.config.Revision, NodesTotal: len(s.nodes), Waiting: len(s.queued), Running: len(s.active)}
		for _, n := range s.sortedNodes() {
			switch {
			case n.status() == NodeReady:
				v.NodesReady++
			case n.status() == NodeOffline:
				v.Warnings = append(v.Warnings, fmt.Sprintf("node %s is offline", n.id))
			}
			if n.drift != "" {
				v.Warnings = append(v.Warnings, fmt.Sprintf("node %s: %s", n.id, n.drift))
			}
		}
		for _, w := range s.openWindows {
			v.Warnings = append(v.Warnings, fmt.Sprintf("maintenance %s of %s from %s to %s: %s", w.id, w.record.scope(), moment(w.record.From), moment(w.record.Until), w.record.Message))
		}
		v.Warnings = append(v.Warnings, s.catalogueWarnings()...)
		if s.config.Revision == 0 {
			v.Warnings = append(v.Warnings, "no configuration is set")
		}
		if len(v.Warnings) > maxWarnings {
			v.Warnings = append(v.Warnings[:maxWarnings], "and more")
		}
	})
	return v, err
}
