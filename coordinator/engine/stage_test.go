package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/store"
	"substrate/hwinfo"
)

// stage is a cluster in virtual time: the engine as it is, machines whose processes only pass the time.
//
// A job's command says what its process does: "run 10m" ends by itself after that and when it is asked to,
// "ignore 10m" does not listen to SIGTERM, "tidy 10m 20s" ends that long after SIGTERM with exit code 0.
type stage struct {
	*cluster
	t        *testing.T
	machines map[coordinator.NodeID]*machine
}

// onStage runs a play in a bubble of virtual time.
func onStage(t *testing.T, play func(*testing.T, *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, cluster: newCluster(t, store.NewMemory()), machines: map[coordinator.NodeID]*machine{}}
		s.set(plainConfig)
		play(t, s)
	})
}

// configure sets the scheduler's part of the configuration.
func (s *stage) configure(scheduler string) {
	s.t.Helper()
	s.set(plainConfig + "scheduler: {" + scheduler + "}\n")
}

// machine is a node whose processes live in virtual time.
type machine struct {
	id    coordinator.NodeID
	facts hwinfo.Facts

	mu        sync.Mutex
	session   *Session
	processes map[coordinator.RunID]*process
}

// process is one run with the times of what happened to it.
type process struct {
	order             StartRun
	status            RunStatus
	terminated, ended time.Time
	signal            int32 // that ended it
	grace             time.Duration
}

// node adds a machine with cores and, joined two by two, GPUs: 0–1, 2–3 and so on share a switch link and all are one fabric.
func (s *stage) node(id string, cores, gpus int) *machine {
	s.t.Helper()
	m := &machine{id: coordinator.NodeID(id), processes: map[coordinator.RunID]*process{}}
	memory := uint64(256 << 30)
	m.facts = hwinfo.Facts{Hostname: id}
	m.facts.CPU.Cores, m.facts.CPU.LogicalCPUs, m.facts.Memory.Total = &cores, &cores, &memory
	for i := range gpus {
		m.facts.GPUs = append(m.facts.GPUs, hwinfo.GPU{Address: fmt.Sprintf("0000:%02x:00.0", i+1), Vendor: "nvidia", Resource: "nvidia.com/gpu",
			Driver: true, Index: &i, LinksKnown: true})
	}
	for a := range gpus {
		for b := a + 1; b < gpus; b++ {
			links := 2
			if a/2 == b/2 {
				links = 12
			}
			m.facts.GPULinks = append(m.facts.GPULinks, hwinfo.GPULink{A: m.facts.GPUs[a].Address, B: m.facts.GPUs[b].Address, NVLinks: links})
		}
	}
	s.machines[m.id] = m
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.serve(ctx, s.engine) }()
	s.t.Cleanup(func() { cancel(); <-done })
	awaitNode(s.t, s.cluster, id, NodeReady)
	return m
}

func (m *machine) serve(ctx context.Context, e *Engine) {
	session, err := e.Connect(ctx, m.id, Hello{Version: "test", BootID: "boot", RunsAsCaller: true})
	if err != nil {
		return
	}
	defer session.Close()
	m.session = session
	raw, err := json.Marshal(m.facts)
	if err != nil || session.Hardware(ctx, HardwareReport{Facts: raw}) != nil {
		return
	}
	for {
		messages, err := session.Next(ctx)
		if err != nil {
			return
		}
		for _, msg := range messages {
			switch {
			case msg.Configuration != nil:
				report := ConditionReport{Revision: msg.Configuration.Revision}
				for _, d := range msg.Configuration.Definitions {
					report.Results = append(report.Results, ConditionView{Definition: d.ID, Value: "true"})
				}
				err = session.Conditions(ctx, report)
			case msg.Start != nil:
				err = m.start(ctx, *msg.Start)
			case msg.Stop != nil:
				m.stop(ctx, *msg.Stop)
			}
			if err != nil {
				return
			}
		}
	}
}

