package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/sched"
	"substrate/coordinator/spec"
)

// hardwareKey reports whether a node's report could give this annotation: "vendor.com/device.attribute".
func hardwareKey(key string) bool {
	_, attribute, ok := strings.Cut(key, "/")
	return ok && strings.Contains(attribute, ".")
}

// mismatched lists the definition's nodes whose hardware keys do not match the job's.
func (q *question) mismatched(d *coordinator.Definition) []coordinator.NodeID {
	var out []coordinator.NodeID
	for _, key := range q.keys {
		if _, ok := q.config.annotations[d.ID][key]; ok {
			continue
		}
		for _, n := range q.config.nodesOf[d.ID] {
			if n.hardwareKeys[key] != q.job.spec.Match[key] && !slices.Contains(out, n.id) {
				out = append(out, n.id)
			}
		}
	}
	return out
}

// shape is what of a node decides whether it could ever hold a request. Nodes of one shape are asked once.
type shape struct {
	cores   coordinator.Cores
	threads uint32
	memory  coordinator.Bytes
	devices string
}

func shapeOf(n *node) shape {
	s := shape{cores: n.capacity.Cores, threads: n.capacity.Threads, memory: n.capacity.Memory}
	devices := n.devices()
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		s.devices += fmt.Sprintf("%s=%d,", name, devices[name])
	}
	return s
}

// missing lists what a node lacks to ever hold the request.
func (q *question) missing(n *node) []sched.Lack {
	key := shapeOf(n)
	lacks, ok := q.shapes[key]
	if !ok {
		lacks = sched.Missing(n.schedNode(), q.job.spec.Resources)
		if q.job.spec.LooseGPUs {
			lacks = slices.DeleteFunc(lacks, func(l sched.Lack) bool {
				kind, together := strings.CutSuffix(l.What, " together")
				return together && isGPU(kind)
			})
		}
		if q.shapes == nil {
			q.shapes = map[shape][]sched.Lack{}
		}
		q.shapes[key] = lacks
	}
	return lacks
}

// resourceRefusal says why no node of the definition could ever hold the request, nil when one could.
// Hardware that is not known yet never refuses; unknown is that only a node of its type can tell.
func (q *question) resourceRefusal(d *coordinator.Definition) (unknown bool, why func() string) {
	r := q.job.spec.Resources
	for _, name := range q.tokens {
		if want, have := r.Tokens[name], q.config.SoftwareTokens[name]; want > have {
			return false, func() string { return fmt.Sprintf("wants %d tokens %s, the cluster has %d", want, name, have) }
		}
	}
	if nodes := q.job.spec.Nodes; d.Kind != spec.KindStatic && d.MaxNodes > 0 && int(nodes) > d.MaxNodes { // static nodes are neither launched nor released
		return false, func() string { return fmt.Sprintf("wants %d nodes, maxNodes is %d", nodes, d.MaxNodes) }
	}
	known := false
	for _, n := range q.config.nodesOf[d.ID] {
		if known = known || n.known; n.known && (len(n.short) == 0 && holds(&n.capacity, &r) || len(q.missing(n)) == 0) {
			return false, nil
		}
	}
	if d.Kind != spec.KindStatic {
		if yes, unknown, why := q.promised(d); !known || yes && q.reportOf(d) != nil {
			return unknown, why
		}
	}
	if !known {
		return false, nil
	}
	return false, func() string { return q.nearest(d) }
}

// provides reports whether nodes of a kind can be here at all: static ones are, others are launched.
func (s *state) provides(kind string) bool {
	return kind == spec.KindStatic || slices.Contains(s.kinds, kind)
}

// holds is the short way to yes for requests of whole cores; no is for others to say.
func holds(has *coordinator.Hardware, r *coordinator.Resources) bool {
	if r.Threads || r.Cores > has.Cores || r.TotalMemory() > has.Memory {
		return false
	}
	for name, want := range r.Devices {
		if want > has.Devices[name] {
			return false
		}
	}
	return true
}

// nearest tells of the node that lacks least.
func (q *question) nearest(d *coordinator.Definition) string {
	text, gap := "", math.Inf(1)
	for _, n := range q.config.nodesOf[d.ID] {
		if !n.known {
			continue
		}
		if why, missing := shortage(q.job.spec.Resources, q.missing(n)); missing < gap {
			text, gap = fmt.Sprintf("%s, its largest node %s has less", why, n.id), missing
		}
	}
	return text
}

// shortage puts the first thing that a node lacks into words, and adds up how much is missing.
func shortage(r coordinator.Resources, lacks []sched.Lack) (why string, missing float64) {
	for _, l := range lacks {
		missing += l.Share()
	}
	switch l := lacks[0]; {
	case l.What == "memory":
		why = fmt.Sprintf("wants %s of memory of at most %s", coordinator.Bytes(l.Wants), coordinator.Bytes(l.Has))
	case l.What == "cores" && r.Threads:
		why = fmt.Sprintf("wants %d hardware threads, which are %d cores, of at most %d", r.Cores, l.Wants, l.Has)
	case l.What == "cores":
		why = fmt.Sprintf("wants %d cores of at most %d", l.Wants, l.Has)
	default:
		why = fmt.Sprintf("wants %d × %s of at most %d", l.Wants, l.What, l.Has)
	}
	return why, missing
}
