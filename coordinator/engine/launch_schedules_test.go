package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/provision"
	"substrate/coordinator/spec"
	"substrate/coordinator/store"
	"substrate/tests/fakecloud"
)

const cloudConfig = `
definitions:
  - {id: spot, provisioner: aws, ttl: 24000, idleTimeout: 60s, maxNodes: 3, provisionerSpec: {instanceType: c5.large, spot: true, imageId: ami-1, costPerHour: 0.03}}
  - {id: demand, provisioner: aws, ttl: 24000, idleTimeout: 60s, maxNodes: 3, provisionerSpec: {instanceType: c5.large, imageId: ami-1, costPerHour: 0.085}}
`

const cloudJob = `
version: v1
name: w
jobs:
  a: {command: ["true"], resource: {cpu: {cores: 1}}, policy: {timeout: {execute: 10m}}}
`

// death is when a coordinator dies, as seen from the call that it had begun.
type death uint8

const (
	never  death = iota
	before       // the provider never hears of the call
	late         // the provider hears of it when the next coordinator is up
	after        // it is carried out, and the answer goes nowhere
	write        // between two writes to the store, or with one whose outcome nobody heard
	deaths
)

// unruly is a cloud whose caller dies.
type unruly struct {
	*fakecloud.Direct
	agents *provider
	comes  func() bool // an instance's agent
	late   *sync.WaitGroup
	when   death
	left   atomic.Int64 // calls until then
	kill   func()
}

// call carries one out. What it does may happen after the caller has gone.
func (u *unruly) call(do func() error) error {
	if u.when == never || u.when == write || u.left.Add(-1) != 0 {
		return do()
	}
	switch u.when {
	case late:
		u.late.Go(func() { time.Sleep(30 * time.Millisecond); _ = do() })
	case after:
		_ = do()
	}
	u.kill()
	return context.Canceled
}

func (u *unruly) Launch(ctx context.Context, r provision.Request) (out provision.Instance, err error) {
	r.Lifetime = 0 // as at clouds that end nothing by themselves: or they would clean up what is forgotten
	made := make(chan provision.Instance, 1)
	err = u.call(func() error {
		inst, err := u.Direct.Launch(context.WithoutCancel(ctx), r)
		if err == nil {
			u.boot(inst, r)
		}
		made <- inst
		return err
	})
	select {
	case out = <-made:
	default:
	}
	return out, err
}

func (u *unruly) boot(inst provision.Instance, r provision.Request) {
	u.agents.mu.Lock()
	defer u.agents.mu.Unlock()
	if u.agents.leave[inst.Handle] == nil && u.comes() {
		u.agents.boot(&inst, r)
	}
}

func (u *unruly) Release(ctx context.Context, h provision.Handle) error {
	return u.call(func() error {
		err := u.Direct.Release(context.WithoutCancel(ctx), h)
		if err == nil {
			u.agents.quit(h)
		}
		return err
	})
}

func (u *unruly) List(ctx context.Context) (out []provision.Instance, err error) {
	if u.when == late { // a list that nobody waits for changes nothing
		return u.Direct.List(ctx)
	}
	err = u.call(func() error { out, err = u.Direct.List(ctx); return err })
	return out, err
}

