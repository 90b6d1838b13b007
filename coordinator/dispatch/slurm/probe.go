package slurm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator/dispatch"
)

const (
	probeJob = "substrate-probe"
	// oldProbe is the age of a probe that nobody can be working with any more: its preflight died, or the controller did and has lost that
	// the probe was stopped.
	oldProbe = 10 * time.Minute
	// forever stands for a MinJobAge of 0.
	forever = 5 * time.Minute
)

// probe submits a job behind the gate, tries holds on it, cancels it, and looks whether accounting tells of it. It never runs. lasting is
// false when another probe might answer otherwise.
func (p *preflight) probe(ctx context.Context) (lasting bool, err error) {
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
	lasting = true
	switch err := p.probeHold(ctx, id); {
	case p.answers.unbounded != "":
		p.skip("hold", p.answers.unbounded)
		p.answers.hold = dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: p.answers.unbounded}
	case err != nil:
		lasting = !passing(err)
		p.answers.hold = dispatch.Support{Answer: dispatch.No, Source: dispatch.Probed, Reason: err.Error()}
	default:
		p.answers.hold = dispatch.Support{Answer: dispatch.Yes, Source: dispatch.Probed}
	}
	// Also when the caller has given up: nothing is to be left behind.
	err = p.step("stop the probe", func() (string, error) { return "", p.Stop(context.WithoutCancel(ctx), id) })
	if err != nil {
		p.opt.Log.Warn("the probe could not be stopped; it is gated and does not run", "job", id, "error", err)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	var told bool
	p.answers.history, told = p.probeHistory(ctx, id, ref)
	if !told { // a controller that has died since may have it again
		_ = p.Stop(ctx, id)
	}
	outcome := dispatch.StepPassed
	if p.answers.history.Answer != dispatch.Yes {
		outcome = dispatch.StepFailed
	}
	p.report.Steps = append(p.report.Steps, dispatch.Step{Name: "sacct", Outcome: outcome, Detail: p.answers.history.Reason})
	return lasting && told, nil
}

// removeOld stops probes that were left behind. Not being able to is no reason to stop.
func (p *preflight) removeOld(ctx context.Context) {
	rows, err := p.queue(ctx, "look for old probes", "-u", p.account.user)
	if err != nil {
		return
	}
	for _, r := range rows {
		ref, _, _ := unmark(r.comment, r.name)
		state, _ := judge(r, nobody)
		if ref.Job == probeJob && state == dispatch.StatePending && p.config.asOf.Sub(r.submit) > oldProbe {
			if err := p.Stop(ctx, dispatch.ObjectID(r.id)); err != nil {
				p.opt.Log.Warn("an old probe is left", "job", r.id, "error", err)
			}
		}
	}
}

// probeHold goes through a hold's life. The error begins with the step that failed.
func (p *preflight) probeHold(ctx context.Context, id dispatch.ObjectID) error {
	if p.answers.unbounded != "" {
		return nil
	}
	for _, s := range []struct {
		name, failed string
		do           func() error
	}{
		{"place hold 1", "placing hold 1 on the probe", func() error {
			return p.placeHold(ctx, "place hold 1 on the probe", id, 1)
		}},
		{"read hold 1", "hold 1 did not decode from the probe's start time", func() error { return p.holdIs(ctx, id, 1) }},
		{"open the gate", "opening the held probe", func() error { return p.OpenGate(ctx, id) }},
		{"read hold 1 again", "the hold did not survive the gate's release", func() error { return p.holdIs(ctx, id, 1) }},
		{"release hold 2", "", func() error {
			if err := p.releaseHold(ctx, "release hold 2 of the probe", id, 2); err != nil && !errors.Is(err, dispatch.ErrStale) {
				return fmt.Errorf("a stale release changed the hold: %w", err)
			} else if err == nil {
				return errors.New("slurm: the preflight probe failed: a release naming instance 2 was not refused")
			}
			return nil
		}},
		{"read hold 1 at last", "a stale release changed the hold", func() error { return p.holdIs(ctx, id, 1) }},
	} {
		err := p.step(s.name, func() (string, error) { return "", s.do() })
		switch {
		case err != nil && s.failed == "":
			return err
		case err != nil:
			return fmt.Errorf("%s: %w", s.failed, err)
		}
	}
	return nil
}

