package server

import (
	"time"
	"unicode/utf8"

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

// What a node says is bounded here: no text of a node costs the coordinator more than these.
const (
	maxRunID      = 512
	maxNodeText   = 4 << 10
	maxNodeWord   = 256
	maxParts      = 32
	maxRuntimes   = 16
	maxSignal     = 64
	exitCodeRange = 256
)

// bounded cuts a text at a whole character.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func helloFromProto(h *agentv1.Hello) engine.Hello {
	runtimes := h.GetRuntimes()
	return engine.Hello{
		Version: bounded(h.GetVersion(), maxNodeWord), BootID: bounded(h.GetBootId(), maxNodeWord),
		Revision: coordinator.Revision(h.GetConfigurationRevision()), Runs: runStatuses(h.GetRuns()),
		RunsAsCaller: h.GetRunsAsCaller(), Discovers: h.GetDiscovers(), Runtimes: runtimes[:min(len(runtimes), maxRuntimes)],
	}
}

// runStatuses leaves out reports that cannot be about a run of ours.
func runStatuses(reports []*agentv1.RunStatus) []engine.RunStatus {
	out := make([]engine.RunStatus, 0, len(reports))
	for _, r := range reports {
		if st, ok := runStatusFromProto(r); ok {
			out = append(out, st)
		}
	}
	return out
}

// runStatusFromProto refuses ids and states that no run has; a cause that is not known is the loss of the
// status, and numbers are what a kernel could give.
func runStatusFromProto(r *agentv1.RunStatus) (st engine.RunStatus, ok bool) {
	st = engine.RunStatus{
		Run: coordinator.RunID(r.GetRunId()), State: engine.RunState(r.GetState()), Cause: engine.Cause(r.GetCause()),
		Message: bounded(r.GetMessage(), maxNodeText),
		Started: moment(r.GetStarted()), Ended: moment(r.GetEnded()),
		StdoutBytes: r.GetStdoutBytes(), StderrBytes: r.GetStderrBytes(),
	}
	if len(st.Run) == 0 || len(st.Run) > maxRunID {
		return st, false
	}
	switch st.State {
	case engine.RunStarting, engine.RunRunning:
		st.Cause = ""
		return st, true
	case engine.RunEnded:
	default:
		return st, false
	}
	switch st.Cause {
	case engine.CauseExited:
		st.ExitCode = r.GetExitCode() & (exitCodeRange - 1)
	case engine.CauseSignalled, engine.CauseStopped, engine.CauseWalltime, engine.CauseOOM:
		st.Signal = min(max(r.GetSignal(), 0), maxSignal)
	case engine.CauseStartFailed, engine.CauseLostStatus:
	default:
		st.Message = bounded("unknown cause "+string(st.Cause)+": "+st.Message, maxNodeText)
		st.Cause = engine.CauseLostStatus
	}
	return st, true
}

func hardwareFromProto(h *agentv1.HardwareReport) engine.HardwareReport {
	return engine.HardwareReport{
		Digest: h.GetDigest(), Facts: h.GetFactsJson(), Final: h.GetFinal(),
		Warnings: each(h.GetWarnings(), func(w *agentv1.Warning) engine.NodeWarning {
			return engine.NodeWarning{Source: bounded(w.GetSource(), maxNodeWord), Message: bounded(w.GetMessage(), maxNodeText)}
		}),
	}
}

func conditionsFromProto(c *agentv1.ConditionResults) engine.ConditionReport {
	return engine.ConditionReport{
		Revision: coordinator.Revision(c.GetRevision()),
		Results: each(c.GetResults(), func(r *agentv1.ConditionResult) engine.ConditionView {
			parts := r.GetParts()
			return engine.ConditionView{
				Definition: coordinator.DefinitionID(bounded(r.GetDefinition(), maxNodeWord)),
				Value:      bounded(r.GetValue(), maxNodeWord), Error: bounded(r.GetError(), maxNodeText),
				Parts: each(parts[:min(len(parts), maxParts)], conditionPart),
			}
		}),
	}
}

func conditionPart(p *agentv1.ConditionPart) engine.ConditionPart {
	out := engine.ConditionPart{Source: bounded(p.GetSource(), maxNodeText), Value: bounded(p.GetValue(), maxNodeWord), Seen: map[string]string{}}
	for fact, value := range p.GetSeen() {
		if len(out.Seen) == maxParts {
			break
		}
		out.Seen[bounded(fact, maxNodeWord)] = bounded(value, maxNodeText)
	}
	return out
}

func offsetToProto(o engine.LogOffset) *agentv1.LogOffset {
	return &agentv1.LogOffset{RunId: string(o.Run), Stream: o.Stream, Offset: o.Offset}
}

// lookToProto is nil for a node that is for work.
func lookToProto(l *engine.Look) *agentv1.Look {
	if l == nil {
		return nil
	}
	return &agentv1.Look{Devices: l.Devices, Some: l.Some, Within: durationpb.New(l.Within)}
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
	case len(m.Taken) > 0:
		return &agentv1.ToAgent{Message: &agentv1.ToAgent_Ack{Ack: &agentv1.Ack{Hardware: m.Taken}}}
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
