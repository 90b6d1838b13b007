package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/archive"
	"substrate/coordinator/config"
	"substrate/coordinator/store"
)

// Bounds of one sweep: what is over them waits for the next.
const (
	maxExpired   = 10_000 // workflows
	erasedAtOnce = 1_000  // keys in one turn of the loop
)

// archived is a line of the archive. The lines of a workflow are complete with the one of kind "end"; after a crash
// they may be there twice.
type archived struct {
	Kind   string          `json:"kind"` // "workflow", "allocation", "events", "end"
	ID     string          `json:"id"`
	Record json.RawMessage `json:"record,omitempty"`
}

// expired is a workflow whose time is over.
type expired struct {
	id    coordinator.WorkflowID
	ended time.Time
}

// expireWorkflows forgets the workflows that ended before retention.finishedWorkflows, with their output.
func (e *Engine) expireWorkflows(ctx context.Context) error {
	if err := e.eraseRest(ctx); err != nil {
		return err
	}
	var gone []expired
	dir := ""
	err := e.view(ctx, func(s *state) {
		keep := s.config.checked.Retention
		if keep.FinishedWorkflows > 0 {
			gone, dir = s.endedBefore(e.opt.Now().Add(-keep.FinishedWorkflows)), keep.Archive
		}
	})
	if err != nil {
		return err
	}
	for _, w := range gone {
		if err := e.expireWorkflow(ctx, w, dir); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		e.opt.Log.Info("forgot old workflows", "count", len(gone), "archive", dir)
	}
	return nil
}

// endedBefore lists the workflows that ended before a time, the oldest first.
func (s *state) endedBefore(before time.Time) []expired {
	var out []expired
	for id, w := range s.workflows {
		if w.open > 0 || !w.ended {
			continue
		}
		if end := w.endTime(); end.Before(before) {
			out = append(out, expired{id, end})
		}
	}
	slices.SortFunc(out, func(a, b expired) int { return cmp.Or(a.ended.Compare(b.ended), cmp.Compare(a.id, b.id)) })
	return out[:min(len(out), maxExpired)]
}

// endTime is when the last allocation ended.
func (w *submission) endTime() time.Time {
	end := w.record.Submitted
	for _, j := range w.jobs {
		for _, a := range j.allocations {
			if a.record.Ended.After(end) {
				end = a.record.Ended
			}
		}
	}
	return end
}

