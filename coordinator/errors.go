package coordinator

import (
	"errors"
	"fmt"
)

// ErrorKind is the closed, append-only set of error kinds. coordinator/server maps them to
// gRPC and HTTP status, cmd/substrate to exit codes.
type ErrorKind uint8

const (
	ErrInternal ErrorKind = iota // a defect or a failed disk
	ErrInvalid                   // the input is wrong and stays wrong
	ErrNotFound
	ErrExists
	ErrConflict        // somebody else changed it first; read again
	ErrDenied          // permission or policy
	ErrUnauthenticated // no or bad credentials
	ErrUnavailable     // try again later
	ErrExhausted       // a limit is reached; try again later or ask for less
	ErrUnsupported     // this build or backend cannot
)

// Error reads "cannot <verb> <object>: cause" and may carry a hint for the reader.
type Error struct {
	Kind ErrorKind
	Op   string // "<verb> <object>", without "cannot"
	Hint string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("cannot %s: %v", e.Op, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error; op is "<verb> <object>", the format gives the cause.
func Errorf(kind ErrorKind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// WithHint returns a copy of e that tells the reader what to do.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// ErrorKindOf is the kind of the first *Error in err's chain, ErrInternal without one.
func ErrorKindOf(err error) ErrorKind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ErrInternal
}
