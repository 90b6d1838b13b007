package pbs

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"path"
	"strings"
	"time"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// Runner runs commands where the complex's client programs are; see transport.Transport.
type Runner interface {
	Run(ctx context.Context, c transport.Command) (transport.Result, error)
	Slack() time.Duration
}

// Options say how a complex is reached and what is known of it.
type Options struct {
	Runner Runner
	Clock  dispatch.Clock
	Log    *slog.Logger // nil: none

	ReadOnly         bool
	CessationCommand []string // see Backend.Ceased; nil: none
	// CredentialTTL is how long after a command was killed the server may still take what it had sent. PBS's own requests never expire, so only
	// who runs the server can tell; nil: nobody knows.
	CredentialTTL *time.Duration
	Skew          *time.Duration // added to CredentialTTL; nil: 0
	OutputDir     string         // absolute, the same on all nodes; "": .substrate/output in the account's home
	CacheDir      string         // where a probe's answers are kept; "": nowhere
	Reprobe       bool           // although there is a cached answer
	ProbeArgs     []string       // of the probe's submission, where a complex needs a queue or a project
	User          string         // whose jobs are ours, where that is not the account's name; "": what id -un says

	Deadline    time.Duration // of one command; 0: 60 s
	FollowEvery time.Duration // 0: 2 s
	Nonce       func() string // separators; nil: chance
}

const (
	// deadline: an unreachable host is given up by the commands after 71 s, a requeue blocks for 7 s and more.
	deadline  = time.Minute
	pollEvery = 2 * time.Second
)

func (o Options) check() (Options, error) {
	switch {
	case o.Runner == nil || o.Clock == nil:
		return o, errors.New("cannot use pbs: runner and clock must be given")
	case o.OutputDir != "" && (!strings.HasPrefix(o.OutputDir, "/") || path.Clean(o.OutputDir) != o.OutputDir || strings.ContainsAny(o.OutputDir, "\n\x00")):
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use pbs", "the output directory %q is not an absolute, clean path", o.OutputDir)
	case len(o.CessationCommand) > 0 && !strings.HasPrefix(o.CessationCommand[0], "/"):
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use pbs", "the cessation command %q is not an absolute path", o.CessationCommand[0])
	}
	if err := checkExtra(o.ProbeArgs); err != nil {
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use pbs", "the probe's arguments: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Deadline = positive(o.Deadline, deadline)
	o.FollowEvery = positive(o.FollowEvery, pollEvery)
	if o.Nonce == nil {
		o.Nonce = func() string { return rand.Text()[:12] }
	}
	return o, nil
}

func positive(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}
