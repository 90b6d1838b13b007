package slurm

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

// Runner runs commands where the cluster's client programs are; see transport.Transport.
type Runner interface {
	Run(ctx context.Context, c transport.Command) (transport.Result, error)
	Slack() time.Duration
}

// Options say how a cluster is reached and what is known of it.
type Options struct {
	Runner Runner
	Clock  dispatch.Clock
	Log    *slog.Logger // nil: none

	ReadOnly         bool
	CessationCommand []string       // see Backend.Ceased; nil: none
	CredentialTTL    *time.Duration // of the cluster's credentials; nil: AuthInfo's, or the default of its AuthType
	Skew             *time.Duration // the least that is allowed for between the clocks of client and controller; nil: what was measured
	OutputDir        string         // absolute, the same on all nodes; "": .substrate/output in the account's home
	CacheDir         string         // where a probe's answers are kept; "": nowhere
	Reprobe          bool           // although there is a cached answer
	ProbeArgs        []string       // of the probe's submission, where a cluster needs a partition or an account

	Deadline     time.Duration // of one command; 0: 30 s
	FollowEvery  time.Duration // 0: 2 s, like the next
	AccountEvery time.Duration
	FindWindow   time.Duration // how far back Find looks in accounting; 0: 30 days
	Nonce        func() string // separators; nil: chance
}

const (
	// deadline is more than the 9 to 18 seconds that clients take to say that the controller does not answer: who kills them before learns less.
	deadline   = 30 * time.Second
	pollEvery  = 2 * time.Second
	findWindow = 30 * 24 * time.Hour
)

func (o Options) check() (Options, error) {
	switch {
	case o.Runner == nil || o.Clock == nil:
		return o, errors.New("cannot use slurm: runner and clock must be given")
	case o.OutputDir != "" && (!strings.HasPrefix(o.OutputDir, "/") || path.Clean(o.OutputDir) != o.OutputDir || strings.ContainsAny(o.OutputDir, "\n\x00")):
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use slurm", "the output directory %q is not an absolute, clean path", o.OutputDir)
	case len(o.CessationCommand) > 0 && !strings.HasPrefix(o.CessationCommand[0], "/"):
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use slurm", "the cessation command %q is not an absolute path", o.CessationCommand[0])
	}
	if err := checkExtra(o.ProbeArgs); err != nil {
		return o, coordinator.Errorf(coordinator.ErrInvalid, "use slurm", "the probe's arguments: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Deadline = positive(o.Deadline, deadline)
	o.FollowEvery = positive(o.FollowEvery, pollEvery)
	o.AccountEvery = positive(o.AccountEvery, pollEvery)
	o.FindWindow = positive(o.FindWindow, findWindow)
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
