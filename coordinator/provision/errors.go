package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is the closed set of what can go wrong at a provider.
type Kind uint8

const (
	KindNone        Kind = iota
	KindNotFound         // there is no such instance
	KindNoCapacity       // the provider has none of this now; others may
	KindQuota            // the account may have no more of it
	KindThrottled        // asked too often
	KindDenied           // the account may not
	KindClockSkew        // the provider does not believe our clock
	KindInvalid          // the request is wrong and stays wrong: type, image, partition
	KindUnsupported      // this backend cannot
	KindTransient        // anything that may go better next time; the outcome can be unknown
	KindUnreachable      // the instance ran and its agent never came
	KindInterrupted      // the provider took the instance back
)

func kindWords() []string {
	return []string{"none", "not-found", "no-capacity", "quota", "throttled", "denied", "clock-skew", "invalid", "unsupported", "transient",
		"unreachable", "interrupted"}
}

// String is the kind's word.
func (k Kind) String() string {
	if words := kindWords(); int(k) < len(words) {
		return words[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// MarshalText writes the kind's word.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a kind's word and nothing else.
func (k *Kind) UnmarshalText(b []byte) error {
	i := slices.Index(kindWords(), string(b))
	if i < 0 {
		return fmt.Errorf("cannot read kind %q: expected one of %s", b, strings.Join(kindWords(), ", "))
	}
	*k = Kind(i)
	return nil
}

// Again reports whether the same call is worth repeating soon: the launch stands, and the same id is used.
func (k Kind) Again() bool {
	return k == KindThrottled || k == KindTransient || k == KindClockSkew
}

// Pause is how long a definition counts as unavailable after a launch of it has failed.
func (k Kind) Pause() time.Duration {
	switch k {
	case KindNoCapacity, KindInterrupted, KindUnreachable:
		return 3 * time.Minute
	case KindQuota, KindDenied, KindInvalid, KindUnsupported:
		return 10 * time.Minute
	}
	return 0
}

// Error is what a call to a provider came to.
type Error struct {
	Kind  Kind
	Op    string        // "<verb> <object>", without "cannot"
	After time.Duration // not before that, by the provider's word; 0: it gave none
	Hint  string
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("cannot %s: %v", e.Op, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// KindOf is the kind of the first *Error in err's chain. Anything else is transient, as what is known of it is nothing.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return KindNone
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return KindTransient
	}
	return KindTransient
}
