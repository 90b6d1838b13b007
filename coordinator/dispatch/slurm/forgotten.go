package slurm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"substrate/coordinator/dispatch"
)

const (
	// bootAge is for how long slurmctld counts as not started anew.
	bootAge = time.Minute
	// settling is how long slurmctld runs until it has told accounting what its last life had not: the ends of jobs may be among that.
	settling = 30 * time.Second
)

// boot is when slurmctld began its life, by its own clock, and for how long it ran when asked.
type boot struct {
	at    time.Time // zero when it does not say
	ran   time.Duration
	asked time.Time // by ours
}

// boots keeps the last one.
type boots struct {
	mu   sync.Mutex
	last boot
}

// open reports whether accounting has a row for what it believes to wait or run.
func (r row) open() bool {
	return r.history && r.end.IsZero() && slices.Contains([]string{"PENDING", "RUNNING", "SUSPENDED", "RESIZING"}, r.state)
}

// begun reports whether an open row is of a job that had started, as PENDING with a start or after another execution.
func (r row) begun() bool {
	return r.state != "PENDING" || !r.start.IsZero() || len(r.nodes) > 0 || r.restarts > 0
}

// forgot judges an open row of a job that squeue does not know. A controller keeps what is not over as long as it lives. One that began later
// than the job was submitted has lost its last life's end with the job, and nobody will ever end the row. What had not started by then
// is not found. What had may live on where it ran: it is given up, in doubt.
func (b *Backend) forgot(ctx context.Context, op string, r row) (row, error) {
	if !r.open() || r.submit.IsZero() {
		return r, nil
	}
	began, err := b.beganAfter(ctx, op, r.submit)
	switch {
	case err != nil || !began:
		return r, err
	case r.begun():
		r.forgotten = true
		r.raw += ", and the controller has forgotten it"
		return r, nil
	}
	return row{}, fmt.Errorf("cannot %s: %w: the controller has forgotten it, and accounting has nothing later than %s", op, dispatch.ErrNotFound, r.state)
}

// beganAfter reports whether slurmctld began its life after a moment that an earlier life of it has noted, and has run for a while. Both times
// are the controller's, in whole seconds, so that no difference to our clock is in them.
func (b *Backend) beganAfter(ctx context.Context, op string, moment time.Time) (bool, error) {
	now := b.opt.Clock.Now()
	b.boots.mu.Lock()
	last := b.boots.last
	b.boots.mu.Unlock()
	if !last.at.After(moment) && (last.asked.IsZero() || now.Sub(last.asked).Abs() >= bootAge) {
		r, err := b.read(ctx, op, "scontrol", "show", "config")
		if err != nil {
			return false, err
		}
		if last, err = parseBoot(string(r.Stdout)); err != nil {
			return false, fmt.Errorf("cannot %s: %w: %w", op, dispatch.ErrUnavailable, err)
		}
		last.asked = now
		b.boots.mu.Lock()
		b.boots.last = last
		b.boots.mu.Unlock()
	}
	return last.at.After(moment) && last.ran+now.Sub(last.asked) >= settling, nil
}

// parseBoot reads from "scontrol show config" when slurmctld began.
func parseBoot(out string) (boot, error) {
	c, err := parseConfig(out)
	if err != nil {
		return boot{}, err
	}
	at, err := parseTime(c.values["BOOT_TIME"])
	if err != nil {
		return boot{}, fmt.Errorf("cannot read the configuration: BOOT_TIME: %w", err)
	}
	return boot{at: at, ran: c.asOf.Sub(at)}, nil
}