// expireWorkflow archives first, then takes the workflow out of sight, then erases the rest of it.
func (e *Engine) expireWorkflow(ctx context.Context, w expired, dir string) error {
	if dir != "" {
		err := archive.Append(dir, "workflows", w.ended, func(out *archive.Writer) error { return e.archiveWorkflow(ctx, w.id, out) })
		if err != nil {
			return err
		}
	}
	err := e.do(ctx, func(t *tx) error {
		s := t.state
		known := s.workflows[w.id]
		if known == nil || known.open > 0 {
			return nil
		}
		// The note first stands with the lost record: what is left of the workflow belongs to nobody.
		t.delete(prefixWorkflow + string(w.id))
		t.put(prefixExpired+string(w.id), t.now)
		t.group()
		delete(s.workflows, w.id)
		if key := known.record.Idempotency; key != "" && s.idempotency[key] == w.id {
			delete(s.idempotency, key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return e.erase(ctx, w.id)
}

func (e *Engine) archiveWorkflow(ctx context.Context, id coordinator.WorkflowID, out *archive.Writer) error {
	entry, err := e.opt.Store.Get(ctx, prefixWorkflow+string(id))
	if err != nil {
		return err
	}
	if err := out.Line(archived{"workflow", string(id), entry.Value}); err != nil {
		return err
	}
	for kind, prefix := range workflowPrefixes(id) {
		if err := walk(ctx, e.opt.Store, prefix, loadPage, func(entry store.Entry) error {
			name := strings.TrimPrefix(entry.Key, prefixAlloc)
			if kind == "events" {
				name = string(id)
			}
			return out.Line(archived{kind, name, entry.Value})
		}); err != nil {
			return err
		}
	}
	return out.Line(archived{Kind: "end", ID: string(id)})
}

// workflowPrefixes is where the records of a workflow lie, by kind.
func workflowPrefixes(id coordinator.WorkflowID) map[string]string {
	return map[string]string{"allocation": prefixAlloc + string(id) + "/", "events": prefixEvent + string(id) + "/"}
}

// erase removes what is left of a workflow that is out of sight.
func (e *Engine) erase(ctx context.Context, id coordinator.WorkflowID) error {
	var keys []string
	for _, prefix := range workflowPrefixes(id) {
		if err := walk(ctx, e.opt.Store, prefix, loadPage, func(entry store.Entry) error {
			keys = append(keys, entry.Key)
			return nil
		}); err != nil {
			return err
		}
	}
	if err := e.opt.Logs.Remove(id); err != nil {
		return err
	}
	return e.deleteKeys(ctx, append(keys, prefixExpired+string(id)))
}

// eraseRest goes on where a crash cut an erasing short.
func (e *Engine) eraseRest(ctx context.Context) error {
	var left []coordinator.WorkflowID
	err := walk(ctx, e.opt.Store, prefixExpired, loadPage, func(entry store.Entry) error {
		left = append(left, coordinator.WorkflowID(strings.TrimPrefix(entry.Key, prefixExpired)))
		return nil
	})
	for _, id := range left {
		err = errors.Join(err, e.erase(ctx, id))
	}
	return err
}

// deleteKeys deletes in the given order, not all at once.
func (e *Engine) deleteKeys(ctx context.Context, keys []string) error {
	for part := range slices.Chunk(keys, erasedAtOnce) {
		if err := e.do(ctx, func(t *tx) error {
			for group := range slices.Chunk(part, allocationsPerGroup) {
				for _, key := range group {
					t.delete(key)
				}
				t.group()
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// expireEvents forgets the cluster's own events that are older than retention.events; those of a workflow
// stay as long as the workflow.
func (e *Engine) expireEvents(ctx context.Context) error {
	all := func(events []Event) (lines []any) {
		for _, ev := range events {
			lines = append(lines, ev)
		}
		return lines
	}
	newest := func(events []Event) (t time.Time) {
		if len(events) > 0 {
			t = events[len(events)-1].Time
		}
		return t
	}
	return expireOld(ctx, e, prefixEvent+"-/", "events", func(r retention) time.Duration { return r.Events }, all, newest)
}

type retention = config.Retention

// expireOld archives and forgets the records under a prefix, which are in the order of time, that are older than keep
// says; 0 keeps all.
func expireOld[T any](ctx context.Context, e *Engine, prefix, kind string, keep func(retention) time.Duration, lines func(T) []any, at func(T) time.Time) error {
	var before time.Time
	dir := ""
	err := e.view(ctx, func(s *state) {
		if r := s.config.checked.Retention; keep(r) > 0 {
			before, dir = e.opt.Now().Add(-keep(r)), r.Archive
		}
	})
	if err != nil || before.IsZero() {
		return err
	}
	var keys []string
	var old []any
	young := errors.New("the rest is younger")
	err = walk(ctx, e.opt.Store, prefix, eventPage, func(entry store.Entry) error {
		var rec T
		if err := decode(entry, &rec); err != nil {
			return err
		}
		if !at(rec).Before(before) || len(keys) >= maxExpired {
			return young
		}
		keys, old = append(keys, entry.Key), append(old, lines(rec)...)
		return nil
	})
	if errors.Is(err, young) {
		err = nil
	}
	if err != nil || len(keys) == 0 {
		return err
	}
	if dir != "" {
		err := archive.Append(dir, kind, e.opt.Now(), func(out *archive.Writer) error {
			for _, line := range old {
				if err := out.Line(line); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return e.deleteKeys(ctx, keys)
}

// expireRevisions forgets all but the newest configurations.
func (e *Engine) expireRevisions(ctx context.Context) error {
	return e.do(ctx, func(t *tx) error {
		s := t.state
		keep := s.config.checked.Retention.ConfigRevisions
		if keep <= 0 || len(s.revisions) <= keep {
			return nil
		}
		old := s.revisions[:len(s.revisions)-keep]
		for _, r := range old[:min(len(old), erasedAtOnce)] {
			t.delete(configKey(r.Revision))
			t.delete(yamlKey(r.Revision))
			t.group()
		}
		s.revisions = slices.Clone(s.revisions[min(len(old), erasedAtOnce):])
		return nil
	})
}
