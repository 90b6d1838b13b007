package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/auth"
	"substrate/coordinator/logs"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// counted gives ids that count up, whatever else chance is used for in between.
type counted struct {
	ids   uint64
	other *rand.ChaCha8
}

func (c *counted) Read(p []byte) (int, error) {
	if len(p) != 16 {
		return c.other.Read(p)
	}
	clear(p)
	c.ids++
	binary.BigEndian.PutUint64(p[8:], c.ids)
	return len(p), nil
}

// played is an engine whose clock stands still between the steps of a story.
type played struct {
	t      *testing.T
	engine *Engine
	store  *store.Memory
	now    time.Time
	admin  Caller
	nodes  map[coordinator.NodeID]*Session
	inline bool
	log    strings.Builder
}

func play(t *testing.T, inline bool) *played {
	t.Helper()
	out, err := logs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &played{t: t, store: store.NewMemory(), now: time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC), nodes: map[coordinator.NodeID]*Session{}, inline: inline}
	start := p.now
	var c cluster
	c.ahead.Store(0)
	p.engine, err = New(t.Context(), Options{Store: p.store, Logs: out, Log: slog.New(slog.DiscardHandler), Inline: inline,
		Now:  func() time.Time { return start.Add(time.Duration(c.ahead.Load())) },
		Rand: &counted{other: rand.NewChaCha8([32]byte{1})}})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range p.engine.state.users {
		if u.Admin {
			p.admin = Caller{Principal: auth.PrincipalOf(*u)}
		}
	}
	if !inline {
		c.done = make(chan struct{})
		go func() {
			defer close(c.done)
			if err := p.engine.Run(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() { <-c.done })
	}
	p.story(func(d time.Duration) { c.ahead.Add(int64(d)); p.now = p.now.Add(d) })
	return p
}

func (p *played) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	p.decide()
}