// quit ends an instance's agent.
func (p *provider) quit(h provision.Handle) {
	p.mu.Lock()
	leave := p.leave[h]
	if leave != nil {
		p.leave[h] = func() {}
	}
	p.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// schedule is a cloud, a store and a clock that outlive coordinators.
type schedule struct {
	*testing.T
	rand   *rand.Rand
	mu     sync.Mutex // rand is asked from calls too
	ahead  atomic.Int64
	cloud  *fakecloud.Cloud
	agents *provider
	store  *store.Memory
	late   sync.WaitGroup
	looked int // instances that were launched for a look
}

func (s *schedule) chance(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}

func (s *schedule) now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// life runs a coordinator until it dies, or for some steps. The last one has no mishaps and ends when nothing is left.
func (s *schedule) life(when death, last bool) {
	st := &crashing{Memory: s.store, applied: s.chance(2) == 0, dead: make(chan struct{})}
	st.left.Store(1 << 40)
	u := &unruly{Direct: &fakecloud.Direct{Cloud: s.cloud, Cluster: "c"}, agents: s.agents, late: &s.late, when: when, comes: func() bool { return s.chance(3) > 0 }}
	stop := make(chan struct{})
	u.kill = sync.OnceFunc(func() { close(stop) })
	u.left.Store(int64(1 + s.chance(6)))
	c := newClusterWith(s.T, st, func(o *Options) {
		o.Now = s.now
		o.Provisioners = Provisioners{Kinds: []string{spec.KindAWS}, AgentAddress: func() string { return "coordinator:8443" },
			Open: func(context.Context, spec.Backend, bool) (provision.Provisioner, error) { return u, nil }}
	})
	if when == write {
		st.left.Store(int64(1 + s.chance(25)))
	}
	s.agents.mu.Lock()
	s.agents.c = c
	s.agents.mu.Unlock()
	defer c.close()
	go func() {
		select {
		case <-st.dead:
		case <-stop:
		case <-c.done:
		}
		c.stop()
	}()
	if last {
		s.finish(c)
		return
	}
	ctx := s.Context()
	_, _ = c.engine.SetConfig(ctx, c.admin, SetConfig{YAML: []byte(cloudConfig), File: "cluster.yaml"})
	switch s.chance(4) { // once a node has reported there is nothing to look at
	case 0:
		_ = c.engine.ResetHardware(ctx, c.admin, "demand")
		_, _ = c.engine.Discover(ctx, c.admin, nil)
	case 1:
		_, _ = c.engine.Discover(ctx, c.admin, nil)
		fallthrough
	default:
		_, _ = c.engine.StartWorkflow(ctx, c.admin, StartWorkflow{YAML: []byte(cloudJob), File: "w.yaml", IdempotencyKey: fmt.Sprint(s.chance(3))})
	}
	for step := range 200 {
		select {
		case <-c.done:
			return
		case <-time.After(10 * time.Millisecond):
		}
		if step < 20 || s.chance(4) > 0 { // a backend is noticed within a second of the real clock
			s.ahead.Add(int64(s.chance(3000)) * int64(time.Millisecond))
		} else {
			s.ahead.Add(int64(s.chance(120)) * int64(time.Second))
		}
		if s.chance(15) == 0 {
			s.takeBack()
		}
		c.engine.provisioners.wake()
		s.once()
		if step%8 == 0 {
			s.alone(c)
		}
	}
}

// takeBack has the cloud end an instance.
func (s *schedule) takeBack() {
	list := s.cloud.List()
	if len(list) == 0 {
		return
	}
	id := list[s.chance(len(list))].ID
	s.cloud.Reclaim(id)
	s.agents.quit(provision.Handle(id))
}

// alone checks that no type is looked at by two instances at a time.
func (s *schedule) alone(c *cluster) {
	looks := map[string]int{}
	_ = c.engine.view(s.Context(), func(st *state) {
		for _, l := range st.launches {
			if l.record.Discovery {
				looks[keyID(l.record.Type)]++
			}
		}
	})
	for key, n := range looks {
		if n > 1 {
			s.Errorf("%d discoveries of %s at a time", n, key)
		}
	}
}

// once checks that no launch was ever made twice.
func (s *schedule) once() {
	made := map[string]int{}
	for _, i := range s.cloud.List() {
		made[i.Tags["substrate-launch"]]++
	}
	for id, n := range made {
		if n != 1 {
			s.Errorf("launch %s has %d instances", id, n)
		}
	}
}

// finish takes the work back and waits until nothing is left: at the provider, in the store, in memory.
func (s *schedule) finish(c *cluster) {
	s.late.Wait()
	for _, op := range []fakecloud.Op{fakecloud.OpLaunch, fakecloud.OpRelease, fakecloud.OpList, fakecloud.OpTypes} {
		for s.cloud.Call(op) != (fakecloud.Fault{}) {
		}
	}
	list, _, err := c.engine.Workflows(s.Context(), c.admin, "", Page{})
	if err != nil {
		s.Fatal(err)
	}
	for _, w := range list {
		if _, err := c.engine.CancelWorkflow(s.Context(), c.admin, string(w.ID), ""); err != nil && coordinator.ErrorKindOf(err) != coordinator.ErrConflict {
			s.Logf("cancel: %v", err)
		}
	}
	left := ""
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		if err := c.engine.view(s.Context(), func(st *state) {
			left = fmt.Sprintf("%d instances, %d launches, %d join tokens, %d nodes, %d discoveries", s.cloud.Live(), len(st.launches), len(st.joinTokens), len(st.nodes),
				len(st.discoveries))
		}); err != nil {
			s.Fatal(err)
		}
		s.looked = c.kinds()["discovery-started"]
		if left == "0 instances, 0 launches, 0 join tokens, 0 nodes, 0 discoveries" {
			s.once()
			return
		}
		s.ahead.Add(int64(20 * time.Second))
		c.engine.provisioners.wake()
		time.Sleep(10 * time.Millisecond)
	}
	s.Errorf("left after the last coordinator's lists: %s\n%s", left, describe(c.events("")))
}

