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
	// askSoon is while a GPU has no driver, which may come late at a first boot, for so long as lateDriver.
	askSoon    = 15 * time.Second
	lateDriver = 30 * time.Minute
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
	began := time.Now()
	for {
		answers, warnings := about(ctx, n.root)
		changed := n.answered(asked{answers, warnings})
		if first != nil {
			close(first)
			first = nil
		}
		if _, driverless := n.usable(); changed || driverless > 0 {
			n.read()
		}
		select {
		case <-time.After(n.askAgain(time.Since(began))):
		case <-ctx.Done():
			return
		}
	}
}

// askAgain is when the next question is due, so long after the first.
func (n *node) askAgain(since time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if (n.env == nil || n.driverless > 0) && since < lateDriver {
		return askSoon
	}
	return askEvery
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
