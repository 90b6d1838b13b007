package sched

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"substrate/coordinator"
)

// entry is one waiting request. What it has in common with others is in its shape.
type entry struct {
	id        coordinator.AllocationID
	workflow  coordinator.WorkflowID
	rank      float64 // orders by effective priority: it does not change with time
	priority  float64 // at age 0
	submitted time.Duration
	order     uint64
	attempt   uint32
	shape     *shape
	start     *claim // what it became
	rule      int    // that let it start
	returned  bool
	hold      *hold // room is held for it
	standing
	prev, next *entry // of the same workflow
}

// compare is rule 1 within a class.
func (a *entry) compare(b *entry) int {
	if a == b {
		return 0
	}
	if a.returned != b.returned {
		return order(a.returned)
	}
	if c := cmp.Compare(b.rank, a.rank); c != 0 {
		return c
	}
	if c := cmp.Compare(a.submitted, b.submitted); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.workflow, b.workflow), cmp.Compare(a.order, b.order), cmp.Compare(a.id, b.id))
}

// rankOf is a priority as of the moment from which all times count, so that two requests compare the same
// at every time.
func rankOf(priority, rate float64, submitted time.Duration) float64 {
	if rate == 0 {
		return priority
	}
	return priority - rate*submitted.Seconds()
}

const chunkSize = 128

// ordered is entries in queue order, in chunks none of which is empty: one is found by halving, put in or taken out
// by moving a chunk's worth, and counted by the lengths of the chunks before it.
type ordered struct {
	chunks [][]*entry
	count  int
}

// place is where in an ordered list something is; past its end, chunk is the number of chunks.
type place struct{ chunk, at int }

// find is the place of the first entry that does not come before e.
func (o *ordered) find(e *entry) place {
	i := sort.Search(len(o.chunks), func(i int) bool {
		chunk := o.chunks[i]
		return chunk[len(chunk)-1].compare(e) >= 0
	})
	if i == len(o.chunks) {
		return place{i, 0}
	}
	chunk := o.chunks[i]
	return place{i, sort.Search(len(chunk), func(j int) bool { return chunk[j].compare(e) >= 0 })}
}

// at is the entry there, nil past the end.
func (o *ordered) at(p place) *entry {
	if p.chunk >= len(o.chunks) {
		return nil
	}
	return o.chunks[p.chunk][p.at]
}

// from is the place of an entry, the end for nil.
func (o *ordered) from(e *entry) place {
	if e == nil {
		return place{len(o.chunks), 0}
	}
	return o.find(e)
}

// after is the next place.
func (o *ordered) after(p place) place {
	if p.at+1 < len(o.chunks[p.chunk]) {
		return place{p.chunk, p.at + 1}
	}
	return place{p.chunk + 1, 0}
}

// before counts the entries before a place.
func (o *ordered) before(p place) int {
	n := p.at
	for _, chunk := range o.chunks[:p.chunk] {
		n += len(chunk)
	}
	return n
}

func (o *ordered) insert(e *entry) {
	o.count++
	p := o.find(e)
	if p.chunk == len(o.chunks) {
		if p.chunk == 0 || len(o.chunks[p.chunk-1]) >= chunkSize {
			o.chunks = append(o.chunks, []*entry{e})
			return
		}
		p = place{p.chunk - 1, len(o.chunks[p.chunk-1])}
	}
	chunk := slices.Insert(o.chunks[p.chunk], p.at, e)
	o.chunks[p.chunk] = chunk
	if len(chunk) > chunkSize {
		half := len(chunk) / 2
		o.chunks = slices.Insert(o.chunks, p.chunk+1, slices.Clone(chunk[half:]))
		clear(chunk[half:])
		o.chunks[p.chunk] = chunk[:half]
	}
}

func (o *ordered) remove(e *entry) {
	p := o.find(e)
	if o.at(p) != e {
		return
	}
	o.count--
	chunk := slices.Delete(o.chunks[p.chunk], p.at, p.at+1)
	o.chunks[p.chunk] = chunk
	if len(chunk) == 0 {
		o.chunks = slices.Delete(o.chunks, p.chunk, p.chunk+1)
	}
}

// behead takes the entries before a place out and says how many.
func (o *ordered) behead(p place) int {
	n := o.before(p)
	o.count -= n
	clear(o.chunks[:p.chunk])
	o.chunks = o.chunks[p.chunk:]
	if len(o.chunks) > 0 {
		clear(o.chunks[0][:p.at])
		o.chunks[0] = o.chunks[0][p.at:]
	}
	return n
}

// classQueue is what waits in one class, by shape.
type classQueue struct {
	class     coordinator.Class
	shapes    []*shape // in no order
	count     int      // waiting
	deep      *entry   // from it on, the last pass looked no further
	last      *entry   // estimates look no further, nil: they look at all
	estimated int      // how many that are, 0: not counted
}

// position is the number of an entry in its class, from 1.
func (q *classQueue) position(e *entry) int {
	n := 1
	for _, s := range q.shapes {
		n += max(0, s.queue.before(s.queue.find(e))-s.queue.before(s.taken))
	}
	return n
}

// heads is a heap of shapes by the entry that each has come to.
type heads []*shape

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].head.compare(h[j].head) < 0 }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(*shape)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
