package pbs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"substrate/coordinator"
	"substrate/coordinator/dispatch"
	"substrate/coordinator/dispatch/transport"
)

// passed are the variables by which a session finds its complex; PBS's others, as PBS_DPREFIX, would change commands.
func passed() []string { return []string{"PBS_CONF_FILE", "PBS_EXEC", "LD_LIBRARY_PATH"} }

// reading is the environment of commands whose answers are read: times come in the client's zone, without naming it.
func reading() []string { return []string{"LC_ALL=C", "TZ=UTC"} }

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

// listingLimit is how much of an answer is read: some 50,000 jobs.
const listingLimit = 96 << 20

// read runs a command that changes nothing.
func (b *Backend) read(ctx context.Context, op string, argv ...string) (transport.Result, error) {
	return b.run(ctx, op, false, transport.Command{Argv: argv, Env: reading(), Limit: listingLimit})
}

// change runs one that does.
func (b *Backend) change(ctx context.Context, op string, argv ...string) error {
	_, err := b.run(ctx, op, true, transport.Command{Argv: argv, Env: reading()})
	return err
}

func (b *Backend) run(ctx context.Context, op string, changes bool, c transport.Command) (transport.Result, error) {
	c.Keep, c.Timeout = passed(), b.opt.Deadline
	r, err := b.opt.Runner.Run(ctx, c)
	said := strings.TrimSpace(string(r.Stderr))
	fail := func(kind error) (transport.Result, error) {
		return r, &failure{op: op, kind: kind, said: firstLines(said), err: err, exit: r.Exit}
	}
	unknown := dispatch.ErrUnavailable
	if changes {
		unknown = dispatch.ErrOutcomeUnknown
	}
	switch {
	case err != nil && r.Started:
		return fail(unknown)
	case err != nil && coordinator.ErrorKindOf(err) == coordinator.ErrDenied:
		return fail(dispatch.ErrDenied)
	case err != nil:
		return fail(dispatch.ErrUnavailable)
	case r.Truncated:
		err = fmt.Errorf("the answer has more than %d bytes", len(r.Stdout))
		return fail(unknown)
	case r.Exit == 0:
		return r, nil
	case r.Exit == 126 || r.Exit == 127:
		err = errors.New("PBS's commands are not there; is the client installed, and on the PATH of a session without a terminal?")
		return fail(dispatch.ErrUnavailable)
	}
	kind := classify(r.Exit, said)
	switch {
	case kind == nil && changes && r.Exit < 128:
		kind = dispatch.ErrRefused
	case kind == nil: // killed, or of an error that is not known here
		kind = unknown
	case !changes && (errors.Is(kind, dispatch.ErrOutcomeUnknown) || errors.Is(kind, dispatch.ErrRefused)):
		kind = dispatch.ErrUnavailable
	}
	return fail(kind)
}

// firstLines keeps messages short enough for an error.
func firstLines(s string) string {
	const most = 2000
	if len(s) > most {
		s = s[:most] + " …"
	}
	return s
}

// classify reads how a command ended. Its status is PBS's error number without its hundreds, which others may share: a text that is known counts
// first. nil: it says nothing that is known here.
func classify(exit int, said string) error {
	has := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(said, t) {
				return true
			}
		}
		return false
	}
	switch {
	case has("Unknown Job Id", "illegally formed job identifier", "Job has been purged"):
		return dispatch.ErrNotFound
	case has("Job has finished"):
		return dispatch.ErrEnded
	// The connection was never made, or the server does not reach the node: nothing has changed.
	case has("cannot connect to server", "Couldn't connect to cluster", "Connection refused", "No route to host", "Network is unreachable", "Connection timed out",
		"Unknown Host", "Server could not connect to MOM", "could not locate daemon", "errno=15010", "errno=15008", "errno=15007", "errno=15031", "Server shutdown"):
		return dispatch.ErrUnavailable
	// It broke after that.
	case has("Connection reset by peer", "Broken pipe", "End of File", "Premature end of message", "Protocol (ASN.1) error", "Communication failure", "Error reading"):
		return dispatch.ErrOutcomeUnknown
	case has("Unauthorized Request", "Bad UID for job execution", "Bad GID for job execution", "Access from host not allowed", "insufficient permission", "Invalid credential"):
		return dispatch.ErrDenied
	case has("Cannot modify attribute while job running"):
		return dispatch.ErrNotPending
	}
	switch exit {
	case 153:
		return dispatch.ErrNotFound
	case 35:
		return dispatch.ErrEnded
	case 162, 222, 255:
		return dispatch.ErrUnavailable
	case 159, 175:
		return dispatch.ErrDenied
	case 167:
		return dispatch.ErrNotPending
	case 154, 155, 156, 160, 165, 166, 168, 170, 173, 187, 188, 190, 32, 38, 1, 2, 3, 5, 12:
		return dispatch.ErrRefused
	}
	return nil
}
