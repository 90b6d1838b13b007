package sched

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"substrate/coordinator"
)

// TestOrderedEqualsSortedList: chunks split, empty and lose their heads, and still are one sorted list.
func TestOrderedEqualsSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o ordered
		var list []*entry
		entryOf := func(n int) *entry {
			return &entry{id: coordinator.AllocationID(fmt.Sprintf("%06d", n)), rank: float64(n % 7)}
		}
		next := 0
		for range between(t, "rounds", 1, 12) {
			switch between(t, "what", 0, 3) {
			case 0, 1: // many at once, before, between and behind the others
				for range between(t, "more", 1, 3*chunkSize) {
					e := entryOf(next * 7919 % 100_003)
					next++
					o.insert(e)
					list = append(list, e)
				}
				slices.SortFunc(list, (*entry).compare)
			case 2:
				for range between(t, "fewer", 0, len(list)) {
					i := between(t, "which", 0, len(list)-1)
					o.remove(list[i])
					list = slices.Delete(list, i, i+1)
				}
			case 3:
				p := place{}
				n := between(t, "heads", 0, len(list))
				for range n {
					p = o.after(p)
				}
				if o.behead(p) != n {
					t.Fatal("beheaded too many or too few")
				}
				list = list[n:]
			}
			checkOrdered(t, &o, list)
		}
	})
}

func checkOrdered(t *rapid.T, o *ordered, list []*entry) {
	if o.count != len(list) {
		t.Fatalf("%d counted of %d", o.count, len(list))
	}
	p := place{}
	for i, e := range list {
		if o.at(p) != e || o.find(e) != p || o.before(p) != i {
			t.Fatalf("%s is not at %d", e.id, i)
		}
		p = o.after(p)
	}
	if o.at(p) != nil {
		t.Fatal("there is more")
	}
	for _, chunk := range o.chunks {
		if len(chunk) == 0 || len(chunk) > chunkSize {
			t.Fatalf("a chunk of %d", len(chunk))
		}
	}
}

// TestLongQueueEqualsFresh is TestIncrementalEqualsFresh with queues of several chunks, many shapes and each limit of depth.
func TestLongQueueEqualsFresh(t *testing.T) {
	for _, mode := range []coordinator.Backfill{coordinator.BackfillNone, coordinator.BackfillEasy, coordinator.BackfillConservative} {
		for _, depth := range []int{0, 40} {
			t.Run(fmt.Sprintf("%s/%d", mode, depth), func(t *testing.T) {
				if mode == coordinator.BackfillConservative && depth == 0 {
					depth = 90 // plans for everybody take their time
				}
				testLongQueue(t, mode, depth)
			})
		}
	}
}

func testLongQueue(t *testing.T, mode coordinator.Backfill, depth int) {
	facts := Snapshot{Now: epoch, Config: fleetConfig(mode), Definitions: []Definition{{ID: "gpu", CostPerHour: 3.2}}}
	facts.Config.QueueDepth = depth
	s := New()
	s.Configure(facts.Config, facts.Definitions, nil)
	for i := range 6 {
		facts.Nodes = append(facts.Nodes, fleetNode(i))
		s.SetNode(facts.Nodes[i])
	}
	next := 0
	for tick := range 8 {
		for range []int{500, 3}[min(tick, 1)] {
			r := fleetRequest(next)
			r.Class = coordinator.Class(1 + next%3)
			next++
			facts.Requests = append(facts.Requests, r)
			s.Submit(r)
		}
		want := Decide(facts)
		got := s.Decide(facts.Now)
		if len(got.Starts)+len(want.Starts) > 0 && !reflect.DeepEqual(got.Starts, want.Starts) {
			t.Fatalf("tick %d: starts\n got %v\nwant %v", tick, got.Starts, want.Starts)
		}
		facts = Apply(facts, want)
		var listed []Wait
		for class := coordinator.ClassReserved; class <= coordinator.ClassBatch; class++ {
			listed = append(listed, s.Waiting(facts.Now, class, "", 1000)...)
		}
		for i := range want.Waits {
			if !reflect.DeepEqual(listed[i], want.Waits[i]) {
				t.Fatalf("tick %d:\n got %+v\nwant %+v", tick, listed[i], want.Waits[i])
			}
		}
		facts.Now = facts.Now.Add(time.Minute)
		for range 1 + tick%5 {
			id := facts.Placements[tick%3].ID
			facts.Placements = slices.DeleteFunc(facts.Placements, func(p Placement) bool { return p.ID == id })
			s.End(id)
		}
	}
}
