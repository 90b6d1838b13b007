package engine

import (
	"slices"
	"strings"

	"substrate/coordinator"
)

// veil takes out of reasons what they tell of work that the caller may not see.
func (s *state) veil(c Caller, jobs []JobView) {
	for i := range jobs {
		jobs[i] = s.veiled(c, jobs[i])
	}
}

func (s *state) veiled(c Caller, v JobView) JobView {
	if v.Reason == nil || c.Admin || len(v.Reason.Blocking) == 0 {
		return v
	}
	r := *v.Reason
	hidden := func(id coordinator.AllocationID) bool {
		a := s.allocation(id)
		return a != nil && !c.sees(a.job.workflow)
	}
	for _, id := range r.Blocking {
		if hidden(id) {
			r.Text = strings.ReplaceAll(r.Text, string(id), "another organisation's work")
		}
	}
	r.Blocking = slices.DeleteFunc(slices.Clone(r.Blocking), hidden)
	v.Reason = &r
	return v
}
