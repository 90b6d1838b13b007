package sched

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

func TestMissing(t *testing.T) {
	node := Node{ID: "n", Cores: 8, Threads: 16, Memory: 100, Devices: map[string]uint32{"gpu": 2}}
	odd := Node{ID: "odd", Cores: 8, Threads: 17, Memory: 100}
	for name, tt := range map[string]struct {
		on   Node
		r    coordinator.Resources
		want []Lack
	}{
		"fits":              {node, coordinator.Resources{Cores: 8, Memory: 100, Devices: map[string]uint32{"gpu": 2}}, nil},
		"threads fit":       {node, coordinator.Resources{Cores: 16, Threads: true}, nil},
		"whole cores only":  {odd, coordinator.Resources{Cores: 17, Threads: true}, []Lack{{"cores", 9, 8}}},
		"all that is short": {node, coordinator.Resources{Cores: 9, Memory: 101, Devices: map[string]uint32{"gpu": 3, "fpga": 1}}, []Lack{{"cores", 9, 8}, {"memory", 101, 100}, {"fpga", 1, 0}, {"gpu", 3, 2}}},
		"memory by core":    {node, coordinator.Resources{Cores: 4, Memory: 30, ByCore: true}, []Lack{{"memory", 120, 100}}},
		"exclusive fits":    {node, coordinator.Resources{Cores: 1, Exclusive: coordinator.ExclusiveJob}, nil},
	} {
		if got := Missing(tt.on, tt.r); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if got := (Lack{"cores", 8, 2}).Share(); got != 0.75 {
		t.Errorf("2 of 8 miss %v", got)
	}
}

func TestUsed(t *testing.T) {
	node := Node{ID: "n", Cores: 8, Threads: 16, Memory: 100, Devices: map[string]uint32{"gpu": 2}}
	one := coordinator.Resources{Cores: 1, Threads: true, Memory: 10}
	gpu := coordinator.Resources{Cores: 2, Devices: map[string]uint32{"gpu": 1}}
	alone := coordinator.Resources{Cores: 1, Exclusive: coordinator.ExclusiveJob}
	for name, tt := range map[string]struct {
		own  coordinator.Exclusive
		runs []coordinator.Resources
		want string // cores, threads, memory, GPUs
	}{
		"nobody":               {0, nil, "0 0 0 0"},
		"a core is not shared": {0, []coordinator.Resources{one, one, one}, "3 6 30 0"},
		"sums":                 {0, []coordinator.Resources{one, gpu, gpu}, "5 10 10 2"},
		"an exclusive job":     {0, []coordinator.Resources{alone}, "8 16 100 2"},
		"exclusive definition": {coordinator.ExclusiveWorkflow, []coordinator.Resources{one}, "8 16 100 2"},
		"nobody there":         {coordinator.ExclusiveJob, nil, "0 0 0 0"},
	} {
		var runs []*coordinator.Resources
		for i := range tt.runs {
			runs = append(runs, &tt.runs[i])
		}
		u := Used(node, tt.own, slices.Values(runs))
		if got := fmt.Sprint(u.Cores, u.Threads, uint64(u.Memory), u.Devices["gpu"]); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestOneOpinionOnFit: what Missing and Used say of a node is what Decide does on it.
func TestOneOpinionOnFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cores, smt := between(t, "cores", 0, 8), between(t, "smt", 1, 3)
		node := Node{ID: "n", Definition: "d", Cores: coordinator.Cores(cores), Threads: uint32(cores * smt),
			Memory: coordinator.Bytes(between(t, "memory", 0, 20)), Devices: map[string]uint32{"gpu": uint32(between(t, "gpus", 0, 4))}, Schedulable: true}
		request := func(id coordinator.AllocationID) Request {
			r := Request{ID: id, Class: coordinator.ClassBatch, Nodes: 1, Resources: drawResources(t), Admissible: []coordinator.DefinitionID{"d"}}
			r.Resources.Tokens, r.Resources.Exclusive = nil, coordinator.ExclusiveNone
			r.Resources.Affinity, r.Resources.Sockets = coordinator.AffinityNone, 0
			return r
		}
		s := Snapshot{Now: epoch, Definitions: []Definition{{ID: "d"}}, Nodes: []Node{node}}
		starts := func(r Request) bool {
			s.Requests = []Request{r}
			return len(Decide(s).Starts) == 1
		}
		var runs []*coordinator.Resources
		for i := range between(t, "requests", 1, 8) {
			r := request(coordinator.AllocationID(fmt.Sprintf("r%d", i)))
			used := Used(node, coordinator.ExclusiveNone, slices.Values(runs))
			rest := node
			rest.Cores -= used.Cores
			rest.Threads -= used.Threads
			rest.Memory -= used.Memory
			rest.Devices = map[string]uint32{"gpu": node.Devices["gpu"] - used.Devices["gpu"]}
			fits := Missing(rest, r.Resources) == nil
			if starts(r) != fits {
				t.Fatalf("%+v beside %d runs: starts %v, but missing %v", r.Resources, len(runs), !fits, Missing(rest, r.Resources))
			}
			if !fits {
				continue
			}
			runs = append(runs, &r.Resources)
			s.Placements = append(s.Placements, Placement{ID: r.ID, Class: r.Class, Started: epoch, Nodes: []coordinator.NodeID{"n"}, Resources: r.Resources})
		}
	})
}
