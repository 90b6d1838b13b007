package federation

import (
	"cmp"
	"math"
	"slices"
)

// Score is one cluster's answer for one submission.
type Score struct {
	Score          float64  `json:"score"` // effective priority under the cluster's own expression
	Ready          uint32   `json:"ready"`
	Running        uint32   `json:"running"`
	Ahead          uint32   `json:"ahead"`        // of the ready ones: scoring strictly higher
	UsableNodes    uint32   `json:"usable_nodes"` // that could hold it
	UsableCores    uint32   `json:"usable_cores"`
	UsableGPUs     uint32   `json:"usable_gpus"`
	FreeCores      uint32   `json:"free_cores"`
	FreeGPUs       uint32   `json:"free_gpus"`
	Cost           *float64 `json:"cost,omitempty"`
	Startable      bool     `json:"startable"`
	Reason         string   `json:"reason,omitempty"` // why it cannot be started there
	PrioritySHA256 string   `json:"priority_sha256,omitempty"`
}

// Candidate is a cluster with its answer, or why there is none.
type Candidate struct {
	Cluster string `json:"cluster"` // its name, the last word where all else is equal
	Score   *Score `json:"score,omitempty"`
	Skipped string `json:"skipped,omitempty"` // drained, or why it could not be asked
}

// Usable reports whether the submission could be sent there.
func (c *Candidate) Usable() bool { return c.Score != nil && c.Skipped == "" && c.Score.Reason == "" }

// Load is what priority routing compares: allocations ahead for each node that could hold the work. Where no ready
// node could, it is infinite, for want of anything better.
func (s *Score) Load() float64 {
	switch {
	case s.UsableNodes > 0:
		return float64(s.Ahead) / float64(s.UsableNodes)
	default:
		return math.Inf(1)
	}
}

// By says what orders candidates.
type By string

const (
	// ByPriority takes the smallest load first, then what ByAvailability says.
	ByPriority By = "priority"
	// ByAvailability takes clusters that would start it now first, then the cheapest, then the first by name.
	ByAvailability By = "availability"
)

// Order returns the candidates in the order in which they are to be tried: those that are not usable come last, by
// name. The order is total as long as names are distinct, and does not depend on the order of the candidates given.
func Order(candidates []Candidate, by By) []Candidate {
	out := slices.Clone(candidates)
	slices.SortFunc(out, func(a, b Candidate) int { return compare(&a, &b, by) })
	return out
}

func compare(a, b *Candidate, by By) int {
	if x, y := a.Usable(), b.Usable(); !x || !y {
		return cmp.Or(first(x, y), cmp.Compare(a.Cluster, b.Cluster))
	}
	load := 0
	if by == ByPriority {
		load = cmp.Compare(a.Score.Load(), b.Score.Load())
	}
	return cmp.Or(load, first(a.Score.Startable, b.Score.Startable), cmp.Compare(cost(a.Score), cost(b.Score)),
		cmp.Compare(a.Cluster, b.Cluster))
}

// first puts what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// cost puts unknown ones last.
func cost(s *Score) float64 {
	if s.Cost == nil || math.IsNaN(*s.Cost) {
		return math.Inf(1)
	}
	return *s.Cost
}
