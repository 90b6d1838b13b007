package engine

import (
	"fmt"
	"strings"
	"testing"

	"substrate/coordinator"
)

// TestFreeCapacity: what is shown as free is what the next job could have.
func TestFreeCapacity(t *testing.T) {
	single := coordinator.Resources{Cores: 1, Threads: true, Memory: 10}
	alone := coordinator.Resources{Cores: 1, Exclusive: coordinator.ExclusiveJob}
	for name, tt := range map[string]struct {
		exclusive coordinator.Exclusive
		runs      []coordinator.Resources
		want      string // cores, threads, memory, GPUs
	}{
		"idle":                      {0, nil, "4 8 100 2"},
		"threads take whole cores":  {0, []coordinator.Resources{single, single}, "2 4 80 2"},
		"an exclusive job":          {0, []coordinator.Resources{alone}, "0 0 0 0"},
		"an exclusive definition":   {coordinator.ExclusiveWorkflow, []coordinator.Resources{single}, "0 0 0 0"},
		"and nobody on its node":    {coordinator.ExclusiveWorkflow, nil, "4 8 100 2"},
		"more than there is by now": {0, []coordinator.Resources{{Cores: 9, Memory: 900, Devices: map[string]uint32{"x/gpu": 9}}}, "0 0 0 0"},
	} {
		n := newNode("n1")
		n.known, n.revision, n.session, n.record.Definition = true, 1, &Session{}, "d"
		n.capacity = coordinator.Hardware{Cores: 4, Threads: 8, Memory: 100, Devices: map[string]uint32{"x/gpu": 2}}
		for i, r := range tt.runs {
			n.active[coordinator.AllocationID(fmt.Sprint(i))] = &allocation{job: &job{spec: &coordinator.JobSpec{Resources: r}}}
		}
		s := &state{config: &activeConfig{
			nodesOf:   map[coordinator.DefinitionID][]*node{"d": {n}},
			exclusive: map[coordinator.DefinitionID]coordinator.Exclusive{"d": tt.exclusive},
		}}
		free := s.definitionCapacity("d", func(*node, coordinator.Hardware) {}).Free
		if got := fmt.Sprint(free.Cores, free.Threads, uint64(free.Memory), free.Devices["x/gpu"]); got != tt.want {
			t.Errorf("%s: %s free, want %s", name, got, tt.want)
		}
	}
}

// TestResourcesThatNoNodeHas: admission counts as placement does, by whole cores.
func TestResourcesThatNoNodeHas(t *testing.T) {
	n := newNode("n1")
	n.known = true
	n.capacity = coordinator.Hardware{Cores: 8, Threads: 17, Memory: 1 << 30, Devices: map[string]uint32{"x/gpu": 2}}
	s := &state{config: &activeConfig{Config: &coordinator.Config{}, nodesOf: map[coordinator.DefinitionID][]*node{"d": {n}}}}
	for name, tt := range map[string]struct {
		r    coordinator.Resources
		want string
	}{
		"fits":    {coordinator.Resources{Cores: 16, Threads: true, Memory: 1 << 30}, ""},
		"threads": {coordinator.Resources{Cores: 17, Threads: true}, "wants 17 hardware threads, which are 9 cores, of at most 8, its largest node n1 has less"},
		"cores":   {coordinator.Resources{Cores: 9, Memory: 2 << 30}, "wants 9 cores of at most 8"},
		"memory":  {coordinator.Resources{Memory: 1<<30 + 1<<29}, "wants 1.5 GiB of memory of at most 1 GiB"},
		"devices": {coordinator.Resources{Devices: map[string]uint32{"x/gpu": 3}}, "wants 3 × x/gpu of at most 2"},
	} {
		q := &question{state: s, job: &job{spec: &coordinator.JobSpec{Nodes: 1, Resources: tt.r}}}
		got := ""
		if _, why := q.resourceRefusal(&coordinator.Definition{ID: "d"}); why != nil {
			got = why()
		}
		if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
