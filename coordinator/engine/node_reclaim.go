package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"substrate/coordinator"
)

// takenMargin is left between the end of notices on a node and the time at which its provider takes it: ends have to be told too.
const takenMargin = 5 * time.Second

// maxTakenText bounds a provider's words, in bytes.
const maxTakenText = 200

func (n *node) takenText() string {
	return fmt.Sprintf("its provider takes it back at %s: %s", moment(n.record.Taken), n.record.TakenText)
}

// Reclaim takes in that the node's provider takes it back at a time; zero: not any more. Nothing new comes there, and work that would run again elsewhere
// gets its notice, shortened to that time (rule 21). Other work runs on for as long as the machine does: it may be over in time.
func (s *Session) Reclaim(ctx context.Context, at time.Time, text string) error {
	text = strings.ToValidUTF8(text[:min(len(text), maxTakenText)], "")
	return s.engine.doReport(ctx, func(t *tx) error {
		n, err := s.current(t)
		if err != nil {
			return err
		}
		at = at.UTC()
		if n.record.Taken.Equal(at) || !at.IsZero() && !n.record.Taken.IsZero() && !at.Before(n.record.Taken) {
			return nil
		}
		n.record.Taken, n.record.TakenText = at, text
		t.put(prefixNode+string(n.id), n.record)
		t.group()
		t.state.changedNode(n)
		t.state.dirty = true
		meta := map[string]string{"definition": string(n.record.Definition), "launch": n.record.Launch}
		if at.IsZero() {
			t.event(Event{Kind: "node-kept", Subject: string(n.id), Message: "its provider does not take it back any more", Metadata: meta})
			return nil
		}
		meta["at"] = at.Format(time.RFC3339)
		t.event(Event{Kind: "node-taken-back", Subject: string(n.id), Message: n.takenText(), Metadata: meta})
		t.sendOff(n)
		return nil
	})
}

// taken reports whether all of a launch's nodes are taken back by their provider, and nothing runs there any more.
func (t *tx) taken(l *launch) bool {
	for _, id := range l.record.Joined {
		if n := t.state.nodes[id]; n == nil || n.record.Taken.IsZero() {
			return false
		}
	}
	return len(l.record.Joined) > 0 && !t.busy(l)
}

// sendOff gives notice to the work of a node that is taken back.
func (t *tx) sendOff(n *node) {
	ends := t.now.Add(t.state.config.Scheduler.PreemptionNotice)
	if last := n.record.Taken.Add(-takenMargin); last.Before(ends) {
		ends = last
	}
	if ends.Before(t.now) {
		ends = t.now
	}
	for _, a := range sortedAllocations(n.active) {
		spec := a.job.spec
		switch {
		case a.record.Stop != "":
		case spec.Class == coordinator.ClassBatch && spec.RetryOnPreempt:
			t.giveNotice(a, ends)
		case spec.Restart != coordinator.RestartNever:
			a.record.NoticeEnds, a.record.Stop = ends, stopRequeue
			t.set(a, coordinator.StatusPreempting)
			t.stop(a, ends.Sub(t.now), string(stopRequeue))
		}
	}
}

// leavesTakenNode reports whether a node of a piece of work is being taken back.
func (t *tx) leavesTakenNode(a *allocation) bool {
	for _, p := range a.record.Ranks {
		if n := t.state.nodes[p.Node]; n != nil && !n.record.Taken.IsZero() {
			return true
		}
	}
	return false
}
