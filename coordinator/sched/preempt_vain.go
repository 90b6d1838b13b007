package sched

import (
	"time"

	"substrate/coordinator"
)

// inVain reports whether estimates have come to an attempt that is known to fail.
func (s *Scheduler) inVain(sh *shape, e *entry) bool {
	f := &sh.vain
	if s.stepping && sh.party.booking == nil && (!s.rules.enabled || len(e.preempts) == 0) && s.allProtected() {
		return true
	}
	if !s.stepping || f.of != e || f.booking != sh.party.booking {
		return false
	}
	until := f.until
	if f.offered < len(s.offered) {
		until = min(until, s.rules.exposed(s.offered[f.offered], f.booking != nil))
	}
	if s.c.now >= until {
		return false
	}
	s.wake = min(s.wake, until)
	return true
}

// exposure is when the first batch work is not protected from on-demand work any more, of what ran when that was asked.
type exposure struct {
	known   bool
	asked   time.Duration
	at      time.Duration
	offered int
}

// allProtected reports whether all batch work is still protected from on-demand work, and wakes estimates when that changes.
func (s *Scheduler) allProtected() bool {
	x, c := &s.exposed, s.c
	first := func() time.Duration {
		if x.offered < len(s.offered) {
			return min(x.at, s.rules.exposed(s.offered[x.offered], false))
		}
		return x.at
	}
	if !x.known || x.asked < c.now && first() <= c.now {
		*x = exposure{known: true, asked: c.now, at: never, offered: len(s.offered)}
		for _, h := range c.claims {
			if h.class == coordinator.ClassBatch && h.left != 0 && !c.dying(h) {
				x.at = min(x.at, s.rules.exposed(h.started, false))
			}
		}
		c.work += len(c.claims) / 4
	}
	if first() <= c.now {
		return false
	}
	s.wake = min(s.wake, first())
	return true
}

// noteVain notes when an attempt that failed is worth another one.
func (s *Scheduler) noteVain(sh *shape, e *entry, looks int) {
	a := sh.tried
	if !a.waits {
		s.wake = min(s.wake, a.wake)
		if !a.nobody { // who gives way may do together with who ends anyhow
			s.wake = min(s.wake, a.ripe)
		}
	}
	if !s.stepping {
		return
	}
	s.c.work += looks
	sh.vain = futile{}
	if a.nobody && !a.waits {
		sh.vain = futile{of: e, booking: sh.party.booking, until: a.wake, offered: len(s.offered)}
	}
}
