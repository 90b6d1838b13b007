package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// cluster is an engine on the memory store with pretended agents, real in everything else.
type cluster struct {
	t      testing.TB
	engine *Engine
	logs   *logs.Logs
	stop   context.CancelFunc
	done   chan struct{}
	admin  Caller
	ahead  atomic.Int64 // how far the engine's clock is before the real one, ns
}

// newCluster starts an engine on a store; a fresh store is founded.
func newCluster(t testing.TB, st store.Store) *cluster {
	t.Helper()
	return newClusterWith(t, st, func(*Options) {})
}

func newClusterWith(t testing.TB, st store.Store, with func(*Options)) *cluster {
	t.Helper()
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, logs: out, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	opt := Options{Store: st, Logs: out, Log: slog.New(slog.DiscardHandler), Now: c.now, Rand: rand.Reader, Limits: Limits{StopGrace: time.Millisecond}}
	with(&opt)
	c.engine, err = New(ctx, opt)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	for _, u := range c.engine.state.users {
		if u.Admin {
			c.admin = Caller{Principal: auth.PrincipalOf(*u)}
		}
	}
	c.stop = cancel
	go func() {
		defer close(c.done)
		if err := c.engine.Run(ctx); err != nil {
			t.Errorf("the engine ended: %v", err)
		}
	}()
	t.Cleanup(c.close)
	return c
}

func (c *cluster) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *cluster) close() {
	c.stop()
	<-c.done
}

const plainConfig = `
definitions:
  - id: small
    provisioner: static
    provisionerSpec:
      condition: cpuinfo.cpu_cores >= 1
      costPerHour: 0.5
`

