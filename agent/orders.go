package agent

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"substrate/agent/runtime"
	"substrate/proto/agentv1"
)

const repeatEvery = 15 * time.Second // of ended runs' statuses that nobody acknowledged

type receiver interface {
	Recv() (*agentv1.ToAgent, error)
}

// receive carries out orders in the order they come. None waits for its outcome: that is a status.
func (a *Agent) receive(ctx context.Context, stream receiver) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("the stream ended: %w", plain(err))
		}
		if a.look != nil {
			a.look.hear(m)
			continue
		}
		switch m := m.GetMessage().(type) {
		case *agentv1.ToAgent_Configuration:
			a.node.configure(m.Configuration)
		case *agentv1.ToAgent_Start:
			err = a.start(ctx, m.Start)
		case *agentv1.ToAgent_Signal:
			err = a.signal(ctx, m.Signal)
		case *agentv1.ToAgent_Stop:
			err = a.stop(ctx, m.Stop)
		case *agentv1.ToAgent_Ack:
			err = a.ack(ctx, m.Ack)
		default: // of a newer coordinator
			a.opts.Log.Warn("unknown order", "type", fmt.Sprintf("%T", m))
		}
		if err != nil {
			return err
		}
	}
}

func (a *Agent) start(ctx context.Context, m *agentv1.StartRun) error {
	id := runtime.RunID(m.GetRunId())
	if a.table.tellAgain(id) {
		return nil
	}
	ok, err := a.fence.pass(m.GetFence())
	if err != nil {
		return err
	}
	if !ok {
		// A coordinator that lost its office still speaks. Its successor decides about this run.
		a.opts.Log.Warn("refused a start with an old fence", "run", id, "fence", m.GetFence())
		return nil
	}
	if err := runtime.CheckRunID(id); err != nil {
		a.table.update([]runtime.Status{{ID: id, State: runtime.StateEnded, Cause: runtime.CauseStartFailed, Message: err.Error(), Ended: time.Now()}})
		return nil
	}
	a.table.add(id)
	return a.opts.Runtime.Start(ctx, a.spec(m))
}

func (a *Agent) spec(m *agentv1.StartRun) runtime.Spec {
	s := runtime.Spec{
		ID: runtime.RunID(m.GetRunId()), Command: m.GetCommand(), Script: m.GetScript(), Image: m.GetImage(), Env: m.GetEnv(),
		Account: m.GetUnixUser(), Cores: m.GetCores(), Memory: runtime.Bytes(m.GetMemoryBytes()),
		CPUs:     a.node.logicalCPUs(m.GetCores(), m.GetThreads()),
		Walltime: duration(m.GetWalltime()), KillAfter: duration(m.GetKillAfter()),
		Rank: m.GetRank(), Nodes: m.GetNodes(),
	}
	for _, mount := range m.GetMounts() {
		s.Mounts = append(s.Mounts, runtime.Mount{Source: mount.GetSource(), Target: mount.GetTarget()})
	}
	return s
}

// duration is 0 for an unset one, and never negative.
func duration(d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return max(d.AsDuration(), 0)
}

func (a *Agent) signal(ctx context.Context, m *agentv1.SignalRun) error {
	var notice runtime.Notice
	if m.GetNoticeEnds() != nil {
		notice.Ends = m.GetNoticeEnds().AsTime()
	}
	return a.opts.Runtime.Signal(ctx, runtime.RunID(m.GetRunId()), syscall.Signal(m.GetSignal()), notice)
}

func (a *Agent) stop(ctx context.Context, m *agentv1.StopRun) error {
	id := runtime.RunID(m.GetRunId())
	if !a.table.knows(id) {
		a.table.update([]runtime.Status{{ID: id, State: runtime.StateEnded, Cause: runtime.CauseLostStatus, Message: "this node knows no such run", Ended: time.Now()}})
		return nil
	}
	return a.opts.Runtime.Stop(ctx, id, duration(m.GetGrace()), m.GetReason())
}

func (a *Agent) ack(ctx context.Context, m *agentv1.Ack) error {
	if done := a.table.ack(m); len(done) > 0 {
		return a.opts.Runtime.Forget(ctx, done...)
	}
	return nil
}

type sender interface {
	Send(*agentv1.FromAgent) error
}

// send is the stream's only writer. Statuses go before output, so that a verbose run delays
// nobody's end; within one run, output follows the status that tells how much there is.
func (a *Agent) send(ctx context.Context, stream sender, sent nodeReports) error {
	repeat := time.NewTicker(repeatEvery)
	defer repeat.Stop()
	for {
		reports := a.node.news(&sent)
		statuses := a.table.statuses(maxStatuses)
		chunk, wait := (*agentv1.LogChunk)(nil), time.Duration(0)
		if len(reports) == 0 && len(statuses) == 0 {
			chunk, wait = a.table.chunk(time.Now())
		}
		if chunk != nil {
			reports = append(reports, &agentv1.FromAgent{Message: &agentv1.FromAgent_LogChunk{LogChunk: chunk}})
		}
		for _, s := range statuses {
			reports = append(reports, &agentv1.FromAgent{Message: &agentv1.FromAgent_RunStatus{RunStatus: s}})
		}
		for _, m := range reports {
			if err := stream.Send(m); err != nil {
				return fmt.Errorf("cannot send: %w", err)
			}
			a.announce(m)
		}
		if len(reports) > 0 {
			continue
		}
		if err := a.pause(ctx, wait, repeat.C); err != nil {
			return err
		}
	}
}

// pause waits for anything to send; wait is when to look at growing output, 0 for never.
func (a *Agent) pause(ctx context.Context, wait time.Duration, repeat <-chan time.Time) error {
	var look <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		look = timer.C
	}
	select {
	case <-a.table.wake:
	case <-a.node.wake:
	case <-look:
	case <-repeat:
		a.table.repeat()
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (a *Agent) announce(m *agentv1.FromAgent) {
	if a.ready || m.GetHardware() == nil {
		return
	}
	a.ready = true
	if a.opts.Ready != nil {
		a.opts.Ready()
	}
}
