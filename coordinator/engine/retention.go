package engine

import (
	"context"
	"errors"
	"time"

	"substrate/coordinator"
)

const sweepEvery = time.Hour

// sweep removes once an hour, until ctx ends, what `retention` says is old enough. Work that has not ended is
// kept whatever its age.
func (e *Engine) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := e.sweepOnce(ctx); err != nil && ctx.Err() == nil {
				e.opt.Log.Warn("not all that is old could be removed", "err", err)
			}
		}
	}
}

func (e *Engine) sweepOnce(ctx context.Context) error {
	return errors.Join(e.expireWorkflows(ctx), e.expireEvents(ctx), e.expireAudit(ctx), e.expireRevisions(ctx), e.expireCalendar(ctx), e.expireOutput(ctx),
		e.noteUse(ctx), e.forgetJoinTokens(ctx), e.forgetTokens(ctx), e.forgetRevocations(ctx))
}

// expireOutput removes output that is older than retention.logs.
func (e *Engine) expireOutput(ctx context.Context) error {
	var keepFor *time.Duration
	open := map[coordinator.WorkflowID]bool{}
	err := e.view(ctx, func(s *state) {
		keepFor = s.config.checked.Retention.Logs // nil: for ever
		for id, w := range s.workflows {
			if w.open > 0 {
				open[id] = true
			}
		}
	})
	if err != nil || keepFor == nil {
		return err
	}
	n, err := e.opt.Logs.Expire(e.opt.Now().Add(-*keepFor), func(id coordinator.WorkflowID) bool { return open[id] })
	if n > 0 {
		e.opt.Log.Info("removed old output", "workflows", n, "older_than", *keepFor)
	}
	return err
}