// holdIs checks what the controller shows of a hold.
func (p *preflight) holdIs(ctx context.Context, id dispatch.ObjectID, n dispatch.Instance) error {
	r, err := p.pending(ctx, "read the probe's hold", id)
	if err != nil {
		return err
	}
	if in := r.hold(); in != n {
		return fmt.Errorf("SubmitTime is %s and EligibleTime %s, which is %s", seconds(r.submit), seconds(r.eligible), holdName(in))
	}
	return nil
}

func holdName(n dispatch.Instance) string {
	if n == 0 {
		return "no hold"
	}
	return fmt.Sprintf("hold %d", n)
}

func seconds(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return fmt.Sprint(t.Unix())
}

// probeHistory asks accounting for the stopped probe until it is there. told is false when it might answer otherwise the next time.
func (p *preflight) probeHistory(ctx context.Context, id dispatch.ObjectID, ref dispatch.Ref) (s dispatch.Support, told bool) {
	flags := p.config.values["AccountingStoreFlags"]
	say := func(a dispatch.Answer, reason string) dispatch.Support {
		return dispatch.Support{Answer: a, Source: dispatch.Probed, Reason: reason + "; AccountingStoreFlags=" + flags}
	}
	wait, err := p.config.seconds("MinJobAge")
	if err != nil || wait == 0 {
		wait = forever
	}
	until := p.opt.Clock.Now().Add(wait)
	for bare := false; ; {
		row, answer, reason := p.askHistory(ctx, id)
		switch {
		case reason != "":
			return say(answer, reason), answer == dispatch.No && strings.Contains(reason, accountingDisabled)
		case row != nil:
			if got, _, _ := unmark(row.comment, row.name); got == ref {
				return say(dispatch.Yes, "comments are kept"), true
			}
			bare = true
		}
		over := !p.opt.Clock.Now().Before(until)
		// With the flag the comment comes with the end; without it, it never does.
		if bare && (over || !strings.Contains(flags, "job_comment")) {
			return say(dispatch.Yes, "comments are not kept: AccountingStoreFlags lacks job_comment"), true
		}
		if over {
			return say(dispatch.Unknown, fmt.Sprintf("no sacct row for probe job %s within MinJobAge", id)), false
		}
		if err := p.opt.Clock.Sleep(ctx, p.opt.AccountEvery); err != nil {
			return say(dispatch.Unknown, "sacct: "+err.Error()), false
		}
	}
}

const (
	accountingDisabled = "Slurm accounting storage is disabled"
	databaseTrouble    = "Problem talking to the database"
)

// askHistory asks once. reason is "" when there is just no row of an end yet.
func (p *preflight) askHistory(ctx context.Context, id dispatch.ObjectID) (found *row, answer dispatch.Answer, reason string) {
	nonce := p.opt.Nonce()
	c := withReading("sacct", "-n", "-p", "-X", "-D", "--delimiter="+separator(nonce), "-o", strings.Join(historyFields(), ","), "-j", string(id))
	c.Timeout = p.opt.Deadline
	r, err := p.opt.Runner.Run(ctx, c)
	said := firstLines(strings.TrimSpace(string(r.Stderr)))
	switch {
	case err != nil:
		return nil, dispatch.Unknown, "sacct: " + err.Error()
	case strings.Contains(said, accountingDisabled), strings.Contains(said, databaseTrouble):
		return nil, dispatch.No, said
	case r.Exit != 0:
		return nil, dispatch.Unknown, fmt.Sprintf("sacct exited %d: %s", r.Exit, said)
	}
	rows, err := parseHistory(string(r.Stdout), nonce)
	if err != nil {
		return nil, dispatch.Unknown, "sacct: " + err.Error()
	}
	for i := len(rows) - 1; i >= 0; i-- {
		if state, _ := judge(rows[i], nobody); rows[i].id == string(id) && state.Ended() {
			return &rows[i], dispatch.Yes, ""
		}
	}
	return nil, dispatch.Yes, ""
}
