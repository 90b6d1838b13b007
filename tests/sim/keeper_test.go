package sim

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"substrate/agent/runtime"
)

// vrun is a run as the keeper's journal has it, with its process. world.mu guards it.
type vrun struct {
	node   *vnode
	spec   runtime.Spec
	status runtime.Status
	rng    *rand.Rand

	alive    bool
	began    time.Time
	gpus     []string
	cause    runtime.Cause // of an end that was asked for; the first stays
	reason   string
	killAt   time.Time
	killFor  string // the reason of the earliest kill
	termAt   time.Time
	noticeAt time.Time // SIGTERM of a preemption
	wasLost  bool      // the node was given up while it ran
	stuck    time.Duration
	timers   []*time.Timer
	exit     *time.Timer
	kill     *time.Timer
}

// work is what a command of the simulation asks of its process.
type work struct {
	lasts time.Duration
	code  int
	term  string // "" exits soon after SIGTERM, "deaf" ignores it, "stuck" outlives even SIGKILL for a while
}

func parseWork(command []string) work {
	wk := work{lasts: time.Minute}
	if len(command) > 1 {
		if s, err := strconv.Atoi(command[1]); err == nil {
			wk.lasts = time.Duration(s) * time.Second
		}
	}
	if len(command) > 2 {
		wk.code, _ = strconv.Atoi(command[2])
	}
	if len(command) > 3 {
		wk.term = command[3]
	}
	return wk
}

// keeperConn is the keeper as one agent process sees it.
type keeperConn struct {
	node  *vnode
	live  bool
	told  bool // the first answer is out
	dirty map[runtime.RunID]runtime.Status
	wake  chan struct{}
}

var _ runtime.Runtime = (*keeperConn)(nil)

func newKeeperConn(n *vnode) *keeperConn {
	return &keeperConn{node: n, live: true, dirty: map[runtime.RunID]runtime.Status{}, wake: make(chan struct{}, 1)}
}

func (n *vnode) sorted() []*vrun {
	out := make([]*vrun, 0, len(n.runs))
	for _, r := range n.runs {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *vrun) int { return cmp.Compare(a.spec.ID, b.spec.ID) })
	return out
}

