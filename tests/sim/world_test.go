package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"substrate/coordinator/logs"
	"substrate/coordinator/store"
)

// world is one simulated cluster with everything that happens to it. All times are those of a synctest bubble; all
// chance comes from the seed. mu guards what is below it and is never held over a wait.
type world struct {
	t    testing.TB
	seed uint64
	disk *store.Memory
	logs *logs.Logs

	mu       sync.Mutex
	began    time.Time
	events   eventHeap
	sequence int
	kick     chan struct{} // an event was added
	trace    trace
	failures []string
	counts   map[string]int
	judge    *judge
	nodes    []*vnode
	life     *life
	lives    int
	feed     *feed
	chaos    *rand.Rand
	store    *rand.Rand

	doom      fault // of the next commit
	fullUntil time.Time
	calm      bool // nothing breaks any more
	closed    bool // the simulation is over
	asks      sync.WaitGroup
}

// event is something that the simulation does at a time.
type event struct {
	at  time.Time
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

// rng is a stream of chance of its own, so that what one part of the world draws does not shift another's.
func (w *world) rng(name ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintln(h, name...)
	return rand.New(rand.NewPCG(w.seed, h.Sum64()))
}

// after has something done later by the simulation's own goroutine, without the lock. w.mu is held.
func (w *world) after(d time.Duration, do func()) {
	w.sequence++
	heap.Push(&w.events, event{at: time.Now().Add(d), seq: w.sequence, do: do})
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// ask runs a request of a user or an administrator beside the simulation.
func (w *world) ask(f func()) {
	w.asks.Go(f)
}

// run does what is due until a time, or a failure, or until over says that nothing is left to do.
func (w *world) run(until time.Time, over func() bool) {
	for {
		w.mu.Lock()
		if len(w.failures) > 0 || over != nil && over() {
			w.mu.Unlock()
			return
		}
		next := until
		if len(w.events) > 0 && w.events[0].at.Before(until) {
			next = w.events[0].at
		}
		wait := time.Until(next)
		var e event
		if wait <= 0 && len(w.events) > 0 && !w.events[0].at.After(next) {
			e = heap.Pop(&w.events).(event)
		}
		w.mu.Unlock()
		switch {
		case e.do != nil:
			e.do()
			synctest.Wait()
		case wait <= 0:
			return
		default:
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-w.kick:
			}
			t.Stop()
			synctest.Wait()
		}
	}
}

func (w *world) count(what string) { w.counts[what]++ }

// step writes a line of the trace. w.mu is held.
func (w *world) step(format string, args ...any) {
	w.trace.add(time.Since(w.began), fmt.Sprintf(format, args...))
}

// fail notes a broken rule. w.mu is held.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.step("BROKEN: %s", text)
	if len(w.failures) < maxFailures {
		w.failures = append(w.failures, fmt.Sprintf("at %s: %s", stamp(time.Since(w.began)), text))
	}
}

const maxFailures = 8

func stamp(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d:%09.6f", int(d.Hours()), int(d.Minutes())%60, (d % time.Minute).Seconds())
}

// trace is the last steps, and a digest of all. Steps of one instant are added up, since the order of goroutines that
// run at the same time is not the seed's.
type trace struct {
	last    []string
	digest  uint64
	instant time.Duration
	sum     uint64
	steps   int
	out     *os.File // everything, where somebody wants to read it
}

const lastSteps = 60

func (t *trace) add(at time.Duration, text string) {
	if at != t.instant {
		t.fold()
		t.instant = at
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", at, text)
	t.sum += h.Sum64()
	t.steps++
	line := stamp(at) + " " + text
	if t.out != nil {
		fmt.Fprintln(t.out, line)
	}
	if len(t.last) == lastSteps {
		t.last = t.last[1:]
	}
	t.last = append(t.last, line)
}

func (t *trace) fold() uint64 {
	t.digest = (t.digest*0x9e3779b97f4a7c15 ^ t.sum) + t.sum>>7
	t.sum = 0
	return t.digest
}

func (t *trace) String() string { return strings.Join(t.last, "\n") }

// unpack makes the files of a recorded machine.
func unpack(t testing.TB, fixture string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "fixtures", fixture+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range txtar.Parse(data).Files {
		if f.Name == "want" || strings.HasSuffix(f.Name, " | hex") {
			continue
		}
		name, target, isLink := strings.Cut(f.Name, " -> ")
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil && isLink {
			err = os.Symlink(target, path)
		} else if err == nil {
			err = os.WriteFile(path, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}
