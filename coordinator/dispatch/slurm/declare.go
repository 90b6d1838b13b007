package slurm

import (
	"context"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

// answers are what preflight found out; they do not change afterwards.
type answers struct {
	hold     dispatch.Support
	history  dispatch.Support
	declared dispatch.Declarations
	killWait string
	// unbounded is the reason why nobody knows how late a call may land; "" when it is known.
	unbounded string
}

// clockTick is the coarseness of times in credentials and answers.
const clockTick = time.Second

// declare works out the declarations. docs/decisions/0019-how-late-a-call-may-land.md tells why CallBound is what it is.
func declare(c configuration, history dispatch.Answer, ttl time.Duration, bounded bool, skew, slack time.Duration) (dispatch.Declarations, error) {
	var err error
	seconds := func(name string) (d time.Duration) {
		if err == nil {
			d, err = c.seconds(name)
		}
		return d
	}
	silent, age, message := seconds("SlurmdTimeout"), seconds("MinJobAge"), seconds("MessageTimeout")
	if err != nil {
		return dispatch.Declarations{}, err
	}
	kept := dispatch.Window(age)
	if age == 0 {
		kept = dispatch.Unbounded // Slurm's word for: ended jobs are not purged
	}
	d := dispatch.Declarations{NodeLossWindow: 2*silent + time.Minute, PolledLoss: map[dispatch.Evidence]dispatch.Window{
		dispatch.EvidenceState: kept, dispatch.EvidenceCause: kept, dispatch.EvidenceExitCode: kept, dispatch.EvidenceExecution: 0,
	}}
	if history == dispatch.Yes {
		d.PolledLoss[dispatch.EvidenceExecution] = dispatch.Unbounded
	}
	if bounded {
		d.CallBound = ttl + skew + slack + message + clockTick
	}
	return d, nil
}

// Declarations are the same for the life of the Backend.
func (b *Backend) Declarations() dispatch.Declarations {
	d := b.answers.declared
	loss := map[dispatch.Evidence]dispatch.Window{}
	for e, w := range d.PolledLoss {
		loss[e] = w
	}
	d.PolledLoss = loss
	return d
}

// Capabilities are the same for every spec.
func (b *Backend) Capabilities(context.Context, dispatch.Spec) (dispatch.Capabilities, error) {
	say := func(a dispatch.Answer, reason string) dispatch.Support {
		return dispatch.Support{Answer: a, Source: dispatch.Declared, Reason: reason}
	}
	const never = "jobs are submitted with --no-requeue, so Slurm never restarts one on its own"
	return dispatch.Capabilities{
		dispatch.ContainerImage:       say(dispatch.No, "container images are not mapped in v1"),
		dispatch.NativeRequeue:        say(dispatch.No, never),
		dispatch.NativeRestart:        say(dispatch.No, never),
		dispatch.Hold:                 b.answers.hold,
		dispatch.PreTerminationSignal: say(dispatch.Yes, "SIGTERM, then SIGKILL after KillWait "+b.answers.killWait),
		dispatch.AccountingHistory:    b.answers.history,
		dispatch.AttemptInjection:     say(dispatch.Yes, "the batch script exports the DISPATCH_* variables"),
		dispatch.ReadmissionGate:      say(dispatch.No, "under --no-requeue Slurm never starts an execution on its own authority"),
		dispatch.WorkingDirectory:     say(dispatch.Yes, "--chdir"),
		dispatch.ProcsPerNode:         say(dispatch.Yes, "--ntasks-per-node"),
		dispatch.OutputPath:           say(dispatch.Yes, "the dispatch.Output extension"),
		dispatch.OutputRead:           say(dispatch.Yes, "stdout and stderr, each execution's file in turn"),
		dispatch.OutputFollow:         say(dispatch.Yes, "polled every two seconds"),
		dispatch.OutputRetained:       say(dispatch.Yes, "the files stay in output.dir on the cluster"),
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
	case dispatch.ActionResubmit, dispatch.ActionEscalate:
		return dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Declared}
	case dispatch.ActionRestart, dispatch.ActionRequeue:
		return dispatch.Support{Answer: dispatch.No, Source: dispatch.Declared, Reason: "a job that has ended cannot be restarted or requeued under --no-requeue"}
	case dispatch.ActionHold:
		return b.answers.hold
	}
	// An action without a name says so itself.
	return dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Declared, Reason: "action " + strings.TrimPrefix(a.String(), "action ")}
}

// Offers leaves CessationSignal out when no command is configured. Holder and Requeuer follow from the answers.
func (b *Backend) Offers(i dispatch.Interface) bool {
	return i != dispatch.InterfaceCessationSignal || len(b.opt.CessationCommand) > 0
}

// Preflight says how the answers came about.
func (b *Backend) Preflight() dispatch.Report { return b.report }
