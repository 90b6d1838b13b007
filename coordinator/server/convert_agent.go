package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/agentv1"
)

func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil || t.CheckValid() != nil {
		return time.Time{}
	}
	return t.AsTime()
}

func helloFromProto(h *agentv1.Hello) engine.Hello {
	return engine.Hello{
		Version: h.GetVersion(), BootID: h.GetBootId(), Revision: coordinator.Revision(h.GetConfigurationRevision()),
		Runs: each(h.GetRuns(), runStatusFromProto), RunsAsCaller: h.GetRunsAsCaller(), Runtimes: h.GetRuntimes(),
	}
}

func runStatusFromProto(r *agentv1.RunStatus) engine.RunStatus {
	return engine.RunStatus{
		Run: coordinator.RunID(r.GetRunId()), State: engine.RunState(r.GetState()), Cause: engine.Cause(r.GetCause()),
		ExitCode: r.GetExitCode(), Signal: r.GetSignal(), Message: r.GetMessage(),
		Started: moment(r.GetStarted()), Ended: moment(r.GetEnded()),
		StdoutBytes: r.GetStdoutBytes(), StderrBytes: r.GetStderrBytes(),
	}
}

func hardwareFromProto(h *agentv1.HardwareReport) engine.HardwareReport {
	return engine.HardwareReport{
		Digest: h.GetDigest(), Facts: h.GetFactsJson(),
		Warnings: each(h.GetWarnings(), func(w *agentv1.Warning) engine.NodeWarning {
			return engine.NodeWarning{Source: w.GetSource(), Message: w.GetMessage()}
		}),
	}
}

func conditionsFromProto(c *agentv1.ConditionResults) engine.ConditionReport {
	return engine.ConditionReport{
		Revision: coordinator.Revision(c.GetRevision()),
		Results: each(c.GetResults(), func(r *agentv1.ConditionResult) engine.ConditionView {
			return engine.ConditionView{
				Definition: coordinator.DefinitionID(r.GetDefinition()), Value: r.GetValue(), Error: r.GetError(),
				Parts: each(r.GetParts(), func(p *agentv1.ConditionPart) engine.ConditionPart {
					return engine.ConditionPart{Source: p.GetSource(), Value: p.GetValue(), Seen: p.GetSeen()}
				}),
			}
		}),
	}
}

func offsetToProto(o engine.LogOffset) *agentv1.LogOffset {
	return &agentv1.LogOffset{RunId: string(o.Run), Stream: o.Stream, Offset: o.Offset}
}

// orderToProto is nil for an empty order.
func orderToProto(m engine.ToNode) *agentv1.ToAgent {
	switch {
	case m.Configuration != nil:
		c := &agentv1.Configuration{Revision: uint64(m.Configuration.Revision)}
		c.Definitions = each(m.Configuration.Definitions, func(d engine.NodeDefinition) *agentv1.StaticDefinition {
			return &agentv1.StaticDefinition{Id: string(d.ID), Condition: d.Condition}
		})
		return &agentv1.ToAgent{Message: &agentv1.ToAgent_Configuration{Configuration: c}}
	case m.Start != nil:
		return &agentv1.ToAgent{Message: &agentv1.ToAgent_Start{Start: startToProto(m.Start)}}
	case m.Stop != nil:
		return &agentv1.ToAgent{Message: &agentv1.ToAgent_Stop{Stop: &agentv1.StopRun{
			RunId: string(m.Stop.Run), Grace: durationpb.New(m.Stop.Grace), Reason: m.Stop.Reason,
		}}}
	case len(m.Ended) > 0:
		return &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{EndedRuns: texts(m.Ended)}}}
	}
	return nil
}

func startToProto(s *engine.StartRun) *agentv1.StartRun {
	out := &agentv1.StartRun{
		RunId: string(s.Run), Fence: s.Fence, Env: s.Env, UnixUser: s.UnixUser,
		KillAfter: durationpb.New(s.KillAfter), Rank: s.Rank, Nodes: texts(s.Nodes),
	}
	if s.Walltime > 0 {
		out.Walltime = durationpb.New(s.Walltime)
	}
	j := s.Job
	if j == nil {
		return out
	}
	out.Command, out.Script, out.Image = j.Command, j.Script, j.Image
	out.Cores, out.Threads = uint32(j.Resources.Cores), j.Resources.Threads
	out.MemoryBytes, out.Devices = uint64(j.Resources.TotalMemory()), j.Resources.Devices
	out.Mounts = each(j.Mounts, func(m coordinator.Mount) *agentv1.Mount {
		return &agentv1.Mount{Source: m.Source, Target: m.Target}
	})
	return out
}
