package slurm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// passed are the variables by which a session finds its cluster; all others of Slurm's, as SBATCH_PARTITION, would change commands.
func passed() []string { return []string{"SLURM_CONF", "LD_LIBRARY_PATH"} }

// reading is the environment of commands whose answers are read.
func reading() []string { return []string{"LC_ALL=C", "TZ=UTC", "SLURM_TIME_FORMAT=%s"} }

// failure is why a command has not had its effect, or why nobody knows.
type failure struct {
	op   string // "<verb> <object>"
	kind error  // of dispatch's
	said string
	err  error // of the transport; nil when the command ended by itself
	exit int
}

func (f *failure) Error() string {
	cause := f.said
	switch {
	case f.err != nil && cause != "":
		cause = f.err.Error() + ": " + cause
	case f.err != nil:
		cause = f.err.Error()
	case cause == "":
		cause = fmt.Sprintf("exit status %d", f.exit)
	}
	return fmt.Sprintf("cannot %s: %v: %s", f.op, f.kind, cause)
}

func (f *failure) Unwrap() []error {
	if f.err == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.err}
}

// read runs a command that changes nothing.
func (b *Backend) read(ctx context.Context, op string, argv ...string) (transport.Result, error) {
	return b.run(ctx, op, false, transport.Command{Argv: argv, Env: reading()})
}

// change runs one that does.
func (b *Backend) change(ctx context.Context, op string, argv ...string) (transport.Result, error) {
	return b.run(ctx, op, true, transport.Command{Argv: argv, Env: reading()})
}

func (b *Backend) run(ctx context.Context, op string, changes bool, c transport.Command) (transport.Result, error) {
	c.Keep, c.Timeout = passed(), b.opt.Deadline
	r, err := b.opt.Runner.Run(ctx, c)
	said := strings.TrimSpace(string(r.Stderr))
	fail := func(kind error) (transport.Result, error) {
		return r, &failure{op: op, kind: kind, said: firstLines(said), err: err, exit: r.Exit}
	}
	switch {
	case err != nil && changes && r.Started:
		return fail(dispatch.ErrOutcomeUnknown)
	case err != nil && coordinator.ErrorKindOf(err) == coordinator.ErrDenied:
		return fail(dispatch.ErrDenied)
	case err != nil:
		return fail(dispatch.ErrUnavailable)
	case r.Truncated:
		err = fmt.Errorf("the answer has more than %d bytes", len(r.Stdout))
		if changes {
			return fail(dispatch.ErrOutcomeUnknown)
		}
		return fail(dispatch.ErrUnavailable)
	case r.Exit == 0:
		return r, nil
	case r.Exit == 126 || r.Exit == 127:
		err = errors.New("Slurm's commands are not there; is the client installed, and on the PATH of a session without a terminal?")
		return fail(dispatch.ErrUnavailable)
	}
	return fail(classify(said, r.Exit, changes))
}

// firstLines keeps messages short enough for an error.
func firstLines(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + " …"
	}
	return s
}

// classify reads what a command said that ended with an error. The texts are those of slurm_errno.c. Statuses tell little: scancel's are
// errors' numbers, of which 128 and more look as if a signal had ended it.
func classify(said string, exit int, changes bool) error {
	has := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(said, t) {
				return true
			}
		}
		return false
	}
	switch {
	// The connection was never made, the credential not taken, or the controller said that it cannot now: nothing has changed.
	case has("(connect failure)", "Communication connection failure", "Connection refused", "No route to host", "Network is unreachable",
		"Unable to establish", "Protocol authentication error", "Invalid authentication credential", "Munge encode failed", "munge", "backup controller in standby",
		"temporarily unable to accept", "Resource temporarily unavailable", "Could not establish a configuration source", "Unable to resolve"):
		return dispatch.ErrUnavailable
	// It broke after that. What a controller that dies makes of "scontrol update" is an unexpected message.
	case has("Unexpected message received", "Socket timed out", "Zero Bytes were transmitted", "(send failure)", "(receive failure)", "(shutdown failure)",
		"Message send failure", "Message receive failure", "Communication shutdown failure", "Insane message length", "Incomplete message", "Connection reset by peer",
		"Broken pipe", "Connection timed out", "Transport endpoint", "Header lengths are longer"):
		if changes {
			return dispatch.ErrOutcomeUnknown
		}
		return dispatch.ErrUnavailable
	case has("Invalid job id"):
		return dispatch.ErrNotFound
	case has("Job has already finished", "Job/step already completing or completed"):
		return dispatch.ErrEnded
	case has("Job is no longer pending execution"):
		return dispatch.ErrNotPending
	case has("Access/permission denied", "Invalid user id", "group not permitted", "account not permitted", "Invalid account or account/partition", "User not found"):
		return dispatch.ErrDenied
	case changes && exit >= 128 && exit <= 128+64:
		return dispatch.ErrOutcomeUnknown // a signal ended it
	case changes:
		return dispatch.ErrRefused
	}
	return dispatch.ErrUnavailable
}
