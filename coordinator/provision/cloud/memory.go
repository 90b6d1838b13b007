package cloud

import (
	"sync"
	"time"

	"substrate/coordinator/provision"
)

// Unseen is for how long an instance that was launched may be in no list, and unknown to a call, without counting as gone.
const Unseen = 2 * time.Minute

// EmptyFor is how long a type counts as not to be had in a place once its cloud has said so.
const EmptyFor = 3 * time.Minute

// Recent remembers instances that this process has launched and no list has shown yet: clouds are late to list what is new. It is safe for concurrent use;
// the zero value is empty.
type Recent struct {
	mu sync.Mutex
	of map[provision.Handle]young
}

type young struct {
	provision.Instance
	at time.Time
}

// Add remembers an instance as the answer to its launch told of it.
func (r *Recent) Add(inst provision.Instance, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[provision.Handle]young{}
	}
	r.of[inst.Handle] = young{inst, now}
}

// Ending notes that an instance's end was asked for.
func (r *Recent) Ending(h provision.Handle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if y, ok := r.of[h]; ok {
		y.State = provision.StateEnding
		r.of[h] = y
	}
}

// Forget drops an instance: its cloud has said that it does not exist.
func (r *Recent) Forget(h provision.Handle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, h)
}

// Young reports whether a cloud that does not know an instance may be late.
func (r *Recent) Young(h provision.Handle, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	y, ok := r.of[h]
	return ok && now.Sub(y.at) < Unseen
}

// Merge adds to a list what it does not show yet, and forgets what it shows. The result is in the order of handles.
func (r *Recent) Merge(list []provision.Instance, now time.Time) []provision.Instance {
	seen := make(map[provision.Handle]bool, len(list))
	for _, i := range list {
		seen[i.Handle] = true
	}
	r.mu.Lock()
	for h, y := range r.of {
		switch {
		case seen[h], now.Sub(y.at) > Unseen:
			delete(r.of, h)
		default:
			list = append(list, y.Instance)
		}
	}
	r.mu.Unlock()
	provision.Sort(list)
	return list
}

// Refusal is a cloud's word that there is no capacity.
type Refusal struct {
	At  time.Time
	Why string
}

// Until is when it is worth asking again.
func (r Refusal) Until() time.Time { return r.At.Add(EmptyFor) }

// Empty remembers where there is no capacity, by what makes a place. It is safe for concurrent use; the zero value knows of nothing.
type Empty[Place comparable] struct {
	mu sync.Mutex
	of map[Place]Refusal
}

// Set notes that there is none.
func (e *Empty[Place]) Set(at Place, now time.Time, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[Place]Refusal{}
	}
	e.of[at] = Refusal{now, why}
}

// At is what was said of a place, as long as that counts.
func (e *Empty[Place]) At(at Place, now time.Time) (Refusal, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	no, ok := e.of[at]
	if ok && !now.Before(no.Until()) {
		delete(e.of, at)
		return Refusal{}, false
	}
	return no, ok
}
