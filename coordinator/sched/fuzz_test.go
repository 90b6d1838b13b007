package sched

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"substrate/coordinator"
)

// dice turns fuzzed bytes into numbers; when they run out everything is zero.
type dice struct{ data []byte }

func (d *dice) byte() byte {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b
}

// number is small, or the largest, or anything.
func (d *dice) number() uint64 {
	switch b := d.byte(); {
	case b < 200:
		return uint64(b % 16)
	case b < 220:
		return math.MaxUint64
	default:
		var raw [8]byte
		d.data = d.data[copy(raw[:], d.data):]
		return binary.LittleEndian.Uint64(raw[:])
	}
}

func (d *dice) resources() coordinator.Resources {
	r := coordinator.Resources{
		Cores: coordinator.Cores(d.number() / 3), Memory: coordinator.Bytes(d.number() / 3),
		Threads: d.byte()&1 == 1, ByCore: d.byte()&1 == 1, Exclusive: coordinator.Exclusive(d.byte() % 5),
	}
	if n := uint32(d.number()); n > 8 {
		r.Devices = map[string]uint32{"gpu": n - 8}
	}
	if n := uint32(d.number()); n > 10 {
		r.Tokens = map[string]uint32{"matlab": n - 10}
	}
	return r
}

func (d *dice) nodeID() coordinator.NodeID { return coordinator.NodeID(fmt.Sprint("n", d.byte()%8)) }

func (d *dice) time() time.Time { return epoch.Add(time.Duration(d.number())) }

func (d *dice) snapshot() Snapshot {
	s := Snapshot{
		Now:    time.Unix(int64(d.number()), 0),
		Config: Config{Backfill: coordinator.Backfill(d.byte() % 4), PreemptionNotice: time.Duration(d.number()), QueueDepth: int(int8(d.byte()))},
		Tokens: map[string]uint32{"matlab": uint32(d.number())},
	}
	if d.byte()&1 == 1 {
		s.Now = epoch
	}
	for i := range 1 + d.byte()%3 {
		s.Definitions = append(s.Definitions, Definition{ID: coordinator.DefinitionID(fmt.Sprint("d", i)),
			CostPerHour: math.Float64frombits(d.number()), Order: int(int8(d.byte())), Exclusive: coordinator.Exclusive(d.byte() % 4)})
	}
	for i := range d.byte() % 7 {
		s.Nodes = append(s.Nodes, Node{ID: coordinator.NodeID(fmt.Sprint("n", i)), Definition: coordinator.DefinitionID(fmt.Sprint("d", d.byte()%4)),
			Cores: coordinator.Cores(d.number()), Threads: uint32(d.number()), Memory: coordinator.Bytes(d.number()),
			Devices: map[string]uint32{"gpu": uint32(d.number())}, Schedulable: d.byte()%8 > 0})
	}
	for i := range d.byte() % 8 {
		s.Placements = append(s.Placements, Placement{ID: coordinator.AllocationID(fmt.Sprint("p", i)), Started: d.time(),
			Walltime: time.Duration(d.number()), Nodes: []coordinator.NodeID{d.nodeID(), d.nodeID()}, Resources: d.resources(), Ending: d.byte()&1 == 1})
	}
	s.Config.PreemptionEnabled, s.Config.PreemptionGap = d.byte()&1 == 1, math.Float64frombits(d.number())
	s.Config.PreemptionThreshold, s.Config.MinPreemptionRuntime = math.Float64frombits(d.number()), time.Duration(d.number())
	s.Config.AgeRate = math.Float64frombits(d.number())
	for i := range s.Placements {
		p := &s.Placements[i]
		p.Class, p.Preemptible, p.PreemptionsLeft = coordinator.Class(d.byte()%5), d.byte()&1 == 1, int(d.number())
		p.KillAt, p.Submitted, p.Priority = d.time(), d.time(), math.Float64frombits(d.number())
	}
	d.promises(&s)
	for i := range d.byte() % 24 {
		r := Request{Preempts: []coordinator.GroupID{""}, PreemptionsLeft: int(d.number()), Preemptible: true, ID: coordinator.AllocationID(fmt.Sprint("r", i)), Workflow: coordinator.WorkflowID(fmt.Sprint("w", d.byte()%3)),
			Class: coordinator.Class(d.byte() % 5), Returned: d.byte()&7 == 7, Priority: math.Float64frombits(d.number()), Submitted: d.time(),
			Walltime: time.Duration(d.number()), Nodes: uint32(d.number() / 5), Resources: d.resources(), Unrestricted: d.byte()&7 == 7}
		for range 1 + d.byte()%4 {
			r.Admissible = append(r.Admissible, coordinator.DefinitionID(fmt.Sprint("d", d.byte()%4)))
		}
		if b := d.byte(); b&7 == 7 {
			r.Exclude, r.Array, r.ArrayLimit = []coordinator.NodeID{d.nodeID()}, "g", int(int8(b))
		}
		s.Requests = append(s.Requests, r)
	}
	return s
}

func (d *dice) share() Share {
	return Share{Node: d.nodeID(), Devices: []int{int(d.number()), int(d.byte())}[:d.byte()%3], Cores: []DomainCores{{Domain: 0, Cores: uint32(d.number())}}[:d.byte()%2]}
}

// promises adds holds, windows and reservations.
func (d *dice) promises(s *Snapshot) {
	for i := range d.byte() % 3 {
		s.Holds = append(s.Holds, Hold{For: coordinator.AllocationID(fmt.Sprint("r", i)), Definition: coordinator.DefinitionID(fmt.Sprint("d", d.byte()%4)),
			Shares: []Share{d.share(), d.share()}[:d.byte()%3], Victims: []coordinator.AllocationID{"p0", "p1", "nobody"}[:d.byte()%4]})
	}
	for i := range d.byte() % 3 {
		w := Window{ID: fmt.Sprint("w", i), From: d.time(), Until: d.time(), Nodes: []coordinator.NodeID{d.nodeID()}}
		if d.byte()&1 == 1 {
			w.Nodes = nil
		}
		s.Windows = append(s.Windows, w)
	}
	for i := range d.byte() % 3 {
		r := Reservation{ID: ReservationID(fmt.Sprint("v", i)), Definition: coordinator.DefinitionID(fmt.Sprint("d", d.byte()%4)), Device: "gpu",
			GPUs: uint32(d.number()), Nodes: uint32(d.number()), From: d.time(), Until: d.time(), Created: d.time()}
		if d.byte()&3 == 3 {
			r.Shares = []Share{d.share()}
		}
		s.Reservations = append(s.Reservations, r)
	}
}

// FuzzDecide feeds Decide numbers that no cluster has: it must not fail, must keep the invariants,
// and must not depend on the order of its slices.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("210 \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	for seed := range 6 {
		data := make([]byte, 900)
		x := uint32(seed + 1)
		for i := range data {
			x = x*1664525 + 1013904223
			data[i] = byte(x >> 24)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &dice{data}
		s := d.snapshot()
		plan := Decide(s)
		if broken := checkPlan(s, plan); broken != "" {
			t.Fatalf("%s\n%+v", broken, s)
		}
		slices.Reverse(s.Definitions)
		slices.Reverse(s.Nodes)
		slices.Reverse(s.Placements)
		slices.Reverse(s.Requests)
		slices.Reverse(s.Holds)
		slices.Reverse(s.Windows)
		slices.Reverse(s.Reservations)
		if again := Decide(s); !reflect.DeepEqual(plan, again) {
			t.Fatalf("the plan depends on order:\n%+v\n%+v", plan, again)
		}
	})
}
