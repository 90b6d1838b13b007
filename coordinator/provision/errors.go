package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is the closed set of what can go wrong at a provider.
type Fault uint8

const (
	FaultNone        Fault = iota
	FaultNotFound          // there is no such instance
	FaultNoCapacity        // the provider has none of this now; others may
	FaultQuota             // the account may have no more of it
	FaultThrottled         // asked too often
	FaultDenied            // the account may not
	FaultClockSkew         // the provider does not believe our clock
	FaultInvalid           // the request is wrong and stays wrong: type, image, partition
	FaultUnsupported       // this backend cannot
	FaultTransient         // anything that may go better next time; the outcome can be unknown
	FaultUnreachable       // the instance ran and its agent never came
	FaultInterrupted       // the provider took the instance back
)

func faultWords() []string {
	return []string{"none", "not-found", "no-capacity", "quota", "throttled", "denied", "clock-skew", "invalid", "unsupported", "transient",
		"unreachable", "interrupted"}
}

// String is the fault's word.
func (f Fault) String() string {
	if words := faultWords(); int(f) < len(words) {
		return words[f]
	}
	return fmt.Sprintf("fault %d", f)
}

// MarshalText writes the fault's word.
func (f Fault) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads a fault's word and nothing else.
func (f *Fault) UnmarshalText(b []byte) error {
	i := slices.Index(faultWords(), string(b))
	if i < 0 {
		return fmt.Errorf("cannot read fault %q: expected one of %s", b, strings.Join(faultWords(), ", "))
	}
	*f = Fault(i)
	return nil
}

// Again reports whether the same call is worth repeating soon: the launch stands, and the same id is used.
func (f Fault) Again() bool {
	return f == FaultThrottled || f == FaultTransient || f == FaultClockSkew
}

// Pause is how long a definition counts as unavailable after a launch of it has failed.
func (f Fault) Pause() time.Duration {
	switch f {
	case FaultNoCapacity, FaultInterrupted, FaultUnreachable:
		return 3 * time.Minute
	case FaultQuota, FaultDenied, FaultInvalid, FaultUnsupported:
		return 10 * time.Minute
	}
	return 0
}

// Error is what a call to a provider came to.
type Error struct {
	Fault Fault
	Op    string        // "<verb> <object>", without "cannot"
	After time.Duration // not before that, by the provider's word; 0: it gave none
	Hint  string
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("cannot %s: %v", e.Op, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error.
func Errorf(fault Fault, op, format string, args ...any) *Error {
	return &Error{Fault: fault, Op: op, Err: fmt.Errorf(format, args...)}
}

// FaultOf is the fault of the first *Error in err's chain. Anything else is transient, as what is known of it is nothing.
func FaultOf(err error) Fault {
	var e *Error
	switch {
	case err == nil:
		return FaultNone
	case errors.As(err, &e):
		return e.Fault
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return FaultTransient
	}
	return FaultTransient
}
