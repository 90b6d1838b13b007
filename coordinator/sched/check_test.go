package sched

import (
	"fmt"
	"slices"
	"time"

	"substrate/coordinator"
)

// checkPlan is what must be true of every plan; "" if it is.
func checkPlan(s Snapshot, p Plan) string {
	requests := map[coordinator.AllocationID]Request{}
	for _, r := range s.Requests {
		requests[r.ID] = r
	}
	nodes := map[coordinator.NodeID]Node{}
	for _, n := range s.Nodes {
		nodes[n.ID] = n
	}
	seen := map[coordinator.AllocationID]int{}
	after := slices.Clone(s.Placements)
	for _, st := range p.Starts {
		seen[st.ID]++
		r := requests[st.ID]
		if len(st.Nodes) != int(max(1, r.Nodes)) || !slices.IsSorted(st.Nodes) || len(slices.Compact(slices.Clone(st.Nodes))) != len(st.Nodes) {
			return fmt.Sprintf("%s wants %d nodes, got %v", st.ID, r.Nodes, st.Nodes)
		}
		if !r.Unrestricted && !slices.Contains(r.Admissible, st.Definition) {
			return fmt.Sprintf("%s is not admitted to %s", st.ID, st.Definition)
		}
		for _, id := range st.Nodes {
			if w := crossed(s, r, id); w != "" {
				return fmt.Sprintf("%s might still run on %s in window %s", st.ID, id, w)
			}
			if n := nodes[id]; !n.Schedulable || n.Definition != st.Definition || slices.Contains(r.Exclude, id) {
				return fmt.Sprintf("%s was placed on %s", st.ID, id)
			}
		}
		if broken := checkShares(nodes, r, st); broken != "" {
			return broken
		}
		after = append(after, PlacementOf(r, st, s.Now))
	}
	if before := conflict(s, s.Placements); before == "" {
		if broken := conflict(s, after); broken != "" {
			return broken
		}
	}
	if broken := checkReserved(s, p, requests); broken != "" {
		return broken
	}
	positions := map[coordinator.Class]int{}
	for _, w := range p.Waits {
		seen[w.ID]++
		positions[w.Class]++
		if w.Position != positions[w.Class] || w.Class != requests[w.ID].Class {
			return fmt.Sprintf("%s has position %d, expected %d", w.ID, w.Position, positions[w.Class])
		}
		if broken := checkWait(s, p, w); broken != "" {
			return broken
		}
	}
	for id := range requests {
		if seen[id] != 1 {
			return fmt.Sprintf("%s is %d times in the plan", id, seen[id])
		}
	}
	if len(seen) != len(requests) {
		return "the plan names something that nobody asked for"
	}
	return ""
}

func checkWait(s Snapshot, p Plan, w Wait) string {
	v := w.Verdict
	if !w.EstimatedStart.IsZero() && w.EstimatedStart.Before(s.Now) {
		return fmt.Sprintf("%s is to start in the past", w.ID)
	}
	if v.Reason == 0 || v.Rule == 0 || v.Text == "" {
		return fmt.Sprintf("%s has the verdict %+v", w.ID, v)
	}
	if len(v.Blocking) > maxBlocking || !slices.IsSorted(v.Blocking) {
		return fmt.Sprintf("%s is blocked by %v", w.ID, v.Blocking)
	}
	for _, id := range v.Blocking {
		running := slices.ContainsFunc(s.Placements, func(p Placement) bool { return p.ID == id })
		if !running && !slices.ContainsFunc(p.Starts, func(st Start) bool { return st.ID == id }) {
			return fmt.Sprintf("%s is blocked by %s, which holds nothing", w.ID, id)
		}
	}
	if v.Nearest != "" && !slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.ID == v.Nearest }) {
		return fmt.Sprintf("%s is nearest to %s, which is not there", w.ID, v.Nearest)
	}
	return ""
}

// conflict names what a set of placements uses twice; "" if nothing.
func conflict(s Snapshot, list []Placement) string {
	tokens := map[string]uint64{}
	for _, p := range list {
		for name, n := range p.Resources.Tokens {
			if tokens[name] += uint64(n); n > 0 && tokens[name] > uint64(s.Tokens[name]) {
				return "token " + name + " is oversubscribed"
			}
		}
	}
	n := &naive{s: s}
	for _, node := range s.Nodes {
		n.runs = nil
		gpus := map[int]coordinator.AllocationID{}
		for _, p := range list {
			for _, sh := range p.Shares {
				for _, d := range sh.Devices {
					if other, taken := gpus[d]; taken && sh.Node == node.ID {
						return fmt.Sprintf("%s and %s both have GPU %d of %s", other, p.ID, d, node.ID)
					} else if sh.Node == node.ID {
						gpus[d] = p.ID
					}
				}
			}
			if !slices.Contains(p.Nodes, node.ID) || node.Definition == "" {
				continue
			}
			r := Request{Workflow: p.Workflow, Resources: p.Resources, Loose: true}
			r.Resources.Affinity, r.Resources.Sockets = 0, 0
			if !n.fitsAt(node, r, 0, false) {
				return fmt.Sprintf("%s does not fit on %s", p.ID, node.ID)
			}
			n.runs = append(n.runs, run{workflow: p.Workflow, res: p.Resources, nodes: p.Nodes, shares: p.Shares, to: never})
		}
	}
	return ""
}

func plannedEnd(s Snapshot, p Placement) time.Time {
	var end time.Time
	if p.Walltime > 0 {
		end = p.Started.Add(p.Walltime).Add(s.Config.PreemptionNotice)
	}
	notice := s.Now.Add(s.Config.PreemptionNotice)
	if !p.KillAt.IsZero() && p.KillAt.Before(notice) {
		notice = p.KillAt
	}
	if p.Ending && (end.IsZero() || notice.Before(end)) {
		end = notice
	}
	if soon := s.Now.Add(time.Second); !end.IsZero() && end.Before(soon) {
		end = soon
	}
	return end
}

// nextEnd is the first known end, zero without one.
func nextEnd(s Snapshot) time.Time {
	var next time.Time
	for _, p := range s.Placements {
		if end := plannedEnd(s, p); !end.IsZero() && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next
}

// advance moves the snapshot to a time and ends what was planned to end by then.
func advance(s Snapshot, to time.Time) Snapshot {
	var rest []Placement
	for _, p := range s.Placements {
		if end := plannedEnd(s, p); !end.IsZero() && !end.After(to) {
			continue
		}
		if p.Ending { // its end stays where it was, however often it is looked at
			p.KillAt = plannedEnd(s, p)
		}
		rest = append(rest, p)
	}
	s.Placements = rest
	s.Now = to
	return s
}