func (m *machine) start(ctx context.Context, order StartRun) error {
	m.mu.Lock()
	if m.processes[order.Run] != nil {
		m.mu.Unlock()
		return nil
	}
	p := &process{order: order, status: RunStatus{Run: order.Run, State: RunRunning, Started: time.Now()}}
	m.processes[order.Run] = p
	status := p.status
	m.mu.Unlock()
	if d := lasting(order.Job.Command, 1); d > 0 && (order.Walltime == 0 || d < order.Walltime) {
		m.later(ctx, d, order.Run, CauseExited, 0)
	} else {
		m.later(ctx, order.Walltime, order.Run, CauseWalltime, 15)
	}
	return m.session.RunStatus(ctx, []RunStatus{status})
}

func lasting(command []string, i int) time.Duration {
	if i >= len(command) {
		return 0
	}
	d, err := time.ParseDuration(command[i])
	if err != nil {
		panic(err)
	}
	return d
}

func (m *machine) stop(ctx context.Context, order StopRun) {
	m.mu.Lock()
	p := m.processes[order.Run]
	if p == nil || !p.ended.IsZero() {
		m.mu.Unlock()
		return
	}
	p.terminated, p.grace = time.Now(), order.Grace
	command := p.order.Job.Command
	m.mu.Unlock()
	switch command[0] {
	case "ignore":
		m.later(ctx, order.Grace, order.Run, CauseStopped, 9)
	case "tidy":
		m.later(ctx, min(lasting(command, 2), order.Grace), order.Run, CauseExited, 0)
	default:
		m.later(ctx, 0, order.Run, CauseStopped, 15)
	}
}

// later ends a process after a while unless something else has.
func (m *machine) later(ctx context.Context, d time.Duration, run coordinator.RunID, cause Cause, signal int32) {
	if d <= 0 {
		d = time.Nanosecond
	}
	timer := time.AfterFunc(d, func() {
		m.mu.Lock()
		p := m.processes[run]
		if !p.ended.IsZero() {
			m.mu.Unlock()
			return
		}
		p.ended, p.signal = time.Now(), signal
		p.status.State, p.status.Cause, p.status.Signal, p.status.Ended = RunEnded, cause, signal, p.ended
		status := p.status
		m.mu.Unlock()
		_ = m.session.RunStatus(ctx, []RunStatus{status}) // fails at the end of the play only
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
}

// process is what became of a job's newest attempt, or the given one.
func (s *stage) process(id coordinator.WorkflowID, job string, attempt int) *process {
	s.t.Helper()
	run := coordinator.RunID(fmt.Sprintf("%s/%s#%d", id, job, attempt))
	for _, m := range s.machines {
		m.mu.Lock()
		p := m.processes[run]
		m.mu.Unlock()
		if p != nil {
			return p
		}
	}
	s.t.Fatalf("%s was never started", run)
	return nil
}

// job submits one job; attributes are its YAML in flow style.
func (s *stage) job(who Caller, attributes string) coordinator.WorkflowID {
	s.t.Helper()
	return s.submit(who, "jobs: {j: {"+attributes+"}}")
}

// submit starts a workflow.
func (s *stage) submit(who Caller, yaml string) coordinator.WorkflowID {
	s.t.Helper()
	res, err := s.engine.StartWorkflow(s.t.Context(), who, StartWorkflow{YAML: []byte("version: v1\nname: w\n" + yaml + "\n"), File: "w.yaml"})
	if err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
	return res.Workflow.ID
}

// pass lets time go by.
func (s *stage) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// is checks the status of a workflow's first job now.
func (s *stage) is(id coordinator.WorkflowID, want coordinator.Status) JobView {
	s.t.Helper()
	v, err := s.engine.Workflow(s.t.Context(), s.admin, string(id))
	if err != nil {
		s.t.Fatal(err)
	}
	if got := v.Jobs[0].Status; got != want {
		s.t.Errorf("%s is %s, want %s (%s; %+v)", v.Jobs[0].ID, got, want, v.Jobs[0].Message, v.Jobs[0].Reason)
	}
	return v.Jobs[0]
}

// gpus is what a run was given, by number.
func (p *process) gpus() []string {
	for _, kv := range p.order.Env {
		if list, ok := strings.CutPrefix(kv, "CUDA_VISIBLE_DEVICES="); ok && list != "" {
			return strings.Split(list, ",")
		}
	}
	return nil
}
