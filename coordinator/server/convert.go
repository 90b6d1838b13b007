package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"substrate/coordinator"
	"substrate/coordinator/engine"
	"substrate/proto/apiv1"
	"substrate/strictyaml"
)

// Bounds of lists.
const (
	defaultPage = 100
	maxPage     = 1000
)

func pageOf(size uint32, token string) engine.Page {
	switch {
	case size == 0:
		size = defaultPage
	case size > maxPage:
		size = maxPage
	}
	return engine.Page{Size: int(size), Token: token}
}

// stamp keeps "not yet" apart from a time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// count is a non-negative int on the wire; it saturates.
func count[N ~int](n N) uint32 {
	switch {
	case n < 0:
		return 0
	case uint64(n) > math.MaxUint32:
		return math.MaxUint32
	}
	return uint32(n)
}

// each converts a list; nil stays nil.
func each[A, B any](in []A, f func(A) B) []B {
	if in == nil {
		return nil
	}
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

func texts[S ~string](in []S) []string {
	return each(in, func(s S) string { return string(s) })
}

func diagnosticToProto(d strictyaml.Diagnostic) *apiv1.Diagnostic {
	return &apiv1.Diagnostic{
		Severity: d.Severity.String(), Code: d.Code, File: d.File, Line: count(d.Line), Column: count(d.Column),
		Path: d.Path, Message: d.Message, Hint: d.Hint,
	}
}

func validationToProto(d strictyaml.Diagnostic) *apiv1.ValidationMessage {
	return &apiv1.ValidationMessage{
		Severity: d.Severity.String(), File: d.File, Line: count(d.Line), Column: count(d.Column),
		Path: d.Path, Message: d.Message, Hint: d.Hint,
	}
}

func revisionToProto(r engine.ConfigRevision) *apiv1.ConfigRevision {
	return &apiv1.ConfigRevision{
		Revision: uint64(r.Revision), SetAt: stamp(r.SetAt), SetBy: r.SetBy, Sha256: r.SHA256, Bytes: uint64(max(r.Bytes, 0)),
	}
}

func revisionPointer(r *uint64) *coordinator.Revision {
	if r == nil {
		return nil
	}
	v := coordinator.Revision(*r)
	return &v
}

func setConfigToProto(r engine.SetConfigResult) *apiv1.SetConfigResponse {
	return &apiv1.SetConfigResponse{
		Revision: revisionToProto(r.Revision), Unchanged: r.Unchanged,
		Diagnostics: each(r.Diagnostics, diagnosticToProto),
		Ungranted: each(r.Ungranted, func(u engine.Ungranted) *apiv1.UngrantedDefinition {
			return &apiv1.UngrantedDefinition{Definition: u.Definition, Organizations: u.Organizations, AllOrganizations: u.All}
		}),
	}
}

func capacityToProto(h coordinator.Hardware) *apiv1.Capacity {
	return &apiv1.Capacity{Cores: uint32(h.Cores), Threads: h.Threads, MemoryBytes: uint64(h.Memory), Devices: h.Devices}
}

// knownCapacity is nil for a node that has not reported yet.
func knownCapacity(h coordinator.Hardware) *apiv1.Capacity {
	if h.Cores == 0 && h.Memory == 0 && len(h.Devices) == 0 {
		return nil
	}
	return capacityToProto(h)
}

func nodeToProto(n engine.NodeView) *apiv1.Node {
	return &apiv1.Node{
		Id: string(n.ID), Status: string(n.Status), Definition: string(n.Definition), Conflicts: texts(n.Conflicts),
		Reason: n.Reason, ConfigurationRevision: uint64(n.Revision),
		Capacity: knownCapacity(n.Capacity), Used: capacityToProto(n.Used), LastSeen: stamp(n.LastSeen),
		AgentVersion: n.AgentVersion, Annotations: n.Annotations, Runs: texts(n.Runs),
		Warnings: each(n.Warnings, func(w engine.NodeWarning) *apiv1.NodeWarning {
			return &apiv1.NodeWarning{Source: w.Source, Message: w.Message}
		}),
		FactsJson: n.Facts, Arch: n.Arch, Os: n.OS, CpuModel: n.CPUModel,
		Work: each(n.Work, func(w engine.NodeWork) *apiv1.NodeWork {
			return &apiv1.NodeWork{Run: string(w.Run), Class: enumText(w.Class), Status: enumText(w.Status), Started: stamp(w.Started),
				EndsBy: stamp(w.EndsBy), NoticeEndsAt: stamp(w.NoticeEnds)}
		}),
		CertificateExpires: stamp(n.Certificate.Expires), BoundTo: string(n.Bound), Launch: n.Launch,
	}
}

func explanationToProto(e engine.NodeExplanation) *apiv1.ExplainNodeResponse {
	return &apiv1.ExplainNodeResponse{
		Node: string(e.Node), Definition: string(e.Definition), Revision: uint64(e.Revision),
		Conditions: each(e.Conditions, func(c engine.ConditionView) *apiv1.ConditionExplanation {
			return &apiv1.ConditionExplanation{
				Definition: string(c.Definition), Value: c.Value, Error: c.Error,
				Parts: each(c.Parts, func(p engine.ConditionPart) *apiv1.ConditionPart {
					return &apiv1.ConditionPart{Source: p.Source, Value: p.Value, Seen: p.Seen}
				}),
			}
		}),
	}
}

func definitionToProto(d engine.DefinitionView) *apiv1.Definition {
	out := &apiv1.Definition{
		Id: string(d.ID), Configured: d.Configured, Provisioner: d.Kind, CostPerHour: d.CostPerHour,
		Nodes: count(d.Nodes), Ready: count(d.Ready), State: d.State,
		Condition: d.Condition, Policy: d.Policy, Annotations: d.Annotations, Instance: d.Instance,
	}
	out.HardwareSource, out.Flags = string(d.Source), d.Flags
	out.SourceAt, out.Unavailable = stamp(d.SourceAt), d.Unavailable
	if r := d.Report; r != nil {
		out.Reported, out.Reports, out.Attributes = stamp(r.Last), r.Nodes, r.Attributes
	}
	known := d.Capacity
	if known == nil {
		known = d.Hardware
	}
	if known != nil {
		out.Capacity, out.Estimated = capacityToProto(*known), known.Estimated
	}
	return out
}
