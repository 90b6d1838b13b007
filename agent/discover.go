package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"substrate/hwinfo"
	"substrate/proto/agentv1"
)

const (
	lookEvery = 3 * time.Second  // at what drivers have brought up meanwhile
	askWithin = 30 * time.Second // programs about GPUs, which hang where a driver is half up
)

// errTaken ends a look: the coordinator has stored what it has seen.
var errTaken = errors.New("the report is stored")

// look is what an agent knows that is there for a look at the hardware.
type look struct {
	end     context.CancelCauseFunc
	welcome chan struct{} // closed once the coordinator has said what it waits for

	mu    sync.Mutex
	wants *agentv1.Look
	until time.Time
	final []byte // digest of the last report, nil before there is one
}

// Discover reports what a node is that was launched for that alone: once all is there that the coordinator expects, or the time for it is over. It
// returns nil when the coordinator has stored that. It runs no jobs; opts need no Runtime.
func Discover(ctx context.Context, opts Options) error {
	opts.Runtimes = []string{} // none
	a, err := prepare(opts)
	if err != nil {
		return err
	}
	defer a.fence.close()
	defer a.table.close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	a.look = &look{end: end, welcome: make(chan struct{})}
	var g errgroup.Group
	g.Go(func() error { a.watch(ctx); return nil })
	g.Go(func() error { a.connectLoop(ctx); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTaken):
		return nil
	case errors.Is(cause, context.Canceled):
		return errors.New("cannot report hardware: told to stop before the coordinator had stored it")
	default:
		return cause
	}
}

// watch reads the hardware until it is complete or its time is over, and then makes the last report.
func (a *Agent) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var before map[string]uint32
	welcome := a.look.welcome
	for first := true; ; first = false {
		asking, cancel := context.WithTimeout(ctx, a.look.askWithin())
		answers, warnings := a.opts.Ask(asking, a.opts.Root)
		cancel()
		if ctx.Err() != nil {
			return
		}
		a.node.answered(asked{answers, warnings})
		a.node.read()
		has, driverless := a.node.usable()
		wants, until := a.look.expects()
		missing := lacks(wants, has, driverless)
		// Drivers bring up one device after the other: where any are expected, two looks in a row have to agree.
		calm := !first && maps.Equal(has, before) || len(has) == 0 && driverless == 0
		before = has
		var over <-chan time.Time
		switch {
		case wants == nil: // nothing is known of it yet
		case missing == "" && calm:
			a.look.last(a.node, "")
			return
		case !time.Now().Before(until):
			a.look.last(a.node, missing)
			return
		default:
			over = time.After(time.Until(until))
			if first {
				a.opts.Log.Info("waiting for hardware", "missing", missing, "until", until.UTC().Format(time.RFC3339))
			}
		}
		select {
		case <-welcome:
			welcome = nil // once
		case <-tick.C:
		case <-over:
		case <-ctx.Done():
			return
		}
	}
}

// lacks says what of an expectation is not there, "" when all is.
func lacks(wants *agentv1.Look, has map[string]uint32, driverless int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(wants.GetDevices())) {
		if n := wants.GetDevices()[kind]; has[kind] < n {
			parts = append(parts, fmt.Sprintf("%d of %d %s", has[kind], n, kind))
		}
	}
	for _, kind := range wants.GetSome() {
		if has[kind] == 0 {
			parts = append(parts, "no "+kind)
		}
	}
	if driverless > 0 {
		parts = append(parts, fmt.Sprintf("%d GPUs without a driver", driverless))
	}
	return strings.Join(parts, ", ")
}

// usable are the devices that work can use, and how many GPUs have no driver.
func (n *node) usable() (has map[string]uint32, driverless int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.devices, n.driverless
}

// expects is what the coordinator waits for, nil before it has said so.
func (l *look) expects() (*agentv1.Look, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wants, l.until
}

// askWithin is how long programs may take: not longer than there is time to settle.
func (l *look) askWithin() time.Duration {
	wants, until := l.expects()
	if wants == nil {
		return askWithin
	}
	return min(askWithin, max(time.Until(until), time.Second))
}

// welcomed takes what the coordinator waits for. The end of the time for it is what it said first: it may have had another life since.
func (l *look) welcomed(w *agentv1.Look) error {
	if w == nil {
		err := errors.New("cannot discover hardware: the coordinator did not launch this node for a look at it")
		l.end(err)
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wants == nil {
		l.until = time.Now().Add(duration(w.GetWithin()))
		close(l.welcome)
	}
	l.wants = w
	return nil
}

// last marks the report that there is as the last one, with what is missing in it.
func (l *look) last(n *node, missing string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if missing != "" {
		n.notes = append(n.notes, hwinfo.Warning{Source: "discover", Message: "when the time to settle was over, there were " + missing})
	}
	l.final = n.hardware.GetDigest()
	n.final = true
	n.reports.hardware++
	poke(n.wake)
}

// hear takes what the coordinator says to a node that runs nothing.
func (l *look) hear(m *agentv1.ToAgent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if digest := m.GetAck().GetHardware(); len(digest) > 0 && bytes.Equal(digest, l.final) {
		l.end(errTaken)
	}
}

// refused ends a look whose node the coordinator does not know any more: it is not to wait for anything.
func (l *look) refused(err error) {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.FailedPrecondition:
		l.end(fmt.Errorf("cannot report hardware: %w", err))
	}
}