func (c *cluster) set(yaml string) SetConfigResult {
	c.t.Helper()
	res, err := c.engine.SetConfig(c.t.Context(), c.admin, SetConfig{YAML: []byte(yaml), File: "cluster.yaml"})
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

func (c *cluster) start(yaml string) WorkflowView {
	c.t.Helper()
	for {
		res, err := c.engine.StartWorkflow(c.t.Context(), c.admin, StartWorkflow{YAML: []byte(yaml), File: "w.yaml"})
		if err == nil {
			return res.Workflow
		}
		if coordinator.ErrorKindOf(err) != coordinator.ErrExhausted { // the store was full, and says so for a moment
			c.t.Fatal(err)
		}
		time.Sleep(fullPause / 10)
	}
}

// startAnyhow starts a workflow though the write may fail in between: an idempotency key makes it one.
func (c *cluster) startAnyhow(yaml string) coordinator.WorkflowID {
	c.t.Helper()
	for range 100 {
		res, err := c.engine.StartWorkflow(c.t.Context(), c.admin, StartWorkflow{YAML: []byte(yaml), File: "w.yaml", IdempotencyKey: "once"})
		if err == nil {
			return res.Workflow.ID
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.t.Fatal("the workflow does not start")
	return ""
}

// await polls until the workflow satisfies ok.
func (c *cluster) await(id coordinator.WorkflowID, what string, ok func(WorkflowView) bool) WorkflowView {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		v, err := c.engine.Workflow(c.t.Context(), c.admin, string(id))
		if err != nil {
			c.t.Fatal(err)
		}
		if ok(v) {
			return v
		}
		if time.Now().After(deadline) {
			v.Jobs = v.Jobs[:min(len(v.Jobs), 10)]
			c.t.Fatalf("workflow is not %s: %+v", what, v)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *cluster) awaitStatus(id coordinator.WorkflowID, want coordinator.Status) WorkflowView {
	c.t.Helper()
	return c.await(id, want.String(), func(v WorkflowView) bool { return v.Status == want })
}

// host is a pretended node: it survives its streams and counts how often each run was begun.
type host struct {
	id    coordinator.NodeID
	cores int
	// work gives a run's end; nil runs until stopped.
	work func(StartRun) *RunStatus

	mu    sync.Mutex
	runs  map[coordinator.RunID]*RunStatus
	begun map[coordinator.RunID]int
	more  func(*hwinfo.Facts) // adds to the report
	deaf  bool                // does not end what it is told to
	late  chan struct{}       // orders are carried out once it is closed
	up    func(*Session)      // called once it has reported
	// matches tells which definitions' conditions are true; nil: all.
	matches func(coordinator.DefinitionID) bool
}

func newHost(id string, cores int, work func(StartRun) *RunStatus) *host {
	return &host{id: coordinator.NodeID(id), cores: cores, work: work,
		runs: map[coordinator.RunID]*RunStatus{}, begun: map[coordinator.RunID]int{}}
}

func succeed(StartRun) *RunStatus { return &RunStatus{State: RunEnded, Cause: CauseExited} }

// serve connects the host and answers the engine until ctx ends.
func (h *host) serve(ctx context.Context, t testing.TB, e *Engine) {
	s, err := e.Connect(ctx, h.id, h.hello())
	if err != nil {
		return
	}
	defer s.Close()
	facts := hwinfo.Facts{Hostname: string(h.id)}
	memory := uint64(64 << 30)
	facts.CPU.Cores, facts.CPU.LogicalCPUs, facts.Memory.Total = &h.cores, &h.cores, &memory
	if h.more != nil {
		h.more(&facts)
	}
	raw, err := json.Marshal(facts)
	if err != nil {
		t.Error(err)
		return
	}
	if s.Hardware(ctx, HardwareReport{Facts: raw}) != nil {
		return
	}
	if h.up != nil {
		h.up(s)
	}
	for {
		messages, err := s.Next(ctx)
		if err != nil {
			return
		}
		if h.late != nil && slices.ContainsFunc(messages, func(m ToNode) bool { return m.Start != nil }) {
			<-h.late
		}
		var reports []RunStatus // one write for what came together, as a real agent's stream does
		for _, m := range messages {
			if m.Start != nil {
				reports = append(reports, h.begin(*m.Start)...)
			} else if err := h.handle(ctx, s, m); err != nil {
				return
			}
		}
		if len(reports) > 0 && s.RunStatus(ctx, reports) != nil {
			return
		}
	}
}

func (h *host) hello() Hello {
	h.mu.Lock()
	defer h.mu.Unlock()
	hello := Hello{Version: "test", BootID: "boot", RunsAsCaller: true}
	for _, st := range h.runs {
		hello.Runs = append(hello.Runs, *st)
	}
	return hello
}

func (h *host) handle(ctx context.Context, s *Session, m ToNode) error {
	switch {
	case m.Configuration != nil:
		report := ConditionReport{Revision: m.Configuration.Revision}
		for _, d := range m.Configuration.Definitions {
			value := "false"
			if h.matches == nil || h.matches(d.ID) {
				value = "true"
			}
			report.Results = append(report.Results, ConditionView{Definition: d.ID, Value: value})
		}
		return s.Conditions(ctx, report)
	case m.Stop != nil && h.deaf:
		return nil
	case m.Stop != nil:
		h.mu.Lock()
		st := h.runs[m.Stop.Run]
		if st == nil {
			st = &RunStatus{Run: m.Stop.Run, State: RunEnded, Cause: CauseLostStatus}
		} else if st.State != RunEnded {
			*st = RunStatus{Run: m.Stop.Run, State: RunEnded, Cause: CauseStopped, Signal: 15, Started: st.Started, Ended: time.Now()}
		}
		out := *st
		h.mu.Unlock()
		return s.RunStatus(ctx, []RunStatus{out})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, run := range m.Ended {
		delete(h.runs, run)
	}
	return nil
}

// begin starts a run once, however often it is ordered.
func (h *host) begin(m StartRun) []RunStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	if st := h.runs[m.Run]; st != nil {
		return []RunStatus{*st}
	}
	h.begun[m.Run]++
	st := &RunStatus{Run: m.Run, State: RunRunning, Started: time.Now()}
	h.runs[m.Run] = st
	out := []RunStatus{*st}
	if h.work != nil {
		if end := h.work(m); end != nil {
			*st = *end
			st.Run, st.State, st.Started, st.Ended = m.Run, RunEnded, out[0].Started, time.Now()
			out = append(out, *st)
		}
	}
	return out
}

// join lets a host serve in the background until the test ends or leave is called.
func (c *cluster) join(h *host) (leave func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			h.serve(ctx, c.t, c.engine)
			select {
			case <-ctx.Done():
			case <-c.done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	leave = func() { cancel(); <-done }
	c.t.Cleanup(leave)
	return leave
}

func (c *cluster) events(id coordinator.WorkflowID) []Event {
	c.t.Helper()
	var out []Event
	err := c.engine.Events(c.t.Context(), c.admin, string(id), 0, false, func(evs []Event) error {
		out = append(out, evs...)
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func describe(events []Event) string {
	text := ""
	for _, ev := range events {
		text += fmt.Sprintf("%d %s %s %s\n", ev.Sequence, ev.Kind, ev.Job, ev.Message)
	}
	return text
}

// crashing is a store whose coordinator dies at its nth commit: before it is applied, or after it is
// applied and before anybody has heard.
type crashing struct {
	*store.Memory
	left    atomic.Int64
	applied bool
	dead    chan struct{} // closed at the crash
}

func (c *crashing) Commit(ctx context.Context, groups []store.Group) (int64, error) {
	switch n := c.left.Add(-1); {
	case n > 0:
		return c.Memory.Commit(ctx, groups)
	case n == 0 && c.applied:
		if _, err := c.Memory.Commit(ctx, groups); err != nil {
			return 0, err
		}
		close(c.dead)
	case n == 0:
		close(c.dead)
	}
	<-ctx.Done()
	return 0, ctx.Err()
}
