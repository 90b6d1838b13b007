package server

import (
	"net/netip"
	"sync"
	"time"

	"substrate/coordinator"
)

// Limits of failed log-ins: enough for a person's typing errors, too few for guessing.
const (
	failuresAllowed = 20
	failureWindow   = time.Minute
	failureSources  = 4096 // addresses remembered; the oldest goes first
)

// failures counts failed authentications per source address in fixed windows.
type failures struct {
	mu    sync.Mutex
	since map[string]*failureCount
	order []string // oldest window first
}

type failureCount struct {
	start time.Time
	count int
}

// judge counts a refused credential and returns what its sender gets to hear: the refusal, or that it has
// tried too often. Errors of another kind pass uncounted.
func (f *failures) judge(op, from string, now time.Time, err error) error {
	if k := coordinator.ErrorKindOf(err); k != coordinator.ErrUnauthenticated && k != coordinator.ErrDenied {
		return err
	}
	source := sourceOf(from)
	if f.blocked(source, now) {
		return coordinator.Errorf(coordinator.ErrExhausted, op, "too many failed attempts from %s", source).
			WithHint("wait a minute")
	}
	f.add(source, now)
	return err
}

// blocked reports whether the source has used up its failures.
func (f *failures) blocked(source string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.since[source]
	return c != nil && now.Sub(c.start) < failureWindow && c.count >= failuresAllowed
}

// add records one failure.
func (f *failures) add(source string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since == nil {
		f.since = make(map[string]*failureCount)
	}
	if c := f.since[source]; c != nil && now.Sub(c.start) < failureWindow {
		c.count++
		return
	}
	if _, known := f.since[source]; known {
		f.forget(source)
	}
	for len(f.order) >= failureSources {
		f.forget(f.order[0])
	}
	f.since[source] = &failureCount{start: now, count: 1}
	f.order = append(f.order, source)
}

func (f *failures) forget(source string) {
	delete(f.since, source)
	for i, s := range f.order {
		if s == source {
			f.order = append(f.order[:i:i], f.order[i+1:]...)
			return
		}
	}
}

// sourceOf is the part of an address that one party holds: an IPv4 address, an IPv6 /64.
func sourceOf(address string) string {
	if ap, err := netip.ParseAddrPort(address); err == nil {
		return sourceOfAddr(ap.Addr())
	}
	if a, err := netip.ParseAddr(address); err == nil {
		return sourceOfAddr(a)
	}
	return address
}

func sourceOfAddr(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	p, err := a.Prefix(64)
	if err != nil {
		return a.String()
	}
	return p.String()
}
