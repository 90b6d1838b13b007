package dispatch

import "errors"

// What can come of a call, and what its caller must do. Errors of backends wrap one of these and say in words what the system said.
var (
	// ErrUnsupported: this cluster cannot. Do not try again for the life of the backend; the text is the capability's reason.
	ErrUnsupported = errors.New("not supported")
	// ErrNotFound: the system does not know the object, and no history can tell. It is no proof that it never was or is over: what has
	// been seen ended stays so, anything else is lost evidence.
	ErrNotFound = errors.New("not found")
	// ErrOutcomeUnknown: the call may have had its effect, or have it until CallBound after its deadline. Look (Find, Inspect) until then;
	// only afterwards is what is not there not going to be.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrUnavailable: the system could not be asked, and nothing has changed. Try again later; conclude nothing.
	ErrUnavailable = errors.New("batch system unavailable")
	// ErrRefused: the system, or the adapter before it, refuses the spec or the call as it is. Do not repeat it unchanged.
	ErrRefused = errors.New("refused")
	// ErrDenied: this account may not. Somebody must change rights.
	ErrDenied = errors.New("permission denied")
	// ErrReadOnly: the backend is read-only and sends nothing that changes anything.
	ErrReadOnly = errors.New("read-only")
	// ErrStale: another hold than the one named is in place, or none. Read it and decide again.
	ErrStale = errors.New("stale hold instance")
	// ErrNotPending: the object has started, so it can be held no more.
	ErrNotPending = errors.New("no longer pending")
	// ErrEnded: the object is over.
	ErrEnded = errors.New("already ended")
)