// decide has the engine take a turn.
func (p *played) decide() {
	p.t.Helper()
	if p.inline {
		if err := p.engine.Step(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	} else if _, err := p.engine.Status(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *played) join(id coordinator.NodeID, cores int) {
	p.t.Helper()
	s, err := p.engine.Connect(p.t.Context(), id, Hello{BootID: "b"})
	p.must(err)
	facts := hwinfo.Facts{Hostname: string(id)}
	memory := uint64(64 << 30)
	facts.CPU.Cores, facts.CPU.LogicalCPUs, facts.Memory.Total = &cores, &cores, &memory
	raw, err := json.Marshal(facts)
	p.must(err)
	p.must(s.Hardware(p.t.Context(), HardwareReport{Facts: raw}))
	p.nodes[id] = s
	p.answer()
}

// answer has the nodes do at once what they are told.
func (p *played) answer() {
	p.t.Helper()
	for again := true; again; {
		again = false
		ids := []coordinator.NodeID{}
		for id := range p.nodes {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			for _, m := range p.nodes[id].Take() {
				again = true
				switch {
				case m.Configuration != nil:
					r := ConditionReport{Revision: m.Configuration.Revision}
					for _, d := range m.Configuration.Definitions {
						r.Results = append(r.Results, ConditionView{Definition: d.ID, Value: "true"})
					}
					p.must(p.nodes[id].Conditions(p.t.Context(), r))
				case m.Start != nil:
					p.log.WriteString(fmt.Sprintf("%s start %s\n", id, m.Start.Job.Name))
					p.must(p.nodes[id].RunStatus(p.t.Context(), []RunStatus{{Run: m.Start.Run, State: RunRunning, Started: p.now}}))
				case m.Stop != nil:
					p.log.WriteString(fmt.Sprintf("%s stop %s\n", id, m.Stop.Reason))
					p.must(p.nodes[id].RunStatus(p.t.Context(), []RunStatus{{Run: m.Stop.Run, State: RunEnded, Cause: CauseStopped, Signal: 15, Ended: p.now}}))
				}
			}
		}
	}
}

func (p *played) start(yaml string) coordinator.WorkflowID {
	p.t.Helper()
	res, err := p.engine.StartWorkflow(p.t.Context(), p.admin, StartWorkflow{YAML: []byte(yaml), File: "w.yaml"})
	p.must(err)
	p.answer()
	return res.Workflow.ID
}

func (p *played) story(advance func(time.Duration)) {
	p.t.Helper()
	_, err := p.engine.SetConfig(p.t.Context(), p.admin, SetConfig{YAML: []byte(plainConfig + "scheduler: {backfill: easy, minPreemptionRuntime: 5m}\n"), File: "c.yaml"})
	p.must(err)
	p.join("n1", 2)
	p.join("n2", 2)
	work := func(name, class string, cores, nodes int) coordinator.WorkflowID {
		return p.start(fmt.Sprintf("version: v1\nname: %s\njobs:\n  %[1]s: {command: [x], class: %[2]s, retry-on-preempt: true, resource: {cpu: {cores: %[3]d}}, multinode: {nodes: %[4]d}, policy: {timeout: {execute: 1h}}}\n",
			name, class, cores, nodes))
	}
	filler := work("filler", "batch", 2, 1)
	first := work("first", "on-demand", 2, 1)
	advance(time.Minute)
	work("wide", "on-demand", 2, 2) // waits: batch is protected, and the other runs
	work("small", "on-demand", 1, 1)
	advance(5 * time.Minute) // the protection is over by time alone
	p.decide()
	p.answer()
	v, err := p.engine.Workflow(p.t.Context(), p.admin, string(first))
	p.must(err)
	job := v.Jobs[0]
	p.must(p.nodes[job.Nodes[0]].RunStatus(p.t.Context(), []RunStatus{{Run: job.ID.Run(job.Attempt), State: RunEnded, Cause: CauseExited, Ended: p.now}}))
	p.answer()
	advance(30 * time.Second)
	p.decide()
	p.answer()
	p.nodes["n2"].Close()
	delete(p.nodes, "n2")
	advance(2 * time.Minute) // beyond the loss window
	p.decide()
	p.answer()
	_, err = p.engine.CancelWorkflow(p.t.Context(), p.admin, string(filler), "")
	p.must(err)
	p.answer()
}

// records are what the store holds of work.
func (p *played) records() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	for _, prefix := range []string{prefixWorkflow, prefixAlloc, prefixEvent, prefixHold, prefixNode} {
		if err := walk(p.t.Context(), p.store, prefix, 100, func(e store.Entry) error {
			if prefix == prefixEvent { // which turn they were written by is not compared, nor how turns group them
				var events []Event
				if err := json.Unmarshal(e.Value, &events); err != nil {
					return err
				}
				for _, ev := range events {
					data, _ := json.Marshal(ev)
					out[fmt.Sprintf("event %08d", ev.Sequence)] = string(data)
				}
				return nil
			}
			out[e.Key] = string(e.Value)
			return nil
		}); err != nil {
			p.t.Fatal(err)
		}
	}
	return out
}

// TestInlineIsRun plays the same story through the loop and inline: the same records, the same orders to nodes.
func TestInlineIsRun(t *testing.T) {
	loop, inline := play(t, false), play(t, true)
	a, b := loop.records(), inline.records()
	for key, want := range a {
		if b[key] != want {
			t.Errorf("%s:\n  loop   %s\n  inline %s", key, want, b[key])
		}
	}
	if len(a) != len(b) || len(a) < 20 {
		t.Errorf("the loop left %d records, inline %d", len(a), len(b))
	}
	if loop.log.String() != inline.log.String() || !strings.Contains(loop.log.String(), "stop preempted") {
		t.Errorf("orders differ or nobody was preempted:\nloop:\n%s\ninline:\n%s", &loop.log, &inline.log)
	}
}

// TestTogether: what two nodes report in one turn is what they report in two, with fewer writes.
func TestTogether(t *testing.T) {
	p := play(t, true)
	p.join("n2", 2)
	commits := p.store.Commits()
	id := p.start("version: v1\nname: wide\njobs:\n  x: {command: [x], resource: {cpu: {cores: 1}}, multinode: {nodes: 2}}\n")
	apart := p.store.Commits() - commits
	v, err := p.engine.Workflow(t.Context(), p.admin, string(id))
	p.must(err)
	if v.Status != coordinator.StatusRunning {
		t.Fatalf("the workflow is %s", v.Status)
	}
	commits = p.store.Commits()
	p.must(p.engine.Together(t.Context(), func() error {
		for _, node := range v.Jobs[0].Nodes {
			end := RunStatus{Run: v.Jobs[0].ID.Run(1), State: RunEnded, Cause: CauseExited, Ended: p.now}
			if err := p.nodes[node].RunStatus(t.Context(), []RunStatus{end}); err != nil {
				return err
			}
		}
		return nil
	}))
	if n := p.store.Commits() - commits; n != 1 || apart < 3 {
		t.Errorf("%d writes for both ends, %d before", n, apart)
	}
	if v, err = p.engine.Workflow(t.Context(), p.admin, string(id)); err != nil || v.Status != coordinator.StatusFinished {
		t.Errorf("the workflow is %s, %v", v.Status, err)
	}
	p.nodes["n1"].Close()
	refused := p.engine.Together(t.Context(), func() error { return p.nodes["n1"].RunStatus(t.Context(), nil) })
	if refused == nil {
		t.Error("a report of a stream that is over was taken")
	}
}

// TestDue tells a caller that owns the clock when to come back.
func TestDue(t *testing.T) {
	p := play(t, true)
	p.decide()
	if due := p.engine.Due(); due.Before(p.now.Add(time.Second)) {
		t.Errorf("due at %s, it is %s", due, p.now)
	}
	p.start("version: v1\nname: w\njobs:\n  x: {command: [x], resource: {cpu: {cores: 2}}, multinode: {nodes: 2}}\n")
	if due := p.engine.Due(); !due.Equal(p.now.Add(time.Second)) {
		t.Errorf("with work that waits the next look is due at %s, it is %s", due, p.now)
	}
}
