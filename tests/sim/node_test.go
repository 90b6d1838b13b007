package sim

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"substrate/agent"
	"substrate/agent/runtime"
	"substrate/hwinfo"
)

// machine is a kind of node: a recorded machine, and what the judge holds against it.
type machine struct {
	fixture    string
	definition string
	cores      int
	memory     uint64
	fabrics    [][]string // GPUs by address; what is joined stands together
}

func (m *machine) gpus() (n int) {
	for _, f := range m.fabrics {
		n += len(f)
	}
	return n
}

// fabricOf is the fabric of a GPU, -1 for one that the machine does not have.
func (m *machine) fabricOf(address string) int {
	for i, f := range m.fabrics {
		for _, g := range f {
			if g == address {
				return i
			}
		}
	}
	return -1
}

// vnode is a machine with its power, its way to the coordinator, its keeper and its agent. world.mu guards it.
type vnode struct {
	world   *world
	id      string
	machine *machine
	root    string // the machine's files
	dir     string // the agent's own
	skew    time.Duration
	latency time.Duration
	slow    atomic.Int64 // added to every message, at most

	on          bool
	partitioned bool
	link        *link
	dials       int
	boots       int
	agents      int
	agent       *agentLife
	runs        map[runtime.RunID]*vrun // the keeper's journal, and its processes
	conn        *keeperConn

	// What is durable of it, as the judge has read it.
	scheduling string
	lost       bool
	definition string
}

// agentLife is one agent process.
type agentLife struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (n *vnode) delay(rng *rand.Rand) time.Duration {
	d := n.latency/2 + time.Duration(rng.Int64N(int64(n.latency)))
	if slow := n.slow.Load(); slow > 0 {
		d += time.Duration(rng.Int64N(slow))
	}
	return d
}

// clock is what the machine believes the time is.
func (n *vnode) clock() time.Time { return time.Now().Add(n.skew) }

// boot powers the machine on. What ran before is over, and nobody saw how, unless the disk is new.
func (n *vnode) boot(wiped bool) {
	w := n.world
	w.mu.Lock()
	n.on = true
	n.boots++
	if wiped {
		n.runs = map[runtime.RunID]*vrun{}
		_ = os.Remove(filepath.Join(n.dir, "fence"))
	}
	for _, r := range n.sorted() {
		if r.status.State != runtime.StateEnded {
			r.lostStatus()
		}
	}
	w.step("%s boots, wiped %v, %d runs in its journal", n.id, wiped, len(n.runs))
	w.mu.Unlock()
	n.startAgent()
}

// startAgent begins an agent process, unless one lives or the power is off.
func (n *vnode) startAgent() {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if !n.on || n.agent != nil {
		return
	}
	n.agents++
	conn := newKeeperConn(n)
	n.conn = conn
	jitter := w.rng("jitter", n.id, n.agents)
	a, err := agent.New(agent.Options{
		Coordinator: "simulated", TLS: &tls.Config{}, Dir: n.dir, Root: n.root, Version: "sim", Runtime: conn, RunsAsCaller: true,
		Log:     slog.New(slog.DiscardHandler),
		Ask:     func(context.Context, string) (hwinfo.Answers, []hwinfo.Warning) { return nil, nil },
		Channel: dialer{n}.dial,
		Jitter:  func(limit time.Duration) time.Duration { return time.Duration(jitter.Int64N(int64(limit))) },
	})
	if err != nil {
		w.fail("%s: the agent does not start: %v", n.id, err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	life := &agentLife{cancel: cancel, done: make(chan struct{})}
	n.agent = life
	w.step("%s: agent %d starts", n.id, n.agents)
	go func() {
		defer close(life.done)
		if err := a.Run(ctx); err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.fail("%s: the agent ended: %v", n.id, err)
			w.mu.Unlock()
		}
	}()
}

// killAgent ends the agent process and waits for it. Its connection is closed by the kernel, which is heard of, or
// is gone with the machine, which is not.
func (n *vnode) killAgent(heard bool) {
	w := n.world
	w.mu.Lock()
	life, l := n.agent, n.link
	n.agent, n.link = nil, nil
	if n.conn != nil {
		n.conn.live = false
	}
	n.conn = nil
	if l != nil && !heard {
		l.vanish(w.chaos)
	}
	w.mu.Unlock()
	if life != nil {
		life.cancel()
		<-life.done
	}
}

// powerOff ends everything on the machine at once.
func (n *vnode) powerOff() {
	w := n.world
	w.mu.Lock()
	n.on = false
	w.step("%s loses its power", n.id)
	for _, r := range n.sorted() {
		r.disarm()
		if r.alive {
			w.judge.processEnded(r, "power")
			r.alive = false
		}
	}
	w.mu.Unlock()
	n.killAgent(false)
}

// partition cuts the way to the coordinator. A short one only holds messages back; a longer one costs the stream.
func (n *vnode) partition(d time.Duration) {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.step("%s is cut off for %s", n.id, d)
	if l := n.link; l != nil {
		if d < silenceMin {
			l.up.stall(d)
			l.down.stall(d)
			return
		}
		l.vanish(w.chaos)
		n.link = nil
	}
	n.partitioned = true
	w.after(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		n.partitioned = false
		w.step("%s is reachable again", n.id)
	})
}