func (c *keeperConn) tell(s runtime.Status) {
	c.dirty[s.ID] = s
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (n *vnode) tell(s runtime.Status) {
	if n.conn != nil {
		n.conn.tell(s)
	}
}

// lock is for requests: those of a dead agent reach nobody.
func (c *keeperConn) lock() (unlock func(), ok bool) {
	c.node.world.mu.Lock()
	return c.node.world.mu.Unlock, c.live && c.node.on
}

func (c *keeperConn) Start(_ context.Context, spec runtime.Spec) error {
	unlock, ok := c.lock()
	defer unlock()
	n := c.node
	switch r := n.runs[spec.ID]; {
	case !ok:
	case r != nil:
		c.tell(r.status)
	default:
		r = &vrun{node: n, spec: spec, rng: n.world.rng("process", spec.ID, n.id),
			status: runtime.Status{ID: spec.ID, State: runtime.StateStarting}}
		n.runs[spec.ID] = r
		n.world.judge.ordered(r)
		r.in(time.Duration(1+r.rng.IntN(200))*time.Millisecond, r.begin)
	}
	return nil
}

func (c *keeperConn) Signal(context.Context, runtime.RunID, syscall.Signal, runtime.Notice) error {
	return nil
}

func (c *keeperConn) Stop(_ context.Context, id runtime.RunID, grace time.Duration, reason string) error {
	unlock, ok := c.lock()
	defer unlock()
	switch r := c.node.runs[id]; {
	case !ok:
	case r == nil:
		c.tell(runtime.Status{ID: id, State: runtime.StateEnded, Cause: runtime.CauseLostStatus, Message: "this node knows no such run"})
	case r.status.State == runtime.StateEnded:
		c.tell(r.status)
	default:
		r.stop(runtime.CauseStopped, reason, grace)
	}
	return nil
}

func (c *keeperConn) Forget(_ context.Context, ids ...runtime.RunID) error {
	unlock, ok := c.lock()
	defer unlock()
	for _, id := range ids {
		if r := c.node.runs[id]; ok && r != nil && r.status.State == runtime.StateEnded {
			delete(c.node.runs, id)
		}
	}
	return nil
}

func (c *keeperConn) Updates(ctx context.Context) ([]runtime.Status, error) {
	for {
		c.node.world.mu.Lock()
		var out []runtime.Status
		if !c.told {
			for _, r := range c.node.sorted() {
				out = append(out, r.status)
			}
		} else {
			for _, s := range c.dirty {
				out = append(out, s)
			}
			slices.SortFunc(out, func(a, b runtime.Status) int { return cmp.Compare(a.ID, b.ID) })
		}
		first := !c.told
		c.told = true
		clear(c.dirty)
		c.node.world.mu.Unlock()
		if first || len(out) > 0 {
			return out, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// in runs f later, with the lock, unless the power goes first.
func (r *vrun) in(d time.Duration, f func()) *time.Timer {
	boots := r.node.boots
	t := time.AfterFunc(d, func() {
		w := r.node.world
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.node.on && r.node.boots == boots && r.status.State != runtime.StateEnded {
			f()
		}
	})
	r.timers = append(r.timers, t)
	return t
}

func (r *vrun) disarm() {
	for _, t := range r.timers {
		t.Stop()
	}
	r.timers = nil
}

// begin makes the process.
func (r *vrun) begin() {
	if r.cause != "" {
		r.end(r.cause, 0, 0, r.reason+"; it had not started")
		return
	}
	wk := parseWork(r.spec.Command)
	if wk.term == "absent" {
		r.end(runtime.CauseStartFailed, 0, 0, "no such program")
		return
	}
	r.alive, r.began = true, time.Now()
	for _, kv := range r.spec.Env {
		if list, ok := strings.CutPrefix(kv, "SUBSTRATE_GPUS="); ok {
			r.gpus = strings.Split(list, ",")
		}
	}
	r.status.State, r.status.Started = runtime.StateRunning, r.node.clock()
	r.node.world.judge.processBegan(r)
	r.node.tell(r.status)
	lasts := wk.lasts + time.Duration(r.rng.Int64N(int64(time.Second)))
	r.exit = r.in(lasts, func() { r.end(runtime.CauseExited, wk.code, 0, "") })
	if r.spec.Walltime > 0 {
		r.in(r.spec.Walltime, func() { r.stop(runtime.CauseWalltime, "the walltime is over", max(r.spec.KillAfter, time.Second)) })
	}
}

// stop is SIGTERM now and SIGKILL after the grace: the first reason stays, the earliest kill wins.
func (r *vrun) stop(cause runtime.Cause, reason string, grace time.Duration) {
	if r.cause == "" {
		r.cause, r.reason = cause, reason
	}
	at := time.Now().Add(grace)
	if r.killAt.IsZero() || at.Before(r.killAt) {
		if r.kill != nil {
			r.kill.Stop()
		}
		r.killAt, r.killFor = at, reason
		r.kill = r.in(grace, r.killed)
	}
	if !r.alive {
		return
	}
	r.node.world.judge.asked(r, reason, grace)
	if grace <= 0 || !r.termAt.IsZero() {
		return
	}
	r.termAt = time.Now()
	wk := parseWork(r.spec.Command)
	if wk.term == "" {
		soon := time.Duration(r.rng.Int64N(int64(15 * time.Second)))
		code := 143 * r.rng.IntN(2)
		r.in(soon, func() { r.end(runtime.CauseExited, code, 0, "") })
	}
}

// killed is SIGKILL. What hangs in the kernel ends later.
func (r *vrun) killed() {
	if !r.alive {
		return // begin will see that it was stopped
	}
	r.node.world.judge.killed(r)
	if parseWork(r.spec.Command).term == "stuck" && r.stuck == 0 {
		r.exit.Stop()
		r.stuck = time.Second + time.Duration(r.rng.Int64N(int64(2*time.Minute)))
		r.in(r.stuck, func() { r.end(runtime.CauseSignalled, 0, int32(syscall.SIGKILL), "") })
		return
	}
	r.end(runtime.CauseSignalled, 0, int32(syscall.SIGKILL), "")
}

// end notes how the run ended and tells it.
func (r *vrun) end(cause runtime.Cause, code int, signal int32, message string) {
	r.disarm()
	if r.alive {
		r.node.world.judge.processEnded(r, string(cause))
		r.alive = false
	}
	s := &r.status
	s.State, s.Ended, s.Message = runtime.StateEnded, r.node.clock(), message
	if r.cause != "" && message == "" {
		s.Cause, s.Message = r.cause, r.reason
	} else {
		s.Cause, s.ExitCode, s.Signal = cause, int32(code), signal
	}
	r.node.world.judge.recorded(r)
	r.node.tell(*s)
}

// lostStatus is what a keeper says after a boot of what ran before.
func (r *vrun) lostStatus() {
	r.disarm()
	s := &r.status
	s.State, s.Cause, s.Ended = runtime.StateEnded, runtime.CauseLostStatus, r.node.clock()
	s.Message = "the run is over; its keeper died before it, so nobody saw how it ended"
	r.node.world.judge.recorded(r)
}
