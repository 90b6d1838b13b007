package sim

import (
	"context"
	"fmt"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/engine"
)

// repeat does something again and again, at intervals that are drawn, until the world is calm. The first time is
// drawn, too.
func (w *world) repeat(mean time.Duration, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var again func()
	again = func() {
		w.mu.Lock()
		calm := w.calm
		w.mu.Unlock()
		if calm {
			return
		}
		do()
		w.mu.Lock()
		w.after(exponential(w.chaos, mean), again)
		w.mu.Unlock()
	}
	w.after(exponential(w.chaos, mean), again)
}

// drawn gives a duration between two.
func (w *world) drawn(least, most time.Duration) time.Duration {
	return least + time.Duration(w.chaos.Int64N(int64(most-least)))
}

func (w *world) anyNode() *vnode { return w.nodes[w.chaos.IntN(len(w.nodes))] }

// unleash lets things break.
func (w *world) unleash() {
	w.repeat(90*time.Minute, w.breakCoordinator)
	w.repeat(2*time.Hour, func() { w.mu.Lock(); w.doom = faultUnknown; w.mu.Unlock() })
	w.repeat(9*time.Hour, w.fillStore)
	w.repeat(40*time.Minute, w.cutLink)
	w.repeat(45*time.Minute, w.cutOff)
	w.repeat(50*time.Minute, w.breakAgent)
	w.repeat(3*time.Hour, w.breakNode)
	w.repeat(2*time.Hour, w.slowDown)
	w.repeat(2*time.Hour, w.closeNode)
	w.repeat(4*time.Hour, w.reserve)
	w.repeat(7*time.Hour, w.maintain)
	w.repeat(4*time.Hour, w.reconfigure)
	w.repeat(2*time.Hour, w.regroup)
	w.repeat(time.Hour, w.changeMind)
}

// breakCoordinator dooms the next write, or the process as it stands.
func (w *world) breakCoordinator() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.life == nil || !w.life.alive:
	case w.chaos.IntN(4) > 0:
		w.doom = faultCrash
	default:
		w.life.crash("between two writes")
		w.revive()
	}
}

func (w *world) fillStore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.drawn(5*time.Second, 3*time.Minute)
	w.count("full stores")
	w.step("the store is full for %s", d)
	w.fullUntil = time.Now().Add(d)
}

func (w *world) cutLink() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.anyNode()
	if n.link == nil {
		return
	}
	w.step("the connection of %s is reset", n.id)
	n.link.reset(w.chaos)
	n.link = nil
}

func (w *world) cutOff() {
	w.mu.Lock()
	n := w.anyNode()
	d := w.drawn(time.Second, 20*time.Second)
	if w.chaos.IntN(3) == 0 {
		d = w.drawn(20*time.Second, 5*time.Minute)
	}
	busy := n.partitioned || !n.on
	w.mu.Unlock()
	if !busy {
		n.partition(d)
	}
}

func (w *world) breakAgent() {
	w.mu.Lock()
	n := w.anyNode()
	back := w.drawn(100*time.Millisecond, 20*time.Second)
	if w.chaos.IntN(8) == 0 {
		back = w.drawn(time.Minute, 4*time.Minute)
	}
	if n.agent == nil {
		w.mu.Unlock()
		return
	}
	w.step("the agent of %s dies", n.id)
	w.count("agent crashes")
	l := n.link
	w.mu.Unlock()
	n.killAgent(true)
	_ = l
	w.mu.Lock()
	w.after(back, n.startAgent)
	w.mu.Unlock()
}

func (w *world) breakNode() {
	w.mu.Lock()
	n := w.anyNode()
	on, wiped, back := n.on, w.chaos.IntN(5) == 0, w.drawn(10*time.Second, 8*time.Minute)
	if on {
		w.count("power losses")
	}
	w.mu.Unlock()
	if !on {
		return
	}
	n.powerOff()
	w.mu.Lock()
	w.after(back, func() { n.boot(wiped) })
	w.mu.Unlock()
}

func (w *world) slowDown() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.anyNode()
	n.slow.Store(int64(w.drawn(200*time.Millisecond, 8*time.Second)))
	w.step("the network of %s is slow", n.id)
	w.after(w.drawn(time.Minute, 20*time.Minute), func() { n.slow.Store(0) })
}

