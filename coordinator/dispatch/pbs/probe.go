package pbs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"substrate/coordinator/dispatch"
)

const (
	probeJob = "substrate-probe"
	// oldProbe is the age of a probe that nobody can be working with any more: its preflight died.
	oldProbe = time.Hour
)

// probe submits a job behind the gate, tries on it what differs from complex to complex, and deletes it. It never runs: its gate is opened only
// while a hold is in place. lasting is false when another probe might answer otherwise.
func (p *preflight) probe(ctx context.Context) (lasting bool, err error) {
	for _, r := range p.old {
		if err := p.Stop(ctx, dispatch.ObjectID(r.id)); err != nil {
			p.opt.Log.Warn("an old probe is left", "job", r.id, "error", err)
		}
	}
	ref := dispatch.Ref{Job: probeJob, Submission: 1, Attempt: 1}
	spec := dispatch.Spec{Ref: ref, Script: "#!/bin/sh\nexit 0\n", Nodes: 1, Walltime: time.Minute, Extra: p.opt.ProbeArgs}
	var id dispatch.ObjectID
	err = p.step("submit the probe", func() (detail string, err error) {
		id, err = p.Submit(ctx, spec)
		return "job " + string(id), err
	})
	if err != nil {
		return false, fmt.Errorf("no probe can be submitted: %w", err)
	}
	found := p.step("find the probe", func() (string, error) { return "", p.probeFound(ctx, id, ref) })
	if found == nil {
		var asked error
		p.answers.requeue, asked = p.probeRequeue(ctx, id)
		held := p.probeHold(ctx, id)
		lasting = !passing(asked) && !passing(held)
		p.answers.hold = dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed, Reason: "as an Execution_Time in the year 2100"}
		if held != nil {
			p.answers.hold = dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: held.Error()}
		}
	}
	// Also when the caller has given up: nothing is to be left behind.
	err = p.step("stop the probe", func() (string, error) { return "", p.Stop(context.WithoutCancel(ctx), id) })
	if err != nil {
		p.opt.Log.Warn("the probe could not be stopped", "job", id, "error", err)
	}
	if err := errors.Join(found, ctx.Err()); err != nil {
		return false, err
	}
	return lasting, nil
}

// probeFound: without its mark and its owner no job could be found again, and nothing may be submitted.
func (p *preflight) probeFound(ctx context.Context, id dispatch.ObjectID, ref dispatch.Ref) error {
	r, err := p.one(ctx, "read the probe", id)
	if err != nil {
		return err
	}
	if r.user() != p.account.user {
		return fmt.Errorf("cannot read the probe: %w: its owner is %.60q, and not %s", dispatch.ErrUnsupported, r.owner, p.account.user)
	}
	if got := unmark(r.mark).ref; got != ref {
		return fmt.Errorf("cannot read the probe: %w: its variable %s comes back as %.80q", dispatch.ErrUnsupported, markVariable, r.mark)
	}
	return nil
}

// probeHold goes through a hold's life. The error begins with the step that failed.
func (p *preflight) probeHold(ctx context.Context, id dispatch.ObjectID) error {
	for _, s := range []struct {
		name, failed string
		do           func() error
	}{
		{"place hold 1", "placing hold 1 on the probe", func() error {
			return p.placeHold(ctx, "place hold 1 on the probe", id, 1)
		}},
		{"read hold 1", "hold 1 did not decode from the probe's Execution_Time", func() error { return p.holdIs(ctx, id, 1) }},
		{"open the gate", "opening the held probe", func() error { return p.OpenGate(ctx, id) }},
		{"read hold 1 again", "the hold did not survive the gate's release", func() error { return p.holdIs(ctx, id, 1) }},
		{"release hold 2", "a release that names hold 2 was not refused", func() error {
			if err := p.releaseHold(ctx, "release hold 2 of the probe", id, 2); !errors.Is(err, dispatch.ErrStale) {
				return fmt.Errorf("the answer is %w", errors.Join(err, errAnswer))
			}
			return nil
		}},
		{"read hold 1 at last", "a stale release changed the hold", func() error { return p.holdIs(ctx, id, 1) }},
	} {
		if err := p.step(s.name, func() (string, error) { return "", s.do() }); err != nil {
			return fmt.Errorf("%s: %w", s.failed, err)
		}
	}
	return nil
}

var errAnswer = errors.New("not that it is stale")

// holdIs checks what the server shows of a hold.
func (p *preflight) holdIs(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	r, err := p.pending(ctx, "read the probe's hold", id)
	if err != nil {
		return err
	}
	if in := r.hold(); in != n {
		return fmt.Errorf("the Execution_Time is %.40q, which is hold %d", r.waits, in)
	}
	return nil
}

// probeRequeue asks for a requeue of what does not run: the server refuses that to everybody, but for rights first.
func (p *preflight) probeRequeue(ctx context.Context, id dispatch.ObjectID) (s dispatch.Support, err error) {
	err = p.change(ctx, "requeue the probe", "qrerun", string(id))
	s = dispatch.Support{Answer: dispatch.Unknown, Source: dispatch.Probed}
	outcome := dispatch.StepPassed
	switch {
	case err == nil:
		s.Reason = "a requeue of what does not run was not refused"
		outcome = dispatch.StepFailed
	case errors.Is(err, dispatch.ErrDenied):
		s.Answer, s.Reason = dispatch.No, "only a manager or an operator of the server may requeue: "+err.Error()
	case errors.Is(err, dispatch.ErrRefused):
		s.Answer, s.Reason = dispatch.Yes, "the account is a manager or an operator of the server"
	default:
		s.Reason = err.Error()
		outcome = dispatch.StepFailed
	}
	p.report.Steps = append(p.report.Steps, dispatch.Step{Name: "may requeue", Outcome: outcome, Detail: s.Reason})
	return s, err
}
