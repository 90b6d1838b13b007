package pbs

import (
	"context"
	"maps"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// answers are what preflight found out; they do not change afterwards.
type answers struct {
	hold     dispatch.Support
	requeue  dispatch.Support // whether this account may, whatever is known of how late a call lands
	declared dispatch.Declarations
}

const (
	// unbounded is why nobody knows how late a call may land. What a client has sent is carried out when the server comes to it, however long it
	// stood still, and the sender's end does not take it back.
	unbounded = "PBS requests never expire, and credentialTTL does not say how long the server may stand still"
	// giveUp is the server's own default for a node that does not come back; lossMargin covers its looking every few seconds, and what is
	// written down after that.
	giveUp     = 310 * time.Second
	lossMargin = time.Minute
	// historyDefault is the server's for job_history_duration, purgeEvery how much later than that it may forget.
	historyDefault = 336 * time.Hour
	clockTick      = time.Second
)

// declare works out the declarations.
func (o Options) declare(s settings) dispatch.Declarations {
	kept := dispatch.Window(s.history)
	d := dispatch.Declarations{NodeLossWindow: giveUp + lossMargin, PolledLoss: map[dispatch.Evidence]dispatch.Window{
		dispatch.EvidenceState: kept, dispatch.EvidenceCause: kept, dispatch.EvidenceExitCode: kept,
		// Of what was run again nothing is kept but that it was.
		dispatch.EvidenceExecution: 0,
	}}
	if s.giveUp > 0 {
		d.NodeLossWindow = s.giveUp + lossMargin
	}
	if o.CredentialTTL != nil && *o.CredentialTTL > 0 {
		d.CallBound = *o.CredentialTTL + o.Runner.Slack() + clockTick
		if o.Skew != nil {
			d.CallBound += *o.Skew
		}
	}
	return d
}

// Declarations are the same for the life of the Backend.
func (b *Backend) Declarations() dispatch.Declarations {
	d := b.answers.declared
	d.PolledLoss = maps.Clone(d.PolledLoss)
	return d
}

// Capabilities are the same for every spec.
func (b *Backend) Capabilities(context.Context, dispatch.Spec) (dispatch.Capabilities, error) {
	say := func(a dispatch.Answer, reason string) dispatch.Support {
		return dispatch.Support{Answer: a, Source: dispatch.Declared, Reason: reason}
	}
	const never = "jobs are submitted with -r n, so PBS runs none again on its own"
	return dispatch.Capabilities{
		dispatch.ContainerImage:       say(dispatch.No, "container images are not mapped"),
		dispatch.NativeRequeue:        say(dispatch.No, never),
		dispatch.NativeRestart:        say(dispatch.No, never),
		dispatch.Hold:                 b.answers.hold,
		dispatch.PreTerminationSignal: say(dispatch.Yes, "SIGTERM, then SIGKILL at the node's first look after the queue's kill_delay"),
		dispatch.AccountingHistory:    say(dispatch.No, "the server's job history is all that is asked; accounting logs are files of its host"),
		dispatch.AttemptInjection:     say(dispatch.Yes, "the batch script exports the DISPATCH_* variables; its execution is the server's run_count"),
		dispatch.ReadmissionGate:      say(dispatch.No, "under -r n PBS never starts an execution on its own authority"),
		dispatch.WorkingDirectory:     say(dispatch.Yes, "the batch script enters it, or fails"),
		dispatch.ProcsPerNode:         say(dispatch.Yes, "mpiprocs of each chunk: lines of PBS_NODEFILE, which MPI's launchers read"),
		dispatch.OutputPath:           say(dispatch.Yes, "the dispatch.Output extension"),
		dispatch.OutputRead:           say(dispatch.Yes, "stdout and stderr, each execution's file in turn"),
		dispatch.OutputFollow:         say(dispatch.Yes, "polled every two seconds"),
		dispatch.OutputRetained:       say(dispatch.Yes, "the files stay in output.dir on the complex"),
	}, nil
}

// Rules answers for each rule in its place.
func (b *Backend) Rules(p dispatch.Policy) []dispatch.RuleSupport {
	list := make([]dispatch.RuleSupport, 0, len(p.Rules))
	for _, r := range p.Rules {
		list = append(list, dispatch.RuleSupport{Rule: r, Support: b.rule(r.Action)})
	}
	return list
}

func (b *Backend) rule(a dispatch.Action) dispatch.Support {
	switch a {
	case dispatch.ActionNone, dispatch.ActionResubmit, dispatch.ActionEscalate:
		return dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Declared}
	case dispatch.ActionRestart, dispatch.ActionRequeue:
		return dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: "a job that has finished cannot be run again"}
	case dispatch.ActionHold:
		return b.answers.hold
	}
	// An action without a name says so itself.
	return dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Declared, Reason: "action " + strings.TrimPrefix(a.String(), "action ")}
}

// Offers leaves out CessationSignal without a command for it, and Requeuer for an account that may not.
func (b *Backend) Offers(i dispatch.Interface) bool {
	switch i {
	case dispatch.InterfaceCessationSignal:
		return len(b.opt.CessationCommand) > 0
	case dispatch.InterfaceRequeuer:
		return b.answers.requeue.Answer == dispatch.Yes
	}
	return true
}

// Preflight says how the answers came about.
func (b *Backend) Preflight() dispatch.Report { return b.report }