// playSchedule is one schedule: some coordinators one after the other, each with its own death, on a cloud with its own mishaps.
// It gives the number of instances that it made, and how many discoveries began.
func playSchedule(t *testing.T, seed, n uint64) (made, looked int) {
	s := &schedule{T: t, rand: rand.New(rand.NewPCG(seed, n)), store: store.NewMemory(), agents: newProvider(t)}
	s.cloud = fakecloud.New(fakecloud.Options{Types: []fakecloud.Type{{Name: "c5.large", VCPUs: 2, Cores: 1, Memory: 4096, Arch: "amd64", Spot: true}},
		Now: s.now, Boots: time.Duration(s.chance(60)) * time.Second, Ends: time.Duration(s.chance(90)) * time.Second, Appears: time.Duration(s.chance(25)) * time.Second})
	causes := []fakecloud.Cause{fakecloud.NoCapacity, fakecloud.Quota, fakecloud.Throttled, fakecloud.Denied, fakecloud.Broken, 0, 0, 0, 0, 0}
	for _, op := range []fakecloud.Op{fakecloud.OpLaunch, fakecloud.OpRelease, fakecloud.OpList, fakecloud.OpTypes} {
		for range s.chance(8) {
			f := fakecloud.Fault{Refuse: causes[s.chance(len(causes))]}
			f.Lost = f.Refuse == 0 && s.chance(5) > 0
			s.cloud.Fail(op, f)
		}
	}
	defer func() {
		s.agents.mu.Lock()
		leave := s.agents.leave
		s.agents.leave = map[provision.Handle]func(){}
		s.agents.mu.Unlock()
		for _, l := range leave {
			l()
		}
	}()
	for range 1 + s.chance(3) {
		s.life(death(s.chance(int(deaths))), false)
	}
	s.life(never, true)
	return s.cloud.Made(), s.looked
}

// TestLaunchesOnAnySchedule: whatever the instants at which coordinators die and whatever the cloud refuses, loses and takes back, a launch has one instance
// at most, and in the end nothing runs that nobody knows of. RAPID_CHECKS is how many schedules, RAPID_SEED which.
func TestLaunchesOnAnySchedule(t *testing.T) {
	t.Parallel()
	number := func(name string, otherwise uint64) uint64 {
		if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	count, seed := number("RAPID_CHECKS", 60), number("RAPID_SEED", 1)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%d schedules of seed %d", count, seed)
	var all sync.WaitGroup
	var made, looked atomic.Int64
	places := make(chan struct{}, 24) // each waits most of its time
	for n := range count {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				m, l := playSchedule(t, seed, n)
				made.Add(int64(m))
				looked.Add(int64(l))
			})
		})
	}
	all.Wait()
	t.Logf("%d instances were launched, %d discoveries began", made.Load(), looked.Load())
	if made.Load() < int64(count)/2 || looked.Load() < int64(count)/8 {
		t.Errorf("%d schedules launched %d instances and %d discoveries only: they show nothing", count, made.Load(), looked.Load())
	}
}
