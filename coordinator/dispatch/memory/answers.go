package memory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"substrate/coordinator/dispatch"
)

func (o Options) hold() dispatch.Support {
	switch o.Holds {
	case HoldsAsStart:
		return dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "as a start in the far future"}
	case HoldsAsMark:
		return dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "natively"}
	case HoldsUntried:
		return dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Probed, Reason: "nobody has tried"}
	}
	return dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: "this cluster keeps no holds"}
}

func declared(yes bool, no string) dispatch.Support {
	if yes {
		return dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Declared}
	}
	return dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: no}
}

func (b *Backend) Capabilities(context.Context, dispatch.Spec) (dispatch.Capabilities, error) {
	o := b.c.options
	reads := b.Offers(dispatch.InterfaceOutputReader)
	const unread = "nobody reads output here"
	history := dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: "there is no history"}
	switch o.History {
	case HistoryFull:
		history = dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "comments are kept"}
	case HistoryWithoutComments:
		history = dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "comments are not kept"}
	}
	return dispatch.Capabilities{
		dispatch.ContainerImage:       declared(o.Images, noImages),
		dispatch.NativeRequeue:        declared(o.NativeRequeue, "what is over stays so"),
		dispatch.NativeRestart:        declared(false, "a program is started once in an execution"),
		dispatch.Hold:                 o.hold(),
		dispatch.PreTerminationSignal: declared(o.StopGrace > 0, "what is stopped is killed at once"),
		dispatch.AccountingHistory:    history,
		dispatch.AttemptInjection:     declared(true, ""),
		dispatch.ReadmissionGate:      declared(false, "a gate that was opened stays open"),
		dispatch.WorkingDirectory:     declared(true, ""),
		dispatch.ProcsPerNode:         declared(true, ""),
		dispatch.OutputPath:           declared(reads, unread),
		dispatch.OutputRead:           declared(reads, unread),
		dispatch.OutputFollow:         declared(reads, unread),
		dispatch.OutputRetained:       declared(reads, unread),
	}, nil
}

func (b *Backend) Declarations() dispatch.Declarations {
	o := b.c.options
	return dispatch.Declarations{NodeLossWindow: o.NodeLossWindow, CallBound: o.CallBound, PolledLoss: maps.Clone(o.Keeps)}
}

func (b *Backend) Rules(p dispatch.Policy) []dispatch.RuleSupport {
	list := make([]dispatch.RuleSupport, 0, len(p.Rules))
	for _, r := range p.Rules {
		s := dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Declared, Reason: fmt.Sprintf("action %d", r.Action)}
		switch r.Action {
		case dispatch.ActionNone, dispatch.ActionResubmit, dispatch.ActionEscalate:
			s = declared(true, "")
		case dispatch.ActionRestart, dispatch.ActionRequeue:
			s = declared(false, "what is over cannot be run again")
		case dispatch.ActionHold:
			s = b.c.options.hold()
		}
		list = append(list, dispatch.RuleSupport{Rule: r, Support: s})
	}
	return list
}

// Offers is dispatch.Selective's.
func (b *Backend) Offers(i dispatch.Interface) bool { return !slices.Contains(b.c.options.Leaves, i) }

// Preflight says what kind of cluster it is; nothing had to be tried.
func (b *Backend) Preflight() dispatch.Report {
	return dispatch.Report{Kind: b.c.options.Kind, Cluster: "memory", Account: "user", ReadOnly: b.readOnly, Settings: map[string]string{}}
}