// schedule asks for a cordon, a drain or the end of either.
func (w *world) schedule(n *vnode, action string, active bool) {
	w.mu.Lock()
	w.sequence++
	name := fmt.Sprint(action, " ", n.id, " ", w.sequence)
	w.mu.Unlock()
	w.ask(func() {
		err := w.request(w.feed.admin, name, func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
			_, err := e.SetScheduling(ctx, c, coordinator.NodeID(n.id), action, "planned", active)
			return err
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.step("%s %s, active %v: %v", action, n.id, active, err)
	})
}

func (w *world) closeNode() {
	w.mu.Lock()
	n := w.anyNode()
	action := []string{"cordon", "drain", "drain"}[w.chaos.IntN(3)]
	active := w.chaos.IntN(3) == 0
	open := w.drawn(time.Minute, 90*time.Minute)
	w.count("drains")
	w.mu.Unlock()
	w.schedule(n, action, active)
	w.mu.Lock()
	w.after(open, func() { w.schedule(n, "uncordon", false) })
	w.mu.Unlock()
}

func (w *world) reconfigure() {
	w.mu.Lock()
	s := w.feed.nextSettings()
	w.judge.knows(s)
	w.mu.Unlock()
	w.ask(func() {
		err := w.request(w.feed.admin, s.yaml, func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
			_, err := e.SetConfig(ctx, c, engine.SetConfig{YAML: []byte(s.yaml), File: "cluster.yaml"})
			return err
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count("configurations")
		w.step("a configuration is set: %v", err)
		if err != nil {
			w.fail("a good configuration is refused: %v", err)
		}
	})
}

// reserve gives a group GPUs for some hours, and has it use them. What is not there to give is refused.
func (w *world) reserve() {
	w.mu.Lock()
	p := w.feed.people[w.chaos.IntN(len(w.feed.people))]
	w.sequence++
	from := time.Now().Add(w.drawn(time.Minute, time.Hour))
	in := engine.NewReservation{
		Name: fmt.Sprint("room-", w.sequence), Organization: "default", Group: p.group, GPUs: uint32(1 + w.chaos.IntN(3)),
		Definition: []coordinator.DefinitionID{"islands", "pairs"}[w.chaos.IntN(2)],
		From:       from, Until: from.Add(w.drawn(time.Hour, 4*time.Hour)),
	}
	in.IdempotencyKey = in.Name
	w.mu.Unlock()
	w.ask(func() {
		err := w.request(w.feed.admin, in.Name, func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
			_, _, err := e.CreateReservation(ctx, c, in)
			return err
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.step("%s reserves %d GPUs of %s as %s: %v", p.name, in.GPUs, in.Definition, in.Name, err)
		if err != nil {
			return
		}
		w.count("reservations")
		for range 1 + w.feed.rng.IntN(3) {
			fl := w.feed.reserved(p, in.Name, int(in.GPUs))
			w.after(w.drawn(time.Second, time.Until(in.Until)), func() { w.ask(func() { w.feed.submit(fl) }) })
			w.after(time.Until(in.Until)+time.Minute, func() {
				if fl.answered {
					w.ask(func() { w.feed.cancel(fl, "") }) // nothing else gives it room any more
				}
			})
		}
	})
}

// maintain announces maintenance of a node at short notice.
func (w *world) maintain() {
	w.mu.Lock()
	n := w.anyNode()
	w.sequence++
	from := time.Now().Add(w.drawn(time.Minute, time.Hour))
	in := engine.NewMaintenance{Nodes: []coordinator.NodeID{coordinator.NodeID(n.id)}, From: from, Until: from.Add(w.drawn(10*time.Minute, time.Hour)),
		Message: "fans", Emergency: true, IdempotencyKey: fmt.Sprint("fans-", w.sequence)}
	w.mu.Unlock()
	w.ask(func() {
		err := w.request(w.feed.admin, in.IdempotencyKey, func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
			_, _, err := e.AnnounceMaintenance(ctx, c, in)
			return err
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count("maintenance")
		w.step("%s is maintained from %s until %s: %v", n.id, stamp(in.From.Sub(w.began)), stamp(in.Until.Sub(w.began)), err)
	})
}

// regroup changes priorities and preemption lists.
func (w *world) regroup() {
	w.mu.Lock()
	specs := groupSpecs()
	i := w.chaos.IntN(len(specs))
	up := engine.UpdateGroup{Group: specs[i].slug, Organization: "default"}
	if w.chaos.IntN(2) == 0 {
		p := int32(w.chaos.IntN(60))
		up.Priority = &p
	} else {
		other := specs[(i+1+w.chaos.IntN(len(specs)-1))%len(specs)].slug
		if w.chaos.IntN(2) == 0 {
			up.Preempt = []string{other}
		} else {
			up.NoPreempt = []string{other}
		}
	}
	w.sequence++
	name := fmt.Sprint("regroup ", w.sequence)
	w.mu.Unlock()
	w.ask(func() {
		err := w.request(w.feed.admin, name, func(ctx context.Context, e *engine.Engine, c engine.Caller) error {
			_, err := e.UpdateGroup(ctx, c, up)
			return err
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.step("group %s changes: %v", up.Group, err)
	})
}

// changeMind cancels one of the workflows that were answered lately.
func (w *world) changeMind() {
	w.mu.Lock()
	defer w.mu.Unlock()
	flows := w.feed.flows
	if len(flows) == 0 {
		return
	}
	fl := flows[len(flows)-1-w.chaos.IntN(min(len(flows), 10))]
	if fl.answered {
		w.ask(func() { w.feed.cancel(fl, "") })
	}
}

// heal ends everything that is broken: from now on all that can end must end.
func (w *world) heal() {
	w.mu.Lock()
	w.calm = true
	w.doom, w.fullUntil = faultNone, time.Time{}
	w.step("the world is calm")
	w.mu.Unlock()
	for _, n := range w.nodes {
		n.slow.Store(0)
		w.schedule(n, "uncordon", false)
	}
}
