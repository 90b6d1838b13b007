package sched

import (
	"cmp"
	"slices"
	"time"

	"substrate/coordinator"
)

// box is a node that is up or coming.
type box struct {
	def   coordinator.DefinitionID
	node  Node
	at    time.Time
	since time.Time
	taken bool // an idle node that somebody counts on
	up    bool
	runs  []coordinator.Resources
}

// naiveLaunches is rule 28 in another way: the queue in order, first fit, nothing remembered. It is for backfill, where nobody keeps anybody
// else from launching.
type naiveLaunches struct {
	s        Snapshot
	boxes    []*box
	own      map[coordinator.AllocationID][]*box
	offers   map[coordinator.DefinitionID]Offer
	tokens   uint32
	launched map[coordinator.DefinitionID]int
}

// wanted is how many nodes are launched in each definition.
func wanted(s Snapshot, plan Plan) map[coordinator.DefinitionID]int {
	w := &naiveLaunches{s: s, own: map[coordinator.AllocationID][]*box{}, offers: map[coordinator.DefinitionID]Offer{}, launched: map[coordinator.DefinitionID]int{}}
	after := Apply(s, Plan{Starts: plan.Starts})
	w.fill(after)
	waits := slices.Clone(after.Requests)
	slices.SortFunc(waits, func(a, b Request) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Workflow, b.Workflow), cmp.Compare(a.ID, b.ID))
	})
	for _, r := range waits {
		if tokens := r.Resources.Tokens["matlab"]; w.tokens+tokens <= s.Tokens["matlab"] && w.serve(r) {
			w.tokens += tokens
		}
	}
	return w.launched
}

func (w *naiveLaunches) fill(after Snapshot) {
	for _, o := range w.s.Offers {
		w.offers[o.Definition] = o
	}
	for _, n := range w.s.Nodes {
		b := &box{def: n.Definition, node: n, at: w.s.Now, up: true}
		for _, p := range after.Placements {
			if slices.Contains(p.Nodes, n.ID) {
				b.runs = append(b.runs, p.Resources)
			}
		}
		w.boxes = append(w.boxes, b)
	}
	for _, l := range w.s.Launching {
		b := &box{def: l.Definition, node: w.offers[l.Definition].Node, at: later2(l.Until, w.s.Now), since: l.Since}
		w.boxes = append(w.boxes, b)
		for _, r := range after.Requests {
			if slices.Contains(l.For, r.ID) {
				w.own[r.ID] = append(w.own[r.ID], b)
				b.runs = append(b.runs, r.Resources)
			}
		}
	}
	for _, p := range after.Placements {
		w.tokens += p.Resources.Tokens["matlab"]
	}
}

func (w *naiveLaunches) fits(b *box, r Request) bool {
	cores, gpus := uint64(b.node.Cores), uint64(b.node.Devices["gpu"])
	ends := b.node.Expires
	if o := w.offers[b.def]; !b.up && o.TTL > 0 {
		ends = b.since.Add(o.TTL)
	}
	for _, x := range append(slices.Clip(b.runs), r.Resources) {
		if uint64(x.Cores) > cores || uint64(x.Devices["gpu"]) > gpus {
			return false
		}
		cores, gpus = cores-uint64(x.Cores), gpus-uint64(x.Devices["gpu"])
	}
	return !b.taken && (b.up && b.node.Schedulable || !b.up) && (ends.IsZero() || !b.at.Add(r.Walltime).After(ends))
}

// room is the nodes of a definition for a request: its own, those that are up, those that come first.
func (w *naiveLaunches) room(def coordinator.DefinitionID, r Request) (list []*box, up int) {
	slices.SortStableFunc(w.boxes, func(a, b *box) int { return a.at.Compare(b.at) })
	list = slices.Clone(w.own[r.ID])
	for pass := range 2 {
		for _, b := range w.boxes {
			if b.def == def && b.up == (pass == 0) && len(list) < int(r.Nodes) && !slices.Contains(list, b) && w.fits(b, r) {
				list = append(list, b)
				up += oneIf(b.up)
			}
		}
	}
	return list, up
}

// serve reports whether a request has nodes to wait for, launching those that are missing.
func (w *naiveLaunches) serve(r Request) bool {
	admits := candidates(r, w.s)
	if own := w.own[r.ID]; len(own) > 0 {
		admits = slices.DeleteFunc(admits, func(d Definition) bool { return d.ID != own[0].def })
	}
	for _, d := range admits {
		list, up := w.room(d.ID, r)
		if up == int(r.Nodes) {
			return false
		}
		if len(list) == int(r.Nodes) {
			w.take(list, r)
			return true
		}
	}
	for _, d := range admits {
		o, offered := w.offers[d.ID]
		if !offered {
			continue
		}
		list, _ := w.room(d.ID, r)
		count := 0
		for _, b := range w.boxes {
			count += oneIf(b.def == d.ID)
		}
		missing := int(r.Nodes) - len(list)
		fresh := box{def: d.ID, node: o.Node, at: w.s.Now.Add(o.Launch), since: w.s.Now}
		if o.UnavailableUntil.After(w.s.Now) || o.MaxNodes > 0 && count+missing > o.MaxNodes || !w.fits(&fresh, r) {
			continue
		}
		for range missing {
			b := fresh
			w.boxes, list = append(w.boxes, &b), append(list, &b)
			w.launched[d.ID]++
		}
		w.take(list, r)
		return true
	}
	return false
}

func (w *naiveLaunches) take(list []*box, r Request) {
	for _, b := range list {
		if b.taken = b.up; !b.up && !slices.Contains(w.own[r.ID], b) {
			b.runs = append(b.runs, r.Resources)
		}
	}
}
