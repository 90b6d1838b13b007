package agent

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"substrate/hwinfo"
)

const (
	// askEvery is how often programs are asked about GPUs: links stay while a node is up, but administrators split
	// GPUs at any time.
	askEvery = 10 * time.Minute
	// firstAnswer is how long the first report waits for them. One without links would be corrected soon after.
	firstAnswer = 5 * time.Second
)

// asked is what programs told about GPUs last.
type asked struct {
	answers  hwinfo.Answers
	warnings []hwinfo.Warning
}

// ask asks until ctx ends, and has the hardware read again when the answers change. Asking can take long or hang;
// nothing else waits for it. first is closed after the first time.
func (n *node) ask(ctx context.Context, about func(context.Context, string) (hwinfo.Answers, []hwinfo.Warning), first chan<- struct{}) {
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		answers, warnings := about(ctx, n.root)
		changed := n.answered(asked{answers, warnings})
		if first != nil {
			close(first)
			first = nil
		}
		if changed {
			n.read()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// answered takes answers. What was told before stands while programs fail: the links are still there.
func (n *node) answered(a asked) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.answers == nil && len(a.warnings) > 0 {
		a.answers = n.asked.answers
	}
	changed = !maps.EqualFunc(a.answers, n.asked.answers, bytes.Equal) || !slices.Equal(a.warnings, n.asked.warnings)
	n.asked = a
	return changed
}

// readFirst makes the first report, with the answers if they come soon.
func (n *node) readFirst(ctx context.Context, answered <-chan struct{}) {
	select {
	case <-answered:
	case <-time.After(firstAnswer):
	case <-ctx.Done():
	}
	n.read()
}
