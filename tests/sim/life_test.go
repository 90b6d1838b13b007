package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/coordinator/server"
	"substrate/coordinator/store"
)

// life is one coordinator process, from its start to its crash. The store outlives it.
type life struct {
	world    *world
	number   int
	alive    bool
	engine   *engine.Engine
	server   *grpc.Server
	links    map[*link]bool
	cancel   context.CancelFunc
	died     chan struct{} // closed at the crash
	done     chan struct{} // closed when Run has returned
	handlers sync.WaitGroup
}

// entropy is the engine's chance, drawn from the seed.
type entropy struct{ *rand.ChaCha8 }

func (w *world) entropy(number int) entropy {
	var key [32]byte
	rng := w.rng("entropy", number)
	for i := range key {
		key[i] = byte(rng.Uint32())
	}
	return entropy{rand.NewChaCha8(key)}
}

// startCoordinator begins a life on the store: after a crash, the fail-over.
func (w *world) startCoordinator() {
	w.mu.Lock()
	w.lives++
	l := &life{world: w, number: w.lives, links: map[*link]bool{}, died: make(chan struct{}), done: make(chan struct{})}
	w.step("coordinator %d starts", l.number)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	e, err := engine.New(ctx, engine.Options{
		Store: &handle{world: w, life: l}, Logs: w.logs, Log: slog.New(slog.DiscardHandler), Now: time.Now, Rand: w.entropy(l.number),
		Limits: engine.Limits{StopGrace: time.Millisecond},
	})
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail("coordinator %d does not start: %v", l.number, err)
		return
	}
	l.engine = e
	w.mu.Lock()
	l.alive, w.life = true, l
	w.mu.Unlock()
	go func() {
		defer close(l.done)
		if err := e.Run(ctx); err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fail("coordinator %d ended: %v", l.number, err)
		}
	}()
	time.Sleep(time.Millisecond) // its first turn is its own
	st, err := e.Status(ctx)
	if err != nil {
		return // it has crashed already
	}
	srv, err := server.NewAgentServer(&tls.Config{ClientCAs: x509.NewCertPool(), ClientAuth: tls.VerifyClientCertIfGiven},
		server.AgentsOf(e), server.AgentOptions{Version: "sim", ClusterID: st.ClusterID, Now: time.Now, Log: slog.New(slog.DiscardHandler),
			Node: func(c *x509.Certificate) (coordinator.NodeID, error) {
				return coordinator.NodeID(c.Subject.CommonName), nil
			}})
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.fail("the agents' server does not start: %v", err)
		return
	}
	l.server = srv
}

// crash ends a life now, wherever it stands: a killed process tells its peers, a machine without power does not.
// w.mu is held.
func (l *life) crash(why string) {
	w := l.world
	if !l.alive {
		return
	}
	l.alive = false
	w.count("crashes")
	w.step("coordinator %d dies: %s", l.number, why)
	close(l.died)
	l.cancel()
	silent := w.chaos.IntN(5) == 0
	for _, n := range w.nodes { // in an order that does not change
		if k := n.link; k != nil && l.links[k] {
			if silent {
				k.vanish(w.chaos)
			} else {
				k.reset(w.chaos)
			}
		}
	}
	for k := range l.links {
		k.up.cut(0, errBroken)
	}
}

// bury waits for all that a life has left behind.
func (l *life) bury() {
	<-l.done
	if l.server != nil {
		l.server.Stop()
	}
	l.handlers.Wait()
}

// handle is the store as one life sees it. Faults are drawn from the seed.
type handle struct {
	world *world
	life  *life
}

var _ store.Store = (*handle)(nil)

// fault is what happens to the next commit.
type fault uint8

const (
	faultNone    fault = iota
	faultCrash         // the coordinator dies between two groups, before or after
	faultUnknown       // the outcome is not told
)

// readTakes is a moment in which everybody else comes to rest: who is answered before a read goes on before it ends.
const readTakes = 10 * time.Microsecond

func (h *handle) dead() bool {
	select {
	case <-h.life.died:
		return true
	default:
		return false
	}
}

func (h *handle) Get(ctx context.Context, key string) (store.Entry, error) {
	time.Sleep(readTakes)
	if h.dead() {
		return store.Entry{}, store.ErrClosed
	}
	return h.world.disk.Get(ctx, key)
}

func (h *handle) List(ctx context.Context, prefix, after string, limit int) ([]store.Entry, error) {
	time.Sleep(readTakes)
	if h.dead() {
		return nil, store.ErrClosed
	}
	return h.world.disk.List(ctx, prefix, after, limit)
}

func (h *handle) Close() error { return nil }

func (h *handle) Commit(ctx context.Context, groups []store.Group) (int64, error) {
	w := h.world
	w.mu.Lock()
	took := 200*time.Microsecond + time.Duration(w.store.Int64N(int64(3*time.Millisecond)))
	if w.store.IntN(500) == 0 {
		took += time.Duration(w.store.Int64N(int64(4 * time.Second))) // the disk is busy
	}
	w.mu.Unlock()
	time.Sleep(took)
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.dead() {
		return 0, store.ErrClosed
	}
	w.count("commits")
	if time.Now().Before(w.fullUntil) && puts(groups) {
		w.count("refused writes")
		return 0, &store.CommitError{Groups: len(groups), Err: store.ErrFull}
	}
	doom := w.doom
	w.doom = faultNone
	if doom == faultNone {
		return h.apply(ctx, groups, len(groups))
	}
	n := w.store.IntN(len(groups) + 1)
	if _, err := h.apply(ctx, groups, n); err != nil {
		return 0, err
	}
	if doom == faultCrash {
		h.life.crash(fmt.Sprintf("in a write, %d of %d groups are durable", n, len(groups)))
		w.revive()
		return 0, store.ErrClosed
	}
	w.count("unknown writes")
	w.step("a write does not tell its outcome: %d of %d groups are durable", n, len(groups))
	return 0, &store.CommitError{Groups: len(groups), Err: store.ErrUnknown}
}

// apply makes the first groups durable and lets the judge read them.
func (h *handle) apply(ctx context.Context, groups []store.Group, n int) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	rev, err := h.world.disk.Commit(ctx, groups[:n])
	if err == nil {
		h.world.judge.committed(groups[:n], groups[n:])
	}
	return rev, err
}

func puts(groups []store.Group) bool {
	for _, g := range groups {
		for _, op := range g.Ops {
			if !op.Delete {
				return true
			}
		}
	}
	return false
}

// revive lets the next life begin after a while. w.mu is held.
func (w *world) revive() {
	var after time.Duration
	switch n := w.chaos.IntN(20); {
	case n < 13:
		after = time.Duration(w.chaos.Int64N(int64(10 * time.Second)))
	case n < 18:
		after = time.Duration(w.chaos.Int64N(int64(time.Minute)))
	default:
		after = time.Minute + time.Duration(w.chaos.Int64N(int64(3*time.Minute)))
	}
	old := w.life
	w.after(after, func() {
		old.bury()
		w.startCoordinator()
	})
}
