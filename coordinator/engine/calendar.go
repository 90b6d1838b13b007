package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"substrate/coordinator/archive"
	"substrate/coordinator/store"
)

// planCalendar works out which reservations and windows are not over, and when the next of them begins or ends.
func (s *state) planCalendar() {
	s.openReservations = slices.DeleteFunc(s.sortedReservations(), (*reservation).over)
	s.openWindows = slices.DeleteFunc(s.sortedWindows(), (*window).over)
	s.nextDate = time.Time{}
	for _, r := range s.openReservations {
		s.dueAt(r.record.From, r.record.Until, !r.record.Began.IsZero())
	}
	for _, w := range s.openWindows {
		s.dueAt(w.record.From, w.record.Until, !w.record.Began.IsZero())
	}
}

func (s *state) dueAt(from, until time.Time, began bool) {
	due := from
	if began || !until.After(from) {
		due = until
	}
	if s.nextDate.IsZero() || due.Before(s.nextDate) {
		s.nextDate = due
	}
}

// calendar tells of what begins and ends by its time. What a coordinator slept over is told when it is back.
func (t *tx) calendar() {
	s := t.state
	if s.nextDate.IsZero() || t.now.Before(s.nextDate) {
		return
	}
	for _, r := range s.openReservations {
		switch rec := &r.record; {
		case !t.now.Before(rec.Until):
			t.endReservation(r, rec.Until, "")
		case rec.Began.IsZero() && !t.now.Before(rec.From):
			rec.Began = t.now
			t.put(r.key(), rec)
			t.group()
			t.event(Event{Kind: "reservation-began", Subject: rec.Name, Message: r.size() + " for " + s.holderOf(r) + " until " + moment(rec.Until)})
			s.dirty = true
		}
	}
	for _, w := range s.openWindows {
		switch rec := &w.record; {
		case !t.now.Before(rec.Until):
			rec.Ended = rec.Until
			t.tell(w, StatusEnded, "")
		case rec.Began.IsZero() && !t.now.Before(rec.From):
			rec.Began = t.now
			t.tell(w, StatusBegun, "")
		}
	}
	s.planCalendar()
}

// expireCalendar forgets reservations, maintenance and entries of the status history that are older than retention.events.
func (e *Engine) expireCalendar(ctx context.Context) error {
	var keys []string
	dir := ""
	now := e.opt.Now()
	if err := e.view(ctx, func(s *state) {
		keep := s.config.checked.Retention
		if keep.Events > 0 {
			keys, dir = s.datedBefore(now.Add(-keep.Events)), keep.Archive
		}
	}); err != nil || len(keys) == 0 {
		return err
	}
	if dir != "" {
		if err := archive.Append(dir, "calendar", now, func(out *archive.Writer) error { return e.archiveKeys(ctx, keys, out) }); err != nil {
			return err
		}
	}
	return e.forgetDated(ctx, keys)
}

// datedBefore lists the keys of what was over before a time. The newest entry of the history stays: numbers go on from it.
func (s *state) datedBefore(before time.Time) (keys []string) {
	for _, r := range s.sortedReservations() {
		if r.over() && r.record.Ended.Before(before) {
			keys = append(keys, r.key())
		}
	}
	for _, w := range s.sortedWindows() {
		if w.over() && w.record.Ended.Before(before) {
			keys = append(keys, w.key())
		}
	}
	for i := range max(len(s.history)-1, 0) {
		if entry := &s.history[i]; entry.Time.Before(before) {
			keys = append(keys, statusKey(entry.Number))
		}
	}
	return keys[:min(len(keys), maxExpired)]
}

func (e *Engine) archiveKeys(ctx context.Context, keys []string, out *archive.Writer) error {
	for _, key := range keys {
		entry, err := e.opt.Store.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := out.Line(archived{"calendar", key, entry.Value}); err != nil {
			return err
		}
	}
	return nil
}

// forgetDated takes records out of sight and deletes them.
func (e *Engine) forgetDated(ctx context.Context, keys []string) error {
	if err := e.deleteKeys(ctx, keys); err != nil {
		return err
	}
	gone := make(map[string]bool, len(keys))
	for _, key := range keys {
		gone[key] = true
	}
	return e.doBare(ctx, func(t *tx) error {
		s := t.state
		for id, r := range s.reservations {
			if gone[r.key()] {
				delete(s.reservations, id)
				delete(s.reservationKeys, r.record.Idempotency)
			}
		}
		for id, w := range s.windows {
			if gone[w.key()] {
				delete(s.windows, id)
				delete(s.windowKeys, w.record.Idempotency)
			}
		}
		left := s.history[:0:0]
		for _, entry := range s.history {
			if !gone[statusKey(entry.Number)] {
				left = append(left, entry)
			}
		}
		s.history = left
		return nil
	})
}
